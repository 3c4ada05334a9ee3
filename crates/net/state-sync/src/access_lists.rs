//! What blocks changed, by their block access lists (EIP-7928): so a state that was fetched in part
//! catches up with a later block (EIP-8189).

use crate::peer::StatePeer;
use alloy_consensus::Header;
use alloy_eip7928::{AccountChanges, BlockAccessList};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use retrie_state::{AccountPostValues, RangeChanges};
use std::sync::Arc;

/// Most lists that are asked for at once.
const LISTS_AT_ONCE: usize = 64;

/// What the blocks with these headers, which follow each other, changed. Peers are asked one after
/// another, and each list must have the hash in its header; `None` if a header has none, or if no peer
/// gives the list of a block.
pub fn fetch_changes(peers: &[Arc<dyn StatePeer>], headers: &[Header]) -> Option<RangeChanges> {
    if headers.iter().any(|header| header.block_access_list_hash.is_none()) {
        return None;
    }
    let mut changes = RangeChanges::default();
    let mut wanted = headers;
    let mut asked = peers.iter();
    let mut peer = asked.next()?;
    while !wanted.is_empty() {
        let some = &wanted[..wanted.len().min(LISTS_AT_ONCE)];
        let hashes: Vec<B256> = some.iter().map(Header::hash_slow).collect();
        let lists = peer.access_lists(&hashes).unwrap_or_default();
        let found = lists.iter().zip(some).map_while(|(list, header)| {
            list.as_ref().and_then(|list| checked(list, header.block_access_list_hash?))
        });
        let found: Vec<BlockAccessList> = found.collect();
        match found.is_empty() {
            true => peer = asked.next()?,
            false => wanted = &wanted[found.len()..],
        }
        found.into_iter().for_each(|list| changes.extend(changes_of(list)));
    }
    Some(changes)
}

fn checked(list: &Bytes, hash: B256) -> Option<BlockAccessList> {
    let mut rest = &list[..];
    let decoded = BlockAccessList::decode(&mut rest).ok()?;
    (keccak256(list) == hash && rest.is_empty()).then_some(decoded)
}

fn changes_of(list: BlockAccessList) -> RangeChanges {
    let changed = list.iter().filter(|account| account.has_changes());
    RangeChanges(
        changed.map(|account| (keccak256(account.address), post_values(account))).collect(),
    )
}

fn post_values(account: &AccountChanges) -> AccountPostValues {
    let slots = account.storage_post_states();
    AccountPostValues {
        nonce: account.nonce_post_state(),
        balance: account.balance_post_state(),
        code_hash: account.code_hash_post_state(),
        slots: slots.map(|(slot, value)| (keccak256(B256::from(slot)), value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::StatePeerError;
    use alloy_eip7928::{BalanceChange, SlotChanges, StorageChange};
    use alloy_primitives::{Address, U256};
    use retrie_state::ChunkId;
    use std::collections::HashMap;

    /// A peer that has some lists, and gives at most three at once.
    struct ListPeer(HashMap<B256, Bytes>);

    impl StatePeer for ListPeer {
        fn name(&self) -> &str {
            "lists"
        }

        fn find_root(&self, _: B256) -> Result<Option<B256>, StatePeerError> {
            Err(StatePeerError::new("not asked"))
        }

        fn headers(&self, _: B256, _: u64) -> Result<Vec<Bytes>, StatePeerError> {
            Err(StatePeerError::new("not asked"))
        }

        fn codes(&self, _: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
            Err(StatePeerError::new("not asked"))
        }

        fn chunks(&self, _: B256, _: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
            Err(StatePeerError::new("not asked"))
        }

        fn access_lists(&self, blocks: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
            Ok(blocks.iter().take(3).map(|block| self.0.get(block).cloned()).collect())
        }
    }

    fn list(n: u64) -> BlockAccessList {
        let index = alloy_eip7928::BlockAccessIndex;
        let slot = |slot: u64, value| SlotChanges {
            slot: U256::from(slot),
            changes: vec![
                StorageChange { block_access_index: index(1), new_value: U256::from(1) },
                StorageChange { block_access_index: index(2), new_value: U256::from(value) },
            ],
        };
        let balance = BalanceChange { block_access_index: index(1), post_balance: U256::from(n) };
        let account = AccountChanges::new(Address::repeat_byte(1));
        vec![
            account
                .with_storage_change(slot(0, n))
                .with_storage_change(slot(n, n))
                .with_balance_change(balance),
        ]
    }

    #[test]
    fn the_last_value_counts_and_every_list_is_checked() {
        let (mut headers, mut lists) = (Vec::new(), HashMap::new());
        for n in 1..=5 {
            let list = Bytes::from(alloy_rlp::encode(list(n)));
            let hash = Some(keccak256(&list));
            let header = Header { number: n, block_access_list_hash: hash, ..Default::default() };
            lists.insert(header.hash_slow(), list);
            headers.push(header);
        }
        let peer = |lists: &HashMap<_, _>| Arc::new(ListPeer(lists.clone())) as Arc<dyn StatePeer>;
        let changes = fetch_changes(&[peer(&HashMap::new()), peer(&lists)], &headers).unwrap();
        let values = &changes.0[&keccak256(Address::repeat_byte(1))];
        assert_eq!((values.balance, values.nonce), (Some(U256::from(5)), None));
        assert_eq!(values.slots.len(), 6);
        assert_eq!(values.slots[&keccak256(B256::ZERO)], U256::from(5));
        let third = headers[2].hash_slow();
        let mut wrong = lists.clone();
        wrong.insert(third, Bytes::from(alloy_rlp::encode(list(9))));
        assert_eq!(fetch_changes(&[peer(&wrong)], &headers), None);
        assert_eq!(fetch_changes(&[peer(&wrong), peer(&lists)], &headers), Some(changes));
        headers[2].block_access_list_hash = None;
        assert_eq!(fetch_changes(&[peer(&lists)], &headers), None);
    }
}
