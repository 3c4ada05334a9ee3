//! The results of `retrie bench crypto`, and the paper's figures.

use super::measure::{CryptoConfig, CurveOperation, OperationTimes, PairingCurve};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{BenchResult, ReferenceFigure, SliceResult, stats::quantile};
use serde_json::{Map, json};
use std::time::Duration;

/// Name of the workload.
pub const WORKLOAD: &str = "crypto";

/// The median time of an operation in nanoseconds.
pub fn median_ns(times: &OperationTimes) -> f64 {
    ns(times, 0.5)
}

/// Interquartile range of the turns over their median.
pub fn spread(times: &OperationTimes) -> f64 {
    (ns(times, 0.75) - ns(times, 0.25)) / median_ns(times).max(f64::MIN_POSITIVE)
}

fn ns(times: &OperationTimes, fraction: f64) -> f64 {
    let of = |time: &Duration| time.as_nanos() as f64 / times.count as f64;
    quantile(times.turns.iter().map(of), fraction)
}

/// The result of an operation. A slice is a turn.
pub fn result(times: &OperationTimes, config: &CryptoConfig) -> BenchResult {
    let rate = |time: &Duration| times.count as f64 / time.as_secs_f64().max(1e-9);
    let ops = (times.count * times.turns.len()) as u64;
    let seconds: f64 = times.turns.iter().map(Duration::as_secs_f64).sum();
    let mut params = Map::new();
    params.insert("operation".into(), json!(times.operation.name()));
    if times.operation == CurveOperation::BatchConversion {
        params.insert("batch".into(), json!(config.batch));
    }
    params.insert("group".into(), json!("G1"));
    params.insert("seed".into(), json!(config.seed));
    let slice = |(n, time): (usize, &Duration)| SliceResult {
        ops: (n * times.count) as u64,
        ops_per_s: rate(time),
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        backend: times.curve.name().into(),
        workload: WORKLOAD.into(),
        params,
        ops,
        seconds,
        ops_per_s: quantile(times.turns.iter().map(rate), 0.5),
        peak_rss_bytes: peak_rss_bytes(),
        spread: Some(spread(times)),
        sustained_ops_per_s: Some(ops as f64 / seconds.max(1e-9)),
        slices: (1..).zip(&times.turns).map(slice).collect(),
        ..BenchResult::default()
    }
}

/// The paper's time of an operation in nanoseconds, and where it says so; measured with an Intel
/// i9-10900K. It does not say how it multiplies, and converts on BN254 only.
pub const fn paper_ns(
    curve: PairingCurve,
    operation: CurveOperation,
) -> Option<(f64, &'static str)> {
    use {CurveOperation as Op, PairingCurve as Curve};
    match (curve, operation) {
        (Curve::Bls12381, Op::Addition) => Some((682.0, "Table 1")),
        (Curve::Bn254, Op::Addition) => Some((341.0, "Table 1")),
        (Curve::Bls12381, Op::DoubleAndAdd | Op::Multiplication) => Some((168_863.0, "Table 1")),
        (Curve::Bn254, Op::DoubleAndAdd | Op::Multiplication) => Some((92_042.0, "Table 1")),
        (Curve::Bn254, Op::Conversion) => Some((60_000.0, "section 5")),
        (Curve::Bn254, Op::BatchConversion) => Some((400.0, "section 5")),
        _ => None,
    }
}

/// The paper's figures, as operations per second.
pub fn references() -> Vec<ReferenceFigure> {
    let all =
        PairingCurve::ALL.into_iter().flat_map(|curve| CurveOperation::ALL.map(|op| (curve, op)));
    let figure = |(curve, operation): (PairingCurve, CurveOperation)| {
        let (ns, place) = paper_ns(curve, operation)?;
        Some(ReferenceFigure {
            source: format!("LVMT (OSDI 2023), {place}"),
            system: curve.name().into(),
            workload: WORKLOAD.into(),
            setting: operation.name().into(),
            metric: "ops_per_s".into(),
            value: 1e9 / ns,
            figures: Vec::new(),
        })
    };
    all.filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_median_turn_and_the_papers_figures_beside_it() {
        let times = OperationTimes {
            curve: PairingCurve::Bn254,
            operation: CurveOperation::BatchConversion,
            count: 10,
            turns: [40, 10, 20].map(Duration::from_micros).to_vec(),
        };
        let config = CryptoConfig { rounds: 3, samples: 10, batch: 4, seed: 9 };
        let result = result(&times, &config);
        assert_eq!((median_ns(&times), result.ops, result.slices.len()), (2000.0, 30, 3));
        assert!((result.ops_per_s - 500_000.0).abs() < 1e-6 && result.params["batch"] == 4);
        assert!((spread(&times) - 0.75).abs() < 1e-9);
        let references = references();
        assert_eq!(references.len(), 8);
        assert!((references[0].value - 1e9 / 682.0).abs() < 1e-6);
    }
}
