//! The tables that a race of clients prints.

use crate::{
    commands::bench::{
        measurement::{print_hit_rates, print_job_wait},
        memory::words,
    },
    limit,
    output::{CommandOutput, grouped, say},
};
use retrie_bench::{
    chain::BlockFill,
    clients::{BlockDelivery, ClientEntrant, ClientOutcome, ClientWorkload, SenderRecovery},
    race::RaceTerms,
};
use retrie_db::SyncMode;

/// The backend that others are compared with, if it takes part.
const YARDSTICK: &str = "raw";
/// The papers' baseline.
const BASELINE: &str = "mpt-archive";
/// Throughput of LVMT over that of MPT in the LVMT paper, Fig. 2, by workload.
const LVMT_PAPER: [(&str, &str); 2] = [("transfers", "3.1"), ("erc20", "2.7")];

pub(super) fn print_terms(
    out: &CommandOutput,
    workload: &ClientWorkload,
    senders: SenderRecovery,
    terms: &RaceTerms,
    entrants: &[ClientEntrant],
) -> eyre::Result<()> {
    let recipe = &workload.recipe;
    let fill = match recipe.fill {
        BlockFill::Transactions(txs) => format!("{} txs", grouped(txs)),
        BlockFill::Gas(gas) => format!("{} gas", grouped(gas)),
    };
    let keys = match (recipe.mix.kvstore, recipe.keys.zipf) {
        (0, None) => String::new(),
        (0, Some(theta)) => format!(", receivers by Zipf {theta}"),
        (_, None) => format!(", {} % reads, uniform keys", recipe.keys.reads),
        (_, Some(theta)) => format!(", {} % reads, Zipf {theta}", recipe.keys.reads),
    };
    let inserts = match recipe.keys.inserts {
        0 => String::new(),
        inserts => format!(", {inserts} % of writes insert"),
    };
    let fresh = recipe.preload.as_ref().is_some_and(|preload| preload.empty_ledgers);
    let fresh = if fresh { ", empty at first" } else { "" };
    say!(
        out,
        "\n{}, {} accounts{fresh}{keys}{inserts}; {} blocks of {fill} after {} of warm-up, {} slices; commit: {}; \
         senders {senders}",
        workload.name,
        grouped(recipe.accounts),
        grouped(workload.blocks),
        grouped(workload.warmup),
        workload.slices,
        match workload.commit_every {
            None => "as in an import, and at the end of a slice".into(),
            Some(1) if workload.has_lookup() => "every block".into(),
            Some(1) => "every block, no index of transactions".into(),
            Some(blocks) => {
                format!("every {} blocks, and at the end of a slice", grouped(blocks))
            }
        }
    );
    if let Some(preload) = recipe.preload.as_ref().filter(|_| recipe.mix.has_tokens()) {
        say!(out, "contracts: {}", preload.contracts.description(recipe.mix));
    }
    print_equal_terms(out, terms, entrants)
}

/// Prints the settings that are equal for all clients.
pub(super) fn print_equal_terms(
    out: &CommandOutput,
    terms: &RaceTerms,
    entrants: &[ClientEntrant],
) -> eyre::Result<()> {
    let hash = |one: &ClientEntrant| format!("{} {}", one.name, one.backend.identity().hash.name());
    say!(
        out,
        "equal terms: sync {}; {}; retention {}; up to {} threads read ahead; pages of 4096 bytes; \
         hash: {}",
        match terms.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        },
        words(terms, entrants.iter().map(|one| (&*one.name, one.backend.profile().cache_bytes))),
        terms.retention,
        terms.read_threads,
        entrants.iter().map(hash).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Prints one line for each client, compared with `raw` if it takes part, else with the first
/// client.
pub(super) fn print(
    out: &CommandOutput,
    workload: &str,
    via: BlockDelivery,
    outcomes: &[ClientOutcome],
) -> eyre::Result<()> {
    let yardstick = outcomes.iter().find(|outcome| outcome.backend == YARDSTICK);
    let Some(yardstick) = yardstick.or_else(|| outcomes.first()) else { return Ok(()) };
    let has_limit = outcomes.iter().any(|outcome| outcome.of_limit().is_some());
    say!(
        out,
        "\n{:<16} {:>8} {:>6} {:>6} {:>6} {:>9} {:>6} | {:>7} {:>7} {:>7} {:>7} | {:>7} {:>7} {:>8} \
         {:>8} | {:>6} {:>6} | {:>9} {:>8}{}",
        "backend",
        "TPS",
        "spread",
        "ratio",
        "spread",
        "sustained",
        "ratio",
        "exec us",
        "auth us",
        "io us",
        "rest us",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "reads",
        "writes",
        "disk MiB",
        "mem MiB",
        limit::heading(has_limit)
    );
    for outcome in outcomes {
        let latency = outcome.latency();
        let millis = |micros: u64| format!("{:.1}", micros as f64 / 1e3);
        let parts = outcome.breakdown().unwrap_or_default();
        let micros = |seconds: f64| format!("{:.1}", seconds * 1e6 / outcome.ops().max(1) as f64);
        let reads = outcome.per_read(|counts| counts.reads).unwrap_or_default();
        let writes = outcome.per_write(|counts| counts.writes).unwrap_or_default();
        let ratio = outcome.ratio_to(yardstick);
        say!(
            out,
            "{:<16} {:>8} {:>5.0}% {:>6.2} {:>5.0}% {:>9} {:>6.2} | {:>7} {:>7} {:>7} {:>7} | {:>7} \
             {:>7} {:>8} {:>8} | {:>6.2} {:>6.2} | {:>9.1} {:>8.1}{}",
            outcome.backend,
            grouped(outcome.median_rate() as u64),
            outcome.spread() * 100.0,
            ratio.median,
            ratio.spread() * 100.0,
            grouped(outcome.sustained_rate() as u64),
            outcome.sustained_rate() / yardstick.sustained_rate(),
            micros(parts.execution),
            micros(parts.authentication),
            micros(parts.storage_io),
            micros(parts.other),
            millis(latency.micros(0.5)),
            millis(latency.micros(0.99)),
            millis(latency.micros(0.999)),
            millis(latency.max_micros()),
            reads,
            writes,
            outcome.disk_bytes as f64 / f64::from(1 << 20),
            outcome.memory_bytes() as f64 / f64::from(1 << 20),
            limit::column(has_limit, outcome.of_limit()),
        );
    }
    print_hit_rates(out, outcomes)?;
    for outcome in outcomes {
        print_job_wait(out, &outcome.backend, outcome.job_wait().unwrap_or_default())?;
    }
    say!(
        out,
        "TPS: median of the slices; ratio: median of the slices' ratios to {}; spread: interquartile \
         range; sustained: the final flush included; us: per transaction, cut as in the LVMT \
         paper's Fig. 3; reads, writes: rows per key read or changed",
        yardstick.backend
    );
    let kept: Vec<_> = outcomes.iter().filter(|one| one.figures.kept_file_bytes > 0).collect();
    if !kept.is_empty() {
        let mib = |one: &&ClientOutcome| {
            format!(
                "{} {:.1}",
                one.backend,
                one.figures.kept_file_bytes as f64 / f64::from(1 << 20)
            )
        };
        let kept = kept.iter().map(mib).collect::<Vec<_>>().join(", ");
        say!(out, "files beside those, kept for reverts or made ahead, MiB: {kept}");
    }
    if via == BlockDelivery::EngineApi {
        print_payloads(out, yardstick, outcomes)?;
    }
    print_baseline(out, workload, outcomes)?;
    limit::print_bounds(out, outcomes)
}

/// Prints the duration of engine_newPayload, block by block relative to the yardstick.
fn print_payloads(
    out: &CommandOutput,
    yardstick: &ClientOutcome,
    outcomes: &[ClientOutcome],
) -> eyre::Result<()> {
    let times = |one: &ClientOutcome| {
        let ratio = one.latency_ratio_to(yardstick);
        let (median, spread) = (ratio.median, ratio.spread() * 100.0);
        format!("{} {median:.3} (spread {spread:.0}%)", one.backend)
    };
    let times = outcomes.iter().map(times).collect::<Vec<_>>().join(", ");
    say!(
        out,
        "engine_newPayload, times as long as {}, median of blocks: {times}",
        yardstick.backend
    );
    Ok(())
}

/// Prints the ratios to the papers' baseline.
fn print_baseline(
    out: &CommandOutput,
    workload: &str,
    outcomes: &[ClientOutcome],
) -> eyre::Result<()> {
    let baseline = outcomes.iter().find(|outcome| outcome.backend == BASELINE);
    let Some(baseline) = baseline else { return Ok(()) };
    let ratio = |one: &ClientOutcome| {
        let (tps, sustained) =
            (one.ratio_to(baseline), one.sustained_rate() / baseline.sustained_rate());
        let (median, spread) = (tps.median, tps.spread() * 100.0);
        format!("{} {median:.2} (spread {spread:.0}%, sustained {sustained:.2})", one.backend)
    };
    let others = outcomes.iter().filter(|one| one.backend != BASELINE);
    let ratios = others.map(ratio).collect::<Vec<_>>().join(", ");
    let paper = LVMT_PAPER.iter().find(|(name, _)| *name == workload);
    let paper = paper.map_or_else(String::new, |(_, ratio)| {
        format!("; the LVMT paper has up to {ratio} for LVMT over MPT (Fig. 2)")
    });
    if !ratios.is_empty() {
        say!(out, "TPS over {BASELINE}: {ratios}{paper}");
    }
    Ok(())
}
