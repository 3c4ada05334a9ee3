//! The values of leaves: RLP of accounts and of slot values (yellow paper 4.1).

use alloc::vec::Vec;
use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::Encodable;
use alloy_trie::TrieAccount;
use retrie_state::{Account, StateValue, decode_slot, encode_slot};

/// The value of an account's leaf: RLP of nonce, balance, storage root and code hash.
pub fn encode_account(account: &Account, storage_root: B256) -> Bytes {
    let mut out = Vec::with_capacity(128);
    TrieAccount::new(account.nonce, account.balance, storage_root, account.code_hash)
        .encode(&mut out);
    out.into()
}

/// The account and the storage root of an account leaf; `None` if it is not canonical RLP.
pub fn decode_account(leaf: &[u8]) -> Option<(Account, B256)> {
    let account = alloy_rlp::decode_exact::<TrieAccount>(leaf).ok()?;
    let TrieAccount { nonce, balance, storage_root, code_hash } = account;
    Some((Account { nonce, balance, code_hash }, storage_root))
}

/// The value of a slot's leaf: RLP of `value` as a number. `None` if `value` is not a canonical
/// [slot value](encode_slot).
pub fn encode_slot_value(value: &[u8]) -> Option<Bytes> {
    decode_slot(value)?;
    let mut out = Vec::with_capacity(value.len() + 1);
    value.encode(&mut out);
    Some(out.into())
}

/// The slot value of a storage leaf; `None` if it is not canonical RLP, or zero.
pub fn decode_slot_value(leaf: &[u8]) -> Option<StateValue> {
    encode_slot(alloy_rlp::decode_exact::<U256>(leaf).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_read_back_and_refuse_other_encodings() {
        let account = Account { nonce: 3, balance: U256::from(1u64 << 60), ..Default::default() };
        let root = B256::repeat_byte(5);
        let leaf = encode_account(&account, root);
        assert_eq!(decode_account(&leaf), Some((account, root)));
        assert_eq!(decode_account(&leaf[..leaf.len() - 1]), None);
        assert_eq!(decode_account(&[&leaf[..], &[0]].concat()), None, "trailing byte");
        for value in [U256::from(1), U256::from(0x80), U256::MAX] {
            let value = encode_slot(value).unwrap();
            assert_eq!(decode_slot_value(&encode_slot_value(&value).unwrap()), Some(value));
        }
        assert_eq!(encode_slot_value(&[]), None);
        assert_eq!(encode_slot_value(&[0, 1]), None);
        assert_eq!(decode_slot_value(&[0x80]), None, "zero is absence");
        assert_eq!(decode_slot_value(&[0x81, 0x01]), None, "not the shortest RLP");
    }
}
