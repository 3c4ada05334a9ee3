//! The encoding of a version of a branch: whole, or as a delta of the version before it.
//!
//! [formats/prefix.md](../../../docs/formats/prefix.md) has the bytes. Four things keep rows short:
//!
//! * Each reference is stored once. The row of a branch holds it if its path has at most
//!   [`REFERENCE_DEPTH`] nibbles, otherwise the row of its parent does.
//! * A delta holds the children that its block changed, and takes the others from the version
//!   before it, which may be a delta itself.
//! * A leaf of a delta has no key if the leaf before it had the same key, and no bytes that both
//!   values end with.
//! * Versions of children are stored as ages: the version of the row less theirs.

use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::wire::{WireReader, put_varint};
use retrie_storage_mpt::trie::{Branch, BranchChildren, BranchLink, Leaf, NodeLink, PackedValue};
use std::sync::Arc;

/// Longest path of a branch whose own row holds its reference, in nibbles. Upper branches have
/// many branches below them, of which a block changes few.
const REFERENCE_DEPTH: usize = 5;
/// Least number of branches among the children of a dense branch.
const DENSE_CHILDREN: usize = 8;
/// Upper bound of the deltas that build on one whole row.
pub(super) const MAX_DELTAS: usize = 15;
/// As [`MAX_DELTAS`], where old states are forgotten: then the tip needs few rows beside its own.
pub(super) const MAX_DELTAS_IF_FORGOTTEN: usize = 1;

/// The row is a delta.
const DELTA: u8 = 1;
/// All children are leaves.
const ONLY_LEAVES: u8 = 2;
/// All children are branches.
const ONLY_BRANCHES: u8 = 4;
/// Some children are branches below an extension.
const EXTENSIONS: u8 = 8;
/// The masks of a delta are those of the version before.
const SAME_MASKS: u8 = 16;
/// Some leaves of a delta have other keys than before.
const NEW_KEYS: u8 = 32;

/// Whether the row of the branch at `path` holds its reference. The root's is known.
fn holds_reference(path: &Nibbles) -> bool {
    (1..=REFERENCE_DEPTH).contains(&path.len())
}

/// Whether a branch is *dense*: it stays in memory, as loading it reads the rows of all its
/// children, and its rows are whole.
pub(super) fn is_dense(path: &Nibbles, branch: &Branch<u64>) -> bool {
    path.len() < REFERENCE_DEPTH && branch.branch_children() >= DENSE_CHILDREN
}

/// Children by nibble: all, branches, branches below an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChildMasks {
    children: u16,
    branches: u16,
    extended: u16,
}

impl ChildMasks {
    fn of(children: &BranchChildren<u64>) -> Self {
        let mask = |is: fn(&NodeLink<u64>) -> bool| {
            let bit = |(n, child): (usize, &Option<NodeLink<u64>>)| {
                u16::from(child.as_ref().is_some_and(is)) << n
            };
            children.iter().enumerate().map(bit).sum()
        };
        Self {
            children: mask(|_| true),
            branches: mask(|child| matches!(child, NodeLink::Branch(_))),
            extended: mask(|child| matches!(child, NodeLink::Branch(link) if link.has_extension())),
        }
    }

    fn flags(self) -> u8 {
        let kinds = match self.branches {
            0 => ONLY_LEAVES,
            branches if branches == self.children => ONLY_BRANCHES,
            _ => 0,
        };
        if self.extended == 0 { kinds } else { kinds | EXTENSIONS }
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.children.to_be_bytes());
        if self.flags() & (ONLY_LEAVES | ONLY_BRANCHES) == 0 {
            out.extend(self.branches.to_be_bytes());
        }
        if self.extended != 0 {
            out.extend(self.extended.to_be_bytes());
        }
    }

    fn take(rest: &mut WireReader<'_>, flags: u8) -> Option<Self> {
        let children = rest.u16().ok()?;
        let branches = match flags & (ONLY_LEAVES | ONLY_BRANCHES) {
            0 => rest.u16().ok()?,
            ONLY_LEAVES => 0,
            _ => children,
        };
        let extended = if flags & EXTENSIONS == 0 { 0 } else { rest.u16().ok()? };
        let masks = Self { children, branches, extended };
        let is_valid = children.count_ones() >= 2
            && branches & !children == 0
            && extended & !branches == 0
            && masks.flags() == flags & (ONLY_LEAVES | ONLY_BRANCHES | EXTENSIONS);
        is_valid.then_some(masks)
    }
}

/// A branch's place: its path, the version of its row, and whether its leaves name other rows, as
/// those of the account trie do.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchPlace<'a> {
    pub(super) path: &'a Nibbles,
    pub(super) version: u64,
    pub(super) has_stamps: bool,
}

/// An encoded row.
#[derive(Debug)]
pub(super) struct EncodedBranch {
    pub(super) row: Vec<u8>,
    /// Whether it builds on the rows of the version before.
    pub(super) is_delta: bool,
    /// Number of branches that it leads to.
    pub(super) links: usize,
}

impl BranchPlace<'_> {
    /// The row of `next`, which was `previous`: a delta if it is at most half as long as the whole
    /// row, and fewer than `max_deltas` precede it.
    pub(super) fn encode(
        &self,
        previous: Option<&Branch<u64>>,
        next: &Branch<u64>,
        max_deltas: usize,
    ) -> EncodedBranch {
        let whole = self.encode_whole(next);
        let delta = previous
            // The rows of a dense branch are not known, as it stays in memory.
            .filter(|previous| !is_dense(self.path, previous) && !is_dense(self.path, next))
            .filter(|previous| previous.bases().len() < max_deltas)
            .map(|previous| self.encode_delta(previous, next));
        delta.filter(|delta| 2 * delta.row.len() <= whole.row.len()).unwrap_or(whole)
    }

    fn encode_whole(&self, branch: &Branch<u64>) -> EncodedBranch {
        let masks = ChildMasks::of(branch.children());
        let mut row = Vec::with_capacity(512);
        row.push(masks.flags());
        self.put_reference(&mut row, branch.reference());
        masks.put(&mut row);
        for (nibble, child) in (0u8..).zip(branch.children()) {
            match child {
                None | Some(NodeLink::Unresolved(_)) => {}
                Some(NodeLink::Leaf(leaf)) => {
                    put_key(&mut row, leaf.key(), self.path.len() + 1);
                    PackedValue::of(leaf.value()).put(&mut row);
                    self.put_stamp(&mut row, leaf.stamp());
                }
                Some(NodeLink::Branch(_)) => self.put_branch(&mut row, nibble, child.as_ref()),
            }
        }
        EncodedBranch { row, is_delta: false, links: masks.branches.count_ones() as usize }
    }

    fn encode_delta(&self, previous: &Branch<u64>, next: &Branch<u64>) -> EncodedBranch {
        let masks = ChildMasks::of(next.children());
        let has_same_masks = masks == ChildMasks::of(previous.children());
        let pairs = || (0u8..).zip(next.children().iter().zip(previous.children()));
        let (mut shown, mut new_keys) = (0u16, 0u16);
        for (nibble, pair) in pairs() {
            match pair {
                (None, _) => continue,
                (Some(next), Some(previous)) if next.is_same(previous) => continue,
                (Some(NodeLink::Leaf(next)), Some(NodeLink::Leaf(previous)))
                    if next.key() == previous.key() => {}
                (Some(NodeLink::Leaf(_)), _) => new_keys |= 1 << nibble,
                _ => {}
            }
            shown |= 1 << nibble;
        }
        let mut flags = DELTA | if has_same_masks { SAME_MASKS } else { masks.flags() };
        if new_keys != 0 {
            flags |= NEW_KEYS;
        }
        let mut row = Vec::with_capacity(128);
        row.push(flags);
        put_varint(&mut row, self.version.saturating_sub(previous.stamp()));
        self.put_reference(&mut row, next.reference());
        row.extend(shown.to_be_bytes());
        if !has_same_masks {
            masks.put(&mut row);
        }
        if new_keys != 0 {
            row.extend(new_keys.to_be_bytes());
        }
        for (nibble, (child, before)) in pairs().filter(|(nibble, _)| shown >> nibble & 1 == 1) {
            match (child, before) {
                (Some(NodeLink::Leaf(leaf)), Some(NodeLink::Leaf(before)))
                    if new_keys >> nibble & 1 == 0 =>
                {
                    put_value_after(&mut row, before.value(), leaf.value());
                    self.put_stamp(&mut row, leaf.stamp());
                }
                (Some(NodeLink::Leaf(leaf)), _) => {
                    put_key(&mut row, leaf.key(), self.path.len() + 1);
                    PackedValue::of(leaf.value()).put(&mut row);
                    self.put_stamp(&mut row, leaf.stamp());
                }
                (child, _) => self.put_branch(&mut row, nibble, child.as_ref()),
            }
        }
        let links = (shown & masks.branches).count_ones() as usize;
        EncodedBranch { row, is_delta: true, links }
    }

    fn put_reference(&self, row: &mut Vec<u8>, reference: &RlpNode) {
        if holds_reference(self.path) {
            // Leaves with long keys are below it, so it has a hash.
            row.extend(reference.as_hash().unwrap_or_default());
        } else {
            row.extend(check_of(reference));
        }
    }

    fn put_stamp(&self, row: &mut Vec<u8>, stamp: u64) {
        put_stamp(row, self.has_stamps, self.version, stamp);
    }

    fn put_branch(&self, row: &mut Vec<u8>, nibble: u8, child: Option<&NodeLink<u64>>) {
        let Some(NodeLink::Branch(link)) = child else { return };
        let slot = slot_of(self.path, nibble);
        let path = link.path(&slot);
        if link.has_extension() {
            put_nibbles(row, &path.slice(slot.len()..));
        }
        if !holds_reference(&path) {
            row.extend_from_slice(link.reference());
        }
        put_varint(row, self.version.saturating_sub(link.stamp()));
    }

    /// The version that the row builds on, or `Some(None)` if it is whole; `None` if it is
    /// malformed.
    pub(super) fn base_of(&self, row: &[u8]) -> Option<Option<u64>> {
        Some(self.take_head(&mut WireReader::new(row))?.base)
    }

    /// The reference that the row holds.
    pub(super) fn reference_in(&self, row: &[u8]) -> Option<RlpNode> {
        match self.take_head(&mut WireReader::new(row))?.reference {
            ReferenceMark::Hash(hash) => Some(RlpNode::word_rlp(&hash)),
            ReferenceMark::Check(_) => None,
        }
    }

    fn take_head(&self, rest: &mut WireReader<'_>) -> Option<RowHead> {
        let flags = rest.u8().ok()?;
        let base = if flags & DELTA == 0 {
            None
        } else {
            let age = rest.varint().ok().filter(|age| *age > 0)?;
            Some(self.version.checked_sub(age)?)
        };
        let reference = if holds_reference(self.path) {
            ReferenceMark::Hash(rest.hash().ok()?)
        } else {
            ReferenceMark::Check(*rest.array().ok()?)
        };
        Some(RowHead { flags, base, reference })
    }

    /// Decodes a whole row; `None` if it is not canonical.
    pub(super) fn decode_whole(&self, row: &Bytes) -> Option<DecodedBranch> {
        let mut rest = WireReader::new(row);
        let RowHead { flags, reference, .. } = self.take_head(&mut rest)?;
        if flags & !(ONLY_LEAVES | ONLY_BRANCHES | EXTENSIONS) != 0 {
            return None;
        }
        let masks = ChildMasks::take(&mut rest, flags)?;
        let mut children = DecodedChildren::default();
        for (nibble, child) in (0u8..).zip(&mut children) {
            let has = |mask: u16| mask >> nibble & 1 == 1;
            if has(masks.branches) {
                *child = Some(self.take_branch(&mut rest, nibble, has(masks.extended))?);
            } else if has(masks.children) {
                *child = Some(self.take_leaf(&mut rest, nibble, row)?);
            }
        }
        rest.is_empty().then_some(DecodedBranch { masks, reference, children })
    }

    /// Makes this version of `branch`, the version before, from a delta; `None` if the delta is not
    /// canonical, and then `branch` is neither.
    pub(super) fn apply_delta(&self, row: &Bytes, branch: &mut DecodedBranch) -> Option<()> {
        const ALL: u8 = DELTA | ONLY_LEAVES | ONLY_BRANCHES | EXTENSIONS | SAME_MASKS | NEW_KEYS;
        let mut rest = WireReader::new(row);
        let RowHead { flags, reference, base } = self.take_head(&mut rest)?;
        base.filter(|_| flags & !ALL == 0)?;
        let shown = rest.u16().ok()?;
        if flags & SAME_MASKS == 0 {
            let masks = ChildMasks::take(&mut rest, flags);
            branch.masks = masks.filter(|masks| *masks != branch.masks)?;
        } else if flags & (ONLY_LEAVES | ONLY_BRANCHES | EXTENSIONS) != 0 {
            return None;
        }
        let masks = branch.masks;
        let new_keys =
            if flags & NEW_KEYS == 0 { 0 } else { rest.u16().ok().filter(|keys| *keys != 0)? };
        if (shown & !masks.children) | (new_keys & (!shown | masks.branches)) != 0 {
            return None;
        }
        for (nibble, child) in (0u8..).zip(&mut branch.children) {
            let has = |mask: u16| mask >> nibble & 1 == 1;
            if !has(masks.children) {
                *child = None;
            } else if !has(shown) {
                self.is_kind(child.as_ref()?, has(masks.branches), has(masks.extended))?;
            } else if has(masks.branches) {
                *child = Some(self.take_branch(&mut rest, nibble, has(masks.extended))?);
            } else if has(new_keys) {
                *child = Some(self.take_leaf(&mut rest, nibble, row)?);
            } else {
                let Some(DecodedChild::Leaf(before)) = child else { return None };
                *child = Some(self.take_leaf_after(&mut rest, before)?);
            }
        }
        branch.reference = reference;
        rest.is_empty().then_some(())
    }

    /// `None` if a child is of another kind.
    fn is_kind(&self, child: &DecodedChild, is_branch: bool, is_extended: bool) -> Option<()> {
        let is_so = match child {
            DecodedChild::Leaf(_) => !is_branch,
            DecodedChild::Branch { path, .. } => {
                is_branch && is_extended == (path.len() > self.path.len() + 1)
            }
        };
        is_so.then_some(())
    }

    fn take_branch(
        &self,
        rest: &mut WireReader<'_>,
        nibble: u8,
        is_extended: bool,
    ) -> Option<DecodedChild> {
        let slot = slot_of(self.path, nibble);
        let path = if is_extended {
            take_nibbles(rest, &slot).filter(|path| path.len() > slot.len())?
        } else {
            slot
        };
        let reference = if holds_reference(&path) { None } else { Some(take_reference(rest)?) };
        let stamp = self.version.checked_sub(rest.varint().ok()?)?;
        Some(DecodedChild::Branch { path, reference, stamp })
    }

    fn take_leaf(
        &self,
        rest: &mut WireReader<'_>,
        nibble: u8,
        row: &Bytes,
    ) -> Option<DecodedChild> {
        let key = take_key(rest, &slot_of(self.path, nibble))?;
        let value = PackedValue::take(rest, row)?;
        let stamp = take_stamp(rest, self.has_stamps, self.version)?;
        Some(DecodedChild::Leaf(Arc::new(Leaf::new(key, value, stamp))))
    }

    fn take_leaf_after(
        &self,
        rest: &mut WireReader<'_>,
        before: &Leaf<u64>,
    ) -> Option<DecodedChild> {
        let value = take_value_after(rest, before.value())?;
        let stamp = take_stamp(rest, self.has_stamps, self.version)?;
        Some(DecodedChild::Leaf(Arc::new(Leaf::new(*before.key(), value, stamp))))
    }
}

/// What every row begins with.
struct RowHead {
    flags: u8,
    base: Option<u64>,
    reference: ReferenceMark,
}

/// What a row says of its branch's reference.
#[derive(Clone, Copy, Debug)]
enum ReferenceMark {
    Hash(B256),
    /// The last bytes of the reference, which the parent's row has.
    Check([u8; 4]),
}

fn check_of(reference: &RlpNode) -> [u8; 4] {
    reference.last_chunk().copied().unwrap_or_default()
}

type DecodedChildren = [Option<DecodedChild>; 16];

/// A child in a decoded row.
#[derive(Clone, Debug)]
pub(super) enum DecodedChild {
    Leaf(Arc<Leaf<u64>>),
    /// A branch; its own row holds its reference if there is none.
    Branch {
        path: Nibbles,
        reference: Option<RlpNode>,
        stamp: u64,
    },
}

/// A branch decoded from its rows.
#[derive(Debug)]
pub(super) struct DecodedBranch {
    masks: ChildMasks,
    reference: ReferenceMark,
    pub(super) children: DecodedChildren,
}

impl DecodedBranch {
    /// Whether the row belongs to the branch with this reference.
    pub(super) fn is_of(&self, reference: &RlpNode) -> bool {
        match &self.reference {
            ReferenceMark::Hash(hash) => reference.as_hash() == Some(*hash),
            ReferenceMark::Check(check) => check_of(reference) == *check,
        }
    }
}

/// The row of a trie's root. The reference is left out if the root is a branch without an
/// extension above it: then it is the root hash.
pub(super) fn encode_root(root: &NodeLink<u64>, version: u64, has_stamps: bool) -> Bytes {
    let mut row = Vec::with_capacity(80);
    match root {
        NodeLink::Leaf(leaf) => {
            row.push(0);
            row.extend(leaf.key());
            put_stamp(&mut row, has_stamps, version, leaf.stamp());
            row.extend_from_slice(leaf.value());
        }
        NodeLink::Branch(link) => {
            row.push(1);
            put_nibbles(&mut row, &link.path(&Nibbles::new()));
            if link.has_extension() {
                row.extend_from_slice(link.reference());
            }
            put_varint(&mut row, version.saturating_sub(link.stamp()));
        }
        NodeLink::Unresolved(_) => {}
    }
    row.into()
}

/// Reads the row of the root of a trie with this root hash; `None` if it is not canonical. The
/// caller compares the hash.
pub(super) fn decode_root(
    row: &Bytes,
    hash: B256,
    version: u64,
    has_stamps: bool,
) -> Option<NodeLink<u64>> {
    let mut rest = WireReader::new(row);
    if rest.u8().ok()? == 0 {
        let key = rest.hash().ok()?;
        let stamp = take_stamp(&mut rest, has_stamps, version)?;
        return Some(NodeLink::Leaf(Arc::new(Leaf::new(key, row.slice_ref(rest.rest()), stamp))));
    }
    let slot = Nibbles::new();
    let path = take_nibbles(&mut rest, &slot).filter(|_| row[0] == 1)?;
    let reference =
        if path.is_empty() { RlpNode::word_rlp(&hash) } else { take_reference(&mut rest)? };
    let stamp = version.checked_sub(rest.varint().ok()?)?;
    let link = BranchLink::new(&slot, &path, reference, stamp);
    rest.is_empty().then_some(NodeLink::Branch(link))
}

/// The slot of a child of the branch at `path`.
pub(super) fn slot_of(path: &Nibbles, nibble: u8) -> Nibbles {
    let mut slot = *path;
    slot.push(nibble);
    slot
}

/// 0 for a leaf that names no row, otherwise one more than the age of that row.
fn put_stamp(row: &mut Vec<u8>, has_stamps: bool, version: u64, stamp: u64) {
    if has_stamps {
        put_varint(row, if stamp == 0 { 0 } else { version.saturating_sub(stamp) + 1 });
    }
}

fn take_stamp(rest: &mut WireReader<'_>, has_stamps: bool, version: u64) -> Option<u64> {
    if !has_stamps {
        return Some(0);
    }
    match rest.varint().ok()? {
        0 => Some(0),
        age => version.checked_sub(age - 1).filter(|stamp| *stamp > 0),
    }
}

fn put_nibbles(row: &mut Vec<u8>, nibbles: &Nibbles) {
    row.push(nibbles.len() as u8);
    row.extend(nibbles.iter());
}

/// Takes nibbles and appends them to `base`.
fn take_nibbles(rest: &mut WireReader<'_>, base: &Nibbles) -> Option<Nibbles> {
    let len = usize::from(rest.u8().ok()?);
    let nibbles = rest.take(len).ok()?;
    if base.len() + len > 63 || nibbles.iter().any(|nibble| *nibble > 0x0f) {
        return None;
    }
    Some(base.join(&Nibbles::from_nibbles_unchecked(nibbles)))
}

fn take_reference(rest: &mut WireReader<'_>) -> Option<RlpNode> {
    let len = match *rest.rest().first()? {
        0xa0 => 33,
        list @ 0xc0..=0xde => list as usize - 0xc0 + 1,
        _ => return None,
    };
    RlpNode::from_raw(rest.take(len).ok()?)
}

/// Appends the nibbles of a key from `depth` on, two a byte; if their number is odd, the first byte
/// has one.
fn put_key(row: &mut Vec<u8>, key: &B256, depth: usize) {
    let start = row.len();
    row.extend_from_slice(&key[depth / 2..]);
    if depth % 2 == 1 {
        row[start] &= 0x0f;
    }
}

/// Takes the key of a leaf that hangs at `slot`.
fn take_key(rest: &mut WireReader<'_>, slot: &Nibbles) -> Option<B256> {
    let depth = slot.len();
    let suffix = rest.take(32_usize.checked_sub(depth / 2)?).ok()?;
    let mut key = B256::ZERO;
    slot.pack_to(&mut key[..depth.div_ceil(2)]);
    match suffix.split_first() {
        Some((first, others)) if depth % 2 == 1 => {
            // The high half of the first byte is zero.
            key[depth / 2] |= Some(first).filter(|first| **first <= 0x0f)?;
            key[depth / 2 + 1..].copy_from_slice(others);
        }
        _ => key[depth / 2..].copy_from_slice(suffix),
    }
    Some(key)
}

/// Appends a value without the bytes at its end that are also at the end of `before`: twice the
/// number of bytes that follow, plus 1 if some are left out, whose number comes then; the bytes.
fn put_value_after(row: &mut Vec<u8>, before: &[u8], value: &[u8]) {
    let shared = before.iter().rev().zip(value.iter().rev()).take_while(|(a, b)| a == b).count();
    let own = &value[..value.len() - shared];
    put_varint(row, (own.len() as u64) << 1 | u64::from(shared > 0));
    if shared > 0 {
        put_varint(row, shared as u64);
    }
    row.extend_from_slice(own);
}

fn take_value_after(rest: &mut WireReader<'_>, before: &[u8]) -> Option<Bytes> {
    let number = rest.varint().ok()?;
    let shared = if number & 1 == 0 {
        0
    } else {
        usize::try_from(rest.varint().ok()?).ok().filter(|shared| *shared > 0)?
    };
    let own = rest.take(usize::try_from(number >> 1).ok()?).ok()?;
    let (left, shared) = before.split_at_checked(before.len().checked_sub(shared)?)?;
    // The longest end that both have is left out.
    if own.last().is_some_and(|last| left.last() == Some(last)) {
        return None;
    }
    Some([own, shared].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(key: u8, value: Vec<u8>, stamp: u64) -> NodeLink<u64> {
        NodeLink::Leaf(Arc::new(Leaf::new(B256::repeat_byte(key), value.into(), stamp)))
    }

    fn branch(
        path: &Nibbles,
        children: impl IntoIterator<Item = (u8, NodeLink<u64>)>,
        stamp: u64,
    ) -> Branch<u64> {
        let mut all = BranchChildren::default();
        children.into_iter().for_each(|(nibble, child)| all[usize::from(nibble)] = Some(child));
        let unknown = Branch::new(all.clone(), RlpNode::default(), stamp);
        Branch::new(all, unknown.rehashed(path), stamp)
    }

    /// A branch of leaves whose keys begin with the nibbles 1 and 1.
    fn leaves(values: &[(u8, u8)], stamp: u64) -> Branch<u64> {
        let path = Nibbles::from_nibbles([1]);
        let leaf = |(nibble, value): &(u8, u8)| {
            let mut key = B256::repeat_byte(0x11);
            key[0] = 0x10 | nibble;
            let link = NodeLink::Leaf(Arc::new(Leaf::new(key, vec![*value; 40].into(), 0)));
            (*nibble, link)
        };
        branch(&path, values.iter().map(leaf), stamp)
    }

    const fn place(path: &Nibbles, version: u64) -> BranchPlace<'_> {
        BranchPlace { path, version, has_stamps: false }
    }

    fn is_same(decoded: &DecodedBranch, at: &Nibbles, branch: &Branch<u64>) -> bool {
        let pairs = decoded.children.iter().zip(branch.children());
        decoded.is_of(branch.reference())
            && (0u8..).zip(pairs).all(|(nibble, pair)| match pair {
                (None, None) => true,
                (Some(DecodedChild::Leaf(one)), Some(NodeLink::Leaf(other))) => {
                    (one.key(), one.value(), one.stamp())
                        == (other.key(), other.value(), other.stamp())
                }
                (
                    Some(DecodedChild::Branch { path, reference, stamp }),
                    Some(NodeLink::Branch(other)),
                ) => {
                    (*path, *stamp) == (other.path(&slot_of(at, nibble)), other.stamp())
                        && reference.as_ref().is_none_or(|found| found == other.reference())
                }
                _ => false,
            })
    }

    /// The version that this delta makes of the version before.
    fn after(place: BranchPlace<'_>, row: &Bytes, before: DecodedBranch) -> Option<DecodedBranch> {
        let mut branch = before;
        place.apply_delta(row, &mut branch).map(|()| branch)
    }

    #[test]
    fn the_format_of_rows_has_not_changed() {
        let path = Nibbles::from_nibbles([1]);
        let older = leaves(&[(0, 7), (3, 7), (4, 7), (5, 7)], 5);
        let row = place(&path, 5).encode(None, &older, MAX_DELTAS);
        let leaf = format!("{}a001{}", "11".repeat(31), "07".repeat(40));
        let hash = |branch: &Branch<u64>| alloy_primitives::hex::encode(&branch.reference()[1..]);
        let expected = format!("02{}0039{}", hash(&older), leaf.repeat(4));
        assert_eq!(alloy_primitives::hex::encode(&row.row), expected);

        let newer = leaves(&[(0, 7), (3, 8), (4, 7), (5, 7)], 300);
        let row = place(&path, 300).encode(Some(&older), &newer, MAX_DELTAS);
        // A delta of the version 295 before it; all masks are the same; child 3 has 40 new bytes.
        let expected = format!("11a702{}000850{}", hash(&newer), "08".repeat(40));
        assert_eq!(alloy_primitives::hex::encode(&row.row), expected);

        let other = leaves(&[(0, 7), (3, 7), (4, 7)], 6);
        let row = place(&path, 6).encode(Some(&older), &other, MAX_DELTAS);
        assert_eq!(
            alloy_primitives::hex::encode(&row.row),
            format!("0301{}00000019", hash(&other))
        );
    }

    #[test]
    fn a_row_may_be_a_delta_of_the_version_before_and_of_no_other() {
        let path = Nibbles::from_nibbles([1]);
        let of = |to: u8, others: u8, last: &[(u8, u8)]| -> Vec<(u8, u8)> {
            (0..to).map(|n| (n, others)).chain(last.iter().copied()).collect()
        };
        let older = leaves(&of(10, 1, &[]), 5);
        let whole = place(&path, 5).encode(None, &older, MAX_DELTAS);
        assert!(!whole.is_delta);
        let read_whole = || place(&path, 5).decode_whole(&whole.row.clone().into()).unwrap();
        assert!(is_same(&read_whole(), &path, &older));
        // The last key has another value, and there is one more.
        let newer = leaves(&of(9, 1, &[(9, 2), (15, 2)]), 7);
        let delta = place(&path, 7).encode(Some(&older), &newer, MAX_DELTAS);
        assert!(delta.is_delta && place(&path, 7).base_of(&delta.row) == Some(Some(5)));
        let reference = place(&path, 7).reference_in(&delta.row);
        assert_eq!(reference.as_ref(), Some(newer.reference()));
        let row = Bytes::from(delta.row);
        let read = after(place(&path, 7), &row, read_whole()).unwrap();
        assert!(is_same(&read, &path, &newer));
        // The next delta builds on this one.
        let newer = newer.with_bases(vec![5]);
        let last = leaves(&of(9, 1, &[(15, 1)]), 9);
        let next = place(&path, 9).encode(Some(&newer), &last, MAX_DELTAS);
        assert!(next.is_delta && place(&path, 9).base_of(&next.row) == Some(Some(7)));
        let read = after(place(&path, 9), &next.row.into(), read).unwrap();
        assert!(is_same(&read, &path, &last));
        // If many children change, or many deltas came before, the row is whole.
        assert!(
            !place(&path, 9).encode(Some(&newer), &leaves(&of(10, 3, &[]), 9), MAX_DELTAS).is_delta
        );
        let newer = newer.with_bases((0..MAX_DELTAS as u64).collect());
        assert!(!place(&path, 9).encode(Some(&newer), &last, MAX_DELTAS).is_delta);

        let fewer = leaves(&of(9, 1, &[]), 5);
        let fewer = place(&path, 5).encode(None, &fewer, MAX_DELTAS).row.into();
        let fewer = place(&path, 5).decode_whole(&fewer).unwrap();
        assert!(after(place(&path, 7), &row, fewer).is_none(), "a child is nowhere");
        let read = |row: Bytes| after(place(&path, 7), &row, read_whole());
        for len in 0..row.len() {
            assert!(read(row.slice(..len)).is_none(), "{len} bytes");
        }
        assert!(read([&row[..], &[0]].concat().into()).is_none());
        assert!(place(&path, 7).decode_whole(&row).is_none());
    }

    #[test]
    fn damaged_rows_are_refused_without_panic() {
        let path = Nibbles::from_nibbles([1]);
        let slot = |nibble| slot_of(&path, nibble);
        let link = |nibble: u8, below: &[u8]| {
            let reference = RlpNode::word_rlp(&B256::repeat_byte(nibble));
            let path = slot(nibble).join(&Nibbles::from_nibbles(below));
            NodeLink::Branch(BranchLink::new(&slot(nibble), &path, reference, 3))
        };
        let children = |value: u8| {
            let mut children: Vec<_> =
                (0..6).map(|n| (n, leaf(0x10 | n, vec![value; 50], 2))).collect();
            children.extend([(7, link(7, &[])), (8, link(8, &[1])), (9, link(9, &[1; 20]))]);
            children
        };
        let older = branch(&path, children(5), 4);
        let mut changed = children(5);
        changed[2].1 = leaf(0x12, [vec![6; 30], vec![5; 20]].concat(), 6);
        changed[3].1 = link(3, &[]);
        let newer = branch(&path, changed, 6);
        let at = |version| BranchPlace { path: &path, version, has_stamps: true };
        let whole = Bytes::from(at(4).encode(None, &older, MAX_DELTAS).row);
        let delta = at(6).encode(Some(&older), &newer, MAX_DELTAS);
        assert!(delta.is_delta && delta.links == 1);
        let delta = Bytes::from(delta.row);
        let read = || at(4).decode_whole(&whole);
        assert!(is_same(&read().unwrap(), &path, &older));
        assert!(is_same(&after(at(6), &delta, read().unwrap()).unwrap(), &path, &newer));
        for (row, is_delta) in [(&whole, false), (&delta, true)] {
            for (at_byte, bit) in (0..row.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut damaged = row.to_vec();
                damaged[at_byte] ^= 1 << bit;
                let damaged = Bytes::from(damaged);
                let found = if is_delta {
                    after(at(6), &damaged, read().unwrap())
                } else {
                    at(4).decode_whole(&damaged)
                };
                let expected = if is_delta { &newer } else { &older };
                // A delta may say that it builds on another version.
                let is_on_same = !is_delta || at(6).base_of(&damaged) == Some(Some(4));
                assert!(!is_on_same || found.is_none_or(|found| !is_same(&found, &path, expected)));
            }
        }
    }

    #[test]
    fn the_row_of_a_root_comes_back() {
        let (hash, slot) = (B256::repeat_byte(8), Nibbles::new());
        let reference = RlpNode::word_rlp(&hash);
        let plain = NodeLink::Branch(BranchLink::new(&slot, &slot, reference.clone(), 290));
        let row = encode_root(&plain, 300, true);
        assert_eq!(row[..], [1, 0, 10]);
        assert!(decode_root(&row, hash, 300, true).unwrap().is_same(&plain));
        let path = Nibbles::from_nibbles([1, 2]);
        let extended = NodeLink::Branch(BranchLink::new(&slot, &path, reference, 300));
        let row = encode_root(&extended, 300, false);
        assert_eq!(row.len(), 1 + 3 + 33 + 1);
        assert!(decode_root(&row, B256::ZERO, 300, false).unwrap().is_same(&extended));
        for (stamp, has_stamps) in [(0, false), (0, true), (300, true), (12, true)] {
            let link = leaf(9, vec![1, 2, 3], stamp);
            let row = encode_root(&link, 300, has_stamps);
            assert!(decode_root(&row, hash, 300, has_stamps).unwrap().is_same(&link));
            assert!((0..33).all(|len| decode_root(&row.slice(..len), hash, 300, true).is_none()));
        }
    }
}
