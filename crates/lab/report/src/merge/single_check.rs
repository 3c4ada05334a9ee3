//! Checks that the report of a part is consistent.

use super::{MergeError, PartReport};
use retrie_pipeline::report::{BundleOutcome, PartCoverage, PartFigures, PartInputs, ReplayResult};
use std::ops::Range;

/// Checks a report: the cut against the inputs, sums against outcomes, failures against checks.
pub(super) fn check(report: &PartReport) -> Result<(), MergeError> {
    let contradiction = |why: String| MergeError::Contradiction {
        file: report.file.as_str().into(),
        part: report.part(),
        why: why.into(),
    };
    cut(report).map_err(contradiction)?;
    for result in &report.report.results {
        let name = &result.backend;
        figures(result, &report.part.covered)
            .map_err(|why| contradiction(format!("{name}: {why}")))?;
    }
    Ok(())
}

/// Checks that the report covers its part of the inputs.
fn cut(report: &PartReport) -> Result<(), String> {
    let (part, covered) = (report.part(), &report.part.covered);
    match (&report.part.inputs, covered) {
        (PartInputs::Bundles { count, .. }, PartCoverage::Bundles(_) | PartCoverage::Nothing) => {
            let Range { start, end } = part.share(u128::from(*count));
            let should = end - start;
            let is = match covered {
                PartCoverage::Bundles(bundles) => bundles.len() as u128,
                _ => 0,
            };
            same(is, should, || format!("bundles of part {part} of {count}"))
        }
        (
            PartInputs::Blocks { from, to, .. },
            PartCoverage::Blocks { .. } | PartCoverage::Nothing,
        ) => {
            let range = match covered {
                PartCoverage::Blocks { from, to } => Some(*from..=*to),
                _ => None,
            };
            let should = part.of_blocks(&(*from..=*to));
            if range == should {
                return Ok(());
            }
            Err(format!("part {part} of blocks {from} to {to} is {should:?}, not {range:?}"))
        }
        _ => Err("bundles are no part of a chain, nor a chain of bundles".into()),
    }
}

fn same<T: PartialEq + std::fmt::Display>(
    is: T,
    should: T,
    what: impl FnOnce() -> String,
) -> Result<(), String> {
    if is == should { Ok(()) } else { Err(format!("{}: it has {is}, there are {should}", what())) }
}

fn figures(result: &ReplayResult, covered: &PartCoverage) -> Result<(), String> {
    let Some(part) = &result.part else { return Err("the figures of a part are missing".into()) };
    for (name, figure) in [
        ("seconds", result.seconds),
        ("tps", result.tps),
        ("mgas_per_s", result.mgas_per_s),
        ("execution", result.breakdown.execution),
        ("authentication", result.breakdown.authentication),
        ("storage_io", result.breakdown.storage_io),
        ("other", result.breakdown.other),
        ("reads_per_op", result.amplification.reads_per_op),
        ("writes_per_op", result.amplification.writes_per_op),
        ("read_bytes_per_op", result.amplification.read_bytes_per_op),
        ("write_bytes_per_op", result.amplification.write_bytes_per_op),
    ] {
        if !figure.is_finite() || figure < 0.0 {
            return Err(format!("{name} is {figure}"));
        }
    }
    let failed = !part.failed_blocks.is_empty();
    if result.ok == failed || result.failures.is_empty() == failed {
        return Err(format!(
            "ok is {}, with {} failures and {} failed blocks",
            result.ok,
            result.failures.len(),
            part.failed_blocks.len()
        ));
    }
    match covered {
        PartCoverage::Nothing => same(result.blocks, 0, || "blocks of an empty part".into()),
        PartCoverage::Blocks { from, to } => chain(result, part, *from, *to),
        PartCoverage::Bundles(bundles) => {
            let numbers: Vec<_> = bundles.iter().map(|bundle| bundle.number).collect();
            outcomes(result, part, &numbers)
        }
    }
}

fn chain(result: &ReplayResult, part: &PartFigures, from: u64, to: u64) -> Result<(), String> {
    // Block 0 exists before the replay.
    let should = (u128::from(to) + 1).saturating_sub(u128::from(from.max(1)));
    if part.parent.is_none() || part.tip.is_none() || !result.bundles.is_empty() {
        return Err("it is not the result of a chain".into());
    }
    match &part.failed_blocks[..] {
        _ if result.to > to => Err(format!("it ends at block {}, of {from} to {to}", result.to)),
        [] if result.to != to => Err(format!("it ends at block {}, of {from} to {to}", result.to)),
        // There may be side blocks in addition.
        [] if u128::from(result.blocks) < should => {
            Err(format!("it has {} of the blocks {from} to {to}", result.blocks))
        }
        // A file may be damaged after the last block.
        [failed] if *failed > to.saturating_add(1) => {
            Err(format!("block {failed} has failed, of {from} to {to}"))
        }
        [] | [_] => Ok(()),
        more => Err(format!("{} blocks have failed, and a replay ends at the first", more.len())),
    }
}

/// Checks the figures against the outcomes, and the outcomes against the bundles covered.
fn outcomes(result: &ReplayResult, part: &PartFigures, covered: &[u64]) -> Result<(), String> {
    let sum = |field: fn(&BundleOutcome) -> u64| {
        result.bundles.iter().map(field).fold(0_u64, u64::saturating_add)
    };
    same(result.blocks, result.bundles.len() as u64, || "blocks".into())?;
    same(result.txs, sum(|outcome| outcome.txs), || "txs".into())?;
    same(result.gas, sum(|outcome| outcome.gas), || "gas".into())?;
    same(result.failures.len(), part.failed_blocks.len(), || "failures".into())?;
    let mut failed = part.failed_blocks.clone();
    for outcome in &result.bundles {
        if !outcome.seconds.is_finite() || outcome.seconds < 0.0 {
            return Err(format!("block {} took {} seconds", outcome.number, outcome.seconds));
        }
        if !outcome.ok() {
            let Some(place) = failed.iter().position(|number| *number == outcome.number) else {
                return Err(format!("{}, which is not counted", outcome.failure()));
            };
            failed.remove(place);
        }
    }
    // A failed block without outcome could not be executed.
    let mut numbers: Vec<_> = result.bundles.iter().map(|outcome| outcome.number).collect();
    numbers.extend(failed);
    numbers.sort_unstable();
    match numbers.iter().zip(covered).find(|(is, should)| is != should) {
        Some((is, should)) => Err(format!("block {is} stands where block {should} should")),
        None => same(numbers.len(), covered.len(), || "outcomes of its bundles".into()),
    }
}
