//! The check of the pairs and the version trees of a run.

use super::{
    PairCursor, Run,
    build::{PAUSE_EVERY, PauseCheck},
    merkle::LeafHasher,
    version_file::{KeyEntry, VersionFile},
    version_tree::{SINGLE, StepReader, TreeBuilder, TreeStep},
};
use crate::hash;
use retrie_state::StateError;

/// What has been counted.
struct TreeCheck<'a> {
    run: &'a Run,
    cursor: PairCursor<'a>,
    pairs: u64,
    pruned: bool,
    first_block: u64,
    last_block: u64,
}

impl Run {
    /// Checks order, positions and blocks of the pairs, all version trees, and the leaves of the tree
    /// over the keys.
    pub(super) fn check_trees(
        &self,
        versions: &VersionFile,
        pause: PauseCheck<'_>,
    ) -> Result<(), StateError> {
        versions.check_headers()?;
        let (info, file) = (&self.description, &self.values.file);
        let mut entries = versions.entries(0)?;
        let mut leaves = LeafHasher::new(info.fanout);
        let mut digests = self.digests(&self.tree, file);
        let cursor = self.values.cursor();
        let (pruned, first_block, last_block) = (false, u64::MAX, 0);
        let mut check = TreeCheck { run: self, cursor, pairs: 0, pruned, first_block, last_block };
        let (mut key, mut keys) = (Vec::new(), 0u64);
        while check.cursor.advance()? {
            if keys.is_multiple_of(PAUSE_EVERY) {
                pause()?;
            }
            keys += 1;
            if *check.cursor.pair().key <= key[..] {
                let what = format!("key {keys} does not come after the one before");
                return Err(file.wrong(what));
            }
            key = check.cursor.pair().key.to_vec();
            let entry = entries.next()?;
            let mut tree = TreeBuilder::default();
            check.add_tree(versions, &entry, &key, &mut tree)?;
            let bytes = entry.tree.as_deref().unwrap_or(SINGLE);
            match tree.whole() {
                Ok((top, pairs, expected)) if (pairs, expected) == (entry.pairs, bytes) => {
                    match &entry.tree {
                        None => leaves.add_digest(top),
                        Some(_) => leaves.add_input(|batch| batch.versions(&key, &top)),
                    }
                }
                _ => return Err(versions.wrong_tree(entry.number)),
            }
            if let Some(layer) = leaves.drain() {
                digests(&layer)?;
            }
        }
        digests(&leaves.finish().0)?;
        let found = (check.pairs, keys, check.last_block, entries.records());
        let trees = info.versions.map_or(0, |versions| versions.trees);
        let said = (info.stored_pairs(), info.keys, info.source.last_block, (trees, false));
        let is_first = match check.pruned {
            true => info.source.first_block <= check.first_block,
            false => {
                (info.source.first_block, info.source.pairs) == (check.first_block, check.pairs)
            }
        };
        if found != said || !is_first {
            let what = format!(
                "pairs, keys, last block and version trees are {found:?}, the description says \
                 {said:?}, from block {} on",
                info.source.first_block
            );
            return Err(file.wrong(what));
        }
        Ok(())
    }
}

impl TreeCheck<'_> {
    /// Builds the tree of the key of the current pair anew, from its pairs.
    fn add_tree(
        &mut self,
        versions: &VersionFile,
        entry: &KeyEntry,
        key: &[u8],
        tree: &mut TreeBuilder,
    ) -> Result<(), StateError> {
        let wrong = || versions.wrong_tree(entry.number);
        let mut before: Option<u64> = None;
        for step in StepReader::new(entry.tree.as_deref().unwrap_or(SINGLE)) {
            match step.map_err(|_| wrong())? {
                TreeStep::Pruned(digest) => {
                    self.pruned = true;
                    tree.pruned(digest);
                }
                TreeStep::Join(_) => {
                    tree.join().map_err(|_| wrong())?;
                }
                TreeStep::Pair => {
                    if before.is_some() && !self.cursor.advance()? {
                        return Err(wrong());
                    }
                    let pair = self.cursor.pair();
                    let is_next = pair.position == self.pairs && *pair.key == *key;
                    if !is_next || before.is_some_and(|before| before >= pair.block) {
                        let what =
                            format!("pair {} does not come after the one before", self.pairs);
                        return Err(self.run.values.file.wrong(what));
                    }
                    tree.pair(hash::pair(key, pair.block, pair.value));
                    before = Some(pair.block);
                    self.first_block = self.first_block.min(pair.block);
                    self.last_block = self.last_block.max(pair.block);
                    self.pairs += 1;
                }
            }
        }
        Ok(())
    }
}
