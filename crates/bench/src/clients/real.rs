//! Real blocks, one by one, as near to a live node as bundles allow.
//!
//! ```text
//!  base: padding    lay the pre-state down      (untimed)
//!                   block of its payload, senders, execution, root, checks   latency of newPayload
//!                   commit, durable             (the clock of the turn)
//!                   revert both                 (untimed)
//! ```
//!
//! A block after the merge comes as an execution payload, and what turns that into a block is the
//! Engine API's own; one of before comes as its RLP. No chain leads from one bundle to the next, so
//! there is no tree of blocks, no engine's thread and no parent's header: what depends on these (the
//! base fee, the gas limit's step) is not checked. Gas, receipts, bloom and requests are; the root of a
//! padded state is nobody's.
//!
//! A slice is a *pass*: all blocks once. So slices are alike, and blocks are not.

use super::{
    outcome::{Marks, Outcome, Turn},
    race::{Entrant, Progress, Raced, files_bytes},
    workload::Senders,
};
use crate::{
    BenchError, Setting,
    cache::{RunFolder, StateCache},
    error::{Of, OfClient},
    memory::{self, MemoryCap},
    report::BenchResult,
    state::{
        BackendEntrant, Corpus, Done, Entrant as _, Entries, GENERATIONS, SortedEntries, Terms,
        TraceError, cap, needed, turn_order, within,
    },
};
use alloy_primitives::Bytes;
use alloy_rlp::{Decodable, Encodable};
use alloy_rpc_types_engine::ExecutionData;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};
use retrie_db::{Db, OpenOptions};
use retrie_engine::block_of_payload;
use retrie_pipeline::{
    PipelineError, prepare, recover_senders,
    replay::{BundleReplay, BundleReplayOptions, Padding},
    report::peak_rss_bytes,
};
use retrie_sources::Bundle;
use retrie_state::{KvStore, StateStore, StoreOptions};
use serde_json::{Map, Value, json};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The pre-state and the block, which are taken back.
const RETAINED: u64 = 2;

/// Real blocks with the state they touch, on padding.
#[derive(Debug)]
pub struct RealBlocks {
    blocks: Vec<RealBlock>,
    /// What the state holds beside.
    pub padding: Padding,
}

/// A block, and as what it comes.
#[derive(Debug)]
struct RealBlock {
    bundle: Bundle,
    given: Given,
}

/// As what a block comes.
#[derive(Clone, Debug)]
enum Given {
    Payload(Box<ExecutionData>),
    Rlp(Bytes),
}

impl RealBlocks {
    /// The blocks of a corpus whose pre-state is listed.
    ///
    /// # Errors
    /// If there are none, or one cannot be read.
    pub fn load(corpus: &Corpus, padding: Padding) -> Result<Self, TraceError> {
        let blocks = corpus.prestate_bundles()?.into_iter().map(RealBlock::new);
        Ok(Self { blocks: blocks.collect(), padding })
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many of them come as payloads.
    pub fn payloads(&self) -> usize {
        self.blocks.iter().filter(|block| matches!(block.given, Given::Payload(_))).count()
    }

    /// Their transactions.
    pub fn txs(&self) -> u64 {
        self.blocks.iter().map(|block| block.bundle.tx_count).sum()
    }

    /// Their gas.
    pub fn gas(&self) -> u64 {
        self.blocks.iter().map(|block| block.bundle.gas_used).sum()
    }
}

impl RealBlock {
    fn new(bundle: Bundle) -> Self {
        let given = if bundle.block.header.difficulty.is_zero() {
            let payload = ExecutionData::from_block_unchecked(bundle.hash, &bundle.block);
            Given::Payload(Box::new(payload))
        } else {
            let mut rlp = Vec::new();
            bundle.block.encode(&mut rlp);
            Given::Rlp(rlp.into())
        };
        Self { bundle, given }
    }

    /// The block of what it came as, checked alone, with its senders.
    fn receive(
        &self,
        given: Given,
        spec: &Arc<ChainSpec>,
    ) -> Result<RecoveredBlock, PipelineError> {
        let refused = |source: Box<dyn std::error::Error + Send + Sync>| PipelineError::Io {
            action: format!("reading block {} as it was given", self.bundle.number),
            source: std::io::Error::other(source),
        };
        let block = match given {
            Given::Payload(payload) => {
                block_of_payload(*payload).map_err(|error| refused(error.into()))?
            }
            Given::Rlp(rlp) => {
                Block::decode(&mut &rlp[..]).map_err(|error| refused(error.into()))?
            }
        };
        if !self.bundle.ommers_known {
            // Its header commits to ommers that nobody has.
            return recover_senders(spec, block);
        }
        prepare(spec, block).map(|prepared| Arc::unwrap_or_clone(prepared.into_block()))
    }
}

/// A race of stores on real blocks.
#[derive(Debug)]
pub struct RealRace<'a> {
    /// The blocks.
    pub blocks: &'a RealBlocks,
    /// How often they are all run, measured.
    pub slices: u64,
    /// And before.
    pub warmup: u64,
    /// On which terms.
    pub terms: &'a Terms,
    /// Where padded states are kept.
    pub cache: &'a StateCache,
    /// To how many bytes memory is capped, the page cache included.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next block.
    pub stop: &'a AtomicBool,
}

/// An open store in its folder.
struct Opened {
    name: String,
    hash: &'static str,
    memory_bytes: i64,
    // The store before the database it stands on, and the folder last.
    store: StateStore,
    kv: Arc<dyn KvStore>,
    _db: Db,
    folder: RunFolder,
}

struct Lane<'a> {
    opened: &'a Opened,
    replay: BundleReplay<'a>,
    outcome: Outcome,
    memory_bytes: i64,
}

impl RealRace<'_> {
    /// Runs it. Once `stop` is set, what all have measured so far is returned.
    ///
    /// # Errors
    /// When it cannot be run, or a block is not valid.
    pub fn run(
        &self,
        entrants: &[Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        if self.slices == 0 {
            return Err(Setting::Slices.refused("there must be 1 slice at least"));
        }
        if self.terms.retention < RETAINED {
            let what = format!("real blocks are taken back: at least {RETAINED} must be retained");
            return Err(Setting::Retention.refused(what));
        }
        let needed = needed(self.terms, entrants.iter().map(|one| one.backend.cache_bytes()));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        match self.run_to_end(entrants, progress) {
            Err(BenchError::Stopped) => Ok(Raced { outcomes: Vec::new(), complete: false }),
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
        let folders = self.lay_down(entrants, progress)?;
        // Dropped after the stores: they are closed under it.
        let cap = cap(self.memory_limit, &folders)?;
        memory::reset_peak();
        let mut opened = Vec::new();
        for (entrant, folder) in entrants.iter().zip(folders) {
            opened.push(self.open(entrant, folder)?);
            within(cap.as_ref())?;
        }
        let options = BundleReplayOptions { spec: ChainSpec::mainnet(), witness_opener: None };
        let mut lanes = Vec::new();
        for opened in &opened {
            let replay = BundleReplay::new(&options, &opened.store, &*opened.kv);
            let replay = replay.of_client(&opened.name)?;
            let outcome = Outcome::new(&opened.name, opened.hash, Senders::Unrecovered);
            lanes.push(Lane { opened, replay, outcome, memory_bytes: opened.memory_bytes });
        }
        let complete = self.take_turns(&mut lanes, cap.as_ref(), progress)?;
        let balloon = cap.as_ref().map_or(0, MemoryCap::balloon_bytes);
        for lane in &mut lanes {
            let outcome = &mut lane.outcome;
            outcome.peak_rss_bytes = peak_rss_bytes().saturating_sub(balloon);
            outcome.memory_cap = cap.as_ref().map(|cap| (cap.limit(), cap.means(), opened.len()));
            if complete {
                let start = Instant::now();
                lane.opened.store.flush().of(&lane.opened.name)?;
                outcome.flush = start.elapsed();
            }
            outcome.disk_bytes = lane.opened.disk_bytes()?;
        }
        let mut outcomes: Vec<_> = lanes.into_iter().map(|lane| lane.outcome).collect();
        outcomes.retain(|outcome| outcome.slices_done() > 0);
        Ok(Raced { outcomes, complete })
    }

    /// A folder with the padding for each entrant.
    fn lay_down(
        &self,
        entrants: &[Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<RunFolder>, BenchError> {
        let mut entries = None;
        let folder_of = |entrant: &Entrant| {
            let loader = BackendEntrant::new(entrant.backend.clone());
            let name = format!("{}-padding-{}", loader.format(), self.blocks.padding.name());
            self.cache.checkout(&name, |folder| {
                let entries = entries
                    .get_or_insert_with(|| SortedEntries::Listed(self.blocks.padding.entries()));
                let (backend, total) = (entrant.name.as_str(), entries.len() as u64);
                let mut report = |done| progress(Progress::Loading { backend, done, total });
                let (stop, done) = (self.stop, 0);
                let mut entries = Entries { entries, stop, progress: &mut report, done };
                loader.load(folder, &mut entries).map_err(|error| error.on_disk(folder))
            })
        };
        entrants.iter().map(folder_of).collect()
    }

    fn open(&self, entrant: &Entrant, folder: RunFolder) -> Result<Opened, BenchError> {
        let name = &entrant.name;
        let before = memory::anonymous();
        let options = OpenOptions { sync: self.terms.sync, ..OpenOptions::default() };
        let db = Db::open(folder.path(), &options).of(name)?;
        let kv = db.state_store();
        let options = StoreOptions {
            retention: self.terms.retention,
            fold_bytes: self.terms.cache_bytes / GENERATIONS,
            read_threads: self.terms.read_threads,
            dir: Some(files(folder.path())),
            ..StoreOptions::default()
        };
        let store = StateStore::open(entrant.backend.clone(), kv.clone(), options).of(name)?;
        Ok(Opened {
            name: name.clone(),
            hash: entrant.backend.identity().hash.name(),
            memory_bytes: memory::anonymous() - before,
            store,
            kv,
            _db: db,
            folder,
        })
    }

    /// Runs the passes. Returns whether it came to the end.
    fn take_turns(
        &self,
        lanes: &mut [Lane<'_>],
        cap: Option<&MemoryCap>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<bool, BenchError> {
        for _ in 0..self.warmup {
            if self.pass(lanes, 0, cap)?.is_none() {
                return Ok(false);
            }
        }
        for lane in lanes.iter_mut() {
            lane.opened.store.flush().of(&lane.opened.name)?;
            lane.outcome.begun = lane.marks();
        }
        for slice in 1..=self.slices {
            progress(Progress::Racing { done: slice - 1, total: self.slices });
            let Some(turns) = self.pass(lanes, slice, cap)? else { return Ok(false) };
            // Only now, when all have run it.
            for (lane, turn) in lanes.iter_mut().zip(turns) {
                progress(Progress::Turn(Done {
                    backend: &lane.outcome.backend,
                    ops: turn.txs,
                    latencies: &turn.latencies,
                    disk_bytes: turn.disk_bytes,
                }));
                lane.outcome.turns.push(turn);
            }
        }
        Ok(true)
    }

    /// All blocks on every store, in the order of the lanes; `None` if it was stopped.
    fn pass(
        &self,
        lanes: &mut [Lane<'_>],
        slice: u64,
        cap: Option<&MemoryCap>,
    ) -> Result<Option<Vec<Turn>>, BenchError> {
        let mut turns: Vec<_> = lanes.iter().map(|_| None).collect();
        for number in turn_order(lanes.len(), slice) {
            match self.turn(&mut lanes[number], cap)? {
                Some(turn) => turns[number] = Some(turn),
                None => return Ok(None),
            }
        }
        Ok(Some(turns.into_iter().flatten().collect()))
    }

    fn turn(
        &self,
        lane: &mut Lane<'_>,
        cap: Option<&MemoryCap>,
    ) -> Result<Option<Turn>, BenchError> {
        let name = &lane.opened.name;
        let spec = ChainSpec::mainnet();
        let memory_before = memory::anonymous();
        let (mut timed, mut latencies) = (Duration::ZERO, Vec::new());
        for block in &self.blocks.blocks {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            within(cap)?;
            // Outside the timed part.
            let given = block.given.clone();
            let live = lane.replay.run_live(&block.bundle, || block.receive(given, &spec));
            let live = live.of_client(name)?;
            if !live.outcome.ok() {
                let (client, status) = (name.clone(), live.outcome.failure());
                return Err(BenchError::NotValid { client, hash: block.bundle.hash, status });
            }
            latencies.push(live.latency);
            timed += Duration::from_secs_f64(live.outcome.seconds);
        }
        let start = Instant::now();
        lane.opened.store.settle().of(name)?;
        let settling = start.elapsed();
        lane.memory_bytes += memory::anonymous() - memory_before;
        Ok(Some(Turn {
            txs: self.blocks.txs(),
            elapsed: timed + settling,
            settling,
            folding: settling,
            waited: Duration::ZERO,
            latencies,
            disk_bytes: lane.opened.disk_bytes()?,
            memory_bytes: lane.memory_bytes,
            marks: lane.marks(),
        }))
    }

    /// As results of `--json`, of `bench new-payload`.
    pub fn results(&self, raced: &Raced) -> Vec<BenchResult> {
        let result = |one: &Outcome| one.result_on("new-payload", self.params(), self.terms);
        raced.outcomes.iter().map(result).collect()
    }

    fn params(&self) -> Map<String, Value> {
        let Padding { accounts, slots } = self.blocks.padding;
        Map::from_iter([
            ("chain".to_owned(), json!("mainnet")),
            ("blocks".to_owned(), json!(self.blocks.len() as u64 * self.slices)),
            ("blocks_per_slice".to_owned(), json!(self.blocks.len())),
            ("payloads_per_slice".to_owned(), json!(self.blocks.payloads())),
            ("warmup".to_owned(), json!(self.blocks.len() as u64 * self.warmup)),
            ("slices".to_owned(), json!(self.slices)),
            ("commit_every".to_owned(), json!(1)),
            ("accounts".to_owned(), json!(accounts)),
            ("gas".to_owned(), json!("as on mainnet")),
            ("pad_slots".to_owned(), json!(slots)),
        ])
    }
}

impl Lane<'_> {
    fn marks(&self) -> Marks {
        let figures = self.replay.figures();
        let keys = (figures.key_reads, figures.key_writes);
        Marks { times: figures.times, keys, counts: figures.counts }
    }
}

impl Opened {
    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let rows = self.kv.disk_bytes().of(&self.name)?;
        let path = files(self.folder.path());
        let files = files_bytes(&path);
        Ok(rows + files.map_err(|source| BenchError::Io { action: "measuring", path, source })?)
    }
}

/// Folder of a state store's immutable files, as [`BackendEntrant`] has it.
fn files(folder: &Path) -> PathBuf {
    folder.join("state")
}
