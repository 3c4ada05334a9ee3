//! Delivers blocks to a client: as in an import, or one by one as from a consensus client.

use crate::{BenchError, error::ClientErrorExt, race::RaceGuard};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256};
use alloy_rpc_types_engine::{ExecutionPayloadV3, ForkchoiceState, PayloadStatus};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_engine::{
    BuilderConfig, Engine, EngineApi, EngineApiError, EngineConfig, PayloadBuilder,
    pool::{PoolConfig, TransactionPool},
};
use retrie_pipeline::{
    BlockImporter, BlockStream, ChainStore, ImportOptions, ImportTimes, PREFETCH_BLOCKS,
    PipelineError, PreparedBlock,
};
use retrie_telemetry::Metrics;
use std::{
    sync::Arc,
    thread::Scope,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// A block, and its senders if they were recovered before.
pub(super) type BlockInput = (Block, Option<Vec<Address>>);

/// The way in which a client gets its blocks.
pub(super) enum ClientDriver<'a> {
    Importer {
        importer: Box<BlockImporter<'a>>,
        /// Whether every block is durable before the next one is imported.
        is_durable_each: bool,
    },
    EngineApi(Box<LiveNode>),
}

/// The times of the blocks of a turn.
pub(super) struct TurnTimes {
    pub(super) start: Instant,
    pub(super) latencies: Vec<Duration>,
    /// Time spent waiting for prepared blocks.
    pub(super) waited: Duration,
}

impl TurnTimes {
    const fn begin(start: Instant) -> Self {
        Self { start, latencies: Vec::new(), waited: Duration::ZERO }
    }
}

impl<'a> ClientDriver<'a> {
    pub(super) fn importer<'scope>(
        chain: &'a ChainStore,
        options: ImportOptions,
        is_durable_each: bool,
        metrics: Metrics,
        scope: &'scope Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let importer = BlockImporter::new(chain, options, metrics, scope)?;
        Ok(Self::Importer { importer: Box::new(importer), is_durable_each })
    }

    pub(super) fn engine_api(
        chain: Arc<ChainStore>,
        metrics: Metrics,
        client: &str,
    ) -> Result<Self, BenchError> {
        Ok(Self::EngineApi(Box::new(LiveNode::start(chain, metrics, client)?)))
    }

    /// Runs `blocks`. Asks `guard` before each block.
    pub(super) fn run(
        &mut self,
        spec: &Arc<ChainSpec>,
        blocks: Vec<BlockInput>,
        client: &str,
        guard: &RaceGuard<'_>,
    ) -> Result<TurnTimes, BenchError> {
        match self {
            Self::Importer { importer, is_durable_each } => {
                let start = Instant::now();
                let mut stream = BlockStream::of_blocks(spec.clone(), blocks).of_client(client)?;
                let mut driven = TurnTimes::begin(start);
                loop {
                    guard.check()?;
                    let ready = Instant::now();
                    let Some(block) = stream.next() else { break };
                    driven.waited += ready.elapsed();
                    import(importer, *is_durable_each, block, &mut stream).of_client(client)?;
                    driven.latencies.push(ready.elapsed());
                }
                let rest = Instant::now();
                importer.finish_all_ahead().of_client(client)?;
                if let Some(last) = driven.latencies.last_mut() {
                    *last += rest.elapsed();
                }
                Ok(driven)
            }
            Self::EngineApi(node) => node.run(blocks, client, guard),
        }
    }

    /// Waits until all blocks are durable.
    pub(super) fn flush(&mut self, client: &str) -> Result<(), BenchError> {
        match self {
            Self::Importer { importer, .. } => importer.flush().of_client(client),
            Self::EngineApi(node) => node.flush(client),
        }
    }

    /// Import times so far; number of keys read by the EVM, and number of keys changed.
    pub(super) fn figures(&self) -> (ImportTimes, (u64, u64)) {
        match self {
            Self::Importer { importer, .. } => (importer.times(), importer.key_operations()),
            Self::EngineApi(node) => node.figures(),
        }
    }
}

/// Imports a block of `stream`.
fn import(
    importer: &mut BlockImporter<'_>,
    is_durable_each: bool,
    block: Result<PreparedBlock, PipelineError>,
    stream: &mut BlockStream,
) -> Result<(), PipelineError> {
    let block = block?;
    if is_durable_each {
        importer.import_prepared(block)?;
        return importer.flush();
    }
    importer.prefetch([&block].into_iter().chain(stream.coming(PREFETCH_BLOCKS)));
    importer.import_ahead(block)
}

/// A node without servers: an engine, and the Engine API in front of it.
pub(super) struct LiveNode {
    api: EngineApi,
    engine: Engine,
    runtime: Runtime,
    metrics: Metrics,
}

impl LiveNode {
    fn start(chain: Arc<ChainStore>, metrics: Metrics, client: &str) -> Result<Self, BenchError> {
        let engine = Engine::start(chain, EngineConfig::default(), metrics.clone())
            .map_err(EngineApiError::from)
            .of_client(client)?;
        let live = engine.handle().live().clone();
        let pool = TransactionPool::new(PoolConfig::default(), live.spec().clone());
        let payloads = PayloadBuilder::new(live, pool.clone(), BuilderConfig::default());
        let api = EngineApi::new(engine.handle().clone(), payloads, pool);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|source| {
            let action = "starting the consensus client's thread".into();
            BenchError::Client {
                client: client.into(),
                source: Box::new(PipelineError::Io { action, source }),
            }
        })?;
        Ok(Self { api, engine, runtime, metrics })
    }

    /// Sends each block as a payload, then makes it the head, then waits until it is durable, as in
    /// the seconds until the next slot. The latency is that of the payload.
    fn run(
        &mut self,
        blocks: Vec<BlockInput>,
        client: &str,
        guard: &RaceGuard<'_>,
    ) -> Result<TurnTimes, BenchError> {
        let payloads: Vec<_> = blocks.iter().map(|(block, _)| PayloadRequest::of(block)).collect();
        let mut driven = TurnTimes::begin(Instant::now());
        for payload in payloads {
            guard.check()?;
            let PayloadRequest { hash, payload, versioned_hashes, beacon_root } = payload;
            let come = Instant::now();
            let call = self.api.new_payload_v4(payload, versioned_hashes, beacon_root, Vec::new());
            let status = self.runtime.block_on(call).of_client(client)?;
            driven.latencies.push(come.elapsed());
            accept(status, hash, client)?;
            let state = ForkchoiceState { head_block_hash: hash, ..Default::default() };
            let updated = self.runtime.block_on(self.api.fork_choice_updated(3, state, None));
            accept(updated.of_client(client)?.payload_status, hash, client)?;
            self.flush(client)?;
        }
        Ok(driven)
    }

    fn flush(&self, client: &str) -> Result<(), BenchError> {
        let flushed = self.runtime.block_on(self.engine.handle().flush());
        flushed.map_err(EngineApiError::from).of_client(client)
    }

    fn figures(&self) -> (ImportTimes, (u64, u64)) {
        let metrics = &self.metrics;
        let reads = metrics.state_read_seconds.get();
        let execution = metrics.execution_seconds.get_sample_sum() - reads;
        let (proposing, waited) =
            (metrics.propose_seconds.get_sample_sum(), metrics.root_wait_seconds.get());
        let times = ImportTimes {
            execution: Duration::from_secs_f64(execution.max(0.0)),
            reads: Duration::from_secs_f64(reads),
            authentication: Duration::from_secs_f64(waited),
            roots_aside: Duration::from_secs_f64((proposing - waited).max(0.0)),
            commit_wait: Duration::from_secs_f64(metrics.commit_wait_seconds.get()),
            prepare: Duration::ZERO,
        };
        (times, (metrics.key_reads.get(), metrics.key_writes.get()))
    }
}

/// The arguments of `engine_newPayloadV4` for a block. Generated blocks are of Prague and have no
/// execution requests.
struct PayloadRequest {
    hash: B256,
    payload: ExecutionPayloadV3,
    versioned_hashes: Vec<B256>,
    beacon_root: B256,
}

impl PayloadRequest {
    fn of(block: &Block) -> Self {
        let hash = block.header.hash_slow();
        let blobs = block.body.transactions.iter().filter_map(|tx| tx.blob_versioned_hashes());
        Self {
            hash,
            payload: ExecutionPayloadV3::from_block_unchecked(hash, block),
            versioned_hashes: blobs.flatten().copied().collect(),
            beacon_root: block.header.parent_beacon_block_root.unwrap_or_default(),
        }
    }
}

fn accept(status: PayloadStatus, hash: B256, client: &str) -> Result<(), BenchError> {
    if status.is_valid() {
        return Ok(());
    }
    Err(BenchError::NotValid { client: client.into(), hash, status: status.status.to_string() })
}
