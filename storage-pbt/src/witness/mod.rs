//! Block witnesses: the part of the tree on the paths of all leaves that a block reads or changes, and
//! the siblings that take the place of a branch which loses a child.
//!
//! # Soundness
//!
//! As that of [proofs](crate::verify). The hash of a branch depends on its place, so one that moves up
//! has to be opened, with its bits and both children.
//!
//! How many accounts have a code is not in the tree. So chunks that are already there may come again,
//! but there is no witness of a block in which an account loses a code that has chunks. Since EIP-6780
//! no such block comes.
//!
//! The witness is made by applying the block to a tree that opens what it is asked for, and writing
//! down what was opened.

mod bytes;
mod make;
mod tree;

pub(crate) use make::make;

use crate::{
    hash::{EMPTY_ROOT, TreeHash},
    key::{HEADER_ZONE, Stem, account_path},
    leaf::{CHUNK_LEN, CodeFacts, account_leaves, account_of},
    verify::{LeafKey, chunk_leaves, targets_of},
};
use alloy_primitives::{B256, KECCAK256_EMPTY, U256};
use retrie_state::{
    Account, AccountKey, BackendChange, BackendDelta, BackendKey, ProofError, StateError,
    StateValue, WitnessError, decode_slot,
    descriptor::{OpenedWitness, WitnessResult, check_previous},
    encode_slot,
};
use std::collections::BTreeMap;
use tree::{LeafChange, NodeContent, NodePtr, TreeOrigin, TreeWork};

/// Why work on a partial tree ended.
#[derive(Debug)]
enum WitnessFault {
    /// A row could not be read.
    State(StateError),
    /// The witness lacks something, or the delta is none.
    Witness(WitnessError),
    /// No root says whether other accounts have the code that this account loses.
    LosesCode(AccountKey),
    /// The delta does not bring this code, which an account gets.
    UnknownCode(B256),
}

impl From<StateError> for WitnessFault {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<WitnessError> for WitnessFault {
    fn from(error: WitnessError) -> Self {
        Self::Witness(error)
    }
}

impl From<WitnessFault> for WitnessError {
    fn from(fault: WitnessFault) -> Self {
        let what = match fault {
            WitnessFault::Witness(error) => return error,
            WitnessFault::State(error) => format!("a node: {error}"),
            WitnessFault::LosesCode(account) => {
                format!("how many accounts have the code that {account} loses")
            }
            WitnessFault::UnknownCode(code) => {
                format!("the code {code}, which the delta should bring")
            }
        };
        Self::Incomplete { what }
    }
}

/// Opens the witness `bytes` of the state of `root`.
pub(crate) fn open(with: TreeHash, root: B256, bytes: &[u8]) -> WitnessResult {
    let top = bytes::decode(with, bytes)?;
    if top.as_ref().map_or(EMPTY_ROOT, |top| top.hash) != root {
        return Err(ProofError::RootMismatch.into());
    }
    Ok(Box::new(PbtWitness { with, top }))
}

/// The tree of a witness: nothing more can be opened.
#[derive(Debug)]
enum NoHandle {}

/// The origin of nodes without a store.
struct NoOrigin;

impl TreeOrigin for NoOrigin {
    type Handle = NoHandle;

    fn open(&self, handle: &NoHandle) -> Result<NodeContent<NoHandle>, WitnessFault> {
        match *handle {}
    }
}

/// The keys and values of all leaves of a code's chunks.
fn code_leaves(with: TreeHash, code: &[u8]) -> BTreeMap<LeafKey, B256> {
    let chunks = u32::try_from(code.len().div_ceil(CHUNK_LEN)).unwrap_or(u32::MAX);
    let mut leaves = chunk_leaves(with, code, 0..chunks);
    leaves.retain(|_, value| !value.is_zero());
    leaves
}

/// The state that a partial tree shows.
struct ShownState<'a, O: TreeOrigin> {
    work: TreeWork<'a, O>,
    top: Option<&'a NodePtr<O::Handle>>,
}

impl<O: TreeOrigin> ShownState<'_, O> {
    fn leaves(&self, key: &BackendKey) -> Result<Vec<Option<B256>>, WitnessFault> {
        let targets = targets_of(self.work.with, key);
        targets.iter().map(|target| self.work.leaf(self.top, target)).collect()
    }

    fn account(&self, owner: &AccountKey) -> Result<Option<(Account, CodeFacts)>, WitnessFault> {
        match self.leaves(&BackendKey::Account(*owner))?[..] {
            [basic, code, delegation] => account_of(basic, code, delegation)
                .map_err(|what| WitnessError::Refused(ProofError::Malformed { what }).into()),
            _ => Ok(None),
        }
    }

    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessFault> {
        match key {
            BackendKey::Account(owner) => {
                Ok(self.account(owner)?.map(|(account, _)| account.encode()))
            }
            BackendKey::Slot(..) => {
                let leaf = self.leaves(key)?.pop().flatten();
                Ok(leaf.and_then(|value| encode_slot(U256::from_be_bytes(value.0))))
            }
        }
    }

    /// The root after `delta`, whose previous values are those of the tree.
    fn root_after(&self, delta: &BackendDelta) -> Result<B256, WitnessFault> {
        let mut leaves = BTreeMap::new();
        for change in delta.changes() {
            match &change.key {
                BackendKey::Account(owner) => {
                    self.change_account(owner, change, delta, &mut leaves)?;
                }
                BackendKey::Slot(..) => {
                    let value = change.next.as_ref().map(|value| {
                        decode_slot(value).map(B256::from).ok_or_else(|| invalid(change))
                    });
                    let value = value.transpose()?;
                    let targets = targets_of(self.work.with, &change.key);
                    leaves.extend(targets.into_iter().map(|target| (target, value)));
                }
            }
        }
        let leaves: Vec<LeafChange> = leaves.into_iter().collect();
        self.work.root_after(self.top, &leaves)
    }

    fn change_account(
        &self,
        owner: &AccountKey,
        change: &BackendChange,
        delta: &BackendDelta,
        leaves: &mut BTreeMap<LeafKey, Option<B256>>,
    ) -> Result<(), WitnessFault> {
        let with = self.work.with;
        let before = self.account(owner)?;
        let next =
            change.next.as_ref().map(|value| Account::decode(value).ok_or_else(|| invalid(change)));
        let next = next.transpose()?;
        let code_after = next.map_or(KECCAK256_EMPTY, |next| next.code_hash);
        let (code_before, facts) = match before {
            Some((before, facts)) => (before.code_hash, facts),
            None => (KECCAK256_EMPTY, CodeFacts::default()),
        };
        let has_chunks = code_before != KECCAK256_EMPTY && facts.delegation.is_none();
        if has_chunks && code_after != code_before {
            return Err(WitnessFault::LosesCode(*owner));
        }
        let facts = if code_after == code_before {
            facts
        } else if code_after == KECCAK256_EMPTY {
            CodeFacts::default()
        } else {
            let code = delta.code(&code_after).ok_or(WitnessFault::UnknownCode(code_after))?;
            let facts = CodeFacts::of(code).ok_or_else(|| invalid(change))?;
            if facts.delegation.is_none() {
                let chunks = code_leaves(with, code).into_iter();
                leaves.extend(chunks.map(|(key, value)| (key, Some(value))));
            }
            facts
        };
        let set = match &next {
            Some(next) => account_leaves(next, &facts).ok_or_else(|| invalid(change))?,
            None => Vec::new(),
        };
        let stem = Stem::short(HEADER_ZONE, &account_path(with, owner));
        for sub in 0..=2 {
            let (key, len) = stem.key(sub);
            let value = set.iter().find(|(own, _)| *own == sub).map(|(_, value)| *value);
            leaves.insert(key[..len].to_vec(), value);
        }
        Ok(())
    }
}

fn invalid(change: &BackendChange) -> WitnessFault {
    let what = format!("the tree cannot hold the new value of {}", change.key);
    WitnessError::InvalidDelta { what }.into()
}

/// An opened witness.
#[derive(Debug)]
struct PbtWitness {
    with: TreeHash,
    top: Option<NodePtr<NoHandle>>,
}

impl PbtWitness {
    fn shown(&self) -> ShownState<'_, NoOrigin> {
        let work = TreeWork { with: self.with, origin: &NoOrigin };
        ShownState { work, top: self.top.as_ref() }
    }
}

impl OpenedWitness for PbtWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        self.shown().value(key).map_err(|fault| match fault {
            WitnessFault::Witness(WitnessError::Incomplete { .. }) => {
                WitnessError::Unproven { key: *key }
            }
            fault => fault.into(),
        })
    }

    fn apply(&self, _: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        check_previous(self, delta)?;
        Ok(self.shown().root_after(delta)?)
    }
}
