//! Finds figures that have become worse between two documents, and separates them from noise.
//!
//! Two measurements on one machine differ as a whole, by its neighbours, its clock, its disk. So
//! each figure that depends on time is also taken relative to a *yardstick* of the same document
//! (`raw`, otherwise the first backend that both documents have), slice by slice, as the slices of
//! a race alternate. A figure is better or worse only if this relative change is larger than the
//! threshold and outside the noise of the slices. The slices of a replay are its blocks, which are
//! the same in both documents, so they are compared block by block. The limit of the method: a
//! change of the yardstick itself looks like a change of the machine, or like the opposite change
//! of all others. Amplification and disk usage do not depend on time: they are compared directly,
//! if both documents measured the same work completely. Repeated measurements are judged by the noise
//! between the repetitions, and so are their sustained rates and tails.

mod matching;
mod noise;

use super::{BenchResult, ReportDocument, variant::WorkloadVariant};
use matching::{RepeatedResult, ResultPair, pairs};
use noise::{SeriesShift, paired_shift, repeated_shift, shift};

/// Smaller changes of figures without noise are not shown.
const SHOWN: f64 = 0.01;

/// Why two documents cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// Two results of one document cannot be told apart.
    #[error("{file} has {what} twice: compare files of single runs")]
    Twice {
        /// The document.
        file: String,
        /// Backend, workload and params.
        what: String,
    },
    /// Params differ, and several results could be the counterpart.
    #[error(
        "{what} is in both files with other params, and it is not clear which belong together: old \
         {old}; new {new}"
    )]
    Ambiguous {
        /// Backend and workload.
        what: String,
        /// Params of the candidates in the old document.
        old: String,
        /// Params of the candidates in the new document.
        new: String,
    },
    /// The documents have no result in common.
    #[error("{old} and {new} have no backend and workload in common")]
    NothingInCommon {
        /// The old document.
        old: String,
        /// The new document.
        new: String,
    },
}

/// The comparison of two documents.
#[derive(Clone, Debug)]
pub struct ReportComparison {
    /// Differences that limit the comparison: another machine, version or params; a command that
    /// was stopped early.
    pub remarks: Vec<String>,
    /// One entry for each backend and variant that both documents have.
    pub pairs: Vec<ComparedResult>,
    /// Results that only the old document has.
    pub only_old: Vec<String>,
    /// Results that only the new document has.
    pub only_new: Vec<String>,
}

impl ReportComparison {
    /// The figures that are worse, with backend and workload, one line each.
    pub fn regressions(&self) -> Vec<String> {
        let line = |pair: &ComparedResult, change: &FigureChange| {
            format!("{}: {} {}", pair.what, change.metric, super::percent(change.judged()))
        };
        let worse = |pair: &ComparedResult| -> Vec<String> {
            let worse = pair.changes.iter().filter(|change| change.verdict == ChangeVerdict::Worse);
            worse.map(|change| line(pair, change)).collect()
        };
        self.pairs.iter().flat_map(worse).collect()
    }
}

/// The comparison of one backend on one variant of a workload.
#[derive(Clone, Debug)]
pub struct ComparedResult {
    /// Backend, workload and the params that identify the variant.
    pub what: String,
    /// The yardstick; `None` if there is no other backend, or if this backend is the yardstick.
    pub yardstick: Option<String>,
    /// The changes of its figures.
    pub changes: Vec<FigureChange>,
}

/// The change of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureChange {
    /// Name of the figure, with its unit.
    pub metric: String,
    /// The old value.
    pub old: f64,
    /// The new value.
    pub new: f64,
    /// `new / old - 1`; infinite if the old value is 0.
    pub change: f64,
    /// The change relative to the yardstick of the same document.
    pub relative: Option<f64>,
    /// The interval of the judged change: 99 %, estimated from the slices; or that of repetitions.
    pub interval: Option<(f64, f64)>,
    /// The verdict.
    pub verdict: ChangeVerdict,
}

impl FigureChange {
    /// The change on which the verdict is based: relative to the yardstick if there is one.
    pub fn judged(&self) -> f64 {
        self.relative.unwrap_or(self.change)
    }
}

/// The verdict about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// Better, by more than the threshold and than noise.
    Better,
    /// Worse, by more than the threshold and than noise: a regression.
    Worse,
    /// Not larger than the threshold, or within the noise.
    Same,
    /// The backend is the yardstick: its change counts as the machine's.
    Yardstick,
    /// The noise is unknown (one value per document), or the documents did not measure the same
    /// work.
    Unknown,
}

/// The source of a figure's noise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoiseModel {
    /// The noise is estimated from the slices.
    Slices,
    /// There is no noise.
    Exact,
    /// The noise is unknown.
    Unknown,
}

type FigureValue = Box<dyn Fn(&BenchResult) -> Option<f64>>;

/// A figure that is compared.
struct ComparedFigure {
    name: String,
    more_is_better: bool,
    noise: NoiseModel,
    value: FigureValue,
}

/// All compared figures of a pair, those of every result first. The noise of slices says nothing
/// about stalls between slices and about the final flush, so it does not apply to sustained rates.
fn figures(pair: &ResultPair<'_>) -> Vec<ComparedFigure> {
    type KnownMetric = (&'static str, bool, NoiseModel, fn(&BenchResult) -> Option<f64>);
    const KNOWN: [KnownMetric; 9] = [
        ("tx/s", true, NoiseModel::Slices, |r| r.tps),
        ("ops/s", true, NoiseModel::Slices, |r| r.tps.is_none().then_some(r.ops_per_s)),
        ("sustained ops/s", true, NoiseModel::Unknown, |r| r.sustained_ops_per_s),
        ("p99 us", false, NoiseModel::Unknown, |r| Some(r.p99_us? as f64)),
        ("disk bytes", false, NoiseModel::Exact, |r| {
            (r.disk_bytes > 0).then_some(r.disk_bytes as f64)
        }),
        ("rows read/op", false, NoiseModel::Exact, |r| r.reads_per_op),
        ("rows written/op", false, NoiseModel::Exact, |r| r.writes_per_op),
        ("bytes read/op", false, NoiseModel::Exact, |r| r.read_bytes_per_op),
        ("bytes written/op", false, NoiseModel::Exact, |r| r.write_bytes_per_op),
    ];
    let known = KNOWN.map(|(name, more_is_better, noise, value)| ComparedFigure {
        name: name.into(),
        more_is_better,
        noise,
        value: Box::new(value),
    });
    let measures = pair.old.shown.measures.keys().map(|name| {
        let is_time = name.ends_with(" ms") || name.starts_with("us ");
        let own = name.clone();
        ComparedFigure {
            name: name.clone(),
            more_is_better: false,
            // Numbers of rounds and chunks depend on the order in which peers answer.
            noise: match pair.old.shown.workload.as_str() {
                "sync" => NoiseModel::Unknown,
                _ if is_time => NoiseModel::Unknown,
                _ => NoiseModel::Exact,
            },
            value: Box::new(move |result: &BenchResult| result.measures.get(&own).copied()),
        }
    });
    known.into_iter().chain(measures).collect()
}

/// The probability that noise alone moves no figure of a comparison out of its interval.
const CONFIDENCE: f64 = 0.99;

/// Compares two documents. Changes up to `threshold` do not count: 0.05 is 5 %.
pub fn compare(
    old: &ReportDocument,
    new: &ReportDocument,
    threshold: f64,
) -> Result<ReportComparison, CompareError> {
    let matched = pairs(old, new)?;
    let mut remarks = remarks(old, new);
    remarks.extend(matched.remarks);
    let complete = old.report.complete && new.report.complete;
    let timed = |pair: &ResultPair<'_>| {
        let all = figures(pair).into_iter();
        all.filter(|of| of.noise != NoiseModel::Exact && of.mean(&pair.old).is_some()).count()
    };
    let count: usize = matched.pairs.iter().filter(|pair| pair.is_repeated()).map(timed).sum();
    let terms =
        CompareTerms { threshold, confidence: 1.0 - (1.0 - CONFIDENCE) / count.max(1) as f64 };
    let mut compared = Vec::new();
    for pair in &matched.pairs {
        let racers: Vec<_> = matched.pairs.iter().filter(|other| other.races_with(pair)).collect();
        let raw = racers.iter().find(|racer| racer.old.shown.backend == "raw");
        let yardstick = raw.or_else(|| racers.first()).filter(|_| racers.len() > 1).copied();
        let is_yardstick = yardstick.is_some_and(|yardstick| std::ptr::eq(yardstick, pair));
        if yardstick.is_none() {
            remarks.push(format!(
                "{} has no rival in both files and is judged by itself: a slower machine looks like a \
                 slower backend",
                pair.what
            ));
        }
        let beside = yardstick.filter(|_| !is_yardstick);
        let changes = figures(pair).into_iter().filter_map(|figure| {
            let change = change(&figure, pair, beside, terms)?;
            let verdict = match figure.noise {
                NoiseModel::Slices if is_yardstick => ChangeVerdict::Yardstick,
                NoiseModel::Unknown if is_yardstick && pair.is_repeated() => {
                    ChangeVerdict::Yardstick
                }
                NoiseModel::Exact if !complete || !pair.same_work() => ChangeVerdict::Unknown,
                _ => change.verdict,
            };
            Some(FigureChange { verdict, ..change })
        });
        compared.push(ComparedResult {
            what: pair.what.clone(),
            yardstick: beside.map(|beside| beside.old.shown.backend.clone()),
            changes: changes.collect(),
        });
    }
    Ok(ReportComparison {
        remarks,
        pairs: compared,
        only_old: matched.only_old,
        only_new: matched.only_new,
    })
}

/// What a change must exceed.
#[derive(Clone, Copy)]
struct CompareTerms {
    threshold: f64,
    /// The confidence of the interval of each repeated figure.
    confidence: f64,
}

impl ComparedFigure {
    /// The mean over repetitions.
    fn mean(&self, result: &RepeatedResult<'_>) -> Option<f64> {
        let values: Vec<f64> = result.all.iter().filter_map(|one| (self.value)(one)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The values of all repetitions, relative to those of the yardstick if `beside` is given.
    fn values(&self, result: &RepeatedResult<'_>, beside: Option<&RepeatedResult<'_>>) -> Vec<f64> {
        let value = |one: &&BenchResult| match beside {
            None => (self.value)(one),
            Some(beside) => Some((self.value)(one)? / (self.value)(beside.of(one.repetition)?)?),
        };
        result.all.iter().filter_map(value).collect()
    }
}

fn change(
    figure: &ComparedFigure,
    pair: &ResultPair<'_>,
    beside: Option<&ResultPair<'_>>,
    CompareTerms { threshold, confidence }: CompareTerms,
) -> Option<FigureChange> {
    let (noise, more_is_better) = (figure.noise, figure.more_is_better);
    let (old, new) = (figure.mean(&pair.old)?, figure.mean(&pair.new)?);
    let (change, known) = (new / old - 1.0, old.is_finite() && new.is_finite());
    if !known || old == new && old == 0.0 {
        return None;
    }
    let is_zero = old == 0.0 || new == 0.0;
    let unjudged = FigureChange {
        metric: figure.name.clone(),
        old,
        new,
        change,
        relative: None,
        interval: None,
        verdict: ChangeVerdict::Unknown,
    };
    if noise == NoiseModel::Exact || noise == NoiseModel::Slices && is_zero {
        // A change from or to zero is larger than any noise.
        let verdict = verdict(change.abs() > threshold, change > 0.0, more_is_better);
        return (change.abs() > SHOWN).then_some(FigureChange { verdict, ..unjudged });
    }
    let repeated = pair.is_repeated().then(|| {
        let beside = beside.filter(|beside| beside.is_repeated());
        let old = figure.values(&pair.old, beside.map(|beside| &beside.old));
        let new = figure.values(&pair.new, beside.map(|beside| &beside.new));
        (repeated_shift(&old, &new, confidence), beside.is_some())
    });
    if let Some((Some(shift), is_relative)) = repeated {
        let (low, high) = (shift.interval.0 - 1.0, shift.interval.1 - 1.0);
        let judged = shift.factor - 1.0;
        let outside = low > 0.0 || high < 0.0;
        return Some(FigureChange {
            relative: is_relative.then_some(judged),
            interval: Some((low, high)),
            verdict: verdict(outside && judged.abs() > threshold, judged > 0.0, more_is_better),
            ..unjudged
        });
    }
    let drift = beside.and_then(|beside| {
        Some((figure.value)(beside.new.shown)? / (figure.value)(beside.old.shown)?)
    });
    let drift = drift.filter(|drift| drift.is_finite() && *drift > 0.0);
    let relative = drift.map(|drift| (1.0 + change) / drift - 1.0);
    let unjudged = FigureChange { relative, ..unjudged };
    let Some(shift) = shift_of(pair, beside, drift).filter(|_| noise == NoiseModel::Slices) else {
        return Some(unjudged);
    };
    // Both must show the change: the figure, which may depend on one stall, and most of the slices.
    let judged = relative.unwrap_or(change);
    let (low, high) = (shift.interval.0 - 1.0, shift.interval.1 - 1.0);
    let outside = if judged > 0.0 { low > 0.0 } else { high < 0.0 };
    let verdict = verdict(outside && judged.abs() > threshold, judged > 0.0, more_is_better);
    Some(FigureChange { interval: Some((low, high)), verdict, ..unjudged })
}

/// The factor by which the slices of `pair` have changed, relative to those of the yardstick: slice
/// by slice if both have the same number of slices, otherwise by `drift`, the change of the
/// yardstick as a whole.
fn shift_of(
    pair: &ResultPair<'_>,
    beside: Option<&ResultPair<'_>>,
    drift: Option<f64>,
) -> Option<SeriesShift> {
    let alike = |a: &BenchResult, b: &BenchResult| a.slices.len() == b.slices.len();
    let (before, after) = (pair.old.shown, pair.new.shown);
    let close = beside.filter(|b| alike(before, b.old.shown) && alike(after, b.new.shown));
    let old = rates(before, close.map(|beside| beside.old.shown));
    let new = rates(after, close.map(|beside| beside.new.shown));
    // Blocks are the same if the cumulative numbers of transactions are equal.
    let ends = |result: &BenchResult| result.slices.iter().map(|s| s.ops).collect::<Vec<_>>();
    let blocks = before.workload == "replay" && ends(before) == ends(after);
    let shift = if blocks { paired_shift(&old, &new) } else { shift(&old, &new) }?;
    let rest = if close.is_some() { 1.0 } else { drift.unwrap_or(1.0) };
    Some(SeriesShift {
        factor: shift.factor / rest,
        interval: (shift.interval.0 / rest, shift.interval.1 / rest),
    })
}

const fn verdict(changed: bool, more: bool, more_is_better: bool) -> ChangeVerdict {
    match (changed, more == more_is_better) {
        (false, _) => ChangeVerdict::Same,
        (true, true) => ChangeVerdict::Better,
        (true, false) => ChangeVerdict::Worse,
    }
}

/// The rates of the slices, divided by the rates of the yardstick's slices if `beside` is given.
fn rates(result: &BenchResult, beside: Option<&BenchResult>) -> Vec<f64> {
    let own = result.slices.iter().map(|slice| slice.ops_per_s);
    match beside {
        Some(beside) => {
            own.zip(&beside.slices).map(|(rate, other)| rate / other.ops_per_s).collect()
        }
        None => own.collect(),
    }
}

fn remarks(old: &ReportDocument, new: &ReportDocument) -> Vec<String> {
    let mut remarks = Vec::new();
    let (a, b) = (&old.report, &new.report);
    if a.machine != b.machine {
        remarks.push(format!(
            "other machines ({} and {}): only what is relative to the yardstick means something",
            a.machine, b.machine
        ));
    }
    if a.version != b.version {
        remarks.push(format!("other versions: {} and {}", a.version, b.version));
    }
    for document in [old, new].into_iter().filter(|document| !document.report.complete) {
        remarks.push(format!(
            "{} was stopped before its end, so disk and amplification are not judged",
            document.name
        ));
    }
    for document in [old, new] {
        let failures = document.failures.iter();
        remarks.extend(failures.map(|line| format!("{}: a check failed: {line}", document.name)));
    }
    remarks
}

/// Backend, workload and params in one line.
fn name(result: &BenchResult) -> String {
    let variant = WorkloadVariant::of(result);
    let names: Vec<_> = variant.params.keys().map(String::as_str).collect();
    format!("{} on {} ({})", result.backend, result.workload, variant.words(&names))
}
