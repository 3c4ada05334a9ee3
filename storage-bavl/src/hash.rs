//! All hashes under the root: BLAKE2b-256, where the first byte of the input is its domain.
//!
//! An input of one domain is never a valid input of another, and has one meaning in its own domain:
//! the encoding of an entry's key determines its length and the value is the rest; all other inputs
//! have a fixed length.

use alloy_primitives::B256;
use retrie_state::blake2b::hash as parts;

const ENTRY: u8 = 0;
const PAIR: u8 = 1;
const CHUNK: u8 = 2;
const INNER: u8 = 3;
const ROOT: u8 = 4;

/// An entry: encoded key, value.
pub(crate) fn entry(key: &[u8], value: &[u8]) -> B256 {
    parts(&[&[ENTRY], key, value])
}

/// Two nodes within a chunk.
pub(crate) fn pair(left: &B256, right: &B256) -> B256 {
    parts(&[&[PAIR], &left[..], &right[..]])
}

/// A chunk of `count` entries under `top`.
pub(crate) fn chunk(count: u32, top: &B256) -> B256 {
    parts(&[&[CHUNK], &count.to_be_bytes(), &top[..]])
}

/// The chunk without entries: the whole tree of the empty state.
pub(crate) fn no_entries() -> B256 {
    parts(&[&[CHUNK], &0u32.to_be_bytes()])
}

/// Two nodes above chunks.
pub(crate) fn inner(left: &B256, right: &B256) -> B256 {
    parts(&[&[INNER], &left[..], &right[..]])
}

/// The root over the tree's `top`, whose chunks hold at most `most` entries.
pub(crate) fn root(most: u32, top: &B256) -> B256 {
    parts(&[&[ROOT], &most.to_be_bytes(), &top[..]])
}

/// Number of nodes at `level` of the hash tree of `count` entries, which are level 0. A last node
/// without a sibling is its own parent (RFC 6962, 2.1).
pub(crate) const fn nodes_at(count: usize, level: u32) -> usize {
    count.div_ceil(1 << level)
}

/// Level of the top of the hash tree of `count` entries.
pub(crate) const fn levels(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

#[cfg(feature = "std")]
pub(crate) use many::HashBatch;

#[cfg(feature = "std")]
mod many {
    use super::{CHUNK, ENTRY, INNER, PAIR};
    use alloy_primitives::B256;

    /// Hashes many inputs together, more than twice as fast as one by one. The digests equal those
    /// of the functions with the same names.
    #[derive(Debug, Default)]
    pub(crate) struct HashBatch(retrie_state::blake2b::Blake2bBatch);

    impl HashBatch {
        pub(crate) fn entry(&mut self, key: &[u8], value: &[u8]) {
            self.0.push(|input| {
                input.push(ENTRY);
                input.extend_from_slice(key);
                input.extend_from_slice(value);
            });
        }

        pub(crate) fn chunk(&mut self, count: u32, top: &B256) {
            self.0.push(|input| {
                input.push(CHUNK);
                input.extend_from_slice(&count.to_be_bytes());
                input.extend_from_slice(&top[..]);
            });
        }

        pub(crate) fn inner(&mut self, left: &B256, right: &B256) {
            self.two(INNER, left, right);
        }

        fn two(&mut self, domain: u8, left: &B256, right: &B256) {
            self.0.push(|input| {
                input.push(domain);
                input.extend_from_slice(&left[..]);
                input.extend_from_slice(&right[..]);
            });
        }

        /// The digests, in the order of adding; the batch is empty afterwards.
        pub(crate) fn finish(&mut self) -> Vec<B256> {
            let mut digests = Vec::with_capacity(self.0.len());
            self.0.finish_into(&mut digests);
            digests
        }

        /// Reduces each list of nodes to the top of its hash tree, all lists together. None is
        /// empty.
        pub(crate) fn fold(&mut self, lists: &mut [Vec<B256>]) {
            let mut digests = Vec::new();
            loop {
                for list in &*lists {
                    for two in list.as_chunks::<2>().0 {
                        self.two(PAIR, &two[0], &two[1]);
                    }
                }
                if self.0.is_empty() {
                    return;
                }
                self.0.finish_into(&mut digests);
                let mut done = digests.drain(..);
                for list in &mut *lists {
                    let (pairs, last) = (list.len() / 2, list.len() % 2);
                    let single = list.last().copied().filter(|_| last == 1);
                    list.clear();
                    list.extend(done.by_ref().take(pairs));
                    list.extend(single);
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::hash;

        #[test]
        fn a_batch_hashes_as_the_functions_of_the_same_names_do() {
            let (mut batch, mut expected) = (HashBatch::default(), Vec::new());
            for n in 0..20u8 {
                let (left, right) = (B256::repeat_byte(n), B256::repeat_byte(n + 1));
                batch.entry(&left[..9], &right[..usize::from(n)]);
                batch.chunk(n.into(), &left);
                batch.inner(&left, &right);
                expected.push(hash::entry(&left[..9], &right[..usize::from(n)]));
                expected.push(hash::chunk(n.into(), &left));
                expected.push(hash::inner(&left, &right));
            }
            assert_eq!(batch.finish(), expected);
            assert!(batch.finish().is_empty());
        }

        /// RFC 6962, 2.1, as it is written: the left part is the largest power of two below n.
        fn tree_hash(nodes: &[B256]) -> B256 {
            match nodes {
                [one] => *one,
                _ => {
                    let left = nodes.len().next_power_of_two() / 2;
                    hash::pair(&tree_hash(&nodes[..left]), &tree_hash(&nodes[left..]))
                }
            }
        }

        #[test]
        fn lists_fold_to_the_tree_hash_of_rfc_6962() {
            let list = |n: u8| -> Vec<B256> { (0..n).map(B256::repeat_byte).collect() };
            let mut lists: Vec<_> = (1..70).map(list).collect();
            let expected: Vec<_> = lists.iter().map(|list| vec![tree_hash(list)]).collect();
            HashBatch::default().fold(&mut lists);
            assert_eq!(lists, expected);
            for n in 1..70 {
                assert_eq!(hash::nodes_at(n, hash::levels(n)), 1);
                assert!(n == 1 || hash::nodes_at(n, hash::levels(n) - 1) == 2);
            }
        }
    }
}
