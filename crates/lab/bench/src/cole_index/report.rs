//! The `--json` report of `retrie bench cole-index`: the report of every bench command, with timed
//! lookups as results, and the pages and bytes of the indexes.

use super::measure::{IndexComparison, SearchFigures};
use retrie_pipeline::report::peak_rss_bytes;
use retrie_report::{
    BenchReport, BenchResult, ReportDocument, SliceResult,
    stats::{PairedRatio, quantile, rate},
};
use serde::Serialize;
use serde_json::{Map, json};
use std::time::Duration;

/// Report of `retrie bench cole-index`.
#[derive(Clone, Debug, Serialize)]
pub struct IndexReport {
    /// The report, whose results are the timed lookups. The bytes on disk of a result are those of
    /// the index.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// One entry for each run.
    pub indexes: Vec<IndexComparison>,
}

impl IndexReport {
    /// A report without runs.
    pub const fn new(bench: BenchReport) -> Self {
        Self { bench, indexes: Vec::new() }
    }

    /// Adds a run. Notes state bytes and pages for the HTML page.
    pub fn add(&mut self, comparison: IndexComparison, seed: u64) {
        for figures in &comparison.searches {
            let IndexComparison { layout, keys, versions, epsilon, .. } = comparison;
            self.bench.notes.push(format!(
                "{}, {keys} {layout} keys of {versions} versions, epsilon {epsilon}, {} keys: index of \
                 {:.2} MiB; {:.2} pages of the index and {:.2} value pages a lookup, {} at most",
                figures.search,
                if figures.present { "present" } else { "absent" },
                figures.index_bytes as f64 / f64::from(1 << 20),
                figures.index_pages,
                figures.value_pages,
                figures.most_pages,
            ));
            self.bench.results.push(result(&comparison, figures, seed));
        }
        self.indexes.push(comparison);
    }
}

impl From<&IndexReport> for ReportDocument {
    fn from(report: &IndexReport) -> Self {
        Self { json: json!(report), ..Self::from(&report.bench) }
    }
}

impl SearchFigures {
    /// Lookups per second, slice by slice.
    fn rates(&self) -> impl Iterator<Item = f64> + Clone {
        let lookups = self.lookups;
        self.times.iter().map(move |time| rate(lookups, *time))
    }

    /// Median time of a lookup in nanoseconds.
    pub fn median_ns(&self) -> f64 {
        let nanos = |time: &Duration| time.as_nanos() as f64 / self.lookups.max(1) as f64;
        quantile(self.times.iter().map(nanos), 0.5)
    }

    /// The speed relative to `other`, slice by slice.
    pub fn faster(&self, other: &Self) -> PairedRatio {
        PairedRatio::of(self.rates(), other.rates())
    }
}

fn result(comparison: &IndexComparison, figures: &SearchFigures, seed: u64) -> BenchResult {
    let at = |fraction| quantile(figures.rates(), fraction);
    let seconds = figures.times.iter().map(Duration::as_secs_f64).sum::<f64>();
    let ops = figures.lookups * figures.times.len() as u64;
    let mut params = Map::new();
    params.insert("layout".into(), json!(comparison.layout));
    params.insert("keys".into(), json!(comparison.keys));
    params.insert("versions".into(), json!(comparison.versions));
    params.insert("epsilon".into(), json!(comparison.epsilon));
    params.insert("lookup".into(), json!(if figures.present { "present" } else { "absent" }));
    params.insert("seed".into(), json!(seed));
    let slice = |(n, ops_per_s): (u64, f64)| SliceResult {
        ops: n * figures.lookups,
        ops_per_s,
        disk_bytes: None,
        memory_bytes: 0,
    };
    BenchResult {
        backend: figures.search.into(),
        workload: "cole-index".into(),
        params,
        ops,
        seconds,
        ops_per_s: at(0.5),
        disk_bytes: figures.index_bytes,
        peak_rss_bytes: peak_rss_bytes(),
        spread: (at(0.5) > 0.0).then(|| (at(0.75) - at(0.25)) / at(0.5)),
        sustained_ops_per_s: (seconds > 0.0).then(|| ops as f64 / seconds),
        slices: (1..).zip(figures.rates()).map(slice).collect(),
        ..BenchResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cole_index::{
        KeyLayout,
        measure::{IndexBenchConfig, compare},
    };
    use std::sync::atomic::AtomicBool;

    #[test]
    fn every_search_answers_right_and_the_indexes_read_fewer_pages() {
        let mut report = IndexReport::new(BenchReport::new(String::new(), Vec::new()));
        for (layout, versions) in [(KeyLayout::Random, 1), (KeyLayout::Dense, 3)] {
            let config = IndexBenchConfig {
                keys: 20_000,
                versions,
                layout,
                epsilon: 32,
                lookups: 50,
                slices: 2,
                folder: std::env::temp_dir(),
                seed: 7,
            };
            let comparison = compare(&config, &AtomicBool::new(false)).unwrap();
            for figures in &comparison.searches {
                assert_eq!(figures.times.len(), 2);
                let is_index = figures.search != "value-pages";
                assert_eq!(is_index, figures.index_bytes > 0, "{figures:?}");
                assert!(figures.value_pages <= if is_index { 2.0 } else { 12.0 }, "{figures:?}");
                assert!(is_index || figures.value_pages > 4.0, "{figures:?}");
            }
            let bytes = |name| {
                comparison.searches.iter().find(|one| one.search == name).unwrap().index_bytes
            };
            assert!(bytes("learned") < bytes("fence-array"), "{comparison:?}");
            report.add(comparison, config.seed);
            let stopped = compare(&config, &AtomicBool::new(true)).unwrap_err();
            assert!(matches!(stopped, crate::cole_index::IndexBenchError::Stopped), "{stopped}");
        }
        let text = serde_json::to_string(&report).unwrap();
        let read = ReportDocument::parse("report.json", &text).unwrap();
        assert_eq!((read.report.results.len(), read.report.notes.len()), (16, 16));
        assert_eq!(read.json["indexes"][1]["layout"], "dense");
    }
}
