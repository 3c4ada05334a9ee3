//! Matches the results of two documents.

use super::{CompareError, name};
use crate::{
    BenchResult, ReportDocument,
    variant::{WorkloadVariant, differing},
};

/// The matched results of two documents.
pub(super) struct MatchedResults<'d> {
    pub(super) pairs: Vec<ResultPair<'d>>,
    pub(super) only_old: Vec<String>,
    pub(super) only_new: Vec<String>,
    pub(super) remarks: Vec<String>,
}

/// The old and the new result of one backend on one variant of a workload.
pub(super) struct ResultPair<'d> {
    pub(super) old: &'d BenchResult,
    pub(super) new: &'d BenchResult,
    /// Backend, workload and the params that identify the variant.
    pub(super) what: String,
}

impl ResultPair<'_> {
    /// Whether the two pairs raced against each other in both documents, or are the same.
    pub(super) fn races_with(&self, other: &ResultPair<'_>) -> bool {
        let same = |a, b| WorkloadVariant::of(a) == WorkloadVariant::of(b);
        same(self.old, other.old) && same(self.new, other.new)
    }

    /// Whether both results have the same params.
    pub(super) fn same_work(&self) -> bool {
        WorkloadVariant::of(self.old) == WorkloadVariant::of(self.new)
    }
}

/// Matches by backend, workload and params. If no params are equal, it matches by backend and
/// workload alone, if that is unambiguous.
pub(super) fn pairs<'d>(
    old: &'d ReportDocument,
    new: &'d ReportDocument,
) -> Result<MatchedResults<'d>, CompareError> {
    refuse_twins(old)?;
    refuse_twins(new)?;
    let (olds, news) = (&old.report.results, &new.report.results);
    let kin = |a: &BenchResult, b: &BenchResult| a.backend == b.backend && a.workload == b.workload;
    let same = |a: &BenchResult, b: &BenchResult| {
        kin(a, b) && WorkloadVariant::of(a) == WorkloadVariant::of(b)
    };
    let variants: Vec<_> = olds.iter().chain(news).map(WorkloadVariant::of).collect();
    let mut matched = MatchedResults {
        pairs: Vec::new(),
        only_old: Vec::new(),
        only_new: Vec::new(),
        remarks: Vec::new(),
    };
    for result in olds {
        let candidates: Vec<_> = news.iter().filter(|new| kin(result, new)).collect();
        let siblings: Vec<_> = olds.iter().filter(|old| kin(result, old)).collect();
        let exact = candidates.iter().find(|new| same(result, new));
        let none_agrees = !siblings.iter().any(|old| candidates.iter().any(|new| same(old, new)));
        let partner = match (exact, &candidates[..]) {
            (Some(new), _) => {
                if let (Some(old), Some(new)) = (result.params.get("hash"), new.params.get("hash"))
                    && old != new
                {
                    let name = &result.backend;
                    matched.remarks.push(format!("{name} hashed with {old} then, with {new} now"));
                }
                *new
            }
            (None, [new]) if none_agrees && siblings.len() == 1 => {
                matched.remarks.push(format!(
                    "{} on {} ran with other params: {}",
                    result.backend,
                    result.workload,
                    differences(result, new)
                ));
                new
            }
            (None, [_, ..]) if none_agrees => {
                return Err(CompareError::Ambiguous {
                    what: format!("{} on {}", result.backend, result.workload),
                    old: names(&siblings),
                    new: names(&candidates),
                });
            }
            _ => {
                matched.only_old.push(name(result));
                continue;
            }
        };
        let of_workload: Vec<_> =
            variants.iter().filter(|variant| variant.workload == result.workload).collect();
        let variant = WorkloadVariant::of(result);
        let words = variant.words(&differing(&of_workload));
        let what = match words.as_str() {
            "" => format!("{} on {}", result.backend, result.workload),
            words => format!("{} on {} ({words})", result.backend, result.workload),
        };
        matched.pairs.push(ResultPair { old: result, new: partner, what });
    }
    let lonely =
        news.iter().filter(|new| !matched.pairs.iter().any(|pair| std::ptr::eq(pair.new, *new)));
    matched.only_new = lonely.map(name).collect();
    if matched.pairs.is_empty() {
        return Err(CompareError::NothingInCommon { old: old.name.clone(), new: new.name.clone() });
    }
    Ok(matched)
}

fn refuse_twins(document: &ReportDocument) -> Result<(), CompareError> {
    let results = &document.report.results;
    let twin = results.iter().enumerate().find(|(n, result)| {
        results[..*n].iter().any(|other| {
            other.backend == result.backend
                && WorkloadVariant::of(other) == WorkloadVariant::of(result)
        })
    });
    match twin {
        Some((_, result)) => {
            Err(CompareError::Twice { file: document.name.clone(), what: name(result) })
        }
        None => Ok(()),
    }
}

fn names(results: &[&BenchResult]) -> String {
    results.iter().map(|result| name(result)).collect::<Vec<_>>().join(" / ")
}

/// `keys 1m and 2m`, for each param that differs.
fn differences(old: &BenchResult, new: &BenchResult) -> String {
    let (old, new) = (WorkloadVariant::of(old), WorkloadVariant::of(new));
    let side = |variant: &WorkloadVariant, name| match variant.words(&[name]) {
        words if words.is_empty() => format!("no {}", name.replace('_', " ")),
        words => words,
    };
    let names = differing(&[&old, &new]);
    let lines =
        names.iter().map(|name| format!("{} then, {} now", side(&old, name), side(&new, name)));
    lines.collect::<Vec<_>>().join("; ")
}
