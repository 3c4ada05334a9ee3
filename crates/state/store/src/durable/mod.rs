//! Durability, the same for every backend: diff layers in memory, the journal, generations and
//! their fold, undo, flat history.
//!
//! ```text
//!  NodeRead, NodeWrite      overlay of proposals            (proposal, overlay, scan)
//!                              | undo, flat history         (undo, flat_history)
//!                           journalled generations          (journal, record, patch, generation, state)
//!                              | background fold            (fold, fold_thread)
//!                           KvStore: MDBX or memory         (kv, memory, namespace, spill)
//! ```

pub(crate) mod block_caches;
pub(crate) mod counters;
pub(crate) mod flat_history;
pub(crate) mod fold;
pub(crate) mod fold_thread;
pub(crate) mod generation;
pub(crate) mod journal;
pub(crate) mod kv;
pub(crate) mod layer;
mod memory;
mod namespace;
pub(crate) mod overlay;
mod patch;
pub(crate) mod proposal;
pub(crate) mod record;
mod scan;
pub(crate) mod spill;
pub(crate) mod state;
pub(crate) mod undo;

pub use counters::{CounterSnapshot, TableCounts};
pub use flat_history::FlatHistory;
pub use kv::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
pub use memory::MemoryStore;
pub use namespace::TableNamespace;
pub use proposal::Proposal;
pub use spill::{EntrySorter, RecordSorter};
pub use state::DurableTip;
