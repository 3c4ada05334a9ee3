//! Logs, spans and metrics: the tracing subscriber, one Prometheus registry, and the endpoint that
//! serves it. [`spans`] exports spans to an OpenTelemetry collector.
//!
//! All metrics are declared in seven modules, so that these pages list them: [`metrics`], state
//! stores in [`state`], JSON-RPC in [`rpc`], traffic with peers in [`traffic`], state sync in
//! [`state_sync`], proofs from several nodes in [`proofs`], and exported spans in [`spans`]. Names are
//! `retrie_<part>_<what>_<unit>`; counters end in `_total`. `etc/` has a dashboard and alert rules for
//! them.

pub mod metrics;
pub mod proofs;
pub mod rpc;
mod server;
pub mod spans;
pub mod state;
pub mod state_sync;
pub mod traffic;

pub use metrics::Metrics;
pub use prometheus::IntCounter;
pub use server::{MetricsServer, ServeError};
pub use spans::SpanExport;

use rolling_file::{BasicRollingFileAppender, RollingConditionBasic};
use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    sync::Mutex,
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt, filter_fn},
    fmt,
    layer::{Filter, SubscriberExt},
    util::SubscriberInitExt,
};

/// Name of the current log file. Older files have a number appended.
const LOG_FILE: &str = "retrie.log";

/// Log files, in addition to stderr.
#[derive(Clone, Debug)]
pub struct LogFiles {
    /// Their folder.
    pub directory: PathBuf,
    /// Size in bytes at which a new file is begun.
    pub max_bytes: u64,
    /// Number of files that are kept. The oldest is deleted first.
    pub max_files: usize,
}

/// The log files cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("logs cannot be written to {}: {source}", directory.display())]
pub struct LogError {
    directory: PathBuf,
    source: io::Error,
}

/// Starts logging to stderr and to `files`, and exporting spans with `spans`. `verbosity` as in reth:
/// 1 errors, 2 warnings, 3 info, 4 debug, 5 trace. The environment variable `RUST_LOG` wins. A second
/// call does nothing.
///
/// # Errors
/// If the folder of `files` cannot be written to.
pub fn init_logs(
    verbosity: u8,
    files: Option<LogFiles>,
    spans: Option<&SpanExport>,
) -> Result<(), LogError> {
    let level = match verbosity {
        0 => "off",
        1 => "error",
        2 => "warn",
        3 => "info",
        4 => "debug",
        _ => "trace",
    };
    // At `info`, this crate logs what is useful only to its developers.
    let level =
        if matches!(verbosity, 2 | 3) { format!("{level},discv5=error") } else { level.to_owned() };
    let to_stderr = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_filter(log_filter(&level));
    let to_files = match files {
        None => None,
        Some(files) => {
            let writer = open_log_files(&files)
                .map_err(|source| LogError { directory: files.directory, source })?;
            Some(
                fmt::layer()
                    .with_writer(Mutex::new(writer))
                    .with_ansi(false)
                    .with_filter(log_filter(&level)),
            )
        }
    };
    let exported = spans.map(SpanExport::layer);
    let _ = tracing_subscriber::registry().with(to_stderr).with(to_files).with(exported).try_init();
    Ok(())
}

/// What is logged: `RUST_LOG`, or else `level`; never our spans.
fn log_filter<S: 'static>(level: &str) -> impl Filter<S> + 'static + use<S> {
    let levels = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // A filter without a hint would make every disabled log line dearer.
    levels.and(filter_fn(spans::is_logged).with_max_level_hint(LevelFilter::TRACE))
}

fn open_log_files(files: &LogFiles) -> io::Result<BasicRollingFileAppender> {
    std::fs::create_dir_all(&files.directory)?;
    let condition = RollingConditionBasic::new().max_size(files.max_bytes.max(1));
    let kept = files.max_files.saturating_sub(1);
    BasicRollingFileAppender::new(files.directory.join(LOG_FILE), condition, kept)
}

/// `1234567` as `1,234,567`, for lines that people read.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        assert_eq!(super::grouped(7), "7");
        assert_eq!(super::grouped(1234), "1,234");
        assert_eq!(super::grouped(1234567), "1,234,567");
    }
}
