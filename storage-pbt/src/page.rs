//! Pages: the branches of four levels of the tree, as one row.
//!
//! All branches whose split is within the same nibble of the path, below the same path, are a page. A
//! page has up to 16 *exits*, one for each value of this nibble: a unit, or a deeper page. The
//! branches of the page follow from which exits there are, so a row holds the exits alone, and the
//! hashes of the branches between are computed when they are needed.

use crate::{
    hash::{Subtree, TreeHash},
    row::RowChange,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, NodeRead, RowTable, StateError,
    wire::{WireError, WireReader},
};
use std::sync::{Arc, OnceLock};

/// Number of nibbles of a path.
const NIBBLES: u8 = 64;

/// The nibble `at` of a path.
pub(crate) fn nibble(path: &B256, at: u8) -> usize {
    let byte = path[usize::from(at / 2)];
    usize::from(if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 })
}

/// How many nibbles two paths have in common at the front.
pub(crate) fn common_nibbles(a: &B256, b: &B256) -> u8 {
    (crate::hash::common_bits(&a[..], &b[..]) / 4) as u8
}

/// The front of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PagePath {
    /// The nibbles; those behind `len` are zero.
    pub(crate) bits: B256,
    /// Their number.
    pub(crate) len: u8,
}

impl PagePath {
    /// The first `len` nibbles of `path`.
    pub(crate) fn of(path: &B256, len: u8) -> Self {
        let mut bits = B256::ZERO;
        let whole = usize::from(len / 2);
        bits[..whole].copy_from_slice(&path[..whole]);
        if !len.is_multiple_of(2) {
            bits[whole] = path[whole] & 0xf0;
        }
        Self { bits, len }
    }

    /// Whether `path` begins with it.
    pub(crate) fn leads_to(&self, path: &B256) -> bool {
        common_nibbles(&self.bits, path) >= self.len
    }

    /// The path of an exit of the page that has this path.
    fn exit(&self, exit: usize) -> B256 {
        let mut bits = self.bits;
        let half = if self.len.is_multiple_of(2) { exit << 4 } else { exit };
        bits[usize::from(self.len / 2)] |= half as u8;
        bits
    }
}

/// What a path of 32 bytes leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The path.
    pub(crate) path: B256,
    /// What the path is the hash of.
    pub(crate) name: UnitName,
    /// What is there.
    pub(crate) kind: UnitKind,
}

/// What the path of a unit is the hash of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitName {
    /// The name of an account.
    Account(AccountKey),
    /// A group of slots, of the account whose storage this is.
    Slots(B256),
    /// A group of chunks of a code.
    Chunks(B256, u32),
}

/// What is at a unit's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitKind {
    /// A header of leaves that follow from the account alone; it has no row.
    PlainHeader,
    /// A stem that has a row.
    Stem,
    /// The only leaf of a stem, at this sub-index; it has no row.
    Single(u8),
    /// The storage of an account: another tree.
    Storage,
    /// A group of chunks.
    Chunks,
}

/// What hangs at a nibble of a page, or at the root.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    /// The hash, for a branch above that splits in the bit before `from`.
    pub(crate) hash: B256,
    /// Number of that bit in the whole key, plus one; [`UNKNOWN`] if `hash` is none.
    pub(crate) from: u16,
    pub(crate) target: ExitTarget,
}

/// The hash of an exit is not known.
pub(crate) const UNKNOWN: u16 = u16::MAX;

#[derive(Clone, Debug)]
pub(crate) enum ExitTarget {
    Unit(Arc<Unit>),
    /// A page; in memory, or to be loaded.
    Page(PagePath, Option<Arc<Page>>),
}

impl Exit {
    /// The path of anything below.
    pub(crate) fn path(&self) -> &B256 {
        match &self.target {
            ExitTarget::Unit(unit) => &unit.path,
            ExitTarget::Page(path, _) => &path.bits,
        }
    }

    /// The number of pages in memory at and below it.
    pub(crate) fn pages(&self) -> u32 {
        match &self.target {
            ExitTarget::Page(_, Some(page)) => page.pages,
            _ => 0,
        }
    }

    /// The subtree, if it is known without a read.
    pub(crate) fn known_subtree(&self) -> Option<Subtree> {
        match &self.target {
            ExitTarget::Unit(unit) if matches!(unit.kind, UnitKind::Single(_)) => {
                Some(Subtree::Leaf(self.hash))
            }
            _ => None,
        }
    }
}

/// Which of the trees, and how rows and keys of this tree begin.
#[derive(Clone, Debug)]
pub(crate) struct TreePlace {
    /// The table of its pages.
    pub(crate) table: RowTable,
    /// The front of its row keys.
    pub(crate) row: Vec<u8>,
    /// The front of its keys: the zone, and for the storage of an account the path of this.
    pub(crate) lead: Vec<u8>,
    /// The name of the account whose storage the tree is.
    word: Option<B256>,
}

/// Rows of the trees of accounts, codes and storages; their keys begin with the zone.
pub const NODES: RowTable = RowTable::new(0x08, "PbtNodes");
/// Rows of the trees in the storages of accounts; their keys begin with the account.
pub const STORAGE_NODES: RowTable = RowTable::new(0x09, "PbtStorageNodes");

impl TreePlace {
    /// The tree of a zone.
    pub(crate) fn zone(zone: u8) -> Self {
        Self { table: NODES, row: vec![zone], lead: vec![zone], word: None }
    }

    /// The tree of an account's storage.
    pub(crate) fn storage(account: &AccountKey, path: &B256) -> Self {
        let lead = [&[crate::key::STORAGE_ZONE], &path[..]].concat();
        let word = Some(crate::key::account_word(account));
        Self { table: STORAGE_NODES, row: account.to_vec(), lead, word }
    }

    /// The number of key bits before the path.
    pub(crate) fn offset(&self) -> usize {
        self.lead.len() * 8
    }

    /// The key up to the end of the path.
    pub(crate) fn key(&self, path: &B256) -> KeyFront {
        let mut bytes = [0; 65];
        let lead = self.lead.len();
        bytes[..lead].copy_from_slice(&self.lead);
        bytes[lead..lead + 32].copy_from_slice(&path[..]);
        KeyFront { bytes, len: lead + 32 }
    }

    /// The key of the root's row.
    pub(crate) fn root_row(&self) -> Vec<u8> {
        [&self.row[..], &[0xff]].concat()
    }

    /// The key of a page's row: the number of nibbles, and these, two in a byte.
    fn page_row(&self, path: &PagePath) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.row.len() + 33);
        key.extend_from_slice(&self.row);
        key.push(path.len);
        key.extend_from_slice(&path.bits[..usize::from(path.len).div_ceil(2)]);
        key
    }

    /// The page with this path, from its row.
    pub(crate) fn load(
        &self,
        hash: TreeHash,
        view: &dyn NodeRead,
        path: &PagePath,
    ) -> Result<Arc<Page>, StateError> {
        let key = self.page_row(path);
        let row = view.get(self.table, &key)?;
        let row = row.ok_or_else(|| self.corrupt(&key, "the row is missing"))?;
        let page = Page::decode(hash, self, path, &row);
        Ok(Arc::new(page.map_err(|error| self.corrupt(&key, error.what()))?))
    }

    /// What hangs at the root, from its row; `None` if the tree is empty.
    pub(crate) fn load_root(
        &self,
        hash: TreeHash,
        view: &dyn NodeRead,
    ) -> Result<Option<Exit>, StateError> {
        let key = self.root_row();
        let Some(row) = view.get(self.table, &key)? else { return Ok(None) };
        let mut reader = WireReader::new(&row);
        let exit = read_exit(hash, self, &mut reader, None)
            .and_then(|exit| reader.finish().map(|()| exit))
            .map_err(|error| self.corrupt(&key, error.what()))?;
        Ok(Some(exit))
    }

    /// The row of a root.
    pub(crate) fn encode_root(exit: &Exit) -> Bytes {
        let mut out = Vec::new();
        put_exit(&mut out, exit, None);
        out.into()
    }

    /// The change of a page's row.
    pub(crate) fn change(
        &self,
        path: &PagePath,
        previous: Option<&Page>,
        next: Option<&Page>,
    ) -> RowChange {
        RowChange {
            table: self.table,
            key: self.page_row(path),
            previous: previous.map(Page::encode),
            next: next.map(Page::encode),
        }
    }

    fn corrupt(&self, key: &[u8], what: &str) -> StateError {
        let key = alloy_primitives::hex::encode(key);
        StateError::corrupt(self.table.name, format!("page {key}: {what}"))
    }
}

/// A key up to the end of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyFront {
    bytes: [u8; 65],
    len: usize,
}

impl AsRef<[u8]> for KeyFront {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A page in memory.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) path: PagePath,
    /// Bit n: whether there is an exit at nibble n.
    mask: u16,
    /// The exits in order.
    exits: Box<[Exit]>,
    /// Hashes of the branches below the page's own levels 1 to 3, by level and place, as a parent
    /// one level above them sees them.
    inner: Box<[OnceLock<B256>; 14]>,
    /// The number of pages in memory at and below it.
    pages: u32,
}

impl Page {
    /// The page of these exits. Hashes of subtrees of `old` whose exits are not in `changed` are
    /// taken over.
    pub(crate) fn new(
        path: PagePath,
        exits: [Option<Exit>; 16],
        old: Option<&Self>,
        changed: u16,
    ) -> Self {
        let mut mask = 0u16;
        for (at, exit) in exits.iter().enumerate() {
            mask |= u16::from(exit.is_some()) << at;
        }
        let exits: Box<[Exit]> = exits.into_iter().flatten().collect();
        let inner: Box<[OnceLock<B256>; 14]> = Box::default();
        if let Some(old) = old {
            for (level, place) in regions() {
                let index = region_index(level, place);
                if region_mask(level, place) & changed == 0
                    && let Some(hash) = old.inner[index].get()
                {
                    let _ = inner[index].set(*hash);
                }
            }
        }
        let pages = 1 + exits.iter().map(Exit::pages).sum::<u32>();
        Self { path, mask, exits, inner, pages }
    }

    /// The exits with their nibbles.
    pub(crate) fn exits(&self) -> impl Iterator<Item = (usize, &Exit)> {
        (0..16).filter(|at| self.mask >> at & 1 == 1).zip(self.exits.iter())
    }

    /// The exit at a nibble.
    pub(crate) fn exit(&self, at: usize) -> Option<&Exit> {
        if self.mask >> at & 1 == 0 {
            return None;
        }
        let before = self.mask & ((1 << at) - 1);
        self.exits.get(before.count_ones() as usize)
    }

    /// The subtree of the page. All hashes of exits must be known.
    pub(crate) fn subtree(&self, hash: TreeHash, tree: &TreePlace) -> Subtree {
        let region = self.region(hash, tree, 0, 0);
        match region {
            Some(Region::Branch { split, left, right }) => {
                let first = self.exits.first().map_or(&self.path.bits, Exit::path);
                let key = tree.key(first);
                Subtree::branch(key.as_ref(), usize::from(split), left, right)
            }
            Some(Region::Exit(hash)) => Subtree::Leaf(hash),
            None => Subtree::Leaf(B256::ZERO),
        }
    }

    /// The children of the branch at `split` (the level within the page) on the way to nibble `to`:
    /// the hash of the other child.
    pub(crate) fn region(
        &self,
        hash: TreeHash,
        tree: &TreePlace,
        level: u8,
        place: u16,
    ) -> Option<Region> {
        let mask = region_mask(level, place) & self.mask;
        match mask.count_ones() {
            0 => return None,
            1 => {
                return self
                    .exit(mask.trailing_zeros() as usize)
                    .map(|exit| Region::Exit(exit.hash));
            }
            _ => {}
        }
        let (left, right) = (place << 1, place << 1 | 1);
        let has = |place| region_mask(level + 1, place) & self.mask != 0;
        match (has(left), has(right)) {
            (true, true) => Some(Region::Branch {
                split: (tree.offset() + usize::from(self.path.len) * 4 + usize::from(level)) as u16,
                left: self.region_hash(hash, tree, level + 1, left)?,
                right: self.region_hash(hash, tree, level + 1, right)?,
            }),
            (true, false) => self.region(hash, tree, level + 1, left),
            _ => self.region(hash, tree, level + 1, right),
        }
    }

    /// The hash of a region below the branch one level above.
    pub(crate) fn region_hash(
        &self,
        hash: TreeHash,
        tree: &TreePlace,
        level: u8,
        place: u16,
    ) -> Option<B256> {
        let mask = region_mask(level, place) & self.mask;
        if mask.count_ones() == 1 {
            return self.exit(mask.trailing_zeros() as usize).map(|exit| exit.hash);
        }
        let memo = &self.inner[region_index(level, place)];
        if let Some(known) = memo.get() {
            return Some(*known);
        }
        let Region::Branch { split, left, right } = self.region(hash, tree, level, place)? else {
            return None;
        };
        let from = tree.offset() + usize::from(self.path.len) * 4 + usize::from(level);
        let key = tree.key(&self.path.exit(mask.trailing_zeros() as usize));
        let found = hash.branch(key.as_ref(), from, usize::from(split), &left, &right);
        Some(*memo.get_or_init(|| found))
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(2 + 64 * self.exits.len());
        out.extend_from_slice(&self.mask.to_be_bytes());
        for exit in &self.exits {
            put_exit(&mut out, exit, Some(&self.path));
        }
        out.into()
    }

    fn decode(
        hash: TreeHash,
        tree: &TreePlace,
        path: &PagePath,
        row: &[u8],
    ) -> Result<Self, WireError> {
        let mut reader = WireReader::new(row);
        let mask = reader.u16()?;
        if path.len >= NIBBLES {
            return Err(WireError::UnexpectedEnd);
        }
        let mut exits = Vec::with_capacity(mask.count_ones() as usize);
        for at in (0..16).filter(|at| mask >> at & 1 == 1) {
            let mut exit = read_exit(hash, tree, &mut reader, Some((path, at)))?;
            if !path.leads_to(exit.path()) || nibble(exit.path(), path.len) != at {
                return Err(WireError::TrailingBytes);
            }
            exit.from = exit_from(tree, path, mask, at);
            exits.push(exit);
        }
        reader.finish()?;
        if exits.len() < 2 {
            return Err(WireError::UnexpectedEnd);
        }
        Ok(Self { path: *path, mask, exits: exits.into(), inner: Box::default(), pages: 1 })
    }
}

/// What a part of a page's nibbles leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Region {
    /// One exit, by its hash.
    Exit(B256),
    /// A branch.
    Branch { split: u16, left: B256, right: B256 },
}

/// The regions with a branch that has a parent in the page: levels 1 to 3.
fn regions() -> impl Iterator<Item = (u8, u16)> {
    (1..4u8).flat_map(|level| (0..1 << level).map(move |place| (level, place)))
}

fn region_index(level: u8, place: u16) -> usize {
    (1 << level) - 2 + usize::from(place)
}

/// The nibbles in a region.
pub(crate) fn region_mask(level: u8, place: u16) -> u16 {
    let width = 16 >> level;
    (((1u32 << width) - 1) << (usize::from(place) * width)) as u16
}

/// The bit after the split of the branch that an exit hangs at, in a page with these exits.
pub(crate) fn exit_from(tree: &TreePlace, path: &PagePath, mask: u16, at: usize) -> u16 {
    let level = (1..5u8).find(|level| {
        let others = region_mask(*level, (at >> (4 - level)) as u16) & mask;
        others.count_ones() == 1
    });
    (tree.offset() + usize::from(path.len) * 4 + usize::from(level.unwrap_or(4))) as u16
}

/// Appends an exit: its kind; what leads to it; its hash.
///
/// ```text
///  page     00, hash; with more nibbles than its nibble: 01, their number, these (1 each), hash
///           at a root: 01 in any case, and no hash
///  unit     02 to 06 (plain header, stem, single, storage, chunks); single: the sub-index;
///           name: account: length (1), bytes; slots: 31 bytes; chunks: 32 bytes, group (4)
///           hash; at a root of a single leaf alone
/// ```
fn put_exit(out: &mut Vec<u8>, exit: &Exit, page: Option<&PagePath>) {
    let has_hash = match &exit.target {
        ExitTarget::Page(path, _) => {
            let from = page.map_or(0, |page| page.len + 1);
            if page.is_some() && path.len == from {
                out.push(0);
            } else {
                out.push(1);
                out.push(path.len - from);
                out.extend((from..path.len).map(|at| nibble(&path.bits, at) as u8));
            }
            page.is_some()
        }
        ExitTarget::Unit(unit) => {
            out.push(match unit.kind {
                UnitKind::PlainHeader => 2,
                UnitKind::Stem => 3,
                UnitKind::Single(_) => 4,
                UnitKind::Storage => 5,
                UnitKind::Chunks => 6,
            });
            if let UnitKind::Single(sub) = unit.kind {
                out.push(sub);
            }
            match &unit.name {
                UnitName::Account(account) => {
                    out.push(account.len() as u8);
                    out.extend_from_slice(account);
                }
                UnitName::Slots(group) => {
                    out.push(31);
                    out.extend_from_slice(&group[1..]);
                }
                UnitName::Chunks(code, group) => {
                    out.push(36);
                    out.extend_from_slice(&code[..]);
                    out.extend_from_slice(&group.to_be_bytes());
                }
            }
            page.is_some() || matches!(unit.kind, UnitKind::Single(_))
        }
    };
    if has_hash {
        out.extend_from_slice(&exit.hash[..]);
    }
}

/// Reads [`put_exit`]'s bytes, at a nibble of the page with a path, or at a root.
fn read_exit(
    hash: TreeHash,
    tree: &TreePlace,
    reader: &mut WireReader<'_>,
    page: Option<(&PagePath, usize)>,
) -> Result<Exit, WireError> {
    let kind = reader.u8()?;
    let mut has_hash = page.is_some();
    let target = match kind {
        0 | 1 => {
            let (mut bits, from) = match page {
                Some((page, at)) => (page.exit(at), page.len + 1),
                None => (B256::ZERO, 0),
            };
            let more = if kind == 1 { reader.u8()? } else { 0 };
            let len = from.checked_add(more).filter(|len| *len < NIBBLES);
            let len = len.ok_or(WireError::UnexpectedEnd)?;
            for at in from..len {
                let value = reader.u8()? & 15;
                let half = if at.is_multiple_of(2) { value << 4 } else { value };
                bits[usize::from(at / 2)] |= half;
            }
            ExitTarget::Page(PagePath { bits, len }, None)
        }
        2..=6 => {
            let kind = match kind {
                2 => UnitKind::PlainHeader,
                3 => UnitKind::Stem,
                4 => UnitKind::Single(reader.u8()?),
                5 => UnitKind::Storage,
                _ => UnitKind::Chunks,
            };
            has_hash |= matches!(kind, UnitKind::Single(_));
            let len = usize::from(reader.u8()?);
            let name = reader.take(len)?;
            let name = UnitName::read(name).ok_or(WireError::UnexpectedEnd)?;
            let path = match (&name, &tree.word) {
                (UnitName::Account(account), None) => crate::key::account_path(hash, account),
                (UnitName::Chunks(code, group), None) => chunks_path(hash, code, *group),
                (UnitName::Slots(group), Some(word)) => crate::key::group_path(hash, word, group),
                _ => return Err(WireError::TrailingBytes),
            };
            ExitTarget::Unit(Arc::new(Unit { path, name, kind }))
        }
        _ => return Err(WireError::TrailingBytes),
    };
    let hash = if has_hash { reader.hash()? } else { B256::ZERO };
    Ok(Exit { hash, from: UNKNOWN, target })
}

impl UnitName {
    fn read(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            31 => {
                let mut group = B256::ZERO;
                group[1..].copy_from_slice(bytes);
                Some(Self::Slots(group))
            }
            36 => {
                let (code, group) = bytes.split_first_chunk::<32>()?;
                let group = u32::from_be_bytes(group.try_into().ok()?);
                Some(Self::Chunks(B256::from(*code), group))
            }
            _ => AccountKey::from_slice(bytes).map(Self::Account),
        }
    }
}

/// The path of a group of chunks.
pub(crate) fn chunks_path(hash: TreeHash, code: &B256, group: u32) -> B256 {
    let mut number = B256::ZERO;
    number[28..].copy_from_slice(&group.to_be_bytes());
    crate::key::group_path(hash, code, &number)
}
