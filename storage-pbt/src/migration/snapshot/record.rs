//! What both typed layouts share: numbers, headers, groups.

use super::super::{
    MigrationError, TreeKey, TreeLeaf,
    file::DigestReader,
    leaf::{HeaderAccount, HeaderCode},
};
use crate::{
    hash::MAX_KEY_LEN,
    key::{CODE_ZONE, FIRST_SLOT, HEADER_SLOTS, HEADER_ZONE, Stem},
};
use alloy_primitives::{Address, B256};
use std::{collections::VecDeque, io::Read};

/// The kinds of code in a header; they are also the tags of headers.
pub(super) const NO_CODE: u8 = 0;
pub(super) const CODE: u8 = 1;
pub(super) const DELEGATION: u8 = 2;

/// A value without leading zeros.
pub(super) fn trimmed(value: &[u8; 32]) -> &[u8] {
    let zeros = value.iter().take_while(|byte| **byte == 0).count();
    &value[zeros..]
}

/// Appends a number: its length, and its bytes.
pub(super) fn put_number(out: &mut Vec<u8>, number: &[u8]) {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    out.push((number.len() - zeros) as u8);
    out.extend_from_slice(&number[zeros..]);
}

/// Reads a number of at most `max` bytes (16 or fewer).
fn number<R: Read>(
    file: &mut DigestReader<R>,
    what: &'static str,
    max: usize,
) -> Result<u128, MigrationError> {
    let value = value(file, what, max)?;
    Ok(value[16..].iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte)))
}

/// Reads a number of at most `max` bytes.
fn value<R: Read>(
    file: &mut DigestReader<R>,
    what: &'static str,
    max: usize,
) -> Result<B256, MigrationError> {
    let (place, len) = (file.place(), usize::from(file.byte()?));
    if len > max.min(32) {
        return Err(MigrationError::NumberTooLong { place, what, len, max });
    }
    let mut value = B256::ZERO;
    let bytes = &mut value[32 - len..];
    file.fill(bytes)?;
    match bytes.first() {
        Some(0) => Err(MigrationError::LeadingZero { place, what }),
        _ => Ok(value),
    }
}

/// Reads the number of groups of a storage.
pub(super) fn group_count<R: Read>(file: &mut DigestReader<R>) -> Result<u64, MigrationError> {
    Ok(number(file, "a number of groups", 8)? as u64)
}

/// Reads a header behind its tag, if it has one: `tag` is its kind.
pub(super) fn read_header<R: Read>(
    file: &mut DigestReader<R>,
    tag: Option<u8>,
    ready: &mut VecDeque<TreeLeaf>,
) -> Result<B256, MigrationError> {
    let place = file.place();
    let path = file.hash()?;
    let nonce = number(file, "a nonce", 8)? as u64;
    let balance = number(file, "a balance", 16)?;
    let kind = match tag {
        Some(kind) => kind,
        None => file.byte()?,
    };
    let code = match kind {
        NO_CODE => HeaderCode::Empty,
        CODE => {
            let hash = file.hash()?;
            HeaderCode::Code { hash, size: number(file, "the size of a code", 4)? as u32 }
        }
        DELEGATION => HeaderCode::Delegation(Address::from(file.array::<20>()?)),
        tag => return Err(MigrationError::UnknownTag { place, tag }),
    };
    if let HeaderCode::Code { hash, size } = code
        && (size == 0 || hash == alloy_primitives::KECCAK256_EMPTY)
    {
        return Err(MigrationError::CodeSize { account: path, size });
    }
    let account = HeaderAccount { nonce, balance, code };
    if account.is_empty() {
        return Err(MigrationError::EmptyAccount { account: path });
    }
    ready.extend(account.leaves(&path));
    let stem = Stem::short(HEADER_ZONE, &path);
    for _ in 0..file.byte()? {
        let slot = file.byte()?;
        let key = TreeKey::new(&stem, FIRST_SLOT.saturating_add(slot));
        if slot >= HEADER_SLOTS {
            return Err(MigrationError::SubIndex { place, key });
        }
        ready.push_back(TreeLeaf { key, value: value(file, "a value", 32)? });
    }
    Ok(path)
}

/// Reads a group of chunks or, in the storage of an account, of slots. `is_one` means that its one leaf
/// has no number in front.
pub(super) fn read_group<R: Read>(
    file: &mut DigestReader<R>,
    account: Option<&B256>,
    is_one: bool,
    ready: &mut VecDeque<TreeLeaf>,
) -> Result<[u8; MAX_KEY_LEN], MigrationError> {
    let path = file.hash()?;
    let stem = match account {
        Some(account) => Stem::storage(account, &path),
        None => Stem::short(CODE_ZONE, &path),
    };
    let more = if is_one { 0 } else { file.byte()? };
    for _ in 0..=more {
        let key = TreeKey::new(&stem, file.byte()?);
        ready.push_back(TreeLeaf { key, value: value(file, "a value", 32)? });
    }
    let mut bytes = [0; MAX_KEY_LEN];
    bytes[..stem.as_ref().len()].copy_from_slice(stem.as_ref());
    Ok(bytes)
}

/// Appends a header; if `is_tagged`, its kind comes first, as its tag.
pub(super) fn put_header(
    out: &mut Vec<u8>,
    path: &B256,
    account: &HeaderAccount,
    slots: &[(u8, B256)],
    is_tagged: bool,
) {
    let kind = match account.code {
        HeaderCode::Empty => NO_CODE,
        HeaderCode::Code { .. } => CODE,
        HeaderCode::Delegation(_) => DELEGATION,
    };
    if is_tagged {
        out.push(kind);
    }
    out.extend_from_slice(&path[..]);
    put_number(out, &account.nonce.to_be_bytes());
    put_number(out, &account.balance.to_be_bytes());
    if !is_tagged {
        out.push(kind);
    }
    match &account.code {
        HeaderCode::Empty => {}
        HeaderCode::Code { hash, size } => {
            out.extend_from_slice(&hash[..]);
            put_number(out, &size.to_be_bytes());
        }
        HeaderCode::Delegation(target) => out.extend_from_slice(&target[..]),
    }
    out.push(slots.len() as u8);
    put_leaves(out, slots);
}

/// Appends a group.
pub(super) fn put_group(out: &mut Vec<u8>, path: &B256, leaves: &[(u8, B256)], is_one: bool) {
    out.extend_from_slice(&path[..]);
    if !is_one {
        out.push(leaves.len().saturating_sub(1) as u8);
    }
    put_leaves(out, leaves);
}

fn put_leaves(out: &mut Vec<u8>, leaves: &[(u8, B256)]) {
    for (sub, value) in leaves {
        out.push(*sub);
        put_number(out, &value[..]);
    }
}
