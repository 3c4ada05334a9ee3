//! Block witnesses of real blocks, each on its pre-state within a padded state.

use super::{
    padded::{PaddedStore, PaddingSetup},
    race::ClientEntrant,
};
use crate::{
    BenchError,
    cache::StateCache,
    error::{BackendErrorExt, ClientErrorExt},
    race::{RaceStep, RaceTerms},
    witness::{WitnessOutcome, WitnessTrial},
};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{
    PipelineError,
    replay::{BundleReplay, BundleReplayOptions, SeededBundle, StatePadding},
};
use retrie_sources::Bundle;
use retrie_state::PartialState;
use retrie_state_store::StateId;
use std::sync::atomic::{AtomicBool, Ordering};

/// The blocks of bundles, and the state that they run on.
pub struct RealWitnesses<'a> {
    /// The bundles, of mainnet.
    pub bundles: &'a [Bundle],
    /// The entries of the state beside those that a bundle brings.
    pub padding: StatePadding,
    /// Opens the witnesses of bundles that list no pre-state.
    pub opener: Option<&'a dyn PartialState>,
    /// How many transactions of a block are proven as calls, at most.
    pub calls: usize,
    /// The terms, equal for all stores.
    pub terms: &'a RaceTerms,
    /// The cache of padded states.
    pub cache: &'a StateCache,
    /// Set to stop at the next block.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for RealWitnesses<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealWitnesses")
            .field("bundles", &self.bundles.len())
            .field("padding", &self.padding)
            .finish_non_exhaustive()
    }
}

/// Why a block could not be measured on a seeded store.
enum SeededError {
    Pipeline(PipelineError),
    Bench(BenchError),
}

impl From<PipelineError> for SeededError {
    fn from(error: PipelineError) -> Self {
        Self::Pipeline(error)
    }
}

impl RealWitnesses<'_> {
    /// Measures the witnesses of all blocks on every store, one store after the other.
    ///
    /// # Errors
    /// If a store or a bundle fails; [`BenchError::WrongWitness`] and [`BenchError::WrongProof`] if a
    /// store's own witness or proof does not hold; [`BenchError::Stopped`].
    pub fn run(
        &self,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<WitnessOutcome>, BenchError> {
        let Self { padding, terms, cache, stop, .. } = *self;
        let setup = PaddingSetup { padding, terms, cache, stop };
        let folders = setup.lay_down(entrants, progress)?;
        let mut outcomes = Vec::new();
        for (entrant, folder) in entrants.iter().zip(&folders) {
            let opened = setup.open(entrant, folder.path())?;
            outcomes.push(self.on_store(&opened, progress)?);
        }
        Ok(outcomes)
    }

    fn on_store(
        &self,
        opened: &PaddedStore<'_>,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<WitnessOutcome, BenchError> {
        let backend = opened.name;
        let hash = opened.store.identity().hash.name();
        let mut outcome = WitnessOutcome::new(backend, hash);
        let options = BundleReplayOptions {
            spec: ChainSpec::mainnet(),
            witness_opener: self.opener,
            witnesses: false,
        };
        let replay = BundleReplay::new(&options, &opened.store, &*opened.kv).of_client(backend)?;
        let total = self.bundles.len() as u64;
        for (bundle, done) in self.bundles.iter().zip(0..) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(RaceStep::Importing { backend, done, total });
            let measured = replay.with_pre_state(bundle, |seeded| {
                self.measure(seeded, &mut outcome).map_err(SeededError::Bench)
            });
            match measured {
                Ok(()) => {}
                Err(SeededError::Bench(error)) => return Err(error),
                Err(SeededError::Pipeline(error)) => return Err(error).of_client(backend),
            }
        }
        Ok(outcome)
    }

    fn measure(
        &self,
        seeded: &SeededBundle<'_>,
        outcome: &mut WitnessOutcome,
    ) -> Result<(), BenchError> {
        let state = seeded.store.at(StateId::Tip).of_backend(&outcome.backend)?;
        let trial = WitnessTrial {
            store: seeded.store,
            state: &state,
            input: seeded.input(&state),
            spec: &seeded.spec,
            block: &seeded.block,
            calls: self.calls,
        };
        trial.run(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::MemoryTerms;
    use crate::state::BlockCorpus;
    use retrie_backends::find;
    use retrie_db::SyncMode;

    #[test]
    fn real_blocks_have_witnesses_on_stores_with_other_entries() {
        let Some(folder) = retrie_state_testkit::data::find("mainnet") else { return };
        // One with a plain pre-state, one with trie nodes alone.
        let mut bundles = BlockCorpus::at(folder).bundles().unwrap();
        bundles.retain(|bundle| [46_147, 21_429_992].contains(&bundle.number));
        assert_eq!(bundles.len(), 2);
        let entrant = |name: &str| {
            let backend = (find(name).unwrap().small)();
            ClientEntrant { name: name.into(), backend }
        };
        let entrants = ["mpt", "lvmt", "duptree"].map(entrant);
        let terms = RaceTerms {
            sync: SyncMode::NoSync,
            cache_bytes: 1 << 20,
            retention: 4,
            read_threads: 0,
            memory: MemoryTerms::FREE,
        };
        let real = RealWitnesses {
            bundles: &bundles,
            padding: StatePadding { accounts: 50, slots: 0 },
            opener: entrants[0].backend.extensions().partial_state,
            calls: 1,
            terms: &terms,
            cache: &StateCache::none(),
            stop: &AtomicBool::new(false),
        };
        let outcomes = real.run(&entrants, &mut |_| {}).unwrap();
        for outcome in &outcomes {
            assert_eq!((outcome.blocks.len(), outcome.calls.count()), (2, 2), "{outcome:?}");
            assert_eq!(outcome.blocks[1].number, 21_429_992);
        }
        let (mpt, lvmt) = (&outcomes[0], &outcomes[1]);
        assert!(lvmt.times(mpt).is_some() && mpt.times(mpt) == Some(1.0));
    }
}
