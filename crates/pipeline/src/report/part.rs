//! What reports of parts say beside the figures, and what is said of merged ones.

use crate::replay::{NamedBundle, Part};
use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which part of which replay a report is about. Reports in which `inputs`, `options`, the number of
/// parts, the version and the backends are equal belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayPart {
    /// The part.
    pub part: Part,
    /// Name of the machine it was run on.
    pub host: String,
    /// All that is to be replayed, by all parts together.
    pub inputs: PartInputs,
    /// The flags that results depend on, by name.
    pub options: BTreeMap<String, String>,
    /// What this part has to replay.
    pub covered: Covered,
}

/// All that is to be replayed, by all parts together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartInputs {
    /// Bundles.
    Bundles {
        /// Hash of the chain's genesis.
        genesis: B256,
        /// How many.
        count: u64,
        /// Of all of them in order: [`NamedBundle::digest`].
        digest: B256,
    },
    /// A run of blocks of a chain.
    Blocks {
        /// Hash of the chain's genesis.
        genesis: B256,
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
}

/// What one part has to replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Covered {
    /// Nothing: there are more parts than inputs.
    Nothing,
    /// A run of blocks.
    Blocks {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
    /// Bundles, in their order.
    Bundles(Vec<NamedBundle>),
}

/// What a result has beside its figures where it is a part's, or merged from parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFigures {
    /// Keys read by the EVM, by which the amplification of reads is weighed.
    pub key_reads: u64,
    /// Keys changed, by which that of writes is weighed.
    pub key_writes: u64,
    /// Every block of which a check does not hold, or that could not be executed. Of a chain the first
    /// one, at which a replay ends.
    pub failed_blocks: Vec<u64>,
    /// Of a chain: hash of the block before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<B256>,
    /// Of a chain: hash of the last block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<B256>,
}

/// Of which parts a report was merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// Number of parts.
    pub parts: u32,
    /// Parts without a report, or whose run was stopped before its end.
    pub missing: Vec<Part>,
    /// Parts that were given more than once, with the same results; counted once.
    pub repeated: Vec<Part>,
    /// Who ran what.
    pub runs: Vec<PartRun>,
    /// How fast the machines were: one entry a backend.
    pub spread: Vec<Spread>,
}

/// Who ran a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRun {
    /// The part.
    pub part: Part,
    /// Name of the machine.
    pub host: String,
    /// Processor, cores, memory.
    pub machine: String,
}

/// How fast a backend was on each machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Backend name.
    pub backend: String,
    /// Transactions a second of the slowest machine.
    pub tps_min: f64,
    /// Of the median one.
    pub tps_median: f64,
    /// Of the fastest one.
    pub tps_max: f64,
    /// Of all of them together, if each runs one part at a time.
    pub tps_sum: f64,
    /// The machines, by name.
    pub machines: Vec<MachineRate>,
}

/// What one machine did on one backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineRate {
    /// Its name.
    pub host: String,
    /// Processor, cores, memory.
    pub machine: String,
    /// How many parts it ran.
    pub parts: u64,
    /// Transactions of these.
    pub txs: u64,
    /// Their gas.
    pub gas: u64,
    /// Their timed seconds, added up.
    pub seconds: f64,
    /// Transactions a second.
    pub tps: f64,
}

/// The name of this machine, as the system knows it.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".into(),
        name => name.into(),
    }
}
