//! Throughput, disk usage and memory over the course of the workload.

use super::{
    chart::{ChartLine, ChartPoint, LineChart},
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection, rate},
};
use crate::{
    BenchResult, SliceResult,
    words::{bytes, grouped, number},
};
use maud::{Markup, html};

/// One of the plots that are shown side by side.
struct PlotPanel {
    title: &'static str,
    points: fn(&BenchResult) -> Vec<(f64, f64)>,
    words: fn(f64) -> String,
    /// The unit of the axis.
    unit: f64,
}

const MIB: f64 = (1 << 20) as f64;

const PANELS: [PlotPanel; 3] = [
    PlotPanel {
        title: "Throughput, a second",
        points: |result| {
            let scale = rate(result) / result.ops_per_s;
            points(result, |slice| Some(slice.ops_per_s * scale))
        },
        words: number,
        unit: 1.0,
    },
    PlotPanel {
        title: "Disk, MiB",
        points: |result| points(result, |slice| Some(slice.disk_bytes? as f64)),
        words: bytes,
        unit: MIB,
    },
    PlotPanel {
        title: "Memory allocated, MiB",
        points: |result| points(result, |slice| Some(slice.memory_bytes as f64)),
        words: bytes,
        unit: MIB,
    },
];

fn points(result: &BenchResult, of: impl Fn(&SliceResult) -> Option<f64>) -> Vec<(f64, f64)> {
    let points = result.slices.iter().filter_map(|slice| Some((slice.ops as f64, of(slice)?)));
    // Memory may have shrunk. Values below 0 are drawn at the bottom.
    let points: Vec<_> = points.filter(|(_, y)| y.is_finite()).collect();
    // A value that is always zero was not measured.
    if points.iter().any(|(_, y)| *y != 0.0) { points } else { Vec::new() }
}

/// The figure; `None` if there are no slices. A replay has none either: its slices are blocks,
/// which differ, so a line through them has no meaning.
pub(super) fn over_time(story: &WorkloadSection<'_>) -> Option<Markup> {
    let has = |race: &&VariantRace<'_>| race.results.iter().any(|result| result.slices.len() > 1);
    let races: Vec<_> = story.races.iter().filter(has).collect();
    if races.is_empty() || story.workload == "replay" {
        return None;
    }
    Some(html! {
        figure id={ (story.workload) "-time" } {
            h3 { "As the run goes on" }
            figcaption {
                "Slice by slice; the slices of the backends alternate, so a dent in all lines is the \
                 machine's. Along the bottom: operations so far."
            }
            @for race in &races {
                (race.heading())
                div class="panels" {
                    @for panel in &PANELS { (plot(race, panel)) }
                }
            }
        }
    })
}

fn plot(race: &VariantRace<'_>, PlotPanel { title, points, words, unit }: &PlotPanel) -> Markup {
    let lines = race.results.iter().map(|result| {
        let point = |(at, value): (f64, f64)| ChartPoint {
            x: at,
            y: value / unit,
            interval: None,
            title: format!("{}, after {}: {}", result.backend, grouped(at as u64), words(value)),
        };
        ChartLine { name: &result.backend, points: points(result).into_iter().map(point).collect() }
    });
    let lines: Vec<_> = lines.filter(|line| line.points.len() > 1).collect();
    if lines.is_empty() {
        return html! {};
    }
    let all = || lines.iter().flat_map(|line| &line.points);
    let y = AxisScale::round(all().map(|point| point.y));
    let x = AxisScale::Linear { max: all().map(|point| point.x).fold(1.0, f64::max) };
    LineChart { title: (*title).into(), x, y, lines, marks: Vec::new() }.html()
}
