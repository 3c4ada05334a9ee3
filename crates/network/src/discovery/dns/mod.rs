//! Lists of nodes in DNS (EIP-1459).
//!
//! A list is a tree of entries, each under the hash of its text, and a root signed by the key of the
//! list: so a name server can withhold entries, and not change them. It is walked a step at a time, in
//! no order, while nodes are wanted.

mod tree;
mod walk;

use super::pace::{Pace, wanted};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::RData,
};
use std::{net::SocketAddr, time::Duration};
use tokio::sync::watch;
use tracing::{debug, warn};
use walk::{Step, Walk};

pub use tree::{TreeUrl, TreeUrlError};

/// Bytes of texts of one name that are looked at; an entry has 4096 at most.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// Rest after a failure, at most.
const MAX_REST: Duration = Duration::from_secs(60);

/// Asks name servers for texts.
pub(super) struct Dns(TokioResolver);

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dns").finish()
    }
}

impl Dns {
    /// Asks this server, or those of the system.
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
        // Entries are asked for once, and roots when they are due.
        options.cache_size = 0;
        builder.build().map(Self)
    }

    /// The text of a name that is an entry of a tree.
    pub(super) async fn text(&self, name: &str) -> Result<String, String> {
        // With the dot no other domain is tried.
        let found = self.0.txt_lookup(format!("{name}.")).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut budget = MAX_ANSWER_BYTES;
        for record in found.answers() {
            let RData::TXT(text) = &record.data else { continue };
            let bytes: usize = text.txt_data.iter().map(|part| part.len()).sum();
            budget = match budget.checked_sub(bytes) {
                Some(rest) => rest,
                None => return Err(format!("{name} has too long texts")),
            };
            let text = String::from_utf8(text.txt_data.concat()).unwrap_or_default();
            if text.starts_with("enr") {
                return Ok(text);
            }
        }
        Err(format!("{name} has no entry of a tree"))
    }
}

/// Walks the trees for ever, while nodes are wanted, and hands on what `take` is for.
pub(super) async fn run(
    trees: Vec<TreeUrl>,
    server: Option<SocketAddr>,
    pace: Pace,
    mut want: watch::Receiver<bool>,
    mut take: impl FnMut(super::record::Record) + Send,
) {
    let dns = match Dns::new(server, pace.dns_reply) {
        Ok(dns) => dns,
        Err(error) => {
            warn!(target: "retrie::network", %error, "lists of nodes in DNS are not read");
            return;
        }
    };
    let mut walk = Walk::new(trees, pace.dns_root);
    let mut failures = 0_u32;
    loop {
        if !wanted(&mut want).await {
            return;
        }
        let mut rest = pace.dns;
        match walk.step(&dns).await {
            Step::Record(record) => {
                failures = 0;
                take(*record);
            }
            Step::Walked => failures = 0,
            Step::Failed(error) => {
                debug!(target: "retrie::network", error, "a list of nodes in DNS");
                failures = failures.saturating_add(1);
                rest = (pace.dns * 2_u32.saturating_pow(failures)).min(MAX_REST.max(pace.dns));
            }
            Step::Done(until) => rest = until.max(pace.dns),
        }
        tokio::time::sleep(rest).await;
    }
}

#[cfg(test)]
pub(super) fn fuzz(record: &super::record::Record) -> Vec<crate::fuzz::Decoder> {
    use crate::fuzz::Decoder;
    use tree::{Entry, Root, made};

    // A key that is known, so that the decoder has it too.
    let key = || super::key::NodeKey::from_hex(&"01".repeat(32)).expect("a key");
    let label = made::label("x");
    let branch = format!("enrtree-branch:{label},{label}");
    let url = made::url(&key(), "a.test").to_string();
    let bytes = |text: String| text.into_bytes();
    vec![
        Decoder {
            name: "dns-entry",
            seeds: [branch, url, record.to_base64()].map(bytes).to_vec(),
            run: |bytes| str::from_utf8(bytes).is_ok_and(|text| Entry::parse(text).is_ok()),
        },
        Decoder {
            name: "dns-root",
            seeds: vec![bytes(made::root(&key(), &label, &label, 3))],
            run: |bytes| {
                let key = super::key::NodeKey::from_hex(&"01".repeat(32)).expect("a key");
                let key = key.secret().public_key(secp256k1::SECP256K1);
                str::from_utf8(bytes).is_ok_and(|text| Root::parse(text, &key).is_ok())
            },
        },
    ]
}
