//! Progress of long work: a bar on a terminal, plain lines otherwise.

use crate::output::grouped;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_bench::race::{RaceStep, TurnSummary};
use retrie_pipeline::report::ImportReport;
use retrie_telemetry::Metrics;
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Interval between plain lines.
pub(crate) const LINE_EVERY: Duration = Duration::from_secs(5);
/// Interval between updates of the bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Shows the progress of an import.
#[derive(Debug)]
pub(crate) struct ImportProgress {
    bar: Option<ProgressBar>,
    total: Option<u64>,
    started: Instant,
    shown: Instant,
}

impl ImportProgress {
    /// Progress over `total` blocks, if known. Shows nothing if logs show errors only.
    pub(crate) fn new(total: Option<u64>) -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = match total {
                Some(total) => ProgressBar::new(total),
                None => ProgressBar::new_spinner(),
            };
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let template = match total {
                Some(_) => "{bar:30} {pos}/{len} blocks  {msg}  ETA {eta}",
                None => "{spinner} {pos} blocks  {msg}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Self { bar, total, started: now, shown: now }
    }

    /// Shows the figures so far.
    pub(crate) fn update(&mut self, report: &ImportReport) {
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let done = report.blocks + report.known_blocks;
        let rates = format!(
            "#{}  {} txs  {:.1} Mgas/s  {:.0} TPS",
            report.tip.number,
            report.txs,
            report.gas as f64 / 1e6 / seconds,
            report.txs as f64 / seconds,
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(rates);
            }
            None => {
                let of = self.total.map_or_else(String::new, |total| format!("/{total}"));
                let left = self.total.map_or_else(String::new, |total| {
                    let left = total.saturating_sub(done) as f64 * seconds / done.max(1) as f64;
                    format!("  ETA {left:.0} s")
                });
                tracing::info!("{done}{of} blocks  {rates}{left}");
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of a race.
#[derive(Debug)]
pub(crate) struct RaceProgress {
    bar: Option<ProgressBar>,
    shown: Instant,
    /// The metrics that count turns, and the workload's label.
    metrics: Option<(Metrics, &'static str)>,
}

impl Default for RaceProgress {
    fn default() -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}  ETA {eta}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, shown: Instant::now(), metrics: None }
    }
}

impl RaceProgress {
    /// Counts turns in `metrics`, if given.
    pub(crate) fn counting(metrics: Option<&Metrics>, workload: &'static str) -> Self {
        let metrics = metrics.map(|metrics| (metrics.clone(), workload));
        Self { metrics, ..Self::default() }
    }

    /// Shows a step.
    pub(crate) fn update(&mut self, step: RaceStep<'_>) {
        match step {
            RaceStep::Loading { backend, done, total } => {
                let (count, of) = (grouped(done), grouped(total));
                self.show(done, total, || format!("{backend}: loading, {count}/{of} entries"));
            }
            RaceStep::Grinding { done, total } => self.show(done, total, || {
                format!("grinding, {}/{} keys hashed", grouped(done), grouped(total))
            }),
            RaceStep::Making { done, total } => {
                self.show(done, total, || format!("making blocks, {done}/{total}"));
            }
            RaceStep::Importing { backend, done, total } => {
                self.show(done, total, || format!("{backend}: importing, {done}/{total} blocks"));
            }
            RaceStep::Racing { done, total } => self.slices(done, total),
            RaceStep::Turn(done) => self.turn(&done),
        }
    }

    /// Counts a turn in the metrics.
    fn turn(&self, done: &TurnSummary<'_>) {
        let Some((metrics, workload)) = &self.metrics else { return };
        let labels = [done.backend, *workload];
        metrics.bench_operations.with_label_values(&labels).inc_by(done.ops);
        metrics.bench_disk_bytes.with_label_values(&labels).set(done.disk_bytes as i64);
        let seconds = metrics.bench_commit_seconds.with_label_values(&labels);
        done.latencies.iter().for_each(|latency| seconds.observe(latency.as_secs_f64()));
    }

    fn slices(&mut self, done: u64, total: u64) {
        self.show(done, total, || format!("{}/{} slices", grouped(done), grouped(total)));
    }

    fn show(&mut self, done: u64, total: u64, line: impl FnOnce() -> String) {
        let is_new = done == 0;
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if !is_new && self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let line = line();
        match &self.bar {
            Some(bar) => {
                if is_new {
                    bar.reset();
                    bar.set_length(total);
                }
                bar.set_position(done);
                bar.set_message(line);
            }
            None => tracing::info!("{line}"),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of a state sync.
#[derive(Debug)]
pub(crate) struct FetchProgress {
    bar: Option<ProgressBar>,
    started: Instant,
    shown: Instant,
}

impl Default for FetchProgress {
    fn default() -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
            let template = "{bar:30} {percent}% of the state  {msg}  ETA {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Self { bar, started: now, shown: now }
    }
}

impl FetchProgress {
    /// Shows the figures so far.
    pub(crate) fn update(&mut self, progress: &retrie_network::StateSyncProgress) {
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let rates = format!(
            "{} entries  {} codes  {:.1} MiB/s  {} nodes banned",
            grouped(progress.entries),
            grouped(progress.codes),
            progress.bytes as f64 / f64::from(1 << 20) / seconds,
            progress.banned,
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position((progress.share * 1000.0) as u64);
                bar.set_message(rates);
            }
            None => tracing::info!("{:.1} % of the state  {rates}", progress.share * 100.0),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
