//! The dual check: leaves against the root that a snapshot claims, and against a state root.

use super::{
    FileDigest, MigrationContext, MigrationError, MigrationStep, Preimage, PreimageReader,
    SnapshotReader, SnapshotSummary, TreeKey, TreeLeaf,
    code::{ChunkOwners, CodeReader, CodeSizeSorter},
    leaf::{HeaderAccount, HeaderCode, HeaderLeaves},
    mpt::{HashedEntry, HashedState},
};
use crate::{
    hash::{Subtree, Sweep, TreeHash},
    key::{CODE_ZONE, HEADER_ZONE, SlotPlace, Stem, account_path, account_word, group_path},
    leaf::delegation_hash,
};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256, keccak256};
use retrie_state::{
    Account, AccountKey, BulkSorter, SortedRecords, StateError, StateKey, StateValue,
};
use std::{fmt, io::Read};

/// The dual check of EIP-8347.
#[derive(Debug)]
pub struct DualCheck<'a> {
    /// What it needs.
    pub context: MigrationContext<'a>,
    /// The state root of the anchor's header, which the caller trusts.
    pub state_root: B256,
}

/// A state whose files have passed the [`DualCheck`].
pub struct CheckedState {
    /// What the snapshot says and is.
    pub snapshot: SnapshotSummary,
    /// The preimage file.
    pub preimages: FileDigest,
    /// Accounts.
    pub accounts: u64,
    /// Storage slots.
    pub slots: u64,
    /// Codes, with delegations.
    pub codes: u64,
    state: HashedState,
    sizes: CodeSizeSorter,
    chunks: Box<dyn BulkSorter>,
}

impl fmt::Debug for CheckedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { snapshot, accounts, slots, codes, .. } = self;
        let mut all = f.debug_struct("CheckedState");
        all.field("snapshot", snapshot).field("accounts", accounts).field("slots", slots);
        all.field("codes", codes).finish_non_exhaustive()
    }
}

impl CheckedState {
    /// All accounts and slots, in the order of Ethereum's trie.
    ///
    /// # Errors
    /// If what was sorted cannot be read; so for each entry.
    pub fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(StateKey, StateValue), StateError>>, StateError> {
        let entries = self.state.entries()?;
        Ok(entries.map(|entry| entry.map(|HashedEntry { key, value, .. }| (key, value))))
    }

    /// All codes that accounts have, with their keccak-256, in its order. Delegations are among them.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    pub fn codes(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(B256, Vec<u8>), MigrationError>>, StateError> {
        CodeReader::new(&mut self.sizes, &mut *self.chunks)
    }
}

impl DualCheck<'_> {
    /// Checks the files. What is wrong with a file alone, or with the root of its leaves, is named before
    /// what is wrong with the state.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn run<S: Read, P: Read>(
        mut self,
        snapshot: SnapshotReader<S>,
        preimages: PreimageReader<P>,
    ) -> Result<CheckedState, MigrationError> {
        let context = &mut self.context;
        let (mut wanted, preimages) = sort_preimages(context, preimages)?;
        let mut leaves = SweptLeaves {
            sweep: Sweep::new(context.hash),
            hash: context.hash,
            reader: snapshot,
            peeked: None,
            is_broken: false,
        };
        let mut join = StateJoin {
            state: HashedState::new(context.sorter()),
            sizes: CodeSizeSorter::new(context.sorter()),
            counts: [0; 2],
            owner: None,
        };
        let joined = join.run(context, &mut leaves, &mut *wanted);
        drop(wanted);
        let is_over = leaves.is_broken || matches!(joined, Err(MigrationError::Stopped));
        let snapshot = match joined {
            Err(error) if is_over => return Err(error),
            _ => leaves.finish(context)?,
        };
        let mut chunks = joined?;

        let StateJoin { mut state, mut sizes, counts: [accounts, slots], .. } = join;
        let mut codes = 0;
        let mut reader = CodeReader::new(&mut sizes, &mut *chunks)?;
        while reader.next_code()?.is_some() {
            codes += 1;
            context.tell(MigrationStep::Codes, codes)?;
        }
        drop(reader);
        let (expected, found) = (self.state_root, state.root(context)?);
        if found != expected {
            return Err(MigrationError::StateRoot { expected, found });
        }
        Ok(CheckedState { snapshot, preimages, accounts, slots, codes, state, sizes, chunks })
    }
}

/// Sorts the preimages by the leaves that they want: the stem of each account's header with the address,
/// the key of each slot with the address and the slot.
fn sort_preimages<P: Read>(
    context: &mut MigrationContext<'_>,
    mut reader: PreimageReader<P>,
) -> Result<(Box<dyn BulkSorter>, FileDigest), MigrationError> {
    struct Owner {
        address: Address,
        word: B256,
        path: B256,
        header: Stem,
    }

    let (hash, mut sorter) = (context.hash, context.sorter());
    let (mut owner, mut done) = (None, 0);
    while let Some(item) = reader.next_item()? {
        match (item, &owner) {
            (Preimage::Account(address), _) => {
                let account = AccountKey::from(address);
                let path = account_path(hash, &account);
                let header = Stem::short(HEADER_ZONE, &path);
                sorter.put(header.as_ref(), &address[..])?;
                owner = Some(Owner { address, word: account_word(&account), path, header });
            }
            (Preimage::Slot(slot), Some(Owner { address, word, path, header })) => {
                let key = match SlotPlace::of(&slot) {
                    SlotPlace::Header(sub) => TreeKey::new(header, sub),
                    SlotPlace::Storage { group, sub } => {
                        TreeKey::new(&Stem::storage(path, &group_path(hash, word, &group)), sub)
                    }
                };
                sorter.put(key.as_ref(), &[&address[..], &slot[..]].concat())?;
            }
            (Preimage::Slot(_), None) => {}
        }
        done += 1;
        context.tell(MigrationStep::Preimages, done)?;
    }
    Ok((sorter, reader.finish()?))
}

/// The leaves that the preimages want, in order.
struct WantedLeaves<'a>(std::iter::Peekable<SortedRecords<'a>>);

impl<'a> WantedLeaves<'a> {
    fn new(sorter: &'a mut dyn BulkSorter) -> Result<Self, StateError> {
        Ok(Self(sorter.sorted()?.peekable()))
    }

    /// The preimage of a stem or key; `None` if there is none.
    ///
    /// # Errors
    /// If a preimage comes before it: its leaf is not there.
    fn find(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, MigrationError> {
        let is_due = |record: &Result<(Vec<u8>, Vec<u8>), StateError>| {
            record.as_ref().map_or(true, |(wanted, _)| &wanted[..] <= key)
        };
        match self.0.next_if(is_due).transpose()? {
            Some((wanted, value)) if wanted == key => Ok(Some(value)),
            Some((_, value)) => Err(surplus(&value)),
            None => Ok(None),
        }
    }

    fn finish(mut self) -> Result<(), MigrationError> {
        match self.0.next().transpose()? {
            Some((_, value)) => Err(surplus(&value)),
            None => Ok(()),
        }
    }
}

/// The error for a preimage without a leaf.
fn surplus(value: &[u8]) -> MigrationError {
    match split_preimage(value) {
        Some((address, Some(slot))) => MigrationError::SurplusSlot { address, slot },
        Some((address, None)) => MigrationError::SurplusAccount { address },
        None => lost().into(),
    }
}

/// The address and the slot of a preimage.
fn split_preimage(value: &[u8]) -> Option<(Address, Option<B256>)> {
    let (address, slot) = value.split_first_chunk::<20>()?;
    let slot = if slot.is_empty() { None } else { Some(B256::try_from(slot).ok()?) };
    Some((address.into(), slot))
}

fn lost() -> StateError {
    StateError::corrupt("sorted preimages", "a record is not the one that was written")
}

/// The leaves of a snapshot, whose root is computed as they go by.
struct SweptLeaves<R> {
    hash: TreeHash,
    sweep: Sweep,
    reader: SnapshotReader<R>,
    peeked: Option<TreeLeaf>,
    /// Whether the file was found to be wrong.
    is_broken: bool,
}

impl<R: Read> SweptLeaves<R> {
    fn peek(&mut self) -> Result<Option<TreeLeaf>, MigrationError> {
        if self.peeked.is_none() {
            self.is_broken = true;
            self.peeked = self.reader.next_leaf()?;
            self.is_broken = false;
            if let Some(TreeLeaf { key, value }) = &self.peeked {
                let hash = self.hash.leaf(key.as_ref(), value);
                self.sweep.push(key.as_ref(), Subtree::Leaf(hash));
            }
        }
        Ok(self.peeked)
    }

    /// The next leaf, if its key is one that the caller wants.
    fn next_if(
        &mut self,
        context: &mut MigrationContext<'_>,
        is_wanted: impl FnOnce(&TreeKey) -> bool,
    ) -> Result<Option<TreeLeaf>, MigrationError> {
        match self.peek()? {
            Some(leaf) if is_wanted(&leaf.key) => {
                self.peeked = None;
                context.tell(MigrationStep::Leaves, self.reader.leaves())?;
                Ok(Some(leaf))
            }
            _ => Ok(None),
        }
    }

    /// Reads the leaves that are left, and compares the root.
    fn finish(
        mut self,
        context: &mut MigrationContext<'_>,
    ) -> Result<SnapshotSummary, MigrationError> {
        while self.next_if(context, |_| true)?.is_some() {}
        let summary = self.reader.finish()?;
        let (claimed, found) = (summary.root, self.sweep.root());
        match claimed == found {
            true => Ok(summary),
            false => Err(MigrationError::PbtRoot { claimed, found }),
        }
    }
}

/// Joins leaves with their preimages.
struct StateJoin {
    state: HashedState,
    sizes: CodeSizeSorter,
    /// Accounts, slots.
    counts: [u64; 2],
    /// The account of the last slot, with its hash.
    owner: Option<(Address, B256)>,
}

impl StateJoin {
    /// Joins all leaves; returns the chunks by code.
    fn run<R: Read>(
        &mut self,
        context: &mut MigrationContext<'_>,
        leaves: &mut SweptLeaves<R>,
        wanted: &mut dyn BulkSorter,
    ) -> Result<Box<dyn BulkSorter>, MigrationError> {
        let mut wanted = WantedLeaves::new(wanted)?;
        self.headers(context, leaves, &mut wanted)?;
        let mut groups = self.sizes.groups(context)?;
        let mut owners = ChunkOwners::new(&mut *groups, context.sorter())?;
        while let Some(leaf) = leaves.next_if(context, |key| key.zone() == CODE_ZONE)? {
            owners.put(&leaf)?;
        }
        let chunks = owners.finish();
        self.storages(context, leaves, &mut wanted)?;
        wanted.finish()?;
        Ok(chunks)
    }

    fn headers<R: Read>(
        &mut self,
        context: &mut MigrationContext<'_>,
        leaves: &mut SweptLeaves<R>,
        wanted: &mut WantedLeaves<'_>,
    ) -> Result<(), MigrationError> {
        while let Some(first) = leaves.next_if(context, |key| key.zone() == HEADER_ZONE)? {
            let path = first.key.path();
            let owner = wanted.find(first.key.stem())?;
            let owner = owner.as_deref().and_then(split_preimage);
            let (address, _) = owner.ok_or(MigrationError::MissingPreimage { key: first.key })?;
            let mut header = HeaderLeaves::new(path);
            let mut leaf = Some(first);
            while let Some(next) = leaf {
                if header.push(&next) {
                    self.slot(&next, wanted)?;
                }
                leaf = leaves.next_if(context, |key| key.stem() == next.key.stem())?;
            }
            let HeaderAccount { nonce, balance, code } = header.account()?;
            let code_hash = match code {
                HeaderCode::Empty => KECCAK256_EMPTY,
                HeaderCode::Delegation(target) => {
                    let hash = delegation_hash(&target);
                    self.sizes.put_delegation(&hash, &target)?;
                    hash
                }
                HeaderCode::Code { hash, size } => {
                    self.sizes.put(hash, size)?;
                    hash
                }
            };
            let account = Account { nonce, balance: U256::from(balance), code_hash };
            self.state.put_account(&address, &account)?;
            self.counts[0] += 1;
        }
        Ok(())
    }

    fn storages<R: Read>(
        &mut self,
        context: &mut MigrationContext<'_>,
        leaves: &mut SweptLeaves<R>,
        wanted: &mut WantedLeaves<'_>,
    ) -> Result<(), MigrationError> {
        while let Some(leaf) = leaves.next_if(context, |_| true)? {
            self.slot(&leaf, wanted)?;
        }
        Ok(())
    }

    /// Adds the slot of a leaf.
    fn slot(
        &mut self,
        leaf: &TreeLeaf,
        wanted: &mut WantedLeaves<'_>,
    ) -> Result<(), MigrationError> {
        let preimage = wanted.find(leaf.key.as_ref())?;
        let Some((address, Some(slot))) = preimage.as_deref().and_then(split_preimage) else {
            return Err(MigrationError::MissingPreimage { key: leaf.key });
        };
        let owner = match self.owner {
            Some((last, owner)) if last == address => owner,
            _ => self.owner.insert((address, keccak256(address))).1,
        };
        self.state.put_slot(&owner, &slot, &leaf.value)?;
        self.counts[1] += 1;
        Ok(())
    }
}
