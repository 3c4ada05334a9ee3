//! Races of whole clients on the same blocks: the end-to-end workloads of the papers.
//!
//! ```text
//!  make the chain     on a preloaded state, by a backend with Ethereum's roots         (untimed)
//!  prepare each       copy of a cached state, or a bulk load of genesis                (untimed)
//!  warm-up            the first blocks on each, then flush                             (untimed)
//!  slice 1            A: import import ... wait      B: import import ... wait
//!  slice 2            B: ...                         A: ...
//!  end                A: flush                       B: flush
//! ```
//!
//! * All contenders are chains in one process. Each gets the same decoded blocks and does all the
//!   work of an import: hashes, checks of header and body, senders, EVM, root, receipts, commit of
//!   blocks and state. Backends with Ethereum's roots must reach the root of every header.
//! * **Senders** are recovered on the clock, by other threads while earlier blocks execute, as in
//!   any import; or before the clock starts, as in a node that has the transactions in its pool
//!   ([`SenderRecovery`]).
//! * Contenders take turns slice by slice ([`race`](crate::race)). At the end of a turn everything
//!   is durable and no background work is running: the turn includes the wait for every commit and
//!   fold that it has started.
//! * A turn starts with an empty pipeline and ends with a commit that overlaps with no execution. A
//!   long import has neither. The more blocks a slice has, the smaller this effect. Figures of
//!   slices of different lengths (`blocks_per_slice`) do not compare.
//! * The **latency** of a block is the time from the moment when the importer is ready for it until
//!   it is accepted; if every block is committed alone, until it is durable.
//! * With [`BlockDelivery::EngineApi`] blocks come one by one through the Engine API, as in a live
//!   node. Then the latency is the time of `engine_newPayload`. The work until the next slot
//!   (`engine_forkchoiceUpdated`, making the block durable) counts for the turn alone.
//! * **Real blocks** ([`RealRace`]) come one by one too, as far as bundles allow: each bundle is a
//!   block with the state it touches, and the blocks do not form a chain.

mod driver;
mod needed;
mod outcome;
mod padded;
mod prepare;
mod provenance;
mod race;
mod real;
mod real_witness;
mod witness;
mod workload;

pub use outcome::{ClientFigures, ClientOutcome};
pub use provenance::{ProvenanceOutcome, QueryConfig, can_prove_history};
pub use race::{ClientEntrant, ClientRace};
pub use real::{RealBlockSet, RealRace};
pub use real_witness::RealWitnesses;
pub use workload::{BlockDelivery, ClientWorkload, SenderRecovery};
