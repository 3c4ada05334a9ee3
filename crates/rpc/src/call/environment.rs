//! The state and the block environment in which a request's calls are executed.

use super::{apply_block_overrides, apply_state_overrides, header_of_call};
use crate::{RpcContext, RpcError, RpcResult, context::ResolveBlock, replay::state_before};
use alloy_eips::BlockId;
use alloy_rpc_types_eth::{
    BlockOverrides, Bundle, StateContext, TransactionRequest, state::StateOverride,
};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, RecoveredBlock},
};
use retrie_consensus::{ConsensusError, next_excess_blob_gas};
use retrie_engine::{LiveView, NextDevBlock, PostState, pool::NextBlock};
use retrie_execution::{EvmSimulation, simulated_env};
use std::{sync::Arc, time::Instant};

/// The state after a block, or after some of its transactions, and the environment of that block.
#[derive(Debug)]
pub(crate) struct CallEnvironment {
    state: PostState,
    /// The block and the number of its transactions that come before the call; `None`: all of them.
    within: Option<(Arc<RecoveredBlock>, usize)>,
    header: Header,
    spec: Arc<ChainSpec>,
}

impl CallEnvironment {
    /// The state after the block.
    pub(crate) fn after(
        rpc: &RpcContext,
        view: &LiveView,
        id: BlockId,
        overrides: Option<&BlockOverrides>,
    ) -> RpcResult<Self> {
        Self::within(rpc, view, id, None, overrides)
    }

    /// The state after the first `index` transactions of the block; after the whole block if it has
    /// fewer.
    pub(crate) fn within(
        rpc: &RpcContext,
        view: &LiveView,
        id: BlockId,
        index: Option<usize>,
        overrides: Option<&BlockOverrides>,
    ) -> RpcResult<Self> {
        let sealed = view.resolve(id)?;
        let lends = match &rpc.dev {
            Some(dev) if id.is_pending() => next_header(view, &dev.chain.next_block())?,
            _ => sealed.header().clone(),
        };
        let header = header_of_call(&lends, overrides)?;
        let spec = rpc.live.spec().for_header(&header);
        if let Some(index) = index {
            let missing = || RpcError::Rejected("block not found".into());
            let block = view.block(&sealed.hash())?.ok_or_else(missing)?;
            if index < block.body().transactions.len() && block.number > 0 {
                let state = view.state_before(&block)?;
                return Ok(Self { state, within: Some((block, index)), header, spec });
            }
        }
        Ok(Self { state: view.state(&sealed.hash())?, within: None, header, spec })
    }

    /// The header that provides the block environment, with the request's overrides.
    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }

    /// A simulation for untrusted calls: it ends at the node's time limit for calls.
    pub(crate) fn simulation(
        &self,
        rpc: &RpcContext,
        overrides: Option<&BlockOverrides>,
        accounts: Option<StateOverride>,
    ) -> RpcResult<EvmSimulation<'_>> {
        let Self { state, within, header, spec } = self;
        let mut simulation = match within {
            Some((block, index)) => {
                let mut simulation = state_before(rpc, spec, block, *index, state)?;
                *simulation.env_mut() = simulated_env(spec, header);
                simulation
            }
            None => EvmSimulation::new(spec, header, state.input()),
        };
        if within.is_none() && header.number != state.header().number {
            // With an overridden number, the block before is not the parent of the header.
            let before = header.number.saturating_sub(1);
            let hash = retrie_execution::BlockHashes::block_hash(state, before)?;
            simulation.set_block_hash(before, hash.unwrap_or_default());
        }
        simulation.set_deadline(Instant::now() + rpc.limits.evm_timeout);
        if let Some(overrides) = overrides {
            apply_block_overrides(&mut simulation, overrides)?;
        }
        if let Some(accounts) = accounts {
            apply_state_overrides(&mut simulation, accounts)?;
        }
        Ok(simulation)
    }
}

/// The header of the next block of a dev chain, as far as it is known before sealing.
fn next_header(view: &LiveView, next: &NextDevBlock) -> RpcResult<Header> {
    let (spec, head) = (view.live().spec(), view.head());
    let refused = |error: ConsensusError| RpcError::Internal(error.to_string());
    let fees = NextBlock::after(spec, head, next.timestamp).map_err(refused)?;
    let mut header = head.header().clone();
    header.parent_hash = head.hash();
    header.number = fees.number;
    header.timestamp = next.timestamp;
    header.base_fee_per_gas = next.base_fee.or(fees.base_fee);
    header.gas_limit = next.gas_limit.unwrap_or(head.gas_limit);
    header.mix_hash = next.prev_randao.unwrap_or_else(|| head.hash());
    header.beneficiary = next.beneficiary;
    header.excess_blob_gas = next_excess_blob_gas(spec, head, next.timestamp).map_err(refused)?;
    header.slot_number = next.slot_number;
    Ok(header)
}

/// Executes the calls of bundles in order; each call sees the changes of the calls before it.
pub(crate) fn call_bundles<T>(
    rpc: &RpcContext,
    view: &LiveView,
    (bundles, context): (Vec<Bundle>, StateContext),
    accounts: Option<StateOverride>,
    mut call: impl FnMut(&mut EvmSimulation<'_>, TransactionRequest) -> RpcResult<T>,
) -> RpcResult<Vec<Vec<T>>> {
    let block = context.block_number.unwrap_or_default();
    let index = context.transaction_index.unwrap_or_default().index();
    let ground = CallEnvironment::within(rpc, view, block, index, None)?;
    let mut simulation = ground.simulation(rpc, None, accounts)?;
    let mut answers = Vec::with_capacity(bundles.len());
    for bundle in bundles {
        let overrides = bundle.block_override.unwrap_or_default();
        let header = header_of_call(&ground.header, Some(&overrides))?;
        *simulation.env_mut() = simulated_env(&ground.spec, &header);
        apply_block_overrides(&mut simulation, &overrides)?;
        let calls = bundle.transactions.into_iter();
        answers
            .push(calls.map(|request| call(&mut simulation, request)).collect::<RpcResult<_>>()?);
    }
    Ok(answers)
}
