//! `enode://` URLs.

use super::key::id_of;
use crate::eth::PeerId;
use alloy_primitives::{B256, hex, keccak256};
use secp256k1::PublicKey;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// The address of a node: `enode://ID@IP:PORT`, with `?discport=PORT` if the UDP port is another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enode {
    /// Its public key.
    pub id: PeerId,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its TCP port, for connections; 0 if it accepts none.
    pub tcp: u16,
    /// Its UDP port, for discovery; 0 if it takes no part.
    pub udp: u16,
}

/// Why a text is no URL of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` does not name a node: {error}")]
pub struct EnodeError {
    /// The text.
    pub url: String,
    /// What is wrong.
    pub error: EnodeFault,
}

/// What is wrong with the URL of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnodeFault {
    /// It has another scheme.
    #[error("it does not begin with `enode://`")]
    Scheme,
    /// It has no `@`.
    #[error("it has no `@` between the id and the address")]
    At,
    /// The id is not 64 bytes.
    #[error("the id is not 128 hexadecimal digits")]
    Id,
    /// The id has 64 bytes, but is no point of the curve.
    #[error("the id is no public key of secp256k1")]
    Key,
    /// The host is no IP address, or there is no port.
    #[error("`IP:PORT` is needed after the `@`, and the IP as a number: names are not resolved")]
    Address,
    /// The query is not `discport=PORT`.
    #[error("what follows the `?` is not `discport=PORT`")]
    Query,
    /// A node record in text form is damaged, or its signature is wrong.
    #[error("the record is damaged")]
    Record,
    /// A node record without an address, a UDP port, or a key of secp256k1.
    #[error("the record has no address, no port for discovery, or no key of secp256k1")]
    Incomplete,
}

impl Enode {
    /// Its point in the Kademlia key space: the hash of the id.
    pub fn hash(&self) -> B256 {
        keccak256(self.id)
    }

    /// Its address for discovery.
    pub(crate) const fn udp_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.udp)
    }

    /// Its address for connections.
    pub(crate) const fn tcp_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.tcp)
    }
}

/// Whether 64 bytes are a public key.
pub(super) fn is_key(id: &PeerId) -> bool {
    public_key(id).is_some()
}

/// The public key of an id, if it is one.
pub(super) fn public_key(id: &PeerId) -> Option<PublicKey> {
    let mut bytes = [4; 65];
    bytes[1..].copy_from_slice(id.as_slice());
    let key = PublicKey::from_slice(&bytes).ok()?;
    debug_assert_eq!(id_of(&key), *id);
    Some(key)
}

impl FromStr for Enode {
    type Err = EnodeError;

    fn from_str(url: &str) -> Result<Self, EnodeError> {
        parse(url).map_err(|error| EnodeError { url: url.chars().take(300).collect(), error })
    }
}

fn parse(url: &str) -> Result<Enode, EnodeFault> {
    let rest = url.strip_prefix("enode://").ok_or(EnodeFault::Scheme)?;
    let (id, rest) = rest.split_once('@').ok_or(EnodeFault::At)?;
    let (address, query) =
        rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
    let mut bytes = [0; 64];
    if id.len() != 128 || hex::decode_to_slice(id, &mut bytes).is_err() {
        return Err(EnodeFault::Id);
    }
    let id = PeerId::from(bytes);
    if !is_key(&id) {
        return Err(EnodeFault::Key);
    }
    let address: SocketAddr =
        address.trim_end_matches('/').parse().map_err(|_| EnodeFault::Address)?;
    let udp = match query {
        None => address.port(),
        Some(query) => {
            let port = query.strip_prefix("discport=").ok_or(EnodeFault::Query)?;
            port.parse().map_err(|_| EnodeFault::Query)?
        }
    };
    Ok(Enode { id, ip: address.ip().to_canonical(), tcp: address.port(), udp })
}

impl fmt::Display for Enode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enode://{}@{}", hex::encode(self.id), self.tcp_address())?;
        if self.udp != self.tcp {
            write!(f, "?discport={}", self.udp)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::key::NodeKey, *};

    #[test]
    fn urls_are_printed_as_they_are_read() {
        let id = hex::encode(NodeKey::from_hex(&"01".repeat(32)).unwrap().id());
        for (address, tcp, udp) in [
            ("10.3.58.6:30303", 30303, 30303),
            ("10.3.58.6:30303?discport=30301", 30303, 30301),
            ("[2001:db8::1]:7?discport=0", 7, 0),
        ] {
            let url = format!("enode://{id}@{address}");
            let node: Enode = url.parse().unwrap();
            assert_eq!((node.tcp, node.udp), (tcp, udp));
            assert_eq!(node.to_string(), url);
        }
        let node: Enode = format!("enode://{id}@[::ffff:1.2.3.4]:1").parse().unwrap();
        assert_eq!(node.ip, IpAddr::from([1, 2, 3, 4]));
    }

    #[test]
    fn what_is_no_url_of_a_node_is_refused_by_its_fault() {
        let id = hex::encode(NodeKey::from_hex(&"01".repeat(32)).unwrap().id());
        for (url, fault) in [
            ("http://1.2.3.4".into(), EnodeFault::Scheme),
            (format!("enode://{id}"), EnodeFault::At),
            (format!("enode://{}@1.2.3.4:5", &id[1..]), EnodeFault::Id),
            (format!("enode://{}@1.2.3.4:5", "é".repeat(64)), EnodeFault::Id),
            (format!("enode://{}@1.2.3.4:5", "ab".repeat(64)), EnodeFault::Key),
            (format!("enode://{id}@example.org:5"), EnodeFault::Address),
            (format!("enode://{id}@1.2.3.4"), EnodeFault::Address),
            (format!("enode://{id}@1.2.3.4:65536"), EnodeFault::Address),
            (format!("enode://{id}@1.2.3.4:5?x=1"), EnodeFault::Query),
            (format!("enode://{id}@1.2.3.4:5?discport=70000"), EnodeFault::Query),
        ] {
            assert_eq!(url.parse::<Enode>().unwrap_err().error, fault, "{url}");
        }
    }
}
