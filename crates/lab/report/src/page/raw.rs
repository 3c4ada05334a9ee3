//! The raw numbers: a table, and the embedded reports.

use super::sections::WorkloadSection;
use crate::{BenchResult, ReportDocument, words::grouped};
use maud::{Markup, PreEscaped, html};

type RawColumn = (&'static str, fn(&BenchResult) -> Option<f64>, usize);

/// Title, figure and number of decimals.
const COLUMNS: [RawColumn; 26] = [
    ("operations", |r| Some(r.ops as f64), 0),
    ("seconds", |r| Some(r.seconds), 3),
    ("ops/s", |r| Some(r.ops_per_s), 0),
    ("tx/s", |r| r.tps, 0),
    ("sustained ops/s", |r| r.sustained_ops_per_s, 0),
    ("spread", |r| r.spread, 3),
    ("p50 µs", |r| Some(r.p50_us? as f64), 0),
    ("p99 µs", |r| Some(r.p99_us? as f64), 0),
    ("p99.9 µs", |r| Some(r.p999_us? as f64), 0),
    ("max µs", |r| Some(r.max_us? as f64), 0),
    ("rows read", |r| r.reads_per_op, 3),
    ("rows written", |r| r.writes_per_op, 3),
    ("B read", |r| r.read_bytes_per_op, 1),
    ("B written", |r| r.write_bytes_per_op, 1),
    ("B journal", |r| r.journal_bytes_per_op, 1),
    ("B undo", |r| r.undo_bytes_per_op, 1),
    ("execution s", |r| Some(r.breakdown?.execution), 3),
    ("structure s", |r| Some(r.breakdown?.authentication), 3),
    ("key-value store s", |r| Some(r.breakdown?.storage_io), 3),
    ("other s", |r| Some(r.breakdown?.other), 3),
    ("disk bytes", |r| known(r.disk_bytes), 0),
    ("peak RSS bytes", |r| known(r.peak_rss_bytes), 0),
    ("mapped bytes", |r| known(r.mapped_bytes?), 0),
    ("hit rate", |r| Some(r.hit_rates?.all), 3),
    ("of caches", |r| r.hit_rates?.caches, 3),
    ("of rows", |r| r.hit_rates?.rows, 3),
];

/// Bytes, if they were measured.
fn known(bytes: u64) -> Option<f64> {
    (bytes > 0).then_some(bytes as f64)
}

/// A table of all results. Columns without values are left out.
pub(super) fn table(stories: &[WorkloadSection<'_>]) -> Markup {
    let rows = || {
        stories.iter().flat_map(|story| {
            story
                .races
                .iter()
                .flat_map(move |race| race.results.iter().map(move |result| (story, race, *result)))
        })
    };
    let filled = |column: &&RawColumn| {
        rows().any(|(.., result)| column.1(result).is_some_and(|value| value != 0.0))
    };
    let columns: Vec<_> = COLUMNS.iter().filter(filled).collect();
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="Raw numbers" {
            table {
                thead { tr {
                    th class="t" { "workload" } th class="t" { "variant" } th class="t" { "backend" }
                    th class="t" { "hash" }
                    @for column in &columns { th { (column.0) } }
                } }
                tbody {
                    @for (story, race, result) in rows() {
                        tr {
                            td class="t" { (story.workload) }
                            td class="t" { (race.params) }
                            td class="t" { (result.backend) }
                            td class="t" { (result.params.get("hash").and_then(|hash| hash.as_str()).unwrap_or_default()) }
                            @for column in &columns {
                                td { @if let Some(value) = column.1(result) { (exact(value, column.2)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn exact(value: f64, decimals: usize) -> String {
    match decimals {
        0 if value >= 0.0 => grouped(value.round() as u64),
        _ => format!("{value:.decimals$}"),
    }
}

/// An embedded report for programs that read the page. `<` is escaped as JSON allows, so that no
/// text in it can end the element.
pub(super) fn embedded(document: &ReportDocument) -> Markup {
    let json = document.json.to_string().replace('<', "\\u003c");
    html! {
        script type="application/json" class="report" data-name=(document.name) { (PreEscaped(json)) }
    }
}
