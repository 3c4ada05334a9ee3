//! [`LiveChain`]: read access to the chain while the engine changes it.
//!
//! Only the engine's thread changes the chain. After each change it publishes a [`ChainSnapshot`]:
//! the head, the safe and the finalized block, and the blocks in memory. Readers take a
//! [`LiveView`]: one `ChainSnapshot` and one database snapshot that fits below it.

use crate::{participants::ParticipantCache, view::LiveView};
use alloy_primitives::{B256, map::HashMap};
use arc_swap::ArcSwap;
use retrie_chainspec::{ChainSpec, primitives::SealedHeader};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::CodeCache;
use retrie_pipeline::{
    BlockTree, ChainStore, ExecutedBlock, HeadChange, PipelineError, StatePatch,
};
use retrie_state::{AnyBackend, BlockRef, StateError};
use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::broadcast;

/// Number of head changes that a slow subscriber may lag behind before it misses some.
const CHANGES_KEPT: usize = 256;
/// How often a view is tried again when the durable chain changes during the attempt. The first
/// retries have no pause.
pub(crate) const ATTEMPTS: usize = 2_000;
const EAGER_ATTEMPTS: usize = 8;
/// Database notes: hashes of the blocks that the consensus client called safe and finalized.
pub(crate) const SAFE: &str = "safe-block";
pub(crate) const FINALIZED: &str = "finalized-block";
/// Database note: hash of a block (32 bytes), then the dev chain's patch on the state after it, as
/// [`StatePatch::encode`] writes it.
const PATCH: &str = "dev-patch";
/// Pause between two attempts; a deep reorg takes several of them.
const PAUSE: Duration = Duration::from_millis(1);

/// The part of the chain above the durable chain, at one point in time.
#[derive(Clone, Debug)]
pub(crate) struct ChainSnapshot {
    /// Number of this snapshot, counted since the start of the process.
    pub(crate) sequence: u64,
    pub(crate) head: SealedHeader,
    pub(crate) safe: Option<BlockRef>,
    pub(crate) finalized: Option<BlockRef>,
    /// Canonical blocks in memory, in ascending order up to the head. Some may have become durable
    /// in the meantime.
    pub(crate) canonical: Vec<Arc<ExecutedBlock>>,
    /// All blocks in memory, canonical or not.
    pub(crate) blocks: HashMap<B256, Arc<ExecutedBlock>>,
    /// The patch of a dev chain on the head's state, which the next block begins with.
    pub(crate) patch: Option<Arc<StatePatch>>,
}

impl ChainSnapshot {
    pub(crate) fn of(
        tree: &BlockTree<'_>,
        safe: Option<BlockRef>,
        finalized: Option<BlockRef>,
        patch: Option<Arc<StatePatch>>,
    ) -> Self {
        Self {
            sequence: 0,
            head: tree.head().header.clone(),
            safe,
            finalized,
            canonical: tree.canonical().cloned().collect(),
            blocks: tree.blocks().map(|block| (block.block().hash(), block.clone())).collect(),
            patch,
        }
    }
}

/// The live chain, for reading. Cheap to clone.
#[derive(Clone)]
pub struct LiveChain(Arc<LiveChainInner>);

struct LiveChainInner {
    chain: Arc<ChainStore>,
    codes: Arc<CodeCache>,
    participants: ParticipantCache,
    current: ArcSwap<ChainSnapshot>,
    changes: broadcast::Sender<Arc<HeadChange>>,
}

impl fmt::Debug for LiveChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveChain").field("head", &self.0.current.load().head).finish()
    }
}

impl LiveChain {
    /// The live chain of an open datadir, with the durable tip as the head.
    ///
    /// # Errors
    /// If the database fails.
    pub fn new(chain: Arc<ChainStore>) -> Result<Self, PipelineError> {
        Self::start(chain, false)
    }

    /// Like [`Self::new`]; a dev chain also gets its stored patch on the state after the tip.
    pub(crate) fn start(chain: Arc<ChainStore>, is_dev: bool) -> Result<Self, PipelineError> {
        let tip = chain.tip()?;
        let read = chain.db().begin_read()?;
        let header = read
            .header(&tip.hash)?
            .ok_or_else(|| StateError::corrupt("Headers", format!("block {tip} is missing")))?;
        let moment = ChainSnapshot {
            sequence: 1,
            head: SealedHeader::new(header, tip.hash),
            safe: read_noted_block(&read, SAFE)?,
            finalized: read_noted_block(&read, FINALIZED)?,
            canonical: Vec::new(),
            blocks: HashMap::default(),
            patch: if is_dev { pending_patch(&read, &tip.hash)? } else { None },
        };
        Ok(Self(Arc::new(LiveChainInner {
            chain,
            codes: Arc::new(CodeCache::default()),
            participants: ParticipantCache::default(),
            current: ArcSwap::from_pointee(moment),
            changes: broadcast::channel(CHANGES_KEPT).0,
        })))
    }

    /// The open datadir.
    pub fn chain(&self) -> &Arc<ChainStore> {
        &self.0.chain
    }

    /// The backend of the node's state: its capabilities and its pure functions.
    pub fn backend(&self) -> &dyn AnyBackend {
        self.0.chain.state().backend()
    }

    /// Rules of the chain.
    pub fn spec(&self) -> &Arc<ChainSpec> {
        self.0.chain.spec()
    }

    /// The safe and the finalized block.
    pub(crate) fn safe_and_finalized(&self) -> (Option<BlockRef>, Option<BlockRef>) {
        let moment = self.0.current.load();
        (moment.safe, moment.finalized)
    }

    /// The patch of a dev chain on the head's state.
    pub(crate) fn patch(&self) -> Option<Arc<StatePatch>> {
        self.0.current.load().patch.clone()
    }

    /// A weak reference, which does not keep the datadir open.
    pub(crate) fn downgrade(&self) -> WeakLiveChain {
        WeakLiveChain(Arc::downgrade(&self.0))
    }

    /// Cache of analysed codes, shared by all executions.
    pub fn codes(&self) -> &Arc<CodeCache> {
        &self.0.codes
    }

    /// Who takes part in the blocks that were traced last.
    pub(crate) fn participants(&self) -> &ParticipantCache {
        &self.0.participants
    }

    /// Sequence number of the current snapshot.
    pub(crate) fn sequence(&self) -> u64 {
        self.0.current.load().sequence
    }

    /// The head.
    pub fn head(&self) -> SealedHeader {
        self.0.current.load().head.clone()
    }

    /// A view of the chain as it is now. Hold it for one request and not longer, since it keeps the
    /// database from reusing freed pages.
    ///
    /// # Errors
    /// If the database fails.
    pub fn view(&self) -> Result<LiveView, PipelineError> {
        let mut attempt = 0;
        loop {
            let moment = self.0.current.load_full();
            let read = self.0.chain.db().begin_read()?;
            let below = match moment.canonical.first() {
                Some(first) => first.block().parent_hash,
                None => moment.head.hash(),
            };
            attempt += 1;
            // In a deep reorg the durable chain changes before the next snapshot is published. If
            // none is published, the engine has failed, and there is no better view than this.
            if read.is_canonical(&below)? || attempt == ATTEMPTS {
                return Ok(LiveView::new(self.clone(), moment, read));
            }
            drop(read);
            pause_before_retry(attempt);
        }
    }

    /// Subscribes to changes of the head.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<HeadChange>> {
        self.0.changes.subscribe()
    }

    /// Publishes a snapshot. Only the engine's thread may call it.
    pub(crate) fn publish(&self, mut moment: ChainSnapshot, change: Option<HeadChange>) {
        moment.sequence = self.0.current.load().sequence + 1;
        self.0.current.store(Arc::new(moment));
        if let Some(change) = change {
            // It fails without subscribers, and may be ignored.
            let _ = self.0.changes.send(Arc::new(change));
        }
    }
}

/// Pauses before another attempt, so that the engine can proceed.
pub(crate) fn pause_before_retry(attempt: usize) {
    if attempt < EAGER_ATTEMPTS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(PAUSE);
    }
}

/// The block that a note names, if it is canonical. The note may belong to a head that never became
/// durable.
fn read_noted_block(read: &ReadTxn, name: &str) -> Result<Option<BlockRef>, PipelineError> {
    let Some(note) = read.note(name)? else { return Ok(None) };
    let Ok(hash) = B256::try_from(&note[..]) else { return Ok(None) };
    if !read.is_canonical(&hash)? {
        return Ok(None);
    }
    Ok(read.block_number(&hash)?.map(|number| BlockRef::new(number, hash)))
}

/// Name and content of the note for the `patch` on the state after block `head`; empty content
/// without a patch.
pub(crate) fn patch_note(head: &B256, patch: Option<&StatePatch>) -> (&'static str, Vec<u8>) {
    let note = patch.map(|patch| [head.as_slice(), &patch.encode()].concat());
    (PATCH, note.unwrap_or_default())
}

/// The stored patch on the state after block `head`, if there is one.
fn pending_patch(read: &ReadTxn, head: &B256) -> Result<Option<Arc<StatePatch>>, PipelineError> {
    let Some(note) = read.note(PATCH)?.filter(|note| !note.is_empty()) else { return Ok(None) };
    let damaged = |what: &str| StateError::corrupt("Metadata", format!("note {PATCH}: {what}"));
    let (block, patch) =
        note.split_first_chunk::<32>().ok_or_else(|| damaged("it names no block"))?;
    if block != head {
        let block = B256::from(*block);
        tracing::warn!(%block, "dropping a state patch, since its block is no longer the head");
        return Ok(None);
    }
    let patch = StatePatch::decode(patch).map_err(|error| damaged(error.what()))?;
    Ok(Some(Arc::new(patch)))
}

/// A weak reference to a live chain.
pub(crate) struct WeakLiveChain(Weak<LiveChainInner>);

impl WeakLiveChain {
    pub(crate) fn upgrade(&self) -> Option<LiveChain> {
        self.0.upgrade().map(LiveChain)
    }
}
