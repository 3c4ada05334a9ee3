//! The tries of one block, new or old, and reads of them.

use super::{
    layout::PrefixLayout,
    source::{PrefixSource, ProofSource},
};
use alloy_primitives::B256;
use retrie_state::{Account, AccountKey, BackendKey, NodeRead, StateError, StateValue};
use retrie_storage_mpt::{
    Trie, TrieHash,
    ethereum::{self, TrieCache},
    leaf,
};

/// The state of one block.
#[derive(Clone, Debug)]
pub struct PrefixState {
    /// Number of the block.
    pub(super) block: u64,
    /// Whether the state is older than its view: then values are read from the tries.
    pub(super) is_old: bool,
    pub(super) tries: TrieCache<u64>,
}

impl PrefixState {
    /// The tries of this state on rows of this layout in `view`.
    pub(super) const fn on<'a>(
        &'a self,
        view: &'a dyn NodeRead,
        layout: PrefixLayout,
    ) -> PrefixTries<'a> {
        PrefixTries { state: self, view, layout }
    }
}

/// An account decoded from its leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundAccount {
    pub(super) account: Account,
    pub(super) storage_root: B256,
    /// Version of the row of its storage trie's root; 0 if that is empty.
    pub(super) version: u64,
}

/// The tries of one block, for reading.
#[derive(Clone, Copy)]
pub(super) struct PrefixTries<'a> {
    pub(super) state: &'a PrefixState,
    view: &'a dyn NodeRead,
    layout: PrefixLayout,
}

impl<'a> PrefixTries<'a> {
    pub(super) const fn source(&self, trie: Option<AccountKey>) -> PrefixSource<'a> {
        PrefixSource::new(self.view, self.layout, trie)
    }

    /// The account `owner`.
    pub(super) fn account(&self, owner: &AccountKey) -> Result<Option<FoundAccount>, StateError> {
        let key = TrieHash::Keccak256.account_path(owner);
        let source = self.state.tries.prefetch().over(self.source(None));
        let leaf = self.state.tries.accounts().leaf(&source, &key)?;
        let Some(leaf) = leaf else { return Ok(None) };
        let decoded = leaf::decode_account(leaf.value());
        let (account, storage_root) = decoded.ok_or_else(|| {
            let what = format!("the leaf of account {owner} is malformed");
            StateError::corrupt("account trie", what)
        })?;
        Ok(Some(FoundAccount { account, storage_root, version: leaf.stamp() }))
    }

    /// The storage trie of an account.
    pub(super) fn storage_of(
        &self,
        owner: &AccountKey,
        root: B256,
        version: u64,
    ) -> Result<Trie<u64>, StateError> {
        let empty = Trie::empty(TrieHash::Keccak256);
        if root == empty.hash() {
            return Ok(empty);
        }
        if let Some(trie) = self.state.tries.storage(owner) {
            return Ok(trie);
        }
        self.source(Some(*owner)).storage(root, version)
    }
}

impl<'a> ethereum::StateTries for PrefixTries<'a> {
    type Stamp = u64;
    type Source = ProofSource<'a>;

    fn hash(&self) -> TrieHash {
        TrieHash::Keccak256
    }

    fn accounts(&self) -> (Trie<u64>, ProofSource<'a>) {
        (self.state.tries.accounts().clone(), self.source(None).into())
    }

    fn storage(
        &self,
        owner: &AccountKey,
        root: B256,
        version: u64,
    ) -> Result<(Trie<u64>, ProofSource<'a>), StateError> {
        Ok((self.storage_of(owner, root, version)?, self.source(Some(*owner)).into()))
    }
}

/// Reads many keys of one state from its tries. Successive keys of one account cost one lookup of
/// the account.
pub(super) struct PrefixReader<'a> {
    tries: PrefixTries<'a>,
    last: Option<(AccountKey, Option<FoundAccount>, Option<Trie<u64>>)>,
}

impl<'a> PrefixReader<'a> {
    pub(super) const fn new(tries: PrefixTries<'a>) -> Self {
        Self { tries, last: None }
    }

    /// The value of `key`.
    pub(super) fn get(&mut self, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
        let owner = key.account();
        let last = match &mut self.last {
            Some(last) if last.0 == *owner => last,
            last => last.insert((*owner, self.tries.account(owner)?, None)),
        };
        let Some(found) = last.1 else { return Ok(None) };
        let BackendKey::Slot(_, slot) = key else { return Ok(Some(found.account.encode())) };
        let storage = match &mut last.2 {
            Some(storage) => storage,
            none => {
                let FoundAccount { storage_root, version, .. } = found;
                none.insert(self.tries.storage_of(owner, storage_root, version)?)
            }
        };
        let source = self.tries.source(Some(*owner));
        let leaf = storage.leaf(&source, &TrieHash::Keccak256.slot_path(owner, slot))?;
        let value = leaf.map(|leaf| {
            leaf::decode_slot_value(leaf.value()).ok_or_else(|| {
                let what = format!("the leaf of slot {slot} of {owner} is malformed");
                StateError::corrupt("storage trie", what)
            })
        });
        value.transpose()
    }
}
