//! Stores of other projects, raced for comparison. They are compiled with the feature `peers` only.
//!
//! | name | what | root | licence |
//! |---|---|---|---|
//! | `redb` | a B-tree in one file, unauthenticated: a ceiling beside `raw` | none | MIT or Apache-2.0 |
//! | `eth-trie` | the crate `eth_trie` on `redb`: nodes by hash, the textbook way | Ethereum's | Apache-2.0 |
//! | `firewood-ethhash` | Firewood of Ava Labs | Ethereum's | Ava Labs Ecosystem License |
//! | `nomt` | NOMT of Thrum | its own | MIT or Apache-2.0 |
//! | `qmdb` | QMDB as Commonware implements it | its own | MIT or Apache-2.0 |
//!
//! All stores get the same blocks, batched and made durable in the same way as ours: one
//! transaction per commit, which is on disk when it returns under
//! [`SyncMode::Durable`](retrie_db::SyncMode::Durable). A store that differs says so in its remark.
//! RainBlock and mLSM have no maintained code.

#[cfg(feature = "peers")]
mod cache;
#[cfg(feature = "peers")]
mod eth_trie;
#[cfg(feature = "peers")]
mod ethereum;
#[cfg(feature = "peers")]
mod firewood;
mod names;
#[cfg(feature = "peers")]
mod nomt;
#[cfg(feature = "peers")]
mod qmdb;
#[cfg(feature = "peers")]
mod redb;

use crate::state::StoreFactory;
use names::{ETH_TRIE, FIREWOOD, NOMT, QMDB, REDB};

/// Names of all these stores, compiled in or not.
pub const NAMES: [&str; 5] = [REDB, ETH_TRIE, FIREWOOD, NOMT, QMDB];

/// The store called `name`; `None` if there is none, or this program was compiled without it.
pub fn factory(name: &str) -> Option<Box<dyn StoreFactory>> {
    match name {
        #[cfg(feature = "peers")]
        REDB => Some(Box::new(redb::RedbFactory)),
        #[cfg(feature = "peers")]
        ETH_TRIE => Some(Box::new(eth_trie::EthTrieFactory)),
        #[cfg(feature = "peers")]
        FIREWOOD => Some(Box::new(firewood::FirewoodFactory)),
        #[cfg(feature = "peers")]
        NOMT => Some(Box::new(nomt::NomtFactory)),
        #[cfg(feature = "peers")]
        QMDB => Some(Box::new(qmdb::QmdbFactory)),
        _ => None,
    }
}
