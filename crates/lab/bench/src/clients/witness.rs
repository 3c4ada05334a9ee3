//! Block witnesses along a made chain.
//!
//! ```text
//!  make the chain, prepare each     as in any race of clients, and imported up to the warm-up's end
//!  each block                       its witness is measured on the durable state before it, then it is
//!                                   imported and made durable
//! ```
//!
//! The stores run one after the other.

use super::{
    prepare::read_made,
    race::{ClientEntrant, ClientRace},
};
use crate::{
    BenchError,
    chain::{CHAIN_FILE, MakeChainError},
    error::{BackendErrorExt, ClientErrorExt},
    race::RaceStep,
    witness::{WitnessOutcome, WitnessTrial},
};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_execution::ExecutionInput;
use retrie_pipeline::{
    BlockImporter, ChainStore, ImportOptions, PipelineError, StoredContext, recover_senders,
};
use retrie_sources::RlpReader;
use retrie_state_store::StateId;
use retrie_telemetry::Metrics;
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

impl ClientRace<'_> {
    /// Measures the witnesses of the workload's blocks on every client, and proves up to `calls` of the
    /// transactions of each block as calls.
    ///
    /// # Errors
    /// If the chain cannot be made or imported; [`BenchError::WrongWitness`] and
    /// [`BenchError::WrongProof`] if a store's own witness or proof does not hold;
    /// [`BenchError::Stopped`].
    pub fn witnesses(
        &self,
        entrants: &[ClientEntrant],
        calls: usize,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<WitnessOutcome>, BenchError> {
        self.workload.check()?;
        let measured = self.measure_witnesses(entrants, calls, progress);
        let temp = std::env::temp_dir();
        measured.map_err(|error| match error {
            BenchError::MakeChain(MakeChainError::Stopped { .. }) => BenchError::Stopped,
            error => error.on_disk(self.cache.folder().unwrap_or(&temp)),
        })
    }

    fn measure_witnesses(
        &self,
        entrants: &[ClientEntrant],
        calls: usize,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<WitnessOutcome>, BenchError> {
        let base = self.workload.base()?;
        let blocks = self.make_chain(&base, progress)?;
        let made = read_made(blocks.path())?;
        let spec = Arc::new(base.spec().with_genesis_state_root(made.genesis_root));
        let folders = self.lay_down(&base, &spec, entrants, progress)?;
        drop(base);
        let file = blocks.path().join(CHAIN_FILE);
        let mut outcomes = Vec::new();
        for (entrant, folder) in entrants.iter().zip(&folders) {
            let options = self.options(&spec, entrant, folder.path(), self.terms.sync);
            let chain = ChainStore::open(options).of_client(&entrant.name)?;
            outcomes.push(self.witnesses_of(&chain, entrant, &file, calls, progress)?);
        }
        Ok(outcomes)
    }

    /// Imports the chain into one client, and measures on the way.
    fn witnesses_of(
        &self,
        chain: &ChainStore,
        entrant: &ClientEntrant,
        file: &Path,
        calls: usize,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<WitnessOutcome, BenchError> {
        let name = &entrant.name;
        let mut outcome = WitnessOutcome::new(name, entrant.backend.identity().hash.name());
        let reader = RlpReader::open(file).map_err(PipelineError::from).of_client(name)?;
        let metrics = Metrics::new().map_err(|error| BenchError::Workload {
            what: format!("metrics cannot be registered: {error}"),
        })?;
        let total = self.workload.warmup + self.workload.blocks;
        std::thread::scope(|scope| {
            let importer = BlockImporter::new(chain, ImportOptions::default(), metrics, scope);
            let mut importer = importer.of_client(name)?;
            for block in reader {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Stopped);
                }
                let block = block.map_err(PipelineError::from).of_client(name)?.block;
                let done = block.header.number.saturating_sub(1);
                progress(RaceStep::Importing { backend: name, done, total });
                if done >= self.workload.warmup {
                    importer.flush().of_client(name)?;
                    measure(chain, &block, calls, &mut outcome)?;
                }
                importer.import(block).of_client(name)?;
            }
            importer.flush().of_client(name)
        })?;
        Ok(outcome)
    }
}

/// Measures the witness of a block on the durable state of `chain`.
fn measure(
    chain: &ChainStore,
    block: &Block,
    calls: usize,
    outcome: &mut WitnessOutcome,
) -> Result<(), BenchError> {
    let name = outcome.backend.clone();
    let spec: Arc<ChainSpec> = chain.spec().for_header(&block.header);
    let block = recover_senders(&spec, block.clone());
    let block = block.map_err(PipelineError::from).of_client(&name)?;
    let read = chain.db().begin_read().of_backend(&name)?;
    let context = StoredContext(&read);
    let store = chain.state();
    let state = store.at(StateId::Tip).of_backend(&name)?;
    let input = ExecutionInput::new(&state, &context, &context);
    let (spec, block) = (&*spec, &block);
    WitnessTrial { store, state: &state, input, spec, block, calls }.run(outcome)
}
