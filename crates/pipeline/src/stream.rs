//! Blocks made ready ahead of execution.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | `import-read` | decode the block files in order | [`CHUNKS`] chunks in flight | end of files, error, receiver gone |
//! | `import-prepare` (+ rayon) | hash, check header and body, recover senders | the same | the same |
//! | the importer | everything that needs the state | | |

use crate::{PipelineError, recover::recover_senders};
use alloy_consensus::BlockHeader;
use crossbeam_channel::{Receiver, Sender, bounded};
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{RecoveredBlock, SealedBlock},
};
use retrie_sources::{BlockSource, SourceBlock};
use std::{sync::Arc, time::Duration, time::Instant};

/// Chunks that wait in each channel.
const CHUNKS: usize = 3;
/// A chunk ends after this many blocks ...
const CHUNK_BLOCKS: usize = 256;
/// ... or this many bytes of block RLP.
const CHUNK_BYTES: u64 = 4 << 20;

/// A block that passed every check that needs no other block.
#[derive(Clone, Debug)]
pub(crate) struct PreparedBlock {
    pub(crate) block: RecoveredBlock,
    /// Time its senders and checks took, on some other thread.
    pub(crate) prepare: Duration,
}

/// Checks a block by itself and recovers its senders.
pub(crate) fn prepare(
    spec: &Arc<ChainSpec>,
    block: retrie_chainspec::primitives::Block,
) -> Result<PreparedBlock, PipelineError> {
    let start = Instant::now();
    let recovered = recover_senders(spec, block)?;
    check_alone(spec, recovered.sealed_block())?;
    Ok(PreparedBlock { block: recovered, prepare: start.elapsed() })
}

fn check_alone(spec: &Arc<ChainSpec>, block: &SealedBlock) -> Result<(), PipelineError> {
    if block.number() == 0 {
        return Ok(());
    }
    retrie_consensus::validate_header(spec, block.sealed_header())
        .and_then(|()| retrie_consensus::validate_body(spec, block))
        .map_err(|source| PipelineError::invalid(block, source))
}

/// Blocks of some sources, prepared in order.
#[derive(Debug)]
pub(crate) struct BlockStream {
    chunks: Receiver<Result<Vec<PreparedBlock>, PipelineError>>,
    current: std::vec::IntoIter<PreparedBlock>,
    failed: bool,
}

impl BlockStream {
    /// Starts reading `sources`, one after the other; blocks outside `range` are passed over.
    pub(crate) fn start(
        spec: Arc<ChainSpec>,
        sources: Vec<BlockSource>,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Self, PipelineError> {
        let (read, raw) = bounded(CHUNKS);
        let (ready, chunks) = bounded(CHUNKS);
        spawn("import-read", move || read_chunks(sources, &range, &read))?;
        spawn("import-prepare", move || prepare_chunks(&spec, &raw, &ready))?;
        Ok(Self { chunks, current: Vec::new().into_iter(), failed: false })
    }
}

impl Iterator for BlockStream {
    type Item = Result<PreparedBlock, PipelineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(block) = self.current.next() {
                return Some(Ok(block));
            }
            if self.failed {
                return None;
            }
            match self.chunks.recv() {
                Ok(Ok(chunk)) => self.current = chunk.into_iter(),
                Ok(Err(error)) => {
                    self.failed = true;
                    return Some(Err(error));
                }
                Err(_) => return None,
            }
        }
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), PipelineError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .map_err(|source| PipelineError::Io { action: format!("starting thread {name}"), source })
}

type RawChunk = (Vec<SourceBlock>, Option<PipelineError>);

fn read_chunks(
    sources: Vec<BlockSource>,
    range: &std::ops::RangeInclusive<u64>,
    out: &Sender<RawChunk>,
) {
    let mut chunk = Vec::new();
    let mut bytes = 0;
    for block in sources.into_iter().flatten() {
        match block {
            Ok(block) if !range.contains(&block.block.header.number) => {}
            Ok(block) => {
                bytes += block.encoded_len;
                chunk.push(block);
                if chunk.len() >= CHUNK_BLOCKS || bytes >= CHUNK_BYTES {
                    bytes = 0;
                    if out.send((std::mem::take(&mut chunk), None)).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                // The blocks before the damage are good.
                let _ = out.send((chunk, Some(error.into())));
                return;
            }
        }
    }
    let _ = out.send((chunk, None));
}

fn prepare_chunks(
    spec: &Arc<ChainSpec>,
    raw: &Receiver<RawChunk>,
    out: &Sender<Result<Vec<PreparedBlock>, PipelineError>>,
) {
    for (chunk, damage) in raw {
        let prepared: Vec<_> =
            chunk.into_par_iter().map(|block| prepare(spec, block.block)).collect();
        let mut good = Vec::with_capacity(prepared.len());
        let mut failure = damage;
        for block in prepared {
            match block {
                Ok(block) => good.push(block),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if out.send(Ok(good)).is_err() {
            return;
        }
        if let Some(error) = failure {
            let _ = out.send(Err(error));
            return;
        }
    }
}
