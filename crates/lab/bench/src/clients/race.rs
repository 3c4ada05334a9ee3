//! The race of clients: opens them, and runs their turns.

use super::{
    driver::{BlockInput, ClientDriver, TurnTimes},
    outcome::{ClientCounters, ClientOutcome, ClientTurn},
    prepare::read_made,
    workload::{BlockDelivery, ClientWorkload, SenderRecovery},
};
use crate::{
    BenchError,
    cache::{ScratchFolder, StateCache},
    chain::{CHAIN_FILE, MakeChainError},
    error::ClientErrorExt,
    memory::{self, MemoryCap},
    state::{RaceTerms, TurnSummary, apply_cap, check_cap, needed_bytes, turn_order},
};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{
    ChainStore, CommitLimits, ImportOptions, PipelineError, recover_senders,
    report::peak_rss_bytes, state_folder,
};
use retrie_sources::RlpReader;
use retrie_state::AnyBackend;
use retrie_telemetry::Metrics;
use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A contender of a client race: a client with this backend.
#[derive(Clone)]
pub struct ClientContender {
    /// Its name in results.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn AnyBackend>,
}

impl std::fmt::Debug for ClientContender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClientContender").field(&self.name).finish()
    }
}

/// The progress of a race of clients.
#[derive(Clone, Copy, Debug)]
pub enum ClientRaceProgress<'a> {
    /// The state is being loaded.
    Loading {
        /// Name of the backend, or the purpose of the state.
        backend: &'a str,
        /// Entries loaded so far.
        done: u64,
        /// Entries in all.
        total: u64,
    },
    /// Blocks are being generated.
    Making {
        /// Blocks generated so far.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Blocks are being imported, outside the timed part.
    Importing {
        /// Name of the backend.
        backend: &'a str,
        /// Blocks imported so far.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Slices are being run.
    Racing {
        /// Slices that all clients have finished.
        done: u64,
        /// Slices in all.
        total: u64,
    },
    /// A client has finished a measured turn.
    Turn(TurnSummary<'a>),
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

/// The result of a race of clients.
#[derive(Debug)]
pub struct ClientRaceResult {
    /// One outcome per client, in the order of the contenders; empty if the race was stopped before
    /// the end of the first slice.
    pub outcomes: Vec<ClientOutcome>,
    /// Whether the race ran to its end. Otherwise the outcomes have the slices that all clients
    /// have run, without the final flush.
    pub complete: bool,
}

/// An open client in a race.
struct ClientLane<'a> {
    driver: ClientDriver<'a>,
    chain: &'a ChainStore,
    folder: &'a Path,
    outcome: ClientOutcome,
    memory_bytes: i64,
}

impl ClientRace<'_> {
    /// Runs the race. If `stop` is set, it returns what all clients have measured so far.
    ///
    /// # Errors
    /// If the race cannot be run, or a client rejects a block.
    pub fn run(
        &self,
        entrants: &[ClientContender],
        progress: &mut dyn FnMut(ClientRaceProgress<'_>),
    ) -> Result<ClientRaceResult, BenchError> {
        self.workload.check()?;
        let needed =
            needed_bytes(self.terms, entrants.iter().map(|one| one.backend.profile().cache_bytes));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        match self.run_to_end(entrants, progress) {
            Err(BenchError::Stopped | BenchError::MakeChain(MakeChainError::Stopped { .. })) => {
                Ok(ClientRaceResult { outcomes: Vec::new(), complete: false })
            }
            raced => {
                let temp = std::env::temp_dir();
                raced.map_err(|error| error.on_disk(self.cache.folder().unwrap_or(&temp)))
            }
        }
    }

    fn run_to_end(
        &self,
        entrants: &[ClientContender],
        progress: &mut dyn FnMut(ClientRaceProgress<'_>),
    ) -> Result<ClientRaceResult, BenchError> {
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
        entrants: &[ClientContender],
        spec: &Arc<ChainSpec>,
        blocks: &Path,
        folders: &[ScratchFolder],
        progress: &mut dyn FnMut(ClientRaceProgress<'_>),
    ) -> Result<ClientRaceResult, BenchError> {
        // Dropped after the chains, so that the cap holds while they are closed.
        let cap = apply_cap(self.memory_limit, folders)?;
        memory::reset_peak();
        let mut chains = Vec::new();
        for (entrant, folder) in entrants.iter().zip(folders) {
            let before = memory::anonymous();
            let options = self.options(spec, entrant, folder.path(), self.terms.sync);
            let chain = ChainStore::open(options).of_client(&entrant.name)?;
            chains.push((Arc::new(chain), memory::anonymous() - before));
            check_cap(cap.as_ref())?;
        }
        let file = blocks.join(CHAIN_FILE);
        let mut reader = RlpReader::open(&file).map_err(PipelineError::from).of_client("chain")?;
        let mut complete = true;
        let mut outcomes = std::thread::scope(|scope| {
            let mut lanes = Vec::new();
            for ((entrant, folder), (chain, memory_bytes)) in
                entrants.iter().zip(folders).zip(&chains)
            {
                let metrics = Metrics::new().map_err(|error| BenchError::Workload {
                    what: format!("metrics cannot be registered: {error}"),
                })?;
                let driver = match self.workload.via {
                    BlockDelivery::Import => {
                        let is_durable_each = self.workload.commit_every == Some(1);
                        let options = self.import_options();
                        ClientDriver::importer(chain, options, is_durable_each, metrics, scope)
                            .of_client(&entrant.name)?
                    }
                    BlockDelivery::EngineApi => {
                        ClientDriver::engine_api(chain.clone(), metrics, &entrant.name)?
                    }
                };
                let hash = entrant.backend.identity().hash.name();
                let outcome = ClientOutcome::new(&entrant.name, hash, self.senders);
                let (folder, memory_bytes) = (folder.path(), *memory_bytes);
                lanes.push(ClientLane { driver, chain, folder, outcome, memory_bytes });
            }
            complete = self.take_turns(&mut lanes, &mut reader, cap.as_ref(), progress)?;
            Ok::<_, BenchError>(lanes.into_iter().map(|lane| lane.outcome).collect::<Vec<_>>())
        })?;
        for (((chain, _), outcome), folder) in chains.iter().zip(&mut outcomes).zip(folders) {
            let balloon = cap.as_ref().map_or(0, MemoryCap::balloon_bytes);
            outcome.peak_rss_bytes = peak_rss_bytes().saturating_sub(balloon);
            outcome.memory_cap = cap.as_ref().map(|cap| (cap.limit(), cap.means(), folders.len()));
            if !complete {
                outcome.disk_bytes = outcome.turns.last().map_or(0, |turn| turn.disk_bytes);
                continue;
            }
            let start = Instant::now();
            chain.flush().of_client(&outcome.backend)?;
            outcome.flush = start.elapsed();
            outcome.disk_bytes = chain.state_bytes().of_client(&outcome.backend)?;
            let stats = chain.state().stats().map_err(PipelineError::from);
            let in_use = stats.of_client(&outcome.backend)?.file_bytes;
            outcome.kept_file_bytes = state_files_bytes(folder.path())?.saturating_sub(in_use);
        }
        outcomes.retain(|outcome| !outcome.turns.is_empty());
        Ok(ClientRaceResult { outcomes, complete })
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

    /// Runs warm-up and slices. Returns false if the race was stopped.
    fn take_turns(
        &self,
        lanes: &mut [ClientLane<'_>],
        reader: &mut RlpReader,
        cap: Option<&MemoryCap>,
        progress: &mut dyn FnMut(ClientRaceProgress<'_>),
    ) -> Result<bool, BenchError> {
        let ClientWorkload { blocks, warmup, slices, .. } = *self.workload;
        let mut left = warmup;
        // In parts of about a slice, so that a long warm-up is never in memory as a whole.
        while left > 0 {
            let part = left.min(blocks.div_ceil(slices));
            left -= part;
            if !self.slice(lanes, 0, reader, part, cap)? {
                return Ok(false);
            }
        }
        for lane in lanes.iter_mut() {
            lane.chain.flush().of_client(&lane.outcome.backend)?;
            lane.outcome.begun = lane.marks();
        }
        for slice in 1..=slices {
            progress(ClientRaceProgress::Racing { done: slice - 1, total: slices });
            if !self.slice(lanes, slice, reader, self.workload.slice(slice), cap)? {
                // A slice that only some clients have run does not count.
                lanes.iter_mut().for_each(|lane| lane.outcome.turns.truncate(slice as usize - 1));
                return Ok(false);
            }
            for lane in lanes.iter() {
                let Some(turn) = lane.outcome.turns.last() else { continue };
                progress(ClientRaceProgress::Turn(TurnSummary {
                    backend: &lane.outcome.backend,
                    ops: turn.txs,
                    latencies: &turn.latencies,
                    disk_bytes: turn.disk_bytes,
                }));
            }
        }
        Ok(true)
    }

    /// Runs one turn of every client; slice 0 is the warm-up. Returns false if the race was
    /// stopped.
    fn slice(
        &self,
        lanes: &mut [ClientLane<'_>],
        slice: u64,
        reader: &mut RlpReader,
        blocks: u64,
        cap: Option<&MemoryCap>,
    ) -> Result<bool, BenchError> {
        let Some(first) = lanes.first() else { return Ok(true) };
        let spec = first.chain.spec().clone();
        let mut given = Vec::new();
        for block in reader.take(blocks as usize) {
            let block = block.map_err(PipelineError::from).of_client("chain")?.block;
            let senders = match self.senders {
                SenderRecovery::Unrecovered => None,
                SenderRecovery::Recovered => {
                    let recovered = recover_senders(&spec, block.clone());
                    let recovered = recovered.map_err(PipelineError::from).of_client("chain")?;
                    Some(recovered.senders().to_vec())
                }
            };
            given.push((block, senders));
        }
        for lane in turn_order(lanes.len(), slice) {
            let lane = &mut lanes[lane];
            match self.turn(lane, &spec, &given, cap)? {
                None => return Ok(false),
                Some(turn) if slice > 0 => lane.outcome.turns.push(lane.measured(turn)?),
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// Runs `blocks` on one client; `None` if the race was stopped.
    fn turn(
        &self,
        lane: &mut ClientLane<'_>,
        spec: &Arc<ChainSpec>,
        blocks: &[BlockInput],
        cap: Option<&MemoryCap>,
    ) -> Result<Option<ClientTurn>, BenchError> {
        let txs = blocks.iter().map(|(block, _)| block.body.transactions.len() as u64).sum();
        // Before the blocks are copied: the copy is freed in the turn.
        let memory_before = memory::anonymous();
        let client = &lane.outcome.backend;
        let is_over = || self.stop.load(Ordering::Relaxed) || check_cap(cap).is_err();
        let driven = lane.driver.run(spec, blocks.to_vec(), client, &is_over)?;
        check_cap(cap)?;
        let Some(TurnTimes { start, latencies, waited }) = driven else { return Ok(None) };
        let settling = Instant::now();
        lane.driver.flush(client)?;
        let folding = Instant::now();
        lane.chain.state().wait_idle().map_err(PipelineError::from).of_client(client)?;
        let end = Instant::now();
        lane.memory_bytes += memory::anonymous() - memory_before;
        Ok(Some(ClientTurn {
            txs,
            elapsed: end - start,
            settling: end - settling,
            folding: end - folding,
            waited,
            latencies,
            disk_bytes: 0,
            memory_bytes: lane.memory_bytes,
            marks: ClientCounters::default(),
        }))
    }
}

impl ClientLane<'_> {
    fn marks(&self) -> ClientCounters {
        let (times, keys) = self.driver.figures();
        ClientCounters { times, keys, counts: self.chain.state().counts() }
    }

    /// Completes the turn with disk usage and counters.
    fn measured(&self, turn: ClientTurn) -> Result<ClientTurn, BenchError> {
        let backend = &self.outcome.backend;
        let rows = self.chain.db().state_store().disk_bytes();
        let mut disk_bytes = rows.map_err(|error| PipelineError::State(error.into()));
        let files = state_files_bytes(self.folder)?;
        disk_bytes = disk_bytes.map(|bytes| bytes + files);
        Ok(ClientTurn { disk_bytes: disk_bytes.of_client(backend)?, marks: self.marks(), ..turn })
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
