//! What everybody sees of the chain while it moves.
//!
//! The engine's thread alone changes the chain; after each change it publishes a [`Moment`]: the
//! head, what is safe and final, and the blocks in memory. Readers take a [`View`]: one moment and
//! one snapshot of the database below it.

use crate::view::View;
use alloy_primitives::{B256, map::HashMap};
use arc_swap::ArcSwap;
use retrie_chainspec::{ChainSpec, primitives::SealedHeader};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::CodeCache;
use retrie_pipeline::{Chain, ExecutedBlock, HeadChange, PipelineError, StatePatch, Tree};
use retrie_state::{AnyBackend, BlockRef, StateError};
use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::broadcast;

/// Head changes that a slow subscriber may lag behind before it misses some.
const CHANGES_KEPT: usize = 256;
/// How often a view is taken anew when the durable chain moves under it, at first without a pause.
pub(crate) const ATTEMPTS: usize = 2_000;
const EAGER_ATTEMPTS: usize = 8;
/// Notes in the database: hashes of the blocks that the consensus client called safe and final.
pub(crate) const SAFE: &str = "safe-block";
pub(crate) const FINALIZED: &str = "finalized-block";
/// Note in the database: hash of a block (32), and what the user of a dev chain changed of the state
/// after it since, as [`StatePatch::encode`] writes it.
const PATCH: &str = "dev-patch";
/// A pause between two attempts; a deep reorg takes some of them.
const PAUSE: Duration = Duration::from_millis(1);

/// The chain as it is at one moment, above the durable part.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// Counts the moments of this run.
    pub(crate) sequence: u64,
    pub(crate) head: SealedHeader,
    pub(crate) safe: Option<BlockRef>,
    pub(crate) finalized: Option<BlockRef>,
    /// Canonical blocks in memory, in ascending order, the last one the head. Some may have become
    /// durable meanwhile.
    pub(crate) canonical: Vec<Arc<ExecutedBlock>>,
    /// All blocks in memory.
    pub(crate) blocks: HashMap<B256, Arc<ExecutedBlock>>,
    /// What a dev chain's user has changed of the head's state, for the next block to begin with.
    pub(crate) patch: Option<Arc<StatePatch>>,
}

impl Moment {
    pub(crate) fn of(
        tree: &Tree<'_>,
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
pub struct LiveChain(Arc<LiveState>);

struct LiveState {
    chain: Arc<Chain>,
    codes: Arc<CodeCache>,
    current: ArcSwap<Moment>,
    changes: broadcast::Sender<Arc<HeadChange>>,
}

impl fmt::Debug for LiveChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveChain").field("head", &self.0.current.load().head).finish()
    }
}

impl LiveChain {
    /// The live chain of an open datadir, which starts at its durable tip.
    ///
    /// # Errors
    /// If the database fails.
    pub fn new(chain: Arc<Chain>) -> Result<Self, PipelineError> {
        Self::start(chain, false)
    }

    /// The same; of a dev chain with what its user had changed of the state after the tip.
    pub(crate) fn start(chain: Arc<Chain>, is_dev: bool) -> Result<Self, PipelineError> {
        let tip = chain.tip()?;
        let read = chain.db().begin_read()?;
        let header = read
            .header(&tip.hash)?
            .ok_or_else(|| StateError::corrupt("Headers", format!("block {tip} is missing")))?;
        let moment = Moment {
            sequence: 1,
            head: SealedHeader::new(header, tip.hash),
            safe: noted(&read, SAFE)?,
            finalized: noted(&read, FINALIZED)?,
            canonical: Vec::new(),
            blocks: HashMap::default(),
            patch: if is_dev { pending_patch(&read, &tip.hash)? } else { None },
        };
        Ok(Self(Arc::new(LiveState {
            chain,
            codes: Arc::new(CodeCache::default()),
            current: ArcSwap::from_pointee(moment),
            changes: broadcast::channel(CHANGES_KEPT).0,
        })))
    }

    /// The open datadir.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.0.chain
    }

    /// The backend of the node's state: what it can do, and its pure functions.
    pub fn backend(&self) -> &dyn AnyBackend {
        self.0.chain.state().backend()
    }

    /// Rules of the chain.
    pub fn spec(&self) -> &Arc<ChainSpec> {
        self.0.chain.spec()
    }

    /// The blocks that are safe and final.
    pub(crate) fn named(&self) -> (Option<BlockRef>, Option<BlockRef>) {
        let moment = self.0.current.load();
        (moment.safe, moment.finalized)
    }

    /// What the user of a dev chain has changed of the head's state.
    pub(crate) fn patch(&self) -> Option<Arc<StatePatch>> {
        self.0.current.load().patch.clone()
    }

    /// For whoever shall not keep the datadir open.
    pub(crate) fn downgrade(&self) -> WeakLive {
        WeakLive(Arc::downgrade(&self.0))
    }

    /// Analysed codes, shared by everything that executes.
    pub fn codes(&self) -> &Arc<CodeCache> {
        &self.0.codes
    }

    /// The head.
    pub fn head(&self) -> SealedHeader {
        self.0.current.load().head.clone()
    }

    /// The chain as it is now. To be held for a request, not longer: it keeps the database from
    /// using freed pages again.
    ///
    /// # Errors
    /// If the database fails.
    pub fn view(&self) -> Result<View, PipelineError> {
        let mut attempt = 0;
        loop {
            let moment = self.0.current.load_full();
            let read = self.0.chain.db().begin_read()?;
            let below = match moment.canonical.first() {
                Some(first) => first.block().parent_hash,
                None => moment.head.hash(),
            };
            attempt += 1;
            // In a deep reorg the durable chain moves before the moment that says so. If no moment
            // follows, the engine has failed, and there is no better view than this.
            if read.is_canonical(&below)? || attempt == ATTEMPTS {
                return Ok(View::new(self.clone(), moment, read));
            }
            drop(read);
            rest(attempt);
        }
    }

    /// Changes of the head from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<HeadChange>> {
        self.0.changes.subscribe()
    }

    /// To be called by the engine's thread alone.
    pub(crate) fn publish(&self, mut moment: Moment, change: Option<HeadChange>) {
        moment.sequence = self.0.current.load().sequence + 1;
        self.0.current.store(Arc::new(moment));
        if let Some(change) = change {
            // Without subscribers there is nobody to tell.
            let _ = self.0.changes.send(Arc::new(change));
        }
    }
}

/// Makes way for the engine before another attempt.
pub(crate) fn rest(attempt: usize) {
    if attempt < EAGER_ATTEMPTS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(PAUSE);
    }
}

/// The block that a note names, if it is canonical: the note may be of a head that was not durable yet.
fn noted(read: &ReadTxn, name: &str) -> Result<Option<BlockRef>, PipelineError> {
    let Some(note) = read.note(name)? else { return Ok(None) };
    let Ok(hash) = B256::try_from(&note[..]) else { return Ok(None) };
    if !read.is_canonical(&hash)? {
        return Ok(None);
    }
    Ok(read.block_number(&hash)?.map(|number| BlockRef::new(number, hash)))
}

/// Name and content of the note that `patch` was made after block `head`; empty without one.
pub(crate) fn patch_note(head: &B256, patch: Option<&StatePatch>) -> (&'static str, Vec<u8>) {
    let note = patch.map(|patch| [head.as_slice(), &patch.encode()].concat());
    (PATCH, note.unwrap_or_default())
}

/// What was changed of the state after block `head` before the node was stopped.
fn pending_patch(read: &ReadTxn, head: &B256) -> Result<Option<Arc<StatePatch>>, PipelineError> {
    let Some(note) = read.note(PATCH)?.filter(|note| !note.is_empty()) else { return Ok(None) };
    let damaged = |what: &str| StateError::corrupt("Metadata", format!("note {PATCH}: {what}"));
    let (block, patch) =
        note.split_first_chunk::<32>().ok_or_else(|| damaged("it names no block"))?;
    if block != head {
        let block = B256::from(*block);
        tracing::warn!(%block, "what was changed of the state after this block is lost with it");
        return Ok(None);
    }
    let patch = StatePatch::decode(patch).map_err(|error| damaged(error.what()))?;
    Ok(Some(Arc::new(patch)))
}

/// A live chain that may be gone.
pub(crate) struct WeakLive(Weak<LiveState>);

impl WeakLive {
    pub(crate) fn upgrade(&self) -> Option<LiveChain> {
        self.0.upgrade().map(LiveChain)
    }
}
