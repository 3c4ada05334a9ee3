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
    state_sync::{has_chain, range_backend, sync_state},
};
use alloy_primitives::B256;
use eyre::bail;
use retrie_chainspec::ChainSpec;
use retrie_engine::EngineHandle;
use retrie_state::KeyForm;
use retrie_state_sync::{
    PeerSource, StateFormat, StateSyncError, SyncTarget, SyncTargetError, fetch_headers,
    remove_sync_dir, sync_dir,
};
use retrie_telemetry::Metrics;
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
    std::fs::create_dir_all(datadir)?;
    let waiting = WaitingNode::start(command, spec, datadir, stop)?;
    let synced = follow_head(command, spec, datadir, &waiting.engine, stop);
    waiting.services.stop().and(synced)?;
    Ok(remove_sync_dir(datadir)?)
}

/// A node at genesis, without peers: the consensus client finds its Engine API, and names heads.
struct WaitingNode {
    engine: EngineHandle,
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
            Ok(running) => Ok(Self { engine: running.engine, services }),
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
    engine: &EngineHandle,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let Some(backend) = range_backend() else {
        bail!("this program is built without a backend that has Ethereum's tries");
    };
    let format = StateFormat::Ranges(backend.clone());
    let visitor = StateSyncPeers::start(&command.network, datadir, spec)?;
    // Headers need no root.
    let of_headers = visitor.snap_peers(backend.clone(), B256::ZERO);
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
            let peers = |root| visitor.snap_peers(backend.clone(), root);
            let mut halts = || stop.load(Ordering::Relaxed) || head.is_far(&of_headers, engine);
            sync_state(&command.sync, options, &format, target, peers, &mut halts)
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
