//! Loading a whole state in bounded memory: records are sorted by path on disk, then each tree is
//! built in one sweep.

use crate::{
    code::{CODES, CodeRow, chunks_stem},
    hash::{Subtree, TreeHash},
    key::{
        CODE_ZONE, HEADER_ZONE, STORAGE_ZONE, SlotPlace, Stem, account_path, account_word,
        group_path,
    },
    page::{Page, PagePath, TreePlace, Unit, UnitKind, UnitName, chunks_path},
    row::{RowChange, put_subtree, read_subtree},
    state::join_zones,
    stem::{STEMS, StemLeaves, StemRow},
    tree::{HungExit, LoadedPages, PageBuilder, Tree, TreeUnits, rooted},
    units::{
        ChunkGroups, Headers, NewCodes, SlotGroups, Storages, decode_account, decode_slot,
        header_leaves, header_row, no_code, slots_row,
    },
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_state::{
    Account, AccountKey, BackendKey, BulkSink, BulkSorter, KeyRange, NodeRead, RowScan, RowTable,
    ScanDirection, StateError, StateValue, flat,
    wire::{WireError, WireReader},
};
use std::{collections::HashMap, sync::Arc};

/// Entries of a state in the order of their keys.
pub(crate) type Entries<'a> =
    dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>> + 'a;

/// Loads `entries`, and returns the root.
pub(crate) fn load(
    hash: TreeHash,
    entries: &mut Entries<'_>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut headers = sink.sorter();
    let mut slots = sink.sorter();
    let counts = sort_entries(hash, entries, sink, &mut *headers, &mut *slots)?;
    let (facts, codes) = load_codes(hash, sink, counts)?;
    let headers = load_headers(hash, sink, &mut *headers, &facts)?;
    let storages = load_storages(hash, sink, &mut *slots)?;
    Ok(join_zones(hash, [headers, codes, storages]))
}

/// A record of a header: the account, or its slots.
const ACCOUNT: u8 = 0;
const SLOTS: u8 = 1;

/// Writes the values, and sorts what the trees need of them. Returns the number of accounts of each
/// code.
fn sort_entries(
    hash: TreeHash,
    entries: &mut Entries<'_>,
    sink: &mut dyn BulkSink,
    headers: &mut dyn BulkSorter,
    slots: &mut dyn BulkSorter,
) -> Result<HashMap<B256, u64>, StateError> {
    let mut counts = HashMap::new();
    let mut open: Option<OpenGroup> = None;
    for entry in entries {
        let (key, value) = entry?;
        flat::put(sink, &key, &value)?;
        let owner = *key.account();
        match &key {
            BackendKey::Account(_) => {
                let account = decode_account(&owner, &value)?;
                if account.code_hash != KECCAK256_EMPTY {
                    *counts.entry(account.code_hash).or_default() += 1;
                }
                let path = account_path(hash, &owner);
                let record = [&[owner.len() as u8], &owner[..], &value[..]].concat();
                headers.put(&[&path[..], &[ACCOUNT]].concat(), &record)?;
            }
            BackendKey::Slot(_, slot) => {
                let number = decode_slot(&key, &value)?;
                let (group, sub) = match SlotPlace::of(slot) {
                    SlotPlace::Header(sub) => (None, sub),
                    SlotPlace::Storage { group, sub } => (Some(group), sub),
                };
                if open.as_ref().is_none_or(|open| open.owner != owner || open.group != group) {
                    if let Some(open) = open.take() {
                        open.close(headers, slots)?;
                    }
                    open = Some(OpenGroup::new(hash, owner, group));
                }
                if let Some(open) = &mut open {
                    open.leaves.push((sub, open.stem.leaf(hash, sub, &number)));
                }
            }
        }
    }
    if let Some(open) = open {
        open.close(headers, slots)?;
    }
    Ok(counts)
}

/// The slots of a stem, while they come.
struct OpenGroup {
    owner: AccountKey,
    /// Path of the account.
    path: B256,
    /// The group; `None` for slots in the header.
    group: Option<B256>,
    /// Path of the group.
    group_path: B256,
    stem: Stem,
    leaves: Vec<(u8, B256)>,
}

impl OpenGroup {
    fn new(hash: TreeHash, owner: AccountKey, group: Option<B256>) -> Self {
        let path = account_path(hash, &owner);
        let group_path = match &group {
            Some(group) => group_path(hash, &account_word(&owner), group),
            None => B256::ZERO,
        };
        let stem = match group {
            Some(_) => Stem::storage(&path, &group_path),
            None => Stem::short(HEADER_ZONE, &path),
        };
        Self { owner, path, group, group_path, stem, leaves: Vec::new() }
    }

    fn close(
        self,
        headers: &mut dyn BulkSorter,
        slots: &mut dyn BulkSorter,
    ) -> Result<(), StateError> {
        let mut record = Vec::with_capacity(64 + 33 * self.leaves.len());
        record.push(self.owner.len() as u8);
        record.extend_from_slice(&self.owner);
        if let Some(group) = &self.group {
            record.extend_from_slice(&group[..]);
        }
        for (sub, leaf) in &self.leaves {
            record.push(*sub);
            record.extend_from_slice(&leaf[..]);
        }
        match self.group {
            None => headers.put(&[&self.path[..], &[SLOTS]].concat(), &record),
            Some(_) => slots.put(&[&self.path[..], &self.group_path[..]].concat(), &record),
        }
    }
}

fn lost(error: WireError) -> StateError {
    StateError::corrupt("temporary files of a load", error.what())
}

fn read_owner(reader: &mut WireReader<'_>) -> Result<AccountKey, WireError> {
    let len = usize::from(reader.u8()?);
    AccountKey::from_slice(reader.take(len)?).ok_or(WireError::UnexpectedEnd)
}

fn read_leaves(mut reader: WireReader<'_>) -> Result<Vec<(u8, B256)>, WireError> {
    let mut leaves = Vec::with_capacity(reader.rest().len() / 33);
    while !reader.is_empty() {
        leaves.push((reader.u8()?, reader.hash()?));
    }
    Ok(leaves)
}

/// A zone's subtree.
type ZoneSubtree = Option<Subtree>;

/// Builds the tree of codes, and returns the facts of each code.
fn load_codes(
    hash: TreeHash,
    sink: &mut dyn BulkSink,
    counts: HashMap<B256, u64>,
) -> Result<(NewCodes, ZoneSubtree), StateError> {
    let mut facts = NewCodes::with_capacity(counts.len());
    let mut groups = sink.sorter();
    for (code, accounts) in counts {
        let bytes = sink.code(&code)?.ok_or_else(|| no_code(&code))?;
        let row = CodeRow::new(hash, &code, &bytes).ok_or_else(|| {
            StateError::corrupt(CODES.name, format!("code {code} is longer than 4 GiB"))
        })?;
        let row = CodeRow { accounts, ..row };
        facts.insert(code, row.facts);
        sink.put_unordered(CODES, &code[..], &row.encode())?;
        for (group, subtree) in row.groups.iter().enumerate().filter(|(_, group)| group.is_some()) {
            let group = group as u32;
            let mut record = code.to_vec();
            record.extend_from_slice(&group.to_be_bytes());
            put_subtree(&mut record, subtree.as_ref());
            groups.put(&chunks_path(hash, &code, group)[..], &record)?;
        }
    }
    let place = TreePlace::zone(CODE_ZONE);
    let units = ChunkGroups { hash, view: &NoRows };
    let mut load = TreeLoad::new(hash, &place, &units);
    for record in groups.sorted()? {
        let (path, record) = record?;
        let mut reader = WireReader::new(&record);
        let mut read = || {
            let code = reader.hash()?;
            let group = reader.u32()?;
            let stem = chunks_stem(hash, &code, group);
            let subtree = read_subtree(&mut reader, &stem)?;
            Ok((code, group, subtree.ok_or(WireError::UnexpectedEnd)?))
        };
        let (code, group, subtree) = read().map_err(lost)?;
        let name = UnitName::Chunks(code, group);
        let unit = Unit { path: B256::from_slice(&path), name, kind: UnitKind::Chunks };
        load.push(sink, unit, subtree)?;
    }
    Ok((facts, load.finish(sink)?))
}

/// Builds the tree of headers.
fn load_headers(
    hash: TreeHash,
    sink: &mut dyn BulkSink,
    records: &mut dyn BulkSorter,
    facts: &NewCodes,
) -> Result<ZoneSubtree, StateError> {
    let place = TreePlace::zone(HEADER_ZONE);
    let units = Headers { hash, view: &NoRows, codes: facts };
    let mut load = TreeLoad::new(hash, &place, &units);
    let mut last: Option<(B256, AccountKey, Account)> = None;
    let mut put = |sink: &mut dyn BulkSink,
                   (path, owner, account): (B256, AccountKey, Account),
                   slots: Vec<(u8, B256)>| {
        let stem = Stem::short(HEADER_ZONE, &path);
        let code = match account.code_hash {
            KECCAK256_EMPTY => None,
            code => Some(*facts.get(&code).ok_or_else(|| no_code(&code))?),
        };
        let leaves = header_leaves(hash, &stem, &owner, &account, &code.unwrap_or_default())?;
        let mut row = StemRow { code, leaves: StemLeaves::new(slots) };
        let is_plain = code.is_none() && row.leaves.count() == 0;
        if !is_plain {
            let mut put = |key: &[u8], row: &[u8]| sink.put_unordered(STEMS, key, row);
            row = row.rows(hash, &header_row(&owner), &stem, &mut put)?;
        }
        let kind = if is_plain { UnitKind::PlainHeader } else { UnitKind::Stem };
        let unit = Unit { path, name: UnitName::Account(owner), kind };
        match row.leaves.subtree(hash, &stem, leaves) {
            Some(subtree) => load.push(sink, unit, subtree),
            None => Ok(()),
        }
    };
    for record in records.sorted()? {
        let (key, record) = record?;
        let mut reader = WireReader::new(&record);
        let owner = read_owner(&mut reader).map_err(lost)?;
        let path = B256::from_slice(key.get(..32).unwrap_or(&[0; 32]));
        if key.last() == Some(&ACCOUNT) {
            if let Some(last) = last.replace((path, owner, decode_account(&owner, reader.rest())?))
            {
                put(sink, last, Vec::new())?;
            }
            continue;
        }
        let slots = read_leaves(reader).map_err(lost)?;
        match last.take() {
            Some(account) if account.0 == path => put(sink, account, slots)?,
            other => {
                if let Some(other) = other {
                    put(sink, other, Vec::new())?;
                }
                return Err(no_account(&owner));
            }
        }
    }
    if let Some(last) = last {
        put(sink, last, Vec::new())?;
    }
    load.finish(sink)
}

fn no_account(owner: &AccountKey) -> StateError {
    StateError::corrupt(
        flat::TABLE.name,
        format!("{owner} has slots, but there is no such account"),
    )
}

/// Builds the storages of all accounts, and the tree of them.
fn load_storages(
    hash: TreeHash,
    sink: &mut dyn BulkSink,
    records: &mut dyn BulkSorter,
) -> Result<ZoneSubtree, StateError> {
    let mut owners = sink.sorter();
    {
        let mut records = records.sorted()?.peekable();
        while let Some(first) = records.peek() {
            let (key, record) = match first {
                Ok(first) => first,
                Err(_) => match records.next() {
                    Some(Err(error)) => return Err(error),
                    _ => break,
                },
            };
            let owner = read_owner(&mut WireReader::new(record)).map_err(lost)?;
            let path = B256::from_slice(key.get(..32).unwrap_or(&[0; 32]));
            let place = TreePlace::storage(&owner, &path);
            let units = SlotGroups { hash, view: &NoRows, owner: &owner, path: &path };
            let mut load = TreeLoad::new(hash, &place, &units);
            while let Some(record) = records.next_if(|record| {
                record.as_ref().map_or(true, |(key, _)| key.starts_with(&path[..]))
            }) {
                let (key, record) = record?;
                let mut reader = WireReader::new(&record);
                read_owner(&mut reader).map_err(lost)?;
                let group = reader.hash().map_err(lost)?;
                let leaves = StemLeaves::new(read_leaves(reader).map_err(lost)?);
                let group_path = B256::from_slice(key.get(32..).unwrap_or(&[0; 32]));
                let stem = Stem::storage(&path, &group_path);
                let mut row = StemRow { code: None, leaves };
                let kind = match row.leaves.only() {
                    Some((sub, _)) => UnitKind::Single(sub),
                    None => {
                        let key = slots_row(&owner, &group);
                        let mut put = |key: &[u8], row: &[u8]| sink.put_unordered(STEMS, key, row);
                        row = row.rows(hash, &key, &stem, &mut put)?;
                        UnitKind::Stem
                    }
                };
                let Some(subtree) = row.leaves.subtree(hash, &stem, None) else { continue };
                let unit = Unit { path: group_path, name: UnitName::Slots(group), kind };
                load.push(sink, unit, subtree)?;
            }
            if let Some(subtree) = load.finish(sink)? {
                owners.put(&path[..], &encode_storage(&owner, &subtree))?;
            }
        }
    }
    let place = TreePlace::zone(STORAGE_ZONE);
    let units = Storages { hash, view: &NoRows, loaded: &NoRows };
    let mut load = TreeLoad::new(hash, &place, &units);
    for record in owners.sorted()? {
        let (path, record) = record?;
        let mut reader = WireReader::new(&record);
        let (owner, subtree) = read_storage(&mut reader).map_err(lost)?;
        let name = UnitName::Account(owner);
        let unit = Unit { path: B256::from_slice(&path), name, kind: UnitKind::Storage };
        load.push(sink, unit, subtree)?;
    }
    load.finish(sink)
}

/// A record of a storage: the account, and the subtree.
fn encode_storage(owner: &AccountKey, subtree: &Subtree) -> Vec<u8> {
    let mut out = vec![owner.len() as u8];
    out.extend_from_slice(owner);
    match subtree {
        Subtree::Leaf(leaf) => out.extend_from_slice(&leaf[..]),
        Subtree::Branch { split, key, left, right } => {
            out.extend_from_slice(&left[..]);
            out.extend_from_slice(&right[..]);
            out.extend_from_slice(&split.to_be_bytes());
            out.extend_from_slice(key);
        }
    }
    out
}

/// Reads [`encode_storage`]'s bytes.
fn read_storage(reader: &mut WireReader<'_>) -> Result<(AccountKey, Subtree), WireError> {
    let owner = read_owner(reader)?;
    let first = reader.hash()?;
    if reader.is_empty() {
        return Ok((owner, Subtree::Leaf(first)));
    }
    let right = reader.hash()?;
    let split = usize::from(reader.u16()?);
    let key = reader.array::<{ crate::hash::MAX_KEY_LEN }>()?;
    Ok((owner, Subtree::branch(key, split, first, right)))
}

/// A tree that is built from units in order, and whose rows go to a sink.
struct TreeLoad<'a, U> {
    place: &'a TreePlace,
    tree: Tree<'a, U>,
    builder: PageBuilder<'a, U>,
    rows: Vec<RowChange>,
}

impl<'a, U: TreeUnits> TreeLoad<'a, U> {
    fn new(hash: TreeHash, place: &'a TreePlace, units: &'a U) -> Self {
        let tree = Tree { hash, place, view: &NoRows, loaded: &NoRows, units };
        Self { place, tree, builder: PageBuilder::new(tree, 0), rows: Vec::new() }
    }

    fn push(
        &mut self,
        sink: &mut dyn BulkSink,
        unit: Unit,
        subtree: Subtree,
    ) -> Result<(), StateError> {
        self.builder.push(HungExit::unit(unit, subtree), &mut self.rows)?;
        self.write(sink)
    }

    fn write(&mut self, sink: &mut dyn BulkSink) -> Result<(), StateError> {
        self.rows.drain(..).try_for_each(|row| match &row.next {
            Some(next) => sink.put_unordered(row.table, &row.key, next),
            None => Ok(()),
        })
    }

    fn finish(mut self, sink: &mut dyn BulkSink) -> Result<ZoneSubtree, StateError> {
        let built = std::mem::replace(&mut self.builder, PageBuilder::new(self.tree, 0));
        let root = built.finish(&mut self.rows)?;
        self.write(sink)?;
        let Some(HungExit { exit, subtree: Some(subtree) }) = root else { return Ok(None) };
        let exit = rooted(exit, &subtree);
        sink.put_unordered(
            self.place.table,
            &self.place.root_row(),
            &TreePlace::encode_root(&exit),
        )?;
        Ok(Some(subtree))
    }
}

/// A load reads no rows: all that it joins is new.
struct NoRows;

impl NodeRead for NoRows {
    fn get(&self, _: RowTable, _: &[u8]) -> Result<Option<alloy_primitives::Bytes>, StateError> {
        Ok(None)
    }

    fn scan<'a>(
        &'a self,
        _: RowTable,
        _: KeyRange<'_>,
        _: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        Ok(Box::new(std::iter::empty()))
    }
}

impl LoadedPages for NoRows {
    fn get(&self, _: &TreePlace, _: &PagePath) -> Option<Arc<Page>> {
        None
    }
}
