//! Reference figures beside the values measured here.

use super::sections::{VariantRace, WorkloadSection, micros_per_op, ratio_to, sustained};
use crate::{BenchResult, ReferenceFigure, variant::sizes_of, words::number};
use maud::{Markup, html};

/// A table of the reference figures that were measured here too; `None` if there are none.
pub(super) fn references(story: &WorkloadSection<'_>) -> Option<Markup> {
    let references = story.references.iter().copied();
    let rows: Vec<_> = references.filter_map(|r| Some((r, ours(story, r)?))).collect();
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
            table class="refs wide" {
                thead { tr {
                    th class="t" { "system" } th class="t" { "setting" } th class="t" { "figure" }
                    th { "theirs" } th { "here" } th class="t" { "source" }
                } }
                tbody {
                    @for (reference, here) in &rows {
                        tr {
                            td class="t" { b { (reference.system) } }
                            td class="t" { (reference.setting) }
                            td class="t" { (metric(&reference.metric)) }
                            td data-l="theirs" { (number(reference.value)) }
                            td data-l="here" { (here) }
                            td class="t" data-l="source" { (reference.source) }
                        }
                    }
                }
            }
        }
    })
}

fn metric(metric: &str) -> String {
    match metric {
        "tps" => "transactions a second".into(),
        "ops_per_s" => "operations a second".into(),
        other => match other.strip_prefix("ratio to ") {
            Some(name) => format!("throughput over {name}"),
            None => other.replace(" us", " µs"),
        },
    }
}

/// The same figure as measured here; `None` if it was not measured. A setting with a size is
/// matched by variants of that size alone; a setting without a size by all variants, each with its
/// own size.
fn ours(story: &WorkloadSection<'_>, reference: &ReferenceFigure) -> Option<String> {
    let setting = reference.setting.as_str();
    let sized = sizes_of(setting).next().is_some();
    let fits = |race: &&VariantRace<'_>| {
        does_the_same(race, setting) && (!sized || race.is_setting(setting))
    };
    let figures: Vec<_> = story
        .races
        .iter()
        .filter(fits)
        .filter_map(|race| Some((race, measured(race, reference)?)))
        .collect();
    if figures.len() > 3 {
        // More than three variants: show their range.
        let values = || figures.iter().map(|(_, value)| *value);
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        return Some(format!("{} to {}", number(low), number(high)));
    }
    let words = figures.iter().map(|(race, value)| {
        let label = match sized {
            true if figures.len() == 1 => String::new(),
            true => race.label.clone(),
            false => race.size_and_label(),
        };
        let value = number(*value);
        if label.is_empty() { value } else { format!("{value} ({label})") }
    });
    let words = words.collect::<Vec<_>>().join("; ");
    (!words.is_empty()).then_some(words)
}

/// Whether the operations and the sync mode of `race` are those of `setting`.
fn does_the_same(race: &VariantRace<'_>, setting: &str) -> bool {
    let is = |name: &str, value: &str| race.param(name).is_some_and(|own| own == value);
    let reads_alone = race.param("reads").and_then(|part| part.as_f64()) == Some(1.0);
    setting.split(", ").all(|words| match words {
        "searches" | "reads" => reads_alone,
        // Here every write has a read before it.
        "inserts" | "writes" => false,
        "durable" => is("sync", "durable"),
        "not synced" | "in memory" => is("sync", "none"),
        _ => true,
    })
}

/// The value measured here for the metric of `reference`; `None` if it was not measured.
fn measured(race: &VariantRace<'_>, reference: &ReferenceFigure) -> Option<f64> {
    let own = race.of(&reference.system)?;
    let over = |of: fn(&BenchResult) -> f64, other: &str| {
        let other = of(race.of(other)?);
        (other > 0.0).then(|| of(own) / other)
    };
    let part = |place: usize| Some(micros_per_op(own)?[place]);
    match reference.metric.as_str() {
        // Reference figures are totals over the whole time.
        "tps" => own.tps.map(|median| sustained(own).unwrap_or(median)),
        "ops_per_s" if own.tps.is_none() => Some(sustained(own).unwrap_or(own.ops_per_s)),
        "read amplification" => own.reads_per_op,
        "write amplification" => own.writes_per_op,
        "execution engine us" => part(0),
        "authenticated structure us" => part(1),
        "key-value store us" => part(2),
        "p50 ms" => Some(own.p50_us? as f64 / 1e3),
        "max ms" => Some(own.max_us? as f64 / 1e3),
        "disk MiB" => Some(own.disk_bytes as f64 / f64::from(1 << 20)),
        other => {
            // A ratio of two systems.
            let after = |words: &str| other.strip_prefix(words);
            if let Some(name) = after("ratio to ") {
                Some(ratio_to(own, race.of(name)?)?.0)
            } else if let Some(name) = after("disk ratio to ") {
                over(|result| result.disk_bytes as f64, name)
            } else if let Some(name) = after("read amplification over ") {
                over(|result| result.reads_per_op.unwrap_or(0.0), name)
            } else if let Some(name) = after("write amplification over ") {
                over(|result| result.writes_per_op.unwrap_or(0.0), name)
            } else if let Some(name) = after("time over ") {
                over(|result| result.seconds, name)
            } else {
                None
            }
        }
    }
}
