//! Flags of HTTP clients.

use retrie_sources::{BlockingClient, HttpOptions, StoreEnvironment, StoreRegistry};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Flags of HTTP clients. Proxies come from the environment (`HTTPS_PROXY`, `ALL_PROXY`).
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct HttpArgs {
    /// Seconds to wait for a connection, for the start of a response, and for each further byte.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How often a request is retried, with growing pauses, while the server makes no progress.
    #[arg(long, value_name = "N", default_value_t = 4)]
    retries: u32,
}

impl HttpArgs {
    /// The HTTP client; `stop` cancels its requests.
    pub fn client(&self, stop: &Arc<AtomicBool>) -> BlockingClient {
        let options = HttpOptions {
            timeout: Duration::from_secs(self.timeout),
            retries: self.retries,
            ..HttpOptions::default()
        };
        BlockingClient::new(options, stop.clone())
    }

    /// Opens paths and URLs, with credentials and endpoints from the environment.
    pub fn stores(&self, stop: &Arc<AtomicBool>) -> StoreRegistry {
        StoreRegistry::new(StoreEnvironment::from_process(), self.client(stop))
    }
}
