//! A stream of blocks that is read ahead, to see how many blocks follow the next ones.

use crate::{BlockStream, PipelineError, PreparedBlock, tree::MAX_BATCH_BLOCKS};
use retrie_chainspec::primitives::Block;
use std::{collections::VecDeque, time::Duration};

/// No more blocks are read ahead while this many bytes of block RLP wait: otherwise large blocks
/// would fill the memory. Blocks then come one by one.
const MAX_BYTES: usize = 256 << 20;

/// A stream of blocks with the blocks that were read ahead.
pub(crate) struct LookaheadStream {
    stream: BlockStream,
    blocks: VecDeque<PreparedBlock>,
    bytes: usize,
    /// What follows the blocks, once known: an error or the end of the stream.
    end: Option<Option<PipelineError>>,
}

impl LookaheadStream {
    pub(crate) const fn new(stream: BlockStream) -> Self {
        Self { stream, blocks: VecDeque::new(), bytes: 0, end: None }
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

    /// The next block; `None` if an error or the end comes first.
    pub(crate) fn peek(&mut self) -> Option<&PreparedBlock> {
        self.fill(1);
        self.blocks.front()
    }

    /// The next blocks that are prepared already, at most `most`.
    pub(crate) fn coming(&mut self, most: usize) -> impl Iterator<Item = &PreparedBlock> {
        let looked_at = self.blocks.len().min(most);
        self.blocks.iter().take(looked_at).chain(self.stream.coming(most - looked_at))
    }

    /// The next block or error.
    pub(crate) fn next(&mut self) -> Option<Result<PreparedBlock, PipelineError>> {
        self.fill(1);
        if let Some(block) = self.blocks.pop_front() {
            self.bytes -= bytes(&block);
            return Some(Ok(block));
        }
        self.end.as_mut().and_then(Option::take).map(Err)
    }

    /// The next blocks that may form one batch: each is the child of the one before, and at least
    /// `behind` more blocks follow the last one. Empty if only a single block qualifies.
    pub(crate) fn batch(&mut self, behind: u64) -> &[PreparedBlock] {
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

    /// Takes the next `count` blocks, which have been peeked at.
    pub(crate) fn take(&mut self, count: usize) -> Vec<PreparedBlock> {
        let taken: Vec<_> = self.blocks.drain(..count.min(self.blocks.len())).collect();
        self.bytes -= taken.iter().map(bytes).sum::<usize>();
        taken
    }

    /// Puts blocks back in front of all others. Their preparation time has been counted.
    pub(crate) fn put_back(&mut self, blocks: impl DoubleEndedIterator<Item = PreparedBlock>) {
        for block in blocks.rev() {
            self.bytes += bytes(&block);
            self.blocks.push_front(PreparedBlock { prepare: Duration::ZERO, ..block });
        }
    }
}

fn bytes(block: &PreparedBlock) -> usize {
    Block::rlp_length_for(block.block.header(), block.block.body())
}
