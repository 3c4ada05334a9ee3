//! Block access lists that came with their blocks (EIP-7928).

use alloy_eip7928::{
    AccountChanges, BalanceChange, BlockAccessIndex, BlockAccessList, SlotChanges, StorageChange,
};
use alloy_primitives::{Address, B256, U256, keccak256};
use retrie_chainspec::primitives::{BlockBody, Header, SealedBlock};
use retrie_consensus::{ConsensusError as E, validate_access_list};

/// A block without transactions that commits to this list: the last index is 1.
fn block(hash: Option<B256>) -> SealedBlock {
    block_of(14_000, hash)
}

fn block_of(gas_limit: u64, hash: Option<B256>) -> SealedBlock {
    let header = Header { block_access_list_hash: hash, gas_limit, ..Default::default() };
    SealedBlock::seal_parts(header, BlockBody::default())
}

fn list() -> BlockAccessList {
    let change = |index| StorageChange::new(BlockAccessIndex::new(index), U256::from(7));
    let mut one = AccountChanges::new(Address::with_last_byte(1));
    one.storage_changes.push(SlotChanges::new(U256::from(1), vec![change(0), change(1)]));
    one.storage_changes.push(SlotChanges::new(U256::from(3), vec![change(1)]));
    one.storage_reads.extend([U256::from(2), U256::from(4)]);
    let mut two = AccountChanges::new(Address::with_last_byte(2));
    two.balance_changes.push(BalanceChange::new(BlockAccessIndex::new(1), U256::from(9)));
    vec![one, two]
}

#[test]
fn a_list_is_the_one_that_the_header_commits_to() {
    for list in [list(), Vec::new()] {
        let rlp = alloy_rlp::encode(&list);
        let hash = keccak256(&rlp);
        assert_eq!(validate_access_list(&block(Some(hash)), &rlp), Ok(list));
        let expected = B256::repeat_byte(1);
        let error = validate_access_list(&block(Some(expected)), &rlp);
        assert_eq!(error, Err(E::AccessListMismatch { got: hash, expected }));
        assert_eq!(validate_access_list(&block(None), &rlp), Err(E::UnexpectedAccessList));
    }
}

#[test]
fn a_list_that_no_execution_gives_is_refused() {
    type BalMutation = fn(&mut BlockAccessList);
    let spoils: [(&str, BalMutation); 9] = [
        ("accounts in another order", |list| list.swap(0, 1)),
        ("an account twice", |list| list[1].address = list[0].address),
        ("slots in another order", |list| list[0].storage_changes.swap(0, 1)),
        ("reads in another order", |list| list[0].storage_reads.swap(0, 1)),
        ("a slot read and written", |list| list[0].storage_reads[0] = U256::from(1)),
        ("a write of nothing", |list| list[0].storage_changes[1].changes.clear()),
        ("changes in another order", |list| list[0].storage_changes[0].changes.swap(0, 1)),
        ("two changes at once", |list| {
            let change = list[1].balance_changes[0].clone();
            list[1].balance_changes.push(change);
        }),
        ("a change after the block", |list| {
            list[1].balance_changes[0].block_access_index = BlockAccessIndex::new(2);
        }),
    ];
    for (what, spoil) in spoils {
        let mut list = list();
        spoil(&mut list);
        let rlp = alloy_rlp::encode(&list);
        let error = validate_access_list(&block(Some(keccak256(&rlp))), &rlp);
        assert!(matches!(error, Err(E::MalformedAccessList { .. })), "{what}: {error:?}");
    }
    let whole = alloy_rlp::encode(list());
    let more = [&whole[..], &[0x00]].concat();
    for bytes in [&[][..], &[0x80], &[0xc1], &[0xc1, 0xc0], &whole[1..], &whole[..9], &more] {
        let error = validate_access_list(&block(Some(keccak256(bytes))), bytes);
        assert!(matches!(error, Err(E::MalformedAccessList { .. })), "{bytes:?}: {error:?}");
    }
}

#[test]
fn a_list_is_no_longer_than_the_gas_limit_allows() {
    // Two accounts and four slots, 2,000 of gas each.
    let (list, rlp) = (list(), alloy_rlp::encode(list()));
    let hash = Some(keccak256(&rlp));
    assert_eq!(validate_access_list(&block_of(12_000, hash), &rlp), Ok(list));
    let error = validate_access_list(&block_of(11_999, hash), &rlp);
    assert_eq!(error, Err(E::AccessListItems { items: 6, limit: 5, gas_limit: 11_999 }));
}
