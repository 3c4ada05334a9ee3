//! Blocks without a state: what a witness of a block has to hold, and executing a block on one.
//!
//! ```text
//!  block, state --read_block--> BlockReads --StateProvider::witness--> StateWitness
//!                                                                         | open_witness(root)
//!  block, codes, ancestors --execute_on_witness--------------------> OpenedWitness
//!                                   '--> outcome, next root
//! ```

use crate::{
    AccessRecorder, BlockHashes, CodeReader, ExecutionError, ExecutionInput, ExecutionOutcome,
    RecordedAccesses, execute_block,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, RecoveredBlock},
};
use retrie_state::{
    KeyForm, StateError, StateKey, StateReader, StateValue, WitnessError, descriptor::OpenedWitness,
};
use std::collections::BTreeMap;

/// What a block reads, and its outcome.
#[derive(Clone, Debug)]
pub struct BlockReads {
    /// The outcome of its execution.
    pub outcome: ExecutionOutcome,
    /// The accounts and slots that it reads, ascending.
    pub keys: Vec<StateKey>,
    /// Accounts whose whole storage it lists, ascending.
    pub listed: Vec<Address>,
    /// The codes that it reads, by ascending keccak-256.
    pub codes: Vec<Bytes>,
    /// Number of the oldest ancestor whose hash it reads. Its verifier needs the headers from the child
    /// of this one to the parent.
    pub oldest_hash: Option<u64>,
}

/// Executes `block` on the state of its parent, and records all that it reads.
///
/// # Errors
/// As [`execute_block`].
pub fn read_block(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
) -> Result<BlockReads, ExecutionError> {
    let recorder = AccessRecorder::of_input(input);
    let outcome = execute_block(spec, block, recorder.input())?;
    let RecordedAccesses { values, listed, codes, hashes } = recorder.into_accesses();
    Ok(BlockReads {
        outcome,
        keys: values.into_keys().collect(),
        listed: listed.into_iter().collect(),
        codes: codes.into_values().collect(),
        oldest_hash: hashes.into_keys().next(),
    })
}

/// A block that was executed without a state.
#[derive(Clone, Debug)]
pub struct WitnessOutcome {
    /// The outcome. The caller compares it with the header, as after any execution.
    pub outcome: ExecutionOutcome,
    /// Root of the state after the block, of the store whose witness it is.
    pub root: B256,
}

/// Why a block could not be executed on a witness.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessExecutionError {
    /// It is invalid, or the witness lacks something that it reads.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The next root does not follow from the witness.
    #[error("the root after block {number} does not follow: {source}")]
    Root {
        /// Number of the block.
        number: u64,
        /// Why not.
        source: WitnessError,
    },
    /// The headers do not lead to the block.
    #[error(
        "header {number} of the witness has hash {found}, and its child names {expected}; give the \
         parent last, each header after its own parent"
    )]
    Ancestor {
        /// Number in the header.
        number: u64,
        /// Its hash.
        found: B256,
        /// The hash that it should have.
        expected: B256,
    },
}

/// Executes `block` on an opened witness of the state before it, whose keys have the form `keys`, and
/// computes the next root. `ancestors` are headers, oldest first, the parent last; there may be none
/// if the block reads no hash.
///
/// The caller has opened the witness with the root of the parent, which it trusts, and compares the
/// outcome with the block's header.
///
/// # Errors
/// A [`WitnessExecutionError`]; [`StateError::MissingWitness`] within it names what the witness lacks.
pub fn execute_on_witness(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    (witness, keys): (&dyn OpenedWitness, KeyForm),
    codes: &[Bytes],
    ancestors: &[Header],
) -> Result<WitnessOutcome, WitnessExecutionError> {
    let state = WitnessState { witness, keys };
    let codes = codes.iter().map(|code| (keccak256(code), code.clone())).collect();
    let reads = WitnessReads { codes, hashes: ancestor_hashes(block, ancestors)? };
    let outcome = execute_block(spec, block, ExecutionInput::new(&state, &reads, &reads))?;
    let number = block.number;
    let root = witness.apply(number, &keys.delta(&outcome.delta));
    let root = root.map_err(|source| WitnessExecutionError::Root { number, source })?;
    Ok(WitnessOutcome { outcome, root })
}

/// The hashes that `ancestors` name, by number.
fn ancestor_hashes(
    block: &RecoveredBlock,
    ancestors: &[Header],
) -> Result<BTreeMap<u64, B256>, WitnessExecutionError> {
    let mut hashes = BTreeMap::new();
    let mut expected = block.parent_hash;
    for header in ancestors.iter().rev() {
        let (number, found) = (header.number, header.hash_slow());
        if found != expected {
            return Err(WitnessExecutionError::Ancestor { number, found, expected });
        }
        hashes.insert(number, found);
        expected = header.parent_hash;
        if let Some(parent) = number.checked_sub(1) {
            hashes.insert(parent, expected);
        }
    }
    Ok(hashes)
}

/// The state that a witness shows.
struct WitnessState<'a> {
    witness: &'a dyn OpenedWitness,
    keys: KeyForm,
}

impl StateReader for WitnessState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        self.witness.value(&self.keys.key(key)).map_err(|error| match error {
            WitnessError::Unproven { .. } => StateError::MissingWitness { what: key.to_string() },
            error => StateError::corrupt("witness", error.to_string()),
        })
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let account = self.keys.account(address);
        // An absent account has no storage.
        if self.get(&StateKey::Account(*address))?.is_none() {
            return Ok(Vec::new());
        }
        let what = || format!("the list of slots of {address}");
        match self.witness.slots_of(&account) {
            Ok(_) if self.keys == KeyForm::Hashed => Err(StateError::HashedKeys { what: what() }),
            Ok(slots) => Ok(slots),
            // The delta names the account, and that is enough.
            Err(_) if self.witness.wipes_unnamed_slots() => {
                Err(StateError::MissingWitness { what: what() })
            }
            Err(error) => Err(StateError::corrupt("witness", error.to_string())),
        }
    }
}

/// Codes and hashes that came with a witness.
struct WitnessReads {
    codes: BTreeMap<B256, Bytes>,
    hashes: BTreeMap<u64, B256>,
}

impl CodeReader for WitnessReads {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).cloned())
    }
}

impl BlockHashes for WitnessReads {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        Ok(self.hashes.get(&number).copied())
    }
}
