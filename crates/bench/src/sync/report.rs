//! What `--json` of `retrie bench sync` writes: a report as of every other command, and beside it how each
//! way's time was spent.

use super::{
    fetch::{Fetched, Way},
    race::{Outcome, Setting},
};
use crate::{
    figures::{Ratio, quantile},
    report::{BenchReport, BenchResult, Document, SliceResult},
};
use retrie_pipeline::report::peak_rss_bytes;
use serde::Serialize;
use serde_json::{Map, json};
use std::time::Duration;

/// Report of `retrie bench sync`.
#[derive(Clone, Debug, Serialize)]
pub struct SyncReport {
    /// The report.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// How each way's time was spent.
    pub phases: Vec<Phases>,
}

/// Means over seeds; times in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Phases {
    /// Name of the way.
    pub way: &'static str,
    /// How many peers lied.
    pub byzantine: usize,
    /// From the first connection to a tree with the right root: the median, not the mean.
    pub median_ms: f64,
    /// The same as a mean.
    pub mean_ms: f64,
    /// Until the last chunk was there.
    pub transfer_ms: f64,
    /// Chunks read, and of B+AVL checked, of all threads together; within the transfer.
    pub read_ms: f64,
    /// Trees put together and hashed.
    pub rebuild_ms: f64,
    /// At the peers, all of them together: bytes made.
    pub serialize_ms: f64,
    /// How often all was fetched.
    pub rounds: f64,
    /// Chunks that came.
    pub chunks: f64,
    /// Their bytes.
    pub bytes: f64,
}

impl Phases {
    /// Of one way.
    pub fn of(byzantine: usize, outcome: &Outcome) -> Self {
        let all = &outcome.fetched;
        let mean = |of: &dyn Fn(&Fetched) -> f64| {
            all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
        };
        let ms = |of: fn(&Fetched) -> Duration| mean(&|one| of(one).as_secs_f64() * 1e3);
        Self {
            way: outcome.way.name(),
            byzantine,
            median_ms: quantile(all.iter().map(|one| one.total.as_secs_f64() * 1e3), 0.5),
            mean_ms: ms(|one| one.total),
            transfer_ms: ms(|one| one.transfer),
            read_ms: ms(|one| one.read),
            rebuild_ms: ms(|one| one.rebuild),
            serialize_ms: ms(|one| one.serialize),
            rounds: mean(&|one| one.rounds.into()),
            chunks: mean(&|one| one.chunks as f64),
            bytes: mean(&|one| one.bytes as f64),
        }
    }
}

/// How many times faster one way is than another one, seed by seed, and on average: all time of the one over
/// that of the other.
pub fn faster(these: &Outcome, others: &Outcome) -> (Ratio, f64) {
    let rates = |outcome: &'_ Outcome| {
        outcome.fetched.iter().map(|one| 1.0 / one.total.as_secs_f64()).collect::<Vec<_>>()
    };
    let total = |outcome: &Outcome| -> f64 {
        outcome.fetched.iter().map(|one| one.total.as_secs_f64()).sum()
    };
    let (these_rates, other_rates) = (rates(these), rates(others));
    let ratio = Ratio::of(these_rates.iter().copied(), other_rates.iter().copied());
    (ratio, total(others) / total(these))
}

impl SyncReport {
    /// Nothing yet.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, phases: Vec::new() }
    }

    /// Takes what came of a race; notes say how the time was spent, for those who read the page alone.
    pub fn add(&mut self, setting: &Setting, peers: usize, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let phases = Phases::of(setting.byzantine, outcome);
            self.bench.notes.push(format!(
                "{}, {peers} peers, {} of them lie, chunks of {}: {:.0} ms (transfer {:.0}, of it reading {:.0}; \
                 rebuilding {:.0}; peers serialize {:.0}), {:.1} rounds, {:.0} chunks",
                phases.way,
                setting.byzantine,
                setting.tree.chunk,
                phases.median_ms,
                phases.transfer_ms,
                phases.read_ms,
                phases.rebuild_ms,
                phases.serialize_ms,
                phases.rounds,
                phases.chunks
            ));
            self.bench.results.push(result(setting, peers, outcome));
            self.phases.push(phases);
        }
    }
}

impl From<&SyncReport> for Document {
    fn from(report: &SyncReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// A slice is a seed.
fn result(setting: &Setting, peers: usize, outcome: &Outcome) -> BenchResult {
    let elements = setting.tree.elements;
    let rate = |one: &Fetched| elements as f64 / one.total.as_secs_f64().max(1e-9);
    let at = |fraction| quantile(outcome.fetched.iter().map(rate), fraction);
    let seconds: f64 = outcome.fetched.iter().map(|one| one.total.as_secs_f64()).sum();
    let ops = elements * outcome.fetched.len() as u64;
    let mut params = Map::new();
    params.insert("elements".into(), json!(elements));
    params.insert("bytes".into(), json!(setting.tree.bytes));
    params.insert("chunk".into(), json!(setting.tree.chunk));
    params.insert("peers".into(), json!(peers));
    params.insert("byzantine".into(), json!(setting.byzantine));
    params.insert("bandwidth_mbit".into(), json!(setting.speed as f64 * 8.0 / 1e6));
    params.insert("snapshots".into(), json!(setting.snapshots));
    params.insert("seed".into(), json!(setting.tree.seed));
    let slice = |(n, one): (u64, &Fetched)| SliceResult {
        ops: n * elements,
        ops_per_s: rate(one),
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        backend: outcome.way.name().into(),
        workload: "sync".into(),
        params,
        ops,
        seconds,
        ops_per_s: at(0.5),
        peak_rss_bytes: peak_rss_bytes(),
        spread: Some((at(0.75) - at(0.25)) / at(0.5).max(f64::MIN_POSITIVE)),
        sustained_ops_per_s: Some(ops as f64 / seconds.max(1e-9)),
        slices: (1..).zip(&outcome.fetched).map(slice).collect(),
        ..BenchResult::default()
    }
}

/// The outcome of a way.
pub fn of(outcomes: &[Outcome], way: Way) -> Option<&Outcome> {
    outcomes.iter().find(|outcome| outcome.way == way)
}
