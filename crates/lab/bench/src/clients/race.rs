//! The race of clients: opens them, and runs their turns.

use super::{
    driver::{BlockInput, ClientDriver, TurnTimes},
    needed::{SliceCounts, SliceNeeds},
    outcome::{ClientFigures, ClientOutcome, WaitTimes},
    prepare::read_made,
    workload::{BlockDelivery, ClientWorkload, SenderRecovery},
};
use crate::{
    BenchError,
    cache::{ScratchFolder, StateCache},
    chain::{CHAIN_FILE, MakeChainError},
    error::ClientErrorExt,
    memory::MemoryCap,
    race::{
        Contender, CounterReading, Race, RaceGuard, RaceLane, RacePart, RaceResult, RaceStep,
        RaceTerms, SliceSource, TimedTurn, warmup_parts,
    },
};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_pipeline::{
    ChainStore, CommitLimits, ImportOptions, PipelineError, recover_senders, state_folder,
};
use retrie_sources::RlpReader;
use retrie_state::AnyBackend;
use retrie_telemetry::Metrics;
use std::{
    fs, io,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread::Scope,
    time::{Duration, Instant},
};

/// A client that takes part in a race, with this backend.
#[derive(Clone)]
pub struct ClientEntrant {
    /// Its name in results.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn AnyBackend>,
}

impl std::fmt::Debug for ClientEntrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClientEntrant").field(&self.name).finish()
    }
}

/// A race of clients on one variant of a workload.
pub struct ClientRace<'a> {
    /// The workload.
    pub workload: &'a ClientWorkload,
    /// Whether senders are recovered before the clock starts.
    pub senders: SenderRecovery,
    /// The terms, equal for all clients.
    pub terms: &'a RaceTerms,
    /// A backend with Ethereum's roots, which generates the chain.
    pub root_maker: Arc<dyn AnyBackend>,
    /// The cache of chains and states.
    pub cache: &'a StateCache,
    /// The cap on memory in bytes, with the page cache, if there is one.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next block.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for ClientRace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientRace").field("workload", &self.workload).finish_non_exhaustive()
    }
}

impl ClientRace<'_> {
    /// Runs the race. If `stop` is set, it returns what all clients have measured so far.
    ///
    /// # Errors
    /// If the race cannot be run, or a client rejects a block.
    pub fn run(
        &self,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<ClientFigures>, BenchError> {
        self.workload.check()?;
        let needed =
            self.terms.needed_bytes(entrants.iter().map(|one| one.backend.profile().cache_bytes));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        or_nothing(self.run_to_end(entrants, progress), self.cache)
    }

    fn run_to_end(
        &self,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<ClientFigures>, BenchError> {
        let base = self.workload.base()?;
        let blocks = self.make_chain(&base, progress)?;
        let made = read_made(blocks.path())?;
        let spec = Arc::new(base.spec().with_genesis_state_root(made.genesis_root));
        let folders = self.lay_down(&base, &spec, entrants, progress)?;
        drop(base);
        // Before the folders are removed, which frees the disk.
        self.race(entrants, &spec, blocks.path(), &folders, progress)
            .map_err(|error| error.on_disk(blocks.path()))
    }

    /// Opens the clients in their folders and runs the blocks.
    fn race(
        &self,
        entrants: &[ClientEntrant],
        spec: &Arc<ChainSpec>,
        blocks: &Path,
        folders: &[ScratchFolder],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<ClientFigures>, BenchError> {
        let guard =
            RaceGuard::begin(self.memory_limit, self.terms.memory.cold, folders, self.stop)?;
        let mut chains = Vec::new();
        for (entrant, folder) in entrants.iter().zip(folders) {
            let options = self.options(spec, entrant, folder.path(), self.terms.sync);
            let open = || ChainStore::open(options).map(Arc::new).of_client(&entrant.name);
            chains.push(guard.open(open)?);
        }
        let file = blocks.join(CHAIN_FILE);
        let reader = RlpReader::open(&file).map_err(PipelineError::from).of_client("chain")?;
        let mut slices =
            BlockSlices { workload: self.workload, senders: self.senders, spec, reader };
        std::thread::scope(|scope| {
            let mut lanes = Vec::new();
            for ((entrant, folder), (chain, memory_bytes)) in
                entrants.iter().zip(folders).zip(&chains)
            {
                let driver = self.driver(entrant, chain, scope)?;
                let folder = folder.path();
                let (name, waits) = (entrant.name.clone(), WaitTimes::default());
                let senders = self.senders;
                let has_root = entrant.backend.profile().ethereum_root;
                let needs = SliceNeeds::on_made(self.workload, senders, self.terms, has_root);
                let contender =
                    ClientContender { name, driver, chain, folder, senders, waits, needs };
                let hash = entrant.backend.identity().hash.name();
                let outcome = ClientOutcome::new(&entrant.name, hash, ClientFigures::new(senders));
                lanes.push(RaceLane::new(contender, outcome, folder, *memory_bytes));
            }
            Race { lanes, guard: &guard }.run(&mut slices, progress)
        })
    }

    /// What delivers the blocks to a client.
    fn driver<'scope, 'env>(
        &self,
        entrant: &ClientEntrant,
        chain: &'env Arc<ChainStore>,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<ClientDriver<'env>, BenchError> {
        let metrics = Metrics::new().map_err(|error| BenchError::Workload {
            what: format!("metrics cannot be registered: {error}"),
        })?;
        match self.workload.via {
            BlockDelivery::Import => {
                let is_durable_each = self.workload.commit_every == Some(1);
                let options = self.import_options();
                ClientDriver::importer(chain, options, is_durable_each, metrics, scope)
                    .of_client(&entrant.name)
            }
            BlockDelivery::EngineApi => {
                ClientDriver::engine_api(chain.clone(), metrics, &entrant.name)
            }
        }
    }

    fn import_options(&self) -> ImportOptions {
        match self.workload.commit_every {
            None => ImportOptions::default(),
            Some(blocks) => ImportOptions {
                commit_limits: CommitLimits {
                    blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
                    rows: usize::MAX,
                    bytes: usize::MAX,
                    time: Duration::MAX,
                },
                ..ImportOptions::default()
            },
        }
    }
}

/// A race that was stopped before any slice was run has no outcomes; another error stays one.
pub(super) fn or_nothing(
    raced: Result<RaceResult<ClientFigures>, BenchError>,
    cache: &StateCache,
) -> Result<RaceResult<ClientFigures>, BenchError> {
    match raced {
        Err(BenchError::Stopped | BenchError::MakeChain(MakeChainError::Stopped { .. })) => {
            Ok(RaceResult { outcomes: Vec::new(), ended: Err(BenchError::Stopped) })
        }
        raced => {
            let temp = std::env::temp_dir();
            raced.map_err(|error| error.on_disk(cache.folder().unwrap_or(&temp)))
        }
    }
}

/// An open client in a race.
struct ClientContender<'a> {
    name: String,
    driver: ClientDriver<'a>,
    chain: &'a ChainStore,
    folder: &'a Path,
    senders: SenderRecovery,
    waits: WaitTimes,
    /// Counts the work that its blocks need in any case.
    needs: SliceNeeds,
}

impl Contender for ClientContender<'_> {
    type Slice = Vec<BlockInput>;
    type Figures = ClientFigures;

    /// At the end everything is durable, and no background work is running.
    fn run(
        &mut self,
        slice: &Self::Slice,
        _: RacePart,
        guard: &RaceGuard<'_>,
    ) -> Result<TimedTurn, BenchError> {
        let client = &self.name;
        let ops = slice.iter().map(|(block, _)| block.body.transactions.len() as u64).sum();
        let (_, (_, changed)) = self.driver.figures();
        let driven = self.driver.run(self.chain.spec(), slice.clone(), client, guard)?;
        let TurnTimes { start, latencies, waited } = driven;
        let settling = Instant::now();
        self.driver.flush(client)?;
        let folding = Instant::now();
        self.chain.state().wait_idle().map_err(PipelineError::from).of_client(client)?;
        let end = Instant::now();
        self.waits.folds += end - folding;
        if self.senders == SenderRecovery::Unrecovered {
            self.waits.senders += waited;
        }
        let (_, (_, changed_now)) = self.driver.figures();
        let needed = self.needs.of(SliceCounts {
            blocks: slice.len() as u64,
            transactions: ops,
            gas: slice.iter().map(|(block, _)| block.header.gas_used).sum(),
            changed: changed_now - changed,
        });
        let (elapsed, settling) = (end - start, end - settling);
        Ok(TimedTurn { ops, elapsed, settling, latencies, needed })
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.chain.flush().of_client(&self.name)
    }

    fn reading(&self) -> CounterReading {
        let (times, keys) = self.driver.figures();
        let (counts, spent) = (self.chain.state().counts(), self.waits.with_import(&times));
        CounterReading { counts: Some(counts), spent: Some(spent), keys }
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let rows = self.chain.db().state_store().disk_bytes();
        let rows =
            rows.map_err(|error| PipelineError::State(error.into())).of_client(&self.name)?;
        Ok(rows + state_files_bytes(self.folder)?)
    }

    /// Files that the state does not need are told apart from the others.
    fn note_end(&self, outcome: &mut ClientOutcome) -> Result<(), BenchError> {
        outcome.disk_bytes = self.chain.state_bytes().of_client(&self.name)?;
        let stats = self.chain.state().stats().map_err(PipelineError::from);
        let in_use = stats.of_client(&self.name)?.file_bytes;
        outcome.figures.kept_file_bytes = state_files_bytes(self.folder)?.saturating_sub(in_use);
        Ok(())
    }
}

/// The blocks of a race, slice by slice.
struct BlockSlices<'a> {
    workload: &'a ClientWorkload,
    senders: SenderRecovery,
    spec: &'a Arc<ChainSpec>,
    reader: RlpReader,
}

impl SliceSource<ClientContender<'_>> for BlockSlices<'_> {
    fn warmup_parts(&self) -> u64 {
        let ClientWorkload { blocks, warmup, slices, .. } = *self.workload;
        warmup_parts(warmup, blocks, slices)
    }

    fn slices(&self) -> u64 {
        self.workload.slices
    }

    fn take(&mut self, part: RacePart) -> Result<Vec<BlockInput>, BenchError> {
        let blocks = match part.is_warmup {
            true => self.workload.warmup,
            false => self.workload.blocks,
        };
        let input = |block: Block| -> Result<BlockInput, BenchError> {
            if self.senders == SenderRecovery::Unrecovered {
                return Ok((block, None));
            }
            let recovered = recover_senders(self.spec, block.clone());
            let recovered = recovered.map_err(PipelineError::from).of_client("chain")?;
            Ok((block, Some(recovered.senders().to_vec())))
        };
        let blocks = self.reader.by_ref().take(part.share(blocks) as usize);
        blocks
            .map(|block| input(block.map_err(PipelineError::from).of_client("chain")?.block))
            .collect()
    }
}

/// Bytes of all state files of the client in `folder`.
fn state_files_bytes(folder: &Path) -> Result<u64, BenchError> {
    let path = state_folder(folder, false);
    files_bytes(&path).map_err(|source| BenchError::Io { action: "measuring", path, source })
}

pub(super) fn files_bytes(folder: &Path) -> io::Result<u64> {
    let size = |file: io::Result<fs::DirEntry>| match file.and_then(|file| file.metadata()) {
        Ok(metadata) => Ok(metadata.len()),
        // The client has deleted it meanwhile, because no snapshot needs it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    fs::read_dir(folder)?.map(size).sum()
}
