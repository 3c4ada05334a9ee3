//! A block: storages in parallel, codes, then the three zones.

use crate::{
    code::{CODES, CodeRow},
    hash::{Subtree, TreeHash},
    key::{SlotPlace, account_path, account_word, group_path},
    page::{Exit, TreePlace, UnitName, chunks_path},
    row::{self, RowChange},
    state::{PbtState, join_zones},
    tree::{Tree, TreeUnits},
    units::{
        ChunkGroups, HeaderItem, Headers, NewCodes, SlotGroups, SlotsItem, Storages, SubtreeItem,
        decode_account, decode_slot, no_code, zones,
    },
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use rayon::prelude::*;
use retrie_state::{
    AccountKey, ApplyOutput, BackendChange, BackendDelta, BackendKey, NodeRead, NodeWrite,
    StateError, flat,
};
use std::collections::BTreeMap;

/// What a block changes of one account.
struct TouchedAccount<'a> {
    path: B256,
    owner: AccountKey,
    account: Option<&'a BackendChange>,
    slots: &'a [BackendChange],
}

/// The changed storage of an account.
struct ChangedStorage {
    path: B256,
    owner: AccountKey,
    next: Option<(Exit, Subtree)>,
    rows: Vec<RowChange>,
}

/// Applies a block's delta, and returns the root and the state after it.
pub(crate) fn apply(
    hash: TreeHash,
    number: u64,
    view: &mut dyn NodeWrite,
    parent: &PbtState,
    delta: &BackendDelta,
) -> Result<ApplyOutput<PbtState>, StateError> {
    flat::apply(view, delta)?;
    let read = view.as_read();
    let touched = by_account(hash, delta);

    let done = touched
        .par_iter()
        .with_min_len(4)
        .map(|touched| touched.split(hash, read, parent))
        .collect::<Result<Vec<_>, _>>()?;
    let mut headers = Vec::with_capacity(done.len());
    let mut changed = Vec::new();
    for (header, storage) in done {
        headers.extend(header);
        changed.extend(storage);
    }
    headers.sort_unstable_by_key(|item| item.path);
    changed.sort_unstable_by_key(|storage| storage.path);

    let mut rows = Vec::new();
    let (codes, chunks) = update_codes(hash, read, delta, &mut rows)?;
    let storages: Vec<_> = changed
        .iter()
        .map(|storage| SubtreeItem {
            path: storage.path,
            name: UnitName::Account(storage.owner),
            subtree: storage.next.as_ref().map(|(_, subtree)| *subtree),
        })
        .collect();

    let places = zones();
    let zone = ZoneUpdate { hash, view: read, parent, places: &places };
    let [before_headers, before_codes, before_storages] = parent.zones();
    let ((after_headers, after_codes), after_storages) = rayon::join(
        || {
            let units = Headers { hash, view: read, codes: &codes };
            let headers = zone.update(0, before_headers, &units, &headers);
            let units = ChunkGroups { hash, view: read };
            (headers, zone.update(1, before_codes, &units, &chunks))
        },
        || {
            let units = StoragesAfter { changed: &changed, before: zone };
            zone.update(2, before_storages, &units, &storages)
        },
    );
    let after = [after_headers?, after_codes?, after_storages?];
    let mut subtrees = [None; 3];
    let mut roots: [Option<Exit>; 3] = Default::default();
    for (at, UpdatedZone { root, subtree, rows: mut more }) in after.into_iter().enumerate() {
        rows.append(&mut more);
        subtrees[at] = subtree;
        roots[at] = root;
    }
    let root = join_zones(hash, subtrees);

    row::write(view, rows)?;
    let mut storages = Vec::with_capacity(changed.len());
    for ChangedStorage { owner, next, rows, .. } in changed {
        row::write(view, rows)?;
        storages.push((owner, next.map(|(root, _)| root)));
    }
    Ok(ApplyOutput { root, cache: parent.child(number, roots, storages) })
}

/// What is needed to update the tree of a zone.
#[derive(Clone, Copy)]
struct ZoneUpdate<'a> {
    hash: TreeHash,
    view: &'a dyn NodeRead,
    parent: &'a PbtState,
    places: &'a [TreePlace; 3],
}

struct UpdatedZone {
    root: Option<Exit>,
    subtree: Option<Subtree>,
    rows: Vec<RowChange>,
}

impl ZoneUpdate<'_> {
    fn update<U: TreeUnits>(
        &self,
        zone: usize,
        before: &Option<Exit>,
        units: &U,
        items: &[U::Item],
    ) -> Result<UpdatedZone, StateError> {
        let tree = Tree {
            hash: self.hash,
            place: &self.places[zone],
            view: self.view,
            loaded: self.parent.ahead(),
            units,
        };
        let mut rows = Vec::new();
        match tree.update(before.as_ref(), items, &mut rows)? {
            Some(next) => {
                let (root, subtree) = next.unzip();
                Ok(UpdatedZone { root, subtree, rows })
            }
            None => {
                let subtree = before.as_ref().map(|root| tree.subtree(root)).transpose()?;
                Ok(UpdatedZone { root: before.clone(), subtree, rows })
            }
        }
    }
}

/// The storages of a block: rows of changed ones are not written yet, but nothing asks for them.
struct StoragesAfter<'a> {
    changed: &'a [ChangedStorage],
    before: ZoneUpdate<'a>,
}

impl TreeUnits for StoragesAfter<'_> {
    type Item = SubtreeItem;

    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256 {
        &item.path
    }

    fn resolve(
        &self,
        item: &Self::Item,
        old: Option<&crate::page::Unit>,
        old_hash: &B256,
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<(crate::page::Unit, Subtree)>, StateError> {
        self.units().resolve(item, old, old_hash, rows)
    }

    fn subtree(&self, unit: &crate::page::Unit) -> Result<Subtree, StateError> {
        let at = self.changed.binary_search_by_key(&unit.path, |storage| storage.path);
        match at.ok().and_then(|at| self.changed.get(at)) {
            Some(ChangedStorage { next: Some((_, subtree)), .. }) => Ok(*subtree),
            _ => self.units().subtree(unit),
        }
    }
}

impl StoragesAfter<'_> {
    fn units(&self) -> Storages<'_> {
        let ZoneUpdate { hash, view, parent, .. } = self.before;
        Storages { hash, view, loaded: parent.ahead() }
    }
}

/// The changes by account; keys of accounts come before keys of slots in a delta.
fn by_account(hash: TreeHash, delta: &BackendDelta) -> Vec<TouchedAccount<'_>> {
    let changes = delta.changes();
    let slots = changes.partition_point(|change| matches!(change.key, BackendKey::Account(_)));
    let (accounts, slots) = changes.split_at(slots);
    let mut accounts = accounts.iter().peekable();
    let mut touched = Vec::with_capacity(accounts.len());
    let none: &[BackendChange] = &[];
    for slots in slots.chunk_by(|a, b| a.key.account() == b.key.account()) {
        let Some(owner) = slots.first().map(|slot| *slot.key.account()) else { continue };
        while let Some(account) = accounts.next_if(|change| *change.key.account() < owner) {
            touched.push((*account.key.account(), Some(account), none));
        }
        let account = accounts.next_if(|change| *change.key.account() == owner);
        touched.push((owner, account, slots));
    }
    touched.extend(accounts.map(|account| (*account.key.account(), Some(account), none)));
    let touched = touched.into_par_iter().with_min_len(64);
    let with_path = |(owner, account, slots)| {
        let path = account_path(hash, &owner);
        TouchedAccount { path, owner, account, slots }
    };
    touched.map(with_path).collect()
}

impl<'a> TouchedAccount<'a> {
    /// The change of the header, and the changed storage.
    fn split(
        &self,
        hash: TreeHash,
        view: &dyn NodeRead,
        parent: &PbtState,
    ) -> Result<(Option<HeaderItem<'a>>, Option<ChangedStorage>), StateError> {
        let word = account_word(&self.owner);
        let mut header = Vec::new();
        let mut groups: Vec<SlotsItem> = Vec::new();
        for change in self.slots {
            let BackendKey::Slot(_, slot) = &change.key else { continue };
            let value = change.next.as_ref().map(|value| decode_slot(&change.key, value));
            let value = value.transpose()?;
            match SlotPlace::of(slot) {
                SlotPlace::Header(sub) => header.push((sub, value)),
                SlotPlace::Storage { group, sub } => match groups.last_mut() {
                    Some(last) if last.group == group => last.slots.push((sub, value)),
                    _ => {
                        let path = group_path(hash, &word, &group);
                        groups.push(SlotsItem { path, group, slots: vec![(sub, value)] });
                    }
                },
            }
        }
        let is_header_changed = self.account.is_some() || !header.is_empty();
        let item = is_header_changed.then_some(HeaderItem {
            path: self.path,
            owner: self.owner,
            account: self.account,
            slots: header,
        });
        if groups.is_empty() {
            return Ok((item, None));
        }
        groups.sort_unstable_by_key(|group| group.path);
        let is_deleted = match self.account {
            Some(account) => account.next.is_none(),
            None => flat::get(view, &BackendKey::Account(self.owner))?.is_none(),
        };
        if is_deleted && let Some(slot) = self.slots.iter().find(|slot| slot.next.is_some()) {
            return Err(StateError::corrupt(
                flat::TABLE.name,
                format!("{} has a value, but there is no such account", slot.key),
            ));
        }
        let place = TreePlace::storage(&self.owner, &self.path);
        let before = parent.storage(hash, view, &place, &self.owner)?;
        let units = SlotGroups { hash, view, owner: &self.owner, path: &self.path };
        let tree = Tree { hash, place: &place, view, loaded: parent.ahead(), units: &units };
        let mut rows = Vec::new();
        let changed = tree.update(before.as_ref(), &groups, &mut rows)?;
        let storage =
            changed.map(|next| ChangedStorage { path: self.path, owner: self.owner, next, rows });
        Ok((item, storage))
    }
}

/// Counts the accounts of each code, and returns the facts of codes that accounts have now, and the
/// groups of chunks that come and go.
fn update_codes(
    hash: TreeHash,
    view: &dyn NodeRead,
    delta: &BackendDelta,
    rows: &mut Vec<RowChange>,
) -> Result<(NewCodes, Vec<SubtreeItem>), StateError> {
    let mut counts: BTreeMap<B256, i64> = BTreeMap::new();
    for change in delta.changes() {
        let BackendKey::Account(owner) = &change.key else { break };
        let code = |value: &Option<retrie_state::StateValue>| {
            let account = value.as_ref().map(|value| decode_account(owner, value)).transpose()?;
            let code = account.map(|account| account.code_hash);
            Ok::<_, StateError>(code.filter(|code| *code != KECCAK256_EMPTY))
        };
        let (before, after) = (code(&change.previous)?, code(&change.next)?);
        if before != after {
            if let Some(code) = before {
                *counts.entry(code).or_default() -= 1;
            }
            if let Some(code) = after {
                *counts.entry(code).or_default() += 1;
            }
        }
    }
    let done = counts
        .into_par_iter()
        .map(|(code, more)| update_code(hash, view, delta, code, more))
        .collect::<Result<Vec<_>, _>>()?;
    let mut facts = NewCodes::new();
    let mut items = Vec::new();
    for UpdatedCode { code, row, change, mut groups } in done {
        facts.insert(code, row.facts);
        rows.extend(change);
        items.append(&mut groups);
    }
    items.sort_unstable_by_key(|item| item.path);
    Ok((facts, items))
}

struct UpdatedCode {
    code: B256,
    row: CodeRow,
    change: Option<RowChange>,
    groups: Vec<SubtreeItem>,
}

/// Changes the number of accounts that have a code.
fn update_code(
    hash: TreeHash,
    view: &dyn NodeRead,
    delta: &BackendDelta,
    code: B256,
    more: i64,
) -> Result<UpdatedCode, StateError> {
    let before = CodeRow::load(hash, view, &code)?;
    let (accounts, previous, row) = match before {
        Some((row, bytes)) => (row.accounts, Some(bytes), row),
        None => {
            let bytes = delta.code(&code).ok_or_else(|| no_code(&code))?;
            let row = CodeRow::new(hash, &code, bytes).ok_or_else(|| {
                StateError::corrupt(CODES.name, format!("code {code} is longer than 4 GiB"))
            })?;
            (0, None, row)
        }
    };
    let after = accounts.checked_add_signed(more).ok_or_else(|| {
        StateError::corrupt(
            CODES.name,
            format!("{accounts} accounts have code {code}, and a block takes {} away", -more),
        )
    })?;
    let row = CodeRow { accounts: after, ..row };
    let mut groups = Vec::new();
    if (accounts == 0) != (after == 0) {
        for (group, subtree) in row.groups.iter().enumerate().filter(|(_, group)| group.is_some()) {
            let group = group as u32;
            groups.push(SubtreeItem {
                path: chunks_path(hash, &code, group),
                name: UnitName::Chunks(code, group),
                subtree: subtree.filter(|_| after > 0),
            });
        }
    }
    let next = (after > 0).then(|| row.encode());
    let is_changed = accounts != after;
    let change = is_changed.then(|| RowChange { table: CODES, key: code.to_vec(), previous, next });
    Ok(UpdatedCode { code, row, change, groups })
}
