//! The canonical blocks of a datadir, as one snapshot has them.
//!
//! What a block changed is found by executing it on the state of its parent: that works wherever old
//! states can be read, by flat history or the backend's own, and the header vouches for the outcome.

use super::{BlockData, BlockSource, Blocks, Changes, Needs};
use crate::ExportError;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, map::HashMap};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_db::{ChainRead, ReadTxn};
use retrie_execution::{
    BlockHashes, CodeCache, CodeReader, ExecutionInput, ExecutionOutcome, LayeredState,
    execute_block,
};
use retrie_pipeline::{StatePatch, States, genesis_delta, validate_outcome};
use retrie_state::{
    Account, AnyBackend, At, BlockRef, StateAt, StateDelta, StateError, StateKey, StateStore,
    StoreError, Value,
};
use std::{fmt, ops::RangeInclusive, sync::Arc};

/// Canonical blocks of a datadir.
pub struct ChainSource {
    read: Arc<ReadTxn>,
    spec: Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    blocks: Blocks,
    /// Opened when it is first asked for.
    store: Option<StateStore>,
    codes: CodeCache,
}

impl fmt::Debug for ChainSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainSource").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl ChainSource {
    /// The blocks from `from`, or the first there is, to `to`, or the head, of a datadir that was made by
    /// `backend`.
    ///
    /// # Errors
    /// If they are not all there, or reading fails.
    pub fn new(
        read: Arc<ReadTxn>,
        spec: Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Result<Self, ExportError> {
        let (Some(first), Some(tip)) = (read.first()?, read.tip()?) else {
            return Err(ExportError::NoBlock { number: from.unwrap_or_default() });
        };
        let (from, to) = (from.unwrap_or(first.number), to.unwrap_or(tip.number));
        if from > to || from < first.number || to > tip.number {
            let (first, last) = (first.number, tip.number);
            return Err(ExportError::NotThere { from, to, first, last });
        }
        let (blocks, codes) = (Blocks::Range(from..=to), CodeCache::default());
        Ok(Self { read, spec, backend, blocks, store: None, codes })
    }

    /// Numbers of its blocks.
    pub fn range(&self) -> RangeInclusive<u64> {
        match &self.blocks {
            Blocks::Range(range) => range.clone(),
            Blocks::Listed(_) => unreachable!("a chain has no gaps"),
        }
    }

    /// Executes a block on the kept state of its parent.
    fn execute(&mut self, block: &RecoveredBlock) -> Result<ExecutionOutcome, ExportError> {
        let (number, hash) = (block.header().number, block.hash());
        let store = match &mut self.store {
            Some(store) => store,
            none => {
                let store = States::open_one_to_read(&self.read, self.backend.clone(), false);
                none.insert(store.map_err(|error| ExportError::State(Box::new(error)))?)
            }
        };
        let no_state = |source| ExportError::NoState { number, source: Box::new(source) };
        let parent = number.checked_sub(1).ok_or(ExportError::NoBlock { number })?;
        let parent = BlockRef::new(parent, block.header().parent_hash);
        let state = state_after(store, parent).map_err(no_state)?;
        let rest = Rest(&self.read);
        let mut state = LayeredState::new(state);
        let patch = StatePatch::stored(&*self.read, &hash)?;
        patch.iter().for_each(|patch| state.lay(patch.delta.clone(), []));
        let input = ExecutionInput::new(&state, &rest, &rest).with_code_cache(&self.codes);
        let spec = self.spec.for_header(block.header());
        let failed = |source| ExportError::Execution { number, hash, source: Box::new(source) };
        let mut outcome = execute_block(&spec, block, input).map_err(failed)?;
        let other = |source| ExportError::Outcome { number, hash, source: Box::new(source) };
        validate_outcome(&spec, block.sealed_block(), &outcome, None).map_err(other)?;
        if let Some(patch) = patch {
            outcome.delta = patch.delta.then(&outcome.delta);
            outcome.codes.extend(patch.codes);
        }
        Ok(outcome)
    }
}

impl BlockSource for ChainSource {
    fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    fn hash(&mut self, number: u64) -> Result<B256, ExportError> {
        self.read.canonical_hash(number)?.ok_or(ExportError::NoBlock { number })
    }

    fn read(&mut self, number: u64, needs: Needs) -> Result<BlockData, ExportError> {
        let hash = self.hash(number)?;
        let block = self.read.recovered_block(&hash)?.ok_or(ExportError::NoBlock { number })?;
        let mut data = BlockData::new(&self.spec, block)?;
        data.total_difficulty = self.read.total_difficulty(&hash)?;
        if number == 0 {
            data.receipts = needs.receipts.then(Vec::new);
            let of_genesis = || {
                let (delta, codes) = genesis_delta(&self.spec);
                Changes { delta, codes: codes.into_iter().collect() }
            };
            data.changes = needs.changes.then(of_genesis);
            return Ok(data);
        }
        if needs.receipts {
            data.receipts = self.read.receipts(&hash)?;
        }
        // Receipts that are not kept come from the execution as well.
        if needs.changes || (needs.receipts && data.receipts.is_none()) {
            let outcome = self.execute(&data.block)?;
            if needs.changes {
                let stored = |hash: &B256| Ok(self.read.code(hash)?);
                let codes = codes_of(number, &outcome.delta, outcome.codes, stored)?;
                data.changes = Some(Changes { delta: outcome.delta, codes });
            }
            if needs.receipts {
                data.receipts.get_or_insert(outcome.receipts);
            }
        }
        Ok(data)
    }
}

/// The state after a canonical block, by whichever way leads to it.
fn state_after(store: &StateStore, block: BlockRef) -> Result<StateAt, StateError> {
    if store.tip().is_some_and(|tip| tip.block == block) {
        return store.at(At::Tip);
    }
    if store.backend().history().is_some() {
        match store.history(block) {
            Err(StateError::NotInHistory { .. }) => {}
            state => return state,
        }
    }
    match store.flat_history(At::Tip, block.number) {
        Err(beyond @ StateError::BeyondHistory { .. }) => {
            store.at(At::Block(block.hash)).map_err(|_| beyond)
        }
        state => state,
    }
}

/// The codes that accounts of `delta` had and have: of those it made, and as `stored` has them.
pub(super) fn codes_of(
    number: u64,
    delta: &StateDelta,
    made: Vec<(B256, Bytes)>,
    stored: impl Fn(&B256) -> Result<Option<Bytes>, ExportError>,
) -> Result<HashMap<B256, Bytes>, ExportError> {
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

fn no_code(number: u64, hash: B256, address: Address) -> ExportError {
    ExportError::NoCode { number, hash, address }
}

fn code_hash(value: &Option<Value>) -> B256 {
    let account = value.as_ref().and_then(|value| Account::decode(value));
    account.map_or(KECCAK256_EMPTY, |account| account.code_hash)
}

/// What an execution reads beside the state.
struct Rest<'a>(&'a ReadTxn);

impl CodeReader for Rest<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        let code = self.0.code(hash);
        code.map_err(|error| StoreError::new(format!("reading code {hash}"), error).into())
    }
}

impl BlockHashes for Rest<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.0.canonical_hash(number).map_err(|error| {
            let action = format!("looking for ancestor {number}");
            StoreError::new(action, error).into()
        })
    }
}
