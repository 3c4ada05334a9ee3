//! Real blocks one by one, as close to a live node as bundles allow.
//!
//! ```text
//!  base: padding    commit the pre-state        (untimed)
//!                   block of its payload, senders, execution, root, checks   latency of newPayload
//!                   commit, durable             (the clock of the turn)
//!                   revert both                 (untimed)
//! ```
//!
//! A block after the merge comes as an execution payload, which the code of the Engine API turns
//! into a block; a block before the merge comes as RLP. The blocks do not form a chain, so there is
//! no block tree, no engine thread and no parent header: the checks that depend on these (base fee,
//! step of the gas limit) are left out. Gas, receipts, bloom and requests are checked. The state
//! root is not compared, because the state has padding.
//!
//! A slice is a *pass*: every block once. So all slices do the same work, although the blocks
//! differ.

use super::{
    needed::{SliceCounts, SliceNeeds},
    outcome::{ClientFigures, ClientOutcome, WaitTimes},
    padded::{PaddedStore, PaddingSetup, files},
    race::{ClientEntrant, files_bytes, or_nothing},
    workload::SenderRecovery,
};
use crate::{
    BenchError, RaceSetting,
    cache::StateCache,
    error::{BackendErrorExt, ClientErrorExt},
    limit::MAINNET_MIX,
    memory::MemoryCap,
    race::{
        Contender, CounterReading, Race, RaceGuard, RaceLane, RacePart, RaceResult, RaceStep,
        RaceTerms, SliceSource, TimedTurn,
    },
    state::{BlockCorpus, TraceError},
};
use alloy_primitives::Bytes;
use alloy_rlp::{Decodable, Encodable};
use alloy_rpc_types_engine::ExecutionData;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};
use retrie_engine::block_of_payload;
use retrie_pipeline::{
    PipelineError, prepare, recover_senders,
    replay::{BundleReplay, BundleReplayOptions, StatePadding},
};
use retrie_report::BenchResult;
use retrie_sources::Bundle;
use serde_json::{Map, Value, json};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Number of commits that are reverted after each block: the pre-state and the block.
const RETAINED: u64 = 2;

/// Real blocks with the state they touch, and the padding of that state.
#[derive(Debug)]
pub struct RealBlockSet {
    blocks: Vec<RealBlock>,
    /// The other entries of the state.
    pub padding: StatePadding,
}

/// A block and its encoding.
#[derive(Debug)]
struct RealBlock {
    bundle: Bundle,
    given: BlockEncoding,
}

/// The encoding in which a block is delivered.
#[derive(Clone, Debug)]
enum BlockEncoding {
    Payload(Box<ExecutionData>),
    Rlp(Bytes),
}

impl RealBlockSet {
    /// Loads the blocks of a corpus that have a plain pre-state.
    ///
    /// # Errors
    /// If there are no such blocks, or one cannot be read.
    pub fn load(corpus: &BlockCorpus, padding: StatePadding) -> Result<Self, TraceError> {
        let blocks = corpus.prestate_bundles()?.into_iter().map(RealBlock::new);
        Ok(Self { blocks: blocks.collect(), padding })
    }

    /// Number of blocks.
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Number of blocks that come as payloads.
    pub fn payloads(&self) -> usize {
        self.blocks.iter().filter(|block| matches!(block.given, BlockEncoding::Payload(_))).count()
    }

    /// Number of transactions of all blocks.
    pub fn txs(&self) -> u64 {
        self.blocks.iter().map(|block| block.bundle.tx_count).sum()
    }

    /// Gas of all blocks.
    pub fn gas(&self) -> u64 {
        self.blocks.iter().map(|block| block.bundle.gas_used).sum()
    }
}

impl RealBlock {
    fn new(bundle: Bundle) -> Self {
        let given = if bundle.block.header.difficulty.is_zero() {
            let payload = ExecutionData::from_block_unchecked(bundle.hash, &bundle.block);
            BlockEncoding::Payload(Box::new(payload))
        } else {
            let mut rlp = Vec::new();
            bundle.block.encode(&mut rlp);
            BlockEncoding::Rlp(rlp.into())
        };
        Self { bundle, given }
    }

    /// Decodes the block, checks it without its parent, and recovers its senders.
    fn receive(
        &self,
        given: BlockEncoding,
        spec: &Arc<ChainSpec>,
    ) -> Result<RecoveredBlock, PipelineError> {
        let refused = |source: Box<dyn std::error::Error + Send + Sync>| PipelineError::Io {
            action: format!("reading block {} as it was given", self.bundle.number),
            source: std::io::Error::other(source),
        };
        let block = match given {
            BlockEncoding::Payload(payload) => {
                block_of_payload(*payload).map_err(|error| refused(error.into()))?
            }
            BlockEncoding::Rlp(rlp) => {
                Block::decode(&mut &rlp[..]).map_err(|error| refused(error.into()))?
            }
        };
        if !self.bundle.ommers_known {
            // The header commits to ommers that the bundle does not have.
            return Ok(recover_senders(spec, block)?);
        }
        Ok(Arc::unwrap_or_clone(prepare(spec, block)?.into_block()))
    }
}

/// A race of stores on real blocks.
#[derive(Debug)]
pub struct RealRace<'a> {
    /// The blocks.
    pub blocks: &'a RealBlockSet,
    /// Number of measured passes.
    pub slices: u64,
    /// Number of passes before the measured ones.
    pub warmup: u64,
    /// The terms, equal for all stores.
    pub terms: &'a RaceTerms,
    /// The cache of padded states.
    pub cache: &'a StateCache,
    /// The cap on memory in bytes, with the page cache, if there is one.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next block.
    pub stop: &'a AtomicBool,
}

impl RealRace<'_> {
    /// Runs the race. If `stop` is set, it returns what all stores have measured so far.
    ///
    /// # Errors
    /// If the race cannot be run, or a block is not valid.
    pub fn run(
        &self,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<ClientFigures>, BenchError> {
        if self.slices == 0 {
            return Err(RaceSetting::Slices.refused("there must be 1 slice at least"));
        }
        if self.terms.retention < RETAINED {
            let what = format!("real blocks are taken back: at least {RETAINED} must be retained");
            return Err(RaceSetting::Retention.refused(what));
        }
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
        let setup = self.setup();
        let folders = setup.lay_down(entrants, progress)?;
        let guard =
            RaceGuard::begin(self.memory_limit, self.terms.memory.cold, &folders, self.stop)?;
        let mut opened = Vec::new();
        for (entrant, folder) in entrants.iter().zip(&folders) {
            opened.push(guard.open(|| setup.open(entrant, folder.path()))?);
        }
        let options = BundleReplayOptions {
            spec: ChainSpec::mainnet(),
            witness_opener: None,
            witnesses: false,
        };
        let mut lanes = Vec::new();
        for (entrant, (opened, memory_bytes)) in entrants.iter().zip(&opened) {
            let replay = BundleReplay::new(&options, &opened.store, &*opened.kv);
            let replay = replay.of_client(opened.name)?;
            let has_root = entrant.backend.profile().ethereum_root;
            let needs = SliceNeeds::on_real(MAINNET_MIX, self.terms, has_root);
            let contender = RealContender { opened, replay, waits: WaitTimes::default(), needs };
            let hash = entrant.backend.identity().hash.name();
            let figures = ClientFigures::new(SenderRecovery::Unrecovered);
            let outcome = ClientOutcome::new(opened.name, hash, figures);
            lanes.push(RaceLane::new(contender, outcome, opened.folder, *memory_bytes));
        }
        Race { lanes, guard: &guard }.run(&mut RealPasses { race: self }, progress)
    }

    const fn setup(&self) -> PaddingSetup<'_> {
        let padding = self.blocks.padding;
        PaddingSetup { padding, terms: self.terms, cache: self.cache, stop: self.stop }
    }

    /// The figures as results of `--json` of `bench new-payload`.
    pub fn results(&self, raced: &RaceResult<ClientFigures>) -> Vec<BenchResult> {
        let result = |one: &ClientOutcome| one.result_on("new-payload", self.params(), self.terms);
        raced.outcomes.iter().map(result).collect()
    }

    fn params(&self) -> Map<String, Value> {
        let StatePadding { accounts, slots } = self.blocks.padding;
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

/// A store that executes real blocks.
struct RealContender<'a> {
    opened: &'a PaddedStore<'a>,
    replay: BundleReplay<'a>,
    waits: WaitTimes,
    /// Counts the work that its blocks need in any case.
    needs: SliceNeeds,
}

impl<'a> Contender for RealContender<'a> {
    /// A pass over all blocks.
    type Slice = &'a RealBlockSet;
    type Figures = ClientFigures;

    fn run(
        &mut self,
        slice: &Self::Slice,
        _: RacePart,
        guard: &RaceGuard<'_>,
    ) -> Result<TimedTurn, BenchError> {
        let name = self.opened.name;
        let spec = ChainSpec::mainnet();
        let (mut timed, mut latencies) = (Duration::ZERO, Vec::new());
        let changed = self.replay.figures().key_writes;
        for block in &slice.blocks {
            guard.check()?;
            // Cloned outside the timed part.
            let given = block.given.clone();
            let live = self.replay.run_live(&block.bundle, || block.receive(given, &spec));
            let live = live.of_client(name)?;
            if !live.outcome.ok() {
                let (client, status) = (name.to_owned(), live.outcome.failure());
                return Err(BenchError::NotValid { client, hash: block.bundle.hash, status });
            }
            latencies.push(live.latency);
            timed += Duration::from_secs_f64(live.outcome.seconds);
        }
        let start = Instant::now();
        self.opened.store.wait_idle().of_backend(name)?;
        let settling = start.elapsed();
        self.waits.folds += settling;
        let needed = self.needs.of(SliceCounts {
            blocks: slice.blocks.len() as u64,
            transactions: slice.txs(),
            gas: slice.gas(),
            changed: self.replay.figures().key_writes - changed,
        });
        let elapsed = timed + settling;
        Ok(TimedTurn { ops: slice.txs(), elapsed, settling, latencies, needed })
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.opened.store.flush().of_backend(self.opened.name)
    }

    fn reading(&self) -> CounterReading {
        let figures = self.replay.figures();
        let spent = Some(self.waits.with_import(&figures.times));
        let keys = (figures.key_reads, figures.key_writes);
        CounterReading { counts: Some(figures.counts), spent, keys }
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let rows = self.opened.kv.disk_bytes().of_backend(self.opened.name)?;
        let path = files(self.opened.folder);
        let files = files_bytes(&path);
        Ok(rows + files.map_err(|source| BenchError::Io { action: "measuring", path, source })?)
    }

    fn note_end(&self, _: &mut ClientOutcome) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Passes over the same blocks.
struct RealPasses<'a> {
    race: &'a RealRace<'a>,
}

impl<'a> SliceSource<RealContender<'a>> for RealPasses<'a> {
    fn warmup_parts(&self) -> u64 {
        self.race.warmup
    }

    fn slices(&self) -> u64 {
        self.race.slices
    }

    fn take(&mut self, _: RacePart) -> Result<&'a RealBlockSet, BenchError> {
        Ok(self.race.blocks)
    }
}
