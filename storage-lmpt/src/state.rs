//! [`State`]: the structure of one block's state.

use crate::{layer, merge::Merge, row::Meta};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{NodeRead, StateError};
use retrie_storage_mpt::{Trie, TrieHash};
use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

/// Root of a trie without keys.
pub(crate) const EMPTY: B256 = TrieHash::Keccak256.empty_root();

/// The structure of one block's state. It shares with its parent's whatever the block did not change.
#[derive(Debug)]
pub struct State {
    /// `None`: there is no block yet.
    pub(crate) meta: Option<Meta>,
    layers: OnceLock<Layers>,
    /// The merge of the intermediate trie, once a block has started it.
    pub(crate) merge: Option<Merge>,
    pub(crate) hints: Arc<Mutex<Hints>>,
    /// Keys that the block changed.
    changed: u64,
}

/// The small tries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) delta: Trie,
    pub(crate) intermediate: Arc<Frozen>,
}

/// A layer that changes no more. What is left of it in the end, hundreds of thousands of nodes, is freed
/// by a thread: a block would wait for it.
#[derive(Debug, Default)]
pub(crate) struct Frozen(Trie);

impl From<Trie> for Frozen {
    fn from(trie: Trie) -> Self {
        Self(trie)
    }
}

impl Deref for Frozen {
    type Target = Trie;

    fn deref(&self) -> &Trie {
        &self.0
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            free_aside(std::mem::take(&mut self.0));
        }
    }
}

/// Frees something large beside all else.
pub(crate) fn free_aside<T: Send + 'static>(large: T) {
    // If there is no thread to be had, the closure is dropped here, and the thing with it.
    let _ = std::thread::Builder::new().name("lmpt-free".into()).spawn(move || drop(large));
}

/// Where clean-up begins to look: what comes before is gone for good. It is removed without undo.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// A published generation.
    pub(crate) published: u64,
    /// Keys of their tables.
    pub(crate) layers: Vec<u8>,
    pub(crate) lists: Vec<u8>,
}

impl State {
    /// The state that `view` shows. Its small tries are built when they are first needed: values are
    /// read without them, and old blocks are opened for reading, too.
    pub(crate) fn open(view: &dyn NodeRead) -> Result<Self, StateError> {
        let meta = Meta::read(view)?;
        let (hints, changed) = Default::default();
        Ok(Self { meta, layers: OnceLock::new(), merge: None, hints, changed })
    }

    /// The state after a block on `self` that changed so many keys.
    pub(crate) fn child(
        &self,
        meta: Meta,
        layers: Layers,
        merge: Option<Merge>,
        changed: usize,
    ) -> Self {
        let (layers, hints) = (OnceLock::from(layers), self.hints.clone());
        Self { meta: Some(meta), layers, merge, hints, changed: changed as u64 }
    }

    /// What proofs need of it once its block is no longer among the latest, and how many keys the block
    /// changed; `None` if the small tries have not been needed.
    pub(crate) fn thinned(&self) -> Option<(Self, u64)> {
        let layers = OnceLock::from(self.layers.get()?.clone());
        let (meta, hints, changed) = (self.meta.clone(), self.hints.clone(), self.changed);
        Some((Self { meta, layers, merge: None, hints, changed }, changed))
    }

    /// The small tries; `view` shows this state.
    pub(crate) fn layers(&self, view: &dyn NodeRead) -> Result<&Layers, StateError> {
        if let Some(layers) = self.layers.get() {
            return Ok(layers);
        }
        let built = self
            .meta
            .as_ref()
            .map_or_else(|| Ok(Layers::default()), |meta| Layers::read(view, meta))?;
        Ok(self.layers.get_or_init(|| built))
    }

    /// Root of the state.
    pub(crate) fn root(&self) -> B256 {
        self.meta.as_ref().map_or_else(empty_root, Meta::root)
    }
}

/// Root of the state without a block.
pub(crate) fn empty_root() -> B256 {
    crate::root(&[EMPTY; 3])
}

impl Layers {
    /// The tries that the rows make, which must be those that the state names.
    pub(crate) fn read(view: &dyn NodeRead, meta: &Meta) -> Result<Self, StateError> {
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
                let what = format!("rows of generation {generation} make {found}, not {root}");
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
