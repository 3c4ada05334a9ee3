//! Progress of a transfer: bytes of a file, or blocks. A bar on a terminal, plain lines otherwise.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows the progress. Shows nothing if logs show errors only.
#[derive(Debug)]
pub(crate) struct TransferMeter {
    bar: Option<ProgressBar>,
    unit: TransferUnit,
    started: Instant,
    shown: Instant,
    /// What was there at the start.
    first: Option<u64>,
}

#[derive(Debug)]
enum TransferUnit {
    /// Bytes of the file with this name.
    Bytes(String),
    Blocks,
}

impl TransferMeter {
    /// Counts the bytes of a file.
    pub(crate) fn bytes(name: String) -> Self {
        Self::new(
            TransferUnit::Bytes(name.clone()),
            "{msg} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}",
            0,
            name,
        )
    }

    /// Counts `total` blocks.
    pub(crate) fn blocks(total: u64) -> Self {
        Self::new(
            TransferUnit::Blocks,
            "{bar:30} {pos}/{len} blocks  ETA {eta}",
            total,
            String::new(),
        )
    }

    fn new(unit: TransferUnit, template: &str, total: u64, message: String) -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(total);
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.set_message(message);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        // A part of the file may exist already.
        let first = matches!(unit, TransferUnit::Blocks).then_some(0);
        Self { bar, unit, started: now, shown: now, first }
    }

    /// Sets the progress, and the total if it is known.
    pub(crate) fn update(&mut self, done: u64, total: Option<u64>) {
        let first = *self.first.get_or_insert(done);
        if let Some(bar) = &self.bar {
            bar.set_length(total.unwrap_or(done));
            bar.set_position(done);
            return;
        }
        if self.shown.elapsed() < LINE_EVERY {
            return;
        }
        self.shown = Instant::now();
        let rate = (done - first) as f64 / self.started.elapsed().as_secs_f64();
        let left = total.filter(|_| rate > 0.0).map_or_else(String::new, |total| {
            format!("  ETA {:.0} s", total.saturating_sub(done) as f64 / rate)
        });
        match &self.unit {
            TransferUnit::Bytes(name) => {
                let of = total.map_or_else(String::new, |total| format!("/{}", HumanBytes(total)));
                let rate = HumanBytes(rate as u64);
                tracing::info!("{name}  {}{of}  {rate}/s{left}", HumanBytes(done));
            }
            TransferUnit::Blocks => {
                let of = total.map_or_else(String::new, |total| format!("/{total}"));
                tracing::info!("{done}{of} blocks  {rate:.2} blocks/s{left}");
            }
        }
    }

    /// Shows that the file is complete and is being checked.
    pub(crate) fn checking(&self, bytes: u64) {
        if let (Some(bar), TransferUnit::Bytes(name)) = (&self.bar, &self.unit) {
            bar.set_length(bytes);
            bar.set_position(bytes);
            bar.set_message(format!("{name} (checking)"));
        }
    }

    /// Prints something while the bar is hidden.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
