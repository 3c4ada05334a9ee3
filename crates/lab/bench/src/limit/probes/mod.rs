//! The probes: what one unit of each kind of work costs.
//!
//! A probe runs in rounds of a given length: one thread alone, then a thread on each core at once.
//! A round is the units of all threads over their time; a cost is the median of the rounds.

mod blocks;
mod disk;
mod memory;
mod rounds;

pub use blocks::{MAINNET_MIX, mix_name};

use super::{LimitError, MachineLimits};
use crate::{cache::StateCache, chain::ContractSet};
use blocks::{MemoryBlock, execution_costs, made_blocks, mainnet_blocks, sender_cost};
use retrie_sources::Bundle;
use retrie_state::AnyBackend;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// The sizes of the probes.
#[derive(Clone, Copy, Debug)]
pub struct ProbeConfig {
    /// Rounds of each probe, alone and together.
    pub rounds: u32,
    /// Least time of a round.
    pub round: Duration,
    /// Blocks made of each mix.
    pub blocks: u64,
    /// Transactions in each of these blocks.
    pub transactions: u64,
    /// Bytes of the file whose pages are read.
    pub file_bytes: u64,
}

impl Default for ProbeConfig {
    /// About a minute in all.
    fn default() -> Self {
        Self {
            rounds: 5,
            round: Duration::from_millis(200),
            blocks: 8,
            transactions: 200,
            file_bytes: 256 << 20,
        }
    }
}

impl ProbeConfig {
    fn check(&self) -> Result<(), LimitError> {
        let refuse = |what| Err(LimitError::Setting { what });
        match self {
            Self { rounds: 0, .. } => refuse("there must be 1 round at least"),
            Self { blocks: 0, .. } => refuse("there must be 1 block of each mix at least"),
            Self { transactions: 0, .. } => refuse("a block needs 1 transaction at least"),
            Self { file_bytes, .. } if *file_bytes < disk::LEAST_FILE_BYTES => {
                refuse("the file whose pages are read must have 1 MiB at least")
            }
            _ => Ok(()),
        }
    }
}

/// What the probes work on.
pub struct ProbeInputs<'a> {
    /// A backend with Ethereum's roots, which makes the blocks.
    pub root_maker: Arc<dyn AnyBackend>,
    /// The token and market contracts to execute: a mix that calls them is measured with each set.
    pub contracts: Vec<Arc<ContractSet>>,
    /// Real blocks of mainnet with the state that they touch; may be empty.
    pub bundles: &'a [Bundle],
    /// The folder for temporary files: its disk is measured.
    pub cache: &'a StateCache,
    /// Set to stop at the next round.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for ProbeInputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbeInputs").field("bundles", &self.bundles.len()).finish_non_exhaustive()
    }
}

/// Measures the limits of this machine. `progress` gets the name of each probe before it begins.
///
/// # Errors
/// [`LimitError`]; [`LimitError::Stopped`] once `stop` is set.
pub fn measure(
    config: &ProbeConfig,
    inputs: &ProbeInputs<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<MachineLimits, LimitError> {
    config.check()?;
    let rounds = rounds::RoundPlan::new(config.rounds, config.round, inputs.stop);
    progress("making blocks");
    let blocks = blocks(config, inputs)?;
    progress("recovering senders");
    let sender = sender_cost(&rounds, blocks.values().flatten())?;
    let mut execution = BTreeMap::new();
    for (mix, blocks) in &blocks {
        progress(&format!("executing {mix}"));
        execution.insert(mix.clone(), execution_costs(&rounds, blocks)?);
    }
    progress("hashing, looking up");
    let memory = memory::memory_costs(&rounds)?;
    progress("writing and reading the disk");
    let disk = disk::disk_costs(&rounds, inputs.cache, config.file_bytes)?;
    Ok(MachineLimits {
        sender,
        execution,
        branch_hash: memory.branch_hash,
        leaf_hash: memory.leaf_hash,
        lookup: memory.lookup,
        disk,
    })
}

/// The blocks of each mix, by its name.
fn blocks(
    config: &ProbeConfig,
    inputs: &ProbeInputs<'_>,
) -> Result<BTreeMap<String, Vec<MemoryBlock>>, LimitError> {
    let mut blocks = BTreeMap::new();
    for recipe in blocks::recipes(config.transactions, &inputs.contracts) {
        let made = made_blocks(&recipe, config.blocks, inputs)?;
        blocks.insert(mix_name(&recipe), made);
    }
    if !inputs.bundles.is_empty() {
        blocks.insert(MAINNET_MIX.into(), mainnet_blocks(inputs.bundles)?);
    }
    Ok(blocks)
}
