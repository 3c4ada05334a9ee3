//! `BlobsV1Request` to `V4` and their responses.

use super::super::ssz::{
    ContainerReader, ContainerWriter, SszBuffer, SszError, fixed_list, list_of,
};
use alloy_eips::{
    eip4844::{BYTES_PER_BLOB, BlobCellsAndProofsV1},
    eip7594::CELLS_PER_EXT_BLOB,
};
use alloy_primitives::{B128, B256, Bytes};
use retrie_engine::pool::PooledBlob;

/// The blob of an entry without one.
static ZERO_BLOB: [u8; BYTES_PER_BLOB] = [0; BYTES_PER_BLOB];
/// The proof of an entry without one.
const ZERO_PROOF: [u8; 48] = [0; 48];

/// Reads a container of one list of hashes: `BodiesByHashRequest`, `BlobsV1Request` to `V3`. The
/// size of the body bounds their number.
pub(crate) fn decode_hashes(body: Bytes) -> Result<Vec<B256>, SszError> {
    let mut fields = ContainerReader::new("a list of hashes", body);
    fields.offset::<()>()?;
    hash_list(&fields.into_tails()?.next()?)
}

fn hash_list(bytes: &[u8]) -> Result<Vec<B256>, SszError> {
    fixed_list("hashes", bytes, usize::MAX, |hash: &[u8; 32]| B256::new(*hash))
}

/// The body of `POST /blobs/v4`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CellRequest {
    pub(crate) hashes: Vec<B256>,
    /// Which cells: one bit each, the lowest bit of the first byte for the first cell.
    pub(crate) cells: B128,
}

pub(crate) fn decode_cell_request(body: Bytes) -> Result<CellRequest, SszError> {
    let mut fields = ContainerReader::new("BlobsV4Request", body);
    fields.offset::<()>()?;
    let cells = B128::new(fields.array()?);
    let hashes = fields.into_tails()?.next()?;
    Ok(CellRequest { hashes: hash_list(&hashes)?, cells })
}

/// Writes blobs with one proof each. Entries have a fixed size, so their list has no offsets.
pub(crate) fn encode_blobs_v1(blobs: &[Option<PooledBlob>]) -> SszBuffer {
    let mut entries = SszBuffer::default();
    for blob in blobs {
        let proof = blob.as_ref().and_then(|blob| blob.proofs()?.first());
        entries.put([u8::from(blob.is_some())]);
        entries.put_shared(blob_or_zero(blob.as_ref()));
        entries.put(proof.map_or(&ZERO_PROOF, |proof| &proof.0));
    }
    response(entries)
}

/// Writes blobs with cell proofs, for `V2` and `V3`.
pub(crate) fn encode_blobs_v2(blobs: &[Option<PooledBlob>]) -> SszBuffer {
    let entries = blobs.iter().map(|blob| {
        let mut contents = ContainerWriter::default();
        let mut proofs = SszBuffer::default();
        let of_blob = blob.as_ref().and_then(|blob| blob.proofs()).unwrap_or_default();
        of_blob.iter().for_each(|proof| proofs.put(proof));
        contents.put_shared(blob_or_zero(blob.as_ref()));
        contents.put_variable(proofs);
        entry(blob.is_some(), contents)
    });
    response(list_of(entries))
}

/// Writes the `cells` that were asked for, each at its index, and nothing at the other indices.
pub(crate) fn encode_blobs_v4(cells: B128, blobs: &[Option<BlobCellsAndProofsV1>]) -> SszBuffer {
    let entries = blobs.iter().map(|blob| {
        let mut contents = ContainerWriter::default();
        match blob {
            Some(BlobCellsAndProofsV1 { blob_cells, proofs }) => {
                contents.put_variable(at_indices(cells, blob_cells));
                contents.put_variable(at_indices(cells, proofs));
            }
            None => (0..2).for_each(|_| contents.put_variable(SszBuffer::default())),
        }
        entry(blob.is_some(), contents)
    });
    response(list_of(entries))
}

/// A list of an optional for each index; `items` are those of the indices that are set, in order.
fn at_indices(set: B128, items: &[Option<impl AsRef<[u8]>>]) -> SszBuffer {
    let mut items = items.iter();
    let is_set = |index: usize| (set[index / 8] >> (index % 8)) & 1 == 1;
    list_of((0..CELLS_PER_EXT_BLOB).map(|index| {
        let item = if is_set(index) { items.next() } else { None };
        optional(item.and_then(Option::as_ref))
    }))
}

/// A container of a list of entries.
fn response(entries: SszBuffer) -> SszBuffer {
    let mut fields = ContainerWriter::default();
    fields.put_variable(entries);
    fields.finish()
}

fn entry(is_there: bool, contents: ContainerWriter) -> SszBuffer {
    let mut entry = ContainerWriter::default();
    entry.put([u8::from(is_there)]);
    entry.put_variable(contents.finish());
    entry.finish()
}

fn optional(item: Option<impl AsRef<[u8]>>) -> SszBuffer {
    let mut list = SszBuffer::default();
    item.into_iter().for_each(|item| list.put(item));
    list
}

fn blob_or_zero(blob: Option<&PooledBlob>) -> Bytes {
    blob.map_or_else(|| Bytes::from_static(&ZERO_BLOB), |blob| blob_bytes(blob.clone()))
}

/// The bytes of a blob, which stay those of the pool.
pub(crate) fn blob_bytes(blob: PooledBlob) -> Bytes {
    struct BlobOwner(PooledBlob);
    impl AsRef<[u8]> for BlobOwner {
        fn as_ref(&self) -> &[u8] {
            self.0.blob().map_or(&[], |blob| blob.as_slice())
        }
    }
    hyper::body::Bytes::from_owner(BlobOwner(blob)).into()
}
