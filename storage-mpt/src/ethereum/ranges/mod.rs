//! A state as [leaves and nodes](retrie_state::StateRanges) in the order of hashes, as `snap` hands
//! it out: a server, and chunks with hashed keys that a receiver makes of what peers send.

mod chunk;
mod part;
mod serve;

pub use chunk::{open, pack_leaves, pack_node, place, whole};
pub use part::check_part;
pub use serve::{TriesOwner, server};
