//! DNS lists of nodes (EIP-1459).
//!
//! A list is a tree of entries. Each entry is found under the hash of its text, and the list's key
//! signs the root. So a name server can withhold entries, but not change them. The tree is walked
//! one entry at a time, in random order, while nodes are wanted.

mod tree;
mod walk;

use super::timing::{DiscoveryTiming, wanted};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::RData,
};
use std::{net::SocketAddr, time::Duration};
use tokio::sync::watch;
use tracing::{debug, warn};
use walk::{DnsTreeWalk, DnsWalkStep};

pub use tree::{TreeUrl, TreeUrlError};

/// Maximum bytes of the TXT records of one name; an entry has at most 4096.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// The longest pause after failures.
const MAX_REST: Duration = Duration::from_secs(60);

/// A resolver for TXT records.
pub(super) struct DnsResolver(TokioResolver);

impl std::fmt::Debug for DnsResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dns").finish()
    }
}

impl DnsResolver {
    /// Uses this name server, or the ones of the system.
    pub(super) fn new(server: Option<SocketAddr>, patience: Duration) -> Result<Self, NetError> {
        let mut builder = match server {
            Some(server) => {
                let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
                for connection in &mut connections {
                    connection.port = server.port();
                }
                let server = NameServerConfig::new(server.ip(), true, connections.into());
                let config = ResolverConfig::from_name_servers(vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
            None => TokioResolver::builder_tokio()?,
        };
        let options: &mut ResolverOpts = builder.options_mut();
        options.timeout = patience;
        options.attempts = 2;
        // Each entry is read once, and a root only when it is due.
        options.cache_size = 0;
        builder.build().map(Self)
    }

    /// The tree entry in the TXT records of a name.
    pub(super) async fn text(&self, name: &str) -> Result<String, String> {
        // With the final dot no search domain is appended.
        let found = self.0.txt_lookup(format!("{name}.")).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut budget = MAX_ANSWER_BYTES;
        for record in found.answers() {
            let RData::TXT(text) = &record.data else { continue };
            let bytes: usize = text.txt_data.iter().map(|part| part.len()).sum();
            budget = match budget.checked_sub(bytes) {
                Some(rest) => rest,
                None => return Err(format!("the TXT records of {name} are too long")),
            };
            let text = String::from_utf8(text.txt_data.concat()).unwrap_or_default();
            if text.starts_with("enr") {
                return Ok(text);
            }
        }
        Err(format!("{name} has no tree entry"))
    }
}

/// Walks the trees while nodes are wanted, until the sender of `want` is dropped, and passes the
/// records to `take`.
pub(super) async fn run(
    trees: Vec<TreeUrl>,
    server: Option<SocketAddr>,
    pace: DiscoveryTiming,
    mut want: watch::Receiver<bool>,
    mut take: impl FnMut(super::record::Enr) + Send,
) {
    let dns = match DnsResolver::new(server, pace.dns_reply) {
        Ok(dns) => dns,
        Err(error) => {
            warn!(target: "retrie::network", %error, "DNS lists are not read");
            return;
        }
    };
    let mut walk = DnsTreeWalk::new(trees, pace.dns_root);
    let mut failures = 0_u32;
    loop {
        if !wanted(&mut want).await {
            return;
        }
        let mut rest = pace.dns;
        match walk.step(&dns).await {
            DnsWalkStep::Record(record) => {
                failures = 0;
                take(*record);
            }
            DnsWalkStep::Walked => failures = 0,
            DnsWalkStep::Failed(error) => {
                debug!(target: "retrie::network", error, "reading a DNS list failed");
                failures = failures.saturating_add(1);
                rest = (pace.dns * 2_u32.saturating_pow(failures)).min(MAX_REST.max(pace.dns));
            }
            DnsWalkStep::Done(until) => rest = until.max(pace.dns),
        }
        tokio::time::sleep(rest).await;
    }
}

#[cfg(test)]
pub(super) fn fuzz(record: &super::record::Enr) -> Vec<crate::fuzz::FuzzDecoder> {
    use crate::fuzz::FuzzDecoder;
    use tree::{DnsEntry, TreeRootEntry, tree_builder};

    // A fixed key, so that the decoder has it, too.
    let key = || super::key::NodeKey::from_hex(&"01".repeat(32)).expect("a key");
    let label = tree_builder::label("x");
    let branch = format!("enrtree-branch:{label},{label}");
    let url = tree_builder::url(&key(), "a.test").to_string();
    let bytes = |text: String| text.into_bytes();
    vec![
        FuzzDecoder {
            name: "dns-entry",
            seeds: [branch, url, record.to_base64()].map(bytes).to_vec(),
            run: |bytes| str::from_utf8(bytes).is_ok_and(|text| DnsEntry::parse(text).is_ok()),
        },
        FuzzDecoder {
            name: "dns-root",
            seeds: vec![bytes(tree_builder::root(&key(), &label, &label, 3))],
            run: |bytes| {
                let key = super::key::NodeKey::from_hex(&"01".repeat(32)).expect("a key");
                let key = key.secret().public_key(secp256k1::SECP256K1);
                str::from_utf8(bytes).is_ok_and(|text| TreeRootEntry::parse(text, &key).is_ok())
            },
        },
    ]
}
