//! Line charts: lines of points with markers, intervals, names at their ends, and marks of others.

use super::{bars::class_of, scale::AxisScale};
use crate::words::tick;
use maud::{Markup, html};

/// A chart.
pub(super) struct LineChart<'d> {
    pub(super) title: String,
    pub(super) x: AxisScale,
    pub(super) y: AxisScale,
    pub(super) lines: Vec<ChartLine<'d>>,
    /// Values of others.
    pub(super) marks: Vec<ChartMark>,
}

/// The line of one backend.
pub(super) struct ChartLine<'d> {
    pub(super) name: &'d str,
    pub(super) points: Vec<ChartPoint>,
}

/// A point, in the units of the axes.
pub(super) struct ChartPoint {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Lower and upper end of the interval, if it is known.
    pub(super) interval: Option<(f64, f64)>,
    /// The exact value in words.
    pub(super) title: String,
}

/// A value that someone else states.
pub(super) struct ChartMark {
    /// The system, which determines the colour.
    pub(super) name: String,
    /// Its place; a dashed line over the whole width without one.
    pub(super) x: Option<f64>,
    pub(super) y: f64,
    pub(super) title: String,
}

impl LineChart<'_> {
    pub(super) fn html(&self) -> Markup {
        let Self { title, x, y, lines, marks } = self;
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
                        @for line in lines { (self.curve(line)) }
                        @for mark in marks.iter().filter(|mark| mark.x.is_none()) {
                            @let at = y.down_to(mark.y);
                            g class=(class_of(&mark.name)) {
                                line class="stated" x1="0" x2="100" y1=(at) y2=(at) {
                                    title { (mark.title) }
                                }
                            }
                        }
                    }
                    div class="marks" aria-hidden="true" {
                        @for line in lines {
                            @for point in &line.points {
                                span class={ "mark " (class_of(line.name)) } style=(self.place(point.x, point.y))
                                    title=(point.title) {}
                            }
                        }
                        @for mark in marks {
                            @if let Some(at) = mark.x {
                                span class={ "theirs-mark " (class_of(&mark.name)) } style=(self.place(at, mark.y))
                                    title=(mark.title) {}
                            }
                        }
                    }
                    div class="ends" aria-hidden="true" {
                        @for (name, top) in self.ends() {
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

    fn curve(&self, line: &ChartLine<'_>) -> Markup {
        let places = line.points.iter().map(|point| (self.x.at(point.x), self.y.down_to(point.y)));
        let joined: Vec<_> = places.map(|(x, y)| format!("{x},{y}")).collect();
        html! {
            g class=(class_of(line.name)) {
                polyline class="curve" points=(joined.join(" ")) { title { (line.name) } }
                @for point in &line.points {
                    @if let Some((low, high)) = point.interval {
                        @let at = self.x.at(point.x);
                        line class="interval" x1=(at) x2=(at) y1=(self.y.down_to(low)) y2=(self.y.down_to(high)) {
                            title { (point.title) }
                        }
                    }
                }
            }
        }
    }

    fn place(&self, x: f64, y: f64) -> String {
        format!("left:{}%;top:{}%", self.x.at(x), self.y.down_to(y))
    }

    /// The positions of the names: at the ends of their lines, moved apart if the lines are close.
    fn ends(&self) -> Vec<(&str, f64)> {
        const APART: f64 = 9.0;
        let at_end = |line: &ChartLine<'_>| Some(self.y.down_to(line.points.last()?.y));
        let ends = self.lines.iter().filter_map(|line| Some((line.name, at_end(line)?)));
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        // Many names move closer together, so that all stay beside the chart.
        let apart = APART.min(100.0 / ends.len().max(1) as f64);
        for n in 1..ends.len() {
            ends[n].1 = ends[n].1.max(ends[n - 1].1 + apart);
        }
        // Names below the bottom move up again, and push the others up.
        let mut floor: f64 = 100.0;
        for end in ends.iter_mut().rev() {
            end.1 = (end.1.min(floor) * 100.0).round() / 100.0;
            floor = end.1 - apart;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_line_ends_do_not_overlap() {
        let line = |name, y| ChartLine {
            name,
            points: vec![ChartPoint { x: 1.0, y: 100.0 - y, interval: None, title: String::new() }],
        };
        let lines = vec![line("a", 98.0), line("b", 99.0), line("c", 99.5), line("d", 10.0)];
        let axis = AxisScale::Linear { max: 100.0 };
        let chart = LineChart { title: String::new(), x: axis, y: axis, lines, marks: Vec::new() };
        let ends = chart.ends();
        let tops: Vec<_> = ends.iter().map(|end| end.1).collect();
        assert!(tops.windows(2).all(|pair| pair[1] - pair[0] >= 9.0), "{tops:?}");
        assert!(*tops.last().unwrap() <= 100.0, "{tops:?}");
        assert_eq!(ends[0], ("d", 10.0));
    }
}
