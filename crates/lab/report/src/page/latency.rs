//! The latency of commits or blocks, and its tail (COLE, Fig. 11).

use super::{
    bars::{BarRow, axis, dot, grid, key, mark, whisker},
    scale::AxisScale,
    sections::WorkloadSection,
};
use crate::{BenchResult, words::micros};
use maud::{Markup, html};

/// The known quantiles of a latency distribution, in microseconds.
struct LatencyTail {
    /// The smallest latency, or the smallest known quantile.
    low: f64,
    quartiles: Option<(f64, f64)>,
    median: f64,
    p99: Option<f64>,
    p999: Option<f64>,
    /// The largest known value, and its name: `longest`, `p99.9`.
    max: f64,
    max_name: &'static str,
}

/// With fewer commits or blocks than this, the 99.9th percentile is the longest latency, and is not
/// shown.
const FEWEST_FOR_P999: u64 = 1000;

/// Number of commits or blocks, if the params state it.
fn count(result: &BenchResult) -> Option<u64> {
    let param = |name: &str| result.params.get(name)?.as_u64();
    param("blocks").or_else(|| Some(param("pairs")?.div_ceil(param("commit_every")?.max(1))))
}

impl LatencyTail {
    fn of(result: &BenchResult) -> Option<Self> {
        let at = |quantile: f64| {
            let point =
                result.latency.iter().find(|point| (point.quantile - quantile).abs() < 1e-9);
            point.map(|point| point.us as f64)
        };
        let known =
            |point: Option<f64>, field: Option<u64>| point.or_else(|| field.map(|us| us as f64));
        let median = known(at(0.5), result.p50_us).filter(|us| *us > 0.0)?;
        let p99 = known(at(0.99), result.p99_us);
        let few = count(result).is_some_and(|count| count < FEWEST_FOR_P999);
        let p999 = known(at(0.999), result.p999_us).filter(|_| !few);
        let largest = [(known(at(1.0), result.max_us), "longest"), (p999, "p99.9"), (p99, "p99")];
        let largest = largest.into_iter().find_map(|(us, name)| Some((us?, name)));
        let (max, max_name) = largest.unwrap_or((median, "median"));
        Some(Self {
            low: at(0.0).unwrap_or(median),
            quartiles: at(0.25).zip(at(0.75)),
            median,
            p99,
            p999,
            max,
            max_name,
        })
    }
}

/// The figure; `None` if no result has latencies.
pub(super) fn latency(story: &WorkloadSection<'_>) -> Option<Markup> {
    let tails =
        || story.races.iter().flat_map(|race| &race.results).filter_map(|r| LatencyTail::of(r));
    tails().next()?;
    let scale = AxisScale::log(tails().flat_map(|tail| [tail.low, tail.max]));
    let of = match story.workload {
        "state" | "adversary" => "a commit",
        _ => "a block",
    };
    let unit = AxisScale::Linear { max: 1.0 };
    let mut entries = vec![
        (mark(&unit, 0.5, "strong", ""), "median"),
        (html! { g class="b-other" { (dot(&unit, 0.5, "dot", "")) } }, "p99"),
        (
            html! { g class="b-other" { (whisker(&unit, 0.0, 1.0, "whisker", "")) } },
            "shortest to longest, as far as known",
        ),
    ];
    if tails().any(|tail| tail.p999.is_some()) {
        let picture = html! { g class="b-other" { (dot(&unit, 0.5, "ring", "")) } };
        entries.insert(2, (picture, "p99.9"));
    }
    if tails().any(|tail| tail.quartiles.is_some()) {
        let picture = html! { rect class="box b-other" width="100%" height="100%" {} };
        entries.insert(0, (picture, "middle half"));
    }
    Some(html! {
        figure id={ (story.workload) "-latency" } {
            h3 { "Latency and its tail" }
            figcaption { "Of " (of) ", on a scale of powers of ten; further left is better." }
            (key(&entries))
            @for race in &story.races {
                @if race.results.iter().any(|result| LatencyTail::of(result).is_some()) {
                    (race.heading())
                    @for result in &race.results {
                        @if let Some(tail) = LatencyTail::of(result) { (row(&scale, &result.backend, &tail)) }
                    }
                }
            }
            (axis(&scale, |us| micros(us).replace(".00", "").replace(".0", "")))
        }
    })
}

fn row(scale: &AxisScale, name: &str, tail: &LatencyTail) -> Markup {
    let said = |what: &str, us: f64| format!("{name}, {what}: {}", micros(us));
    let range = format!("{name}: {} to {}", micros(tail.low), micros(tail.max));
    let track = html! {
        (grid(scale))
        (whisker(scale, tail.low, tail.max, "whisker", &range))
        @if let Some((low, high)) = tail.quartiles {
            @let (left, right) = (scale.at(low), scale.at(high));
            rect class="box" x={ (left) "%" } y="22%" height="56%"
                width={ (format!("{:.2}", (right - left).max(0.3))) "%" } {
                title { (name) ", middle half: " (micros(low)) " to " (micros(high)) }
            }
        }
        (mark(scale, tail.median, "strong", &said("median", tail.median)))
        @if let Some(p99) = tail.p99 { (dot(scale, p99, "dot", &said("p99", p99))) }
        @if let Some(p999) = tail.p999 { (dot(scale, p999, "ring", &said("p99.9", p999))) }
    };
    let figure = micros(tail.median);
    let stall = tail.max / tail.median;
    let times = if stall < 9.95 { format!("{stall:.1}") } else { format!("{stall:.0}") };
    let note = Some(format!("{} {} ({times} × median)", tail.max_name, micros(tail.max)));
    BarRow { name, label: None, track, figure, note, other: false }.html()
}
