//! The figure of attacks: the rate of each store relative to its own baseline.

use super::{
    bars::{BarRow, bar, key, mark},
    scale::AxisScale,
    sections::WorkloadSection,
};
use crate::{BaselineRatio, BenchResult};
use maud::{Markup, html};

/// The figure; `None` if no result has a baseline.
pub(super) fn attacks(story: &WorkloadSection<'_>) -> Option<Markup> {
    let races =
        story.races.iter().filter(|race| race.results.iter().any(|one| one.of_baseline.is_some()));
    let races: Vec<_> = races.collect();
    if races.is_empty() {
        return None;
    }
    let all = races.iter().flat_map(|race| &race.results).filter_map(|result| result.of_baseline);
    // The scale always includes the baseline.
    let scale = AxisScale::linear(all.flat_map(|of| [of.median, of.sustained]).chain([1.0]));
    let unit = AxisScale::Linear { max: 1.0 };
    let entries = [
        (html! { rect fill="var(--soft)" width="100%" height="100%" {} }, "median"),
        (mark(&unit, 0.5, "strong", ""), "sustained, with all deferred work and the final flush"),
        (mark(&unit, 0.5, "grid", ""), "as fast as without the attack"),
    ];
    Some(html! {
        figure id={ (story.workload) "-attacks" } {
            h3 { "Beside its own baseline" }
            figcaption {
                "Operations a second of each store under an attack, relative to its baseline: \
                 shorter is worse."
            }
            (key(&entries))
            @for race in &races {
                (race.heading())
                @for result in &race.results {
                    @if let Some(of) = result.of_baseline { (row(&scale, result, of)) }
                }
            }
        }
    })
}

fn row(scale: &AxisScale, result: &BenchResult, of: BaselineRatio) -> Markup {
    let name = &result.backend;
    let track = html! {
        (bar(scale, of.median, "ours", &format!("{name}: {} of its baseline", percent(of.median))))
        (mark(scale, 1.0, "grid", ""))
        (mark(scale, of.sustained, "strong", &format!(
            "{name}: sustained {} of its baseline", percent(of.sustained)
        )))
    };
    let note = format!("spread {}; sustained {}", percent(of.spread), percent(of.sustained));
    BarRow { name, label: None, track, figure: percent(of.median), note: Some(note), other: false }
        .html()
}

/// The main result: the attack and store with the lowest rate relative to the baseline.
pub(super) fn worst(story: &WorkloadSection<'_>) -> Option<Markup> {
    let results =
        story.races.iter().flat_map(|race| race.results.iter().map(move |one| (race, one)));
    let attacked = results.filter_map(|(race, result)| Some((race, result, result.of_baseline?)));
    let (race, result, of) = attacked.min_by(|a, b| a.2.sustained.total_cmp(&b.2.sustained))?;
    let attack = race.param("attack").and_then(|attack| attack.as_str()).unwrap_or_default();
    Some(html! {
        b { (story.title()) } ": worst hit is " (result.backend) " by " (attack) ", at "
        (percent(of.median)) " of its own baseline in the median. Sustained it is " (percent(of.sustained)) "."
    })
}

/// A fraction as a percentage.
fn percent(part: f64) -> String {
    let points = part * 100.0;
    let digits = usize::from(points < 9.95);
    format!("{points:.digits$} %")
}
