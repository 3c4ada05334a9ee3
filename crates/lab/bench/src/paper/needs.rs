//! The disk and memory that an experiment needs, estimated before it starts, so that a run does not
//! die of a full disk after hours.
//!
//! The model is linear: bytes on disk for each key of the state and for each key that the workload
//! writes, by store; a kept state and the copy that the race works on; memory to load the state and
//! for rows that are not folded yet. Bytes a key are those of `docs/scale.md` and
//! `docs/benchmarks/papers.md`, rounded up.

use super::ExperimentSetup;
use std::path::Path;

/// Disk and memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct ResourceNeeds {
    /// Of the loaded state.
    state: u64,
    /// Of what the workload writes.
    written: u64,
    memory: u64,
}

/// What is free on this machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeResources {
    /// On the disk that keeps prepared states.
    pub kept_disk: u64,
    /// On the disk of states that are made for one race and removed.
    pub scratch_disk: u64,
    /// Memory.
    pub memory: u64,
}

/// How the stores of an experiment are raced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaceGroups {
    /// Stores that race together; several groups if all do not fit at once.
    pub groups: Vec<Vec<&'static str>>,
    /// Stores that do not fit alone, each with the reason.
    pub refused: Vec<String>,
    /// Whether there is no room to keep prepared states.
    pub is_scratch: bool,
}

impl RaceGroups {
    /// Whether all stores race together, on states that are kept.
    pub fn is_whole(&self) -> bool {
        self.groups.len() == 1 && self.refused.is_empty() && !self.is_scratch
    }
}

/// Bytes on disk of a store for each key: of a loaded state, and for each further write.
const STORES: [(&str, u64, u64); 10] = [
    ("raw", 110, 30),
    ("mpt", 220, 120),
    ("mpt-archive:prune", 440, 300),
    ("mpt-archive", 440, 2000),
    ("lvmt", 240, 40),
    ("lmpt", 210, 120),
    ("prefix", 300, 120),
    ("bavl", 150, 100),
    ("cole", 80, 20),
    ("duptree", 410, 200),
];
/// Of any other store.
const OTHER: (u64, u64) = (450, 2000);
/// Memory to load one key.
const LOADING: u64 = 90;
/// Memory of a row that is not folded yet, with its place in an index.
const UNFOLDED: u64 = 600;
/// Memory that each store has besides: caches of nodes, points of a curve.
const FIXED: u64 = 256 << 20;
/// Default limit of unfolded rows in MiB.
const CACHE_MB: u64 = 1024;
/// Bytes of a signed transaction in a file of blocks.
const TRANSACTION: u64 = 160;
/// Bytes on disk of a leaf of the largest layout of a tree in a file, and of a row of MDBX.
const LEAF: u64 = 160;
const ROW: u64 = 250;
/// Memory of a key of a trie that is counted, and of an element of a tree in memory, with its
/// messages.
const TRIE_KEY: u64 = 64;
const ELEMENT: u64 = 2500;
/// Tries that are counted have at most this height.
const HIGHEST_TRIE: u32 = 26;
/// Memory that is left to everything else.
const SPARE_MEMORY: u64 = 1 << 30;

impl FreeResources {
    /// What is free now. An unknown size counts as unlimited.
    pub fn measured(kept: &Path, scratch: &Path) -> Self {
        Self {
            kept_disk: free_disk(kept),
            scratch_disk: free_disk(scratch),
            memory: crate::memory::available().unwrap_or(u64::MAX),
        }
    }
}

/// Free bytes on the disk of `folder`, or of the folder above that exists.
fn free_disk(folder: &Path) -> u64 {
    let disk = folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
    disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

impl ExperimentSetup {
    /// Keys that the workload writes, and bytes of the transactions that write them.
    const fn written(&self) -> (u64, u64) {
        match *self {
            Self::State { pairs, .. } => (pairs, 0),
            Self::Chain { workload, txs, .. } => {
                let keys = match workload.as_bytes() {
                    b"uniswap" => 8,
                    b"erc20" => 3,
                    _ => 2,
                };
                (txs * keys, txs * TRANSACTION)
            }
            Self::SmallBank { blocks, txs_per_block, .. } => {
                let txs = blocks * txs_per_block;
                (txs * 3 / 2, txs * TRANSACTION)
            }
            Self::KvStore { blocks, txs_per_block, .. }
            | Self::Provenance { blocks, txs_per_block, .. } => {
                let txs = blocks * txs_per_block;
                (txs, txs * TRANSACTION)
            }
            Self::Replay { pairs: Some(pairs), .. } => (pairs, 0),
            Self::Replay { .. } => (250_000, 0),
            Self::Locality { .. }
            | Self::Trees { .. }
            | Self::Sync { .. }
            | Self::Crypto { .. } => (0, 0),
        }
    }

    const fn cache_bytes(&self) -> u64 {
        let cache = match *self {
            Self::State { cache_mb: Some(mb), .. }
            | Self::Chain { cache_mb: Some(mb), .. }
            | Self::SmallBank { cache_mb: Some(mb), .. }
            | Self::KvStore { cache_mb: Some(mb), .. } => mb as u64,
            _ => CACHE_MB,
        };
        cache << 20
    }

    /// What `backend` needs alone, without the memory that loading takes.
    fn needs_of(&self, backend: &str) -> ResourceNeeds {
        let name = backend.split(['@', ':']).next().unwrap_or(backend);
        let known = STORES.iter().find(|(known, ..)| {
            // The synchronous variant of a store has the same files.
            [backend, name].contains(known) || name.strip_suffix("-sync") == Some(known)
        });
        let (key, write) = known.map_or(OTHER, |(_, key, write)| (*key, *write));
        let (keys, (writes, _)) = (self.keys(), self.written());
        let (loaded, new) = match self {
            Self::State { keys: None, .. } | Self::SmallBank { .. } => (0, keys),
            Self::KvStore { base, .. } => (*base, keys - base),
            _ => (keys, 0),
        };
        ResourceNeeds {
            state: loaded * key,
            written: new * key + writes * write,
            memory: FIXED + self.cache_bytes().min((writes + new) * UNFOLDED),
        }
    }

    /// What the whole experiment needs that is no store's: blocks, files, trees, loading.
    fn shared_needs(&self) -> ResourceNeeds {
        let (_, transactions) = self.written();
        match *self {
            Self::Locality { heights: (_, high), samples, rows, tries, slot_bytes, .. } => {
                let file = (LEAF * u64::from(slot_bytes) / 32) << high;
                let tries = if tries == "none" { 0 } else { TRIE_KEY << high.min(HIGHEST_TRIE) };
                ResourceNeeds {
                    state: 0,
                    // Counts need no file.
                    written: if samples > 0 { file } else { 0 }.max(u64::from(rows) * ROW),
                    memory: tries,
                }
            }
            Self::Trees { elements, .. } => {
                ResourceNeeds { memory: elements * ELEMENT, ..ResourceNeeds::default() }
            }
            Self::Sync { elements, peers, .. } => ResourceNeeds {
                memory: elements * ELEMENT * (u64::from(peers) + 1),
                ..ResourceNeeds::default()
            },
            _ => ResourceNeeds { state: transactions, written: 0, memory: self.keys() * LOADING },
        }
    }

    /// The groups in which `backends` can race with what is free: all at once if they fit, else one
    /// by one. Without backends there is one group, which is empty.
    pub fn groups(&self, backends: &[&'static str], free: &FreeResources) -> RaceGroups {
        let shared = self.shared_needs();
        let together = backends.iter().map(|name| self.needs_of(name)).fold(shared, |sum, one| {
            ResourceNeeds {
                state: sum.state + one.state,
                written: sum.written + one.written,
                memory: sum.memory + one.memory,
            }
        });
        let memory = free.memory.saturating_sub(SPARE_MEMORY.min(free.memory / 8));
        if backends.is_empty() {
            let why = refusal(together.written, free.scratch_disk, together.memory, memory);
            return RaceGroups {
                groups: if why.is_none() { vec![Vec::new()] } else { Vec::new() },
                refused: why.map(|why| format!("the experiment {why}")).into_iter().collect(),
                is_scratch: false,
            };
        }
        if 2 * together.state + together.written <= free.kept_disk && together.memory <= memory {
            return RaceGroups {
                groups: vec![backends.to_vec()],
                refused: Vec::new(),
                is_scratch: false,
            };
        }
        let mut groups = RaceGroups { groups: Vec::new(), refused: Vec::new(), is_scratch: true };
        for name in backends {
            let own = self.needs_of(name);
            let disk = shared.state + own.state + own.written;
            let needed = shared.memory + own.memory;
            match refusal(disk, free.scratch_disk, needed, memory) {
                None => groups.groups.push(vec![*name]),
                Some(why) => groups.refused.push(format!("{name} {why}")),
            }
        }
        groups
    }
}

/// Why something does not fit.
fn refusal(disk: u64, free_disk: u64, memory: u64, free_memory: u64) -> Option<String> {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    if disk > free_disk {
        return Some(format!("needs about {} of disk, and {} are free", gib(disk), gib(free_disk)));
    }
    let short = memory > free_memory;
    short.then(|| {
        format!("needs about {} of memory, and {} are free", gib(memory), gib(free_memory))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES_OF_FIG_4: [&str; 3] = ["raw", "lvmt@0/64", "mpt-archive"];

    fn state(keys: u64) -> ExperimentSetup {
        ExperimentSetup::State {
            keys: Some(keys),
            pairs: 10_000_000,
            commit_every: 1000,
            cache_mb: Some(1500),
            proofs: 0,
            memory_limit_mb: None,
        }
    }

    #[test]
    fn stores_run_alone_if_they_do_not_fit_together_and_are_refused_if_not_alone() {
        let gib = |count: u64| count << 30;
        let free = FreeResources { kept_disk: gib(50), scratch_disk: gib(50), memory: gib(24) };
        let small = state(1_000_000).groups(&STORES_OF_FIG_4, &free);
        assert_eq!(small.groups, [STORES_OF_FIG_4.to_vec()]);
        let large = state(100_000_000).groups(&STORES_OF_FIG_4, &free);
        assert_eq!(large.groups, [["raw"], ["lvmt@0/64"]]);
        assert!(small.is_whole() && !large.is_whole());
        assert!(large.refused[0].starts_with("mpt-archive needs about"));
        let little = FreeResources { memory: gib(4), ..free };
        assert!(state(100_000_000).groups(&["raw"], &little).refused[0].contains("of memory"));
        let sync = ExperimentSetup::Sync {
            elements: 1000,
            chunk: 16,
            peers: 9,
            byzantine: 0,
            seeds: None,
        };
        assert_eq!(sync.groups(&[], &free).groups, [[""; 0]]);
    }
}
