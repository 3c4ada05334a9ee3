//! [`CellCache`]: cells of pooled blobs (EIP-7594).
//!
//! The first half of a blob's cells is the blob itself. The second half, the extension, takes
//! milliseconds of a core, so it is computed when it is asked for, and kept.

use crate::pool::PooledBlob;
use alloy_eips::{
    eip4844::{AsCkzg, Blob, BlobCellsAndProofsV1, env_settings::EnvKzgSettings},
    eip7594::{BYTES_PER_CELL, Cell},
};
use alloy_primitives::B256;
use quick_cache::sync::Cache;
use retrie_chainspec::{CELLS_PER_BLOB, CellMask};
use std::sync::Arc;

/// Blobs whose extension is kept, 128 KiB each: as many as one request may name.
const KEPT_EXTENSIONS: usize = 128;

/// Computes cells of blobs, and keeps the extensions of the last blobs.
#[derive(Debug)]
pub(super) struct CellCache {
    /// By versioned hash, which determines the blob.
    extensions: Cache<B256, Arc<[Cell]>>,
}

impl Default for CellCache {
    fn default() -> Self {
        Self { extensions: Cache::new(KEPT_EXTENSIONS) }
    }
}

impl CellCache {
    /// The cells of this mask with their proofs. `None` if the blob has one proof as a whole.
    pub(super) fn of_blob(
        &self,
        versioned_hash: &B256,
        pooled: &PooledBlob,
        mask: CellMask,
    ) -> Option<BlobCellsAndProofsV1> {
        if !pooled.sidecar.is_eip7594() {
            return None;
        }
        let (blob, proofs) = (pooled.blob()?, pooled.proofs()?);
        let extension = match mask.names_extension() {
            true => self.extension(versioned_hash, blob)?,
            false => Arc::default(),
        };
        let cell = |index: usize| match index.checked_sub(CELLS_PER_BLOB) {
            Some(index) => extension.get(index).copied(),
            None => {
                let first = index * BYTES_PER_CELL;
                let bytes = blob.as_slice().get(first..first + BYTES_PER_CELL)?;
                Cell::try_from(bytes).ok()
            }
        };
        Some(BlobCellsAndProofsV1 {
            blob_cells: mask.indices().map(cell).collect(),
            proofs: mask.indices().map(|index| proofs.get(index).copied()).collect(),
        })
    }

    /// Whether the extension of this blob is kept.
    pub(super) fn has_extension(&self, versioned_hash: &B256) -> bool {
        self.extensions.contains_key(versioned_hash)
    }

    /// The second half of a blob's cells. Concurrent callers compute it once.
    fn extension(&self, versioned_hash: &B256, blob: &Blob) -> Option<Arc<[Cell]>> {
        let computed = self.extensions.get_or_insert_with(versioned_hash, || {
            let cells = EnvKzgSettings::Default.get().compute_cells(blob.as_ckzg())?;
            let extension = cells.iter().skip(CELLS_PER_BLOB);
            Ok::<_, c_kzg::Error>(extension.map(|cell| Cell::new(cell.to_bytes())).collect())
        });
        if let Err(error) = &computed {
            tracing::error!(%versioned_hash, ?error, "a pooled blob has no cells");
        }
        computed.ok()
    }

    /// How many extensions are kept.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.extensions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::BlobSidecar;
    use alloy_eips::eip7594::BlobTransactionSidecarEip7594;

    fn mask(indices: &[usize]) -> CellMask {
        let mut bytes = [0_u8; 16];
        for index in indices {
            bytes[index / 8] |= 1 << (index % 8);
        }
        bytes.into()
    }

    #[test]
    fn cells_and_proofs_are_those_of_the_whole_computation() {
        let settings = EnvKzgSettings::Default;
        let blobs = vec![Blob::right_padding_from(&[0, 7]), Blob::right_padding_from(&[0, 8, 9])];
        let sidecar =
            BlobTransactionSidecarEip7594::try_from_blobs_with_settings(blobs, settings.get())
                .unwrap();
        let cells = sidecar.compute_cells().unwrap();
        let hashes: Vec<B256> = sidecar.versioned_hashes().collect();
        let proofs = sidecar.cell_proofs.clone();
        let sidecar = Arc::new(BlobSidecar::from(sidecar));
        let cache = CellCache::default();
        for (index, hash) in hashes.iter().enumerate() {
            let pooled = PooledBlob { sidecar: sidecar.clone(), index };
            let of = |mask| cache.of_blob(hash, &pooled, mask).unwrap();
            assert_eq!(of(CellMask::default()), BlobCellsAndProofsV1::default());
            let kept = cache.kept();
            of(mask(&[0, 63]));
            assert_eq!(cache.kept(), kept, "the blob itself needs no computation");
            for indices in [vec![5], vec![3, 63, 64, 127], (0..128).collect()] {
                let told = of(mask(&indices));
                let at = |index_of_cell: &usize| 128 * index + index_of_cell;
                let expected = BlobCellsAndProofsV1 {
                    blob_cells: indices.iter().map(|cell| Some(cells[at(cell)])).collect(),
                    proofs: indices.iter().map(|cell| Some(proofs[at(cell)])).collect(),
                };
                assert_eq!(told, expected, "blob {index}, cells {indices:?}");
            }
            assert_eq!(cache.kept(), kept + 1, "computed once");
        }
    }
}
