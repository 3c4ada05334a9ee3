//! The states of a chain's blocks: which of the ways that a state is kept leads to one.

use crate::{
    live::{ATTEMPTS, rest},
    view::View,
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_db::ChainRead;
use retrie_execution::{BlockHashes, CodeReader, ExecutionInput, LayeredState};
use retrie_pipeline::{PipelineError, StatePatch};
use retrie_state::{
    At, BlockRef, Session, StateAt, StateError, StateKey, StateReader, StoreError, Value,
};
use std::{fmt, sync::Arc};

/// What a state is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Values of keys.
    Values,
    /// All entries in order.
    Entries,
    /// Proofs, of any kind.
    Proofs,
}

/// A way to the state of a durable block.
#[derive(Clone, Copy)]
enum Way {
    History,
    FlatHistory,
    Undo,
}

impl View {
    /// The state after a known block.
    ///
    /// # Errors
    /// [`PipelineError::State`] if the block is not known, or its state is not kept; it then says
    /// what is.
    pub fn state(&self, hash: &B256) -> Result<StateAfter, PipelineError> {
        let patch = self.patch_after(hash)?;
        self.patched(hash, self.state_at(hash, Need::Values)?, patch)
    }

    /// What the user of a dev chain changed of the state after a canonical block. It shows in that state
    /// from then on, though the root of the next block is the first that has it.
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

    /// The state that the transactions of a known block begin on: that after its parent, and on a dev
    /// chain what its user changed of that.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    pub fn state_before(&self, block: &RecoveredBlock) -> Result<StateAfter, PipelineError> {
        let parent = &block.parent_hash;
        let patch = self.patch_before(&block.hash())?;
        self.patched(parent, self.state_at(parent, Need::Values)?, patch)
    }

    fn patched(
        &self,
        hash: &B256,
        state: StateAt,
        patch: Option<Arc<StatePatch>>,
    ) -> Result<StateAfter, PipelineError> {
        let header = self.header(hash)?.ok_or(StateError::UnknownBlock { hash: *hash })?;
        let reader: Reader = match &patch {
            None => Box::new(state),
            Some(patch) => {
                let mut patched = LayeredState::new(state);
                patched.lay(patch.delta.clone(), []);
                Box::new(patched)
            }
        };
        Ok(StateAfter { view: self.clone(), header, reader, patch })
    }

    /// The state after a known block as its root has it, to read what is known of the account at
    /// `address` and to prove it.
    ///
    /// On a dev chain the account must be as [`state`](Self::state) shows it: what was changed of it by
    /// hand since is in the root of the next block alone.
    ///
    /// # Errors
    /// As [`state`](Self::state); [`PipelineError::ChangedByHand`].
    pub fn provable_state(&self, hash: &B256, address: &Address) -> Result<StateAt, PipelineError> {
        let state = self.state_at(hash, Need::Proofs)?;
        match self.patch_after(hash)? {
            Some(patch) if patch.touches(address) => {
                let number = self.block_number(hash)?.unwrap_or_default();
                let (what, hash) = (format!("account {address}"), *hash);
                Err(PipelineError::ChangedByHand { what, number, hash })
            }
            _ => Ok(state),
        }
    }

    /// The state that a known block begins on, to execute it, and the same as the root of its parent
    /// has it, to prove from.
    ///
    /// # Errors
    /// As [`provable_state`](Self::provable_state), for changes of any account.
    pub fn provable_before(
        &self,
        block: &RecoveredBlock,
    ) -> Result<(StateAfter, StateAt), PipelineError> {
        let parent = block.parent_hash;
        let patch = self.patch_before(&block.hash())?;
        if patch.is_some_and(|patch| !patch.delta.is_empty()) {
            let (what, number) = ("the state".into(), block.number.saturating_sub(1));
            return Err(PipelineError::ChangedByHand { what, number, hash: parent });
        }
        let state = self.state_at(&parent, Need::Proofs)?;
        Ok((self.patched(&parent, state.clone(), None)?, state))
    }

    /// The state after a known block with all its entries, as [`state`](Self::state) shows it, and its
    /// root: that of the header, or of what was changed by hand since, which then is no header's.
    ///
    /// # Errors
    /// As [`state`](Self::state); [`StateError::BeyondRetention`] of a changed state that can no longer
    /// be extended.
    pub fn listed_state(&self, hash: &B256) -> Result<(StateAt, B256), PipelineError> {
        let Some(patch) = self.patch_after(hash)? else {
            let header = self.header(hash)?.ok_or(StateError::UnknownBlock { hash: *hash })?;
            return Ok((self.state_at(hash, Need::Entries)?, header.state_root));
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
        Ok((store.at(At::Proposal(&proposal))?, proposal.root()))
    }

    /// Opens a session on the state after a known block.
    ///
    /// # Errors
    /// If the block is not known, or its state can no longer be extended.
    pub fn begin(&self, hash: &B256) -> Result<Session<'_>, PipelineError> {
        let store = self.live().chain().state();
        match self.executed(hash) {
            Some(block) => Ok(store.begin(At::Proposal(&block.states.own))?),
            None => Ok(store.begin(At::Block(*hash))?),
        }
    }

    /// The state after a known block, by the first way that leads to it and does what is needed: the
    /// proposal in memory; the durable tip; the backend's own history; flat history; undo, within the
    /// retention depth. Undo is the slowest and has the fewest limits: who needs entries, or proofs
    /// under the block's own root where the backend's history proves old states by that of a later
    /// block, gets it before the histories.
    ///
    /// # Errors
    /// [`PipelineError::State`] if the block is not known, or its state is not kept for that need; it
    /// then says what is.
    pub fn state_at(&self, hash: &B256, need: Need) -> Result<StateAt, PipelineError> {
        let store = self.live().chain().state();
        if let Some(block) = self.executed(hash) {
            match store.at(At::Proposal(&block.states.own)) {
                // It has become durable since, and has left the retention depth already.
                Err(StateError::UnknownBlock { .. }) => {}
                state => return Ok(state?),
            }
        }
        if store.tip().is_some_and(|tip| tip.block.hash == *hash) {
            match store.at(At::Block(*hash)) {
                // It was reverted this moment.
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
            Need::Values => false,
            Need::Entries => true,
            Need::Proofs => {
                store.backend().history().is_some_and(|history| history.proven_by_view())
            }
        };
        let mut why = None;
        let mut ways = [Way::History, Way::FlatHistory, Way::Undo];
        if undo_first {
            ways.rotate_right(1);
        }
        for way in ways {
            let state = match way {
                Way::Undo => store.at(At::Block(*hash)),
                Way::History => match self.in_history(BlockRef::new(number, *hash))? {
                    Some(state) => return Ok(state),
                    None => continue,
                },
                Way::FlatHistory if need == Need::Values && is_canonical => {
                    store.flat_history(self.at_head(), number)
                }
                Way::FlatHistory => continue,
            };
            match state {
                Ok(state) => return Ok(state),
                // The next way may lead there. What flat history says is of more use than undo's.
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
            // The block is known: what is not is a way to its state.
            Some(StateError::UnknownBlock { .. }) if need != Need::Values => {
                store.beyond_retention(number)
            }
            Some(why) => why,
            None => StateError::UnknownBlock { hash: *hash },
        };
        Err(self.why_not_in_history(number).unwrap_or(why).into())
    }

    /// The state of the head of this view, whatever the durable tip is by now.
    fn at_head(&self) -> At<'_> {
        match self.top_in_memory() {
            Some(head) => At::Proposal(&head.states.own),
            None => At::Block(self.head().hash()),
        }
    }

    /// The state of a canonical durable block by the backend's own history; `None` if that does not
    /// have it.
    fn in_history(&self, block: BlockRef) -> Result<Option<StateAt>, PipelineError> {
        let chain = self.live().chain();
        if chain.state().backend().history().is_none() || !self.is_canonical(&block.hash)? {
            return Ok(None);
        }
        for attempt in 1..=ATTEMPTS {
            let state = match chain.state().history(block) {
                // Forgotten, or durable no longer.
                Err(StateError::NotInHistory { .. }) => return Ok(None),
                state => state?,
            };
            // It is the history of the durable chain of now, which may be another than that of this
            // view. Where that tip still is canonical, so are its ancestors.
            let now = chain.db().begin_read()?;
            if let Some(tip) = state.seen_from()
                && now.is_canonical(&tip.hash)?
            {
                return Ok(now.is_canonical(&block.hash)?.then_some(state));
            }
            drop((now, state));
            rest(attempt);
        }
        Ok(None)
    }

    /// What the backend's history says of a block that it does not have.
    fn why_not_in_history(&self, number: u64) -> Option<StateError> {
        match self.live().chain().state().history(BlockRef { number, ..BlockRef::default() }) {
            Err(error @ StateError::NotInHistory { .. }) => Some(error),
            _ => None,
        }
    }
}

type Reader = Box<dyn StateReader + Send + Sync>;

/// The state after one block, and what else an execution on top of it reads.
pub struct StateAfter {
    view: View,
    header: SealedHeader,
    reader: Reader,
    patch: Option<Arc<StatePatch>>,
}

impl fmt::Debug for StateAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateAfter").field("header", &self.header).finish_non_exhaustive()
    }
}

impl StateAfter {
    /// Header of the block.
    pub const fn header(&self) -> &SealedHeader {
        &self.header
    }

    /// The view that it belongs to.
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// What the user of a dev chain changed of the block's own state; the rest is as its root has it.
    pub fn patch(&self) -> Option<&StatePatch> {
        self.patch.as_deref()
    }

    /// What an execution on this state reads from.
    pub fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput::new(self, self, self).with_code_cache(self.view.live().codes())
    }
}

impl StateReader for StateAfter {
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

impl CodeReader for StateAfter {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        self.view
            .code(hash)
            .map_err(|error| StoreError::new(format!("reading code {hash}"), error).into())
    }
}

impl BlockHashes for StateAfter {
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
