//! Discovery version 4.
//!
//! One task reads packets and answers them; it never waits. Requests (checks of the table, lookups,
//! records) run in tasks of their own, which wait for the answers that the first task passes on.
//!
//! # No amplification
//!
//! A node that has not proven its address by answering a ping gets only a pong for its ping, which
//! is about 20 bytes longer, and at most one ping at a time. All other requests of it are ignored.

mod lookup;
pub(super) mod packet;
mod proofs;

use super::{
    enode::Enode,
    nat::{AddressVotes, NatMode},
    net::can_know,
    record::{self, Enr, LocalEnr},
    table::{BUCKET_NODES, NodeTable},
    timing::DiscoveryTiming,
};
use crate::{discovery::key::NodeKey, eth::PeerId};
use alloy_primitives::B256;
use packet::{Discv4Packet, MAX_PACKET_BYTES, NEIGHBOURS, NodeEndpoint, expiration};
use parking_lot::Mutex;
use proofs::{PacketBudget, ProofTable};
use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    time::timeout,
};
use tracing::{debug, info, trace};

/// Minimum interval between two checks.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Maximum number of open requests.
const MAX_OPEN: usize = 512;
/// Maximum number of pings under way to nodes that have pinged this node.
const MAX_RETURNED: usize = 128;

/// Discovery version 4.
#[derive(Debug)]
pub(super) struct Discv4Service {
    key: NodeKey,
    local: Arc<LocalEnr>,
    socket: Arc<UdpSocket>,
    listen: SocketAddr,
    tcp: u16,
    nat: NatMode,
    pace: DiscoveryTiming,
    boot: Vec<Enode>,
    state: Mutex<Discv4State>,
}

/// Configuration of version 4.
#[derive(Debug)]
pub(super) struct Discv4Config {
    pub(super) key: NodeKey,
    pub(super) local: Arc<LocalEnr>,
    pub(super) socket: Arc<UdpSocket>,
    /// The address that the socket listens on.
    pub(super) listen: SocketAddr,
    /// The TCP port on which the node accepts connections.
    pub(super) tcp: u16,
    pub(super) nat: NatMode,
    pub(super) pace: DiscoveryTiming,
    pub(super) boot: Vec<Enode>,
}

#[derive(Debug)]
struct Discv4State {
    table: NodeTable,
    proofs: ProofTable,
    budget: PacketBudget,
    votes: AddressVotes,
    open: Vec<OpenRequest>,
    next: u64,
    /// The nodes that are being pinged back: local ones by id, other addresses once each.
    returned: HashSet<(PeerId, IpAddr)>,
}

/// An open request.
#[derive(Debug)]
struct OpenRequest {
    number: u64,
    node: Enode,
    answer: ExpectedReply,
}

impl OpenRequest {
    /// Whether a packet of this node from this address may answer it.
    fn is_to(&self, id: PeerId, ip: IpAddr) -> bool {
        (self.node.id, self.node.ip) == (id, ip)
    }
}

#[derive(Debug)]
enum ExpectedReply {
    /// The pong for the ping with this hash.
    Pong {
        ping: B256,
        /// Whether the ping returns a ping of the node: the node has a pong of ours already.
        returned: bool,
        to: Option<oneshot::Sender<()>>,
    },
    /// A ping of the node.
    Ping(Option<oneshot::Sender<()>>),
    Neighbours(mpsc::Sender<Vec<Enode>>),
    Record(B256, Option<oneshot::Sender<Enr>>),
}

/// The node has not answered, or too many requests are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

/// Removes an open request when its caller has stopped waiting.
struct RequestGuard<'a> {
    v4: &'a Discv4Service,
    number: u64,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.v4.state.lock().open.retain(|open| open.number != self.number);
    }
}

impl Discv4Service {
    pub(super) fn new(setup: Discv4Config) -> Self {
        let Discv4Config { key, local, socket, listen, tcp, nat, pace, boot } = setup;
        let state = Discv4State {
            table: NodeTable::new(alloy_primitives::keccak256(key.id())),
            proofs: ProofTable::default(),
            budget: PacketBudget::new(Instant::now()),
            votes: AddressVotes::default(),
            open: Vec::new(),
            next: 0,
            returned: HashSet::new(),
        };
        Self { key, local, socket, listen, tcp, nat, pace, boot, state: Mutex::new(state) }
    }

    /// Reads packets for ever.
    pub(super) async fn receive(self: Arc<Self>) {
        // One byte more than allowed, to detect longer packets.
        let mut buffer = [0; MAX_PACKET_BYTES + 1];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((length, from)) => self.take(&buffer[..length], from),
                // On some systems ICMP errors for earlier packets are reported here.
                Err(error) => trace!(target: "retrie::network", %error, "cannot read the socket"),
            }
        }
    }

    /// Handles one packet.
    pub(super) fn take(self: &Arc<Self>, bytes: &[u8], from: SocketAddr) {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        if !self.state.lock().budget.allows(from.ip(), Instant::now()) {
            return;
        }
        match Discv4Packet::decode(bytes) {
            // A packet of this node itself, sent back.
            Ok((_, id, _)) if id == self.key.id() => {}
            Ok((packet, id, hash)) => self.handle(packet, id, hash, from),
            Err(error) => trace!(target: "retrie::network", %from, %error, "packet refused"),
        }
    }

    fn handle(self: &Arc<Self>, packet: Discv4Packet, id: PeerId, hash: B256, from: SocketAddr) {
        let now = Instant::now();
        match packet {
            Discv4Packet::Ping { from: said, .. } => {
                let node = Enode { id, ip: from.ip(), tcp: said.tcp, udp: from.port() };
                self.on_ping(node, hash, now);
            }
            Discv4Packet::Pong { to, ping, .. } => self.on_pong(id, from, to, ping, now),
            Discv4Packet::FindNode { target, .. } => {
                let target = alloy_primitives::keccak256(target);
                let nodes = {
                    let state = self.state.lock();
                    if !state.proofs.has(id, from.ip(), now) {
                        return;
                    }
                    state.table.closest(&target, BUCKET_NODES, true)
                };
                let nodes: Vec<_> =
                    nodes.into_iter().filter(|node| can_know(from.ip(), node.ip)).collect();
                let mut chunks = nodes.chunks(NEIGHBOURS);
                // An answer without nodes must be sent, too.
                let first = chunks.next().unwrap_or_default();
                for nodes in std::iter::once(first).chain(chunks) {
                    let nodes = nodes.to_vec();
                    self.send(&Discv4Packet::Neighbours { nodes, expiration: expiration() }, from);
                }
            }
            Discv4Packet::Neighbours { nodes, .. } => {
                let state = self.state.lock();
                for open in state.open.iter().filter(|open| open.is_to(id, from.ip())) {
                    if let ExpectedReply::Neighbours(to) = &open.answer {
                        // If the channel is full, the answer has too many nodes. Two open requests
                        // to one node cannot be told apart, and both can use the answer.
                        let _ = to.try_send(nodes.clone());
                    }
                }
            }
            Discv4Packet::EnrRequest { .. } => {
                if self.state.lock().proofs.has(id, from.ip(), now) {
                    let record = Box::new(self.local.get());
                    self.send(&Discv4Packet::EnrResponse { request: hash, record }, from);
                }
            }
            Discv4Packet::EnrResponse { request, record } => {
                if record::id(&record) != Some(id) {
                    return;
                }
                let mut state = self.state.lock();
                let waiter = state.open.iter_mut().find_map(|open| {
                    let is_to = open.is_to(id, from.ip());
                    match &mut open.answer {
                        ExpectedReply::Record(asked, to) if is_to && *asked == request => to.take(),
                        _ => None,
                    }
                });
                if let Some(waiter) = waiter {
                    let _ = waiter.send(*record);
                }
            }
        }
    }

    fn on_ping(self: &Arc<Self>, node: Enode, hash: B256, now: Instant) {
        let to = NodeEndpoint::new(node.udp_address(), node.tcp);
        let seq = Some(self.local.seq());
        let pong = Discv4Packet::Pong { to, ping: hash, expiration: expiration(), seq };
        self.send(&pong, node.udp_address());
        let mut state = self.state.lock();
        state.proofs.record_ping(node.id, node.ip, now);
        for open in state.open.iter_mut().filter(|open| open.is_to(node.id, node.ip)) {
            if let ExpectedReply::Ping(to) = &mut open.answer
                && let Some(to) = to.take()
            {
                let _ = to.send(());
            }
        }
        if state.proofs.has(node.id, node.ip, now) {
            state.table.add(node, now);
            return;
        }
        // The sender is not proven: one ping at a time, for an address as for a node.
        let asked = state.open.iter().any(|open| {
            open.is_to(node.id, node.ip) && matches!(open.answer, ExpectedReply::Pong { .. })
        });
        let key = if super::net::is_local(node.ip) {
            (node.id, node.ip)
        } else {
            (PeerId::ZERO, node.ip)
        };
        if asked || state.returned.len() >= MAX_RETURNED || !state.returned.insert(key) {
            return;
        }
        drop(state);
        let v4 = Arc::clone(self);
        tokio::spawn(async move {
            let _ = v4.send_ping(&node, true).await;
            v4.state.lock().returned.remove(&key);
        });
    }

    fn on_pong(&self, id: PeerId, from: SocketAddr, to: NodeEndpoint, hash: B256, now: Instant) {
        let mut state = self.state.lock();
        let answered = state.open.iter_mut().find_map(|open| {
            let is_to = open.is_to(id, from.ip());
            match &mut open.answer {
                ExpectedReply::Pong { ping, returned, to } if is_to && *ping == hash => {
                    to.take().map(|to| (open.node, *returned, to))
                }
                _ => None,
            }
        });
        let Some((node, returned, waiter)) = answered else { return };
        state.proofs.record_pong(id, from.ip(), now);
        if returned {
            state.proofs.record_ping(id, from.ip(), now);
        }
        state.table.answered(node, now);
        let _ = waiter.send(());
        let elected = match (self.nat, to.ip) {
            (NatMode::Any, Some(says)) => state.votes.add(from.ip(), says, now),
            _ => None,
        };
        drop(state);
        if let Some(ip) = elected {
            match self.local.set_ip(ip) {
                Ok(true) => info!(target: "retrie::network", "other nodes see this one at {ip}"),
                Ok(false) => {}
                Err(error) => debug!(target: "retrie::network", %error, "record not updated"),
            }
        }
    }

    fn send(&self, packet: &Discv4Packet, to: SocketAddr) -> B256 {
        let (bytes, hash) = packet.encode(&self.key);
        self.send_bytes(&bytes, to);
        hash
    }

    /// Sends a packet. It is lost if the system has no buffer for it, as any UDP packet may be.
    fn send_bytes(&self, bytes: &[u8], to: SocketAddr) {
        let to = match to.ip() {
            IpAddr::V4(ip) if self.listen.is_ipv6() => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        };
        if let Err(error) = self.socket.try_send_to(bytes, to) {
            trace!(target: "retrie::network", %to, %error, "packet not sent");
        }
    }

    /// Registers a request before it is sent.
    fn wait(&self, node: &Enode, answer: ExpectedReply) -> Result<RequestGuard<'_>, NoAnswer> {
        let mut state = self.state.lock();
        if state.open.len() >= MAX_OPEN {
            return Err(NoAnswer);
        }
        let number = state.next;
        state.next += 1;
        state.open.push(OpenRequest { number, node: *node, answer });
        Ok(RequestGuard { v4: self, number })
    }

    /// Pings a node. If it answers, it is added to the table.
    pub(super) async fn ping(&self, node: &Enode) -> Result<(), NoAnswer> {
        self.send_ping(node, false).await
    }

    async fn send_ping(&self, node: &Enode, returned: bool) -> Result<(), NoAnswer> {
        let address = self.local.ip().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let ping = Discv4Packet::Ping {
            from: NodeEndpoint::new(SocketAddr::new(address, self.listen.port()), self.tcp),
            to: NodeEndpoint::new(node.udp_address(), 0),
            expiration: expiration(),
            seq: Some(self.local.seq()),
        };
        let (bytes, hash) = ping.encode(&self.key);
        let (to, pong) = oneshot::channel();
        let _waiting =
            self.wait(node, ExpectedReply::Pong { ping: hash, returned, to: Some(to) })?;
        self.send_bytes(&bytes, node.udp_address());
        let pong = timeout(self.pace.reply, pong).await;
        pong.map_err(|_| NoAnswer)?.map_err(|_| NoAnswer)
    }

    /// Makes sure that the node accepts requests: it has answered our ping, and we have answered
    /// its.
    async fn bond(&self, node: &Enode) -> Result<(), NoAnswer> {
        let mutual = || self.state.lock().proofs.mutual(node, Instant::now());
        if mutual() {
            return Ok(());
        }
        let (to, pinged) = oneshot::channel();
        let _waiting = self.wait(node, ExpectedReply::Ping(Some(to)))?;
        self.ping(node).await?;
        if !mutual() {
            // A node that knows us from before does not ping us; it is asked nevertheless.
            let _ = timeout(self.pace.reply, pinged).await;
            self.state.lock().proofs.record_ping(node.id, node.ip, Instant::now());
        }
        Ok(())
    }

    /// Asks a node for nodes close to a target. Addresses that the node cannot know are dropped.
    async fn find_node(&self, node: &Enode, target: PeerId) -> Result<Vec<Enode>, NoAnswer> {
        let found = self.try_find_node(node, target).await;
        if found.is_err() {
            self.state.lock().table.failed_request(&node.id);
        }
        found
    }

    async fn try_find_node(&self, node: &Enode, target: PeerId) -> Result<Vec<Enode>, NoAnswer> {
        self.bond(node).await?;
        let (to, mut packets) = mpsc::channel(BUCKET_NODES);
        let _waiting = self.wait(node, ExpectedReply::Neighbours(to))?;
        self.send(&Discv4Packet::FindNode { target, expiration: expiration() }, node.udp_address());
        let mut found = Vec::new();
        let mut patience = self.pace.reply;
        let mut answered = false;
        while found.len() < BUCKET_NODES
            && let Ok(Some(nodes)) = timeout(patience, packets.recv()).await
        {
            answered = true;
            found.extend(nodes);
            // The packets of one answer arrive together.
            patience = self.pace.reply / 4;
        }
        if !answered {
            return Err(NoAnswer);
        }
        found.truncate(BUCKET_NODES);
        found.retain(|other| {
            other.id != self.key.id() && other.udp != 0 && can_know(node.ip, other.ip)
        });
        found.retain(|other| other.ip.is_ipv4() == node.ip.is_ipv4());
        Ok(found)
    }

    /// Asks a node for its record (EIP-868).
    pub(super) async fn record(&self, node: &Enode) -> Result<Enr, NoAnswer> {
        self.bond(node).await?;
        let request = Discv4Packet::EnrRequest { expiration: expiration() };
        let (bytes, hash) = request.encode(&self.key);
        let (to, record) = oneshot::channel();
        let _waiting = self.wait(node, ExpectedReply::Record(hash, Some(to)))?;
        self.send_bytes(&bytes, node.udp_address());
        let record = timeout(self.pace.reply, record).await;
        let record = record.map_err(|_| NoAnswer)?.map_err(|_| NoAnswer)?;
        if let Some(said) = record::enode(&record) {
            self.state.lock().table.set_tcp(&node.id, said.tcp);
        }
        Ok(record)
    }

    /// The live nodes of the table, to be saved.
    pub(super) fn live_nodes(&self) -> Vec<Enode> {
        self.state.lock().table.live().map(|entry| entry.node).collect()
    }

    /// The number of nodes in the table.
    pub(super) fn len(&self) -> usize {
        self.state.lock().table.len()
    }

    /// Checks nodes of the table for ever: new ones soon, the others in turn.
    pub(super) async fn maintain(self: Arc<Self>) {
        let every = |period: Duration| tokio::time::interval(period.max(MIN_PERIOD));
        let (mut new, mut known) = (every(self.pace.check_new), every(self.pace.check));
        loop {
            let (live, age) = tokio::select! {
                _ = new.tick() => (false, self.pace.check_new),
                _ = known.tick() => (true, self.pace.check),
            };
            let due = self.state.lock().table.due(live, age, Instant::now());
            if let Some(node) = due {
                let v4 = Arc::clone(&self);
                // In a task of its own: a missing answer must not delay the other checks.
                tokio::spawn(async move { v4.check(&node).await });
            }
        }
    }

    async fn check(&self, node: &Enode) {
        if self.ping(node).await.is_err() {
            self.state.lock().table.failed_check(&node.id, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
