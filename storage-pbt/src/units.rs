//! The units of each tree: headers, groups of slots, storages, groups of code chunks.

use crate::{
    code::CodeRow,
    hash::{Subtree, TreeHash, sweep},
    key::{CODE_ZONE, HEADER_ZONE, STORAGE_ZONE, Stem},
    leaf::{CodeFacts, account_leaves},
    page::{TreePlace, Unit, UnitKind, UnitName},
    row::RowChange,
    stem::{StemLeaves, StemRow},
    tree::{LoadedPages, Tree, TreeUnits},
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_state::{Account, AccountKey, BackendChange, BackendKey, NodeRead, StateError, flat};
use std::collections::HashMap;

/// The facts of codes that a block brings.
pub(crate) type NewCodes = HashMap<B256, CodeFacts>;

/// A changed header.
pub(crate) struct HeaderItem<'a> {
    pub(crate) path: B256,
    pub(crate) owner: AccountKey,
    pub(crate) account: Option<&'a BackendChange>,
    /// Changed slots in the header: sub-index, and value.
    pub(crate) slots: Vec<(u8, Option<B256>)>,
}

/// Headers of accounts.
pub(crate) struct Headers<'a> {
    pub(crate) hash: TreeHash,
    /// Shows the flat state after the block.
    pub(crate) view: &'a dyn NodeRead,
    pub(crate) codes: &'a NewCodes,
}

/// The account in a value.
pub(crate) fn decode_account(owner: &AccountKey, value: &[u8]) -> Result<Account, StateError> {
    Account::decode(value).ok_or_else(|| {
        StateError::corrupt(flat::TABLE.name, format!("account {owner}: not an account's encoding"))
    })
}

/// The number in a slot's value, as a leaf.
pub(crate) fn decode_slot(key: &BackendKey, value: &[u8]) -> Result<B256, StateError> {
    let number = retrie_state::decode_slot(value).ok_or_else(|| {
        StateError::corrupt(flat::TABLE.name, format!("{key}: not a slot's encoding"))
    })?;
    Ok(B256::from(number))
}

/// The leaves 0, 1 and 2 of an account's header, hashed.
pub(crate) fn header_leaves(
    hash: TreeHash,
    stem: &Stem,
    owner: &AccountKey,
    account: &Account,
    code: &CodeFacts,
) -> Result<Vec<(u8, B256)>, StateError> {
    let mut leaves = account_leaves(account, code).ok_or_else(|| {
        StateError::corrupt(
            flat::TABLE.name,
            format!("account {owner}: a balance of more than 128 bits has no place in the tree"),
        )
    })?;
    for (sub, value) in &mut leaves {
        *value = stem.leaf(hash, *sub, value);
    }
    Ok(leaves)
}

/// The subtree of a plain header.
pub(crate) fn plain_header(hash: TreeHash, stem: &Stem, leaves: &[(u8, B256)]) -> Option<Subtree> {
    let leaves = leaves.iter().map(|(sub, leaf)| {
        let (key, len) = stem.key(*sub);
        (key[..len].to_vec(), *leaf)
    });
    sweep(hash, leaves)
}

impl Headers<'_> {
    /// The account, which must be there.
    fn account(&self, owner: &AccountKey) -> Result<Account, StateError> {
        let value = flat::get(self.view, &BackendKey::Account(*owner))?;
        let value = value.ok_or_else(|| {
            StateError::corrupt(flat::TABLE.name, format!("account {owner} is missing"))
        })?;
        decode_account(owner, &value)
    }
}

/// The key of a header's row.
pub(crate) fn header_row(owner: &AccountKey) -> Vec<u8> {
    owner.to_vec()
}

/// The key of the row of a group of slots.
pub(crate) fn slots_row(owner: &AccountKey, group: &B256) -> Vec<u8> {
    [&owner[..], &group[1..]].concat()
}

impl<'d> TreeUnits for Headers<'d> {
    type Item = HeaderItem<'d>;

    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256 {
        &item.path
    }

    fn resolve(
        &self,
        item: &Self::Item,
        old: Option<&Unit>,
        _: &B256,
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<(Unit, Subtree)>, StateError> {
        let HeaderItem { path, owner, account: change, slots } = item;
        let account = match change {
            Some(change) => {
                change.next.as_ref().map(|value| decode_account(owner, value)).transpose()?
            }
            None => flat::get(self.view, &BackendKey::Account(*owner))?
                .map(|value| decode_account(owner, &value))
                .transpose()?,
        };
        if account.is_none()
            && let Some((sub, _)) = slots.iter().find(|(_, value)| value.is_some())
        {
            return Err(orphan(owner, *sub));
        }
        let stem = Stem::short(HEADER_ZONE, path);
        let row_key = header_row(owner);
        let had_row = old.is_some_and(|unit| unit.kind == UnitKind::Stem);
        let has_code = |account: &Account| account.code_hash != KECCAK256_EMPTY;
        let unit = |kind| Unit { path: *path, name: UnitName::Account(*owner), kind };
        if let Some(account) = &account
            && !had_row
            && slots.is_empty()
            && !has_code(account)
        {
            let leaves = header_leaves(self.hash, &stem, owner, account, &CodeFacts::default())?;
            let subtree = plain_header(self.hash, &stem, &leaves);
            return Ok(subtree.map(|subtree| (unit(UnitKind::PlainHeader), subtree)));
        }
        let (mut row, bytes) = match had_row {
            true => {
                let (row, bytes) = StemRow::load(self.view, &row_key, &stem)?;
                (row, Some(bytes))
            }
            false => (StemRow::default(), None),
        };
        let previous_code = match change.and_then(|change| change.previous.as_ref()) {
            Some(previous) => Some(decode_account(owner, previous)?.code_hash),
            None => None,
        };
        row.code = match &account {
            Some(account) if has_code(account) => {
                let same = previous_code == Some(account.code_hash) || change.is_none();
                let known = if same { row.code } else { None };
                Some(match known {
                    Some(code) => code,
                    None => self.code(&account.code_hash)?,
                })
            }
            _ => None,
        };
        let code = row.code.unwrap_or_default();
        let changes: Vec<_> = slots
            .iter()
            .map(|(sub, value)| {
                (*sub, value.as_ref().map(|value| stem.leaf(self.hash, *sub, value)))
            })
            .collect();
        let keeps = |row: &StemRow| row.code.is_some() || row.leaves.count() > 0;
        let row =
            row.update(self.hash, self.view, &row_key, &stem, bytes, &changes, keeps, rows)?;
        let Some(account) = account else {
            // All slots of an account that is gone are gone as well.
            if keeps(&row) {
                return Err(StateError::corrupt(
                    flat::TABLE.name,
                    format!("account {owner} is deleted, and some of its slots are not"),
                ));
            }
            return Ok(None);
        };
        let kind = if keeps(&row) { UnitKind::Stem } else { UnitKind::PlainHeader };
        let leaves = header_leaves(self.hash, &stem, owner, &account, &code)?;
        let subtree = row.leaves.subtree(self.hash, &stem, leaves);
        Ok(subtree.map(|subtree| (unit(kind), subtree)))
    }

    fn subtree(&self, unit: &Unit) -> Result<Subtree, StateError> {
        let UnitName::Account(owner) = &unit.name else { return Err(misplaced(unit)) };
        let stem = Stem::short(HEADER_ZONE, &unit.path);
        let account = self.account(owner)?;
        let row = match unit.kind {
            UnitKind::Stem => StemRow::load(self.view, &header_row(owner), &stem)?.0,
            _ => StemRow::default(),
        };
        let code = row.code.unwrap_or_default();
        let leaves = header_leaves(self.hash, &stem, owner, &account, &code)?;
        row.leaves.subtree(self.hash, &stem, leaves).ok_or_else(|| misplaced(unit))
    }
}

impl Headers<'_> {
    /// The facts of a code that an account has from now on.
    fn code(&self, hash: &B256) -> Result<CodeFacts, StateError> {
        if let Some(facts) = self.codes.get(hash) {
            return Ok(*facts);
        }
        match CodeRow::load(self.hash, self.view, hash)? {
            Some((row, _)) => Ok(row.facts),
            None => Err(no_code(hash)),
        }
    }
}

/// A changed group of slots.
pub(crate) struct SlotsItem {
    pub(crate) path: B256,
    pub(crate) group: B256,
    pub(crate) slots: Vec<(u8, Option<B256>)>,
}

/// The groups of slots of one account.
pub(crate) struct SlotGroups<'a> {
    pub(crate) hash: TreeHash,
    pub(crate) view: &'a dyn NodeRead,
    pub(crate) owner: &'a AccountKey,
    /// The path of the account.
    pub(crate) path: &'a B256,
}

impl TreeUnits for SlotGroups<'_> {
    type Item = SlotsItem;

    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256 {
        &item.path
    }

    fn resolve(
        &self,
        item: &Self::Item,
        old: Option<&Unit>,
        old_hash: &B256,
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<(Unit, Subtree)>, StateError> {
        let stem = Stem::storage(self.path, &item.path);
        let unit = |kind| Unit { path: item.path, name: UnitName::Slots(item.group), kind };
        // Most groups have one slot.
        if let [(sub, Some(value))] = &item.slots[..]
            && old.is_none_or(|old| old.kind == UnitKind::Single(*sub))
        {
            let leaf = stem.leaf(self.hash, *sub, value);
            return Ok(Some((unit(UnitKind::Single(*sub)), Subtree::Leaf(leaf))));
        }
        let row_key = slots_row(self.owner, &item.group);
        let changes: Vec<_> = item
            .slots
            .iter()
            .map(|(sub, value)| {
                (*sub, value.as_ref().map(|value| stem.leaf(self.hash, *sub, value)))
            })
            .collect();
        let (row, bytes) = match old.map(|unit| unit.kind) {
            Some(UnitKind::Single(sub)) => {
                (StemRow { code: None, leaves: StemLeaves::single(sub, *old_hash) }, None)
            }
            Some(_) => {
                let (row, bytes) = StemRow::load(self.view, &row_key, &stem)?;
                (row, Some(bytes))
            }
            None => (StemRow::default(), None),
        };
        let keeps = |row: &StemRow| row.leaves.count() > 1;
        let row =
            row.update(self.hash, self.view, &row_key, &stem, bytes, &changes, keeps, rows)?;
        let Some(subtree) = row.leaves.subtree(self.hash, &stem, None) else { return Ok(None) };
        let kind = match row.leaves.only() {
            Some((sub, _)) => UnitKind::Single(sub),
            None => UnitKind::Stem,
        };
        Ok(Some((unit(kind), subtree)))
    }

    fn subtree(&self, unit: &Unit) -> Result<Subtree, StateError> {
        let UnitName::Slots(group) = &unit.name else { return Err(misplaced(unit)) };
        let stem = Stem::storage(self.path, &unit.path);
        let (row, _) = StemRow::load(self.view, &slots_row(self.owner, group), &stem)?;
        row.leaves.subtree(self.hash, &stem, None).ok_or_else(|| misplaced(unit))
    }
}

/// An account whose storage has changed, or a group of chunks that comes or goes.
pub(crate) struct SubtreeItem {
    pub(crate) path: B256,
    pub(crate) name: UnitName,
    pub(crate) subtree: Option<Subtree>,
}

impl SubtreeItem {
    fn resolve(&self, kind: UnitKind) -> Option<(Unit, Subtree)> {
        let subtree = self.subtree?;
        Some((Unit { path: self.path, name: self.name, kind }, subtree))
    }
}

/// The accounts that have slots outside of their headers.
pub(crate) struct Storages<'a> {
    pub(crate) hash: TreeHash,
    pub(crate) view: &'a dyn NodeRead,
    pub(crate) loaded: &'a dyn LoadedPages,
}

impl TreeUnits for Storages<'_> {
    type Item = SubtreeItem;

    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256 {
        &item.path
    }

    fn resolve(
        &self,
        item: &Self::Item,
        _: Option<&Unit>,
        _: &B256,
        _: &mut Vec<RowChange>,
    ) -> Result<Option<(Unit, Subtree)>, StateError> {
        Ok(item.resolve(UnitKind::Storage))
    }

    fn subtree(&self, unit: &Unit) -> Result<Subtree, StateError> {
        let UnitName::Account(owner) = &unit.name else { return Err(misplaced(unit)) };
        let place = TreePlace::storage(owner, &unit.path);
        let Self { hash, view, loaded } = *self;
        let units = SlotGroups { hash, view, owner, path: &unit.path };
        let tree = Tree { hash, place: &place, view, loaded, units: &units };
        let root = place.load_root(hash, view)?.ok_or_else(|| misplaced(unit))?;
        tree.subtree(&root)
    }
}

/// The groups of chunks of all codes.
pub(crate) struct ChunkGroups<'a> {
    pub(crate) hash: TreeHash,
    pub(crate) view: &'a dyn NodeRead,
}

impl TreeUnits for ChunkGroups<'_> {
    type Item = SubtreeItem;

    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256 {
        &item.path
    }

    fn resolve(
        &self,
        item: &Self::Item,
        _: Option<&Unit>,
        _: &B256,
        _: &mut Vec<RowChange>,
    ) -> Result<Option<(Unit, Subtree)>, StateError> {
        Ok(item.resolve(UnitKind::Chunks))
    }

    fn subtree(&self, unit: &Unit) -> Result<Subtree, StateError> {
        let UnitName::Chunks(code, group) = &unit.name else { return Err(misplaced(unit)) };
        let row = CodeRow::load(self.hash, self.view, code)?;
        let group = row.and_then(|(row, _)| row.groups.get(*group as usize).copied().flatten());
        group.ok_or_else(|| misplaced(unit))
    }
}

/// The place of each zone's tree.
pub(crate) fn zones() -> [TreePlace; 3] {
    [HEADER_ZONE, CODE_ZONE, STORAGE_ZONE].map(TreePlace::zone)
}

fn misplaced(unit: &Unit) -> StateError {
    StateError::corrupt(
        crate::page::NODES.name,
        format!("unit {}: nothing is behind it", unit.path),
    )
}

fn orphan(owner: &AccountKey, sub: u8) -> StateError {
    StateError::corrupt(
        flat::TABLE.name,
        format!("the slot at sub-index {sub} of {owner} has a value, but there is no such account"),
    )
}

/// No one has given the code.
pub(crate) fn no_code(hash: &B256) -> StateError {
    StateError::corrupt(
        crate::code::CODES.name,
        format!("code {hash} is not known: the block that deploys it did not bring it"),
    )
}
