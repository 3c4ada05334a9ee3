//! Generates the blocks of a chain, one after the other. Their states lie in a store of their own.

use super::{
    BlockFill, ChainFork, ChainRecipe, GenesisBase, MakeChainError,
    genesis::genesis_json,
    plan::{DeployPlanner, PlannedCall, receiver},
    preloaded::PreloadPlanner,
    recipe::{GAS_TARGET, MAX_CALL_GAS, MOST_TRANSFERS},
    sign::ChainSender,
};
use crate::random::derive;
use alloy_primitives::{Address, B256, Bytes, U256, map::HashMap};
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{RecoveredBlock, SealedHeader, Withdrawal},
};
use retrie_db::{DatabaseEnv, OpenOptions, SyncMode};
use retrie_execution::CodeCache;
use retrie_pipeline::{
    BlockAttributes, BlockBuilder, BuildParent, ChainSetupError, ExecutedBlock, InvalidBlockError,
    PipelineError, ProposalSet, StoreSet, StoreSetId, genesis_delta,
};
use retrie_state::{AnyBackend, BlockRef, StoreError};
use retrie_state_store::{KvStore, StateStore, StoreOptions};
use std::{
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tempfile::TempDir;

/// Number of senders without a preload.
const SENDERS: u64 = 256;
/// Seconds between two blocks.
const SLOT: u64 = 12;
/// Withdrawals in each block.
const WITHDRAWALS: u64 = 4;
/// Pending states are committed when there are this many blocks ...
const BATCH_BLOCKS: usize = 128;
/// ... or this many rows. That bounds the memory for a chain of any length.
const BATCH_ROWS: usize = 200_000;

/// Generates blocks. The same recipe gives the same blocks: nothing depends on time, threads or the
/// order of a hash map.
pub struct ChainMaker {
    recipe: ChainRecipe,
    genesis: GenesisSource,
    spec: Arc<ChainSpec>,
    senders: Vec<ChainSender>,
    nonces: Vec<u64>,
    plan: CallPlanner,
    /// Mean gas of a transaction of the mix in the previous block.
    mean_gas: u64,
    head: SealedHeader,
    /// States that are not committed yet, oldest first.
    pending: Vec<ProposalSet>,
    /// Number of the current side branch, from 1 on; 0 for the chain itself.
    branch: u64,
    /// Number of side branches so far.
    branches: u64,
    codes: HashMap<B256, Bytes>,
    code_cache: CodeCache,
    reverted: u64,
    /// RLP of the access list of the latest block, from Amsterdam on.
    access_list: Option<Bytes>,
    // In the order in which they are closed.
    states: StoreSet,
    kv: Arc<dyn KvStore>,
    /// `None` if the caller owns the folder.
    _folder: Option<TempDir>,
}

/// Source of the genesis file.
enum GenesisSource {
    Json(String),
    Base(GenesisBase),
}

/// Chooses the calls of a block.
#[derive(Clone)]
enum CallPlanner {
    FromNothing(Box<DeployPlanner>),
    Preloaded(Box<PreloadPlanner>),
}

impl std::fmt::Debug for ChainMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainMaker").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}

impl ChainMaker {
    /// Starts a chain with genesis alone. `backend` keeps its states in a temporary folder; its
    /// roots go into the headers.
    ///
    /// # Errors
    /// [`MakeChainError::Recipe`]; [`ChainSetupError::NoHeaderRoot`] if the backend's roots are not
    /// Ethereum's; errors of the store.
    pub fn new(recipe: ChainRecipe, backend: Arc<dyn AnyBackend>) -> Result<Self, MakeChainError> {
        Self::start(recipe, backend, &AtomicBool::new(false), &mut |_, _| {})
    }

    /// Like [`new`](Self::new), with progress and stop: loading millions of preloaded entries takes
    /// minutes. `progress` is called with the number of loaded entries and their total.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`MakeChainError::Stopped`] once `stop` is set.
    pub fn start(
        recipe: ChainRecipe,
        backend: Arc<dyn AnyBackend>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, MakeChainError> {
        let folder = tempfile::Builder::new().prefix("retrie-make-chain-").tempdir();
        let folder = folder.map_err(|source| MakeChainError::Io {
            action: "creating a temporary folder (set TMPDIR to choose where)".into(),
            source,
        })?;
        let mut maker = Self::start_in(folder.path(), recipe, backend, stop, progress)?;
        maker._folder = Some(folder);
        Ok(maker)
    }

    /// Like [`start`](Self::start), with the states in `folder`, which is empty. The caller removes
    /// the folder.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_in(
        folder: &Path,
        recipe: ChainRecipe,
        backend: Arc<dyn AnyBackend>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, MakeChainError> {
        recipe.check()?;
        if !backend.profile().ethereum_root {
            let backend = backend.identity().name;
            return Err(PipelineError::from(ChainSetupError::NoHeaderRoot { backend }).into());
        }
        let senders = recipe.preload.as_ref().map_or(SENDERS, |preload| preload.senders);
        let senders: Vec<_> =
            (0..senders).into_par_iter().map(|n| ChainSender::new(recipe.seed, n)).collect();
        let addresses: Vec<_> = senders.iter().map(|sender| sender.address).collect();
        let (plan, genesis) = match &recipe.preload {
            None => {
                let json = genesis_json(&recipe, &senders);
                let planner = DeployPlanner::new(recipe.clone(), addresses);
                (CallPlanner::FromNothing(planner.into()), GenesisSource::Json(json))
            }
            Some(preload) => {
                let base = GenesisBase::new(recipe.clone(), preload.clone(), addresses.clone());
                let plan = PreloadPlanner::new(&recipe, preload, addresses);
                (CallPlanner::Preloaded(plan.into()), GenesisSource::Base(base))
            }
        };
        let spec = match &genesis {
            GenesisSource::Json(json) => ChainSpec::from_genesis_json(json).expect("of our own"),
            GenesisSource::Base(base) => base.spec(),
        };

        let options = OpenOptions {
            // The store is temporary.
            sync: SyncMode::NoSync,
            state_tables: StateStore::tables(&*backend),
            ..OpenOptions::default()
        };
        let db = DatabaseEnv::create(folder, &options).map_err(PipelineError::from)?;
        let kv = db.state_store();
        let files = folder.join("state");
        let options = StoreOptions { retention: 0, dir: Some(files), ..StoreOptions::default() };
        let store = StateStore::open(backend, kv.clone(), options).map_err(PipelineError::from)?;
        let states = StoreSet::single(store);

        let (delta, codes) = genesis_delta(&spec);
        let mut pending = Vec::new();
        let spec = match &genesis {
            GenesisSource::Base(base) => {
                let root = load(states.own(), &db, base, &codes, stop, progress)?;
                spec.with_genesis_state_root(root)
            }
            GenesisSource::Json(_) => {
                let (genesis, _) = states
                    .begin(StoreSetId::Tip)
                    .and_then(|session| session.finish_as(0, &delta))
                    .map_err(PipelineError::from)?;
                states.seal(&genesis, spec.genesis_hash());
                pending.push(genesis);
                spec
            }
        };
        Ok(Self {
            mean_gas: typical_gas(&recipe),
            nonces: vec![0; senders.len()],
            plan,
            senders,
            recipe,
            genesis,
            head: spec.genesis_header().clone(),
            spec: Arc::new(spec),
            pending,
            branch: 0,
            branches: 0,
            codes: codes.into_iter().collect(),
            code_cache: CodeCache::default(),
            reverted: 0,
            access_list: None,
            states,
            kv,
            _folder: None,
        })
    }

    /// Writes the genesis file.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_genesis(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.genesis {
            GenesisSource::Json(json) => out.write_all(json.as_bytes()),
            GenesisSource::Base(base) => base.write_genesis(out),
        }
    }

    /// The chain specification.
    pub const fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    /// Header of the latest block, or of genesis.
    pub const fn head(&self) -> &SealedHeader {
        &self.head
    }

    /// RLP of the access list (EIP-7928) of the latest block; `None` before Amsterdam.
    pub const fn access_list(&self) -> Option<&Bytes> {
        self.access_list.as_ref()
    }

    /// Number of transactions planned to revert, and number of transactions that did revert.
    pub const fn reverts(&self) -> (u64, u64) {
        let planned = match &self.plan {
            CallPlanner::FromNothing(planner) => planner.reverts(),
            CallPlanner::Preloaded(_) => 0,
        };
        (planned, self.reverted)
    }

    /// Generates the next block.
    ///
    /// # Errors
    /// Errors of execution and store; only a full disk is expected. [`MakeChainError::Reverted`] on
    /// a preload, if a contract's code differs from the expected one.
    pub fn next_block(&mut self) -> Result<RecoveredBlock, MakeChainError> {
        let mut calls = match &mut self.plan {
            CallPlanner::FromNothing(planner) => planner.next_setup(GAS_TARGET),
            CallPlanner::Preloaded(_) => Vec::new(),
        };
        let is_mixed = calls.is_empty();
        if is_mixed {
            calls = self.mix();
        }
        let built = self.build(calls)?;
        if is_mixed {
            let block = built.block();
            let transactions = block.body().transactions.len() as u64;
            self.mean_gas = (block.header().gas_used / transactions).max(21_000);
        }
        let failed = built.receipts().iter().filter(|receipt| !receipt.success);
        let count = failed.count() as u64;
        if count > 0 && matches!(self.plan, CallPlanner::Preloaded(_)) {
            return Err(MakeChainError::Reverted { number: self.head.number, count });
        }
        self.reverted += count;
        Ok(Arc::unwrap_or_clone(built.data.block))
    }

    /// Generates a branch of `blocks` blocks on the head, with other transactions than the chain
    /// continues with, and returns to the head. The chain is the same with and without side
    /// branches.
    ///
    /// # Errors
    /// As [`next_block`](Self::next_block).
    pub(crate) fn side_branch(
        &mut self,
        blocks: u64,
    ) -> Result<Vec<RecoveredBlock>, MakeChainError> {
        self.branches += 1;
        self.branch = self.branches;
        let seed = derive(self.recipe.seed, "side branch", self.branch);
        let seed = seed.first_chunk().map_or(0, |seed| u64::from_be_bytes(*seed));
        let (head, plan, nonces) = (self.head.clone(), self.plan.clone(), self.nonces.clone());
        let (mean_gas, reverted, pending) = (self.mean_gas, self.reverted, self.pending.len());
        match &mut self.plan {
            CallPlanner::FromNothing(planner) => planner.reseed(seed),
            CallPlanner::Preloaded(plan) => plan.reseed(seed),
        }
        let made = (0..blocks).map(|_| self.next_block()).collect();
        (self.head, self.plan, self.nonces) = (head, plan, nonces);
        (self.mean_gas, self.reverted, self.branch) = (mean_gas, reverted, 0);
        self.pending.truncate(pending);
        made
    }

    /// The calls of the mix for the next block.
    fn mix(&mut self) -> Vec<PlannedCall> {
        let by_gas = |target: u64| (target / self.mean_gas).max(1);
        let limit = self.recipe.gas_limit();
        // With a number of transactions, the sum of gas limits stays within the block's limit, so
        // every call fits. With a gas target, the sum may reach twice the block's limit, because
        // the calls use less than their limits.
        let (wanted, most) = match self.recipe.fill {
            BlockFill::Transactions(count) if count > MOST_TRANSFERS => (count, limit),
            BlockFill::Transactions(count) => (count.min(by_gas(GAS_TARGET)), limit),
            BlockFill::Gas(target) => (by_gas(target), 2 * limit),
        };
        let mut calls = Vec::new();
        let mut gas = 0;
        while (calls.len() as u64) < wanted && gas + MAX_CALL_GAS <= most {
            let call = match &mut self.plan {
                CallPlanner::FromNothing(planner) => planner.next(),
                CallPlanner::Preloaded(plan) => plan.next(),
            };
            gas += call.gas_limit;
            calls.push(call);
        }
        calls
    }

    /// Builds the block of `calls` on the head. The block becomes the head.
    pub(crate) fn build(
        &mut self,
        calls: Vec<PlannedCall>,
    ) -> Result<ExecutedBlock, MakeChainError> {
        let number = self.head.number + 1;
        let invalid = |source| PipelineError::from(InvalidBlockError::rule(&self.head, source));
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
            states: &self.states,
            codes: &self.codes,
            hashes: &(),
            code_cache: &self.code_cache,
        };
        let parent = BuildParent {
            header: &self.head,
            total_difficulty: U256::ZERO,
            states: self.pending.last().map_or(StoreSetId::Tip, StoreSetId::Proposals),
        };
        let built = builder.build(parent, self.attributes(number), transactions, from)?;
        self.head = built.block().clone_sealed_header();
        self.access_list = built.access_list.as_ref().map(|list| alloy_rlp::encode(list).into());
        self.codes.extend(built.codes.iter().cloned());
        self.pending.push(built.states.clone());
        let rows: usize = self.pending.iter().map(ProposalSet::rows).sum();
        let is_full = self.pending.len() >= BATCH_BLOCKS || rows >= BATCH_ROWS;
        if is_full && self.branch == 0 {
            self.commit()?;
        }
        Ok(built)
    }

    /// Addresses of the contracts.
    #[cfg(test)]
    pub(crate) fn contracts(&self) -> &super::plan::ContractAddresses {
        match &self.plan {
            CallPlanner::FromNothing(planner) => planner.contracts(),
            CallPlanner::Preloaded(_) => panic!("a preload has contracts of its own"),
        }
    }

    /// The state of the head.
    #[cfg(test)]
    pub(crate) fn state(
        &self,
    ) -> Result<retrie_state_store::StateProvider, retrie_state::StateError> {
        self.states.own().at(self.pending.last().map_or(retrie_state_store::StateId::Tip, |of| {
            retrie_state_store::StateId::Proposal(&of.own)
        }))
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
            gas_limit: self.recipe.gas_limit(),
            // So a block of another branch has another hash, even with the same transactions.
            prev_randao: derive(seed, "randao", number ^ self.branch << 32),
            parent_beacon_block_root: derive(seed, "beacon block", number),
            withdrawals: (first..first + WITHDRAWALS).map(withdrawal).collect(),
            slot_number: (self.recipe.fork == ChainFork::Amsterdam).then_some(number),
            ..Default::default()
        }
    }

    fn commit(&mut self) -> Result<(), PipelineError> {
        let mut txn = self.kv.begin_write()?;
        let proposals: Vec<_> = self.pending.iter().map(|of| of.own.clone()).collect();
        let after = self.states.own().commit(&proposals, &mut *txn)?;
        txn.commit()?;
        after.run()?;
        self.pending.clear();
        Ok(())
    }
}

/// Bulk-loads the entries of `base`, with the codes of its contracts, and returns the root.
fn load(
    store: &StateStore,
    db: &DatabaseEnv,
    base: &GenesisBase,
    codes: &[(B256, Bytes)],
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<B256, MakeChainError> {
    let entries = base.entries();
    let total = entries.len() as u64;
    let mut entries = entries.into_iter().zip(0..).map(|(entry, done): (_, u64)| {
        if done.is_multiple_of(4096) {
            progress(done, total);
            if stop.load(Ordering::Relaxed) {
                return Err(StoreError::new("loading", io::Error::other("stopped")).into());
            }
        }
        Ok(entry)
    });
    let mut load = || -> Result<B256, PipelineError> {
        let mut txn = db.begin_write()?;
        // Before the state, as a backend may need them.
        for (hash, code) in codes {
            txn.insert_code(hash, code)?;
        }
        // No block refers to the hash: genesis is the tip.
        let (root, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut txn)?;
        txn.commit()?;
        after.run()?;
        Ok(root)
    };
    let loaded = load();
    match stop.load(Ordering::Relaxed) {
        true => Err(MakeChainError::Stopped { number: 0 }),
        false => Ok(loaded?),
    }
}

/// Estimated mean gas of a transaction of the mix, for the first block of the mix.
fn typical_gas(recipe: &ChainRecipe) -> u64 {
    let mix = recipe.mix;
    let parts = [
        (mix.transfers, 21_000),
        (mix.erc20, 40_000),
        (mix.swaps, 75_000),
        (mix.smallbank, 40_000),
        (mix.kvstore, 40_000),
    ];
    let mean = parts.iter().map(|(share, gas)| u64::from(*share) * gas).sum::<u64>() / mix.sum();
    match recipe.fork {
        ChainFork::Prague => mean,
        // New state costs more (EIP-8037), so the first block is small.
        ChainFork::Amsterdam => 4 * mean,
    }
}
