//! `eth_config`: the fork schedule of this node (EIP-7910).

use crate::{RpcContext, RpcError, RpcResult, args::register_read};
use alloy_eips::eip7910::{EthConfig, EthForkConfig, SystemContract};
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use jsonrpsee::RpcModule;
use retrie_chainspec::{ChainSpec, primitives::Header};
use revm::{precompile::Precompiles, primitives::hardfork::SpecId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_config", |rpc, view, _| {
        config(rpc.live.spec(), view.head().header())
    });
}

/// The fork at `head`, the next one, and the last one (EIP-7910).
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
    // The last fork of the schedule, if one is scheduled.
    let last = if next.is_some() { at(times.len() - 1)? } else { None };
    Ok(EthConfig { current: fork(spec, times[current])?, next, last })
}

/// Timestamps (seconds) at which rules change, blob parameters and the kind of state root included.
fn fork_times(spec: &ChainSpec) -> BTreeSet<u64> {
    let forks = spec.forks().filter_map(|(_, condition)| match condition {
        ForkCondition::Timestamp(time) => Some(time),
        _ => None,
    });
    let blobs = spec.blob_schedule().scheduled.iter().map(|(time, _)| *time);
    forks.chain(blobs).chain(spec.binary_tree_time()).collect()
}

fn fork(spec: &ChainSpec, time: u64) -> RpcResult<EthForkConfig> {
    let at = time.max(spec.genesis_header().timestamp);
    let missing = || RpcError::Internal(format!("no blob parameters at {time}"));
    let blob_schedule = spec.blob_params_at_timestamp(at).ok_or_else(missing)?;
    let mut system_contracts: BTreeMap<_, _> = SystemContract::cancun().into();
    let mut rules = SpecId::CANCUN;
    if spec.is_prague_active_at_timestamp(at) {
        let deposit_contract = spec.deposit_contract();
        // alloy uses mainnet's deposit contract for chains without one.
        let is_there = |contract: &SystemContract| {
            deposit_contract.is_some() || *contract != SystemContract::DepositContract
        };
        let contracts = SystemContract::prague(deposit_contract).into_iter();
        system_contracts.extend(contracts.filter(|(contract, _)| is_there(contract)));
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

/// The `FORK_HASH` of EIP-2124 and EIP-6122 at a time: CRC-32 of the genesis hash and of all fork
/// activations up to that time.
fn fork_hash(spec: &ChainSpec, time: u64) -> [u8; 4] {
    let genesis = spec.genesis_header();
    let mut blocks = BTreeSet::new();
    for (fork, condition) in spec.forks() {
        match condition {
            ForkCondition::Block(number) => blocks.insert(number),
            // The fork id contains the merge only as the block at which the network splits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Times of Sepolia's forks since Cancun and their fork hashes, as go-ethereum has them.
    const SEPOLIA: [(u64, [u8; 4]); 6] = [
        (1_706_655_072, [0x88, 0xcf, 0x81, 0xd9]),
        (1_741_159_776, [0xed, 0x88, 0xb5, 0xfd]),
        (1_760_427_360, [0xe2, 0xae, 0x49, 0x99]),
        (1_761_017_184, [0x56, 0x07, 0x8a, 0x1e]),
        (1_761_607_008, [0x26, 0x89, 0x56, 0xb6]),
        (1_791_294_816, [0x6c, 0x1d, 0x94, 0x23]),
    ];

    fn at(timestamp: u64) -> EthConfig {
        config(&ChainSpec::sepolia(), &Header { timestamp, ..Default::default() }).unwrap()
    }

    #[test]
    fn fork_hashes_are_those_of_the_network() {
        for (time, hash) in SEPOLIA {
            assert_eq!(fork_hash(&ChainSpec::sepolia(), time), hash, "{time}");
            let current = at(time).current;
            assert_eq!((current.activation_time, &current.fork_id[..]), (time, &hash[..]));
        }
        assert_eq!(fork_hash(&ChainSpec::mainnet(), u64::MAX), [0x07, 0xc9, 0x46, 0x2e]);
        assert_eq!(fork_hash(&ChainSpec::hoodi(), u64::MAX), [0x23, 0xaa, 0x13, 0x51]);
    }

    #[test]
    fn amsterdam_is_described_with_the_contracts_of_builders() {
        let amsterdam = SEPOLIA[5].0;
        let before = at(amsterdam - 1);
        assert_eq!(before.current.activation_time, SEPOLIA[4].0);
        assert!(before.next.is_some() && before.next == before.last);
        let after = at(amsterdam);
        assert_eq!(Some(&after.current), before.next.as_ref());
        assert!(after.next.is_none() && after.last.is_none());

        let address = |number: u64| format!("0x{number:040x}");
        let precompiles = [
            ("ECREC", 1),
            ("SHA256", 2),
            ("RIPEMD160", 3),
            ("ID", 4),
            ("MODEXP", 5),
            ("BN254_ADD", 6),
            ("BN254_MUL", 7),
            ("BN254_PAIRING", 8),
            ("BLAKE2F", 9),
            ("KZG_POINT_EVALUATION", 0xa),
            ("BLS12_G1ADD", 0xb),
            ("BLS12_G1MSM", 0xc),
            ("BLS12_G2ADD", 0xd),
            ("BLS12_G2MSM", 0xe),
            ("BLS12_PAIRING_CHECK", 0xf),
            ("BLS12_MAP_FP_TO_G1", 0x10),
            ("BLS12_MAP_FP2_TO_G2", 0x11),
            ("P256VERIFY", 0x100),
        ];
        let precompiles: BTreeMap<_, _> =
            precompiles.into_iter().map(|(name, number)| (name, address(number))).collect();
        let expected = json!({
            "activationTime": amsterdam,
            "blobSchedule": { "target": 14, "max": 21, "baseFeeUpdateFraction": 11_684_671 },
            "chainId": "0xaa36a7",
            "forkId": "0x6c1d9423",
            "precompiles": precompiles,
            "systemContracts": {
                "BEACON_ROOTS_ADDRESS": "0x000f3df6d732807ef1319fb7b8bb8522d0beac02",
                "BUILDER_DEPOSIT_CONTRACT_ADDRESS": "0x0000bff46984e3725691fa540a8c7589300d8282",
                "BUILDER_EXIT_CONTRACT_ADDRESS": "0x000064d678505ad48f8ccb093bc65613800e8282",
                "CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS":
                    "0x0000bbddc7ce488642fb579f8b00f3a590007251",
                "DEPOSIT_CONTRACT_ADDRESS": "0x7f02c3e3c98b133055b8b348b2ac625669ed295d",
                "HISTORY_STORAGE_ADDRESS": "0x0000f90827f1c53a10cb7a02335b175320002935",
                "WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS":
                    "0x00000961ef480eb55e80d19ad83579a64c007002",
            },
        });
        assert_eq!(serde_json::to_value(&after.current).unwrap(), expected);
        let contracts = &before.current.system_contracts;
        assert!(!contracts.contains_key(&SystemContract::BuilderExitContract), "{contracts:?}");
    }
}
