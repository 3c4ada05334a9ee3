//! The headers of the block of a state dump and of its ancestors.

use std::path::Path;

use alloy_primitives::hex;
use alloy_rlp::EMPTY_LIST_CODE;
use retrie_chainspec::primitives::{Block, Header};

use crate::{
    check::decode_strictly,
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::SourceInput,
};

/// Largest file of headers accepted, in bytes after decompression: 256 full blocks fit.
const MAX_BYTES: u64 = 2 << 30;

/// A header, or a whole block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum HeaderItem {
    /// A header without its body.
    Header(Header),
    /// A block.
    Block(Block),
}

/// Reads a file of concatenated RLP, each item a header or a block (`retrie export` and `geth
/// export` write blocks): binary, hex with or without `0x` and blanks, or either gzipped. At least
/// one item.
///
/// # Errors
/// Names the item that is neither a header nor a block.
pub fn read_headers(path: impl AsRef<Path>) -> Result<Vec<HeaderItem>, SourceError> {
    let path = path.as_ref();
    let bytes = SourceInput::open(&path.into())?.read_whole(MAX_BYTES, "the file of headers")?;
    let fail = |place, kind| SourceError::new(path, place, kind);
    // No hex digit, `0x` or blank starts a list.
    let bytes = match bytes.first() {
        None => return Err(fail(SourcePlace::File, SourceErrorKind::NoBlocks)),
        Some(first) if *first >= EMPTY_LIST_CODE => bytes,
        Some(_) => from_hex(&bytes).ok_or_else(|| {
            let what = "neither RLP of headers or blocks, nor hex of it";
            fail(SourcePlace::File, SourceErrorKind::Format(what))
        })?,
    };
    let (mut rest, mut items, mut scratch) = (&bytes[..], Vec::new(), Vec::new());
    while !rest.is_empty() {
        let offset = (bytes.len() - rest.len()) as u64;
        let item = next_item(&mut rest, &mut scratch);
        let place = SourcePlace::Item { offset, index: items.len() as u64 };
        items.push(item.map_err(|kind| fail(place, kind))?);
    }
    Ok(items)
}

fn next_item(rest: &mut &[u8], scratch: &mut Vec<u8>) -> Result<HeaderItem, SourceErrorKind> {
    const WHAT: &str = "a header or a block";
    let mut inner = *rest;
    let payload = alloy_rlp::Header::decode_bytes(&mut inner, true)
        .map_err(|error| SourceErrorKind::Rlp { what: WHAT, error })?;
    let (item, after) = rest.split_at(rest.len() - inner.len());
    *rest = after;
    // A block starts with its header, a list; a header with a hash.
    if payload.first().is_some_and(|first| *first >= EMPTY_LIST_CODE) {
        decode_strictly(item, "the block", scratch).map(HeaderItem::Block)
    } else {
        decode_strictly(item, "the header", scratch).map(HeaderItem::Header)
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in std::str::from_utf8(text).ok()?.split_ascii_whitespace() {
        bytes.extend(hex::decode(word).ok()?);
    }
    bytes.first().is_some_and(|first| *first >= EMPTY_LIST_CODE).then_some(bytes)
}
