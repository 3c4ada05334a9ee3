//! Writes documents as one self-contained HTML page: plots, and below them everything needed to
//! repeat the measurement.
//!
//! ```text
//!  documents --> sections (workload, variants, races) --> figures (SVG, tables) --> page
//! ```
//!
//! Documents that name the figures of a paper have a section for each figure before these.
//!
//! The page has no script and loads nothing. Every mark has its exact value as a title. A figure
//! whose fields are absent is left out.

mod attacks;
mod bars;
mod chart;
mod figure;
mod figures;
mod latency;
mod lines;
mod metric;
mod palette;
mod picture;
mod raw;
mod references;
mod scale;
mod sections;
mod throughput;

pub use picture::picture;

use super::{BenchReport, ReportDocument, words::number};
use bars::class_of;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sections::{VariantRace, WorkloadSection, rate, sustained, unit};
use std::{collections::BTreeSet, fmt::Write};

/// Draws a figure of a workload; `None` if its fields are absent.
type FigureFn = fn(&WorkloadSection<'_>) -> Option<Markup>;

/// The figures of a section, in order: plots, then the table of reference figures.
const FIGURES: [FigureFn; 9] = [
    attacks::attacks,
    throughput::throughput,
    figures::breakdown,
    figures::amplification,
    latency::latency,
    lines::over_time,
    figures::space,
    figures::proofs,
    references::references,
];

/// Documents as one self-contained HTML page called `title`.
pub fn page(title: &str, documents: &[ReportDocument]) -> String {
    let stories = WorkloadSection::all(documents);
    let by_figure = documents.iter().any(|document| !document.report.figures.is_empty());
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) (PreEscaped(colours(documents))) }
            }
            body {
                (hatch())
                header {
                    p class="kicker" { "retrie · state stores measured" }
                    h1 { (title) }
                    (lede(&stories))
                    (warnings(documents))
                    @if stories.is_empty() {
                        p class="note" role="note" { "Nothing was measured: these reports hold reference figures only." }
                    }
                    @if stories.len() > 1 || by_figure { (contents(&stories, documents)) }
                }
                main {
                    (figure::figures(documents))
                    @for story in &stories { (section(story)) }
                    (method(documents))
                    section id="numbers" {
                        h2 { "Raw numbers" }
                        p class="soft" { "The reports themselves are embedded in this page as JSON." }
                        (raw::table(&stories))
                    }
                }
                footer class="soft" { p { "Made by retrie. Compare ratios within one run, not absolute numbers across machines." } }
                @for document in documents { (raw::embedded(document)) }
            }
        }
    };
    markup.into_string()
}

/// The verdict about each figure of a paper that `report` has measured: name, and one line that says
/// which of the paper's statements were reproduced, which were missed, and by how much.
pub fn figure_verdicts(report: &BenchReport) -> Vec<(String, String)> {
    figure::verdicts(report)
}

fn section(story: &WorkloadSection<'_>) -> Markup {
    html! {
        section id=(story.workload) {
            h2 { (story.title()) }
            p { (story.about()) }
            @if !story.terms.is_empty() { p class="terms" { "Equal for all: " (story.terms) "." } }
            @for figure in FIGURES.iter().filter_map(|figure| figure(story)) { (figure) }
        }
    }
}

/// The main result of each workload: the fastest store compared with the yardstick, on the largest
/// variant.
fn lede(stories: &[WorkloadSection<'_>]) -> Markup {
    let lines: Vec<_> = stories.iter().filter_map(finding).collect();
    html! { @if !lines.is_empty() { div class="lede" { ul { @for line in lines { li { (line) } } } } } }
}

fn finding(story: &WorkloadSection<'_>) -> Option<Markup> {
    if let Some(worst) = attacks::worst(story) {
        return Some(worst);
    }
    // The first of equally large variants.
    let race: &VariantRace<'_> = story.races.iter().rev().max_by_key(|race| race.size())?;
    let stores = race.results.iter().filter(|result| result.backend != "raw" && rate(result) > 0.0);
    let best = stores.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let (standing, lasting) = (race.standing(best, false), race.sustained_standing(best));
    let place = if race.label.is_empty() { String::new() } else { format!(" ({})", race.label) };
    Some(html! {
        b { (story.title()) } (place) ": " (best.backend) " does " (number(rate(best))) " " (unit(best))
        " a second in the median" @if !standing.is_empty() { ", " (standing) } "."
        @if let Some(rate) = sustained(best) {
            " Sustained it does " (number(rate))
            @if !lasting.is_empty() { ", " (lasting) } "."
        }
    })
}

/// Warnings: commands that were stopped, checks that failed.
fn warnings(documents: &[ReportDocument]) -> Markup {
    html! {
        @for document in documents {
            @let of = if documents.len() > 1 { format!("{}: ", document.name) } else { String::new() };
            @if !document.report.complete {
                p class="warn" role="note" { "Stopped early, so not all was measured: " (document.name) }
            }
            @for note in &document.report.notes {
                p class="note" role="note" { (of) (note) }
            }
            @for failure in &document.failures {
                p class="warn" role="note" { "A check failed. " (of) (failure) }
            }
        }
    }
}

fn contents(stories: &[WorkloadSection<'_>], documents: &[ReportDocument]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                (figure::links(documents))
                @for story in stories { li { a href={ "#" (story.workload) } { (story.title()) } } }
                li { a href="#method" { "How this was measured" } }
                li { a href="#numbers" { "Raw numbers" } }
            }
        }
    }
}

fn method(documents: &[ReportDocument]) -> Markup {
    html! {
        section id="method" {
            h2 { "How this was measured" }
            p { "Run the same again:" }
            @for document in documents {
                pre { code { (document.report.command) } }
                dl {
                    dt { "Machine" } dd { (document.report.machine) }
                    dt { "Version" } dd { "retrie " (document.report.version) }
                    @if document.name != document.report.command { dt { "File" } dd { (document.name) } }
                    dt { "Run" } dd { @if document.report.complete { "complete" } @else { "stopped early" } }
                }
            }
        }
    }
}

/// The fill pattern of bars of reference figures.
fn hatch() -> Markup {
    html! {
        svg class="defs" aria-hidden="true" {
            defs {
                pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    line x1="0" y1="0" x2="0" y2="6" stroke="var(--soft)" stroke-width="2" {}
                }
            }
        }
    }
}

/// CSS rules with the colour of each backend.
fn colours(documents: &[ReportDocument]) -> String {
    let reports = || documents.iter().map(|document| &document.report);
    let backends = reports().flat_map(|report| report.results.iter().map(|r| r.backend.as_str()));
    let systems = reports().flat_map(|report| report.references.iter().map(|r| r.system.as_str()));
    // A line over a flag of a backend has the backend's own name.
    let names = backends.chain(systems).flat_map(|name| [Some(name), name.split(':').next()]);
    let names: BTreeSet<_> = names.flatten().collect();
    let (mut light, mut dark) = (String::from(".b-other{--c:var(--soft)}"), String::new());
    for (name, style) in palette::styles(&names) {
        let class = class_of(name);
        for (rules, hex) in [(&mut light, style.light), (&mut dark, style.dark)] {
            // Writing to a string cannot fail.
            let _ = match style.strength {
                100 => write!(rules, ".{class}{{--c:{hex}}}"),
                strength => {
                    write!(rules, ".{class}{{--c:color-mix(in srgb,{hex} {strength}%,var(--ink))}}")
                }
            };
        }
        let _ = write!(light, ".{class}{{--m:\"{}\"}}", style.marker);
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}
