//! Results beside the limit of this machine, which `retrie bench limit` measures.

use crate::output::{CommandOutput, say};
use retrie_bench::{
    cache::StateCache,
    limit::{CHANGED_KEY_BYTES, HashWork, LowerBound, MAINNET_MIX, MachineLimits, NeededWork},
    race::{RaceOutcome, RaceResult},
};
use retrie_db::SyncMode;
use retrie_pipeline::{
    ChainStore, ImportOutcome,
    report::{PartFigures, ReplayResult},
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Heading of the column of shares.
pub(crate) const COLUMN: &str = "of the limit";

/// The limits of this machine; `None` if they were not measured. A file that cannot be read is
/// reported in the log.
pub(crate) fn known(cache: &StateCache) -> Option<MachineLimits> {
    MachineLimits::load(cache).unwrap_or_else(|unreadable| {
        tracing::warn!("{unreadable}; `retrie bench limit` measures the limit again");
        None
    })
}

/// Prints, once in a process, how to learn the limit.
fn print_hint(out: &CommandOutput) -> eyre::Result<()> {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if !PRINTED.swap(true, Ordering::Relaxed) {
        say!(out, "run `retrie bench limit` to see how near the limit of this machine this is");
    }
    Ok(())
}

/// Compares the outcomes of a race with the limits of this machine, if they are known.
pub(crate) fn compare<F>(cache: &StateCache, raced: &mut RaceResult<F>) {
    if let Some(limits) = known(cache) {
        raced.outcomes.iter_mut().for_each(|outcome| outcome.set_limits(&limits));
    }
}

/// The end of a line of a table: the column for a share, empty if no line has one.
pub(crate) fn column(shown: bool, cell: Option<f64>) -> String {
    let width = COLUMN.len();
    match cell {
        _ if !shown => String::new(),
        Some(share) => format!(" | {share:>width$.2}"),
        None => format!(" | {:>width$}", "-"),
    }
}

/// The heading of that column.
pub(crate) fn heading(shown: bool) -> String {
    if shown { format!(" | {COLUMN}") } else { String::new() }
}

/// Prints the least seconds for a race by class of stores, or how to learn them.
pub(crate) fn print_bounds<F>(
    out: &CommandOutput,
    outcomes: &[RaceOutcome<F>],
) -> eyre::Result<()> {
    let of_class = |has_root: bool| {
        let hashes =
            |one: &&RaceOutcome<F>| (one.needed().hashes != HashWork::default()) == has_root;
        outcomes.iter().find(hashes).and_then(RaceOutcome::bound)
    };
    let class = |name: &str, bound: LowerBound| {
        format!("{name} {:.3} s ({})", bound.seconds(), bound.resource())
    };
    let classes = [("any store", of_class(false)), ("Ethereum's trie", of_class(true))];
    let classes = classes.into_iter().filter_map(|(name, bound)| Some(class(name, bound?)));
    let classes: Vec<_> = classes.collect();
    if classes.is_empty() {
        return if outcomes.is_empty() { Ok(()) } else { print_hint(out) };
    }
    say!(
        out,
        "of the limit: the least time on this machine, over the time taken; {}",
        classes.join(", ")
    );
    Ok(())
}

/// The part of this machine's limit that an import reached, if it is known. Prints it, or how to
/// learn it.
pub(crate) fn of_import(
    out: &CommandOutput,
    chain: &ChainStore,
    outcome: &ImportOutcome,
    sync: SyncMode,
) -> eyre::Result<Option<f64>> {
    let report = &outcome.report;
    if report.blocks == 0 {
        return Ok(None);
    }
    let Some(limits) = known(&StateCache::user_default()) else {
        return print_hint(out).map(|()| None);
    };
    let has_ethereum_root =
        chain.states().stores().any(|(store, _)| store.backend().profile().ethereum_root);
    let work = ImportedWork {
        mix: "",
        blocks: report.blocks,
        transactions: report.txs,
        gas: report.gas,
        changed: outcome.key_operations.1,
        // One root is enough for a batch of blocks.
        roots: if has_ethereum_root { report.roots_checked } else { 0 },
        commits: if sync == SyncMode::Durable { 1 } else { 0 },
    };
    let bound = limits.bound(&work.needed());
    let share = bound.share_of(report.seconds);
    if let Some(share) = share {
        say!(
            out,
            "{share:.2} of the limit: at least {:.3} s on this machine ({})",
            bound.seconds(),
            bound.resource()
        );
    }
    Ok(share)
}

/// Compares the replay of bundles or of a chain with the limits of this machine.
pub(crate) fn compare_replay(
    limits: Option<&MachineLimits>,
    result: &mut ReplayResult,
    has_ethereum_root: bool,
    sync: SyncMode,
) {
    let Some(limits) = limits.filter(|_| result.blocks > 0) else { return };
    // Witnesses are executed in memory where the backend can, and commit nothing.
    let committed = result.bundles.iter().filter(|bundle| bundle.kind == "prestate").count();
    let (mix, commits) = match result.bundles.is_empty() {
        true => ("", 1),
        false => (MAINNET_MIX, committed as u64),
    };
    let PartFigures { key_writes, .. } = result.part.clone().unwrap_or_default();
    let work = ImportedWork {
        mix,
        blocks: result.blocks,
        transactions: result.txs,
        gas: result.gas,
        changed: key_writes,
        roots: if has_ethereum_root { result.blocks } else { 0 },
        commits: if sync == SyncMode::Durable { commits } else { 0 },
    };
    result.of_limit = limits.bound(&work.needed()).share_of(result.seconds);
}

/// Prints the hint of a replay without limits.
pub(crate) fn print_replay_hint(
    out: &CommandOutput,
    limits: Option<&MachineLimits>,
) -> eyre::Result<()> {
    if limits.is_none() { print_hint(out) } else { Ok(()) }
}

/// What is known of imported blocks.
struct ImportedWork {
    /// Name of the mix of their transactions; empty if it is not known.
    mix: &'static str,
    blocks: u64,
    transactions: u64,
    gas: u64,
    /// Keys changed by all blocks.
    changed: u64,
    /// Number of Ethereum's roots computed.
    roots: u64,
    /// Least number of durable commits; 0 if nothing must be durable.
    commits: u64,
}

impl ImportedWork {
    /// The least work. The tries are taken to hold the changed keys alone.
    fn needed(&self) -> NeededWork {
        let of_block = self.changed / self.blocks.max(1);
        let roots = self.roots.min(self.blocks);
        let of_root = HashWork::branches(of_block, 0) + HashWork::leaves(of_block);
        NeededWork {
            signatures: self.transactions,
            hashes: of_root * roots as f64,
            commits: self.commits,
            bytes: if self.commits > 0 { self.changed * CHANGED_KEY_BYTES } else { 0 },
            ..NeededWork::executing(self.mix, self.gas)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: ImportedWork = ImportedWork {
        mix: "",
        blocks: 10,
        transactions: 500,
        gas: 10_500_000,
        changed: 1000,
        roots: 0,
        commits: 1,
    };

    #[test]
    fn import_needs_senders_gas_one_commit_and_the_roots_that_it_checks() {
        let any = WORK.needed();
        assert_eq!((any.signatures, any.commits, any.bytes), (500, 1, 32_000));
        assert_eq!((any.gas[""], any.hashes), (10_500_000, HashWork::default()));
        let checked = ImportedWork { roots: 10, ..WORK }.needed();
        assert!(checked.hashes.nodes > 1000.0, "{checked:?}");
        let last_alone = ImportedWork { roots: 1, commits: 0, ..WORK }.needed();
        assert!((last_alone.hashes.nodes * 10.0 - checked.hashes.nodes).abs() < 1e-6);
        assert_eq!((last_alone.commits, last_alone.bytes), (0, 0));
    }

    #[test]
    fn column_is_there_only_if_a_line_has_a_share() {
        assert_eq!((column(false, Some(0.5)), heading(false)), (String::new(), String::new()));
        assert_eq!(column(true, Some(0.618)), " |         0.62");
        assert_eq!(column(true, None).len(), heading(true).len());
    }
}
