//! Snap sync: a new datadir begins with the state of a block below the head that the consensus client
//! names.
//!
//! ```text
//!  consensus client --Engine API--> WaitingNode: a node without peers, at genesis, always SYNCING
//!                                      |
//!                                 wanted head --headers of peers--> PivotBlock --> sync_state --> datadir
//!                                      |                              ^
//!                                      '---- far above the pivot -----'
//! ```

use super::{
    NodeCommand,
    args::KeyFormChoice,
    network::StateSyncPeers,
    services::ServiceList,
    state_sync::{NO_RANGES, has_chain, range_format, sync_state},
};
use alloy_primitives::B256;
use eyre::bail;
use retrie_chainspec::ChainSpec;
use retrie_engine::EngineHandle;
use retrie_state::{KeyForm, RangeChanges};
use retrie_state_sync::{
    PeerSource, StateFetcher, StateFormat, StateSyncError, StateSyncProgress, SyncTarget,
    SyncTargetError, fetch_changes, fetch_headers, remove_sync_dir, sync_dir,
};
use retrie_telemetry::{
    Metrics,
    state_sync::{StateSyncFigures, StateSyncMetrics, StateSyncPhase},
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How far below the head the pivot is, in blocks: reorganisations seldom go so deep, and peers
/// keep the states of 128 blocks.
const DEPTH: u64 = 64;
/// When the head is this far above the pivot, another block becomes the pivot.
const MOST_ABOVE: u64 = DEPTH + 48;
/// What is shown before the first pivot is known.
const WAITING: StateSyncFigures = StateSyncFigures {
    phase: StateSyncPhase::Waiting,
    pivot: 0,
    entries: 0,
    codes: 0,
    bytes: 0,
    share: 0.0,
    remaining: None,
};
/// Over how many blocks a partly fetched state catches up by their access lists.
const MOST_LISTS: u64 = 1024;
/// Pause between two looks at the head.
const PAUSE: Duration = Duration::from_millis(250);
/// Pause between two questions to peers about a head that none of them knows.
const PEER_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two questions to peers about the head, and after a failure.
const HEAD_PAUSE: Duration = Duration::from_secs(5);

/// Creates the datadir of `command` by snap sync, unless it has a chain. Afterwards the node of
/// `command` can start.
pub(super) fn run(
    command: &mut NodeCommand,
    spec: &Arc<ChainSpec>,
    datadir: &Path,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    if has_chain(datadir)? {
        return Ok(());
    }
    if !command.has_consensus_client() {
        bail!(
            "--syncmode snap takes the head from a consensus client: leave out what turns the Engine \
             API off, or name a block (--checkpoint HASH --state.keys hashed)"
        );
    }
    match command.state.keys {
        Some(KeyFormChoice(KeyForm::Plain)) => {
            bail!("snap gives hashed keys: leave out --state.keys plain, or --syncmode snap")
        }
        _ => command.state.keys = Some(KeyFormChoice(KeyForm::Hashed)),
    }
    if spec.has_binary_genesis() {
        bail!(
            "chain {}: snap proves states of the Merkle Patricia trie, and the headers of this chain \
             carry roots of the partitioned binary tree from block 0 on: leave out --syncmode snap",
            spec.name()
        );
    }
    std::fs::create_dir_all(datadir)?;
    let waiting = WaitingNode::start(command, spec, datadir, stop)?;
    let synced = follow_head(command, spec, datadir, &waiting, stop);
    waiting.services.stop().and(synced)?;
    Ok(remove_sync_dir(datadir)?)
}

/// A node at genesis, without peers: the consensus client finds its Engine API, and names heads.
struct WaitingNode {
    engine: EngineHandle,
    metrics: StateSyncMetrics,
    services: ServiceList,
}

impl WaitingNode {
    fn start(
        command: &NodeCommand,
        spec: &Arc<ChainSpec>,
        datadir: &Path,
        stop: &Arc<AtomicBool>,
    ) -> eyre::Result<Self> {
        let mut waiting = command.clone();
        // The cheapest store: nothing is executed on it.
        waiting.state.state_backend = Some("raw".to_owned());
        (waiting.state.hash, waiting.state.referee, waiting.state.state_root) = (None, None, None);
        waiting.state.keys = None;
        waiting.txpool.disable_journal = true;
        waiting.auth.secret.get_or_insert_with(|| datadir.join("jwt.hex"));
        let folder = sync_dir(datadir).join("waiting");
        let services = ServiceList::default();
        let metrics = Metrics::new()?;
        match waiting.start(spec.clone(), &folder, &metrics, &services, false, stop) {
            Ok(running) => {
                let metrics = metrics.state_sync;
                metrics.show(WAITING);
                Ok(Self { engine: running.engine, metrics, services })
            }
            Err(error) => {
                services.stop()?;
                Err(error)
            }
        }
    }
}

fn follow_head(
    command: &NodeCommand,
    spec: &Arc<ChainSpec>,
    datadir: &Path,
    WaitingNode { engine, metrics, .. }: &WaitingNode,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let Some(ranges) = range_format() else { bail!(NO_RANGES) };
    let mut fetcher = StateFetcher::open(StateFormat::Ranges(ranges), datadir)?;
    let mut known = KnownChanges::default();
    let visitor = StateSyncPeers::start(&command.network, datadir, spec)?;
    // Headers need no root.
    let of_headers = visitor.snap_peers(ranges, B256::ZERO);
    tracing::info!("waiting for the consensus client to name a head");
    let synced = loop {
        if stop.load(Ordering::Relaxed) {
            break Err(StateSyncError::Stopped.into());
        }
        let Some(head) = engine.wanted_head() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let Some(pivot) = PivotBlock::below(head, &of_headers) else {
            std::thread::sleep(PEER_PAUSE);
            continue;
        };
        if pivot.number == 0 {
            tracing::info!("the chain is short: its blocks are executed from genesis on");
            break Ok(());
        }
        let mut head = HeadWatch::new(pivot);
        let target = SyncTarget::of_block(&of_headers.peers(), pivot.hash);
        let synced = target.map_err(eyre::Report::from).and_then(|target| {
            let options =
                command.state.chain_options(spec.clone(), datadir, command.db.options())?;
            if let Some(first) = fetcher.first_state() {
                fetcher.set_changes(known.up_to(first, pivot, &of_headers));
            }
            let peers = |root| visitor.snap_peers(ranges, root);
            let mut halts = |progress: &StateSyncProgress| {
                let mut is_far = || !progress.is_fetched && head.is_far(&of_headers, engine);
                stop.load(Ordering::Relaxed) || is_far()
            };
            let shown = Some(metrics.clone());
            sync_state(&command.sync, options, &mut fetcher, target, peers, shown, &mut halts)
        });
        let Err(error) = synced else { break Ok(()) };
        match error.downcast_ref::<StateSyncError>() {
            Some(StateSyncError::Stopped) if head.has_moved => {
                tracing::info!("the head has moved on: going on with the state of a later block");
            }
            Some(StateSyncError::Stopped) => {}
            // Peers may have the state of a later block.
            Some(StateSyncError::NoPeers { .. }) => tracing::warn!("{error}"),
            None if error.downcast_ref::<SyncTargetError>().is_some() => {
                tracing::warn!("{error}");
                std::thread::sleep(HEAD_PAUSE);
            }
            _ => break Err(error),
        }
    };
    visitor.close()?;
    synced
}

/// The block whose state is fetched.
#[derive(Clone, Copy, Debug)]
struct PivotBlock {
    number: u64,
    hash: B256,
}

impl PivotBlock {
    /// The block that far below `head`; block 0 if there are fewer blocks below it. `None` if no
    /// peer knows the head.
    fn below(head: B256, peers: &impl PeerSource) -> Option<Self> {
        let headers = fetch_headers(&peers.peers(), head, DEPTH + 1).ok()?;
        let lowest = headers.first()?;
        let is_deep = headers.len() as u64 > DEPTH;
        Some(Self { number: if is_deep { lowest.number } else { 0 }, hash: lowest.hash_slow() })
    }
}

/// What blocks changed since the first state that was wanted, as far as peers give block access lists.
#[derive(Debug, Default)]
struct KnownChanges {
    since: Option<B256>,
    until: Option<PivotBlock>,
    changes: RangeChanges,
}

impl KnownChanges {
    /// The changes of the blocks above `first` up to `pivot`; empty if they are not known.
    fn up_to(
        &mut self,
        first: (u64, B256),
        pivot: PivotBlock,
        peers: &impl PeerSource,
    ) -> RangeChanges {
        let until = self.until.filter(|_| self.since == Some(first.1));
        let further = until.and_then(|until| changes_between(until, pivot, peers));
        let all = match further {
            Some(further) => {
                self.changes.extend(further);
                true
            }
            None => {
                let first = PivotBlock { number: first.0, hash: first.1 };
                let changes = changes_between(first, pivot, peers);
                self.changes = changes.unwrap_or_default();
                !self.changes.0.is_empty()
            }
        };
        (self.since, self.until) = (Some(first.1), all.then_some(pivot));
        if all {
            let accounts = self.changes.0.len();
            tracing::info!(
                "block access lists show which {accounts} accounts changed since block {}",
                first.0
            );
        }
        self.changes.clone()
    }
}

/// What the blocks above `from` up to `to` changed; `None` if `from` is no ancestor of `to`, or too
/// far below, or if peers do not give the access lists.
fn changes_between(
    from: PivotBlock,
    to: PivotBlock,
    peers: &impl PeerSource,
) -> Option<RangeChanges> {
    let count = to.number.checked_sub(from.number).filter(|count| *count <= MOST_LISTS)?;
    if count == 0 {
        return (from.hash == to.hash).then(RangeChanges::default);
    }
    let peers = peers.peers();
    let headers = fetch_headers(&peers, to.hash, count).ok()?;
    if headers.first()?.parent_hash != from.hash {
        return None;
    }
    fetch_changes(&peers, &headers)
}

/// Notices when the head is far above the pivot.
struct HeadWatch {
    pivot: PivotBlock,
    seen: Option<B256>,
    asked: Instant,
    has_moved: bool,
}

impl HeadWatch {
    fn new(pivot: PivotBlock) -> Self {
        Self { pivot, seen: None, asked: Instant::now(), has_moved: false }
    }

    fn is_far(&mut self, peers: &impl PeerSource, engine: &EngineHandle) -> bool {
        let head = engine.wanted_head();
        if !self.has_moved && head != self.seen && self.asked.elapsed() >= HEAD_PAUSE {
            (self.seen, self.asked) = (head, Instant::now());
            let header = head.and_then(|head| fetch_headers(&peers.peers(), head, 1).ok());
            let number = header.and_then(|headers| Some(headers.first()?.number));
            self.has_moved = number.is_some_and(|head| head > self.pivot.number + MOST_ABOVE);
        }
        self.has_moved
    }
}
