//! Progress of a state sync: a bar on a terminal, plain lines otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_state_sync::StateSyncProgress;
use retrie_telemetry::{
    grouped,
    state_sync::{StateSyncFigures, StateSyncMetrics, StateSyncPhase},
};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Interval between updates of the bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Before these seconds, and below this share, no time that is left is estimated.
const ESTIMATE_AFTER: (f64, f64) = (10.0, 0.02);

/// Shows the progress of a state sync.
#[derive(Debug)]
pub(super) struct FetchProgress {
    bar: Option<ProgressBar>,
    metrics: Option<StateSyncMetrics>,
    pivot: u64,
    started: Instant,
    shown: Instant,
}

impl FetchProgress {
    /// Of the state after block `pivot`. Shows it in `metrics` too.
    pub(super) fn new(pivot: u64, metrics: Option<StateSyncMetrics>) -> Self {
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
        Self { bar, metrics, pivot, started: now, shown: now }
    }

    /// Shows the figures so far.
    pub(super) fn update(&mut self, progress: &StateSyncProgress) {
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let phase =
            if progress.is_fetched { StateSyncPhase::Sorting } else { StateSyncPhase::Fetching };
        self.show_metrics(phase, progress);
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
            None if progress.is_fetched => {
                let (entries, codes) = (grouped(progress.entries), grouped(progress.codes));
                tracing::info!("sorting: {entries} entries, {codes} codes so far");
            }
            None => {
                let left =
                    self.remaining(progress).map(|left| format!("  {} s left", left.as_secs()));
                let left = left.unwrap_or_default();
                tracing::info!("{:.1} % of the state  {rates}{left}", progress.share * 100.0);
            }
        }
    }

    /// Shows in the metrics that the state is loaded now.
    pub(super) fn loading(&self, progress: &StateSyncProgress) {
        self.show_metrics(StateSyncPhase::Loading, progress);
    }

    fn show_metrics(&self, phase: StateSyncPhase, progress: &StateSyncProgress) {
        let Some(metrics) = &self.metrics else { return };
        let StateSyncProgress { entries, codes, bytes, share, .. } = *progress;
        let remaining = self.remaining(progress);
        let pivot = self.pivot;
        metrics.show(StateSyncFigures { phase, pivot, entries, codes, bytes, share, remaining });
    }

    /// An estimate of the time until all is fetched, from the share that is.
    fn remaining(&self, progress: &StateSyncProgress) -> Option<Duration> {
        let (seconds, share) = (self.started.elapsed().as_secs_f64(), progress.share);
        let is_early = seconds < ESTIMATE_AFTER.0 || share < ESTIMATE_AFTER.1;
        if is_early || progress.is_fetched {
            return None;
        }
        Duration::try_from_secs_f64(seconds * (1.0 - share).max(0.0) / share).ok()
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
