//! A stream of blocks that is read ahead, to see how many blocks follow the next ones.

use crate::{BlockQueue, BlockStream, PipelineError, PreparedBlock, tree::MAX_BATCH_BLOCKS};
use retrie_chainspec::primitives::Block;
use std::{collections::VecDeque, time::Duration};

/// No more blocks are read ahead while this many bytes of block RLP wait: otherwise large blocks
/// would fill the memory. Blocks then come one by one.
const MAX_BYTES: usize = 256 << 20;

/// A stream of blocks with the blocks that were read ahead.
pub(crate) struct LookaheadStream {
    stream: BlockStream,
    batch_depth: Option<u64>,
    blocks: VecDeque<PreparedBlock>,
    bytes: usize,
    /// What follows the blocks, once known: an error or the end of the stream.
    end: Option<Option<PipelineError>>,
}

impl LookaheadStream {
    /// `batch_depth`: number of blocks that must follow a batch; `None` if there are no batches.
    pub(crate) const fn new(stream: BlockStream, batch_depth: Option<u64>) -> Self {
        Self { stream, batch_depth, blocks: VecDeque::new(), bytes: 0, end: None }
    }

    fn fill(&mut self, count: usize) {
        while self.blocks.len() < count && self.bytes < MAX_BYTES && self.end.is_none() {
            match self.stream.next() {
                Some(Ok(block)) => {
                    self.bytes += bytes(&block);
                    self.blocks.push_back(block);
                }
                Some(Err(error)) => self.end = Some(Some(error)),
                None => self.end = Some(None),
            }
        }
    }
}

impl BlockQueue for LookaheadStream {
    fn peek(&mut self) -> Option<&PreparedBlock> {
        self.fill(1);
        self.blocks.front()
    }

    fn upcoming(&mut self, max: usize) -> impl Iterator<Item = &PreparedBlock> {
        let buffered = self.blocks.len().min(max);
        self.blocks.iter().take(buffered).chain(self.stream.upcoming(max - buffered))
    }

    fn pop(&mut self) -> Option<Result<PreparedBlock, PipelineError>> {
        self.fill(1);
        if let Some(block) = self.blocks.pop_front() {
            self.bytes -= bytes(&block);
            return Some(Ok(block));
        }
        self.end.as_mut().and_then(Option::take).map(Err)
    }

    /// The next blocks that may form one batch: each is the child of the one before, and at least
    /// `batch_depth` more blocks follow the last one. Empty if only a single block qualifies.
    fn batch(&mut self) -> &[PreparedBlock] {
        let Some(behind) = self.batch_depth else { return &[] };
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        self.fill(behind.saturating_add(MAX_BATCH_BLOCKS));
        let blocks = &*self.blocks.make_contiguous();
        let links = blocks.windows(2).take_while(|two| two[1].parent_hash() == two[0].hash());
        let linked = (links.count() + 1).min(blocks.len());
        match linked.saturating_sub(behind).min(MAX_BATCH_BLOCKS) {
            0 | 1 => &[],
            count => &blocks[..count],
        }
    }

    fn take(&mut self, count: usize) -> Vec<PreparedBlock> {
        let taken: Vec<_> = self.blocks.drain(..count.min(self.blocks.len())).collect();
        self.bytes -= taken.iter().map(bytes).sum::<usize>();
        taken
    }

    /// Their preparation time has been counted.
    fn put_back(&mut self, blocks: Vec<PreparedBlock>) {
        for block in blocks.into_iter().rev() {
            self.bytes += bytes(&block);
            self.blocks.push_front(PreparedBlock { prepare: Duration::ZERO, ..block });
        }
    }
}

fn bytes(block: &PreparedBlock) -> usize {
    Block::rlp_length_for(block.block.header(), block.block.body())
}
