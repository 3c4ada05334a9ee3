//! The experiments of "The Locality of Memory Checking" (Wang, Lu, Papamanthou, Zhang; CCS 2023) on
//! flat files: how many contiguous regions and pages of a file a Merkle path touches, exactly, and
//! how long that takes.
//!
//! # Vocabulary
//!
//! * **Tree**: a dense binary Merkle tree of *height* h with 2^h leaves. A `LayoutNode` is named
//!   by its height above the leaves and its index among the nodes of that height.
//! * **Slot**: the place of one node in the file, 32 bytes. As in the paper (section 3.2), a read
//!   needs the nodes of a *path* from the leaf up to the root, without siblings.
//! * **Layout** ([`TreeLayout`]): the assignment of nodes to slots; some layouts store copies of
//!   nodes. A `DenseTree` is a pure function of layout and height: no permutation is ever in
//!   memory.
//! * **Region**: a maximal run of adjacent slots (Definition 3.1). The number of regions of a read
//!   or write is its *locality*.
//!
//! # Modules
//!
//! | module | what |
//! |---|---|
//! | [`TreeLayout`] | the layouts (sections 3.2, 4.1, 5.1.1), one file each |
//! | `count` | regions, pages and slots of all leaves |
//! | `theory` | the expected counts (Theorem 3.4 and others); a difference is an error |
//! | [`sparse`] | the bound for sparse trees (section 3.4), and tries of random keys |
//! | [`timing`] | files on disk, read and written, cold and cached |
//! | [`rows`] | rows of MDBX in order and at random (the paper's Table 1) |
//! | [`report`] | all results as `--json` |

mod count;
mod error;
mod file;
mod layouts;
mod region;
pub mod report;
pub mod rows;
pub mod sparse;
mod theory;
pub mod timing;

pub use count::LeafTally;
pub use error::LocalityError;
pub use layouts::{MAX_HEIGHT, TreeLayout, UnknownLayout};
pub use theory::ExpectedCounts;
pub(crate) use {
    layouts::{DenseTree, LayoutNode, NodePlace},
    region::{PAGE_BYTES, Region, SLOT_BYTES},
};
