//! Dialling: which nodes, and when.

use super::manager::{NetworkShared, StaticNode, is_private_ip, short, subnet};
use crate::{
    discovery::Enode,
    eth::PeerId,
    handle::Candidate,
    rlpx::{DisconnectReason, RlpxError},
    session::{RefusedError, add},
};
use rand::Rng;
use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::mpsc, time::timeout};

/// Maximum number of dials at once.
const MAX_DIALS: usize = 16;

/// Maximum number of candidates that are kept.
const MAX_CANDIDATES: usize = 2048;

/// With this many candidates no more are wanted from discovery.
const ENOUGH_CANDIDATES: usize = 1024;

/// Maximum number of dialled peers in one public /24 (IPv4) or /64 (IPv6).
const MAX_SUBNET: usize = 2;

/// How long a candidate is left alone after a dial.
const PAUSE: Duration = Duration::from_secs(30);

/// How long a node of another network is left alone.
const LONG_PAUSE: Duration = Duration::from_secs(3600);

/// How long a static node is left alone after the first failure, and after a connection.
const FIXED_PAUSE: Duration = Duration::from_secs(1);

/// Number of failures after which a candidate is forgotten.
const MAX_FAILURES: u32 = 5;

/// How often the dialler runs if nothing happens.
const TICK: Duration = Duration::from_millis(500);

/// How often the log says that there are no peers.
const NO_PEERS_INTERVAL: Duration = Duration::from_secs(60);

/// The candidates, and the dials under way.
#[derive(Debug, Default)]
struct DialScheduler {
    candidates: HashMap<PeerId, DialCandidate>,
    dialling: HashMap<PeerId, Enode>,
}

#[derive(Clone, Copy, Debug)]
struct DialCandidate {
    enode: Enode,
    failures: u32,
    next: Instant,
}

/// The result of a dial, with or without a peer.
struct DialOutcome {
    enode: Enode,
    fixed: bool,
    failure: Option<DialError>,
}

/// Why a dial has led to no peer.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("connection: {0}")]
    Connect(io::Error),
    #[error("no connection within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error(transparent)]
    Refused(#[from] RefusedError),
}

impl DialError {
    /// Whether the node is a peer already, by another connection.
    const fn is_connected(&self) -> bool {
        matches!(
            self,
            Self::Refused(
                RefusedError::Refused(DisconnectReason::AlreadyConnected)
                    | RefusedError::Rlpx(RlpxError::Disconnected(
                        DisconnectReason::AlreadyConnected
                    ))
            )
        )
    }
}

/// Dials nodes until the runtime ends.
pub(super) async fn run(shared: Arc<NetworkShared>, mut candidates: mpsc::Receiver<Candidate>) {
    let mut book = DialScheduler::default();
    let (done, mut tried) = mpsc::unbounded_channel::<DialOutcome>();
    let mut tick = tokio::time::interval(TICK);
    let mut lonely_since = Instant::now();
    loop {
        tokio::select! {
            Some(candidate) = candidates.recv() => book.add(&shared, candidate, Instant::now()),
            Some(tried) = tried.recv() => book.record_outcome(&shared, &tried, Instant::now()),
            () = shared.dial.notified() => {}
            _ = tick.tick() => {}
        }
        let now = Instant::now();
        if shared.has_peers() {
            lonely_since = now;
        } else if now >= lonely_since + NO_PEERS_INTERVAL {
            tracing::info!(candidates = book.candidates.len(), "no peers yet");
            lonely_since = now;
        }
        let known = book.candidates.len();
        let wants = shared.slots.free_outbound() > 0 && known < ENOUGH_CANDIDATES;
        shared.wants.send_if_modified(|before| std::mem::replace(before, wants) != wants);
        while !shared.quitting() && book.dialling.len() < MAX_DIALS {
            let Some((enode, fixed)) = book.next(&shared, now) else { break };
            book.dialling.insert(enode.id, enode);
            add(&shared.context.stats.dialled, 1);
            tokio::spawn(dial(shared.clone(), enode, fixed, done.clone()));
        }
    }
}

/// Dials a node, and runs the session if it becomes a peer.
async fn dial(
    shared: Arc<NetworkShared>,
    enode: Enode,
    fixed: bool,
    done: mpsc::UnboundedSender<DialOutcome>,
) {
    let limit = shared.local.timing.handshake;
    let connected = async {
        let stream = timeout(limit, TcpStream::connect(enode.tcp_address()))
            .await
            .map_err(|_| DialError::Timeout(limit))?
            .map_err(DialError::Connect)?;
        Ok(shared.connect(stream, Some(enode.id)).await?)
    };
    let (peer, failure) = match connected.await {
        Ok(mut peer) => {
            // Also if the node was removed meanwhile: the flag makes `begin` disconnect it.
            peer.info.is_static |= fixed;
            (Some(peer), None)
        }
        Err(error) => (None, Some(error)),
    };
    // The receiver is gone when the node stops.
    let _ = done.send(DialOutcome { enode, fixed, failure });
    if let Some(peer) = peer {
        shared.run_session(peer).await;
    }
}

impl DialScheduler {
    /// Adds a candidate.
    fn add(&mut self, shared: &NetworkShared, candidate: Candidate, now: Instant) {
        let Candidate { id, ip, tcp_port, udp_port, fork_id, .. } = candidate;
        let fits = fork_id.is_none_or(|fork_id| shared.local.chain.accepts(fork_id));
        if tcp_port == 0 || !fits || id == shared.local.id {
            return;
        }
        let enode = Enode { id, ip, tcp: tcp_port, udp: udp_port };
        if let Some(entry) = self.candidates.get_mut(&id) {
            entry.enode = enode;
            return;
        }
        if self.candidates.len() >= MAX_CANDIDATES {
            // A random one: a flood of candidates must not choose which ones stay.
            let nth = rand::rng().random_range(0..self.candidates.len());
            if let Some(id) = self.candidates.keys().nth(nth).copied() {
                self.candidates.remove(&id);
            }
        }
        self.candidates.insert(id, DialCandidate { enode, failures: 0, next: now });
    }

    /// The next node to dial, and whether it is a static one.
    fn next(&self, shared: &NetworkShared, now: Instant) -> Option<(Enode, bool)> {
        let away = |id: &PeerId| !self.dialling.contains_key(id) && !shared.slots.has(id);
        let fixed = shared.static_nodes.lock().values().find_map(|fixed| {
            let due = fixed.next.is_none_or(|next| next <= now);
            (due && away(&fixed.enode.id)).then_some(fixed.enode)
        });
        if let Some(enode) = fixed {
            return Some((enode, true));
        }
        if shared.slots.free_outbound() <= self.dialling.len() {
            return None;
        }
        let mut subnets: HashMap<u64, usize> = HashMap::new();
        let dialled = self.dialling.values().map(|enode| enode.ip).chain(shared.dialled());
        for ip in dialled.filter(|ip| !is_private_ip(*ip)) {
            *subnets.entry(subnet(ip)).or_default() += 1;
        }
        let due: Vec<_> = self
            .candidates
            .values()
            .filter(|entry| entry.next <= now && away(&entry.enode.id))
            .filter(|entry| {
                let ip = entry.enode.ip;
                is_private_ip(ip)
                    || subnets.get(&subnet(ip)).is_none_or(|count| *count < MAX_SUBNET)
            })
            .filter(|entry| !shared.reputation.is_banned(&entry.enode.id))
            .collect();
        let nth = (!due.is_empty()).then(|| rand::rng().random_range(0..due.len()))?;
        Some((due[nth].enode, false))
    }

    /// Records the result of a dial.
    fn record_outcome(&mut self, shared: &NetworkShared, tried: &DialOutcome, now: Instant) {
        let DialOutcome { enode, fixed, failure } = tried;
        self.dialling.remove(&enode.id);
        let lasting = matches!(failure, Some(DialError::Refused(refused)) if refused.is_lasting());
        if *fixed {
            let mut all = shared.static_nodes.lock();
            let Some(entry) = all.get_mut(&enode.id) else { return };
            let Some(error) = failure else {
                *entry = StaticNode { enode: *enode, failures: 0, next: Some(now + FIXED_PAUSE) };
                return;
            };
            if (entry.failures == 0 || lasting) && !error.is_connected() {
                tracing::warn!(node = %enode, %error, "a static or trusted peer cannot be reached; it is tried again");
            }
            entry.next = Some(now + backoff(FIXED_PAUSE, entry.failures).min(PAUSE));
            entry.failures += 1;
            return;
        }
        let Some(entry) = self.candidates.get_mut(&enode.id) else { return };
        match failure {
            None => (entry.failures, entry.next) = (0, now + PAUSE),
            Some(error) => {
                tracing::trace!(peer = %short(&enode.id), ip = %enode.ip, %error, "dial failed");
                entry.next =
                    now + if lasting { LONG_PAUSE } else { backoff(PAUSE, entry.failures) };
                entry.failures += 1;
                if entry.failures > MAX_FAILURES {
                    self.candidates.remove(&enode.id);
                }
            }
        }
    }
}

/// The backoff: twice as long after each failure.
fn backoff(first: Duration, failures: u32) -> Duration {
    first * 2_u32.pow(failures.min(6))
}
