//! The workload of a race of state stores: its keys, its preloaded state, and its blocks.

use super::{
    adversary::AttackScenario,
    base::{RandomBase, StateBase},
    block::CommitBlock,
    real::AccessTrace,
    stream::CommitStream,
    trace::RecordedTrace,
};
use crate::{BenchError, RaceSetting};
use retrie_state::StateKey;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Slots per contract under [`KeyLayout::Accounts`].
pub(crate) const SLOTS_PER_ACCOUNT: u64 = 100;

/// How many commits are proven at most, each by one proof of its keys.
const PROVEN_COMMITS: usize = 32;

/// How 32-byte keys become state keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyLayout {
    /// Every key is a slot of one contract: one large flat key space, as in the LVMT paper.
    #[default]
    OneContract,
    /// 100 slots per contract: many small storages, and an account trie above.
    Accounts,
}

/// The keys before the first block.
#[derive(Clone, Debug)]
pub enum InitialKeys {
    /// This number of keys is preloaded; each operation is on one of them.
    Preloaded(u64),
    /// No key is preloaded; each pair reads a new key, which is absent, and writes it.
    Fresh,
    /// The keys of real blocks.
    Real(Arc<AccessTrace>),
    /// The keys of a trace file, whose blocks run forward only.
    Trace(Arc<RecordedTrace>),
    /// The keys of an attack or of its baseline.
    Adversary(Arc<AttackScenario>),
}

impl std::fmt::Display for InitialKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Preloaded(keys) => write!(f, "{keys}"),
            Self::Fresh => f.write_str("fresh"),
            Self::Real(_) => f.write_str("real"),
            Self::Trace(_) => f.write_str("trace"),
            Self::Adversary(scene) => f.write_str(&scene.name()),
        }
    }
}

/// How operations choose among the preloaded keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyDistribution {
    /// All keys are equally likely.
    #[default]
    Uniform,
    /// A few keys are frequent: the scrambled Zipfian distribution of YCSB, with its constant 0.99.
    Zipf,
}

/// One variant of the workload: operations on a preloaded state. By default these are random pairs,
/// a read and then a write of the same key.
#[derive(Clone, Debug)]
pub struct StoreWorkload {
    /// The keys before the first block.
    pub keys: InitialKeys,
    /// Number of measured operations. Real blocks run until this number is reached; a trace also
    /// ends with its last block.
    pub pairs: u64,
    /// Operations per commit. Real blocks have their own numbers.
    pub commit_every: u64,
    /// Number of operations of the warm-up.
    pub warmup: u64,
    /// Number of slices into which the measured operations are divided.
    pub slices: u64,
    /// How keys become state keys.
    pub layout: KeyLayout,
    /// The share of operations that only read, 0 to 1. The others read, then write.
    pub reads: f64,
    /// How operations choose their keys.
    pub choice: KeyDistribution,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

impl Default for StoreWorkload {
    /// Workload W of the LVMT paper's authors: 250,000 pairs on a million keys, 1,000 per commit.
    fn default() -> Self {
        Self {
            keys: InitialKeys::Preloaded(1_000_000),
            pairs: 250_000,
            commit_every: 1000,
            warmup: 25_000,
            slices: 25,
            layout: KeyLayout::OneContract,
            reads: 0.0,
            choice: KeyDistribution::Uniform,
            seed: 1,
        }
    }
}

impl StoreWorkload {
    /// Checks whether the workload can be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self) -> Result<(), BenchError> {
        if let InitialKeys::Preloaded(keys) = self.keys
            && !(1..u64::from(u32::MAX)).contains(&keys)
        {
            let most = u32::MAX - 1;
            let what = format!("the number of keys is {keys}, and must lie between 1 and {most}");
            return Err(RaceSetting::Keys.refused(what));
        }
        if self.pairs == 0 {
            return Err(RaceSetting::Pairs.refused("there must be 1 measured operation at least"));
        }
        if self.commit_every == 0 {
            return Err(RaceSetting::CommitEvery.refused("a commit must have 1 operation at least"));
        }
        if !(0.0..=1.0).contains(&self.reads) {
            let what = "reads alone are a part of all operations, which must lie between 0 and 1";
            return Err(RaceSetting::Reads.refused(what));
        }
        let has_choice = matches!(self.keys, InitialKeys::Preloaded(_));
        if !has_choice && (self.reads != 0.0 || self.choice != KeyDistribution::Uniform) {
            let what = "reads alone and hot keys are of preloaded keys, and there are none";
            return Err(RaceSetting::Choice.refused(format!("{what}: keys are {}", self.keys)));
        }
        if let InitialKeys::Adversary(scene) = &self.keys {
            scene.check(self.commit_every)?;
        }
        let commits = self.commits();
        if let (InitialKeys::Trace(trace), 0) = (&self.keys, commits) {
            let what = format!(
                "the trace has {} blocks, and no block is left after the warm-up",
                trace.figures().blocks
            );
            return Err(RaceSetting::Warmup.refused(what));
        }
        if !(1..=commits).contains(&self.slices) {
            let what = "the number of slices must lie between 1 and";
            let what = format!("{what} {commits}, the number of measured commits");
            return Err(RaceSetting::Slices.refused(what));
        }
        Ok(())
    }

    /// Number of measured commits. The last one may be shorter.
    pub fn commits(&self) -> u64 {
        match &self.keys {
            InitialKeys::Real(trace) => {
                let warmup = self.warmup_commits();
                trace.blocks_for(warmup, self.pairs)
            }
            InitialKeys::Trace(trace) => trace.blocks_for(self.warmup_commits(), self.pairs),
            InitialKeys::Adversary(scene) => scene.commits(self.pairs, self.commit_every),
            _ => self.pairs.div_ceil(self.commit_every.max(1)),
        }
    }

    /// Number of commits before the measured ones.
    pub(crate) fn warmup_commits(&self) -> u64 {
        match &self.keys {
            InitialKeys::Real(trace) => trace.blocks_for(0, self.warmup),
            InitialKeys::Trace(trace) => trace.blocks_for(0, self.warmup),
            InitialKeys::Adversary(scene) => scene.commits(self.warmup, self.commit_every),
            _ => self.warmup.div_ceil(self.commit_every.max(1)),
        }
    }

    /// Number of operations of the `number`th commit of the warm-up or of the measured part. Not
    /// for real blocks, which have their own numbers.
    pub(super) fn commit_len(&self, number: u64, is_warmup: bool) -> u64 {
        let ops = if is_warmup { self.warmup } else { self.pairs };
        match &self.keys {
            InitialKeys::Adversary(scene) => scene.commit_len(number, ops, self.commit_every),
            _ => (ops - number * self.commit_every).min(self.commit_every),
        }
    }

    /// The scenario, if this is an attack or its baseline.
    pub fn scene(&self) -> Option<&AttackScenario> {
        match &self.keys {
            InitialKeys::Adversary(scene) => Some(scene),
            _ => None,
        }
    }

    /// The preloaded state.
    pub fn base(&self) -> StateBase {
        match &self.keys {
            InitialKeys::Real(trace) => StateBase::Real(trace.clone()),
            InitialKeys::Trace(trace) => StateBase::Trace(trace.clone()),
            InitialKeys::Adversary(scene) => StateBase::Adversary(scene.clone()),
            _ => StateBase::Random(self.random_base()),
        }
    }

    pub(super) fn random_base(&self) -> RandomBase {
        let keys = match self.keys {
            InitialKeys::Preloaded(keys) => keys,
            _ => 0,
        };
        // The contracts of later keys exist from the start, so only slots are inserted.
        let contracts = match (self.layout, &self.keys) {
            (KeyLayout::OneContract, _) => 1,
            (KeyLayout::Accounts, InitialKeys::Preloaded(keys)) => keys.div_ceil(SLOTS_PER_ACCOUNT),
            (KeyLayout::Accounts, _) => (self.warmup + self.pairs).div_ceil(SLOTS_PER_ACCOUNT),
        };
        RandomBase { keys, contracts, layout: self.layout, seed: self.seed }
    }

    /// Up to `count` keys that have a value at the end, spread evenly, and the same number of keys
    /// that never have a value.
    pub fn keys_to_prove(&self, count: u64) -> [Vec<StateKey>; 2] {
        let base = self.random_base();
        let spread = |all: u64, key: &dyn Fn(u64) -> StateKey| {
            let count = count.min(all);
            let present = (0..count).map(|n| key(n * all / count)).collect();
            [present, (all..all + count).map(|n| base.key(n)).collect()]
        };
        match &self.keys {
            InitialKeys::Preloaded(keys) => spread(*keys, &|n| base.key(n)),
            InitialKeys::Fresh => spread(self.warmup + self.pairs, &|n| base.key(n)),
            InitialKeys::Real(trace) => {
                let lasting = trace.lasting_keys();
                spread(lasting.len() as u64, &|n| lasting[n as usize])
            }
            InitialKeys::Trace(trace) => {
                let lasting = trace.lasting_keys();
                spread(lasting.len() as u64, &|n| lasting[n as usize])
            }
            InitialKeys::Adversary(scene) => scene.keys_to_prove(count),
        }
    }

    /// The different keys of some commits, in order, those of the first ones: at most `count`, and
    /// at most 32.
    pub fn commits_to_prove(&self, count: u64) -> Vec<Vec<StateKey>> {
        let keys = |block: CommitBlock| {
            let mut keys: Vec<StateKey> = block.ops.iter().map(|op| *op.key()).collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        let count = usize::try_from(count).unwrap_or(PROVEN_COMMITS).min(PROVEN_COMMITS);
        self.stream().take(count).map(keys).filter(|keys| !keys.is_empty()).collect()
    }

    /// All blocks in order, starting with the warm-up.
    pub fn stream(&self) -> CommitStream<'_> {
        CommitStream::new(self)
    }

    /// The params of a result. Params with their default value are left out.
    pub(super) fn params(&self) -> Map<String, Value> {
        let keys = match &self.keys {
            InitialKeys::Preloaded(keys) => json!(keys),
            InitialKeys::Adversary(scene) => json!(scene.keys()),
            InitialKeys::Fresh | InitialKeys::Real(_) | InitialKeys::Trace(_) => {
                json!(self.keys.to_string())
            }
        };
        let mut params = Map::new();
        let mut set = |name: &str, value: Value| params.insert(name.into(), value);
        set("keys", keys);
        set("pairs", json!(self.pairs));
        match &self.keys {
            InitialKeys::Real(trace) => {
                set("blocks", json!(trace.figures().blocks));
                set("pad_accounts", json!(trace.padding().accounts));
                set("pad_slots", json!(trace.padding().slots));
            }
            InitialKeys::Trace(trace) => {
                set("trace", json!(trace.source()));
                set("blocks", json!(trace.figures().blocks));
                if !trace.padding().is_none() {
                    set("pad_accounts", json!(trace.padding().accounts));
                    set("pad_slots", json!(trace.padding().slots));
                }
            }
            InitialKeys::Adversary(scene) => {
                set("attack", json!(scene.name()));
                set("commit_every", json!(self.commit_every));
                set("seed", json!(self.seed));
                set("attacked_keys", json!(scene.attacked_keys()));
                if scene.extra_keys() > 0 {
                    set("extra_keys", json!(scene.extra_keys()));
                }
                if scene.empty_blocks() > 0 {
                    set("empty_blocks", json!(scene.empty_blocks()));
                }
                if let Some(depth) = scene.depth() {
                    set("path_branches", json!(depth.mean));
                    set("most_path_branches", json!(depth.most));
                    set("path_nibbles", json!(depth.mean_nibbles));
                    set("most_path_nibbles", json!(depth.most_nibbles));
                }
            }
            _ => {
                set("commit_every", json!(self.commit_every));
                set("layout", json!(self.layout));
                set("seed", json!(self.seed));
            }
        }
        if self.reads > 0.0 {
            set("reads", json!(self.reads));
        }
        if self.choice != KeyDistribution::Uniform {
            set("keys_by", json!(self.choice));
        }
        set("warmup", json!(self.warmup));
        set("slices", json!(self.slices));
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_refused() {
        let keys = InitialKeys::Preloaded(10);
        let good =
            StoreWorkload { keys, pairs: 950, commit_every: 100, slices: 3, ..Default::default() };
        assert!(good.check().is_ok());
        assert!(
            StoreWorkload { reads: 1.0, choice: KeyDistribution::Zipf, ..good.clone() }
                .check()
                .is_ok()
        );
        let refused = [
            StoreWorkload { keys: InitialKeys::Preloaded(0), ..good.clone() },
            StoreWorkload { keys: InitialKeys::Preloaded(1 << 32), ..good.clone() },
            StoreWorkload { pairs: 0, ..good.clone() },
            StoreWorkload { commit_every: 0, ..good.clone() },
            StoreWorkload { slices: 0, ..good.clone() },
            StoreWorkload { slices: 11, ..good.clone() },
            StoreWorkload { reads: -0.1, ..good.clone() },
            StoreWorkload { reads: f64::NAN, ..good.clone() },
            StoreWorkload { keys: InitialKeys::Fresh, reads: 0.5, ..good.clone() },
            StoreWorkload { keys: InitialKeys::Fresh, choice: KeyDistribution::Zipf, ..good },
        ];
        for workload in refused {
            assert!(workload.check().is_err(), "{workload:?}");
        }
    }
}
