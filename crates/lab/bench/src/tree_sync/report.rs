//! The `--json` report of `retrie bench sync`: the report of every bench command, and the time of
//! each method by phase.

use super::{
    fetch::{BaselinePolicy, FetchMethod, FetchStats},
    race::{FetchOutcome, FetchRaceConfig},
};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{
    BenchReport, BenchResult, ReportDocument, SliceResult,
    stats::{PairedRatio, quantile},
};
use serde::Serialize;
use serde_json::{Map, json};
use std::time::Duration;

/// Report of `retrie bench sync`.
#[derive(Clone, Debug, Serialize)]
pub struct TreeSyncReport {
    /// The report.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// The phases of each method.
    pub phases: Vec<FetchPhases>,
    /// How many times faster B+AVL is than the baseline, policy by policy.
    pub ratios: Vec<PolicyRatio>,
}

/// The speed of B+AVL relative to the baseline with one policy, and the parameters of both.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRatio {
    /// The policy.
    pub policy: &'static str,
    /// Number of peers.
    pub peers: usize,
    /// Number of lying peers.
    pub byzantine: usize,
    /// Largest number of elements in a chunk.
    pub chunk: usize,
    /// Median of the ratios, seed by seed.
    pub median: f64,
    /// First and third quartile of these ratios.
    pub quartiles: [f64; 2],
    /// Ratio of the total times.
    pub average: f64,
}

/// Means over seeds, times in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct FetchPhases {
    /// Name of the method.
    pub way: &'static str,
    /// Policy of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'static str>,
    /// Number of lying peers.
    pub byzantine: usize,
    /// From the first connection to a tree with the right root: median over seeds.
    pub median_ms: f64,
    /// The same, mean over seeds.
    pub mean_ms: f64,
    /// Until the last chunk has arrived.
    pub transfer_ms: f64,
    /// Decoding, and for B+AVL checking, of chunks, summed over threads; part of the transfer.
    pub read_ms: f64,
    /// Building and hashing trees.
    pub rebuild_ms: f64,
    /// Serialisation at the serving peers, summed over peers.
    pub serialize_ms: f64,
    /// Number of rounds.
    pub rounds: f64,
    /// Number of received chunks.
    pub chunks: f64,
    /// Bytes of the received chunks.
    pub bytes: f64,
}

impl FetchPhases {
    /// The phases of one method.
    pub fn of(byzantine: usize, outcome: &FetchOutcome) -> Self {
        let all = &outcome.fetched;
        let mean = |of: &dyn Fn(&FetchStats) -> f64| {
            all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
        };
        let ms = |of: fn(&FetchStats) -> Duration| mean(&|one| of(one).as_secs_f64() * 1e3);
        Self {
            way: outcome.way.name(),
            policy: outcome.way.policy().map(BaselinePolicy::name),
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

/// The speed of `these` relative to `others`: seed by seed, and as the ratio of their total times.
pub fn faster(these: &FetchOutcome, others: &FetchOutcome) -> (PairedRatio, f64) {
    let rates = |outcome: &'_ FetchOutcome| {
        outcome.fetched.iter().map(|one| 1.0 / one.total.as_secs_f64()).collect::<Vec<_>>()
    };
    let total = |outcome: &FetchOutcome| -> f64 {
        outcome.fetched.iter().map(|one| one.total.as_secs_f64()).sum()
    };
    let (these_rates, other_rates) = (rates(these), rates(others));
    let ratio = PairedRatio::of(these_rates.iter().copied(), other_rates.iter().copied());
    (ratio, total(others) / total(these))
}

impl TreeSyncReport {
    /// A report without results.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, phases: Vec::new(), ratios: Vec::new() }
    }

    /// Adds the outcomes of a race. Notes state the phases for the HTML page.
    pub fn add(&mut self, setting: &FetchRaceConfig, peers: usize, outcomes: &[FetchOutcome]) {
        for outcome in outcomes {
            let phases = FetchPhases::of(setting.byzantine, outcome);
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
        for ratio in policy_ratios(setting, peers, outcomes) {
            self.bench.notes.push(format!(
                "bavl is {:.1} times faster than avlplus:{} (median of {} seeds; {:.1} of the total times): \
                 {peers} peers, {} of them lie, chunks of {}",
                ratio.median,
                ratio.policy,
                setting.seeds,
                ratio.average,
                setting.byzantine,
                setting.tree.chunk
            ));
            self.ratios.push(ratio);
        }
    }
}

/// The speed of B+AVL relative to the baseline with each policy that took part.
pub fn policy_ratios(
    setting: &FetchRaceConfig,
    peers: usize,
    outcomes: &[FetchOutcome],
) -> Vec<PolicyRatio> {
    let Some(bavl) = outcome_of(outcomes, FetchMethod::Bavl) else { return Vec::new() };
    let ratio = |other: &FetchOutcome| {
        let (ratio, average) = faster(bavl, other);
        Some(PolicyRatio {
            policy: other.way.policy()?.name(),
            peers,
            byzantine: setting.byzantine,
            chunk: setting.tree.chunk,
            median: ratio.median,
            quartiles: [ratio.lower, ratio.upper],
            average,
        })
    };
    outcomes.iter().filter_map(ratio).collect()
}

impl From<&TreeSyncReport> for ReportDocument {
    fn from(report: &TreeSyncReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

/// The result of a method. A slice is a seed.
fn result(setting: &FetchRaceConfig, peers: usize, outcome: &FetchOutcome) -> BenchResult {
    let elements = setting.tree.elements;
    let rate = |one: &FetchStats| elements as f64 / one.total.as_secs_f64().max(1e-9);
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
    if let Some(policy) = outcome.way.policy() {
        params.insert("policy".into(), json!(policy.name()));
    }
    params.insert("seed".into(), json!(setting.tree.seed));
    let slice = |(n, one): (u64, &FetchStats)| SliceResult {
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

/// The outcome of `way`.
pub fn outcome_of(outcomes: &[FetchOutcome], way: FetchMethod) -> Option<&FetchOutcome> {
    outcomes.iter().find(|outcome| outcome.way == way)
}
