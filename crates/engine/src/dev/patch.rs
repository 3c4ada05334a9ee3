//! What a dev chain's user changes of the state.

use crate::LiveChain;
use alloy_primitives::Address;
use retrie_execution::{AccountOverride, Simulation};
use retrie_pipeline::{PipelineError, StatePatch};
use retrie_state::StoreError;
use std::{collections::BTreeMap, sync::Arc};

/// Changes of the head's state since it became the head.
#[derive(Clone, Debug, Default)]
pub(super) struct Patch {
    accounts: BTreeMap<Address, AccountOverride>,
}

impl Patch {
    /// Changes an account once more.
    pub(super) fn set(&mut self, address: Address, changed: AccountOverride) {
        let account = self.accounts.entry(address).or_default();
        let AccountOverride { balance, nonce, code, clears_storage, slots } = changed;
        account.balance = balance.or(account.balance);
        account.nonce = nonce.or(account.nonce);
        account.code = code.or_else(|| account.code.take());
        if clears_storage {
            account.clears_storage = true;
            account.slots.clear();
        }
        for (slot, value) in slots {
            account.slots.retain(|(known, _)| *known != slot);
            account.slots.push((slot, value));
        }
    }

    /// The delta that these changes are on the head's state; `None` if there are none. The head must
    /// have no patch.
    pub(super) fn make(&self, live: &LiveChain) -> Result<Option<StatePatch>, PipelineError> {
        if self.accounts.is_empty() {
            return Ok(None);
        }
        let view = live.view()?;
        let head = view.head();
        let state = view.state(&head.hash())?;
        let failed = |error: &dyn std::fmt::Display| {
            PipelineError::from(StoreError::new(
                "changing the state of the head",
                error.to_string(),
            ))
        };
        let mut simulation = Simulation::new(live.spec(), head, state.input());
        for (address, changed) in &self.accounts {
            let changed = simulation.override_account(*address, changed.clone());
            changed.map_err(|error| failed(&error))?;
        }
        let (delta, codes) = simulation.changes().map_err(|error| failed(&error))?;
        Ok(Some(StatePatch { delta: Arc::new(delta), codes }))
    }
}
