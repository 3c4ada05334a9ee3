//! States of blocks: finds the source that can give the state after a block
//! ([`LiveView::state_at`]).

use crate::{
    live::{ATTEMPTS, LiveChain, pause_before_retry},
    view::LiveView,
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_db::ChainRead;
use retrie_execution::{BlockHashes, CodeReader, ExecutionInput, LayeredState};
use retrie_log_tables::{TableBuilder, TableSpan};
use retrie_pipeline::{PipelineError, SessionSet, StatePatch, StoreSetId};
use retrie_state::{BlockRef, StateError, StateKey, StateReader, StateValue, StoreError};
use retrie_state_store::{StateId, StateProvider, StateSession};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest time that a view waits for the next one.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What a caller needs from a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateNeed {
    /// Values of keys.
    Values,
    /// All entries in order.
    Entries,
    /// Proofs of any kind.
    Proofs,
}

/// A source for the state of a durable block.
#[derive(Clone, Copy)]
enum StateSource {
    History,
    FlatHistory,
    Undo,
}

impl LiveChain {
    /// The state of the head, on a view of it. Blocks the thread while the engine publishes the next
    /// head, for seconds at most.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn head_state(&self) -> Result<PostState, PipelineError> {
        let mut view = self.view()?;
        loop {
            match view.state(&view.head().hash()) {
                Err(error) if error.lacks_state() => match view.successor()? {
                    Some(next) => view = next,
                    None => return Err(error),
                },
                state => return state,
            }
        }
    }
}

impl LiveView {
    /// The state after a known block.
    ///
    /// # Errors
    /// [`PipelineError::State`] if the block is not known, or its state is not kept; the error then
    /// names the states that are kept.
    pub fn state(&self, hash: &B256) -> Result<PostState, PipelineError> {
        let patch = self.patch_after(hash)?;
        self.patched(hash, self.state_at(hash, StateNeed::Values)?, patch)
    }

    /// The patch of a dev chain on the state after a canonical block. Reads of that state include
    /// it, although the root of the next block is the first that commits to it.
    fn patch_after(&self, hash: &B256) -> Result<Option<Arc<StatePatch>>, PipelineError> {
        if let Some(patch) = self.patch(hash) {
            return Ok(Some(patch.clone()));
        }
        if !self.has_patches()? || !self.is_canonical(hash)? {
            return Ok(None);
        }
        let Some(number) = self.block_number(hash)? else { return Ok(None) };
        match self.canonical_hash(number.saturating_add(1))? {
            Some(child) => self.patch_before(&child),
            None => Ok(None),
        }
    }

    /// The state that a known block is executed on: the state after its parent, on a dev chain with
    /// the user's patch.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    pub fn state_before(&self, block: &RecoveredBlock) -> Result<PostState, PipelineError> {
        let parent = &block.parent_hash;
        let patch = self.patch_before(&block.hash())?;
        self.patched(parent, self.state_at(parent, StateNeed::Values)?, patch)
    }

    fn patched(
        &self,
        hash: &B256,
        state: StateProvider,
        patch: Option<Arc<StatePatch>>,
    ) -> Result<PostState, PipelineError> {
        let header = self.header(hash)?.ok_or(StateError::UnknownBlock { hash: *hash })?;
        let reader: BoxedStateReader = match &patch {
            None => Box::new(state),
            Some(patch) => {
                let mut patched = LayeredState::new(state);
                patched.push_delta(patch.delta.clone(), []);
                Box::new(patched)
            }
        };
        Ok(PostState { view: self.clone(), header, reader, patch })
    }

    /// The state that a known block's root commits to, to read and prove the account at `address`.
    ///
    /// On a dev chain the account must not be changed by a patch, since only the root of the next
    /// block commits to that change.
    ///
    /// # Errors
    /// As [`state`](Self::state); [`PipelineError::ChangedByHand`].
    pub fn provable_state(
        &self,
        hash: &B256,
        address: &Address,
    ) -> Result<StateProvider, PipelineError> {
        let state = self.state_at(hash, StateNeed::Proofs)?;
        match self.patch_after(hash)? {
            Some(patch) if patch.touches(address) => {
                let number = self.block_number(hash)?.unwrap_or_default();
                let (what, hash) = (format!("account {address}"), *hash);
                Err(PipelineError::ChangedByHand { what, number, hash })
            }
            _ => Ok(state),
        }
    }

    /// The state after a known block, to execute calls on, and the same state as the block's root
    /// commits to it, to prove from.
    ///
    /// # Errors
    /// As [`provable_state`](Self::provable_state), for a patch of any account.
    pub fn provable_after(&self, hash: &B256) -> Result<(PostState, StateProvider), PipelineError> {
        let patch = self.patch_after(hash)?;
        self.unpatched(hash, patch.as_deref())
    }

    /// The state that a known block is executed on, and the same state as the root of its parent
    /// commits to it, to prove from.
    ///
    /// # Errors
    /// As [`provable_state`](Self::provable_state), for a patch of any account.
    pub fn provable_before(
        &self,
        block: &RecoveredBlock,
    ) -> Result<(PostState, StateProvider), PipelineError> {
        let patch = self.patch_before(&block.hash())?;
        self.unpatched(&block.parent_hash, patch.as_deref())
    }

    fn unpatched(
        &self,
        hash: &B256,
        patch: Option<&StatePatch>,
    ) -> Result<(PostState, StateProvider), PipelineError> {
        if patch.is_some_and(|patch| !patch.delta.is_empty()) {
            let number = self.block_number(hash)?.unwrap_or_default();
            let (what, hash) = ("the state".into(), *hash);
            return Err(PipelineError::ChangedByHand { what, number, hash });
        }
        let state = self.state_at(hash, StateNeed::Proofs)?;
        Ok((self.patched(hash, state.clone(), None)?, state))
    }

    /// The state after a known block with all its entries, including a dev chain's patch, and its
    /// root. The root is the header's, or with a patch one that no header has.
    ///
    /// # Errors
    /// As [`state`](Self::state); [`StateError::BeyondRetention`] for a patched state that can no
    /// longer be extended.
    pub fn listed_state(&self, hash: &B256) -> Result<(StateProvider, B256), PipelineError> {
        let Some(patch) = self.patch_after(hash)? else {
            let header = self.header(hash)?.ok_or(StateError::UnknownBlock { hash: *hash })?;
            return Ok((self.state_at(hash, StateNeed::Entries)?, header.state_root));
        };
        let store = self.live().chain().state();
        let session = self.begin(hash).map_err(|error| match error {
            PipelineError::State(StateError::UnknownBlock { .. }) => {
                let number = self.block_number(hash).ok().flatten().unwrap_or_default();
                store.beyond_retention(number).into()
            }
            error => error,
        })?;
        let proposal = session.finish(&patch.delta)?;
        Ok((store.at(StateId::Proposal(&proposal))?, proposal.root()))
    }

    /// Opens a session on the state after a known block.
    ///
    /// # Errors
    /// If the block is not known, or its state can no longer be extended.
    pub fn begin(&self, hash: &B256) -> Result<StateSession<'_>, PipelineError> {
        let store = self.live().chain().state();
        match self.executed(hash) {
            Some(block) => Ok(store.begin(StateId::Proposal(&block.states.own))?),
            None => Ok(store.begin(StateId::Block(*hash))?),
        }
    }

    /// Opens sessions on the state after a known block, in the own store and in the referee's.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_all(&self, hash: &B256) -> Result<SessionSet<'_>, PipelineError> {
        let states = self.live().chain().states();
        match self.executed(hash) {
            Some(block) => Ok(states.begin(StoreSetId::Proposals(&block.states))?),
            None => Ok(states.begin(StoreSetId::Block(*hash))?),
        }
    }

    /// The state after a known block, from the first source that has it and serves `need`: the
    /// proposal in memory, the durable tip, the backend's own history, flat history, undo within
    /// the retention depth. Undo is the slowest source and has the fewest limits. It comes before
    /// the histories for entries, and for proofs if the backend's history proves old states under
    /// the root of a later block.
    ///
    /// # Errors
    /// [`PipelineError::State`] if the block is not known, or no source serves `need` for its
    /// state; the error then names the states that are kept.
    pub fn state_at(&self, hash: &B256, need: StateNeed) -> Result<StateProvider, PipelineError> {
        let store = self.live().chain().state();
        if let Some(block) = self.executed(hash) {
            match store.at(StateId::Proposal(&block.states.own)) {
                // The block has become durable and has left the retention depth in the meantime.
                Err(StateError::UnknownBlock { .. }) => {}
                state => return Ok(state?),
            }
        }
        if store.tip().is_some_and(|tip| tip.block.hash == *hash) {
            match store.at(StateId::Block(*hash)) {
                // The block was reverted in the meantime.
                Err(StateError::UnknownBlock { .. }) => {}
                state => return Ok(state?),
            }
        }
        let Some(number) = self.block_number(hash)? else {
            return Err(StateError::UnknownBlock { hash: *hash }.into());
        };
        let is_canonical = self.is_canonical(hash)?;
        let undo_first = match need {
            _ if !is_canonical => true,
            StateNeed::Values => false,
            StateNeed::Entries => true,
            StateNeed::Proofs => {
                store.backend().extensions().history.is_some_and(|history| history.proven_by_view())
            }
        };
        let mut why = None;
        let mut ways = [StateSource::History, StateSource::FlatHistory, StateSource::Undo];
        if undo_first {
            ways.rotate_right(1);
        }
        for way in ways {
            let state = match way {
                StateSource::Undo => store.at(StateId::Block(*hash)),
                StateSource::History => {
                    match self.state_in_history(BlockRef::new(number, *hash))? {
                        Some(state) => return Ok(state),
                        None => continue,
                    }
                }
                StateSource::FlatHistory if need == StateNeed::Values && is_canonical => {
                    store.flat_history(self.at_head(), number)
                }
                StateSource::FlatHistory => continue,
            };
            match state {
                Ok(state) => return Ok(state),
                // The next source may have it. An error of flat history is more useful than undo's.
                Err(
                    error @ (StateError::UnknownBlock { .. }
                    | StateError::BeyondRetention { .. }
                    | StateError::BeyondHistory { .. }),
                ) => {
                    why = match why {
                        Some(before @ StateError::BeyondHistory { .. }) => Some(before),
                        _ => Some(error),
                    };
                }
                Err(error) => return Err(error.into()),
            }
        }
        let why = match why {
            _ if !is_canonical => StateError::UnknownBlock { hash: *hash },
            // The block itself is known, only its state is not kept.
            Some(StateError::UnknownBlock { .. }) if need != StateNeed::Values => {
                store.beyond_retention(number)
            }
            Some(why) => why,
            None => StateError::UnknownBlock { hash: *hash },
        };
        Err(self.history_error(number).unwrap_or(why).into())
    }

    /// The state of this view's head, even if the durable tip has moved on.
    pub(crate) fn at_head(&self) -> StateId<'_> {
        match self.head_in_memory() {
            Some(head) => StateId::Proposal(&head.states.own),
            None => StateId::Block(self.head().hash()),
        }
    }

    /// Whether the state of this view's head has left the store: a reorg has undone the block, or a
    /// batch whose blocks share one root has made it too old. Values of old states are read at the
    /// head, so this view cannot read those that are kept either.
    pub fn has_lost_state(&self) -> bool {
        let head = self.live().chain().state().at(self.at_head());
        head.is_err_and(|error| PipelineError::from(error).lacks_state())
    }

    /// A view of the next head. `None` if the chain has not moved and this view's state is there. If
    /// it [is not](Self::has_lost_state), the engine is about to publish the next head, and this
    /// waits for it, for 2 s at most.
    ///
    /// # Errors
    /// If the database fails.
    pub fn successor(&self) -> Result<Option<Self>, PipelineError> {
        let deadline = Instant::now() + LONGEST_WAIT;
        let mut attempt = 0;
        while self.live().sequence() == self.sequence() {
            if !self.has_lost_state() || Instant::now() >= deadline {
                return Ok(None);
            }
            attempt += 1;
            pause_before_retry(attempt);
        }
        self.live().view().map(Some)
    }

    /// The state of a canonical durable block from the backend's own history; `None` if it is not
    /// in there.
    fn state_in_history(&self, block: BlockRef) -> Result<Option<StateProvider>, PipelineError> {
        let chain = self.live().chain();
        if chain.state().backend().extensions().history.is_none()
            || !self.is_canonical(&block.hash)?
        {
            return Ok(None);
        }
        for attempt in 1..=ATTEMPTS {
            let state = match chain.state().history(block) {
                // The history has dropped the block, or it is no longer durable.
                Err(StateError::NotInHistory { .. }) => return Ok(None),
                state => state?,
            };
            // The history belongs to the present durable chain, which may differ from this view's.
            // If its tip is still canonical, so are all ancestors of the tip.
            let now = chain.db().begin_read()?;
            if let Some(tip) = state.opened_from()
                && now.is_canonical(&tip.hash)?
            {
                return Ok(now.is_canonical(&block.hash)?.then_some(state));
            }
            drop((now, state));
            pause_before_retry(attempt);
        }
        Ok(None)
    }

    /// The backend's error for a block that is not in its history.
    fn history_error(&self, number: u64) -> Option<StateError> {
        match self.live().chain().state().history(BlockRef { number, ..BlockRef::default() }) {
            Err(error @ StateError::NotInHistory { .. }) => Some(error),
            _ => None,
        }
    }
}

type BoxedStateReader = Box<dyn StateReader + Send + Sync>;

/// The state after one block, with the codes and block hashes that an execution on it reads.
pub struct PostState {
    view: LiveView,
    header: SealedHeader,
    reader: BoxedStateReader,
    patch: Option<Arc<StatePatch>>,
}

impl fmt::Debug for PostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateAfter").field("header", &self.header).finish_non_exhaustive()
    }
}

impl PostState {
    /// The block's header.
    pub const fn header(&self) -> &SealedHeader {
        &self.header
    }

    /// The view that this state belongs to.
    pub const fn view(&self) -> &LiveView {
        &self.view
    }

    /// The patch of a dev chain's user on top of the state that the block's root commits to.
    pub fn patch(&self) -> Option<&StatePatch> {
        self.patch.as_deref()
    }

    /// Input for an execution on this state.
    pub fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput::new(self, self, self).with_code_cache(self.view.live().codes())
    }
}

impl StateReader for PostState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        self.reader.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.reader.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.reader.some_slots(address, limit)
    }
}

impl CodeReader for PostState {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        self.view
            .code(hash)
            .map_err(|error| StoreError::new(format!("reading code {hash}"), error).into())
    }
}

impl PostState {
    /// The root of the index table of the block and its ancestors, from their receipts.
    fn table_of(&self, span: TableSpan) -> Result<Option<B256>, PipelineError> {
        let mut table = TableBuilder::default();
        let mut at = Some(self.header.clone());
        let mut hashes = Vec::new();
        // Down to the first block of the span: ancestors that are not canonical have no numbers.
        while let Some(header) = at {
            if header.number <= span.last() {
                hashes.push(header.hash());
            }
            if header.number <= span.first() {
                break;
            }
            at = self.view.header(&header.parent_hash)?;
        }
        if hashes.len() as u64 != span.size() {
            return Ok(None);
        }
        for hash in hashes.iter().rev() {
            if !self.view.add_to_table(&mut table, hash)? {
                return Ok(None);
            }
        }
        Ok(Some(table.finish().root()))
    }
}

impl BlockHashes for PostState {
    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        self.table_of(span).map_err(|error| {
            let action = format!("indexing blocks {} to {}", span.first(), span.last());
            StoreError::new(action, error).into()
        })
    }

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
            StoreError::new(action, error).into()
        })
    }
}
