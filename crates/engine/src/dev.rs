//! `retrie node --dev`: a chain of its own, without a consensus client.

use crate::{EngineError, EngineHandle, PayloadBuilder, PoolMaintainer, pool::Pool};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256};
use alloy_rpc_types_engine::{ForkchoiceState, PayloadAttributes, PayloadStatusEnum};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::error::RecvError;

/// When a dev chain gets its next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// As soon as there is a transaction (`--dev`).
    Instant,
    /// At this interval, with or without transactions (`--dev.block-time`).
    Interval(Duration),
}

/// Seals the blocks of a dev chain, and is all the consensus that it has.
#[derive(Debug)]
pub struct DevMiner {
    engine: EngineHandle,
    payloads: PayloadBuilder,
    pool: Pool,
    maintainer: PoolMaintainer,
    sealing: Sealing,
    beneficiary: Address,
}

impl DevMiner {
    /// A miner whose fees go to `beneficiary`.
    pub const fn new(
        engine: EngineHandle,
        payloads: PayloadBuilder,
        pool: Pool,
        maintainer: PoolMaintainer,
        sealing: Sealing,
        beneficiary: Address,
    ) -> Self {
        Self { engine, payloads, pool, maintainer, sealing, beneficiary }
    }

    /// Seals until the engine ends.
    ///
    /// # Errors
    /// What kept it from making a block.
    pub async fn run(mut self) -> Result<(), EngineError> {
        match self.sealing {
            Sealing::Interval(interval) => {
                let mut ticks = tokio::time::interval(interval);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
                // The first tick comes at once.
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    self.seal().await?;
                }
            }
            Sealing::Instant => {
                let mut arrivals = self.pool.subscribe();
                loop {
                    while self.pool.status().pending > 0 && self.seal_if_any().await? {}
                    match arrivals.recv().await {
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return Ok(()),
                    }
                }
            }
        }
    }

    /// Seals one block, empty or not.
    ///
    /// # Errors
    /// If it cannot be built, or the engine has ended.
    pub async fn seal(&mut self) -> Result<B256, EngineError> {
        self.seal_one(true).await.map(|hash| hash.unwrap_or_default())
    }

    async fn seal_if_any(&mut self) -> Result<bool, EngineError> {
        Ok(self.seal_one(false).await?.is_some())
    }

    async fn seal_one(&mut self, with_empty: bool) -> Result<Option<B256>, EngineError> {
        let live = self.engine.live().clone();
        let parent = live.head();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let timestamp = now.max(parent.timestamp + 1);
        let spec = live.spec();
        let attributes = PayloadAttributes {
            timestamp,
            // As good as any number here, and the same in every run.
            prev_randao: parent.hash(),
            suggested_fee_recipient: self.beneficiary,
            withdrawals: spec.is_shanghai_active_at_timestamp(timestamp).then(Vec::new),
            parent_beacon_block_root: spec
                .is_cancun_active_at_timestamp(timestamp)
                .then_some(B256::ZERO),
            slot_number: spec
                .is_amsterdam_active_at_timestamp(timestamp)
                .then_some(parent.number + 1),
            target_gas_limit: None,
        };
        let payloads = self.payloads.clone();
        let built = tokio::task::spawn_blocking(move || payloads.build(&parent, &attributes));
        let built = built.await.map_err(|_| EngineError::Panicked)??;
        let block = built.block.block();
        if block.body().transactions.is_empty() && !with_empty {
            return Ok(None);
        }
        let hash = block.hash();
        self.engine.built(built.block.clone());
        let state = ForkchoiceState::same_hash(hash);
        let outcome = self.engine.forkchoice(state).await?;
        if outcome.status.status != PayloadStatusEnum::Valid {
            let reason = format!("the engine calls block {hash} {}", outcome.status.status);
            return Err(EngineError::Build { reason });
        }
        self.maintainer.wait_for(hash).await;
        Ok(Some(hash))
    }
}
