//! Payloads: blocks that are built on the head for a proposer to choose.
//!
//! | thread | work | ends |
//! |---|---|---|
//! | `payload-builder` (one a payload) | builds at once, and again while there is time and something to gain | when the payload is taken, or after the deadline |

use crate::{
    EngineError, LiveChain, View,
    pool::{BestTransactions, NextBlock, Pool, PoolTransaction, Sidecar},
};
use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_eips::eip7685::Requests;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, U256, map::HashMap};
use alloy_rpc_types_engine::{PayloadAttributes, PayloadId};
use parking_lot::{Condvar, Mutex};
use retrie_chainspec::primitives::{SealedHeader, Transaction};
use retrie_consensus::MAX_RLP_BLOCK_SIZE;
use retrie_execution::{ExecutionError, Room, TransactionSource};
use retrie_pipeline::{
    BlockAttributes, BlockBuilder, BuildParent, ExecutedBlock, Liberties, PipelineError, StatesAt,
};
use sha2::{Digest, Sha256};
use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// How payloads are built.
#[derive(Clone, Debug)]
pub struct BuilderConfig {
    /// Extra data of blocks (`--builder.extradata`), at most 32 bytes.
    pub extra_data: Bytes,
    /// Gas limit to move towards (`--builder.gaslimit`); `None` keeps the parent's.
    pub gas_limit: Option<u64>,
    /// A payload is built again after this long (`--builder.interval`) ...
    pub interval: Duration,
    /// ... until this long after it was asked for (`--builder.deadline`).
    pub deadline: Duration,
    /// Payloads under way or kept; beyond that the oldest goes.
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

/// Bytes of a block's transactions: the limit of EIP-7934 less what header, withdrawals and the
/// heads of lists may take.
const MAX_TRANSACTION_BYTES: usize = MAX_RLP_BLOCK_SIZE - (64 << 10);
/// Longest head of one transaction within the list.
const MAX_RLP_HEAD: usize = 5;

/// A block that was built, and what its proposer needs beside it.
#[derive(Debug)]
pub struct BuiltPayload {
    /// The block and its state.
    pub block: Arc<ExecutedBlock>,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// Sidecars of its blob transactions, in order.
    pub sidecars: Vec<Arc<Sidecar>>,
    /// What its beneficiary gets in tips, in wei.
    pub value: U256,
    /// RLP of its block access list (EIP-7928), from Amsterdam on.
    pub access_list: Option<Bytes>,
}

/// Builds payloads. Cheap to clone.
#[derive(Clone)]
pub struct PayloadBuilder(Arc<Shared>);

struct Shared {
    live: LiveChain,
    pool: Pool,
    config: BuilderConfig,
    jobs: Mutex<VecDeque<(PayloadId, Arc<Job>)>>,
}

impl fmt::Debug for PayloadBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadBuilder").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// One payload under way.
struct Job {
    parent: SealedHeader,
    attributes: PayloadAttributes,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    best: Option<Arc<BuiltPayload>>,
    /// The first attempt failed.
    failed: Option<String>,
    /// Somebody has taken it, or nobody will.
    over: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (_, job) in self.jobs.get_mut() {
            job.end();
        }
    }
}

impl Job {
    fn end(&self) {
        self.progress.lock().over = true;
        self.changed.notify_all();
    }
}

impl PayloadBuilder {
    /// A builder on the head of `live`, with the transactions of `pool`.
    pub fn new(live: LiveChain, pool: Pool, config: BuilderConfig) -> Self {
        Self(Arc::new(Shared { live, pool, config, jobs: Mutex::default() }))
    }

    /// Why this node cannot build blocks that others accept, if so: its state roots are not those of
    /// the chain's headers.
    pub fn obstacle(&self) -> Option<String> {
        let chain = self.0.live.chain();
        (!chain.checks_roots()).then(|| {
            format!(
                "this node cannot build payloads: backend {} does not compute the state roots of \
                 the chain's headers, and no referee beside it does",
                chain.state().identity().name
            )
        })
    }

    /// Starts building on `parent`, a known block. Asked for the same again, it goes on with the
    /// first.
    ///
    /// # Errors
    /// If no thread can be started.
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
        let job = Arc::new(Job {
            parent,
            attributes,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = Worker {
            live: self.0.live.clone(),
            pool: self.0.pool.clone(),
            config: self.0.config.clone(),
            job: job.clone(),
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

    /// The payload as it is by now, which ends its building; waits for the first one. `None` if
    /// there is none with this id. May block for as long as a block takes to build.
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
    /// Those of execution and state.
    pub fn build(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
    ) -> Result<BuiltPayload, EngineError> {
        build(&self.0.live, &self.0.pool, &self.0.config, parent, attributes)
    }

    /// Builds one block of a dev chain on `parent`, the head, now: what its user has changed of the
    /// state comes first. `base_fee` in wei takes the place of that which follows from the parent.
    ///
    /// # Errors
    /// Those of execution and state.
    pub(crate) fn build_dev(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
        gas_limit: Option<u64>,
        base_fee: Option<u64>,
    ) -> Result<BuiltPayload, EngineError> {
        let Shared { live, pool, config, .. } = &*self.0;
        let view = live.view()?;
        let patch = view.patch(&parent.hash()).cloned();
        let liberties = Liberties { patch: patch.as_ref(), base_fee };
        build_on(&view, pool, config, parent, attributes, gas_limit, liberties)
    }

    /// Builds a block without transactions on the head and drops it, so that what the next block needs is
    /// in memory. Nothing before Byzantium.
    ///
    /// # Errors
    /// Those of execution and state.
    pub(crate) fn build_nothing(&self) -> Result<(), EngineError> {
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
        let mut nothing = Given { transactions: Vec::new().into_iter(), refused: None };
        fill(&view, parent, block, Liberties::default(), &mut nothing).map(drop)
    }

    /// Builds one block on `parent` of exactly these transactions, in their order, now. Of blob
    /// transactions there are no sidecars.
    ///
    /// # Errors
    /// [`EngineError::Build`] for a transaction that may not be included there; those of execution
    /// and state.
    pub fn build_of(
        &self,
        parent: &SealedHeader,
        attributes: &PayloadAttributes,
        transactions: Vec<Recovered<Transaction>>,
    ) -> Result<BuiltPayload, EngineError> {
        let view = self.0.live.view()?;
        let mut source = Given { transactions: transactions.into_iter(), refused: None };
        let block = block_attributes(&self.0.config, parent, attributes);
        let built = fill(&view, parent, block, Liberties::default(), &mut source)?;
        if let Some(reason) = source.refused {
            return Err(EngineError::Build { reason });
        }
        let base_fee = built.block().header().base_fee_per_gas.unwrap_or_default();
        Ok(complete(built, base_fee, &HashMap::default()))
    }
}

struct Worker {
    live: LiveChain,
    pool: Pool,
    config: BuilderConfig,
    job: Arc<Job>,
}

impl Worker {
    fn run(&self) {
        let Self { live, pool, config, job } = self;
        // Nobody shall wait for a builder that has panicked.
        let _end = EndOf(job);
        let start = Instant::now();
        loop {
            let built = build(live, pool, config, &job.parent, &job.attributes);
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
struct EndOf<'a>(&'a Job);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Version first, as it says which `engine_getPayload` fits; the rest is a digest of all inputs.
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

/// The limit of the next block on the way to `target`: at most 1/1024 from the parent's (yellow
/// paper 4.3.4).
fn gas_limit(parent: u64, target: u64) -> u64 {
    let step = (parent / 1024).saturating_sub(1);
    target.clamp(parent.saturating_sub(step), parent.saturating_add(step))
}

fn build(
    live: &LiveChain,
    pool: &Pool,
    config: &BuilderConfig,
    parent: &SealedHeader,
    attributes: &PayloadAttributes,
) -> Result<BuiltPayload, EngineError> {
    build_on(&live.view()?, pool, config, parent, attributes, None, Liberties::default())
}

/// `gas_limit` is that of the block, whatever its parent's is.
fn build_on(
    view: &View,
    pool: &Pool,
    config: &BuilderConfig,
    parent: &SealedHeader,
    attributes: &PayloadAttributes,
    gas_limit: Option<u64>,
    liberties: Liberties<'_>,
) -> Result<BuiltPayload, EngineError> {
    let live = view.live();
    let next = NextBlock::after(live.spec(), parent, attributes.timestamp).map_err(|source| {
        PipelineError::InvalidBlock {
            number: parent.number,
            hash: parent.hash(),
            source: Box::new(source),
        }
    })?;
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
    view: &View,
    parent: &SealedHeader,
    attributes: BlockAttributes,
    liberties: Liberties<'_>,
    source: &mut dyn TransactionSource,
) -> Result<ExecutedBlock, EngineError> {
    let live = view.live();
    let chain = live.chain();
    let hash = parent.hash();
    let surroundings = view.state(&hash)?;
    let executed = view.executed(&hash);
    let states = executed.map_or(StatesAt::Block(hash), |block| StatesAt::Proposals(&block.states));
    let builder = BlockBuilder {
        spec: live.spec(),
        states: chain.states(),
        codes: &surroundings,
        hashes: &surroundings,
        code_cache: live.codes(),
    };
    let total_difficulty = view.total_difficulty(&hash)?.unwrap_or_default();
    let parent = BuildParent { header: parent, total_difficulty, states };
    Ok(builder.fill_freely(parent, attributes, liberties, source)?)
}

/// The payload of a block, whose base fee is taken to be `base_fee`.
fn complete(
    block: ExecutedBlock,
    base_fee: u64,
    sidecars: &HashMap<B256, Arc<Sidecar>>,
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

/// The pool's best transactions, as far as they fit.
struct PoolSource {
    best: BestTransactions,
    /// The one offered last.
    current: Option<Arc<PoolTransaction>>,
    /// Of the blob transactions offered.
    sidecars: HashMap<B256, Arc<Sidecar>>,
    bytes: usize,
    /// Whether blobs come with proofs of their cells (EIP-7594).
    is_osaka: bool,
    /// Whether there are transactions of impersonated accounts.
    senders_may_have_code: bool,
}

impl TransactionSource for PoolSource {
    fn next(&mut self, room: Room) -> Option<Recovered<Transaction>> {
        if room.gas < 21_000 {
            return None;
        }
        loop {
            let offered = self.best.next()?;
            let transaction = &offered.transaction;
            let length = offered.encoded_length() + MAX_RLP_HEAD;
            // The pool learns of a new fork with its first block.
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

    fn refused(&mut self, reason: &ExecutionError) {
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

/// Transactions that all have to be included.
struct Given {
    transactions: std::vec::IntoIter<Recovered<Transaction>>,
    /// Why one of them may not be, which ends the block.
    refused: Option<String>,
}

impl TransactionSource for Given {
    fn next(&mut self, _: Room) -> Option<Recovered<Transaction>> {
        if self.refused.is_some() { None } else { self.transactions.next() }
    }

    fn refused(&mut self, reason: &ExecutionError) {
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
