//! Preparation of blocks ahead of their execution.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | `import-read` | decode the block files in order | [`CHUNKS`] chunks in flight | end of files, error, receiver gone |
//! | `import-prepare` (+ rayon) | hash, check header and body, recover senders | the same | the same |
//! | the importer | everything that needs the state | | |
//!
//! Blocks that are already in memory ([`BlockStream::of_blocks`]) or in a database skip the first
//! thread.
//!
//! The last chunk is marked. If a channel closes before it, the sending thread has panicked.

use crate::{BlockRangeError, InvalidBlockError, PipelineError, recover::recover_senders};
use alloy_consensus::BlockHeader;
use alloy_primitives::{Address, B256};
use crossbeam_channel::{Receiver, Sender, bounded};
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock, SealedBlock},
};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::BlockAccessList;
use retrie_sources::{BlockSource, SourceBlock};
use retrie_state::StateError;
use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

/// Chunks that wait in each channel.
const CHUNKS: usize = 3;
/// A chunk ends after this many blocks ...
const CHUNK_BLOCKS: usize = 256;
/// ... or this many bytes of block RLP.
const CHUNK_BYTES: u64 = 4 << 20;
/// Blocks in a chunk that is read from a database, whatever their size.
const STORED_CHUNK_BLOCKS: usize = 32;

/// A block that passed all checks that need no other block.
#[derive(Clone, Debug)]
pub struct PreparedBlock {
    pub(crate) block: Arc<RecoveredBlock>,
    /// The BAL that its header commits to, if it came with the block.
    pub(crate) access_list: Option<Arc<BlockAccessList>>,
    /// Time that its senders and checks took on another thread.
    pub(crate) prepare: Duration,
}

impl PreparedBlock {
    /// The block.
    pub const fn block(&self) -> &Arc<RecoveredBlock> {
        &self.block
    }

    /// The same block with its BAL (EIP-7928), given as RLP. The keys in it are prefetched, and the
    /// transactions are executed in parallel.
    ///
    /// # Errors
    /// Verdicts about the block: the BAL is not the one that its header commits to, or no execution
    /// can yield it.
    pub fn with_access_list(mut self, rlp: &[u8]) -> Result<Self, InvalidBlockError> {
        let start = Instant::now();
        let block = self.block.sealed_block();
        let list = retrie_consensus::validate_access_list(block, rlp)
            .map_err(|source| InvalidBlockError::rule(block.sealed_header(), source))?;
        self.access_list = Some(Arc::new(list));
        self.prepare += start.elapsed();
        Ok(self)
    }

    /// The block, taken out.
    pub fn into_block(self) -> Arc<RecoveredBlock> {
        self.block
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.block.number()
    }

    /// Its hash.
    pub fn hash(&self) -> B256 {
        self.block.hash()
    }

    /// Hash of its parent.
    pub fn parent_hash(&self) -> B256 {
        self.block.parent_hash()
    }
}

/// Checks a block without its parent, and recovers its senders.
///
/// # Errors
/// Verdicts about the block.
pub fn prepare(spec: &Arc<ChainSpec>, block: Block) -> Result<PreparedBlock, InvalidBlockError> {
    let start = Instant::now();
    let count = block.body.transactions.len();
    let recovered = tracing::debug_span!("senders", transactions = count as i64)
        .in_scope(|| recover_senders(spec, block))?;
    tracing::debug_span!("checks").in_scope(|| check_recovered(spec, recovered, start))
}

/// As [`prepare`] for a block whose senders may be known.
fn prepare_with(
    spec: &Arc<ChainSpec>,
    block: Block,
    senders: Option<Vec<Address>>,
) -> Result<PreparedBlock, InvalidBlockError> {
    let start = Instant::now();
    let recovered = match senders {
        Some(senders) => RecoveredBlock::new_unhashed(block, senders),
        None => recover_senders(spec, block)?,
    };
    check_recovered(spec, recovered, start)
}

/// The rest of a preparation that began at `start`.
fn check_recovered(
    spec: &Arc<ChainSpec>,
    recovered: RecoveredBlock,
    start: Instant,
) -> Result<PreparedBlock, InvalidBlockError> {
    check_alone(spec, recovered.sealed_block())?;
    let block = Arc::new(recovered);
    Ok(PreparedBlock { block, access_list: None, prepare: start.elapsed() })
}

fn check_alone(spec: &Arc<ChainSpec>, block: &SealedBlock) -> Result<(), InvalidBlockError> {
    if block.number() == 0 {
        return Ok(());
    }
    retrie_consensus::validate_header(spec, block.sealed_header())
        .and_then(|()| retrie_consensus::validate_body(spec, block))
        .map_err(|source| InvalidBlockError::rule(block.sealed_header(), source))
}

/// Consecutive blocks of a stream.
#[derive(Debug)]
struct StreamChunk<T> {
    blocks: Vec<T>,
    /// The end of the stream, if this is the last chunk; `None` if more chunks follow.
    end: Option<Result<(), PipelineError>>,
}

/// Prepared blocks of one or more sources, in order.
#[derive(Debug)]
pub struct BlockStream {
    chunks: Receiver<StreamChunk<PreparedBlock>>,
    /// Blocks of the chunks that were received.
    current: VecDeque<PreparedBlock>,
    end: Option<Result<(), PipelineError>>,
    ended: bool,
}

impl BlockStream {
    /// Starts to read `sources`, one after the other; blocks outside `range` are skipped. If
    /// `range` has an end and the sources do not reach it, an error follows the last block.
    pub(crate) fn start(
        spec: Arc<ChainSpec>,
        sources: Vec<BlockSource>,
        range: RangeInclusive<u64>,
    ) -> Result<Self, PipelineError> {
        let (read, raw) = bounded(CHUNKS);
        let (ready, chunks) = bounded(CHUNKS);
        spawn("import-read", move || read_chunks(sources, &range, &read))?;
        spawn("import-prepare", move || prepare_chunks(&spec, &raw, &ready))?;
        Ok(Self::of(chunks))
    }

    /// Starts to read the canonical blocks of a snapshot whose numbers are in `range`. Their stored
    /// senders are trusted.
    pub(crate) fn stored(
        spec: Arc<ChainSpec>,
        read: Arc<ReadTxn>,
        range: RangeInclusive<u64>,
    ) -> Result<Self, PipelineError> {
        let (ready, chunks) = bounded(CHUNKS);
        spawn("import-prepare", move || {
            let mut numbers = range;
            loop {
                let part: Vec<u64> = numbers.by_ref().take(STORED_CHUNK_BLOCKS).collect();
                let end = (part.len() < STORED_CHUNK_BLOCKS).then_some(Ok(()));
                let one = |number| {
                    let (block, senders) = stored_block(&read, number)?.split();
                    Ok(prepare_with(&spec, block, Some(senders))?)
                };
                let chunk = chunk_of(part.into_par_iter().map(one).collect(), end);
                let ended = chunk.end.is_some();
                if ready.send(chunk).is_err() || ended {
                    return;
                }
            }
        })?;
        Ok(Self::of(chunks))
    }

    /// Starts to prepare `blocks`. Senders are trusted where they are given.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn of_blocks(
        spec: Arc<ChainSpec>,
        blocks: Vec<(Block, Option<Vec<Address>>)>,
    ) -> Result<Self, PipelineError> {
        let (ready, chunks) = bounded(CHUNKS);
        spawn("import-prepare", move || {
            for (block, senders) in blocks {
                let chunk = match prepare_with(&spec, block, senders) {
                    Ok(block) => StreamChunk { blocks: vec![block], end: None },
                    Err(error) => StreamChunk { blocks: Vec::new(), end: Some(Err(error.into())) },
                };
                let ended = chunk.end.is_some();
                if ready.send(chunk).is_err() || ended {
                    return;
                }
            }
            let _ = ready.send(StreamChunk { blocks: Vec::new(), end: Some(Ok(())) });
        })?;
        Ok(Self::of(chunks))
    }
}

impl BlockStream {
    const fn of(chunks: Receiver<StreamChunk<PreparedBlock>>) -> Self {
        Self { chunks, current: VecDeque::new(), end: None, ended: false }
    }

    /// The next blocks that are prepared already, at most `max`.
    pub fn upcoming(&mut self, max: usize) -> impl Iterator<Item = &PreparedBlock> {
        while self.current.len() < max && !self.knows_end() {
            let Ok(chunk) = self.chunks.try_recv() else { break };
            self.take(chunk);
        }
        self.current.iter().take(max)
    }

    /// Waits for the next block; `None` if an error or the end comes first.
    pub(crate) fn peek(&mut self) -> Option<&PreparedBlock> {
        while self.current.is_empty() && !self.knows_end() {
            match self.chunks.recv() {
                Ok(chunk) => self.take(chunk),
                Err(_) => self.end = Some(Err(PipelineError::Thread { thread: "reading" })),
            }
        }
        self.current.front()
    }

    const fn knows_end(&self) -> bool {
        self.ended || self.end.is_some()
    }

    fn take(&mut self, chunk: StreamChunk<PreparedBlock>) {
        self.current.extend(chunk.blocks);
        self.end = chunk.end;
    }
}

impl Iterator for BlockStream {
    type Item = Result<PreparedBlock, PipelineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.peek().is_some() {
            return self.current.pop_front().map(Ok);
        }
        self.ended = true;
        self.end.take()?.err().map(Err)
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), PipelineError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .map_err(|source| PipelineError::Io { action: format!("starting thread {name}"), source })
}

fn read_chunks(
    sources: Vec<BlockSource>,
    range: &RangeInclusive<u64>,
    out: &Sender<StreamChunk<SourceBlock>>,
) {
    let mut blocks = Vec::new();
    let mut bytes = 0;
    let mut highest = None;
    let mut end = None;
    for block in sources.into_iter().flatten() {
        match block {
            Ok(block) if !range.contains(&block.block.header.number) => {}
            Ok(block) => {
                highest = highest.max(Some(block.block.header.number));
                bytes += block.encoded_len;
                blocks.push(block);
                if blocks.len() >= CHUNK_BLOCKS || bytes >= CHUNK_BYTES {
                    bytes = 0;
                    let chunk = StreamChunk { blocks: std::mem::take(&mut blocks), end: None };
                    if out.send(chunk).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                // The blocks before the damage are good.
                end = Some(Err(error.into()));
                break;
            }
        }
    }
    let end = end.unwrap_or_else(|| reaches(range, highest).map_err(PipelineError::from));
    let _ = out.send(StreamChunk { blocks, end: Some(end) });
}

/// Checks that blocks up to `highest` are all that was requested.
fn reaches(range: &RangeInclusive<u64>, highest: Option<u64>) -> Result<(), BlockRangeError> {
    let (from, to) = (*range.start(), *range.end());
    match highest {
        None => Err(BlockRangeError::NothingInRange { from, to }),
        Some(last) if to != u64::MAX && last < to => Err(BlockRangeError::FilesEnd { last, to }),
        Some(_) => Ok(()),
    }
}

fn prepare_chunks(
    spec: &Arc<ChainSpec>,
    raw: &Receiver<StreamChunk<SourceBlock>>,
    out: &Sender<StreamChunk<PreparedBlock>>,
) {
    for StreamChunk { blocks, end } in raw {
        let prepared =
            blocks.into_par_iter().map(|block| Ok(prepare(spec, block.block)?)).collect();
        let chunk = chunk_of(prepared, end);
        let ended = chunk.end.is_some();
        if out.send(chunk).is_err() || ended {
            return;
        }
    }
}

/// A chunk of the blocks up to the first error, which becomes the end.
fn chunk_of(
    prepared: Vec<Result<PreparedBlock, PipelineError>>,
    mut end: Option<Result<(), PipelineError>>,
) -> StreamChunk<PreparedBlock> {
    let mut blocks = Vec::with_capacity(prepared.len());
    for block in prepared {
        match block {
            Ok(block) => blocks.push(block),
            Err(error) => {
                end = Some(Err(error));
                break;
            }
        }
    }
    StreamChunk { blocks, end }
}

fn stored_block(read: &ReadTxn, number: u64) -> Result<RecoveredBlock, PipelineError> {
    let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
    let hash = read.canonical_hash(number)?.ok_or_else(lost)?;
    Ok(read.recovered_block(&hash)?.ok_or_else(lost)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_died_is_not_the_end_of_the_files() {
        let (sender, chunks) = bounded(1);
        sender.send(StreamChunk { blocks: Vec::new(), end: None }).unwrap();
        drop(sender);
        let mut stream = BlockStream::of(chunks);
        assert!(matches!(stream.next(), Some(Err(PipelineError::Thread { .. }))));
        assert!(stream.next().is_none());
    }
}
