//! One proof peer: its state, and requests to it.

use super::{PeerSet, ProofPeersConfig, gather::PartRequest, names::PeerTarget};
use alloy_primitives::Bytes;
use parking_lot::Mutex;
use retrie_light_client::AccountReads;
use retrie_sources::{
    BlockingClient, HttpFault, HttpOptions, RpcClient, RpcError, rpc::RpcErrorKind,
};
use retrie_telemetry::proofs::{PeerMetrics, ProofMetrics};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Most requests to one peer at once; a peer that hangs blocks no more threads than this.
const MAX_IN_FLIGHT: usize = 24;
/// Longest time for a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Blocks that a healthy peer may be behind.
const LAG: u64 = 2;
/// How long a reachable peer rests after a failed request; doubled for each further failure.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How soon an unreachable peer is probed again; doubled for each further failure.
const SOON: Duration = Duration::from_millis(250);

/// A proof peer.
pub(super) struct ShardPeer {
    target: PeerTarget,
    /// Index of the URL from which it was resolved.
    origin: usize,
    client: RpcClient,
    prober: RpcClient,
    probe: Duration,
    set_aside: Duration,
    in_flight: AtomicUsize,
    state: Mutex<PeerState>,
    metrics: PeerMetrics,
}

/// What probes and requests have found out about a peer.
#[derive(Debug)]
struct PeerState {
    /// Its shard, once reported.
    shard: Option<String>,
    /// Whether the last contact reached it.
    is_reached: bool,
    /// Whether it reports that it is in sync and works.
    says_well: bool,
    /// Whether it lagged at the last probe.
    lags: bool,
    /// Consecutive failed requests, and until when it rests because of them.
    failures: u32,
    rests_until: Option<Instant>,
    /// How often it was set aside, and until when.
    wrongs: u32,
    aside_until: Option<Instant>,
    /// Consecutive failed probes, and when the next probe is due.
    unreached: u32,
    probe_at: Instant,
    is_being_probed: bool,
}

/// Whether a peer is asked, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReplicaStanding {
    /// The peer is healthy: it is asked.
    Healthy,
    /// The peer is asked only if no healthy one is left.
    Doubtful,
    /// The peer is not asked.
    SetAside,
}

/// Why a peer returned no usable part.
#[derive(Clone, Debug)]
pub(super) struct PeerFault {
    pub(super) kind: FaultKind,
    pub(super) reason: String,
}

/// Kinds of faults; metrics use their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// It did not respond, or responded with an error.
    Failed,
    /// It does not have the block or the state.
    Behind,
    /// Its part has holes that its shard should fill.
    Lacking,
    /// It has too many requests.
    Busy,
    /// Its response is wrong.
    Wrong,
}

impl FaultKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Behind => "behind",
            Self::Lacking => "lacking",
            Self::Busy => "busy",
            Self::Wrong => "wrong",
        }
    }
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl ShardPeer {
    pub(super) fn new(
        target: PeerTarget,
        origin: usize,
        config: &ProofPeersConfig,
        metrics: &ProofMetrics,
    ) -> Self {
        // No retries: another replica is asked instead.
        let options = HttpOptions {
            timeout: config.timeout,
            total_timeout: Some(config.timeout),
            retries: 0,
            ..HttpOptions::default()
        };
        let client = RpcClient::new(&target.url, BlockingClient::new(options, Arc::default()));
        let prober = client.single_try(PROBE_TIMEOUT.min(config.timeout));
        let state = PeerState {
            shard: None,
            is_reached: false,
            says_well: false,
            lags: false,
            failures: 0,
            rests_until: None,
            wrongs: 0,
            aside_until: None,
            unreached: 0,
            probe_at: Instant::now(),
            is_being_probed: false,
        };
        Self {
            metrics: metrics.peer(&target.name),
            target,
            origin,
            client,
            prober,
            probe: config.probe,
            set_aside: config.set_aside,
            in_flight: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    /// Its name in logs and metrics.
    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    pub(super) fn url(&self) -> &str {
        &self.target.url
    }

    pub(super) fn target(&self) -> PeerTarget {
        self.target.clone()
    }

    /// Index of the URL from which it was resolved.
    pub(super) const fn origin(&self) -> usize {
        self.origin
    }

    /// Its shard, if it has reported one.
    pub(super) fn shard(&self) -> Option<String> {
        self.state.lock().shard.clone()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn standing(&self) -> ReplicaStanding {
        self.state.lock().standing(Instant::now())
    }

    /// Requests its part of a proof, on a thread that may block. If the caller stops waiting, the
    /// request still completes and updates the peer's state.
    pub(super) async fn ask(
        self: Arc<Self>,
        set: Arc<PeerSet>,
        ask: Arc<PartRequest>,
        is_hedge: bool,
    ) -> Result<Bytes, PeerFault> {
        let busy = |reason: &str| {
            let fault = PeerFault { kind: FaultKind::Busy, reason: reason.to_owned() };
            self.metrics.failed(fault.kind.name());
            fault
        };
        let Ok(place) = set.requests.clone().try_acquire_owned() else {
            return Err(busy("this node has too many requests to peers"));
        };
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= MAX_IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            return Err(busy("it has too many requests of this node"));
        }
        self.metrics.requests.inc();
        if is_hedge {
            self.metrics.hedges.inc();
        }
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            let start = Instant::now();
            let answer = match &ask.reads[..] {
                [AccountReads { address, slots }] => {
                    self.client.proof_part(*address, slots, ask.block)
                }
                reads => self.client.proof_part_of(&reads, ask.block),
            };
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            match answer {
                Ok(part) => {
                    let time = start.elapsed();
                    set.latencies.add(time);
                    self.metrics.answered(time);
                    self.succeeded();
                    Ok(part)
                }
                Err(error) => Err(self.failed(&error)),
            }
        });
        task.await.unwrap_or_else(|_| {
            let reason = "the request's thread has ended".to_owned();
            Err(PeerFault { kind: FaultKind::Failed, reason })
        })
    }

    fn succeeded(&self) {
        let mut state = self.state.lock();
        (state.is_reached, state.failures, state.rests_until) = (true, 0, None);
        self.show(&state);
    }

    /// Updates the state after a failed request.
    fn failed(&self, error: &RpcError) -> PeerFault {
        let fault = PeerFault { kind: kind_of(&error.kind), reason: error.kind.to_string() };
        self.metrics.failed(fault.kind.name());
        if fault.kind == FaultKind::Failed {
            let now = Instant::now();
            let mut state = self.state.lock();
            if is_gone(&error.kind) {
                if state.is_reached {
                    tracing::warn!(peer = self.name(), error = %error.kind, "a proof peer is gone");
                }
                state.is_reached = false;
                state.probe_at = state.probe_at.min(now + SOON);
            } else {
                let rest = REST * 2u32.saturating_pow(state.failures.min(16));
                state.rests_until = Some(now + rest.min(LONGEST_REST));
                state.failures += 1;
            }
            self.show(&state);
        }
        fault
    }

    /// Records that its part has holes that its shard should fill.
    pub(super) fn report_lacking(&self) -> PeerFault {
        let reason = "its part has the same hole".to_owned();
        self.metrics.failed(FaultKind::Lacking.name());
        PeerFault { kind: FaultKind::Lacking, reason }
    }

    /// Sets the peer aside for a wrong response.
    pub(super) fn report_wrong(&self, reason: &str) -> PeerFault {
        self.metrics.failed(FaultKind::Wrong.name());
        let now = Instant::now();
        let mut state = self.state.lock();
        // Concurrent requests count as one fault.
        if state.aside_until.is_none_or(|until| until <= now) {
            let time = self.set_aside * 2u32.pow(state.wrongs.min(4));
            state.wrongs += 1;
            state.aside_until = Some(now + time);
            self.metrics.set_aside.inc();
            tracing::warn!(
                peer = self.name(),
                reason,
                seconds = time.as_secs(),
                "a proof peer returned a wrong response and is set aside"
            );
        }
        self.show(&state);
        PeerFault { kind: FaultKind::Wrong, reason: format!("its answer is wrong: {reason}") }
    }

    /// Marks a probe as started if one is due; returns whether it is.
    pub(super) fn begin_probe_if_due(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_due = state.probe_at <= now && !state.is_being_probed;
        state.is_being_probed |= is_due;
        is_due
    }

    /// Probes the peer; `head` is the number of this node's head. It blocks.
    pub(super) fn probe(&self, head: u64) {
        let answer = self.prober.health().map(Some);
        // A gateway or an older node may not have `/health`.
        let answer = answer.or_else(|error| match *error.kind {
            RpcErrorKind::Result(_) | RpcErrorKind::Http(HttpFault::Status { .. }) => Ok(None),
            _ => Err(error),
        });
        let shard = match &answer {
            Ok(Some(health)) if health.shard.is_some() => Ok(health.shard.clone()),
            Ok(_) => self.prober.proof_shard().map(Some),
            Err(_) => Ok(None),
        };
        let failed = answer.as_ref().err().or_else(|| shard.as_ref().err());
        let now = Instant::now();
        let mut state = self.state.lock();
        state.is_being_probed = false;
        match failed {
            Some(error) => {
                if state.is_reached {
                    tracing::warn!(peer = self.name(), error = %error.kind, "a proof peer is gone");
                }
                state.is_reached = false;
                let wait = SOON * 2u32.saturating_pow(state.unreached.min(16));
                state.probe_at = now + jitter(wait.min(self.probe));
                state.unreached += 1;
            }
            None => {
                let health = answer.ok().flatten();
                let shard = shard.ok().flatten();
                if !state.is_reached || state.shard != shard {
                    let shard = shard.as_deref().unwrap_or("unknown");
                    tracing::info!(peer = self.name(), shard, "a proof peer answers");
                }
                state.shard = shard;
                (state.is_reached, state.unreached) = (true, 0);
                state.says_well = health.as_ref().is_none_or(|health| health.is_well());
                state.lags = health.is_some_and(|health| health.head.saturating_add(LAG) < head);
                state.probe_at = now + jitter(self.probe);
            }
        }
        self.show(&state);
    }

    fn show(&self, state: &PeerState) {
        self.metrics
            .healthy
            .set((state.standing(Instant::now()) == ReplicaStanding::Healthy).into());
    }
}

impl PeerState {
    fn standing(&self, now: Instant) -> ReplicaStanding {
        let lasts = |until: Option<Instant>| until.is_some_and(|until| until > now);
        if lasts(self.aside_until) {
            ReplicaStanding::SetAside
        } else if self.is_reached && self.says_well && !self.lags && !lasts(self.rests_until) {
            ReplicaStanding::Healthy
        } else {
            ReplicaStanding::Doubtful
        }
    }
}

/// Varies the time by up to a tenth, so that nodes do not probe all at once.
fn jitter(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.9..1.1))
}

/// The fault of a failed request.
fn kind_of(kind: &RpcErrorKind) -> FaultKind {
    match kind {
        RpcErrorKind::Pruned { .. } | RpcErrorKind::NoBlock => FaultKind::Behind,
        RpcErrorKind::Refused { message, .. } => {
            let says = |signs: &[&str]| signs.iter().any(|sign| message.contains(sign));
            if says(&["header not found", "is not known", "retention", "history"]) {
                FaultKind::Behind
            } else if says(&["proofs are being built", "busy"]) {
                FaultKind::Busy
            } else {
                FaultKind::Failed
            }
        }
        RpcErrorKind::Http(HttpFault::Status { code: 429 | 503, .. }) => FaultKind::Busy,
        // An invalid JSON-RPC result; responses of proxies are not counted as wrong.
        RpcErrorKind::Result(_) => FaultKind::Wrong,
        _ => FaultKind::Failed,
    }
}

/// Whether the peer is unreachable.
const fn is_gone(kind: &RpcErrorKind) -> bool {
    matches!(kind, RpcErrorKind::Http(HttpFault::Connect(_) | HttpFault::Broken(_)))
}
