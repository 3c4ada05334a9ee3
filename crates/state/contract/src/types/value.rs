//! Values and their canonical encodings. The contract treats values as opaque bytes; the client
//! uses these two encodings.

use alloc::vec::Vec;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, U256};

/// A state value: opaque bytes to a backend. Absence is `None`, never an empty value.
pub type StateValue = Bytes;

/// An account as the state stores it (yellow paper 4.1 without the storage root, which only the MPT
/// has).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Number of transactions sent, or of contracts created.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// keccak-256 of the code; [`KECCAK256_EMPTY`] without code.
    pub code_hash: B256,
}

impl Default for Account {
    fn default() -> Self {
        Self { nonce: 0, balance: U256::ZERO, code_hash: KECCAK256_EMPTY }
    }
}

impl Account {
    /// Longest [encoding](Self::encode) in bytes.
    pub const MAX_ENCODED_LEN: usize = 2 + 8 + 32 + 32;

    /// Empty in the sense of EIP-161: no nonce, no balance, no code.
    pub fn is_empty(&self) -> bool {
        self.nonce == 0 && self.balance.is_zero() && self.code_hash == KECCAK256_EMPTY
    }

    /// Canonical bytes: one byte `has_code << 7 | balance_len` (balance length 0..=32 in the low
    /// six bits), one byte nonce length (0..=8), nonce and balance big-endian without leading
    /// zeros, then the code hash unless the code is empty.
    ///
    /// Every account has exactly one encoding, and no encoding is empty.
    pub fn encode(&self) -> StateValue {
        let nonce = self.nonce.to_be_bytes();
        let nonce = &nonce[(self.nonce.leading_zeros() / 8) as usize..];
        let balance: [u8; 32] = self.balance.to_be_bytes();
        let balance = &balance[self.balance.leading_zeros() / 8..];
        let has_code = self.code_hash != KECCAK256_EMPTY;
        let mut out =
            Vec::with_capacity(2 + nonce.len() + balance.len() + if has_code { 32 } else { 0 });
        out.push((has_code as u8) << 7 | balance.len() as u8);
        out.push(nonce.len() as u8);
        out.extend_from_slice(nonce);
        out.extend_from_slice(balance);
        if has_code {
            out.extend_from_slice(self.code_hash.as_slice());
        }
        out.into()
    }

    /// Reads [`encode`](Self::encode)'s bytes back; `None` if they are not canonical.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[head, nonce_len], rest) = bytes.split_first_chunk::<2>()?;
        let (has_code, balance_len) = (head >> 7 == 1, (head & 0x7f) as usize);
        let nonce_len = nonce_len as usize;
        let code_len = if has_code { 32 } else { 0 };
        if nonce_len > 8 || balance_len > 32 || rest.len() != nonce_len + balance_len + code_len {
            return None;
        }
        let (nonce, rest) = rest.split_at(nonce_len);
        let (balance, code) = rest.split_at(balance_len);
        if nonce.first() == Some(&0) || balance.first() == Some(&0) {
            return None;
        }
        let code_hash = if has_code { B256::from_slice(code) } else { KECCAK256_EMPTY };
        if has_code && code_hash == KECCAK256_EMPTY {
            return None;
        }
        Some(Self {
            nonce: nonce.iter().fold(0, |n, b| n << 8 | u64::from(*b)),
            balance: U256::from_be_slice(balance),
            code_hash,
        })
    }
}

/// Canonical bytes of a storage slot: big-endian without leading zeros. `None` for zero, which is
/// absence (yellow paper 4.1).
pub fn encode_slot(value: U256) -> Option<StateValue> {
    if value.is_zero() {
        return None;
    }
    let bytes: [u8; 32] = value.to_be_bytes();
    Some(Bytes::copy_from_slice(&bytes[value.leading_zeros() / 8..]))
}

/// Reads [`encode_slot`]'s bytes back; `None` if they are not canonical.
pub fn decode_slot(bytes: &[u8]) -> Option<U256> {
    match bytes.first() {
        Some(first) if *first != 0 && bytes.len() <= 32 => Some(U256::from_be_slice(bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_encoding_is_canonical() {
        let code = B256::repeat_byte(7);
        for account in [
            Account::default(),
            Account { nonce: 1, ..Default::default() },
            Account { nonce: u64::MAX, balance: U256::MAX, code_hash: code },
            Account { nonce: 256, balance: U256::from(255), code_hash: code },
        ] {
            let bytes = account.encode();
            assert!(!bytes.is_empty() && bytes.len() <= Account::MAX_ENCODED_LEN);
            assert_eq!(Account::decode(&bytes), Some(account));
            assert_eq!(Account::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Account::decode(&[0, 1, 0]), None, "nonce with a leading zero");
        assert_eq!(Account::decode(&[1, 0, 0]), None, "balance with a leading zero");
    }

    #[test]
    fn slot_encoding_is_canonical() {
        assert_eq!(encode_slot(U256::ZERO), None);
        for value in [U256::from(1), U256::from(256), U256::MAX] {
            let bytes = encode_slot(value).unwrap();
            assert_eq!(decode_slot(&bytes), Some(value));
        }
        assert_eq!(decode_slot(&[]), None);
        assert_eq!(decode_slot(&[0, 1]), None);
        assert_eq!(decode_slot(&[1; 33]), None);
    }
}
