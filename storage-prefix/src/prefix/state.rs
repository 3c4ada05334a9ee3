//! The tries of one block, new or old, and reads of them.

use super::{
    layout::PrefixLayout,
    source::{PrefixSource, ProofSource},
};
use alloy_primitives::{Address, B256};
use retrie_state::{Account, NodeRead, StateError, StateKey, StateValue};
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
    pub(super) const fn source(&self, trie: Option<Address>) -> PrefixSource<'a> {
        PrefixSource::new(self.view, self.layout, trie)
    }

    /// The account at `address`.
    pub(super) fn account(&self, address: &Address) -> Result<Option<FoundAccount>, StateError> {
        let key = TrieHash::Keccak256.hash(address);
        let source = self.state.tries.prefetch().over(self.source(None));
        let leaf = self.state.tries.accounts().leaf(&source, &key)?;
        let Some(leaf) = leaf else { return Ok(None) };
        let decoded = leaf::decode_account(leaf.value());
        let (account, storage_root) = decoded.ok_or_else(|| {
            let what = format!("the leaf of account {address} is malformed");
            StateError::corrupt("account trie", what)
        })?;
        Ok(Some(FoundAccount { account, storage_root, version: leaf.stamp() }))
    }

    /// The storage trie of an account.
    pub(super) fn storage_of(
        &self,
        address: &Address,
        root: B256,
        version: u64,
    ) -> Result<Trie<u64>, StateError> {
        let empty = Trie::empty(TrieHash::Keccak256);
        if root == empty.hash() {
            return Ok(empty);
        }
        if let Some(trie) = self.state.tries.storage(address) {
            return Ok(trie);
        }
        self.source(Some(*address)).storage(root, version)
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
        address: &Address,
        root: B256,
        version: u64,
    ) -> Result<(Trie<u64>, ProofSource<'a>), StateError> {
        Ok((self.storage_of(address, root, version)?, self.source(Some(*address)).into()))
    }
}

/// Reads many keys of one state from its tries. Successive keys of one account cost one lookup of
/// the account.
pub(super) struct PrefixReader<'a> {
    tries: PrefixTries<'a>,
    last: Option<(Address, Option<FoundAccount>, Option<Trie<u64>>)>,
}

impl<'a> PrefixReader<'a> {
    pub(super) const fn new(tries: PrefixTries<'a>) -> Self {
        Self { tries, last: None }
    }

    /// The value of `key`.
    pub(super) fn get(&mut self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let address = key.address();
        let last = match &mut self.last {
            Some(last) if last.0 == *address => last,
            last => last.insert((*address, self.tries.account(address)?, None)),
        };
        let Some(found) = last.1 else { return Ok(None) };
        let StateKey::Slot(_, slot) = key else { return Ok(Some(found.account.encode())) };
        let storage = match &mut last.2 {
            Some(storage) => storage,
            none => {
                let FoundAccount { storage_root, version, .. } = found;
                none.insert(self.tries.storage_of(address, storage_root, version)?)
            }
        };
        let source = self.tries.source(Some(*address));
        let leaf = storage.leaf(&source, &TrieHash::Keccak256.hash(slot))?;
        let value = leaf.map(|leaf| {
            leaf::decode_slot_value(leaf.value()).ok_or_else(|| {
                let what = format!("the leaf of slot {slot} of {address} is malformed");
                StateError::corrupt("storage trie", what)
            })
        });
        value.transpose()
    }
}
