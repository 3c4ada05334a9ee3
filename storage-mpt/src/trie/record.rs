//! The encoding of a trie's rows, byte by byte.
//!
//! # Keys
//!
//! `trie || 0x00 || stamp` is the key of the root's row, `trie || 0x01 || path || stamp` the key of
//! a branch's row, with one byte (0x00 to 0x0f) a nibble of `path`. `trie` is the prefix of the
//! trie's [place](super::RowPlace): in `MptAccountNodes` it is empty, in `MptStorageNodes` it is
//! the 20-byte address of the account. Keys of branches sort in depth-first order, so the lowest
//! branches on the path of a key are neighbours on disk.
//!
//! If rows have no versions, as in `mpt`, the [stamp](RowStamp) has no bytes in keys and in rows.
//!
//! # Row of a root
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | 0: the trie is one leaf; 1: it is a branch, possibly below an extension |
//! | leaf: 32, n, rest | key, stamp, value |
//! | branch: 1, n, rest | number of nibbles of its path (0 without extension), the nibbles one byte each, reference, stamp |
//!
//! An empty trie has no row.
//!
//! # Row of a branch
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 to 33 | reference of this branch: 0xa0 and its keccak-256, or its RLP if shorter than 32 bytes |
//! | 2 | children, big-endian: bit *n* is set if there is a child at nibble *n* |
//! | 2 | children that are branches |
//! | 2 | children that are branches below an extension |
//! | rest | for each child in the order of nibbles: |
//! | leaf | the nibbles of the key below the child's slot, two a byte (if their number is odd, the first byte has one, in its low half); the length of the value (LEB128); the value; stamp of the leaf |
//! | branch | if below an extension: number of nibbles of the extension in one byte, the nibbles one byte each; unless this branch is split: reference of the child (without extension); stamp of the child |
//!
//! A branch is *split* if its path has at most 4 nibbles and at least 8 children are branches; the
//! references of these children are then the heads of their own rows. Each branch has exactly one
//! encoding.
//!
//! # Rows with versions
//!
//! The number before a leaf's value is four times the length of its bytes plus two flags, which say
//! what is left out of the value: flag 1, the RLP of the hash of no code at the end; flag 2, the
//! RLP of the root of an empty storage, at the end or before the code hash. So plain accounts are
//! short. What can be left out must be left out.

use super::{
    child_slot,
    node::{Branch, BranchChildren, BranchLink, Leaf, NodeLink},
    packed::PackedValue,
    stamp::RowStamp,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::{
    StateError,
    wire::{WireReader, put_varint, varint_len},
};
use std::sync::Arc;

/// Longest path of a split branch, in nibbles: a trie has at most 69,905 split branches.
const SPLIT_DEPTH: usize = 4;
/// Least number of branches among the children of a split branch.
const SPLIT_CHILDREN: usize = 8;

/// Whether the branch at `path` is split: its row omits the references of child branches, which
/// stand in the children's own rows.
pub(crate) fn is_split<S: RowStamp>(path: &Nibbles, branch: &Branch<S>) -> bool {
    path.len() <= SPLIT_DEPTH && branch.branch_children() >= SPLIT_CHILDREN
}

/// Key of the row of a trie's root.
pub fn root_key<S: RowStamp>(trie: &[u8], stamp: S) -> Vec<u8> {
    let mut key = [trie, &[0]].concat();
    stamp.extend_key(&mut key);
    key
}

/// Key of the row of the branch at `path`.
pub fn branch_key<S: RowStamp>(trie: &[u8], path: &Nibbles, stamp: S) -> Vec<u8> {
    let mut key = Vec::with_capacity(trie.len() + 1 + path.len() + size_of::<S>());
    key.extend_from_slice(trie);
    key.push(1);
    key.extend(path.iter());
    stamp.extend_key(&mut key);
    key
}

/// Appends a path to a list of paths: number of nibbles shared with the previous path, number of
/// further nibbles, these nibbles; a byte each.
pub fn put_path_after(out: &mut Vec<u8>, previous: &Nibbles, path: &Nibbles) {
    let shared = path.common_prefix_length(previous);
    out.extend([shared as u8, (path.len() - shared) as u8]);
    out.extend(path.slice(shared..).iter());
}

/// Reads what [`put_path_after`] appended; `None` if it is not the path of a branch.
pub fn take_path_after(rest: &mut WireReader<'_>, previous: &Nibbles) -> Option<Nibbles> {
    let (shared, more) = (usize::from(rest.u8().ok()?), usize::from(rest.u8().ok()?));
    let nibbles = rest.take(more).ok()?;
    let is_path = shared <= previous.len()
        && shared + more < 64
        && nibbles.iter().all(|nibble| *nibble <= 0x0f);
    is_path.then(|| previous.slice(..shared).join(&Nibbles::from_nibbles_unchecked(nibbles)))
}

/// Row of a root, `None` for the empty trie. Links of tries that have rows are always resolved.
pub fn encode_root<S: RowStamp>(root: Option<&NodeLink<S>>) -> Option<Bytes> {
    let mut out = Vec::with_capacity(64);
    match root? {
        NodeLink::Leaf(leaf) => {
            out.push(0);
            out.extend_from_slice(leaf.key().as_slice());
            leaf.stamp().put(&mut out);
            out.extend_from_slice(leaf.value());
        }
        NodeLink::Branch(link) => {
            let path = link.path(&Nibbles::new());
            out.push(1);
            put_nibbles(&mut out, &path);
            out.extend_from_slice(link.reference());
            link.stamp().put(&mut out);
        }
        NodeLink::Unresolved(_) => return None,
    }
    Some(out.into())
}

/// Reads [`encode_root`]'s bytes back; `None` if they are not canonical.
pub fn decode_root<S: RowStamp>(row: &Bytes) -> Option<NodeLink<S>> {
    let mut rest = WireReader::new(row);
    match rest.u8().ok()? {
        0 => {
            let key = rest.hash().ok()?;
            let stamp = S::take(&mut rest)?;
            Some(NodeLink::Leaf(Arc::new(Leaf::new(key, row.slice_ref(rest.rest()), stamp))))
        }
        1 => {
            let path = take_nibbles(&mut rest, &Nibbles::new())?;
            let reference = take_reference(&mut rest)?;
            let link = BranchLink::new(&Nibbles::new(), &path, reference, S::take(&mut rest)?);
            rest.is_empty().then_some(NodeLink::Branch(link))
        }
        _ => None,
    }
}

/// Row of the branch at `path`.
pub fn encode<S: RowStamp>(path: &Nibbles, branch: &Branch<S>) -> Bytes {
    if let Some(row) = &branch.row {
        return row.clone();
    }
    let split = is_split(path, branch);
    let mut out = Vec::with_capacity(encoded_len(branch, path.len() + 1, split));
    put_branch(&mut out, path, branch, split);
    out.into()
}

/// Appends the row of a branch.
fn put_branch<S: RowStamp>(out: &mut Vec<u8>, path: &Nibbles, branch: &Branch<S>, split: bool) {
    let depth = path.len() + 1;
    out.extend_from_slice(&branch.reference);
    let mask = |is: fn(&NodeLink<S>) -> bool| {
        let bit = |(n, child): (usize, &Option<NodeLink<S>>)| {
            u16::from(child.as_ref().is_some_and(is)) << n
        };
        branch.children.iter().enumerate().map(bit).sum::<u16>().to_be_bytes()
    };
    out.extend_from_slice(&mask(|_| true));
    out.extend_from_slice(&mask(|child| matches!(child, NodeLink::Branch(_))));
    out.extend_from_slice(&mask(
        |child| matches!(child, NodeLink::Branch(link) if link.has_extension()),
    ));
    for (nibble, child) in (0u8..).zip(&branch.children) {
        match child {
            None | Some(NodeLink::Unresolved(_)) => {}
            Some(NodeLink::Leaf(leaf)) => {
                let start = out.len();
                out.extend_from_slice(&leaf.key()[depth / 2..]);
                if depth % 2 == 1 {
                    out[start] &= 0x0f;
                }
                if S::HAS_VERSIONS {
                    PackedValue::of(leaf.value()).put(out);
                } else {
                    put_varint(out, leaf.value().len() as u64);
                    out.extend_from_slice(leaf.value());
                }
                leaf.stamp().put(out);
            }
            Some(NodeLink::Branch(link)) => {
                if link.has_extension() {
                    let slot = child_slot(path, nibble);
                    put_nibbles(out, &link.path(&slot).slice(depth..));
                }
                if !split {
                    out.extend_from_slice(link.reference());
                }
                link.stamp().put(out);
            }
        }
    }
}

/// Length of a row, or slightly more.
fn encoded_len<S: RowStamp>(branch: &Branch<S>, depth: usize, split: bool) -> usize {
    let child = |child: &NodeLink<S>| match child {
        NodeLink::Unresolved(_) => 0,
        NodeLink::Leaf(leaf) => {
            let value = if S::HAS_VERSIONS {
                PackedValue::of(leaf.value()).len()
            } else {
                let len = leaf.value().len();
                varint_len(len as u64) + len
            };
            32 - depth / 2 + value + S::MAX_LEN
        }
        NodeLink::Branch(link) => {
            let reference = if split { 0 } else { link.reference().len() };
            S::MAX_LEN + reference + if link.has_extension() { 64 - depth } else { 0 }
        }
    };
    branch.reference.len() + 6 + branch.children.iter().flatten().map(child).sum::<usize>()
}

/// Decodes the bytes of [`encode`]: the row of the branch at `path` with this stamp. `head` reads
/// the reference at the head of another branch's row. `Ok(None)` if the bytes are not canonical.
///
/// # Errors
/// Errors of `head`.
pub fn decode<S: RowStamp>(
    path: &Nibbles,
    stamp: S,
    row: &Bytes,
    head: impl FnMut(&Nibbles, S) -> Result<RlpNode, StateError>,
) -> Result<Option<Branch<S>>, StateError> {
    let mut rest = WireReader::new(row);
    let Some((reference, masks)) = take_head(&mut rest, path) else { return Ok(None) };
    let links = take_children(&mut rest, path, row, masks, head)?;
    let Some(links) = links.filter(|_| rest.is_empty()) else { return Ok(None) };
    let mut branch = Branch::new(links, reference, stamp);
    branch.row = Some(row.clone());
    Ok(Some(branch))
}

fn is_split_by(path: &Nibbles, [_, branches, _]: [u16; 3]) -> bool {
    path.len() <= SPLIT_DEPTH && branches.count_ones() as usize >= SPLIT_CHILDREN
}

fn take_children<S: RowStamp>(
    rest: &mut WireReader<'_>,
    path: &Nibbles,
    row: &Bytes,
    masks @ [children, branches, extended]: [u16; 3],
    mut head: impl FnMut(&Nibbles, S) -> Result<RlpNode, StateError>,
) -> Result<Option<BranchChildren<S>>, StateError> {
    let split = is_split_by(path, masks);
    let mut links = BranchChildren::default();
    for (nibble, child) in (0u8..).zip(&mut links) {
        let has = |mask: u16| mask >> nibble & 1 == 1;
        if !has(children) {
            continue;
        }
        let slot = child_slot(path, nibble);
        if !has(branches) {
            let Some(leaf) = take_leaf(rest, &slot, row) else { return Ok(None) };
            *child = Some(NodeLink::Leaf(Arc::new(leaf)));
            continue;
        }
        let branch_path = if has(extended) {
            match take_nibbles(rest, &slot) {
                Some(path) if path.len() > slot.len() => path,
                _ => return Ok(None),
            }
        } else {
            slot
        };
        let reference = if split { None } else { take_reference(rest) };
        let (Some(stamp), true) = (S::take(rest), split || reference.is_some()) else {
            return Ok(None);
        };
        let reference = match reference {
            Some(reference) => reference,
            None => head(&branch_path, stamp)?,
        };
        *child = Some(NodeLink::Branch(BranchLink::new(&slot, &branch_path, reference, stamp)));
    }
    Ok(Some(links))
}

/// The reference at the head of a branch's row.
pub fn head(row: &[u8]) -> Option<RlpNode> {
    take_reference(&mut WireReader::new(row))
}

fn put_nibbles(out: &mut Vec<u8>, path: &Nibbles) {
    out.push(path.len() as u8);
    out.extend(path.iter());
}

fn take_reference(rest: &mut WireReader<'_>) -> Option<RlpNode> {
    let len = match *rest.rest().first()? {
        0xa0 => 33,
        list @ 0xc0..=0xde => list as usize - 0xc0 + 1,
        _ => return None,
    };
    RlpNode::from_raw(rest.take(len).ok()?)
}

/// Reference and masks of the branch at `path`.
fn take_head(rest: &mut WireReader<'_>, path: &Nibbles) -> Option<(RlpNode, [u16; 3])> {
    let reference = take_reference(rest)?;
    let mut mask = || rest.u16().ok();
    let masks @ [children, branches, extended] = [mask()?, mask()?, mask()?];
    let is_valid = children.count_ones() >= 2
        && path.len() < 64
        && branches & !children == 0
        && extended & !branches == 0;
    is_valid.then_some((reference, masks))
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

/// A leaf that hangs at `slot`. Its value shares the memory of `row`, whose end is `rest`, unless
/// the value was packed.
fn take_leaf<S: RowStamp>(
    rest: &mut WireReader<'_>,
    slot: &Nibbles,
    row: &Bytes,
) -> Option<Leaf<S>> {
    let depth = slot.len();
    let suffix = rest.take(32 - depth / 2).ok()?;
    let mut key = B256::ZERO;
    slot.pack_to(&mut key[..depth.div_ceil(2)]);
    if depth % 2 == 1 {
        // The high half of the first byte is padding, and zero.
        if suffix[0] > 0x0f {
            return None;
        }
        key[depth / 2] |= suffix[0];
        key[depth / 2 + 1..].copy_from_slice(&suffix[1..]);
    } else {
        key[depth / 2..].copy_from_slice(suffix);
    }
    let value = if S::HAS_VERSIONS {
        PackedValue::take(rest, row)?
    } else {
        let length = usize::try_from(rest.varint().ok()?).ok()?;
        row.slice_ref(rest.take(length).ok()?)
    };
    Some(Leaf::new(key, value, S::take(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trie::{LeafUpdate, NodeSource, Trie, UpdateRecorder};
    use alloy_primitives::{hex, keccak256};
    use alloy_trie::HashBuilder;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    /// Rows in a map; every branch goes through its row on every update.
    #[derive(Clone, Default)]
    struct RowMap(BTreeMap<Vec<u8>, Bytes>);

    impl NodeSource for RowMap {
        type Stamp = ();

        fn load(&self, path: &Nibbles, link: &BranchLink) -> Result<Arc<Branch>, StateError> {
            let row = |path: &Nibbles| &self.0[&branch_key(&[], path, ())];
            let head = |path: &Nibbles, ()| Ok(head(row(path)).unwrap());
            let branch = decode(path, (), row(path), head)?.unwrap();
            assert_eq!(branch.reference(), link.reference());
            Ok(Arc::new(branch))
        }

        fn resolve(&self, _: &Nibbles, _: &RlpNode) -> Result<NodeLink, StateError> {
            unreachable!()
        }

        fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
            false
        }
    }

    #[derive(Default)]
    struct RecordLog(Vec<(Nibbles, Option<Bytes>, Option<Bytes>)>);

    impl UpdateRecorder for RecordLog {
        type Stamp = ();

        fn stamp(&self) {}

        fn fork(&self) -> Self {
            Self::default()
        }

        fn absorb(&mut self, part: Self) {
            self.0.extend(part.0);
        }

        fn record(&mut self, path: &Nibbles, previous: Option<&Branch>, next: Option<&Branch>) {
            let row = |branch: &Branch| encode(path, branch);
            self.0.push((*path, previous.map(row), next.map(row)));
        }
    }

    fn reference(state: &BTreeMap<B256, Bytes>) -> B256 {
        let mut builder = HashBuilder::default();
        for (key, value) in state {
            builder.add_leaf(Nibbles::unpack(key), value);
        }
        builder.root()
    }

    /// Keys with long common prefixes, for values short enough to give embedded nodes. Hashed keys
    /// never cover these cases.
    fn odd_key(random: &mut StdRng) -> B256 {
        let mut key = B256::repeat_byte(0x11);
        for _ in 0..random.random_range(0..3) {
            let at = [0, 1, 15, 30, 31][random.random_range(0..5)];
            key[at] = random.random_range(0..3u8) << 4 | random.random_range(0..3u8);
        }
        key
    }

    fn random_history(seed: u64, batch: usize, key: impl Fn(&mut StdRng) -> B256) {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut state, mut disk, mut trie) = (BTreeMap::new(), RowMap::default(), Trie::default());
        for round in 0..60 {
            let mut items = BTreeMap::new();
            let deletions = [0.1, 0.5, 0.9][round % 3];
            for _ in 0..random.random_range(1..=batch) {
                let value = (!random.random_bool(deletions)).then(|| {
                    let len = [1, 2, 33, 200][random.random_range(0..4)];
                    Bytes::from(vec![random.random_range(1..=255u8); len])
                });
                items.insert(key(&mut random), value);
            }
            for (key, value) in &items {
                match value {
                    Some(value) => state.insert(*key, value.clone()),
                    None => state.remove(key),
                };
            }
            let items: Vec<_> =
                items.into_iter().map(|(key, value)| LeafUpdate::new(key, value)).collect();
            let mut log = RecordLog::default();
            let next = trie.update(&disk, &items, &mut log).unwrap();
            for (path, previous, row) in log.0 {
                let key = branch_key(&[], &path, ());
                let stored = match row {
                    Some(row) => disk.0.insert(key, row),
                    None => disk.0.remove(&key),
                };
                assert_eq!(stored, previous, "previous row at {path:?}");
            }
            let root = encode_root(next.root());
            trie = Trie::from_root(root.map(|row| decode_root::<()>(&row).unwrap()));
            assert_eq!(trie.hash(), next.hash());
            assert_eq!(trie.hash(), reference(&state), "round {round}");
            let mut fresh = RecordLog::default();
            let all: Vec<_> = state
                .iter()
                .map(|(key, value)| LeafUpdate::new(*key, Some(value.clone())))
                .collect();
            Trie::default().update(&disk, &all, &mut fresh).unwrap();
            let rows: BTreeMap<_, _> = fresh
                .0
                .into_iter()
                .map(|(path, _, row)| (branch_key(&[], &path, ()), row.unwrap()))
                .collect();
            assert!(rows == disk.0, "rows depend on more than the state, round {round}");
            for (key, value) in &state {
                assert_eq!(trie.get(&disk, key).unwrap().as_ref(), Some(value));
            }
        }
    }

    #[test]
    fn embedded_nodes_and_long_extensions_survive_the_disk() {
        for seed in 0..20 {
            random_history(seed, 12, odd_key);
        }
    }

    #[test]
    fn split_branches_survive_the_disk_and_parallel_batches() {
        for seed in 0..2 {
            random_history(seed, 400, |random| {
                keccak256(random.random_range(0..1500u32).to_be_bytes())
            });
        }
    }

    #[test]
    fn damaged_rows_are_refused_without_panic() {
        let mut random = StdRng::seed_from_u64(7);
        let items: BTreeMap<_, _> =
            (0..300).map(|_| (odd_key(&mut random), Bytes::from_static(&[9]))).collect();
        let items: Vec<_> =
            items.into_iter().map(|(key, value)| LeafUpdate::new(key, Some(value))).collect();
        let mut log = RecordLog::default();
        Trie::default().update(&RowMap::default(), &items, &mut log).unwrap();
        for (path, _, row) in log.0 {
            let row = row.unwrap();
            let read = |row: Vec<u8>| {
                decode(&path, (), &row.into(), |_, ()| Ok(RlpNode::word_rlp(&B256::ZERO))).unwrap()
            };
            assert!(read(row.to_vec()).is_some());
            for at in 0..row.len() {
                assert!(read(row[..at].to_vec()).is_none(), "cut at {at}");
                for bit in 0..8 {
                    let mut damaged = row.to_vec();
                    damaged[at] ^= 1 << bit;
                    // With a flip in a hash or a value it is still a row. It must not panic, and
                    // must be the canonical encoding of its content.
                    if let Some(mut branch) = read(damaged.clone()) {
                        branch.row = None;
                        assert_eq!(encode(&path, &branch), damaged, "bit {bit} of byte {at}");
                    }
                }
            }
            assert!(read([&row[..], &[0]].concat()).is_none(), "a byte too many");
        }
    }

    #[test]
    fn the_length_of_a_value_in_a_longer_form_is_refused() {
        let key = |byte| LeafUpdate::new(B256::repeat_byte(byte), Some(vec![7].into()));
        let mut log = RecordLog::default();
        Trie::default().update(&RowMap::default(), &[key(0x11), key(0x22)], &mut log).unwrap();
        let row = log.0[0].2.clone().unwrap();
        let read = |row: Bytes| decode(&Nibbles::new(), (), &row, |_, ()| unreachable!()).unwrap();
        let (head, value) = row.split_at(row.len() - 2);
        assert!(value == [1, 7] && read(row.clone()).is_some());
        assert!(read([head, &[0x81, 0x00, 7]].concat().into()).is_none());
    }

    #[test]
    fn the_format_of_rows_has_not_changed() {
        let key = |bytes: &str| B256::from_slice(&hex::decode(bytes.repeat(32)).unwrap());
        let value = Some(Bytes::from_static(&[0x07]));
        let keys = [key("11"), key("12"), key("20")];
        let items = keys.map(|key| LeafUpdate::new(key, value.clone()));
        let mut log = RecordLog::default();
        let trie = Trie::default().update(&RowMap::default(), &items, &mut log).unwrap();
        let rows: Vec<_> =
            log.0.iter().map(|(path, _, row)| (path.to_vec(), row.clone().unwrap())).collect();
        let lower = log.0[0].2.as_ref().and_then(|row| head(row)).unwrap();
        let upper = log.0[1].2.as_ref().and_then(|row| head(row)).unwrap();
        let leaf = |suffix: &str, rest: &str| format!("{suffix}{}01{}", rest, "07");
        assert_eq!(rows[0].0, [1]);
        assert_eq!(
            hex::encode(&rows[0].1),
            format!(
                "{}000600000000{}{}",
                hex::encode(&lower),
                leaf("", &"11".repeat(31)),
                leaf("", &"12".repeat(31)),
            )
        );
        assert_eq!(rows[1].0, [0u8; 0]);
        assert_eq!(
            hex::encode(&rows[1].1),
            format!(
                "{}000600020000{}{}",
                hex::encode(&upper),
                hex::encode(&lower),
                leaf("00", &"20".repeat(31)),
            )
        );
        let root = encode_root(trie.root()).unwrap();
        assert_eq!(hex::encode(&root), format!("0100{}", hex::encode(&upper)));
        assert_eq!(branch_key(&[0xaa], &Nibbles::from_nibbles([1, 2]), ()), [0xaa, 1, 1, 2]);
        assert_eq!(root_key(&[0xaa], ()), [0xaa, 0]);
    }
}
