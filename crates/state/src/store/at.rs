//! [`StateAt`]: one state, to read and to prove from.

use crate::{
    AnyCache, BlockRef, ChunkServer, ProofError, StateError, StateKey, StateProof, StateReader,
    Value, Version,
    backend::AccountNodes,
    durable::{flat_history, overlay::RowView, state::DurableState},
};
use alloy_primitives::{Address, B256, Bytes};
use std::{fmt, ops::RangeInclusive, path::Path, sync::Arc};

/// The state after one block. It stays as it is, whatever is committed, reverted or folded
/// meanwhile, and reads and proves in the same way wherever it comes from:
///
/// | from | values | entries | proofs |
/// |---|---|---|---|
/// | [`StateStore::at`](crate::StateStore::at): the tip, a retained block, a proposal | yes | yes | under its own root |
/// | [`StateStore::history`](crate::StateStore::history): the backend's own | yes | yes | under its own root, or under that of the tip it was opened from |
/// | [`StateStore::flat_history`](crate::StateStore::flat_history) | yes | no | no |
#[derive(Clone)]
pub struct StateAt {
    pub(super) durable: Arc<DurableState>,
    pub(super) view: RowView,
    pub(super) cache: AnyCache,
    /// The block, if this is not the empty state.
    pub(super) block: Option<BlockAt>,
    pub(super) kind: Kind,
}

/// The block of a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockAt {
    pub(super) number: u64,
    /// `None` for a proposal that is not sealed.
    pub(super) hash: Option<B256>,
    /// What proofs lead to.
    pub(super) root: B256,
}

/// Where a state is from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// It is that of its view.
    Own,
    /// The backend's history, seen from this durable tip.
    History { tip: BlockRef },
    /// Flat history, seen from a later state.
    FlatHistory,
}

impl StateAt {
    /// Makes room for so many threads that will read at once.
    pub(super) fn expect_readers(&self, threads: usize) {
        self.view.durable.snapshot.expect_readers(threads);
    }

    /// Number of the block; `None` for the empty state.
    pub fn number(&self) -> Option<u64> {
        self.block.map(|block| block.number)
    }

    /// The root that [proofs](Self::prove) lead to: that of the state, or, if the backend
    /// [proves](crate::History::proven_by_view) old states so, that of
    /// [`seen_from`](Self::seen_from).
    pub fn root(&self) -> B256 {
        self.block.map_or_else(|| self.durable.backend.empty_root(), |block| block.root)
    }

    /// Of a state by the backend's history: the durable tip from which it was opened, which descends
    /// from this block.
    pub const fn seen_from(&self) -> Option<BlockRef> {
        match self.kind {
            Kind::History { tip } => Some(tip),
            Kind::Own | Kind::FlatHistory => None,
        }
    }

    /// Entries in key order from `start` on, at most `limit`; fewer only if there are no more.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] by flat history, which finds keys and lists none.
    pub fn entries(
        &self,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        self.backed("entries of old states")?;
        self.durable.backend.entries(&self.view, &self.cache, start, limit)
    }

    /// A proof of the values of `keys`, under [`root`](Self::root). Where that is the root of a later
    /// block, the proof says that it is [as of](StateProof::as_of) this one.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no proofs, and by flat history;
    /// [`StateError::Unsealed`] of a proposal without hash, [`StateError::UnknownBlock`] of the empty
    /// state; so for all proofs that follow.
    pub fn prove(&self, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let block = self.provable()?;
        self.proof(block, self.durable.backend.prove(&self.view, &self.cache, keys)?)
    }

    /// As much of the proof of `keys` as this node has. The `bytes` of several nodes' parts are put
    /// together by [`ProofShards::combine`](crate::ProofShards::combine).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`ProofShards`](crate::ProofShards).
    pub fn prove_part(&self, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let shards = self.durable.backend.proof_shards();
        let shards = shards.ok_or_else(|| self.durable.unsupported("proof shards"))?;
        let block = self.provable()?;
        self.proof(block, shards.prove_part(&self.view, &*self.cache, keys)?)
    }

    /// Checks a part of the proof of `keys` that another node gave, by this state and its own part of
    /// it, which [`prove_part`](Self::prove_part) has given: whose part is wrong, where several do not
    /// make a proof.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`ProofShards`](crate::ProofShards); within,
    /// why the part is refused.
    pub fn check_part(
        &self,
        keys: &[StateKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError> {
        let shards = self.durable.backend.proof_shards();
        let shards = shards.ok_or_else(|| self.durable.unsupported("proof shards"))?;
        self.provable()?;
        shards.check_part(&self.view, &*self.cache, keys, own, part)
    }

    /// What each of `keys` was over `blocks`, newest version first, as this state shows it, and the
    /// proof of all of that under its root.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`Provenance`](crate::Provenance),
    /// [`StateError::NoBlocks`] if the range is empty, [`StateError::NotInHistory`] if it ends above
    /// this block, or begins before the first one kept.
    pub fn versions(
        &self,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, StateProof), StateError> {
        let backend = &self.durable.backend;
        let unsupported = || self.durable.unsupported("provenance");
        let provenance = backend.provenance().ok_or_else(unsupported)?;
        let (from, to) = blocks.into_inner();
        if from > to {
            return Err(StateError::NoBlocks { from, to });
        }
        let block = self.provable()?;
        let kept = match backend.history() {
            Some(history) => history.kept(&self.view)?,
            None => Some(0..=block.number),
        };
        let is_kept = |number| kept.as_ref().is_some_and(|kept| kept.contains(&number));
        if let Some(number) = [to, from].into_iter().find(|number| !is_kept(*number)) {
            return Err(StateError::NotInHistory { number, kept });
        }
        let (versions, bytes) = provenance.versions(&self.view, &*self.cache, keys, from..=to)?;
        Ok((versions, self.proof(block, bytes)?))
    }

    /// The trie nodes that prove the account at `address` and its `slots`, for `eth_getProof`
    /// (EIP-1186).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](crate::AccountProofs), and
    /// by flat history.
    pub fn account_nodes(
        &self,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.backed(EIP1186)?;
        let proofs = self.durable.backend.account_proofs();
        let proofs = proofs.ok_or_else(|| self.durable.unsupported(EIP1186))?;
        proofs.account_nodes(&self.view, &*self.cache, address, slots)
    }

    /// The trie nodes that removing `removed` may merge, for execution witnesses.
    ///
    /// # Errors
    /// As [`account_nodes`](Self::account_nodes).
    pub fn merge_nodes(&self, removed: &[StateKey]) -> Result<Vec<Bytes>, StateError> {
        self.backed(EIP1186)?;
        let proofs = self.durable.backend.account_proofs();
        let proofs = proofs.ok_or_else(|| self.durable.unsupported(EIP1186))?;
        proofs.merge_nodes(&self.view, &*self.cache, removed)
    }

    /// Begins to serve this state in [chunks](crate::Chunks); what is made for that goes to files of the
    /// folder `scratch`. The server holds a snapshot of the store, and a snapshot held for long keeps MDBX
    /// from reusing pages.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no chunks, and by histories.
    pub fn serve_chunks(&self, scratch: Option<&Path>) -> Result<Box<dyn ChunkServer>, StateError> {
        let unsupported = || self.durable.unsupported("state in chunks");
        match self.kind {
            Kind::Own => {}
            Kind::History { .. } | Kind::FlatHistory => return Err(unsupported()),
        }
        let chunks = self.durable.backend.chunks().ok_or_else(unsupported)?;
        chunks.serve(Arc::new(self.view.clone()), self.cache.clone(), scratch)
    }

    /// Refuses what the backend cannot do for states that flat history reads.
    fn backed(&self, what: &'static str) -> Result<(), StateError> {
        match self.kind {
            Kind::FlatHistory => Err(self.durable.unsupported(what)),
            Kind::Own | Kind::History { .. } => Ok(()),
        }
    }

    /// The block whose root proofs lead to.
    fn provable(&self) -> Result<BlockRef, StateError> {
        if !self.durable.backend.capabilities().proofs {
            return Err(self.durable.unsupported("proofs"));
        }
        self.backed("proofs of states by flat history")?;
        match (self.block, self.kind) {
            (Some(_), Kind::History { tip }) if self.is_proven_by_view() => Ok(tip),
            (Some(BlockAt { number, hash: Some(hash), .. }), _) => Ok(BlockRef::new(number, hash)),
            (Some(BlockAt { number, hash: None, .. }), _) => Err(StateError::Unsealed { number }),
            (None, _) => Err(StateError::UnknownBlock { hash: B256::ZERO }),
        }
    }

    fn is_proven_by_view(&self) -> bool {
        self.durable.backend.history().is_some_and(|history| history.proven_by_view())
    }

    fn proof(&self, block: BlockRef, bytes: Bytes) -> Result<StateProof, StateError> {
        let proof = StateProof::of(self.durable.backend.identity(), block, self.root(), bytes);
        Ok(match self.number() {
            Some(number) if number != block.number => proof.as_of(number),
            _ => proof,
        })
    }
}

const EIP1186: &str = "proofs in the form of EIP-1186";

impl StateReader for StateAt {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        if let (Kind::FlatHistory, Some(block)) = (self.kind, self.block)
            && let Some(value) = flat_history::before(&self.view, key, block.number)?
        {
            return Ok(value);
        }
        self.durable.backend.read(&self.view, &self.cache, key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.some_slots(address, usize::MAX)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let now = |limit| self.durable.backend.slots_of(&self.view, &self.cache, address, limit);
        let (Kind::FlatHistory, Some(block)) = (self.kind, self.block) else { return now(limit) };
        let mut slots = flat_history::slots_before(&self.view, address, block.number, limit)?;
        let set = slots.values().flatten().count();
        if set < limit {
            // Of these, some may have been set later, and be among the changed ones.
            for (slot, value) in now(limit.saturating_add(slots.len()))? {
                slots.entry(slot).or_insert(Some(value));
            }
        }
        let set = slots.into_iter().filter_map(|(slot, value)| Some((slot, value?)));
        Ok(set.take(limit).collect())
    }
}

impl fmt::Debug for StateAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateAt")
            .field("block", &self.block)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
