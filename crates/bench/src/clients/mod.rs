//! Races of whole clients on the same blocks: the end-to-end workloads of the papers.
//!
//! ```text
//!  make the chain     on a preloaded state, by a backend with Ethereum's roots; kept   (untimed)
//!  lay down each      copy of a kept state, or a bulk load of genesis                  (untimed)
//!  warm-up            the first blocks on each, then flush                             (untimed)
//!  slice 1            A: import import ... settle    B: import import ... settle
//!  slice 2            B: ...                         A: ...
//!  end                A: flush                       B: flush
//! ```
//!
//! * Each contender is a chain of its own in one process. It gets the identical decoded blocks and
//!   does all that an import does: hashes, checks of header and body, senders, EVM, root, receipts,
//!   commit of blocks and state. Backends with Ethereum's roots must reach that of every header.
//! * **Senders** are recovered on the clock, on other threads while earlier blocks execute, as in any
//!   import; or before the clock starts, as by a node that has seen the transactions in its pool.
//! * They take turns slice by slice, as in [`state`](crate::state). At the end of a turn everything is
//!   durable, and no background work is under way: a commit or fold that a contender has begun ends
//!   on its own time.
//! * A turn starts with an empty pipeline and ends with a commit that nothing overlaps: neither is so
//!   in a long import. The more blocks a slice has, the less they weigh. Figures of slices of other
//!   lengths (`blocks_per_slice`) do not compare.
//! * The **latency** of a block runs from the moment the importer is ready for it until it is
//!   accepted; until it is durable, if every block is committed alone.
//! * Or blocks come one by one through the Engine API ([`Via::EngineApi`]), as in a live node. The
//!   latency is then that of `engine_newPayload`; what follows until the next slot (the head moves,
//!   the block becomes durable) is on the clock of the turn alone.
//! * So do **real blocks** ([`RealRace`]), as near as bundles allow: each is a block with the state it
//!   touches, and no chain leads from one to the next.

mod driver;
mod outcome;
mod prepare;
mod provenance;
mod race;
mod real;
mod workload;

pub use outcome::Outcome;
pub use provenance::{Answers, Queries, proves_the_past};
pub use race::{ClientRace, Entrant, Progress, Raced};
pub use real::{RealBlocks, RealRace};
pub use workload::{Senders, Via, Workload};
