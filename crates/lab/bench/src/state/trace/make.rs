//! Makes trace files, from any source of accesses.

use super::{
    answers, encode::TraceEncoder, error::MakeTraceError, parquet_tables, prestate,
    synthetic::SyntheticRecipe,
};
use crate::state::real::{AccessModel, BlockAccesses, BlockCorpus, TraceFigures};
use retrie_pipeline::replay::BundleReplayOptions;
use retrie_sources::{AtomicFile, RpcClient};
use std::{
    io::{self, Write},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Where the accesses of a trace are from.
#[derive(Debug)]
pub enum AccessSource<'a> {
    /// A node with the `debug` namespace and the state of these blocks.
    Node(&'a RpcClient, RangeInclusive<u64>),
    /// Files of such answers, with a block a line.
    Answers(Vec<PathBuf>),
    /// A folder of Parquet tables.
    Parquet(PathBuf),
    /// Real blocks on disk; bundles are executed.
    Corpus(&'a BlockCorpus, BundleReplayOptions<'a>),
    /// Random accesses with given counts.
    Synthetic(SyntheticRecipe),
}

impl AccessSource<'_> {
    /// What the trace says about where its blocks are from. Of an endpoint only the host is named,
    /// of a file the name without its folder.
    fn name(&self) -> String {
        let of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match self {
            Self::Node(client, blocks) => {
                let (from, to) = (blocks.start(), blocks.end());
                format!("blocks {from} to {to} of {}", client.endpoint())
            }
            Self::Answers(files) => match &files[..] {
                [file] => format!("answers in {}", of(file)),
                _ => format!("answers in {} files", files.len()),
            },
            Self::Parquet(folder) => format!("Parquet tables in {}", of(folder)),
            Self::Corpus(..) => "real blocks of the data folder".into(),
            Self::Synthetic(recipe) => recipe.source(),
        }
    }
}

/// A trace file that was made.
#[derive(Debug)]
pub struct TraceSummary {
    /// Its size.
    pub figures: TraceFigures,
    /// Number of its last block.
    pub last: u64,
    /// Why its source has ended early. The trace has the blocks up to there.
    pub ended: Result<(), MakeTraceError>,
}

/// Makes a trace file. If the source fails or `stop` is set after the first block, the file has the
/// blocks before that, and [`TraceSummary::ended`] says why. `progress` gets the number of blocks
/// so far.
///
/// # Errors
/// If the source has no blocks, or the file cannot be written. Then the file is as it was before.
pub fn make_trace(
    source: &AccessSource<'_>,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<TraceSummary, MakeTraceError> {
    let target = |error| MakeTraceError::Target(Box::new(error));
    let failed = |source| MakeTraceError::Write { file: file.into(), source };
    let output = AtomicFile::create(file).map_err(target)?;
    let mut sink = TraceSink {
        encoder: TraceEncoder::new(output, &source.name()).map_err(&failed)?,
        failed: &failed,
        last: None,
        progress,
    };
    let ended = sink.fill(source, stop);
    let TraceSink { encoder, last, .. } = sink;
    let (figures, Some(last)) = (encoder.figures(), last) else {
        return Err(ended.err().unwrap_or(MakeTraceError::NoBlocks));
    };
    if let Err(error @ MakeTraceError::Write { .. }) = ended {
        // The last block may be there in part.
        return Err(error);
    }
    encoder.finish().map_err(&failed)?.finish(file).map_err(target)?;
    Ok(TraceSummary { figures, last, ended })
}

/// Puts blocks into a trace.
struct TraceSink<'a, W: Write> {
    encoder: TraceEncoder<W>,
    failed: &'a dyn Fn(io::Error) -> MakeTraceError,
    /// Number of the last block, with accesses or not.
    last: Option<u64>,
    progress: &'a mut dyn FnMut(u64),
}

impl<W: Write> TraceSink<'_, W> {
    fn fill(&mut self, source: &AccessSource<'_>, stop: &AtomicBool) -> Result<(), MakeTraceError> {
        let mut model = AccessModel::default();
        let go_on = || match stop.load(Ordering::Relaxed) {
            true => Err(MakeTraceError::Stopped),
            false => Ok(()),
        };
        match source {
            AccessSource::Node(client, blocks) => {
                for number in blocks.clone() {
                    go_on()?;
                    let traces = client.block_traces(number)?;
                    self.push(&prestate::accesses(&traces, &mut model)?)?;
                }
                Ok(())
            }
            AccessSource::Answers(files) => files.iter().try_for_each(|file| {
                answers::read(file, &mut |traces| {
                    go_on()?;
                    self.push(&prestate::accesses(&traces, &mut model)?)
                })
            }),
            AccessSource::Parquet(folder) => parquet_tables::read(folder, &mut |diff| {
                go_on()?;
                self.push(&diff.accesses(&mut model))
            }),
            AccessSource::Corpus(corpus, options) => {
                corpus.visit(options, stop, &mut |block| self.push(&block))
            }
            AccessSource::Synthetic(recipe) => recipe.generate(&mut |block, contracts| {
                go_on()?;
                for (key, value) in contracts {
                    self.encoder.add_key(key, Some(&value));
                }
                self.push(&block)
            }),
        }
    }

    fn push(&mut self, block: &BlockAccesses) -> Result<(), MakeTraceError> {
        let number = block.number;
        if let Some(after) = self.last.filter(|last| *last >= number) {
            return Err(MakeTraceError::Order { number, after });
        }
        self.encoder.push(number, &block.touches).map_err(self.failed)?;
        self.last = Some(number);
        (self.progress)(self.encoder.figures().blocks);
        Ok(())
    }
}
