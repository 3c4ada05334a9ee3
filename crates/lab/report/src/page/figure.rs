//! A section for each figure of a paper: our curves, the values that the paper states, a verdict in
//! one line, and the command.

use super::{
    chart::{ChartLine, ChartMark, ChartPoint, LineChart},
    metric::MetricName,
    references::{JudgedReference, ReferenceVerdict, summary_words, table},
    scale::AxisScale,
    sections::{VariantRace, WorkloadSection},
};
use crate::{
    BenchReport, FigureOutline, FigurePlot, PlotAxis, ReportDocument,
    setting::ReferenceSetting,
    stats::SampleSummary,
    variant::differing,
    words::{number, short_count, tick},
};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// A figure with its measurements.
pub(super) struct FigureSection<'d> {
    outline: &'d FigureOutline,
    document: &'d ReportDocument,
    stories: Vec<WorkloadSection<'d>>,
    /// The paper's statements about it, with our values.
    judged: Vec<JudgedReference<'d>>,
}

/// A factor between the ends of an axis from which on it is logarithmic.
const LOGARITHMIC: f64 = 30.0;

impl<'d> FigureSection<'d> {
    /// The figures of a document, in the paper's order.
    pub(super) fn all(document: &'d ReportDocument) -> Vec<Self> {
        let section = |outline: &'d FigureOutline| {
            let stories = WorkloadSection::of_figure(document, &outline.name);
            let of_figure = document
                .report
                .references
                .iter()
                .filter(|reference| reference.figures.contains(&outline.name));
            let judged = of_figure.map(|reference| {
                let story = stories.iter().find(|story| story.workload == reference.workload);
                match story {
                    Some(story) => JudgedReference::new(story, reference),
                    None => JudgedReference {
                        reference,
                        here: None,
                        verdict: ReferenceVerdict::Incomparable("not measured".into()),
                    },
                }
            });
            let judged = judged.collect();
            Self { outline, document, stories, judged }
        };
        document.report.figures.iter().map(section).collect()
    }

    fn is_measured(&self) -> bool {
        !self.stories.is_empty()
    }

    /// The verdict in one line.
    pub(super) fn verdict(&self) -> String {
        if let Some(reason) = &self.outline.omission {
            return format!("not run: {reason}.");
        }
        if !self.is_measured() {
            return "not run.".into();
        }
        let of = |verdict: &ReferenceVerdict| -> Vec<&JudgedReference<'_>> {
            self.judged.iter().filter(|judged| judged.verdict == *verdict).collect()
        };
        let missed = of(&ReferenceVerdict::Missed);
        let (better, reproduced) =
            (of(&ReferenceVerdict::Better), of(&ReferenceVerdict::Reproduced));
        let judged = missed.len() + better.len() + reproduced.len();
        if judged == 0 {
            let reason = self.judged.iter().find_map(|judged| match &judged.verdict {
                ReferenceVerdict::Incomparable(why) => Some(why.as_str()),
                _ => None,
            });
            return match reason {
                Some(why) => format!("not comparable: {why}."),
                None => "the paper states no value of it in its text.".into(),
            };
        }
        let list = |all: &[&JudgedReference<'_>]| {
            all.iter().map(|judged| statement(judged)).collect::<Vec<_>>().join("; ")
        };
        let parts = [("missed", &missed), ("better", &better), ("reproduced", &reproduced)];
        let parts = parts.into_iter().filter(|(_, all)| !all.is_empty());
        let parts: Vec<_> = parts.map(|(word, all)| format!("{word}: {}", list(all))).collect();
        format!("{}.", parts.join(". "))
    }

    /// The name, with that of the paper.
    fn title(&self) -> String {
        format!(
            "{} {}",
            self.document.report.paper.as_deref().unwrap_or_default(),
            self.outline.name
        )
        .trim()
        .to_owned()
    }

    /// The anchor of the section. `number` is that of its document.
    fn id(&self, number: usize) -> String {
        let letters = self.outline.name.chars().filter(char::is_ascii_alphanumeric);
        format!("paper-{number}-{}", letters.collect::<String>().to_lowercase())
    }

    fn html(&self, number: usize) -> Markup {
        let outline = self.outline;
        html! {
            section id=(self.id(number)) data-figure=(outline.name) {
                h2 { (self.title()) }
                p { (outline.caption) "." }
                // Only a paper states what could be reproduced.
                @if self.document.report.paper.is_some() {
                    p class="verdict" { (capital(&self.verdict())) }
                }
                @for command in &outline.commands { pre { code { (command) } } }
                @for story in &self.stories {
                    @if self.stories.len() > 1 { h3 { (story.title()) } }
                    @if !story.terms.is_empty() { p class="terms" { "Equal for all: " (story.terms) "." } }
                    @for plot in &outline.plots { (self.plot(story, plot)) }
                    (values(story, outline))
                }
                @if !self.judged.is_empty() {
                    h3 { "What the paper states" }
                    (table(&self.judged))
                }
            }
        }
    }

    fn plot(&self, story: &WorkloadSection<'_>, plot: &FigurePlot) -> Markup {
        let Some(axis) = &plot.x else { return html! {} };
        let charts = plot.y.iter().flat_map(|metric| charts(story, axis, MetricName(metric)));
        let charts: Vec<_> = charts.collect();
        html! {
            @if !charts.is_empty() {
                figure {
                    figcaption {
                        "Along the bottom: " (axis.unit) ". Bars are 95 % intervals over repetitions; a \
                         cross, or a dashed line, is a value that the paper states."
                    }
                    div class="panels" { @for chart in &charts { (chart.html()) } }
                }
            }
        }
    }
}

/// The sections of all figures, and a list of those without an experiment.
pub(super) fn figures(documents: &[ReportDocument]) -> Markup {
    html! {
        @for (number, document) in documents.iter().enumerate() {
            @let all = FigureSection::all(document);
            @for section in all.iter().filter(|section| section.is_measured()) { (section.html(number)) }
            @let (rest, skipped) = unmeasured(&all);
            @if !rest.is_empty() || !skipped.is_empty() {
                section id={ "paper-" (number) "-rest" } {
                    h2 { (document.report.paper.as_deref().unwrap_or_default()) " figures without a measurement" }
                    dl {
                        @for section in skipped {
                            dt { (section.outline.name) } dd { (section.outline.caption) ": not run here." }
                        }
                        @for section in rest {
                            dt { (section.outline.name) }
                            dd { (section.outline.caption) ": " (section.verdict()) }
                        }
                    }
                }
            }
        }
    }
}

/// The figures with a reason, and those that were only left out of this run.
fn unmeasured<'s, 'd>(
    all: &'s [FigureSection<'d>],
) -> (Vec<&'s FigureSection<'d>>, Vec<&'s FigureSection<'d>>) {
    all.iter()
        .filter(|section| !section.is_measured())
        .partition(|section| section.outline.omission.is_some())
}

/// Links to the sections.
pub(super) fn links(documents: &[ReportDocument]) -> Markup {
    html! {
        @for (number, document) in documents.iter().enumerate() {
            @for section in FigureSection::all(document).iter().filter(|section| section.is_measured()) {
                li { a href={ "#" (section.id(number)) } { (section.title()) } }
            }
        }
    }
}

/// The verdict about each figure of a report, by name: for its reader at the end of the run.
pub(super) fn verdicts(report: &BenchReport) -> Vec<(String, String)> {
    let document = ReportDocument::from(report);
    let all = FigureSection::all(&document);
    let measured = all.iter().filter(|section| section.is_measured());
    measured.map(|section| (section.outline.name.clone(), section.verdict())).collect()
}

/// `lvmt, throughput over mpt-archive: 3.50, the paper 5.00 (at least)`.
fn statement(judged: &JudgedReference<'_>) -> String {
    let reference = judged.reference;
    format!(
        "{}, {}: {}, the paper {} ({})",
        reference.system,
        MetricName(&reference.metric).words(),
        judged.here_words().unwrap_or_default(),
        number(reference.value),
        reference.setting
    )
}

/// The value of a result along an axis, and the name of its line: a param, or a flag in the name of
/// a backend.
fn abscissa<'r>(
    race: &VariantRace<'_>,
    backend: &'r str,
    axis: &PlotAxis,
) -> Option<(f64, &'r str)> {
    if let Some(value) = race.param(&axis.param) {
        return Some((value.as_f64()?, backend));
    }
    let (base, flags) = backend.split_once(':')?;
    let mut flags = flags.split(':').filter_map(|flag| flag.split_once('='));
    let (_, value) = flags.find(|(name, _)| *name == axis.param)?;
    Some((value.parse().ok()?, base))
}

/// The charts of one metric: one for each set of the other params.
fn charts<'s>(
    story: &'s WorkloadSection<'_>,
    axis: &PlotAxis,
    metric: MetricName<'_>,
) -> Vec<LineChart<'s>> {
    let variants: Vec<_> = story.races.iter().map(VariantRace::variant).collect();
    let mut others = differing(&variants);
    others.retain(|name| *name != axis.param);
    let mut panels: BTreeMap<String, BTreeMap<&str, Vec<ChartPoint>>> = BTreeMap::new();
    for race in &story.races {
        let label = race.variant().words(&others);
        for result in &race.results {
            let Some((x, name)) = abscissa(race, &result.backend, axis) else { continue };
            let samples = race.samples(&result.backend, metric, &story.races);
            let Some(summary) = SampleSummary::of(&samples) else { continue };
            let at = short_count_of(x);
            let title = format!("{name}, {at} {}: {}", axis.unit, summary_words(&summary));
            let interval =
                summary.half_width.map(|half| (summary.mean - half, summary.mean + half));
            let point = ChartPoint { x, y: summary.mean, interval, title };
            panels.entry(label.clone()).or_default().entry(name).or_default().push(point);
        }
    }
    // A single point is in the table.
    panels.retain(|_, lines| {
        let xs = lines.values().flatten().map(|point| point.x);
        let (low, high) = xs.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        low < high
    });
    let chart = |(label, lines): (String, BTreeMap<&'s str, Vec<ChartPoint>>)| {
        let lines: Vec<_> = lines
            .into_iter()
            .map(|(name, mut points)| {
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                ChartLine { name, points }
            })
            .collect();
        let title = match label.as_str() {
            "" => capital(&metric.words()),
            label => format!("{} ({label})", capital(&metric.words())),
        };
        let marks = marks(story, axis, metric, &lines);
        let points = || lines.iter().flat_map(|line| &line.points);
        let x = scale_of(points().map(|point| point.x));
        let highs = points().map(|point| point.interval.map_or(point.y, |(_, high)| high));
        let y = scale_of(highs.chain(marks.iter().map(|mark| mark.y)));
        LineChart { title, x, y, lines, marks }
    };
    panels.into_iter().map(chart).collect()
}

/// The values that the paper states for the systems of a chart, in its metric.
fn marks(
    story: &WorkloadSection<'_>,
    axis: &PlotAxis,
    metric: MetricName<'_>,
    lines: &[ChartLine<'_>],
) -> Vec<ChartMark> {
    let variants: Vec<_> = story.races.iter().map(VariantRace::variant).collect();
    let stated = story.references.iter().filter(|reference| {
        reference.metric == metric.0 && lines.iter().any(|line| line.name == reference.system)
    });
    let mark = |reference: &&crate::ReferenceFigure| {
        let setting = ReferenceSetting::parse(&reference.setting)?;
        let x = setting.number_of(&axis.param, &variants);
        // A value at a place that was not measured has none on this axis.
        if setting.is_sized() && x.is_none() {
            return None;
        }
        let title = format!(
            "{}, {}: {} ({})",
            reference.system,
            reference.setting,
            number(reference.value),
            reference.source
        );
        Some(ChartMark { name: reference.system.clone(), x, y: reference.value, title })
    };
    stated.filter_map(mark).collect()
}

/// From 0, or logarithmic if the values lie far apart.
fn scale_of(values: impl Iterator<Item = f64> + Clone) -> AxisScale {
    let positive = values.clone().filter(|value| *value > 0.0);
    let (low, high) =
        positive.fold((f64::MAX, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    if high / low >= LOGARITHMIC { AxisScale::log(values) } else { AxisScale::round(values) }
}

/// A table of all values: a row for each variant and backend, a column for each metric.
fn values(story: &WorkloadSection<'_>, outline: &FigureOutline) -> Markup {
    let mut metrics: Vec<&str> = Vec::new();
    for metric in outline.plots.iter().flat_map(|plot| &plot.y) {
        if !metrics.contains(&metric.as_str()) {
            metrics.push(metric);
        }
    }
    let mut rows = Vec::new();
    for race in &story.races {
        for result in &race.results {
            let cell = |metric: &&str| {
                SampleSummary::of(&race.samples(&result.backend, MetricName(metric), &story.races))
            };
            let cells: Vec<_> = metrics.iter().map(cell).collect();
            if cells.iter().any(Option::is_some) {
                rows.push((race, &result.backend, cells));
            }
        }
    }
    let repeated = rows.iter().flat_map(|(.., cells)| cells).flatten().any(|cell| cell.count > 1);
    html! {
        @if !rows.is_empty() {
            details open[rows.len() <= 24] {
                summary { "Values" @if repeated { ": mean and 95 % interval; in brackets the median and the number of repetitions" } }
                div class="scroll" tabindex="0" {
                    table {
                        thead { tr {
                            th class="t" { "variant" } th class="t" { "backend" }
                            @for metric in &metrics { th { (MetricName(metric).words()) } }
                        } }
                        tbody {
                            @for (race, backend, cells) in &rows {
                                tr {
                                    td class="t" { (race.size_and_label()) } td class="t" { (backend) }
                                    @for cell in cells { td { @if let Some(cell) = cell { (cell_words(cell)) } } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell_words(cell: &SampleSummary) -> String {
    let value = summary_words(cell);
    match cell.count {
        1 => value,
        count => format!("{value} ({}, {count})", number(cell.median)),
    }
}

fn short_count_of(value: f64) -> String {
    if value.fract() == 0.0 && value >= 0.0 { short_count(value as u64) } else { tick(value) }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
