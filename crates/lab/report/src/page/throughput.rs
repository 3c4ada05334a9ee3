//! The throughput of each backend, its spread, and reference figures.

use super::{
    bars::{BarRow, bar, key, mark, whisker},
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection, rate, sustained, unit},
};
use crate::{BenchResult, ReferenceFigure, setting::ReferenceSetting, words::number};
use maud::{Markup, html};

/// The figure; `None` if no result has a rate.
pub(super) fn throughput(story: &WorkloadSection<'_>) -> Option<Markup> {
    let results = || story.races.iter().flat_map(|race| &race.results).copied();
    let unit = results().find(|result| rate(result) > 0.0).map(unit)?;
    let values = results().flat_map(|result| {
        let (_, high) = quartiles(result).unwrap_or_default();
        [rate(result), high, sustained(result).unwrap_or_default()]
    });
    let shown = story.races.iter().flat_map(|race| theirs(story, race));
    let scale = AxisScale::linear(values.chain(shown.map(|reference| reference.value)));
    let whiskers = results().any(|result| quartiles(result).is_some());
    let marks = results().any(|result| sustained(result).is_some());
    let others = story.races.iter().any(|race| !theirs(story, race).is_empty());
    let mut entries =
        vec![(html! { rect fill="var(--soft)" width="100%" height="100%" {} }, "median")];
    if whiskers {
        let picture = whisker(&AxisScale::Linear { max: 1.0 }, 0.1, 0.9, "spread", "");
        entries.push((picture, "half of the slices lie within"));
    }
    if marks {
        let picture = mark(&AxisScale::Linear { max: 1.0 }, 0.5, "strong", "");
        entries.push((
            picture,
            match story.races.iter().all(VariantRace::is_complete) {
                true => "sustained, with all deferred work and the final flush",
                false => "sustained, with all deferred work and, unless stopped, the final flush",
            },
        ));
    }
    if others {
        let picture = html! { rect class="theirs b-other" width="100%" height="100%" {} };
        entries.push((picture, "reference figure: another machine or program"));
    }
    Some(html! {
        figure id={ (story.workload) "-throughput" } {
            h3 {
                @match story.workload {
                    "provenance" => "Provenance queries, with their verification",
                    _ => "Throughput",
                }
            }
            figcaption { "In " (unit) " a second; longer is better." }
            (key(&entries))
            @for race in story.races.iter().filter(|race| race.has_rates()) {
                (race.heading())
                @for result in race.results.iter().filter(|result| rate(result) > 0.0) {
                    (row(&scale, race, result))
                }
                @for reference in theirs(story, race) { (their_row(&scale, race, reference)) }
            }
        }
    })
}

fn row(scale: &AxisScale, race: &VariantRace<'_>, result: &BenchResult) -> Markup {
    let (name, unit) = (&result.backend, unit(result));
    let said = format!("{name}: {} {unit} a second", number(rate(result)));
    let track = html! {
        (bar(scale, rate(result), "ours", &said))
        @if let Some((low, high)) = quartiles(result) {
            (whisker(scale, low, high, "spread", &format!(
                "{name}: half of the slices between {} and {} {unit} a second", number(low), number(high)
            )))
        }
        @if let Some(sustained) = sustained(result) {
            (mark(scale, sustained, "strong", &format!(
                "{name}: sustained {} {unit} a second", number(sustained)
            )))
        }
    };
    let figure = number(rate(result));
    let (standing, lasting) = (race.standing(result, true), race.sustained_standing(result));
    let note = Some(match lasting.as_str() {
        "" => standing,
        lasting => format!("{standing}; sustained {lasting}"),
    });
    BarRow { name, label: None, track, figure, note, other: false }.html()
}

fn their_row(scale: &AxisScale, race: &VariantRace<'_>, reference: &ReferenceFigure) -> Markup {
    let (system, source) = (&reference.system, &reference.source);
    let said = format!("{system}, {source}; {}: {}", reference.setting, number(reference.value));
    // The heading already has the size.
    let words = reference.setting.split(", ").filter(|words| !race.is_known_count(words));
    let note: Vec<_> = source.split(", measured").take(1).chain(words).collect();
    BarRow {
        name: &reference.system,
        label: None,
        track: bar(scale, reference.value, "theirs", &said),
        figure: number(reference.value),
        note: Some(note.join(", ")),
        other: true,
    }
    .html()
}

/// Reference figures to show beside the bars of `race`: of a system that took part, in the same
/// unit and of the same size.
fn theirs<'d>(story: &WorkloadSection<'d>, race: &VariantRace<'_>) -> Vec<&'d ReferenceFigure> {
    let unit =
        race.results.first().map(|result| if result.tps.is_some() { "tps" } else { "ops_per_s" });
    let fits = |reference: &&&ReferenceFigure| {
        race.of(&reference.system).is_some()
            && Some(reference.metric.as_str()) == unit
            && ReferenceSetting::parse(&reference.setting)
                .is_some_and(|setting| setting.is_sized() && race.holds(&setting))
    };
    story.references.iter().filter(fits).copied().collect()
}

/// The quartiles of the slices' rates, from the slices or from the spread around the median.
fn quartiles(result: &BenchResult) -> Option<(f64, f64)> {
    let scale = rate(result) / result.ops_per_s;
    let mut rates: Vec<f64> = result.slices.iter().map(|slice| slice.ops_per_s * scale).collect();
    // The slices of a replay are its blocks, which differ by themselves.
    if result.workload == "replay" || !scale.is_finite() {
        return None;
    }
    if rates.len() >= 4 {
        rates.sort_by(f64::total_cmp);
        let at = |part: f64| rates[((rates.len() - 1) as f64 * part).round() as usize];
        return Some((at(0.25), at(0.75)));
    }
    let half = rate(result) * result.spread? / 2.0;
    (half > 0.0).then(|| (rate(result) - half, rate(result) + half))
}
