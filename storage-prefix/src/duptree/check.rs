//! The check of `db verify`: every row of keys and nodes is well-formed, and all rows fit together.

use super::{
    hash,
    keys::{self, KEYS},
    layout::{DupTreeLayout, row_key},
    leaf::IndexedLeaf,
    meta::{DupTreeMeta, META},
    shape::{LEVELS, SubtreePlace, TreeShape, WIDTH},
    subtree::{BOTTOM, NODES, Subtree, node_at},
};
use alloy_primitives::{B256, hex};
use retrie_state::{BackendKey, KeyRange, NodeRead, ScanDirection, StateError, StateValue, flat};

/// Checks the rows of the state in `view`, whose recorded root is `root`; see
/// [`Backend::check`](retrie_state::Backend::check).
pub(crate) fn check(
    layout: DupTreeLayout,
    view: &dyn NodeRead,
    empty: DupTreeMeta,
    root: B256,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let meta = DupTreeMeta::read(view)?.unwrap_or(empty);
    let found = hash::root(meta.shape.height(), &meta.top);
    if found != root {
        let what = format!("row ff leads to root {found}, recorded is {root}");
        report(StateError::corrupt(NODES.name, what));
    }
    let mut check = DupTreeCheck { layout, view, shape: meta.shape, report };
    check.foreign_rows()?;
    if !check.count()? {
        // The positions of all nodes depend on the number of leaves.
        return Ok(());
    }
    check.keys()?;
    let Some(layer) = meta.shape.layers().checked_sub(1) else { return Ok(()) };
    let levels = meta.shape.height() - layer * LEVELS;
    let top = check.subtree(SubtreePlace { layer, index: 0 }, node_at(levels, 0))?;
    if top.is_some_and(|top| top != meta.top) {
        let what = "row ff has another top than the nodes";
        (check.report)(StateError::corrupt(NODES.name, what));
    }
    Ok(())
}

struct DupTreeCheck<'a> {
    layout: DupTreeLayout,
    view: &'a dyn NodeRead,
    shape: TreeShape,
    report: &'a mut dyn FnMut(StateError),
}

impl DupTreeCheck<'_> {
    fn corrupt(&mut self, table: &str, what: String) {
        (self.report)(StateError::corrupt(table, what));
    }

    /// Reports rows that belong to no node.
    fn foreign_rows(&mut self) -> Result<(), StateError> {
        for row in self.view.scan(NODES, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, _) = row?;
            let is_node = key.split_first_chunk::<1>().is_some_and(|([layer], number)| {
                let number = number.try_into().map(u64::from_be_bytes);
                number.is_ok_and(|number| number < self.layout.count(self.shape, *layer))
            });
            if !is_node && (key[..] != *META || self.shape.leaves == 1) {
                self.corrupt(NODES.name, format!("row {key}: no node of the tree has it"));
            }
        }
        Ok(())
    }

    /// Whether the number of keys fits the number of leaves.
    fn count(&mut self) -> Result<bool, StateError> {
        let rows = self.view.scan(KEYS, KeyRange::ALL, ScanDirection::Forward)?;
        let keys = rows.map(|row| row.map(|_| 1)).sum::<Result<u64, StateError>>()?;
        let fits = keys + 1 == self.shape.leaves;
        if !fits {
            let what = format!("{keys} keys have leaves, row ff says {}", self.shape.leaves - 1);
            self.corrupt(KEYS.name, what);
        }
        Ok(fits)
    }

    /// Checks keys and values, their leaves, and the leaf numbers: each occurs once, without gaps.
    fn keys(&mut self) -> Result<(), StateError> {
        let mut leaves = LeafNumbers::new(self.shape.leaves);
        let mut values = self.view.scan(flat::TABLE, KeyRange::ALL, ScanDirection::Forward)?;
        let mut value = values.next().transpose()?;
        let mut last = (IndexedLeaf::SENTINEL, 0);
        for row in self.view.scan(KEYS, KeyRange::ALL, ScanDirection::Forward)? {
            let row = row?;
            let (key, number) = match keys::decode(&row) {
                Ok(found) => found,
                Err(error) => {
                    (self.report)(error);
                    continue;
                }
            };
            let mut own: Option<StateValue> = None;
            while let Some((encoded, held)) = value.take_if(|(encoded, _)| *encoded <= row.0) {
                if encoded == row.0 {
                    own = Some(held);
                } else {
                    self.corrupt(flat::TABLE.name, format!("row {encoded} has no leaf"));
                }
                value = values.next().transpose()?;
            }
            last.0.next = Some(key);
            let next = (IndexedLeaf { key: Some(key), value: own, next: None }, number);
            let before = std::mem::replace(&mut last, next);
            self.leaf(&mut leaves, &before.0, before.1)?;
        }
        self.leaf(&mut leaves, &last.0, last.1)?;
        while let Some((encoded, _)) = value {
            self.corrupt(flat::TABLE.name, format!("row {encoded} has no leaf"));
            value = values.next().transpose()?;
        }
        Ok(())
    }

    /// Checks the hash of a leaf, at its number in the tree.
    fn leaf(
        &mut self,
        leaves: &mut LeafNumbers,
        leaf: &IndexedLeaf,
        number: u64,
    ) -> Result<(), StateError> {
        let name = |key: &Option<BackendKey>| {
            key.map_or_else(|| "the first leaf".to_owned(), |key| key.to_string())
        };
        match leaves.take(number) {
            NumberUse::First => {}
            NumberUse::Twice => {
                let what = format!("{}: another key has leaf {number}, too", name(&leaf.key));
                self.corrupt(KEYS.name, what);
                return Ok(());
            }
            NumberUse::Beyond => {
                let what = format!("{}: there is no leaf {number}", name(&leaf.key));
                self.corrupt(KEYS.name, what);
                return Ok(());
            }
        }
        if self.shape.layers() == 0 {
            return Ok(());
        }
        let place = SubtreePlace { layer: 0, index: number / WIDTH };
        if leaves.subtree.as_ref().is_none_or(|(index, _)| *index != place.index) {
            // Faults of its rows are reported later.
            let subtree = self.layout.check(self.view, self.shape, place, &mut |_| {})?;
            leaves.subtree = Some((place.index, subtree));
        }
        let Some((_, Some(subtree))) = &leaves.subtree else { return Ok(()) };
        let mut bytes = Vec::new();
        leaf.encode(&mut bytes);
        if subtree.need(BOTTOM + (number % WIDTH) as usize)? != &hash::leaf(&bytes) {
            let row = match self.layout {
                DupTreeLayout::Naive => row_key(0, number),
                DupTreeLayout::Dup => row_key(0, number ^ 1),
                DupTreeLayout::Blocked => row_key(0, place.index),
            };
            let what = format!(
                "row {} has another leaf {number} than key, value and next key of {} make",
                hex::encode(row),
                name(&leaf.key)
            );
            self.corrupt(NODES.name, what);
        }
        Ok(())
    }

    /// Checks a subtree and all subtrees below it; returns its node `wanted`, if it can be read.
    fn subtree(&mut self, place: SubtreePlace, wanted: usize) -> Result<Option<B256>, StateError> {
        let SubtreePlace { layer, index } = place;
        let subtree = self.layout.check(self.view, self.shape, place, self.report)?;
        if let Some(below) = layer.checked_sub(1) {
            for bottom in 0..u64::from(self.shape.filled(place)) {
                let child = SubtreePlace { layer: below, index: index * WIDTH + bottom };
                let root = self.subtree(child, super::subtree::ROOT)?;
                let Some((subtree, root)) = subtree.as_ref().zip(root) else { continue };
                if subtree.need(BOTTOM + bottom as usize)? != &root {
                    let what = format!(
                        "layer {layer} has another root of subtree {} below it than its rows have",
                        child.index
                    );
                    self.corrupt(NODES.name, what);
                }
            }
        }
        subtree.map(|subtree| subtree.need(wanted).copied()).transpose()
    }
}

/// The leaf numbers in use, and the subtree of layer 0 that was read last.
struct LeafNumbers {
    met: Vec<u64>,
    all: u64,
    subtree: Option<(u64, Option<Subtree>)>,
}

enum NumberUse {
    First,
    Twice,
    Beyond,
}

impl LeafNumbers {
    const fn new(all: u64) -> Self {
        Self { met: Vec::new(), all, subtree: None }
    }

    fn take(&mut self, number: u64) -> NumberUse {
        if number >= self.all {
            return NumberUse::Beyond;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.met.len() <= word {
            self.met.resize(word + 1, 0);
        }
        if self.met[word] & bit != 0 {
            return NumberUse::Twice;
        }
        self.met[word] |= bit;
        NumberUse::First
    }
}
