//! Keys to prefetch: what a block will access, as known before its execution.

use alloy_consensus::Transaction;
use alloy_eip7928::{AccountChanges, constants::ITEM_COST};
use alloy_primitives::{Address, B256, map::HashSet};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_state::StateKey;

/// Keys that the body of a block names, in the order of execution, each once: the accounts of its
/// beneficiary, senders, receivers, delegated codes (EIP-7702) and withdrawals, and the access
/// lists of its transactions (EIP-2930). Execution accesses many more, which only execution can
/// find.
///
/// A transaction pays gas for the entries of its access list, so the block's gas limit bounds the
/// number of keys.
pub fn keys_of_body(block: &RecoveredBlock) -> Vec<StateKey> {
    let mut keys = DistinctKeys::default();
    keys.account(block.header().beneficiary);
    for (tx, sender) in block.body().transactions.iter().zip(block.senders()) {
        keys.account(*sender);
        tx.to().into_iter().for_each(|to| keys.account(to));
        for item in tx.access_list().iter().flat_map(|list| &list.0) {
            keys.account(item.address);
            item.storage_keys.iter().for_each(|slot| keys.slot(item.address, *slot));
        }
        let delegated = tx.authorization_list().into_iter().flatten();
        delegated.for_each(|authorization| keys.account(authorization.address));
    }
    let withdrawals = block.body().withdrawals.iter().flat_map(|withdrawals| withdrawals.iter());
    withdrawals.for_each(|withdrawal| keys.account(withdrawal.address));
    keys.order
}

/// Keys that the access list of a block names (EIP-7928), in its order.
///
/// A valid list names at most one account or slot per 2000 gas of the block's `gas_limit`. Keys
/// beyond that are left out.
pub fn keys_of_list(
    list: &[AccountChanges],
    gas_limit: u64,
) -> impl Iterator<Item = StateKey> + '_ {
    let most = usize::try_from(gas_limit / ITEM_COST as u64).unwrap_or(usize::MAX);
    let keys = list.iter().flat_map(|account| {
        let slot = |slot| StateKey::Slot(account.address, B256::from(slot));
        [StateKey::Account(account.address)].into_iter().chain(account.storage_slots().map(slot))
    });
    keys.take(most)
}

/// Keys in the order of insertion, each once.
#[derive(Default)]
struct DistinctKeys {
    order: Vec<StateKey>,
    seen: HashSet<StateKey>,
}

impl DistinctKeys {
    fn account(&mut self, address: Address) {
        self.add(StateKey::Account(address));
    }

    fn slot(&mut self, address: Address, slot: B256) {
        self.add(StateKey::Slot(address, slot));
    }

    fn add(&mut self, key: StateKey) {
        if self.seen.insert(key) {
            self.order.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip1559, TxEip7702, TxLegacy};
    use alloy_eips::{
        eip2930::{AccessList, AccessListItem},
        eip4895::{Withdrawal, Withdrawals},
        eip7702::Authorization,
    };
    use alloy_primitives::{Signature, TxKind, U256};
    use retrie_chainspec::primitives::{Block, BlockBody, Header};

    fn address(n: u8) -> Address {
        Address::repeat_byte(n)
    }

    #[test]
    fn all_that_a_body_names_is_known_once_and_in_order() {
        let signature = Signature::test_signature();
        let slots = [1, 2].map(B256::with_last_byte);
        let item = AccessListItem { address: address(7), storage_keys: slots.to_vec() };
        let access_list = AccessList(vec![item.clone(), item]);
        let to = TxKind::Call(address(3));
        let call = TxEip1559 { to, access_list, ..TxEip1559::default() };
        let creation = TxLegacy { to: TxKind::Create, ..TxLegacy::default() };
        let delegation = Authorization { chain_id: U256::ZERO, address: address(8), nonce: 0 };
        let authorization_list = vec![delegation.into_signed(signature)];
        let set_code = TxEip7702 { to: address(3), authorization_list, ..TxEip7702::default() };
        let withdrawal = Withdrawal { address: address(9), ..Withdrawal::default() };
        let body = BlockBody {
            transactions: vec![
                call.into_signed(signature).into(),
                creation.into_signed(signature).into(),
                set_code.into_signed(signature).into(),
            ],
            ommers: Vec::new(),
            withdrawals: Some(Withdrawals::new(vec![withdrawal])),
        };
        let header = Header { beneficiary: address(1), ..Header::default() };
        let senders = [2, 4, 2].map(address).to_vec();
        let block = RecoveredBlock::new_unhashed(Block { header, body }, senders);
        let account = |n| StateKey::Account(address(n));
        let slot = |n: usize| StateKey::Slot(address(7), slots[n]);
        let expected = [
            account(1),
            account(2),
            account(3),
            account(7),
            slot(0),
            slot(1),
            account(4),
            account(8),
            account(9),
        ];
        assert_eq!(keys_of_body(&block), expected);
        let empty = RecoveredBlock::new_unhashed(Block::default(), Vec::new());
        assert_eq!(keys_of_body(&empty), [account(0)]);
    }

    #[test]
    fn list_that_names_more_than_the_gas_limit_allows_is_cut() {
        let changes: Vec<_> = (0..10).map(|n| AccountChanges::new(address(n))).collect();
        let count = |gas| keys_of_list(&changes, gas).count();
        assert_eq!((count(0), count(1999), count(2000), count(9999)), (0, 0, 1, 4));
        assert_eq!((count(20_000), count(u64::MAX)), (10, 10));
    }
}
