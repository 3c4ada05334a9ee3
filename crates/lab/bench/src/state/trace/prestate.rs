//! From what the transactions of a block touch and change to the accesses of the block.

use super::error::MakeTraceError;
use crate::state::real::{AccessModel, BlockAccesses};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256, keccak256};
use retrie_sources::rpc::{BlockTraces, TracedAccount, TracedDiff, TransactionTrace};
use retrie_state::{Account, StateKey, StateValue, encode_slot};
use std::collections::{BTreeMap, BTreeSet};

/// The accesses of a block, one of each key. The block reads what its transactions touch, and
/// writes what differs after the last of them.
///
/// # Errors
/// [`MakeTraceError::UnequalAnswers`].
pub(super) fn accesses(
    traces: &BlockTraces,
    model: &mut AccessModel,
) -> Result<BlockAccesses, MakeTraceError> {
    let BlockTraces { number, touched, changed } = traces;
    if !touched.is_empty() && touched.len() != changed.len() {
        let (touched, changed) = (touched.len(), changed.len());
        return Err(MakeTraceError::UnequalAnswers { number: *number, touched, changed });
    }
    let mut image = BlockImage::default();
    for (at, TransactionTrace(diff)) in changed.iter().enumerate() {
        for (address, account) in touched.get(at).into_iter().flat_map(|touched| &touched.0) {
            image.see(*address, account);
        }
        image.apply(diff);
    }
    let (pre, writes) = image.into_accesses();
    let touches = model.push(pre, writes);
    Ok(BlockAccesses { number: *number, touches, ..BlockAccesses::default() })
}

/// A value before a block, and after its transactions so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ValueSides<V> {
    before: V,
    after: V,
}

impl<V: Copy> ValueSides<V> {
    const fn same(value: V) -> Self {
        Self { before: value, after: value }
    }
}

/// What the transactions of a block have touched so far.
#[derive(Debug, Default)]
struct BlockImage {
    /// An empty account does not exist (EIP-161).
    accounts: BTreeMap<Address, ValueSides<Option<Account>>>,
    slots: BTreeMap<(Address, B256), ValueSides<U256>>,
}

impl BlockImage {
    /// A transaction finds an account and slots of it.
    fn see(&mut self, address: Address, found: &TracedAccount) {
        self.accounts.entry(address).or_insert_with(|| {
            let account = with_fields(Account::default(), found);
            ValueSides::same(Some(account).filter(|account| !account.is_empty()))
        });
        for (slot, value) in &found.storage {
            let value = U256::from_be_bytes(value.0);
            self.slots.entry((address, *slot)).or_insert_with(|| ValueSides::same(value));
        }
    }

    /// Applies what a transaction changes.
    fn apply(&mut self, diff: &TracedDiff) {
        for (address, before) in &diff.pre {
            self.see(*address, before);
            match diff.post.get(address) {
                Some(post) => self.clear(*address, before, post),
                None => self.remove(*address),
            }
        }
        for (address, post) in &diff.post {
            // Created, if `pre` does not have it: then it is empty before.
            let sides = self.accounts.entry(*address).or_insert(ValueSides::same(None));
            sides.after = Some(with_fields(sides.after.unwrap_or_default(), post));
            for (slot, value) in &post.storage {
                let zero = ValueSides::same(U256::ZERO);
                let sides = self.slots.entry((*address, *slot)).or_insert(zero);
                sides.after = U256::from_be_bytes(value.0);
            }
        }
    }

    /// Slots that `pre` has and `post` does not are zero afterwards.
    fn clear(&mut self, address: Address, pre: &TracedAccount, post: &TracedAccount) {
        for slot in pre.storage.keys().filter(|slot| !post.storage.contains_key(*slot)) {
            if let Some(sides) = self.slots.get_mut(&(address, *slot)) {
                sides.after = U256::ZERO;
            }
        }
    }

    /// An account is removed with its slots.
    fn remove(&mut self, address: Address) {
        if let Some(sides) = self.accounts.get_mut(&address) {
            sides.after = None;
        }
        let all = (address, B256::ZERO)..=(address, B256::repeat_byte(0xff));
        self.slots.range_mut(all).for_each(|(_, sides)| sides.after = U256::ZERO);
    }

    /// The values of all keys before the block, and of those that change after it.
    fn into_accesses(self) -> (KeyValues, KeyValues) {
        let (mut pre, mut writes) = (KeyValues::new(), KeyValues::new());
        let kept = self.slots.iter().filter(|(_, sides)| !sides.after.is_zero());
        let has_slots: BTreeSet<Address> = kept.map(|((address, _), _)| *address).collect();
        for (address, ValueSides { before, after }) in self.accounts {
            // An account that becomes empty is removed, unless it is a contract that the tracer
            // shows in part.
            let after = after.filter(|account| !account.is_empty() || has_slots.contains(&address));
            let key = StateKey::Account(address);
            pre.insert(key, before.map(|account| account.encode()));
            if before != after {
                writes.insert(key, after.map(|account| account.encode()));
            }
        }
        for ((address, slot), ValueSides { before, after }) in self.slots {
            let key = StateKey::Slot(address, slot);
            pre.insert(key, encode_slot(before));
            if before != after {
                writes.insert(key, encode_slot(after));
            }
        }
        (pre, writes)
    }
}

/// Values of keys; `None` is an absent one.
type KeyValues = BTreeMap<StateKey, Option<StateValue>>;

/// The account with the fields that a trace has.
fn with_fields(account: Account, traced: &TracedAccount) -> Account {
    let code_hash = match (&traced.code, traced.code_hash) {
        (Some(code), _) if code.is_empty() => Some(KECCAK256_EMPTY),
        (Some(code), _) => Some(keccak256(code)),
        // Some nodes say the zero hash for an account that does not exist.
        (None, hash) => hash.filter(|hash| !hash.is_zero()),
    };
    Account {
        nonce: traced.nonce.unwrap_or(account.nonce),
        balance: traced.balance.unwrap_or(account.balance),
        code_hash: code_hash.unwrap_or(account.code_hash),
    }
}
