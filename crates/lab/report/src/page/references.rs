//! Reference figures beside the values measured here, with a verdict.
//!
//! A statement of a paper is *reproduced* if our value lies within a quarter of it, *better* or
//! *missed* beyond. Times and rates of another machine are not comparable, nor are values at
//! another size or in another regime of the structure.

use super::{
    metric::MetricName,
    sections::{VariantRace, WorkloadSection},
};
use crate::{
    ReferenceFigure,
    setting::{ReferenceSetting, ResultChoice},
    stats::SampleSummary,
    words::number,
};
use maud::{Markup, html};

/// The factor up to which a value counts as the paper's.
const WITHIN: f64 = 1.25;

/// A reference figure with our value.
pub(super) struct JudgedReference<'d> {
    pub(super) reference: &'d ReferenceFigure,
    /// Our value, and where it was measured; `None` if it was not.
    pub(super) here: Option<(SampleSummary, String)>,
    pub(super) verdict: ReferenceVerdict,
}

/// How our value compares with a reference figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReferenceVerdict {
    /// Within a quarter of it.
    Reproduced,
    /// Better by more.
    Better,
    /// Worse by more.
    Missed,
    /// Not comparable, for this reason.
    Incomparable(String),
}

impl ReferenceVerdict {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Reproduced => "reproduced".into(),
            Self::Better => "better".into(),
            Self::Missed => "missed".into(),
            Self::Incomparable(why) => format!("not comparable: {why}"),
        }
    }

    fn of(metric: MetricName<'_>, ours: f64, theirs: f64) -> Self {
        let gain = if metric.more_is_better() { ours / theirs } else { theirs / ours };
        match gain {
            _ if gain > WITHIN => Self::Better,
            _ if gain >= 1.0 / WITHIN => Self::Reproduced,
            _ => Self::Missed,
        }
    }
}

impl<'d> JudgedReference<'d> {
    pub(super) fn new(story: &WorkloadSection<'d>, reference: &'d ReferenceFigure) -> Self {
        let without = |why: &str| {
            let verdict = ReferenceVerdict::Incomparable(why.into());
            Self { reference, here: None, verdict }
        };
        let Some(setting) = ReferenceSetting::parse(&reference.setting) else {
            return without("its setting is not run here");
        };
        if !story.races.iter().any(|race| race.of(&reference.system).is_some()) {
            return without("the system did not run");
        }
        let metric = MetricName(&reference.metric);
        let Some((race, summary)) = chosen(story, reference, metric, &setting) else {
            return without(match setting.is_sized() {
                true => "not measured at this size",
                false => "not measured",
            });
        };
        let is_only = story.races.iter().filter(|race| race.holds(&setting)).count() == 1;
        let label = match setting.is_sized() {
            true if is_only => String::new(),
            true => race.label.clone(),
            false => race.size_and_label(),
        };
        let verdict = match race.param("regime").and_then(|regime| regime.as_str()) {
            Some(regime) => ReferenceVerdict::Incomparable(regime.into()),
            None if !metric.is_comparable() => {
                ReferenceVerdict::Incomparable("of another machine".into())
            }
            None => ReferenceVerdict::of(metric, summary.mean, reference.value),
        };
        Self { reference, here: Some((summary, label)), verdict }
    }

    /// Our value with its interval and its place: `4.00 ± 0.12 (1m keys)`.
    pub(super) fn here_words(&self) -> Option<String> {
        let (summary, label) = self.here.as_ref()?;
        let value = summary_words(summary);
        Some(if label.is_empty() { value } else { format!("{value} ({label})") })
    }
}

/// A mean with half of its interval: `4.00 ± 0.12`.
pub(super) fn summary_words(summary: &SampleSummary) -> String {
    let mean = number(summary.mean);
    summary.half_width.map_or_else(|| mean.clone(), |half| format!("{mean} ± {}", number(half)))
}

/// The race that a setting means, with our value.
fn chosen<'s, 'd>(
    story: &'s WorkloadSection<'d>,
    reference: &ReferenceFigure,
    metric: MetricName<'_>,
    setting: &ReferenceSetting<'_>,
) -> Option<(&'s VariantRace<'d>, SampleSummary)> {
    let choice = setting.choice();
    let extent = |race: &VariantRace<'_>| match choice {
        ResultChoice::Largest(param) => race.extent(param),
        ResultChoice::Smallest(param) => race.extent(param).map(|extent| -extent),
        ResultChoice::Best | ResultChoice::Worst => Some(0.0),
    };
    let fits = story.races.iter().filter(|race| race.holds(setting));
    let fits: Vec<_> = fits
        .filter_map(|race| {
            let samples = race.samples(&reference.system, metric, &story.races);
            Some((race, extent(race)?, SampleSummary::of(&samples)?))
        })
        .collect();
    let furthest = fits.iter().map(|(_, extent, _)| *extent).fold(f64::MIN, f64::max);
    let gain = |summary: &SampleSummary| match metric.more_is_better() {
        true => summary.mean,
        false => -summary.mean,
    };
    let fits = fits.into_iter().filter(|(_, extent, _)| *extent == furthest);
    let order = |a: &SampleSummary, b: &SampleSummary| gain(a).total_cmp(&gain(b));
    let found = match choice {
        ResultChoice::Best => fits.max_by(|(.., a), (.., b)| order(a, b)),
        _ => fits.min_by(|(.., a), (.., b)| order(a, b)),
    };
    found.map(|(race, _, summary)| (race, summary))
}

/// A table of the reference figures that were measured here too; `None` if there are none.
pub(super) fn references(story: &WorkloadSection<'_>) -> Option<Markup> {
    let rows = story.references.iter().map(|reference| JudgedReference::new(story, reference));
    let rows: Vec<_> = rows.filter(|row| row.here.is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    Some(html! {
        figure id={ (story.workload) "-papers" } {
            h3 { "Papers and authors beside us" }
            figcaption {
                "Figures of papers were measured by their authors, on other machines and with other \
                 databases: compare ratios, not absolute numbers. Ours are totals as theirs: \
                 sustained, where it was measured."
            }
            (table(&rows))
        }
    })
}

/// The rows of a table of reference figures.
pub(super) fn table(rows: &[JudgedReference<'_>]) -> Markup {
    html! {
        table class="refs wide" {
            thead { tr {
                th class="t" { "system" } th class="t" { "setting" } th class="t" { "figure" }
                th { "theirs" } th { "here" } th class="t" { "verdict" } th class="t" { "source" }
            } }
            tbody {
                @for row in rows {
                    tr {
                        td class="t" { b { (row.reference.system) } }
                        td class="t" { (row.reference.setting) }
                        td class="t" { (MetricName(&row.reference.metric).words()) }
                        td data-l="theirs" { (number(row.reference.value)) }
                        td data-l="here" { (row.here_words().unwrap_or_else(|| "–".into())) }
                        td class="t" data-l="verdict" { (row.verdict.words()) }
                        td class="t" data-l="source" { (row.reference.source) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_papers_within_a_quarter() {
        let of = |metric, ours, theirs| ReferenceVerdict::of(MetricName(metric), ours, theirs);
        assert_eq!(of("ratio to x", 4.5, 5.0), ReferenceVerdict::Reproduced);
        assert_eq!(of("ratio to x", 3.5, 5.0), ReferenceVerdict::Missed);
        assert_eq!(of("ratio to x", 8.0, 5.0), ReferenceVerdict::Better);
        assert_eq!(of("disk ratio to x", 0.02, 0.06), ReferenceVerdict::Better);
        assert_eq!(of("time over x", 4.0, 2.05), ReferenceVerdict::Missed);
    }
}
