//! Makes the blocks of a chain, one after the other, with their states on a store of their own.

use super::{
    Fill, MAX_GAS_TARGET, MakeChainError, Recipe,
    genesis::{GAS_LIMIT, genesis_json},
    plan::{Call, Planner, receiver},
    random::derive,
    sign::Sender,
};
use alloy_primitives::{Address, B256, Bytes, U256, map::HashMap};
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{RecoveredBlock, SealedHeader, Withdrawal},
};
use retrie_db::{Db, OpenOptions, SyncMode};
use retrie_execution::CodeCache;
use retrie_pipeline::{
    BlockAttributes, BlockBuilder, BuildParent, BuiltBlock, PipelineError, genesis_delta,
};
use retrie_state::{At, Backend, KvStore, Proposal, StateStore, StoreOptions};
use std::sync::Arc;
use tempfile::TempDir;

/// Accounts that sign.
pub(crate) const SENDERS: u64 = 256;
/// Seconds between two blocks.
const SLOT: u64 = 12;
/// Withdrawals in each block.
const WITHDRAWALS: u64 = 4;
/// What is made is committed once it holds this many blocks ...
const BATCH_BLOCKS: usize = 128;
/// ... or this many rows, which bounds the memory that a chain of any length takes.
const BATCH_ROWS: usize = 200_000;

/// Makes blocks. The same recipe gives the same blocks: nothing depends on time, threads or the
/// order of a hash map.
pub struct ChainMaker {
    recipe: Recipe,
    genesis_json: String,
    spec: Arc<ChainSpec>,
    senders: Vec<Sender>,
    nonces: Vec<u64>,
    planner: Planner,
    /// Gas of a transaction of the mix, as the block before had it.
    mean_gas: u64,
    head: SealedHeader,
    /// States that are not committed yet, the head's last.
    pending: Vec<Proposal>,
    codes: HashMap<B256, Bytes>,
    code_cache: CodeCache,
    reverted: u64,
    // In the order in which they close.
    store: StateStore,
    kv: Arc<dyn KvStore>,
    _folder: TempDir,
}

impl std::fmt::Debug for ChainMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainMaker").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}

impl ChainMaker {
    /// Starts a chain: genesis alone. Its states are kept in a temporary folder by `backend`, whose
    /// roots go into the headers.
    ///
    /// # Errors
    /// [`MakeChainError::Recipe`]; [`PipelineError::NoHeaderRoot`] if the backend's roots are not
    /// Ethereum's; errors of the store.
    pub fn new(recipe: Recipe, backend: Arc<dyn Backend>) -> Result<Self, MakeChainError> {
        recipe.check()?;
        if !backend.capabilities().ethereum_root {
            let backend = backend.identity().name;
            return Err(PipelineError::NoHeaderRoot { backend }.into());
        }
        let senders: Vec<_> =
            (0..SENDERS).into_par_iter().map(|n| Sender::new(recipe.seed, n)).collect();
        let genesis_json = genesis_json(recipe.seed, &senders);
        let spec = ChainSpec::from_genesis_json(&genesis_json).expect("a genesis of our own");
        let spec = Arc::new(spec);

        let folder = tempfile::Builder::new().prefix("retrie-make-chain-").tempdir();
        let folder = folder.map_err(|source| MakeChainError::Io {
            action: "creating a temporary folder (set TMPDIR to choose where)".into(),
            source,
        })?;
        let options = OpenOptions {
            // A store that is thrown away.
            sync: SyncMode::NoSync,
            state_tables: StateStore::tables(&*backend),
            ..OpenOptions::default()
        };
        let db = Db::create(folder.path(), &options).map_err(PipelineError::from)?;
        let kv = db.state_store();
        let files = folder.path().join("state");
        let options = StoreOptions { retention: 0, dir: Some(files), ..StoreOptions::default() };
        let store = StateStore::open(backend, kv.clone(), options).map_err(PipelineError::from)?;

        let (delta, codes) = genesis_delta(&spec);
        let head = spec.genesis_header().clone();
        let genesis = store
            .begin(At::Tip)
            .and_then(|session| session.finish_as(0, &delta))
            .map_err(PipelineError::from)?;
        store.seal(&genesis, head.hash());
        let planner = Planner::new(recipe, &senders);
        Ok(Self {
            mean_gas: typical_gas(&recipe),
            nonces: vec![0; senders.len()],
            planner,
            senders,
            recipe,
            genesis_json,
            spec,
            head,
            pending: vec![genesis],
            codes: codes.into_iter().collect(),
            code_cache: CodeCache::default(),
            reverted: 0,
            store,
            kv,
            _folder: folder,
        })
    }

    /// The genesis file.
    pub fn genesis_json(&self) -> &str {
        &self.genesis_json
    }

    /// Rules and genesis.
    pub const fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    /// The last block made, or genesis.
    pub const fn head(&self) -> &SealedHeader {
        &self.head
    }

    /// Transactions that reverted so far: how many were chosen to, and how many did.
    pub const fn reverts(&self) -> (u64, u64) {
        (self.planner.reverts(), self.reverted)
    }

    /// Makes the next block.
    ///
    /// # Errors
    /// Those of execution and store; none is expected but a full disk.
    pub fn next_block(&mut self) -> Result<RecoveredBlock, MakeChainError> {
        let mut calls = self.planner.next_setup(MAX_GAS_TARGET);
        let is_mixed = calls.is_empty();
        if is_mixed {
            calls = self.mix();
        }
        let built = self.build(calls)?;
        if is_mixed {
            let transactions = built.block.body().transactions.len() as u64;
            self.mean_gas = (built.outcome.gas_used / transactions).max(21_000);
        }
        self.reverted +=
            built.outcome.receipts.iter().filter(|receipt| !receipt.success).count() as u64;
        Ok(built.block)
    }

    /// As many calls of the mix as the next block shall have.
    fn mix(&mut self) -> Vec<Call> {
        let by_gas = |target: u64| (target / self.mean_gas).max(1);
        let wanted = match self.recipe.fill {
            Fill::Transactions(count) => count.min(by_gas(MAX_GAS_TARGET)),
            Fill::Gas(target) => by_gas(target),
        };
        // The gas limits together stay within the block's, so every call fits.
        let mut calls = Vec::new();
        let mut gas = 0;
        while (calls.len() as u64) < wanted && gas + MAX_CALL_GAS <= GAS_LIMIT {
            let call = self.planner.next();
            gas += call.gas_limit;
            calls.push(call);
        }
        calls
    }

    /// The block of `calls` on the head, which it becomes.
    pub(crate) fn build(&mut self, calls: Vec<Call>) -> Result<BuiltBlock, MakeChainError> {
        let number = self.head.number + 1;
        let invalid = |source| PipelineError::InvalidBlock {
            number: self.head.number,
            hash: self.head.hash(),
            source: Box::new(source),
        };
        let base_fee = retrie_consensus::next_base_fee(&self.spec, &self.head)
            .map_err(invalid)?
            .unwrap_or_default();
        let from: Vec<Address> = calls.iter().map(|call| self.senders[call.from].address).collect();
        let numbered: Vec<_> = calls
            .into_iter()
            .map(|call| {
                let nonce = self.nonces[call.from];
                self.nonces[call.from] += 1;
                (call, nonce)
            })
            .collect();
        let senders = &self.senders;
        let transactions = numbered
            .into_par_iter()
            .map(|(call, nonce)| senders[call.from].transaction(call, nonce, base_fee))
            .collect();

        let builder = BlockBuilder {
            spec: &self.spec,
            store: &self.store,
            codes: &self.codes,
            hashes: &(),
            code_cache: &self.code_cache,
        };
        let parent = BuildParent {
            header: &self.head,
            total_difficulty: U256::ZERO,
            state: self.pending.last().map_or(At::Tip, At::Proposal),
        };
        let built = builder.build(parent, self.attributes(number), transactions, from)?;
        self.head = built.block.clone_sealed_header();
        self.codes.extend(built.outcome.codes.iter().cloned());
        self.pending.push(built.proposal.clone());
        let rows: usize = self.pending.iter().map(Proposal::rows).sum();
        if self.pending.len() >= BATCH_BLOCKS || rows >= BATCH_ROWS {
            self.commit()?;
        }
        Ok(built)
    }

    /// Where the contracts are, or will be.
    #[cfg(test)]
    pub(crate) const fn contracts(&self) -> &super::plan::Contracts {
        self.planner.contracts()
    }

    /// The state of the head.
    #[cfg(test)]
    pub(crate) fn state(&self) -> Result<retrie_state::StateView, retrie_state::StateError> {
        self.store.reader(self.pending.last().map_or(At::Tip, At::Proposal))
    }

    fn attributes(&self, number: u64) -> BlockAttributes {
        let seed = self.recipe.seed;
        let withdrawal = |index| Withdrawal {
            index,
            validator_index: index % 1024,
            address: receiver(seed, index % self.recipe.accounts),
            amount: 18_000_000 + index % 1_000_000,
        };
        let first = (number - 1) * WITHDRAWALS;
        BlockAttributes {
            timestamp: self.head.timestamp + SLOT,
            beneficiary: Address::from_slice(&derive(seed, "proposer", number % 32)[12..]),
            gas_limit: GAS_LIMIT,
            prev_randao: derive(seed, "randao", number),
            parent_beacon_block_root: derive(seed, "beacon block", number),
            withdrawals: (first..first + WITHDRAWALS).map(withdrawal).collect(),
            ..Default::default()
        }
    }

    fn commit(&mut self) -> Result<(), PipelineError> {
        let mut txn = self.kv.begin_write()?;
        let after = self.store.commit(&self.pending, &mut *txn)?;
        txn.commit()?;
        after.run()?;
        self.pending.clear();
        Ok(())
    }
}

/// Above the gas limit of any call of the mix.
const MAX_CALL_GAS: u64 = 400_000;

/// Mean gas of a transaction of the mix, for the first block of it.
fn typical_gas(recipe: &Recipe) -> u64 {
    let mix = recipe.mix;
    let parts = [(mix.transfers, 21_000), (mix.erc20, 40_000), (mix.swaps, 75_000)];
    parts.iter().map(|(share, gas)| u64::from(*share) * gas).sum::<u64>() / mix.sum()
}
