//! The workload: which keys there are, what is preloaded, and how many blocks of what are run.

use super::{
    adversary::Scene,
    base::{Base, RandomBase},
    real::Trace,
    stream::BlockStream,
};
use crate::{BenchError, Setting};
use retrie_state::StateKey;
use serde::Serialize;
use std::sync::Arc;

/// How many slots a contract has under [`Layout::Accounts`].
pub const SLOTS_PER_ACCOUNT: u64 = 100;

/// How keys of 32 bytes become state keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Every key is a slot of one contract: one large flat key space, as in the LVMT paper.
    #[default]
    OneContract,
    /// [`SLOTS_PER_ACCOUNT`] slots a contract: many small storages, and an account trie above.
    Accounts,
}

/// The keys at the start.
#[derive(Clone, Debug)]
pub enum Keys {
    /// This many keys are preloaded; each operation is on one of them.
    Preloaded(u64),
    /// None; each pair reads a new key, which is absent, and writes it.
    Fresh,
    /// Those of real blocks.
    Real(Arc<Trace>),
    /// Those of an attack, or of its baseline.
    Adversary(Arc<Scene>),
}

impl std::fmt::Display for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Preloaded(keys) => write!(f, "{keys}"),
            Self::Fresh => f.write_str("fresh"),
            Self::Real(_) => f.write_str("real"),
            Self::Adversary(scene) => f.write_str(&scene.name()),
        }
    }
}

/// Which of the preloaded keys an operation is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Each as often as any other.
    #[default]
    Uniform,
    /// A few most of the time: the scrambled Zipfian distribution of YCSB, with its constant 0.99.
    Zipf,
}

/// One variant of the workload: operations on a preloaded state. By default these are random pairs,
/// a read and then a write of the same key.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The keys at the start.
    pub keys: Keys,
    /// Operations measured. Real blocks are run until there are as many.
    pub pairs: u64,
    /// Operations a commit; real blocks have their own.
    pub commit_every: u64,
    /// Operations before the measured ones.
    pub warmup: u64,
    /// Into how many slices the measured operations are cut.
    pub slices: u64,
    /// How keys become state keys.
    pub layout: Layout,
    /// The part of all operations that only read, 0 to 1. The others read, then write.
    pub reads: f64,
    /// Which keys they are on.
    pub choice: Choice,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

impl Default for Workload {
    /// Workload W of the LVMT paper's authors: 250,000 pairs on a million keys, 1,000 a commit.
    fn default() -> Self {
        Self {
            keys: Keys::Preloaded(1_000_000),
            pairs: 250_000,
            commit_every: 1000,
            warmup: 25_000,
            slices: 25,
            layout: Layout::OneContract,
            reads: 0.0,
            choice: Choice::Uniform,
            seed: 1,
        }
    }
}

impl Workload {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self) -> Result<(), BenchError> {
        if let Keys::Preloaded(keys) = self.keys
            && !(1..u64::from(u32::MAX)).contains(&keys)
        {
            let most = u32::MAX - 1;
            let what = format!("the number of keys is {keys}, and must lie between 1 and {most}");
            return Err(Setting::Keys.refused(what));
        }
        if self.pairs == 0 {
            return Err(Setting::Pairs.refused("there must be 1 measured operation at least"));
        }
        if self.commit_every == 0 {
            return Err(Setting::CommitEvery.refused("a commit must have 1 operation at least"));
        }
        if !(0.0..=1.0).contains(&self.reads) {
            let what = "reads alone are a part of all operations, which must lie between 0 and 1";
            return Err(Setting::Reads.refused(what));
        }
        let has_choice = matches!(self.keys, Keys::Preloaded(_));
        if !has_choice && (self.reads != 0.0 || self.choice != Choice::Uniform) {
            let what = "reads alone and hot keys are of preloaded keys, and there are none";
            return Err(Setting::Choice.refused(format!("{what}: keys are {}", self.keys)));
        }
        if let Keys::Adversary(scene) = &self.keys {
            scene.check(self.commit_every)?;
        }
        let commits = self.commits();
        if !(1..=commits).contains(&self.slices) {
            let what = "the number of slices must lie between 1 and";
            let what = format!("{what} {commits}, the number of measured commits");
            return Err(Setting::Slices.refused(what));
        }
        Ok(())
    }

    /// Number of measured commits; the last one may be short.
    pub fn commits(&self) -> u64 {
        match &self.keys {
            Keys::Real(trace) => {
                let warmup = self.warmup_commits();
                trace.blocks_for(warmup, self.pairs)
            }
            Keys::Adversary(scene) => scene.commits(self.pairs, self.commit_every),
            _ => self.pairs.div_ceil(self.commit_every.max(1)),
        }
    }

    /// Number of commits before the measured ones.
    pub fn warmup_commits(&self) -> u64 {
        match &self.keys {
            Keys::Real(trace) => trace.blocks_for(0, self.warmup),
            Keys::Adversary(scene) => scene.commits(self.warmup, self.commit_every),
            _ => self.warmup.div_ceil(self.commit_every.max(1)),
        }
    }

    /// Operations of the `number`th commit of the warm-up, or of the measured part; real blocks have
    /// their own.
    pub(super) fn commit_len(&self, number: u64, is_warmup: bool) -> u64 {
        let ops = if is_warmup { self.warmup } else { self.pairs };
        match &self.keys {
            Keys::Adversary(scene) => scene.commit_len(number, ops, self.commit_every),
            _ => (ops - number * self.commit_every).min(self.commit_every),
        }
    }

    /// The attack, if this is one or its baseline.
    pub fn scene(&self) -> Option<&Scene> {
        match &self.keys {
            Keys::Adversary(scene) => Some(scene),
            _ => None,
        }
    }

    /// What is preloaded.
    pub fn base(&self) -> Base {
        match &self.keys {
            Keys::Real(trace) => Base::Real(trace.clone()),
            Keys::Adversary(scene) => Base::Adversary(scene.clone()),
            _ => Base::Random(self.random_base()),
        }
    }

    pub(super) fn random_base(&self) -> RandomBase {
        let keys = match self.keys {
            Keys::Preloaded(keys) => keys,
            Keys::Fresh | Keys::Real(_) | Keys::Adversary(_) => 0,
        };
        // The contracts of keys to come are there from the start: only slots are inserted.
        let contracts = match (self.layout, &self.keys) {
            (Layout::OneContract, _) => 1,
            (Layout::Accounts, Keys::Preloaded(keys)) => keys.div_ceil(SLOTS_PER_ACCOUNT),
            (Layout::Accounts, _) => (self.warmup + self.pairs).div_ceil(SLOTS_PER_ACCOUNT),
        };
        RandomBase { keys, contracts, layout: self.layout, seed: self.seed }
    }

    /// Up to `count` keys that have a value at the end, spread evenly, and as many that never had
    /// one.
    pub fn keys_to_prove(&self, count: u64) -> [Vec<StateKey>; 2] {
        let base = self.random_base();
        let spread = |all: u64, key: &dyn Fn(u64) -> StateKey| {
            let count = count.min(all);
            let present = (0..count).map(|n| key(n * all / count)).collect();
            [present, (all..all + count).map(|n| base.key(n)).collect()]
        };
        match &self.keys {
            Keys::Preloaded(keys) => spread(*keys, &|n| base.key(n)),
            Keys::Fresh => spread(self.warmup + self.pairs, &|n| base.key(n)),
            Keys::Real(trace) => {
                let lasting = trace.lasting_keys();
                spread(lasting.len() as u64, &|n| lasting[n as usize])
            }
            Keys::Adversary(scene) => scene.keys_to_prove(count),
        }
    }

    /// All blocks in order, those of the warm-up first.
    pub fn stream(&self) -> BlockStream<'_> {
        BlockStream::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_refused() {
        let keys = Keys::Preloaded(10);
        let good =
            Workload { keys, pairs: 950, commit_every: 100, slices: 3, ..Default::default() };
        assert!(good.check().is_ok());
        assert!(Workload { reads: 1.0, choice: Choice::Zipf, ..good.clone() }.check().is_ok());
        let refused = [
            Workload { keys: Keys::Preloaded(0), ..good.clone() },
            Workload { keys: Keys::Preloaded(1 << 32), ..good.clone() },
            Workload { pairs: 0, ..good.clone() },
            Workload { commit_every: 0, ..good.clone() },
            Workload { slices: 0, ..good.clone() },
            Workload { slices: 11, ..good.clone() },
            Workload { reads: -0.1, ..good.clone() },
            Workload { reads: f64::NAN, ..good.clone() },
            Workload { keys: Keys::Fresh, reads: 0.5, ..good.clone() },
            Workload { keys: Keys::Fresh, choice: Choice::Zipf, ..good },
        ];
        for workload in refused {
            assert!(workload.check().is_err(), "{workload:?}");
        }
    }
}
