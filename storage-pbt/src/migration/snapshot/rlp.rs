//! The layout `rlp`: a list of the key and of the value without leading zeros.

use super::super::{MigrationError, TreeKey, TreeLeaf, file::DigestReader};
use crate::hash::MAX_KEY_LEN;
use alloy_primitives::B256;
use std::io::Read;

/// Length of the longest payload of a list: a key of 66 bytes and a value of 32, with their heads.
const MAX_PAYLOAD: usize = 2 + MAX_KEY_LEN + 1 + 32;
/// The longest string or list whose length is in its first byte.
const SHORT: usize = 55;

/// Reads the leaf of a record that has been begun.
pub(super) fn read<R: Read>(file: &mut DigestReader<R>) -> Result<TreeLeaf, MigrationError> {
    let place = file.place();
    let bad = |what| MigrationError::NotRlp { place, what };
    let len = match file.byte()? {
        head @ 0xc0..=0xf7 => usize::from(head - 0xc0),
        0xf8 => match usize::from(file.byte()?) {
            len if len > SHORT => len,
            _ => return Err(bad("the length of a list is not in its shortest form")),
        },
        0xf9..=0xff => return Err(bad("a list is too long for a leaf")),
        _ => return Err(bad("a record is not a list")),
    };
    let mut payload = [0; MAX_PAYLOAD];
    let payload = payload.get_mut(..len).ok_or_else(|| bad("a list is too long for a leaf"))?;
    file.fill(payload)?;
    let mut rest = &*payload;
    let key = string(&mut rest).map_err(bad)?;
    let value = string(&mut rest).map_err(bad)?;
    if !rest.is_empty() {
        return Err(bad("a list has more than a key and a value"));
    }
    let key = TreeKey::parse(key, place)?;
    let what = "a value";
    match value {
        _ if value.iter().all(|byte| *byte == 0) => Err(MigrationError::ZeroValue { place, key }),
        [0, ..] => Err(MigrationError::LeadingZero { place, what }),
        _ if value.len() > 32 => {
            Err(MigrationError::NumberTooLong { place, what, len: value.len(), max: 32 })
        }
        _ => Ok(TreeLeaf { key, value: B256::left_padding_from(value) }),
    }
}

/// The string at the front of `rest`.
fn string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    const SHORT_OF: &str = "a list ends within its key or value";
    let all = *rest;
    let (head, more) = all.split_first().ok_or(SHORT_OF)?;
    let (len, more) = match *head {
        0..0x80 => {
            *rest = more;
            return Ok(&all[..1]);
        }
        0x80..=0xb7 => (usize::from(head - 0x80), more),
        0xb8 => {
            let (len, more) = more.split_first().ok_or(SHORT_OF)?;
            if usize::from(*len) <= SHORT {
                return Err("the length of a string is not in its shortest form");
            }
            (usize::from(*len), more)
        }
        _ => return Err("a key or value is not a string"),
    };
    let (string, more) = more.split_at_checked(len).ok_or(SHORT_OF)?;
    if matches!(string, [0..0x80]) {
        return Err("a single byte is not in its shortest form");
    }
    *rest = more;
    Ok(string)
}

/// The record of a leaf.
pub(super) fn encode(leaf: &TreeLeaf, out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(MAX_PAYLOAD);
    put_string(&mut payload, leaf.key.as_ref());
    put_string(&mut payload, super::record::trimmed(&leaf.value));
    match payload.len() {
        len @ 0..=SHORT => out.push(0xc0 + len as u8),
        len => out.extend_from_slice(&[0xf8, len as u8]),
    }
    out.append(&mut payload);
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    match string {
        [0..0x80] => {}
        _ if string.len() <= SHORT => out.push(0x80 + string.len() as u8),
        _ => out.extend_from_slice(&[0xb8, string.len() as u8]),
    }
    out.extend_from_slice(string);
}
