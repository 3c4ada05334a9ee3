//! The check of a run.

use super::{
    Run,
    build::{PAUSE_EVERY, PauseCheck, add_keys},
    file::PagedFile,
    filter::{self, FilterBuilder},
    index,
    merkle::{LeafHasher, TreeShape},
    model,
    values::DESCRIPTION,
};
use crate::hash;
use alloy_primitives::B256;
use retrie_state::StateError;
use std::cell::Cell;

impl Run {
    /// Reads everything and reports faults: checksums of all pages; order, positions and blocks of
    /// the pairs; both trees and the filter, recomputed; whether the index finds every page.
    ///
    /// # Errors
    /// Those of `pause`.
    pub(crate) fn check(
        &self,
        report: &mut dyn FnMut(StateError),
        pause: PauseCheck<'_>,
    ) -> Result<(), StateError> {
        let mut whole = true;
        for file in self.files() {
            for page in 0..file.pages() {
                if page.is_multiple_of(64) {
                    pause()?;
                }
                file.prefetch_after(page);
                if let Err(error) = file.check(page) {
                    whole = false;
                    report(error);
                }
            }
        }
        if !whole {
            // Further faults would follow from these.
            return Ok(());
        }
        let stopped = Cell::new(false);
        let pause = || pause().inspect_err(|_| stopped.set(true));
        let source = &self.description.source;
        let mut done = |checked: Result<(), StateError>| match checked {
            Err(error) if stopped.get() => Err(error),
            Err(error) => {
                report(error);
                Ok(())
            }
            Ok(()) => Ok(()),
        };
        done(match &self.versions {
            None => self.check_pairs(&pause),
            Some(versions) => self.check_trees(versions, &pause),
        })?;
        done(self.check_layers(&self.tree, &source.top, &pause))?;
        done(self.check_filter(&pause))?;
        done(self.check_layers(&self.filter_tree, &source.filter_top, &pause))?;
        done(self.check_index(&pause))
    }

    fn check_pairs(&self, pause: PauseCheck<'_>) -> Result<(), StateError> {
        let (source, file) = (&self.description.source, &self.values.file);
        let (mut key, mut block) = (Vec::new(), 0);
        let (mut pairs, mut keys, mut first_block, mut last_block) = (0, 0, u64::MAX, 0);
        let mut leaves = LeafHasher::new(self.description.fanout);
        let mut digests = self.digests(&self.tree, file);
        let mut cursor = self.values.cursor();
        while let Some(pair) = cursor.next()? {
            if pairs % PAUSE_EVERY == 0 {
                pause()?;
            }
            if pair.position != pairs {
                let what = format!("pair {pairs} says that it is number {}", pair.position);
                return Err(file.wrong(what));
            }
            if (&*key, block) >= (pair.key, pair.block) {
                return Err(file.wrong(format!("pair {pairs} does not come after the one before")));
            }
            if key != pair.key {
                keys += 1;
                key.clear();
                key.extend_from_slice(pair.key);
            }
            block = pair.block;
            first_block = block.min(first_block);
            last_block = block.max(last_block);
            pairs += 1;
            leaves.add_input(|batch| batch.pair(pair.key, pair.block, pair.value));
            if let Some(layer) = leaves.drain() {
                digests(&layer)?;
            }
        }
        digests(&leaves.finish().0)?;
        let found = (pairs, keys, first_block, last_block);
        let said = (source.pairs, self.description.keys, source.first_block, source.last_block);
        if found != said {
            let what = format!(
                "pairs, keys, first and last block are {found:?}, the description says {said:?}"
            );
            return Err(file.wrong(what));
        }
        Ok(())
    }

    /// Compares digests of the lowest stored layer of a tree, which follow from `file`, with the
    /// stored ones, as they come.
    pub(super) fn digests<'a>(
        &'a self,
        tree: &'a TreeShape,
        file: &'a PagedFile,
    ) -> impl FnMut(&[B256]) -> Result<(), StateError> + 'a {
        let mut next = 0;
        move |digests| {
            for digest in digests {
                let known = next < tree.count(tree.lowest());
                if !known || tree.digest(&self.merkle, tree.lowest(), next)? != *digest {
                    let leaves = tree.leaves(tree.lowest(), next);
                    let what = format!("digest {next} does not fit {} {leaves:?}", file.name());
                    return Err(self.merkle.wrong(what));
                }
                next += 1;
            }
            Ok(())
        }
    }

    /// Checks the layers above the lowest stored one.
    fn check_layers(
        &self,
        tree: &TreeShape,
        top: &B256,
        pause: PauseCheck<'_>,
    ) -> Result<(), StateError> {
        for layer in tree.lowest() + 1..=tree.top() {
            for index in 0..tree.count(layer) {
                if index.is_multiple_of(PAUSE_EVERY) {
                    pause()?;
                }
                let children = tree.children(layer, index);
                let children = children.map(|child| tree.digest(&self.merkle, layer - 1, child));
                let children = children.collect::<Result<Vec<_>, _>>()?;
                if tree.digest(&self.merkle, layer, index)? != hash::node(&children) {
                    let what = format!("node {index} of layer {layer} does not fit its children");
                    return Err(self.merkle.wrong(what));
                }
            }
        }
        if tree.digest(&self.merkle, tree.top(), 0)? != *top {
            return Err(self.merkle.wrong("a top is not the one in the run's description"));
        }
        Ok(())
    }

    fn check_filter(&self, pause: PauseCheck<'_>) -> Result<(), StateError> {
        let (name, keys) = (self.filter.name(), self.description.keys);
        let mut expected = FilterBuilder::new(&self.dir, name, keys, filter::MEMORY)?;
        add_keys(&self.values, &mut expected, pause)?;
        let mut leaves = LeafHasher::new(self.description.fanout);
        let mut digests = self.digests(&self.filter_tree, &self.filter);
        let mut number = 0;
        expected.finish(|blocks| {
            for expected in blocks {
                if filter::block(&self.filter, number)? != expected {
                    return Err(self.filter.wrong(format!("block {number} does not fit the keys")));
                }
                number += 1;
                leaves.add_input(|batch| batch.filter_block(expected));
                if let Some(layer) = leaves.drain() {
                    digests(&layer)?;
                }
            }
            pause()
        })?;
        digests(&leaves.finish().0)
    }

    fn check_index(&self, pause: PauseCheck<'_>) -> Result<(), StateError> {
        let mut number = DESCRIPTION + 1;
        while number < self.values.file.pages() {
            self.values.file.prefetch_after(number);
            let page = self.values.page(number)?;
            let first = page.first().ok_or_else(|| self.values.unreadable(number))?;
            let key = model::number(first.0, first.1);
            let guess = index::search(&self.index, &self.description.index_pages, &key)?;
            // A prediction is at most half a page off.
            if guess != number && guess + 1 != number {
                let what = format!("it takes the first pair of value page {number} to {guess}");
                return Err(self.index.wrong(what));
            }
            if number.is_multiple_of(64) {
                pause()?;
            }
            number += page.span;
        }
        Ok(())
    }
}
