//! [`Lvmt`]: the implementation of [`Backend`].

use crate::{
    apply,
    cache::RecordMemo,
    check, garbage, load,
    params::LvmtParams,
    proof,
    proof_tree::ProofTree,
    record::{AMTS, BLOCKS, KEYS, KeyRecord, LvmtMeta, META, NAME, RANGE, SLOTS, TREES, corrupt},
    second_level::{CHUNKS, LOG},
    shard::ProofShard,
    state::LvmtState,
    verify, witness,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions,
    BackendIdentity, BackendKey, BackendProfile, BackendStats, BulkSink, CacheCompaction,
    CompactedCache, HashId, KeyRange, NodeRead, NodeWrite, ProofError, ProofHole, ProofShards,
    ScanDirection, StateError, StateValue, WitnessMaker, WitnessRequest, WitnessSupport,
    descriptor::WitnessResult, prefix_end,
};
use std::{fmt, path::Path, sync::Arc};

/// Layout of the rows. The first layout, which had no name, stored the commitments of the second
/// level one by one. Roots and proofs are the same.
pub(crate) const LAYOUT: &str = "logged-second-level";
/// Structures of durable blocks that are kept whole: those of the last sixteen blocks. Each shares
/// with its parent's structure the parts that the block did not change; after a block with
/// thousands of changes that is little of the proof tree.
const CACHES_KEPT: usize = 16;
/// Memory for compacted proof trees of older blocks, in trees that share nothing.
const COMPACTED_TREES: u64 = 128;
/// Memory for the second level of older blocks, in bytes. A block that changes a thousand keys
/// needs 64 KiB.
const COMPACTED_LEVEL_BYTES: u64 = 16 << 20;

/// Why the backend cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LvmtError {
    /// The proof shard needs the tables of quotients.
    #[error(
        "the parameters have no tables for proofs, which proof shard {0} needs; make them again \
         with `retrie params lvmt`, without --without-proofs"
    )]
    NoQuotients(ProofShard),
    /// The AMTs have fewer entries than the shard supposes, or there are fewer shards of this size.
    #[error("there is no proof shard {shard}: an AMT of height {height} has {} entries", 1u32 << height)]
    NoSuchShard {
        /// The requested shard.
        shard: ProofShard,
        /// Height of the AMTs.
        height: u8,
    },
}

/// The multi-layer versioned multipoint trie.
pub struct Lvmt {
    identity: BackendIdentity,
    params: Arc<LvmtParams>,
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
    /// The backend with these public parameters. It can prove the keys of `shard`.
    pub fn new(params: Arc<LvmtParams>, shard: ProofShard) -> Result<Self, LvmtError> {
        let height = params.height();
        let is_beyond = |(bits, index)| bits > u32::from(height) || index >> bits != 0;
        if shard.prefix().is_some_and(is_beyond) {
            return Err(LvmtError::NoSuchShard { shard, height });
        }
        if shard != ProofShard::None && !params.has_quotients() {
            return Err(LvmtError::NoQuotients(shard));
        }
        let params_digest = params.digest();
        let plain = BackendIdentity::plain(NAME, 1, HashId::Blake2b256);
        let identity = BackendIdentity { params: params_digest, layout: LAYOUT, ..plain };
        let empty_root = apply::root_of(&LvmtMeta::EMPTY, &B256::ZERO);
        Ok(Self { identity, params, shard, slack: garbage::SLACK, empty_root })
    }

    /// The same backend, but it collects garbage as soon as stale leaves outnumber live leaves by
    /// `slack`.
    pub const fn with_slack(mut self, slack: u64) -> Self {
        self.slack = slack;
        self
    }

    /// The public parameters.
    pub fn params(&self) -> &Arc<LvmtParams> {
        &self.params
    }

    fn entries_in<'a>(
        &self,
        view: &'a dyn NodeRead,
        range: KeyRange<'_>,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>> + 'a, StateError>
    {
        let rows = view.scan(KEYS, range, ScanDirection::Forward)?;
        Ok(rows.filter_map(|row| {
            let entry = row.and_then(|(key, row)| {
                let key = BackendKey::decode(&key)
                    .ok_or_else(|| corrupt(KEYS, format!("row {key} is not a state key")))?;
                Ok(KeyRecord::value_of(&key, &row)?.map(|value| (key, value)))
            });
            entry.transpose()
        }))
    }
}

impl Backend for Lvmt {
    type Cache = LvmtState;

    fn identity(&self) -> &BackendIdentity {
        &self.identity
    }

    fn profile(&self) -> BackendProfile {
        let structures = LvmtState::bytes(self.params.height(), self.shard, CACHES_KEPT as u64 + 1);
        // The memo of the tip, and the memo of the block on top of it. A memo is dropped with its
        // block.
        let memos = 2 * RecordMemo::BYTES;
        BackendProfile {
            tables: &[KEYS, SLOTS, AMTS, TREES, BLOCKS, RANGE, META, LOG, CHUNKS],
            empty_root: self.empty_root,
            proofs: true,
            absence_proofs: true,
            cache_bytes: self.params.bytes() + structures + self.compacted_cache_bytes() + memos,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<LvmtState, StateError> {
        LvmtState::open(view, self.params.height(), self.shard, self.slack)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &LvmtState,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<LvmtState>, StateError> {
        let (root, cache) = apply::apply(&self.params, self.shard, context, view, parent, delta)?;
        Ok(ApplyOutput { root, cache })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        state: &LvmtState,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        let row = match state.memo.get(key) {
            Some(row) => row,
            None => {
                let row = view.get(KEYS, &key.encode())?;
                state.memo.put(key, &row);
                row
            }
        };
        row.map_or(Ok(None), |row| KeyRecord::value_of(key, &row))
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        _: &LvmtState,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let start = account.slots_prefix();
        let end = prefix_end(&start);
        self.entries_in(view, KeyRange { start: &start, end: end.as_deref() })?
            .take(limit)
            .map(|entry| match entry? {
                (BackendKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => Err(corrupt(KEYS, format!("{key} among slots"))),
            })
            .collect()
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        _: &LvmtState,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        let start = start.map(BackendKey::encode);
        let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
        self.entries_in(view, range)?.take(limit).collect()
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(&self.params, self.shard, number, entries, sink)
    }

    fn prove(
        &self,
        view: &dyn NodeRead,
        state: &LvmtState,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        proof::prove(&self.params, self.shard, view, state, keys)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        verify::verify(self.params.verifier(), root, keys, proof)
    }

    fn stats(&self, view: &dyn NodeRead, _: &LvmtState) -> Result<BackendStats, StateError> {
        let LvmtMeta { keys, dead, .. } = LvmtMeta::get(view)?;
        let stats = BackendStats::count(view, self.profile().tables)?;
        Ok(BackendStats { live_keys: keys.saturating_sub(dead), dead_keys: dead, ..stats })
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        state: &LvmtState,
        root: B256,
        _: bool,
        _: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        check::check(&self.params, view, state, root, report)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            proof_shards: Some(self),
            cache_compaction: Some(self),
            witnesses: WitnessSupport::Maker(self),
            ..BackendExtensions::default()
        }
    }
}

impl WitnessMaker for Lvmt {
    fn make_witness(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        witness::make(&self.params, self.shard, view, cache.get()?, block)
    }

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(self.params.verifier(), root, witness)
    }
}

impl CacheCompaction for Lvmt {
    fn retained_caches(&self) -> usize {
        CACHES_KEPT
    }

    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache> {
        let state: &LvmtState = cache.get().ok()?;
        let (cache, bytes) = state.compacted(self.shard, self.slack)?;
        Some(CompactedCache { cache: AnyCache::new(cache), bytes })
    }

    fn compacted_cache_bytes(&self) -> u64 {
        match self.shard {
            ProofShard::None => 0,
            shard => {
                COMPACTED_TREES * ProofTree::compacted_bytes(self.params.height(), shard)
                    + COMPACTED_LEVEL_BYTES
            }
        }
    }
}

impl ProofShards for Lvmt {
    fn shard(&self) -> String {
        self.shard.to_string()
    }

    fn prove_part(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        let state: &LvmtState = cache.get()?;
        let (parts, _) = proof::parts(&self.params, view, state, keys)?;
        Ok(parts.encode().into())
    }

    fn holes(&self, keys: &[BackendKey], parts: &[Bytes]) -> Result<Vec<ProofHole>, ProofError> {
        proof::holes(self.params.height(), keys, parts)
    }

    fn fills(&self, shard: &str, hole: &ProofHole) -> bool {
        shard.parse().is_ok_and(|shard| proof::fills(self.params.height(), shard, hole))
    }

    fn check_part(
        &self,
        view: &dyn NodeRead,
        _: &AnyCache,
        keys: &[BackendKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError> {
        proof::check(self.params.verifier(), view, keys, own, part)
    }

    fn combine(&self, parts: &[Bytes]) -> Result<Bytes, ProofError> {
        proof::combine(parts).map(Bytes::from)
    }
}
