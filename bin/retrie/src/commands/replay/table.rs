//! The tables that a replay prints.

use crate::{
    limit,
    output::{CommandOutput, grouped, say},
};
use retrie_pipeline::{
    replay::{BlockWitness, BundleOutcome},
    report::ReplayResult,
};

const fn mark(check: Option<bool>) -> &'static str {
    match check {
        Some(true) => "ok",
        Some(false) => "BAD",
        None => "-",
    }
}

pub(super) fn print_header(out: &CommandOutput, backend: &str) -> eyre::Result<()> {
    say!(
        out,
        "\n{backend}\n{:>10} {:<18} {:<9} {:>5} {:>10} {:>9}  {:<4} {:<6} {:<9} {:<9} {:<5}",
        "block",
        "fork",
        "bundle",
        "txs",
        "gas",
        "ms",
        "gas",
        "bloom",
        "receipts",
        "requests",
        "root"
    );
    Ok(())
}

pub(super) fn print_outcome(out: &CommandOutput, outcome: &BundleOutcome) -> eyre::Result<()> {
    say!(
        out,
        "{:>10} {:<18} {:<9} {:>5} {:>10} {:>9.2}  {:<4} {:<6} {:<9} {:<9} {:<5}",
        outcome.number,
        outcome.fork,
        outcome.kind,
        outcome.txs,
        outcome.gas,
        outcome.seconds * 1e3,
        mark(Some(outcome.gas_ok)),
        mark(Some(outcome.bloom_ok)),
        mark(outcome.receipts_ok),
        mark(outcome.requests_ok),
        mark(outcome.root_ok),
    );
    Ok(())
}

pub(crate) fn print_summary(out: &CommandOutput, results: &[ReplayResult]) -> eyre::Result<()> {
    let has_limit = results.iter().any(|result| result.of_limit.is_some());
    say!(
        out,
        "\n{:<12} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} | {:>9} {:>9} {:>9} {:>9} | {:>6}{}",
        "backend",
        "blocks",
        "txs",
        "seconds",
        "TPS",
        "Mgas/s",
        "disk MiB",
        "exec s",
        "auth s",
        "io s",
        "other s",
        "checks",
        limit::heading(has_limit)
    );
    for result in results {
        let parts = &result.breakdown;
        say!(
            out,
            "{:<12} {:>8} {:>9} {:>9.3} {:>9.0} {:>9.1} {:>10.1} | {:>9.3} {:>9.3} {:>9.3} {:>9.3} | {:>6}{}",
            result.backend,
            grouped(result.blocks),
            grouped(result.txs),
            result.seconds,
            result.tps,
            result.mgas_per_s,
            result.disk_bytes as f64 / (1 << 20) as f64,
            parts.execution,
            parts.authentication,
            parts.storage_io,
            parts.other,
            if result.ok { "ok" } else { "FAILED" },
            limit::column(has_limit, result.of_limit),
        );
        print_kinds(out, result)?;
    }
    print_witnesses(out, results)?;
    for failure in results.iter().flat_map(|result| &result.failures) {
        say!(out, "{failure}");
    }
    Ok(())
}

/// Prints what it takes to show what blocks read: medians over the blocks, and the largest. "With code" is
/// the proof with the chunks of codes that a block executes, or else the proof and whole codes.
fn print_witnesses(out: &CommandOutput, results: &[ReplayResult]) -> eyre::Result<()> {
    let all = results.iter().map(|result| {
        let witnesses = result.bundles.iter().filter_map(|bundle| bundle.witness.as_ref());
        (result, witnesses.collect::<Vec<_>>())
    });
    let mut all = all.filter(|(_, witnesses)| !witnesses.is_empty()).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    say!(
        out,
        "\nproofs of what each block reads: median (largest)\n{:<12} {:>7} {:>7} {:>19} {:>10} {:>10} {:>13} {:>10} {:>11}",
        "backend",
        "blocks",
        "keys",
        "KiB of the proof",
        "KiB zstd",
        "KiB codes",
        "KiB with code",
        "ms to make",
        "ms to check",
    );
    for (result, witnesses) in all {
        let spread = |of: fn(&BlockWitness) -> f64| {
            let mut values: Vec<_> = witnesses.iter().map(|witness| of(witness)).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[values.len() - 1])
        };
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let (proof, largest) = spread(|one| one.proof_bytes as f64);
        say!(
            out,
            "{:<12} {:>7} {:>7} {:>19} {:>10.1} {:>10.1} {:>13.1} {:>10.2} {:>11.2}",
            result.backend,
            witnesses.len(),
            spread(|one| one.keys as f64).0,
            format!("{:.1} ({:.1})", proof / 1024.0, largest / 1024.0),
            kib(spread(|one| one.proof_zstd_bytes as f64).0 as u64),
            kib(spread(|one| one.code_bytes as f64).0 as u64),
            kib(spread(|one| one.bytes_with_code() as f64).0 as u64),
            spread(|one| one.prove_seconds).0 * 1e3,
            spread(|one| one.verify_seconds).0 * 1e3,
        );
    }
    Ok(())
}

/// Prints both kinds of bundles separately. A backend that opens witnesses executes them in memory
/// and commits nothing, so only prestate bundles compare backends.
fn print_kinds(out: &CommandOutput, result: &ReplayResult) -> eyre::Result<()> {
    for kind in ["witness", "prestate"] {
        let of_kind = || result.bundles.iter().filter(|bundle| bundle.kind == kind);
        let (blocks, txs): (usize, u64) = (of_kind().count(), of_kind().map(|b| b.txs).sum());
        if blocks == 0 || blocks == result.bundles.len() {
            continue;
        }
        let seconds: f64 = of_kind().map(|b| b.seconds).sum();
        let gas: u64 = of_kind().map(|b| b.gas).sum();
        say!(
            out,
            "  {kind:<10} {blocks:>8} {:>9} {seconds:>9.3} {:>9.0} {:>9.1}",
            grouped(txs),
            txs as f64 / seconds.max(1e-9),
            gas as f64 / 1e6 / seconds.max(1e-9),
        );
    }
    Ok(())
}
