//! Complete imports: block files, or the blocks of another datadir, into a chain.

use crate::{
    BlockImporter, BlockStream, ChainStore, ImportOptions, ImportTimes, PipelineError,
    importer::{ImportEnd, import_stream},
    report::{
        ImportReport, IoAmplification, PartFigures, ReplayResult, TimeBreakdown, TipReport,
        peak_rss_bytes,
    },
};
use alloy_primitives::B256;
use retrie_sources::BlockSource;
use retrie_state_store::CounterSnapshot;
use retrie_telemetry::Metrics;
use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// The outcome of an import.
#[derive(Debug)]
pub struct ImportOutcome {
    /// Figures. The tip is durable.
    pub report: ImportReport,
    /// How it ended. An error names the first block that is invalid or cannot be read.
    pub end: Result<ImportEnd, PipelineError>,
    /// Times by kind of work.
    pub times: ImportTimes,
    /// Keys read by the EVM, keys changed.
    pub key_operations: (u64, u64),
    /// Rows and bytes at the backend's node interface.
    pub counts: CounterSnapshot,
}

/// Imports the blocks of `sources` whose numbers lie in `range`, in order, into `chain`.
///
/// `progress` is called after each block. Setting `stop` ends the import after the current block.
/// All imported blocks are then durable, as they are after an error.
///
/// # Errors
/// If the import could not begin. A later error is in the outcome.
pub fn import(
    chain: &ChainStore,
    sources: Vec<BlockSource>,
    range: RangeInclusive<u64>,
    options: ImportOptions,
    metrics: &Metrics,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportOutcome, PipelineError> {
    let stream = || BlockStream::start(chain.spec.clone(), sources, range);
    import_from(chain, stream, options, metrics, stop, progress)
}

/// Imports the blocks of `stream`.
pub(crate) fn import_from(
    chain: &ChainStore,
    stream: impl FnOnce() -> Result<BlockStream, PipelineError>,
    options: ImportOptions,
    metrics: &Metrics,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportOutcome, PipelineError> {
    let start = Instant::now();
    let counts = chain.state().counts();
    std::thread::scope(|scope| {
        let mut importer = BlockImporter::new(chain, options, metrics.clone(), scope)?;
        let end = import_stream(&mut importer, stream()?, stop, progress);
        if end.is_err() {
            importer.reset_to_durable()?;
        }
        let mut report = importer.report();
        report.seconds = start.elapsed().as_secs_f64();
        Ok(ImportOutcome {
            report,
            end,
            times: importer.times(),
            key_operations: importer.key_operations(),
            counts: &chain.state().counts() - &counts,
        })
    })
}

/// Imports the blocks below `number` and takes them out of `sources`: blocks from `number` on can
/// then be measured. Ends early, without an error, if the sources end or `stop` is set.
///
/// # Errors
/// As the error in the outcome of [`import`].
pub fn import_below(
    chain: &ChainStore,
    sources: &mut [BlockSource],
    number: u64,
    metrics: &Metrics,
    stop: &AtomicBool,
) -> Result<(), PipelineError> {
    std::thread::scope(|scope| {
        let mut importer =
            BlockImporter::new(chain, ImportOptions::default(), metrics.clone(), scope)?;
        while importer.head().number + 1 < number && !stop.load(Ordering::Relaxed) {
            let Some(block) = sources.iter_mut().find_map(Iterator::next) else { break };
            importer.import(block?.block)?;
        }
        importer.flush()
    })
}

impl ImportOutcome {
    /// The outcome if a block before the requested range is wrong: nothing was imported.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub fn failed_before(chain: &ChainStore, error: PipelineError) -> Result<Self, PipelineError> {
        let tip = chain.tip()?;
        let tip = TipReport { number: tip.number, hash: tip.hash, ..TipReport::default() };
        Ok(Self {
            report: ImportReport { tip, ..ImportReport::default() },
            end: Err(error),
            times: ImportTimes::default(),
            key_operations: (0, 0),
            counts: CounterSnapshot::default(),
        })
    }
}

/// The figures of an import as a result of `retrie replay`, for blocks from `from` on. `parent` is
/// the hash of the block before.
pub fn chain_replay_result(
    chain: &ChainStore,
    from: u64,
    parent: B256,
    outcome: &ImportOutcome,
) -> Result<ReplayResult, PipelineError> {
    let ImportOutcome { report, times, key_operations, counts, .. } = outcome;
    let mut breakdown = TimeBreakdown {
        execution: times.execution.as_secs_f64(),
        authentication: (times.reads + times.authentication).as_secs_f64(),
        storage_io: times.commit_wait.as_secs_f64(),
        other: 0.0,
    };
    breakdown.attribute_reads(counts.read_time);
    breakdown.set_other(report.seconds);
    let rate = |n: f64| if report.seconds > 0.0 { n / report.seconds } else { 0.0 };
    let failures: Vec<_> =
        outcome.end.as_ref().err().map(ToString::to_string).into_iter().collect();
    // An error that names no block is about the next block: the imported ones are good.
    let failed_block =
        |error: &PipelineError| error.block_number().unwrap_or(report.tip.number + 1);
    let failed_blocks = outcome.end.as_ref().err().map(failed_block).into_iter().collect();
    Ok(ReplayResult {
        backend: chain.state().identity().name.into(),
        chain: chain.spec.name().into(),
        from,
        to: report.tip.number,
        blocks: report.blocks,
        txs: report.txs,
        gas: report.gas,
        seconds: report.seconds,
        tps: rate(report.txs as f64),
        mgas_per_s: rate(report.gas as f64 / 1e6),
        ok: failures.is_empty(),
        failures,
        root: chain.state().tip().map(|tip| tip.root).unwrap_or_default(),
        breakdown,
        amplification: IoAmplification::new(counts, key_operations.0, key_operations.1),
        disk_bytes: chain.state_bytes()?,
        peak_rss_bytes: peak_rss_bytes(),
        of_limit: None,
        part: Some(PartFigures {
            key_reads: key_operations.0,
            key_writes: key_operations.1,
            failed_blocks,
            parent: Some(parent),
            tip: Some(report.tip.hash),
        }),
        bundles: Vec::new(),
    })
}
