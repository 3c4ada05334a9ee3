//! Beginning with the state of other nodes: what is trusted, and the steps from there to a datadir.

use super::args::SyncArgs;
use crate::{args::open_to_read, output::grouped, progress::SyncProgress};
use alloy_primitives::B256;
use eyre::bail;
use retrie_db::{ChainRead, DbError, StateRootMode};
use retrie_network::{FetchError, FetchOptions, Fetched, HttpPeer, Origin, Peer, Progress, fetch};
use retrie_pipeline::{Anchor, Chain, ChainOptions, ChunkedState};
use retrie_sources::HeaderItem;
use std::{
    io,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Makes the datadir that `options` name, unless it has a chain.
pub(super) fn run(
    args: &SyncArgs,
    options: ChainOptions,
    stop: &Arc<AtomicBool>,
) -> eyre::Result<()> {
    let datadir = options.datadir.clone();
    if has_chain(&datadir)? {
        tracing::info!("{} has a chain: --sync.from is left aside", datadir.display());
        return Ok(());
    }
    let backend = options.backend.identity().name;
    if options.backend.chunks().is_none() {
        return Err(FetchError::Unsupported { backend }.into());
    }
    let peers: Vec<Arc<dyn Peer>> = args
        .from
        .iter()
        .map(|url| Arc::new(HttpPeer::new(url, stop.clone())) as Arc<dyn Peer>)
        .collect();
    let origin = match (args.checkpoint, args.root) {
        (Some(hash), _) => Origin::of_block(&peers, hash)?,
        (None, Some(root)) => Origin::of_root(&peers, root)?,
        (None, None) => bail!(
            "--sync.from needs to know what to trust: the hash of a block (--checkpoint) or the root \
             of its state (--sync.trusted-root)"
        ),
    };
    let hash = origin.hash;
    let items = origin.headers.into_iter().map(HeaderItem::Header).collect();
    let anchor = Anchor::new(&options, items, Some(hash), args.total_difficulty)?;
    let root = trusted_root(args, &options, &anchor)?;
    let number = anchor.header().number;
    tracing::info!(
        "fetching the state of block {number} ({hash}), root {root} of {backend}, from {} nodes",
        peers.len()
    );
    let start = Instant::now();
    let mut shown = SyncProgress::default();
    let patience = FetchOptions { patience: args.patience };
    let wanted = (hash, root);
    let fetched =
        fetch(&options.backend, wanted, &peers, &datadir, patience, stop, &mut |progress| {
            shown.update(progress);
        })?;
    shown.finish();
    let fetched_in = start.elapsed();
    let Progress { entries, codes, bytes, resumed, banned, .. } = fetched.progress;
    tracing::info!(
        "fetched {} entries and {} codes in {:.1} s, {:.1} MiB{}{}; loading them",
        grouped(entries),
        grouped(codes),
        fetched_in.as_secs_f64(),
        bytes as f64 / f64::from(1 << 20),
        if resumed > 0 {
            format!(", {} answers of them by a former run", grouped(resumed))
        } else {
            String::new()
        },
        if banned > 0 { format!("; {banned} nodes lied") } else { String::new() },
    );
    load(options, &anchor, root, fetched)?;
    retrie_network::fetch::forget(&datadir)?;
    tracing::info!(
        "the state of block {number} has the root {root}; begun in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn has_chain(datadir: &Path) -> eyre::Result<bool> {
    let db = match open_to_read(datadir) {
        Err(DbError::NoDatadir { .. } | DbError::NotADatabase { .. }) => return Ok(false),
        db => db?,
    };
    let read = db.begin_read()?;
    Ok(read.metadata()?.is_some() && read.tip()?.is_some())
}

/// The root of the backend's own that the state must have.
fn trusted_root(args: &SyncArgs, options: &ChainOptions, anchor: &Anchor) -> eyre::Result<B256> {
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

fn load(options: ChainOptions, anchor: &Anchor, root: B256, fetched: Fetched) -> eyre::Result<()> {
    let Fetched { entries, parts, mut codes, .. } = fetched;
    let mut codes = codes.iter().map(|code| code.map_err(io::Error::other));
    let state = ChunkedState { root, parts: &parts, entries, codes: &mut codes };
    let (chain, _) = Chain::create_synced(options, anchor, state)?;
    chain.flush()?;
    Ok(())
}
