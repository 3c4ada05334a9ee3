//! Stores that are not ours, raced for comparison. They are built with the feature `peers` only.
//!
//! | name | what | root | licence |
//! |---|---|---|---|
//! | `redb` | a B-tree in one file, unauthenticated: a ceiling beside `raw` | none | MIT or Apache-2.0 |
//! | `eth-trie` | the crate `eth_trie` on `redb`: nodes by hash, the textbook way | Ethereum's | Apache-2.0 |
//! | `firewood-ethhash` | Firewood of Ava Labs | Ethereum's | Ava Labs Ecosystem License |
//! | `nomt` | NOMT of Thrum | its own | MIT or Apache-2.0 |
//!
//! All get the same blocks, batched and made durable in the same way as our stores: one transaction
//! a commit, on disk when it returns under [`SyncMode::Durable`](retrie_db::SyncMode::Durable). Where
//! one of them does it otherwise, its remark says so. RainBlock and mLSM have no maintained code.

#[cfg(feature = "peers")]
mod eth_trie;
#[cfg(feature = "peers")]
mod ethereum;
#[cfg(feature = "peers")]
mod firewood;
#[cfg(feature = "peers")]
mod nomt;
#[cfg(feature = "peers")]
mod redb;

use crate::state::Entrant;

/// Names of all peers, built or not.
pub const NAMES: [&str; 4] = [REDB, ETH_TRIE, FIREWOOD, NOMT];
const REDB: &str = "redb";
const ETH_TRIE: &str = "eth-trie";
const FIREWOOD: &str = "firewood-ethhash";
const NOMT: &str = "nomt";

/// The peer called `name`; `None` if there is none, or this program was built without it.
pub fn entrant(name: &str) -> Option<Box<dyn Entrant>> {
    match name {
        #[cfg(feature = "peers")]
        REDB => Some(Box::new(redb::Redb)),
        #[cfg(feature = "peers")]
        ETH_TRIE => Some(Box::new(eth_trie::SecureTrie)),
        #[cfg(feature = "peers")]
        FIREWOOD => Some(Box::new(firewood::Firewood)),
        #[cfg(feature = "peers")]
        NOMT => Some(Box::new(nomt::Nomt)),
        _ => None,
    }
}
