//! SSZ (consensus-specs, `ssz/simple-serialize.md`), as far as the Engine API has it: containers,
//! lists and vectors of bytes, little-endian numbers.
//!
//! Why not a library: those for Rust copy each byte list that they read, and each blob that they
//! write at every level of nesting. Here a list that was read is a part of the request's body, and a
//! blob that is written is a part of the pool.
//!
//! # Strictness
//! Reading refuses all but the one encoding of a value: the first offset is where the fixed part
//! ends, offsets never fall and never lead out of the container, and no byte is left over. Each
//! check is done before memory is allocated for what it bounds. A value that was read takes at most
//! eight times the memory of its bytes: an offset of 4 bytes becomes a handle of 32.

mod reader;
mod writer;

pub(crate) use reader::{
    ContainerReader, byte_list, byte_lists, fixed_list, optional_bytes, optional_fixed,
};
pub(crate) use writer::{ContainerWriter, SszBuffer, list_of};

/// Bytes of an offset.
const OFFSET: usize = 4;
/// Why bytes are no value of a type. The client is not told: the specification wants a fixed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SszError {
    #[error("{what}: its {len} bytes end within a field")]
    Short { what: &'static str, len: usize },
    #[error("{what}: {extra} bytes after its last field")]
    Trailing { what: &'static str, extra: usize },
    #[error("{what}: the first offset is {offset}, but {expected} would follow the fixed part")]
    FirstOffset { what: &'static str, offset: usize, expected: usize },
    #[error("{what}: a part goes from byte {start} to byte {end} of {len}")]
    Offset { what: &'static str, start: usize, end: usize, len: usize },
    #[error("{what}: {len} bytes are not a number of items of {item} bytes each")]
    Uneven { what: &'static str, len: usize, item: usize },
    #[error("{what}: {count} items, at most {max}")]
    TooMany { what: &'static str, count: usize, max: usize },
}
