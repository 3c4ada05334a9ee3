//! Progress of a race.

use super::{BAR_EVERY, LINE_EVERY};
use crate::output::grouped;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_bench::race::{RaceStep, TurnSummary};
use retrie_telemetry::Metrics;
use std::{io::IsTerminal, time::Instant};

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
