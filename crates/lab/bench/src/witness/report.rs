//! The `--json` report of `retrie bench witness`: the report of every bench command, and each block.

use super::{WitnessCost, WitnessGap, WitnessOutcome};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{BenchReport, BenchResult, FigureOutline, FigurePlot, ReportDocument};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Name of the workload.
const WORKLOAD: &str = "witness";
/// The store that the others stand beside.
const YARDSTICK: &str = "mpt";
/// Name of the table on the page.
const TABLE: &str = "Block witnesses";
/// The measures in the table.
const COLUMNS: [&str; 14] = [
    "blocks with a witness",
    "witness KiB",
    "witness KiB most",
    "zstd KiB",
    "zstd KiB most",
    "witness times mpt",
    "code KiB",
    "make ms",
    "make ms most",
    "verify ms",
    "verify ms most",
    "call bytes",
    "call bytes most",
    "call times mpt",
];
const KIB: f64 = 1024.0;

/// Report of `retrie bench witness`.
#[derive(Clone, Debug, Serialize)]
pub struct WitnessReport {
    /// The report. Its results have the medians and the largest values as measures.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// The blocks of each store.
    pub witnesses: Vec<StoreBlockList>,
}

/// The blocks of a store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreBlockList {
    /// Name of the store.
    pub backend: String,
    /// Where the blocks come from.
    pub blocks_from: Value,
    /// The blocks with a witness.
    pub blocks: Vec<WitnessCost>,
    /// The blocks without one.
    pub without: Vec<WitnessGap>,
}

impl WitnessReport {
    /// A report without results.
    pub fn new(mut bench: BenchReport) -> Self {
        bench.figures.push(FigureOutline {
            name: TABLE.into(),
            caption:
                "What it takes to execute a block without a state: medians and largest values; \
                      a call is a transaction as a call on the state before its block"
                    .into(),
            plots: vec![FigurePlot { x: None, y: COLUMNS.map(str::to_owned).to_vec() }],
            commands: vec![bench.command.clone()],
            ..FigureOutline::default()
        });
        Self { bench, witnesses: Vec::new() }
    }

    /// Adds the stores on some blocks; `params` say which. A note says which blocks have no witness.
    pub fn add(&mut self, outcomes: &[WitnessOutcome], params: &Map<String, Value>) {
        let yardstick = outcomes.iter().find(|one| one.backend == YARDSTICK);
        for outcome in outcomes {
            self.bench.results.push(result(outcome, yardstick, params.clone()));
            self.bench.notes.extend(note(outcome));
        }
        let blocks_from = params.get("blocks_from").cloned().unwrap_or_default();
        self.witnesses.extend(outcomes.iter().map(|one| StoreBlockList {
            backend: one.backend.clone(),
            blocks_from: blocks_from.clone(),
            blocks: one.blocks.clone(),
            without: one.without.clone(),
        }));
    }
}

impl From<&WitnessReport> for ReportDocument {
    fn from(report: &WitnessReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

impl WitnessOutcome {
    /// Bytes of the median proof of a call over those of `other`. `None` without calls.
    pub fn call_times(&self, other: &Self) -> Option<f64> {
        let [own, other] = [self, other].map(|one| one.calls.bytes(0.5));
        (own > 0 && other > 0).then(|| own as f64 / other as f64)
    }

    /// Why blocks have no witness, and how many for each reason.
    pub fn gaps(&self) -> BTreeMap<&str, usize> {
        let mut gaps = BTreeMap::new();
        for gap in &self.without {
            *gaps.entry(gap.why.as_str()).or_default() += 1;
        }
        gaps
    }
}

fn note(outcome: &WitnessOutcome) -> Option<String> {
    let gaps = outcome.gaps();
    let gaps: Vec<_> = gaps.iter().map(|(why, count)| format!("{count}: {why}")).collect();
    (!gaps.is_empty())
        .then(|| format!("{}: blocks without a witness: {}.", outcome.backend, gaps.join("; ")))
}

fn result(
    outcome: &WitnessOutcome,
    yardstick: Option<&WitnessOutcome>,
    mut params: Map<String, Value>,
) -> BenchResult {
    params.insert("hash".into(), json!(outcome.hash));
    params.insert("figure".into(), json!(TABLE));
    let mut measures = BTreeMap::from([(COLUMNS[0], outcome.blocks.len() as f64)]);
    if !outcome.blocks.is_empty() {
        let bytes = outcome.spread(|one| one.bytes as f64 / KIB);
        let zstd = outcome.spread(|one| one.zstd_bytes as f64 / KIB);
        let make = outcome.spread(|one| one.make_seconds * 1e3);
        let verify = outcome.spread(|one| one.verify_seconds * 1e3);
        measures.extend([
            ("keys", outcome.spread(|one| one.keys as f64).0),
            ("witness KiB", bytes.0),
            ("witness KiB most", bytes.1),
            ("zstd KiB", zstd.0),
            ("zstd KiB most", zstd.1),
            ("code KiB", outcome.spread(|one| one.code_bytes as f64 / KIB).0),
            ("make ms", make.0),
            ("make ms most", make.1),
            ("verify ms", verify.0),
            ("verify ms most", verify.1),
        ]);
    }
    if outcome.calls.count() > 0 {
        measures.extend([
            ("calls", outcome.calls.count() as f64),
            ("call bytes", outcome.calls.bytes(0.5) as f64),
            ("call bytes most", outcome.calls.bytes(1.0) as f64),
            ("call make us", outcome.calls.made.micros(0.5) as f64),
            ("call verify us", outcome.calls.verified.micros(0.5) as f64),
        ]);
    }
    if let Some(yardstick) = yardstick {
        let ratios = [
            ("witness times mpt", outcome.times(yardstick)),
            ("call times mpt", outcome.call_times(yardstick)),
        ];
        measures.extend(ratios.into_iter().filter_map(|(name, ratio)| Some((name, ratio?))));
    }
    let seconds = |one: &WitnessCost| one.make_seconds + one.verify_seconds;
    BenchResult {
        backend: outcome.backend.clone(),
        workload: WORKLOAD.into(),
        params,
        ops: outcome.blocks.len() as u64,
        seconds: outcome.blocks.iter().map(seconds).sum(),
        peak_rss_bytes: peak_rss_bytes(),
        measures: measures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..BenchResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ProofFigures;
    use retrie_report::page;
    use std::time::Duration;

    fn outcome(backend: &str, bytes: &[Option<u64>]) -> WitnessOutcome {
        let mut outcome = WitnessOutcome::new(backend, "keccak256");
        for (place, bytes) in bytes.iter().enumerate() {
            let number = 7 + place as u64;
            match *bytes {
                None => {
                    let why = "it is a boundary".to_owned();
                    outcome.without.push(WitnessGap { place, number, why });
                }
                Some(bytes) => outcome.blocks.push(WitnessCost {
                    place,
                    number,
                    keys: 3,
                    bytes,
                    zstd_bytes: bytes / 2,
                    code_bytes: 100,
                    make_seconds: 0.001,
                    verify_seconds: 0.002,
                }),
            }
        }
        let mut calls = ProofFigures::new(true);
        let time = Duration::from_micros(5);
        calls.add(time, time, bytes.iter().flatten().sum::<u64>() as usize);
        WitnessOutcome { calls, ..outcome }
    }

    #[test]
    fn stores_stand_beside_mpt_on_the_blocks_that_both_have() {
        let mut report = WitnessReport::new(BenchReport::new("bench".into(), Vec::new()));
        let stores = [
            outcome("mpt", &[Some(1024), Some(2048), Some(8192)]),
            outcome("lmpt", &[Some(2048), None, Some(8192)]),
        ];
        let params = Map::from_iter([("blocks_from".to_owned(), json!("made"))]);
        report.add(&stores, &params);
        let measures = &report.bench.results[1].measures;
        assert_eq!(measures["blocks with a witness"], 2.0);
        assert_eq!((measures["witness KiB"], measures["witness KiB most"]), (5.0, 8.0));
        assert_eq!(measures["witness times mpt"], 1.5);
        assert_eq!(measures["call times mpt"], 10240.0 / 11264.0);
        assert_eq!(report.bench.notes, ["lmpt: blocks without a witness: 1: it is a boundary."]);
        let text = serde_json::to_string(&report).unwrap();
        let read = ReportDocument::parse("report.json", &text).unwrap();
        assert_eq!(read.json["witnesses"][1]["without"][0]["number"], 8);
        let html = page("witnesses", &[read]);
        for part in ["Block witnesses", "witness KiB most", ">lmpt<"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("the paper states"), "it is no figure of a paper");
    }
}
