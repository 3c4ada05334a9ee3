//! Node records (ENR, EIP-778): the local one, and the content of others.

use super::{
    enode::{Enode, EnodeError, EnodeFault},
    key::NodeKey,
};
use crate::eth::PeerId;
use alloy_eip2124::{EnrForkIdEntry, ForkId};
use enr::{CombinedKey, CombinedPublicKey, EnrPublicKey, Error as EnrError};
use parking_lot::Mutex;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;

/// A signed node record (EIP-778). Its signature is valid, since decoding checks it.
pub type Enr = discv5::Enr;

/// Maximum bytes of a record (EIP-778).
pub(super) const MAX_RECORD_BYTES: usize = 300;
/// Key of the entry with the fork id.
const ETH: &str = "eth";

/// The node id of a record; `None` if its key is not of secp256k1.
pub(crate) fn id(record: &Enr) -> Option<PeerId> {
    match record.public_key() {
        CombinedPublicKey::Secp256k1(key) => Some(PeerId::from(key.encode_uncompressed())),
        CombinedPublicKey::Ed25519(_) => None,
    }
}

/// The fork id in a record, if it has a valid one.
pub(crate) fn fork_id(record: &Enr) -> Option<ForkId> {
    record.get_decodable::<EnrForkIdEntry>(ETH)?.ok().map(ForkId::from)
}

/// The address in a record, by IPv4 if it has that. A missing port is 0. `None` if it has no
/// address, or no key of secp256k1.
pub(crate) fn enode(record: &Enr) -> Option<Enode> {
    let id = id(record)?;
    let (ip, tcp, udp) = match (record.ip4(), record.ip6()) {
        (Some(ip), _) => (IpAddr::V4(ip), record.tcp4(), record.udp4()),
        // The IPv4 ports also hold for IPv6, unless the record has IPv6 ports.
        (None, Some(ip)) => (
            IpAddr::V6(ip).to_canonical(),
            record.tcp6().or_else(|| record.tcp4()),
            record.udp6().or_else(|| record.udp4()),
        ),
        (None, None) => return None,
    };
    Some(Enode { id, ip, tcp: tcp.unwrap_or(0), udp: udp.unwrap_or(0) })
}

/// Decodes a record. No bytes may follow it.
pub(super) fn decode(bytes: &[u8]) -> alloy_rlp::Result<Enr> {
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(alloy_rlp::Error::Custom("a record has more than 300 bytes"));
    }
    let mut rest = bytes;
    let record = alloy_rlp::Decodable::decode(&mut rest)?;
    if !rest.is_empty() {
        return Err(alloy_rlp::Error::Custom("something follows the record"));
    }
    Ok(record)
}

/// Parses a record in text form: `enr:` and base64.
pub(super) fn from_text(text: &str) -> Option<Enr> {
    let text = text.strip_prefix("enr:")?;
    // Four digits for three bytes, without padding.
    if text.len() > MAX_RECORD_BYTES.div_ceil(3) * 4 {
        return None;
    }
    decode(&data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()
}

/// A boot node: an `enode://` URL, or a node record as text.
#[derive(Clone, Debug)]
pub struct Bootnode {
    /// Its address.
    pub enode: Enode,
    /// Its record, if it was given as one.
    pub record: Option<Enr>,
}

impl From<Enode> for Bootnode {
    fn from(enode: Enode) -> Self {
        Self { enode, record: None }
    }
}

impl FromStr for Bootnode {
    type Err = EnodeError;

    fn from_str(text: &str) -> Result<Self, EnodeError> {
        if !text.starts_with("enr:") {
            return text.parse().map(|enode: Enode| enode.into());
        }
        let fault = |error| EnodeError { url: text.chars().take(300).collect(), error };
        let record = from_text(text).ok_or_else(|| fault(EnodeFault::Record))?;
        let place = enode(&record).filter(|node| node.udp != 0);
        let enode = place.ok_or_else(|| fault(EnodeFault::Incomplete))?;
        Ok(Self { enode, record: Some(record) })
    }
}

/// The node record of this node. Each change increments the sequence number and signs it again.
pub(crate) struct LocalEnr {
    key: CombinedKey,
    record: Mutex<Enr>,
    changes: watch::Sender<Enr>,
}

/// The local record cannot be made or changed.
#[derive(Debug, thiserror::Error)]
#[error("this node's record: {0:?}")]
pub struct RecordError(EnrError);

impl LocalEnr {
    /// Makes a record with the node's ports, fork id, and address if known.
    ///
    /// Its first sequence number is the time in milliseconds, so that it grows over restarts: nodes
    /// that have an older record accept only a greater number.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub(super) fn new(
        key: &NodeKey,
        ip: Option<IpAddr>,
        tcp: u16,
        udp: SocketAddr,
        fork: ForkId,
    ) -> Result<Self, RecordError> {
        let mut secret = key.secret().secret_bytes();
        let key = CombinedKey::secp256k1_from_bytes(&mut secret)
            .map_err(|_| RecordError(EnrError::SigningError))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut builder = Enr::builder();
        builder.seq(u64::try_from(now.as_millis()).unwrap_or(1).max(1));
        builder.add_value(ETH, &EnrForkIdEntry { fork_id: fork });
        if ip.unwrap_or_else(|| udp.ip()).is_ipv4() {
            builder.tcp4(tcp).udp4(udp.port());
        } else {
            builder.tcp6(tcp).udp6(udp.port());
        }
        if let Some(ip) = ip {
            builder.ip(ip);
        }
        let record = builder.build(&key).map_err(RecordError)?;
        let (changes, _) = watch::channel(record.clone());
        Ok(Self { key, record: Mutex::new(record), changes })
    }

    /// The current record.
    pub(crate) fn get(&self) -> Enr {
        self.record.lock().clone()
    }

    /// The current sequence number.
    pub(crate) fn seq(&self) -> u64 {
        self.record.lock().seq()
    }

    /// The address in the record, if known.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let record = self.record.lock();
        record.ip4().map(IpAddr::V4).or_else(|| record.ip6().map(IpAddr::V6))
    }

    /// Watches the record.
    pub(super) fn watch(&self) -> watch::Receiver<Enr> {
        self.changes.subscribe()
    }

    /// A copy of the key for the `discv5` crate, which signs its own copy of the record.
    pub(super) fn signing_key(&self) -> Result<CombinedKey, RecordError> {
        let mut bytes = self.key.encode();
        CombinedKey::secp256k1_from_bytes(&mut bytes)
            .map_err(|_| RecordError(EnrError::SigningError))
    }

    /// Sets the fork id.
    pub(super) fn set_fork_id(&self, fork: ForkId) -> Result<(), RecordError> {
        let mut record = self.record.lock();
        if fork_id(&record) != Some(fork) {
            let entry = EnrForkIdEntry { fork_id: fork };
            record.insert(ETH, &entry, &self.key).map_err(RecordError)?;
            self.changes.send_replace(record.clone());
        }
        Ok(())
    }

    /// Sets the address. True if it has changed.
    pub(super) fn set_ip(&self, ip: IpAddr) -> Result<bool, RecordError> {
        let mut record = self.record.lock();
        let known = match ip {
            IpAddr::V4(ip) => record.ip4() == Some(ip),
            IpAddr::V6(ip) => record.ip6() == Some(ip),
        };
        if !known {
            record.set_ip(ip, &self.key).map_err(RecordError)?;
            self.changes.send_replace(record.clone());
        }
        Ok(!known)
    }
}

impl fmt::Debug for LocalEnr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalRecord").field(&self.get().to_base64()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_eip2124::ForkHash;
    use alloy_rlp::Encodable;

    fn local() -> (NodeKey, LocalEnr) {
        let key = NodeKey::random();
        let fork = ForkId { hash: ForkHash([1, 2, 3, 4]), next: 5 };
        let udp = ([127, 0, 0, 1], 30304).into();
        let record = LocalEnr::new(&key, None, 30303, udp, fork).unwrap();
        (key, record)
    }

    #[test]
    fn every_change_is_signed_under_the_next_number() {
        let (key, local) = local();
        let mut changes = local.watch();
        let first = local.get();
        assert!(first.seq() > 1_600_000_000_000, "a clock in milliseconds");
        assert_eq!((id(&first), local.ip(), enode(&first)), (Some(key.id()), None, None));
        assert!(local.set_ip([203, 0, 113, 7].into()).unwrap());
        assert!(!local.set_ip([203, 0, 113, 7].into()).unwrap());
        let fork = ForkId { hash: ForkHash([9; 4]), next: 0 };
        local.set_fork_id(fork).unwrap();
        local.set_fork_id(fork).unwrap();
        let last = local.get();
        assert_eq!(last.seq(), first.seq() + 2);
        assert!(last.verify());
        assert_eq!(fork_id(&last), Some(fork));
        let node = enode(&last).unwrap();
        assert_eq!((node.tcp, node.udp, node.id), (30303, 30304, key.id()));
        assert_eq!(*changes.borrow_and_update(), last);
        let boot: Bootnode = last.to_base64().parse().unwrap();
        assert_eq!((boot.enode, boot.record), (node, Some(last)));
    }

    #[test]
    fn the_eth_entry_may_have_more_than_the_fork_id() {
        let (_, local) = local();
        // [[hash, next], 7]: EIP-2124 allows further elements.
        let mut record = local.get();
        let inner = ForkId { hash: ForkHash([1, 2, 3, 4]), next: 5 };
        let mut payload = alloy_rlp::encode(inner);
        7_u8.encode(&mut payload);
        let mut value = Vec::new();
        alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut value);
        value.extend_from_slice(&payload);
        record.insert_raw_rlp(ETH, value.into(), &local.key).unwrap();
        assert_eq!(fork_id(&record), Some(inner));
        record.insert(ETH, &7_u8, &local.key).unwrap();
        assert_eq!(fork_id(&record), None);
    }

    #[test]
    fn bytes_changed_anywhere_make_no_record() {
        let (_, local) = local();
        let bytes = alloy_rlp::encode(local.get());
        assert!(decode(&bytes).is_ok());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(decode(&changed).is_err(), "byte {at}, bit {bit}");
            }
            assert!(decode(&bytes[..at]).is_err());
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(decode(&longer).is_err());
        assert!(from_text(&format!("enr:{}", "A".repeat(401))).is_none());
        for text in ["enr:", "enr:!", "enr:é", "x"] {
            assert!(text.parse::<Bootnode>().is_err(), "{text}");
        }
    }
}
