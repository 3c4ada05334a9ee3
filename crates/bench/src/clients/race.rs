//! The race itself: opening the clients, taking turns.

use super::{
    driver::{Driven, Driver, Given},
    outcome::{Marks, Outcome, Turn},
    prepare::read_made,
    workload::{Senders, Via, Workload},
};
use crate::{
    BenchError,
    cache::{RunFolder, StateCache},
    chain::{CHAIN_FILE, MakeChainError},
    error::OfClient,
    memory::{self, MemoryCap},
    state::{Done, Terms, cap, needed, turn_order, within},
};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{
    BatchLimits, Chain, ImportOptions, PipelineError, recover_senders, report::peak_rss_bytes,
    state_folder,
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

/// A backend that takes part.
#[derive(Clone)]
pub struct Entrant {
    /// Its name in results.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn AnyBackend>,
}

impl std::fmt::Debug for Entrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entrant").field(&self.name).finish()
    }
}

/// How far a race is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The state is being loaded.
    Loading {
        /// Name of the backend, or what it is loaded for.
        backend: &'a str,
        /// Entries given to it so far.
        done: u64,
        /// Entries in all.
        total: u64,
    },
    /// Blocks are being made.
    Making {
        /// Blocks made.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Blocks are being imported, untimed.
    Importing {
        /// Name of the backend.
        backend: &'a str,
        /// Blocks that it has.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Slices are being run.
    Racing {
        /// Slices done by all.
        done: u64,
        /// Slices in all.
        total: u64,
    },
    /// A client has done its turn.
    Turn(Done<'a>),
}

/// A race on one variant of the workload.
pub struct ClientRace<'a> {
    /// What is run.
    pub workload: &'a Workload,
    /// When senders are recovered.
    pub senders: Senders,
    /// On which terms.
    pub terms: &'a Terms,
    /// A backend with Ethereum's roots, to make the chain.
    pub root_maker: Arc<dyn AnyBackend>,
    /// Where chains and states are kept.
    pub cache: &'a StateCache,
    /// To how many bytes memory is capped, the page cache included.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next block.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for ClientRace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientRace").field("workload", &self.workload).finish_non_exhaustive()
    }
}

/// What a race gave.
#[derive(Debug)]
pub struct Raced {
    /// One a client, in the order of the entrants; none if it was stopped before the first slice
    /// ended.
    pub outcomes: Vec<Outcome>,
    /// Whether it ran to its end. Otherwise the slices that all have run are there, without the final
    /// flush.
    pub complete: bool,
}

/// A client on its lane.
struct Lane<'a> {
    driver: Driver<'a>,
    chain: &'a Chain,
    folder: &'a Path,
    outcome: Outcome,
    memory_bytes: i64,
}

impl ClientRace<'_> {
    /// Runs it. Once `stop` is set, what all have measured so far is returned.
    ///
    /// # Errors
    /// When it cannot be run, or a block is not accepted.
    pub fn run(
        &self,
        entrants: &[Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        self.workload.check()?;
        let needed = needed(self.terms, entrants.iter().map(|one| one.backend.cache_bytes()));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        match self.run_to_end(entrants, progress) {
            Err(BenchError::Stopped | BenchError::MakeChain(MakeChainError::Stopped { .. })) => {
                Ok(Raced { outcomes: Vec::new(), complete: false })
            }
            raced => {
                let temp = std::env::temp_dir();
                raced.map_err(|error| error.on_disk(self.cache.folder().unwrap_or(&temp)))
            }
        }
    }

    fn run_to_end(
        &self,
        entrants: &[Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        let base = self.workload.base()?;
        let blocks = self.make_chain(&base, progress)?;
        let made = read_made(blocks.path())?;
        let spec = Arc::new(base.spec().with_genesis_state_root(made.genesis_root));
        let folders = self.lay_down(&base, &spec, entrants, progress)?;
        drop(base);
        // While the files are there that fill the disk.
        self.race(entrants, &spec, blocks.path(), &folders, progress)
            .map_err(|error| error.on_disk(blocks.path()))
    }

    /// Opens the clients in their folders, and runs the blocks.
    fn race(
        &self,
        entrants: &[Entrant],
        spec: &Arc<ChainSpec>,
        blocks: &Path,
        folders: &[RunFolder],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        // Dropped after the chains: they are closed under it.
        let cap = cap(self.memory_limit, folders)?;
        memory::reset_peak();
        let mut chains = Vec::new();
        for (entrant, folder) in entrants.iter().zip(folders) {
            let before = memory::anonymous();
            let options = self.options(spec, entrant, folder.path(), self.terms.sync);
            let chain = Chain::open(options).of_client(&entrant.name)?;
            chains.push((Arc::new(chain), memory::anonymous() - before));
            within(cap.as_ref())?;
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
                    Via::Import => {
                        let is_durable_each = self.workload.commit_every == Some(1);
                        let options = self.import_options();
                        Driver::importer(chain, options, is_durable_each, metrics, scope)
                            .of_client(&entrant.name)?
                    }
                    Via::EngineApi => Driver::engine_api(chain.clone(), metrics, &entrant.name)?,
                };
                let hash = entrant.backend.identity().hash.name();
                let outcome = Outcome::new(&entrant.name, hash, self.senders);
                let (folder, memory_bytes) = (folder.path(), *memory_bytes);
                lanes.push(Lane { driver, chain, folder, outcome, memory_bytes });
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
        Ok(Raced { outcomes, complete })
    }

    fn import_options(&self) -> ImportOptions {
        match self.workload.commit_every {
            None => ImportOptions::default(),
            Some(blocks) => ImportOptions {
                batch: BatchLimits {
                    blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
                    rows: usize::MAX,
                    bytes: usize::MAX,
                    time: Duration::MAX,
                },
                ..ImportOptions::default()
            },
        }
    }

    /// Runs the blocks. Returns whether it came to the end.
    fn take_turns(
        &self,
        lanes: &mut [Lane<'_>],
        reader: &mut RlpReader,
        cap: Option<&MemoryCap>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<bool, BenchError> {
        let Workload { blocks, warmup, slices, .. } = *self.workload;
        let mut left = warmup;
        // In parts of about a slice, so that no long warm-up is held in memory.
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
            progress(Progress::Racing { done: slice - 1, total: slices });
            if !self.slice(lanes, slice, reader, self.workload.slice(slice), cap)? {
                // What only some of them have done does not count.
                lanes.iter_mut().for_each(|lane| lane.outcome.turns.truncate(slice as usize - 1));
                return Ok(false);
            }
            for lane in lanes.iter() {
                let Some(turn) = lane.outcome.turns.last() else { continue };
                progress(Progress::Turn(Done {
                    backend: &lane.outcome.backend,
                    ops: turn.txs,
                    latencies: &turn.latencies,
                    disk_bytes: turn.disk_bytes,
                }));
            }
        }
        Ok(true)
    }

    /// One turn of every client; slice 0 is the warm-up. Returns whether all have done it.
    fn slice(
        &self,
        lanes: &mut [Lane<'_>],
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
                Senders::Unrecovered => None,
                Senders::Recovered => {
                    let recovered = recover_senders(&spec, block.clone()).of_client("chain")?;
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

    /// Runs `blocks` on one client; `None` if it was stopped.
    fn turn(
        &self,
        lane: &mut Lane<'_>,
        spec: &Arc<ChainSpec>,
        blocks: &[Given],
        cap: Option<&MemoryCap>,
    ) -> Result<Option<Turn>, BenchError> {
        let txs = blocks.iter().map(|(block, _)| block.body.transactions.len() as u64).sum();
        // Before the copy, which is freed in the turn.
        let memory_before = memory::anonymous();
        let client = &lane.outcome.backend;
        let is_over = || self.stop.load(Ordering::Relaxed) || within(cap).is_err();
        let driven = lane.driver.run(spec, blocks.to_vec(), client, &is_over)?;
        within(cap)?;
        let Some(Driven { start, latencies, waited }) = driven else { return Ok(None) };
        let settling = Instant::now();
        lane.driver.flush(client)?;
        let folding = Instant::now();
        lane.chain.state().settle().map_err(PipelineError::from).of_client(client)?;
        let end = Instant::now();
        lane.memory_bytes += memory::anonymous() - memory_before;
        Ok(Some(Turn {
            txs,
            elapsed: end - start,
            settling: end - settling,
            folding: end - folding,
            waited,
            latencies,
            disk_bytes: 0,
            memory_bytes: lane.memory_bytes,
            marks: Marks::default(),
        }))
    }
}

impl Lane<'_> {
    fn marks(&self) -> Marks {
        let (times, keys) = self.driver.figures();
        Marks { times, keys, counts: self.chain.state().counts() }
    }

    /// The turn with what can be looked up after it.
    fn measured(&self, turn: Turn) -> Result<Turn, BenchError> {
        let backend = &self.outcome.backend;
        let rows = self.chain.db().state_store().disk_bytes();
        let mut disk_bytes = rows.map_err(|error| PipelineError::State(error.into()));
        let files = state_files_bytes(self.folder)?;
        disk_bytes = disk_bytes.map(|bytes| bytes + files);
        Ok(Turn { disk_bytes: disk_bytes.of_client(backend)?, marks: self.marks(), ..turn })
    }
}

/// Bytes of all files of the state of the client in `folder`.
fn state_files_bytes(folder: &Path) -> Result<u64, BenchError> {
    let path = state_folder(folder, false);
    files_bytes(&path).map_err(|source| BenchError::Io { action: "measuring", path, source })
}

pub(super) fn files_bytes(folder: &Path) -> io::Result<u64> {
    let size = |file: io::Result<fs::DirEntry>| match file.and_then(|file| file.metadata()) {
        Ok(metadata) => Ok(metadata.len()),
        // Deleted meanwhile: no snapshot needs it any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    fs::read_dir(folder)?.map(size).sum()
}
