//! The figures of time, amplification, space and proofs.

use super::{
    bars::{BarRow, bar, key, stack, whisker},
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection, micros_per_op},
};
use crate::{
    BenchResult, ProofResult, TableResult,
    words::{bytes, grouped, micros, number},
};
use maud::{Markup, html};

/// The parts of the time, in the LVMT paper's order: CSS class and name.
const PARTS: [(&str, &str); 4] = [
    ("p0", "execution engine"),
    ("p1", "authenticated structure"),
    ("p2", "key-value store"),
    ("p3", "other"),
];

/// The time per operation or transaction, by part; `None` if no result has a breakdown.
pub(super) fn breakdown(story: &WorkloadSection<'_>) -> Option<Markup> {
    let races = with(story, |result| micros_per_op(result).is_some());
    let first = races.first()?.results.first()?;
    let unit = if first.tps.is_some() { "transaction" } else { "operation" };
    let all =
        races.iter().flat_map(|race| &race.results).filter_map(|result| micros_per_op(result));
    let scale = AxisScale::linear(all.map(|parts| parts.iter().sum()));
    let entries = PARTS
        .map(|(class, name)| (html! { rect class=(class) width="100%" height="100%" {} }, name));
    Some(html! {
        figure id={ (story.workload) "-breakdown" } {
            h3 { "Where the time goes" }
            figcaption { "Time per " (unit) "; shorter is better." }
            (key(&entries))
            @for race in &races {
                (race.heading())
                @for result in &race.results {
                    @if let Some(parts) = micros_per_op(result) {
                        (breakdown_row(&scale, result, parts))
                    }
                }
            }
        }
    })
}

fn breakdown_row(scale: &AxisScale, result: &BenchResult, parts: [f64; 4]) -> Markup {
    let sum: f64 = parts.iter().sum();
    let shares: Vec<_> = PARTS
        .iter()
        .zip(parts)
        .filter(|(_, part)| *part > 0.0)
        .map(|((class, name), part)| {
            let title = format!(
                "{}, {name}: {} ({:.0} %)",
                result.backend,
                micros(part),
                part / sum * 100.0
            );
            ((*class).to_owned(), part, title)
        })
        .collect();
    let note = format!("{:.0} % for the authenticated structure", parts[1] / sum * 100.0);
    let (name, track) = (&*result.backend, stack(scale, &shares));
    BarRow { name, label: None, track, figure: micros(sum), note: Some(note), other: false }.html()
}

type AmplificationCount =
    (&'static str, fn(&BenchResult) -> Option<f64>, fn(&TableResult) -> f64, fn(f64) -> String);

const COUNTS: [AmplificationCount; 4] = [
    ("Rows read per key read", |r| r.reads_per_op, |t| t.reads_per_op, number),
    ("Rows written per key written", |r| r.writes_per_op, |t| t.writes_per_op, number),
    ("Bytes read per key read", |r| r.read_bytes_per_op, |t| t.read_bytes_per_op, bytes),
    ("Bytes written per key written", |r| r.write_bytes_per_op, |t| t.write_bytes_per_op, bytes),
];

/// Rows and bytes at the interface of the key-value store, per operation.
pub(super) fn amplification(story: &WorkloadSection<'_>) -> Option<Markup> {
    let counted = |result: &BenchResult| COUNTS.iter().any(|count| count.1(result).is_some());
    let races = with(story, counted);
    if races.is_empty() {
        return None;
    }
    Some(html! {
        figure id={ (story.workload) "-amplification" } {
            h3 { "Amplification" }
            figcaption {
                "What one key costs at the interface of the key-value store; shorter is better. A bar is \
                 cut where several tables share it. Journal and undo rows are not counted."
            }
            @for race in &races {
                (race.heading())
                div class="panels" {
                    @for count in &COUNTS { (amplification_panel(&races, race, count)) }
                }
                (tables(race))
            }
        }
    })
}

fn amplification_panel(
    all: &[&VariantRace<'_>],
    race: &VariantRace<'_>,
    (title, of, of_table, words): &AmplificationCount,
) -> Markup {
    let values = all.iter().flat_map(|race| &race.results).filter_map(|result| of(result));
    let scale = AxisScale::linear(values);
    html! {
        div class="panel" {
            h4 { (title) }
            @for result in &race.results {
                @if let Some(value) = of(result) {
                    @let tables = result.tables.as_deref().unwrap_or_default();
                    @let parts: Vec<_> = tables.iter().filter(|table| of_table(table) > 0.0).map(|table| {
                        let title = format!("{}, {}: {}", result.backend, table.name, words(of_table(table)));
                        ("ours".to_owned(), of_table(table), title)
                    }).collect();
                    @let track = if parts.len() > 1 { stack(&scale, &parts) } else {
                        bar(&scale, value, "ours", &format!("{}: {}", result.backend, words(value)))
                    };
                    (BarRow { name: &result.backend, label: None, track, figure: words(value), note: None, other: false }.html())
                }
            }
        }
    }
}

/// The same counts by table, for backends with several tables.
fn tables(race: &VariantRace<'_>) -> Markup {
    let several =
        |result: &&&BenchResult| result.tables.as_ref().is_some_and(|tables| tables.len() > 1);
    let results: Vec<_> = race.results.iter().filter(several).collect();
    html! {
        @if !results.is_empty() {
            details {
                summary { "By table" }
                div class="scroll" tabindex="0" {
                    table {
                        thead { tr {
                            th class="t" { "backend" } th class="t" { "table" }
                            @for count in &COUNTS { th { (count.0) } }
                        } }
                        tbody {
                            @for result in &results {
                                @for table in result.tables.iter().flatten() {
                                    tr {
                                        td class="t" { (result.backend) } td class="t" { (table.name) }
                                        @for count in &COUNTS { td { (count.3(count.2(table))) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Disk usage at the end, and growth of memory.
pub(super) fn space(story: &WorkloadSection<'_>) -> Option<Markup> {
    let disk = |result: &BenchResult| Some(result.disk_bytes as f64).filter(|bytes| *bytes > 0.0);
    // Memory may have shrunk. Then there is a number without a bar.
    let memory =
        |result: &BenchResult| Some(result.memory_bytes? as f64).filter(|bytes| *bytes != 0.0);
    let races = with(story, |result| disk(result).is_some());
    if races.is_empty() {
        return None;
    }
    let scale_of = |of: &dyn Fn(&BenchResult) -> Option<f64>| {
        AxisScale::linear(
            races.iter().flat_map(|race| &race.results).filter_map(|result| of(result)),
        )
    };
    let (disks, memories) = (scale_of(&disk), scale_of(&memory));
    let panel = |race: &VariantRace<'_>,
                 title: &str,
                 scale: &AxisScale,
                 of: &dyn Fn(&BenchResult) -> Option<f64>| {
        html! {
            @if race.results.iter().any(|result| of(result).is_some()) {
                div class="panel" {
                    h4 { (title) }
                    @for result in &race.results {
                        @if let Some(value) = of(result) {
                            @let said = format!("{}: {}", result.backend, bytes(value));
                            @let track = bar(scale, value, "ours", &said);
                            (BarRow { name: &result.backend, label: None, track, figure: bytes(value), note: None, other: false }.html())
                        }
                    }
                }
            }
        }
    };
    Some(html! {
        figure id={ (story.workload) "-space" } {
            h3 { "Disk and memory at the end" }
            figcaption {
                "Live pages and files once everything has been folded; shorter is better. Memory is what \
                 was allocated during a backend's turns, mapped files not included."
                @if !races.iter().all(|race| race.is_complete()) {
                    " Of a run that was stopped: what was on disk then, nothing folded or flushed for it."
                }
            }
            @for race in &races {
                (race.heading())
                div class="panels" {
                    (panel(race, "Disk", &disks, &disk))
                    (panel(race, "Memory", &memories, &memory))
                }
            }
        }
    })
}

/// Sizes of proofs, and times to make and verify them.
pub(super) fn proofs(story: &WorkloadSection<'_>) -> Option<Markup> {
    // Those of a whole commit would need an axis of their own.
    let is_shown = |proof: &&ProofResult| proof.count > 0 && proof.keys.is_none();
    let races = with(story, |result| result.proofs.iter().any(|proof| is_shown(&proof)));
    if races.is_empty() {
        return None;
    }
    let results = || races.iter().flat_map(|race| &race.results);
    let all = || results().flat_map(|result| &result.proofs).filter(is_shown);
    let sizes = AxisScale::linear(all().map(|proof| proof.bytes.max as f64));
    let times = AxisScale::linear(
        all().flat_map(|p| [p.made.p99_us, p.verified.p99_us]).map(|us| us as f64),
    );
    let panel = |race: &VariantRace<'_>,
                 title: &str,
                 scale: &AxisScale,
                 of: &dyn Fn(&ProofResult) -> (f64, f64, f64),
                 words: fn(f64) -> String| {
        html! {
            div class="panel" {
                h4 { (title) }
                @for result in &race.results {
                    @for proof in result.proofs.iter().filter(is_shown) {
                        @let (low, middle, high) = of(proof);
                        @let kind = kind_of(proof);
                        @let said = format!("{}, {kind}: {}", result.backend, words(middle));
                        @let range = format!("{}, {kind}: {} to {}", result.backend, words(low), words(high));
                        @let track = html! {
                            (bar(scale, middle, "ours", &said))
                            (whisker(scale, low, high, "spread", &range))
                        };
                        @let label = Some(format!("{}, {kind}", result.backend));
                        (BarRow { name: &result.backend, label, track, figure: words(middle), note: None, other: false }.html())
                    }
                }
            }
        }
    };
    let size = |proof: &ProofResult| {
        (proof.bytes.min as f64, proof.bytes.p50 as f64, proof.bytes.max as f64)
    };
    let made = |p: &ProofResult| (p.made.p50_us as f64, p.made.p50_us as f64, p.made.p99_us as f64);
    let checked = |p: &ProofResult| {
        (p.verified.p50_us as f64, p.verified.p50_us as f64, p.verified.p99_us as f64)
    };
    let count = all().map(|proof| proof.count).max().unwrap_or(0);
    Some(html! {
        figure id={ (story.workload) "-proofs" } {
            h3 { "Proofs" }
            figcaption {
                "Of one key each, up to " (grouped(count)) " of a kind: keys with a value, keys \
                 without, and keys in old states, labelled with their depth below the tip. Bars \
                 are medians; whiskers reach from the smallest to the largest size, and to the \
                 99th percentile of times. Shorter is better."
            }
            @for race in &races {
                (race.heading())
                div class="panels" {
                    (panel(race, "Size", &sizes, &size, bytes))
                    (panel(race, "Time to make", &times, &made, micros))
                    (panel(race, "Time to check", &times, &checked, micros))
                }
            }
        }
    })
}

fn kind_of(proof: &ProofResult) -> String {
    match (proof.depth, proof.present) {
        (Some(depth), _) => format!("key {} blocks below", grouped(depth)),
        (None, true) => "present key".into(),
        (None, false) => "absent key".into(),
    }
}

/// The races in which `has` holds for at least one result.
fn with<'s, 'd>(
    story: &'s WorkloadSection<'d>,
    has: impl Fn(&BenchResult) -> bool,
) -> Vec<&'s VariantRace<'d>> {
    story.races.iter().filter(|race| race.results.iter().any(|result| has(result))).collect()
}
