//! Adds up the figures of parts.

use super::{PartReport, cross_check::missing};
use crate::stats::quantile;
use retrie_pipeline::{
    replay::PartSpec,
    report::{
        IoAmplification, MachineRate, MachineSpread, MergeSummary, PartFigures, PartInputs,
        PartMachine, ReplayReport, ReplayResult, TimeBreakdown,
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// The report of all `parts`, which are sorted. `first` is any report of the replay.
pub(super) fn sum(
    first: &PartReport,
    parts: &[&PartReport],
    repeated: Vec<PartSpec>,
    command: String,
) -> ReplayReport {
    let count = first.part().count();
    let missing = missing(count, parts);
    let complete = missing.is_empty();
    let lanes = parts.first().map_or(0, |report| report.report.results.len());
    let lane = |place: usize| {
        parts.iter().map(move |report| &report.report.results[place]).collect::<Vec<_>>()
    };
    let is_chain = matches!(first.part.inputs, PartInputs::Blocks { .. });
    let run = |report: &&PartReport| PartMachine {
        part: report.part(),
        host: report.part.host.clone(),
        machine: report.report.machine.clone(),
    };
    let merged = MergeSummary {
        parts: count,
        missing,
        repeated,
        runs: parts.iter().map(run).collect(),
        spread: (0..lanes).map(|place| spread(parts, place)).collect(),
    };
    ReplayReport {
        machine: machines(parts),
        version: first.report.version.clone(),
        command,
        complete,
        results: (0..lanes).map(|place| add(&lane(place), is_chain)).collect(),
        part: None,
        merged: Some(merged),
    }
}

fn machines(parts: &[&PartReport]) -> String {
    let hosts: BTreeSet<_> =
        parts.iter().map(|report| (&report.part.host, &report.report.machine)).collect();
    let kinds: BTreeSet<_> = hosts.iter().map(|(_, machine)| machine.as_str()).collect();
    let kinds: Vec<_> = kinds.into_iter().collect();
    match hosts.len() {
        0 | 1 => kinds.concat(),
        count => format!("{count} machines: {}", kinds.join("; ")),
    }
}

/// The sum of the results of one backend.
fn add(results: &[&ReplayResult], is_chain: bool) -> ReplayResult {
    let total = |field: fn(&ReplayResult) -> u64| {
        results.iter().map(|result| field(result)).fold(0_u64, u64::saturating_add)
    };
    let seconds: f64 = results.iter().map(|result| result.seconds).sum();
    let (blocks, txs, gas) = (total(|it| it.blocks), total(|it| it.txs), total(|it| it.gas));
    let rate = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
    // A part without blocks does not determine the first and last block, if another part has
    // blocks.
    let ran: Vec<_> = match results.iter().filter(|result| result.blocks > 0).collect::<Vec<_>>() {
        none if none.is_empty() => results.iter().take(1).collect(),
        some => some,
    };
    let last = ran.last();
    let figures = |result: &ReplayResult| result.part.clone().unwrap_or_default();
    let (failed_blocks, failures) = failures(results, is_chain);
    let disk = results.iter().map(|result| result.disk_bytes).max().unwrap_or_default();
    ReplayResult {
        backend: results.first().map(|result| result.backend.clone()).unwrap_or_default(),
        chain: results.first().map(|result| result.chain.clone()).unwrap_or_default(),
        from: ran.iter().map(|result| result.from).min().unwrap_or_default(),
        to: ran.iter().map(|result| result.to).max().unwrap_or_default(),
        blocks,
        txs,
        gas,
        seconds,
        tps: rate(txs as f64),
        mgas_per_s: rate(gas as f64 / 1e6),
        ok: results.iter().all(|result| result.ok),
        failures,
        root: last.map(|result| result.root).unwrap_or_default(),
        breakdown: breakdown(results),
        amplification: amplification(results),
        // For a chain, the disk usage after its last block; for bundles, the largest one, since
        // each part has its own store.
        disk_bytes: last.filter(|_| is_chain).map_or(disk, |result| result.disk_bytes),
        peak_rss_bytes: results
            .iter()
            .map(|result| result.peak_rss_bytes)
            .max()
            .unwrap_or_default(),
        // Parts may come from several machines.
        of_limit: None,
        part: Some(PartFigures {
            key_reads: total(|it| it.part.as_ref().map_or(0, |part| part.key_reads)),
            key_writes: total(|it| it.part.as_ref().map_or(0, |part| part.key_writes)),
            failed_blocks,
            parent: ran.first().and_then(|result| figures(result).parent),
            tip: last.and_then(|result| figures(result).tip),
        }),
        bundles: results.iter().flat_map(|result| result.bundles.iter().cloned()).collect(),
    }
}

/// Failed blocks and their messages. All later parts of a chain fail at the same block, which is
/// listed once.
fn failures(results: &[&ReplayResult], is_chain: bool) -> (Vec<u64>, Vec<String>) {
    let mut numbers = Vec::new();
    let mut lines = Vec::new();
    for result in results {
        let failed = result.part.iter().flat_map(|part| &part.failed_blocks);
        for (number, line) in failed.zip(&result.failures) {
            if !(is_chain && numbers.contains(number)) {
                numbers.push(*number);
                lines.push(line.clone());
            }
        }
    }
    (numbers, lines)
}

fn breakdown(results: &[&ReplayResult]) -> TimeBreakdown {
    results.iter().map(|result| &result.breakdown).fold(TimeBreakdown::default(), |sum, one| {
        TimeBreakdown {
            execution: sum.execution + one.execution,
            authentication: sum.authentication + one.authentication,
            storage_io: sum.storage_io + one.storage_io,
            other: sum.other + one.other,
        }
    })
}

/// The means, weighted by the numbers of keys read and written.
fn amplification(results: &[&ReplayResult]) -> IoAmplification {
    let mean = |figure: fn(&IoAmplification) -> f64, weight: fn(&PartFigures) -> u64| {
        let weights = results.iter().map(|it| it.part.as_ref().map_or(0, weight) as f64);
        let total: f64 = weights.clone().sum();
        let figures = results.iter().map(|result| figure(&result.amplification));
        let sum: f64 = figures.zip(weights).map(|(figure, weight)| figure * weight).sum();
        if total > 0.0 { sum / total } else { 0.0 }
    };
    IoAmplification {
        reads_per_op: mean(|it| it.reads_per_op, |part| part.key_reads),
        writes_per_op: mean(|it| it.writes_per_op, |part| part.key_writes),
        read_bytes_per_op: mean(|it| it.read_bytes_per_op, |part| part.key_reads),
        write_bytes_per_op: mean(|it| it.write_bytes_per_op, |part| part.key_writes),
    }
}

/// The rates of the machines on the backend with index `place`. A machine that ran empty parts
/// alone has no rate.
fn spread(parts: &[&PartReport], place: usize) -> MachineSpread {
    let mut machines: BTreeMap<_, MachineRate> = BTreeMap::new();
    let mut backend = String::new();
    for report in parts {
        let result = &report.report.results[place];
        backend.clone_from(&result.backend);
        let (host, machine) = (&report.part.host, &report.report.machine);
        let rate = machines.entry((host, machine)).or_insert_with(|| MachineRate {
            host: host.clone(),
            machine: machine.clone(),
            ..MachineRate::default()
        });
        rate.parts += 1;
        rate.txs = rate.txs.saturating_add(result.txs);
        rate.gas = rate.gas.saturating_add(result.gas);
        rate.seconds += result.seconds;
    }
    let mut machines: Vec<_> = machines.into_values().collect();
    for machine in &mut machines {
        machine.tps =
            if machine.seconds > 0.0 { machine.txs as f64 / machine.seconds } else { 0.0 };
    }
    let timed = machines.iter().filter(|machine| machine.seconds > 0.0);
    let rates: Vec<_> = timed.map(|machine| machine.tps).collect();
    let at = |fraction| quantile(rates.iter().copied(), fraction);
    MachineSpread {
        backend,
        tps_min: at(0.0),
        tps_median: at(0.5),
        tps_max: at(1.0),
        tps_sum: rates.iter().sum(),
        machines,
    }
}
