//! Logs and metrics: the tracing subscriber, one Prometheus registry, and the endpoint that serves it.
//!
//! All metrics are declared in [`metrics`], those of state stores in [`state`], so that these pages
//! list them. Names are `retrie_<part>_<what>_<unit>`, counters end in `_total`. A dashboard and
//! alert rules for them are in `etc/`.

pub mod metrics;
mod server;
pub mod state;

pub use metrics::Metrics;
pub use server::{MetricsServer, ServeError};

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging to stderr. `verbosity` as in reth: 1 errors, 2 warnings, 3 info, 4 debug, 5 trace.
/// The environment variable `RUST_LOG` wins. A second call does nothing.
pub fn init_logs(verbosity: u8) {
    let level = match verbosity {
        0 => "off",
        1 => "error",
        2 => "warn",
        3 => "info",
        4 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
