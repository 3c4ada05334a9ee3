//! Values of the tree (EIP-8297): basic data, code hash or delegation, slots, chunks of code.

use crate::key::{BASIC_DATA, CODE_HASH, DELEGATION};
use alloc::vec::Vec;
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256, keccak256};
use retrie_state::Account;

/// Bytes of code in a chunk.
pub const CHUNK_LEN: usize = 31;

/// What the tree needs of a code beside its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeFacts {
    /// Its length in bytes.
    pub size: u32,
    /// The address that it delegates to, if it is a delegation indicator (EIP-7702).
    pub delegation: Option<Address>,
}

impl CodeFacts {
    /// The facts of `code`; `None` if it is longer than 2^32 - 1 bytes.
    pub fn of(code: &[u8]) -> Option<Self> {
        Some(Self { size: u32::try_from(code.len()).ok()?, delegation: delegation(code) })
    }
}

/// The address that `code` delegates to: 23 bytes that begin with `ef0100`.
pub fn delegation(code: &[u8]) -> Option<Address> {
    let target = code.strip_prefix(&[0xef, 0x01, 0x00])?;
    (target.len() == 20).then(|| Address::from_slice(target))
}

/// keccak-256 of the indicator that delegates to `target`.
pub fn delegation_hash(target: &Address) -> B256 {
    let mut code = [0; 23];
    code[..3].copy_from_slice(&[0xef, 0x01, 0x00]);
    code[3..].copy_from_slice(&target[..]);
    keccak256(code)
}

/// The leaf of basic data; `None` if the balance has more than 128 bits. It is zero, and so no leaf,
/// for an empty account.
pub fn basic_data(account: &Account, code_size: u32) -> Option<B256> {
    let balance = u128::try_from(account.balance).ok()?;
    let mut value = B256::ZERO;
    value[4..8].copy_from_slice(&code_size.to_be_bytes());
    value[8..16].copy_from_slice(&account.nonce.to_be_bytes());
    value[16..].copy_from_slice(&balance.to_be_bytes());
    Some(value)
}

/// The leaf that says what code an account has: its sub-index and its value.
pub fn code_leaf(account: &Account, code: &CodeFacts) -> (u8, B256) {
    match &code.delegation {
        Some(target) => {
            let mut value = B256::ZERO;
            value[..3].copy_from_slice(&[0xef, 0x01, 0x00]);
            value[3..23].copy_from_slice(&target[..]);
            (DELEGATION, value)
        }
        None => (CODE_HASH, account.code_hash),
    }
}

/// The account that the leaves 0, 1 and 2 of a header show; `None` inside if there is none.
///
/// # Errors
/// If no account has these leaves: its text says why.
pub fn account_of(
    basic: Option<B256>,
    code_hash: Option<B256>,
    delegation: Option<B256>,
) -> Result<Option<(Account, CodeFacts)>, &'static str> {
    let (code_hash, target) = match (code_hash, delegation) {
        (None, None) if basic.is_none() => return Ok(None),
        (None, None) => return Err("an account has basic data and no code hash"),
        (Some(_), Some(_)) => return Err("an account has a code hash and a delegation"),
        (Some(hash), None) => (hash, None),
        (None, Some(value)) => {
            let target = delegation_target(&value).ok_or("a delegation is not an address")?;
            (delegation_hash(&target), Some(target))
        }
    };
    let basic = basic.unwrap_or_default();
    if basic[..4] != [0; 4] {
        return Err("basic data of another version");
    }
    let number = |range: core::ops::Range<usize>| U256::from_be_slice(&basic[range]);
    let account = Account { nonce: number(8..16).to(), balance: number(16..32), code_hash };
    let size: u32 = number(4..8).to();
    if (size == 0) != (code_hash == KECCAK256_EMPTY) || (target.is_some() && size != 23) {
        return Err("the size of a code is not that of the code");
    }
    Ok(Some((account, CodeFacts { size, delegation: target })))
}

/// The address in the leaf of a delegation.
pub fn delegation_target(value: &B256) -> Option<Address> {
    let indicator = value.strip_suffix(&[0; 9])?;
    delegation(indicator)
}

/// The chunks of a code that is no delegation: one byte with the number of bytes at the front that
/// continue a PUSH of an earlier chunk, then 31 bytes of code. Chunks of zeros are among them,
/// though they are no leaves.
pub fn chunks(code: &[u8]) -> Vec<B256> {
    const PUSH1: u8 = 0x60;
    const PUSH32: u8 = 0x7f;
    let mut chunks = Vec::with_capacity(code.len().div_ceil(CHUNK_LEN));
    // How many bytes from the start of the current chunk on are data of an earlier PUSH.
    let mut data = 0usize;
    for part in code.chunks(CHUNK_LEN) {
        let mut chunk = B256::ZERO;
        chunk[0] = data.min(CHUNK_LEN) as u8;
        chunk[1..1 + part.len()].copy_from_slice(part);
        chunks.push(chunk);
        let mut at = data;
        while let Some(opcode) = part.get(at) {
            at += 1;
            if (PUSH1..=PUSH32).contains(opcode) {
                at += usize::from(opcode - PUSH1) + 1;
            }
        }
        data = at - CHUNK_LEN.min(at);
        if part.len() < CHUNK_LEN {
            break;
        }
    }
    chunks
}

/// The leaves 0, 1 and 2 that an account has, with their sub-indices.
pub fn account_leaves(account: &Account, code: &CodeFacts) -> Option<Vec<(u8, B256)>> {
    let basic = basic_data(account, code.size)?;
    let mut leaves = Vec::with_capacity(2);
    if !basic.is_zero() {
        leaves.push((BASIC_DATA, basic));
    }
    leaves.push(code_leaf(account, code));
    Some(leaves)
}

/// The value of a slot's leaf.
pub fn slot_value(value: U256) -> B256 {
    B256::from(value)
}
