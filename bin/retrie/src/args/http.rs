//! How a server is talked to.

use retrie_sources::{Environment, Http, HttpOptions, Stores};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// How a server is talked to. Proxies come from the environment (`HTTPS_PROXY`, `ALL_PROXY`).
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct HttpArgs {
    /// Seconds to wait for a connection, for an answer to begin, and for each next byte of it.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How often to try again, with growing waits, when the server fails without any progress.
    #[arg(long, value_name = "N", default_value_t = 4)]
    retries: u32,
}

impl HttpArgs {
    /// The client, which `stop` stops.
    pub(crate) fn client(&self, stop: &Arc<AtomicBool>) -> Http {
        let options = HttpOptions {
            timeout: Duration::from_secs(self.timeout),
            retries: self.retries,
            ..HttpOptions::default()
        };
        Http::new(options, stop.clone())
    }

    /// What finds paths and URLs, with credentials and endpoints of the environment.
    pub(crate) fn stores(&self, stop: &Arc<AtomicBool>) -> Stores {
        Stores::new(Environment::of_process(), self.client(stop))
    }
}
