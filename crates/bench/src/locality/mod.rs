//! The experiments of "The Locality of Memory Checking" (Wang, Lu, Papamanthou, Zhang; CCS 2023) on
//! flat files: how many contiguous regions and pages of a file a Merkle path touches, exactly, and
//! how long that takes.
//!
//! # Vocabulary
//!
//! * **Tree**: a dense binary Merkle tree of *height* h with 2^h leaves. A [`Node`] is named by its
//!   height above the leaves and its place among those of that height.
//! * **Slot**: the place of one node in the file, 32 bytes. As in the paper (section 3.2) the nodes
//!   of a *path*, from the leaf up to the root, are what a read needs, and siblings are not.
//! * **Layout**: which node stands in which slot; some store nodes more than once. [`Tree`] is a
//!   pure function of layout and height: nothing of a permutation is ever in memory.
//! * **Region**: adjacent slots, as many as there are (Definition 3.1). Their number is the
//!   *locality* of a read or write.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | [`Layout`], [`Tree`] | the layouts (sections 3.2, 4.1, 5.1.1), a file each |
//! | [`count`](count::count) | regions, pages and slots of all leaves |
//! | [`theory`] | what they must be: Theorem 3.4 and its like; a difference is an error |
//! | [`sparse`] | the bound for sparse trees (section 3.4), and tries of random keys |
//! | [`timing`] | files on disk, read and written, cold and cached |
//! | [`rows`] | rows of MDBX in order and at random (the paper's Table 1) |
//! | [`report`] | all of it as `--json` |

pub mod count;
mod error;
mod file;
mod layouts;
mod region;
pub mod report;
pub mod rows;
pub mod sparse;
pub mod theory;
pub mod timing;

pub use error::LocalityError;
pub use layouts::{Layout, MAX_HEIGHT, Node, Place, Tree, UnknownLayout};
pub use region::{PAGE_BYTES, Region, SLOT_BYTES};
