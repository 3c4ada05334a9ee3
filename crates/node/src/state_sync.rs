//! State sync of a new datadir: which root is trusted, and the steps from there to the datadir.

use super::{
    args::{NetworkArgs, SyncArgs, open_to_read},
    network::StateSyncPeers,
    progress::FetchProgress,
    sync_sources::{SyncSelection, SyncSources},
};
use alloy_primitives::B256;
use eyre::bail;
use retrie_db::{ChainRead, DbError, OpenError, StateRootMode};
use retrie_pipeline::{
    AnchorHistory, ChainAnchor, ChainOptions, ChainStore, ChunkedState, RootKind,
};
use retrie_sources::HeaderItem;
use retrie_state::{KeyForm, RangeFormat};
use retrie_state_sync::{
    FetchedState, PeerSource, SnapshotBlocks, SnapshotMirror, StateFetcher, StateFormat,
    StateSyncError, StateSyncOptions, StateSyncProgress, SyncTarget, SyncTargetError,
    remove_sync_dir, sync_dir,
};
use retrie_telemetry::{grouped, state_sync::StateSyncMetrics};
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What a state sync makes a datadir of.
pub(super) struct SyncSubject {
    /// The block of the state, and its ancestors' headers.
    pub(super) origin: SyncTarget,
    /// Blocks up to that one.
    pub(super) blocks: Option<SnapshotBlocks>,
}

impl From<SyncTarget> for SyncSubject {
    fn from(origin: SyncTarget) -> Self {
        Self { origin, blocks: None }
    }
}

/// Time between two lines about blocks that are fetched.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Pause between two requests to peers for the sync target (the pivot block).
const PAUSE: Duration = Duration::from_millis(500);

/// Creates the datadir of `options` by state sync, unless it has a chain. `keys` is the form of keys
/// that the user has asked for.
pub(super) fn run(
    args: &SyncArgs,
    network: &NetworkArgs,
    keys: Option<KeyForm>,
    options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let datadir = options.datadir.clone();
    if has_chain(&datadir)? {
        tracing::info!("{} has a chain: the flags of state sync are ignored", datadir.display());
        return Ok(());
    }
    if !args.from.is_empty() {
        run_from(args, keys, options, stop)?;
    } else if options.store.keys == KeyForm::Hashed {
        run_snap(args, network, options, stop)?;
    } else {
        run_rchk(args, network, options, stop)?;
    }
    Ok(remove_sync_dir(&datadir)?)
}

/// Does it from the nodes and mirrors of `--sync.from`.
fn run_from(
    args: &SyncArgs,
    keys: Option<KeyForm>,
    mut options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let sources = SyncSources::open(&args.from, &options.datadir, stop)?;
    sources.check(&options)?;
    let origin = match (args.checkpoint, args.root) {
        (Some(hash), _) => SyncTarget::of_block(&sources.all(), hash)?,
        (None, Some(root)) => SyncTarget::of_root(&sources.all(), root)?,
        (None, None) => {
            let blocks = sources.blocks();
            bail!(
                "--sync.from needs to know what to trust: the hash of a block (--checkpoint) or the \
                 root of its state (--sync.trusted-root){}{blocks}",
                if blocks.is_empty() { "" } else { "; " }
            )
        }
    };
    let SyncSelection { format, peers, mirrors } =
        sources.select(origin.hash, keys, &mut options)?;
    let fetcher = &mut StateFetcher::open(format, &options.datadir)?;
    let blocks = fetch_blocks(&mirrors, &origin, &options.datadir, stop)?;
    let subject = SyncSubject { origin, blocks };
    sync_state(args, options, fetcher, subject, |_| peers, None, &mut |_| is_stopped(stop))
}

/// Fetches the blocks that mirrors have beside the state.
fn fetch_blocks(
    mirrors: &[Arc<SnapshotMirror>],
    origin: &SyncTarget,
    datadir: &Path,
    stop: &AtomicBool,
) -> eyre::Result<Option<SnapshotBlocks>> {
    let Some(last) = origin.header() else { return Ok(None) };
    let mut shown = Instant::now();
    let fetched =
        SnapshotBlocks::fetch(mirrors, last, &sync_dir(datadir), stop, &mut |lowest, first| {
            if shown.elapsed() >= LINE_EVERY {
                shown = Instant::now();
                tracing::info!(
                    "fetched the blocks {} to {lowest}, of those to {first}",
                    last.number
                );
            }
        })?;
    if let Some(blocks) = &fetched {
        tracing::info!("fetched the blocks {} to {} with receipts", blocks.first(), last.number);
    }
    Ok(fetched)
}

/// Does it by `rchk`, from retrie nodes.
fn run_rchk(
    args: &SyncArgs,
    network: &NetworkArgs,
    options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let unsupported = || StateSyncError::Unsupported { backend: options.backend.identity().name };
    let chunks = options.backend.extensions().chunks.ok_or_else(unsupported)?.format();
    let format = StateFormat::Chunks(options.backend.clone());
    let Some(hash) = args.checkpoint else {
        bail!(
            "peers are not asked which block has a root: name the block too (--checkpoint), or nodes \
             that are asked (--sync.from)"
        );
    };
    let datadir = options.datadir.clone();
    std::fs::create_dir_all(&datadir)?;
    let spec = options.own_spec()?;
    let visitor = StateSyncPeers::start(network, &datadir, &spec)?;
    let peers = visitor.peers(chunks);
    let begun = find_target(&peers, hash, args.patience, stop).and_then(|origin| {
        let of_state = |_| peers.clone();
        let fetcher = &mut StateFetcher::open(format, &datadir)?;
        sync_state(args, options, fetcher, origin, of_state, None, &mut |_| is_stopped(stop))
    });
    visitor.close()?;
    begun
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
    let Some(hash) = args.checkpoint else {
        bail!("name the block whose state peers are asked for (--checkpoint)");
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
        sync_state(args, options, fetcher, origin, peers, None, &mut |_| is_stopped(stop))
    });
    visitor.close()?;
    begun
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
/// root. It shows its progress in `metrics`, and asks `halts` several times a second whether to
/// stop; until all is fetched, that may also be for another state.
pub(super) fn sync_state<P: PeerSource>(
    args: &SyncArgs,
    options: ChainOptions,
    fetcher: &mut StateFetcher,
    subject: impl Into<SyncSubject>,
    peers: impl FnOnce(B256) -> P,
    metrics: Option<StateSyncMetrics>,
    halts: &mut dyn FnMut(&StateSyncProgress) -> bool,
) -> eyre::Result<()> {
    let backend = options.backend.identity().name;
    let SyncSubject { origin, blocks } = subject.into();
    let hash = origin.hash;
    let items = origin.headers.into_iter().map(HeaderItem::Header).collect();
    let anchor = ChainAnchor::new(&options, items, Some(hash), args.total_difficulty)?;
    let root = match is_own(fetcher.format(), &options) {
        true => trusted_root(args, &options, &anchor)?,
        false => merkle_root(&options, &anchor)?,
    };
    let peers = &peers(root);
    let number = anchor.header().number;
    tracing::info!(
        "fetching the state of block {number} ({hash}), root {root}, for {backend}, from {} nodes",
        peers.peers().len()
    );
    let start = Instant::now();
    let mut shown = FetchProgress::new(number, metrics);
    let patience = StateSyncOptions { patience: args.patience };
    let halted = AtomicBool::new(false);
    let fetched =
        fetcher.fetch((number, hash), root, peers, patience, &halted, &mut |progress| {
            shown.update(progress);
            halted.store(halts(progress), Ordering::Relaxed);
        })?;
    shown.finish();
    shown.loading(&fetched.progress);
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
    load(options, &anchor, fetcher.format(), root, fetched, blocks.as_ref())?;
    tracing::info!(
        "the state of block {number} has the root {root}; begun in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The root that proves ranges of `snap`: the header's, if that is of the Merkle Patricia trie.
fn merkle_root(options: &ChainOptions, anchor: &ChainAnchor) -> eyre::Result<B256> {
    let header = anchor.header();
    if options.root_kind(header.timestamp) == RootKind::Binary {
        bail!(
            "block {} ({}) has the root of the partitioned binary tree in its header, and snap proves \
             states of the Merkle Patricia trie: fetch the state in chunks (--state.keys plain), or \
             execute the chain from its genesis on",
            header.number,
            header.hash()
        );
    }
    Ok(header.state_root)
}

/// Whether the chunks are those of the datadir's backend. Otherwise the header's root proves them.
fn is_own(format: &StateFormat, options: &ChainOptions) -> bool {
    match format {
        StateFormat::Chunks(backend) => Arc::ptr_eq(backend, &options.backend),
        StateFormat::Ranges(_) => false,
    }
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
    let is_shadow = match options.root_mode {
        StateRootMode::Shadow => true,
        StateRootMode::Native => false,
        StateRootMode::Header => {
            !options.root_kind(header.timestamp).is_of(&options.backend.profile())
        }
    };
    match (is_shadow, args.root) {
        (true, Some(root)) => Ok(root),
        (true, None) => bail!(
            "the header does not have the root of {backend}: pass it too, as a node that you trust has it \
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
    blocks: Option<&SnapshotBlocks>,
) -> eyre::Result<()> {
    let FetchedState { entries, parts, mut codes, .. } = fetched;
    let mut codes = codes.iter().map(|code| code.map_err(io::Error::other));
    // Other chunks have the header's root, which the store checks if its root is that.
    let (root, parts) = match is_own(format, &options) {
        true => (Some(root), Some(&parts[..])),
        false => (None, None),
    };
    let mut older = blocks.into_iter().flat_map(SnapshotBlocks::iter);
    let executed = blocks.map(|blocks| AnchorHistory {
        first: blocks.first(),
        difficulty: blocks.difficulty(),
        blocks: &mut older,
    });
    let state = ChunkedState { root, parts, entries, codes: &mut codes, executed };
    let (chain, _) = ChainStore::create_synced(options, anchor, state)?;
    chain.flush()?;
    Ok(())
}
