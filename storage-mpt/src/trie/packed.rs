//! Packed leaf values, for rows that have versions. Every version of an account is written in full,
//! so the encoding leaves out what most accounts share: the root of an empty storage and the hash
//! of no code.
//!
//! Packing looks at the bytes of a value alone and is lossless.

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use alloy_trie::EMPTY_ROOT_HASH;
use retrie_state::wire::{WireReader, put_varint, varint_len};

/// RLP of a hash.
const HASH: usize = 33;
/// Flag: the hash of no code is left out at the end.
const CODE: u64 = 1;
/// Flag: the root of an empty storage is left out before the hash of the code.
const ROOT: u64 = 2;

/// A packed value: the bytes before and after what is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedValue<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    left_out: u64,
}

fn is_rlp_of(bytes: &[u8], hash: &B256) -> bool {
    bytes.split_first() == Some((&0xa0, hash.as_slice()))
}

impl<'a> PackedValue<'a> {
    /// Packs a value.
    pub fn of(value: &'a [u8]) -> Self {
        let whole = Self { head: value, tail: &[], left_out: 0 };
        let Some((before, code)) = value.split_last_chunk::<HASH>() else { return whole };
        let without_code = is_rlp_of(code, &KECCAK256_EMPTY);
        let root = before.split_last_chunk::<HASH>();
        match root.filter(|(_, root)| is_rlp_of(*root, &EMPTY_ROOT_HASH)) {
            Some((head, _)) if without_code => Self { head, tail: &[], left_out: CODE | ROOT },
            Some((head, _)) => Self { head, tail: code, left_out: ROOT },
            None if without_code => Self { head: before, tail: &[], left_out: CODE },
            None => whole,
        }
    }

    /// The number before the bytes: their length and the flags.
    fn prefix(&self) -> u64 {
        ((self.head.len() + self.tail.len()) as u64) << 2 | self.left_out
    }

    pub(super) fn len(&self) -> usize {
        varint_len(self.prefix()) + self.head.len() + self.tail.len()
    }

    /// Appends the packed value.
    pub fn put(&self, row: &mut Vec<u8>) {
        put_varint(row, self.prefix());
        row.extend_from_slice(self.head);
        row.extend_from_slice(self.tail);
    }

    /// Reads back what [`put`](Self::put) wrote; `None` if the bytes are not the canonical
    /// encoding. If nothing was left out, the value shares the memory of `row`, whose end is `rest`.
    pub fn take(rest: &mut WireReader<'_>, row: &Bytes) -> Option<Bytes> {
        let prefix = rest.varint().ok()?;
        let (len, left_out) = (usize::try_from(prefix >> 2).ok()?, prefix & 3);
        let stored = rest.take(len).ok()?;
        let (root, code) = (EMPTY_ROOT_HASH.as_slice(), KECCAK256_EMPTY.as_slice());
        const RLP: &[u8] = &[0xa0];
        let value = match left_out {
            0 => row.slice_ref(stored),
            CODE => [stored, RLP, code].concat().into(),
            ROOT => {
                let (head, code) = stored.split_at_checked(len.checked_sub(HASH)?)?;
                [head, RLP, root, code].concat().into()
            }
            _ => [stored, RLP, root, RLP, code].concat().into(),
        };
        (PackedValue::of(&value).prefix() == prefix).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::encode_account;
    use alloy_primitives::U256;
    use retrie_state::Account;

    fn written(value: &[u8]) -> Vec<u8> {
        let (mut row, packed) = (Vec::new(), PackedValue::of(value));
        packed.put(&mut row);
        assert_eq!(row.len(), packed.len());
        row
    }

    fn read(row: &[u8]) -> Option<Bytes> {
        let row = Bytes::copy_from_slice(row);
        let mut rest = WireReader::new(&row);
        PackedValue::take(&mut rest, &row).filter(|_| rest.is_empty())
    }

    #[test]
    fn every_value_comes_back_and_plain_accounts_are_short() {
        let account = |code_hash| Account { nonce: 7, balance: U256::from(9), code_hash };
        let (root, code) = (B256::repeat_byte(5), B256::repeat_byte(6));
        let plain = encode_account(&account(KECCAK256_EMPTY), EMPTY_ROOT_HASH);
        for (value, shorter) in [
            (plain.clone(), 66),
            (encode_account(&account(KECCAK256_EMPTY), root), 33),
            (encode_account(&account(code), EMPTY_ROOT_HASH), 33),
            (encode_account(&account(code), root), 0),
            (plain.slice(plain.len() - 66..), 66),
            (plain.slice(plain.len() - 33..), 33),
            (plain.slice(plain.len() - 32..), 0),
            (Bytes::new(), 0),
        ] {
            let row = written(&value);
            let prefix = varint_len(((value.len() - shorter) as u64) << 2);
            assert_eq!(row.len(), prefix + value.len() - shorter, "{value}");
            assert_eq!(read(&row), Some(value));
        }
    }

    #[test]
    fn a_value_is_written_in_one_way() {
        let account = Account { nonce: 7, ..Default::default() };
        let value = encode_account(&account, EMPTY_ROOT_HASH);
        let as_it_is = |len: usize, left_out: u64| {
            let mut row = Vec::new();
            put_varint(&mut row, (len as u64) << 2 | left_out);
            row.extend_from_slice(&value[..len]);
            read(&row)
        };
        let len = value.len();
        assert_eq!(as_it_is(len - 66, CODE | ROOT), Some(value.clone()));
        assert_eq!(as_it_is(len, 0), None, "the hashes could be left out");
        assert_eq!(as_it_is(len - 33, CODE), None, "the root could be left out, too");
        assert_eq!(as_it_is(32, ROOT), None, "there is no hash of code");
        assert_eq!(read(&[5 << 2, 1, 2]), None, "it ends too soon");
    }
}
