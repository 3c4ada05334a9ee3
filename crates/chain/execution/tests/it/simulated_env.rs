//! Environments of blocks that may not exist.

use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::Header};
use retrie_execution::{evm_env, simulated_env};
use revm::primitives::hardfork::SpecId;

#[test]
fn a_late_time_and_an_early_number_have_randomness() {
    let spec = ChainSpec::mainnet();
    let mix_hash = B256::repeat_byte(7);
    let header = |timestamp| Header {
        // Of August 2021, a year before the merge.
        number: 13_000_000,
        timestamp,
        mix_hash,
        base_fee_per_gas: Some(0),
        excess_blob_gas: Some(0),
        ..Header::default()
    };
    let late = header(1_800_000_000);
    assert!(evm_env(&spec, &late).cfg_env.spec.is_enabled_in(SpecId::CANCUN));
    assert_eq!(evm_env(&spec, &late).block_env.prevrandao, None, "the EVM would refuse it");
    assert_eq!(simulated_env(&spec, &late).block_env.prevrandao, Some(mix_hash));
    let early = header(1_630_000_000);
    assert_eq!(simulated_env(&spec, &early).block_env.prevrandao, None);
}
