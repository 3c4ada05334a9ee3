//! Rows of bars. A row has a name, a track and a value. The track is an SVG with percentages as
//! coordinates, so that it follows the width of the page while its lines keep their thickness.

use super::scale::AxisScale;
use maud::{Markup, html};

/// One row.
pub(super) struct BarRow<'a> {
    /// The backend or system; determines the colour.
    pub(super) name: &'a str,
    /// The text before the track, if it differs from the name.
    pub(super) label: Option<String>,
    /// The content of the track.
    pub(super) track: Markup,
    /// The value in words.
    pub(super) figure: String,
    /// A comparison in words; `None` if rows of this kind have none.
    pub(super) note: Option<String>,
    /// Whether it is a reference figure.
    pub(super) other: bool,
}

impl BarRow<'_> {
    pub(super) fn html(&self) -> Markup {
        let label = self.label.as_deref().unwrap_or(self.name);
        let class = match (self.note.is_some(), self.other) {
            (true, false) => "row",
            (true, true) => "row other",
            (false, false) => "row plain",
            (false, true) => "row plain other",
        };
        html! {
            div class=(class) data-backend=(self.name) {
                span class="name" { (label) }
                span class="track" {
                    svg role="img" aria-label={ (label) ": " (self.figure) } class=(class_of(self.name)) {
                        (self.track)
                    }
                }
                span class="figure" { (self.figure) }
                @if let Some(note) = &self.note { span class="note" { (note) } }
            }
        }
    }
}

/// The style class that carries the colour of `name`.
pub(super) fn class_of(name: &str) -> String {
    let letters = name.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
        other => format!("_{other:02x}"),
    });
    format!("b-{}", letters.collect::<String>())
}

/// A bar from 0 to `value`.
pub(super) fn bar(scale: &AxisScale, value: f64, class: &str, title: &str) -> Markup {
    html! {
        rect class=(class) x="0" y="15%" height="70%" width={ (scale.at(value)) "%" } { (hint(title)) }
    }
}

/// A bar of consecutive parts: class, value and title of each.
pub(super) fn stack(scale: &AxisScale, parts: &[(String, f64, String)]) -> Markup {
    let mut sum = 0.0;
    let places: Vec<_> = parts
        .iter()
        .map(|(class, value, title)| {
            let start = scale.at(sum);
            sum += value;
            (class, start, scale.at(sum), title)
        })
        .collect();
    html! {
        @for (class, start, end, title) in &places {
            rect class=(class) x={ (start) "%" } y="15%" height="70%" width={ (round(end - start)) "%" } {
                (hint(title))
            }
        }
        @for (_, start, end, _) in places.iter().skip(1) {
            // A line between two parts, if there is room for it.
            @if end - start > 0.5 {
                line class="cut" x1={ (start) "%" } x2={ (start) "%" } y1="15%" y2="85%" {}
            }
        }
    }
}

/// A horizontal line from `low` to `high` with ends.
pub(super) fn whisker(scale: &AxisScale, low: f64, high: f64, class: &str, title: &str) -> Markup {
    let (low, high) = (scale.at(low), scale.at(high));
    html! {
        g {
            (hint(title))
            line class=(class) x1={ (low) "%" } x2={ (high) "%" } y1="50%" y2="50%" {}
            @for end in [low, high] {
                line class=(class) x1={ (end) "%" } x2={ (end) "%" } y1="38%" y2="62%" {}
            }
        }
    }
}

/// A vertical line at `value`.
pub(super) fn mark(scale: &AxisScale, value: f64, class: &str, title: &str) -> Markup {
    let at = scale.at(value);
    html! {
        line class=(class) x1={ (at) "%" } x2={ (at) "%" } y1="5%" y2="95%" { (hint(title)) }
    }
}

/// A dot at `value`.
pub(super) fn dot(scale: &AxisScale, value: f64, class: &str, title: &str) -> Markup {
    html! { circle class=(class) cx={ (scale.at(value)) "%" } cy="50%" r="4" { (hint(title)) } }
}

/// Lines at the ticks. Draw them before everything else.
pub(super) fn grid(scale: &AxisScale) -> Markup {
    html! {
        @for tick in scale.ticks() {
            @let at = scale.at(tick);
            line class="grid" x1={ (at) "%" } x2={ (at) "%" } y1="-10%" y2="110%" {}
        }
    }
}

/// A row with the numbers at the ticks. Its columns are those of rows with notes.
pub(super) fn axis(scale: &AxisScale, words: impl Fn(f64) -> String) -> Markup {
    let ticks = scale.ticks();
    let last = ticks.len().saturating_sub(1);
    // On narrow screens only the powers of ten are shown.
    let minor = |tick: f64| ticks.len() > 5 && (tick.log10() - tick.log10().round()).abs() > 1e-6;
    html! {
        div class="row axis" aria-hidden="true" {
            span class="name" {}
            span class="track" {
                svg {
                    @for (n, tick) in ticks.iter().enumerate() {
                        @let anchor = if n == 0 { "start" } else if n == last { "end" } else { "middle" };
                        text x={ (scale.at(*tick)) "%" } y="0.9rem" text-anchor=(anchor) class=[minor(*tick).then_some("minor")] { (words(*tick)) }
                    }
                }
            }
            span class="figure" {}
            span class="note" {}
        }
    }
}

/// The tooltip of a mark; marks in a key have none.
fn hint(title: &str) -> Markup {
    html! { @if !title.is_empty() { title { (title) } } }
}

fn round(place: f64) -> f64 {
    (place * 100.0).round() / 100.0
}

/// The key of a figure: a small picture and words for each entry.
pub(super) fn key(entries: &[(Markup, &str)]) -> Markup {
    html! {
        ul class="key" {
            @for (picture, words) in entries {
                li { svg aria-hidden="true" { (picture) } (words) }
            }
        }
    }
}
