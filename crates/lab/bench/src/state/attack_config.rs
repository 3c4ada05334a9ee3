//! Prepares attacks of all kinds and their baselines for a race.

use super::{
    adversary::{AttackKind, AttackScenario, GroundKeyKind, KeyGrinding, PathDepth, TOKEN},
    outcome::{StoreFigures, StoreOutcome},
    workload::{InitialKeys, StoreWorkload},
};
use crate::{
    BenchError, RaceSetting,
    cache::StateCache,
    race::{RaceResult, RaceStep, RaceTerms},
};
use retrie_report::{BaselineRatio, BenchResult};
use retrie_state::StateKey;
use std::sync::{Arc, atomic::AtomicBool};

/// Number of attacked keys, for attacks on few keys.
const VICTIMS: u64 = 10_000;
/// Number of empty commits after each commit with operations.
const EMPTY_BLOCKS: u64 = 10;
/// Default number of slices, unless there are fewer commits.
const SLICES: u64 = 25;

/// Sizes of attacks and baselines.
#[derive(Clone, Debug)]
pub struct AttackConfig {
    /// Number of keys of the plain state.
    pub keys: u64,
    /// Number of measured operations, of the attack and of its baseline each.
    pub pairs: u64,
    /// Number of operations of the warm-up.
    pub warmup: u64,
    /// Operations per commit.
    pub commit_every: u64,
    /// Operations per commit of the attacks that use small commits.
    pub tiny: u64,
    /// Number of slices; by default 25, or the number of commits if that is smaller.
    pub slices: Option<u64>,
    /// Number of slots of the big contract.
    pub slots: u64,
    /// Number of addresses, and number of slots, hashed to find keys with long paths.
    pub grind: u64,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

/// An attack and its baseline.
#[derive(Clone, Debug)]
pub struct AttackPair {
    /// The attack.
    pub workload: StoreWorkload,
    /// The baseline: the same number of plain operations on the plain state.
    pub baseline: StoreWorkload,
    /// The result of grinding, in words.
    pub note: Option<String>,
}

impl AttackConfig {
    /// Rejects sizes with which one of `attacks` cannot be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self, attacks: &[AttackKind]) -> Result<(), BenchError> {
        // Key numbers have 32 bits.
        let most = u64::from(u32::MAX) / 4;
        for (setting, what, count, least, most) in [
            (RaceSetting::Keys, "keys", self.keys, 2, most),
            (RaceSetting::Slots, "slots", self.slots, 2, most),
            (RaceSetting::Pairs, "measured operations", self.pairs, 1, 1 << 40),
            (RaceSetting::Warmup, "operations before them", self.warmup, 0, 1 << 40),
            (RaceSetting::CommitEvery, "operations a commit", self.commit_every, 1, most),
            (RaceSetting::Tiny, "operations of a tiny commit", self.tiny, 1, most),
        ] {
            if !(least..=most).contains(&count) {
                let what = format!("the number of {what} is {count}, and must lie between");
                return Err(setting.refused(format!("{what} {least} and {most}")));
            }
        }
        let (least, most) = (self.victims(), u64::from(u32::MAX));
        if attacks.contains(&AttackKind::GroundKeys) && !(least..=most).contains(&self.grind) {
            let what = format!("{} keys are to be hashed to find {least} with long", self.grind);
            return Err(RaceSetting::Grind.refused(format!("{what} paths, and {most} at most")));
        }
        attacks.iter().try_for_each(|attack| {
            let [attacked, baseline] = self.workloads(*attack, None);
            attacked.check()?;
            baseline.check()
        })
    }

    /// Prepares the attack and its baseline. Ground keys come from `cache` if they were found
    /// before; otherwise they are ground now, on all cores. `progress` is called with the number of
    /// hashed keys.
    ///
    /// # Errors
    /// A wrong setting, [`BenchError::Stopped`], or an error of the cache.
    pub fn prepare(
        &self,
        attack: AttackKind,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<AttackPair, BenchError> {
        self.check(&[attack])?;
        let mut note = None;
        let [workload, baseline] = match attack {
            AttackKind::GroundKeys => {
                let ground = self.grind(cache, stop, progress)?;
                let workloads = self.workloads(attack, Some(&ground));
                let [attacked, plain] =
                    workloads.each_ref().map(|one| one.scene().and_then(AttackScenario::depth));
                note = attacked
                    .zip(plain)
                    .map(|(attacked, plain)| self.words(&ground, attacked, plain));
                workloads
            }
            _ => self.workloads(attack, None),
        };
        Ok(AttackPair { workload, baseline, note })
    }

    /// Number of attacked keys, for attacks on few keys: one half accounts, one half slots.
    fn victims(&self) -> u64 {
        VICTIMS.min(self.keys) / 2 * 2
    }

    fn grind(
        &self,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<GroundKeys, BenchError> {
        let total = 2 * self.grind;
        let mut run = |kind, before: u64| {
            // Both fit, because `check` limits them.
            let (effort, victims) = (self.grind as u32, (self.victims() / 2) as u32);
            let grinding = KeyGrinding { kind, effort, victims, seed: self.seed };
            let found = grinding.run(cache, stop, &mut |hashed| {
                progress(RaceStep::Grinding { done: before + hashed, total });
            })?;
            Ok::<_, BenchError>((grinding, found))
        };
        let (accounts, of_accounts) = run(GroundKeyKind::Accounts, 0)?;
        let (slots, of_slots) = run(GroundKeyKind::Slots(TOKEN), self.grind)?;
        let victims = of_accounts.victims.iter().zip(&of_slots.victims);
        let mut keys: Vec<_> = victims
            .flat_map(|(account, slot)| [accounts.key(*account), slots.key(*slot)])
            .collect();
        let victims = keys.len() as u64;
        keys.extend(of_accounts.siblings.iter().map(|n| accounts.key(*n)));
        keys.extend(of_slots.siblings.iter().map(|n| slots.key(*n)));
        Ok(GroundKeys { keys, victims, seconds: of_accounts.seconds + of_slots.seconds })
    }

    /// The result of grinding, in words.
    fn words(&self, ground: &GroundKeys, attacked: PathDepth, plain: PathDepth) -> String {
        format!(
            "ground-keys: {} addresses and as many slots hashed in {:.1} s; {} of each are attacked, {} more \
             make the branches of their paths. In Ethereum's trie these have {:.2} branches on average and \
             {} at most, the lowest one below {:.2} nibbles ({}); those of plain keys {:.2} and {}, below \
             {:.2} nibbles ({})",
            self.grind,
            ground.seconds,
            ground.victims / 2,
            ground.keys.len() as u64 - ground.victims,
            attacked.mean,
            attacked.most,
            attacked.mean_nibbles,
            attacked.most_nibbles,
            plain.mean,
            plain.most,
            plain.mean_nibbles,
            plain.most_nibbles
        )
    }

    /// The workloads of the attack and of its baseline. Without ground keys their attack uses plain
    /// keys.
    fn workloads(&self, attack: AttackKind, ground: Option<&GroundKeys>) -> [StoreWorkload; 2] {
        let plain = AttackScenario::plain(attack, self.keys, self.seed);
        let few = plain.clone().on_first(self.victims());
        let [c, tiny] = [self.commit_every, self.tiny];
        let [(attacked, its_commits), (baseline, plain_commits)] = match (attack, ground) {
            (AttackKind::GroundKeys, Some(ground)) => {
                let attacked = few.clone().with_ground(ground.keys.clone(), ground.victims);
                [(attacked.measured(), c), (few.measured(), c)]
            }
            (AttackKind::GroundKeys, None) => [(few.clone(), c), (few, c)],
            (AttackKind::BigContract, _) => {
                [(plain.clone().with_contract(self.slots), c), (plain, c)]
            }
            (AttackKind::TinyBlocks, _) => [(plain.clone(), tiny), (plain, c)],
            (AttackKind::EmptyBlocks, _) => {
                [(plain.clone().with_empty_blocks(EMPTY_BLOCKS), c), (plain, c)]
            }
            (AttackKind::OneSlot, _) => [(plain.clone().on_one_slot(), tiny), (plain, tiny)],
            (AttackKind::Churn, _) => {
                // More slots than a commit has operations, so that no commit changes a slot twice.
                let attacked = plain.with_churn(self.victims().max(c.saturating_mul(3)));
                let as_many = attacked.attacked_keys().min(self.keys);
                [(attacked, c), (few.on_first(as_many), c)]
            }
        };
        let workload = |scene: AttackScenario, commit_every| StoreWorkload {
            keys: InitialKeys::Adversary(Arc::new(scene)),
            pairs: self.pairs,
            commit_every,
            warmup: self.warmup,
            seed: self.seed,
            ..StoreWorkload::default()
        };
        let mut workloads =
            [workload(attacked.attacking(), its_commits), workload(baseline, plain_commits)];
        let commits = workloads.iter().map(StoreWorkload::commits).min().unwrap_or(0);
        let slices = self.slices.unwrap_or_else(|| commits.min(SLICES));
        workloads.iter_mut().for_each(|workload| workload.slices = slices);
        workloads
    }
}

impl AttackPair {
    /// The outcomes of [`StoreRace::run_beside`](super::StoreRace::run_beside) as results of
    /// `--json`: those of the baseline, then those of the attack with their ratio to the baseline.
    pub fn results(
        &self,
        baseline: &[StoreOutcome],
        raced: &RaceResult<StoreFigures>,
        terms: &RaceTerms,
    ) -> Vec<BenchResult> {
        let result = |outcome: &StoreOutcome, workload: &StoreWorkload| BenchResult {
            workload: "adversary".into(),
            free_bytes: outcome.figures.free_bytes,
            ..outcome.result(workload, terms)
        };
        let mut results: Vec<_> = baseline.iter().map(|one| result(one, &self.baseline)).collect();
        results.extend(raced.outcomes.iter().zip(baseline).map(|(outcome, plain)| BenchResult {
            of_baseline: Some(baseline_ratio(outcome, plain)),
            ..result(outcome, &self.workload)
        }));
        results
    }
}

/// The rates of a store under an attack, relative to its rates on the baseline.
pub fn baseline_ratio(attacked: &StoreOutcome, baseline: &StoreOutcome) -> BaselineRatio {
    let ratio = attacked.ratio_to(baseline);
    let sustained = attacked.sustained_rate() / baseline.sustained_rate().max(f64::MIN_POSITIVE);
    BaselineRatio { median: ratio.median, spread: ratio.spread(), sustained }
}

/// Keys found by grinding. The attacked keys come first.
struct GroundKeys {
    keys: Vec<StateKey>,
    victims: u64,
    seconds: f64,
}
