//! State sync of a new datadir: which root is trusted, and the steps from there to the datadir.

use super::{
    args::{NetworkArgs, SyncArgs, open_to_read},
    network::StateSyncPeers,
    progress::FetchProgress,
};
use alloy_primitives::B256;
use eyre::bail;
use retrie_db::{ChainRead, DbError, OpenError, StateRootMode};
use retrie_pipeline::{ChainAnchor, ChainOptions, ChainStore, ChunkedState};
use retrie_sources::HeaderItem;
use retrie_state::{KeyForm, RangeFormat};
use retrie_state_sync::{
    FetchedState, HttpPeer, PeerSource, StateFetcher, StateFormat, StatePeer, StateSyncError,
    StateSyncOptions, StateSyncProgress, SyncTarget, SyncTargetError, remove_sync_dir,
};
use retrie_telemetry::grouped;
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Pause between two requests to peers for the sync target (the pivot block).
const PAUSE: Duration = Duration::from_millis(500);

/// Creates the datadir of `options` by state sync, unless it has a chain.
pub(super) fn run(
    args: &SyncArgs,
    network: &NetworkArgs,
    options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let datadir = options.datadir.clone();
    if has_chain(&datadir)? {
        tracing::info!("{} has a chain: the flags of state sync are ignored", datadir.display());
        return Ok(());
    }
    if options.store.keys == KeyForm::Hashed {
        return run_snap(args, network, options, stop);
    }
    let unsupported = || StateSyncError::Unsupported { backend: options.backend.identity().name };
    let chunks = options.backend.extensions().chunks.ok_or_else(unsupported)?.format();
    let format = StateFormat::Chunks(options.backend.clone());
    if args.from.is_empty() {
        let Some(hash) = args.checkpoint else {
            bail!(
                "peers are not asked which block has a root: name the block too (--checkpoint), or \
                 nodes that are asked (--sync.from)"
            );
        };
        std::fs::create_dir_all(&datadir)?;
        let spec = options.own_spec()?;
        let visitor = StateSyncPeers::start(network, &datadir, &spec)?;
        let peers = visitor.peers(chunks);
        let begun = find_target(&peers, hash, args.patience, stop).and_then(|origin| {
            let of_state = |_| peers.clone();
            let fetcher = &mut StateFetcher::open(format, &datadir)?;
            sync_state(args, options, fetcher, origin, of_state, &mut |_| is_stopped(stop))
        });
        visitor.close()?;
        begun?;
        return Ok(remove_sync_dir(&datadir)?);
    }
    let peer = |url: &String| Arc::new(HttpPeer::new(url, stop.clone())) as Arc<dyn StatePeer>;
    let peers: Vec<_> = args.from.iter().map(peer).collect();
    let origin = match (args.checkpoint, args.root) {
        (Some(hash), _) => SyncTarget::of_block(&peers, hash)?,
        (None, Some(root)) => SyncTarget::of_root(&peers, root)?,
        (None, None) => bail!(
            "--sync.from needs to know what to trust: the hash of a block (--checkpoint) or the root \
             of its state (--sync.trusted-root)"
        ),
    };
    let of_state = |_| peers.clone();
    let fetcher = &mut StateFetcher::open(format, &datadir)?;
    sync_state(args, options, fetcher, origin, of_state, &mut |_| is_stopped(stop))?;
    Ok(remove_sync_dir(&datadir)?)
}

fn is_stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Does it by `snap`, which gives the hashes of keys and is checked by the header's root, whatever
/// the backend.
fn run_snap(
    args: &SyncArgs,
    network: &NetworkArgs,
    options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let hash = match (&args.from[..], args.checkpoint) {
        ([], Some(hash)) => hash,
        ([], None) => bail!("name the block whose state peers are asked for (--checkpoint)"),
        _ => bail!(
            "states over JSON-RPC have plain keys: leave out --sync.from, so that peers are asked by \
             snap, or leave out --state.keys hashed"
        ),
    };
    let Some(ranges) = range_format() else { bail!(NO_RANGES) };
    let datadir = options.datadir.clone();
    std::fs::create_dir_all(&datadir)?;
    let spec = options.own_spec()?;
    let visitor = StateSyncPeers::start(network, &datadir, &spec)?;
    // The root is not known yet, and headers need none.
    let of_headers = visitor.snap_peers(ranges, B256::ZERO);
    let fetcher = &mut StateFetcher::open(StateFormat::Ranges(ranges), &datadir)?;
    let begun = find_target(&of_headers, hash, args.patience, stop).and_then(|origin| {
        let peers = |root| visitor.snap_peers(ranges, root);
        sync_state(args, options, fetcher, origin, peers, &mut |_| is_stopped(stop))
    });
    visitor.close()?;
    begun?;
    Ok(remove_sync_dir(&datadir)?)
}

/// The error of a program that cannot check ranges.
pub(super) const NO_RANGES: &str =
    "this program is built without a backend that has Ethereum's tries";

/// What checks ranges, the same for all backends that have them.
pub(super) fn range_format() -> Option<&'static dyn RangeFormat> {
    let mut all = retrie_backends::with_ethereum_root().map(|backend| (backend.small)());
    all.find_map(|backend| Some(backend.extensions().ranges?.range_format()))
}

/// The sync target of block `hash`, as soon as a peer has it.
fn find_target(
    peers: &dyn PeerSource,
    hash: B256,
    patience: Duration,
    stop: &AtomicBool,
) -> eyre::Result<SyncTarget> {
    tracing::info!("looking for peers that serve the state of block {hash}");
    let begun = Instant::now();
    loop {
        match SyncTarget::of_block(&peers.peers(), hash) {
            Err(SyncTargetError::NoHeaders { .. }) if stop.load(Ordering::Relaxed) => {
                return Err(StateSyncError::Stopped.into());
            }
            Err(SyncTargetError::NoHeaders { .. }) if begun.elapsed() < patience => {
                std::thread::sleep(PAUSE);
            }
            origin => return Ok(origin?),
        }
    }
}

/// Creates the datadir with the state of this block. `peers` are those that serve the state with a
/// root. It asks `halts` several times a second whether to stop; until all is fetched, that may also be
/// for another state.
pub(super) fn sync_state<P: PeerSource>(
    args: &SyncArgs,
    options: ChainOptions,
    fetcher: &mut StateFetcher,
    origin: SyncTarget,
    peers: impl FnOnce(B256) -> P,
    halts: &mut dyn FnMut(&StateSyncProgress) -> bool,
) -> eyre::Result<()> {
    let backend = options.backend.identity().name;
    let hash = origin.hash;
    let items = origin.headers.into_iter().map(HeaderItem::Header).collect();
    let anchor = ChainAnchor::new(&options, items, Some(hash), args.total_difficulty)?;
    let root = match fetcher.format() {
        StateFormat::Chunks(_) => trusted_root(args, &options, &anchor)?,
        StateFormat::Ranges(_) => anchor.header().state_root,
    };
    let peers = &peers(root);
    let number = anchor.header().number;
    tracing::info!(
        "fetching the state of block {number} ({hash}), root {root}, for {backend}, from {} nodes",
        peers.peers().len()
    );
    let start = Instant::now();
    let mut shown = FetchProgress::default();
    let patience = StateSyncOptions { patience: args.patience };
    let halted = AtomicBool::new(false);
    let fetched =
        fetcher.fetch((number, hash), root, peers, patience, &halted, &mut |progress| {
            shown.update(progress);
            halted.store(halts(progress), Ordering::Relaxed);
        })?;
    shown.finish();
    let fetched_in = start.elapsed();
    let StateSyncProgress { entries, codes, bytes, resumed, banned, .. } = fetched.progress;
    tracing::info!(
        "fetched {} entries and {} codes in {:.1} s, {:.1} MiB{}{}; loading them",
        grouped(entries),
        grouped(codes),
        fetched_in.as_secs_f64(),
        bytes as f64 / f64::from(1 << 20),
        if resumed > 0 {
            format!(", {} responses of them from an earlier run", grouped(resumed))
        } else {
            String::new()
        },
        if banned > 0 { format!("; {banned} nodes lied") } else { String::new() },
    );
    load(options, &anchor, fetcher.format(), root, fetched)?;
    tracing::info!(
        "the state of block {number} has the root {root}; begun in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

pub(super) fn has_chain(datadir: &Path) -> eyre::Result<bool> {
    let db = match open_to_read(datadir) {
        Err(DbError::Open(OpenError::NoDatadir { .. } | OpenError::NotADatabase { .. })) => {
            return Ok(false);
        }
        db => db?,
    };
    let read = db.begin_read()?;
    Ok(read.metadata()?.is_some() && read.tip()?.is_some())
}

/// The backend's own root that the fetched state must have.
fn trusted_root(
    args: &SyncArgs,
    options: &ChainOptions,
    anchor: &ChainAnchor,
) -> eyre::Result<B256> {
    let header = anchor.header();
    let backend = options.backend.identity().name;
    match (options.root_mode, args.root) {
        (StateRootMode::Shadow, Some(root)) => Ok(root),
        (StateRootMode::Shadow, None) => bail!(
            "headers do not have the root of {backend}: pass it too, as a node that you trust has it \
             (--sync.trusted-root; state_getRoot answers it)"
        ),
        (_, Some(root)) if root != header.state_root => bail!(
            "block {} ({}) has the root {}, not {root}: --checkpoint and --sync.trusted-root \
             contradict each other",
            header.number,
            header.hash(),
            header.state_root
        ),
        _ => Ok(header.state_root),
    }
}

fn load(
    options: ChainOptions,
    anchor: &ChainAnchor,
    format: &StateFormat,
    root: B256,
    fetched: FetchedState,
) -> eyre::Result<()> {
    let FetchedState { entries, parts, mut codes, .. } = fetched;
    let mut codes = codes.iter().map(|code| code.map_err(io::Error::other));
    // The root of ranges is that of the header, which the store checks if it has that root.
    let (root, parts) = match format {
        StateFormat::Chunks(_) => (Some(root), Some(&parts[..])),
        StateFormat::Ranges(_) => (None, None),
    };
    let state = ChunkedState { root, parts, entries, codes: &mut codes };
    let (chain, _) = ChainStore::create_synced(options, anchor, state)?;
    chain.flush()?;
    Ok(())
}
