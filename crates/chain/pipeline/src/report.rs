//! The JSON of `--json`: the figures of an import or a replay. Other programs read these fields.

mod part;

pub use part::{
    MachineRate, MachineSpread, MergeSummary, PartCoverage, PartFigures, PartInputs, PartMachine,
    ReplayPart, host,
};

use crate::replay::BlockWitness;
use alloy_primitives::B256;
use retrie_state_store::CounterSnapshot;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, time::Duration};

/// Report of `retrie replay`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplayReport {
    /// The machine the figures were measured on.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Whether everything requested was run; `false` if the run was stopped before its end.
    #[serde(default = "yes")]
    pub complete: bool,
    /// One result per backend.
    pub results: Vec<ReplayResult>,
    /// If it is a part of a replay: which part, and of what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<ReplayPart>,
    /// If it was merged from parts: which parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<MergeSummary>,
}

const fn yes() -> bool {
    true
}

/// The result of replaying one corpus on one backend.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayResult {
    /// Backend name.
    pub backend: String,
    /// Chain name.
    pub chain: String,
    /// First block.
    pub from: u64,
    /// Last block.
    pub to: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of transactions.
    pub txs: u64,
    /// Gas used.
    pub gas: u64,
    /// Timed seconds: sender recovery, execution, root, commit. Writing pre-states is not timed.
    pub seconds: f64,
    /// Transactions per second.
    pub tps: f64,
    /// Million gas per second.
    pub mgas_per_s: f64,
    /// Whether no check failed.
    pub ok: bool,
    /// The failed checks, one line each.
    pub failures: Vec<String>,
    /// The backend's root after the last block.
    pub root: B256,
    /// Where the time went.
    pub breakdown: TimeBreakdown,
    /// Work at the node interface per logical operation.
    pub amplification: IoAmplification,
    /// Bytes of live pages and files at the end.
    pub disk_bytes: u64,
    /// Largest resident set of the process so far, in bytes.
    pub peak_rss_bytes: u64,
    /// The least seconds that the machine needs for these blocks, divided by `seconds`; absent if
    /// its limits were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// Figures that are needed to merge it with other parts; only in reports of parts, and merged
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartFigures>,
    /// Checks of each bundle; absent for chains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<BundleOutcome>,
}

/// The checks of one replayed bundle. A check is `None` if it cannot be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BundleOutcome {
    /// Block number.
    pub number: u64,
    /// `witness` or `prestate`.
    pub kind: Cow<'static, str>,
    /// Rule set of the block.
    pub fork: String,
    /// Number of transactions.
    pub txs: u64,
    /// Gas used, as executed.
    pub gas: u64,
    /// Timed seconds.
    pub seconds: f64,
    /// Whether `gasUsed` is that of the header.
    pub gas_ok: bool,
    /// Whether `logsBloom` is that of the header.
    pub bloom_ok: bool,
    /// Whether `receiptsRoot` is that of the header; before Byzantium it needs a trie.
    pub receipts_ok: Option<bool>,
    /// Whether `requestsHash` is that of the header, from Prague on.
    pub requests_ok: Option<bool>,
    /// Whether the post-state root is that of the header; needs the witness and a trie.
    pub root_ok: Option<bool>,
    /// What it takes to show what the block reads, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<BlockWitness>,
}

impl BundleOutcome {
    /// Whether no check failed.
    pub fn ok(&self) -> bool {
        let optional = [self.receipts_ok, self.requests_ok, self.root_ok];
        self.gas_ok && self.bloom_ok && optional.iter().all(|check| *check != Some(false))
    }

    /// The failed checks in words.
    pub fn failure(&self) -> String {
        let failed = [
            (Some(self.gas_ok), "gasUsed"),
            (Some(self.bloom_ok), "logsBloom"),
            (self.receipts_ok, "receiptsRoot"),
            (self.requests_ok, "requestsHash"),
            (self.root_ok, "stateRoot"),
        ];
        let failed: Vec<_> = failed
            .iter()
            .filter(|(check, _)| *check == Some(false))
            .map(|(_, name)| *name)
            .collect();
        format!("block {} ({}): {} differ", self.number, self.kind, failed.join(", "))
    }
}

/// Seconds by kind of work, as in the LVMT paper (section 6, Fig. 3). They add up to the timed
/// seconds of one thread. Work of other threads (sender recovery, commits) counts only as far as
/// this thread waited for it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// EVM and sender recovery.
    pub execution: f64,
    /// The authenticated structure: state reads and applying a block's delta, without the key-value
    /// store.
    pub authentication: f64,
    /// The key-value store: reads of rows, and commits.
    pub storage_io: f64,
    /// The rest: header and body checks, decoding, waiting.
    pub other: f64,
}

impl TimeBreakdown {
    /// Adds `time` to one field of a breakdown.
    pub fn add(field: &mut f64, time: Duration) {
        *field += time.as_secs_f64();
    }

    /// Moves the time for reading rows, as the state store has counted it, from `authentication` to
    /// `storage_io`. Helper threads may have read for longer than the authentication took; the rest
    /// is not moved.
    pub fn attribute_reads(&mut self, rows: Duration) {
        let rows = rows.as_secs_f64().min(self.authentication);
        self.authentication -= rows;
        self.storage_io += rows;
    }

    /// Sets `other` to the rest of `total` seconds.
    pub fn set_other(&mut self, total: f64) {
        self.other = (total - self.execution - self.authentication - self.storage_io).max(0.0);
    }
}

/// Rows and bytes at the node interface per logical key read or written.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct IoAmplification {
    /// Rows read per key read by the EVM.
    pub reads_per_op: f64,
    /// Rows written per key changed.
    pub writes_per_op: f64,
    /// Bytes read per key read by the EVM.
    pub read_bytes_per_op: f64,
    /// Bytes written per key changed; journal and undo rows are not counted.
    pub write_bytes_per_op: f64,
}

impl IoAmplification {
    /// From the counters at the node interface and the numbers of logical reads and writes.
    pub(crate) fn new(counts: &CounterSnapshot, key_reads: u64, key_writes: u64) -> Self {
        let per = |n: u64, ops: u64| if ops == 0 { 0.0 } else { n as f64 / ops as f64 };
        Self {
            reads_per_op: per(counts.reads, key_reads),
            writes_per_op: per(counts.writes, key_writes),
            read_bytes_per_op: per(counts.read_bytes, key_reads),
            write_bytes_per_op: per(counts.write_bytes, key_writes),
        }
    }
}

/// Report of `retrie import`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ImportReport {
    /// Blocks imported, side blocks included, known ones not.
    pub blocks: u64,
    /// Their transactions.
    pub txs: u64,
    /// Their gas.
    pub gas: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The head after the import.
    pub tip: TipReport,
    /// Header state roots that were compared with a computed one.
    pub roots_checked: u64,
    /// Blocks that were known already.
    pub known_blocks: u64,
    /// Blocks that did not become canonical at once.
    pub side_blocks: u64,
    /// Reorganisations.
    pub reorgs: u64,
    /// The least seconds that the machine needs for these blocks, divided by `seconds`; absent if
    /// its limits were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
}

/// The head of a chain.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TipReport {
    /// Height.
    pub number: u64,
    /// Block hash.
    pub hash: B256,
    /// State root in the header.
    #[serde(rename = "stateRoot")]
    pub state_root: B256,
}

/// One line about this machine: processor, cores, memory.
pub fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown cpu".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|kb| kb.split_whitespace().next()?.parse::<u64>().ok())
        .map_or_else(|| "?".into(), |kb| format!("{:.0}", kb as f64 / (1 << 20) as f64));
    format!("{cpu}, {cores} cores, {memory} GiB, {}", std::env::consts::OS)
}

/// Largest resident set of this process so far, in bytes; 0 if the system does not report it.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024)
}
