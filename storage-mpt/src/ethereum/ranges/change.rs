//! Leaves after changes. A value that cannot be known, such as the root of a storage trie that is not at
//! hand, stays as it was: then the chunk's hash is not that of its id.

use super::chunk::WITH;
use crate::{
    leaf,
    trie::{BuildSource, BuiltSubtrie, LeafUpdate, NodeEncoder},
};
use alloy_primitives::{B256, Bytes, U256};
use alloy_trie::Nibbles;
use retrie_state::{Account, AccountPostValues, ChunkPlace, RangeChanges, TrieLeaf, encode_slot};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// All leaves of the storage trie that an account had under a root, if they are at hand.
type StorageLeaves<'a> = dyn FnMut(B256, B256) -> Option<Vec<TrieLeaf>> + 'a;

pub(super) fn accounts(
    place: &ChunkPlace,
    leaves: &[TrieLeaf],
    changes: &RangeChanges,
    storage: &mut StorageLeaves<'_>,
) -> Vec<TrieLeaf> {
    let changes = changes.0.range(place.keys.clone());
    let change = |key: &B256, old: Option<&Bytes>, values: &AccountPostValues| {
        account(key, old.map(|old| &old[..]), values, storage)
    };
    merged(leaves, changes, change)
}

pub(super) fn slots(
    keys: &RangeInclusive<B256>,
    leaves: &[TrieLeaf],
    slots: &BTreeMap<B256, U256>,
) -> Vec<TrieLeaf> {
    let value = |_: &B256, _: Option<&Bytes>, value: &U256| {
        encode_slot(*value).and_then(|value| leaf::encode_slot_value(&value))
    };
    merged(leaves, slots.range(keys.clone()), value)
}

/// The leaves, with those that `change` gives for the changed keys; without those for which it
/// gives `None`. Both ascend.
fn merged<'a, T: 'a>(
    leaves: &[TrieLeaf],
    changes: impl Iterator<Item = (&'a B256, &'a T)>,
    mut change: impl FnMut(&B256, Option<&Bytes>, &T) -> Option<Bytes>,
) -> Vec<TrieLeaf> {
    let mut merged = Vec::with_capacity(leaves.len());
    let mut rest = leaves;
    for (key, values) in changes {
        let before = rest.partition_point(|leaf| leaf.key < *key);
        let (unchanged, behind) = rest.split_at(before);
        merged.extend_from_slice(unchanged);
        let (old, behind) = match behind.split_first() {
            Some((old, behind)) if old.key == *key => (Some(&old.value), behind),
            _ => (None, behind),
        };
        let value = change(key, old, values);
        merged.extend(value.map(|value| TrieLeaf { key: *key, value }));
        rest = behind;
    }
    merged.extend_from_slice(rest);
    merged
}

/// An account's leaf after changes; `None` if the account is empty (EIP-161).
fn account(
    key: &B256,
    old: Option<&[u8]>,
    values: &AccountPostValues,
    storage: &mut StorageLeaves<'_>,
) -> Option<Bytes> {
    let before = old.and_then(leaf::decode_account);
    let (mut account, root) = before.unwrap_or_else(|| (Account::default(), WITH.empty_root()));
    account.nonce = values.nonce.unwrap_or(account.nonce);
    account.balance = values.balance.unwrap_or(account.balance);
    account.code_hash = values.code_hash.unwrap_or(account.code_hash);
    if account == Account::default() {
        return None;
    }
    let mut old_slots = || match root == WITH.empty_root() {
        true => Some(Vec::new()),
        false => storage(*key, root),
    };
    let root = match values.slots.is_empty() {
        true => root,
        false => old_slots().map_or(root, |leaves| {
            let all = B256::ZERO..=B256::repeat_byte(0xff);
            storage_root(&slots(&all, &leaves, &values.slots))
        }),
    };
    Some(leaf::encode_account(&account, root))
}

fn storage_root(leaves: &[TrieLeaf]) -> B256 {
    let items: Vec<LeafUpdate> =
        leaves.iter().map(|leaf| LeafUpdate::new(leaf.key, Some(leaf.value.clone()))).collect();
    let top = Nibbles::new();
    let trie = BuiltSubtrie::build(WITH, &BuildSource::default(), &top, &items, &mut ());
    trie.map_or(WITH.empty_root(), |trie| {
        let reference = trie.reference(&top, &mut NodeEncoder::new(WITH));
        reference.as_hash().unwrap_or_else(|| WITH.hash(&reference))
    })
}

#[cfg(test)]
mod tests {
    use super::{super::chunk::tests::leaves, *};
    use alloy_primitives::keccak256;
    use rand::{SeedableRng, rngs::StdRng};
    use retrie_state::StateTrie;

    #[test]
    fn accounts_and_storage_follow_their_changes() {
        let mut rng = StdRng::seed_from_u64(12);
        let old_slots = leaves(&mut rng, 60);
        let (owner, gone, new) = (B256::repeat_byte(1), B256::repeat_byte(2), B256::repeat_byte(3));
        let old_root = storage_root(&old_slots);
        let account = Account { nonce: 1, balance: U256::from(5), ..Default::default() };
        let old = [owner, gone].map(|key| TrieLeaf {
            key,
            value: leaf::encode_account(
                &account,
                if key == owner { old_root } else { WITH.empty_root() },
            ),
        });
        // One slot is deleted, one is changed, one is new.
        let (deleted, changed, fresh) = (old_slots[3].key, old_slots[9].key, keccak256(b"fresh"));
        let slots_after = BTreeMap::from([
            (deleted, U256::ZERO),
            (changed, U256::from(77)),
            (fresh, U256::from(88)),
        ]);
        let changes = RangeChanges(BTreeMap::from([
            (
                owner,
                AccountPostValues {
                    balance: Some(U256::from(9)),
                    slots: slots_after,
                    ..Default::default()
                },
            ),
            (
                gone,
                AccountPostValues {
                    nonce: Some(0),
                    balance: Some(U256::ZERO),
                    ..Default::default()
                },
            ),
            (new, AccountPostValues { nonce: Some(4), ..Default::default() }),
        ]));
        let keys = B256::ZERO..=B256::repeat_byte(0xff);
        let place = ChunkPlace { trie: StateTrie::Accounts, path: vec![], keys, embedded: None };
        let mut at_hand = |account: B256, root: B256| {
            assert_eq!((account, root), (owner, old_root));
            Some(old_slots.clone())
        };
        let mut all: BTreeMap<B256, Bytes> =
            old_slots.iter().map(|leaf| (leaf.key, leaf.value.clone())).collect();
        all.remove(&deleted);
        for (key, value) in [(changed, 77), (fresh, 88)] {
            let value = encode_slot(U256::from(value)).unwrap();
            all.insert(key, leaf::encode_slot_value(&value).unwrap());
        }
        let all: Vec<_> = all.into_iter().map(|(key, value)| TrieLeaf { key, value }).collect();
        let after = Account { balance: U256::from(9), ..account };
        let expected = [
            TrieLeaf { key: owner, value: leaf::encode_account(&after, storage_root(&all)) },
            TrieLeaf {
                key: new,
                value: leaf::encode_account(
                    &Account { nonce: 4, ..Default::default() },
                    WITH.empty_root(),
                ),
            },
        ];
        assert_eq!(accounts(&place, &old, &changes, &mut at_hand), expected);
        // Without the old slots the root stays as it was.
        let unknown = accounts(&place, &old, &changes, &mut |_, _| None);
        assert_eq!(unknown[0].value, leaf::encode_account(&after, old_root));
        // Only what is below the place is changed.
        let place = ChunkPlace { keys: B256::ZERO..=B256::repeat_byte(0x01), ..place };
        assert_eq!(accounts(&place, &old[..1], &changes, &mut at_hand), expected[..1]);
        let none = slots(&(B256::ZERO..=B256::repeat_byte(0xff)), &[], &BTreeMap::new());
        assert!(none.is_empty());
        assert_eq!(storage_root(&none), WITH.empty_root());
    }
}
