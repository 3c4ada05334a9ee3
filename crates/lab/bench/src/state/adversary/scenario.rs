//! The keys of an attack or a baseline, and the keys on which its operations are.

use super::{
    AttackKind,
    grind::{HashPaths, PathDepth},
};
use crate::{
    BenchError, RaceSetting,
    random::{SplitMix64, numbered, scatter, slot_value},
};
use alloy_primitives::{Address, B256, U256, keccak256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, StateValue};
use std::{ops::Range, sync::Arc};

/// The contract of the plain slots, and of ground ones.
pub(in crate::state) const TOKEN: Address = Address::repeat_byte(0x57);
/// The big contract.
const BIG: Address = Address::repeat_byte(0xb1);
/// The contract with the arrays of [`AttackKind::Churn`].
const ARRAYS: Address = Address::repeat_byte(0xa7);
/// Slots of an array, which are neighbours.
const RUN: u64 = 64;
/// The number of contract accounts in lists of keys. It is the number of no other key.
const CONTRACT: u32 = u32::MAX;

/// A state, and operations on it. Its keys are numbered: first the plain ones, then those of the
/// attack.
#[derive(Clone, Debug)]
pub struct AttackScenario {
    attack: AttackKind,
    is_attacked: bool,
    /// Number of plain keys.
    keys: u64,
    seed: u64,
    extra: ExtraKeys,
    choice: OperationTarget,
    empty_blocks: u64,
    depth: Option<PathDepth>,
}

/// Keys in addition to the plain ones.
#[derive(Clone, Debug)]
enum ExtraKeys {
    None,
    Ground(Arc<Vec<StateKey>>),
    /// This number of slots of one contract.
    Contract(u64),
    /// This number of arrays. The arrays with odd numbers exist before the first block.
    Arrays(u64),
}

/// The keys on which operations are.
#[derive(Clone, Debug)]
enum OperationTarget {
    /// A random key with a number in this range.
    Any(Range<u64>),
    /// The arrays in turn: an array is removed if it exists, otherwise set.
    Arrays(u64),
}

impl AttackScenario {
    /// The plain state, with operations on all keys.
    pub(in crate::state) const fn plain(attack: AttackKind, keys: u64, seed: u64) -> Self {
        Self {
            attack,
            is_attacked: false,
            keys,
            seed,
            extra: ExtraKeys::None,
            choice: OperationTarget::Any(0..keys),
            empty_blocks: 0,
            depth: None,
        }
    }

    /// Marks the scenario as the attack, not as its baseline.
    pub(in crate::state) fn attacking(self) -> Self {
        Self { is_attacked: true, ..self }
    }

    /// Restricts operations to the first `count` plain keys.
    pub(in crate::state) fn on_first(self, count: u64) -> Self {
        Self { choice: OperationTarget::Any(0..count), ..self }
    }

    /// Restricts operations to one slot.
    pub(in crate::state) fn on_one_slot(self) -> Self {
        Self { choice: OperationTarget::Any(1..2), ..self }
    }

    /// Adds these keys, with operations on the first `victims` of them.
    pub(in crate::state) fn with_ground(self, keys: Vec<StateKey>, victims: u64) -> Self {
        let choice = OperationTarget::Any(self.keys..self.keys + victims);
        Self { extra: ExtraKeys::Ground(Arc::new(keys)), choice, ..self }
    }

    /// Adds a contract with this number of slots, with operations on these slots.
    pub(in crate::state) fn with_contract(self, slots: u64) -> Self {
        let choice = OperationTarget::Any(self.keys..self.keys + slots);
        Self { extra: ExtraKeys::Contract(slots), choice, ..self }
    }

    /// Adds arrays with at least this number of slots in total, half of which exist at any time,
    /// with operations that remove and set them.
    pub(in crate::state) fn with_churn(self, slots: u64) -> Self {
        let arrays = slots.div_ceil(RUN).next_multiple_of(2);
        Self { extra: ExtraKeys::Arrays(arrays), choice: OperationTarget::Arrays(arrays), ..self }
    }

    /// Adds this number of empty commits after each commit with operations.
    pub(in crate::state) fn with_empty_blocks(self, empty_blocks: u64) -> Self {
        Self { empty_blocks, ..self }
    }

    /// Adds the path lengths of the keys on which operations are.
    pub(in crate::state) fn measured(self) -> Self {
        let of: Vec<_> = self.choice().map(|n| self.key(n)).collect();
        let depth = Some(HashPaths::of(&self.sorted_keys()).depth(&of));
        Self { depth, ..self }
    }

    /// The attack to which this scenario belongs, as the attack or as its baseline.
    pub const fn attack(&self) -> AttackKind {
        self.attack
    }

    /// The name of the attack or of its baseline.
    pub fn name(&self) -> String {
        match self.is_attacked {
            true => self.attack.name().into(),
            false => format!("{}: baseline", self.attack),
        }
    }

    /// Number of plain keys.
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// Number of additional keys of the attack.
    pub fn extra_keys(&self) -> u64 {
        match &self.extra {
            ExtraKeys::None => 0,
            ExtraKeys::Ground(keys) => keys.len() as u64,
            ExtraKeys::Contract(slots) => *slots,
            ExtraKeys::Arrays(arrays) => arrays * RUN,
        }
    }

    /// Number of keys on which operations are.
    pub fn attacked_keys(&self) -> u64 {
        let numbers = self.choice();
        numbers.end - numbers.start
    }

    /// Number of empty commits after each commit with operations.
    pub const fn empty_blocks(&self) -> u64 {
        self.empty_blocks
    }

    /// Path lengths of the attacked keys in Ethereum's trie, if they were measured.
    pub const fn depth(&self) -> Option<PathDepth> {
        self.depth
    }

    /// Numbers of the keys on which operations are.
    fn choice(&self) -> Range<u64> {
        match &self.choice {
            OperationTarget::Any(numbers) => numbers.clone(),
            OperationTarget::Arrays(arrays) => self.keys..self.keys + arrays * RUN,
        }
    }

    pub(in crate::state) fn check(&self, commit_every: u64) -> Result<(), BenchError> {
        let keys = self.keys.saturating_add(self.extra_keys());
        if self.keys < 2 || keys >= u64::from(CONTRACT) {
            let what = format!("there are {keys} keys, and must be 2 and less than {CONTRACT}");
            return Err(RaceSetting::Keys.refused(what));
        }
        if let OperationTarget::Arrays(arrays) = self.choice
            && arrays * RUN < commit_every.saturating_mul(2)
        {
            let what = format!("{commit_every} operations a commit are more than slots to churn");
            return Err(RaceSetting::CommitEvery.refused(what));
        }
        Ok(())
    }

    /// A name for the state, valid as a file name.
    pub(in crate::state) fn base_name(&self) -> String {
        let extra = match &self.extra {
            ExtraKeys::None => String::new(),
            ExtraKeys::Ground(keys) => {
                // The keys depend on the number of hashed keys.
                let all: Vec<u8> = keys.iter().flat_map(|key| key.encode().to_vec()).collect();
                let digest = keccak256(all).to_string();
                format!("-ground-{}", &digest[2..18])
            }
            ExtraKeys::Contract(slots) => format!("-contract-{slots}"),
            ExtraKeys::Arrays(arrays) => format!("-arrays-{arrays}"),
        };
        format!("adversary-{}{extra}-seed-{}-v1", self.keys, self.seed)
    }

    /// All keys of the state in order, with their numbers; contract accounts have the number
    /// [`CONTRACT`].
    pub(in crate::state) fn sorted_keys(&self) -> Vec<(StateKey, u32)> {
        let mut contracts = vec![TOKEN];
        match self.extra {
            ExtraKeys::Contract(_) => contracts.push(BIG),
            ExtraKeys::Arrays(_) => contracts.push(ARRAYS),
            ExtraKeys::None | ExtraKeys::Ground(_) => {}
        }
        let contracts = contracts.into_iter().map(|address| (StateKey::Account(address), CONTRACT));
        let mut keys: Vec<_> = contracts.collect();
        // The number fits, because `check` limits it.
        let numbers = (0..(self.keys + self.extra_keys()) as u32).into_par_iter();
        let present = numbers.filter(|n| self.is_there_at_first((*n).into()));
        keys.par_extend(present.map(|n| (self.key(n.into()), n)));
        keys.par_sort_unstable();
        keys
    }

    /// The value of an entry of [`sorted_keys`](Self::sorted_keys).
    pub(in crate::state) fn entry_value(&self, key: &StateKey, n: u32) -> StateValue {
        match n {
            CONTRACT => Account { nonce: 1, balance: U256::from(1), ..Default::default() }.encode(),
            n => self.value_at_first(key, n.into()),
        }
    }

    /// The `n`th key. A number beyond the keys of the state gives a key that never has a value.
    pub(in crate::state) fn key(&self, n: u64) -> StateKey {
        let extra = n.checked_sub(self.keys).filter(|at| *at < self.extra_keys());
        match (extra, &self.extra) {
            (Some(at), ExtraKeys::Ground(keys)) => keys[at as usize],
            (Some(at), ExtraKeys::Contract(_)) => StateKey::Slot(BIG, self.hash(b'b', at).into()),
            (Some(at), ExtraKeys::Arrays(_)) => {
                let start = U256::from_be_bytes(self.hash(b'r', at / RUN));
                let slot = start.wrapping_add(U256::from(at % RUN));
                StateKey::Slot(ARRAYS, slot.to_be_bytes().into())
            }
            _ if n.is_multiple_of(2) => {
                StateKey::Account(Address::from_slice(&self.hash(b'p', n)[..20]))
            }
            _ => StateKey::Slot(TOKEN, B256::from(self.hash(b'q', n))),
        }
    }

    fn hash(&self, domain: u8, n: u64) -> [u8; 32] {
        numbered(domain, self.seed, n)
    }

    /// The value of the `n`th key before the first block.
    pub(in crate::state) fn first_value(&self, n: u64) -> Option<StateValue> {
        self.is_there_at_first(n).then(|| self.value_at_first(&self.key(n), n))
    }

    fn value_at_first(&self, key: &StateKey, n: u64) -> StateValue {
        self.draw(key, &mut SplitMix64::new(self.seed ^ (n << 32 | 0x5eed)))
    }

    fn is_there_at_first(&self, n: u64) -> bool {
        match (n.checked_sub(self.keys), &self.extra) {
            (None, _) => true,
            (Some(at), ExtraKeys::Arrays(_)) => at / RUN % 2 == 1,
            (Some(at), _) => at < self.extra_keys(),
        }
    }

    /// Draws a value for a key.
    pub(in crate::state) fn draw(&self, key: &StateKey, random: &mut SplitMix64) -> StateValue {
        match key {
            StateKey::Account(_) => {
                let (nonce, balance) = (1 + random.below(1 << 16), U256::from(random.next()));
                Account { nonce, balance, ..Default::default() }.encode()
            }
            StateKey::Slot(ARRAYS, _) => {
                let bytes = 1 + random.below(32) as usize;
                slot_value(random).slice(..bytes)
            }
            StateKey::Slot(..) => slot_value(random),
        }
    }

    /// Number of the key of the `op`th operation, and whether the operation removes it.
    pub(in crate::state) fn choose(&self, op: u64, random: &mut SplitMix64) -> (u64, bool) {
        match &self.choice {
            OperationTarget::Any(numbers) => {
                (numbers.start + random.below(numbers.end - numbers.start), false)
            }
            OperationTarget::Arrays(arrays) => {
                let (round, array) = (op / RUN / arrays, scatter(op / RUN % arrays, *arrays));
                let is_there = (array + round) % 2 == 1;
                (self.keys + array * RUN + op % RUN, is_there)
            }
        }
    }

    /// Number of commits of `ops` operations.
    pub(in crate::state) const fn commits(&self, ops: u64, commit_every: u64) -> u64 {
        let full = if commit_every == 0 { 0 } else { ops.div_ceil(commit_every) };
        full.saturating_mul(1 + self.empty_blocks)
    }

    /// Number of operations of the `number`th commit in a part of the race with `ops` operations.
    pub(in crate::state) fn commit_len(&self, number: u64, ops: u64, commit_every: u64) -> u64 {
        if !number.is_multiple_of(1 + self.empty_blocks) {
            return 0;
        }
        let number = number / (1 + self.empty_blocks);
        let begin = |number: u64| match number < ops.div_ceil(commit_every) {
            true => (self.begin(number, commit_every)).min(ops),
            false => ops,
        };
        begin(number + 1) - begin(number)
    }

    /// Number of operations before the `number`th non-empty commit. Two consecutive commits
    /// together have twice `commit_every` operations; with arrays the first of the two has a random
    /// share of them.
    fn begin(&self, number: u64, commit_every: u64) -> u64 {
        let is_even = number.is_multiple_of(2);
        match self.choice {
            OperationTarget::Arrays(_) if !is_even => {
                let of_both = 2 * commit_every;
                let first = 1 + SplitMix64::new(self.seed ^ (number << 32)).below(of_both - 1);
                (number - 1) * commit_every + first
            }
            _ => number * commit_every,
        }
    }

    /// Up to `count` keys that have a value at the end, spread evenly over the keys on which
    /// operations are, and the same number of keys that never have a value.
    pub(in crate::state) fn keys_to_prove(&self, count: u64) -> [Vec<StateKey>; 2] {
        let Range { start, end } = match &self.choice {
            OperationTarget::Any(numbers) => numbers.clone(),
            // Which arrays exist at the end depends on the number of operations.
            OperationTarget::Arrays(_) => 0..self.keys,
        };
        let all = end - start;
        let count = count.min(all);
        let beyond = u64::from(CONTRACT);
        [
            (0..count).map(|n| self.key(start + n * all / count)).collect(),
            (beyond..beyond + count).map(|n| self.key(n)).collect(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn churn() -> AttackScenario {
        AttackScenario::plain(AttackKind::Churn, 100, 5).with_churn(500).attacking()
    }

    #[test]
    fn plain_state_is_half_accounts_and_half_slots_of_one_contract() {
        let scene = AttackScenario::plain(AttackKind::TinyBlocks, 101, 5);
        let keys = scene.sorted_keys();
        assert!(keys.is_sorted());
        let entries: BTreeMap<_, _> =
            keys.iter().map(|(key, n)| (*key, scene.entry_value(key, *n))).collect();
        assert_eq!(entries.len(), 102);
        let slots = entries.keys().filter(|key| matches!(key, StateKey::Slot(TOKEN, _))).count();
        assert_eq!(slots, 50);
        for (key, value) in &entries {
            match key {
                StateKey::Account(_) => assert!(Account::decode(value).is_some()),
                StateKey::Slot(..) => assert!(value.len() == 32 && value[0] != 0),
            }
        }
        for n in 0..101 {
            assert_eq!(entries.get(&scene.key(n)), scene.first_value(n).as_ref());
        }
        let [present, absent] = scene.keys_to_prove(7);
        assert_eq!((present.len(), absent.len()), (7, 7));
        assert!(present.iter().all(|key| entries.contains_key(key)));
        assert!(!absent.iter().any(|key| entries.contains_key(key)));
    }

    #[test]
    fn arrays_are_runs_of_neighbours_half_of_which_are_there_at_any_time() {
        let scene = churn();
        assert_eq!(scene.attacked_keys(), 512);
        let keys = scene.sorted_keys().into_iter().map(|(key, _)| key);
        let is_slot = |key: &StateKey| matches!(key, StateKey::Slot(ARRAYS, _));
        let mut there: BTreeSet<_> = keys.filter(is_slot).collect();
        assert_eq!(there.len(), 256);
        let mut random = SplitMix64::new(1);
        let mut lengths = BTreeSet::new();
        for op in 0..5 * 512 {
            let (n, removes) = scene.choose(op, &mut random);
            let key = scene.key(n);
            if removes {
                assert!(there.remove(&key), "{op} removes what is not there");
            } else {
                assert!(there.insert(key), "{op} sets what is there");
                lengths.insert(scene.draw(&key, &mut random).len());
            }
            assert!((256 - 64..=256 + 64).contains(&there.len()), "{op}: {}", there.len());
        }
        assert_eq!(lengths, (1..=32).collect());
        let StateKey::Slot(_, first) = scene.key(100) else { panic!("a slot") };
        let StateKey::Slot(_, last) = scene.key(163) else { panic!("a slot") };
        assert_eq!(U256::from_be_bytes(last.0) - U256::from_be_bytes(first.0), U256::from(63));
    }

    #[test]
    fn commits_have_all_operations_between_them() {
        let even = AttackScenario::plain(AttackKind::EmptyBlocks, 100, 5).with_empty_blocks(3);
        for scene in [even.clone(), churn(), even.with_churn(500)] {
            for ops in [1, 99, 100, 950, 1000] {
                let commits = scene.commits(ops, 100);
                let lengths: Vec<_> = (0..commits).map(|n| scene.commit_len(n, ops, 100)).collect();
                assert_eq!(lengths.iter().sum::<u64>(), ops, "{lengths:?}");
                assert!(lengths.iter().all(|len| *len <= 200), "{lengths:?}");
            }
        }
        let sizes: BTreeSet<_> = (0..10).map(|n| churn().commit_len(n, 1000, 100)).collect();
        assert!(sizes.len() > 7, "{sizes:?}");
    }

    #[test]
    fn no_commit_of_churn_changes_a_slot_twice() {
        let (scene, mut random, mut op) = (churn(), SplitMix64::new(1), 0);
        for number in 0..scene.commits(5000, 100) {
            let len = scene.commit_len(number, 5000, 100);
            let keys: BTreeSet<_> =
                (op..op + len).map(|op| scene.choose(op, &mut random).0).collect();
            assert_eq!(keys.len() as u64, len);
            op += len;
        }
        assert_eq!(op, 5000);
        assert!(scene.check(100).is_ok() && scene.check(300).is_err());
    }
}
