//! Attacks of all kinds and their baselines, made ready for a race.

use super::{
    adversary::{Attack, Depth, Grinding, Kind, Scene, TOKEN},
    contender::Terms,
    outcome::Outcome,
    race::Progress,
    raced::Raced,
    workload::{Keys, Workload},
};
use crate::{
    BenchError, Setting,
    cache::StateCache,
    report::{BenchResult, OfBaseline},
};
use retrie_state::StateKey;
use std::sync::{Arc, atomic::AtomicBool};

/// How many keys are attacked where an attack is on a few.
const VICTIMS: u64 = 10_000;
/// Commits without any operation after each that has some.
const EMPTY_BLOCKS: u64 = 10;
/// Slices, unless there are fewer commits.
const SLICES: u64 = 25;

/// How large attacks and baselines are.
#[derive(Clone, Debug)]
pub struct Siege {
    /// Keys of the plain state.
    pub keys: u64,
    /// Operations measured: of the attack, and of its baseline.
    pub pairs: u64,
    /// Operations before these.
    pub warmup: u64,
    /// Operations a commit.
    pub commit_every: u64,
    /// Operations a commit where an attack is on commits.
    pub tiny: u64,
    /// Slices; 25 by default, or as many as there are commits.
    pub slices: Option<u64>,
    /// Slots of the big contract.
    pub slots: u64,
    /// Addresses hashed to find ground ones, and as many slots.
    pub grind: u64,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

/// An attack, and what it is held against.
#[derive(Clone, Debug)]
pub struct Attacked {
    /// The attack.
    pub workload: Workload,
    /// As many plain operations on the plain state.
    pub baseline: Workload,
    /// What was found by grinding, in words.
    pub note: Option<String>,
}

impl Siege {
    /// Refuses what cannot be run of these `attacks`.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self, attacks: &[Attack]) -> Result<(), BenchError> {
        // Numbers of keys have 32 bits.
        let most = u64::from(u32::MAX) / 4;
        for (setting, what, count, least, most) in [
            (Setting::Keys, "keys", self.keys, 2, most),
            (Setting::Slots, "slots", self.slots, 2, most),
            (Setting::Pairs, "measured operations", self.pairs, 1, 1 << 40),
            (Setting::Warmup, "operations before them", self.warmup, 0, 1 << 40),
            (Setting::CommitEvery, "operations a commit", self.commit_every, 1, most),
            (Setting::Tiny, "operations of a tiny commit", self.tiny, 1, most),
        ] {
            if !(least..=most).contains(&count) {
                let what = format!("the number of {what} is {count}, and must lie between");
                return Err(setting.refused(format!("{what} {least} and {most}")));
            }
        }
        let (least, most) = (self.victims(), u64::from(u32::MAX));
        if attacks.contains(&Attack::GroundKeys) && !(least..=most).contains(&self.grind) {
            let what = format!("{} keys are to be hashed to find {least} with long", self.grind);
            return Err(Setting::Grind.refused(format!("{what} paths, and {most} at most")));
        }
        attacks.iter().try_for_each(|attack| {
            let [attacked, baseline] = self.workloads(*attack, None);
            attacked.check()?;
            baseline.check()
        })
    }

    /// The attack and its baseline. Ground keys come from `cache`, if they were found before; else they
    /// are ground now, on all cores. `progress` is told how many were hashed.
    ///
    /// # Errors
    /// A setting that is wrong, [`BenchError::Stopped`], or what the cache meets.
    pub fn prepare(
        &self,
        attack: Attack,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Attacked, BenchError> {
        self.check(&[attack])?;
        let mut note = None;
        let [workload, baseline] = match attack {
            Attack::GroundKeys => {
                let ground = self.grind(cache, stop, progress)?;
                let workloads = self.workloads(attack, Some(&ground));
                let [attacked, plain] =
                    workloads.each_ref().map(|one| one.scene().and_then(Scene::depth));
                note = attacked
                    .zip(plain)
                    .map(|(attacked, plain)| self.words(&ground, attacked, plain));
                workloads
            }
            _ => self.workloads(attack, None),
        };
        Ok(Attacked { workload, baseline, note })
    }

    /// Attacked keys, where they are few: accounts and slots, equally many.
    fn victims(&self) -> u64 {
        VICTIMS.min(self.keys) / 2 * 2
    }

    fn grind(
        &self,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<GroundKeys, BenchError> {
        let total = 2 * self.grind;
        let mut run = |kind, before: u64| {
            // Both fit: `check` has seen to it.
            let (effort, victims) = (self.grind as u32, (self.victims() / 2) as u32);
            let grinding = Grinding { kind, effort, victims, seed: self.seed };
            let found = grinding.run(cache, stop, &mut |hashed| {
                progress(Progress::Grinding { done: before + hashed, total });
            })?;
            Ok::<_, BenchError>((grinding, found))
        };
        let (accounts, of_accounts) = run(Kind::Accounts, 0)?;
        let (slots, of_slots) = run(Kind::Slots(TOKEN), self.grind)?;
        let victims = of_accounts.victims.iter().zip(&of_slots.victims);
        let mut keys: Vec<_> = victims
            .flat_map(|(account, slot)| [accounts.key(*account), slots.key(*slot)])
            .collect();
        let victims = keys.len() as u64;
        keys.extend(of_accounts.siblings.iter().map(|n| accounts.key(*n)));
        keys.extend(of_slots.siblings.iter().map(|n| slots.key(*n)));
        Ok(GroundKeys { keys, victims, seconds: of_accounts.seconds + of_slots.seconds })
    }

    /// What grinding has found, in words.
    fn words(&self, ground: &GroundKeys, attacked: Depth, plain: Depth) -> String {
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

    /// The attack, then its baseline. Without ground keys their attack is on plain ones.
    fn workloads(&self, attack: Attack, ground: Option<&GroundKeys>) -> [Workload; 2] {
        let plain = Scene::plain(attack, self.keys, self.seed);
        let few = plain.clone().on_first(self.victims());
        let [c, tiny] = [self.commit_every, self.tiny];
        let [(attacked, its_commits), (baseline, plain_commits)] = match (attack, ground) {
            (Attack::GroundKeys, Some(ground)) => {
                let attacked = few.clone().with_ground(ground.keys.clone(), ground.victims);
                [(attacked.measured(), c), (few.measured(), c)]
            }
            (Attack::GroundKeys, None) => [(few.clone(), c), (few, c)],
            (Attack::BigContract, _) => [(plain.clone().with_contract(self.slots), c), (plain, c)],
            (Attack::TinyBlocks, _) => [(plain.clone(), tiny), (plain, c)],
            (Attack::EmptyBlocks, _) => {
                [(plain.clone().with_empty_blocks(EMPTY_BLOCKS), c), (plain, c)]
            }
            (Attack::OneSlot, _) => [(plain.clone().on_one_slot(), tiny), (plain, tiny)],
            (Attack::Churn, _) => {
                // More than a commit, so that none changes a slot twice.
                let attacked = plain.with_churn(self.victims().max(c.saturating_mul(3)));
                let as_many = attacked.attacked_keys().min(self.keys);
                [(attacked, c), (few.on_first(as_many), c)]
            }
        };
        let workload = |scene: Scene, commit_every| Workload {
            keys: Keys::Adversary(Arc::new(scene)),
            pairs: self.pairs,
            commit_every,
            warmup: self.warmup,
            seed: self.seed,
            ..Workload::default()
        };
        let mut workloads =
            [workload(attacked.attacking(), its_commits), workload(baseline, plain_commits)];
        let commits = workloads.iter().map(Workload::commits).min().unwrap_or(0);
        let slices = self.slices.unwrap_or_else(|| commits.min(SLICES));
        workloads.iter_mut().for_each(|workload| workload.slices = slices);
        workloads
    }
}

impl Attacked {
    /// What [`Race::run_beside`](super::Race::run_beside) gave, as results of `--json`: those of the
    /// baseline, then those of the attack, which say how fast each store was beside itself.
    pub fn results(&self, baseline: &[Outcome], raced: &Raced, terms: &Terms) -> Vec<BenchResult> {
        let result = |outcome: &Outcome, workload: &Workload| BenchResult {
            workload: "adversary".into(),
            free_bytes: outcome.free_bytes,
            ..outcome.result(raced.params(workload, terms))
        };
        let mut results: Vec<_> = baseline.iter().map(|one| result(one, &self.baseline)).collect();
        results.extend(raced.outcomes.iter().zip(baseline).map(|(outcome, plain)| BenchResult {
            of_baseline: Some(of_baseline(outcome, plain)),
            ..result(outcome, &self.workload)
        }));
        results
    }
}

/// How fast a store is under an attack beside itself on the baseline.
pub fn of_baseline(attacked: &Outcome, baseline: &Outcome) -> OfBaseline {
    let ratio = attacked.ratio_to(baseline);
    let sustained = attacked.sustained_rate() / baseline.sustained_rate().max(f64::MIN_POSITIVE);
    OfBaseline { median: ratio.median, spread: ratio.spread(), sustained }
}

/// Keys found by grinding, those that are attacked first.
struct GroundKeys {
    keys: Vec<StateKey>,
    victims: u64,
    seconds: f64,
}
