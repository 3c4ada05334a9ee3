//! Progress of a state sync: a bar on a terminal, plain lines otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_state_sync::StateSyncProgress;
use retrie_telemetry::grouped;
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Interval between updates of the bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Shows the progress of a state sync.
#[derive(Debug)]
pub(super) struct FetchProgress {
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
    pub(super) fn update(&mut self, progress: &StateSyncProgress) {
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
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
