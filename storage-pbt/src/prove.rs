//! Making proofs: a walk down the branches that the targets lead to.

use crate::{
    code::chunks_stem,
    hash::{MAX_KEY_LEN, Subtree, Sweep, TreeHash, bit, common_bits},
    key::{CODE_ZONE, HEADER_ZONE, Stem, slot_of_group},
    leaf::{account_leaves, chunks},
    page::{Exit, ExitTarget, Page, Region, TreePlace, Unit, UnitKind, UnitName, region_mask},
    state::StateTrees,
    stem::StemRow,
    tree::Tree,
    units::{
        ChunkGroups, Headers, NewCodes, SlotGroups, Storages, decode_account, decode_slot,
        header_row, slots_row, zones,
    },
    verify::targets_of,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{AccountKey, BackendKey, StateError, flat};
use std::{collections::BTreeMap, sync::Arc};

/// Gives the code with a keccak-256.
pub(crate) type GetCode<'a> = dyn Fn(&B256) -> Option<Bytes> + Sync + 'a;

/// The proof of the values of `keys`.
pub(crate) fn prove(trees: StateTrees<'_>, keys: &[BackendKey]) -> Result<Vec<u8>, StateError> {
    let mut targets: Vec<_> = keys.iter().flat_map(|key| targets_of(trees.hash, key)).collect();
    targets.sort_unstable();
    targets.dedup();
    prove_leaves(trees, &|_| None, &targets)
}

/// The proof of the leaves with these keys, which are sorted.
pub(crate) fn prove_leaves(
    trees: StateTrees<'_>,
    codes: &GetCode<'_>,
    targets: &[Vec<u8>],
) -> Result<Vec<u8>, StateError> {
    let mut out = Vec::new();
    let targets: Vec<&[u8]> = targets.iter().map(|key| &key[..]).collect();
    let walk = TreeWalk { trees, codes };
    if let Some(root) = walk.root()
        && !targets.is_empty()
    {
        walk.prove(root, &targets, 0, &mut out)?;
    }
    Ok(out)
}

/// A tree with its place.
pub(crate) struct OwnedTree {
    place: TreePlace,
    /// The account whose storage it is, and the path of this.
    owner: Option<(AccountKey, B256)>,
}

impl OwnedTree {
    const fn zone(place: TreePlace) -> Self {
        Self { place, owner: None }
    }
}

/// A part of the whole tree.
#[derive(Clone)]
pub(crate) enum Node {
    /// Several zones.
    Zones(Vec<(Arc<OwnedTree>, Exit)>),
    /// What hangs at a root, or at a page.
    Exit(Arc<OwnedTree>, Exit),
    /// A part of a page.
    Region(Arc<OwnedTree>, Arc<Page>, u8, u16),
    /// Leaves of a stem.
    Leaves(Arc<StemContent>, Vec<(u8, B256)>),
}

impl Node {
    /// Whether it is in the zone of code.
    pub(crate) fn is_code(&self) -> bool {
        let of = |tree: &OwnedTree| tree.place.lead == [CODE_ZONE];
        match self {
            Self::Zones(zones) => zones.iter().all(|(tree, _)| of(tree)),
            Self::Exit(tree, _) | Self::Region(tree, ..) => of(tree),
            Self::Leaves(content, _) => matches!(content.values, LeafValues::Chunks(..)),
        }
    }
}

/// A stem, and where the values of its leaves are.
pub(crate) struct StemContent {
    pub(crate) stem: Stem,
    pub(crate) values: LeafValues,
}

pub(crate) enum LeafValues {
    /// A header: its leaves 0, 1 and 2.
    Header(AccountKey, BTreeMap<u8, B256>),
    Slots(AccountKey, B256),
    Chunks(B256, u32),
}

/// A node, one level of it known.
pub(crate) enum OpenedNode {
    Leaf { key: Vec<u8>, value: B256 },
    Branch { key: Vec<u8>, split: usize, left: Node, right: Node },
}

/// Walks down the tree of a state.
pub(crate) struct TreeWalk<'a> {
    pub(crate) trees: StateTrees<'a>,
    pub(crate) codes: &'a GetCode<'a>,
}

impl TreeWalk<'_> {
    /// The whole tree; `None` if it is empty.
    pub(crate) fn root(&self) -> Option<Node> {
        let roots: Vec<_> = zones()
            .into_iter()
            .zip(self.trees.state.zones())
            .filter_map(|(place, root)| Some((Arc::new(OwnedTree::zone(place)), root.clone()?)))
            .collect();
        (!roots.is_empty()).then_some(Node::Zones(roots))
    }

    fn hash_function(&self) -> TreeHash {
        self.trees.hash
    }

    /// Appends a node that `targets` lead to.
    fn prove(
        &self,
        node: Node,
        targets: &[&[u8]],
        from: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), StateError> {
        let (key, split, left, right) = match self.open(node)? {
            OpenedNode::Leaf { key, value } => {
                if targets != [&key[..]] {
                    out.push(1);
                    out.extend_from_slice(&key);
                } else {
                    out.push(0);
                }
                put_value(out, &value);
                return Ok(());
            }
            OpenedNode::Branch { key, split, left, right } => (key, split, left, right),
        };
        let continues = |target: &&[u8]| common_bits(&key, target).min(split) == split;
        let start = targets.iter().position(continues).unwrap_or(targets.len());
        let rest = &targets[start..];
        let rest = &rest[..rest.partition_point(continues)];
        let count = split - from;
        if rest.len() == targets.len() {
            out.push(2);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        } else {
            out.push(3);
            out.extend_from_slice(&(count as u16).to_be_bytes());
            let mut bits = vec![0; count.div_ceil(8)];
            for at in 0..count {
                bits[at / 8] |= bit(&key, from + at) << (7 - at % 8);
            }
            out.extend_from_slice(&bits);
        }
        let (to_left, to_right) = rest.split_at(rest.partition_point(|key| bit(key, split) == 0));
        for (node, targets) in [(left, to_left), (right, to_right)] {
            if targets.is_empty() {
                out.extend_from_slice(&self.hash(&node, split + 1)?[..]);
            } else {
                self.prove(node, targets, split + 1, out)?;
            }
        }
        Ok(())
    }

    /// The same node as several zones, as a branch of a page, or as leaves of a stem.
    pub(crate) fn settle(&self, mut node: Node) -> Result<Node, StateError> {
        loop {
            node = match self.above_units(node)? {
                Node::Exit(tree, exit) => match &exit.target {
                    ExitTarget::Unit(unit) => self.unit(&tree, unit, &exit.hash)?,
                    ExitTarget::Page(..) => return Err(lost("a node")),
                },
                settled => return Ok(settled),
            };
        }
    }

    /// The subtree of a group of chunks, if that is what hangs here and its code is not at hand.
    pub(crate) fn unknown_chunks(&self, node: &Node) -> Result<Option<Subtree>, StateError> {
        let Node::Exit(tree, exit) = self.above_units(node.clone())? else { return Ok(None) };
        match &exit.target {
            ExitTarget::Unit(unit) => match &unit.name {
                UnitName::Chunks(code, _) if (self.codes)(code).is_none() => {
                    self.subtree(&tree, &exit).map(Some)
                }
                _ => Ok(None),
            },
            ExitTarget::Page(..) => Ok(None),
        }
    }

    /// The same node as several zones, as a branch of a page, as leaves of a stem, or as what hangs
    /// where a unit is.
    fn above_units(&self, mut node: Node) -> Result<Node, StateError> {
        loop {
            node = match node {
                Node::Zones(mut zones) if zones.len() < 2 => {
                    let (tree, root) = zones.pop().ok_or_else(|| lost("a zone"))?;
                    Node::Exit(tree, root)
                }
                Node::Exit(tree, exit) => {
                    let page = match &exit.target {
                        ExitTarget::Page(path, page) => {
                            Some(self.page(&tree, path, page.as_ref())?)
                        }
                        ExitTarget::Unit(_) => None,
                    };
                    match page {
                        Some(page) => Node::Region(tree, page, 0, 0),
                        None => return Ok(Node::Exit(tree, exit)),
                    }
                }
                Node::Region(tree, page, level, place) => {
                    let mask = region_mask(level, place);
                    let mut exits = page.exits().filter(|(at, _)| mask >> at & 1 == 1);
                    let (_, exit) = exits.next().ok_or_else(|| lost("an exit"))?;
                    if exits.next().is_some() {
                        drop(exits);
                        return Ok(Node::Region(tree, page, level, place));
                    }
                    Node::Exit(tree, exit.clone())
                }
                settled @ (Node::Zones(_) | Node::Leaves(..)) => return Ok(settled),
            };
        }
    }

    /// Opens the first branch of a node.
    pub(crate) fn open(&self, node: Node) -> Result<OpenedNode, StateError> {
        match self.settle(node)? {
            Node::Exit(..) => Err(lost("a node")),
            Node::Zones(mut zones) => {
                let (Some((first, root)), Some((last, _))) = (zones.first(), zones.last()) else {
                    return Err(lost("a zone"));
                };
                let key = first.place.key(root.path()).as_ref().to_vec();
                let split = common_bits(&first.place.lead, &last.place.lead);
                let cut = zones.partition_point(|(tree, _)| bit(&tree.place.lead, split) == 0);
                let right = Node::Zones(zones.split_off(cut));
                Ok(OpenedNode::Branch { key, split, left: Node::Zones(zones), right })
            }
            Node::Region(tree, page, level, place) => {
                let region = page.region(self.hash_function(), &tree.place, level, place);
                let Some(Region::Branch { split, .. }) = region else {
                    return Err(lost("a branch"));
                };
                let split = usize::from(split);
                let base = tree.place.offset() + usize::from(page.path.len) * 4;
                let down = (split - base) as u8;
                let exits = region_mask(level, place);
                let first = page.exits().find(|(at, _)| exits >> at & 1 == 1);
                let (at, exit) = first.ok_or_else(|| lost("an exit"))?;
                let key = tree.place.key(exit.path()).as_ref().to_vec();
                // The region at the level of the split that has all of these exits.
                let place = (at >> (4 - down)) as u16;
                let side = |place| Node::Region(tree.clone(), page.clone(), down + 1, place);
                let (left, right) = (side(place << 1), side(place << 1 | 1));
                Ok(OpenedNode::Branch { key, split, left, right })
            }
            Node::Leaves(content, leaves) => {
                let (Some((first, _)), Some((last, _))) = (leaves.first(), leaves.last()) else {
                    return Err(lost("a leaf"));
                };
                let (key, len) = content.stem.key(*first);
                let key = key[..len].to_vec();
                if leaves.len() == 1 {
                    let value = self.value(&content, *first)?;
                    return Ok(OpenedNode::Leaf { key, value });
                }
                let split = content.stem.bits() + (first ^ last).leading_zeros() as usize;
                let at = leaves.partition_point(|(sub, _)| bit(&[*sub], split % 8) == 0);
                let (left, right) = leaves.split_at(at);
                let side = |leaves: &[_]| Node::Leaves(content.clone(), leaves.to_vec());
                Ok(OpenedNode::Branch { key, split, left: side(left), right: side(right) })
            }
        }
    }

    /// The hash of a node below a branch that splits in the bit before `from`.
    pub(crate) fn hash(&self, node: &Node, from: usize) -> Result<B256, StateError> {
        let hash = self.hash_function();
        match node {
            Node::Zones(zones) => {
                let mut sweep = Sweep::new(hash);
                for (tree, root) in zones {
                    sweep.push(&tree.place.lead, self.subtree(tree, root)?);
                }
                Ok(sweep.finish().ok_or_else(|| lost("a zone"))?.hash(hash, from))
            }
            Node::Exit(tree, exit) => Ok(self.subtree(tree, exit)?.hash(hash, from)),
            Node::Region(tree, page, level, place) => page
                .region_hash(hash, &tree.place, *level, *place)
                .ok_or_else(|| lost("a part of a page")),
            Node::Leaves(content, leaves) => {
                let mut sweep = Sweep::new(hash);
                for (sub, leaf) in leaves {
                    let (key, len) = content.stem.key(*sub);
                    sweep.push(&key[..len], Subtree::Leaf(*leaf));
                }
                Ok(sweep.finish().ok_or_else(|| lost("a leaf"))?.hash(hash, from))
            }
        }
    }

    fn page(
        &self,
        tree: &OwnedTree,
        path: &crate::page::PagePath,
        page: Option<&Arc<Page>>,
    ) -> Result<Arc<Page>, StateError> {
        match page {
            Some(page) => Ok(page.clone()),
            None => tree.place.load(self.hash_function(), self.trees.view, path),
        }
    }

    /// The subtree of what hangs at a root.
    fn subtree(&self, tree: &OwnedTree, exit: &Exit) -> Result<Subtree, StateError> {
        let StateTrees { hash, view, state } = self.trees;
        let (place, loaded) = (&tree.place, state.ahead());
        if let Some((owner, path)) = &tree.owner {
            let units = SlotGroups { hash, view, owner, path };
            return Tree { hash, place, view, loaded, units: &units }.subtree(exit);
        }
        match tree.place.lead[0] {
            HEADER_ZONE => {
                let codes = NewCodes::new();
                let units = Headers { hash, view, codes: &codes };
                Tree { hash, place, view, loaded, units: &units }.subtree(exit)
            }
            CODE_ZONE => {
                let units = ChunkGroups { hash, view };
                Tree { hash, place, view, loaded, units: &units }.subtree(exit)
            }
            _ => {
                let units = Storages { hash, view, loaded };
                Tree { hash, place, view, loaded, units: &units }.subtree(exit)
            }
        }
    }

    /// What is at a unit.
    fn unit(&self, tree: &OwnedTree, unit: &Unit, unit_hash: &B256) -> Result<Node, StateError> {
        let StateTrees { hash, view, .. } = self.trees;
        match (&unit.name, unit.kind) {
            (UnitName::Account(owner), UnitKind::Storage) => {
                let place = TreePlace::storage(owner, &unit.path);
                let root = self.trees.storage_root(&place, owner)?;
                let root = root.ok_or_else(|| lost("the root of a storage"))?;
                let tree = OwnedTree { place, owner: Some((*owner, unit.path)) };
                Ok(Node::Exit(Arc::new(tree), root))
            }
            (UnitName::Account(owner), kind) => {
                let stem = Stem::short(HEADER_ZONE, &unit.path);
                let value = flat::get(view, &BackendKey::Account(*owner))?;
                let value = value.ok_or_else(|| lost("an account"))?;
                let account = decode_account(owner, &value)?;
                let row_key = header_row(owner);
                let row = match kind {
                    UnitKind::Stem => StemRow::load(view, &row_key, &stem)?.0,
                    _ => StemRow::default(),
                };
                let values: BTreeMap<u8, B256> =
                    account_leaves(&account, &row.code.unwrap_or_default())
                        .ok_or_else(|| lost("a balance"))?
                        .into_iter()
                        .collect();
                let mut leaves: Vec<_> = values
                    .iter()
                    .map(|(sub, value)| (*sub, stem.leaf(hash, *sub, value)))
                    .collect();
                leaves.extend(row.leaves.all(view, &row_key)?);
                let values = LeafValues::Header(*owner, values);
                Ok(Node::Leaves(Arc::new(StemContent { stem, values }), leaves))
            }
            (UnitName::Slots(group), kind) => {
                let (owner, path) = tree.owner.as_ref().ok_or_else(|| lost("an owner"))?;
                let stem = Stem::storage(path, &unit.path);
                let leaves = match kind {
                    UnitKind::Single(sub) => vec![(sub, *unit_hash)],
                    _ => {
                        let key = slots_row(owner, group);
                        let (row, _) = StemRow::load(view, &key, &stem)?;
                        row.leaves.all(view, &key)?.into_iter().collect()
                    }
                };
                let values = LeafValues::Slots(*owner, *group);
                Ok(Node::Leaves(Arc::new(StemContent { stem, values }), leaves))
            }
            (UnitName::Chunks(code, group), _) => {
                let stem = chunks_stem(hash, code, *group);
                let chunks = self.chunks(code, *group)?;
                let leaves = (0..=u8::MAX).zip(&chunks).filter(|(_, chunk)| !chunk.is_zero());
                let leaves = leaves.map(|(sub, chunk)| (sub, stem.leaf(hash, sub, chunk)));
                let leaves = leaves.collect();
                let values = LeafValues::Chunks(*code, *group);
                Ok(Node::Leaves(Arc::new(StemContent { stem, values }), leaves))
            }
        }
    }

    fn chunks(&self, code: &B256, group: u32) -> Result<Vec<B256>, StateError> {
        let bytes = (self.codes)(code).ok_or_else(|| crate::units::no_code(code))?;
        let chunks = chunks(&bytes);
        Ok(chunks.chunks(256).nth(group as usize).unwrap_or_default().to_vec())
    }

    /// The value of a leaf.
    pub(crate) fn value(&self, content: &StemContent, sub: u8) -> Result<B256, StateError> {
        let slot = |owner: &AccountKey, slot: B256| {
            let key = BackendKey::Slot(*owner, slot);
            let value = flat::get(self.trees.view, &key)?.ok_or_else(|| lost("a slot"))?;
            decode_slot(&key, &value)
        };
        match &content.values {
            LeafValues::Header(owner, values) => match values.get(&sub) {
                Some(value) => Ok(*value),
                None => slot(owner, B256::with_last_byte(sub.wrapping_sub(crate::key::FIRST_SLOT))),
            },
            LeafValues::Slots(owner, group) => slot(owner, slot_of_group(group, sub)),
            LeafValues::Chunks(code, group) => self
                .chunks(code, *group)?
                .get(usize::from(sub))
                .copied()
                .ok_or_else(|| lost("a chunk")),
        }
    }
}

/// A row that other rows name is not there.
fn lost(what: &str) -> StateError {
    StateError::corrupt(crate::page::NODES.name, format!("{what} that a page names is missing"))
}

fn put_value(out: &mut Vec<u8>, value: &B256) {
    let zeros = value.iter().take_while(|byte| **byte == 0).count();
    out.push((32 - zeros) as u8);
    out.extend_from_slice(&value[zeros..]);
}

const _: () = assert!(MAX_KEY_LEN == 66);
