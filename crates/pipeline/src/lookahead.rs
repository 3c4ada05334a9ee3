//! Blocks of a stream that are looked at before their turn, to see how many follow them.

use crate::{BlockStream, PipelineError, PreparedBlock, tree::RUN_BLOCKS};
use retrie_chainspec::primitives::Block;
use std::{collections::VecDeque, time::Duration};

/// No more is looked at once this many bytes of block RLP wait: a long look ahead, at large blocks, must
/// not fill the memory. Blocks then come one by one.
const MOST_BYTES: usize = 256 << 20;

/// A stream of blocks of which some have been looked at.
pub(crate) struct Lookahead {
    stream: BlockStream,
    blocks: VecDeque<PreparedBlock>,
    bytes: usize,
    /// What comes after the blocks, once it is known: an error, or nothing.
    end: Option<Option<PipelineError>>,
}

impl Lookahead {
    pub(crate) const fn new(stream: BlockStream) -> Self {
        Self { stream, blocks: VecDeque::new(), bytes: 0, end: None }
    }

    fn look(&mut self, count: usize) {
        while self.blocks.len() < count && self.bytes < MOST_BYTES && self.end.is_none() {
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

    /// The next block, if one comes before an error or the end.
    pub(crate) fn peek(&mut self) -> Option<&PreparedBlock> {
        self.look(1);
        self.blocks.front()
    }

    /// The next blocks, as far as they are there already, at most `most`.
    pub(crate) fn coming(&mut self, most: usize) -> impl Iterator<Item = &PreparedBlock> {
        let looked_at = self.blocks.len().min(most);
        self.blocks.iter().take(looked_at).chain(self.stream.coming(most - looked_at))
    }

    /// Whatever comes next.
    pub(crate) fn next(&mut self) -> Option<Result<PreparedBlock, PipelineError>> {
        self.look(1);
        if let Some(block) = self.blocks.pop_front() {
            self.bytes -= bytes(&block);
            return Some(Ok(block));
        }
        self.end.as_mut().and_then(Option::take).map(Err)
    }

    /// The next blocks that may be one run: each is the child of the one before, and on the last of them
    /// stand at least `behind` more, so that all of them lie deeper than these. None, where only a
    /// single block could.
    pub(crate) fn run(&mut self, behind: u64) -> &[PreparedBlock] {
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        self.look(behind.saturating_add(RUN_BLOCKS));
        let blocks = &*self.blocks.make_contiguous();
        let links = blocks.windows(2).take_while(|two| two[1].parent_hash() == two[0].hash());
        let linked = (links.count() + 1).min(blocks.len());
        match linked.saturating_sub(behind).min(RUN_BLOCKS) {
            0 | 1 => &[],
            count => &blocks[..count],
        }
    }

    /// Takes the next `count` blocks, which have been looked at.
    pub(crate) fn take(&mut self, count: usize) -> Vec<PreparedBlock> {
        let taken: Vec<_> = self.blocks.drain(..count.min(self.blocks.len())).collect();
        self.bytes -= taken.iter().map(bytes).sum::<usize>();
        taken
    }

    /// Lets blocks that were taken come again, before all others. Their preparation has been counted.
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
