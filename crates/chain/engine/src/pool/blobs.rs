//! [`BlobStore`]: sidecars by versioned hash, also of recently mined transactions.

use crate::pool::{BlobSidecar, PoolTransaction};
use alloy_eips::eip4844::{Blob, BlobAndProofV1, BlobAndProofV2, Bytes48};
use alloy_primitives::{B256, map::HashMap};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

/// A blob of the pool.
#[derive(Clone, Debug)]
pub struct PooledBlob {
    /// The sidecar that contains the blob.
    pub sidecar: Arc<BlobSidecar>,
    /// Index of the blob in the sidecar.
    pub index: usize,
}

/// Number of cell proofs per blob (`CELLS_PER_EXT_BLOB`, EIP-7594).
const PROOFS_PER_BLOB: usize = alloy_eips::eip7594::CELLS_PER_EXT_BLOB;

impl PooledBlob {
    /// Blob and proof, for `engine_getBlobsV1`. `None` if the sidecar has cell proofs.
    pub fn v1(&self) -> Option<BlobAndProofV1> {
        let sidecar = self.sidecar.as_eip4844()?;
        let blob = Box::new(*sidecar.blobs.get(self.index)?);
        Some(BlobAndProofV1 { blob, proof: *sidecar.proofs.get(self.index)? })
    }

    /// Blob and cell proofs, for `engine_getBlobsV2` and `V3`. `None` if the sidecar has one proof
    /// per blob.
    pub fn v2(&self) -> Option<BlobAndProofV2> {
        let sidecar = self.sidecar.as_eip7594()?;
        let blob = Box::new(*sidecar.blobs.get(self.index)?);
        let first = self.index * PROOFS_PER_BLOB;
        let proofs = sidecar.cell_proofs.get(first..first + PROOFS_PER_BLOB)?.to_vec();
        Some(BlobAndProofV2 { blob, proofs })
    }

    /// The blob. `None` if the sidecar has no blob of this index; this holds for the proofs too.
    pub fn blob(&self) -> Option<&Blob> {
        match &*self.sidecar {
            BlobSidecar::Eip4844(sidecar) => sidecar.blobs.get(self.index),
            BlobSidecar::Eip7594(sidecar) => sidecar.blobs.get(self.index),
        }
    }

    /// The proofs of the blob: one, or one for each of its cells.
    pub fn proofs(&self) -> Option<&[Bytes48]> {
        match &*self.sidecar {
            BlobSidecar::Eip4844(sidecar) => sidecar.proofs.get(self.index..=self.index),
            BlobSidecar::Eip7594(sidecar) => {
                let first = self.index * PROOFS_PER_BLOB;
                sidecar.cell_proofs.get(first..first + PROOFS_PER_BLOB)
            }
        }
    }
}

/// Sidecars of pooled transactions, and of mined ones up to a number of bytes; the oldest mined
/// ones are dropped first.
#[derive(Debug)]
pub(super) struct BlobStore {
    /// By transaction hash.
    sidecars: HashMap<B256, Arc<BlobSidecar>>,
    /// (versioned hash, transaction hash): several transactions may carry the same blob.
    by_versioned_hash: BTreeSet<(B256, B256)>,
    /// Mined transactions, oldest first.
    mined: VecDeque<B256>,
    mined_size: usize,
    max_mined_size: usize,
}

impl BlobStore {
    pub(super) fn new(max_mined_size: usize) -> Self {
        Self {
            sidecars: HashMap::default(),
            by_versioned_hash: BTreeSet::new(),
            mined: VecDeque::new(),
            mined_size: 0,
            max_mined_size,
        }
    }

    /// Adds the sidecar of a pooled transaction, which may have been mined before.
    pub(super) fn insert(&mut self, tx: &PoolTransaction) {
        let Some(sidecar) = &tx.sidecar else { return };
        let hash = *tx.hash();
        // The new sidecar may have proofs of another version than the mined transaction's.
        if let Some(mined) = self.sidecars.insert(hash, Arc::clone(sidecar)) {
            self.mined.retain(|mined| *mined != hash);
            self.mined_size -= mined.size();
        }
        self.by_versioned_hash
            .extend(sidecar.versioned_hashes().map(|versioned| (versioned, hash)));
    }

    /// Removes the sidecar of a transaction.
    pub(super) fn remove(&mut self, hash: &B256) {
        if let Some(sidecar) = self.sidecars.remove(hash) {
            for versioned in sidecar.versioned_hashes() {
                self.by_versioned_hash.remove(&(versioned, *hash));
            }
        }
    }

    /// Marks a pooled transaction as mined; its sidecar stays as long as there is room.
    pub(super) fn retire(&mut self, hash: B256) {
        let Some(sidecar) = self.sidecars.get(&hash) else { return };
        self.mined.push_back(hash);
        self.mined_size += sidecar.size();
        while self.mined_size > self.max_mined_size
            && let Some(oldest) = self.mined.pop_front()
        {
            self.mined_size -= self.sidecars.get(&oldest).map_or(0, |sidecar| sidecar.size());
            self.remove(&oldest);
        }
    }

    /// Sidecar of a pooled or mined transaction.
    pub(super) fn sidecar(&self, hash: &B256) -> Option<Arc<BlobSidecar>> {
        self.sidecars.get(hash).cloned()
    }

    /// The blob with this versioned hash.
    pub(super) fn blob(&self, versioned: &B256) -> Option<PooledBlob> {
        let range = (*versioned, B256::ZERO)..=(*versioned, B256::repeat_byte(0xff));
        let (_, hash) = self.by_versioned_hash.range(range).next()?;
        let sidecar = Arc::clone(self.sidecars.get(hash)?);
        let index = sidecar.versioned_hash_index(versioned)?;
        Some(PooledBlob { sidecar, index })
    }

    /// Bytes of the sidecars of mined transactions.
    pub(super) const fn mined_size(&self) -> usize {
        self.mined_size
    }

    /// Checks consistency and describes the first problem; `pooled` are the blob transactions in
    /// the pool.
    #[cfg(feature = "testkit")]
    pub(super) fn check(&self, pooled: &BTreeSet<B256>) -> Result<(), String> {
        let mined: BTreeSet<B256> = self.mined.iter().copied().collect();
        if mined.len() != self.mined.len() || !mined.is_disjoint(pooled) {
            return Err("a mined sidecar is listed twice, or is pooled".into());
        }
        let kept: BTreeSet<B256> = self.sidecars.keys().copied().collect();
        if kept != mined.union(pooled).copied().collect() {
            return Err("sidecars are neither of pooled nor of mined transactions".into());
        }
        let size: usize = mined.iter().map(|hash| self.sidecars[hash].size()).sum();
        if size != self.mined_size || size > self.max_mined_size {
            return Err(format!("mined sidecars have {size} bytes, not {}", self.mined_size));
        }
        let index: BTreeSet<_> = (self.sidecars.iter())
            .flat_map(|(hash, sidecar)| sidecar.versioned_hashes().map(|v| (v, *hash)))
            .collect();
        if index != self.by_versioned_hash {
            return Err("the index of versioned hashes is wrong".into());
        }
        Ok(())
    }
}
