//! A tree of pages over units: changing it by a sorted batch, and building it.
//!
//! The one primitive is [`Tree::update`]: a recursive descent in which every touched page is loaded,
//! hashed and written once. Whether a page survives is decided after all its exits are done, so one
//! batch may mix insertions and deletions. [`PageBuilder`] makes a tree, or a part of one, of sorted
//! units in one sweep.

use crate::{
    hash::{Subtree, TreeHash},
    page::{
        Exit, ExitTarget, Page, PagePath, TreePlace, UNKNOWN, Unit, common_nibbles, exit_from,
        nibble,
    },
    row::RowChange,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{NodeRead, StateError};
use std::sync::Arc;

/// Number of items from which threads share the work.
const PARALLEL_ITEMS: usize = 32;
/// Longest path, in nibbles, of the pages that the store keeps in memory by default.
pub(crate) const KEPT_NIBBLES: u8 = 4;

/// What the units of a tree are.
pub(crate) trait TreeUnits: Sync {
    /// A change of a unit.
    type Item: Sync;

    /// The path of the changed unit. Items come sorted by it.
    fn path<'a>(&self, item: &'a Self::Item) -> &'a B256;

    /// What is at the path after the change, with its subtree; `None` if nothing is. `old` is what was
    /// there. Changed rows go to `rows`.
    fn resolve(
        &self,
        item: &Self::Item,
        old: Option<&Unit>,
        old_hash: &B256,
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<(Unit, Subtree)>, StateError>;

    /// The subtree of a unit that does not change.
    fn subtree(&self, unit: &Unit) -> Result<Subtree, StateError>;
}

/// Pages that were loaded ahead.
pub(crate) trait LoadedPages: Sync {
    /// The page of a tree, if it was loaded.
    fn get(&self, tree: &TreePlace, path: &PagePath) -> Option<Arc<Page>>;

    /// Whether a changed page stays in memory.
    fn keeps(&self, path: &PagePath) -> bool {
        path.len <= KEPT_NIBBLES
    }

    /// Called when a page had stayed in memory, so that this can be counted.
    fn found(&self, path: &PagePath) {
        let _ = path;
    }

    /// Called when a page must be loaded.
    fn missed(&self, path: &PagePath) {
        let _ = path;
    }
}

/// A tree, and where it comes from.
pub(crate) struct Tree<'a, U> {
    pub(crate) hash: TreeHash,
    pub(crate) place: &'a TreePlace,
    pub(crate) view: &'a dyn NodeRead,
    pub(crate) loaded: &'a dyn LoadedPages,
    pub(crate) units: &'a U,
}

impl<U> Clone for Tree<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Tree<'_, U> {}

/// An exit whose hash follows from where it hangs: from `subtree`, or if that is not known, from the
/// exit's own hash, if it hangs as before.
#[derive(Clone, Debug)]
pub(crate) struct HungExit {
    pub(crate) exit: Exit,
    pub(crate) subtree: Option<Subtree>,
}

/// What a slot of the tree has after an update.
#[expect(clippy::large_enum_variant, reason = "it is moved at once, and most slots change")]
enum SlotChange {
    /// What it had.
    Same,
    Now(Option<HungExit>),
}

impl<'a, U: TreeUnits> Tree<'a, U> {
    /// Applies sorted changes to what hangs at the root. Returns what hangs there then, and its
    /// subtree; `None` inside if nothing changed.
    pub(crate) fn update(
        &self,
        root: Option<&Exit>,
        items: &[U::Item],
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<Option<(Exit, Subtree)>>, StateError> {
        let next = match self.slot(root, 0, items, rows)? {
            SlotChange::Same => return Ok(None),
            SlotChange::Now(next) => next,
        };
        let next = match next {
            None => None,
            Some(HungExit { exit, subtree }) => {
                let subtree = match subtree {
                    Some(subtree) => subtree,
                    None => self.subtree(&exit)?,
                };
                Some((rooted(exit, &subtree), subtree))
            }
        };
        rows.push(RowChange {
            table: self.place.table,
            key: self.place.root_row(),
            previous: root.map(TreePlace::encode_root),
            next: next.as_ref().map(|(exit, _)| TreePlace::encode_root(exit)),
        });
        Ok(Some(next))
    }

    /// The page behind an exit.
    pub(crate) fn page(
        &self,
        path: &PagePath,
        page: Option<&Arc<Page>>,
    ) -> Result<Arc<Page>, StateError> {
        match page {
            Some(page) => {
                self.loaded.found(path);
                Ok(page.clone())
            }
            // A page that was loaded ahead was missed then.
            None => match self.loaded.get(self.place, path) {
                Some(page) => Ok(page),
                None => {
                    self.loaded.missed(path);
                    self.place.load(self.hash, self.view, path)
                }
            },
        }
    }

    /// The subtree below an exit that did not change.
    pub(crate) fn subtree(&self, exit: &Exit) -> Result<Subtree, StateError> {
        if let Some(known) = exit.known_subtree() {
            return Ok(known);
        }
        match &exit.target {
            ExitTarget::Unit(unit) => self.units.subtree(unit),
            ExitTarget::Page(path, page) => {
                Ok(self.page(path, page.as_ref())?.subtree(self.hash, self.place))
            }
        }
    }

    /// Applies `items`, which all belong below a slot, to what hangs there. The path of the slot has
    /// `depth` nibbles.
    fn slot(
        &self,
        old: Option<&Exit>,
        depth: u8,
        items: &[U::Item],
        rows: &mut Vec<RowChange>,
    ) -> Result<SlotChange, StateError> {
        let (Some(first), Some(last)) = (items.first(), items.last()) else {
            return Ok(SlotChange::Same);
        };
        let (path, loaded) = match old.map(|exit| &exit.target) {
            Some(ExitTarget::Page(path, loaded)) => (path, loaded.as_ref()),
            Some(ExitTarget::Unit(unit)) => {
                return self.units_slot(old.map(|exit| (exit, &**unit)), depth, items, rows);
            }
            None => return self.units_slot(None, depth, items, rows),
        };
        let common = |item| common_nibbles(self.units.path(item), &path.bits).min(path.len);
        let common = common(first).min(common(last));
        if common == path.len {
            return self.page_slot(path, loaded, items, rows);
        }
        // Some paths leave that of the page before it: they need a new page above, unless all these
        // changes are removals of what is not there.
        let mut changed = 0u16;
        let mut exits: [Option<HungExit>; 16] = Default::default();
        let own = nibble(&path.bits, common);
        for (at, items) in self.by_nibble(items, common) {
            let old = if at == own { old } else { None };
            if let SlotChange::Now(next) = self.slot(old, common + 1, items, rows)? {
                changed |= 1 << at;
                exits[at] = next;
            }
        }
        if changed == 0 {
            return Ok(SlotChange::Same);
        }
        if changed >> own & 1 == 0 {
            exits[own] = old.map(|exit| HungExit { exit: exit.clone(), subtree: None });
            if exits.iter().flatten().count() == 1 {
                return Ok(SlotChange::Same);
            }
        }
        self.close(&PagePath::of(&path.bits, common), exits, None, changed, rows)
    }

    /// [`slot`](Self::slot) where a page hangs that all items belong below.
    fn page_slot(
        &self,
        path: &PagePath,
        loaded: Option<&Arc<Page>>,
        items: &[U::Item],
        rows: &mut Vec<RowChange>,
    ) -> Result<SlotChange, StateError> {
        let page = self.page(path, loaded)?;
        let parts: Vec<_> = self.by_nibble(items, path.len).collect();
        let update = |(at, items): &(usize, &[U::Item])| {
            let mut rows = Vec::new();
            let next = self.slot(page.exit(*at), path.len + 1, items, &mut rows)?;
            Ok((*at, next, rows))
        };
        let done: Vec<_> = if items.len() >= PARALLEL_ITEMS && parts.len() > 1 {
            parts.par_iter().map(update).collect::<Result<_, StateError>>()?
        } else {
            parts.iter().map(update).collect::<Result<_, StateError>>()?
        };
        let mut exits: [Option<HungExit>; 16] = Default::default();
        for (at, exit) in page.exits() {
            exits[at] = Some(HungExit { exit: exit.clone(), subtree: None });
        }
        let mut changed = 0u16;
        for (at, next, mut more) in done {
            rows.append(&mut more);
            if let SlotChange::Now(next) = next {
                changed |= 1 << at;
                exits[at] = next;
            }
        }
        if changed == 0 {
            return Ok(SlotChange::Same);
        }
        self.close(path, exits, Some(&page), changed, rows)
    }

    /// [`slot`](Self::slot) where at most one unit hangs.
    fn units_slot(
        &self,
        old: Option<(&Exit, &Unit)>,
        depth: u8,
        items: &[U::Item],
        rows: &mut Vec<RowChange>,
    ) -> Result<SlotChange, StateError> {
        let old_of = |item: &U::Item| {
            let old = old.filter(|(_, unit)| unit.path == *self.units.path(item));
            (old.map(|(_, unit)| unit), old.map_or(B256::ZERO, |(exit, _)| exit.hash))
        };
        let resolve = |item: &U::Item| {
            let mut rows = Vec::new();
            let (old, hash) = old_of(item);
            let next = self.units.resolve(item, old, &hash, &mut rows)?;
            Ok((next, rows))
        };
        let done: Vec<_> = if items.len() >= PARALLEL_ITEMS {
            items.par_iter().map(resolve).collect::<Result<_, StateError>>()?
        } else {
            items.iter().map(resolve).collect::<Result<_, StateError>>()?
        };
        let replaced = items.iter().any(|item| old_of(item).0.is_some());
        let kept = old.filter(|_| !replaced);
        if !replaced && done.iter().all(|(next, _)| next.is_none()) {
            return Ok(SlotChange::Same);
        }
        let mut kept = kept.map(|(exit, _)| HungExit { exit: exit.clone(), subtree: None });
        let mut builder = PageBuilder::new(*self, depth);
        for (next, mut more) in done {
            rows.append(&mut more);
            let Some((unit, subtree)) = next else { continue };
            if let Some(kept) = kept.take_if(|kept| *kept.exit.path() < unit.path) {
                builder.push(kept, rows)?;
            }
            builder.push(HungExit::unit(unit, subtree), rows)?;
        }
        if let Some(kept) = kept {
            builder.push(kept, rows)?;
        }
        Ok(SlotChange::Now(builder.finish(rows)?))
    }

    /// The items by their nibble `at`.
    fn by_nibble<'i>(
        &'i self,
        items: &'i [U::Item],
        at: u8,
    ) -> impl Iterator<Item = (usize, &'i [U::Item])> {
        let nibble = move |item: &U::Item| nibble(self.units.path(item), at);
        items
            .chunk_by(move |a, b| nibble(a) == nibble(b))
            .filter_map(move |items| items.first().map(|first| (nibble(first), items)))
    }

    /// The page with these exits; or the one that is left, or nothing. `old` is the page that had this
    /// path, `changed` has a bit for each nibble whose exit has changed since then.
    fn close(
        &self,
        path: &PagePath,
        exits: [Option<HungExit>; 16],
        old: Option<&Page>,
        changed: u16,
        rows: &mut Vec<RowChange>,
    ) -> Result<SlotChange, StateError> {
        let count = exits.iter().flatten().count();
        if count < 2 {
            if let Some(old) = old {
                rows.push(self.place.change(path, Some(old), None));
            }
            return Ok(SlotChange::Now(exits.into_iter().flatten().next()));
        }
        let hung = self.page_of(path, exits, old, changed, rows)?;
        Ok(SlotChange::Now(Some(hung)))
    }

    /// The page with these exits, of which there are at least two.
    fn page_of(
        &self,
        path: &PagePath,
        exits: [Option<HungExit>; 16],
        old: Option<&Page>,
        changed: u16,
        rows: &mut Vec<RowChange>,
    ) -> Result<HungExit, StateError> {
        let mut mask = 0u16;
        for (at, exit) in exits.iter().enumerate() {
            mask |= u16::from(exit.is_some()) << at;
        }
        let mut hashed: [Option<Exit>; 16] = Default::default();
        for (at, hung) in exits.into_iter().enumerate() {
            let Some(HungExit { mut exit, subtree }) = hung else { continue };
            let from = exit_from(self.place, path, mask, at);
            if subtree.is_some() || exit.from != from {
                let subtree = match subtree {
                    Some(subtree) => subtree,
                    None => self.subtree(&exit)?,
                };
                exit.hash = subtree.hash(self.hash, usize::from(from));
                exit.from = from;
            }
            hashed[at] = Some(exit.kept(self.loaded));
        }
        let page = Page::new(*path, hashed, old, changed);
        let subtree = page.subtree(self.hash, self.place);
        rows.push(self.place.change(path, old, Some(&page)));
        let target = ExitTarget::Page(*path, Some(Arc::new(page)));
        let exit = Exit { hash: B256::ZERO, from: UNKNOWN, target };
        Ok(HungExit { exit, subtree: Some(subtree) })
    }
}

/// An exit as it hangs at a root.
pub(crate) fn rooted(mut exit: Exit, subtree: &Subtree) -> Exit {
    exit.hash = match subtree {
        Subtree::Leaf(leaf) => *leaf,
        Subtree::Branch { .. } => B256::ZERO,
    };
    exit.from = UNKNOWN;
    exit
}

impl Exit {
    /// The exit without the page in memory, if it is too deep to keep.
    fn kept(mut self, loaded: &dyn LoadedPages) -> Self {
        if let ExitTarget::Page(path, page) = &mut self.target
            && !loaded.keeps(path)
        {
            *page = None;
        }
        self
    }
}

impl HungExit {
    pub(crate) fn unit(unit: Unit, subtree: Subtree) -> Self {
        let target = ExitTarget::Unit(Arc::new(unit));
        Self { exit: Exit { hash: B256::ZERO, from: UNKNOWN, target }, subtree: Some(subtree) }
    }
}

/// Makes pages of units, or other exits, in the order of their paths: a stack holds the open pages on
/// the way to the last one.
pub(crate) struct PageBuilder<'a, U> {
    tree: Tree<'a, U>,
    /// The nibbles that all paths share.
    depth: u8,
    open: Vec<OpenPage>,
    last: Option<HungExit>,
}

/// A page that more exits may come to.
struct OpenPage {
    path: PagePath,
    exits: [Option<HungExit>; 16],
}

impl<'a, U: TreeUnits> PageBuilder<'a, U> {
    /// A tree without units, below a slot whose path has `depth` nibbles.
    pub(crate) const fn new(tree: Tree<'a, U>, depth: u8) -> Self {
        Self { tree, depth, open: Vec::new(), last: None }
    }

    /// Adds the next exit.
    pub(crate) fn push(
        &mut self,
        next: HungExit,
        rows: &mut Vec<RowChange>,
    ) -> Result<(), StateError> {
        if let Some(last) = self.last.take() {
            let common = common_nibbles(last.exit.path(), next.exit.path());
            debug_assert!(common >= self.depth && last.exit.path() < next.exit.path());
            let path = PagePath::of(next.exit.path(), common);
            let last = self.close(last, Some(common), rows)?;
            if self.open.last().is_none_or(|open| open.path.len < common) {
                self.open.push(OpenPage { path, exits: Default::default() });
            }
            if let Some(open) = self.open.last_mut() {
                let at = nibble(last.exit.path(), common);
                open.exits[at] = Some(last);
            }
        }
        self.last = Some(next);
        Ok(())
    }

    /// Closes the open pages that are deeper than `common` nibbles, with `last` in the deepest one.
    fn close(
        &mut self,
        mut last: HungExit,
        common: Option<u8>,
        rows: &mut Vec<RowChange>,
    ) -> Result<HungExit, StateError> {
        while let Some(mut open) =
            self.open.pop_if(|open| common.is_none_or(|common| open.path.len > common))
        {
            let at = nibble(last.exit.path(), open.path.len);
            open.exits[at] = Some(last);
            last = self.tree.page_of(&open.path, open.exits, None, u16::MAX, rows)?;
        }
        Ok(last)
    }

    /// What hangs at the slot.
    pub(crate) fn finish(
        mut self,
        rows: &mut Vec<RowChange>,
    ) -> Result<Option<HungExit>, StateError> {
        match self.last.take() {
            None => Ok(None),
            Some(last) => self.close(last, None, rows).map(Some),
        }
    }
}
