//! The experiments of "The Locality of Memory Checking" (Wang, Lu, Papamanthou, Zhang; CCS 2023) on
//! flat files: how many contiguous regions and pages of a file a Merkle path touches, exactly, and
//! how long that takes.
//!
//! # Vocabulary
//!
//! * **Tree**: a dense binary Merkle tree of *height* h with 2^h leaves. A `LayoutNode` is named
//!   by its height above the leaves and its index among the nodes of that height.
//! * **Slot**: the place of one node in the file: its hash, or those of its children
//!   ([`SlotContent`]). As in the paper (section 3.2), a read needs the nodes of a *path* from the
//!   leaf up to the root, without siblings.
//! * **Layout** ([`TreeLayout`]): the assignment of nodes to slots; some layouts store copies of
//!   nodes, and some cut the tree into subtrees of P leaves ([`SubtreeLeaves`]). A [`DenseTree`] is
//!   a pure function of layout, P and height: no permutation is ever in memory.
//! * **Region**: a maximal run of adjacent slots (Definition 3.1). The number of regions of a read
//!   or write is its *locality*.
//!
//! # Modules
//!
//! | module | what |
//! |---|---|
//! | [`TreeLayout`] | the layouts (sections 3.2, 4.1, 5.1.1), one file each |
//! | `count` | regions, pages and slots of all leaves, and the copies of nodes, without a file |
//! | `theory` | the expected counts (Theorems 3.4 and 3.9, and others); a difference is an error |
//! | [`sparse`] | the bound for sparse trees (section 3.4), and tries of random keys |
//! | [`timing`] | files on disk, read and written, cold and cached |
//! | `stored` | dense trees and tries as rows of MDBX (section 5.1), counted and timed |
//! | [`tries`] | PrefixTree as published, its baseline and ours (sections 4.2 and 5.2) |
//! | [`rows`] | rows of MDBX in order and at random (the paper's Table 1) |
//! | [`space`] | whether the disk has room, before the start |
//! | [`report`] | all results as `--json` |

mod count;
mod error;
mod file;
mod layouts;
mod region;
pub mod report;
pub mod rows;
mod scratch;
pub mod space;
pub mod sparse;
mod stored;
mod theory;
pub mod timing;
pub mod tries;

pub use count::LeafTally;
pub use error::LocalityError;
pub use layouts::{
    DenseTree, MAX_HEIGHT, SubtreeLeaves, TreeLayout, UnknownLayout, WrongSubtreeLeaves,
};
pub use region::{SlotContent, WrongSlotBytes};
pub use stored::RowMeans;
pub use theory::ExpectedCounts;
pub(crate) use {
    layouts::{LayoutNode, NodePlace},
    region::{PAGE_BYTES, Region},
};
