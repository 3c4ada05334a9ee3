//! Two interfaces of a trie: where its nodes come from, and what records the changes of an update.

use super::{
    node::{Branch, BranchLink, NodeLink},
    stamp::RowStamp,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::StateError;
use std::{marker::PhantomData, sync::Arc};

/// Loads the branches that are not in memory.
pub trait NodeSource: Sync {
    /// The version of a row, in links.
    type Stamp: RowStamp;

    /// Whether large batches may use the threads of rayon's pool. With [`SequentialSource`] around
    /// the source only the calling thread works.
    const PARALLEL: bool = true;

    /// The branch at `path` that `link` names.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if the branch is missing, or has another reference than the link.
    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<Self::Stamp>,
    ) -> Result<Arc<Branch<Self::Stamp>>, StateError>;

    /// Resolves an [`Unresolved`](NodeLink::Unresolved) link at the slot `path`.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] or [`StateError::MissingWitness`] if there is no such node.
    fn resolve(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
    ) -> Result<NodeLink<Self::Stamp>, StateError>;

    /// Whether a changed branch stays in memory as part of the new trie; otherwise it is loaded
    /// when it is next needed. It stays only if the branch above it stays.
    fn keep(&self, path: &Nibbles, branch: &Branch<Self::Stamp>) -> bool;

    /// Called when the branch at `path` was in memory, in place of [`load`](Self::load), so that
    /// both can be counted.
    fn found(&self, path: &Nibbles) {
        let _ = path;
    }
}

/// The source of tries that are wholly in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemorySource;

impl NodeSource for MemorySource {
    type Stamp = ();

    fn load(&self, path: &Nibbles, _: &BranchLink) -> Result<Arc<Branch>, StateError> {
        Err(not_in_memory(path))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<NodeLink, StateError> {
        Err(not_in_memory(path))
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        true
    }
}

/// The source of tries that are built from nothing and then dropped: only what the recorder records
/// is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildSource<S = ()>(PhantomData<S>);

impl<S: RowStamp> NodeSource for BuildSource<S> {
    type Stamp = S;

    fn load(&self, path: &Nibbles, _: &BranchLink<S>) -> Result<Arc<Branch<S>>, StateError> {
        Err(not_in_memory(path))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<NodeLink<S>, StateError> {
        Err(not_in_memory(path))
    }

    fn keep(&self, _: &Nibbles, _: &Branch<S>) -> bool {
        false
    }
}

fn not_in_memory(path: &Nibbles) -> StateError {
    StateError::corrupt("trie in memory", format!("no node at {path:?}"))
}

/// A source whose tries are worked on by one thread: for background jobs, which must not take cores
/// from the block that is being applied.
#[derive(Clone, Copy, Debug)]
pub struct SequentialSource<N>(pub N);

impl<N: NodeSource> NodeSource for SequentialSource<N> {
    type Stamp = N::Stamp;

    const PARALLEL: bool = false;

    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<N::Stamp>,
    ) -> Result<Arc<Branch<N::Stamp>>, StateError> {
        self.0.load(path, link)
    }

    fn resolve(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
    ) -> Result<NodeLink<N::Stamp>, StateError> {
        self.0.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<N::Stamp>) -> bool {
        self.0.keep(path, branch)
    }

    fn found(&self, path: &Nibbles) {
        self.0.found(path);
    }
}

/// Records what an update changes: branches by path, or nodes by hash.
pub trait UpdateRecorder: Send + Sync + Sized {
    /// The version of a row, in links.
    type Stamp: RowStamp;

    /// Whether [`nodes`](Self::nodes) needs the changed nodes.
    const NODES: bool = false;

    /// The stamp of new branches. A leaf takes the stamp of its item.
    fn stamp(&self) -> Self::Stamp;

    /// An empty recorder for a part of the update that runs in parallel.
    fn fork(&self) -> Self;

    /// Adds what `part` recorded. Parts are absorbed in key order.
    fn absorb(&mut self, part: Self);

    /// Records that the branch at `path` changed. Called at most once per path and update.
    fn record(
        &mut self,
        path: &Nibbles,
        previous: Option<&Branch<Self::Stamp>>,
        next: Option<&Branch<Self::Stamp>>,
    );

    /// Records the nodes of the changed paths. Called once per update.
    fn nodes(&mut self, changes: NodeChanges) {
        let _ = changes;
    }
}

/// The nodes of the changed paths of an update that have a hash: branches, extensions and leaves,
/// the root included. A node that hangs at several places is listed for each of them, and one that
/// stays at its place although its path was rewritten is among both.
#[derive(Debug, Default)]
pub struct NodeChanges {
    /// Hash and RLP of each node of the new trie.
    pub added: Vec<(B256, Bytes)>,
    /// Hash of each node of the old trie, if it came from a source that addresses nodes by hash.
    pub removed: Vec<B256>,
}

impl NodeChanges {
    /// Adds the changes of another part of the update.
    pub fn extend(&mut self, part: Self) {
        self.added.extend(part.added);
        self.removed.extend(part.removed);
    }
}

/// Records nothing.
impl UpdateRecorder for () {
    type Stamp = ();

    fn stamp(&self) {}
    fn fork(&self) -> Self {}
    fn absorb(&mut self, (): Self) {}
    fn record(&mut self, _: &Nibbles, _: Option<&Branch>, _: Option<&Branch>) {}
}
