//! Proof-of-work rewards as traces.

use alloy_eips::BlockNumHash;
use alloy_evm::block::calc::{base_block_reward, block_reward, ommer_reward};
use alloy_primitives::U256;
use alloy_rpc_types_trace::parity::{LocalizedTransactionTrace, RewardAction, RewardType};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};

/// The rewards of a block and of its ommers (yellow paper 11.3). None after the merge.
pub(super) fn rewards(spec: &ChainSpec, block: &RecoveredBlock) -> Vec<LocalizedTransactionTrace> {
    let Some(base) = base_block_reward(spec, block.number) else { return Vec::new() };
    let ommers = &block.body().ommers;
    let at = BlockNumHash { number: block.number, hash: block.hash() };
    let own = RewardAction {
        author: block.beneficiary,
        reward_type: RewardType::Block,
        value: U256::from(block_reward(base, ommers.len())),
    };
    let of_ommers = ommers.iter().map(|ommer| RewardAction {
        author: ommer.beneficiary,
        reward_type: RewardType::Uncle,
        value: U256::from(ommer_reward(base, block.number, ommer.number)),
    });
    std::iter::once(own).chain(of_ommers).map(|one| one.into_localized_trace(at)).collect()
}
