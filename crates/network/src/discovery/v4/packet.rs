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
//! More elements than these, and bytes after the list, are let pass (EIP-8). What is cheap is checked
//! first: the public key, which is recovered from the signature, comes last.

use super::super::{
    enode::{Enode, is_key},
    key::{NodeKey, id_of},
    record::{self, MAX_RECORD_BYTES, Record},
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

/// Bytes of a packet at most.
pub(crate) const MAX_PACKET_BYTES: usize = 1280;
/// Hash and signature.
const PREFIX: usize = 32 + 65;
/// Nodes of a packet of neighbours: what is within the limit if all have IPv6.
pub(super) const NEIGHBOURS: usize = 12;
/// How long a packet of ours is good, in seconds.
const LIFE: u64 = 20;

/// An address as packets have it. What they say of their sender is not used, and may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// None if it is of no length that addresses have.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) udp: u16,
    pub(crate) tcp: u16,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Packet {
    Ping {
        from: Endpoint,
        to: Endpoint,
        expiration: u64,
        seq: Option<u64>,
    },
    Pong {
        to: Endpoint,
        ping: B256,
        expiration: u64,
        seq: Option<u64>,
    },
    FindNode {
        target: PeerId,
        expiration: u64,
    },
    /// Those that are no nodes are left out.
    Neighbours {
        nodes: Vec<Enode>,
        expiration: u64,
    },
    AskRecord {
        expiration: u64,
    },
    Record {
        request: B256,
        record: Box<Record>,
    },
}

/// Why bytes are no packet.
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

impl Endpoint {
    pub(crate) const fn new(address: SocketAddr, tcp: u16) -> Self {
        Self { ip: Some(address.ip()), udp: address.port(), tcp }
    }
}

/// When a packet that is made now expires, in seconds since 1970.
pub(crate) fn expiration() -> u64 {
    now() + LIFE
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Packet {
    /// The packet in bytes, and its hash.
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
                    let address = Endpoint::new(node.udp_address(), node.tcp);
                    put_address(&address, &mut fields);
                    node.id.encode(&mut fields);
                    put_list(&fields, &mut list);
                }
                put_list(&list, &mut fields);
                expiration.encode(&mut fields);
                4
            }
            Self::AskRecord { expiration } => {
                expiration.encode(&mut fields);
                5
            }
            Self::Record { request, record } => {
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

    /// A packet that has not expired, who has signed it, and its hash.
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
            // Some write times before 1970 as what is left of 2^64.
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

    /// When it ends, in seconds since 1970; an answer with a record names its question instead.
    const fn expiration(&self) -> Option<u64> {
        match self {
            Self::Ping { expiration, .. }
            | Self::Pong { expiration, .. }
            | Self::FindNode { expiration, .. }
            | Self::Neighbours { expiration, .. }
            | Self::AskRecord { expiration } => Some(*expiration),
            Self::Record { .. } => None,
        }
    }

    /// The content of a packet of type `kind`, from the list on.
    fn decode_content(kind: u8, mut bytes: &[u8]) -> Result<Self, PacketError> {
        if !(1..=6).contains(&kind) {
            return Err(PacketError::Type(kind));
        }
        let mut fields = Header::decode_bytes(&mut bytes, true)?;
        let fields = &mut fields;
        let packet = match kind {
            1 => {
                // The version: others than 4 are let pass (EIP-8).
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
            5 => Self::AskRecord { expiration: u64::decode(fields)? },
            _ => {
                let request = B256::decode(fields)?;
                let record = record::decode(element(fields)?)?;
                Self::Record { request, record: Box::new(record) }
            }
        };
        Ok(packet)
    }
}

fn put_list(content: &[u8], to: &mut Vec<u8>) {
    Header { list: true, payload_length: content.len() }.encode(to);
    to.extend_from_slice(content);
}

fn put_address(endpoint: &Endpoint, to: &mut Vec<u8>) {
    match endpoint.ip {
        Some(IpAddr::V4(ip)) => ip.octets().as_slice().encode(to),
        Some(IpAddr::V6(ip)) => ip.octets().as_slice().encode(to),
        None => to.push(EMPTY_STRING_CODE),
    }
    endpoint.udp.encode(to);
    endpoint.tcp.encode(to);
}

fn put_endpoint(endpoint: &Endpoint, to: &mut Vec<u8>) {
    let mut fields = Vec::new();
    put_address(endpoint, &mut fields);
    put_list(&fields, to);
}

fn get_address(fields: &mut &[u8]) -> alloy_rlp::Result<Endpoint> {
    let bytes = Header::decode_bytes(fields, false)?;
    let ip = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    let ip = ip.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok());
    let (udp, tcp) = (u16::decode(fields)?, u16::decode(fields)?);
    Ok(Endpoint { ip: ip.map(|ip| ip.to_canonical()), udp, tcp })
}

fn get_endpoint(fields: &mut &[u8]) -> alloy_rlp::Result<Endpoint> {
    get_address(&mut Header::decode_bytes(fields, true)?)
}

/// What comes after the fields of before EIP-868: a sequence number, or whatever else there is.
fn get_seq(fields: &mut &[u8]) -> Option<u64> {
    u64::decode(fields).ok()
}

/// The next element, with its header.
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

// An answer with a record is within the limit: hash, header and prefix need less than 140 bytes.
const _: () = assert!(PREFIX + 1 + 3 + 33 + MAX_RECORD_BYTES <= MAX_PACKET_BYTES);

/// Content as it is behind the signature: the type, and the list.
#[cfg(test)]
pub(in crate::discovery) fn fuzz() -> crate::fuzz::Decoder {
    crate::fuzz::Decoder {
        name: "discv4",
        seeds: tests::fuzz_seeds(),
        run: |bytes| {
            let content = bytes.split_first();
            content.is_some_and(|(kind, rest)| Packet::decode_content(*kind, rest).is_ok())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::record::LocalRecord, *};
    use crate::vectors::vectors;
    use alloy_eip2124::{ForkHash, ForkId};
    use alloy_primitives::hex;

    fn endpoint(ip: [u8; 4]) -> Endpoint {
        Endpoint { ip: Some(ip.into()), udp: 30303, tcp: 30304 }
    }

    fn all_kinds(key: &NodeKey) -> Vec<Packet> {
        let id = key.id();
        let fork = ForkId { hash: ForkHash([1; 4]), next: 0 };
        let udp = ([1, 2, 3, 4], 5).into();
        let record = LocalRecord::new(key, Some([1, 2, 3, 4].into()), 6, udp, fork).unwrap();
        let node = |ip: &str| Enode { id, ip: ip.parse().unwrap(), tcp: 1, udp: 2 };
        let v6 = node("2001:db8::1");
        let (from, to) = (endpoint([1, 2, 3, 4]), endpoint([5, 6, 7, 8]));
        let expiration = expiration();
        vec![
            Packet::Ping { from, to, expiration, seq: Some(7) },
            Packet::Ping { from: Endpoint { ip: None, ..from }, to, expiration, seq: None },
            Packet::Pong { to, ping: B256::repeat_byte(3), expiration, seq: Some(u64::MAX) },
            Packet::FindNode { target: id, expiration },
            Packet::Neighbours { nodes: vec![], expiration },
            Packet::Neighbours { nodes: vec![node("1.2.3.4"), v6], expiration },
            Packet::Neighbours { nodes: vec![v6; NEIGHBOURS], expiration },
            Packet::AskRecord { expiration },
            Packet::Record { request: B256::repeat_byte(4), record: Box::new(record.get()) },
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
            assert_eq!(Packet::decode(&bytes), Ok((packet, key.id(), hash)));
        }
    }

    /// The vectors of EIP-8: more elements, more bytes. They have expired in 2006.
    #[test]
    fn packets_with_more_than_is_known_are_read() {
        let Some(vectors) = vectors("discv4-eip8.json") else { return };
        let signer = NodeKey::from_hex(vectors["signing_key"].as_str().unwrap()).unwrap();
        let packets = vectors["packets"].as_array().unwrap();
        assert!(packets.len() >= 3);
        for packet in packets {
            let bytes = hex::decode(packet["packet"].as_str().unwrap()).unwrap();
            let (decoded, id, _) = Packet::decode_at(1_136_239_445, &bytes).unwrap();
            assert_eq!(id, signer.id());
            let kind = match decoded {
                Packet::Ping { seq, .. } => {
                    assert!(seq.is_some());
                    "ping"
                }
                Packet::Pong { .. } => "pong",
                Packet::FindNode { .. } => "findnode",
                Packet::Neighbours { nodes, .. } => {
                    assert_eq!(nodes.len(), 4);
                    "neighbours"
                }
                Packet::AskRecord { .. } | Packet::Record { .. } => unreachable!(),
            };
            assert_eq!(packet["type"].as_str().unwrap().replace("neighbors", "neighbours"), kind);
        }
    }

    /// Signs whatever content there is.
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
                assert_eq!(Packet::decode(&forged), Err(PacketError::Hash), "byte {at}");
                // With a right hash the signature is another's, or none.
                let hash = keccak256(&forged[32..]);
                forged[..32].copy_from_slice(hash.as_slice());
                if at >= 32 {
                    assert!(Packet::decode(&forged).map_or(true, |(_, id, _)| id != key.id()));
                }
            }
        }
        assert_eq!(Packet::decode(&[0; PREFIX]), Err(PacketError::Size(PREFIX)));
        assert_eq!(Packet::decode(&[0; 1281]), Err(PacketError::Size(1281)));
        let wrong = |kind| sign(&[kind, 0xc0], &key);
        assert_eq!(Packet::decode(&wrong(0)), Err(PacketError::Type(0)));
        assert_eq!(Packet::decode(&wrong(66)), Err(PacketError::Type(66)));
        let mut recovery = wrong(5);
        recovery[96] = 4;
        assert!(Packet::decode(&recovery).is_err());
    }

    #[test]
    fn expired_packets_are_refused() {
        let key = NodeKey::random();
        for expiration in [0, 1, now() - 1, u64::MAX, 1 << 63, now().wrapping_neg()] {
            let (from, to) = (endpoint([1; 4]), endpoint([2; 4]));
            for packet in [
                Packet::Ping { from, to, expiration, seq: None },
                Packet::Pong { to, ping: B256::ZERO, expiration, seq: None },
                Packet::FindNode { target: key.id(), expiration },
                Packet::Neighbours { nodes: vec![], expiration },
                Packet::AskRecord { expiration },
            ] {
                let (bytes, _) = packet.encode(&key);
                assert_eq!(Packet::decode(&bytes), Err(PacketError::Expired(expiration)));
            }
        }
    }
}
