//! The fork schedule as this node has it: `eth_config` (EIP-7910).

use crate::{RpcContext, RpcError, RpcResult, args::read};
use alloy_eips::eip7910::{EthConfig, EthForkConfig, SystemContract};
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use jsonrpsee::RpcModule;
use retrie_chainspec::{ChainSpec, primitives::Header};
use revm::{precompile::Precompiles, primitives::hardfork::SpecId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    read(module, "eth_config", |rpc, view, _| config(rpc.live.spec(), view.head().header()));
}

/// The fork at `head`, the one after it, and the last one (EIP-7910).
fn config(spec: &ChainSpec, head: &Header) -> RpcResult<EthConfig> {
    let genesis = spec.genesis_header().timestamp;
    let is_cancun = |time: &u64| spec.is_cancun_active_at_timestamp(*time);
    let times: Vec<u64> = fork_times(spec)
        .into_iter()
        .map(|time| if time <= genesis { 0 } else { time })
        .filter(|time| is_cancun(&(*time).max(genesis)))
        .collect();
    let active = times.partition_point(|time| *time <= head.timestamp);
    let current = active.checked_sub(1).ok_or_else(|| {
        RpcError::Rejected("eth_config describes forks from Cancun on; the head is before".into())
    })?;
    let at = |index: usize| times.get(index).map(|time| fork(spec, *time)).transpose();
    let next = at(active)?;
    // The furthest one that is planned, if any is.
    let last = if next.is_some() { at(times.len() - 1)? } else { None };
    Ok(EthConfig { current: fork(spec, times[current])?, next, last })
}

/// Times in seconds at which rules change, blob parameters included.
fn fork_times(spec: &ChainSpec) -> BTreeSet<u64> {
    let forks = spec.forks().filter_map(|(_, condition)| match condition {
        ForkCondition::Timestamp(time) => Some(time),
        _ => None,
    });
    forks.chain(spec.blob_schedule().scheduled.iter().map(|(time, _)| *time)).collect()
}

fn fork(spec: &ChainSpec, time: u64) -> RpcResult<EthForkConfig> {
    let at = time.max(spec.genesis_header().timestamp);
    let missing = || RpcError::Internal(format!("no blob parameters at {time}"));
    let blob_schedule = spec.blob_params_at_timestamp(at).ok_or_else(missing)?;
    let mut system_contracts: BTreeMap<_, _> = SystemContract::cancun().into();
    let mut rules = SpecId::CANCUN;
    if spec.is_prague_active_at_timestamp(at) {
        system_contracts.extend(SystemContract::prague(spec.deposit_contract_address()));
        rules = SpecId::PRAGUE;
    }
    if spec.is_osaka_active_at_timestamp(at) {
        rules = SpecId::OSAKA;
    }
    if spec.is_amsterdam_active_at_timestamp(at) {
        system_contracts.extend(SystemContract::amsterdam());
        rules = SpecId::AMSTERDAM;
    }
    let precompiles = Precompiles::new(rules.into());
    Ok(EthForkConfig {
        activation_time: time,
        blob_schedule,
        chain_id: spec.chain_id(),
        fork_id: fork_hash(spec, at).to_vec().into(),
        precompiles: (precompiles.inner().iter())
            .map(|(address, precompile)| (precompile.id().name().into(), *address))
            .collect(),
        system_contracts,
    })
}

/// The `FORK_HASH` of EIP-2124 and EIP-6122 at a time: CRC-32 of the genesis hash and of all
/// activations up to then.
fn fork_hash(spec: &ChainSpec, time: u64) -> [u8; 4] {
    let genesis = spec.genesis_header();
    let mut blocks = BTreeSet::new();
    for (fork, condition) in spec.forks() {
        match condition {
            ForkCondition::Block(number) => blocks.insert(number),
            // The merge is known to the fork id only as the block that splits the network.
            ForkCondition::TTD { fork_block: Some(number), .. }
                if fork == EthereumHardfork::Paris =>
            {
                blocks.insert(number)
            }
            _ => false,
        };
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(genesis.hash().as_slice());
    let blocks = blocks.into_iter().filter(|number| *number > 0);
    let times = fork_times(spec).into_iter().filter(|at| *at > genesis.timestamp && *at <= time);
    for activation in blocks.chain(times) {
        crc.update(&activation.to_be_bytes());
    }
    crc.finalize().to_be_bytes()
}
