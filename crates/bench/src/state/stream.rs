//! The stream of blocks. All of it follows from the workload and its seed.

use super::{
    base::{RandomBase, value},
    block::{Block, Op},
    workload::{Choice, Keys, Workload},
};
use crate::random::{Random, Zipf};

/// Blocks, made as they are asked for: those of the warm-up, then the measured ones.
#[derive(Clone, Debug)]
pub struct BlockStream<'a> {
    workload: &'a Workload,
    base: RandomBase,
    random: Random,
    zipf: Option<Zipf>,
    next_key: u64,
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
            next_key: 0,
            made: 0,
            warmup,
            all: warmup + workload.commits(),
        }
    }

    fn random_block(&mut self, number: u64) -> Block {
        let Workload { warmup, pairs, commit_every, .. } = *self.workload;
        let left = match number.checked_sub(self.warmup) {
            None => warmup - number * commit_every,
            Some(number) => pairs - number * commit_every,
        };
        let ops: Vec<_> = (0..left.min(commit_every)).map(|_| self.op()).collect();
        let present = match self.workload.keys {
            Keys::Preloaded(_) => ops.len() as u64,
            Keys::Fresh | Keys::Real(_) => 0,
        };
        Block { ops, present }
    }

    fn op(&mut self) -> Op {
        let number = self.choose();
        let key = self.base.key(number);
        // Without reads the stream is that of the pairs alone.
        if self.workload.reads > 0.0 && self.random.fraction() < self.workload.reads {
            return Op::Read(key);
        }
        Op::Write(key, value(&mut self.random))
    }

    fn choose(&mut self) -> u64 {
        match (&self.workload.keys, &self.zipf) {
            (Keys::Preloaded(keys), Some(zipf)) => scatter(zipf.next(&mut self.random), *keys),
            (Keys::Preloaded(keys), None) => self.random.next() % keys,
            _ => {
                self.next_key += 1;
                self.next_key - 1
            }
        }
    }
}

/// Another number below `n` for each number below `n`: so that hot keys are not all in one contract.
const fn scatter(number: u64, n: u64) -> u64 {
    // A large prime: 2^61 - 1.
    (number as u128 * ((1 << 61) - 1) % n as u128) as u64
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
    use std::collections::BTreeSet;

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
            assert!(blocks.iter().all(|block| block.present == block.reads()));
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
