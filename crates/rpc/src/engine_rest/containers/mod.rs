//! The containers of the API, from Paris to Amsterdam: one function reads or writes a container of
//! every fork; a field that a fork does not have takes no bytes (execution-apis #793,
//! `refactor-ssz.md`).

mod blobs;
mod bodies;
mod forkchoice;
mod payload;
mod status;

pub(crate) use blobs::{
    CellRequest, decode_cell_request, decode_hashes, encode_blobs_v1, encode_blobs_v2,
    encode_blobs_v4,
};
pub(crate) use bodies::encode_bodies;
pub(crate) use forkchoice::{ForkchoiceRequest, decode_forkchoice, encode_forkchoice};
#[cfg(test)]
pub(crate) use payload::encode_built_payload_parts;
pub(crate) use payload::{decode_envelope, encode_built_payload};
pub(crate) use status::encode_status;

/// Largest number of transactions of a payload.
const MAX_TRANSACTIONS: usize = 1 << 20;
/// Largest number of withdrawals of a payload.
const MAX_WITHDRAWALS: usize = 16;
/// Largest number of bytes of extra data.
const MAX_EXTRA_DATA: usize = 32;
/// Largest number of execution requests of a payload.
const MAX_REQUESTS: usize = 256;
/// Most bytes of a validation error.
const MAX_ERROR: usize = 1024;
