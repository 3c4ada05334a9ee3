//! Progress of long work: a bar on a terminal, plain lines otherwise.

#[cfg(feature = "lab")]
mod race;

#[cfg(feature = "lab")]
pub(crate) use race::RaceProgress;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_pipeline::report::ImportReport;
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
