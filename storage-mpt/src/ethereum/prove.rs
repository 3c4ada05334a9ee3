//! Makes proofs. [`verify`](crate::verify) documents their format.

use crate::{
    TrieHash, leaf,
    trie::{NodeSource, RowStamp, Trie},
    verify::{AccountProof, SlotProof, keys_digest},
};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::Encodable;
use retrie_state::{Account, AccountNodes, StateError, StateKey, StateValue};
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

    /// The storage trie of `address`, whose account leaf has this root and this stamp.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if there is no such trie.
    fn storage(
        &self,
        address: &Address,
        root: B256,
        stamp: Self::Stamp,
    ) -> Result<(Trie<Self::Stamp>, Self::Source), StateError>;
}

/// The proof bytes for `keys`.
///
/// # Errors
/// Errors of the tries' source.
pub fn prove(tries: &impl StateTries, keys: &[StateKey]) -> Result<Bytes, StateError> {
    let with = tries.hash();
    let mut path = Vec::new();
    let mut nodes: Vec<Bytes> = Vec::new();
    let mut listed = HashSet::new();
    let mut list = |path: &mut Vec<Bytes>| {
        nodes.extend(path.drain(..).filter(|node| listed.insert(with.hash(node))));
    };
    let mut storages = BTreeMap::new();
    for key in keys {
        let address = key.address();
        let account = account(tries, address, &mut path)?;
        list(&mut path);
        if let StateKey::Slot(_, slot) = key
            && let Some((_, storage_root, stamp)) = account
        {
            let (trie, rows) = match storages.entry(*address) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(tries.storage(address, storage_root, stamp)?)
                }
            };
            trie.prove(rows, &with.hash(slot), &mut path)?;
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

/// The EIP-1186 proof of an account and some of its slots.
///
/// # Errors
/// Errors of the tries' source.
pub fn account_proof(
    tries: &impl StateTries,
    address: &Address,
    slots: &[B256],
) -> Result<AccountProof, StateError> {
    let mut account_proof = Vec::new();
    let shown = account(tries, address, &mut account_proof)?;
    let (account, storage_root, stamp) = match shown {
        Some((account, storage_root, stamp)) => (Some(account), storage_root, stamp),
        None => (None, tries.hash().empty_root(), Default::default()),
    };
    let (trie, rows) = tries.storage(address, storage_root, stamp)?;
    let trie = if account.is_some() { trie } else { Trie::empty(tries.hash()) };
    let storage = slots
        .iter()
        .map(|slot| slot_proof(tries.hash(), &trie, &rows, slot))
        .collect::<Result<_, _>>()?;
    Ok(AccountProof { address: *address, account, storage_root, account_proof, storage })
}

impl From<AccountProof> for AccountNodes {
    fn from(proof: AccountProof) -> Self {
        let AccountProof { storage_root, account_proof, storage, .. } = proof;
        let storage = storage.into_iter().map(|slot| slot.proof).collect();
        Self { storage_root, account: account_proof, storage }
    }
}

/// The account in the leaf of `address`, with its storage root and the leaf's stamp. Appends the
/// nodes on its path to `proof`.
pub(super) fn account<T: StateTries>(
    tries: &T,
    address: &Address,
    proof: &mut Vec<Bytes>,
) -> Result<Option<(Account, B256, T::Stamp)>, StateError> {
    let (trie, rows) = tries.accounts();
    trie.prove(&rows, &tries.hash().hash(address), proof)?
        .map(|leaf| {
            let (account, root) = leaf::decode_account(leaf.value()).ok_or_else(|| {
                let what = format!("the leaf of account {address} is malformed");
                StateError::corrupt("account trie", what)
            })?;
            Ok((account, root, leaf.stamp()))
        })
        .transpose()
}

fn slot_proof<N: NodeSource>(
    with: TrieHash,
    trie: &Trie<N::Stamp>,
    rows: &N,
    slot: &B256,
) -> Result<SlotProof, StateError> {
    let mut proof = Vec::new();
    let value = trie
        .prove(rows, &with.hash(slot), &mut proof)?
        .map(|leaf| -> Result<StateValue, StateError> {
            leaf::decode_slot_value(leaf.value()).ok_or_else(|| {
                let what = format!("the leaf of slot {slot} is malformed");
                StateError::corrupt("storage trie", what)
            })
        })
        .transpose()?;
    Ok(SlotProof { slot: *slot, value, proof })
}
