//! The tables of `bench state`, some of which `bench adversary` prints too.

use crate::{
    commands::bench::{
        measurement::{print_hit_rates, print_job_wait, print_memory_limit},
        memory::words,
    },
    limit,
    output::{CommandOutput, grouped, say},
};
use retrie_bench::{
    memory::SharedMemoryCap,
    race::{MemoryTerms, RaceTerms},
    state::{InitialKeys, KeyDistribution, KeyLayout, StoreFactory, StoreOutcome, StoreRace},
};
use retrie_db::SyncMode;
use retrie_report::latency::LatencyHistogram;
use retrie_state_store::CounterSnapshot;

/// Prints the workload, and the settings that are equal for all stores.
pub(super) fn print_terms(
    out: &CommandOutput,
    race: &StoreRace<'_>,
    entrants: &[Box<dyn StoreFactory>],
) -> eyre::Result<()> {
    let StoreRace { workload, terms, memory_limit, .. } = race;
    match &workload.keys {
        InitialKeys::Real(trace) => {
            let figures = trace.figures();
            say!(
                out,
                "\nstate, real: {} mainnet blocks, {} keys read, {} written, {} of these removed, {} \
                 different keys; forth and back on {} random accounts and {} slots",
                figures.blocks,
                grouped(figures.reads),
                grouped(figures.writes),
                grouped(figures.deletes),
                grouped(figures.keys),
                grouped(trace.padding().accounts),
                grouped(trace.padding().slots)
            );
        }
        InitialKeys::Trace(trace) => {
            let figures = trace.figures();
            say!(
                out,
                "\nstate, trace: {}; {} blocks, {} keys read, {} written, {} of these removed, {} \
                 different keys; forward on {} random accounts and {} slots",
                trace.source(),
                grouped(figures.blocks),
                grouped(figures.reads),
                grouped(figures.writes),
                grouped(figures.deletes),
                grouped(figures.keys),
                grouped(trace.padding().accounts),
                grouped(trace.padding().slots)
            );
        }
        keys => {
            let keys = match keys {
                InitialKeys::Preloaded(keys) => format!("{} keys", grouped(*keys)),
                _ => "fresh keys".into(),
            };
            let layout = match workload.layout {
                KeyLayout::OneContract => "slots of one contract",
                KeyLayout::Accounts => "100 slots a contract",
            };
            say!(out, "\nstate, {keys} ({layout})");
        }
    }
    let is_trace = matches!(workload.keys, InitialKeys::Real(_) | InitialKeys::Trace(_));
    let ops = match workload.reads {
        _ if is_trace => "keys read".into(),
        0.0 => "pairs (a read, a write)".into(),
        part => {
            format!("operations ({:.0}% reads, else pairs of a read and a write)", part * 100.0)
        }
    };
    let choice = match workload.choice {
        KeyDistribution::Uniform => "",
        KeyDistribution::Zipf => " of keys by Zipf's law",
    };
    let commit = match is_trace {
        true => "a block a commit".into(),
        false => format!("{} a commit", grouped(workload.commit_every)),
    };
    let (pairs, warmup) = (grouped(workload.pairs), grouped(workload.warmup));
    say!(
        out,
        "{pairs} {ops}{choice} after {warmup} of warm-up, {commit}, {} slices",
        workload.slices
    );
    print_equal_terms(out, terms, *memory_limit, entrants, 1)
}

/// Prints the settings that are equal for all stores. Each store is open `times` times.
pub(crate) fn print_equal_terms(
    out: &CommandOutput,
    terms: &RaceTerms,
    memory_limit: Option<u64>,
    entrants: &[Box<dyn StoreFactory>],
    times: usize,
) -> eyre::Result<()> {
    let hashes: Vec<_> =
        entrants.iter().map(|entrant| format!("{} {}", entrant.name(), entrant.hash())).collect();
    say!(
        out,
        "equal terms: sync {}; {}; retention {}; up to {} threads read ahead; pages of 4096 bytes; \
         hash: {}",
        match terms.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        },
        words(terms, entrants.iter().map(|entrant| (entrant.name(), entrant.fixed_bytes()))),
        terms.retention,
        terms.read_threads,
        hashes.join(", ")
    );
    if let Some(limit) = memory_limit.filter(|_| terms.memory.budget.is_none()) {
        print_memory_limit(out, limit, entrants.len() * times)?;
    }
    for remark in remarks(entrants, terms.memory) {
        say!(out, "{remark}");
    }
    Ok(())
}

/// Remarks of stores about the settings. A budget covers the caches that some remark on.
pub(crate) fn remarks(
    entrants: &[Box<dyn StoreFactory>],
    memory: MemoryTerms,
) -> impl Iterator<Item = String> {
    let remarking = entrants
        .iter()
        .filter(move |entrant| memory.budget.is_none() || entrant.fixed_bytes() == 0);
    remarking.filter_map(|entrant| Some(format!("{}: {}", entrant.name(), entrant.remark()?)))
}

/// Prints one line for each store, compared with `raw` if it takes part, else with the first store;
/// then the details.
pub(crate) fn print(out: &CommandOutput, outcomes: &[StoreOutcome]) -> eyre::Result<()> {
    let raw = outcomes.iter().find(|outcome| outcome.backend == "raw");
    let Some(yardstick) = raw.or_else(|| outcomes.first()) else { return Ok(()) };
    let has_limit = outcomes.iter().any(|outcome| outcome.of_limit().is_some());
    say!(
        out,
        "\n{:<16} {:>9} {:>6} {:>6} {:>6} {:>9} {:>6} | {:>8} {:>8} {:>8} {:>8} {:>7} | {:>6} \
         {:>6} {:>7} {:>7} {:>7} {:>7} | {:>9} {:>9}{}",
        "backend",
        "ops/s",
        "spread",
        "ratio",
        "spread",
        "sustained",
        "ratio",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "max/p50",
        "reads",
        "writes",
        "read B",
        "write B",
        "jrnl B",
        "undo B",
        "disk MiB",
        "mem MiB",
        limit::heading(has_limit)
    );
    for outcome in outcomes {
        let latency = outcome.latency();
        let millis = |micros: u64| format!("{:.2}", micros as f64 / 1e3);
        let shown = |digits: usize, count: Option<f64>| {
            count.map_or_else(|| "-".into(), |n| format!("{n:.digits$}"))
        };
        let read =
            |digits, count: fn(&CounterSnapshot) -> u64| shown(digits, outcome.per_read(count));
        let written =
            |digits, count: fn(&CounterSnapshot) -> u64| shown(digits, outcome.per_write(count));
        let ratio = outcome.ratio_to(yardstick);
        say!(
            out,
            "{:<16} {:>9} {:>5.0}% {:>6.2} {:>5.0}% {:>9} {:>6.2} | {:>8} {:>8} {:>8} {:>8} {:>7.1} \
             | {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} | {:>9.1} {:>9.1}{}",
            outcome.backend,
            grouped(outcome.median_rate() as u64),
            outcome.spread() * 100.0,
            ratio.median,
            ratio.spread() * 100.0,
            grouped(outcome.sustained_rate() as u64),
            outcome.sustained_rate() / yardstick.sustained_rate(),
            millis(latency.micros(0.5)),
            millis(latency.micros(0.99)),
            millis(latency.micros(0.999)),
            millis(latency.max_micros()),
            latency.stall_ratio(),
            read(2, |counts| counts.reads),
            written(2, |counts| counts.writes),
            read(0, |counts| counts.read_bytes),
            written(0, |counts| counts.write_bytes),
            written(0, |counts| counts.journal_bytes),
            written(0, |counts| counts.undo_bytes),
            mib(outcome.disk_bytes as f64),
            mib(outcome.memory_bytes() as f64),
            limit::column(has_limit, outcome.of_limit()),
        );
    }
    print_breakdowns(out, outcomes)?;
    print_hit_rates(out, outcomes)?;
    for outcome in outcomes {
        print_job_wait(out, &outcome.backend, outcome.job_wait().unwrap_or_default())?;
    }
    print_tables(out, outcomes)?;
    print_proofs(out, outcomes)?;
    let slices = yardstick.slices_done();
    say!(
        out,
        "ops/s: median of {slices} slices; ratio: median of the slices' ratios to {}; spread: \
         interquartile range; sustained: {}; ms: a commit; rows and bytes: a key read or written; mem: \
         growth of anonymous memory in its turns, an estimate; peak resident set of the process, mapped files included: {:.0} MiB",
        yardstick.backend,
        if yardstick.flush.is_some() {
            "with all folds and the final flush"
        } else {
            "without the final flush"
        },
        mib(outcomes.iter().map(|outcome| outcome.peak_rss_bytes).max().unwrap_or(0) as f64)
    );
    if let Some(SharedMemoryCap { limit, means, .. }) = yardstick.memory_cap {
        say!(out, "memory capped to {} MiB by {means}", limit >> 20);
    }
    Ok(())
}

/// Prints which part of the time went where, for stores that measure it.
fn print_breakdowns(out: &CommandOutput, outcomes: &[StoreOutcome]) -> eyre::Result<()> {
    for outcome in outcomes {
        let Some(spent) = outcome.breakdown() else { continue };
        let part = |seconds: f64| 100.0 * seconds / outcome.total().as_secs_f64().max(1e-9);
        say!(
            out,
            "  {}: {:.0}% authenticated structure, {:.0}% key-value store, {:.0}% other",
            outcome.backend,
            part(spent.authentication),
            part(spent.storage_io),
            part(spent.other)
        );
    }
    Ok(())
}

/// Prints each store's work by table, for stores with several tables.
fn print_tables(out: &CommandOutput, outcomes: &[StoreOutcome]) -> eyre::Result<()> {
    for outcome in outcomes {
        let tables = outcome.tables().unwrap_or_default();
        if tables.len() < 2 {
            continue;
        }
        say!(out, "  {} by table:", outcome.backend);
        for table in tables {
            say!(
                out,
                "    {:<16} {:>6.2} reads {:>7.0} B  {:>6.2} writes {:>7.0} B",
                table.name,
                table.reads_per_op,
                table.read_bytes_per_op,
                table.writes_per_op,
                table.write_bytes_per_op,
            );
        }
    }
    Ok(())
}

/// Prints the cost of proofs, for stores that make them.
fn print_proofs(out: &CommandOutput, outcomes: &[StoreOutcome]) -> eyre::Result<()> {
    for outcome in outcomes {
        for proofs in outcome.figures.proofs.iter().filter(|proofs| proofs.count() > 0) {
            let micros = |latency: &LatencyHistogram| {
                format!(
                    "{} us (p99 {})",
                    grouped(latency.micros(0.5)),
                    grouped(latency.micros(0.99))
                )
            };
            let keys = match (proofs.depth, proofs.present) {
                _ if let Some(keys) = proofs.keys => {
                    format!("of the {} keys of a commit", grouped(keys as u64))
                }
                (Some(depth), _) => format!("of one key {} commits before", grouped(depth)),
                (None, true) => "of one present key".into(),
                (None, false) => "of one absent key".into(),
            };
            let first = proofs.first.map_or_else(String::new, |first| {
                format!(" (the first in {} us)", grouped(first.as_micros() as u64))
            });
            say!(
                out,
                "  {}: {} proofs {keys}: made in {}{first}, checked in {}; {} bytes ({} to {})",
                outcome.backend,
                proofs.count(),
                micros(&proofs.made),
                micros(&proofs.verified),
                grouped(proofs.bytes(0.5) as u64),
                grouped(proofs.bytes(0.0) as u64),
                grouped(proofs.bytes(1.0) as u64),
            );
        }
    }
    Ok(())
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
