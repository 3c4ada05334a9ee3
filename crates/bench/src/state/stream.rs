//! The stream of blocks. All of it follows from the workload and its seed.

use super::{
    base::RandomBase,
    block::{Block, Op, Reads},
    workload::{Choice, Keys, Workload},
};
use crate::random::{Random, Zipf, scatter, slot_value};
use retrie_state::{StateKey, Value};
use std::collections::HashMap;

/// How many of the keys written are read once more at the end.
const READ_BACK: usize = 1000;

/// Blocks, made as they are asked for: those of the warm-up, then the measured ones.
#[derive(Clone, Debug)]
pub struct BlockStream<'a> {
    workload: &'a Workload,
    base: RandomBase,
    random: Random,
    zipf: Option<Zipf>,
    /// The model of the state, beside what is preloaded: of each key that was written, the generator
    /// as it was when its last value was drawn; `None` where it was removed. 24 bytes a key, where
    /// values would be three times that.
    written: HashMap<u64, Option<Random>>,
    /// Operations made so far.
    ops: u64,
    /// Blocks made so far.
    made: u64,
    warmup: u64,
    all: u64,
}

impl<'a> BlockStream<'a> {
    pub(super) fn new(workload: &'a Workload) -> Self {
        let zipf = match (workload.choice, &workload.keys) {
            (Choice::Zipf, Keys::Preloaded(keys)) => Some(Zipf::new(*keys, Zipf::YCSB)),
            _ => None,
        };
        let warmup = workload.warmup_commits();
        Self {
            workload,
            base: workload.random_base(),
            random: Random::new(workload.seed),
            zipf,
            written: HashMap::new(),
            ops: 0,
            made: 0,
            warmup,
            all: warmup + workload.commits(),
        }
    }

    fn random_block(&mut self, number: u64) -> Block {
        let len = match number.checked_sub(self.warmup) {
            None => self.workload.commit_len(number, true),
            Some(number) => self.workload.commit_len(number, false),
        };
        let mut block = Block::default();
        let mut writes = Vec::new();
        for _ in 0..len {
            let (number, removes) = self.choose();
            block.expected.note(self.holds(number).as_ref().map(|value| &value[..]));
            let key = self.key(number);
            // Without reads the stream is that of the pairs alone.
            if self.workload.reads > 0.0 && self.random.fraction() < self.workload.reads {
                block.ops.push(Op::Read(key));
            } else if removes {
                writes.push((number, None));
                block.ops.push(Op::Delete(key));
            } else {
                writes.push((number, Some(self.random.clone())));
                let value = draw(self.workload, &key, &mut self.random);
                block.ops.push(Op::Write(key, value));
            }
        }
        // Only now: reads see the state before the block.
        self.written.extend(writes);
        block
    }

    /// What the model holds of a key.
    fn holds(&self, number: u64) -> Option<Value> {
        match (self.written.get(&number), self.workload.scene()) {
            (Some(drawn), _) => {
                let mut drawn = drawn.clone()?;
                Some(draw(self.workload, &self.key(number), &mut drawn))
            }
            (None, Some(scene)) => scene.first_value(number),
            (None, None) => self.base.preloaded(number),
        }
    }

    fn key(&self, number: u64) -> StateKey {
        self.workload.scene().map_or_else(|| self.base.key(number), |scene| scene.key(number))
    }

    /// A block that only reads, of keys that the blocks so far have written: those of the last real
    /// block, or up to a thousand random ones, spread evenly. It may be empty.
    pub fn read_back(&self) -> Block {
        if let Keys::Real(trace) = &self.workload.keys {
            let last = self.made.checked_sub(1);
            return last.map(|last| trace.read_back(last)).unwrap_or_default();
        }
        let mut numbers: Vec<_> = self.written.keys().copied().collect();
        numbers.sort_unstable();
        let step = numbers.len().div_ceil(READ_BACK).max(1);
        let mut expected = Reads::default();
        let ops = numbers.into_iter().step_by(step).map(|number| {
            expected.note(self.holds(number).as_ref().map(|value| &value[..]));
            Op::Read(self.key(number))
        });
        Block { ops: ops.collect(), expected }
    }

    /// The number of the next key, and whether it is to be removed.
    fn choose(&mut self) -> (u64, bool) {
        self.ops += 1;
        let number = match (&self.workload.keys, &self.zipf) {
            (Keys::Adversary(scene), _) => return scene.choose(self.ops - 1, &mut self.random),
            // Scattered, so that hot keys are not all in one contract.
            (Keys::Preloaded(keys), Some(zipf)) => scatter(zipf.next(&mut self.random), *keys),
            (Keys::Preloaded(keys), None) => self.random.next() % keys,
            _ => self.ops - 1,
        };
        (number, false)
    }
}

/// A new value for a key.
fn draw(workload: &Workload, key: &StateKey, random: &mut Random) -> Value {
    match workload.scene() {
        Some(scene) => scene.draw(key, random),
        None => slot_value(random),
    }
}

impl Iterator for BlockStream<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let number = self.made;
        if number == self.all {
            return None;
        }
        self.made += 1;
        Some(match &self.workload.keys {
            Keys::Real(trace) => trace.block(number),
            _ => self.random_block(number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Layout, SortedEntries};
    use alloy_primitives::bytes;
    use retrie_state::{Account, StateKey};
    use std::collections::{BTreeMap, BTreeSet};

    fn workload(keys: Keys, layout: Layout) -> Workload {
        Workload {
            keys,
            pairs: 950,
            commit_every: 100,
            warmup: 50,
            slices: 3,
            layout,
            seed: 7,
            ..Default::default()
        }
    }

    fn keys(entries: &SortedEntries) -> BTreeSet<StateKey> {
        entries.iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn preloaded_state_is_sorted_and_has_every_key_of_the_stream() {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(Keys::Preloaded(550), layout);
            let sorted = workload.base().entries();
            let keys = keys(&sorted);
            assert!(sorted.iter().map(|(key, _)| key).eq(keys.iter().copied()));
            let contracts = if layout == Layout::OneContract { 1 } else { 6 };
            assert_eq!(sorted.len(), 550 + contracts);
            let blocks: Vec<_> = workload.stream().collect();
            let lengths: Vec<_> = blocks.iter().map(Block::writes).collect();
            assert_eq!(lengths, [50, 100, 100, 100, 100, 100, 100, 100, 100, 100, 50]);
            assert!(blocks.iter().all(|block| block.expected.present == block.reads()));
            let ops = || blocks.iter().flat_map(|block| &block.ops);
            assert!(ops().all(|op| keys.contains(op.key())));
            assert!(keys.iter().all(|key| keys.contains(&StateKey::Account(*key.address()))));
            for (key, value) in sorted.iter() {
                match key {
                    StateKey::Account(_) => assert!(Account::decode(&value).is_some()),
                    StateKey::Slot(..) => assert!(value.len() == 32 && value[0] != 0),
                }
            }
        }
    }

    #[test]
    fn fresh_keys_are_new_and_their_contracts_known() {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(Keys::Fresh, layout);
            let known = keys(&workload.base().entries());
            let blocks: Vec<_> = workload.stream().collect();
            let ops = blocks.iter().flat_map(|block| &block.ops);
            let keys: BTreeSet<_> = ops.map(|op| *op.key()).collect();
            assert_eq!(keys.len(), 1000);
            assert!(known.is_disjoint(&keys));
            assert!(keys.iter().all(|key| known.contains(&StateKey::Account(*key.address()))));
            assert!(blocks.iter().all(|block| block.expected.present == 0));
        }
    }

    /// The model against a plain map, over blocks in which keys come twice.
    #[test]
    fn blocks_expect_what_a_plain_map_holds() {
        for (keys, reads) in
            [(Keys::Preloaded(30), 0.0), (Keys::Preloaded(300), 0.5), (Keys::Fresh, 0.0)]
        {
            let workload = Workload { reads, ..workload(keys, Layout::Accounts) };
            let mut state: BTreeMap<_, _> = workload.base().entries().iter().collect();
            let mut stream = workload.stream();
            let check = |state: &BTreeMap<StateKey, Value>, block: &Block| {
                let mut found = Reads::default();
                let values = block.ops.iter().map(|op| state.get(op.key()));
                values.for_each(|value| found.note(value.map(|value| &value[..])));
                assert_eq!(found, block.expected, "{workload:?}");
            };
            assert_eq!(stream.read_back(), Block::default());
            for block in stream.by_ref() {
                check(&state, &block);
                for op in block.ops {
                    if let Op::Write(key, value) = op {
                        state.insert(key, value);
                    }
                }
            }
            let last = stream.read_back();
            check(&state, &last);
            assert_eq!(last.expected.present, last.reads());
            assert!(last.reads() >= 25 && last.writes() == 0, "{}", last.reads());
        }
    }

    /// Only then can figures be compared over the years. The numbers come from splitmix64 and the
    /// order of draws, written down a second time in another language.
    #[test]
    fn workload_w_is_the_same_for_ever() {
        let workload = Workload { warmup: 0, ..Default::default() };
        let mut blocks = workload.stream();
        let base = workload.random_base();
        let (first, second) = (blocks.next().unwrap(), blocks.next().unwrap());
        assert_eq!((first.writes(), blocks.all - 2), (1000, 248));
        for (op, key, value) in [
            (
                &first.ops[0],
                822_465,
                bytes!("bfeb8da1658eec67f893a2eefb32555e71c18690ee42c90b71bb54d8d101b5b9"),
            ),
            (
                &second.ops[0],
                633_573,
                bytes!("7bb1331eafecc2f1f217418ad35b582b1f1433b7e5eba6f328419dac394d6818"),
            ),
        ] {
            assert_eq!(*op, Op::Write(base.key(key), value));
        }
    }

    #[test]
    fn reads_have_their_share_and_change_nothing() {
        let pairs = workload(Keys::Preloaded(550), Layout::OneContract);
        for (reads, writes) in [(0.0, 950..951), (0.5, 400..550), (0.95, 20..90), (1.0, 0..1)] {
            let workload = Workload { reads, warmup: 0, ..pairs.clone() };
            let blocks: Vec<_> = workload.stream().collect();
            let sum = |count: fn(&Block) -> u64| blocks.iter().map(count).sum::<u64>();
            assert_eq!(sum(Block::reads), 950);
            assert!(writes.contains(&sum(Block::writes)), "{reads}: {}", sum(Block::writes));
        }
    }

    #[test]
    fn zipf_takes_few_keys_often() {
        let uniform = workload(Keys::Preloaded(550), Layout::OneContract);
        let zipf = Workload { choice: Choice::Zipf, ..uniform.clone() };
        let distinct = |workload: &Workload| {
            let blocks: Vec<_> = workload.stream().collect();
            let ops = blocks.iter().flat_map(|block| &block.ops);
            ops.map(|op| *op.key()).collect::<BTreeSet<_>>().len()
        };
        let (uniform, zipf) = (distinct(&uniform), distinct(&zipf));
        assert!(zipf < uniform * 3 / 4 && zipf > 50, "{zipf} of {uniform}");
    }
}
