//! Documents as one self-contained HTML page: plots that a person would rather look at than read, and
//! below them what is needed to do it again.
//!
//! ```text
//!  documents --story--> workloads, variants, races --> figures (SVG rows, lines, tables) --> page
//! ```
//!
//! There is no script on the page, and nothing that is fetched. Every mark carries its exact number
//! as a title. A figure whose fields are absent is left out.

mod attacks;
mod bars;
mod figures;
mod latency;
mod lines;
mod palette;
mod raw;
mod references;
mod scale;
mod story;
mod throughput;

use super::{Document, words::number};
use bars::class_of;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::{collections::BTreeSet, fmt::Write};
use story::{Race, Story, rate, sustained, unit};

/// A figure of a workload, if there is what it needs.
type Figure = fn(&Story<'_>) -> Option<Markup>;

/// What a section can show, in order: plots, then the table of what others state.
const FIGURES: [Figure; 9] = [
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
pub fn page(title: &str, documents: &[Document]) -> String {
    let stories = Story::all(documents);
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
                        p class="note" role="note" { "Nothing was measured: these reports hold figures of others alone." }
                    }
                    @if stories.len() > 1 { (contents(&stories)) }
                }
                main {
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

fn section(story: &Story<'_>) -> Markup {
    html! {
        section id=(story.workload) {
            h2 { (story.title()) }
            p { (story.about()) }
            @if !story.terms.is_empty() { p class="terms" { "Equal for all: " (story.terms) "." } }
            @for figure in FIGURES.iter().filter_map(|figure| figure(story)) { (figure) }
        }
    }
}

/// The first thing to know of each workload: the fastest store beside the ceiling, on its largest
/// variant.
fn lede(stories: &[Story<'_>]) -> Markup {
    let lines: Vec<_> = stories.iter().filter_map(finding).collect();
    html! { @if !lines.is_empty() { div class="lede" { ul { @for line in lines { li { (line) } } } } } }
}

fn finding(story: &Story<'_>) -> Option<Markup> {
    if let Some(worst) = attacks::worst(story) {
        return Some(worst);
    }
    // Of equally large ones the first.
    let race: &Race<'_> = story.races.iter().rev().max_by_key(|race| race.size())?;
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

/// What must not be missed: runs that were stopped, checks that failed.
fn warnings(documents: &[Document]) -> Markup {
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

fn contents(stories: &[Story<'_>]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                @for story in stories { li { a href={ "#" (story.workload) } { (story.title()) } } }
                li { a href="#method" { "How this was measured" } }
                li { a href="#numbers" { "Raw numbers" } }
            }
        }
    }
}

fn method(documents: &[Document]) -> Markup {
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

/// The pattern of bars that are not ours.
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

/// Style rules that give each name its colour.
fn colours(documents: &[Document]) -> String {
    let reports = || documents.iter().map(|document| &document.report);
    let backends = reports().flat_map(|report| report.results.iter().map(|r| r.backend.as_str()));
    let systems = reports().flat_map(|report| report.references.iter().map(|r| r.system.as_str()));
    let names: BTreeSet<_> = backends.chain(systems).collect();
    let (mut light, mut dark) = (String::from(".b-other{--c:var(--soft)}"), String::new());
    for name in names {
        let colour = palette::colour(name);
        for (rules, hex) in [(&mut light, colour.light), (&mut dark, colour.dark)] {
            let class = class_of(name);
            // Writing to a string cannot fail.
            let _ = match colour.strength {
                100 => write!(rules, ".{class}{{--c:{hex}}}"),
                strength => {
                    write!(rules, ".{class}{{--c:color-mix(in srgb,{hex} {strength}%,var(--ink))}}")
                }
            };
        }
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}
