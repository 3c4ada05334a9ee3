//! What lists of backends have of `raw`.

use retrie_state::descriptor::ProofFormat;

/// It has no proofs.
pub static PROOF_FORMATS: &[ProofFormat] = &[];

#[cfg(feature = "std")]
pub use backends::BACKENDS;

#[cfg(feature = "std")]
mod backends {
    use crate::Raw;
    use retrie_state::descriptor::Descriptor;
    use std::sync::Arc;

    /// `raw`.
    pub static BACKENDS: &[Descriptor] = &[Descriptor::plain(
        "raw",
        "flat state, no root, no proofs: the ceiling",
        |_| Ok(Arc::new(Raw)),
        || Arc::new(Raw),
        ["#767676", "#a6a6a6"],
    )];
}
