//! The content of Ethereum's state trie (yellow paper, 4.1): hashed keys, and leaves in RLP.

use alloy_primitives::{Address, B256, U256, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use retrie_state::{Account, StateKey, StateValue, decode_slot, encode_slot};

/// The latest address and its hash. Neighbouring keys have the same address.
#[derive(Debug, Default)]
pub(super) struct HashedAddress(Option<(Address, B256)>);

impl HashedAddress {
    pub(super) fn of(&mut self, address: &Address) -> B256 {
        let hash = match self.0 {
            Some((known, hash)) if known == *address => hash,
            _ => keccak256(address),
        };
        self.0 = Some((*address, hash));
        hash
    }
}

/// The leaf of an account.
pub(super) fn account_leaf(account: &Account, storage_root: B256) -> Vec<u8> {
    let Account { nonce, balance, code_hash } = account;
    let fields: [&dyn Encodable; 4] = [nonce, balance, &storage_root, code_hash];
    let payload_length = fields.iter().map(|field| field.length()).sum();
    let mut leaf = Vec::with_capacity(payload_length + 3);
    Header { list: true, payload_length }.encode(&mut leaf);
    fields.iter().for_each(|field| field.encode(&mut leaf));
    leaf
}

/// Decodes the account in a leaf, and its storage root.
pub(super) fn read_account(mut leaf: &[u8]) -> Result<(Account, B256), alloy_rlp::Error> {
    let mut fields = Header::decode_bytes(&mut leaf, true)?;
    let (nonce, balance) = (u64::decode(&mut fields)?, U256::decode(&mut fields)?);
    let (storage_root, code_hash) = (B256::decode(&mut fields)?, B256::decode(&mut fields)?);
    Ok((Account { nonce, balance, code_hash }, storage_root))
}

/// The leaf of a slot.
pub(super) fn slot_leaf(value: &StateValue) -> Vec<u8> {
    decode_slot(value).map_or_else(|| alloy_rlp::encode(value), alloy_rlp::encode)
}

/// Decodes the state value in the leaf of a key.
pub(super) fn read_value(key: &StateKey, mut leaf: &[u8]) -> Result<StateValue, alloy_rlp::Error> {
    match key {
        StateKey::Account(_) => Ok(read_account(leaf)?.0.encode()),
        StateKey::Slot(..) => {
            let value = U256::decode(&mut leaf)?;
            encode_slot(value).ok_or(alloy_rlp::Error::Custom("a slot is zero"))
        }
    }
}
