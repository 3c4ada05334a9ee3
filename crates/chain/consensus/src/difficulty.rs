//! Proof-of-work difficulty, Frontier to Gray Glacier.
//!
//! Every rule adjusts the parent's difficulty by the time since the parent and then adds the
//! *difficulty bomb*, a term that doubles every 100,000 blocks. Later forks subtract a *bomb
//! delay* from the block number before they compute it.
//!
//! | fork | adjustment | bomb delay (blocks) | source |
//! |---|---|---|---|
//! | Frontier | one step up below 13 s, else down | 0 | yellow paper (Frontier) |
//! | Homestead | 1 - dt / 10, at least -99 steps | 0 | EIP-2 |
//! | Byzantium | (2 with ommers, else 1) - dt / 9, at least -99 steps | 3,000,000 | EIP-100, EIP-649 |
//! | Constantinople | as Byzantium | 5,000,000 | EIP-1234 |
//! | Muir Glacier | as Byzantium | 9,000,000 | EIP-2384 |
//! | London | as Byzantium | 9,700,000 | EIP-3554 |
//! | Arrow Glacier | as Byzantium | 10,700,000 | EIP-4345 |
//! | Gray Glacier | as Byzantium | 11,400,000 | EIP-5133 |
//!
//! A step is the parent's difficulty / 2048; "with ommers" means that the parent includes ommers.
//! The sum of all is at least 131,072 (yellow paper 4.4.4). Some clients apply this minimum before
//! they add the bomb; on no public network has it made a difference.

use alloy_consensus::EMPTY_OMMER_ROOT_HASH;
use alloy_primitives::U256;
use retrie_chainspec::{ChainSpec, EthereumHardfork, EthereumHardforks, primitives::Header};

/// Lowest difficulty of any block but genesis.
const MINIMUM_DIFFICULTY: U256 = U256::from_limbs([131_072, 0, 0, 0]);

/// Frontier raises the difficulty when a block follows its parent within fewer seconds than this.
const FRONTIER_DURATION_LIMIT: u64 = 13;
const STEP_DIVISOR: usize = 2048;
const MAX_STEPS_DOWN: u64 = 99;
const BOMB_PERIOD: u64 = 100_000;

/// Forks that moved the bomb, newest first.
const BOMB_DELAYS: [(EthereumHardfork, u64); 6] = [
    (EthereumHardfork::GrayGlacier, 11_400_000),
    (EthereumHardfork::ArrowGlacier, 10_700_000),
    (EthereumHardfork::London, 9_700_000),
    (EthereumHardfork::MuirGlacier, 9_000_000),
    (EthereumHardfork::Constantinople, 5_000_000),
    (EthereumHardfork::Byzantium, 3_000_000),
];

/// Difficulty that a proof-of-work child of `parent` must have.
///
/// `timestamp` is the child's, in seconds. A timestamp before the parent's counts as equal to it
/// (header rules refuse such a child). Results beyond 256 bits saturate.
pub fn next_difficulty(spec: &ChainSpec, parent: &Header, timestamp: u64) -> U256 {
    let number = parent.number.saturating_add(1);
    let elapsed = timestamp.saturating_sub(parent.timestamp);
    let step = parent.difficulty / U256::from(STEP_DIVISOR);

    if !spec.is_homestead_active_at_block(number) {
        let adjusted = if elapsed < FRONTIER_DURATION_LIMIT {
            parent.difficulty.saturating_add(step)
        } else {
            parent.difficulty.saturating_sub(step)
        };
        return adjusted.saturating_add(bomb(number)).max(MINIMUM_DIFFICULTY);
    }

    let delay = BOMB_DELAYS
        .iter()
        .find(|(fork, _)| spec.ethereum_fork_activation(*fork).active_at_block(number));
    let (up, down) = match delay {
        None => (1, elapsed / 10),
        Some(_) => {
            let parent_has_ommers = parent.ommers_hash != EMPTY_OMMER_ROOT_HASH;
            (if parent_has_ommers { 2 } else { 1 }, elapsed / 9)
        }
    };
    let adjusted = if up >= down {
        parent.difficulty.saturating_add(step.saturating_mul(U256::from(up - down)))
    } else {
        let steps = (down - up).min(MAX_STEPS_DOWN);
        // At most 99 / 2048 of the difficulty.
        parent.difficulty.saturating_sub(step.saturating_mul(U256::from(steps)))
    };
    let delay = delay.map_or(0, |(_, delay)| *delay);
    adjusted.saturating_add(bomb(number.saturating_sub(delay))).max(MINIMUM_DIFFICULTY)
}

/// The bomb at a (delayed) block number: 2^(number / 100,000 - 2), from the third period on.
fn bomb(number: u64) -> U256 {
    match number / BOMB_PERIOD {
        0 | 1 => U256::ZERO,
        period if period - 2 < 256 => U256::from(1) << (period - 2),
        _ => U256::MAX,
    }
}
