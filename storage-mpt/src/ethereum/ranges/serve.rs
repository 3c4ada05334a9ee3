//! Serves [ranges](retrie_state::StateRanges) of a state from its tries. A walk from a key on reads
//! the branches on the paths of the leaves it finds, so it needs no order of keys; only the address
//! of an account with plain keys has to be found by its hash.

use super::super::{
    StateTries,
    chunks::{PlainKeys, link_at},
};
use crate::{
    leaf,
    trie::{NodeEncoder, NodeLink, NodeSource, Trie, child_slot, key_bounds, loaded, resolved},
};
use alloy_primitives::{Address, B256, Bytes};
use alloy_trie::Nibbles;
use retrie_state::{
    AccountKey, KeyForm, NodeRead, RangeAnswer, RangeServer, StateError, StateTrie, TrieLeaf,
};
use std::{fmt, path::Path, sync::Arc};

/// What has the tries of one state, on any view of it.
pub trait TriesOwner: Send + Sync {
    /// The tries on a view.
    type OpenTries<'a>: StateTries
    where
        Self: 'a;

    /// The tries on `view`.
    fn on<'a>(&'a self, view: &'a dyn NodeRead) -> Self::OpenTries<'a>;
}

/// A server of ranges of the state that `view` and `tries` show, whose keys have this form. Files
/// go to the folder `scratch`.
pub fn server<O: TriesOwner + 'static>(
    tries: O,
    view: Arc<dyn NodeRead>,
    keys: KeyForm,
    scratch: Option<&Path>,
) -> Box<dyn RangeServer> {
    let with = tries.on(&*view).hash();
    let addresses = match keys {
        KeyForm::Plain => Some(PlainKeys::new(with, view.clone(), scratch)),
        KeyForm::Hashed => None,
    };
    Box::new(TrieRangeServer { tries, view, addresses })
}

struct TrieRangeServer<O> {
    tries: O,
    view: Arc<dyn NodeRead>,
    /// The addresses of accounts by their hashes; `None` if keys are hashes.
    addresses: Option<PlainKeys>,
}

impl<O> fmt::Debug for TrieRangeServer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrieRangeServer").finish_non_exhaustive()
    }
}

/// A trie, and where its nodes come from.
type OpenedTrie<T> = (Trie<<T as StateTries>::Stamp>, <T as StateTries>::Source);

impl<O: TriesOwner> TrieRangeServer<O> {
    fn open(
        &self,
        trie: StateTrie,
    ) -> Result<RangeAnswer<OpenedTrie<O::OpenTries<'_>>>, StateError> {
        let tries = self.tries.on(&*self.view);
        let (accounts, source) = tries.accounts();
        let StateTrie::Storage(hash) = trie else {
            return Ok(RangeAnswer::Found((accounts, source)));
        };
        let Some(leaf) = accounts.leaf(&source, &hash)? else { return Ok(RangeAnswer::NoTrie) };
        let (_, root) = leaf::decode_account(leaf.value()).ok_or_else(|| {
            StateError::corrupt("account trie", format!("the leaf {hash} is malformed"))
        })?;
        let owner = match &self.addresses {
            None => AccountKey::hashed(hash),
            Some(addresses) => match addresses.address(&hash)? {
                None => return Ok(RangeAnswer::NotReady),
                Some(address) => Address::from(address).into(),
            },
        };
        Ok(RangeAnswer::Found(tries.storage(&owner, root, leaf.stamp())?))
    }

    fn with_trie<T>(
        &self,
        trie: StateTrie,
        get: impl FnOnce(OpenedTrie<O::OpenTries<'_>>) -> Result<T, StateError>,
    ) -> Result<RangeAnswer<T>, StateError> {
        Ok(match self.open(trie)? {
            RangeAnswer::Found(found) => RangeAnswer::Found(get(found)?),
            RangeAnswer::NoTrie => RangeAnswer::NoTrie,
            RangeAnswer::NotReady => RangeAnswer::NotReady,
        })
    }
}

impl<O: TriesOwner> RangeServer for TrieRangeServer<O> {
    fn leaves(
        &self,
        trie: StateTrie,
        first: B256,
        enough: &mut dyn FnMut(&TrieLeaf) -> bool,
    ) -> Result<RangeAnswer<Vec<TrieLeaf>>, StateError> {
        self.with_trie(trie, |(trie, source)| {
            let mut leaves = Vec::new();
            let mut visit = |leaf: TrieLeaf| {
                let is_last = enough(&leaf);
                leaves.push(leaf);
                !is_last
            };
            if let Some(root) = trie.root() {
                walk_from(&source, &Nibbles::new(), root.clone(), &first, &mut visit)?;
            }
            Ok(leaves)
        })
    }

    fn path(&self, trie: StateTrie, key: B256) -> Result<RangeAnswer<Vec<Bytes>>, StateError> {
        self.with_trie(trie, |(trie, source)| {
            let mut nodes = Vec::new();
            trie.prove(&source, &key, &mut nodes)?;
            Ok(nodes)
        })
    }

    fn node(&self, trie: StateTrie, path: &[u8]) -> Result<RangeAnswer<Option<Bytes>>, StateError> {
        self.with_trie(trie, |(trie, source)| {
            if path.len() > 64 {
                return Ok(None);
            }
            let path = Nibbles::from_nibbles(path);
            let mut encoder = NodeEncoder::new(trie.hash_function());
            let found = match link_at(&trie, &source, &path)? {
                Some(link) => {
                    if !link.encode_short(path.len(), &mut encoder) {
                        let NodeLink::Branch(link) = link else { return Ok(None) };
                        loaded(&source, &path, &link)?.encode(path.len(), &mut encoder);
                    }
                    true
                }
                None => match trie.branch_at(&source, &path)? {
                    // Below an extension.
                    Some(branch) => {
                        branch.encode(path.len(), &mut encoder);
                        true
                    }
                    None => false,
                },
            };
            let has_hash = found && (path.is_empty() || encoder.rlp.len() >= 32);
            Ok(has_hash.then(|| Bytes::copy_from_slice(&encoder.rlp)))
        })
    }
}

/// Visits the leaves below a slot from the key `first` on, in order, until `visit` returns false.
/// Returns whether it went to the end.
fn walk_from<N: NodeSource>(
    source: &N,
    slot: &Nibbles,
    link: NodeLink<N::Stamp>,
    first: &B256,
    visit: &mut impl FnMut(TrieLeaf) -> bool,
) -> Result<bool, StateError> {
    if key_bounds(slot)[1] < *first {
        return Ok(true);
    }
    match resolved(source, slot, link)? {
        NodeLink::Leaf(leaf) => {
            let leaf = TrieLeaf { key: *leaf.key(), value: leaf.value().clone() };
            Ok(leaf.key < *first || visit(leaf))
        }
        NodeLink::Branch(link) => {
            let path = link.path(slot);
            if key_bounds(&path)[1] < *first {
                return Ok(true);
            }
            let branch = loaded(source, &path, &link)?;
            for (nibble, child) in (0u8..).zip(branch.children()) {
                if let Some(child) = child
                    && !walk_from(source, &child_slot(&path, nibble), child.clone(), first, visit)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        NodeLink::Unresolved(_) => {
            Err(StateError::corrupt("trie", format!("no node hangs at {slot:?}")))
        }
    }
}
