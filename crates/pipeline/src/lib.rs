//! Import and replay: real blocks through the EVM onto a state backend.
//!
//! ```text
//!  sources --read--> prepare (all cores) --> Importer --> commit (batched) --> MDBX
//!                    hash, checks, senders    execute      chain rows, journal, roots:
//!                                             propose      one transaction
//!                                             check
//! ```
//!
//! * [`Chain`]: an open datadir: the chain's tables, a backend's state, and perhaps a referee's.
//! * [`Anchor`]: where a chain begins that is started from a state, not from genesis.
//! * [`dump_state`]: the state of a datadir into a file, from which another chain can begin.
//! * [`import`]: block files into a chain, until the end, an error or a stop signal.
//! * [`replay`]: bundles on a fresh store, measured.
//!
//! This crate knows no trie: backends come in as [`Backend`](retrie_state::Backend)s, and header
//! roots are compared only where one of them says its root is Ethereum's.

mod anchor;
mod build;
mod chain;
mod commit;
mod dump;
mod error;
mod importer;
mod recover;
pub mod replay;
pub mod report;
mod stream;
#[cfg(feature = "testkit")]
pub mod testkit;
mod tree;
mod unwind;
pub mod verify;

pub use anchor::{Anchor, AnchorError, LoadedState};
pub use build::{BlockAttributes, BlockBuilder, BuildParent, BuiltBlock, Liberties, StatePatch};
pub use chain::{Chain, ChainOptions, genesis_delta, native_spec, state_folder};
pub use dump::{Dumped, dump_state};
pub use error::{PipelineError, RootMismatch};
pub use importer::{ImportOptions, Imported, Importer};
pub use recover::recover_senders;
pub use stream::{BlockStream, PreparedBlock, prepare};
pub use tree::{
    BatchLimits, BlockWithReceipts, ExecutedBlock, Head, HeadChange, ImportTimes, Tree,
};

use report::{Amplification, Breakdown, ImportReport, ReplayResult, peak_rss_bytes};
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

/// How an import ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All blocks asked for are there.
    Complete,
    /// It was told to stop.
    Stopped,
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
    let start = Instant::now();
    let counts = chain.store.counts();
    std::thread::scope(|scope| {
        let mut importer = Importer::new(chain, options, metrics.clone(), scope)?;
        let stream = stream::BlockStream::start(chain.spec.clone(), sources, range)?;
        let end = importer::import_stream(&mut importer, stream, stop, progress);
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
            counts: &chain.store.counts() - &counts,
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

/// The figures of an import as a result of `retrie replay`.
pub fn chain_replay_result(
    chain: &Chain,
    from: u64,
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
    Ok(ReplayResult {
        backend: chain.store.identity().name.into(),
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
        root: chain.store.tip().map(|tip| tip.root).unwrap_or_default(),
        breakdown,
        amplification: Amplification::new(counts, key_operations.0, key_operations.1),
        disk_bytes: chain.state_bytes()?,
        peak_rss_bytes: peak_rss_bytes(),
        bundles: Vec::new(),
    })
}
