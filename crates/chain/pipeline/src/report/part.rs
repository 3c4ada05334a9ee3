//! What reports of parts, and merged reports, have beside the figures.

use crate::replay::{NamedBundle, PartSpec};
use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which part of which replay a report is about. Reports belong together if `inputs`, `options`,
/// the number of parts, the version and the backends are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayPart {
    /// The part.
    pub part: PartSpec,
    /// Name of the machine that ran it.
    pub host: String,
    /// The inputs of all parts together.
    pub inputs: PartInputs,
    /// The flags that the results depend on, by name.
    pub options: BTreeMap<String, String>,
    /// The inputs of this part.
    pub covered: PartCoverage,
}

/// The inputs of all parts of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartInputs {
    /// Bundles.
    Bundles {
        /// Hash of the chain's genesis.
        genesis: B256,
        /// Number of bundles.
        count: u64,
        /// Digest of all bundles in order: [`NamedBundle::digest`].
        digest: B256,
    },
    /// Consecutive blocks of a chain.
    Blocks {
        /// Hash of the chain's genesis.
        genesis: B256,
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
}

/// The inputs of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartCoverage {
    /// None: there are more parts than inputs.
    Nothing,
    /// Consecutive blocks.
    Blocks {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// Bundles, in their order.
    Bundles(Vec<NamedBundle>),
}

/// What the result of a part, or a merged result, has beside its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFigures {
    /// Keys read by the EVM: the weight of the part's read amplification.
    pub key_reads: u64,
    /// Keys changed: the weight of the part's write amplification.
    pub key_writes: u64,
    /// Every block with a failed check, or that could not be executed. The replay of a chain ends
    /// at the first one.
    pub failed_blocks: Vec<u64>,
    /// For a chain: hash of the block before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<B256>,
    /// For a chain: hash of the last block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<B256>,
}

/// The parts from which a report was merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MergeSummary {
    /// Number of parts.
    pub parts: u32,
    /// Parts without a report, or whose run was stopped.
    pub missing: Vec<PartSpec>,
    /// Parts that were given more than once, with the same results. They are counted once.
    pub repeated: Vec<PartSpec>,
    /// The machines that ran the parts.
    pub runs: Vec<PartMachine>,
    /// Speed of the machines: one entry per backend.
    pub spread: Vec<MachineSpread>,
}

/// The machine that ran a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartMachine {
    /// The part.
    pub part: PartSpec,
    /// Name of the machine.
    pub host: String,
    /// Processor, cores, memory.
    pub machine: String,
}

/// Speed of a backend on the machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSpread {
    /// Backend name.
    pub backend: String,
    /// Transactions per second of the slowest machine.
    pub tps_min: f64,
    /// Transactions per second of the median machine.
    pub tps_median: f64,
    /// Transactions per second of the fastest machine.
    pub tps_max: f64,
    /// Transactions per second of all machines together, if each runs one part at a time.
    pub tps_sum: f64,
    /// The machines, by name.
    pub machines: Vec<MachineRate>,
}

/// The work of one machine on one backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineRate {
    /// Its name.
    pub host: String,
    /// Processor, cores, memory.
    pub machine: String,
    /// Number of parts that it ran.
    pub parts: u64,
    /// Transactions of these parts.
    pub txs: u64,
    /// Gas of these parts.
    pub gas: u64,
    /// Timed seconds of these parts, summed.
    pub seconds: f64,
    /// Transactions per second.
    pub tps: f64,
}

/// The host name of this machine.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".into(),
        name => name.into(),
    }
}
