//! What it takes to execute blocks, and calls, without a state, on every store with block witnesses:
//! bytes and time.
//!
//! ```text
//!  state before the block --read_block--> reads, delta --witness--> bytes     time to make
//!                                                          | open with the root
//!      the same outcome, the store's next root <-- execute -'                 time to verify
//!  each transaction, as a call on that state --> reads --prove--> bytes
//! ```
//!
//! * The time to make a witness is that of the store alone: the reads of the block are known. The time to
//!   verify it is all that a verifier does: opening, execution, the next root.
//! * Codes and headers come with a witness of any store and are the same for all; codes are counted apart.
//! * The root that a witness gives must be the one that the store computes, and a proof of a call must show
//!   what the call has read.
//! * A block may have no witness on a store (a boundary of `lmpt`), or none on which it can be executed (a
//!   storage is cleared that cannot be listed). It is counted with its reason.
//!
//! [`ClientRace::witnesses`](crate::clients::ClientRace::witnesses) runs a made chain,
//! [`RealWitnesses`](crate::clients::RealWitnesses) runs bundles of mainnet.

mod report;
mod trial;

pub use report::WitnessReport;
pub(crate) use trial::WitnessTrial;

use crate::state::ProofFigures;
use retrie_report::stats::quantile;
use serde::Serialize;

/// The witnesses of some blocks on one store, and the proofs of calls in them.
#[derive(Clone, Debug)]
pub struct WitnessOutcome {
    /// Name of the store.
    pub backend: String,
    /// Name of the hash function under its root.
    pub hash: &'static str,
    /// The blocks with a witness, in order.
    pub blocks: Vec<WitnessCost>,
    /// The blocks without one.
    pub without: Vec<WitnessGap>,
    /// Proofs of what calls read, each of one call.
    pub calls: ProofFigures,
}

/// The cost of the witness of one block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WitnessCost {
    /// Position of the block among all that were measured.
    pub place: usize,
    /// Number of the block.
    pub number: u64,
    /// Accounts and slots that it reads or changes.
    pub keys: u64,
    /// Bytes of the witness.
    pub bytes: u64,
    /// The same, compressed with zstd (level 3).
    pub zstd_bytes: u64,
    /// Bytes of the codes that the block reads, which a verifier needs besides.
    pub code_bytes: u64,
    /// Seconds to make it.
    pub make_seconds: f64,
    /// Seconds to open it, to execute the block on it, and to compute the next root.
    pub verify_seconds: f64,
}

/// A block without a witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WitnessGap {
    /// Position of the block among all that were measured.
    pub place: usize,
    /// Number of the block.
    pub number: u64,
    /// Why it has none.
    pub why: String,
}

impl WitnessOutcome {
    /// No blocks yet.
    pub(crate) fn new(backend: &str, hash: &'static str) -> Self {
        let (blocks, without) = Default::default();
        Self { backend: backend.into(), hash, blocks, without, calls: ProofFigures::new(true) }
    }

    /// Number of blocks measured so far, with a witness or without.
    pub fn len(&self) -> usize {
        self.blocks.len() + self.without.len()
    }

    /// Whether no block was measured.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Median and largest value of a figure.
    pub fn spread(&self, of: impl Fn(&WitnessCost) -> f64) -> (f64, f64) {
        let at = |fraction| quantile(self.blocks.iter().map(&of), fraction);
        (at(0.5), at(1.0))
    }

    /// Bytes of the witnesses over those of `other`: the median over the blocks that have one on both.
    /// `None` without such blocks.
    pub fn times(&self, other: &Self) -> Option<f64> {
        let ratio = |own: &WitnessCost| {
            let other = other.blocks.iter().find(|other| other.place == own.place)?;
            (other.bytes > 0).then(|| own.bytes as f64 / other.bytes as f64)
        };
        let ratios: Vec<f64> = self.blocks.iter().filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| quantile(ratios.into_iter(), 0.5))
    }
}
