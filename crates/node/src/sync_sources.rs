//! The places that `--sync.from` names: nodes that are asked by JSON-RPC, and mirrors of snapshots.

use super::state_sync::{NO_RANGES, range_format};
use alloy_primitives::B256;
use eyre::bail;
use retrie_pipeline::ChainOptions;
use retrie_sources::{BlockingClient, HttpOptions, ObjectFolder, StoreEnvironment, StoreRegistry};
use retrie_state::{AnyBackend, KeyForm};
use retrie_state_sync::{
    HttpPeer, SnapshotError, SnapshotManifest, SnapshotMirror, StateFormat, StatePeer,
    StateSyncError, sync_dir,
};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// How long a mirror may send nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one read may take in total.
const READ_TIMEOUT: Duration = Duration::from_secs(45);
/// How often the request for a manifest is repeated. Others are repeated by the sync.
const MANIFEST_RETRIES: u32 = 2;

/// Nodes and mirrors.
pub(super) struct SyncSources {
    nodes: Vec<Arc<HttpPeer>>,
    mirrors: Vec<Arc<SnapshotMirror>>,
    /// Why a place was left out.
    reasons: Vec<String>,
}

/// How the state is fetched, and from whom.
pub(super) struct SyncSelection {
    pub(super) format: StateFormat,
    pub(super) peers: Vec<Arc<dyn StatePeer>>,
    /// The mirrors among them.
    pub(super) mirrors: Vec<Arc<SnapshotMirror>>,
}

impl SyncSources {
    /// Asks each place for a manifest. A web server without one is a node. Copies of indexes go into
    /// the folder of state sync in `datadir`.
    pub(super) fn open(
        places: &[String],
        datadir: &Path,
        stop: &Arc<AtomicBool>,
    ) -> eyre::Result<Self> {
        let stores = |retries| {
            let options = HttpOptions {
                timeout: IDLE_TIMEOUT,
                total_timeout: Some(READ_TIMEOUT),
                retries,
                ..HttpOptions::default()
            };
            let client = BlockingClient::new(options, stop.clone());
            StoreRegistry::new(StoreEnvironment::from_process(), client)
        };
        let (patient, brief) = (stores(MANIFEST_RETRIES), stores(0));
        let mut sources = Self { nodes: Vec::new(), mirrors: Vec::new(), reasons: Vec::new() };
        for place in places {
            let is_web = place.starts_with("http://") || place.starts_with("https://");
            let path = place.strip_prefix("file://").unwrap_or(place);
            let folder = |stores: &StoreRegistry| stores.locate(path).map(ObjectFolder::new);
            let found = folder(&patient).map_err(SnapshotError::from);
            match found.and_then(|folder| SnapshotManifest::read(&folder)) {
                Ok(Some(manifest)) => {
                    let mirror = SnapshotMirror::new(folder(&brief)?, manifest, &sync_dir(datadir));
                    sources.mirrors.push(Arc::new(mirror));
                }
                // Nodes answer a GET in many ways, and a mirror that is not there is none.
                Ok(None) | Err(_) if is_web => {
                    sources.nodes.push(Arc::new(HttpPeer::new(place, stop.clone())));
                }
                Ok(None) => sources.reasons.push(format!("{path}: there is no snapshot.json")),
                Err(error) => sources.reasons.push(error.to_string()),
            }
        }
        if sources.nodes.is_empty() && sources.mirrors.is_empty() {
            bail!("--sync.from names nothing to fetch from: {}", sources.reasons.join("; "));
        }
        Ok(sources)
    }

    /// All of them, to be asked which block has a root.
    pub(super) fn all(&self) -> Vec<Arc<dyn StatePeer>> {
        let nodes = self.nodes.iter().map(|node| node.clone() as Arc<dyn StatePeer>);
        let mirrors = self.mirrors.iter().map(|mirror| mirror.clone() as Arc<dyn StatePeer>);
        mirrors.chain(nodes).collect()
    }

    /// Checks that something here can be of use to the backend: nodes give only its own chunks.
    pub(super) fn check(&self, options: &ChainOptions) -> Result<(), StateSyncError> {
        if self.mirrors.is_empty() && options.backend.extensions().chunks.is_none() {
            let backend = options.backend.identity().name;
            return Err(StateSyncError::Unsupported { backend });
        }
        Ok(())
    }

    /// What the mirrors have, for a message.
    pub(super) fn blocks(&self) -> String {
        let block = |mirror: &Arc<SnapshotMirror>| {
            let SnapshotManifest { block_number: number, block_hash: hash, .. } = mirror.manifest();
            format!("{} has the state of block {number} ({hash})", mirror.name())
        };
        self.mirrors.iter().map(block).collect::<Vec<_>>().join("; ")
    }

    /// Those that give the state of `block` in one format: that of the first mirror which has the
    /// chain of `options`, the block, and keys of the form `keys`, if that is given; without such a
    /// mirror that of the nodes. Sets the form of keys in `options`.
    pub(super) fn select(
        mut self,
        block: B256,
        keys: Option<KeyForm>,
        options: &mut ChainOptions,
    ) -> eyre::Result<SyncSelection> {
        let genesis = options.own_spec()?.genesis_hash();
        let mut chosen: Option<StateFormat> = None;
        let mut mirrors = Vec::new();
        for mirror in &self.mirrors {
            let fits = fit(mirror.manifest(), genesis, block, keys, options).and_then(|format| {
                match &chosen {
                    Some(chosen) if !is_same(chosen, &format) => {
                        Err("its chunks are of another format than those of the first mirror"
                            .into())
                    }
                    _ => Ok(format),
                }
            });
            match fits {
                Ok(format) => {
                    chosen.get_or_insert(format);
                    mirrors.push(mirror.clone());
                }
                Err(reason) => self.reasons.push(format!("{}: {reason}", mirror.name())),
            }
        }
        for reason in &self.reasons {
            tracing::warn!("left out: {reason}");
        }
        let format = match chosen {
            Some(format) => format,
            None if self.nodes.is_empty() => {
                bail!("no mirror of --sync.from is of use: {}", self.reasons.join("; "))
            }
            None if keys == Some(KeyForm::Hashed) => bail!(
                "states over JSON-RPC have plain keys: leave out --sync.from, so that peers are \
                 asked by snap, or leave out --state.keys hashed"
            ),
            None => StateFormat::Chunks(options.backend.clone()),
        };
        let mut peers: Vec<_> =
            mirrors.iter().map(|mirror| mirror.clone() as Arc<dyn StatePeer>).collect();
        let nodes = self.nodes.into_iter();
        match &format {
            StateFormat::Chunks(_) => {
                options.store.keys = KeyForm::Plain;
                peers.extend(nodes.map(|node| node as Arc<dyn StatePeer>));
            }
            StateFormat::Ranges(_) => {
                options.store.keys = KeyForm::Hashed;
                for node in nodes {
                    tracing::warn!(
                        "left out: {}: states over JSON-RPC have plain keys",
                        node.name()
                    );
                }
            }
        }
        Ok(SyncSelection { format, peers, mirrors })
    }
}

/// Whether two formats ask for the same ids.
fn is_same(one: &StateFormat, other: &StateFormat) -> bool {
    match (one, other) {
        (StateFormat::Ranges(_), StateFormat::Ranges(_)) => true,
        (StateFormat::Chunks(one), StateFormat::Chunks(other)) => {
            let name = |backend: &Arc<dyn AnyBackend>| {
                backend.extensions().chunks.map(|chunks| chunks.format())
            };
            name(one) == name(other)
        }
        _ => false,
    }
}

/// The format in which a mirror is read, or why it is of no use.
fn fit(
    manifest: &SnapshotManifest,
    genesis: B256,
    block: B256,
    keys: Option<KeyForm>,
    options: &ChainOptions,
) -> Result<StateFormat, String> {
    if manifest.genesis_hash != genesis {
        let got = manifest.genesis_hash;
        return Err(format!("it is of a chain with the genesis {got}, not {genesis}"));
    }
    if manifest.block_hash != block {
        let (number, hash) = (manifest.block_number, manifest.block_hash);
        return Err(format!("it has the state of block {number} ({hash}), not of {block}"));
    }
    if let Some(keys) = keys
        && manifest.key_form() != Some(keys)
    {
        let keys = keys.name();
        return Err(format!("its keys are {}, and --state.keys says {keys}", manifest.keys));
    }
    if manifest.is_of_ranges() {
        return Ok(StateFormat::Ranges(range_format().ok_or(NO_RANGES)?));
    }
    let has_format = |backend: &Arc<dyn AnyBackend>| {
        backend.extensions().chunks.is_some_and(|chunks| chunks.format() == manifest.chunks)
    };
    if has_format(&options.backend) {
        return Ok(StateFormat::Chunks(options.backend.clone()));
    }
    // Chunks that the header's root proves are loaded by any backend.
    let mut checkers = retrie_backends::with_ethereum_root().map(|backend| (backend.small)());
    checkers.find(has_format).map(StateFormat::Chunks).ok_or_else(|| {
        let backend = options.backend.identity().name;
        format!(
            "its chunks ({:.40}) are proven by the root of {:.40} alone, which {backend} does not have",
            manifest.chunks, manifest.backend
        )
    })
}
