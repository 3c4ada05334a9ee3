//! Discovery, version 4.
//!
//! One task takes packets and answers them; it never waits. Everything that asks others (checks of the
//! table, lookups, records) waits in tasks of its own for what that one hands on.
//!
//! # No amplification
//!
//! Who has not proven where it is (by answering a ping) gets a pong for a ping, which is some 20 bytes
//! longer, and one ping while that is under way; nothing for anything else.

mod lookup;
pub(super) mod packet;
mod proofs;

use super::{
    enode::Enode,
    nat::{Nat, Votes},
    net::may_tell,
    pace::Pace,
    record::{self, LocalRecord, Record},
    table::{BUCKET_NODES, Table},
};
use crate::{discovery::key::NodeKey, eth::PeerId};
use alloy_primitives::B256;
use packet::{Endpoint, MAX_PACKET_BYTES, NEIGHBOURS, Packet, expiration};
use parking_lot::Mutex;
use proofs::{Budget, Proofs};
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

/// Between two checks, whatever the pace.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Questions of ours that may be open at once.
const MAX_OPEN: usize = 512;
/// Pings to those who have pinged us, under way at once.
const MAX_RETURNED: usize = 128;

/// See the module.
#[derive(Debug)]
pub(super) struct V4 {
    key: NodeKey,
    local: Arc<LocalRecord>,
    socket: Arc<UdpSocket>,
    listen: SocketAddr,
    tcp: u16,
    nat: Nat,
    pace: Pace,
    boot: Vec<Enode>,
    state: Mutex<State>,
}

/// What version 4 is started with.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) key: NodeKey,
    pub(super) local: Arc<LocalRecord>,
    pub(super) socket: Arc<UdpSocket>,
    /// Where the socket listens.
    pub(super) listen: SocketAddr,
    /// Where the node takes connections.
    pub(super) tcp: u16,
    pub(super) nat: Nat,
    pub(super) pace: Pace,
    pub(super) boot: Vec<Enode>,
}

#[derive(Debug)]
struct State {
    table: Table,
    proofs: Proofs,
    budget: Budget,
    votes: Votes,
    open: Vec<Open>,
    next: u64,
    /// Whom we ping back: nodes by id, addresses that are not local once.
    returned: HashSet<(PeerId, IpAddr)>,
}

/// A question of ours.
#[derive(Debug)]
struct Open {
    number: u64,
    node: Enode,
    answer: Awaited,
}

impl Open {
    /// Whether a packet of this node from this address may answer it.
    fn is_to(&self, id: PeerId, ip: IpAddr) -> bool {
        (self.node.id, self.node.ip) == (id, ip)
    }
}

#[derive(Debug)]
enum Awaited {
    /// To the ping of this hash.
    Pong {
        ping: B256,
        /// Whether we ping back who has pinged us: he has our pong.
        returned: bool,
        to: Option<oneshot::Sender<()>>,
    },
    /// That it pings us.
    Ping(Option<oneshot::Sender<()>>),
    Neighbours(mpsc::Sender<Vec<Enode>>),
    Record(B256, Option<oneshot::Sender<Record>>),
}

/// A node has not answered, or too much is asked already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

/// Forgets the question when nobody waits for the answer any more.
struct Waiting<'a> {
    v4: &'a V4,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.v4.state.lock().open.retain(|open| open.number != self.number);
    }
}

impl V4 {
    pub(super) fn new(setup: Setup) -> Self {
        let Setup { key, local, socket, listen, tcp, nat, pace, boot } = setup;
        let state = State {
            table: Table::new(alloy_primitives::keccak256(key.id())),
            proofs: Proofs::default(),
            budget: Budget::new(Instant::now()),
            votes: Votes::default(),
            open: Vec::new(),
            next: 0,
            returned: HashSet::new(),
        };
        Self { key, local, socket, listen, tcp, nat, pace, boot, state: Mutex::new(state) }
    }

    /// Takes packets for ever.
    pub(super) async fn receive(self: Arc<Self>) {
        // One more byte than is allowed, so that longer ones are noticed.
        let mut buffer = [0; MAX_PACKET_BYTES + 1];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((length, from)) => self.take(&buffer[..length], from),
                // On some systems an ICMP message for an earlier packet comes up here.
                Err(error) => trace!(target: "retrie::network", %error, "discovery's socket"),
            }
        }
    }

    /// Takes one packet.
    pub(super) fn take(self: &Arc<Self>, bytes: &[u8], from: SocketAddr) {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        if !self.state.lock().budget.allows(from.ip(), Instant::now()) {
            return;
        }
        match Packet::decode(bytes) {
            // Our own packets, sent back.
            Ok((_, id, _)) if id == self.key.id() => {}
            Ok((packet, id, hash)) => self.handle(packet, id, hash, from),
            Err(error) => trace!(target: "retrie::network", %from, %error, "not taken"),
        }
    }

    fn handle(self: &Arc<Self>, packet: Packet, id: PeerId, hash: B256, from: SocketAddr) {
        let now = Instant::now();
        match packet {
            Packet::Ping { from: said, .. } => {
                let node = Enode { id, ip: from.ip(), tcp: said.tcp, udp: from.port() };
                self.pinged(node, hash, now);
            }
            Packet::Pong { to, ping, .. } => self.ponged(id, from, to, ping, now),
            Packet::FindNode { target, .. } => {
                let target = alloy_primitives::keccak256(target);
                let nodes = {
                    let state = self.state.lock();
                    if !state.proofs.has(id, from.ip(), now) {
                        return;
                    }
                    state.table.closest(&target, BUCKET_NODES, true)
                };
                let nodes: Vec<_> =
                    nodes.into_iter().filter(|node| may_tell(from.ip(), node.ip)).collect();
                let mut chunks = nodes.chunks(NEIGHBOURS);
                // The one who asks waits for something.
                let first = chunks.next().unwrap_or_default();
                for nodes in std::iter::once(first).chain(chunks) {
                    let nodes = nodes.to_vec();
                    self.send(&Packet::Neighbours { nodes, expiration: expiration() }, from);
                }
            }
            Packet::Neighbours { nodes, .. } => {
                let state = self.state.lock();
                for open in state.open.iter().filter(|open| open.is_to(id, from.ip())) {
                    if let Awaited::Neighbours(to) = &open.answer {
                        // More than the channel takes is more than may be answered. Two questions
                        // to one node cannot be told apart, and both have a use for the answer.
                        let _ = to.try_send(nodes.clone());
                    }
                }
            }
            Packet::AskRecord { .. } => {
                if self.state.lock().proofs.has(id, from.ip(), now) {
                    let record = Box::new(self.local.get());
                    self.send(&Packet::Record { request: hash, record }, from);
                }
            }
            Packet::Record { request, record } => {
                if record::id(&record) != Some(id) {
                    return;
                }
                let mut state = self.state.lock();
                let waiter = state.open.iter_mut().find_map(|open| {
                    let is_to = open.is_to(id, from.ip());
                    match &mut open.answer {
                        Awaited::Record(asked, to) if is_to && *asked == request => to.take(),
                        _ => None,
                    }
                });
                if let Some(waiter) = waiter {
                    let _ = waiter.send(*record);
                }
            }
        }
    }

    fn pinged(self: &Arc<Self>, node: Enode, hash: B256, now: Instant) {
        let to = Endpoint::new(node.udp_address(), node.tcp);
        let seq = Some(self.local.seq());
        let pong = Packet::Pong { to, ping: hash, expiration: expiration(), seq };
        self.send(&pong, node.udp_address());
        let mut state = self.state.lock();
        state.proofs.was_answered(node.id, node.ip, now);
        for open in state.open.iter_mut().filter(|open| open.is_to(node.id, node.ip)) {
            if let Awaited::Ping(to) = &mut open.answer
                && let Some(to) = to.take()
            {
                let _ = to.send(());
            }
        }
        if state.proofs.has(node.id, node.ip, now) {
            state.table.add(node, now);
            return;
        }
        // It may be anybody: once at a time, for an address as for a node.
        let asked = state.open.iter().any(|open| {
            open.is_to(node.id, node.ip) && matches!(open.answer, Awaited::Pong { .. })
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

    fn ponged(&self, id: PeerId, from: SocketAddr, to: Endpoint, hash: B256, now: Instant) {
        let mut state = self.state.lock();
        let answered = state.open.iter_mut().find_map(|open| {
            let is_to = open.is_to(id, from.ip());
            match &mut open.answer {
                Awaited::Pong { ping, returned, to } if is_to && *ping == hash => {
                    to.take().map(|to| (open.node, *returned, to))
                }
                _ => None,
            }
        });
        let Some((node, returned, waiter)) = answered else { return };
        state.proofs.answered(id, from.ip(), now);
        if returned {
            state.proofs.was_answered(id, from.ip(), now);
        }
        state.table.answered(node, now);
        let _ = waiter.send(());
        let elected = match (self.nat, to.ip) {
            (Nat::Any, Some(says)) => state.votes.add(from.ip(), says, now),
            _ => None,
        };
        drop(state);
        if let Some(ip) = elected {
            match self.local.set_ip(ip) {
                Ok(true) => info!(target: "retrie::network", "other nodes see this one at {ip}"),
                Ok(false) => {}
                Err(error) => debug!(target: "retrie::network", %error, "no new record"),
            }
        }
    }

    fn send(&self, packet: &Packet, to: SocketAddr) -> B256 {
        let (bytes, hash) = packet.encode(&self.key);
        self.send_bytes(&bytes, to);
        hash
    }

    /// What the system has no room for is lost, as it may be on its way.
    fn send_bytes(&self, bytes: &[u8], to: SocketAddr) {
        let to = match to.ip() {
            IpAddr::V4(ip) if self.listen.is_ipv6() => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        };
        if let Err(error) = self.socket.try_send_to(bytes, to) {
            trace!(target: "retrie::network", %to, %error, "not sent");
        }
    }

    /// Notes a question before it is asked.
    fn wait(&self, node: &Enode, answer: Awaited) -> Result<Waiting<'_>, NoAnswer> {
        let mut state = self.state.lock();
        if state.open.len() >= MAX_OPEN {
            return Err(NoAnswer);
        }
        let number = state.next;
        state.next += 1;
        state.open.push(Open { number, node: *node, answer });
        Ok(Waiting { v4: self, number })
    }

    /// Asks whether a node is there. If it is, the table knows.
    pub(super) async fn ping(&self, node: &Enode) -> Result<(), NoAnswer> {
        self.send_ping(node, false).await
    }

    async fn send_ping(&self, node: &Enode, returned: bool) -> Result<(), NoAnswer> {
        let address = self.local.ip().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let ping = Packet::Ping {
            from: Endpoint::new(SocketAddr::new(address, self.listen.port()), self.tcp),
            to: Endpoint::new(node.udp_address(), 0),
            expiration: expiration(),
            seq: Some(self.local.seq()),
        };
        let (bytes, hash) = ping.encode(&self.key);
        let (to, pong) = oneshot::channel();
        let _waiting = self.wait(node, Awaited::Pong { ping: hash, returned, to: Some(to) })?;
        self.send_bytes(&bytes, node.udp_address());
        let pong = timeout(self.pace.reply, pong).await;
        pong.map_err(|_| NoAnswer)?.map_err(|_| NoAnswer)
    }

    /// Sees to it that a node takes questions from us: it has answered our ping, and we its.
    async fn bond(&self, node: &Enode) -> Result<(), NoAnswer> {
        let mutual = || self.state.lock().proofs.mutual(node, Instant::now());
        if mutual() {
            return Ok(());
        }
        let (to, pinged) = oneshot::channel();
        let _waiting = self.wait(node, Awaited::Ping(Some(to)))?;
        self.ping(node).await?;
        if !mutual() {
            // A node that knows us from before does not ping us; it is asked nevertheless.
            let _ = timeout(self.pace.reply, pinged).await;
            self.state.lock().proofs.was_answered(node.id, node.ip, Instant::now());
        }
        Ok(())
    }

    /// Asks a node for those near to a target. What it tells of others is checked for addresses that
    /// it cannot know.
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
        let _waiting = self.wait(node, Awaited::Neighbours(to))?;
        self.send(&Packet::FindNode { target, expiration: expiration() }, node.udp_address());
        let mut found = Vec::new();
        let mut patience = self.pace.reply;
        let mut answered = false;
        while found.len() < BUCKET_NODES
            && let Ok(Some(nodes)) = timeout(patience, packets.recv()).await
        {
            answered = true;
            found.extend(nodes);
            // The packets of one answer come together.
            patience = self.pace.reply / 4;
        }
        if !answered {
            return Err(NoAnswer);
        }
        found.truncate(BUCKET_NODES);
        found.retain(|other| {
            other.id != self.key.id() && other.udp != 0 && may_tell(node.ip, other.ip)
        });
        found.retain(|other| other.ip.is_ipv4() == node.ip.is_ipv4());
        Ok(found)
    }

    /// Asks a node for its record (EIP-868).
    pub(super) async fn record(&self, node: &Enode) -> Result<Record, NoAnswer> {
        self.bond(node).await?;
        let request = Packet::AskRecord { expiration: expiration() };
        let (bytes, hash) = request.encode(&self.key);
        let (to, record) = oneshot::channel();
        let _waiting = self.wait(node, Awaited::Record(hash, Some(to)))?;
        self.send_bytes(&bytes, node.udp_address());
        let record = timeout(self.pace.reply, record).await;
        let record = record.map_err(|_| NoAnswer)?.map_err(|_| NoAnswer)?;
        if let Some(said) = record::enode(&record) {
            self.state.lock().table.set_tcp(&node.id, said.tcp);
        }
        Ok(record)
    }

    /// Nodes worth remembering: those that are live.
    pub(super) fn live_nodes(&self) -> Vec<Enode> {
        self.state.lock().table.live().map(|entry| entry.node).collect()
    }

    /// Nodes in the table.
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
                // In a task of its own: an answer that does not come must not keep the others waiting.
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
