//! The files of a state.

use super::{
    FileDigest, GroupCounts, MigrationContext, MigrationError, MigrationStep, PreimageWriter,
    SnapshotLayout, SnapshotTotals, SnapshotWriter, TreeKey, TreeLeaf,
};
use crate::{
    hash::{Subtree, Sweep, TreeHash},
    key::{
        CODE_ZONE, HEADER_ZONE, STEM_LEAVES, SlotPlace, Stem, account_path, account_word,
        group_path,
    },
    leaf::{CodeFacts, account_leaves, chunks},
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_state::{
    Account, AccountKey, BackendKey, BulkSorter, StateError, StateValue, decode_slot,
};
use std::{collections::HashMap, fmt, io::Write};

/// Facts of so many codes are kept in memory. A code that is asked for again costs time alone.
const MAX_FACTS: usize = 1 << 20;

/// The leaves of a tree, sorted, and what they are in total.
pub struct LeafSet {
    /// What they are in total.
    pub totals: SnapshotTotals,
    /// Values by key.
    leaves: Box<dyn BulkSorter>,
    /// The number of groups of each storage, by the path of the account.
    groups: Box<dyn BulkSorter>,
}

impl fmt::Debug for LeafSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafSet").field("totals", &self.totals).finish_non_exhaustive()
    }
}

fn lost() -> StateError {
    StateError::corrupt("sorted leaves", "a record is not the one that was written")
}

fn leaf_of((key, value): (Vec<u8>, Vec<u8>)) -> Result<TreeLeaf, StateError> {
    let key = TreeKey::from_slice(&key).ok_or_else(lost)?;
    Ok(TreeLeaf { key, value: B256::try_from(&value[..]).map_err(|_| lost())? })
}

impl LeafSet {
    /// The leaves in `leaves`, a sorter of values (32 bytes) by key.
    ///
    /// # Errors
    /// If they cannot be sorted, or the work is stopped.
    fn new(
        context: &mut MigrationContext<'_>,
        mut leaves: Box<dyn BulkSorter>,
    ) -> Result<Self, MigrationError> {
        let (mut totals, mut groups) = (SnapshotTotals::default(), context.sorter());
        let mut sweep = Sweep::new(context.hash);
        let mut last: Option<TreeKey> = None;
        // The path of the last storage, and its groups so far.
        let mut storage: Option<(B256, u64)> = None;
        for record in leaves.sorted()? {
            let TreeLeaf { key, value } = leaf_of(record?)?;
            sweep.push(key.as_ref(), Subtree::Leaf(context.hash.leaf(key.as_ref(), &value)));
            totals.leaves += 1;
            context.tell(MigrationStep::Leaves, totals.leaves)?;
            if last.replace(key).is_some_and(|last| last.stem() == key.stem()) {
                continue;
            }
            match key.zone() {
                HEADER_ZONE => totals.headers += 1,
                CODE_ZONE => totals.code_groups += 1,
                _ => match &mut storage {
                    Some((path, count)) if *path == key.path() => *count += 1,
                    _ => {
                        if let Some((path, count)) = storage.replace((key.path(), 1)) {
                            groups.put(&path[..], &count.to_be_bytes())?;
                        }
                        totals.storages += 1;
                    }
                },
            }
        }
        if let Some((path, count)) = storage {
            groups.put(&path[..], &count.to_be_bytes())?;
        }
        totals.root = sweep.root();
        Ok(Self { totals, leaves, groups })
    }

    /// All leaves in the order of their keys.
    ///
    /// # Errors
    /// If what was sorted cannot be read; so for each leaf.
    pub fn iter(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<TreeLeaf, StateError>>, StateError> {
        Ok(self.leaves.sorted()?.map(|record| record.and_then(leaf_of)))
    }

    /// Writes the snapshot, and returns the writer with the file's digest.
    ///
    /// # Errors
    /// [`MigrationError::EmptyAccount`] in a typed layout; if the file cannot be written, or the work is
    /// stopped.
    pub fn write<W: Write>(
        &mut self,
        context: &mut MigrationContext<'_>,
        layout: SnapshotLayout,
        out: W,
    ) -> Result<(FileDigest, W), MigrationError> {
        let count = |(_, count): (Vec<u8>, Vec<u8>)| {
            let count = count[..].try_into().map_err(|_| lost())?;
            Ok(u64::from_be_bytes(count))
        };
        let groups: GroupCounts<'_> =
            Box::new(self.groups.sorted()?.map(|record| record.and_then(count)));
        let mut writer = SnapshotWriter::new(layout, out, self.totals, groups)?;
        let mut done = 0;
        for record in self.leaves.sorted()? {
            writer.push(&leaf_of(record?)?)?;
            done += 1;
            context.tell(MigrationStep::Leaves, done)?;
        }
        writer.finish()
    }
}

/// A state, sorted so that its files can be written.
#[derive(Debug)]
pub struct StateExport {
    /// The leaves of its tree.
    pub leaves: LeafSet,
    /// Accounts.
    pub accounts: u64,
    /// Storage slots.
    pub slots: u64,
    preimages: SortedPreimages,
}

/// Gives the code with a keccak-256; `None` if it is not there.
pub type CodeLookup<'a> = dyn FnMut(&B256) -> Result<Option<Bytes>, StateError> + 'a;

impl StateExport {
    /// Sorts the state of `entries`, which come in the order of plain keys; `codes` has the codes of all
    /// accounts.
    ///
    /// # Errors
    /// If keys are hashed, an entry is none, an account has no leaf, a code is missing; if `entries` or
    /// `codes` fail, or the work is stopped.
    pub fn new(
        context: &mut MigrationContext<'_>,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        codes: &mut CodeLookup<'_>,
    ) -> Result<Self, MigrationError> {
        let mut sort = StateSort {
            hash: context.hash,
            leaves: context.sorter(),
            preimages: SortedPreimages(context.sorter()),
            facts: HashMap::new(),
            owner: None,
        };
        let (mut accounts, mut slots) = (0, 0);
        for entry in entries {
            let (key, value) = entry?;
            let address = key.account().address().ok_or(MigrationError::HashedKeys)?;
            match key {
                BackendKey::Account(_) => {
                    accounts += 1;
                    sort.account(address, &value, codes)?;
                }
                BackendKey::Slot(_, slot) => {
                    slots += 1;
                    sort.slot(address, &slot, &value)?;
                }
            }
            context.tell(MigrationStep::Entries, accounts + slots)?;
        }
        sort.finish_owner()?;
        let StateSort { leaves, preimages, .. } = sort;
        Ok(Self { leaves: LeafSet::new(context, leaves)?, accounts, slots, preimages })
    }

    /// Writes the preimage file, and returns the writer with the file's digest.
    ///
    /// # Errors
    /// [`MigrationError::SlotsWithoutAccount`]; if the file cannot be written, or the work is stopped.
    pub fn write_preimages<W: Write>(
        &mut self,
        context: &mut MigrationContext<'_>,
        out: W,
    ) -> Result<(FileDigest, W), MigrationError> {
        self.preimages.write(context, PreimageWriter::new(out))
    }
}

/// Preimages in the order of their hashes.
///
/// The key of a record is keccak-256 of the address, and: nothing, with the address as value; `00`, with
/// the number of slots; `01` and keccak-256 of a slot, with the slot.
struct SortedPreimages(Box<dyn BulkSorter>);

const SLOT_COUNT: u8 = 0;
const SLOT: u8 = 1;

impl fmt::Debug for SortedPreimages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SortedPreimages").finish_non_exhaustive()
    }
}

impl SortedPreimages {
    fn write<W: Write>(
        &mut self,
        context: &mut MigrationContext<'_>,
        mut writer: PreimageWriter<W>,
    ) -> Result<(FileDigest, W), MigrationError> {
        // The last account, until the number of its slots is known.
        let mut account: Option<Address> = None;
        let mut last = B256::ZERO;
        let mut done = 0;
        for record in self.0.sorted()? {
            let (key, value) = record?;
            let (owner, rest) = key.split_first_chunk::<32>().ok_or_else(lost)?;
            let owner = B256::from(owner);
            match rest.first() {
                None => {
                    if let Some(address) = account.take() {
                        writer.account(&address, 0)?;
                    }
                    last = owner;
                    account = Some(Address::try_from(&value[..]).map_err(|_| lost())?);
                }
                Some(_) if last != owner => {
                    return Err(MigrationError::SlotsWithoutAccount { account: owner });
                }
                Some(&SLOT_COUNT) => {
                    let count = value[..].try_into().map_err(|_| lost())?;
                    let address = account.take().ok_or_else(lost)?;
                    writer.account(&address, u32::from_be_bytes(count))?;
                }
                Some(_) => writer.slot(&B256::try_from(&value[..]).map_err(|_| lost())?)?,
            }
            done += 1;
            context.tell(MigrationStep::Preimages, done)?;
        }
        if let Some(address) = account {
            writer.account(&address, 0)?;
        }
        writer.finish()
    }
}

/// The account whose slots come.
struct SlotOwner {
    address: Address,
    word: B256,
    path: B256,
    header: Stem,
    /// keccak-256 of the address.
    hash: B256,
    slots: u32,
}

/// Turns entries into leaves and preimages.
struct StateSort {
    hash: TreeHash,
    leaves: Box<dyn BulkSorter>,
    preimages: SortedPreimages,
    /// Codes whose chunks are among the leaves.
    facts: HashMap<B256, CodeFacts>,
    owner: Option<SlotOwner>,
}

impl StateSort {
    fn account(
        &mut self,
        address: Address,
        value: &StateValue,
        codes: &mut CodeLookup<'_>,
    ) -> Result<(), MigrationError> {
        let not_one = || StateError::corrupt("state", format!("{address} is not an account"));
        let account = Account::decode(value).ok_or_else(not_one)?;
        let facts = match account.code_hash {
            KECCAK256_EMPTY => CodeFacts::default(),
            code => self.facts(address, code, codes)?,
        };
        let leaves = account_leaves(&account, &facts);
        let leaves = leaves.ok_or(MigrationError::Balance { address })?;
        let stem = Stem::short(HEADER_ZONE, &account_path(self.hash, &address.into()));
        for (sub, value) in leaves {
            self.leaves.put(TreeKey::new(&stem, sub).as_ref(), &value[..])?;
        }
        Ok(self.preimages.0.put(&keccak256(address)[..], &address[..])?)
    }

    /// The facts of a code, whose chunks become leaves.
    fn facts(
        &mut self,
        address: Address,
        code_hash: B256,
        codes: &mut CodeLookup<'_>,
    ) -> Result<CodeFacts, MigrationError> {
        if let Some(facts) = self.facts.get(&code_hash) {
            return Ok(*facts);
        }
        let code = codes(&code_hash)?;
        let code = code.ok_or(MigrationError::MissingCode { address, code: code_hash })?;
        let found = keccak256(&code);
        if found != code_hash {
            return Err(MigrationError::CodeHash { code: code_hash, found });
        }
        let too_long = || MigrationError::CodeTooLong { code: code_hash, size: u32::MAX };
        let facts = CodeFacts::of(&code).ok_or_else(too_long)?;
        if facts.delegation.is_none() {
            for (number, group) in chunks(&code).chunks(STEM_LEAVES).enumerate() {
                let mut word = B256::ZERO;
                word[24..].copy_from_slice(&(number as u64).to_be_bytes());
                let stem = Stem::short(CODE_ZONE, &group_path(self.hash, &code_hash, &word));
                for (sub, chunk) in group.iter().enumerate().filter(|(_, chunk)| !chunk.is_zero()) {
                    self.leaves.put(TreeKey::new(&stem, sub as u8).as_ref(), &chunk[..])?;
                }
            }
        }
        if self.facts.len() >= MAX_FACTS {
            self.facts.clear();
        }
        self.facts.insert(code_hash, facts);
        Ok(facts)
    }

    fn slot(
        &mut self,
        address: Address,
        slot: &B256,
        value: &StateValue,
    ) -> Result<(), MigrationError> {
        if self.owner.as_ref().is_none_or(|owner| owner.address != address) {
            self.finish_owner()?;
            let account = AccountKey::from(address);
            let path = account_path(self.hash, &account);
            self.owner = Some(SlotOwner {
                address,
                word: account_word(&account),
                path,
                header: Stem::short(HEADER_ZONE, &path),
                hash: keccak256(address),
                slots: 0,
            });
        }
        let Some(owner) = &mut self.owner else { return Ok(()) };
        owner.slots = owner.slots.checked_add(1).ok_or(MigrationError::TooManySlots { address })?;
        let not_one = || StateError::corrupt("state", format!("slot {slot} of {address} is none"));
        let value = B256::from(decode_slot(value).ok_or_else(not_one)?);
        let key = match SlotPlace::of(slot) {
            SlotPlace::Header(sub) => TreeKey::new(&owner.header, sub),
            SlotPlace::Storage { group, sub } => {
                let group = group_path(self.hash, &owner.word, &group);
                TreeKey::new(&Stem::storage(&owner.path, &group), sub)
            }
        };
        self.leaves.put(key.as_ref(), &value[..])?;
        let key = [&owner.hash[..], &[SLOT], &keccak256(slot)[..]].concat();
        Ok(self.preimages.0.put(&key, &slot[..])?)
    }

    /// All slots of an account have come.
    fn finish_owner(&mut self) -> Result<(), StateError> {
        let Some(owner) = self.owner.take() else { return Ok(()) };
        let key = [&owner.hash[..], &[SLOT_COUNT]].concat();
        self.preimages.0.put(&key, &owner.slots.to_be_bytes())
    }
}
