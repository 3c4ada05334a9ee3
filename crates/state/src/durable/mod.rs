//! What makes states durable, the same for every backend: layers of writes in memory, the journal,
//! generations and their fold, undo, flat history.
//!
//! ```text
//!  NodeRead, NodeWrite      overlay of proposals            (proposal, overlay, scan)
//!                              | undo, flat history         (undo, flat_history)
//!                           journalled generations          (journal, state)
//!                              | background fold
//!                           KvStore: MDBX or memory         (kv, memory, namespace, spill)
//! ```

pub(crate) mod counters;
pub(crate) mod flat_history;
pub(crate) mod journal;
pub(crate) mod kv;
mod memory;
mod namespace;
pub(crate) mod overlay;
pub(crate) mod proposal;
mod scan;
pub(crate) mod spill;
pub(crate) mod state;
pub(crate) mod structures;
pub(crate) mod undo;

pub use counters::{Counters, Counts, TableCounts};
pub use flat_history::FlatHistory;
pub use kv::{KvRead, KvStore, KvTxn, KvWrite, Snapshot};
pub use memory::MemoryStore;
pub use namespace::Namespace;
pub use proposal::Proposal;
pub use spill::EntrySorter;
pub use state::Tip;
