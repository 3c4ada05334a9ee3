//! One SVG for a readme: the largest variant of each workload as bars. It stands alone (no script,
//! no font, nothing loaded) and follows the light or dark setting of its reader.

use super::{
    bars::class_of,
    colours,
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection, rate, sustained, unit},
};
use crate::{
    BenchResult, ReportDocument,
    words::{micros, number},
};
use maud::{Markup, PreEscaped, html};

/// Width of the picture in pixels.
const WIDTH: u32 = 760;
/// Left end of the bars.
const TRACK_LEFT: u32 = 112;
/// Length of the longest bar. The figures stand to the right of the bars.
const TRACK: u32 = 470;
/// Height of a row, and of a line of small text.
const ROW: u32 = 24;
const LINE: u32 = 16;
/// Characters of small text that fit into the width.
const LINE_CHARS: usize = 118;

const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:var(--ink)}\
.h{font-weight:650;font-size:15px}.s{font-size:12px;fill:var(--soft)}.n{font-weight:600;text-anchor:end}\
rect{fill:var(--c)}.paper{fill:var(--paper)}.base{stroke:var(--line)}\
svg{--paper:#fbfaf7;--ink:#1d1c1a;--soft:#5f5b54;--line:#d9d5cc}\
@media (prefers-color-scheme:dark){svg{--paper:#171614;--ink:#ece8e0;--soft:#a8a298;--line:#3b3832}}";

/// The bars of one workload.
struct BarPanel {
    title: String,
    /// Unit and parameters, in lines that fit into the width.
    caption: Vec<String>,
    /// Name, value and its text, the best first.
    rows: Vec<(String, f64, String)>,
}

/// Documents as one SVG: for each workload the stores of its largest variant, best first. A bar is
/// the lower of the median and the sustained rate; for blocks through the Engine API it is the
/// median latency of a block.
pub fn picture(documents: &[ReportDocument]) -> String {
    let stories = WorkloadSection::all(documents);
    let panels: Vec<_> = stories.iter().filter_map(BarPanel::of).collect();
    let height = panels.iter().map(BarPanel::height).sum::<u32>() + ROW;
    let mut top = ROW;
    let mut drawn = Vec::new();
    for panel in &panels {
        drawn.push(panel.draw(top));
        top += panel.height();
    }
    let markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH)
            height=(height) role="img" {
            title { (panels.iter().map(|panel| &*panel.title).collect::<Vec<_>>().join("; ")) }
            style { (PreEscaped(STYLE)) (PreEscaped(colours(documents))) }
            rect class="paper" width=(WIDTH) height=(height) rx="6" {}
            @for panel in &drawn { (panel) }
        }
    };
    format!("{}\n", markup.into_string())
}

impl BarPanel {
    fn of(story: &WorkloadSection<'_>) -> Option<Self> {
        let race: &VariantRace<'_> = story.races.iter().rev().max_by_key(|race| race.size())?;
        let is_latency = story.workload == "new-payload";
        let value = |result: &BenchResult| match is_latency {
            true => result.p50_us.map(|us| us as f64),
            false => Some(rate(result)).map(|rate| sustained(result).map_or(rate, |s| s.min(rate))),
        };
        let mut rows: Vec<_> = race
            .results
            .iter()
            .filter_map(|result| Some((result.backend.clone(), value(result)?)))
            .filter(|(_, value)| value.is_finite() && *value > 0.0)
            .map(|(name, value)| {
                let text = if is_latency { micros(value) } else { number(value) };
                (name, value, text)
            })
            .collect();
        rows.sort_by(
            |(_, a, _), (_, b, _)| if is_latency { a.total_cmp(b) } else { b.total_cmp(a) },
        );
        let what = match is_latency {
            true => "Median time of engine_newPayload; shorter is better.".to_owned(),
            false => {
                let unit = unit(race.results.first()?);
                format!("A second: {unit}, the lower of median and sustained; longer is better.")
            }
        };
        // With one variant its size is among the terms.
        let size = Some(race.size_and_label()).filter(|size| !story.terms.contains(size.as_str()));
        let terms: Vec<_> = size.into_iter().chain([story.terms.clone()]).collect();
        let terms = terms.iter().filter(|terms| !terms.is_empty()).map(String::as_str);
        let terms = terms.collect::<Vec<_>>();
        let machine = &race.document().report.machine;
        let caption = wrapped(&format!("{what} {}; {machine}.", terms.join(", ")));
        (!rows.is_empty()).then(|| Self { title: story.title(), caption, rows })
    }

    fn height(&self) -> u32 {
        ROW + LINE * self.caption.len() as u32 + ROW * self.rows.len() as u32 + ROW
    }

    /// Draws the panel below `top`, the line of its heading.
    fn draw(&self, top: u32) -> Markup {
        let scale = AxisScale::linear(self.rows.iter().map(|(_, value, _)| *value));
        let first = top + LINE * self.caption.len() as u32 + 10;
        html! {
            text class="h" x="16" y=(top) { (self.title) }
            @for (n, line) in (1..).zip(&self.caption) {
                text class="s" x="16" y=(top + LINE * n) { (line) }
            }
            @for (n, (name, value, text)) in (0..).zip(&self.rows) {
                @let y = first + ROW * n;
                @let length = (scale.at(*value) * f64::from(TRACK)).round() / 100.0;
                text class="n" x=(TRACK_LEFT - 8) y=(y + 16) { (name) }
                rect class=(class_of(name)) x=(TRACK_LEFT) y=(y + 4) width=(length) height="16" rx="2" {}
                text x=(f64::from(TRACK_LEFT) + length + 8.0) y=(y + 16) { (text) }
            }
            line class="base" x1=(TRACK_LEFT) x2=(TRACK_LEFT) y1=(first) y2=(first + ROW * self.rows.len() as u32) {}
        }
    }
}

/// `text` in lines of at most [`LINE_CHARS`] characters; a longer word has a line of its own.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE_CHARS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
