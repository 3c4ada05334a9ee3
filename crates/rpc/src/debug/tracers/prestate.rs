//! `prestateTracer`: the accounts that a transaction accesses, as they were before it, or the
//! changes that it makes to them.

use super::{
    FrameStart, OpcodeStep, TraceJson, TracerHooks, TracerNeeds, TransactionEnd,
    authorizations::authorities,
    events::json,
    state::{CurrentState, delegation},
};
use crate::{RpcError, RpcResult, geth_errors::TransactFailure};
use alloy_primitives::{
    Address, B256, Bytes, KECCAK256_EMPTY, TxKind, U256, keccak256,
    map::{HashMap, HashSet},
};
use retrie_execution::EvmSimulation;
use revm::{
    DatabaseRef,
    bytecode::opcode,
    primitives::hardfork::SpecId,
    state::{AccountInfo, EvmState},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Configuration in the request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PrestateConfig {
    diff_mode: Option<bool>,
    disable_code: Option<bool>,
    disable_storage: Option<bool>,
    include_empty: Option<bool>,
}

#[derive(Default)]
pub(super) struct PrestateTracer {
    is_diff: bool,
    has_code: bool,
    has_storage: bool,
    has_empty: bool,
    spec: SpecId,
    /// Accessed accounts and slots.
    seen: HashMap<Address, BTreeSet<U256>>,
    /// Contracts that the transaction creates or tries to create.
    created: HashSet<Address>,
    /// Contracts that are deleted at the end of the transaction.
    deleted: HashSet<Address>,
}

impl PrestateTracer {
    pub(super) fn new(config: PrestateConfig) -> RpcResult<Self> {
        let is_diff = config.diff_mode.unwrap_or_default();
        let has_empty = config.include_empty.unwrap_or_default();
        if is_diff && has_empty {
            let refused = "cannot use diffMode with includeEmpty";
            return Err(RpcError::Rejected(refused.into()));
        }
        Ok(Self {
            is_diff,
            has_empty,
            has_code: !config.disable_code.unwrap_or_default(),
            has_storage: !config.disable_storage.unwrap_or_default(),
            ..Self::default()
        })
    }

    fn look_at(&mut self, address: Address) {
        self.seen.entry(address).or_default();
    }

    /// Records the account, and the account that its code delegates to (EIP-7702).
    fn look_at_called(&mut self, address: Address, state: &mut dyn CurrentState) {
        self.look_at(address);
        if self.spec.is_enabled_in(SpecId::PRAGUE)
            && let Some(target) = state.delegation(address)
        {
            self.look_at(target);
        }
    }

    fn look_at_created(&mut self, address: Address) {
        self.look_at(address);
        self.created.insert(address);
    }
}

impl TracerHooks for PrestateTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds { steps: true, ..TracerNeeds::default() }
    }

    fn on_start(&mut self, spec: SpecId) {
        self.spec = spec;
    }

    fn on_enter(&mut self, entry: &FrameStart) {
        // The transaction's other accounts are added at its end.
        if entry.depth == 0 && matches!(entry.kind, opcode::CREATE | opcode::CREATE2) {
            self.look_at_created(entry.to);
        }
    }

    fn on_step(&mut self, step: &OpcodeStep<'_>, state: &mut dyn CurrentState) {
        use opcode::*;
        if step.error.is_some() {
            return;
        }
        match step.op {
            SLOAD | SSTORE => {
                if let Some(slot) = step.item(0) {
                    self.seen.entry(step.address).or_default().insert(slot);
                }
            }
            EXTCODECOPY | EXTCODEHASH | EXTCODESIZE | BALANCE | SELFDESTRUCT => {
                let Some(address) = step.item_address(0) else { return };
                self.look_at(address);
                let ends = !self.spec.is_enabled_in(SpecId::CANCUN)
                    || self.created.contains(&step.address);
                if step.op == SELFDESTRUCT && ends {
                    self.deleted.insert(step.address);
                }
            }
            CALL | CALLCODE | DELEGATECALL | STATICCALL => {
                if let Some(address) = step.item_address(1) {
                    self.look_at_called(address, state);
                }
            }
            CREATE => {
                let nonce = state.nonce(step.address);
                self.look_at_created(step.address.create(nonce));
            }
            CREATE2 => {
                if let (Some(code), Some(salt)) = (step.memory_range(1, 2), step.item(3)) {
                    let salt = B256::from(salt);
                    self.look_at_created(step.address.create2(salt, keccak256(code)));
                }
            }
            _ => {}
        }
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        let before = StateBefore { simulation: end.simulation };
        if let TxKind::Call(to) = end.tx.kind {
            self.look_at(to);
            let code = before.code(&before.account(to)?)?;
            if self.spec.is_enabled_in(SpecId::PRAGUE)
                && let Some(target) = delegation(&code)
            {
                self.look_at(target);
            }
        }
        self.look_at(end.tx.caller);
        self.look_at(end.simulation.env().block_env.beneficiary);
        for authority in authorities(end.tx) {
            self.look_at(authority);
        }
        let seen = std::mem::take(&mut self.seen);
        let mut pre = BTreeMap::new();
        let mut post = BTreeMap::new();
        for (address, slots) in seen {
            let slots = if self.has_storage { slots } else { BTreeSet::new() };
            let info = before.account(address)?;
            let code = before.code(&info)?;
            let hash = code_hash(&info).filter(|hash| *hash != KECCAK256_EMPTY);
            let mut storage = BTreeMap::new();
            for slot in slots {
                storage.insert(B256::from(slot), before.slot(address, slot)?);
            }
            let there = info.clone().unwrap_or_default();
            let is_empty = there.nonce == 0 && code.is_empty() && there.balance.is_zero();
            let mut shown = PrestateAccount {
                balance: Some(there.balance),
                code: Some(code).filter(|code| self.has_code && !code.is_empty()),
                code_hash: hash,
                nonce: there.nonce,
                storage,
            };
            if self.is_diff && !self.deleted.contains(&address) {
                let after = AccountAfter::of(address, &info, &end.outcome.state);
                match self.changed(address, &mut shown, &after, &before)? {
                    Some(changed) => post.insert(address, changed),
                    None => continue,
                };
            }
            if !is_empty || self.has_empty {
                pre.insert(address, shown);
            }
        }
        if self.is_diff {
            return json(&BTreeMap::from([("post", post), ("pre", pre)]));
        }
        json(&pre)
    }
}

impl PrestateTracer {
    /// The changes of an account; `None` if it is unchanged. Removes unchanged slots from `shown`.
    fn changed(
        &self,
        address: Address,
        shown: &mut PrestateAccount,
        after: &AccountAfter<'_>,
        before: &StateBefore<'_, '_>,
    ) -> RpcResult<Option<PrestateAccount>> {
        let now = after.info.clone().unwrap_or_default();
        let balance = Some(now.balance).filter(|now| Some(*now) != shown.balance);
        let mut changed = PrestateAccount { balance, ..PrestateAccount::default() };
        let has_other_nonce = now.nonce != shown.nonce;
        if has_other_nonce {
            changed.nonce = now.nonce;
        }
        // A deleted account has no code hash; an account without code has the hash of empty code.
        let hash = code_hash(&after.info).unwrap_or_default();
        if hash != shown.code_hash.unwrap_or(KECCAK256_EMPTY) {
            changed.code_hash = Some(hash);
        }
        if self.has_code {
            let code = before.code(&after.info)?;
            changed.code =
                Some(code).filter(|code| *code != shown.code.clone().unwrap_or_default());
        }
        let mut has_other_slots = false;
        let slots = std::mem::take(&mut shown.storage);
        for (key, value) in slots {
            let slot = U256::from_be_bytes(key.0);
            let new = after.slot(slot).map_or_else(|| before.slot(address, slot), Ok)?;
            if new == value {
                continue;
            }
            has_other_slots = true;
            if !value.is_zero() {
                shown.storage.insert(key, value);
            }
            if !new.is_zero() {
                changed.storage.insert(key, new);
            }
        }
        let is_changed = changed.balance.is_some()
            || has_other_nonce
            || changed.code_hash.is_some()
            || changed.code.is_some()
            || has_other_slots;
        Ok(is_changed.then_some(changed))
    }
}

/// An account before the transaction, or its changes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct PrestateAccount {
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_hash: Option<B256>,
    #[serde(skip_serializing_if = "is_zero")]
    nonce: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    storage: BTreeMap<B256, B256>,
}

const fn is_zero(nonce: &u64) -> bool {
    *nonce == 0
}

/// The code hash of an account; `None` if there is no account.
fn code_hash(info: &Option<AccountInfo>) -> Option<B256> {
    info.as_ref().map(|info| match info.code_hash.is_zero() {
        true => KECCAK256_EMPTY,
        false => info.code_hash,
    })
}

/// Reads the state before the transaction.
struct StateBefore<'s, 'a> {
    simulation: &'s EvmSimulation<'a>,
}

impl StateBefore<'_, '_> {
    fn account(&self, address: Address) -> RpcResult<Option<AccountInfo>> {
        self.simulation.basic_ref(address).map_err(TransactFailure::database)
    }

    /// The code of an account before or after the transaction.
    fn code(&self, info: &Option<AccountInfo>) -> RpcResult<Bytes> {
        let Some(info) = info.as_ref().filter(|info| !info.is_code_hash_empty_or_zero()) else {
            return Ok(Bytes::new());
        };
        let code = match &info.code {
            Some(code) => code.clone(),
            None => {
                let code = self.simulation.code_by_hash_ref(info.code_hash);
                code.map_err(TransactFailure::database)?
            }
        };
        Ok(code.original_bytes())
    }

    fn slot(&self, address: Address, slot: U256) -> RpcResult<B256> {
        let value = self.simulation.storage_ref(address, slot);
        value.map(B256::from).map_err(TransactFailure::database)
    }
}

/// An account after the transaction.
struct AccountAfter<'s> {
    info: Option<AccountInfo>,
    /// The account in the transaction's changes; `None` if unchanged or deleted.
    account: Option<&'s revm::state::Account>,
    has_no_other_slots: bool,
}

impl<'s> AccountAfter<'s> {
    fn of(address: Address, before: &Option<AccountInfo>, changes: &'s EvmState) -> Self {
        let Some(account) = changes.get(&address) else {
            return Self { info: before.clone(), account: None, has_no_other_slots: false };
        };
        if account.is_selfdestructed() {
            return Self { info: None, account: None, has_no_other_slots: true };
        }
        let is_cleared = account.is_touched() && account.is_empty();
        let is_there = !(account.is_loaded_as_not_existing_not_touched() || is_cleared);
        Self {
            info: is_there.then(|| account.info.clone()),
            account: Some(account),
            has_no_other_slots: account.is_created(),
        }
    }

    /// The value of a slot; `None` if it is unchanged.
    fn slot(&self, slot: U256) -> Option<B256> {
        let known = self.account.and_then(|account| account.storage.get(&slot));
        match known {
            Some(known) => Some(known.present_value().into()),
            None => self.has_no_other_slots.then_some(B256::ZERO),
        }
    }
}
