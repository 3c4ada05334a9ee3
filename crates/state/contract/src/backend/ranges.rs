//! A state as leaves and nodes of Ethereum's tries, in the order of hashes, as peers hand it out and are
//! asked for it by `snap`: [`StateRanges`] serves it, [`RangeFormat`] is what a receiver makes of it.

use super::{AnyCache, ChunkId, NodeRead, OpenedChunk};
use crate::{KeyForm, ProofError, StateError};
use alloy_primitives::{B256, Bytes, U256};
use std::{collections::BTreeMap, fmt, ops::RangeInclusive, path::Path, sync::Arc};

/// A trie of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateTrie {
    /// The account trie.
    Accounts,
    /// The storage trie of the account whose address has this hash.
    Storage(B256),
}

/// A leaf of a trie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrieLeaf {
    /// Hash of the address or slot.
    pub key: B256,
    /// The byte string in the leaf: the RLP of the account with its storage root, or of the value.
    pub value: Bytes,
}

/// The place of a chunk: a slot of a trie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The trie.
    pub trie: StateTrie,
    /// The path of the slot, a nibble a byte.
    pub path: Vec<u8>,
    /// The keys below the slot.
    pub keys: RangeInclusive<B256>,
    /// The node at the slot, if it is shorter than a hash: then the id has it.
    pub embedded: Option<Bytes>,
}

/// What a server of ranges has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeAnswer<T> {
    /// It.
    Found(T),
    /// The state has no such trie.
    NoTrie,
    /// The server is still preparing its answers. Ask again later.
    NotReady,
}

/// Optional extension of backends with Ethereum's root: they serve a state as leaves and nodes of its
/// tries, to every peer that knows the root, in either form of the backend's keys.
pub trait StateRanges: Send + Sync {
    /// Starts to serve the state that `view` and `cache` show, whose keys have this form; the
    /// server holds the view until it is dropped. With plain keys it needs their order by hash,
    /// which it builds when an answer first needs it, in unnamed files of the directory `scratch`
    /// (`None`: the system's directory for temporary files).
    ///
    /// # Errors
    /// If the cache belongs to another backend.
    fn serve_ranges(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        keys: KeyForm,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn RangeServer>, StateError>;

    /// The form in which a receiver takes such a state, the same for all backends.
    fn range_format(&self) -> &'static dyn RangeFormat;
}

/// A state in chunks that a receiver makes of leaves and nodes, with [hashed keys](KeyForm::Hashed).
///
/// As with [`StateChunks`](super::StateChunks), an id has the hash of what is below a slot: all leaves
/// below it, or its node, which names further chunks. So a chunk is checked on its own, and a chunk
/// that two states share is fetched once. Only an answer that ends before the chunk does needs the
/// proof of its end. All methods are pure, and their work and memory are bounded by the lengths of
/// what they are given.
pub trait RangeFormat: fmt::Debug + Send + Sync {
    /// The chunk of a whole trie; `None` if `root` is the root of the empty trie.
    fn whole_range(&self, trie: StateTrie, root: B256) -> Option<ChunkId>;

    /// The place of a chunk; `None` if the id is none of this format.
    fn place(&self, id: &ChunkId) -> Option<ChunkPlace>;

    /// The answer to an id that consists of these leaves: all below the slot, in order.
    fn pack_leaves(&self, leaves: &[TrieLeaf]) -> Bytes;

    /// The leaves of an answer, unchecked; `None` if it is a node, or not an answer.
    fn unpack_leaves(&self, answer: &[u8]) -> Option<Vec<TrieLeaf>>;

    /// The answer to an id that consists of the node at the slot.
    fn pack_node(&self, node: &Bytes) -> Bytes;

    /// The one of these nodes that is at the slot of `id`.
    fn find_node<'a>(&self, id: &ChunkId, nodes: &'a [Bytes]) -> Option<&'a Bytes>;

    /// Checks that `leaves` are the first ones of the chunk `id`, by the nodes of `proof`, which
    /// come in any order: then a peer had reason to give no more, and its answer shows how much is
    /// below the slot.
    ///
    /// # Errors
    /// [`ProofError`] if they are not, or if the proof does not show it.
    fn check_part(
        &self,
        id: &ChunkId,
        leaves: &[TrieLeaf],
        proof: &[Bytes],
    ) -> Result<(), ProofError>;

    /// Checks the answer to `id`, as [`StateChunks::open`](super::StateChunks::open) does.
    ///
    /// # Errors
    /// As there.
    fn open_range(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError>;

    /// The leaves at a place after blocks that changed this, as far as it can be known: `leaves` are
    /// those of an earlier state, and `storage` gives all leaves of the storage trie that an account
    /// with this hash had under this root. Whether they are right shows
    /// [`open_range`](Self::open_range).
    fn changed(
        &self,
        place: &ChunkPlace,
        leaves: &[TrieLeaf],
        changes: &RangeChanges,
        storage: &mut dyn FnMut(B256, B256) -> Option<Vec<TrieLeaf>>,
    ) -> Vec<TrieLeaf>;
}

/// What blocks in a row changed, by the hashes of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeChanges(pub BTreeMap<B256, AccountPostValues>);

/// What an account has after some blocks, where they changed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountPostValues {
    /// Its nonce.
    pub nonce: Option<u64>,
    /// Its balance, in wei.
    pub balance: Option<U256>,
    /// The hash of its code.
    pub code_hash: Option<B256>,
    /// Values by the hashes of slots; zero for those that were deleted.
    pub slots: BTreeMap<B256, U256>,
}

impl RangeChanges {
    /// Adds the changes of later blocks.
    pub fn extend(&mut self, later: Self) {
        for (account, later) in later.0 {
            let values = self.0.entry(account).or_default();
            values.nonce = later.nonce.or(values.nonce);
            values.balance = later.balance.or(values.balance);
            values.code_hash = later.code_hash.or(values.code_hash);
            values.slots.extend(later.slots);
        }
    }
}

/// Serves the leaves and nodes of one state. Any peer may ask for anything, so work and memory of
/// an answer are bounded by its length.
pub trait RangeServer: Send + Sync {
    /// The leaves of a trie from the key `first` on, in order, up to the one for which `enough`
    /// returns true, that one included.
    ///
    /// # Errors
    /// If rows cannot be read, or are damaged.
    fn leaves(
        &self,
        trie: StateTrie,
        first: B256,
        enough: &mut dyn FnMut(&TrieLeaf) -> bool,
    ) -> Result<RangeAnswer<Vec<TrieLeaf>>, StateError>;

    /// The nodes on the path to `key`, from the root down to its leaf, or to the node that shows
    /// that there is none.
    ///
    /// # Errors
    /// As [`leaves`](Self::leaves).
    fn path(&self, trie: StateTrie, key: B256) -> Result<RangeAnswer<Vec<Bytes>>, StateError>;

    /// The node at a path of nibbles; `None` if no node with a hash of its own is there.
    ///
    /// # Errors
    /// As [`leaves`](Self::leaves).
    fn node(&self, trie: StateTrie, path: &[u8]) -> Result<RangeAnswer<Option<Bytes>>, StateError>;
}
