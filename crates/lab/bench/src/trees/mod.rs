//! Authenticated search trees in memory, raced as in the B+AVL paper (sections V.B to V.D).
//!
//! * [`TreeStructure`]: the trees: B+AVL, the paper's baseline AVL+, AVL*, and a Merkle B+tree. All
//!   hash elements and pairs in the same way; B+AVL, AVL+ and the chunks of AVL* share the
//!   implementation of the tree above their leaves.
//! * [`measure`]: times of inserts, searches and serialisation, lengths of proofs, numbers of
//!   chunks.
//! * [`report`]: the results.
//!
//! B+AVL has the shape and the roots of the backend `storage-bavl` with one insertion per block.
//! That backend keeps its entries on disk; the trees of the paper do not.

mod arena;
mod avl;
mod avlplus;
mod avlstar;
mod bavl;
mod bplus;
mod chunk_hashes;
pub(crate) mod elements;
mod entries;
mod hash;
pub mod measure;
mod proof;
pub mod report;

pub(crate) use avlplus::{AvlPlusTree, MessageElements, elements as read_elements};
pub(crate) use bavl::{BavlTree, CheckedChunk, ChunkPlace, root_of};

use alloy_primitives::B256;
use proof::MembershipProof;
use std::{fmt, str::FromStr};

/// A search tree with Merkle hashes.
pub(crate) trait AuthenticatedTree: Sized {
    /// Name of the tree.
    const NAME: &'static str;

    /// An empty tree, whose chunks hold at most `most` elements.
    fn new(most: usize) -> Self;

    /// Inserts an element, or replaces its value.
    fn insert(&mut self, key: u32, value: &[u8]);

    /// The value of a key.
    fn get(&self, key: u32) -> Option<&[u8]>;

    /// Hashes all changed nodes and returns the root.
    fn root(&mut self) -> B256;

    /// Proves the value of a key. The tree must be hashed.
    fn prove(&self, key: u32) -> Option<MembershipProof>;

    /// Calls `found` with the number of hashes in the proof of each element, in key order.
    fn each_proof(&self, found: &mut dyn FnMut(usize));

    /// Number of chunks; `None` if the tree has none.
    fn chunks(&self) -> Option<usize>;
}

/// The kind of tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeStructure {
    /// AVL+: each leaf is one element.
    AvlPlus,
    /// AVL*: AVL+ whose subtrees lie in chunks.
    AvlStar,
    /// Merkle B+tree.
    BPlus,
    /// B+AVL.
    Bavl,
}

impl TreeStructure {
    /// All trees in the paper's order, the baseline first.
    pub const ALL: [Self; 4] = [Self::AvlPlus, Self::AvlStar, Self::BPlus, Self::Bavl];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AvlPlus => AvlPlusTree::NAME,
            Self::AvlStar => avlstar::AvlStarTree::NAME,
            Self::BPlus => bplus::BPlusTree::NAME,
            Self::Bavl => BavlTree::NAME,
        }
    }
}

impl fmt::Display for TreeStructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No tree has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no tree `{0}`: it is avlplus, avlstar, bplus or bavl")]
pub struct UnknownStructure(String);

impl FromStr for TreeStructure {
    type Err = UnknownStructure;

    fn from_str(text: &str) -> Result<Self, UnknownStructure> {
        let found = Self::ALL.into_iter().find(|structure| structure.name() == text);
        found.ok_or_else(|| UnknownStructure(text.into()))
    }
}

/// Why trees could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreesError {
    /// A tree returned a wrong value.
    #[error("{tree} with {elements} elements gives back a wrong {what} for key {key}")]
    Wrong {
        /// Name of the tree.
        tree: &'static str,
        /// Number of its elements.
        elements: u64,
        /// What is wrong.
        what: &'static str,
        /// The key.
        key: u32,
    },
    /// The user asked to stop.
    #[error("stopped")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::{avlstar::AvlStarTree, bplus::BPlusTree, elements::ElementGenerator, *};
    use crate::random::SplitMix64;
    use alloy_primitives::{Bytes, keccak256};
    use retrie_backends::{BackendLane, FlagValues, lane};
    use retrie_db::{DatabaseEnv, OpenOptions, SyncMode};
    use retrie_state::{
        BlockRef, DeltaBuilder,
        descriptor::{ConstructorInput, StorePurpose},
    };
    use retrie_state_store::{StateId, StateStore, StoreOptions};

    fn check<T: AuthenticatedTree>() {
        for (most, count) in [(4, 300), (16, 2000), (256, 3000)] {
            let elements = ElementGenerator::new(7, 40);
            let mut tree = T::new(most);
            assert_eq!(tree.get(5), None);
            for n in 0..count {
                tree.insert(elements.key(n), elements.value(n));
                if n % 97 == 0 {
                    tree.root();
                }
            }
            // Values are replaced.
            for n in 0..count / 3 {
                tree.insert(elements.key(n), elements.value(n + 1));
            }
            let root = tree.root();
            let mut lengths = Vec::new();
            tree.each_proof(&mut |length| lengths.push(length));
            let mut keys: Vec<_> = (0..count).map(|n| (elements.key(n), n)).collect();
            keys.sort_unstable();
            assert_eq!(lengths.len(), keys.len());
            for ((key, n), length) in keys.into_iter().zip(lengths) {
                let value = elements.value(if n < count / 3 { n + 1 } else { n });
                assert_eq!(tree.get(key), Some(value), "{}: {key}", T::NAME);
                let proof = tree.prove(key).unwrap();
                assert_eq!(proof.root(key, value), root, "{}: {key}", T::NAME);
                assert_eq!(proof.hashes(), length, "{}: {key}", T::NAME);
                assert_ne!(proof.root(key, b"another"), root);
            }
            let absent = (0..).find(|key| tree.get(*key).is_none()).unwrap();
            assert!(tree.prove(absent).is_none());
            // The root depends on the content alone, not on intermediate hashing.
            let mut again = T::new(most);
            (0..count).for_each(|n| again.insert(elements.key(n), elements.value(n)));
            (0..count / 3).for_each(|n| again.insert(elements.key(n), elements.value(n + 1)));
            assert_eq!(again.root(), root, "{}", T::NAME);
            let fewest = (count as usize).div_ceil(most);
            assert!(tree.chunks().is_none_or(|chunks| (fewest..=2 * fewest).contains(&chunks)));
        }
    }

    #[test]
    fn trees_hold_and_prove_what_was_put_in() {
        check::<AvlPlusTree>();
        check::<AvlStarTree>();
        check::<BPlusTree>();
        check::<BavlTree>();
    }

    /// One root after each insertion, and one at the end.
    fn check_each_root<T: AuthenticatedTree>(most: usize, seed: u64) {
        let elements = ElementGenerator::new(seed, 24);
        let (mut random, mut tree) = (SplitMix64::new(seed), T::new(most));
        // Up to the sizes at which one chunk becomes two, and two become three.
        let count = 3 * most as u64 + 8;
        let near = |n: u64| [1, 2, 3].iter().any(|times| n.abs_diff(times * most as u64) < 4);
        let mut inserted = Vec::new();
        for n in 0..count {
            // A third replaces values.
            let key = match random.below(3) {
                0 if n > 0 => elements.key(random.below(n)),
                _ => elements.key(n),
            };
            inserted.push((key, elements.value(random.below(1000))));
            tree.insert(key, inserted[n as usize].1);
            let root = tree.root();
            if near(n) || n % 37 == 0 || n + 1 == count {
                let mut again = T::new(most);
                inserted.iter().for_each(|(key, value)| again.insert(*key, value));
                assert_eq!(again.root(), root, "{}, chunks of {most}: {n}", T::NAME);
            }
        }
    }

    #[test]
    fn a_root_after_each_insertion_is_the_root_of_all_insertions_so_far() {
        for seed in 0..4 {
            for most in [4, 5, 16, 33, 64] {
                check_each_root::<BavlTree>(most, seed);
                check_each_root::<AvlStarTree>(most, seed);
            }
            check_each_root::<AvlPlusTree>(64, seed);
            check_each_root::<BPlusTree>(16, seed);
        }
    }

    #[test]
    fn messages_rebuild_the_same_trees_and_wrong_ones_none() {
        let (elements, most) = (ElementGenerator::new(3, 60), 16);
        let (mut bavl, mut avlplus) = (BavlTree::new(most), AvlPlusTree::new(most));
        for n in 0..1000 {
            bavl.insert(elements.key(n), elements.value(n));
            avlplus.insert(elements.key(n), elements.value(n));
        }
        let (root, baseline) = (bavl.root(), avlplus.root());
        let messages = bavl.serialize();
        assert_eq!(BavlTree::deserialize(most, &messages).unwrap().root(), root);
        let skeleton = bavl.skeleton();
        assert_eq!(root_of(most, &skeleton), Some(root));
        let chunks = messages.iter().zip(&skeleton).map(|(message, (hash, key_height))| {
            for at in 0..message.len() - 1 {
                let mut lie = message.clone();
                lie[at] ^= 4;
                assert!(CheckedChunk::read(&lie, *hash).is_none(), "{at}");
            }
            (CheckedChunk::read(message, *hash).unwrap(), *key_height)
        });
        let mut rebuilt = BavlTree::rebuild(most, chunks.collect()).unwrap();
        assert_eq!((rebuilt.root(), rebuilt.get(elements.key(9))), (root, Some(elements.value(9))));
        for at in 0..skeleton.len() {
            let mut lie = skeleton.clone();
            lie[at].1 ^= 1;
            assert_ne!(root_of(most, &lie), Some(root), "{at}");
            lie = skeleton.clone();
            lie.remove(at);
            assert_ne!(root_of(most, &lie), Some(root), "{at}");
        }

        let messages = avlplus.serialize(100);
        assert_eq!(messages.len(), 10);
        assert_eq!(AvlPlusTree::deserialize(&messages).unwrap().root(), baseline);
        let mut lie = messages.clone();
        lie[3][40] ^= 1;
        assert!(AvlPlusTree::deserialize(&lie).is_none_or(|mut tree| tree.root() != baseline));
        assert!(
            AvlPlusTree::deserialize(&messages[..9]).is_none_or(|mut tree| tree.root() != baseline)
        );
    }

    #[test]
    fn bavl_in_memory_has_the_roots_of_the_backend() {
        for most in [4, 16, 33] {
            let elements = ElementGenerator::new(11, 40);
            let name = format!("bavl:chunk-entries={most}");
            let BackendLane { backend, flags } = lane(&name, &FlagValues::default()).unwrap();
            let making =
                ConstructorInput { flags: &flags, purpose: StorePurpose::Temporary, cache: None };
            let backend = (backend.make)(&making).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
            let db = DatabaseEnv::create(folder.path(), &options).unwrap();
            let kv = db.state_store();
            let store = StateStore::open(backend, kv.clone(), StoreOptions::default()).unwrap();
            let mut txn = kv.begin_write().unwrap();
            let nothing = &mut std::iter::empty();
            let (_, after) = store.bulk_load(BlockRef::default(), nothing, &mut *txn).unwrap();
            txn.commit().unwrap();
            after.run().unwrap();
            let mut tree = BavlTree::new(most);
            for n in 0..600 {
                let (key, value) = (elements.key(n), elements.value(n));
                let mut delta = DeltaBuilder::new();
                delta.change(hash::state_key(key), None, Some(Bytes::copy_from_slice(value)));
                let proposal = store.begin(StateId::Tip).unwrap().finish(&delta.build()).unwrap();
                tree.insert(key, value);
                assert_eq!(proposal.root(), tree.root(), "{most}: {n}");
                store.seal(&proposal, keccak256(n.to_be_bytes()));
                let mut txn = kv.begin_write().unwrap();
                let after = store.commit(&[proposal], &mut *txn).unwrap();
                txn.commit().unwrap();
                after.run().unwrap();
            }
            assert!(tree.chunks().unwrap() > 600 / most);
        }
    }
}
