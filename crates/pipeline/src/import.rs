//! Whole imports: block files, or the blocks of another datadir, into a chain.

use crate::{
    BlockStream, Chain, ImportOptions, ImportTimes, Importer, PipelineError,
    importer::{End, import_stream},
    report::{
        Amplification, Breakdown, ImportReport, PartFigures, ReplayResult, TipReport,
        peak_rss_bytes,
    },
};
use alloy_primitives::B256;
use retrie_sources::BlockSource;
use retrie_state::Counts;
use retrie_telemetry::Metrics;
use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// What an import gave.
#[derive(Debug)]
pub struct ImportOutcome {
    /// Figures. The tip is durable.
    pub report: ImportReport,
    /// How it ended: an error names the first block that is invalid or cannot be read.
    pub end: Result<End, PipelineError>,
    /// Times by kind of work.
    pub times: ImportTimes,
    /// Keys read by the EVM, keys changed.
    pub key_operations: (u64, u64),
    /// Rows and bytes at the backend's node interface.
    pub counts: Counts,
}

/// Imports the blocks of `sources` whose numbers lie in `range`, in order, into `chain`.
///
/// `progress` is called after each block. Setting `stop` ends the import at the next block boundary;
/// all blocks imported are then durable, as they are when it ends with an error.
///
/// # Errors
/// If it could not begin. What ended it is in the outcome.
pub fn import(
    chain: &Chain,
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

/// Imports what `stream` gives once it is started.
pub(crate) fn import_from(
    chain: &Chain,
    stream: impl FnOnce() -> Result<BlockStream, PipelineError>,
    options: ImportOptions,
    metrics: &Metrics,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportOutcome, PipelineError> {
    let start = Instant::now();
    let counts = chain.state().counts();
    std::thread::scope(|scope| {
        let mut importer = Importer::new(chain, options, metrics.clone(), scope)?;
        let end = import_stream(&mut importer, stream()?, stop, progress);
        if end.is_err() {
            importer.give_up_what_is_not_durable()?;
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

/// Imports the blocks below `number`, of which `sources` are then rid: what has to be there before
/// blocks from `number` on can be measured. Ends early, without an error, where the sources or
/// `stop` do.
///
/// # Errors
/// As those that end an [`import`].
pub fn import_below(
    chain: &Chain,
    sources: &mut [BlockSource],
    number: u64,
    metrics: &Metrics,
    stop: &AtomicBool,
) -> Result<(), PipelineError> {
    std::thread::scope(|scope| {
        let mut importer = Importer::new(chain, ImportOptions::default(), metrics.clone(), scope)?;
        while importer.head().number + 1 < number && !stop.load(Ordering::Relaxed) {
            let Some(block) = sources.iter_mut().find_map(Iterator::next) else { break };
            importer.import(block?.block)?;
        }
        importer.flush()
    })
}

impl ImportOutcome {
    /// What is left to say where blocks before those that were asked for are wrong: nothing was imported.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub fn failed_before(chain: &Chain, error: PipelineError) -> Result<Self, PipelineError> {
        let tip = chain.tip()?;
        let tip = TipReport { number: tip.number, hash: tip.hash, ..TipReport::default() };
        Ok(Self {
            report: ImportReport { tip, ..ImportReport::default() },
            end: Err(error),
            times: ImportTimes::default(),
            key_operations: (0, 0),
            counts: Counts::default(),
        })
    }
}

/// The figures of an import as a result of `retrie replay`: of blocks from `from` on, the first of which
/// is the child of `parent`.
pub fn chain_replay_result(
    chain: &Chain,
    from: u64,
    parent: B256,
    outcome: &ImportOutcome,
) -> Result<ReplayResult, PipelineError> {
    let ImportOutcome { report, times, key_operations, counts, .. } = outcome;
    let mut breakdown = Breakdown {
        execution: times.execution.as_secs_f64(),
        authentication: (times.reads + times.authentication).as_secs_f64(),
        storage_io: times.commit_wait.as_secs_f64(),
        other: 0.0,
    };
    breakdown.attribute_reads(counts.read_time);
    breakdown.close(report.seconds);
    let rate = |n: f64| if report.seconds > 0.0 { n / report.seconds } else { 0.0 };
    let failures: Vec<_> =
        outcome.end.as_ref().err().map(ToString::to_string).into_iter().collect();
    // What names no block happened to the next one: those before it are good.
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
        amplification: Amplification::new(counts, key_operations.0, key_operations.1),
        disk_bytes: chain.state_bytes()?,
        peak_rss_bytes: peak_rss_bytes(),
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
