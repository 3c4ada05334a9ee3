//! Whom we dial.

use super::manager::{Fixed, Shared, is_near, short, subnet};
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

/// Nodes that are dialled at once, at most.
const MAX_DIALS: usize = 16;

/// Candidates that are kept, at most.
const MAX_CANDIDATES: usize = 2048;

/// Candidates with which no more are looked for.
const ENOUGH_CANDIDATES: usize = 1024;

/// Peers that we dial in one /24 (IPv4) or /64 (IPv6) that is public, at most.
const MAX_SUBNET: usize = 2;

/// How long a node is left alone after a try.
const PAUSE: Duration = Duration::from_secs(30);

/// How long a node is left alone that is of another network.
const LONG_PAUSE: Duration = Duration::from_secs(3600);

/// How long a static node is left alone after the first failure, and after a connection.
const FIXED_PAUSE: Duration = Duration::from_secs(1);

/// Failures after which a candidate is forgotten.
const MAX_FAILURES: u32 = 5;

/// How often it is looked whom to dial, if nothing happens.
const TICK: Duration = Duration::from_millis(500);

/// Without peers, the log says so as often.
const LONELY: Duration = Duration::from_secs(60);

/// Nodes that may be dialled, and when they were.
#[derive(Debug, Default)]
struct Book {
    candidates: HashMap<PeerId, Entry>,
    dialling: HashMap<PeerId, Enode>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    enode: Enode,
    failures: u32,
    next: Instant,
}

/// A dial that has ended, in a peer or not.
struct Tried {
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
    /// Whether it is a peer already, by another connection.
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

/// Dials until the runtime ends.
pub(super) async fn run(shared: Arc<Shared>, mut candidates: mpsc::Receiver<Candidate>) {
    let mut book = Book::default();
    let (done, mut tried) = mpsc::unbounded_channel::<Tried>();
    let mut tick = tokio::time::interval(TICK);
    let mut lonely_since = Instant::now();
    loop {
        tokio::select! {
            Some(candidate) = candidates.recv() => book.add(&shared, candidate, Instant::now()),
            Some(tried) = tried.recv() => book.note(&shared, &tried, Instant::now()),
            () = shared.dial.notified() => {}
            _ = tick.tick() => {}
        }
        let now = Instant::now();
        if shared.has_peers() {
            lonely_since = now;
        } else if now >= lonely_since + LONELY {
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

/// Dials a node, and stays with it if it becomes a peer.
async fn dial(shared: Arc<Shared>, enode: Enode, fixed: bool, done: mpsc::UnboundedSender<Tried>) {
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
            // Also if it has been removed meanwhile: it is for that that it is then disconnected.
            peer.info.is_static |= fixed;
            (Some(peer), None)
        }
        Err(error) => (None, Some(error)),
    };
    // Nobody hears it when the node is being stopped.
    let _ = done.send(Tried { enode, fixed, failure });
    if let Some(peer) = peer {
        shared.stay(peer).await;
    }
}

impl Book {
    /// Writes down who may be dialled.
    fn add(&mut self, shared: &Shared, candidate: Candidate, now: Instant) {
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
            // Anybody: who floods us with candidates must not choose who stays.
            let nth = rand::rng().random_range(0..self.candidates.len());
            if let Some(id) = self.candidates.keys().nth(nth).copied() {
                self.candidates.remove(&id);
            }
        }
        self.candidates.insert(id, Entry { enode, failures: 0, next: now });
    }

    /// Whom to dial next, and whether he is dialled again and again.
    fn next(&self, shared: &Shared, now: Instant) -> Option<(Enode, bool)> {
        let away = |id: &PeerId| !self.dialling.contains_key(id) && !shared.slots.has(id);
        let fixed = shared.fixed.lock().values().find_map(|fixed| {
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
        for ip in dialled.filter(|ip| !is_near(*ip)) {
            *subnets.entry(subnet(ip)).or_default() += 1;
        }
        let due: Vec<_> = self
            .candidates
            .values()
            .filter(|entry| entry.next <= now && away(&entry.enode.id))
            .filter(|entry| {
                let ip = entry.enode.ip;
                is_near(ip) || subnets.get(&subnet(ip)).is_none_or(|count| *count < MAX_SUBNET)
            })
            .filter(|entry| !shared.reputation.is_banned(&entry.enode.id))
            .collect();
        let nth = (!due.is_empty()).then(|| rand::rng().random_range(0..due.len()))?;
        Some((due[nth].enode, false))
    }

    /// Writes down what has become of a dial.
    fn note(&mut self, shared: &Shared, tried: &Tried, now: Instant) {
        let Tried { enode, fixed, failure } = tried;
        self.dialling.remove(&enode.id);
        let lasting = matches!(failure, Some(DialError::Refused(refused)) if refused.is_lasting());
        if *fixed {
            let mut all = shared.fixed.lock();
            let Some(entry) = all.get_mut(&enode.id) else { return };
            let Some(error) = failure else {
                *entry = Fixed { enode: *enode, failures: 0, next: Some(now + FIXED_PAUSE) };
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
                tracing::trace!(peer = %short(&enode.id), ip = %enode.ip, %error, "dialled in vain");
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

/// Twice as long after each failure.
fn backoff(first: Duration, failures: u32) -> Duration {
    first * 2_u32.pow(failures.min(6))
}
