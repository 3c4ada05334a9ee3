//! Names of the peers.

pub(super) const REDB: &str = "redb";
pub(super) const ETH_TRIE: &str = "eth-trie";
pub(super) const FIREWOOD: &str = "firewood-ethhash";
pub(super) const NOMT: &str = "nomt";
pub(super) const QMDB: &str = "qmdb";
