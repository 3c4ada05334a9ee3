//! Shapes of trees and phases of synchronisation as results, so that figures of papers can show
//! them.

use crate::{tree_sync::report::FetchPhases, trees::report::TreesReport};
use retrie_report::BenchResult;
use serde_json::{Value, json};

const MIB: f64 = (1 << 20) as f64;

fn result<const P: usize>(
    backend: &str,
    workload: &str,
    params: [(&str, Value); P],
    measures: impl IntoIterator<Item = (&'static str, f64)>,
) -> BenchResult {
    let measures = measures.into_iter().map(|(name, value)| (name.to_owned(), value));
    BenchResult {
        backend: backend.into(),
        workload: workload.into(),
        params: params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        measures: measures.collect(),
        ..BenchResult::default()
    }
}

/// The shapes of trees and the times of their messages, which have no rate.
pub fn shape_results(report: &TreesReport) -> Vec<BenchResult> {
    let mut chunks: Vec<usize> = report.shapes.iter().filter_map(|shape| shape.chunk).collect();
    chunks.sort_unstable();
    chunks.dedup();
    let mut results = Vec::new();
    for shape in &report.shapes {
        let hashes = shape.proof_hashes;
        let space = shape.space.iter().flat_map(|space| {
            [("chunks over fewest possible", space.mean), ("deviation of chunks", space.deviation)]
        });
        let measures = [
            ("proof hashes", hashes.mean),
            ("deviation of proof hashes", hashes.deviation),
            ("proof hashes least", hashes.min),
            ("proof hashes most", hashes.max),
        ];
        let measures: Vec<_> = measures.into_iter().chain(space).collect();
        // A tree without chunks stands beside the others at each size of a chunk.
        for chunk in shape.chunk.as_ref().map_or(&chunks[..], std::slice::from_ref) {
            let elements = ("elements", json!(shape.elements));
            let params = [elements, ("chunk", json!(chunk)), ("operation", json!("shape"))];
            results.push(result(shape.tree, "trees", params, measures.iter().copied()));
        }
    }
    for one in &report.messages {
        let params = [
            ("elements", json!(one.elements)),
            ("chunk", json!(one.chunk)),
            ("operation", json!("messages")),
        ];
        let measures = [
            ("messages", one.messages as f64),
            ("message MiB", one.bytes as f64 / MIB),
            ("serialize ms", one.serialize_ms),
            ("deserialize ms", one.deserialize_ms),
        ];
        results.push(result(one.tree, "trees", params, measures));
    }
    results
}

/// Adds the phases of each method to its result. Both are in the same order.
pub fn add_phases(results: &mut [BenchResult], phases: &[FetchPhases]) {
    for (result, phases) in results.iter_mut().zip(phases) {
        let measures = [
            ("median ms", phases.median_ms),
            ("mean ms", phases.mean_ms),
            ("transfer ms", phases.transfer_ms),
            ("read ms", phases.read_ms),
            ("rebuild ms", phases.rebuild_ms),
            ("sender ms", phases.serialize_ms),
            ("rounds", phases.rounds),
            ("chunks", phases.chunks),
            ("received MiB", phases.bytes / MIB),
        ];
        result.measures.extend(measures.map(|(name, value)| (name.to_owned(), value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trees::measure::{MessageTimes, SummaryStats, TreeShape};
    use retrie_report::BenchReport;

    #[test]
    fn a_tree_without_chunks_stands_beside_every_size_of_a_chunk() {
        let stats = SummaryStats { mean: 20.0, deviation: 1.0, min: 18.0, max: 22.0 };
        let shape = |tree, chunk: Option<usize>| TreeShape {
            tree,
            elements: 1000,
            chunk,
            proof_hashes: stats,
            space: chunk.map(|_| stats),
        };
        let mut report = TreesReport::new(BenchReport::new(String::new(), Vec::new()));
        report.shapes =
            vec![shape("avlplus", None), shape("bavl", Some(16)), shape("bavl", Some(64))];
        report.messages = vec![MessageTimes {
            tree: "bavl",
            elements: 1000,
            chunk: 16,
            messages: 63,
            bytes: 2 << 20,
            serialize_ms: 1.5,
            deserialize_ms: 2.5,
        }];
        let results = shape_results(&report);
        let found: Vec<_> = results
            .iter()
            .map(|one| (one.backend.as_str(), one.params["chunk"].as_u64(), one.measures.len()))
            .collect();
        let expected = [
            ("avlplus", Some(16), 4),
            ("avlplus", Some(64), 4),
            ("bavl", Some(16), 6),
            ("bavl", Some(64), 6),
            ("bavl", Some(16), 4),
        ];
        assert_eq!(found, expected);
        assert_eq!(results[4].measures["message MiB"], 2.0);
    }
}
