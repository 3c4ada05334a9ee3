//! DupTree++ ("The Locality of Memory Checking", sections 4.1 and 5.1): a dense binary Merkle tree
//! cut into subtrees of 32 leaves, so that a path lies in few rows. The paper has an array; this is
//! a map, which also proves absence.
//!
//! # Vocabulary
//!
//! * **Leaf**: a key, its value or none, and the next key in key order. It covers its key, and the
//!   gap up to the next key. A key keeps its leaf for ever, deleted or not.
//! * **Number** of a leaf: its index from the left. New keys take the next numbers, in delta order.
//! * **Sentinel**: leaf 0, which covers the gap before the first key.
//! * **Level**: 0 for leaves, 1 for their parents, up to the **height**, where the **top** is.
//! * **Subtree**: 32 nodes of a level, its **bottoms**, and the nodes of the five levels above
//!   them. It belongs to **layer** L if its bottoms are at level 5 L.
//! * **Empty** node: a node without leaves below. Leaf numbers have no gaps, so all empty nodes are
//!   on the right.
//! * **Layout**: which rows hold a subtree. Roots and proofs are the same in all layouts.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> flat state (values by key)
//!    '----> key table: new keys take numbers
//!             '-> leaves to hash: changed keys, and predecessors of new keys
//!                   '-> layer 0 -> layer 1 -> .. -> top -> root
//!                       each subtree loaded, hashed and written once
//! ```
//!
//! # Assumptions
//!
//! BLAKE2b-256 is collision resistant. Deltas list every key once, in order.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `leaf`, `hash` | leaves, and all hashes under the root |
//! | `proof`, `verify` | bytes of proofs, and checking them: pure, `no_std` |
//! | `witness` | block witnesses: making them, and applying deltas to opened ones |
//! | `shape` | numbers and positions of nodes |
//! | `subtree` | a subtree in memory, hashed together with others |
//! | `layout` | the rows of subtrees, in three layouts |
//! | `keys`, `meta` | the key table, and the row with the size of the tree |
//! | `cache` | upper subtrees in memory, shared between blocks |
//! | `apply`, `load`, `prove`, `check` | applying a delta, bulk load, making proofs, `db verify` |
//! | `backend`, `descriptor` | the `Backend` implementation, flags and registration |

mod descriptor;
mod hash;
mod leaf;
mod proof;
mod verify;
mod witness;

#[cfg(feature = "std")]
pub(crate) use descriptor::DESCRIPTOR;
pub use descriptor::FORMAT;
pub use verify::verify;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod keys;
#[cfg(feature = "std")]
mod layout;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod meta;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod shape;
#[cfg(feature = "std")]
mod subtree;

#[cfg(feature = "std")]
pub use backend::DupTree;
#[cfg(feature = "std")]
pub use cache::DupTreeCache;
#[cfg(feature = "std")]
pub use keys::KEYS;
#[cfg(feature = "std")]
pub use layout::{DupTreeLayout, UnknownLayout};
#[cfg(feature = "std")]
pub use subtree::NODES;
