//! Logs and metrics: the tracing subscriber, one Prometheus registry, and the endpoint that serves
//! it.
//!
//! All metrics are declared in six modules, so that these pages list them: [`metrics`], state
//! stores in [`state`], JSON-RPC in [`rpc`], traffic with peers in [`traffic`], state sync in
//! [`state_sync`], and proofs from several nodes in [`proofs`]. Names are `retrie_<part>_<what>_<unit>`; counters end in `_total`.
//! `etc/` has a dashboard and alert rules for them.

pub mod metrics;
pub mod proofs;
pub mod rpc;
mod server;
pub mod state;
pub mod state_sync;
pub mod traffic;

pub use metrics::Metrics;
pub use prometheus::IntCounter;
pub use server::{MetricsServer, ServeError};

use rolling_file::{BasicRollingFileAppender, RollingConditionBasic};
use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    sync::Mutex,
};
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

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

/// Starts logging to stderr, and to `files`. `verbosity` as in reth: 1 errors, 2 warnings, 3 info,
/// 4 debug, 5 trace. The environment variable `RUST_LOG` wins. A second call does nothing.
///
/// # Errors
/// If the folder of `files` cannot be written to.
pub fn init_logs(verbosity: u8, files: Option<LogFiles>) -> Result<(), LogError> {
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
    let filter = || EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(&level));
    let to_stderr = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_filter(filter());
    let to_files = match files {
        None => None,
        Some(files) => {
            let writer = open_log_files(&files)
                .map_err(|source| LogError { directory: files.directory, source })?;
            Some(
                fmt::layer().with_writer(Mutex::new(writer)).with_ansi(false).with_filter(filter()),
            )
        }
    };
    let _ = tracing_subscriber::registry().with(to_stderr).with(to_files).try_init();
    Ok(())
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
