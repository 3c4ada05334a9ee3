//! The sections of a page: workloads, their variants, the races of each, and comparisons in words.

use super::metric::{MetricName, ResultCompany, total_rate};
use crate::stats::PairedRatio;
use crate::{
    BenchResult, ReferenceFigure, ReportDocument,
    setting::{ReferenceSetting, is_known_count},
    variant::{WorkloadVariant, differing},
    words::number,
};
use maud::{Markup, html};
use serde_json::{Value, json};

/// The section of one workload: all its variants, of all documents.
pub(super) struct WorkloadSection<'d> {
    pub(super) workload: &'d str,
    /// Params that all variants share, in words.
    pub(super) terms: String,
    pub(super) races: Vec<VariantRace<'d>>,
    /// Reference figures for this workload.
    pub(super) references: Vec<&'d ReferenceFigure>,
}

/// One variant in one document: results that were raced against each other.
pub(super) struct VariantRace<'d> {
    /// The params that identify the variant, in words; empty if there is only one variant.
    pub(super) label: String,
    /// All params that differ between variants, in words.
    pub(super) params: String,
    /// One result a backend: that of the repetition with the median rate.
    pub(super) results: Vec<&'d BenchResult>,
    /// The results of all repetitions.
    all: Vec<&'d BenchResult>,
    variant: WorkloadVariant,
    document: &'d ReportDocument,
}

/// The param that names the figures of a result.
const FIGURE: &str = "figure";

impl<'d> WorkloadSection<'d> {
    /// All sections, in the order of the workloads in the documents.
    pub(super) fn all(documents: &'d [ReportDocument]) -> Vec<Self> {
        let mut stories: Vec<Self> = Vec::new();
        for document in documents {
            for result in &document.report.results {
                let variant = WorkloadVariant::of(result);
                Self::named(&mut stories, &result.workload).add(document, result, variant);
            }
        }
        // Those of a figure stand in its section.
        let references = documents.iter().flat_map(|document| {
            let by_figure = !document.report.figures.is_empty();
            let all = document.report.references.iter();
            all.filter(move |reference| !by_figure || reference.figures.is_empty())
        });
        Self::finish(stories, references)
    }

    /// The sections of one figure of a paper: of the results and reference figures that name it.
    pub(super) fn of_figure(document: &'d ReportDocument, figure: &str) -> Vec<Self> {
        let mut stories: Vec<Self> = Vec::new();
        for result in &document.report.results {
            let mut variant = WorkloadVariant::of(result);
            let label = variant.params.remove(FIGURE);
            let names = label.as_ref().and_then(Value::as_str).unwrap_or_default();
            if names.split(", ").any(|name| name == figure) {
                Self::named(&mut stories, &result.workload).add(document, result, variant);
            }
        }
        let references = document.report.references.iter();
        let of_figure =
            |reference: &&ReferenceFigure| reference.figures.iter().any(|f| f == figure);
        Self::finish(stories, references.filter(of_figure))
    }

    fn named<'s>(stories: &'s mut Vec<Self>, workload: &'d str) -> &'s mut Self {
        let place = stories.iter().position(|story| story.workload == workload);
        let place = place.unwrap_or_else(|| {
            let (terms, races, references) = (String::new(), Vec::new(), Vec::new());
            stories.push(Self { workload, terms, races, references });
            stories.len() - 1
        });
        &mut stories[place]
    }

    fn add(
        &mut self,
        document: &'d ReportDocument,
        result: &'d BenchResult,
        variant: WorkloadVariant,
    ) {
        let same = |race: &&mut VariantRace<'_>| {
            std::ptr::eq(race.document, document) && race.variant == variant
        };
        match self.races.iter_mut().find(same) {
            Some(race) => race.all.push(result),
            None => self.races.push(VariantRace {
                label: String::new(),
                params: String::new(),
                results: Vec::new(),
                all: vec![result],
                variant,
                document,
            }),
        }
    }

    /// Adds the reference figures, and chooses and names what is shown.
    fn finish(
        mut stories: Vec<Self>,
        references: impl Iterator<Item = &'d ReferenceFigure>,
    ) -> Vec<Self> {
        for reference in references {
            // Reference figures of a workload that was not measured are left out.
            let story = stories.iter_mut().find(|story| story.workload == reference.workload);
            if let Some(story) = story
                && !story.references.contains(&reference)
            {
                story.references.push(reference);
            }
        }
        for story in &mut stories {
            story.races.iter_mut().for_each(VariantRace::choose);
            story.name_races();
        }
        stories
    }

    fn name_races(&mut self) {
        let variants: Vec<_> = self.races.iter().map(|race| &race.variant).collect();
        let differing = differing(&variants);
        if let Some(first) = variants.first() {
            let names = first.params.keys().map(String::as_str);
            let shared: Vec<_> = names.filter(|name| !differing.contains(name)).collect();
            self.terms = first.words(&shared);
        }
        let distinct = |names: &[&str]| {
            let labels: Vec<_> = variants.iter().map(|variant| variant.words(names)).collect();
            let unlike = |(n, label): (usize, &String)| !labels[..n].contains(label);
            labels.iter().enumerate().all(unlike).then_some(labels)
        };
        // The smallest set of params that identifies each variant, counts first.
        let count = (0..=differing.len()).find(|count| distinct(&differing[..*count]).is_some());
        let mut names = differing[..count.unwrap_or(0)].to_vec();
        for name in names.clone() {
            let others: Vec<_> = names.iter().copied().filter(|other| *other != name).collect();
            if !others.is_empty() && distinct(&others).is_some() {
                names = others;
            }
        }
        let labels = count.and_then(|_| distinct(&names));
        let wordy: Vec<_> = variants.iter().map(|variant| variant.words(&differing)).collect();
        let labels = labels.unwrap_or_else(|| {
            let documents = self.races.iter().map(|race| &race.document.name);
            let both = wordy.iter().zip(documents).map(|(words, document)| match words.as_str() {
                "" => document.clone(),
                words => format!("{words}; {document}"),
            });
            both.collect()
        });
        for ((race, label), params) in self.races.iter_mut().zip(labels).zip(wordy) {
            (race.label, race.params) = (label, params);
        }
    }

    /// The heading.
    pub(super) fn title(&self) -> String {
        match self.workload {
            "state" => "State stores alone".into(),
            "adversary" => "State stores under attack".into(),
            "transfers" => "Transfers of ether".into(),
            "erc20" => "Token transfers".into(),
            "uniswap" => "Swaps on Uniswap".into(),
            "new-payload" => "Blocks through the Engine API".into(),
            "smallbank" => "SmallBank".into(),
            "kvstore" => "Key-value store (YCSB)".into(),
            "provenance" => "Provenance queries".into(),
            "witness" => "Blocks without a state".into(),
            "sync" => "State synchronisation".into(),
            "trees" => "Search trees in memory".into(),
            "locality" => "Merkle trees in flat files".into(),
            "crypto" => "Operations on curves".into(),
            "replay" => "Blocks replayed".into(),
            other => other.into(),
        }
    }

    /// A description of the workload.
    pub(super) fn about(&self) -> &'static str {
        match self.workload {
            "state" => {
                "Random pairs, a read and then a write of the same key, without a chain around \
                 them: the stand-alone workload of the LVMT paper."
            }
            "adversary" => {
                "Writes with which an attacker tries to slow a node down. Next to each attack runs \
                 a baseline: the same number of plain pairs of a read and a write on the plain \
                 state, in turns with it."
            }
            "transfers" => {
                "Signed transfers of ether to random receivers, through the whole import of blocks."
            }
            "erc20" => "Signed token transfers (ERC-20), through the whole import of blocks.",
            "uniswap" => {
                "Swaps through a Uniswap v2 router, in both directions, through the whole import of \
                 blocks."
            }
            "new-payload" => {
                "Blocks of transfers, tokens and swaps, or mainnet's own, one by one. Each \
                 engine_newPayload counts as one latency; throughput includes making the block durable."
            }
            "smallbank" => "Transfers between accounts that contracts keep, as in Blockbench.",
            "kvstore" => "Reads and writes of a contract's storage, as YCSB makes them.",
            "provenance" => "All values that a key had in the latest blocks, with proofs.",
            "witness" => {
                "What a verifier without a state needs to execute a block and to compute the root after \
                 it."
            }
            "sync" => "A new peer fetches the state from others, some of which may lie.",
            "replay" => {
                "Blocks executed, committed and checked on a fresh store of each backend. Each block \
                 counts as one latency."
            }
            _ => "",
        }
    }
}

impl<'d> VariantRace<'d> {
    /// The heading above the rows; empty if there is only one variant.
    pub(super) fn heading(&self) -> Markup {
        html! { @if !self.label.is_empty() { h4 title=(self.params) { (self.label) } } }
    }

    /// Chooses the result of each backend that is shown.
    fn choose(&mut self) {
        let mut names: Vec<&str> = Vec::new();
        for result in &self.all {
            if !names.contains(&result.backend.as_str()) {
                names.push(&result.backend);
            }
        }
        let median = |name: &&str| {
            let own = self.all.iter().copied().filter(|result| result.backend == **name);
            let mut own: Vec<_> = own.collect();
            own.sort_by(|a, b| total_rate(a).total_cmp(&total_rate(b)));
            own.get(own.len().saturating_sub(1) / 2).copied()
        };
        self.results = names.iter().filter_map(median).collect();
    }

    /// The values of a metric for `backend`, one a repetition. `siblings` are all races of the
    /// workload.
    pub(super) fn samples(
        &self,
        backend: &str,
        metric: MetricName<'_>,
        siblings: &[Self],
    ) -> Vec<f64> {
        let value = |own: &&'d BenchResult| {
            let same = |result: &&&BenchResult, name: &str| {
                result.backend == name && result.repetition == own.repetition
            };
            let of = |name: &str| self.all.iter().find(|result| same(result, name)).copied();
            let with = |param: &str, value: u64| {
                let wanted = self.variant.with(param, json!(value));
                let fits = |race: &&Self| {
                    std::ptr::eq(race.document, self.document) && race.variant.is_like(&wanted)
                };
                let race = siblings.iter().find(fits)?;
                race.all.iter().find(|result| same(result, backend)).copied()
            };
            metric.value(own, &ResultCompany { of: &of, with: &with })
        };
        self.all.iter().filter(|result| result.backend == backend).filter_map(value).collect()
    }

    /// The result of `backend`.
    pub(super) fn of(&self, backend: &str) -> Option<&'d BenchResult> {
        self.results.iter().copied().find(|result| result.backend == backend)
    }

    /// Whether `setting` holds for this variant.
    pub(super) fn holds(&self, setting: &ReferenceSetting<'_>) -> bool {
        setting.holds(&self.variant)
    }

    /// Whether `words` are a count that this variant has: `5m receivers` and accounts 5m.
    pub(super) fn is_known_count(&self, words: &str) -> bool {
        is_known_count(words, &self.variant)
    }

    /// The variant.
    pub(super) const fn variant(&self) -> &WorkloadVariant {
        &self.variant
    }

    /// The value of a param, or the size if `param` is empty; `None` for `fresh` and `real` keys.
    pub(super) fn extent(&self, param: &str) -> Option<f64> {
        match param {
            "" if self.param("keys").is_some_and(|keys| keys.is_string()) => None,
            "" if self.size() == 0 => self.param("height")?.as_f64(),
            "" => Some(self.size() as f64),
            _ => self.param(param)?.as_f64(),
        }
    }

    /// The size of the variant, and the other params that identify it, in words.
    pub(super) fn size_and_label(&self) -> String {
        match self.variant.size_words() {
            size if size.is_empty() || self.label.contains(&size) => self.label.clone(),
            size if self.label.is_empty() => size,
            size => format!("{size}, {}", self.label),
        }
    }

    /// The value of a param.
    pub(super) fn param(&self, name: &str) -> Option<&Value> {
        self.variant.params.get(name)
    }

    /// The document that has it.
    pub(super) const fn document(&self) -> &'d ReportDocument {
        self.document
    }

    /// Whether a result has a rate: counts have none.
    pub(super) fn has_rates(&self) -> bool {
        self.results.iter().any(|result| rate(result) > 0.0)
    }

    /// Whether the document is complete.
    pub(super) const fn is_complete(&self) -> bool {
        self.document.report.complete
    }

    /// The size of the variant.
    pub(super) fn size(&self) -> u64 {
        self.variant.size()
    }

    /// The rate of `result` compared with `raw` and `mpt-archive`:
    /// `49 % of raw, 5.5 times mpt-archive`. If both are missing, with the first result.
    /// `with_spread` adds the interquartile range of the slices' ratios.
    pub(super) fn standing(&self, result: &BenchResult, with_spread: bool) -> String {
        self.beside_others(result, |other| {
            let (factor, spread) = ratio_to(result, other)?;
            let words = ratio(factor, &other.backend);
            Some(match spread.filter(|_| with_spread) {
                Some(spread) => format!("{words} (spread {:.0} %)", spread * 100.0),
                None => words,
            })
        })
    }

    /// The same comparison of the sustained rates; empty if they were not measured.
    pub(super) fn sustained_standing(&self, result: &BenchResult) -> String {
        self.beside_others(result, |other| {
            let factor = sustained(result)? / sustained(other)?;
            let known = factor.is_finite() && factor > 0.0;
            known.then(|| ratio(factor, &other.backend))
        })
    }

    fn beside_others(
        &self,
        result: &BenchResult,
        beside: impl Fn(&BenchResult) -> Option<String>,
    ) -> String {
        let mut others: Vec<_> =
            ["raw", "mpt-archive"].iter().filter_map(|name| self.of(name)).collect();
        if others.is_empty() {
            others.extend(self.results.first());
        }
        let others = others.into_iter().filter(|other| other.backend != result.backend);
        others.filter_map(beside).collect::<Vec<_>>().join(", ")
    }
}

/// The rate of `result` divided by the rate of `other`, and its spread: the median of the ratios of
/// slices that ran next to each other, as the command prints it. Without such slices (the slices of
/// a replay are its blocks), the ratio of the rates.
pub(super) fn ratio_to(result: &BenchResult, other: &BenchResult) -> Option<(f64, Option<f64>)> {
    let is_race = result.workload != "replay" && !result.slices.is_empty();
    let (factor, spread) = if is_race && result.slices.len() == other.slices.len() {
        let rates = |of: &BenchResult| of.slices.clone().into_iter().map(|s| s.ops_per_s);
        let found = PairedRatio::of(rates(result), rates(other));
        (found.median, Some(found.spread()))
    } else {
        (rate(result) / rate(other), None)
    };
    (factor.is_finite() && factor > 0.0).then_some((factor, spread))
}

/// Transactions per second if the result has them, otherwise operations per second.
pub(super) fn rate(result: &BenchResult) -> f64 {
    result.tps.unwrap_or(result.ops_per_s)
}

/// The sustained rate, in the unit of [`rate`].
pub(super) fn sustained(result: &BenchResult) -> Option<f64> {
    let scale = rate(result) / result.ops_per_s;
    result.sustained_ops_per_s.map(|rate| rate * scale).filter(|rate| rate.is_finite())
}

/// The unit of [`rate`].
pub(super) fn unit(result: &BenchResult) -> &'static str {
    match result.workload.as_str() {
        "provenance" => "queries",
        _ if result.tps.is_some() => "transactions",
        _ => "operations",
    }
}

/// Microseconds per operation or transaction: execution engine, authenticated structure, key-value
/// store, other. `None` if the result has no breakdown.
pub(super) fn micros_per_op(result: &BenchResult) -> Option<[f64; 4]> {
    let parts = result.breakdown?;
    let parts = [parts.execution, parts.authentication, parts.storage_io, parts.other];
    // The number of transactions, if the rate counts transactions.
    let count = result.ops as f64 * rate(result) / result.ops_per_s;
    let known = count > 0.0 && parts.iter().sum::<f64>() > 0.0;
    known.then(|| parts.map(|part| part * 1e6 / count))
}

/// `49 % of raw`, `5.5 times mpt`, `as fast as mpt`.
pub(super) fn ratio(factor: f64, other: &str) -> String {
    match factor {
        _ if (0.99..1.01).contains(&factor) => format!("as fast as {other}"),
        _ if factor < 0.995 => format!("{} % of {other}", whole_or_tenths(factor * 100.0)),
        _ if factor >= 9.95 => format!("{factor:.0} times {other}"),
        _ if factor >= 2.0 => format!("{factor:.1} times {other}"),
        _ => format!("{} times {other}", number(factor)),
    }
}

fn whole_or_tenths(percent: f64) -> String {
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}
