//! Packets of discovery version 4, with EIP-8 and EIP-868.
//!
//! ```text
//!  packet = hash (32), signature (65), type (1), RLP list
//!  hash   = keccak256 of all that follows it; signature = of keccak256(type, list), r, s, v
//!
//!  1 ping         [4, from, to, expiration, seq]       endpoint = [ip, udp, tcp]
//!  2 pong         [to, hash of ping, expiration, seq]
//!  3 find node    [target (64), expiration]
//!  4 neighbours   [[[ip, udp, tcp, id (64)], ..], expiration]
//!  5 ask record   [expiration]
//!  6 record       [hash of request, record]
//! ```
//!
//! Additional elements, and bytes after the list, are ignored (EIP-8). Cheap checks come first: the
//! recovery of the public key from the signature is last.

use super::super::{
    enode::{Enode, is_key},
    key::{NodeKey, id_of},
    record::{self, Enr, MAX_RECORD_BYTES},
};
use crate::eth::PeerId;
use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Decodable, EMPTY_STRING_CODE, Encodable, Header};
use secp256k1::{
    Message, SECP256K1,
    ecdsa::{RecoverableSignature, RecoveryId},
};
use std::{
    net::{IpAddr, SocketAddr},
    time::{SystemTime, UNIX_EPOCH},
};

/// Maximum bytes of a packet.
pub(crate) const MAX_PACKET_BYTES: usize = 1280;
/// Bytes of hash and signature.
const PREFIX: usize = 32 + 65;
/// Number of nodes in a neighbours packet: what fits if all have IPv6 addresses.
pub(super) const NEIGHBOURS: usize = 12;
/// How long a packet of this node is valid, in seconds.
const LIFE: u64 = 20;

/// An address in a packet. What a packet says about its sender is not used, and may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeEndpoint {
    /// `None` if its length is that of no address.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) udp: u16,
    pub(crate) tcp: u16,
}

/// A packet of discovery version 4.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Discv4Packet {
    Ping {
        from: NodeEndpoint,
        to: NodeEndpoint,
        expiration: u64,
        seq: Option<u64>,
    },
    Pong {
        to: NodeEndpoint,
        ping: B256,
        expiration: u64,
        seq: Option<u64>,
    },
    FindNode {
        target: PeerId,
        expiration: u64,
    },
    /// Entries that are no valid nodes are skipped.
    Neighbours {
        nodes: Vec<Enode>,
        expiration: u64,
    },
    EnrRequest {
        expiration: u64,
    },
    EnrResponse {
        request: B256,
        record: Box<Enr>,
    },
}

/// Why bytes are no valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PacketError {
    #[error("a packet of {0} bytes; 98 to 1280 are allowed")]
    Size(usize),
    #[error("the hash of the packet is wrong")]
    Hash,
    #[error("packets of type {0} are unknown")]
    Type(u8),
    #[error("the packet's content: {0}")]
    Rlp(#[from] alloy_rlp::Error),
    #[error("the packet has expired at {0} s")]
    Expired(u64),
    #[error("the signature of the packet is wrong")]
    Signature,
}

impl NodeEndpoint {
    pub(crate) const fn new(address: SocketAddr, tcp: u16) -> Self {
        Self { ip: Some(address.ip()), udp: address.port(), tcp }
    }
}

/// The expiration of a packet that is made now, in seconds since 1970.
pub(crate) fn expiration() -> u64 {
    now() + LIFE
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Discv4Packet {
    /// Encodes and signs the packet. Returns its bytes and its hash.
    pub(crate) fn encode(&self, key: &NodeKey) -> (Vec<u8>, B256) {
        let mut fields = Vec::new();
        let kind = match self {
            Self::Ping { from, to, expiration, seq } => {
                4_u8.encode(&mut fields);
                put_endpoint(from, &mut fields);
                put_endpoint(to, &mut fields);
                expiration.encode(&mut fields);
                seq.iter().for_each(|seq| seq.encode(&mut fields));
                1
            }
            Self::Pong { to, ping, expiration, seq } => {
                put_endpoint(to, &mut fields);
                ping.encode(&mut fields);
                expiration.encode(&mut fields);
                seq.iter().for_each(|seq| seq.encode(&mut fields));
                2
            }
            Self::FindNode { target, expiration } => {
                target.encode(&mut fields);
                expiration.encode(&mut fields);
                3
            }
            Self::Neighbours { nodes, expiration } => {
                let mut list = Vec::new();
                for node in nodes {
                    let mut fields = Vec::new();
                    let address = NodeEndpoint::new(node.udp_address(), node.tcp);
                    put_address(&address, &mut fields);
                    node.id.encode(&mut fields);
                    put_list(&fields, &mut list);
                }
                put_list(&list, &mut fields);
                expiration.encode(&mut fields);
                4
            }
            Self::EnrRequest { expiration } => {
                expiration.encode(&mut fields);
                5
            }
            Self::EnrResponse { request, record } => {
                request.encode(&mut fields);
                record.encode(&mut fields);
                6
            }
        };
        let mut packet = vec![0; PREFIX];
        packet.push(kind);
        put_list(&fields, &mut packet);
        let digest = keccak256(&packet[PREFIX..]);
        let signature =
            SECP256K1.sign_ecdsa_recoverable(Message::from_digest(digest.0), key.secret());
        let (recovery, compact) = signature.serialize_compact();
        packet[32..96].copy_from_slice(&compact);
        packet[96] = i32::from(recovery) as u8;
        let hash = keccak256(&packet[32..]);
        packet[..32].copy_from_slice(hash.as_slice());
        (packet, hash)
    }

    /// Decodes a packet and checks its expiration. Returns the packet, its signer, and its hash.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, PeerId, B256), PacketError> {
        Self::decode_at(now(), bytes)
    }

    fn decode_at(now: u64, bytes: &[u8]) -> Result<(Self, PeerId, B256), PacketError> {
        if bytes.len() <= PREFIX || bytes.len() > MAX_PACKET_BYTES {
            return Err(PacketError::Size(bytes.len()));
        }
        let hash = keccak256(&bytes[32..]);
        if hash != bytes[..32] {
            return Err(PacketError::Hash);
        }
        let packet = Self::decode_content(bytes[PREFIX], &bytes[PREFIX + 1..])?;
        if let Some(expiration) = packet.expiration()
            // Some clients encode times before 1970 as numbers close to 2^64.
            && (expiration < now || i64::try_from(expiration).is_err())
        {
            return Err(PacketError::Expired(expiration));
        }
        let digest = keccak256(&bytes[PREFIX..]);
        let recovery = RecoveryId::try_from(i32::from(bytes[96]));
        let signer = recovery
            .and_then(|recovery| RecoverableSignature::from_compact(&bytes[32..96], recovery))
            .and_then(|signature| {
                SECP256K1.recover_ecdsa(Message::from_digest(digest.0), &signature)
            })
            .map_err(|_| PacketError::Signature)?;
        Ok((packet, id_of(&signer), hash))
    }

    /// The expiration, in seconds since 1970. A record answer has none; it names its request
    /// instead.
    const fn expiration(&self) -> Option<u64> {
        match self {
            Self::Ping { expiration, .. }
            | Self::Pong { expiration, .. }
            | Self::FindNode { expiration, .. }
            | Self::Neighbours { expiration, .. }
            | Self::EnrRequest { expiration } => Some(*expiration),
            Self::EnrResponse { .. } => None,
        }
    }

    /// Decodes the content of a packet of type `kind`, from the list on.
    fn decode_content(kind: u8, mut bytes: &[u8]) -> Result<Self, PacketError> {
        if !(1..=6).contains(&kind) {
            return Err(PacketError::Type(kind));
        }
        let mut fields = Header::decode_bytes(&mut bytes, true)?;
        let fields = &mut fields;
        let packet = match kind {
            1 => {
                // The version: others than 4 are accepted (EIP-8).
                skip(fields)?;
                let (from, to) = (get_endpoint(fields)?, get_endpoint(fields)?);
                let expiration = u64::decode(fields)?;
                Self::Ping { from, to, expiration, seq: get_seq(fields) }
            }
            2 => {
                let (to, ping) = (get_endpoint(fields)?, B256::decode(fields)?);
                let expiration = u64::decode(fields)?;
                Self::Pong { to, ping, expiration, seq: get_seq(fields) }
            }
            3 => {
                let target = PeerId::decode(fields)?;
                Self::FindNode { target, expiration: u64::decode(fields)? }
            }
            4 => {
                let mut list = Header::decode_bytes(fields, true)?;
                let mut nodes = Vec::new();
                while !list.is_empty() {
                    let mut node = Header::decode_bytes(&mut list, true)?;
                    let at = get_address(&mut node)?;
                    let id = PeerId::decode(&mut node)?;
                    if let (Some(ip), true) = (at.ip, is_key(&id)) {
                        nodes.push(Enode { id, ip, tcp: at.tcp, udp: at.udp });
                    }
                }
                Self::Neighbours { nodes, expiration: u64::decode(fields)? }
            }
            5 => Self::EnrRequest { expiration: u64::decode(fields)? },
            _ => {
                let request = B256::decode(fields)?;
                let record = record::decode(element(fields)?)?;
                Self::EnrResponse { request, record: Box::new(record) }
            }
        };
        Ok(packet)
    }
}

fn put_list(content: &[u8], to: &mut Vec<u8>) {
    Header { list: true, payload_length: content.len() }.encode(to);
    to.extend_from_slice(content);
}

fn put_address(endpoint: &NodeEndpoint, to: &mut Vec<u8>) {
    match endpoint.ip {
        Some(IpAddr::V4(ip)) => ip.octets().as_slice().encode(to),
        Some(IpAddr::V6(ip)) => ip.octets().as_slice().encode(to),
        None => to.push(EMPTY_STRING_CODE),
    }
    endpoint.udp.encode(to);
    endpoint.tcp.encode(to);
}

fn put_endpoint(endpoint: &NodeEndpoint, to: &mut Vec<u8>) {
    let mut fields = Vec::new();
    put_address(endpoint, &mut fields);
    put_list(&fields, to);
}

fn get_address(fields: &mut &[u8]) -> alloy_rlp::Result<NodeEndpoint> {
    let bytes = Header::decode_bytes(fields, false)?;
    let ip = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    let ip = ip.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok());
    let (udp, tcp) = (u16::decode(fields)?, u16::decode(fields)?);
    Ok(NodeEndpoint { ip: ip.map(|ip| ip.to_canonical()), udp, tcp })
}

fn get_endpoint(fields: &mut &[u8]) -> alloy_rlp::Result<NodeEndpoint> {
    get_address(&mut Header::decode_bytes(fields, true)?)
}

/// The optional field after the fields from before EIP-868: a sequence number, or something else.
fn get_seq(fields: &mut &[u8]) -> Option<u64> {
    u64::decode(fields).ok()
}

/// The next element, with its RLP header.
fn element<'a>(fields: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    let all = *fields;
    skip(fields)?;
    Ok(&all[..all.len() - fields.len()])
}

fn skip(fields: &mut &[u8]) -> alloy_rlp::Result<()> {
    let header = Header::decode(fields)?;
    let rest = fields.get(header.payload_length..).ok_or(alloy_rlp::Error::InputTooShort)?;
    *fields = rest;
    Ok(())
}

// A record answer fits: hash, header and prefix need less than 140 bytes.
const _: () = assert!(PREFIX + 1 + 3 + 33 + MAX_RECORD_BYTES <= MAX_PACKET_BYTES);

/// The content after the signature: the type, and the list.
#[cfg(test)]
pub(in crate::discovery) fn fuzz() -> crate::fuzz::FuzzDecoder {
    crate::fuzz::FuzzDecoder {
        name: "discv4",
        seeds: tests::fuzz_seeds(),
        run: |bytes| {
            let content = bytes.split_first();
            content.is_some_and(|(kind, rest)| Discv4Packet::decode_content(*kind, rest).is_ok())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::record::LocalEnr, *};
    use crate::vectors::vectors;
    use alloy_eip2124::{ForkHash, ForkId};
    use alloy_primitives::hex;

    fn endpoint(ip: [u8; 4]) -> NodeEndpoint {
        NodeEndpoint { ip: Some(ip.into()), udp: 30303, tcp: 30304 }
    }

    fn all_kinds(key: &NodeKey) -> Vec<Discv4Packet> {
        let id = key.id();
        let fork = ForkId { hash: ForkHash([1; 4]), next: 0 };
        let udp = ([1, 2, 3, 4], 5).into();
        let record = LocalEnr::new(key, Some([1, 2, 3, 4].into()), 6, udp, fork).unwrap();
        let node = |ip: &str| Enode { id, ip: ip.parse().unwrap(), tcp: 1, udp: 2 };
        let v6 = node("2001:db8::1");
        let (from, to) = (endpoint([1, 2, 3, 4]), endpoint([5, 6, 7, 8]));
        let expiration = expiration();
        vec![
            Discv4Packet::Ping { from, to, expiration, seq: Some(7) },
            Discv4Packet::Ping {
                from: NodeEndpoint { ip: None, ..from },
                to,
                expiration,
                seq: None,
            },
            Discv4Packet::Pong { to, ping: B256::repeat_byte(3), expiration, seq: Some(u64::MAX) },
            Discv4Packet::FindNode { target: id, expiration },
            Discv4Packet::Neighbours { nodes: vec![], expiration },
            Discv4Packet::Neighbours { nodes: vec![node("1.2.3.4"), v6], expiration },
            Discv4Packet::Neighbours { nodes: vec![v6; NEIGHBOURS], expiration },
            Discv4Packet::EnrRequest { expiration },
            Discv4Packet::EnrResponse {
                request: B256::repeat_byte(4),
                record: Box::new(record.get()),
            },
        ]
    }

    pub(super) fn fuzz_seeds() -> Vec<Vec<u8>> {
        let key = NodeKey::random();
        let all = all_kinds(&key).into_iter();
        all.map(|packet| packet.encode(&key).0.split_off(PREFIX)).collect()
    }

    #[test]
    fn packets_of_all_kinds_come_back_within_the_limit() {
        let key = NodeKey::random();
        for packet in all_kinds(&key) {
            let (bytes, hash) = packet.encode(&key);
            assert!(bytes.len() <= MAX_PACKET_BYTES, "{} bytes", bytes.len());
            assert_eq!(Discv4Packet::decode(&bytes), Ok((packet, key.id(), hash)));
        }
    }

    /// The vectors of EIP-8: additional elements and bytes. They expired in 2006.
    #[test]
    fn packets_with_more_than_is_known_are_read() {
        let Some(vectors) = vectors("discv4-eip8.json") else { return };
        let signer = NodeKey::from_hex(vectors["signing_key"].as_str().unwrap()).unwrap();
        let packets = vectors["packets"].as_array().unwrap();
        assert!(packets.len() >= 3);
        for packet in packets {
            let bytes = hex::decode(packet["packet"].as_str().unwrap()).unwrap();
            let (decoded, id, _) = Discv4Packet::decode_at(1_136_239_445, &bytes).unwrap();
            assert_eq!(id, signer.id());
            let kind = match decoded {
                Discv4Packet::Ping { seq, .. } => {
                    assert!(seq.is_some());
                    "ping"
                }
                Discv4Packet::Pong { .. } => "pong",
                Discv4Packet::FindNode { .. } => "findnode",
                Discv4Packet::Neighbours { nodes, .. } => {
                    assert_eq!(nodes.len(), 4);
                    "neighbours"
                }
                Discv4Packet::EnrRequest { .. } | Discv4Packet::EnrResponse { .. } => {
                    unreachable!()
                }
            };
            assert_eq!(packet["type"].as_str().unwrap().replace("neighbors", "neighbours"), kind);
        }
    }

    /// Signs any content.
    fn sign(content: &[u8], key: &NodeKey) -> Vec<u8> {
        let mut packet = vec![0; PREFIX];
        packet.extend_from_slice(content);
        let digest = keccak256(content);
        let (recovery, compact) = SECP256K1
            .sign_ecdsa_recoverable(Message::from_digest(digest.0), key.secret())
            .serialize_compact();
        packet[32..96].copy_from_slice(&compact);
        packet[96] = i32::from(recovery) as u8;
        let hash = keccak256(&packet[32..]);
        packet[..32].copy_from_slice(hash.as_slice());
        packet
    }

    #[test]
    fn forged_packets_are_refused() {
        let key = NodeKey::random();
        for packet in all_kinds(&key) {
            let (bytes, _) = packet.encode(&key);
            for at in 0..bytes.len() {
                let mut forged = bytes.clone();
                forged[at] ^= 0x10;
                assert_eq!(Discv4Packet::decode(&forged), Err(PacketError::Hash), "byte {at}");
                // With a correct hash, the signature is of another key, or invalid.
                let hash = keccak256(&forged[32..]);
                forged[..32].copy_from_slice(hash.as_slice());
                if at >= 32 {
                    assert!(
                        Discv4Packet::decode(&forged).map_or(true, |(_, id, _)| id != key.id())
                    );
                }
            }
        }
        assert_eq!(Discv4Packet::decode(&[0; PREFIX]), Err(PacketError::Size(PREFIX)));
        assert_eq!(Discv4Packet::decode(&[0; 1281]), Err(PacketError::Size(1281)));
        let wrong = |kind| sign(&[kind, 0xc0], &key);
        assert_eq!(Discv4Packet::decode(&wrong(0)), Err(PacketError::Type(0)));
        assert_eq!(Discv4Packet::decode(&wrong(66)), Err(PacketError::Type(66)));
        let mut recovery = wrong(5);
        recovery[96] = 4;
        assert!(Discv4Packet::decode(&recovery).is_err());
    }

    #[test]
    fn expired_packets_are_refused() {
        let key = NodeKey::random();
        for expiration in [0, 1, now() - 1, u64::MAX, 1 << 63, now().wrapping_neg()] {
            let (from, to) = (endpoint([1; 4]), endpoint([2; 4]));
            for packet in [
                Discv4Packet::Ping { from, to, expiration, seq: None },
                Discv4Packet::Pong { to, ping: B256::ZERO, expiration, seq: None },
                Discv4Packet::FindNode { target: key.id(), expiration },
                Discv4Packet::Neighbours { nodes: vec![], expiration },
                Discv4Packet::EnrRequest { expiration },
            ] {
                let (bytes, _) = packet.encode(&key);
                assert_eq!(Discv4Packet::decode(&bytes), Err(PacketError::Expired(expiration)));
            }
        }
    }
}
