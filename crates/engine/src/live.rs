//! What everybody sees of the chain while it moves.
//!
//! The engine's thread alone changes the chain; after each change it publishes a [`Moment`]: the
//! head, what is safe and final, and the blocks in memory. Readers take a [`View`]: one moment and
//! one snapshot of the database below it.

use alloy_consensus::transaction::Recovered;
use alloy_primitives::{
    Address, B256, Bytes, U256,
    map::{HashMap, HashSet},
};
use arc_swap::ArcSwap;
use quick_cache::sync::Cache;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, Receipt, RecoveredBlock, SealedHeader, Transaction},
};
use retrie_db::{ChainRead, ReadTxn, StoredTransaction};
use retrie_execution::{BlockHashes, CodeCache, CodeReader, ExecutionInput, LayeredState};
use retrie_pipeline::{
    BlockWithReceipts, Chain, ExecutedBlock, HeadChange, PipelineError, StatePatch, Tree,
};
use retrie_state::{
    AccountNodes, At, BlockRef, PastState, Session, StateError, StateKey, StateProof, StateReader,
    StoreError, Value, Version,
};
use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::broadcast;

/// Head changes that a slow subscriber may lag behind before it misses some.
const CHANGES_KEPT: usize = 256;
/// How often a view is taken anew when the durable chain moves under it, at first without a pause.
const ATTEMPTS: usize = 2_000;
const EAGER_ATTEMPTS: usize = 8;
/// Notes in the database: hashes of the blocks that the consensus client called safe and final.
pub(crate) const SAFE: &str = "safe-block";
pub(crate) const FINALIZED: &str = "finalized-block";
/// A pause between two attempts; a deep reorg takes some of them.
const PAUSE: Duration = Duration::from_millis(1);

/// The chain as it is at one moment, above the durable part.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// Counts the moments of this run.
    sequence: u64,
    head: SealedHeader,
    safe: Option<BlockRef>,
    finalized: Option<BlockRef>,
    /// Canonical blocks in memory, in ascending order, the last one the head. Some may have become
    /// durable meanwhile.
    canonical: Vec<Arc<ExecutedBlock>>,
    /// All blocks in memory.
    blocks: HashMap<B256, Arc<ExecutedBlock>>,
    /// What a dev chain's user has changed of the head's state, for the next block to begin with.
    patch: Option<Arc<StatePatch>>,
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
pub struct LiveChain(Arc<Inner>);

struct Inner {
    chain: Arc<Chain>,
    codes: Arc<CodeCache>,
    current: ArcSwap<Moment>,
    changes: broadcast::Sender<Arc<HeadChange>>,
    /// What the user of a dev chain changed before each of the last blocks.
    patches: Cache<B256, Arc<StatePatch>>,
}

/// Blocks whose patches are remembered, for whoever executes them again.
const PATCHES_KEPT: usize = 4096;

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
            patch: None,
        };
        Ok(Self(Arc::new(Inner {
            chain,
            codes: Arc::new(CodeCache::default()),
            current: ArcSwap::from_pointee(moment),
            changes: broadcast::channel(CHANGES_KEPT).0,
            patches: Cache::new(PATCHES_KEPT),
        })))
    }

    /// The open datadir.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.0.chain
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
                return Ok(View { live: self.clone(), moment, read: Arc::new(read) });
            }
            drop(read);
            rest(attempt);
        }
    }

    /// Remembers what the user of a dev chain changed before a block.
    pub(crate) fn remember_patch(&self, block: B256, patch: Arc<StatePatch>) {
        self.0.patches.insert(block, patch);
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
fn rest(attempt: usize) {
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

/// A live chain that may be gone.
pub(crate) struct WeakLive(Weak<Inner>);

impl WeakLive {
    pub(crate) fn upgrade(&self) -> Option<LiveChain> {
        self.0.upgrade().map(LiveChain)
    }
}

/// The chain at one moment, in memory and below.
#[derive(Clone)]
pub struct View {
    live: LiveChain,
    moment: Arc<Moment>,
    read: Arc<ReadTxn>,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("head", &self.moment.head).finish_non_exhaustive()
    }
}

impl View {
    /// The live chain that this is a view of.
    pub const fn live(&self) -> &LiveChain {
        &self.live
    }

    /// Place of this view's moment among those of this run.
    pub(crate) fn sequence(&self) -> u64 {
        self.moment.sequence
    }

    /// Header of the head.
    pub fn head(&self) -> &SealedHeader {
        &self.moment.head
    }

    /// The block that the consensus client calls safe, if it has named one.
    pub fn safe(&self) -> Option<BlockRef> {
        self.moment.safe
    }

    /// The block that the consensus client calls final, if it has named one.
    pub fn finalized(&self) -> Option<BlockRef> {
        self.moment.finalized
    }

    /// The durable part of the chain.
    pub fn durable(&self) -> &ReadTxn {
        &self.read
    }

    /// Hash of the canonical block `number`.
    ///
    /// # Errors
    /// If the database fails; so for all that follow.
    pub fn canonical_hash(&self, number: u64) -> Result<Option<B256>, PipelineError> {
        if number > self.moment.head.number {
            return Ok(None);
        }
        if let Some(block) = self.in_memory(number) {
            return Ok(Some(block.block().hash()));
        }
        Ok(self.read.canonical_hash(number)?)
    }

    /// Whether the block is canonical.
    pub fn is_canonical(&self, hash: &B256) -> Result<bool, PipelineError> {
        // Not what the database says: it may have moved on.
        match self.block_number(hash)? {
            Some(number) => Ok(self.canonical_hash(number)? == Some(*hash)),
            None => Ok(false),
        }
    }

    /// Number of a known block.
    pub fn block_number(&self, hash: &B256) -> Result<Option<u64>, PipelineError> {
        match self.moment.blocks.get(hash) {
            Some(block) => Ok(Some(block.block().number)),
            None => Ok(self.read.block_number(hash)?),
        }
    }

    /// Header of a known block, canonical or not.
    pub fn header(&self, hash: &B256) -> Result<Option<SealedHeader>, PipelineError> {
        if *hash == self.moment.head.hash() {
            return Ok(Some(self.moment.head.clone()));
        }
        if let Some(block) = self.moment.blocks.get(hash) {
            return Ok(Some(block.block().clone_sealed_header()));
        }
        Ok(self.read.header(hash)?.map(|header: Header| SealedHeader::new(header, *hash)))
    }

    /// Header of the canonical block `number`.
    pub fn header_by_number(&self, number: u64) -> Result<Option<SealedHeader>, PipelineError> {
        match self.canonical_hash(number)? {
            Some(hash) => self.header(&hash),
            None => Ok(None),
        }
    }

    /// A known block, canonical or not, with the senders of its transactions.
    pub fn block(&self, hash: &B256) -> Result<Option<Arc<RecoveredBlock>>, PipelineError> {
        if let Some(block) = self.moment.blocks.get(hash) {
            return Ok(Some(block.data.block.clone()));
        }
        Ok(self.read.recovered_block(hash)?.map(Arc::new))
    }

    /// Receipts of a known block; `None` also if they are not kept.
    pub fn receipts(&self, hash: &B256) -> Result<Option<Arc<Vec<Receipt>>>, PipelineError> {
        if let Some(block) = self.moment.blocks.get(hash) {
            return Ok(Some(block.data.receipts.clone()));
        }
        Ok(self.read.receipts(hash)?.map(Arc::new))
    }

    /// A known block with its receipts; `None` also if these are not kept.
    pub fn block_with_receipts(
        &self,
        hash: &B256,
    ) -> Result<Option<BlockWithReceipts>, PipelineError> {
        let Some(block) = self.block(hash)? else { return Ok(None) };
        Ok(self.receipts(hash)?.map(|receipts| BlockWithReceipts { block, receipts }))
    }

    /// A canonical transaction by its hash.
    pub fn transaction(&self, hash: &B256) -> Result<Option<StoredTransaction>, PipelineError> {
        for block in &self.moment.canonical {
            let block = block.block();
            let transactions = &block.body().transactions;
            if let Some(index) = transactions.iter().position(|one| one.hash() == hash) {
                return Ok(Some(StoredTransaction {
                    transaction: transactions[index].clone(),
                    sender: block.senders()[index],
                    block: BlockRef::new(block.number, block.hash()),
                    index: index as u32,
                }));
            }
        }
        let found = self.read.transaction_by_hash(hash)?;
        // What was durable when this view was taken may be canonical no longer.
        match found {
            Some(found) if self.is_canonical(&found.block.hash)? => Ok(Some(found)),
            _ => Ok(None),
        }
    }

    /// The transactions of the canonical blocks that need not be durable, in order.
    pub(crate) fn transactions_in_memory(&self) -> Vec<Recovered<Transaction>> {
        let blocks = self.moment.canonical.iter();
        blocks.flat_map(|block| block.block().clone_transactions_recovered()).collect()
    }

    /// Their hashes.
    pub(crate) fn transaction_hashes_in_memory(&self) -> HashSet<B256> {
        let transactions =
            self.moment.canonical.iter().flat_map(|block| &block.block().body().transactions);
        transactions.map(|transaction| *transaction.hash()).collect()
    }

    /// Sum of the difficulties up to and with a known block.
    pub fn total_difficulty(&self, hash: &B256) -> Result<Option<U256>, PipelineError> {
        match self.moment.blocks.get(hash) {
            Some(block) => Ok(Some(block.chain.total_difficulty)),
            None => Ok(self.read.total_difficulty(hash)?),
        }
    }

    /// Root that the node's own backend gave a known block, whatever its header says.
    pub fn state_root(&self, hash: &B256) -> Result<Option<B256>, PipelineError> {
        match self.moment.blocks.get(hash) {
            Some(block) => Ok(Some(block.proposal.root())),
            None => Ok(self.read.root(hash, self.live.chain().state().identity().name)?),
        }
    }

    /// A block in memory with its state.
    pub(crate) fn executed(&self, hash: &B256) -> Option<&Arc<ExecutedBlock>> {
        self.moment.blocks.get(hash)
    }

    /// Contract code by its hash.
    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>, PipelineError> {
        for block in self.moment.blocks.values() {
            if let Some((_, code)) = block.codes.iter().find(|(known, _)| known == hash) {
                return Ok(Some(code.clone()));
            }
        }
        let patch = self.moment.patch.iter().flat_map(|patch| &patch.codes);
        if let Some((_, code)) = patch.into_iter().find(|(known, _)| known == hash) {
            return Ok(Some(code.clone()));
        }
        Ok(self.read.code(hash)?)
    }

    /// The state after a known block.
    ///
    /// # Errors
    /// [`PipelineError::State`] if the block is not known, or its state is not kept; it then says
    /// what is.
    pub fn state(&self, hash: &B256) -> Result<BlockState, PipelineError> {
        match self.patch(hash) {
            Some(patch) => self.patched(hash, Some(patch)),
            None => self.patched(hash, self.patch_after(hash)?.as_ref()),
        }
    }

    /// What the user of a dev chain changed of the state after a canonical block below the head: it
    /// went into the next block, and is still read of this one, as long as this run remembers it.
    fn patch_after(&self, hash: &B256) -> Result<Option<Arc<StatePatch>>, PipelineError> {
        if self.live.0.patches.is_empty() || !self.is_canonical(hash)? {
            return Ok(None);
        }
        let Some(number) = self.block_number(hash)? else { return Ok(None) };
        let child = self.canonical_hash(number.saturating_add(1))?;
        Ok(child.and_then(|child| self.live.0.patches.get(&child)))
    }

    /// The state that the transactions of a known block begin on: that after its parent, and on a dev
    /// chain what its user changed of that, as long as this run remembers.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    pub fn state_before(&self, block: &RecoveredBlock) -> Result<BlockState, PipelineError> {
        self.patched(&block.parent_hash, self.live.0.patches.get(&block.hash()).as_ref())
    }

    fn patched(
        &self,
        hash: &B256,
        patch: Option<&Arc<StatePatch>>,
    ) -> Result<BlockState, PipelineError> {
        let header = self.header(hash)?.ok_or(StateError::UnknownBlock { hash: *hash })?;
        let mut reader = self.reader(&header)?;
        if let Some(patch) = patch {
            let mut patched = LayeredState::new(reader);
            patched.apply(&patch.delta, []);
            reader = Box::new(patched);
        }
        Ok(BlockState { view: self.clone(), header, reader })
    }

    /// What the user of a dev chain has changed of the state after a block, the head. It shows in
    /// what is read of that state, and enters the root with the next block.
    pub(crate) fn patch(&self, hash: &B256) -> Option<&Arc<StatePatch>> {
        self.moment.patch.as_ref().filter(|_| self.moment.head.hash() == *hash)
    }

    /// Opens a session on the state after a known block.
    ///
    /// # Errors
    /// If the block is not known, or its state can no longer be extended.
    pub fn begin(&self, hash: &B256) -> Result<Session<'_>, PipelineError> {
        let store = self.live.chain().state();
        match self.moment.blocks.get(hash) {
            Some(block) => Ok(store.begin(At::Proposal(&block.proposal))?),
            None => Ok(store.begin(At::Block(*hash))?),
        }
    }

    /// From memory; by the history of the backend, where it has one; by flat history, which is
    /// quickest of the other ways below the tip; through undo.
    fn reader(&self, header: &SealedHeader) -> Result<Reader, PipelineError> {
        let store = self.live.chain().state();
        let (number, hash) = (header.number, header.hash());
        if let Some(block) = self.moment.blocks.get(&hash) {
            return match store.reader(At::Proposal(&block.proposal)) {
                // It has become durable since, and has left the retention depth already.
                Err(error @ StateError::UnknownBlock { .. }) => match self.in_history(&hash)? {
                    Some(past) => Ok(Box::new(past)),
                    None => Err(error.into()),
                },
                reader => Ok(Box::new(reader?)),
            };
        }
        let is_tip = store.tip().is_some_and(|tip| tip.block.hash == hash);
        if is_tip || !self.read.is_canonical(&hash)? {
            return Ok(Box::new(store.reader(At::Block(hash))?));
        }
        if let Some(past) = self.in_history(&hash)? {
            return Ok(Box::new(past));
        }
        match store.past(self.at_head(), number) {
            Err(error @ StateError::BeyondHistory { .. }) => match store.reader(At::Block(hash)) {
                Ok(reader) => Ok(Box::new(reader)),
                Err(_) => Err(self.why_not_in_history(number).unwrap_or(error).into()),
            },
            past => Ok(Box::new(past?)),
        }
    }

    /// The state of the head of this view, whatever the durable tip is by now.
    fn at_head(&self) -> At<'_> {
        match self.moment.canonical.last() {
            Some(head) => At::Proposal(&head.proposal),
            None => At::Block(self.moment.head.hash()),
        }
    }

    /// The state of a canonical durable block by the backend's own history; `None` if that does not
    /// have it.
    pub(crate) fn in_history(&self, hash: &B256) -> Result<Option<PastState>, PipelineError> {
        let chain = self.live.chain();
        if chain.state().backend().history().is_none() || !self.is_canonical(hash)? {
            return Ok(None);
        }
        let Some(number) = self.block_number(hash)? else { return Ok(None) };
        for attempt in 1..=ATTEMPTS {
            let past = match chain.state().history(number) {
                // Forgotten, or durable no longer.
                Err(StateError::NotInHistory { .. }) => return Ok(None),
                past => past?,
            };
            // It is the history of the durable chain of now, which may be another than that of this
            // view. Where that tip still is canonical, so are its ancestors.
            let now = chain.db().begin_read()?;
            if now.is_canonical(&past.tip().hash)? {
                return Ok(now.is_canonical(hash)?.then_some(past));
            }
            drop((now, past));
            rest(attempt);
        }
        Ok(None)
    }

    /// What the backend's history says of a block that it does not have.
    pub(crate) fn why_not_in_history(&self, number: u64) -> Option<StateError> {
        match self.live.chain().state().history(number) {
            Err(error @ StateError::NotInHistory { .. }) => Some(error),
            _ => None,
        }
    }

    /// A proof of the values of `keys` after a known block. Some backends prove states beyond the
    /// retention depth under the root of a later block, the durable tip: the proof then is
    /// [as of](StateProof::as_of) the block.
    ///
    /// # Errors
    /// As [`state`](Self::state); [`StateError::Unsupported`] if the backend has no proofs.
    pub fn prove(&self, hash: &B256, keys: &[StateKey]) -> Result<StateProof, PipelineError> {
        let store = self.live.chain().state();
        if let Some(block) = self.moment.blocks.get(hash) {
            match store.prove(At::Proposal(&block.proposal), keys) {
                // As in `reader`.
                Err(StateError::UnknownBlock { .. }) => {}
                proof => return Ok(proof?),
            }
        }
        // Who asks for a recent block may trust its root alone.
        let history = store.backend().history();
        if history.is_some_and(|history| history.proven_by_view())
            && let Ok(proof) = store.prove(At::Block(*hash), keys)
        {
            return Ok(proof);
        }
        match self.in_history(hash)? {
            Some(past) => Ok(past.prove(*hash, keys)?),
            None => store.prove(At::Block(*hash), keys).map_err(|error| self.not_kept(hash, error)),
        }
    }

    /// What each of `keys` was over `blocks`, newest version first, and the proof of that under the
    /// root of the head; see [`retrie_state::Provenance`].
    ///
    /// # Errors
    /// Those of [`retrie_state::StateStore::versions`].
    pub fn versions(
        &self,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, StateProof), PipelineError> {
        Ok(self.live.chain().state().versions(self.at_head(), keys, blocks)?)
    }

    /// The trie nodes that prove an account and its `slots` after a known block, for `eth_getProof`
    /// (EIP-1186).
    ///
    /// # Errors
    /// As [`state`](Self::state); [`StateError::Unsupported`] if the backend has no such proofs.
    pub fn account_nodes(
        &self,
        hash: &B256,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, PipelineError> {
        let store = self.live.chain().state();
        if let Some(block) = self.moment.blocks.get(hash) {
            return Ok(store.account_nodes(At::Proposal(&block.proposal), address, slots)?);
        }
        match self.in_history(hash)? {
            Some(past) => Ok(past.account_nodes(address, slots)?),
            None => {
                let nodes = store.account_nodes(At::Block(*hash), address, slots);
                nodes.map_err(|error| self.not_kept(hash, error))
            }
        }
    }

    /// The trie nodes that removing `removed` after a known block may merge, for execution
    /// witnesses.
    ///
    /// # Errors
    /// As [`account_nodes`](Self::account_nodes).
    pub fn merge_nodes(
        &self,
        hash: &B256,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, PipelineError> {
        let store = self.live.chain().state();
        if let Some(block) = self.moment.blocks.get(hash) {
            return Ok(store.merge_nodes(At::Proposal(&block.proposal), removed)?);
        }
        match self.in_history(hash)? {
            Some(past) => Ok(past.merge_nodes(removed)?),
            None => {
                let nodes = store.merge_nodes(At::Block(*hash), removed);
                nodes.map_err(|error| self.not_kept(hash, error))
            }
        }
    }

    /// `error` of a block whose state is not at hand; of a known one, why history does not have it.
    fn not_kept(&self, hash: &B256, error: StateError) -> PipelineError {
        let why = match (&error, self.block_number(hash)) {
            (StateError::UnknownBlock { .. }, Ok(Some(number))) => self.why_not_in_history(number),
            _ => None,
        };
        why.unwrap_or(error).into()
    }

    /// As much of such a proof as this node has; see [`retrie_state::ProofShards`].
    ///
    /// # Errors
    /// As [`prove`](Self::prove); [`StateError::Unsupported`] if the backend has no proof shards.
    pub fn prove_part(&self, hash: &B256, keys: &[StateKey]) -> Result<StateProof, PipelineError> {
        let store = self.live.chain().state();
        let at = self.moment.blocks.get(hash).map(|block| At::Proposal(&block.proposal));
        Ok(store.prove_part(at.unwrap_or(At::Block(*hash)), keys)?)
    }

    fn in_memory(&self, number: u64) -> Option<&Arc<ExecutedBlock>> {
        let canonical = &self.moment.canonical;
        let first = canonical.first()?.block().number;
        canonical.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}

type Reader = Box<dyn StateReader + Send + Sync>;

/// The state after one block, and what else an execution on top of it reads.
pub struct BlockState {
    view: View,
    header: SealedHeader,
    reader: Reader,
}

impl fmt::Debug for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockState").field("header", &self.header).finish_non_exhaustive()
    }
}

impl BlockState {
    /// Header of the block.
    pub const fn header(&self) -> &SealedHeader {
        &self.header
    }

    /// The view that it belongs to.
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// What an execution on this state reads from.
    pub fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput::new(self, self, self).with_code_cache(self.view.live.codes())
    }
}

impl StateReader for BlockState {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        self.reader.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.reader.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        self.reader.some_slots(address, limit)
    }
}

impl CodeReader for BlockState {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        self.view.code(hash).map_err(|error| {
            StoreError::new(format!("reading code {hash}"), error.to_string()).into()
        })
    }
}

impl BlockHashes for BlockState {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        let ancestor = || -> Result<Option<B256>, PipelineError> {
            let mut at = self.header.clone();
            while at.number > number && !self.view.is_canonical(&at.hash())? {
                let Some(parent) = self.view.header(&at.parent_hash)? else { return Ok(None) };
                at = parent;
            }
            if at.number == number {
                return Ok(Some(at.hash()));
            }
            if at.number < number { Ok(None) } else { self.view.canonical_hash(number) }
        };
        ancestor().map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, error.to_string()).into()
        })
    }
}
