//! What curve arithmetic costs (LVMT paper, Table 1): the price of an update of a vector commitment.
//!
//! The curves are BN254, in which `lvmt` commits, and BLS12-381, both with arkworks, the library of
//! `lvmt`. All points are of G1, the primary group.
//!
//! * [`measure`]: the operations, timed in turns.
//! * [`report`]: the results, and the paper's figures beside them.
//!
//! # Assumptions
//! * One thread; inputs are in the caches.
//! * Points have random projective coordinates (z is not 1), as sums have.

pub mod measure;
pub mod report;
