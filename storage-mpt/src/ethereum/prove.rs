//! Makes proofs. [`verify`](crate::verify) documents their format.

use crate::{
    TrieHash, leaf,
    trie::{NodeSource, RowStamp, Trie},
    verify::keys_digest,
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Encodable;
use retrie_state::{Account, AccountKey, AccountNodes, BackendKey, StateError};
use std::collections::{BTreeMap, HashSet};

/// The tries of one state, and where their nodes come from.
pub trait StateTries {
    /// The version of a row, in links.
    type Stamp: RowStamp;

    /// Where nodes come from.
    type Source: NodeSource<Stamp = Self::Stamp>;

    /// The hash function of all tries.
    fn hash(&self) -> TrieHash;

    /// The account trie.
    fn accounts(&self) -> (Trie<Self::Stamp>, Self::Source);

    /// The storage trie of `owner`, whose account leaf has this root and this stamp.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if there is no such trie.
    fn storage(
        &self,
        owner: &AccountKey,
        root: B256,
        stamp: Self::Stamp,
    ) -> Result<(Trie<Self::Stamp>, Self::Source), StateError>;
}

/// The proof bytes for `keys`.
///
/// # Errors
/// Errors of the tries' source.
pub fn prove(tries: &impl StateTries, keys: &[BackendKey]) -> Result<Bytes, StateError> {
    let with = tries.hash();
    let mut path = Vec::new();
    let mut nodes: Vec<Bytes> = Vec::new();
    let mut listed = HashSet::new();
    let mut list = |path: &mut Vec<Bytes>| {
        nodes.extend(path.drain(..).filter(|node| listed.insert(with.hash(node))));
    };
    let mut storages = BTreeMap::new();
    for key in keys {
        let owner = key.account();
        let account = account(tries, owner, &mut path)?;
        list(&mut path);
        if let BackendKey::Slot(_, slot) = key
            && let Some((_, storage_root, stamp)) = account
        {
            let (trie, rows) = match storages.entry(*owner) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(tries.storage(owner, storage_root, stamp)?)
                }
            };
            trie.prove(rows, &with.slot_path(owner, slot), &mut path)?;
            list(&mut path);
        }
    }
    Ok(encode(keys_digest(with, keys), &nodes))
}

fn encode(digest: B256, nodes: &[Bytes]) -> Bytes {
    let mut out = Vec::new();
    let payload_length = digest.length() + alloy_rlp::list_length::<_, Bytes>(nodes);
    alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
    digest.encode(&mut out);
    alloy_rlp::encode_list::<_, Bytes>(nodes, &mut out);
    out.into()
}

/// The nodes of the EIP-1186 proof of an account and some of its slots.
///
/// # Errors
/// Errors of the tries' source.
pub fn account_nodes(
    tries: &impl StateTries,
    owner: &AccountKey,
    slots: &[B256],
) -> Result<AccountNodes, StateError> {
    let mut account_proof = Vec::new();
    let Some((_, storage_root, stamp)) = account(tries, owner, &mut account_proof)? else {
        let storage_root = tries.hash().empty_root();
        let storage = vec![Vec::new(); slots.len()];
        return Ok(AccountNodes { storage_root, account: account_proof, storage });
    };
    let (trie, rows) = tries.storage(owner, storage_root, stamp)?;
    let slot = |slot| {
        let mut proof = Vec::new();
        trie.prove(&rows, &tries.hash().slot_path(owner, slot), &mut proof)?;
        Ok(proof)
    };
    let storage = slots.iter().map(slot).collect::<Result<_, StateError>>()?;
    Ok(AccountNodes { storage_root, account: account_proof, storage })
}

/// The account in the leaf of `owner`, with its storage root and the leaf's stamp. Appends the
/// nodes on its path to `proof`.
pub(super) fn account<T: StateTries>(
    tries: &T,
    owner: &AccountKey,
    proof: &mut Vec<Bytes>,
) -> Result<Option<(Account, B256, T::Stamp)>, StateError> {
    let (trie, rows) = tries.accounts();
    trie.prove(&rows, &tries.hash().account_path(owner), proof)?
        .map(|leaf| {
            let (account, root) = leaf::decode_account(leaf.value()).ok_or_else(|| {
                let what = format!("the leaf of account {owner} is malformed");
                StateError::corrupt("account trie", what)
            })?;
            Ok((account, root, leaf.stamp()))
        })
        .transpose()
}
