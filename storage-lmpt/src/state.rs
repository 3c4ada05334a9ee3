//! [`LmptState`]: the structure in memory of one block's state.

use crate::{layer, merge::MergeJob, record::LmptMeta};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{NodeRead, StateError};
use retrie_storage_mpt::{Trie, TrieHash};
use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

/// The root of a trie without keys.
pub(crate) const EMPTY: B256 = TrieHash::Keccak256.empty_root();

/// The structure in memory of one block's state. It shares with its parent's structure all that the
/// block did not change.
#[derive(Debug)]
pub struct LmptState {
    /// `None` before the first block.
    pub(crate) meta: Option<LmptMeta>,
    layers: OnceLock<SmallLayers>,
    /// The merge of the intermediate trie, once a block has started it.
    pub(crate) merge: Option<MergeJob>,
    pub(crate) hints: Arc<Mutex<GarbageHints>>,
    /// The number of keys that the block changed.
    changed: u64,
}

/// The two small layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SmallLayers {
    pub(crate) delta: Trie,
    pub(crate) intermediate: Arc<FrozenTrie>,
}

/// A layer that changes no more. A thread frees its nodes at the end, hundreds of thousands of
/// them, so that no block waits for that.
#[derive(Debug, Default)]
pub(crate) struct FrozenTrie(Trie);

impl From<Trie> for FrozenTrie {
    fn from(trie: Trie) -> Self {
        Self(trie)
    }
}

impl Deref for FrozenTrie {
    type Target = Trie;

    fn deref(&self) -> &Trie {
        &self.0
    }
}

impl Drop for FrozenTrie {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            free_in_thread(std::mem::take(&mut self.0));
        }
    }
}

/// Frees a large value in another thread.
pub(crate) fn free_in_thread<T: Send + 'static>(large: T) {
    // If the thread cannot start, the value is dropped here, with the closure.
    let _ = std::thread::Builder::new().name("lmpt-free".into()).spawn(move || drop(large));
}

/// Where garbage removal starts to look. Rows before these places are gone, and have no undo.
#[derive(Debug, Default)]
pub(crate) struct GarbageHints {
    /// A published generation.
    pub(crate) published: u64,
    /// Keys of the two tables.
    pub(crate) layers: Vec<u8>,
    pub(crate) lists: Vec<u8>,
}

impl LmptState {
    /// The state that `view` shows. Its small layers are built at first use: values are read
    /// without them, also for old blocks.
    pub(crate) fn open(view: &dyn NodeRead) -> Result<Self, StateError> {
        let meta = LmptMeta::read(view)?;
        let (hints, changed) = Default::default();
        Ok(Self { meta, layers: OnceLock::new(), merge: None, hints, changed })
    }

    /// The state after a block on `self` that changed `changed` keys.
    pub(crate) fn child(
        &self,
        meta: LmptMeta,
        layers: SmallLayers,
        merge: Option<MergeJob>,
        changed: usize,
    ) -> Self {
        let (layers, hints) = (OnceLock::from(layers), self.hints.clone());
        Self { meta: Some(meta), layers, merge, hints, changed: changed as u64 }
    }

    /// The part that proofs need once the block is below the latest ones, and the number of keys
    /// that the block changed. `None` if the small layers were never built.
    pub(crate) fn compacted(&self) -> Option<(Self, u64)> {
        let layers = OnceLock::from(self.layers.get()?.clone());
        let (meta, hints, changed) = (self.meta.clone(), self.hints.clone(), self.changed);
        Some((Self { meta, layers, merge: None, hints, changed }, changed))
    }

    /// The small layers. `view` must show this state.
    pub(crate) fn layers(&self, view: &dyn NodeRead) -> Result<&SmallLayers, StateError> {
        if let Some(layers) = self.layers.get() {
            return Ok(layers);
        }
        let built = self
            .meta
            .as_ref()
            .map_or_else(|| Ok(SmallLayers::default()), |meta| SmallLayers::read(view, meta))?;
        Ok(self.layers.get_or_init(|| built))
    }

    /// The root of the state.
    pub(crate) fn root(&self) -> B256 {
        self.meta.as_ref().map_or_else(empty_root, LmptMeta::root)
    }
}

/// The root of the state without a block.
pub(crate) fn empty_root() -> B256 {
    crate::root(&[EMPTY; 3])
}

impl SmallLayers {
    /// Rebuilds the small layers from their rows. They must have the roots in `meta`.
    pub(crate) fn read(view: &dyn NodeRead, meta: &LmptMeta) -> Result<Self, StateError> {
        let (delta, intermediate) = rayon::join(
            || layer::read(view, meta.generation),
            || layer::read(view, meta.merging()),
        );
        let ((delta, keys), (intermediate, _)) = (delta?, intermediate?);
        let tries = [
            (&delta, meta.delta, meta.generation),
            (&intermediate, meta.intermediate, meta.merging()),
        ];
        for (trie, root, generation) in tries {
            if trie.hash() != root {
                let found = trie.hash();
                let what = format!("rows of generation {generation} give {found}, not {root}");
                return Err(StateError::corrupt(crate::LAYERS.name, what));
            }
        }
        if keys != meta.delta_keys {
            let what = format!("the delta has {keys} keys, not {}", meta.delta_keys);
            return Err(StateError::corrupt(crate::META.name, what));
        }
        Ok(Self { delta, intermediate: Arc::new(intermediate.into()) })
    }
}
