//! The limit of this machine: what each kind of work costs here, whatever store does it, and the
//! least seconds in which a workload can be done.
//!
//! ```text
//!  probes (senders, EVM, hashes, lookups, durable writes, pages) --> MachineLimits --> limit.json
//!                                                                         |
//!  a race, an import or a replay ---------------> NeededWork ---> LowerBound / seconds = of the limit
//! ```
//!
//! # Vocabulary
//! * **Probe**: a measurement of one unit of work, on one core alone and on all cores at once.
//!   [`measure`] runs them all.
//! * **Machine limits** ([`MachineLimits`]): what all probes found. They are kept beside the cache
//!   of prepared states, by machine.
//! * **Needed work** ([`NeededWork`]): the work that a workload needs in any case. Work that only
//!   some stores do is left out, and work that cannot be counted exactly is counted too low.
//! * **Lower bound** ([`LowerBound`]): the needed work at the measured costs, as the longest of
//!   three times that may overlap: execution on one core, all computation on all cores, the disk.
//! * **Of the limit**: the lower bound divided by the measured seconds, 1 at most but for noise.

mod bound;
mod error;
mod file;
mod machine;
mod probes;
mod trie;
mod work;

pub use bound::LowerBound;
pub use error::LimitError;
pub use machine::{DiskCosts, DurableCost, ExecutionCost, MachineLimits, UnitCost};
pub use probes::{MAINNET_MIX, ProbeConfig, ProbeInputs, measure, mix_name};
pub use trie::HashWork;
pub use work::{CHANGED_KEY_BYTES, NeededWork};
