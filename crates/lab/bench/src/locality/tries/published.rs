//! The rows of the paper's tries.

use super::walk::{CommitNodes, LONGEST_PREFIX, NodeRole, PrefixNode, SortedKeys};
use crate::{
    locality::{
        LocalityError,
        space::DiskNeed,
        stored::{RowTree, RowVisitor, RowWork},
        timing::AccessPhase,
    },
    random::SplitMix64,
};
use std::{collections::HashMap, fmt, str::FromStr};

const HASH: u32 = 32;
/// Bytes of a value of the trie, which a leaf holds.
const VALUE: u32 = 32;
const VERSION: u32 = 4;
/// Bytes that say which children there are.
const CHILD_MASK: u32 = 2;
/// Bytes of the length of a prefix within a row.
const LENGTH: u32 = 1;
/// Longer than any row: a branch of PrefixTree, padded, has 754 bytes.
const LONGEST_ROW: usize = 1024;
/// Makes the keys' seed from that of accesses.
const KEY_SEED: u64 = 0x6b65_7973 << 32;
/// Largest number of reads in a batch, of about 100 rows each.
const MOST_READS: u64 = 1 << 15;

/// A trie of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishedTrie {
    /// The baseline: the simplified Merkle Patricia trie, a row for each node under its hash.
    SimpleMpt,
    /// PrefixTree: a row for each node under its prefix and version.
    PrefixTree {
        /// Whether each prefix is as long as 64 nibbles (section 5.2).
        is_padded: bool,
    },
}

impl PublishedTrie {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::SimpleMpt,
        Self::PrefixTree { is_padded: false },
        Self::PrefixTree { is_padded: true },
    ];

    /// The name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SimpleMpt => "simple-mpt",
            Self::PrefixTree { is_padded: false } => "prefix-tree",
            Self::PrefixTree { is_padded: true } => "prefix-tree:pad=64",
        }
    }

    /// Whether a proof or a new hash needs the rows of siblings.
    const fn reads_siblings(self) -> bool {
        matches!(self, Self::PrefixTree { .. })
    }

    /// Bytes of the row of a node.
    const fn row_bytes(self, node: &PrefixNode) -> u32 {
        match self {
            Self::SimpleMpt => {
                let own = LENGTH + node.prefix_bytes() + CHILD_MASK;
                own + if node.is_leaf() { VALUE } else { node.children * HASH }
            }
            Self::PrefixTree { is_padded } => {
                let prefixes =
                    if is_padded { node.children * LONGEST_PREFIX } else { node.child_bytes };
                let children = node.children * (LENGTH + VERSION) + prefixes;
                HASH + CHILD_MASK + if node.is_leaf() { VALUE } else { children }
            }
        }
    }

    /// The key of the row of a node.
    fn row_key(self, node: &PrefixNode, version: u32, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::SimpleMpt => {
                // As evenly spread as hashes.
                let place = u64::from(node.nibbles) << 32 | u64::from(version);
                let seed = SplitMix64::new(node.prefix).next() ^ SplitMix64::new(!place).next();
                let mut hash = SplitMix64::new(seed);
                (0..4).for_each(|_| out.extend(hash.next().to_be_bytes()));
            }
            Self::PrefixTree { is_padded } => {
                node.put_prefix(out);
                if is_padded {
                    out.resize(LONGEST_PREFIX as usize, 0);
                }
                out.extend(version.to_be_bytes());
            }
        }
    }
}

impl fmt::Display for PublishedTrie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PublishedTrie {
    /// Other names may be those of state stores.
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|trie| trie.name() == text).ok_or(())
    }
}

/// The rows of a trie of random keys.
#[derive(Debug)]
pub(crate) struct PublishedRows {
    trie: PublishedTrie,
    keys: SortedKeys,
    /// Number of commits so far, which is the version of their rows. All others have version 0.
    commits: u32,
    versions: HashMap<(u64, u32), u32>,
}

impl PublishedRows {
    /// A trie of 2^`height` keys.
    pub(crate) fn new(trie: PublishedTrie, height: u32, seed: u64) -> Self {
        // Not the numbers by which accesses are drawn: new keys must differ.
        let keys = SortedKeys::random(1 << height, &mut SplitMix64::new(seed ^ KEY_SEED));
        Self { trie, keys, commits: 0, versions: HashMap::new() }
    }

    /// What the database of a trie of 2^`height` random keys needs on disk.
    pub(crate) fn need(trie: PublishedTrie, height: u32) -> DiskNeed {
        let keys = 1_u64 << height;
        let leaf = PrefixNode { prefix: 0, nibbles: 16, children: 0, child_bytes: 0 };
        // Random keys have about 0.36 branches each, with four children, mostly leaves.
        let branch =
            PrefixNode { prefix: 0, nibbles: 8, children: 4, child_bytes: 4 * LONGEST_PREFIX };
        let row = |node: &PrefixNode| {
            let mut key = Vec::new();
            trie.row_key(node, 0, &mut key);
            key.len() as u64 + u64::from(trie.row_bytes(node))
        };
        let rows = [(keys, row(&leaf)), (2 * keys / 5, row(&branch))];
        DiskNeed::of_rows(format!("{trie} of 2^{height} keys in MDBX"), rows.into_iter())
    }

    fn version(&self, node: &PrefixNode) -> u32 {
        self.versions.get(&(node.prefix, node.nibbles)).copied().unwrap_or(0)
    }

    /// Adds the reads of `nodes` that this trie needs.
    fn add_reads(&self, nodes: &[(NodeRole, PrefixNode)], work: &mut RowWork) {
        let mut key = Vec::new();
        for (role, node) in nodes {
            if *role == NodeRole::Path || self.trie.reads_siblings() {
                self.trie.row_key(node, self.version(node), &mut key);
                work.read(&key, 1, self.trie.row_bytes(node).into());
            }
        }
    }
}

impl RowTree for PublishedRows {
    fn describe(&self) -> String {
        self.trie.to_string()
    }

    fn longest_value(&self) -> usize {
        LONGEST_ROW
    }

    fn rows(&self, each: &mut RowVisitor<'_>) -> Result<(), LocalityError> {
        let (trie, mut key) = (self.trie, Vec::new());
        if trie.reads_siblings() {
            return self.keys.nodes(&mut |node| {
                trie.row_key(node, self.version(node), &mut key);
                each(&key, trie.row_bytes(node) as usize)
            });
        }
        let mut hashed: Vec<([u8; 32], u32)> = Vec::new();
        self.keys.nodes::<LocalityError>(&mut |node| {
            trie.row_key(node, self.version(node), &mut key);
            hashed.extend(key.first_chunk().map(|hash| (*hash, trie.row_bytes(node))));
            Ok(())
        })?;
        hashed.sort_unstable();
        hashed.iter().try_for_each(|(hash, bytes)| each(hash, *bytes as usize))
    }

    fn read(&self, random: &mut SplitMix64, work: &mut RowWork) {
        let Some(key) = self.keys.any(random) else { return };
        let path = self.keys.path(key);
        work.begin_access();
        self.add_reads(&path.nodes, work);
        work.add_regions(match self.trie {
            // Rows under hashes are nowhere beside each other.
            PublishedTrie::SimpleMpt => {
                path.nodes.iter().filter(|(role, _)| *role == NodeRole::Path).count() as u64
            }
            PublishedTrie::PrefixTree { .. } => path.regions,
        });
    }

    /// Inserts new keys in one commit, which writes each changed node once.
    fn change(&mut self, accesses: u64, random: &mut SplitMix64, work: &mut RowWork) {
        let new = self.keys.fresh(accesses, random);
        new.iter().for_each(|_| work.begin_access());
        let CommitNodes { read, written } = self.keys.commit(&new);
        self.add_reads(&read, work);
        self.commits += 1;
        let mut key = Vec::new();
        for node in &written {
            self.trie.row_key(node, self.commits, &mut key);
            work.write(&key, self.trie.row_bytes(node).into());
            self.versions.insert((node.prefix, node.nibbles), self.commits);
        }
        self.keys.add(&new);
    }

    fn change_phase(&self) -> AccessPhase {
        AccessPhase::Insert
    }

    fn most_at_once(&self, phase: AccessPhase) -> u64 {
        match phase {
            AccessPhase::Read => MOST_READS,
            AccessPhase::Write | AccessPhase::Insert => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::{stored::measure, timing::TimingConfig};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn rows_are_found_in_the_database_as_counted_before_and_after_commits() {
        let stop = AtomicBool::new(false);
        let timed =
            TimingConfig { samples: 60, cold: false, folder: std::env::temp_dir(), seed: 8 };
        let [baseline, compact, padded] = PublishedTrie::ALL.map(|trie| {
            let mut rows = PublishedRows::new(trie, 10, timed.seed);
            let phases = measure(&mut rows, &timed, true, &stop).unwrap();
            // The rows that the commits have written are read too.
            let stored =
                measure(&mut PublishedRows::new(trie, 10, 8), &timed, false, &stop).unwrap();
            let [read, insert] = phases;
            assert_eq!(insert.tally.accesses, 180, "keys were not new");
            assert_eq!((read.tally, insert.tally), (stored[0].tally, stored[1].tally), "{trie}");
            (read.tally.means(), insert.tally.means())
        });
        // Section 5.2: both trees have the same nodes, and padded rows are always longer.
        assert_eq!(baseline.1.rows_written, compact.1.rows_written);
        assert_eq!(compact.1.rows_written, padded.1.rows_written);
        assert!(padded.0.read_bytes > baseline.0.read_bytes);
        assert!(padded.1.write_bytes > baseline.1.write_bytes);
        assert!(compact.1.write_bytes < padded.1.write_bytes);
        // Section 4.2: siblings too.
        assert!(compact.0.rows_read > 2.0 * baseline.0.rows_read);
        assert_eq!(
            (compact.0.rows_read, compact.0.regions),
            (padded.0.rows_read, padded.0.regions)
        );
        assert!(compact.0.regions < Some(compact.0.rows_read));
        assert_eq!(baseline.0.regions, Some(baseline.0.rows_read));
    }

    #[test]
    fn rows_are_as_long_as_the_published_node() {
        let branch = PrefixNode { prefix: 0, nibbles: 3, children: 5, child_bytes: 4 * 40 + 3 };
        let leaf = PrefixNode { prefix: 9, nibbles: 16, children: 0, child_bytes: 0 };
        let [baseline, compact, padded] = PublishedTrie::ALL.map(|trie| {
            let mut key = Vec::new();
            trie.row_key(&branch, 1, &mut key);
            (key.len(), trie.row_bytes(&branch), trie.row_bytes(&leaf))
        });
        assert_eq!(baseline, (32, 1 + 2 + 2 + 5 * 32, 1 + 40 + 2 + 32));
        assert_eq!(compact, (2 + 4, 32 + 2 + 163 + 5 * 5, 32 + 2 + 32));
        assert_eq!(padded, (40 + 4, 32 + 2 + 5 * 45, 32 + 2 + 32));
        let need = |trie| PublishedRows::need(trie, 10).bytes;
        let [baseline, compact, padded] = PublishedTrie::ALL.map(need);
        assert!(baseline > 0 && compact > baseline && padded > compact);
        assert_eq!("prefix-tree:pad=64".parse(), Ok(PublishedTrie::ALL[2]));
        assert!("prefix".parse::<PublishedTrie>().is_err());
    }
}
