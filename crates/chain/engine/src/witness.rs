//! Witnesses of stored blocks: execution witnesses, on stores that have Ethereum's tries, and those in
//! the format of the store.
//!
//! ```text
//!  LiveView::record_execution(block) --> RecordedExecution::witness --> ExecutionWitness
//!     executes it on its parent's state      trie nodes, codes, keys, headers
//!  LiveView::state_witness(block) ------------------------------------> StateWitnessFile
//!     the same                               the store's bytes, codes, headers
//! ```

use crate::LiveView;
use alloy_primitives::{Address, B256, Bytes, U64};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_execution::{
    AccessRecorder, ExecutionOutcome, RecordedAccesses, execute_block, read_block,
};
use retrie_pipeline::{
    InvalidBlockError, PipelineError, RootKind,
    stateless::{StateWitnessFile, verify_state_witness},
    validate_outcome,
};
use retrie_sources::witness::ExecutionWitness;
use retrie_state::{NodeUse, PartialState, StateError, StateKey, StateWitness, WitnessMaker};
use retrie_state_store::StateProvider;
use std::collections::{BTreeMap, BTreeSet};

/// A stored block that was executed again, with all that it has read.
#[derive(Debug)]
pub struct RecordedExecution {
    /// What execution gave.
    pub outcome: ExecutionOutcome,
    accesses: RecordedAccesses,
    parent: SealedHeader,
    proven: StateProvider,
}

impl LiveView {
    /// Why no block at this time has an execution witness here; `None` if blocks have.
    pub fn witness_obstacle(&self, timestamp: u64) -> Option<&'static str> {
        let chain = self.live().chain();
        if chain.state().backend().extensions().account_proofs.is_none() {
            return Some("it does not have Ethereum's trie; use mpt, mpt-archive or prefix");
        }
        let is_merkle = chain.root_kind(timestamp) == RootKind::Merkle;
        (!is_merkle).then_some("its header has the root of the binary tree (EIP-8297)")
    }

    /// Executes a known block again and records what it reads.
    ///
    /// # Errors
    /// [`StateError::NoWitness`] for the genesis block and if there is a
    /// [`witness_obstacle`](Self::witness_obstacle); errors of
    /// [`provable_before`](Self::provable_before) and of the execution.
    pub fn record_execution(
        &self,
        block: &RecoveredBlock,
    ) -> Result<RecordedExecution, PipelineError> {
        let obstacle = match block.number {
            0 => Some("it is the genesis"),
            _ => self.witness_obstacle(block.timestamp),
        };
        if let Some(why) = obstacle {
            let backend = self.live().backend().identity().name;
            return Err(StateError::NoWitness { backend, why }.into());
        }
        let (state, proven) = self.provable_before(block)?;
        let recorder = AccessRecorder::of_input(state.input());
        let spec = self.live().spec().for_header(block.header());
        let outcome = execute_block(&spec, block, recorder.input())?;
        let accesses = recorder.into_accesses();
        Ok(RecordedExecution { outcome, accesses, parent: state.header().clone(), proven })
    }

    /// The witness of a known block, whose outcome is compared with its header.
    ///
    /// # Errors
    /// As [`record_execution`](Self::record_execution).
    pub fn execution_witness(
        &self,
        block: &RecoveredBlock,
    ) -> Result<ExecutionWitness, PipelineError> {
        let executed = self.record_execution(block)?;
        let spec = self.live().spec().for_header(block.header());
        validate_outcome(&spec, block.sealed_block(), &executed.outcome, None)
            .map_err(|error| InvalidBlockError::rule(block.sealed_header(), error))?;
        executed.witness(self)
    }

    /// The witness of a known block in the format of this store, whose outcome is compared with its
    /// header; and what else it takes to execute the block.
    ///
    /// # Errors
    /// [`StateError::NoWitness`] for the genesis block, and if the store makes none, at all or of this
    /// block; errors of [`provable_before`](Self::provable_before) and of the execution.
    pub fn state_witness(&self, block: &RecoveredBlock) -> Result<StateWitnessFile, PipelineError> {
        let backend = self.live().backend();
        // Before the block is executed for nothing.
        let maker = backend.extensions().witness_maker(backend.identity())?;
        let none = |why| StateError::NoWitness { backend: backend.identity().name, why };
        if block.number == 0 {
            return Err(none("it is the genesis").into());
        }
        let (state, proven) = self.provable_before(block)?;
        let spec = self.live().spec().for_header(block.header());
        let reads = read_block(&spec, block, state.input())?;
        validate_outcome(&spec, block.sealed_block(), &reads.outcome, None)
            .map_err(|error| InvalidBlockError::rule(block.sealed_header(), error))?;
        let delta = &reads.outcome.delta;
        let witness = proven.witness(block.number, &reads.keys, &reads.listed, delta)?;
        let (parent, hash) = (state.header(), block.hash());
        // The hash of a block is in the header of its child.
        let oldest = reads.oldest_hash.map_or(parent.number, |oldest| oldest.saturating_add(1));
        let headers = self.ancestor_headers(parent, oldest.min(parent.number))?;
        let next_root = self.state_root(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
        let rlp = alloy_rlp::encode(block.sealed_block()).into();
        let file = file_of(witness, next_root, rlp, headers, reads.codes);
        // Few stores can show that a list of slots is complete.
        if !reads.listed.is_empty() && !self.suffices(maker, block, &file) {
            let why = "it clears a storage, and the store cannot show which slots are set in it";
            return Err(none(why).into());
        }
        Ok(file)
    }

    /// Whether the block can be executed on its witness.
    fn suffices(
        &self,
        maker: &dyn WitnessMaker,
        block: &RecoveredBlock,
        file: &StateWitnessFile,
    ) -> bool {
        let block = block.sealed_block().clone().into_block();
        maker.open_witness(file.root, &file.witness).is_ok_and(|opened| {
            verify_state_witness(self.live().spec(), block, file, &*opened).is_ok()
        })
    }

    /// RLP of the headers from block `oldest` to its descendant `last`, ascending.
    ///
    /// # Errors
    /// [`StateError::UnknownBlock`] if one is not stored.
    pub fn ancestor_headers(
        &self,
        last: &SealedHeader,
        oldest: u64,
    ) -> Result<Vec<Bytes>, PipelineError> {
        let mut headers = vec![Bytes::from(alloy_rlp::encode(last.header()))];
        let mut at = last.clone();
        while at.number > oldest {
            let hash = at.parent_hash;
            at = self.header(&hash)?.ok_or(StateError::UnknownBlock { hash })?;
            headers.push(alloy_rlp::encode(at.header()).into());
        }
        headers.reverse();
        Ok(headers)
    }
}

fn file_of(
    witness: StateWitness,
    next_root: B256,
    block: Bytes,
    headers: Vec<Bytes>,
    codes: Vec<Bytes>,
) -> StateWitnessFile {
    let StateWitness { backend, version, hash, params, keys, parent, root, bytes } = witness;
    StateWitnessFile {
        witness_version: StateWitnessFile::VERSION,
        backend,
        version,
        hash,
        params,
        keys,
        parent: U64::from(parent.number),
        parent_hash: parent.hash,
        root,
        next_root,
        block,
        headers,
        codes,
        witness: bytes,
    }
}

impl RecordedExecution {
    /// The witness of the block, in canonical order.
    ///
    /// # Errors
    /// If the state of the parent cannot be read.
    pub fn witness(&self, view: &LiveView) -> Result<ExecutionWitness, PipelineError> {
        let oldest = self.accesses.hashes.keys().next().copied().unwrap_or(self.parent.number);
        let opener = view.live().backend().extensions().partial_state;
        let codes: BTreeSet<Bytes> = self.accesses.codes.values().cloned().collect();
        Ok(ExecutionWitness {
            state: self.needed(self.nodes()?, opener)?,
            codes: codes.into_iter().filter(|code| !code.is_empty()).collect(),
            keys: self.keys(),
            headers: view.ancestor_headers(&self.parent, oldest)?,
        })
    }

    /// Keys that the block reads or changes.
    fn touched(&self) -> impl Iterator<Item = &StateKey> {
        let changed = self.outcome.delta.changes().iter().map(|change| &change.key);
        self.accesses.values.keys().chain(changed)
    }

    /// The trie nodes on the paths of all touched keys, and the siblings that removals may need.
    fn nodes(&self) -> Result<Vec<Bytes>, StateError> {
        let mut keys: BTreeMap<Address, BTreeSet<B256>> = BTreeMap::new();
        for key in self.touched() {
            let slots = keys.entry(*key.address()).or_default();
            if let StateKey::Slot(_, slot) = key {
                slots.insert(*slot);
            }
        }
        let mut nodes = BTreeSet::new();
        // A block that touches nothing still needs the root node, to prove its state root.
        nodes.extend(self.proven.account_nodes(&Address::ZERO, &[])?.account.into_iter().next());
        for (address, slots) in keys {
            let slots: Vec<B256> = slots.into_iter().collect();
            let found = self.proven.account_nodes(&address, &slots)?;
            nodes.extend(found.account);
            nodes.extend(found.storage.into_iter().flatten());
        }
        let removed = self.outcome.delta.changes().iter().filter(|change| change.next.is_none());
        let removed: Vec<StateKey> = removed.map(|change| change.key).collect();
        nodes.extend(self.proven.merge_nodes(&removed)?);
        Ok(nodes.into_iter().collect())
    }

    /// Those of `nodes` that reads and the root after the block need, where the backend can tell. What
    /// it cannot rule out stays.
    fn needed(
        &self,
        nodes: Vec<Bytes>,
        opener: Option<&dyn PartialState>,
    ) -> Result<Vec<Bytes>, StateError> {
        let Some(opener) = opener else { return Ok(nodes) };
        let audit = opener.audit_witness(self.parent.state_root, &nodes)?;
        for key in self.accesses.values.keys() {
            audit.tree.get(key)?;
        }
        audit.tree.apply(&self.outcome.delta)?;
        let uses = audit.nodes.uses();
        let used = nodes.into_iter().zip(uses).filter(|(_, found)| *found == NodeUse::Read);
        Ok(used.map(|(node, _)| node).collect())
    }

    /// The preimages of the hashed keys: addresses and slots.
    fn keys(&self) -> Vec<Bytes> {
        let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
        for key in self.touched() {
            keys.insert(key.address().as_slice());
            if let StateKey::Slot(_, slot) = key {
                keys.insert(slot.as_slice());
            }
        }
        keys.into_iter().map(Bytes::copy_from_slice).collect()
    }
}
