//! What the block of a bundle reads and writes; needs no store.

use super::bundle::{BundleContext, BundleReplayOptions, flatten};
use crate::{
    BundleError, InvalidBlockError, PipelineError, RootMismatch, outcome::validate_outcome,
    recover::recover_senders,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_execution::{
    AccessRecorder, ExecutionInput, ExecutionOutcome, execute_block, execute_block_with_observer,
    load_trusted_setup,
};
use retrie_sources::{Bundle, BundleKind};
use retrie_state::{PartialTree, StateDelta, StateError, StateKey, StateReader, StateValue};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// The reads and writes of a block.
#[derive(Clone, Debug, Default)]
pub struct BundleEffects {
    /// The keys that the block touches, with their values before it: the bundle's `pre`, or the
    /// keys that the block reads. `None` is an absent key. Includes every written key, and the
    /// account of every slot.
    pub pre: BTreeMap<StateKey, Option<StateValue>>,
    /// The writes, with rewards, withdrawals and system calls.
    pub delta: StateDelta,
}

/// Executes the block of a bundle on the state that the bundle lists, or on its witness.
///
/// # Errors
/// If it cannot be executed. The error names file and block.
pub fn bundle_effects(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
) -> Result<BundleEffects, PipelineError> {
    load_trusted_setup();
    effects(bundle, options).map_err(|error| error.in_bundle(bundle))
}

pub(super) fn effects(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
) -> Result<BundleEffects, PipelineError> {
    let (mut pre, delta) = match (bundle.pre(), &bundle.kind) {
        (Some(pre), _) => {
            let state = ListedState(flatten(pre));
            let delta = execute(bundle, options, &state)?.1.delta;
            (state.0, delta)
        }
        (None, BundleKind::Witness(witness)) => {
            let opener = options.witness_opener.ok_or(BundleError::MissingPreState)?;
            let tree = opener.open_witness(witness.pre_state_root, &witness.state)?;
            let recorder = AccessRecorder::new(&*tree);
            let delta = execute(bundle, options, &recorder)?.1.delta;
            let mut pre = recorder.into_accesses().values;
            // A slot needs its account.
            let slots = pre.keys().chain(delta.changes().iter().map(|change| &change.key));
            let addresses: Vec<_> = slots.map(|key| *key.address()).collect();
            for address in addresses {
                let key = StateKey::Account(address);
                if let Entry::Vacant(missing) = pre.entry(key) {
                    missing.insert(tree.get(&key)?);
                }
            }
            (pre, delta)
        }
        (None, BundleKind::Prestate(_)) => return Err(BundleError::MissingPreState.into()),
    };
    // The delta has the previous values of keys that are written but not read.
    for change in delta.changes() {
        pre.entry(change.key).or_insert_with(|| change.previous.clone());
    }
    Ok(BundleEffects { pre, delta })
}

/// The block of a bundle, and the outcome of its execution.
#[derive(Clone, Debug)]
pub struct ExecutedBundle {
    /// The block with the senders of its transactions. It has no ommers if the bundle has none.
    pub block: RecoveredBlock,
    /// Receipts, changes and the rest.
    pub outcome: ExecutionOutcome,
    /// The state root after each transaction, which receipts before Byzantium hold. Only for
    /// witness bundles.
    pub roots: Option<Vec<B256>>,
}

/// Executes the block of a bundle on its witness, or on the state that the bundle lists. Checks the
/// outcome against the header: gas, receipts, bloom and requests, and for a witness the state root.
///
/// # Errors
/// If the block cannot be executed, or the outcome differs from the header. The error names file
/// and block.
pub fn execute_bundle(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
) -> Result<ExecutedBundle, PipelineError> {
    let executed = match (&bundle.kind, options.witness_opener, bundle.pre()) {
        (BundleKind::Witness(witness), Some(opener), _) => opener
            .open_witness(witness.pre_state_root, &witness.state)
            .map_err(PipelineError::from)
            .and_then(|tree| on_witness(bundle, options, tree, witness.post_state_root)),
        (_, _, Some(pre)) => {
            execute(bundle, options, &ListedState(flatten(pre))).and_then(|(block, outcome)| {
                checked(options, ExecutedBundle { block, outcome, roots: None })
            })
        }
        (_, _, None) => Err(BundleError::MissingPreState.into()),
    };
    executed.map_err(|error| error.in_bundle(bundle))
}

fn on_witness(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
    tree: Arc<dyn PartialTree>,
    post_state_root: B256,
) -> Result<ExecutedBundle, PipelineError> {
    let surroundings = BundleContext::of(bundle);
    let block = recover_senders(&options.spec, bundle.block.clone())?;
    let number = block.header().number;
    let spec = options.spec.for_header(block.header());
    let input = ExecutionInput::new(&*tree, &surroundings.codes, &surroundings.hashes);
    let (outcome, roots) = if spec.is_byzantium_active_at_block(number) {
        (execute_block(&spec, &block, input)?, None)
    } else {
        let (mut after, mut roots) = (tree.clone(), Vec::new());
        let outcome = execute_block_with_observer(&spec, &block, input, &mut |_, delta| {
            after = after.apply(&delta)?;
            roots.push(after.root());
            Ok(())
        })?;
        (outcome, Some(roots))
    };
    let root = tree.apply(&outcome.delta)?.root();
    if root != post_state_root {
        let mismatch = RootMismatch { expected: post_state_root, got: root, backend: "witness" };
        return Err(InvalidBlockError::StateRoot {
            number,
            hash: bundle.hash,
            source: Box::new(mismatch),
        }
        .into());
    }
    checked(options, ExecutedBundle { block, outcome, roots })
}

/// Returns the execution if its outcome matches the header.
fn checked(
    options: &BundleReplayOptions<'_>,
    executed: ExecutedBundle,
) -> Result<ExecutedBundle, PipelineError> {
    let ExecutedBundle { block, outcome, roots } = &executed;
    let spec = options.spec.for_header(block.header());
    validate_outcome(&spec, block.sealed_block(), outcome, roots.as_deref())
        .map_err(|error| InvalidBlockError::rule(block.sealed_header(), error))?;
    Ok(executed)
}

/// Executes the block of a bundle on `state`, without any check against its header.
fn execute(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
    state: &dyn StateReader,
) -> Result<(RecoveredBlock, ExecutionOutcome), PipelineError> {
    let surroundings = BundleContext::of(bundle);
    let block = recover_senders(&options.spec, bundle.block.clone())?;
    let spec = options.spec.for_header(block.header());
    let input = ExecutionInput::new(state, &surroundings.codes, &surroundings.hashes);
    let outcome = execute_block(&spec, &block, input)?;
    Ok((block, outcome))
}

/// A state with the listed keys; all other keys are absent.
struct ListedState(BTreeMap<StateKey, Option<StateValue>>);

impl StateReader for ListedState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        Ok(self.0.get(key).cloned().flatten())
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let all = StateKey::Slot(*address, B256::ZERO)
            ..=StateKey::Slot(*address, B256::repeat_byte(0xff));
        let slot = |(key, value): (&StateKey, &Option<StateValue>)| match key {
            StateKey::Slot(_, slot) => Some((*slot, value.clone()?)),
            StateKey::Account(_) => None,
        };
        Ok(self.0.range(all).filter_map(slot).collect())
    }
}
