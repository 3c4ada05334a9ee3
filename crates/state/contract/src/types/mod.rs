//! The types that both sides of the contract share, and all that a verifier needs: keys, values,
//! deltas, proofs, errors, bytes and their hash. `no_std`.

pub mod blake2b;
mod delta;
mod delta_batch;
mod error;
mod key;
mod proof;
mod reader;
mod value;
mod version;
pub mod wire;
mod witness;

pub use delta::{BackendChange, BackendDelta, DeltaBuilder, StateChange, StateDelta};
pub use delta_batch::{DeltaBatch, DeltaBatchBuilder};
pub use error::{ProofError, StateError, StoreError};
pub use key::{AccountKey, BackendKey, EncodedKey, KeyForm, StateKey};
pub use proof::{BackendIdentity, BlockRef, HashId, StateProof};
pub use reader::StateReader;
pub use value::{Account, StateValue, decode_slot, encode_slot};
pub use version::ValueVersion;
pub use witness::{StateWitness, WitnessError};
