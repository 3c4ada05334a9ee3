//! Random blocks with the states they lead to.

use super::codes;
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, Keccak256, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{
    Account, BackendKey, DeltaBuilder, KeyForm, StateDelta, StateKey, StateValue, encode_slot,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The whole logical state.
pub(super) type StateEntries = BTreeMap<StateKey, StateValue>;

/// `entries` with keys in this form.
pub(super) fn in_form(keys: KeyForm, entries: &StateEntries) -> BTreeMap<BackendKey, StateValue> {
    entries.iter().map(|(key, value)| (keys.key(key), value.clone())).collect()
}

/// A random block.
#[derive(Debug)]
pub(super) struct TestBlock {
    pub(super) number: u64,
    /// Depends on everything that led here.
    pub(super) hash: B256,
    pub(super) delta: StateDelta,
    /// The state after it.
    pub(super) entries: Arc<StateEntries>,
}

pub(super) type BlockPtr = Arc<TestBlock>;

/// What keys and values look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueFlavour {
    /// Canonical accounts and slots, slots only under accounts: what the client writes.
    Ethereum,
    /// Any bytes under any key: what the contract allows.
    Opaque,
}

/// How much a block changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockSize {
    /// Mostly usual, sometimes empty, tiny or big.
    Any,
    /// One to three operations.
    Tiny,
    /// Deletes all entries.
    EraseAll,
    /// This many operations.
    Operations(usize),
}

/// Creates random blocks.
pub(super) struct BlockMiner {
    pub(super) rng: StdRng,
    flavour: ValueFlavour,
    usual: usize,
    addresses: Vec<Address>,
    slots: Vec<B256>,
    first: u64,
    balance_bits: usize,
    has_codes: bool,
}

impl BlockMiner {
    pub(super) fn new(seed: u64, flavour: ValueFlavour, usual: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // Some addresses and slots differ only in their last bytes.
        let base: [u8; 20] = rng.random();
        let addresses = (0..40u8)
            .map(|n| match n % 3 {
                0 => {
                    let mut near = base;
                    near[19] = n;
                    Address::from(near)
                }
                _ => Address::from(rng.random::<[u8; 20]>()),
            })
            .collect();
        let slots = (0..60u64)
            .map(|n| match n % 2 {
                0 => B256::from(U256::from(n / 2)),
                _ => B256::from(rng.random::<[u8; 32]>()),
            })
            .collect();
        Self { rng, flavour, usual, addresses, slots, first: 0, balance_bits: 256, has_codes: true }
    }

    /// Sets the number of the first block (0 otherwise).
    pub(super) const fn starting_at(mut self, number: u64) -> Self {
        self.first = number;
        self
    }

    /// Keeps balances below 2^128.
    pub(super) const fn with_balances_of_ethereum(mut self) -> Self {
        self.balance_bits = 128;
        self
    }

    /// Makes accounts without code.
    pub(super) const fn without_codes(mut self) -> Self {
        self.has_codes = false;
        self
    }

    /// A child of `parent`; `None` is the empty state.
    pub(super) fn block(&mut self, parent: Option<&TestBlock>, size: BlockSize) -> BlockPtr {
        let empty = StateEntries::new();
        let before = parent.map_or(&empty, |parent| &*parent.entries);
        let (delta, entries) = self.delta(before, size);
        let number = parent.map_or(self.first, |parent| parent.number + 1);
        let hash = block_hash(parent.map_or(B256::ZERO, |parent| parent.hash), number, &delta);
        Arc::new(TestBlock { number, hash, delta, entries: Arc::new(entries) })
    }

    /// A chain of `len` blocks on `parent`, which it does not include.
    pub(super) fn chain(
        &mut self,
        parent: Option<&BlockPtr>,
        len: usize,
        size: BlockSize,
    ) -> Vec<BlockPtr> {
        let mut chain: Vec<BlockPtr> = Vec::with_capacity(len);
        for _ in 0..len {
            let block = self.block(chain.last().or(parent).map(|parent| &**parent), size);
            chain.push(block);
        }
        chain
    }

    /// Random keys, some of them in `entries`.
    pub(super) fn keys(&mut self, entries: &StateEntries, count: usize) -> Vec<StateKey> {
        let present: Vec<_> = entries.keys().copied().collect();
        (0..count)
            .map(|_| match present.choose(&mut self.rng) {
                Some(key) if self.rng.random_bool(0.5) => *key,
                _ => self.any_key(entries),
            })
            .collect()
    }

    /// A key that may or may not exist, often close to one that does.
    pub(super) fn any_key(&mut self, entries: &StateEntries) -> StateKey {
        let address = match entries.keys().next() {
            Some(key) if self.rng.random_bool(0.2) => *key.address(),
            _ => self.address(),
        };
        if self.rng.random_bool(0.3) {
            StateKey::Account(address)
        } else {
            StateKey::Slot(address, self.slot())
        }
    }

    fn address(&mut self) -> Address {
        match self.rng.random_range(0..10) {
            0..3 => self.addresses[0],
            3..8 => *self.addresses.choose(&mut self.rng).expect("there are some"),
            _ => Address::from(self.rng.random::<[u8; 20]>()),
        }
    }

    fn slot(&mut self) -> B256 {
        if self.rng.random_bool(0.8) {
            *self.slots.choose(&mut self.rng).expect("there are some")
        } else {
            B256::from(self.rng.random::<[u8; 32]>())
        }
    }

    fn account(&mut self) -> StateValue {
        if self.flavour == ValueFlavour::Opaque {
            return self.bytes();
        }
        let nonce = match self.rng.random_range(0..4) {
            0 => 0,
            1 => self.rng.random(),
            _ => self.rng.random_range(0..300),
        };
        let balance = match self.rng.random_range(0..4) {
            0 => U256::ZERO,
            1 => U256::from_be_bytes(self.rng.random::<[u8; 32]>()) >> (256 - self.balance_bits),
            _ => U256::from(self.rng.random::<u64>()),
        };
        let code_hash = if self.rng.random_bool(0.3) && self.has_codes {
            codes::any_hash(&mut self.rng)
        } else {
            KECCAK256_EMPTY
        };
        Account { nonce, balance, code_hash }.encode()
    }

    fn slot_value(&mut self) -> StateValue {
        if self.flavour == ValueFlavour::Opaque {
            return self.bytes();
        }
        let value = match self.rng.random_range(0..3) {
            0 => U256::from(self.rng.random_range(1..4u8)),
            1 => U256::from_be_bytes(self.rng.random::<[u8; 32]>()) | U256::from(1),
            _ => U256::from(self.rng.random_range(1..u64::MAX)),
        };
        encode_slot(value).expect("it is not zero")
    }

    fn bytes(&mut self) -> StateValue {
        let len = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(100..400),
            1 => 1,
            _ => self.rng.random_range(1..80),
        };
        (0..len).map(|_| self.rng.random::<u8>()).collect::<Vec<_>>().into()
    }

    fn delta(&mut self, before: &StateEntries, size: BlockSize) -> (StateDelta, StateEntries) {
        let operations = match size {
            BlockSize::Any => match self.rng.random_range(0..20) {
                0 => 0,
                1..6 => self.rng.random_range(1..4),
                6 => self.usual * 10,
                _ => self.rng.random_range(1..self.usual * 2),
            },
            BlockSize::Tiny => self.rng.random_range(1..4),
            BlockSize::EraseAll => 0,
            BlockSize::Operations(count) => count,
        };
        let mut draft = StateDraft { entries: before.clone(), ..StateDraft::default() };
        if let BlockSize::EraseAll = size {
            let all: BTreeSet<Address> = before.keys().map(|key| *key.address()).collect();
            for address in all {
                draft.wipe(&address);
                draft.set(StateKey::Account(address), None);
            }
        }
        for _ in 0..operations {
            self.operation(before, &mut draft);
        }
        let mut builder = DeltaBuilder::new();
        for key in &draft.touched {
            builder.change(*key, before.get(key).cloned(), draft.entries.get(key).cloned());
        }
        for address in draft.wiped {
            builder.wipe(address);
        }
        codes::add_codes(&mut builder, before, &draft.entries);
        (builder.build(), draft.entries)
    }

    fn operation(&mut self, before: &StateEntries, draft: &mut StateDraft) {
        // States stay small enough to be compared whole after each block.
        let full = draft.entries.len() > 40 * self.usual;
        match self.rng.random_range(0..100) {
            0..25 => {
                let (address, value) = (self.address(), self.account());
                draft.set(StateKey::Account(address), Some(value));
            }
            25..70 if !full => {
                let address = self.address();
                let account = StateKey::Account(address);
                if self.flavour == ValueFlavour::Ethereum && !draft.entries.contains_key(&account) {
                    let value = self.account();
                    draft.set(account, Some(value));
                }
                let (slot, value) = (self.slot(), self.slot_value());
                draft.set(StateKey::Slot(address, slot), Some(value));
            }
            25..82 => {
                // Deletes a slot.
                let slots: Vec<_> =
                    draft.entries.keys().filter(|key| matches!(key, StateKey::Slot(..))).collect();
                if let Some(key) = slots.choose(&mut self.rng).copied().copied() {
                    draft.set(key, None);
                }
            }
            82..92 => {
                // Deletes an account and its storage.
                if let Some(address) = self.present_address(draft) {
                    let has_slots = draft.slots(&address).next().is_some();
                    if has_slots || self.rng.random_bool(0.5) {
                        draft.wipe(&address);
                    }
                    draft.set(StateKey::Account(address), None);
                }
            }
            92..97 => {
                // Destroys an account and creates it again in the same block; some slots get the
                // value that they had.
                if let Some(address) = self.present_address(draft) {
                    draft.wipe(&address);
                    let value = self.account();
                    draft.set(StateKey::Account(address), Some(value));
                    let old: Vec<_> = slots_of(before, &address)
                        .map(|(slot, value)| (slot, value.clone()))
                        .collect();
                    for (slot, value) in old {
                        if self.rng.random_bool(0.3) {
                            draft.set(StateKey::Slot(address, slot), Some(value));
                        }
                    }
                    for _ in 0..self.rng.random_range(0..3) {
                        let (slot, value) = (self.slot(), self.slot_value());
                        draft.set(StateKey::Slot(address, slot), Some(value));
                    }
                }
            }
            _ => {
                // Sets a value and restores the old one in the same block.
                if self.flavour == ValueFlavour::Opaque {
                    let (key, value) = (self.any_key(before), self.bytes());
                    let old = draft.entries.get(&key).cloned();
                    draft.set(key, Some(value));
                    draft.set(key, old);
                }
            }
        }
    }

    fn present_address(&mut self, draft: &StateDraft) -> Option<Address> {
        let accounts: Vec<_> =
            draft.entries.keys().filter(|key| matches!(key, StateKey::Account(_))).collect();
        accounts.choose(&mut self.rng).map(|key| *key.address())
    }
}

/// The state of a block while it is created.
#[derive(Default)]
struct StateDraft {
    entries: StateEntries,
    touched: BTreeSet<StateKey>,
    wiped: BTreeSet<Address>,
}

impl StateDraft {
    fn set(&mut self, key: StateKey, value: Option<StateValue>) {
        self.touched.insert(key);
        match value {
            Some(value) => drop(self.entries.insert(key, value)),
            None => drop(self.entries.remove(&key)),
        }
    }

    fn slots(&self, address: &Address) -> impl Iterator<Item = B256> {
        slots_of(&self.entries, address).map(|(slot, _)| slot)
    }

    fn wipe(&mut self, address: &Address) {
        let slots: Vec<_> = self.slots(address).collect();
        for slot in slots {
            self.set(StateKey::Slot(*address, slot), None);
        }
        self.wiped.insert(*address);
    }
}

/// The slots of one account in slot order.
pub(super) fn slots_of<'a>(
    entries: &'a StateEntries,
    address: &Address,
) -> impl Iterator<Item = (B256, &'a StateValue)> {
    let range =
        StateKey::Slot(*address, B256::ZERO)..=StateKey::Slot(*address, B256::repeat_byte(0xff));
    entries.range(range).filter_map(|(key, value)| match key {
        StateKey::Slot(_, slot) => Some((*slot, value)),
        StateKey::Account(_) => None,
    })
}

/// The delta that turns `before` into `after`; deleted accounts are wiped.
pub(super) fn delta_between(before: &StateEntries, after: &StateEntries) -> StateDelta {
    let mut builder = DeltaBuilder::new();
    for key in before.keys().chain(after.keys()) {
        builder.change(*key, before.get(key).cloned(), after.get(key).cloned());
        if let StateKey::Account(address) = key
            && !after.contains_key(key)
        {
            builder.wipe(*address);
        }
    }
    codes::add_codes(&mut builder, before, after);
    builder.build()
}

/// A block that turns `parent`'s state into `entries`.
pub(super) fn block_to(
    parent: Option<&TestBlock>,
    first: u64,
    entries: &Arc<StateEntries>,
) -> BlockPtr {
    let empty = StateEntries::new();
    let delta = delta_between(parent.map_or(&empty, |parent| &*parent.entries), entries);
    let number = parent.map_or(first, |parent| parent.number + 1);
    let hash = block_hash(parent.map_or(B256::ZERO, |parent| parent.hash), number, &delta);
    Arc::new(TestBlock { number, hash, delta, entries: entries.clone() })
}

fn block_hash(parent: B256, number: u64, delta: &StateDelta) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(parent);
    hasher.update(number.to_be_bytes());
    for change in delta.changes() {
        hasher.update(&*change.key.encode());
        let value = change.next.as_ref().map_or(&[][..], |value| &value[..]);
        hasher.update((value.len() as u64).to_be_bytes());
        hasher.update(value);
    }
    for address in delta.wiped() {
        hasher.update(address);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;
    use retrie_state::decode_slot;

    #[test]
    fn deltas_lead_from_state_to_state_and_slots_stand_under_accounts() {
        for flavour in [ValueFlavour::Ethereum, ValueFlavour::Opaque] {
            let mut miner = BlockMiner::new(3, flavour, 20);
            let mut state = StateEntries::new();
            let (mut deletions, mut wipes, mut rewritten, mut empty) = (0, 0, 0, 0);
            let (mut seen, mut regained, mut lengths) = (BTreeSet::new(), 0, BTreeSet::new());
            let mut parent: Option<BlockPtr> = None;
            for _ in 0..200 {
                let block = miner.block(parent.as_deref(), BlockSize::Any);
                empty += usize::from(block.delta.is_empty());
                let before = codes::hashes_in(&state);
                wipes += block.delta.wiped().len();
                for change in block.delta.changes() {
                    assert_eq!(state.get(&change.key), change.previous.as_ref());
                    rewritten += usize::from(change.previous == change.next);
                    match &change.next {
                        Some(value) => drop(state.insert(change.key, value.clone())),
                        None => drop(state.remove(&change.key)),
                    }
                    deletions += usize::from(change.next.is_none());
                }
                assert_eq!(state, *block.entries);
                for hash in codes::hashes_in(&state).difference(&before) {
                    let code = block.delta.code(hash).expect("each code comes with its account");
                    assert_eq!(keccak256(code), *hash);
                    lengths.insert(code.len());
                    regained += usize::from(!seen.insert(*hash));
                }
                for (key, value) in &state {
                    match (flavour, key) {
                        (ValueFlavour::Opaque, _) => assert!(!value.is_empty()),
                        (_, StateKey::Account(_)) => assert!(Account::decode(value).is_some()),
                        (_, StateKey::Slot(address, _)) => {
                            assert!(decode_slot(value).is_some());
                            assert!(state.contains_key(&StateKey::Account(*address)));
                        }
                    }
                }
                parent = Some(block);
            }
            assert!(deletions > 50 && wipes > 20 && rewritten > 5 && empty > 2);
            if flavour == ValueFlavour::Ethereum {
                assert!(regained > 50, "codes lose their last account and get another: {regained}");
                assert!(lengths.contains(&23) && lengths.last() > Some(&8192), "{lengths:?}");
            }
        }
    }
}
