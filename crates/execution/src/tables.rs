//! Tables that the EVM makes at their first use: made ahead, so that no block waits for them.

use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::Signature;
use revm::{
    context_interface::cfg::GasParams,
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};

/// Loads the trusted setup of KZG (EIP-4844), which takes seconds. It is one for the point evaluation
/// precompile and for the proofs of blobs; a block or blob that needs it meanwhile waits for its end.
pub fn load_trusted_setup() {
    // The precompile and alloy's sidecars ask for the same precomputation level.
    c_kzg::ethereum_kzg_settings(8);
}

/// Makes the other tables: prices and precompiles of every fork, and those of the curve of signatures.
/// Takes milliseconds.
pub fn make_tables() {
    for spec in (0..=u8::MAX).map_while(SpecId::try_from_u8) {
        GasParams::new_spec(spec);
        Precompiles::new(PrecompileSpecId::from_spec_id(spec));
    }
    // Which sender that is does not matter.
    let signed = TxLegacy::default().into_signed(Signature::test_signature());
    let _ = signed.recover_signer();
}
