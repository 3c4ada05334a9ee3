//! The stream of blocks, a function of the workload and its seed.

use super::{
    base::RandomBase,
    block::{CommitBlock, KeyOp, ReadDigest},
    trace::TraceCursor,
    workload::{InitialKeys, KeyDistribution, StoreWorkload},
};
use crate::random::{SplitMix64, ZipfDistribution, scatter, slot_value};
use retrie_state::{StateKey, StateValue};
use std::collections::HashMap;

/// Number of written keys that are read once more at the end.
const READ_BACK: usize = 1000;

/// An iterator over the blocks: those of the warm-up, then the measured ones.
#[derive(Clone, Debug)]
pub struct CommitStream<'a> {
    workload: &'a StoreWorkload,
    base: RandomBase,
    random: SplitMix64,
    zipf: Option<ZipfDistribution>,
    /// The model of the changed part of the state: for each written key, the random generator as it
    /// was before its last value was drawn; `None` if the key was removed. That is 24 bytes per
    /// key; values would take three times as much.
    written: HashMap<u64, Option<SplitMix64>>,
    /// The replay of a trace file, which has a model of its own.
    replay: Option<TraceCursor<'a>>,
    /// Number of operations so far.
    ops: u64,
    /// Number of blocks so far.
    made: u64,
    warmup: u64,
    all: u64,
}

impl<'a> CommitStream<'a> {
    pub(super) fn new(workload: &'a StoreWorkload) -> Self {
        let zipf = match (workload.choice, &workload.keys) {
            (KeyDistribution::Zipf, InitialKeys::Preloaded(keys)) => {
                Some(ZipfDistribution::new(*keys, ZipfDistribution::YCSB))
            }
            _ => None,
        };
        let replay = match &workload.keys {
            InitialKeys::Trace(trace) => Some(trace.cursor()),
            _ => None,
        };
        let warmup = workload.warmup_commits();
        Self {
            workload,
            base: workload.random_base(),
            random: SplitMix64::new(workload.seed),
            zipf,
            written: HashMap::new(),
            replay,
            ops: 0,
            made: 0,
            warmup,
            all: warmup + workload.commits(),
        }
    }

    fn random_block(&mut self, number: u64) -> CommitBlock {
        let len = match number.checked_sub(self.warmup) {
            None => self.workload.commit_len(number, true),
            Some(number) => self.workload.commit_len(number, false),
        };
        let mut block = CommitBlock::default();
        let mut writes = Vec::new();
        for _ in 0..len {
            let (number, removes) = self.choose();
            block.expected.note(self.holds(number).as_ref().map(|value| &value[..]));
            let key = self.key(number);
            // Without read-only operations no random number is drawn here, so the stream is that of
            // plain pairs.
            if self.workload.reads > 0.0 && self.random.fraction() < self.workload.reads {
                block.ops.push(KeyOp::Read(key));
            } else if removes {
                writes.push((number, None));
                block.ops.push(KeyOp::Delete(key));
            } else {
                writes.push((number, Some(self.random.clone())));
                let value = draw(self.workload, &key, &mut self.random);
                block.ops.push(KeyOp::Write(key, value));
            }
        }
        // Only now, because reads see the state before the block.
        self.written.extend(writes);
        block
    }

    /// The value of a key in the model.
    fn holds(&self, number: u64) -> Option<StateValue> {
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

    /// A read-only block of keys that the blocks so far have written: all keys of the last real
    /// block, or up to a thousand random ones, spread evenly. It may be empty.
    pub(crate) fn read_back(&self) -> CommitBlock {
        if let InitialKeys::Real(trace) = &self.workload.keys {
            let last = self.made.checked_sub(1);
            return last.map(|last| trace.read_back(last)).unwrap_or_default();
        }
        if let Some(replay) = &self.replay {
            return replay.read_back();
        }
        let mut numbers: Vec<_> = self.written.keys().copied().collect();
        numbers.sort_unstable();
        let step = numbers.len().div_ceil(READ_BACK).max(1);
        let mut expected = ReadDigest::default();
        let ops = numbers.into_iter().step_by(step).map(|number| {
            expected.note(self.holds(number).as_ref().map(|value| &value[..]));
            KeyOp::Read(self.key(number))
        });
        CommitBlock { ops: ops.collect(), expected }
    }

    /// The number of the next key, and whether the operation removes it.
    fn choose(&mut self) -> (u64, bool) {
        self.ops += 1;
        let number = match (&self.workload.keys, &self.zipf) {
            (InitialKeys::Adversary(scene), _) => {
                return scene.choose(self.ops - 1, &mut self.random);
            }
            // Scattered, so that hot keys are in many contracts.
            (InitialKeys::Preloaded(keys), Some(zipf)) => {
                scatter(zipf.next(&mut self.random), *keys)
            }
            (InitialKeys::Preloaded(keys), None) => self.random.next() % keys,
            _ => self.ops - 1,
        };
        (number, false)
    }
}

/// A new value for a key.
fn draw(workload: &StoreWorkload, key: &StateKey, random: &mut SplitMix64) -> StateValue {
    match workload.scene() {
        Some(scene) => scene.draw(key, random),
        None => slot_value(random),
    }
}

impl Iterator for CommitStream<'_> {
    type Item = CommitBlock;

    fn next(&mut self) -> Option<CommitBlock> {
        let number = self.made;
        if number == self.all {
            return None;
        }
        self.made += 1;
        if let Some(replay) = &mut self.replay {
            return replay.next_block();
        }
        Some(match &self.workload.keys {
            InitialKeys::Real(trace) => trace.block(number),
            _ => self.random_block(number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{KeyLayout, SortedEntries};
    use alloy_primitives::bytes;
    use retrie_state::{Account, StateKey};
    use std::collections::{BTreeMap, BTreeSet};

    fn workload(keys: InitialKeys, layout: KeyLayout) -> StoreWorkload {
        StoreWorkload {
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
        for layout in [KeyLayout::OneContract, KeyLayout::Accounts] {
            let workload = workload(InitialKeys::Preloaded(550), layout);
            let sorted = workload.base().entries();
            let keys = keys(&sorted);
            assert!(sorted.iter().map(|(key, _)| key).eq(keys.iter().copied()));
            let contracts = if layout == KeyLayout::OneContract { 1 } else { 6 };
            assert_eq!(sorted.len(), 550 + contracts);
            let blocks: Vec<_> = workload.stream().collect();
            let lengths: Vec<_> = blocks.iter().map(CommitBlock::writes).collect();
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
        for layout in [KeyLayout::OneContract, KeyLayout::Accounts] {
            let workload = workload(InitialKeys::Fresh, layout);
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

    /// Compares the model with a plain map, over blocks in which keys come twice.
    #[test]
    fn blocks_expect_what_a_plain_map_holds() {
        for (keys, reads) in [
            (InitialKeys::Preloaded(30), 0.0),
            (InitialKeys::Preloaded(300), 0.5),
            (InitialKeys::Fresh, 0.0),
        ] {
            let workload = StoreWorkload { reads, ..workload(keys, KeyLayout::Accounts) };
            let mut state: BTreeMap<_, _> = workload.base().entries().iter().collect();
            let mut stream = workload.stream();
            let check = |state: &BTreeMap<StateKey, StateValue>, block: &CommitBlock| {
                let mut found = ReadDigest::default();
                let values = block.ops.iter().map(|op| state.get(op.key()));
                values.for_each(|value| found.note(value.map(|value| &value[..])));
                assert_eq!(found, block.expected, "{workload:?}");
            };
            assert_eq!(stream.read_back(), CommitBlock::default());
            for block in stream.by_ref() {
                check(&state, &block);
                for op in block.ops {
                    if let KeyOp::Write(key, value) = op {
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

    /// Figures of different years compare only if the workload is the same. The expected values
    /// were computed independently in another language, from splitmix64 and the order of draws.
    #[test]
    fn workload_w_is_the_same_for_ever() {
        let workload = StoreWorkload { warmup: 0, ..Default::default() };
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
            assert_eq!(*op, KeyOp::Write(base.key(key), value));
        }
    }

    #[test]
    fn reads_have_their_share_and_change_nothing() {
        let pairs = workload(InitialKeys::Preloaded(550), KeyLayout::OneContract);
        for (reads, writes) in [(0.0, 950..951), (0.5, 400..550), (0.95, 20..90), (1.0, 0..1)] {
            let workload = StoreWorkload { reads, warmup: 0, ..pairs.clone() };
            let blocks: Vec<_> = workload.stream().collect();
            let sum = |count: fn(&CommitBlock) -> u64| blocks.iter().map(count).sum::<u64>();
            assert_eq!(sum(CommitBlock::reads), 950);
            assert!(
                writes.contains(&sum(CommitBlock::writes)),
                "{reads}: {}",
                sum(CommitBlock::writes)
            );
        }
    }

    #[test]
    fn zipf_takes_few_keys_often() {
        let uniform = workload(InitialKeys::Preloaded(550), KeyLayout::OneContract);
        let zipf = StoreWorkload { choice: KeyDistribution::Zipf, ..uniform.clone() };
        let distinct = |workload: &StoreWorkload| {
            let blocks: Vec<_> = workload.stream().collect();
            let ops = blocks.iter().flat_map(|block| &block.ops);
            ops.map(|op| *op.key()).collect::<BTreeSet<_>>().len()
        };
        let (uniform, zipf) = (distinct(&uniform), distinct(&zipf));
        assert!(zipf < uniform * 3 / 4 && zipf > 50, "{zipf} of {uniform}");
    }
}
