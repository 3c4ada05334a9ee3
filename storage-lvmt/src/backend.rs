//! The contract over the rows and structures of this crate.

use crate::{
    apply, bulk,
    cache::Memo,
    check, collect,
    params::Params,
    proof,
    record::{AMTS, BLOCKS, KEYS, META, Meta, NAME, RANGE, Record, SLOTS, TREES, corrupt},
    second::{CHUNKS, LOG},
    shard::ProofShard,
    state::State,
    tree::ProofTree,
    verify,
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, Direction, HashId,
    Identity, KeyRange, NodeRead, NodeWrite, ProofError, ProofHole, ProofShards, StateDelta,
    StateError, StateKey, Table, Thinned, Value, prefix_end,
};
use std::{fmt, path::Path, sync::Arc};

/// How rows are laid out. Those of the first layout, which has no name, had commitments of the second
/// level one by one; roots and proofs are the same.
pub(crate) const LAYOUT: &str = "logged-second-level";
/// Structures of blocks that are kept whole: those of the last sixteen. One shares with its parent's
/// what the block did not change, which of a block with thousands of changes is little of the proof tree.
const KEPT: usize = 16;
/// So many of older blocks may be kept without the lowest nodes of the proof tree, as if they shared
/// nothing.
const THINNED: u64 = 128;
/// Memory for what is theirs of the second level, in bytes: of a block that changes a thousand keys it is
/// 64 KiB.
const THINNED_SECOND: u64 = 16 << 20;

/// Why the backend cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LvmtError {
    /// A proof shard needs the tables of quotients.
    #[error(
        "the parameters have no tables for proofs, which proof shard {0} needs; make them again \
         with `retrie params lvmt`, without --without-proofs"
    )]
    NoQuotients(ProofShard),
    /// There are fewer entries, or fewer shards of this size.
    #[error("there is no proof shard {shard}: an AMT of height {height} has {} entries", 1u32 << height)]
    NoSuchShard {
        /// The shard asked for.
        shard: ProofShard,
        /// Height of the AMTs.
        height: u8,
    },
}

/// Multi-layer versioned multipoint trie.
pub struct Lvmt {
    identity: Identity,
    params: Arc<Params>,
    shard: ProofShard,
    slack: u64,
    empty_root: B256,
}

impl fmt::Debug for Lvmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lvmt")
            .field("identity", &self.identity)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl Lvmt {
    /// The backend with these public parameters. It proves what `shard` says.
    pub fn new(params: Arc<Params>, shard: ProofShard) -> Result<Self, LvmtError> {
        let height = params.height();
        let is_beyond = |(bits, index)| bits > u32::from(height) || index >> bits != 0;
        if shard.prefix().is_some_and(is_beyond) {
            return Err(LvmtError::NoSuchShard { shard, height });
        }
        if shard != ProofShard::None && !params.has_quotients() {
            return Err(LvmtError::NoQuotients(shard));
        }
        let params_digest = params.digest();
        let plain = Identity::plain(NAME, 1, HashId::Blake2b256);
        let identity = Identity { params: params_digest, layout: LAYOUT, ..plain };
        let empty_root = apply::root_of(&Meta::EMPTY, &B256::ZERO);
        Ok(Self { identity, params, shard, slack: collect::SLACK, empty_root })
    }

    /// As it is, but collecting garbage once there are `slack` stale leaves more than live ones.
    pub const fn with_slack(mut self, slack: u64) -> Self {
        self.slack = slack;
        self
    }

    /// The public parameters.
    pub fn params(&self) -> &Arc<Params> {
        &self.params
    }

    fn entries_in<'a>(
        &self,
        view: &'a dyn NodeRead,
        range: KeyRange<'_>,
    ) -> Result<impl Iterator<Item = Result<(StateKey, Value), StateError>> + 'a, StateError> {
        let rows = view.scan(KEYS, range, Direction::Forward)?;
        Ok(rows.filter_map(|row| {
            let entry = row.and_then(|(key, row)| {
                let key = StateKey::decode(&key)
                    .ok_or_else(|| corrupt(KEYS, format!("row {key} is not a state key")))?;
                Ok(Record::value_of(&key, &row)?.map(|value| (key, value)))
            });
            entry.transpose()
        }))
    }
}

impl Backend for Lvmt {
    type Cache = State;

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: false,
            ethereum_root: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![KEYS, SLOTS, AMTS, TREES, BLOCKS, RANGE, META, LOG, CHUNKS]
    }

    fn empty_root(&self) -> B256 {
        self.empty_root
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<State, StateError> {
        State::open(view, self.params.height(), self.shard, self.slack)
    }

    fn caches_kept(&self) -> usize {
        KEPT
    }

    fn thinned(&self, state: &State) -> Option<Thinned<State>> {
        let (cache, bytes) = state.thinned(self.shard, self.slack)?;
        Some(Thinned { cache, bytes })
    }

    fn thinned_bytes(&self) -> u64 {
        match self.shard {
            ProofShard::None => 0,
            shard => {
                THINNED * ProofTree::thinned_bytes(self.params.height(), shard) + THINNED_SECOND
            }
        }
    }

    fn cache_bytes(&self) -> u64 {
        let structures = State::bytes(self.params.height(), self.shard, KEPT as u64 + 1);
        // A block hands its rows on to nobody: those of the tip and of the block on top of it.
        self.params.bytes() + structures + self.thinned_bytes() + 2 * Memo::BYTES
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &State,
        delta: &StateDelta,
    ) -> Result<Applied<State>, StateError> {
        let (root, cache) = apply::apply(&self.params, self.shard, context, view, parent, delta)?;
        Ok(Applied { root, cache })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        state: &State,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        let row = match state.memo.get(key) {
            Some(row) => row,
            None => {
                let row = view.get(KEYS, &key.encode())?;
                state.memo.put(key, &row);
                row
            }
        };
        row.map_or(Ok(None), |row| Record::value_of(key, &row))
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        _: &State,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let start = StateKey::Slot(*address, B256::ZERO).encode();
        let end = prefix_end(&start[..21]);
        self.entries_in(view, KeyRange { start: &start[..21], end: end.as_deref() })?
            .take(limit)
            .map(|entry| match entry? {
                (StateKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => Err(corrupt(KEYS, format!("{key} among slots"))),
            })
            .collect()
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        _: &State,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let start = start.map(StateKey::encode);
        let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
        self.entries_in(view, range)?.take(limit).collect()
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        bulk::load(&self.params, self.shard, number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        proof::prove(&self.params, self.shard, view, state, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        verify::verify(self.params.verifier(), root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &State) -> Result<BackendStats, StateError> {
        let Meta { keys, dead, .. } = Meta::get(view)?;
        let stats = BackendStats::count(view, &self.tables())?;
        Ok(BackendStats { live_keys: keys.saturating_sub(dead), dead_keys: dead, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &State,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(&self.params, view, state, root, report)
    }

    fn proof_shards(&self) -> Option<&dyn ProofShards<State>> {
        Some(self)
    }
}

impl ProofShards<State> for Lvmt {
    fn shard(&self) -> String {
        self.shard.to_string()
    }

    fn prove_part(
        &self,
        view: &dyn NodeRead,
        state: &State,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError> {
        let (parts, _) = proof::parts(&self.params, view, state, keys)?;
        Ok(parts.encode().into())
    }

    fn holes(&self, keys: &[StateKey], parts: &[Bytes]) -> Result<Vec<ProofHole>, ProofError> {
        proof::holes(self.params.height(), keys, parts)
    }

    fn fills(&self, shard: &str, hole: &ProofHole) -> bool {
        shard.parse().is_ok_and(|shard| proof::fills(self.params.height(), shard, hole))
    }

    fn check_part(
        &self,
        view: &dyn NodeRead,
        _: &State,
        keys: &[StateKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError> {
        proof::check(self.params.verifier(), view, keys, own, part)
    }

    fn combine(&self, parts: &[Bytes]) -> Result<Bytes, ProofError> {
        proof::combine(parts).map(Bytes::from)
    }
}
