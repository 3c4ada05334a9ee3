//! Codes of accounts in bundles.

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_state::{Account, StateValue};
use std::collections::BTreeMap;

/// Makes sure that `codes` has the code of the account with this value, for backends that [need
/// codes](retrie_state::BackendProfile::needs_codes). A witness lacks the codes that its block does
/// not run: then the account gets another one, the bytes of the hash of its code.
pub fn settle_code(value: &mut StateValue, codes: &mut BTreeMap<B256, Bytes>) {
    let Some(account) = Account::decode(value) else { return };
    let unknown = account.code_hash;
    if unknown == KECCAK256_EMPTY || codes.contains_key(&unknown) {
        return;
    }
    let code_hash = keccak256(unknown);
    codes.insert(code_hash, unknown.into());
    *value = Account { code_hash, ..account }.encode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_stay_and_unknown_ones_get_a_stand_in_once() {
        let code = Bytes::from_static(b"a code");
        let (known, unknown) = (keccak256(&code), B256::repeat_byte(7));
        let account = |code_hash| Account { nonce: 3, code_hash, ..Account::default() }.encode();
        let mut codes = BTreeMap::from([(known, code)]);
        for hash in [KECCAK256_EMPTY, known] {
            let mut value = account(hash);
            settle_code(&mut value, &mut codes);
            assert_eq!((value, codes.len()), (account(hash), 1));
        }
        for _ in 0..2 {
            let mut value = account(unknown);
            settle_code(&mut value, &mut codes);
            assert_eq!(value, account(keccak256(unknown)));
            assert_eq!(codes[&keccak256(unknown)], *unknown.as_slice());
            settle_code(&mut value, &mut codes);
            assert_eq!(value, account(keccak256(unknown)));
        }
    }
}
