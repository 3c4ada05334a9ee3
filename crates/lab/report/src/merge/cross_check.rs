//! Checks that the reports of parts belong together.

use super::{MergeError, PartReport};
use retrie_pipeline::{
    replay::{NamedBundle, PartSpec},
    report::{BundleOutcome, PartCoverage, PartFigures, PartInputs, ReplayResult},
};
use std::fmt::{Debug, Display};

/// Rejects reports of two different replays: other backends, options, inputs, numbers of parts or
/// versions.
pub(super) fn same_run(first: &PartReport, other: &PartReport) -> Result<(), MergeError> {
    let foreign = |what: &str, here: String, there: String| MergeError::Foreign {
        file: other.file.as_str().into(),
        other: first.file.as_str().into(),
        what: what.into(),
        here: here.into(),
        there: there.into(),
    };
    let same = |what: &str, here: String, there: String| match here == there {
        true => Ok(()),
        false => Err(foreign(what, here, there)),
    };
    same("the version", other.report.version.clone(), first.report.version.clone())?;
    let count = |report: &PartReport| report.part().count().to_string();
    same("the number of parts", count(other), count(first))?;
    let inputs = |report: &PartReport| input_words(&report.part.inputs);
    same("what is replayed", inputs(other), inputs(first))?;
    let (here, there) = (&other.part.options, &first.part.options);
    for name in here.keys().chain(there.keys()) {
        let value = |of: Option<&String>| of.map_or_else(|| "absent".into(), Clone::clone);
        same(&format!("--{name}"), value(here.get(name)), value(there.get(name)))?;
    }
    // In a stopped report some backends may be missing.
    if other.report.complete && first.report.complete {
        let lanes = |report: &PartReport| {
            let lane = |result: &ReplayResult| format!("{} on {}", result.backend, result.chain);
            report.report.results.iter().map(lane).collect::<Vec<_>>().join(", ")
        };
        same("the list of backends", lanes(other), lanes(first))?;
    }
    Ok(())
}

fn input_words(inputs: &PartInputs) -> String {
    match inputs {
        PartInputs::Bundles { genesis, count, digest } => {
            format!("{count} bundles of digest {digest}, on genesis {genesis}")
        }
        PartInputs::Blocks { genesis, from, to } => {
            format!("blocks {from} to {to} on genesis {genesis}")
        }
    }
}

/// Rejects two reports of one part with different results. Compares everything that does not depend
/// on the machine.
pub(super) fn same_results(first: &PartReport, again: &PartReport) -> Result<(), MergeError> {
    let part = first.part();
    let differs = |block: u64, backend: &str, found: ResultDifference| MergeError::Differs {
        part,
        block,
        backend: backend.into(),
        what: found.what,
        file: again.file.as_str().into(),
        here: found.here.into(),
        other: first.file.as_str().into(),
        there: found.there.into(),
    };
    let lists = (&first.part.covered, &again.part.covered);
    if let (PartCoverage::Bundles(there), PartCoverage::Bundles(here)) = lists
        && let Some((there, here)) = there.iter().zip(here).find(|(there, here)| there != here)
    {
        let found = ResultDifference::of("the bundle", &here.file, &there.file);
        return Err(differs(there.number.min(here.number), "every backend", found));
    }
    for (there, here) in first.report.results.iter().zip(&again.report.results) {
        let backend = &there.backend;
        for (there, here) in there.bundles.iter().zip(&here.bundles) {
            if let Some(found) = outcomes(here, there) {
                return Err(differs(there.number.min(here.number), backend, found));
            }
        }
        if let Some((block, found)) = results(here, there) {
            return Err(differs(block, backend, found));
        }
    }
    Ok(())
}

struct ResultDifference {
    what: &'static str,
    here: String,
    there: String,
}

impl ResultDifference {
    fn of(what: &'static str, here: impl Display, there: impl Display) -> Self {
        Self { what, here: here.to_string(), there: there.to_string() }
    }

    fn between<T: PartialEq + Debug>(what: &'static str, here: &T, there: &T) -> Option<Self> {
        (here != there).then(|| Self::of(what, format!("{here:?}"), format!("{there:?}")))
    }
}

fn outcomes(here: &BundleOutcome, there: &BundleOutcome) -> Option<ResultDifference> {
    let checks = |outcome: &BundleOutcome| {
        let whole = [Some(outcome.gas_ok), Some(outcome.bloom_ok)];
        (whole, [outcome.receipts_ok, outcome.requests_ok, outcome.root_ok])
    };
    ResultDifference::between("the number", &here.number, &there.number)
        .or_else(|| ResultDifference::between("the kind", &here.kind, &there.kind))
        .or_else(|| ResultDifference::between("the number of transactions", &here.txs, &there.txs))
        .or_else(|| ResultDifference::between("the gas", &here.gas, &there.gas))
        .or_else(|| ResultDifference::between("the list of checks", &checks(here), &checks(there)))
}

/// The first difference of two results, and its block.
fn results(here: &ReplayResult, there: &ReplayResult) -> Option<(u64, ResultDifference)> {
    let failed = |result: &ReplayResult| result.part.clone().unwrap_or_default().failed_blocks;
    let (failed_here, failed_there) = (failed(here), failed(there));
    let only =
        |some: &[u64], others: &[u64]| some.iter().find(|one| !others.contains(one)).copied();
    let lonely = [only(&failed_here, &failed_there), only(&failed_there, &failed_here)];
    if let Some(block) = lonely.into_iter().flatten().min() {
        return Some((
            block,
            ResultDifference::of(
                "whether it failed",
                failed_here.contains(&block),
                failed_there.contains(&block),
            ),
        ));
    }
    let last = here.to.min(there.to);
    let tip = |result: &ReplayResult| result.part.as_ref().and_then(|part| part.tip);
    ResultDifference::between("the last block", &here.to, &there.to)
        .or_else(|| ResultDifference::between("the hash", &tip(here), &tip(there)))
        .or_else(|| ResultDifference::between("the number of blocks", &here.blocks, &there.blocks))
        .or_else(|| ResultDifference::between("the number of transactions", &here.txs, &there.txs))
        .or_else(|| ResultDifference::between("the gas", &here.gas, &there.gas))
        .or_else(|| ResultDifference::between("the state root", &here.root, &there.root))
        .map(|found| (last, found))
}

/// Rejects sorted parts that are not consecutive: of a chain by parent hash, of bundles by the
/// digest of all, if no part is missing.
pub(super) fn check_continuity(parts: &[&PartReport]) -> Result<(), MergeError> {
    for pair in parts.windows(2) {
        if pair[0].part().index() + 1 == pair[1].part().index() {
            linked(pair[0], pair[1])?;
        }
    }
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
    starts_at_genesis(first)?;
    let PartInputs::Bundles { digest, .. } = &first.part.inputs else { return Ok(()) };
    if parts.len() < first.part().count() as usize {
        return Ok(());
    }
    let bundles = parts.iter().flat_map(|report| match &report.part.covered {
        PartCoverage::Bundles(bundles) => &bundles[..],
        _ => &[],
    });
    let got = NamedBundle::digest(bundles);
    if got == *digest {
        return Ok(());
    }
    Err(MergeError::OtherBundles {
        first: first.part(),
        last: last.part(),
        got: got.to_string().into(),
        expected: digest.to_string().into(),
    })
}

fn linked(before: &PartReport, after: &PartReport) -> Result<(), MergeError> {
    let PartCoverage::Blocks { from, .. } = after.part.covered else { return Ok(()) };
    let pairs = before.report.results.iter().zip(&after.report.results);
    for (tip_of, parent_of) in pairs {
        // After a failed block there is no successor to check.
        if !tip_of.ok || !parent_of.ok {
            continue;
        }
        let figures = |result: &ReplayResult| result.part.clone().unwrap_or_default();
        let (PartFigures { tip, .. }, PartFigures { parent, .. }) =
            (figures(tip_of), figures(parent_of));
        if let (Some(tip), Some(parent)) = (tip, parent)
            && tip != parent
        {
            return Err(unlinked(
                after,
                from,
                parent_of,
                &parent.to_string(),
                before,
                &tip.to_string(),
            ));
        }
    }
    Ok(())
}

fn unlinked(
    after: &PartReport,
    block: u64,
    result: &ReplayResult,
    parent: &str,
    before: &PartReport,
    tip: &str,
) -> MergeError {
    MergeError::Unlinked {
        block,
        file: after.file.as_str().into(),
        backend: result.backend.as_str().into(),
        parent: parent.into(),
        other: before.file.as_str().into(),
        tip: tip.into(),
    }
}

/// Checks that the first block of a chain has genesis as its parent.
fn starts_at_genesis(first: &PartReport) -> Result<(), MergeError> {
    let PartInputs::Blocks { genesis, .. } = &first.part.inputs else { return Ok(()) };
    let PartCoverage::Blocks { from: from @ 0..=1, .. } = first.part.covered else { return Ok(()) };
    for result in &first.report.results {
        let parent = result.part.as_ref().and_then(|part| part.parent);
        if let Some(parent) = parent.filter(|parent| parent != genesis) {
            let why = format!(
                "{}: block {from} follows on {parent}, which is not the genesis {genesis}",
                result.backend
            );
            let file = first.file.as_str().into();
            return Err(MergeError::Contradiction { file, part: first.part(), why: why.into() });
        }
    }
    Ok(())
}

/// The parts of `count` that are not among `parts`.
pub(super) fn missing(count: u32, parts: &[&PartReport]) -> Vec<PartSpec> {
    PartSpec::all(count).filter(|part| parts.iter().all(|report| report.part() != *part)).collect()
}
