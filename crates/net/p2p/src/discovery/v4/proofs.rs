//! Endpoint proofs, and the packet budget of each address.

use super::super::{enode::Enode, net::is_local};
use crate::eth::PeerId;
use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// How long a proof is valid.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of proofs.
const MAX_PROOFS: usize = 16 * 1024;
/// Maximum number of packets from one address that are handled in a second. Local addresses are not
/// limited.
const PACKETS_PER_SECOND: u32 = 100;
/// Maximum number of addresses that are counted in a second; all further ones share one count.
const MAX_COUNTED: usize = 4096;

/// Which node has proven to be at which address: it has sent the answer to our ping from there.
/// Ports may change.
#[derive(Debug, Default)]
pub(super) struct ProofTable(HashMap<(PeerId, IpAddr), EndpointProof>);

#[derive(Clone, Copy, Debug)]
struct EndpointProof {
    /// When the node has answered our ping last.
    pong: Instant,
    /// When we have answered its ping last: then it may accept requests from us.
    ping: Option<Instant>,
}

impl ProofTable {
    /// Records that a node has answered our ping.
    pub(super) fn record_pong(&mut self, id: PeerId, ip: IpAddr, now: Instant) {
        if self.0.len() >= MAX_PROOFS && !self.0.contains_key(&(id, ip)) {
            self.0.retain(|_, proof| now.saturating_duration_since(proof.pong) < LIFE);
        }
        if self.0.len() >= MAX_PROOFS && !self.0.contains_key(&(id, ip)) {
            // The node of the oldest proof can prove itself again when it sends the next request.
            let oldest = self.0.iter().min_by_key(|(_, proof)| proof.pong).map(|(key, _)| *key);
            oldest.and_then(|key| self.0.remove(&key));
        }
        self.0
            .entry((id, ip))
            .and_modify(|proof| proof.pong = now)
            .or_insert(EndpointProof { pong: now, ping: None });
    }

    /// Records that we have answered a ping of a node; only if the node has a proof.
    pub(super) fn record_ping(&mut self, id: PeerId, ip: IpAddr, now: Instant) {
        if let Some(proof) = self.0.get_mut(&(id, ip)) {
            proof.ping = Some(now);
        }
    }

    /// Whether the node has a valid proof for this address.
    pub(super) fn has(&self, id: PeerId, ip: IpAddr, now: Instant) -> bool {
        self.0.get(&(id, ip)).is_some_and(|proof| now.saturating_duration_since(proof.pong) < LIFE)
    }

    /// Whether the node and we have both proven our endpoints.
    pub(super) fn mutual(&self, node: &Enode, now: Instant) -> bool {
        let fresh = |at: Instant| now.saturating_duration_since(at) < LIFE;
        self.0
            .get(&(node.id, node.ip))
            .is_some_and(|proof| fresh(proof.pong) && proof.ping.is_some_and(fresh))
    }
}

/// Counts packets by address, to bound the work and the answers that one address can cause.
#[derive(Debug)]
pub(super) struct PacketBudget {
    since: Instant,
    counts: HashMap<IpAddr, u32>,
    beyond: u32,
}

impl PacketBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, counts: HashMap::new(), beyond: 0 }
    }

    /// Whether one more packet from this address is handled.
    pub(super) fn allows(&mut self, ip: IpAddr, now: Instant) -> bool {
        if is_local(ip) {
            return true;
        }
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.counts.clear();
            self.beyond = 0;
        }
        let full = self.counts.len() >= MAX_COUNTED && !self.counts.contains_key(&ip);
        let count = if full { &mut self.beyond } else { self.counts.entry(ip).or_default() };
        *count += 1;
        *count <= PACKETS_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    fn node(at: u32) -> Enode {
        let mut id = PeerId::ZERO;
        id.0[..4].copy_from_slice(&at.to_be_bytes());
        Enode { id, ip: [8, 8, 8, 8].into(), tcp: 1, udp: 2 }
    }

    #[test]
    fn a_proof_is_of_one_node_at_one_address_for_a_day() {
        let (now, node) = (Instant::now(), node(1));
        let mut proofs = ProofTable::default();
        proofs.record_ping(node.id, node.ip, now);
        assert!(!proofs.has(node.id, node.ip, now), "a ping proves nothing");
        proofs.record_pong(node.id, node.ip, now);
        assert!(proofs.has(node.id, node.ip, now) && !proofs.mutual(&node, now));
        assert!(!proofs.has(node.id, [8, 8, 8, 9].into(), now));
        assert!(!proofs.has(self::node(2).id, node.ip, now));
        proofs.record_ping(node.id, node.ip, now);
        assert!(proofs.mutual(&node, now));
        assert!(!proofs.has(node.id, node.ip, now + LIFE));
        assert!(!proofs.mutual(&node, now + LIFE));
    }

    #[test]
    fn the_oldest_proofs_make_way() {
        let mut now = Instant::now();
        let mut proofs = ProofTable::default();
        for at in 0..MAX_PROOFS as u32 + 10 {
            now += Duration::from_millis(1);
            proofs.record_pong(node(at).id, node(at).ip, now);
        }
        assert_eq!(proofs.0.len(), MAX_PROOFS);
        assert!(!proofs.has(node(9).id, node(9).ip, now));
        assert!(proofs.has(node(10).id, node(10).ip, now));
    }

    #[test]
    fn one_address_is_heard_so_often_a_second_and_a_local_one_always() {
        let now = Instant::now();
        let mut budget = PacketBudget::new(now);
        let ip = [8, 8, 8, 8].into();
        let heard = (0..1000).filter(|_| budget.allows(ip, now)).count();
        assert_eq!(heard, PACKETS_PER_SECOND as usize);
        assert!((0..1000).all(|_| budget.allows([127, 0, 0, 1].into(), now)));
        assert!(budget.allows(ip, now + Duration::from_secs(1)));
        let mut rng = rand::rng();
        for _ in 0..100_000 {
            budget.allows(IpAddr::from(rng.random::<[u8; 16]>()), now + Duration::from_secs(1));
        }
        assert!(budget.counts.len() <= MAX_COUNTED);
    }
}
