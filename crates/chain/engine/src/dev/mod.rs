//! [`DevChain`]: `retrie node --dev`, a local chain without a consensus client whose user can
//! change state, time and blocks.
//!
//! ```text
//!  arrivals, ticks --> run() --.                           .--> payload builder --> engine
//!                              +--> BlockSealer (lock) ----+
//!  DevChain's methods ---------'    clock, patch, snapshots '--> patch of the head's state
//! ```
//!
//! # Vocabulary
//! * **patch** ([`StatePatch`]): the user's changes of the head's state (balance, code, nonce,
//!   slots). Reads of the head include it at once. It is the first part of the next block's delta;
//!   the backend applies that delta as usual, so roots and proofs hold. It is stored with that
//!   block, which cannot be executed again without it; before there is such a block, it is stored
//!   in a note.
//! * **snapshot** ([`DevSnapshot`]): head, patch, overrides and pool at one point in time.
//!   Reverting to it sets the head back like a reorg, at most to the retention depth.
//! * **overrides** ([`DevOverrides`]): the user's settings for the next blocks: time, base fee, gas
//!   limit, beneficiary, randomness, impersonated accounts.
//! * **impersonated account**: an account that sends transactions without a signature. Other nodes
//!   could not verify such blocks, but a dev chain has no other nodes.
//!
//! # Concurrency
//! The sealing task and the methods of [`DevChain`] that change the chain hold the lock of the
//! [`BlockSealer`], so that snapshots and blocks do not interleave.

mod clock;

use crate::{
    BuiltPayload, EngineError, EngineHandle, LiveChain, PayloadBuilder, PoolMaintainer,
    pool::{PoolTransaction, TransactionPool},
    pool_maintainer::transactions_in_memory,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, map::HashSet};
use alloy_rpc_types_engine::{ForkchoiceState, PayloadAttributes, PayloadStatusEnum};
use clock::DevClock;
use parking_lot::RwLock;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::{AccountOverride, EvmSimulation};
use retrie_pipeline::{PipelineError, StatePatch};
use retrie_state::{StateReader, StoreError};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Mutex, Notify};

/// When a dev chain gets its next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealingMode {
    /// As soon as there is a transaction (`--dev`).
    Instant,
    /// At this interval, with or without transactions (`--dev.block-time`).
    Interval(Duration),
    /// Only when the user asks for it.
    Manual,
}

/// Why a dev chain refuses a request of its user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// A block must be later than its parent.
    #[error("timestamp {wanted} is not after {head}, that of the latest block")]
    TimeGoesBack {
        /// Wanted time of the next block.
        wanted: u64,
        /// Time of the head.
        head: u64,
    },
    /// Nonces of an account that has sent transactions only go up.
    #[error("nonce {wanted} of {address} is below {have}, its present one")]
    NonceGoesBack {
        /// The account.
        address: Address,
        /// Wanted nonce.
        wanted: u64,
        /// Present nonce.
        have: u64,
    },
    /// The engine failed, or the block lies too deep.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<PipelineError> for DevError {
    fn from(error: PipelineError) -> Self {
        Self::Engine(error.into())
    }
}

type DevResult<T, E = DevError> = std::result::Result<T, E>;

/// A dev chain. Clones share it.
#[derive(Clone)]
pub struct DevChain(Arc<DevChainInner>);

struct DevChainInner {
    engine: EngineHandle,
    payloads: PayloadBuilder,
    pool: TransactionPool,
    maintainer: PoolMaintainer,
    sealer: Mutex<BlockSealer>,
    /// Settings for the next blocks. Readers do not wait for the sealer.
    overrides: RwLock<DevOverrides>,
    /// Signals that the sealing mode has changed, or that there may be something to seal.
    changed: Notify,
}

/// Snapshots; its lock serializes all changes of the chain.
struct BlockSealer {
    snapshots: Vec<DevSnapshot>,
    snapshots_taken: u64,
}

/// The user's settings for the next blocks, readable without the sealer's lock.
#[derive(Clone, Debug)]
struct DevOverrides {
    sealing: SealingMode,
    clock: DevClock,
    /// For all blocks from now on.
    beneficiary: Address,
    /// For the next block.
    base_fee: Option<u64>,
    /// For the next block.
    prev_randao: Option<B256>,
    /// For all blocks from now on.
    gas_limit: Option<u64>,
    impersonated: HashSet<Address>,
    impersonates_all: bool,
}

/// A snapshot to revert to.
struct DevSnapshot {
    id: u64,
    head: B256,
    patch: Option<Arc<StatePatch>>,
    overrides: DevOverrides,
    taken: Instant,
    pool: Vec<Arc<PoolTransaction>>,
}

/// The next block of a dev chain, as far as it is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDevBlock {
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Base fee per gas in wei, if the user has set it.
    pub base_fee: Option<u64>,
    /// Randomness, if the user has set it.
    pub prev_randao: Option<B256>,
    /// Gas limit, if the user has set it.
    pub gas_limit: Option<u64>,
    /// The recipient of the fees.
    pub beneficiary: Address,
    /// Slot number (EIP-7843), from Amsterdam on.
    pub slot_number: Option<u64>,
}

impl fmt::Debug for DevChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevChain").field("seen", &*self.0.overrides.read()).finish_non_exhaustive()
    }
}

impl DevChain {
    /// A dev chain whose fees go to `beneficiary`.
    pub fn new(
        engine: EngineHandle,
        payloads: PayloadBuilder,
        pool: TransactionPool,
        maintainer: PoolMaintainer,
        sealing: SealingMode,
        beneficiary: Address,
    ) -> Self {
        let sealer = BlockSealer { snapshots: Vec::new(), snapshots_taken: 0 };
        let mut clock = DevClock::default();
        // If the head is ahead of the machine's clock, the dev clock continues from the head.
        clock.note_sealed(engine.live().head().timestamp);
        let seen = DevOverrides {
            sealing,
            clock,
            beneficiary,
            base_fee: None,
            prev_randao: None,
            gas_limit: None,
            impersonated: HashSet::default(),
            impersonates_all: false,
        };
        Self(Arc::new(DevChainInner {
            engine,
            payloads,
            pool,
            maintainer,
            sealer: Mutex::new(sealer),
            overrides: RwLock::new(seen),
            changed: Notify::new(),
        }))
    }

    /// Seals blocks until the engine ends.
    ///
    /// # Errors
    /// If the engine has ended or panicked.
    pub async fn run(self) -> DevResult<(), EngineError> {
        let DevChainInner { pool, sealer, changed, .. } = &*self.0;
        let mut arrivals = pool.subscribe();
        loop {
            let sealing = self.sealing();
            match sealing {
                SealingMode::Instant => {
                    let sealer = sealer.lock().await;
                    // Until the pool has no executable transaction left.
                    while self.sealing() == SealingMode::Instant
                        && pool.status().pending > 0
                        && self.try_to_seal(&sealer, false).await?
                    {}
                    drop(sealer);
                    tokio::select! {
                        arrived = arrivals.recv() => {
                            if matches!(arrived, Err(tokio::sync::broadcast::error::RecvError::Closed)) {
                                return Ok(());
                            }
                        }
                        () = changed.notified() => {}
                    }
                }
                SealingMode::Manual => changed.notified().await,
                SealingMode::Interval(interval) => {
                    let mut ticks = tokio::time::interval(interval);
                    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
                    // The first tick is immediate.
                    ticks.tick().await;
                    while self.sealing() == sealing {
                        tokio::select! {
                            _ = ticks.tick() => {
                                let sealer = sealer.lock().await;
                                if self.sealing() == sealing {
                                    self.try_to_seal(&sealer, true).await?;
                                }
                            }
                            () = changed.notified() => {}
                        }
                    }
                }
            }
        }
    }

    // -- blocks -----------------------------------------------------------------------------------

    /// The sealing mode.
    pub fn sealing(&self) -> SealingMode {
        self.0.overrides.read().sealing
    }

    /// Changes the sealing mode.
    pub fn set_sealing(&self, sealing: SealingMode) {
        self.0.overrides.write().sealing = sealing;
        self.0.changed.notify_one();
    }

    /// Seals `count` blocks, empty or not. The first has `timestamp`, or the clock's time; each
    /// later one follows `interval` seconds after the one before, if that is given. Returns the
    /// head.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`]; if a block cannot be built, or the engine has ended.
    pub async fn mine(
        &self,
        count: u64,
        interval: Option<u64>,
        timestamp: Option<u64>,
    ) -> DevResult<SealedHeader> {
        let sealer = self.0.sealer.lock().await;
        if let Some(timestamp) = timestamp {
            self.check_time(timestamp)?;
            self.0.overrides.write().clock.set_next(timestamp);
        }
        for index in 0..count {
            if let Some(interval) = interval
                && index > 0
            {
                let next = self.head().timestamp.saturating_add(interval.max(1));
                self.0.overrides.write().clock.set_next(next);
            }
            self.seal(&sealer, true).await?;
        }
        drop(sealer);
        // For transactions that did not fit into these blocks.
        self.0.changed.notify_one();
        Ok(self.head())
    }

    fn head(&self) -> SealedHeader {
        self.0.engine.live().head()
    }

    /// Builds the next block as it would be now, without sealing it. May block for the time of one
    /// build.
    ///
    /// # Errors
    /// If the block cannot be built.
    pub fn pending_block(&self) -> DevResult<Arc<RecoveredBlock>> {
        Ok(self.build()?.block.data.block.clone())
    }

    fn build(&self) -> DevResult<BuiltPayload, EngineError> {
        let DevChainInner { engine, payloads, overrides: seen, .. } = &*self.0;
        let parent = self.head();
        let DevOverrides { clock, beneficiary, base_fee, prev_randao, gas_limit, .. } =
            seen.read().clone();
        let timestamp = clock.next_timestamp(parent.timestamp);
        let spec = engine.live().spec();
        let attributes = PayloadAttributes {
            timestamp,
            // Any number would do; this one is the same in every run.
            prev_randao: prev_randao.unwrap_or_else(|| parent.hash()),
            suggested_fee_recipient: beneficiary,
            withdrawals: spec.is_shanghai_active_at_timestamp(timestamp).then(Vec::new),
            parent_beacon_block_root: spec
                .is_cancun_active_at_timestamp(timestamp)
                .then_some(B256::ZERO),
            slot_number: self.next_slot(timestamp),
            target_gas_limit: None,
        };
        payloads.build_dev(&parent, &attributes, gas_limit, base_fee)
    }

    /// Like [`seal`](Self::seal); returns whether a block was sealed. A failure may be temporary (a
    /// full disk), and reads still work, so it is only logged. It is an error only if the engine
    /// has ended.
    async fn try_to_seal(
        &self,
        sealer: &BlockSealer,
        may_be_empty: bool,
    ) -> DevResult<bool, EngineError> {
        match self.seal(sealer, may_be_empty).await {
            Ok(sealed) => Ok(sealed.is_some()),
            Err(error @ (EngineError::Stopped | EngineError::Panicked)) => Err(error),
            Err(error) => {
                tracing::error!("no block was made: {error}");
                Ok(false)
            }
        }
    }

    /// Seals one block; without transactions only if it `may_be_empty`. Returns its hash. The
    /// caller holds the lock.
    async fn seal(
        &self,
        _: &BlockSealer,
        may_be_empty: bool,
    ) -> DevResult<Option<B256>, EngineError> {
        let DevChainInner { engine, maintainer, overrides: seen, .. } = &*self.0;
        let this = self.clone();
        let built = tokio::task::spawn_blocking(move || this.build());
        let built = built.await.map_err(|_| EngineError::Panicked)??;
        let block = built.block.block();
        if block.body().transactions.is_empty() && !may_be_empty {
            return Ok(None);
        }
        let hash = block.hash();
        {
            // Before the block becomes visible: later settings are for the next block.
            let mut seen = seen.write();
            seen.clock.note_sealed(block.timestamp);
            seen.base_fee = None;
            seen.prev_randao = None;
        }
        engine.built(built.block.clone());
        let outcome = engine.forkchoice(ForkchoiceState::same_hash(hash)).await?;
        if outcome.status.status != PayloadStatusEnum::Valid {
            let reason = format!("the engine calls block {hash} {}", outcome.status.status);
            return Err(EngineError::Build { reason });
        }
        maintainer.clone().wait_for(hash).await;
        // The user may have set it while the block was built.
        if seen.read().base_fee.is_some() {
            self.update_pool_base_fee();
        }
        Ok(Some(hash))
    }

    /// The next block, as far as it is determined.
    pub fn next_block(&self) -> NextDevBlock {
        let seen = self.0.overrides.read();
        let timestamp = seen.clock.next_timestamp(self.head().timestamp);
        NextDevBlock {
            timestamp,
            base_fee: seen.base_fee,
            prev_randao: seen.prev_randao,
            gas_limit: seen.gas_limit,
            beneficiary: seen.beneficiary,
            slot_number: self.next_slot(timestamp),
        }
    }

    /// Slot number of a next block of this time: a dev chain has a block in every slot.
    fn next_slot(&self, timestamp: u64) -> Option<u64> {
        let spec = self.0.engine.live().spec();
        spec.is_amsterdam_active_at_timestamp(timestamp).then_some(self.head().number + 1)
    }

    /// Sets the recipient of the fees of the next blocks.
    pub fn set_beneficiary(&self, beneficiary: Address) {
        self.0.overrides.write().beneficiary = beneficiary;
    }

    /// Sets the base fee per gas of the next block, in wei.
    pub fn set_next_base_fee(&self, base_fee: u64) {
        self.0.overrides.write().base_fee = Some(base_fee);
        self.update_pool_base_fee();
        self.0.changed.notify_one();
    }

    /// Gives the pool the base fee that the user has set for the next block. The pool drops it at
    /// each new head.
    fn update_pool_base_fee(&self) {
        self.0.pool.set_next_base_fee(self.0.overrides.read().base_fee);
    }

    /// Sets the randomness of the next block (EIP-4399).
    pub fn set_prev_randao(&self, prev_randao: B256) {
        self.0.overrides.write().prev_randao = Some(prev_randao);
    }

    /// Sets the gas limit of all blocks from now on.
    pub fn set_gas_limit(&self, gas_limit: u64) {
        self.0.overrides.write().gas_limit = Some(gas_limit);
    }

    // -- time -------------------------------------------------------------------------------------

    fn check_time(&self, wanted: u64) -> DevResult<()> {
        let head = self.head().timestamp;
        if wanted > head { Ok(()) } else { Err(DevError::TimeGoesBack { wanted, head }) }
    }

    /// Moves the clock forward. Returns its offset to the machine's clock in seconds.
    pub fn increase_time(&self, seconds: u64) -> i64 {
        self.0.overrides.write().clock.advance(seconds)
    }

    /// Sets the time of the next block.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`].
    pub fn set_next_timestamp(&self, timestamp: u64) -> DevResult<()> {
        self.check_time(timestamp)?;
        self.0.overrides.write().clock.set_next(timestamp);
        Ok(())
    }

    /// Sets the clock.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`].
    pub fn set_time(&self, timestamp: u64) -> DevResult<()> {
        self.check_time(timestamp)?;
        self.0.overrides.write().clock.set(timestamp);
        Ok(())
    }

    /// Sets or clears the fixed number of seconds between blocks.
    pub fn set_block_time_step(&self, step: Option<u64>) {
        self.0.overrides.write().clock.set_step(step);
    }

    // -- snapshots --------------------------------------------------------------------------------

    /// Takes a snapshot. Returns its number.
    pub async fn snapshot(&self) -> u64 {
        let mut sealer = self.0.sealer.lock().await;
        let id = sealer.snapshots_taken;
        sealer.snapshots_taken += 1;
        let snapshot = DevSnapshot {
            id,
            head: self.head().hash(),
            patch: self.0.engine.live().patch(),
            overrides: self.0.overrides.read().clone(),
            taken: Instant::now(),
            pool: self.0.pool.pooled(),
        };
        sealer.snapshots.push(snapshot);
        id
    }

    /// Reverts to a snapshot and deletes it and all later ones. Returns `false` if there is no
    /// snapshot with this number.
    ///
    /// # Errors
    /// [`EngineError::TooDeepReorg`] if its block lies beyond the retention depth; other errors of
    /// the engine.
    pub async fn revert(&self, id: u64) -> DevResult<bool> {
        let mut sealer = self.0.sealer.lock().await;
        let Some(at) = sealer.snapshots.iter().position(|snapshot| snapshot.id == id) else {
            return Ok(false);
        };
        let (head, patch) = (sealer.snapshots[at].head, sealer.snapshots[at].patch.clone());
        self.set_head_back(&sealer, head, patch).await?;
        let Some(snapshot) = sealer.snapshots.drain(at..).next() else { return Ok(false) };
        {
            let mut seen = self.0.overrides.write();
            // The sealing mode is not part of a snapshot, as tools expect.
            let sealing = seen.sealing;
            *seen = DevOverrides {
                sealing,
                clock: snapshot.overrides.clock.back_to(snapshot.taken),
                ..snapshot.overrides
            };
        }
        self.update_pool_base_fee();
        self.0.pool.restore(&snapshot.pool, self.0.engine.live());
        self.rewrite_journal();
        drop(sealer);
        self.0.changed.notify_one();
        Ok(true)
    }

    /// Sets the head back to a canonical block, as `debug_setHead` does. Snapshots stay.
    ///
    /// # Errors
    /// As [`EngineHandle::set_head`].
    pub async fn set_head(&self, hash: B256) -> DevResult<()> {
        let sealer = self.0.sealer.lock().await;
        self.set_head_back(&sealer, hash, None).await
    }

    /// Sets the head back to genesis and empties the pool.
    ///
    /// # Errors
    /// As [`revert`](Self::revert).
    pub async fn reset(&self) -> DevResult<()> {
        let mut sealer = self.0.sealer.lock().await;
        let genesis = self.0.engine.live().spec().genesis_hash();
        self.set_head_back(&sealer, genesis, None).await?;
        sealer.snapshots.clear();
        {
            let mut seen = self.0.overrides.write();
            *seen = DevOverrides {
                sealing: seen.sealing,
                clock: DevClock::default(),
                beneficiary: seen.beneficiary,
                base_fee: None,
                prev_randao: None,
                gas_limit: None,
                impersonated: HashSet::default(),
                impersonates_all: false,
            };
        }
        self.update_pool_base_fee();
        self.0.pool.restore(&[], self.0.engine.live());
        self.rewrite_journal();
        Ok(())
    }

    /// Sets the head back to a block, and sets the patch on its state.
    async fn set_head_back(
        &self,
        sealer: &BlockSealer,
        head: B256,
        patch: Option<Arc<StatePatch>>,
    ) -> DevResult<()> {
        let DevChainInner { engine, maintainer, .. } = &*self.0;
        engine.set_head(head).await?;
        maintainer.clone().wait_for(head).await;
        self.update_pool_base_fee();
        self.set_patch(sealer, patch).await
    }

    /// Rewrites the journal, so that removed transactions do not return after a restart.
    fn rewrite_journal(&self) {
        self.0.pool.maybe_rewrite_journal(true, || transactions_in_memory(self.0.engine.live()));
    }

    // -- the state --------------------------------------------------------------------------------

    /// Changes an account. Reads of the head include it at once; the next block contains it.
    ///
    /// # Errors
    /// If the state cannot be read, or the engine has ended.
    pub async fn set_account(&self, address: Address, changed: AccountOverride) -> DevResult<()> {
        let sealer = self.0.sealer.lock().await;
        let live = self.0.engine.live().clone();
        let made = tokio::task::spawn_blocking(move || patch_with(&live, address, changed));
        let patch = made.await.map_err(|_| EngineError::Panicked)??;
        let patch = (!patch.delta.is_empty()).then(|| Arc::new(patch));
        self.set_patch(&sealer, patch).await?;
        drop(sealer);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Sets the patch of the head's state. The caller holds the lock.
    async fn set_patch(&self, _: &BlockSealer, patch: Option<Arc<StatePatch>>) -> DevResult<()> {
        let DevChainInner { engine, maintainer, .. } = &*self.0;
        engine.patch(patch).await?;
        let (live, maintainer) = (engine.live().clone(), maintainer.clone());
        let refreshed = tokio::task::spawn_blocking(move || maintainer.refresh(&live));
        Ok(refreshed.await.map_err(|_| EngineError::Panicked)??)
    }

    // -- transactions -----------------------------------------------------------------------------

    /// Allows an account to send transactions without a signature, or forbids it again.
    pub fn impersonate(&self, address: Address, on: bool) {
        let impersonated = &mut self.0.overrides.write().impersonated;
        if on {
            impersonated.insert(address);
        } else {
            impersonated.remove(&address);
        }
    }

    /// Allows all accounts to send transactions without a signature, or ends that.
    pub fn impersonate_all(&self, on: bool) {
        self.0.overrides.write().impersonates_all = on;
    }

    /// Whether an account may send transactions without a signature.
    pub fn is_impersonated(&self, address: &Address) -> bool {
        let seen = self.0.overrides.read();
        seen.impersonates_all || seen.impersonated.contains(address)
    }

    /// Removes a transaction from the pool. Returns whether it was there.
    pub fn drop_transaction(&self, hash: &B256) -> bool {
        let dropped = self.0.pool.remove(hash).is_some();
        if dropped {
            self.rewrite_journal();
        }
        dropped
    }

    /// Removes all transactions from the pool, or all of one account.
    pub fn drop_transactions(&self, of: Option<Address>) {
        for tx in self.0.pool.pooled() {
            if of.is_none_or(|sender| tx.sender() == sender) {
                self.0.pool.remove(tx.hash());
            }
        }
        self.rewrite_journal();
    }
}

/// The present patch of the head's state, followed by the changes of one account.
fn patch_with(
    live: &LiveChain,
    address: Address,
    changed: AccountOverride,
) -> DevResult<StatePatch> {
    let view = live.view()?;
    let head = view.head();
    let state = view.state(&head.hash())?;
    let account = state.account(&address).map_err(PipelineError::from)?.unwrap_or_default();
    if let Some(wanted) = changed.nonce
        && wanted < account.nonce
    {
        return Err(DevError::NonceGoesBack { address, wanted, have: account.nonce });
    }
    let failed = |error: &dyn fmt::Display| {
        PipelineError::from(StoreError::new("changing the state of the head", error.to_string()))
    };
    let mut simulation = EvmSimulation::new(live.spec(), head, state.input());
    simulation.override_account(address, changed).map_err(|error| failed(&error))?;
    let (delta, _) = simulation.changes().map_err(|error| failed(&error))?;
    let later = StatePatch { delta: Arc::new(delta) };
    Ok(match state.patch() {
        Some(before) => before.then(&later),
        None => later,
    })
}
