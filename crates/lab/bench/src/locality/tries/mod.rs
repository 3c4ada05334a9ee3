//! PrefixTree as published beside the trie that it changes and beside ours (sections 4.2 and 5.2):
//! rows and bytes of reads with their paths and of inserts, by the number of keys.
//!
//! | trie | rows | a read or insert also reads |
//! |---|---|---|
//! | `simple-mpt` | a node under its hash: prefix, and the hashes of 16 children (Fig. 6, left) | |
//! | `prefix-tree` | a node under prefix and version: its hash, and the prefixes and versions of 16 children (Fig. 6, right; Fig. 13) | the other children of each branch on the path, for their hashes |
//! | `prefix-tree:pad=64` | the same, each prefix as long as 64 nibbles (section 5.2) | the same |
//! | one of our state stores | its own | |
//!
//! The tries of the paper are sparse 16-ary trees of the same random keys, whose nodes with one
//! child are left out. Old versions are kept. Their rows have the lengths of the published node
//! structure and arbitrary bytes. A prefix takes five bits a nibble: 1 to 16, and 0 for its end, so
//! that it sorts before its extensions; a version takes four bytes, a value 32, an empty child none.

mod own;
mod published;
mod walk;

pub use own::StoreTrie;
pub(crate) use published::PublishedRows;
pub use published::PublishedTrie;
