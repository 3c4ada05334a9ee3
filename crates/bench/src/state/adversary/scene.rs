//! The keys of an attack or a baseline, and which of them each operation is on.

use super::{
    Attack,
    grind::{Depth, Paths},
};
use crate::{
    BenchError, Setting,
    random::{Random, numbered, scatter, slot_value},
};
use alloy_primitives::{Address, B256, U256, keccak256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, Value};
use std::{ops::Range, sync::Arc};

/// The contract of the plain slots, and of ground ones.
pub(in crate::state) const TOKEN: Address = Address::repeat_byte(0x57);
/// The big contract.
const BIG: Address = Address::repeat_byte(0xb1);
/// The contract whose arrays come and go.
const ARRAYS: Address = Address::repeat_byte(0xa7);
/// Slots of an array: a run of neighbours.
const RUN: u64 = 64;
/// The number of an account that is a contract: none of the keys.
const CONTRACT: u32 = u32::MAX;

/// A state, and operations on it. Its keys have numbers: first the plain ones, then those of the attack.
#[derive(Clone, Debug)]
pub struct Scene {
    attack: Attack,
    is_attacked: bool,
    /// Number of plain keys.
    keys: u64,
    seed: u64,
    extra: Extra,
    choice: Choice,
    empty_blocks: u64,
    depth: Option<Depth>,
}

/// Keys beside the plain ones.
#[derive(Clone, Debug)]
enum Extra {
    None,
    Ground(Arc<Vec<StateKey>>),
    /// So many slots of one contract.
    Contract(u64),
    /// So many arrays. Those of odd numbers are there at first.
    Arrays(u64),
}

/// What an operation is on.
#[derive(Clone, Debug)]
enum Choice {
    /// Any of these numbers.
    Any(Range<u64>),
    /// The arrays in turn: each is removed if it is there, else set.
    Arrays(u64),
}

impl Scene {
    /// The plain state, with operations on all of its keys.
    pub(in crate::state) const fn plain(attack: Attack, keys: u64, seed: u64) -> Self {
        Self {
            attack,
            is_attacked: false,
            keys,
            seed,
            extra: Extra::None,
            choice: Choice::Any(0..keys),
            empty_blocks: 0,
            depth: None,
        }
    }

    /// The same as the attack, not as its baseline.
    pub(in crate::state) fn attacking(self) -> Self {
        Self { is_attacked: true, ..self }
    }

    /// Operations on the first `count` plain keys alone.
    pub(in crate::state) fn on_first(self, count: u64) -> Self {
        Self { choice: Choice::Any(0..count), ..self }
    }

    /// Operations on one slot alone.
    pub(in crate::state) fn on_one_slot(self) -> Self {
        Self { choice: Choice::Any(1..2), ..self }
    }

    /// With these keys too, and operations on the first `victims` of them.
    pub(in crate::state) fn with_ground(self, keys: Vec<StateKey>, victims: u64) -> Self {
        let choice = Choice::Any(self.keys..self.keys + victims);
        Self { extra: Extra::Ground(Arc::new(keys)), choice, ..self }
    }

    /// With a contract of so many slots, and operations on these.
    pub(in crate::state) fn with_contract(self, slots: u64) -> Self {
        let choice = Choice::Any(self.keys..self.keys + slots);
        Self { extra: Extra::Contract(slots), choice, ..self }
    }

    /// With arrays of so many slots in all, or some more, half of which are there at a time; and
    /// operations that remove and set them.
    pub(in crate::state) fn with_churn(self, slots: u64) -> Self {
        let arrays = slots.div_ceil(RUN).next_multiple_of(2);
        Self { extra: Extra::Arrays(arrays), choice: Choice::Arrays(arrays), ..self }
    }

    /// With so many empty commits after each that is not.
    pub(in crate::state) fn with_empty_blocks(self, empty_blocks: u64) -> Self {
        Self { empty_blocks, ..self }
    }

    /// With how deep the keys lie that operations are on.
    pub(in crate::state) fn measured(self) -> Self {
        let of: Vec<_> = self.choice().map(|n| self.key(n)).collect();
        let depth = Some(Paths::of(&self.sorted_keys()).depth(&of));
        Self { depth, ..self }
    }

    /// The attack that this is, or is the baseline of.
    pub const fn attack(&self) -> Attack {
        self.attack
    }

    /// What it is called: the attack, or its baseline.
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

    /// Number of keys beside these, as far as they are of the attack.
    pub fn extra_keys(&self) -> u64 {
        match &self.extra {
            Extra::None => 0,
            Extra::Ground(keys) => keys.len() as u64,
            Extra::Contract(slots) => *slots,
            Extra::Arrays(arrays) => arrays * RUN,
        }
    }

    /// How many keys operations are on.
    pub fn attacked_keys(&self) -> u64 {
        let numbers = self.choice();
        numbers.end - numbers.start
    }

    /// Empty commits after each that is not.
    pub const fn empty_blocks(&self) -> u64 {
        self.empty_blocks
    }

    /// How deep these lie in Ethereum's trie, where that is the point.
    pub const fn depth(&self) -> Option<Depth> {
        self.depth
    }

    /// Numbers of the keys that operations are on.
    fn choice(&self) -> Range<u64> {
        match &self.choice {
            Choice::Any(numbers) => numbers.clone(),
            Choice::Arrays(arrays) => self.keys..self.keys + arrays * RUN,
        }
    }

    pub(in crate::state) fn check(&self, commit_every: u64) -> Result<(), BenchError> {
        let keys = self.keys.saturating_add(self.extra_keys());
        if self.keys < 2 || keys >= u64::from(CONTRACT) {
            let what = format!("there are {keys} keys, and must be 2 and less than {CONTRACT}");
            return Err(Setting::Keys.refused(what));
        }
        if let Choice::Arrays(arrays) = self.choice
            && arrays * RUN < commit_every.saturating_mul(2)
        {
            let what = format!("{commit_every} operations a commit are more than slots to churn");
            return Err(Setting::CommitEvery.refused(what));
        }
        Ok(())
    }

    /// A name for its state, fit for a file name.
    pub(in crate::state) fn base_name(&self) -> String {
        let extra = match &self.extra {
            Extra::None => String::new(),
            Extra::Ground(keys) => {
                // They differ by how many were hashed.
                let all: Vec<u8> = keys.iter().flat_map(|key| key.encode().to_vec()).collect();
                let digest = keccak256(all).to_string();
                format!("-ground-{}", &digest[2..18])
            }
            Extra::Contract(slots) => format!("-contract-{slots}"),
            Extra::Arrays(arrays) => format!("-arrays-{arrays}"),
        };
        format!("adversary-{}{extra}-seed-{}-v1", self.keys, self.seed)
    }

    /// All keys of the state in order, with their numbers; those of contracts with that of none.
    pub(in crate::state) fn sorted_keys(&self) -> Vec<(StateKey, u32)> {
        let mut contracts = vec![TOKEN];
        match self.extra {
            Extra::Contract(_) => contracts.push(BIG),
            Extra::Arrays(_) => contracts.push(ARRAYS),
            Extra::None | Extra::Ground(_) => {}
        }
        let contracts = contracts.into_iter().map(|address| (StateKey::Account(address), CONTRACT));
        let mut keys: Vec<_> = contracts.collect();
        // The number fits: `check` has seen to it.
        let numbers = (0..(self.keys + self.extra_keys()) as u32).into_par_iter();
        let present = numbers.filter(|n| self.is_there_at_first((*n).into()));
        keys.par_extend(present.map(|n| (self.key(n.into()), n)));
        keys.par_sort_unstable();
        keys
    }

    /// What an entry of [`sorted_keys`](Self::sorted_keys) holds.
    pub(in crate::state) fn entry_value(&self, key: &StateKey, n: u32) -> Value {
        match n {
            CONTRACT => Account { nonce: 1, balance: U256::from(1), ..Default::default() }.encode(),
            n => self.value_at_first(key, n.into()),
        }
    }

    /// The `n`th key; beyond those of the state, one that is never there.
    pub(in crate::state) fn key(&self, n: u64) -> StateKey {
        let extra = n.checked_sub(self.keys).filter(|at| *at < self.extra_keys());
        match (extra, &self.extra) {
            (Some(at), Extra::Ground(keys)) => keys[at as usize],
            (Some(at), Extra::Contract(_)) => StateKey::Slot(BIG, self.hash(b'b', at).into()),
            (Some(at), Extra::Arrays(_)) => {
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

    /// What the `n`th key holds before the first block.
    pub(in crate::state) fn first_value(&self, n: u64) -> Option<Value> {
        self.is_there_at_first(n).then(|| self.value_at_first(&self.key(n), n))
    }

    fn value_at_first(&self, key: &StateKey, n: u64) -> Value {
        self.draw(key, &mut Random::new(self.seed ^ (n << 32 | 0x5eed)))
    }

    fn is_there_at_first(&self, n: u64) -> bool {
        match (n.checked_sub(self.keys), &self.extra) {
            (None, _) => true,
            (Some(at), Extra::Arrays(_)) => at / RUN % 2 == 1,
            (Some(at), _) => at < self.extra_keys(),
        }
    }

    /// A value for a key.
    pub(in crate::state) fn draw(&self, key: &StateKey, random: &mut Random) -> Value {
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

    /// Number of the key that the `op`th operation of all is on, and whether it removes it.
    pub(in crate::state) fn choose(&self, op: u64, random: &mut Random) -> (u64, bool) {
        match &self.choice {
            Choice::Any(numbers) => {
                (numbers.start + random.below(numbers.end - numbers.start), false)
            }
            Choice::Arrays(arrays) => {
                let (round, array) = (op / RUN / arrays, scatter(op / RUN % arrays, *arrays));
                let is_there = (array + round) % 2 == 1;
                (self.keys + array * RUN + op % RUN, is_there)
            }
        }
    }

    /// Commits that so many operations make.
    pub(in crate::state) const fn commits(&self, ops: u64, commit_every: u64) -> u64 {
        let full = if commit_every == 0 { 0 } else { ops.div_ceil(commit_every) };
        full.saturating_mul(1 + self.empty_blocks)
    }

    /// Operations of the `number`th commit of a part of the race that has `ops` in all.
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

    /// Operations before the `number`th commit that has any. Two by two they have their share; of
    /// arrays the first of the two has any part of it.
    fn begin(&self, number: u64, commit_every: u64) -> u64 {
        let is_even = number.is_multiple_of(2);
        match self.choice {
            Choice::Arrays(_) if !is_even => {
                let of_both = 2 * commit_every;
                let first = 1 + Random::new(self.seed ^ (number << 32)).below(of_both - 1);
                (number - 1) * commit_every + first
            }
            _ => number * commit_every,
        }
    }

    /// Up to `count` keys that have a value at the end, spread evenly over those that operations are
    /// on, and as many that never had one.
    pub(in crate::state) fn keys_to_prove(&self, count: u64) -> [Vec<StateKey>; 2] {
        let Range { start, end } = match &self.choice {
            Choice::Any(numbers) => numbers.clone(),
            // Which of these are there is another question.
            Choice::Arrays(_) => 0..self.keys,
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

    fn churn() -> Scene {
        Scene::plain(Attack::Churn, 100, 5).with_churn(500).attacking()
    }

    #[test]
    fn plain_state_is_half_accounts_and_half_slots_of_one_contract() {
        let scene = Scene::plain(Attack::TinyBlocks, 101, 5);
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
        let mut random = Random::new(1);
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
        let even = Scene::plain(Attack::EmptyBlocks, 100, 5).with_empty_blocks(3);
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
        let (scene, mut random, mut op) = (churn(), Random::new(1), 0);
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
