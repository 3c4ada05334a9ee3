//! What both sides of the contract speak of, and all that a verifier needs: keys, values, deltas,
//! proofs, errors, bytes and their hash. `no_std`.

pub mod blake2b;
mod delta;
mod error;
mod key;
mod proof;
mod reader;
mod run;
mod value;
mod version;
pub mod wire;

pub use delta::{Change, DeltaBuilder, StateDelta};
pub use error::{ProofError, StateError, StoreError};
pub use key::{EncodedKey, StateKey};
pub use proof::{BlockRef, HashId, Identity, StateProof};
pub use reader::StateReader;
pub use run::{Run, RunBuilder};
pub use value::{Account, Value, decode_slot, encode_slot};
pub use version::Version;
