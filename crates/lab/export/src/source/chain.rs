//! The canonical blocks in a snapshot of a datadir.
//!
//! The changes of a block are found by executing it on the state of its parent. This works if old
//! states can be read, by flat history or the backend's own history, and the outcome is checked
//! against the header.

use super::{BlockChanges, BlockData, BlockNeeds, BlockNumbers, BlockSource};
use crate::BlockSourceError;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, map::HashMap};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::{CodeCache, ExecutionInput, ExecutionOutcome, LayeredState, execute_block};
use retrie_pipeline::{StatePatch, StoreSet, StoredContext, genesis_delta, validate_outcome};
use retrie_state::{Account, AnyBackend, BlockRef, StateDelta, StateError, StateKey, StateValue};
use retrie_state_store::{StateId, StateProvider, StateStore};
use std::{fmt, ops::RangeInclusive, sync::Arc};

/// Canonical blocks of a datadir.
pub struct ChainSource {
    read: Arc<ReadTxn>,
    spec: Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    blocks: BlockNumbers,
    /// Opened on first use.
    store: Option<StateStore>,
    codes: CodeCache,
}

impl fmt::Debug for ChainSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainSource").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl ChainSource {
    /// The blocks from `from` (default: the first) to `to` (default: the head) of a datadir made by
    /// `backend`.
    ///
    /// # Errors
    /// If some of them do not exist, or reading fails.
    pub fn new(
        read: Arc<ReadTxn>,
        spec: Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Result<Self, BlockSourceError> {
        let (Some(first), Some(tip)) = (read.first()?, read.tip()?) else {
            return Err(BlockSourceError::NoBlock { number: from.unwrap_or_default() });
        };
        let (from, to) = (from.unwrap_or(first.number), to.unwrap_or(tip.number));
        if from > to || from < first.number || to > tip.number {
            let (first, last) = (first.number, tip.number);
            return Err(BlockSourceError::MissingBlocks { from, to, first, last });
        }
        let (blocks, codes) = (BlockNumbers::Range(from..=to), CodeCache::default());
        Ok(Self { read, spec, backend, blocks, store: None, codes })
    }

    /// Numbers of its blocks.
    pub fn range(&self) -> RangeInclusive<u64> {
        match &self.blocks {
            BlockNumbers::Range(range) => range.clone(),
            BlockNumbers::Listed(_) => unreachable!("a chain has no gaps"),
        }
    }

    /// Executes a block on the stored state of its parent.
    fn execute(&mut self, block: &RecoveredBlock) -> Result<ExecutionOutcome, BlockSourceError> {
        let (number, hash) = (block.header().number, block.hash());
        let store = match &mut self.store {
            Some(store) => store,
            none => {
                let store = StoreSet::open_read_only(&self.read, self.backend.clone(), false);
                none.insert(store.map_err(|error| BlockSourceError::State(Box::new(error)))?)
            }
        };
        let no_state = |source| BlockSourceError::NoState { number, source: Box::new(source) };
        let parent = number.checked_sub(1).ok_or(BlockSourceError::NoBlock { number })?;
        let parent = BlockRef::new(parent, block.header().parent_hash);
        let state = state_after(store, parent).map_err(no_state)?;
        let rest = StoredContext(&self.read);
        let mut state = LayeredState::new(state);
        let patch = StatePatch::stored(&*self.read, &hash)?;
        patch.iter().for_each(|patch| state.push_delta(patch.delta.clone(), []));
        let input = ExecutionInput::new(&state, &rest, &rest).with_code_cache(&self.codes);
        let spec = self.spec.for_header(block.header());
        let failed =
            |source| BlockSourceError::Execution { number, hash, source: Box::new(source) };
        let mut outcome = execute_block(&spec, block, input).map_err(failed)?;
        let other = |source| BlockSourceError::Outcome { number, hash, source: Box::new(source) };
        validate_outcome(&spec, block.sealed_block(), &outcome, None).map_err(other)?;
        if let Some(patch) = patch {
            outcome.delta = patch.delta.then(&outcome.delta);
            outcome.codes.extend(patch.codes());
        }
        Ok(outcome)
    }
}

impl BlockSource for ChainSource {
    fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    fn blocks(&self) -> &BlockNumbers {
        &self.blocks
    }

    fn hash(&mut self, number: u64) -> Result<B256, BlockSourceError> {
        self.read.canonical_hash(number)?.ok_or(BlockSourceError::NoBlock { number })
    }

    fn read(&mut self, number: u64, needs: BlockNeeds) -> Result<BlockData, BlockSourceError> {
        let hash = self.hash(number)?;
        let block =
            self.read.recovered_block(&hash)?.ok_or(BlockSourceError::NoBlock { number })?;
        let mut data = BlockData::new(&self.spec, block)?;
        data.total_difficulty = self.read.total_difficulty(&hash)?;
        if number == 0 {
            data.receipts = needs.receipts.then(Vec::new);
            let of_genesis = || {
                let (delta, codes) = genesis_delta(&self.spec);
                BlockChanges { delta, codes: codes.into_iter().collect() }
            };
            data.changes = needs.changes.then(of_genesis);
            return Ok(data);
        }
        if needs.receipts {
            data.receipts = self.read.receipts(&hash)?;
        }
        // Receipts that were pruned come from the execution.
        if needs.changes || (needs.receipts && data.receipts.is_none()) {
            let outcome = self.execute(&data.block)?;
            if needs.changes {
                let stored = |hash: &B256| Ok(self.read.code(hash)?);
                let codes = codes_of(number, &outcome.delta, outcome.codes, stored)?;
                data.changes = Some(BlockChanges { delta: outcome.delta, codes });
            }
            if needs.receipts {
                data.receipts.get_or_insert(outcome.receipts);
            }
        }
        Ok(data)
    }
}

/// Opens the state after a canonical block in any way that works.
fn state_after(store: &StateStore, block: BlockRef) -> Result<StateProvider, StateError> {
    if store.tip().is_some_and(|tip| tip.block == block) {
        return store.at(StateId::Tip);
    }
    if store.backend().extensions().history.is_some() {
        match store.history(block) {
            Err(StateError::NotInHistory { .. }) => {}
            state => return state,
        }
    }
    match store.flat_history(StateId::Tip, block.number) {
        Err(beyond @ StateError::BeyondHistory { .. }) => {
            store.at(StateId::Block(block.hash)).map_err(|_| beyond)
        }
        state => state,
    }
}

/// Codes of accounts in `delta`, before and after: codes in `made`, and others from `stored`.
pub(super) fn codes_of(
    number: u64,
    delta: &StateDelta,
    made: Vec<(B256, Bytes)>,
    stored: impl Fn(&B256) -> Result<Option<Bytes>, BlockSourceError>,
) -> Result<HashMap<B256, Bytes>, BlockSourceError> {
    let mut codes: HashMap<_, _> = made.into_iter().collect();
    for change in delta.changes() {
        let StateKey::Account(address) = change.key else { continue };
        let [before, after] = [&change.previous, &change.next].map(code_hash);
        if before == after {
            continue;
        }
        for hash in [before, after] {
            if hash != KECCAK256_EMPTY && !codes.contains_key(&hash) {
                let no_code = || no_code(number, hash, address);
                codes.insert(hash, stored(&hash)?.ok_or_else(no_code)?);
            }
        }
    }
    Ok(codes)
}

fn no_code(number: u64, hash: B256, address: Address) -> BlockSourceError {
    BlockSourceError::NoCode { number, hash, address }
}

fn code_hash(value: &Option<StateValue>) -> B256 {
    let account = value.as_ref().and_then(|value| Account::decode(value));
    account.map_or(KECCAK256_EMPTY, |account| account.code_hash)
}
