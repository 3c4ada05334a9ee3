//! States whose nodes are rows by hash: values, listings, proofs. A root names a state.

use super::nodes::{HashedNodes, NodeCache, NodeKeys, NodeRecorder, node_cache};
use crate::{
    TrieHash, block_witness, ethereum,
    trie::{LeafSorter, Trie},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Account, AccountKey, AccountNodes, BackendKey, BulkSink, KeyRange, LookupCounter, NodeRead,
    RowTable, ScanDirection, StateError, StateValue, WitnessRequest, prefix_end,
};

/// Default memory of the node cache, in bytes. As much as the branches that [`Mpt`](crate::Mpt)
/// keeps in memory may take.
pub(crate) const DEFAULT_CACHE: u64 = 192 << 20;

/// Key of the row in a table of state keys that is for another purpose. It sorts behind all keys.
pub(crate) const BEHIND_KEYS: &[u8] = &[0xff];

/// A backend's tries: their tables, and the rows of nodes in memory.
pub(crate) struct HashedStates {
    pub(crate) with: TrieHash,
    pub(crate) cache: NodeCache,
    /// Lookups in the cache.
    pub(crate) lookups: LookupCounter,
    /// The nodes.
    pub(crate) nodes: RowTable,
    pub(crate) node_keys: NodeKeys,
    /// State keys, since the tries contain only hashes of keys. It has at least those with a value.
    pub(crate) keys: RowTable,
}

impl HashedStates {
    /// States in these tables; the cache has at most `bytes`.
    pub(crate) fn new(
        with: TrieHash,
        bytes: u64,
        nodes: RowTable,
        node_keys: NodeKeys,
        keys: RowTable,
    ) -> Self {
        let (cache, lookups) = (node_cache(bytes), LookupCounter::default());
        Self { with, cache, lookups, nodes, node_keys, keys }
    }

    pub(crate) fn nodes<'a>(&'a self, view: &'a dyn NodeRead) -> HashedNodes<'a> {
        let Self { with, cache, lookups, nodes: table, node_keys: keys, .. } = self;
        let (with, table, keys) = (*with, *table, *keys);
        HashedNodes { view, cache, lookups, with, table, keys, mask: B256::ZERO }
    }

    fn tries<'a>(&'a self, view: &'a dyn NodeRead, root: &B256) -> HashedTries<'a> {
        HashedTries { nodes: self.nodes(view), root: *root }
    }

    fn reader<'a>(&'a self, view: &'a dyn NodeRead, root: &B256) -> HashedReader<'a> {
        HashedReader { nodes: self.nodes(view), root: *root, last: None }
    }

    pub(crate) fn read(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        self.reader(view, root).get(key)
    }

    pub(crate) fn slots_of(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        owner: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let start = owner.slots_prefix();
        let end = prefix_end(&start);
        self.present(view, root, KeyRange { start: &start, end: end.as_deref() })?
            .take(limit)
            .map(|entry| match entry? {
                (BackendKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => Err(StateError::corrupt(self.keys.name, format!("{key} among slots"))),
            })
            .collect()
    }

    pub(crate) fn entries(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        let start = start.map(BackendKey::encode);
        let range = KeyRange::new(start.as_deref().unwrap_or(&[]), BEHIND_KEYS);
        self.present(view, root, range)?.take(limit).collect()
    }

    /// The keys of `range` that have a value in the state under `root`, in key order.
    fn present<'a>(
        &'a self,
        view: &'a dyn NodeRead,
        root: &B256,
        range: KeyRange<'_>,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>> + 'a, StateError>
    {
        let mut reader = self.reader(view, root);
        let rows = view.scan(self.keys, range, ScanDirection::Forward)?;
        Ok(rows.filter_map(move |row| {
            let entry = row.and_then(|(key, _)| {
                let key = BackendKey::decode(&key).ok_or_else(|| {
                    let what = format!("row {key} is not a state key");
                    StateError::corrupt(self.keys.name, what)
                })?;
                Ok(reader.get(&key)?.map(|value| (key, value)))
            });
            entry.transpose()
        }))
    }

    pub(crate) fn prove(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        ethereum::prove(&self.tries(view, root), keys)
    }

    pub(crate) fn account_nodes(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        owner: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        ethereum::account_nodes(&self.tries(view, root), owner, slots)
    }

    pub(crate) fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        removed: &[BackendKey],
    ) -> Result<Vec<Bytes>, StateError> {
        ethereum::merge_nodes(&self.tries(view, root), removed)
    }

    pub(crate) fn witness(
        &self,
        view: &dyn NodeRead,
        root: &B256,
        block: WitnessRequest<'_>,
    ) -> Result<Bytes, StateError> {
        block_witness::make(&self.tries(view, root), block)
    }

    /// Writes the nodes of the trie of `leaves` and returns its root, in a bulk load. It is the
    /// storage trie of the account `trie`, or the account trie.
    pub(crate) fn load_trie(
        &self,
        sink: &mut dyn BulkSink,
        trie: Option<AccountKey>,
        leaves: LeafSorter<()>,
    ) -> Result<B256, StateError> {
        let mask = |owner| self.node_keys.mask(self.with.account_path(&owner));
        let mask = trie.map_or(B256::ZERO, mask);
        let built = leaves.build(self.with, &NodeRecorder::default(), |part| {
            part.0.added.iter().try_for_each(|(hash, row)| {
                sink.put_unordered(self.nodes, (*hash ^ mask).as_slice(), row)
            })
        })?;
        Ok(built.hash())
    }
}

/// Reads many keys of one state. Successive keys of one account cost one lookup of the account.
struct HashedReader<'a> {
    nodes: HashedNodes<'a>,
    root: B256,
    /// The account of the last key.
    last: Option<OpenedAccount<'a>>,
}

/// An account, if it is there, and the nodes of its storage.
#[derive(Clone, Copy)]
struct OpenedAccount<'a> {
    owner: AccountKey,
    found: Option<(Account, B256)>,
    storage: HashedNodes<'a>,
}

impl<'a> HashedReader<'a> {
    fn get(&mut self, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
        let owner = key.account();
        let opened = match self.last {
            Some(last) if last.owner == *owner => last,
            _ => *self.last.insert(self.account(owner)?),
        };
        match (key, opened.found) {
            (_, None) => Ok(None),
            (BackendKey::Account(_), Some((account, _))) => Ok(Some(account.encode())),
            (BackendKey::Slot(owner, slot), Some((_, root))) => {
                opened.storage.slot(root, &self.nodes.with.slot_path(owner, slot))
            }
        }
    }

    fn account(&self, owner: &AccountKey) -> Result<OpenedAccount<'a>, StateError> {
        let path = self.nodes.with.account_path(owner);
        let found = self.nodes.account(self.root, &path)?;
        Ok(OpenedAccount { owner: *owner, found, storage: self.nodes.of_storage(path) })
    }
}

/// The tries under one root, for proofs.
struct HashedTries<'a> {
    nodes: HashedNodes<'a>,
    root: B256,
}

impl<'a> ethereum::StateTries for HashedTries<'a> {
    type Stamp = ();
    type Source = HashedNodes<'a>;

    fn hash(&self) -> TrieHash {
        self.nodes.with
    }

    fn accounts(&self) -> (Trie, HashedNodes<'a>) {
        (Trie::unresolved(self.nodes.with, self.root), self.nodes)
    }

    fn storage(
        &self,
        owner: &AccountKey,
        root: B256,
        (): (),
    ) -> Result<(Trie, HashedNodes<'a>), StateError> {
        let path = self.nodes.with.account_path(owner);
        Ok((Trie::unresolved(self.nodes.with, root), self.nodes.of_storage(path)))
    }
}
