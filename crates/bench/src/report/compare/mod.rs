//! What has become slower or larger between two documents, and what is noise.
//!
//! Two runs of one machine differ as a whole: its neighbours, its clock, its disk. So each figure
//! that depends on time is also taken relative to a *yardstick* of its own run (`raw`, or else the
//! first backend that both runs have), slice by slice, as the slices of a race alternate. A figure is
//! called better or worse only if that relative change is larger than the threshold and outside the
//! noise that the slices show. The slices of a replay are its blocks, the same ones in both runs: they are
//! held against each other block by block. The price: a change of the yardstick itself shows as the machine's, or as
//! one of all others the other way round. Amplification and disk depend on no clock: they are compared as
//! they are, if both runs did all of the same work.

mod matching;
mod noise;

use super::{BenchResult, Document, variant::Variant};
use matching::{Pair, pairs};
use noise::{Shift, paired_shift, shift};

/// Changes of figures without noise below this are not shown.
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
    /// Params differ, and there are several results that could be meant.
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
    /// The documents share no result.
    #[error("{old} and {new} have no backend and workload in common")]
    NothingInCommon {
        /// The old document.
        old: String,
        /// The new document.
        new: String,
    },
}

/// Two documents compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What makes the runs incomparable to a degree: another machine, version, params; a run that was
    /// stopped early.
    pub remarks: Vec<String>,
    /// One a backend and variant that both have.
    pub pairs: Vec<Compared>,
    /// What only the old document has.
    pub only_old: Vec<String>,
    /// What only the new document has.
    pub only_new: Vec<String>,
}

impl Comparison {
    /// The figures that have become worse, with backend and workload.
    pub fn regressions(&self) -> Vec<String> {
        let line = |pair: &Compared, change: &Change| {
            format!("{}: {} {}", pair.what, change.metric, super::percent(change.judged()))
        };
        let worse = |pair: &Compared| -> Vec<String> {
            let worse = pair.changes.iter().filter(|change| change.verdict == Verdict::Worse);
            worse.map(|change| line(pair, change)).collect()
        };
        self.pairs.iter().flat_map(worse).collect()
    }
}

/// One backend on one variant of a workload, old and new.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Backend, workload and the params that tell it apart.
    pub what: String,
    /// The backend that is held beside it; `None` if there is no other one, or if it is that one.
    pub yardstick: Option<String>,
    /// Its figures.
    pub changes: Vec<Change>,
}

/// One figure, old and new.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What it is, with its unit.
    pub metric: &'static str,
    /// The old figure.
    pub old: f64,
    /// The new one.
    pub new: f64,
    /// `new / old - 1`; infinite if the old figure is 0.
    pub change: f64,
    /// The same relative to the yardstick in its own run.
    pub relative: Option<f64>,
    /// Where the change that is judged lies in 99 of 100 cases, as far as slices tell.
    pub interval: Option<(f64, f64)>,
    /// What to make of it.
    pub verdict: Verdict,
}

impl Change {
    /// The change that the verdict is about: relative to the yardstick where there is one.
    pub fn judged(&self) -> f64 {
        self.relative.unwrap_or(self.change)
    }
}

/// What to make of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better, by more than the threshold and than noise.
    Better,
    /// Worse, by more than the threshold and than noise: a regression.
    Worse,
    /// Not larger than the threshold, or within the noise.
    Same,
    /// It is the yardstick of its race: its change is the machine's.
    Yardstick,
    /// Nothing tells a change from noise (one figure a run), or the runs did not do the same work.
    Unknown,
}

/// How a figure is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noise {
    /// By the slices.
    Slices,
    /// There is none.
    Exact,
    /// Nobody knows.
    Unknown,
}

type Figure = (&'static str, bool, Noise, fn(&BenchResult) -> Option<f64>);

/// Every figure that is compared: its name, whether more of it is better, and its noise. What slices
/// wander tells nothing of stalls between them and of the final flush, so nothing of sustained rates.
const FIGURES: [Figure; 9] = [
    ("tx/s", true, Noise::Slices, |r| r.tps),
    ("ops/s", true, Noise::Slices, |r| r.tps.is_none().then_some(r.ops_per_s)),
    ("sustained ops/s", true, Noise::Unknown, |r| r.sustained_ops_per_s),
    ("p99 us", false, Noise::Unknown, |r| Some(r.p99_us? as f64)),
    ("disk bytes", false, Noise::Exact, |r| (r.disk_bytes > 0).then_some(r.disk_bytes as f64)),
    ("rows read/op", false, Noise::Exact, |r| r.reads_per_op),
    ("rows written/op", false, Noise::Exact, |r| r.writes_per_op),
    ("bytes read/op", false, Noise::Exact, |r| r.read_bytes_per_op),
    ("bytes written/op", false, Noise::Exact, |r| r.write_bytes_per_op),
];

/// Compares two documents. `threshold` is the change below which nobody cares: 0.05 is 5 %.
pub fn compare(old: &Document, new: &Document, threshold: f64) -> Result<Comparison, CompareError> {
    let matched = pairs(old, new)?;
    let mut remarks = remarks(old, new);
    remarks.extend(matched.remarks);
    let complete = old.report.complete && new.report.complete;
    let mut compared = Vec::new();
    for pair in &matched.pairs {
        let racers: Vec<_> = matched.pairs.iter().filter(|other| other.races_with(pair)).collect();
        let raw = racers.iter().find(|racer| racer.old.backend == "raw");
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
        let changes = FIGURES.iter().filter_map(|figure| {
            let change = change(*figure, pair, beside, threshold)?;
            let verdict = match figure.2 {
                Noise::Slices if is_yardstick => Verdict::Yardstick,
                Noise::Exact if !complete || !pair.same_work() => Verdict::Unknown,
                _ => change.verdict,
            };
            Some(Change { verdict, ..change })
        });
        compared.push(Compared {
            what: pair.what.clone(),
            yardstick: beside.map(|beside| beside.old.backend.clone()),
            changes: changes.collect(),
        });
    }
    Ok(Comparison {
        remarks,
        pairs: compared,
        only_old: matched.only_old,
        only_new: matched.only_new,
    })
}

fn change(
    (metric, more_is_better, noise, figure): Figure,
    pair: &Pair<'_>,
    beside: Option<&Pair<'_>>,
    threshold: f64,
) -> Option<Change> {
    let (old, new) = (figure(pair.old)?, figure(pair.new)?);
    let (change, known) = (new / old - 1.0, old.is_finite() && new.is_finite());
    if !known || old == new && old == 0.0 {
        return None;
    }
    let is_zero = old == 0.0 || new == 0.0;
    if noise == Noise::Exact || noise == Noise::Slices && is_zero {
        // From nothing to something, or back, is more than noise.
        let verdict = verdict(change.abs() > threshold, change > 0.0, more_is_better);
        let (relative, interval) = (None, None);
        return (change.abs() > SHOWN).then_some(Change {
            metric,
            old,
            new,
            change,
            relative,
            interval,
            verdict,
        });
    }
    let drift = beside.and_then(|beside| Some(figure(beside.new)? / figure(beside.old)?));
    let drift = drift.filter(|drift| drift.is_finite() && *drift > 0.0);
    let relative = drift.map(|drift| (1.0 + change) / drift - 1.0);
    let unjudged =
        Change { metric, old, new, change, relative, interval: None, verdict: Verdict::Unknown };
    let Some(shift) = shift_of(pair, beside, drift).filter(|_| noise == Noise::Slices) else {
        return Some(unjudged);
    };
    // Both have to say so: the figure, which may hang on one stall, and what most slices show.
    let judged = relative.unwrap_or(change);
    let (low, high) = (shift.interval.0 - 1.0, shift.interval.1 - 1.0);
    let outside = if judged > 0.0 { low > 0.0 } else { high < 0.0 };
    let verdict = verdict(outside && judged.abs() > threshold, judged > 0.0, more_is_better);
    Some(Change { interval: Some((low, high)), verdict, ..unjudged })
}

/// By which factor the slices of `pair` have changed, relative to those of the yardstick: slice by
/// slice if it has as many in both runs, or else by its `drift` as a whole.
fn shift_of(pair: &Pair<'_>, beside: Option<&Pair<'_>>, drift: Option<f64>) -> Option<Shift> {
    let alike = |a: &BenchResult, b: &BenchResult| a.slices.len() == b.slices.len();
    let close = beside.filter(|b| alike(pair.old, b.old) && alike(pair.new, b.new));
    let old = rates(pair.old, close.map(|beside| beside.old));
    let new = rates(pair.new, close.map(|beside| beside.new));
    // The same blocks: as many transactions up to the end of each.
    let ends = |result: &BenchResult| result.slices.iter().map(|s| s.ops).collect::<Vec<_>>();
    let blocks = pair.old.workload == "replay" && ends(pair.old) == ends(pair.new);
    let shift = if blocks { paired_shift(&old, &new) } else { shift(&old, &new) }?;
    let rest = if close.is_some() { 1.0 } else { drift.unwrap_or(1.0) };
    Some(Shift {
        factor: shift.factor / rest,
        interval: (shift.interval.0 / rest, shift.interval.1 / rest),
    })
}

const fn verdict(changed: bool, more: bool, more_is_better: bool) -> Verdict {
    match (changed, more == more_is_better) {
        (false, _) => Verdict::Same,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    }
}

/// The rates of the slices; divided by those of the yardstick's slice of the same place.
fn rates(result: &BenchResult, beside: Option<&BenchResult>) -> Vec<f64> {
    let own = result.slices.iter().map(|slice| slice.ops_per_s);
    match beside {
        Some(beside) => {
            own.zip(&beside.slices).map(|(rate, other)| rate / other.ops_per_s).collect()
        }
        None => own.collect(),
    }
}

fn remarks(old: &Document, new: &Document) -> Vec<String> {
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
    let variant = Variant::of(result);
    let names: Vec<_> = variant.params.keys().map(String::as_str).collect();
    format!("{} on {} ({})", result.backend, result.workload, variant.words(&names))
}
