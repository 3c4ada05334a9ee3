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
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

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
    /// Something came with the witness that the block does not read. A witness has one form.
    #[error("the witness has {what}, which the block does not read; leave it out")]
    Unused {
        /// The code, or the header.
        what: String,
    },
}

/// Executes `block` on an opened witness of the state before it, whose keys have the form `keys`, and
/// computes the next root. `ancestors` are headers, oldest first, the parent last, from the child of the
/// oldest ancestor whose hash the block reads; if it reads none, there may be the parent's or none.
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
    let reads = WitnessReads::new(codes, ancestor_hashes(block, ancestors)?)?;
    let outcome = execute_block(spec, block, ExecutionInput::new(&state, &reads, &reads))?;
    reads.check_use(ancestors)?;
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

/// The state that an opened witness shows. Other reads fail.
#[derive(Clone, Copy, Debug)]
pub struct WitnessState<'a> {
    /// The witness.
    pub witness: &'a dyn OpenedWitness,
    /// The form of its keys.
    pub keys: KeyForm,
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

/// Codes and hashes that came with a witness, and which of them were read.
struct WitnessReads {
    codes: BTreeMap<B256, (Bytes, AtomicBool)>,
    hashes: BTreeMap<u64, B256>,
    /// Number of the oldest ancestor whose hash was read.
    oldest: AtomicU64,
}

impl WitnessReads {
    fn new(codes: &[Bytes], hashes: BTreeMap<u64, B256>) -> Result<Self, WitnessExecutionError> {
        let mut by_hash = BTreeMap::new();
        for code in codes {
            let hash = keccak256(code);
            if by_hash.insert(hash, (code.clone(), AtomicBool::new(false))).is_some() {
                let what = format!("the code {hash} twice");
                return Err(WitnessExecutionError::Unused { what });
            }
        }
        Ok(Self { codes: by_hash, hashes, oldest: AtomicU64::new(u64::MAX) })
    }

    /// Checks that each code was read, and that no header is older than the oldest hash needs.
    fn check_use(&self, ancestors: &[Header]) -> Result<(), WitnessExecutionError> {
        let unused = |what| Err(WitnessExecutionError::Unused { what });
        let is_unread =
            |(_, (_, read)): &(&B256, &(Bytes, AtomicBool))| !read.load(Ordering::Relaxed);
        if let Some((hash, _)) = self.codes.iter().find(is_unread) {
            return unused(format!("the code {hash}"));
        }
        let Some((parent, older)) = ancestors.split_last() else { return Ok(()) };
        // The hash of an ancestor is in the header of its child.
        let first = self.oldest.load(Ordering::Relaxed).saturating_add(1).min(parent.number);
        match older.first() {
            Some(header) if header.number < first => {
                unused(format!("the header of block {}", header.number))
            }
            _ => Ok(()),
        }
    }
}

impl CodeReader for WitnessReads {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).map(|(code, read)| {
            read.store(true, Ordering::Relaxed);
            code.clone()
        }))
    }
}

impl BlockHashes for WitnessReads {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.oldest.fetch_min(number, Ordering::Relaxed);
        Ok(self.hashes.get(&number).copied())
    }
}
