//! [`ParticipantInspector`]: which accounts a transaction's calls concern.

use crate::InspectorContext;
use alloy_primitives::{Address, U256};
use revm::{
    inspector::Inspector,
    interpreter::{CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome},
};
use std::collections::BTreeSet;

/// Records who calls whom in one transaction, the outermost call included. Failed calls count, as they
/// were executed; the contracts of failed creations do not.
///
/// Its memory is bounded by the transaction's gas: every account costs a call.
#[derive(Clone, Debug, Default)]
pub struct ParticipantInspector {
    accounts: BTreeSet<Address>,
    created: Vec<(Address, Address)>,
    /// Number of creations before each open frame.
    open: Vec<usize>,
}

impl ParticipantInspector {
    /// Senders and recipients of all calls, created contracts, and beneficiaries of SELFDESTRUCT.
    pub const fn accounts(&self) -> &BTreeSet<Address> {
        &self.accounts
    }

    /// The contracts that stay created, each with its creator, in the order of their completion. One
    /// that destroys itself in the same transaction is among them.
    pub fn created(&self) -> &[(Address, Address)] {
        &self.created
    }

    /// Ends the innermost frame. What a failed one has created is gone.
    fn end_frame(&mut self, is_ok: bool) {
        let before = self.open.pop().unwrap_or_default();
        if !is_ok {
            self.created.truncate(before);
        }
    }
}

impl<'a> Inspector<InspectorContext<'a>> for ParticipantInspector {
    fn call(
        &mut self,
        _: &mut InspectorContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        self.open.push(self.created.len());
        let CallInputs { caller, target_address, bytecode_address, .. } = *inputs;
        let (from, to) = match inputs.scheme {
            CallScheme::Call | CallScheme::StaticCall => (caller, target_address),
            CallScheme::CallCode => (caller, bytecode_address),
            CallScheme::DelegateCall => (target_address, bytecode_address),
        };
        self.accounts.extend([from, to]);
        None
    }

    fn call_end(
        &mut self,
        _: &mut InspectorContext<'a>,
        _: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        self.end_frame(outcome.result.result.is_ok());
    }

    fn create(
        &mut self,
        _: &mut InspectorContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        self.open.push(self.created.len());
        self.accounts.insert(inputs.caller());
        None
    }

    fn create_end(
        &mut self,
        _: &mut InspectorContext<'a>,
        inputs: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        let is_ok = outcome.result.result.is_ok();
        self.end_frame(is_ok);
        if let Some(contract) = outcome.address.filter(|_| is_ok) {
            self.accounts.insert(contract);
            self.created.push((contract, inputs.caller()));
        }
    }

    fn selfdestruct(&mut self, contract: Address, beneficiary: Address, _: U256) {
        self.accounts.extend([contract, beneficiary]);
    }
}
