//! Registration of the backend `raw`.

use retrie_state::descriptor::ProofFormat;

/// Empty: `raw` has no proofs.
pub static PROOF_FORMATS: &[ProofFormat] = &[];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use crate::Raw;
    use retrie_state::descriptor::BackendDescriptor;
    use std::sync::Arc;

    /// The backend `raw`.
    pub static BACKENDS: &[BackendDescriptor] = &[BackendDescriptor::plain(
        "raw",
        "flat state, no root, no proofs: the ceiling",
        |_| Ok(Arc::new(Raw)),
        || Arc::new(Raw),
        ["#767676", "#a6a6a6"],
    )];
}
