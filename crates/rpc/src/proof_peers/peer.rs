//! One peer: what is known of it, and asking it.

use super::{ProofPeersConfig, Set, gather::Ask, names::Target};
use alloy_primitives::Bytes;
use parking_lot::Mutex;
use retrie_sources::{Http, HttpFault, HttpOptions, RpcClient, RpcError, rpc::RpcErrorKind};
use retrie_telemetry::proofs::{PeerMetrics, ProofMetrics};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Most requests to one peer at once: one that hangs holds no more threads.
const MAX_IN_FLIGHT: usize = 24;
/// Longest time that a peer may take to say how it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Blocks that a peer may be behind and still be well.
const LAG: u64 = 2;
/// How long a peer rests after its first request that failed though it is there; doubled with each
/// further one.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How soon a peer that is not reached is probed again; doubled with each further time.
const SOON: Duration = Duration::from_millis(250);

/// A peer.
pub(super) struct Peer {
    target: Target,
    /// Which URL has led to it.
    origin: usize,
    client: RpcClient,
    prober: RpcClient,
    probe: Duration,
    set_aside: Duration,
    in_flight: AtomicUsize,
    state: Mutex<State>,
    metrics: PeerMetrics,
}

/// What is known of a peer.
#[derive(Debug)]
struct State {
    /// Its shard, once it has said so.
    shard: Option<String>,
    /// Whether it was reached the last time.
    is_reached: bool,
    /// Whether it says that it is in sync and works.
    says_well: bool,
    /// Whether it lagged when it was probed.
    lags: bool,
    /// Requests that have failed in a row, and until when it rests for them.
    failures: u32,
    rests_until: Option<Instant>,
    /// Times that it was set aside, and until when it is.
    wrongs: u32,
    aside_until: Option<Instant>,
    /// Probes that have failed in a row, and when the next one is due.
    unreached: u32,
    probe_at: Instant,
    is_being_probed: bool,
}

/// How a peer stands, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It is asked.
    Well,
    /// It is asked if no other is left.
    Doubtful,
    /// It is not asked.
    SetAside,
}

/// Why a peer has given nothing.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) reason: String,
}

/// Kinds of it, as metrics name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// It did not answer, or answered that it cannot.
    Failed,
    /// It does not have the block or its state.
    Behind,
    /// Its part has holes where it should have none.
    Lacking,
    /// It has too much to do.
    Busy,
    /// Its answer is wrong.
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

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Peer {
    pub(super) fn new(
        target: Target,
        origin: usize,
        config: &ProofPeersConfig,
        metrics: &ProofMetrics,
    ) -> Self {
        // It is not asked twice: another replica is.
        let options = HttpOptions {
            timeout: config.timeout,
            whole: Some(config.timeout),
            retries: 0,
            ..HttpOptions::default()
        };
        let client = RpcClient::new(&target.url, Http::new(options, Arc::default()));
        let prober = client.hasty(PROBE_TIMEOUT.min(config.timeout));
        let state = State {
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

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    pub(super) fn url(&self) -> &str {
        &self.target.url
    }

    pub(super) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Which URL has led to it.
    pub(super) const fn origin(&self) -> usize {
        self.origin
    }

    /// Its shard, if it has said so.
    pub(super) fn shard(&self) -> Option<String> {
        self.state.lock().shard.clone()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn standing(&self) -> Standing {
        self.state.lock().standing(Instant::now())
    }

    /// Asks it for its part of a proof, on a thread that may block. Whoever stops waiting leaves the
    /// request to end by itself; what it tells of the peer counts all the same.
    pub(super) async fn ask(
        self: Arc<Self>,
        set: Arc<Set>,
        ask: Arc<Ask>,
        is_hedge: bool,
    ) -> Result<Bytes, Fault> {
        let busy = |reason: &str| {
            let fault = Fault { kind: FaultKind::Busy, reason: reason.to_owned() };
            self.metrics.failed(fault.kind.name());
            fault
        };
        let Ok(place) = set.requests.clone().try_acquire_owned() else {
            return Err(busy("this node asks for as many parts as it can"));
        };
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= MAX_IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            return Err(busy("it is being asked as often as it may"));
        }
        self.metrics.requests.inc();
        if is_hedge {
            self.metrics.hedges.inc();
        }
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            let start = Instant::now();
            let answer = self.client.proof_part(ask.address, &ask.slots, ask.block);
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
            Err(Fault { kind: FaultKind::Failed, reason })
        })
    }

    fn succeeded(&self) {
        let mut state = self.state.lock();
        (state.is_reached, state.failures, state.rests_until) = (true, 0, None);
        self.show(&state);
    }

    /// What a failure says of it.
    fn failed(&self, error: &RpcError) -> Fault {
        let fault = Fault { kind: kind_of(&error.kind), reason: error.kind.to_string() };
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

    /// Notes that its part has holes where its shard should have none.
    pub(super) fn lacks(&self) -> Fault {
        let reason = "its part lacks that, too".to_owned();
        self.metrics.failed(FaultKind::Lacking.name());
        Fault { kind: FaultKind::Lacking, reason }
    }

    /// Sets it aside for a wrong answer.
    pub(super) fn is_wrong(&self, reason: &str) -> Fault {
        self.metrics.failed(FaultKind::Wrong.name());
        let now = Instant::now();
        let mut state = self.state.lock();
        // Requests that were under way together are one matter.
        if state.aside_until.is_none_or(|until| until <= now) {
            let time = self.set_aside * 2u32.pow(state.wrongs.min(4));
            state.wrongs += 1;
            state.aside_until = Some(now + time);
            self.metrics.set_aside.inc();
            tracing::warn!(
                peer = self.name(),
                reason,
                seconds = time.as_secs(),
                "a proof peer has answered wrongly: it is set aside"
            );
        }
        self.show(&state);
        Fault { kind: FaultKind::Wrong, reason: format!("its answer is wrong: {reason}") }
    }

    /// Begins a probe if one is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_due = state.probe_at <= now && !state.is_being_probed;
        state.is_being_probed |= is_due;
        is_due
    }

    /// Asks it how it is; `head` is this node's. It blocks.
    pub(super) fn probe(&self, head: u64) {
        let answer = self.prober.health().map(Some);
        // A gateway, or an older node, may have no such page.
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

    fn show(&self, state: &State) {
        self.metrics.healthy.set((state.standing(Instant::now()) == Standing::Well).into());
    }
}

impl State {
    fn standing(&self, now: Instant) -> Standing {
        let lasts = |until: Option<Instant>| until.is_some_and(|until| until > now);
        if lasts(self.aside_until) {
            Standing::SetAside
        } else if self.is_reached && self.says_well && !self.lags && !lasts(self.rests_until) {
            Standing::Well
        } else {
            Standing::Doubtful
        }
    }
}

/// A tenth more or less, so that nodes do not probe all at once.
fn jitter(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.9..1.1))
}

/// What a failed request tells of a peer.
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
        // The form of an answer, and not what a proxy says on its way.
        RpcErrorKind::Result(_) => FaultKind::Wrong,
        _ => FaultKind::Failed,
    }
}

/// Whether nobody is there.
const fn is_gone(kind: &RpcErrorKind) -> bool {
    matches!(kind, RpcErrorKind::Http(HttpFault::Connect(_) | HttpFault::Broken(_)))
}
