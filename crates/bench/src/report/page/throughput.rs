//! How fast each backend is, how much it wavers, and what others have published.

use super::{
    bars::{Row, bar, key, mark, whisker},
    scale::Scale,
    story::{Race, Story, rate, sustained, unit},
};
use crate::report::{BenchResult, Reference, words::number};
use maud::{Markup, html};

/// The figure; nothing if no result has a rate.
pub(super) fn throughput(story: &Story<'_>) -> Option<Markup> {
    let results = || story.races.iter().flat_map(|race| &race.results).copied();
    let unit = results().find(|result| rate(result) > 0.0).map(unit)?;
    let values = results().flat_map(|result| {
        let (_, high) = quartiles(result).unwrap_or_default();
        [rate(result), high, sustained(result).unwrap_or_default()]
    });
    let shown = story.races.iter().flat_map(|race| theirs(story, race));
    let scale = Scale::linear(values.chain(shown.map(|reference| reference.value)));
    let whiskers = results().any(|result| quartiles(result).is_some());
    let marks = results().any(|result| sustained(result).is_some());
    let others = story.races.iter().any(|race| !theirs(story, race).is_empty());
    let mut entries =
        vec![(html! { rect fill="var(--soft)" width="100%" height="100%" {} }, "median")];
    if whiskers {
        let picture = whisker(&Scale::Linear { max: 1.0 }, 0.1, 0.9, "spread", "");
        entries.push((picture, "half of the slices lie within"));
    }
    if marks {
        let picture = mark(&Scale::Linear { max: 1.0 }, 0.5, "strong", "");
        entries.push((
            picture,
            match story.races.iter().all(Race::is_complete) {
                true => "sustained, with all deferred work and the final flush",
                false => "sustained, with all deferred work and, unless stopped, the final flush",
            },
        ));
    }
    if others {
        let picture = html! { rect class="theirs b-other" width="100%" height="100%" {} };
        entries.push((picture, "figure of others: another machine or program"));
    }
    Some(html! {
        figure id={ (story.workload) "-throughput" } {
            h3 { "Throughput" }
            figcaption { "In " (unit) " a second; longer is better." }
            (key(&entries))
            @for race in &story.races {
                (race.heading())
                @for result in &race.results { (row(&scale, race, result)) }
                @for reference in theirs(story, race) { (their_row(&scale, race, reference)) }
            }
        }
    })
}

fn row(scale: &Scale, race: &Race<'_>, result: &BenchResult) -> Markup {
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
    Row { name, label: None, track, figure, note, other: false }.html()
}

fn their_row(scale: &Scale, race: &Race<'_>, reference: &Reference) -> Markup {
    let (system, source) = (&reference.system, &reference.source);
    let said = format!("{system}, {source}; {}: {}", reference.setting, number(reference.value));
    // The size stands above the bars already.
    let known = |words: &&str| race.is_setting(words);
    let words = reference.setting.split(", ").filter(|words| !known(words));
    let note: Vec<_> = source.split(", measured").take(1).chain(words).collect();
    Row {
        name: &reference.system,
        label: None,
        track: bar(scale, reference.value, "theirs", &said),
        figure: number(reference.value),
        note: Some(note.join(", ")),
        other: true,
    }
    .html()
}

/// Figures of others that belong beside the bars of `race`: of a system that has run in it, in the same
/// unit, of the same size.
fn theirs<'d>(story: &Story<'d>, race: &Race<'_>) -> Vec<&'d Reference> {
    let unit =
        race.results.first().map(|result| if result.tps.is_some() { "tps" } else { "ops_per_s" });
    let fits = |reference: &&&Reference| {
        race.of(&reference.system).is_some()
            && Some(reference.metric.as_str()) == unit
            && race.is_setting(&reference.setting)
    };
    story.references.iter().filter(fits).copied().collect()
}

/// Between which rates half of the slices lie: cut from the slices, or from the spread around the
/// median.
fn quartiles(result: &BenchResult) -> Option<(f64, f64)> {
    let scale = rate(result) / result.ops_per_s;
    let mut rates: Vec<f64> = result.slices.iter().map(|slice| slice.ops_per_s * scale).collect();
    // The slices of a replay are its blocks: they differ because blocks do.
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
