//! [`PayloadBuilder`]: builds payloads, blocks on the head for a proposer.
//!
//! | thread | work | ends |
//! |---|---|---|
//! | `payload-builder` (one per payload) | builds at once, and again after each interval | when the payload is fetched, or at the deadline |

use crate::{
    EngineError, LiveChain, LiveView,
    pool::{BestTransactions, BlobSidecar, NextBlock, PoolTransaction, TransactionPool},
};
use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_eips::eip7685::Requests;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, U256, map::HashMap};
use alloy_rpc_types_engine::{PayloadAttributes, PayloadId};
use parking_lot::{Condvar, Mutex};
use retrie_chainspec::primitives::{SealedHeader, Transaction};
use retrie_consensus::MAX_RLP_BLOCK_SIZE;
use retrie_execution::{ExecutionError, RemainingGas, TransactionSource};
use retrie_pipeline::{
    BlockAttributes, BlockBuilder, BuildOverrides, BuildParent, ExecutedBlock, InvalidBlockError,
    PipelineError, StoreSetId,
};
use retrie_telemetry::spans::TraceContext;
use sha2::{Digest, Sha256};
use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::Span;

/// Configuration of the payload builder.
#[derive(Clone, Debug)]
pub struct BuilderConfig {
    /// Extra data of blocks (`--builder.extradata`), at most 32 bytes.
    pub extra_data: Bytes,
    /// Target gas limit (`--builder.gaslimit`); `None` keeps the parent's.
    pub gas_limit: Option<u64>,
    /// Time between two builds of a payload (`--builder.interval`).
    pub interval: Duration,
    /// Time after the request until a payload is built no more (`--builder.deadline`).
    pub deadline: Duration,
    /// Largest number of payloads, finished or not; beyond it the oldest is dropped.
    pub max_payloads: usize,
}

impl Default for BuilderConfig {
    fn default() -> Self {
        Self {
            extra_data: Bytes::from_static(
                concat!("retrie/v", env!("CARGO_PKG_VERSION")).as_bytes(),
            ),
            gas_limit: None,
            interval: Duration::from_secs(1),
            deadline: Duration::from_secs(12),
            max_payloads: 16,
        }
    }
}

/// Largest number of bytes of a block's transactions: the limit of EIP-7934, minus room for header,
/// withdrawals and RLP list headers.
const MAX_TRANSACTION_BYTES: usize = MAX_RLP_BLOCK_SIZE - (64 << 10);
/// Longest RLP header of one transaction within the list.
const MAX_RLP_HEAD: usize = 5;

/// A built block, with the other values that its proposer needs.
#[derive(Debug)]
pub struct BuiltPayload {
    /// The block and its state.
    pub block: Arc<ExecutedBlock>,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// Sidecars of the blob transactions, in order.
    pub sidecars: Vec<Arc<BlobSidecar>>,
    /// Tips for the beneficiary, in wei.
    pub value: U256,
    /// RLP of the block access list (EIP-7928), from Amsterdam on.
    pub access_list: Option<Bytes>,
}

/// Builds payloads. Cheap to clone.
#[derive(Clone)]
pub struct PayloadBuilder(Arc<PayloadBuilderInner>);

struct PayloadBuilderInner {
    live: LiveChain,
    pool: TransactionPool,
    config: BuilderConfig,
    jobs: Mutex<VecDeque<(PayloadId, Arc<PayloadJob>)>>,
}

impl fmt::Debug for PayloadBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadBuilder").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// One payload that is being built.
struct PayloadJob {
    parent: SealedHeader,
    attributes: PayloadAttributes,
    progress: Mutex<JobProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct JobProgress {
    best: Option<Arc<BuiltPayload>>,
    /// Why the first build failed.
    failed: Option<String>,
    /// The payload was fetched, or dropped.
    over: bool,
}

impl Drop for PayloadBuilderInner {
    fn drop(&mut self) {
        for (_, job) in self.jobs.get_mut() {
            job.end();
        }
    }
}

impl PayloadJob {
    fn end(&self) {
        self.progress.lock().over = true;
        self.changed.notify_all();
    }
}

impl PayloadBuilder {
    /// A builder on the head of `live`, with the transactions of `pool`.
    pub fn new(live: LiveChain, pool: TransactionPool, config: BuilderConfig) -> Self {
        Self(Arc::new(PayloadBuilderInner { live, pool, config, jobs: Mutex::default() }))
    }

    /// Why this node cannot build blocks that other nodes accept, if so: neither its backend nor a
    /// referee computes the state roots of the chain's headers.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let chain = self.0.live.chain();
        (!chain.checks_roots()).then(|| {
            format!(
                "this node cannot build payloads: backend {} does not compute the state roots of \
                 the chain's headers, and no referee beside it does",
                chain.state().identity().name
            )
        })
    }

    /// Starts building on `parent`, a known block. A second call with the same arguments returns
    /// the first payload's id.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        &self,
        version: u8,
        parent: SealedHeader,
        attributes: PayloadAttributes,
    ) -> Result<PayloadId, EngineError> {
        let id = payload_id(version, parent.hash(), &attributes);
        let mut jobs = self.0.jobs.lock();
        if jobs.iter().any(|(known, _)| *known == id) {
            return Ok(id);
        }
        let job = Arc::new(PayloadJob {
            parent,
            attributes,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = PayloadWorker {
            live: self.0.live.clone(),
            pool: self.0.pool.clone(),
            config: self.0.config.clone(),
            job: job.clone(),
            caller: TraceContext::of(&Span::current()),
        };
        std::thread::Builder::new()
            .name("payload-builder".into())
            .spawn(move || worker.run())
            .map_err(EngineError::Thread)?;
        jobs.push_back((id, job));
        while jobs.len() > self.0.config.max_payloads {
            if let Some((_, oldest)) = jobs.pop_front() {
                oldest.end();
            }
        }
        Ok(id)
    }

    /// Returns the best block so far and ends the building; waits for the first block. `None` for
    /// an unknown id. May block for the time that one build takes.
    ///
    /// # Errors
    /// [`EngineError::Build`] if building failed.
    pub fn resolve(&self, id: PayloadId) -> Result<Option<Arc<BuiltPayload>>, EngineError> {
        let job = self.0.jobs.lock().iter().find(|(known, _)| *known == id).cloned();
        let Some((_, job)) = job else { return Ok(None) };
        let mut progress = job.progress.lock();
        while progress.best.is_none() && progress.failed.is_none() && !progress.over {
            job.changed.wait(&mut progress);
        }
        progress.over = true;
        job.changed.notify_all();
        match (&progress.best, &progress.failed) {
            (Some(best), _) => Ok(Some(best.clone())),
            (None, Some(reason)) => Err(EngineError::Build { reason: reason.clone() }),
            (None, None) => Ok(None),
        }
    }

    /// Builds one block on `parent`, now.
    ///
    /// # Errors
    /// If execution fails or the state cannot be read.
    pub fn build(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
    ) -> Result<BuiltPayload, EngineError> {
        build(&self.0.live, &self.0.pool, &self.0.config, parent, attributes)
    }

    /// Builds one block of a dev chain on `parent`, the head, now. It begins with the user's state
    /// patch. `base_fee` (wei) replaces the base fee that follows from the parent.
    ///
    /// # Errors
    /// If execution fails or the state cannot be read.
    pub(crate) fn build_dev(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
        gas_limit: Option<u64>,
        base_fee: Option<u64>,
    ) -> Result<BuiltPayload, EngineError> {
        let PayloadBuilderInner { live, pool, config, .. } = &*self.0;
        let view = live.view()?;
        let patch = view.patch(&parent.hash()).cloned();
        let liberties = BuildOverrides { patch: patch.as_ref(), base_fee };
        build_on(&view, pool, config, parent, attributes, gas_limit, liberties)
    }

    /// Builds a block without transactions on the head and drops it, so that the state which every
    /// block needs is in memory. Does nothing before Byzantium.
    ///
    /// # Errors
    /// If execution fails or the state cannot be read.
    pub(crate) fn build_empty(&self) -> Result<(), EngineError> {
        let view = self.0.live.view()?;
        let parent = view.head();
        if !view.live().spec().is_byzantium_active_at_block(parent.number + 1) {
            return Ok(());
        }
        let attributes = PayloadAttributes {
            timestamp: parent.timestamp.saturating_add(1),
            ..Default::default()
        };
        let block = block_attributes(&self.0.config, parent, &attributes);
        let mut nothing = FixedTransactions { transactions: Vec::new().into_iter(), refused: None };
        fill(&view, parent, block, BuildOverrides::default(), &mut nothing).map(drop)
    }

    /// Builds one block on `parent` with exactly these transactions, in their order, now. The
    /// payload has no sidecars.
    ///
    /// # Errors
    /// [`EngineError::Build`] for a transaction that may not be included; if execution fails or the
    /// state cannot be read.
    pub(crate) fn build_with_transactions(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
        transactions: Vec<Recovered<Transaction>>,
    ) -> Result<BuiltPayload, EngineError> {
        let view = self.0.live.view()?;
        let mut source =
            FixedTransactions { transactions: transactions.into_iter(), refused: None };
        let block = block_attributes(&self.0.config, parent, attributes);
        let built = fill(&view, parent, block, BuildOverrides::default(), &mut source)?;
        if let Some(reason) = source.refused {
            return Err(EngineError::Build { reason });
        }
        let base_fee = built.block().header().base_fee_per_gas.unwrap_or_default();
        Ok(complete(built, base_fee, &HashMap::default()))
    }
}

struct PayloadWorker {
    live: LiveChain,
    pool: TransactionPool,
    config: BuilderConfig,
    job: Arc<PayloadJob>,
    /// The span of the call that started it, which ends before.
    caller: TraceContext,
}

impl PayloadWorker {
    fn run(&self) {
        let Self { live, pool, config, job, caller } = self;
        // Ends the job even after a panic, so that no caller waits for it.
        let _end = JobEndGuard(job);
        let start = Instant::now();
        loop {
            let span = tracing::debug_span!(parent: None, "build", number = (job.parent.number + 1) as i64);
            caller.set_parent_of(&span);
            let built = span.in_scope(|| build(live, pool, config, &job.parent, &job.attributes));
            drop(span);
            let mut progress = job.progress.lock();
            match built {
                Ok(payload) => {
                    if progress.best.as_ref().is_none_or(|best| best.value < payload.value)
                        && !(progress.over && progress.best.is_some())
                    {
                        progress.best = Some(Arc::new(payload));
                    }
                }
                Err(error) => {
                    let (number, parent) = (job.parent.number + 1, job.parent.hash());
                    tracing::warn!(number, %parent, %error, "building a payload failed");
                    if progress.best.is_none() {
                        progress.failed = Some(error.to_string());
                    }
                    progress.over = true;
                }
            }
            job.changed.notify_all();
            let next = Instant::now() + config.interval;
            while !progress.over && Instant::now() < next {
                job.changed.wait_until(&mut progress, next);
            }
            if progress.over || start.elapsed() >= config.deadline {
                return;
            }
        }
    }
}

/// Ends a job when it is dropped.
struct JobEndGuard<'a>(&'a PayloadJob);

impl Drop for JobEndGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The first byte is the method version, for the matching `engine_getPayload`; the rest is a digest
/// of all inputs.
fn payload_id(version: u8, parent: B256, attributes: &PayloadAttributes) -> PayloadId {
    let mut hasher = Sha256::new();
    hasher.update(parent);
    hasher.update(attributes.timestamp.to_be_bytes());
    hasher.update(attributes.prev_randao);
    hasher.update(attributes.suggested_fee_recipient);
    if let Some(withdrawals) = &attributes.withdrawals {
        hasher.update(alloy_rlp::encode(withdrawals));
    }
    hasher.update(attributes.parent_beacon_block_root.unwrap_or_default());
    for number in [attributes.slot_number, attributes.target_gas_limit] {
        hasher.update(number.unwrap_or_default().to_be_bytes());
    }
    let digest = hasher.finalize();
    let mut id = [0; 8];
    id[0] = version;
    id[1..].copy_from_slice(&digest[..7]);
    PayloadId::new(id)
}

/// Gas limit of the next block: moves from the parent's towards `target` by less than 1/1024
/// (yellow paper 4.3.4).
fn gas_limit(parent: u64, target: u64) -> u64 {
    let step = (parent / 1024).saturating_sub(1);
    target.clamp(parent.saturating_sub(step), parent.saturating_add(step))
}

fn build(
    live: &LiveChain,
    pool: &TransactionPool,
    config: &BuilderConfig,
    parent: &SealedHeader,
    attributes: &PayloadAttributes,
) -> Result<BuiltPayload, EngineError> {
    build_on(&live.view()?, pool, config, parent, attributes, None, BuildOverrides::default())
}

/// `gas_limit` sets the block's gas limit without regard to the parent's.
fn build_on(
    view: &LiveView,
    pool: &TransactionPool,
    config: &BuilderConfig,
    parent: &SealedHeader,
    attributes: &PayloadAttributes,
    gas_limit: Option<u64>,
    liberties: BuildOverrides<'_>,
) -> Result<BuiltPayload, EngineError> {
    let live = view.live();
    let next = NextBlock::after(live.spec(), parent, attributes.timestamp)
        .map_err(|source| PipelineError::from(InvalidBlockError::rule(parent, source)))?;
    let base_fee = liberties.base_fee.or(next.base_fee).unwrap_or_default();
    let mut source = PoolSource {
        best: pool.best(base_fee, next.blob_base_fee),
        current: None,
        sidecars: HashMap::default(),
        bytes: 0,
        is_osaka: live.spec().is_osaka_active_at_timestamp(attributes.timestamp),
        senders_may_have_code: pool.has_unsigned(),
    };
    let mut block = block_attributes(config, parent, attributes);
    if let Some(gas_limit) = gas_limit {
        block.gas_limit = gas_limit;
    }
    let built = fill(view, parent, block, liberties, &mut source)?;
    Ok(complete(built, base_fee, &source.sidecars))
}

fn block_attributes(
    config: &BuilderConfig,
    parent: &SealedHeader,
    attributes: &PayloadAttributes,
) -> BlockAttributes {
    let target = attributes.target_gas_limit.or(config.gas_limit).unwrap_or(parent.gas_limit);
    BlockAttributes {
        timestamp: attributes.timestamp,
        beneficiary: attributes.suggested_fee_recipient,
        gas_limit: gas_limit(parent.gas_limit, target),
        prev_randao: attributes.prev_randao,
        parent_beacon_block_root: attributes.parent_beacon_block_root.unwrap_or_default(),
        withdrawals: attributes.withdrawals.clone().unwrap_or_default(),
        ommers: Vec::new(),
        extra_data: config.extra_data.clone(),
        slot_number: attributes.slot_number,
    }
}

fn fill(
    view: &LiveView,
    parent: &SealedHeader,
    attributes: BlockAttributes,
    liberties: BuildOverrides<'_>,
    source: &mut dyn TransactionSource,
) -> Result<ExecutedBlock, EngineError> {
    let live = view.live();
    let chain = live.chain();
    let hash = parent.hash();
    let surroundings = view.state(&hash)?;
    let executed = view.executed(&hash);
    let states =
        executed.map_or(StoreSetId::Block(hash), |block| StoreSetId::Proposals(&block.states));
    let builder = BlockBuilder {
        spec: live.spec(),
        states: chain.states(),
        codes: &surroundings,
        hashes: &surroundings,
        code_cache: live.codes(),
    };
    let total_difficulty = view.total_difficulty(&hash)?.unwrap_or_default();
    let parent = BuildParent { header: parent, total_difficulty, states };
    Ok(builder.fill_with_overrides(parent, attributes, liberties, source)?)
}

/// The payload of a block; `base_fee` is used to compute the tips.
fn complete(
    block: ExecutedBlock,
    base_fee: u64,
    sidecars: &HashMap<B256, Arc<BlobSidecar>>,
) -> BuiltPayload {
    let mut value = U256::ZERO;
    let mut gas_before = 0;
    let mut blobs = Vec::new();
    let transactions = &block.block().body().transactions;
    for (transaction, receipt) in transactions.iter().zip(block.receipts()) {
        let gas = receipt.cumulative_gas_used - gas_before;
        gas_before = receipt.cumulative_gas_used;
        let tip = transaction.effective_tip_per_gas(base_fee).unwrap_or_default();
        value += U256::from(tip) * U256::from(gas);
        blobs.extend(sidecars.get(transaction.hash()).cloned());
    }
    let requests = block.requests.clone();
    let access_list = block.access_list.as_ref().map(|list| alloy_rlp::encode(list).into());
    BuiltPayload { block: Arc::new(block), requests, sidecars: blobs, value, access_list }
}

/// Offers the pool's best transactions that fit into the block.
struct PoolSource {
    best: BestTransactions,
    /// The transaction that was offered last.
    current: Option<Arc<PoolTransaction>>,
    /// Sidecars of the offered blob transactions.
    sidecars: HashMap<B256, Arc<BlobSidecar>>,
    bytes: usize,
    /// Whether sidecars have cell proofs (EIP-7594).
    is_osaka: bool,
    /// Whether the pool has transactions of impersonated accounts.
    senders_may_have_code: bool,
}

impl TransactionSource for PoolSource {
    fn next(&mut self, room: RemainingGas) -> Option<Recovered<Transaction>> {
        if room.gas < 21_000 {
            return None;
        }
        loop {
            let offered = self.best.next()?;
            let transaction = &offered.transaction;
            let length = offered.encoded_length() + MAX_RLP_HEAD;
            // The pool applies a new fork only after its first block, so a sidecar may be of the
            // old form.
            let is_unfit =
                offered.sidecar.as_ref().is_some_and(|blobs| blobs.is_eip7594() != self.is_osaka);
            if is_unfit
                || transaction.gas_limit() > room.gas
                || transaction.blob_gas_used().unwrap_or_default() > room.blob_gas
                || self.bytes + length > MAX_TRANSACTION_BYTES
            {
                self.best.mark_invalid(offered.sender());
                continue;
            }
            self.bytes += length;
            if let Some(sidecar) = &offered.sidecar {
                self.sidecars.insert(*offered.hash(), sidecar.clone());
            }
            let transaction = transaction.clone();
            self.current = Some(offered);
            return Some(transaction);
        }
    }

    fn mark_invalid(&mut self, reason: &ExecutionError) {
        if let Some(offered) = self.current.take() {
            tracing::debug!(hash = %offered.hash(), %reason, "transaction left out");
            self.bytes -= offered.encoded_length() + MAX_RLP_HEAD;
            self.best.mark_invalid(offered.sender());
        }
    }

    fn senders_may_have_code(&self) -> bool {
        self.senders_may_have_code
    }
}

/// Offers a fixed list of transactions, all of which must be included.
struct FixedTransactions {
    transactions: std::vec::IntoIter<Recovered<Transaction>>,
    /// Why a transaction may not be included; no further one is offered then.
    refused: Option<String>,
}

impl TransactionSource for FixedTransactions {
    fn next(&mut self, _: RemainingGas) -> Option<Recovered<Transaction>> {
        if self.refused.is_some() { None } else { self.transactions.next() }
    }

    fn mark_invalid(&mut self, reason: &ExecutionError) {
        self.refused = Some(reason.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gas_limit_moves_by_less_than_a_1024th_towards_the_target() {
        assert_eq!(gas_limit(30_000_000, 30_000_000), 30_000_000);
        assert_eq!(gas_limit(30_000_000, 60_000_000), 30_000_000 + 29_295);
        assert_eq!(gas_limit(30_000_000, 5_000), 30_000_000 - 29_295);
        assert_eq!(gas_limit(30_000_000, 30_000_100), 30_000_100);
    }

    #[test]
    fn payload_ids_differ_in_every_attribute() {
        let base = PayloadAttributes { timestamp: 7, ..Default::default() };
        let parent = B256::repeat_byte(1);
        let others = [
            payload_id(2, parent, &base),
            payload_id(3, B256::repeat_byte(2), &base),
            payload_id(3, parent, &PayloadAttributes { timestamp: 8, ..base.clone() }),
            payload_id(
                3,
                parent,
                &PayloadAttributes { withdrawals: Some(Vec::new()), ..base.clone() },
            ),
            payload_id(3, parent, &PayloadAttributes { prev_randao: parent, ..base.clone() }),
        ];
        let id = payload_id(3, parent, &base);
        assert!(others.iter().all(|other| *other != id));
        assert_eq!(id.0[0], 3);
    }
}
