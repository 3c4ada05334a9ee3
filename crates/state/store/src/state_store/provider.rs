//! [`StateProvider`]: one state, to read and to prove from.

use super::deltas::in_form_of;
use crate::durable::{flat_history, overlay::RowView, state::DurableState};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    AccountKey, AccountNodes, AnyCache, BackendKey, BlockRef, ChunkServer, CodePart, KeyForm,
    ProofError, RangeServer, StateDelta, StateError, StateKey, StateProof, StateReader, StateValue,
    StateWitness, ValueVersion, WitnessRequest,
};
use std::{fmt, ops::RangeInclusive, path::Path, sync::Arc};

/// The state after one block. It does not change, whatever is committed, reverted or folded
/// meanwhile. What it can do depends on where it comes from:
///
/// | from | values | entries | proofs |
/// |---|---|---|---|
/// | [`StateStore::at`](crate::StateStore::at): the tip, a retained block, a proposal | yes | yes | under its own root |
/// | [`StateStore::history`](crate::StateStore::history): the backend's own history | yes | yes | under its own root, or under the root of the tip it was opened from |
/// | [`StateStore::flat_history`](crate::StateStore::flat_history) | yes | no | no |
#[derive(Clone)]
pub struct StateProvider {
    pub(super) durable: Arc<DurableState>,
    pub(super) view: RowView,
    pub(super) cache: AnyCache,
    /// The block, if this is not the empty state.
    pub(super) block: Option<ProviderBlock>,
    pub(super) kind: StateOrigin,
}

/// The block of a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProviderBlock {
    pub(super) number: u64,
    /// `None` for a proposal that is not sealed.
    pub(super) hash: Option<B256>,
    /// The root that proofs lead to.
    pub(super) root: B256,
}

/// Where a state comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateOrigin {
    /// It is the state of its view.
    Own,
    /// The backend's history, seen from this durable tip.
    History { tip: BlockRef },
    /// Flat history, seen from a later state.
    FlatHistory,
}

impl StateProvider {
    /// Reserves readers for `threads` threads that will read at once.
    pub(super) fn expect_readers(&self, threads: usize) {
        self.view.durable.snapshot.expect_readers(threads);
    }

    /// Number of the block; `None` for the empty state.
    pub fn number(&self) -> Option<u64> {
        self.block.map(|block| block.number)
    }

    /// The root that [proofs](Self::prove) lead to: the root of this state, or, if the backend
    /// [proves old states by the view](retrie_state::StateHistory::proven_by_view), the root of
    /// [`opened_from`](Self::opened_from).
    pub fn root(&self) -> B256 {
        self.block.map_or_else(|| self.durable.backend.profile().empty_root, |block| block.root)
    }

    /// For a state by the backend's history: the durable tip from which it was opened, a descendant
    /// of this block.
    pub const fn opened_from(&self) -> Option<BlockRef> {
        match self.kind {
            StateOrigin::History { tip } => Some(tip),
            StateOrigin::Own | StateOrigin::FlatHistory => None,
        }
    }

    /// The form of the keys that the backend has, in [`entries`](Self::entries).
    pub fn keys(&self) -> KeyForm {
        self.durable.keys
    }

    /// The value of `key`, `None` if absent.
    ///
    /// # Errors
    /// As [`StateReader::get`].
    pub fn get_key(&self, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
        if let (StateOrigin::FlatHistory, Some(block)) = (self.kind, self.block)
            && let Some(value) = flat_history::before(&self.view, key, block.number)?
        {
            return Ok(value);
        }
        self.durable.backend.read(&self.view, &self.cache, key)
    }

    /// Slots of `account` that are set, in the order and in the form of the store's keys, at most
    /// `limit`; fewer only if there are no more.
    ///
    /// # Errors
    /// If rows cannot be read, or are damaged.
    pub fn account_slots(
        &self,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let now = |limit| self.durable.backend.slots_of(&self.view, &self.cache, account, limit);
        let (StateOrigin::FlatHistory, Some(block)) = (self.kind, self.block) else {
            return now(limit);
        };
        let mut slots = flat_history::slots_before(&self.view, account, block.number, limit)?;
        let set = slots.values().flatten().count();
        if set < limit {
            // Some of these may have been set later; the changed slots already include them.
            for (slot, value) in now(limit.saturating_add(slots.len()))? {
                slots.entry(slot).or_insert(Some(value));
            }
        }
        let set = slots.into_iter().filter_map(|(slot, value)| Some((slot, value?)));
        Ok(set.take(limit).collect())
    }

    /// Entries in key order from `start` on, at most `limit`; fewer only if there are no more.
    /// Keys have the [form](Self::keys) of the store.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] for flat history, which cannot list keys.
    pub fn entries(
        &self,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        self.refuse_flat_history("entries of old states")?;
        self.durable.backend.entries(&self.view, &self.cache, start, limit)
    }

    /// A proof of the values of `keys`, under [`root`](Self::root). If that is the root of a later
    /// block, the proof says that it is [as of](StateProof::as_of) this block.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no proofs, and for flat history;
    /// [`StateError::Unsealed`] for a proposal without hash, [`StateError::UnknownBlock`] for the
    /// empty state. The other proof methods fail in the same cases.
    pub fn prove(&self, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let block = self.provable()?;
        let keys = self.durable.keys.keys(keys);
        self.proof(block, self.durable.backend.prove(&self.view, &self.cache, &keys)?)
    }

    /// One proof of the values of `keys`, and of `codes`, which accounts of this state have.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`CodeProofs`](retrie_state::CodeProofs).
    pub fn prove_with_codes(
        &self,
        keys: &[StateKey],
        codes: &[CodePart],
    ) -> Result<StateProof, StateError> {
        let proofs = self.durable.backend.extensions().code_proofs;
        let proofs = proofs.ok_or_else(|| self.durable.unsupported("proofs of codes"))?;
        let block = self.provable()?;
        let keys = self.durable.keys.keys(keys);
        self.proof(block, proofs.prove_with_codes(&self.view, &self.cache, &keys, codes)?)
    }

    /// As much of the proof of `keys` as this node has.
    /// [`ProofShards::combine`](retrie_state::ProofShards::combine) combines the `bytes` of several nodes'
    /// parts.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`ProofShards`](retrie_state::ProofShards).
    pub fn prove_part(&self, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let shards = self.durable.backend.extensions().proof_shards;
        let shards = shards.ok_or_else(|| self.durable.unsupported("proof shards"))?;
        let block = self.provable()?;
        let keys = self.durable.keys.keys(keys);
        self.proof(block, shards.prove_part(&self.view, &self.cache, &keys)?)
    }

    /// Checks one `part` of the proof of `keys` from another node, against this state and against
    /// `own`, this node's result of [`prove_part`](Self::prove_part). If the combined parts do not
    /// verify, it shows which node's part is wrong.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`ProofShards`](retrie_state::ProofShards); the
    /// inner error says why the part is refused.
    pub fn check_part(
        &self,
        keys: &[StateKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError> {
        let shards = self.durable.backend.extensions().proof_shards;
        let shards = shards.ok_or_else(|| self.durable.unsupported("proof shards"))?;
        self.provable()?;
        let keys = self.durable.keys.keys(keys);
        shards.check_part(&self.view, &self.cache, &keys, own, part)
    }

    /// The witness of block `number`, a child of this block that reads `reads`, lists the slots of
    /// `listed`, and changes this state by `delta`. [`ProofVerifier::open_witness`](retrie_state::descriptor::ProofVerifier)
    /// opens it.
    ///
    /// # Errors
    /// [`StateError::NoWitness`] if the backend makes none, at all or of this block, and for states
    /// that are proven under a later root; else as [`prove`](Self::prove).
    pub fn witness(
        &self,
        number: u64,
        reads: &[StateKey],
        listed: &[Address],
        delta: &StateDelta,
    ) -> Result<StateWitness, StateError> {
        let backend = &self.durable.backend;
        let maker = backend.extensions().witness_maker(backend.identity())?;
        let parent = self.provable()?;
        if self.number() != Some(parent.number) {
            let (backend, why) = (backend.identity().name, "old states are proven by later roots");
            return Err(StateError::NoWitness { backend, why });
        }
        let delta = in_form_of(self, [delta])?;
        let keys = self.durable.keys;
        let reads = keys.keys(reads);
        let listed: Vec<AccountKey> = listed.iter().map(|address| keys.account(address)).collect();
        let block = WitnessRequest { number, reads: &reads, listed: &listed, delta: &delta[0] };
        let bytes = maker.make_witness(&self.view, &self.cache, block)?;
        Ok(StateWitness::of(backend.identity(), keys, parent, self.root(), bytes))
    }

    /// The versions of each of `keys` over `blocks`, newest first, as this state shows them, and
    /// one proof of all of them under its root.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no
    /// [`ProvenanceQueries`](retrie_state::ProvenanceQueries), [`StateError::NoBlocks`] if the range is
    /// empty, [`StateError::NotInHistory`] if it ends above this block, or begins before the first
    /// kept block.
    pub fn versions(
        &self,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, StateProof), StateError> {
        let backend = &self.durable.backend;
        let unsupported = || self.durable.unsupported("provenance");
        let provenance = backend.extensions().provenance.ok_or_else(unsupported)?;
        let (from, to) = blocks.into_inner();
        if from > to {
            return Err(StateError::NoBlocks { from, to });
        }
        let block = self.provable()?;
        let kept = match backend.extensions().history {
            Some(history) => history.kept(&self.view)?,
            None => Some(0..=block.number),
        };
        let is_kept = |number| kept.as_ref().is_some_and(|kept| kept.contains(&number));
        if let Some(number) = [to, from].into_iter().find(|number| !is_kept(*number)) {
            return Err(StateError::NotInHistory { number, kept });
        }
        let keys = self.durable.keys.keys(keys);
        let (versions, bytes) = provenance.versions(&self.view, &self.cache, &keys, from..=to)?;
        Ok((versions, self.proof(block, bytes)?))
    }

    /// The trie nodes that prove the account at `address` and its `slots`, for `eth_getProof`
    /// (EIP-1186).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](retrie_state::AccountProofs),
    /// and for flat history.
    pub fn account_nodes(
        &self,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        self.refuse_flat_history(EIP1186)?;
        let proofs = self.durable.backend.extensions().account_proofs;
        let proofs = proofs.ok_or_else(|| self.durable.unsupported(EIP1186))?;
        let keys = self.durable.keys;
        let slots: Vec<B256> = slots.iter().map(|slot| keys.slot(slot)).collect();
        proofs.account_nodes(&self.view, &self.cache, &keys.account(address), &slots)
    }

    /// Root of the storage trie of an account that is set.
    ///
    /// # Errors
    /// As [`account_nodes`](Self::account_nodes).
    pub fn storage_root(&self, account: &AccountKey) -> Result<B256, StateError> {
        self.refuse_flat_history(EIP1186)?;
        let proofs = self.durable.backend.extensions().account_proofs;
        let proofs = proofs.ok_or_else(|| self.durable.unsupported(EIP1186))?;
        Ok(proofs.account_nodes(&self.view, &self.cache, account, &[])?.storage_root)
    }

    /// The trie nodes that removing `removed` may merge, for execution witnesses.
    ///
    /// # Errors
    /// As [`account_nodes`](Self::account_nodes).
    pub fn merge_nodes(&self, removed: &[StateKey]) -> Result<Vec<Bytes>, StateError> {
        self.refuse_flat_history(EIP1186)?;
        let proofs = self.durable.backend.extensions().account_proofs;
        let proofs = proofs.ok_or_else(|| self.durable.unsupported(EIP1186))?;
        proofs.merge_nodes(&self.view, &self.cache, &self.durable.keys.keys(removed))
    }

    /// Starts to serve this state in [chunks](retrie_state::StateChunks); temporary files go into the
    /// directory `scratch`. The server holds a snapshot of the store. A snapshot held for long
    /// keeps MDBX from reusing pages.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no chunks, and for states by either history, and for
    /// hashed keys.
    pub fn serve_chunks(&self, scratch: Option<&Path>) -> Result<Box<dyn ChunkServer>, StateError> {
        let unsupported = || self.durable.unsupported("state in chunks");
        match (self.kind, self.durable.keys) {
            (StateOrigin::Own, KeyForm::Plain) => {}
            _ => return Err(unsupported()),
        }
        let chunks = self.durable.backend.extensions().chunks.ok_or_else(unsupported)?;
        chunks.serve(Arc::new(self.view.clone()), self.cache.clone(), scratch)
    }

    /// Starts to serve leaves and nodes of this state's [tries](retrie_state::StateRanges);
    /// temporary files go into the directory `scratch`. The server holds a snapshot of the store, as
    /// that of [`serve_chunks`](Self::serve_chunks) does.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend does not have Ethereum's tries, and for states by
    /// flat history.
    pub fn serve_ranges(&self, scratch: Option<&Path>) -> Result<Box<dyn RangeServer>, StateError> {
        const WHAT: &str = "ranges of Ethereum's tries";
        self.refuse_flat_history(WHAT)?;
        let ranges = self.durable.backend.extensions().ranges;
        let ranges = ranges.ok_or_else(|| self.durable.unsupported(WHAT))?;
        ranges.serve_ranges(
            Arc::new(self.view.clone()),
            self.cache.clone(),
            self.durable.keys,
            scratch,
        )
    }

    /// Fails for states by flat history, for which the backend has no rows.
    fn refuse_flat_history(&self, what: &'static str) -> Result<(), StateError> {
        match self.kind {
            StateOrigin::FlatHistory => Err(self.durable.unsupported(what)),
            StateOrigin::Own | StateOrigin::History { .. } => Ok(()),
        }
    }

    /// The block whose root proofs lead to.
    fn provable(&self) -> Result<BlockRef, StateError> {
        if !self.durable.backend.profile().proofs {
            return Err(self.durable.unsupported("proofs"));
        }
        self.refuse_flat_history("proofs of states by flat history")?;
        match (self.block, self.kind) {
            (Some(_), StateOrigin::History { tip }) if self.is_proven_by_view() => Ok(tip),
            (Some(ProviderBlock { number, hash: Some(hash), .. }), _) => {
                Ok(BlockRef::new(number, hash))
            }
            (Some(ProviderBlock { number, hash: None, .. }), _) => {
                Err(StateError::Unsealed { number })
            }
            (None, _) => Err(StateError::UnknownBlock { hash: B256::ZERO }),
        }
    }

    fn is_proven_by_view(&self) -> bool {
        self.durable.backend.extensions().history.is_some_and(|history| history.proven_by_view())
    }

    fn proof(&self, block: BlockRef, bytes: Bytes) -> Result<StateProof, StateError> {
        let proof = StateProof::of(
            self.durable.backend.identity(),
            self.durable.keys,
            block,
            self.root(),
            bytes,
        );
        Ok(match self.number() {
            Some(number) if number != block.number => proof.as_of(number),
            _ => proof,
        })
    }
}

const EIP1186: &str = "proofs in the form of EIP-1186";

impl StateReader for StateProvider {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        self.get_key(&self.durable.keys.key(key))
    }

    /// Fails with [`StateError::HashedKeys`] if keys are hashed.
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.some_slots(address, usize::MAX)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        match self.durable.keys {
            KeyForm::Plain => self.account_slots(&(*address).into(), limit),
            KeyForm::Hashed => Err(StateError::HashedKeys {
                what: format!("the slots of {address} cannot be named"),
            }),
        }
    }
}

impl fmt::Debug for StateProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateProvider")
            .field("block", &self.block)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
