//! Throughput, disk usage and memory over the course of the workload.

use super::{
    bars::class_of,
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection, rate},
};
use crate::{
    BenchResult, SliceResult,
    words::{bytes, grouped, number, tick},
};
use maud::{Markup, html};

/// The line of one backend: points of cumulative operations and value.
struct PlotLine<'d> {
    name: &'d str,
    points: Vec<(f64, f64)>,
}

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
    let lines: Vec<_> = race
        .results
        .iter()
        .map(|result| PlotLine { name: &result.backend, points: points(result) })
        .filter(|line| line.points.len() > 1)
        .collect();
    if lines.is_empty() {
        return html! {};
    }
    let all = || lines.iter().flat_map(|line| &line.points);
    let y = AxisScale::round(all().map(|(_, y)| y / unit));
    let x = AxisScale::Linear { max: all().map(|(x, _)| *x).fold(1.0, f64::max) };
    let place = |(at, value): &(f64, f64)| (x.at(*at), y.down_to(value / unit));
    html! {
        div class="panel" {
            h4 { (title) }
            div class="plot" {
                div class="y" aria-hidden="true" {
                    @for value in y.ticks() {
                        span style={ "top:" (y.down_to(value)) "%" } { (tick(value)) }
                    }
                }
                svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img"
                    aria-label={ (title) ": " (lines.iter().map(|line| line.name).collect::<Vec<_>>().join(", ")) } {
                    @for value in y.ticks() {
                        @let at = y.down_to(value);
                        line class="grid" x1="0" x2="100" y1=(at) y2=(at) {}
                    }
                    @for line in &lines {
                        @let places: Vec<_> = line.points.iter().map(place).collect();
                        g class=(class_of(line.name)) {
                            polyline class="curve" points=(joined(&places)) { title { (line.name) } }
                            @for ((at, value), (x, y)) in line.points.iter().zip(&places) {
                                // A line of length 0 with round ends is a dot, even if the SVG is
                                // stretched.
                                path class="point" d={ "M" (x) " " (y) "h0" } {
                                    title { (line.name) ", after " (grouped(*at as u64)) ": " (words(*value)) }
                                }
                            }
                        }
                    }
                }
                div class="ends" aria-hidden="true" {
                    @for (name, top) in ends(&lines, place) {
                        span class=(class_of(name)) style={ "top:" (top) "%" } { (name) }
                    }
                }
                div class="x" aria-hidden="true" {
                    @for value in x.ticks() { span style={ "left:" (x.at(value)) "%" } { (tick(value)) } }
                }
            }
        }
    }
}

fn joined(places: &[(f64, f64)]) -> String {
    places.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

/// The positions of the names: at the ends of their lines, moved apart if the lines are close.
fn ends<'d>(
    lines: &[PlotLine<'d>],
    place: impl Fn(&(f64, f64)) -> (f64, f64),
) -> Vec<(&'d str, f64)> {
    const APART: f64 = 9.0;
    let at_end = |line: &PlotLine<'d>| Some((line.name, place(line.points.last()?).1));
    let mut ends: Vec<_> = lines.iter().filter_map(at_end).collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    for n in 1..ends.len() {
        ends[n].1 = ends[n].1.max(ends[n - 1].1 + APART);
    }
    // Names below the bottom move up again, and push the others up.
    let mut floor: f64 = 100.0;
    for end in ends.iter_mut().rev() {
        end.1 = (end.1.min(floor) * 100.0).round() / 100.0;
        floor = end.1 - APART;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_line_ends_do_not_overlap() {
        let line = |name, y| PlotLine { name, points: vec![(0.0, 0.0), (1.0, y)] };
        let lines = [line("a", 98.0), line("b", 99.0), line("c", 99.5), line("d", 10.0)];
        let ends = ends(&lines, |point| *point);
        let tops: Vec<_> = ends.iter().map(|end| end.1).collect();
        assert!(tops.windows(2).all(|pair| pair[1] - pair[0] >= 9.0), "{tops:?}");
        assert!(*tops.last().unwrap() <= 100.0, "{tops:?}");
        assert_eq!(ends[0], ("d", 10.0));
    }
}
