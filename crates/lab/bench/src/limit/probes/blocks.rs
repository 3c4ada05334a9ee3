//! Blocks on a state in memory: execution, and recovery of senders.

use super::{
    super::{ExecutionCost, LimitError, UnitCost, error::ProbeErrorExt},
    ProbeInputs,
    rounds::RoundPlan,
};
use crate::chain::{
    BlockFill, ChainFork, ChainMaker, ChainRecipe, ContractSet, GenesisBase, GenesisPreload,
    KeyChoice, MakeChainError, TransactionMix,
};
use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_chainspec::{
    ChainSpec,
    primitives::{RecoveredBlock, Transaction},
};
use retrie_execution::{
    AccessRecorder, CodeCache, ExecutionInput, ExecutionOutcome, execute_block, load_trusted_setup,
};
use retrie_pipeline::{
    genesis_delta, recover_senders,
    replay::{BundleReplayOptions, bundle_effects},
};
use retrie_sources::Bundle;
use retrie_state::{StateError, StateKey, StateReader, StateValue};
use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Name of the mix of mainnet's blocks.
pub const MAINNET_MIX: &str = "mainnet";
/// Receivers of the made blocks, keys of the store, customers of a bank: few, so that no state
/// costs less.
const ACCOUNTS: u64 = 2_000;
const SENDERS: u64 = 500;

/// The name of a recipe's mix, with what the cost of its gas depends on.
pub fn mix_name(recipe: &ChainRecipe) -> String {
    let mut name = recipe.mix.to_string();
    if recipe.mix.kvstore > 0 {
        name = format!("{name}, {} % reads", recipe.keys.reads);
    }
    match recipe.preload.as_ref().filter(|_| recipe.mix.has_tokens()) {
        Some(preload) => format!("{name}, {} contracts", preload.contracts.name()),
        None => name,
    }
}

/// The recipes that are measured: those of all workloads, with each set of contracts.
pub(super) fn recipes(transactions: u64, contracts: &[Arc<ContractSet>]) -> Vec<ChainRecipe> {
    const NOTHING: TransactionMix = TransactionMix::NOTHING;
    let recipe = |mix, contracts: &Arc<ContractSet>| ChainRecipe {
        fork: ChainFork::Prague,
        seed: 1,
        fill: BlockFill::Transactions(transactions),
        mix,
        accounts: ACCOUNTS,
        keys: KeyChoice { reads: 50, inserts: 0, zipf: None },
        preload: Some(GenesisPreload {
            senders: SENDERS,
            contracts: contracts.clone(),
            empty_ledgers: false,
        }),
    };
    let own = Arc::new(ContractSet::own());
    let plain = [
        TransactionMix { transfers: 1, ..NOTHING },
        TransactionMix { smallbank: 1, ..NOTHING },
        TransactionMix { kvstore: 1, ..NOTHING },
    ];
    let tokens = [
        TransactionMix { erc20: 1, ..NOTHING },
        TransactionMix { swaps: 1, ..NOTHING },
        ChainRecipe::BUILT_IN.mix,
    ];
    let plain = plain.into_iter().map(|mix| recipe(mix, &own));
    let tokens = contracts.iter().flat_map(|set| tokens.map(|mix| recipe(mix, set)));
    plain.chain(tokens).collect()
}

/// A block, and all that its execution reads.
pub(super) struct MemoryBlock {
    spec: Arc<ChainSpec>,
    block: RecoveredBlock,
    state: MapState,
    codes: Arc<HashMap<B256, Bytes>>,
    hashes: HashMap<u64, B256>,
}

impl MemoryBlock {
    fn execute(&self, codes: &CodeCache) -> Result<ExecutionOutcome, LimitError> {
        let input = ExecutionInput::new(&self.state, &*self.codes, &self.hashes);
        execute_block(&self.spec, &self.block, input.with_code_cache(codes))
            .of_probe("executing a block")
    }

    fn transactions(&self) -> &[Transaction] {
        &self.block.body().transactions
    }
}

/// A state in a hash map.
#[derive(Default)]
struct MapState(HashMap<StateKey, StateValue>);

impl StateReader for MapState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        Ok(self.0.get(key).cloned())
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let slot = |(key, value): (&StateKey, &StateValue)| match key {
            StateKey::Slot(of, slot) if of == address => Some((*slot, value.clone())),
            _ => None,
        };
        let mut slots: Vec<_> = self.0.iter().filter_map(slot).collect();
        slots.sort_unstable_by_key(|(slot, _)| *slot);
        Ok(slots)
    }
}

/// The first blocks of a chain, each with the keys that it reads.
pub(super) fn made_blocks(
    recipe: &ChainRecipe,
    count: u64,
    inputs: &ProbeInputs<'_>,
) -> Result<Vec<MemoryBlock>, LimitError> {
    let folder = inputs.cache.scratch()?;
    let (backend, stop) = (inputs.root_maker.clone(), inputs.stop);
    let made = ChainMaker::start_in(folder.path(), recipe.clone(), backend, stop, &mut |_, _| {});
    let stopped = |error| match error {
        MakeChainError::Stopped { .. } => LimitError::Stopped,
        error => error.into(),
    };
    let mut maker = made.map_err(stopped)?;
    let spec = maker.spec().clone();
    let entries = GenesisBase::of(recipe)?.map(|base| base.entries()).unwrap_or_default();
    let mut state = MapState(entries.into_iter().collect());
    let codes: Arc<HashMap<_, _>> = Arc::new(genesis_delta(&spec).1.into_iter().collect());
    let (cache, mut blocks) = (CodeCache::default(), Vec::new());
    for _ in 0..count {
        if stop.load(Ordering::Relaxed) {
            return Err(LimitError::Stopped);
        }
        let block = maker.next_block()?;
        let recorder = AccessRecorder::new(&state);
        let input = ExecutionInput::new(&recorder, &*codes, &()).with_code_cache(&cache);
        let outcome = execute_block(&spec, &block, input).of_probe("executing a made block")?;
        let read = recorder.into_accesses().values.into_iter();
        let read = MapState(read.filter_map(|(key, value)| Some((key, value?))).collect());
        for change in outcome.delta.changes() {
            match &change.next {
                Some(value) => state.0.insert(change.key, value.clone()),
                None => state.0.remove(&change.key),
            };
        }
        let (spec, codes, hashes) = (spec.clone(), codes.clone(), HashMap::default());
        blocks.push(MemoryBlock { spec, block, state: read, codes, hashes });
    }
    Ok(blocks)
}

/// Real blocks, each with the state that its bundle lists.
pub(super) fn mainnet_blocks(bundles: &[Bundle]) -> Result<Vec<MemoryBlock>, LimitError> {
    load_trusted_setup();
    let options =
        BundleReplayOptions { spec: ChainSpec::mainnet(), witness_opener: None, witnesses: false };
    let block = |bundle: &Bundle| {
        let effects = bundle_effects(bundle, &options).of_probe("executing a real block")?;
        let block = recover_senders(&options.spec, bundle.block.clone());
        let block = block.of_probe("recovering the senders of a real block")?;
        let state = effects.pre.into_iter().filter_map(|(key, value)| Some((key, value?)));
        Ok(MemoryBlock {
            spec: options.spec.for_header(block.header()),
            block,
            state: MapState(state.collect()),
            codes: Arc::new(bundle.codes().into_iter().collect()),
            hashes: bundle.ancestor_hashes().into_iter().collect(),
        })
    };
    bundles.iter().map(block).collect()
}

/// The cost of a gas of these blocks. Each thread executes the blocks in turn, and whole.
pub(super) fn execution_costs(
    rounds: &RoundPlan<'_>,
    blocks: &[MemoryBlock],
) -> Result<ExecutionCost, LimitError> {
    let codes = CodeCache::default();
    // The first execution of a code analyses it.
    let mut gas = 0;
    for block in blocks {
        gas += block.execute(&codes)?.gas_used;
    }
    let all = |_| {
        for block in blocks {
            black_box(block.execute(&codes)?);
        }
        Ok(gas)
    };
    let transactions: usize = blocks.iter().map(|block| block.transactions().len()).sum();
    let gas_per_transaction = gas as f64 / transactions.max(1) as f64;
    Ok(ExecutionCost { gas: rounds.unit_cost(&all)?, gas_per_transaction })
}

/// The cost of the sender of a transaction of these blocks.
pub(super) fn sender_cost<'b>(
    rounds: &RoundPlan<'_>,
    blocks: impl Iterator<Item = &'b MemoryBlock>,
) -> Result<UnitCost, LimitError> {
    let transactions: Vec<_> = blocks.flat_map(MemoryBlock::transactions).collect();
    let next = AtomicUsize::new(0);
    rounds.unit_cost(&|_| {
        let at = next.fetch_add(1, Ordering::Relaxed) % transactions.len().max(1);
        let Some(transaction) = transactions.get(at) else { return Ok(0) };
        let sender = transaction.recover_signer_unchecked();
        black_box(sender.of_probe("recovering a sender")?);
        Ok(1)
    })
}
