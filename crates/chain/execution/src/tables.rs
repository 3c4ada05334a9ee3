//! Tables that the EVM builds at first use: built at startup instead, so that no block waits for
//! them.

use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::Signature;
use revm::{
    context_interface::cfg::GasParams,
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};

/// Loads the trusted setup of KZG (EIP-4844), which takes seconds. The point evaluation precompile
/// and the blob proofs share it; a block or blob that needs it during the load waits.
pub fn load_trusted_setup() {
    // The precompile and alloy's sidecars use this precomputation level too.
    #[cfg(feature = "native")]
    c_kzg::ethereum_kzg_settings(8);
}

/// Builds the other tables: gas costs and precompiles of every fork, and the tables of the
/// signature curve. Takes milliseconds.
pub fn make_tables() {
    for spec in (0..=u8::MAX).map_while(SpecId::try_from_u8) {
        GasParams::new_spec(spec);
        Precompiles::new(PrecompileSpecId::from_spec_id(spec));
    }
    // The recovered sender does not matter.
    let signed = TxLegacy::default().into_signed(Signature::test_signature());
    let _ = signed.recover_signer();
}
