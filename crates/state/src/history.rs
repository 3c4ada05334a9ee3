//! Old states: what archives keep beyond the retention depth, through [`StateStore::history`].

use crate::{
    AccountNodes, At, BlockRef, Cache, NodeRead, StateError, StateKey, StateProof, StateReader,
    StateStore, StateView, Tip, Value, session::Resolved, store::account_proofs,
};
use alloy_primitives::{Address, B256, Bytes};
use std::{fmt, ops::RangeInclusive};

/// The optional faculty of a backend that keeps the state of every block.
///
/// All of it works on the view of a later block, the durable tip as a rule. Rows by which old
/// states are found belong to the block that wrote them, like all rows: a revert takes them back,
/// and a view shows the history of its own chain.
pub trait History: Send + Sync {
    /// Numbers of the blocks whose state `view` has, that of `view` itself included; `None` on the
    /// empty state.
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError>;

    /// Whether old blocks are forgotten, so that [`kept`](Self::kept) may begin above the first
    /// block there was.
    fn prunes(&self) -> bool {
        false
    }

    /// Whether old states are proven under the root of the view that they are opened from, instead
    /// of under their own. The verifier of such proofs is that of
    /// [`Provenance`](crate::Provenance), which a backend then has.
    fn proven_by_view(&self) -> bool {
        false
    }

    /// Root and in-memory structure of the state of block `number`, which is one of
    /// [`kept`](Self::kept); `cache` is that of `view`, and so is the root, if old states are
    /// [proven by it](Self::proven_by_view). With this structure and the same `view`,
    /// [`read`](crate::Backend::read), [`slots_of`](crate::Backend::slots_of),
    /// [`entries`](crate::Backend::entries) and [`prove`](crate::Backend::prove) answer for that
    /// block.
    fn open_at(
        &self,
        view: &dyn NodeRead,
        cache: &Cache,
        number: u64,
    ) -> Result<(B256, Cache), StateError>;
}

impl StateStore {
    /// The state of block `number` of the durable chain, however old. It stays as it is, whatever
    /// is committed or reverted meanwhile.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`History`],
    /// [`StateError::NotInHistory`] if the block lies above the tip or before the first one kept.
    pub fn history(&self, number: u64) -> Result<PastState, StateError> {
        let history = of(self)?;
        let Resolved { view, cache, at, .. } = self.resolve(At::Tip)?;
        let kept = history.kept(&view)?;
        let tip = match (at, &kept) {
            (Some((tip, Some(hash), root)), Some(kept)) if kept.contains(&number) => {
                Tip { block: BlockRef::new(tip, hash), root }
            }
            _ => return Err(StateError::NotInHistory { number, kept }),
        };
        let (root, cache) = match history.proven_by_view() {
            true if number == tip.block.number => (tip.root, cache),
            true => (tip.root, history.open_at(&view, &cache, number)?.1),
            false => history.open_at(&view, &cache, number)?,
        };
        let state = StateView { shared: self.shared.clone(), view, cache };
        Ok(PastState { state, number, root, tip: tip.block })
    }

    /// Numbers of the blocks that [`history`](Self::history) has; `None` while the state is empty.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`History`].
    pub fn history_kept(&self) -> Result<Option<RangeInclusive<u64>>, StateError> {
        of(self)?.kept(&self.resolve(At::Tip)?.view)
    }
}

fn of(store: &StateStore) -> Result<&dyn History, StateError> {
    let backend = store.backend();
    let unsupported =
        || StateError::Unsupported { backend: backend.identity().name, what: "history" };
    backend.history().ok_or_else(unsupported)
}

/// The state of an old block, for reading and proving.
#[derive(Clone)]
pub struct PastState {
    state: StateView,
    number: u64,
    root: B256,
    /// The durable tip when it was opened.
    tip: BlockRef,
}

impl PastState {
    /// Number of the block.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The root that proofs lead to: that of the state, or, if the backend
    /// [proves](History::proven_by_view) old states so, that of [`tip`](Self::tip).
    pub const fn root(&self) -> B256 {
        self.root
    }

    /// The durable tip from which the state was opened. It descends from this block.
    pub const fn tip(&self) -> BlockRef {
        self.tip
    }

    /// Entries in key order from `start` on, at most `limit`.
    pub fn entries(
        &self,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let StateView { shared, view, cache } = &self.state;
        shared.backend.entries(view, cache, start, limit)
    }

    /// A proof of the values of `keys`: under the block's own root, or under that of
    /// [`tip`](Self::tip) and [as of](StateProof::as_of) this block. The store knows hashes of
    /// retained blocks alone, so `hash`, that of the block, is the caller's word; the verifier
    /// checks the root against a header.
    pub fn prove(&self, hash: B256, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let StateView { shared, view, cache } = &self.state;
        let bytes = shared.backend.prove(view, cache, keys)?;
        let by_view = shared.backend.history().is_some_and(History::proven_by_view);
        let block = if by_view { self.tip } else { BlockRef::new(self.number, hash) };
        let proof = StateProof::of(shared.backend.identity(), block, self.root, bytes);
        Ok(if block.number == self.number { proof } else { proof.as_of(self.number) })
    }

    /// The trie nodes that prove an account and its `slots`, for `eth_getProof` (EIP-1186).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](crate::AccountProofs).
    pub fn account_nodes(
        &self,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let StateView { shared, view, cache } = &self.state;
        account_proofs(&*shared.backend)?.account_nodes(view, cache, address, slots)
    }

    /// The trie nodes that removing `removed` may merge, for execution witnesses.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](crate::AccountProofs).
    pub fn merge_nodes(&self, removed: &[StateKey]) -> Result<Vec<Bytes>, StateError> {
        let StateView { shared, view, cache } = &self.state;
        account_proofs(&*shared.backend)?.merge_nodes(view, cache, removed)
    }
}

impl StateReader for PastState {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        self.state.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.state.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        self.state.some_slots(address, limit)
    }
}

impl fmt::Debug for PastState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PastState")
            .field("number", &self.number)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
