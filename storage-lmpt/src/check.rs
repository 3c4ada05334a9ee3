//! The check of all rows for `db verify`: the root; the layers, rebuilt from their rows; every row
//! of the snapshot; whether the merge under way can be made, and its rows written ahead are right;
//! whether Flat has the values of the layers.

use crate::{
    LAYERS, LISTS, META, SNAPSHOT, garbage_lists, layer,
    layer::LeafIter,
    leaf, merge,
    record::{LmptMeta, has_block_rows, published, rows_ahead},
    snapshot::{RowOrigin, SnapshotView, branch_key, parse_key, rows},
    state::{LmptState, SmallLayers},
};
use alloy_primitives::{B256, Bytes, keccak256, map::HashSet};
use alloy_trie::Nibbles;
use retrie_state::{BackendKey, KeyRange, NodeRead, RowTable, ScanDirection, StateError, flat};
use retrie_storage_mpt::{
    MemorySource,
    trie::{NodeLink, NodeSource},
};
use std::collections::BTreeSet;

/// Checks the rows of the state that `view` shows, whose recorded root is `root`; see
/// [`Backend::check`](retrie_state::Backend::check).
pub(crate) fn check(
    view: &dyn NodeRead,
    state: &LmptState,
    root: B256,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    if state.root() != root {
        let what = format!("the row of the state leads to {}, recorded is {root}", state.root());
        report(StateError::corrupt(META.name, what));
    }
    let Some(meta) = &state.meta else { return Ok(()) };
    let left = published(view, 0)?.map(|left| Ok(left?.0)).collect::<Result<_, StateError>>()?;
    let (reached, ahead) = Default::default();
    let mut check = RowCheck { view, meta, report, left, reached, live: 0, ahead };
    check.layer_rows()?;
    // Not the layers of `state`, which may have been in memory for long.
    let layers = match SmallLayers::read(view, meta) {
        Ok(layers) => layers,
        Err(fault) => {
            (check.report)(fault);
            return Ok(());
        }
    };
    check.live += check.small(&layers)?;
    if let Some(link) = meta.snapshot.root() {
        check.link(&layers, Nibbles::new(), link)?;
    }
    check.merge_under_way(&layers)?;
    let useless = check.lists()?;
    check.snapshot_rows(&useless)?;
    check.values(&layers)
}

struct RowCheck<'a> {
    view: &'a dyn NodeRead,
    meta: &'a LmptMeta,
    report: &'a mut dyn FnMut(StateError),
    /// Generations that are published and still have garbage.
    left: BTreeSet<u64>,
    /// Rows of the snapshot, by half of the hash of path and stamp.
    reached: HashSet<u128>,
    /// The number of keys that have a value in the layers.
    live: u64,
    /// Rows of the merge under way that were written ahead, by half of the hash of their keys.
    /// `None` if the merge cannot be made, so that these rows are not known.
    ahead: Option<HashSet<u128>>,
}

fn mark(key: &[u8]) -> u128 {
    keccak256(key).first_chunk().map_or(0, |half| u128::from_be_bytes(*half))
}

impl RowCheck<'_> {
    fn fault(&mut self, table: RowTable, what: String) {
        (self.report)(StateError::corrupt(table.name, what));
    }

    /// Checks the rows of layers: order, and whether their generation exists.
    fn layer_rows(&mut self) -> Result<(), StateError> {
        let mut order = layer::LayerRowOrder::default();
        for row in self.view.scan(LAYERS, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, row) = row?;
            let entries = layer::read_row(&key, &row);
            if let Err(fault) = entries.and_then(|entries| order.follow(&key, &entries)) {
                (self.report)(fault);
                continue;
            }
            let generation = key.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
            let is_live = generation == self.meta.generation || generation == self.meta.merging();
            if !is_live && !self.left.contains(&generation) {
                self.fault(
                    LAYERS,
                    format!("row {key} belongs to generation {generation}, which is gone"),
                );
            }
        }
        Ok(())
    }

    /// The number of keys of the small layers that have a value.
    fn small(&mut self, layers: &SmallLayers) -> Result<u64, StateError> {
        let has_value = |leaf: &[u8]| matches!(leaf::decode(leaf), Some(Some(_)));
        let mut live = 0;
        for found in LeafIter::of(&layers.delta) {
            live += u64::from(has_value(found?.value()));
        }
        for found in LeafIter::of(&layers.intermediate) {
            let found = found?;
            let is_newest = layers.delta.get(&MemorySource, found.key())?.is_none();
            live += u64::from(is_newest && has_value(found.value()));
        }
        Ok(live)
    }

    /// Checks what hangs at a slot of the snapshot, and everything below it.
    fn link(
        &mut self,
        layers: &SmallLayers,
        slot: Nibbles,
        link: &NodeLink<u64>,
    ) -> Result<(), StateError> {
        match link {
            NodeLink::Unresolved(_) => {}
            NodeLink::Leaf(found) => {
                let key = found.key();
                if !matches!(leaf::decode(found.value()), Some(Some(_))) || found.stamp() != 0 {
                    self.fault(SNAPSHOT, format!("the leaf at {key} holds no value"));
                }
                let is_newest = layers.delta.get(&MemorySource, key)?.is_none()
                    && layers.intermediate.get(&MemorySource, key)?.is_none();
                self.live += u64::from(is_newest);
            }
            NodeLink::Branch(link) => {
                let path = link.path(&slot);
                self.reached.insert(mark(&branch_key(&path, link.stamp())));
                let source = SnapshotView(self.view);
                let branch = match rows(&source).load(&path, link) {
                    Ok(branch) => branch,
                    Err(fault) => {
                        (self.report)(fault);
                        return Ok(());
                    }
                };
                if branch.rehashed(&path) != *branch.reference() {
                    let what = format!("the branch at {path:?} of generation {}", link.stamp());
                    self.fault(SNAPSHOT, format!("{what} has another hash"));
                }
                for (nibble, child) in (0u8..).zip(branch.children()) {
                    if let Some(child) = child {
                        let mut slot = path;
                        slot.push(nibble);
                        self.link(layers, slot, child)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that the merge under way can be made from the stored rows, and that the rows written
    /// ahead are its first rows. Otherwise only the block at the next boundary would find the
    /// fault, perhaps thousands of blocks later.
    fn merge_under_way(&mut self, layers: &SmallLayers) -> Result<(), StateError> {
        let settled = rows_ahead(self.view, self.meta.merging())?;
        let made = match merge::make_all_rows(self.view, self.meta, &layers.intermediate) {
            Ok(made) => made,
            Err(fault) => {
                let (table, what) = match fault {
                    StateError::Corrupt { table, what } => (table, what),
                    other => (SNAPSHOT.name.into(), other.to_string()),
                };
                let what = format!("the merge under way cannot be made: {what}");
                (self.report)(StateError::corrupt(table, what));
                self.ahead = None;
                return Ok(());
            }
        };
        let first = usize::try_from(settled).unwrap_or(usize::MAX);
        if first > made.len() {
            let what = format!("{settled} of {} rows of the merge are written ahead", made.len());
            self.fault(META, what);
        }
        let mut ahead = HashSet::default();
        for row in made.rows(0, first).iter() {
            let key = RowOrigin::Ahead.key(&row.key);
            match self.view.get(row.table, &key)? {
                Some(stored) if stored == row.row => {}
                found => {
                    let is = if found.is_some() { "not what the merge makes" } else { "missing" };
                    let what = format!("row {} written ahead is {is}", Bytes::from(key.clone()));
                    self.fault(row.table, what);
                }
            }
            ahead.insert(mark(&key));
        }
        self.ahead = Some(ahead);
        Ok(())
    }

    /// The rows that are garbage according to the lists.
    fn lists(&mut self) -> Result<HashSet<u128>, StateError> {
        let mut useless = HashSet::default();
        for row in self.view.scan(LISTS, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, list) = row?;
            let generation = key.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
            let entries = match garbage_lists::decode(generation, &list) {
                Ok(entries) if key.len() == 13 => entries,
                Ok(_) => {
                    self.fault(LISTS, format!("row {key} is no list"));
                    continue;
                }
                Err(fault) => {
                    (self.report)(fault);
                    continue;
                }
            };
            if self.left.contains(&generation) {
                useless.extend(entries.iter().map(|(path, stamp)| mark(&branch_key(path, *stamp))));
            } else if !self.is_ahead(generation, &key) {
                self.fault(LISTS, format!("row {key}: generation {generation} is not published"));
            }
        }
        if !useless.is_disjoint(&self.reached) {
            self.fault(LISTS, "a row that the snapshot needs is on a list".into());
        }
        Ok(useless)
    }

    /// Checks the rows of the snapshot: each is in use, or garbage, or written ahead.
    fn snapshot_rows(&mut self, useless: &HashSet<u128>) -> Result<(), StateError> {
        for stored in self.view.scan(SNAPSHOT, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, _) = stored?;
            let parsed = key.split_last().and_then(|(origin, key)| {
                let is_known = RowOrigin::ALL.into_iter().any(|known| known as u8 == *origin);
                Some((key, parse_key(key).filter(|_| is_known)?))
            });
            let Some((branch, (_, stamp))) = parsed else {
                self.fault(SNAPSHOT, format!("row {key} names no branch"));
                continue;
            };
            // Garbage removal looks for a row of a block only if its generation is marked.
            if key.last() == Some(&(RowOrigin::Block as u8)) && !has_block_rows(self.view, stamp)? {
                let what =
                    format!("row {key} was written by a block, but all rows of generation {stamp}");
                self.fault(SNAPSHOT, format!("{what} were written ahead"));
            }
            let mark = mark(branch);
            if self.reached.contains(&mark) || useless.contains(&mark) {
                continue;
            }
            if !self.is_ahead(stamp, &key) {
                self.fault(SNAPSHOT, format!("nothing leads to the row {key}"));
            }
        }
        Ok(())
    }

    /// Whether a row was written ahead by the merge under way, or may have been.
    fn is_ahead(&self, generation: u64, key: &[u8]) -> bool {
        let is_settled = key.last() == Some(&(RowOrigin::Ahead as u8));
        let is_known = || self.ahead.as_ref().is_none_or(|ahead| ahead.contains(&mark(key)));
        generation == self.meta.merging() && is_settled && is_known()
    }

    /// Checks that Flat has exactly the values of the layers.
    fn values(&mut self, layers: &SmallLayers) -> Result<(), StateError> {
        let source = SnapshotView(self.view);
        let mut count = 0;
        for row in self.view.scan(flat::TABLE, KeyRange::ALL, ScanDirection::Forward)? {
            let (encoded, value) = row?;
            let Some(key) = BackendKey::decode(&encoded) else {
                self.fault(flat::TABLE, format!("row {encoded} is not a state key"));
                continue;
            };
            count += 1;
            let path = layer::path_of(&key);
            let small = |trie: &retrie_storage_mpt::Trie| trie.get(&MemorySource, &path);
            let found: Option<Bytes> = match small(&layers.delta)? {
                Some(found) => Some(found),
                None => match small(&layers.intermediate)? {
                    Some(found) => Some(found),
                    // A row that cannot be read was reported above.
                    None => match self.meta.snapshot.get(&rows(&source), &path) {
                        Ok(found) => found,
                        Err(_) => continue,
                    },
                },
            };
            let said = found.as_ref().and_then(|leaf| leaf::decode(leaf)).flatten();
            if said != Some(&value[..]) {
                self.fault(flat::TABLE, format!("{key} has another value than in the layers"));
            }
        }
        if count != self.live {
            let what = format!("{count} keys have values, {} have one in the layers", self.live);
            self.fault(flat::TABLE, what);
        }
        Ok(())
    }
}
