//! Records what an execution reads: accounts and slots, which give a bundle its pre-state, and with
//! codes and ancestor hashes, which together give a witness.

use crate::{BlockHashes, CodeReader, ExecutionInput};
use alloy_primitives::{Address, B256, Bytes};
use core::fmt;
use parking_lot::Mutex;
use retrie_log_tables::TableSpan;
use retrie_state::{StateError, StateKey, StateReader, StateValue};
use std::collections::{BTreeMap, BTreeSet};

/// What was read through an [`AccessRecorder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedAccesses {
    /// Every key that was read, with its value; `None` where it is absent.
    pub values: BTreeMap<StateKey, Option<StateValue>>,
    /// Accounts whose whole storage was listed. All their slots are in `values`.
    pub listed: BTreeSet<Address>,
    /// Every code that was read, by its hash.
    pub codes: BTreeMap<B256, Bytes>,
    /// The hashes of ancestors that were read, by number; `None` where it is not known.
    pub hashes: BTreeMap<u64, Option<B256>>,
}

/// Forwards the reads of an execution and records them.
pub struct AccessRecorder<'a> {
    input: ExecutionInput<'a>,
    accesses: Mutex<RecordedAccesses>,
}

impl<'a> AccessRecorder<'a> {
    /// A recorder of accounts and slots in front of `state`, without reads.
    pub fn new(state: &'a dyn StateReader) -> Self {
        Self::of_input(ExecutionInput::new(state, &(), &()))
    }

    /// A recorder in front of all that `input` reads from.
    pub fn of_input(input: ExecutionInput<'a>) -> Self {
        Self { input, accesses: Mutex::default() }
    }

    /// Input for an execution whose reads are recorded. It has no code cache, which would hide reads
    /// of codes.
    pub fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput::new(self, self, self)
    }

    /// The reads so far.
    pub fn into_accesses(self) -> RecordedAccesses {
        self.accesses.into_inner()
    }
}

impl StateReader for AccessRecorder<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let value = self.input.state.get(key)?;
        self.accesses.lock().values.insert(*key, value.clone());
        Ok(value)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let slots = self.input.state.slots_of(address)?;
        let mut accesses = self.accesses.lock();
        accesses.listed.insert(*address);
        for (slot, value) in &slots {
            accesses.values.insert(StateKey::Slot(*address, *slot), Some(value.clone()));
        }
        Ok(slots)
    }
}

impl CodeReader for AccessRecorder<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        let code = self.input.codes.code(hash)?;
        if let Some(code) = &code {
            self.accesses.lock().codes.insert(*hash, code.clone());
        }
        Ok(code)
    }
}

impl BlockHashes for AccessRecorder<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        let hash = self.input.hashes.block_hash(number)?;
        self.accesses.lock().hashes.insert(number, hash);
        Ok(hash)
    }

    /// Not recorded: no witness has it.
    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        self.input.hashes.table_root(span)
    }
}

impl fmt::Debug for AccessRecorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accesses = self.accesses.lock();
        f.debug_struct("AccessRecorder")
            .field("values", &accesses.values.len())
            .field("listed", &accesses.listed.len())
            .field("codes", &accesses.codes.len())
            .field("hashes", &accesses.hashes.len())
            .finish()
    }
}
