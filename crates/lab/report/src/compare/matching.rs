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

/// The results of one backend on one variant of a workload, one for each repetition.
#[derive(Clone)]
pub(super) struct RepeatedResult<'d> {
    /// That of the repetition with the median rate.
    pub(super) shown: &'d BenchResult,
    pub(super) all: Vec<&'d BenchResult>,
}

impl<'d> RepeatedResult<'d> {
    /// The results of a document, in its order.
    fn all_of(document: &'d ReportDocument) -> Result<Vec<Self>, CompareError> {
        let mut groups: Vec<Self> = Vec::new();
        for result in &document.report.results {
            let same = |group: &&mut Self| {
                group.shown.backend == result.backend
                    && WorkloadVariant::of(group.shown) == WorkloadVariant::of(result)
            };
            let Some(group) = groups.iter_mut().find(same) else {
                groups.push(Self { shown: result, all: vec![result] });
                continue;
            };
            if group.all.iter().any(|other| other.repetition == result.repetition) {
                let what = name(result);
                return Err(CompareError::Twice { file: document.name.clone(), what });
            }
            group.all.push(result);
        }
        for group in &mut groups {
            let mut all = group.all.clone();
            all.sort_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
            group.shown = all[(all.len() - 1) / 2];
        }
        Ok(groups)
    }

    /// Whether its noise is known from repetitions.
    pub(super) fn is_repeated(&self) -> bool {
        self.all.len() > 1
    }

    /// The result of a repetition.
    pub(super) fn of(&self, repetition: Option<u32>) -> Option<&'d BenchResult> {
        self.all.iter().copied().find(|result| result.repetition == repetition)
    }
}

/// The old and the new results of one backend on one variant of a workload.
pub(super) struct ResultPair<'d> {
    pub(super) old: RepeatedResult<'d>,
    pub(super) new: RepeatedResult<'d>,
    /// Backend, workload and the params that identify the variant.
    pub(super) what: String,
}

impl ResultPair<'_> {
    /// Whether the two pairs raced against each other in both documents, or are the same.
    pub(super) fn races_with(&self, other: &ResultPair<'_>) -> bool {
        let same = |a, b| WorkloadVariant::of(a) == WorkloadVariant::of(b);
        same(self.old.shown, other.old.shown) && same(self.new.shown, other.new.shown)
    }

    /// Whether both results have the same params.
    pub(super) fn same_work(&self) -> bool {
        WorkloadVariant::of(self.old.shown) == WorkloadVariant::of(self.new.shown)
    }

    /// Whether both sides were repeated.
    pub(super) fn is_repeated(&self) -> bool {
        self.old.is_repeated() && self.new.is_repeated()
    }
}

/// Matches by backend, workload and params. If no params are equal, it matches by backend and
/// workload alone, if that is unambiguous.
pub(super) fn pairs<'d>(
    old: &'d ReportDocument,
    new: &'d ReportDocument,
) -> Result<MatchedResults<'d>, CompareError> {
    let (old_groups, new_groups) = (RepeatedResult::all_of(old)?, RepeatedResult::all_of(new)?);
    let olds: Vec<_> = old_groups.iter().map(|group| group.shown).collect();
    let news: Vec<_> = new_groups.iter().map(|group| group.shown).collect();
    let kin = |a: &BenchResult, b: &BenchResult| a.backend == b.backend && a.workload == b.workload;
    let same = |a: &BenchResult, b: &BenchResult| {
        kin(a, b) && WorkloadVariant::of(a) == WorkloadVariant::of(b)
    };
    let variants: Vec<_> =
        olds.iter().chain(&news).map(|result| WorkloadVariant::of(result)).collect();
    let mut matched = MatchedResults {
        pairs: Vec::new(),
        only_old: Vec::new(),
        only_new: Vec::new(),
        remarks: Vec::new(),
    };
    for (result, group) in olds.iter().copied().zip(&old_groups) {
        let candidates: Vec<_> = news.iter().copied().filter(|new| kin(result, new)).collect();
        let siblings: Vec<_> = olds.iter().copied().filter(|old| kin(result, old)).collect();
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
        if let Some(new) = new_groups.iter().find(|new| std::ptr::eq(new.shown, partner)) {
            matched.pairs.push(ResultPair { old: group.clone(), new: new.clone(), what });
        }
    }
    let is_paired =
        |new: &BenchResult| matched.pairs.iter().any(|pair| std::ptr::eq(pair.new.shown, new));
    let lonely = news.iter().filter(|new| !is_paired(new));
    matched.only_new = lonely.map(|new| name(new)).collect();
    if matched.pairs.is_empty() {
        return Err(CompareError::NothingInCommon { old: old.name.clone(), new: new.name.clone() });
    }
    Ok(matched)
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
