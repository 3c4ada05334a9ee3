//! URLs of peers, and the addresses of their host names.

use super::{MAX_PEERS, PeerSet, ShardPeer};
use http::Uri;
use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    sync::Arc,
};

/// Resolves a host and port to addresses. It may block.
pub type NameResolver = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// The system's resolver.
pub fn system_resolver() -> NameResolver {
    Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
}

/// A URL of `--proof-peers`: `http://HOST[:PORT][/PATH]`, or with `https`.
///
/// The host of an `http` URL stands for all its addresses, each of which is a peer. An `https` URL
/// is one peer, because the certificate is for the name.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerUrl {
    whole: String,
    is_secure: bool,
    /// With a trailing `@`, or empty.
    login: String,
    host: String,
    port: u16,
    path: String,
}

/// An invalid URL of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no URL of a node's JSON-RPC: give http://HOST:PORT")]
pub struct BadPeerUrl;

impl fmt::Debug for PeerUrl {
    /// Leaves out login and path, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for PeerUrl {
    type Err = BadPeerUrl;

    fn from_str(text: &str) -> Result<Self, BadPeerUrl> {
        let uri: Uri = text.parse().map_err(|_| BadPeerUrl)?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(BadPeerUrl),
        };
        let authority = uri.authority().ok_or(BadPeerUrl)?;
        let login = authority
            .as_str()
            .rsplit_once('@')
            .map_or_else(String::new, |(login, _)| format!("{login}@"));
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(BadPeerUrl);
        }
        Ok(Self {
            whole: text.to_owned(),
            is_secure,
            login,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 }),
            path: uri.path_and_query().map_or_else(String::new, ToString::to_string),
        })
    }
}

/// The address of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerTarget {
    /// Name in logs and metrics: host and port.
    pub(super) name: String,
    pub(super) url: String,
}

impl PeerUrl {
    /// The peer of a URL that needs no resolving.
    fn fixed(&self) -> Option<PeerTarget> {
        if self.is_secure {
            let name = format!("{}:{}", self.host, self.port);
            return Some(PeerTarget { name, url: self.whole.clone() });
        }
        let ip: IpAddr = self.host.parse().ok()?;
        Some(self.at(SocketAddr::new(ip, self.port)))
    }

    fn at(&self, address: SocketAddr) -> PeerTarget {
        let Self { login, path, .. } = self;
        PeerTarget { name: address.to_string(), url: format!("http://{login}{address}{path}") }
    }

    /// The peers at the current addresses of the host.
    pub(super) fn targets(&self, resolver: &NameResolver) -> io::Result<Vec<PeerTarget>> {
        if let Some(target) = self.fixed() {
            return Ok(vec![target]);
        }
        let addresses = resolver(&self.host, self.port)?;
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(addresses.into_iter().map(|address| self.at(address)).collect())
    }
}

impl PeerSet {
    /// Resolves all names and updates the set. The peers of a name that cannot be resolved stay. It
    /// blocks.
    pub(super) fn resolve(&self) {
        let known = self.peers.read().clone();
        // By URL, as several names may lead to the same node.
        let mut targets = BTreeMap::new();
        for (at, url) in self.config.urls.iter().enumerate() {
            match url.targets(&self.resolver) {
                Ok(found) => {
                    let found = found.into_iter().map(|target| (target.url.clone(), (at, target)));
                    targets.extend(found);
                }
                Err(error) => {
                    tracing::warn!(peer = ?url, %error, "cannot resolve the name of a proof peer");
                    let kept = known.iter().filter(|peer| peer.origin() == at);
                    let kept = kept.map(|peer| (peer.url().to_owned(), (at, peer.target())));
                    targets.extend(kept);
                }
            }
        }
        if targets.len() > MAX_PEERS {
            tracing::warn!(
                found = targets.len(),
                "--proof-peers leads to more than {MAX_PEERS} addresses: the others are not asked"
            );
        }
        let targets: Vec<_> = targets.into_values().take(MAX_PEERS).collect();
        let is_same = |peer: &ShardPeer| targets.iter().any(|(_, target)| target.url == peer.url());
        if targets.len() == known.len() && known.iter().all(|peer| is_same(peer)) {
            return;
        }
        let peer = |(at, target): (usize, PeerTarget)| {
            let same = known.iter().find(|peer| peer.url() == target.url);
            same.cloned().unwrap_or_else(|| {
                tracing::info!(peer = target.name, "a proof peer is added");
                Arc::new(ShardPeer::new(target, at, &self.config, &self.metrics))
            })
        };
        *self.peers.write() = targets.into_iter().map(peer).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_and_names_stand_for_their_addresses() {
        let resolver: NameResolver = Arc::new(|host, port| match host {
            "proofs" => Ok([1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], port))).into()),
            "six" => Ok(vec![SocketAddr::new("fd00::1".parse().unwrap(), port)]),
            "empty" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        });
        let urls = |url: &str| -> Vec<_> {
            let targets = url.parse::<PeerUrl>().unwrap().targets(&resolver).unwrap();
            targets.into_iter().map(|target| (target.name, target.url)).collect()
        };
        let of = |name: &str, url: &str| (name.to_owned(), url.to_owned());
        for (url, expected) in [
            ("http://127.0.0.1:8545", vec![of("127.0.0.1:8545", "http://127.0.0.1:8545/")]),
            ("http://[::1]:9/a?b=c", vec![of("[::1]:9", "http://[::1]:9/a?b=c")]),
            ("https://proofs/key", vec![of("proofs:443", "https://proofs/key")]),
            ("http://six:1", vec![of("[fd00::1]:1", "http://[fd00::1]:1/")]),
            (
                "http://me:secret@proofs/x",
                vec![
                    of("10.0.0.1:80", "http://me:secret@10.0.0.1:80/x"),
                    of("10.0.0.2:80", "http://me:secret@10.0.0.2:80/x"),
                ],
            ),
        ] {
            assert_eq!(urls(url), expected, "{url}");
        }
        for url in ["http://empty:1", "http://nobody:1"] {
            assert!(url.parse::<PeerUrl>().unwrap().targets(&resolver).is_err(), "{url}");
        }
        for url in ["", "localhost:8545", "ws://a:1", "http://", "/a", "http:///x"] {
            assert_eq!(url.parse::<PeerUrl>(), Err(BadPeerUrl), "{url}");
        }
        let shown = format!("{:?}", "http://me:secret@proofs/x".parse::<PeerUrl>().unwrap());
        assert_eq!(shown, "proofs:80");
    }
}
