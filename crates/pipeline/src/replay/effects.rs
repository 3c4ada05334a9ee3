//! What the block of a bundle reads and writes, without a store.

use super::bundle::{BundleReplayOptions, Surroundings, flatten};
use crate::{PipelineError, recover::recover_senders};
use alloy_primitives::{Address, B256};
use retrie_execution::{AccessRecorder, ExecutionInput, execute_block, load_trusted_setup};
use retrie_sources::{Bundle, BundleKind};
use retrie_state::{StateDelta, StateError, StateKey, StateReader, Value};
use std::collections::{BTreeMap, btree_map::Entry};

/// What a block reads and writes.
#[derive(Clone, Debug, Default)]
pub struct BundleEffects {
    /// The keys it touches, with their values before it: those of the bundle's `pre`, or what the
    /// block reads. `None` is an absent key. Every written key is among them, and the account of
    /// every slot.
    pub pre: BTreeMap<StateKey, Option<Value>>,
    /// What it writes, rewards, withdrawals and system calls included.
    pub delta: StateDelta,
}

/// Executes the block of a bundle on the state that the bundle lists, or on its witness.
///
/// # Errors
/// When it cannot be executed, naming file and block.
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
            let state = Listed(flatten(pre));
            let delta = execute(bundle, options, &state)?;
            (state.0, delta)
        }
        (None, BundleKind::Witness(witness)) => {
            let opener = options.witness_opener.ok_or(PipelineError::MissingPreState)?;
            let tree = opener.open_witness(witness.pre_state_root, &witness.state)?;
            let recorder = AccessRecorder::new(&*tree);
            let delta = execute(bundle, options, &recorder)?;
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
        (None, BundleKind::Prestate(_)) => return Err(PipelineError::MissingPreState),
    };
    // What is written unread has its previous value in the delta.
    for change in delta.changes() {
        pre.entry(change.key).or_insert_with(|| change.previous.clone());
    }
    Ok(BundleEffects { pre, delta })
}

fn execute(
    bundle: &Bundle,
    options: &BundleReplayOptions<'_>,
    state: &dyn StateReader,
) -> Result<StateDelta, PipelineError> {
    let surroundings = Surroundings::of(bundle);
    let block = recover_senders(&options.spec, bundle.block.clone())?;
    let spec = options.spec.for_header(block.header());
    let input = ExecutionInput::new(state, &surroundings.codes, &surroundings.hashes);
    Ok(execute_block(&spec, &block, input)?.delta)
}

/// A state of which some keys are listed; all others are absent.
struct Listed(BTreeMap<StateKey, Option<Value>>);

impl StateReader for Listed {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        Ok(self.0.get(key).cloned().flatten())
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        let all = StateKey::Slot(*address, B256::ZERO)
            ..=StateKey::Slot(*address, B256::repeat_byte(0xff));
        let slot = |(key, value): (&StateKey, &Option<Value>)| match key {
            StateKey::Slot(_, slot) => Some((*slot, value.clone()?)),
            StateKey::Account(_) => None,
        };
        Ok(self.0.range(all).filter_map(slot).collect())
    }
}
