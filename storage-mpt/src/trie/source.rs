//! Where a trie's nodes come from, and who takes down what an update changes.

use super::{
    node::{Branch, BranchLink, Link},
    stamp::Stamp,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::StateError;
use std::{marker::PhantomData, sync::Arc};

/// Where branches come from that are not in memory.
pub trait NodeSource: Sync {
    /// What links say of rows.
    type Stamp: Stamp;

    /// Whether large batches may be spread over the threads of rayon's pool. [`Sequential`] makes
    /// any source one whose tries are worked on by the calling thread alone.
    const PARALLEL: bool = true;

    /// The branch at `path`, which `link` leads to.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if it is not there, or has not the reference that the link names.
    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<Self::Stamp>,
    ) -> Result<Arc<Branch<Self::Stamp>>, StateError>;

    /// Finds out what an [`Unresolved`](Link::Unresolved) link at the slot `path` is.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] or [`StateError::MissingWitness`] if there is no such node.
    fn resolve(&self, path: &Nibbles, reference: &RlpNode)
    -> Result<Link<Self::Stamp>, StateError>;

    /// Whether a changed branch stays in memory as part of the new trie; otherwise it is loaded
    /// when it is next needed. It stays as a part of the branch above it: if that one does not stay, neither
    /// does this one.
    fn keep(&self, path: &Nibbles, branch: &Branch<Self::Stamp>) -> bool;
}

/// The source of tries that are wholly in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl NodeSource for InMemory {
    type Stamp = ();

    fn load(&self, path: &Nibbles, _: &BranchLink) -> Result<Arc<Branch>, StateError> {
        Err(not_in_memory(path))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<Link, StateError> {
        Err(not_in_memory(path))
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        true
    }
}

/// The source of tries that are built from nothing and not kept: what is recorded of them is all
/// that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unkept<S = ()>(PhantomData<S>);

impl<S: Stamp> NodeSource for Unkept<S> {
    type Stamp = S;

    fn load(&self, path: &Nibbles, _: &BranchLink<S>) -> Result<Arc<Branch<S>>, StateError> {
        Err(not_in_memory(path))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<Link<S>, StateError> {
        Err(not_in_memory(path))
    }

    fn keep(&self, _: &Nibbles, _: &Branch<S>) -> bool {
        false
    }
}

fn not_in_memory(path: &Nibbles) -> StateError {
    StateError::corrupt("trie in memory", format!("no node at {path:?}"))
}

/// The same source for work on one thread: for jobs in the background, which must not take the
/// cores from the block that is being applied.
#[derive(Clone, Copy, Debug)]
pub struct Sequential<N>(pub N);

impl<N: NodeSource> NodeSource for Sequential<N> {
    type Stamp = N::Stamp;

    const PARALLEL: bool = false;

    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<N::Stamp>,
    ) -> Result<Arc<Branch<N::Stamp>>, StateError> {
        self.0.load(path, link)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link<N::Stamp>, StateError> {
        self.0.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<N::Stamp>) -> bool {
        self.0.keep(path, branch)
    }
}

/// Takes down what an update changed: branches by path, or nodes by hash.
pub trait Recorder: Send + Sync + Sized {
    /// What links say of rows.
    type Stamp: Stamp;

    /// Whether [`nodes`](Self::nodes) wants to know the nodes.
    const NODES: bool = false;

    /// The stamp of the branches that are made. That of a leaf is its item's.
    fn stamp(&self) -> Self::Stamp;

    /// An empty recorder for a part of the work that runs in parallel.
    fn fork(&self) -> Self;

    /// Takes over what a part recorded. Parts are taken over in key order.
    fn absorb(&mut self, part: Self);

    /// The branch at `path` changed. Called at most once a path and update.
    fn record(
        &mut self,
        path: &Nibbles,
        previous: Option<&Branch<Self::Stamp>>,
        next: Option<&Branch<Self::Stamp>>,
    );

    /// The nodes of the changed paths that have a hash, with their RLP: branches, extensions and
    /// leaves, the root's included. Called once an update.
    fn nodes(&mut self, nodes: Vec<(B256, Bytes)>) {
        let _ = nodes;
    }
}

/// Takes down nothing.
impl Recorder for () {
    type Stamp = ();

    fn stamp(&self) {}
    fn fork(&self) -> Self {}
    fn absorb(&mut self, (): Self) {}
    fn record(&mut self, _: &Nibbles, _: Option<&Branch>, _: Option<&Branch>) {}
}
