//! `retrie node --dev`: a chain of its own, without a consensus client, that its user bends to his
//! will.
//!
//! ```text
//!  arrivals, ticks --> run() --.                           .--> payload builder --> engine
//!                              +--> Sealer (one at a time) +
//!  DevChain's methods ---------'    clock, patch, snapshots '--> patch of the head's state
//! ```
//!
//! # Vocabulary
//! * **patch**: what the user has changed of the head's state (balance, code, nonce, slots). It shows
//!   at once in what is read of the head, and is the first part of the next block's delta: for the
//!   backend that is a delta like any other, so roots and proofs hold. It is kept with that block, which
//!   cannot be executed again without it; until there is one, in a note ([`StatePatch`]).
//! * **snapshot**: head, patch, clock and pool at one moment. Going back to it takes the head back as
//!   any reorg does, as far as the retention depth.
//! * **impersonated**: an account that sends transactions without a signature. Their blocks are not
//!   verifiable from outside; nobody but this node has to.
//!
//! # Concurrency
//! Whatever changes the chain holds the [`Sealer`]'s lock, whether it is the sealing task or a method
//! of [`DevChain`], so that snapshots and blocks do not interleave.

mod clock;

use crate::{
    BuiltPayload, EngineError, EngineHandle, LiveChain, PayloadBuilder, PoolMaintainer,
    maintain::undurable,
    pool::{Pool, PoolTransaction},
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, map::HashSet};
use alloy_rpc_types_engine::{ForkchoiceState, PayloadAttributes, PayloadStatusEnum};
use clock::Clock;
use parking_lot::RwLock;
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::{AccountOverride, Simulation};
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
pub enum Sealing {
    /// As soon as there is a transaction (`--dev`).
    Instant,
    /// At this interval, with or without transactions (`--dev.block-time`).
    Interval(Duration),
    /// When the user says so.
    Manual,
}

/// Why a dev chain does not do what its user wants.
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

type Result<T, E = DevError> = std::result::Result<T, E>;

/// A dev chain in the hands of its user. Clones share it.
#[derive(Clone)]
pub struct DevChain(Arc<Shared>);

struct Shared {
    engine: EngineHandle,
    payloads: PayloadBuilder,
    pool: Pool,
    maintainer: PoolMaintainer,
    sealer: Mutex<Sealer>,
    /// How blocks come, and when the next one would be, for whoever must not wait.
    seen: RwLock<Seen>,
    /// The way of sealing has changed.
    changed: Notify,
}

/// What the sealing task and the methods share.
struct Sealer {
    snapshots: Vec<Snapshot>,
    snapshots_taken: u64,
}

/// What is read without waiting for the sealer.
#[derive(Clone, Debug)]
struct Seen {
    sealing: Sealing,
    clock: Clock,
    /// Of all blocks from now on.
    beneficiary: Address,
    /// Of the next block.
    base_fee: Option<u64>,
    /// Of the next block.
    prev_randao: Option<B256>,
    /// Of all blocks from now on.
    gas_limit: Option<u64>,
    impersonated: HashSet<Address>,
    impersonates_all: bool,
}

/// One moment to go back to.
struct Snapshot {
    id: u64,
    head: B256,
    patch: Option<Arc<StatePatch>>,
    seen: Seen,
    taken: Instant,
    pool: Vec<Arc<PoolTransaction>>,
}

/// What is known of the next block of a dev chain.
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
    /// Who gets the fees.
    pub beneficiary: Address,
    /// Slot number (EIP-7843), from Amsterdam on.
    pub slot_number: Option<u64>,
}

impl fmt::Debug for DevChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevChain").field("seen", &*self.0.seen.read()).finish_non_exhaustive()
    }
}

impl DevChain {
    /// A dev chain whose fees go to `beneficiary`.
    pub fn new(
        engine: EngineHandle,
        payloads: PayloadBuilder,
        pool: Pool,
        maintainer: PoolMaintainer,
        sealing: Sealing,
        beneficiary: Address,
    ) -> Self {
        let sealer = Sealer { snapshots: Vec::new(), snapshots_taken: 0 };
        let mut clock = Clock::default();
        // A chain that was ahead of the machine's clock when it was left goes on from there.
        clock.sealed(engine.live().head().timestamp);
        let seen = Seen {
            sealing,
            clock,
            beneficiary,
            base_fee: None,
            prev_randao: None,
            gas_limit: None,
            impersonated: HashSet::default(),
            impersonates_all: false,
        };
        Self(Arc::new(Shared {
            engine,
            payloads,
            pool,
            maintainer,
            sealer: Mutex::new(sealer),
            seen: RwLock::new(seen),
            changed: Notify::new(),
        }))
    }

    /// Seals until the engine ends.
    ///
    /// # Errors
    /// What kept it from making a block.
    pub async fn run(self) -> Result<(), EngineError> {
        let Shared { pool, sealer, changed, .. } = &*self.0;
        let mut arrivals = pool.subscribe();
        loop {
            let sealing = self.sealing();
            match sealing {
                Sealing::Instant => {
                    let sealer = sealer.lock().await;
                    // Until nothing is left that a block can take.
                    while self.sealing() == Sealing::Instant
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
                Sealing::Manual => changed.notified().await,
                Sealing::Interval(interval) => {
                    let mut ticks = tokio::time::interval(interval);
                    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
                    // The first tick comes at once.
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

    /// How blocks come.
    pub fn sealing(&self) -> Sealing {
        self.0.seen.read().sealing
    }

    /// Changes how blocks come.
    pub fn set_sealing(&self, sealing: Sealing) {
        self.0.seen.write().sealing = sealing;
        self.0.changed.notify_one();
    }

    /// Seals `count` blocks, empty or not, the first of them at `timestamp` or when the clock says,
    /// the others `interval` seconds after one another, if that is given. Returns the head.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`]; if a block cannot be built, or the engine has ended.
    pub async fn mine(
        &self,
        count: u64,
        interval: Option<u64>,
        timestamp: Option<u64>,
    ) -> Result<SealedHeader> {
        let sealer = self.0.sealer.lock().await;
        if let Some(timestamp) = timestamp {
            self.check_time(timestamp)?;
            self.0.seen.write().clock.set_next(timestamp);
        }
        for index in 0..count {
            if let Some(interval) = interval
                && index > 0
            {
                let next = self.head().timestamp.saturating_add(interval.max(1));
                self.0.seen.write().clock.set_next(next);
            }
            self.seal(&sealer, true).await?;
        }
        drop(sealer);
        // What they had no room for.
        self.0.changed.notify_one();
        Ok(self.head())
    }

    fn head(&self) -> SealedHeader {
        self.0.engine.live().head()
    }

    /// The next block as it would be now. May block for as long as that takes to build.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn pending_block(&self) -> Result<Arc<RecoveredBlock>> {
        Ok(self.build()?.block.data.block.clone())
    }

    fn build(&self) -> Result<BuiltPayload, EngineError> {
        let Shared { engine, payloads, seen, .. } = &*self.0;
        let parent = self.head();
        let Seen { clock, beneficiary, base_fee, prev_randao, gas_limit, .. } = seen.read().clone();
        let timestamp = clock.of_child(parent.timestamp);
        let spec = engine.live().spec();
        let attributes = PayloadAttributes {
            timestamp,
            // As good as any number here, and the same in every run.
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

    /// As [`seal`](Self::seal); whether there is a block. What keeps a block from being made may pass, as
    /// a full disk does, and meanwhile everything can be read: so only an engine that has ended ends the
    /// chain.
    async fn try_to_seal(&self, sealer: &Sealer, may_be_empty: bool) -> Result<bool, EngineError> {
        match self.seal(sealer, may_be_empty).await {
            Ok(sealed) => Ok(sealed.is_some()),
            Err(error @ (EngineError::Stopped | EngineError::Panicked)) => Err(error),
            Err(error) => {
                tracing::error!("no block was made: {error}");
                Ok(false)
            }
        }
    }

    /// Seals one block; without transactions only if it may be empty. Returns its hash. The lock is held.
    async fn seal(&self, _: &Sealer, may_be_empty: bool) -> Result<Option<B256>, EngineError> {
        let Shared { engine, maintainer, seen, .. } = &*self.0;
        let this = self.clone();
        let built = tokio::task::spawn_blocking(move || this.build());
        let built = built.await.map_err(|_| EngineError::Panicked)??;
        let block = built.block.block();
        if block.body().transactions.is_empty() && !may_be_empty {
            return Ok(None);
        }
        let hash = block.hash();
        {
            // Before anybody hears of the block: what is set from then on is for the next one.
            let mut seen = seen.write();
            seen.clock.sealed(block.timestamp);
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
        // The user may have set it while the block was made.
        if seen.read().base_fee.is_some() {
            self.tell_pool_base_fee();
        }
        Ok(Some(hash))
    }

    /// What is known of the next block.
    pub fn next_block(&self) -> NextDevBlock {
        let seen = self.0.seen.read();
        let timestamp = seen.clock.of_child(self.head().timestamp);
        NextDevBlock {
            timestamp,
            base_fee: seen.base_fee,
            prev_randao: seen.prev_randao,
            gas_limit: seen.gas_limit,
            beneficiary: seen.beneficiary,
            slot_number: self.next_slot(timestamp),
        }
    }

    /// The slot of a next block of this time: a dev chain has a block in each.
    fn next_slot(&self, timestamp: u64) -> Option<u64> {
        let spec = self.0.engine.live().spec();
        spec.is_amsterdam_active_at_timestamp(timestamp).then_some(self.head().number + 1)
    }

    /// Who gets the fees of the next blocks.
    pub fn set_beneficiary(&self, beneficiary: Address) {
        self.0.seen.write().beneficiary = beneficiary;
    }

    /// Base fee per gas of the next block, in wei.
    pub fn set_next_base_fee(&self, base_fee: u64) {
        self.0.seen.write().base_fee = Some(base_fee);
        self.tell_pool_base_fee();
        self.0.changed.notify_one();
    }

    /// Lets the pool judge by the base fee that the user has set for the next block. It forgets that
    /// with each new head.
    fn tell_pool_base_fee(&self) {
        self.0.pool.set_next_base_fee(self.0.seen.read().base_fee);
    }

    /// Randomness of the next block (EIP-4399).
    pub fn set_prev_randao(&self, prev_randao: B256) {
        self.0.seen.write().prev_randao = Some(prev_randao);
    }

    /// Gas limit of the blocks from now on.
    pub fn set_gas_limit(&self, gas_limit: u64) {
        self.0.seen.write().gas_limit = Some(gas_limit);
    }

    // -- time -------------------------------------------------------------------------------------

    fn check_time(&self, wanted: u64) -> Result<()> {
        let head = self.head().timestamp;
        if wanted > head { Ok(()) } else { Err(DevError::TimeGoesBack { wanted, head }) }
    }

    /// Moves the clock on. Returns how far it is ahead of the machine's clock, in seconds.
    pub fn increase_time(&self, seconds: u64) -> i64 {
        self.0.seen.write().clock.advance(seconds)
    }

    /// Sets the time of the next block.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`].
    pub fn set_next_timestamp(&self, timestamp: u64) -> Result<()> {
        self.check_time(timestamp)?;
        self.0.seen.write().clock.set_next(timestamp);
        Ok(())
    }

    /// Sets the clock.
    ///
    /// # Errors
    /// [`DevError::TimeGoesBack`].
    pub fn set_time(&self, timestamp: u64) -> Result<()> {
        self.check_time(timestamp)?;
        self.0.seen.write().clock.set(timestamp);
        Ok(())
    }

    /// Sets the seconds from each block to the next, or ends that.
    pub fn set_block_time_step(&self, step: Option<u64>) {
        self.0.seen.write().clock.set_step(step);
    }

    // -- snapshots --------------------------------------------------------------------------------

    /// Takes a snapshot. Returns its number.
    pub async fn snapshot(&self) -> u64 {
        let mut sealer = self.0.sealer.lock().await;
        let id = sealer.snapshots_taken;
        sealer.snapshots_taken += 1;
        let snapshot = Snapshot {
            id,
            head: self.head().hash(),
            patch: self.0.engine.live().patch(),
            seen: self.0.seen.read().clone(),
            taken: Instant::now(),
            pool: self.0.pool.pooled(),
        };
        sealer.snapshots.push(snapshot);
        id
    }

    /// Goes back to a snapshot, which ends it and all later ones. `false` if there is none of this
    /// number.
    ///
    /// # Errors
    /// [`EngineError::TooDeepReorg`] if its block lies beyond the retention depth; the engine's.
    pub async fn revert(&self, id: u64) -> Result<bool> {
        let mut sealer = self.0.sealer.lock().await;
        let Some(at) = sealer.snapshots.iter().position(|snapshot| snapshot.id == id) else {
            return Ok(false);
        };
        let (head, patch) = (sealer.snapshots[at].head, sealer.snapshots[at].patch.clone());
        self.go_back(&sealer, head, patch).await?;
        let Some(snapshot) = sealer.snapshots.drain(at..).next() else { return Ok(false) };
        {
            let mut seen = self.0.seen.write();
            // How blocks come is not part of it, for the tools that expect so.
            let sealing = seen.sealing;
            *seen = Seen {
                sealing,
                clock: snapshot.seen.clock.back_to(snapshot.taken),
                ..snapshot.seen
            };
        }
        self.tell_pool_base_fee();
        self.0.pool.restore(&snapshot.pool, self.0.engine.live());
        self.tidy_journal();
        drop(sealer);
        self.0.changed.notify_one();
        Ok(true)
    }

    /// Goes back to a canonical block, as `debug_setHead` does. Snapshots stay.
    ///
    /// # Errors
    /// As [`EngineHandle::set_head`].
    pub async fn set_head(&self, hash: B256) -> Result<()> {
        let sealer = self.0.sealer.lock().await;
        self.go_back(&sealer, hash, None).await
    }

    /// Goes back to the genesis block, with an empty pool.
    ///
    /// # Errors
    /// As [`revert`](Self::revert).
    pub async fn reset(&self) -> Result<()> {
        let mut sealer = self.0.sealer.lock().await;
        let genesis = self.0.engine.live().spec().genesis_hash();
        self.go_back(&sealer, genesis, None).await?;
        sealer.snapshots.clear();
        {
            let mut seen = self.0.seen.write();
            *seen = Seen {
                sealing: seen.sealing,
                clock: Clock::default(),
                beneficiary: seen.beneficiary,
                base_fee: None,
                prev_randao: None,
                gas_limit: None,
                impersonated: HashSet::default(),
                impersonates_all: false,
            };
        }
        self.tell_pool_base_fee();
        self.0.pool.restore(&[], self.0.engine.live());
        self.tidy_journal();
        Ok(())
    }

    /// Goes back to a block, and to what was changed of its state then.
    async fn go_back(
        &self,
        sealer: &Sealer,
        head: B256,
        patch: Option<Arc<StatePatch>>,
    ) -> Result<()> {
        let Shared { engine, maintainer, .. } = &*self.0;
        engine.set_head(head).await?;
        maintainer.clone().wait_for(head).await;
        self.tell_pool_base_fee();
        self.set_patch(sealer, patch).await
    }

    /// What was taken back must not come back with a restart.
    fn tidy_journal(&self) {
        self.0.pool.tidy_journal(true, || undurable(self.0.engine.live()));
    }

    // -- the state --------------------------------------------------------------------------------

    /// Changes an account. It shows at once, and is part of the next block.
    ///
    /// # Errors
    /// If the state cannot be read, or the engine has ended.
    pub async fn set_account(&self, address: Address, changed: AccountOverride) -> Result<()> {
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

    /// From now on this is what was changed of the head's state. The lock is held.
    async fn set_patch(&self, _: &Sealer, patch: Option<Arc<StatePatch>>) -> Result<()> {
        let Shared { engine, maintainer, .. } = &*self.0;
        engine.patch(patch).await?;
        let (live, maintainer) = (engine.live().clone(), maintainer.clone());
        let refreshed = tokio::task::spawn_blocking(move || maintainer.refresh(&live));
        Ok(refreshed.await.map_err(|_| EngineError::Panicked)??)
    }

    // -- transactions -----------------------------------------------------------------------------

    /// Lets an account send transactions without a signature, or ends that.
    pub fn impersonate(&self, address: Address, on: bool) {
        let impersonated = &mut self.0.seen.write().impersonated;
        if on {
            impersonated.insert(address);
        } else {
            impersonated.remove(&address);
        }
    }

    /// Lets all accounts do so, or ends that.
    pub fn impersonate_all(&self, on: bool) {
        self.0.seen.write().impersonates_all = on;
    }

    /// Whether an account may send transactions without a signature.
    pub fn is_impersonated(&self, address: &Address) -> bool {
        let seen = self.0.seen.read();
        seen.impersonates_all || seen.impersonated.contains(address)
    }

    /// Takes a transaction out of the pool. Says whether it was there.
    pub fn drop_transaction(&self, hash: &B256) -> bool {
        let dropped = self.0.pool.remove(hash).is_some();
        if dropped {
            self.tidy_journal();
        }
        dropped
    }

    /// Takes all transactions out of the pool, or all of one account.
    pub fn drop_transactions(&self, of: Option<Address>) {
        for tx in self.0.pool.pooled() {
            if of.is_none_or(|sender| tx.sender() == sender) {
                self.0.pool.remove(tx.hash());
            }
        }
        self.tidy_journal();
    }
}

/// What was changed of the head's state so far, and then an account as `changed` says.
fn patch_with(live: &LiveChain, address: Address, changed: AccountOverride) -> Result<StatePatch> {
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
    let mut simulation = Simulation::new(live.spec(), head, state.input());
    simulation.override_account(address, changed).map_err(|error| failed(&error))?;
    let (delta, codes) = simulation.changes().map_err(|error| failed(&error))?;
    let later = StatePatch { delta: Arc::new(delta), codes };
    Ok(match state.patch() {
        Some(before) => before.then(&later),
        None => later,
    })
}
