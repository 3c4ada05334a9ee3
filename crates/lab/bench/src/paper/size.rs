//! The size at which a paper's experiments are run.

use super::{ExperimentSetup, setup::is_full_tree};
use std::{fmt, str::FromStr};

/// The size of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlanSize {
    /// The paper's sizes times this factor ([`ExperimentSetup::scaled`]).
    Scale(f64),
    /// A named size.
    Preset(PlanPreset),
}

/// A named size of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanPreset {
    /// The paper's own sizes.
    Paper,
    /// What a machine of 2 cores and 24 GiB of memory does within an hour a repetition, all five
    /// papers together: the paper's sizes up to 10^6 keys or accounts, 2·10^5 pairs, 6·10^4
    /// transactions, 10^3 blocks of COLE with as many levels as at 10^5, trees in files of
    /// height 20, trees in memory of 10^5 elements.
    Laptop,
    /// The smallest sizes at which everything still runs, within minutes and without any data.
    Smoke,
}

/// The scale of [`PlanPreset::Smoke`]: small numbers, so that most are at their floor.
const SMOKE_SCALE: f64 = 1e-4;

/// Sizes of [`PlanPreset::Smoke`] that are not scaled.
mod smoke {
    pub(super) const TXS: u64 = 1000;
    pub(super) const ACCOUNTS: u64 = 1000;
    pub(super) const PAIRS: u64 = 1000;
}

/// The largest sizes of [`PlanPreset::Laptop`].
mod laptop {
    pub(super) const KEYS: u64 = 1_000_000;
    pub(super) const PAIRS: u64 = 200_000;
    pub(super) const SENDERS: u64 = 100_000;
    pub(super) const TXS: u64 = 60_000;
    pub(super) const BLOCKS: u64 = 1000;
    /// One hundredth of the paper's, as the blocks are.
    pub(super) const MEMORY_PAIRS: u64 = 4500;
    /// Of trees in files.
    pub(super) const HEIGHT: u32 = 20;
    pub(super) const SAMPLES: u64 = 20_000;
    /// Of trees in memory.
    pub(super) const ELEMENTS: u64 = 100_000;
    pub(super) const SYNC_ELEMENTS: u64 = 50_000;
    pub(super) const SEEDS: u64 = 3;
}

impl Default for PlanSize {
    /// The paper's own.
    fn default() -> Self {
        Self::Preset(PlanPreset::Paper)
    }
}

impl PlanSize {
    /// `setup`, which has the paper's size, at this size.
    pub(super) fn of(self, setup: ExperimentSetup) -> ExperimentSetup {
        match self {
            Self::Scale(scale) => setup.scaled(scale),
            Self::Preset(PlanPreset::Paper) => setup,
            Self::Preset(PlanPreset::Laptop) => on_a_laptop(setup),
            Self::Preset(PlanPreset::Smoke) => as_smoke(setup.scaled(SMOKE_SCALE)),
        }
    }

    /// Whether it is [`PlanPreset::Smoke`], whose figures only show that everything runs.
    pub const fn is_smoke(self) -> bool {
        matches!(self, Self::Preset(PlanPreset::Smoke))
    }
}

impl fmt::Display for PlanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scale(scale) => write!(f, "at {scale} of its size"),
            Self::Preset(PlanPreset::Paper) => f.write_str("at its own size"),
            Self::Preset(preset) => write!(f, "at the preset `{}`", preset.name()),
        }
    }
}

impl PlanPreset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Laptop, Self::Smoke];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Laptop => "laptop",
            Self::Smoke => "smoke",
        }
    }
}

/// No preset has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no preset `{0}`: it is paper, laptop or smoke")]
pub struct UnknownPreset(String);

impl FromStr for PlanPreset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == text);
        found.ok_or_else(|| UnknownPreset(text.into()))
    }
}

fn on_a_laptop(mut setup: ExperimentSetup) -> ExperimentSetup {
    let at_most = |size: &mut u64, most: u64| *size = (*size).min(most);
    match &mut setup {
        ExperimentSetup::State { keys, pairs, .. } => {
            match keys {
                Some(keys) if is_full_tree(*keys) => {
                    at_most(keys, (1 << laptop::KEYS.ilog2()) - 2);
                }
                Some(keys) => at_most(keys, laptop::KEYS),
                None => {}
            }
            at_most(pairs, laptop::PAIRS);
        }
        ExperimentSetup::Chain { accounts, senders, txs, txs_per_block, .. } => {
            at_most(accounts, laptop::KEYS);
            // Ten blocks at least.
            at_most(txs, laptop::TXS.max(10 * txs_per_block.unwrap_or(0)));
            at_most(senders, laptop::SENDERS);
        }
        ExperimentSetup::SmallBank { blocks, memory_pairs, .. }
        | ExperimentSetup::KvStore { blocks, memory_pairs, .. }
        | ExperimentSetup::Provenance { blocks, memory_pairs, .. } => {
            at_most(blocks, laptop::BLOCKS);
            at_most(memory_pairs, laptop::MEMORY_PAIRS);
        }
        ExperimentSetup::Replay { pad_accounts, .. } => {
            pad_accounts.iter_mut().for_each(|accounts| at_most(accounts, laptop::KEYS));
        }
        ExperimentSetup::Locality { heights: (low, high), samples, .. } => {
            at_most(samples, laptop::SAMPLES);
            (*low, *high) = ((*low).min(laptop::HEIGHT), (*high).min(laptop::HEIGHT));
        }
        ExperimentSetup::Trees { elements, .. } => at_most(elements, laptop::ELEMENTS),
        ExperimentSetup::Crypto { .. } => {}
        ExperimentSetup::Sync { elements, seeds, .. } => {
            at_most(elements, laptop::SYNC_ELEMENTS);
            *seeds = Some(laptop::SEEDS);
        }
    }
    setup
}

/// Less of what takes time at any size, and nothing that needs data or a large disk.
fn as_smoke(mut setup: ExperimentSetup) -> ExperimentSetup {
    match &mut setup {
        ExperimentSetup::Chain { own_contracts, txs, .. } => {
            (*own_contracts, *txs) = (true, smoke::TXS);
        }
        ExperimentSetup::Replay { pad_accounts, pairs, .. } => {
            (*pad_accounts, *pairs) = (Some(smoke::ACCOUNTS), Some(smoke::PAIRS));
        }
        ExperimentSetup::Provenance { queries, .. } => *queries = Some(100),
        ExperimentSetup::Locality { cold, .. } => *cold = false,
        ExperimentSetup::Sync { seeds, .. } => *seeds = Some(2),
        ExperimentSetup::Crypto { rounds, .. } => *rounds = 3,
        _ => {}
    }
    setup
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laptop_runs_what_fits_and_smoke_what_is_quick() {
        let run = |preset, keys| {
            let setup = ExperimentSetup::State {
                keys: Some(keys),
                pairs: 10_000_000,
                commit_every: 1000,
                cache_mb: None,
                proofs: 0,
                memory_limit_mb: None,
            };
            match PlanSize::Preset(preset).of(setup) {
                ExperimentSetup::State { keys, pairs, .. } => (keys.unwrap_or(0), pairs),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(run(PlanPreset::Paper, 100_000_000), (100_000_000, 10_000_000));
        assert_eq!(run(PlanPreset::Laptop, 100_000_000), (1_000_000, 200_000));
        assert_eq!(run(PlanPreset::Laptop, (1 << 24) - 2), ((1 << 19) - 2, 200_000));
        assert_eq!(run(PlanPreset::Smoke, 100_000_000), (10_000, 1000));
        assert_eq!("laptop".parse(), Ok(PlanPreset::Laptop));
        assert!("tiny".parse::<PlanPreset>().is_err());
        assert_eq!(PlanSize::Scale(0.01).to_string(), "at 0.01 of its size");
    }
}
