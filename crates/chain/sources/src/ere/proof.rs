//! Proofs that blocks belong to the chain, as the Portal network defines them.
//!
//! | type | blocks | leads from the block hash to |
//! |---|---|---|
//! | 0 | before the merge | the accumulator root over the blocks of the file |
//! | 1 | merge to Shanghai | a block root, and that to one of the beacon chain's historical roots |
//! | 2 | Shanghai to Cancun | a block root, and that to one of its historical summaries |
//! | 3 | from Cancun on | the same; payloads have more fields |
//!
//! **What is checked**: a proof of type 0 whole, against the accumulator that is computed from the
//! blocks. Of types 1 to 3 the form, and the way from the block hash to the root of the beacon block
//! that the proof names. The way from there up needs roots of the beacon chain, which this crate does
//! not have, so it is not checked.

use alloy_primitives::{B256, Bytes};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use retrie_chainspec::primitives::Header;

use crate::{
    check::{decode_strictly, same_hash},
    e2store::{MAX_BLOCKS, fold_branch},
    era1::PROOF_LEN,
    error::SourceErrorKind,
};

/// Bytes of a hash.
const HASH: usize = 32;

/// The kind of a [`HeaderProof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum HeaderProofType {
    /// Against the accumulator of blocks before the merge.
    HistoricalHashes = 0,
    /// Against the beacon chain's historical roots.
    HistoricalRoots = 1,
    /// Against its historical summaries, of a payload of Capella.
    HistoricalSummariesCapella = 2,
    /// Against its historical summaries, of a payload of Deneb or later.
    HistoricalSummariesDeneb = 3,
}

/// The lengths in a proof through the beacon chain, and where its payload has the block hash.
#[derive(Clone, Copy, Debug)]
struct BeaconProofShape {
    /// Hashes from the beacon block up.
    beacon: usize,
    /// Hashes from the block hash up to the beacon block.
    execution: usize,
    /// Generalized index of the block hash in a beacon block.
    index: u64,
}

impl BeaconProofShape {
    /// SSZ: both branches, the root of the beacon block between them, and the slot.
    const fn len(self) -> usize {
        (self.beacon + 1 + self.execution) * HASH + 8
    }
}

impl HeaderProofType {
    /// All types, by their numbers.
    const ALL: [Self; 4] = [
        Self::HistoricalHashes,
        Self::HistoricalRoots,
        Self::HistoricalSummariesCapella,
        Self::HistoricalSummariesDeneb,
    ];

    /// The type of the proofs of such a header.
    pub fn of_header(header: &Header) -> Self {
        if !header.difficulty.is_zero() {
            Self::HistoricalHashes
        } else if header.withdrawals_root.is_none() {
            Self::HistoricalRoots
        } else if header.blob_gas_used.is_none() {
            Self::HistoricalSummariesCapella
        } else {
            Self::HistoricalSummariesDeneb
        }
    }

    /// The payload is field 9 of the body (4 levels), which is field 4 of the block (3 levels); the
    /// block hash is field 12 of the payload, which has 4 levels, from Deneb on 5.
    const fn beacon_shape(self) -> Option<BeaconProofShape> {
        const PAYLOAD: u64 = (8 + 4) * 16 + 9;
        const CAPELLA: u64 = PAYLOAD * 16 + 12;
        const DENEB: u64 = PAYLOAD * 32 + 12;
        match self {
            Self::HistoricalHashes => None,
            Self::HistoricalRoots => {
                Some(BeaconProofShape { beacon: 14, execution: 11, index: CAPELLA })
            }
            Self::HistoricalSummariesCapella => {
                Some(BeaconProofShape { beacon: 13, execution: 11, index: CAPELLA })
            }
            Self::HistoricalSummariesDeneb => {
                Some(BeaconProofShape { beacon: 13, execution: 12, index: DENEB })
            }
        }
    }

    fn ssz_len(self) -> usize {
        self.beacon_shape().map_or(PROOF_LEN * HASH, BeaconProofShape::len)
    }
}

/// The proof of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderProof {
    /// Its type.
    pub kind: HeaderProofType,
    /// SSZ of the proof, of the length of its type.
    ssz: Bytes,
}

/// The RLP of an entry.
#[derive(RlpEncodable, RlpDecodable)]
struct ProofEntry {
    kind: u8,
    ssz: Bytes,
}

impl HeaderProof {
    /// A proof against the accumulator.
    pub(super) fn of_accumulator(branch: &[B256; PROOF_LEN]) -> Self {
        Self { kind: HeaderProofType::HistoricalHashes, ssz: bytes_of(branch).into() }
    }

    /// A proof of this type.
    ///
    /// # Errors
    /// If `ssz` does not have the length of the type.
    pub fn new(kind: HeaderProofType, ssz: Bytes) -> Result<Self, SourceErrorKind> {
        if ssz.len() != kind.ssz_len() {
            return Err(SourceErrorKind::Format("a proof has not the length of its type: damaged"));
        }
        Ok(Self { kind, ssz })
    }

    /// RLP `[type, SSZ]`, as an entry has it before compression.
    pub fn encode(&self) -> Vec<u8> {
        alloy_rlp::encode(ProofEntry { kind: self.kind as u8, ssz: self.ssz.clone() })
    }

    pub(super) fn decode(bytes: &[u8], scratch: &mut Vec<u8>) -> Result<Self, SourceErrorKind> {
        let ProofEntry { kind, ssz } = decode_strictly(bytes, "header proof", scratch)?;
        let kind = HeaderProofType::ALL.get(usize::from(kind));
        let kind = kind.ok_or(SourceErrorKind::Format("a proof of an unknown type"))?;
        Self::new(*kind, ssz)
    }

    fn hashes(&self) -> impl Iterator<Item = B256> {
        self.ssz.chunks_exact(HASH).map(B256::from_slice)
    }

    /// The accumulator root to which this proof of type 0 leads from the block at `position` of the
    /// file, and the total difficulty that it gives the block, little-endian.
    pub(super) fn accumulator_root(&self, block_hash: B256, position: u64) -> (B256, B256) {
        let branch: Vec<_> = self.hashes().collect();
        let root = fold_branch(block_hash, &branch, 4 * MAX_BLOCKS + 2 * position);
        (root, branch.first().copied().unwrap_or_default())
    }

    /// Checks type and form of the proof of a header, and, after the merge, the way from its hash to
    /// the beacon block that the proof names.
    pub(super) fn check(&self, header: &Header, block_hash: B256) -> Result<(), SourceErrorKind> {
        if self.kind != HeaderProofType::of_header(header) {
            return Err(SourceErrorKind::Format(
                "the proof has not the type that the fork of its block requires",
            ));
        }
        let Some(shape) = self.kind.beacon_shape() else { return Ok(()) };
        let hashes: Vec<_> = self.hashes().collect();
        let mut execution = hashes.into_iter().skip(shape.beacon);
        let beacon_root = execution.next().unwrap_or_default();
        let branch: Vec<_> = execution.take(shape.execution).collect();
        let root = fold_branch(block_hash, &branch, shape.index);
        same_hash("root of the beacon block in the proof", beacon_root, root)
    }
}

fn bytes_of(hashes: &[B256]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::U256;

    #[test]
    fn block_hashes_are_where_the_forks_put_them() {
        let index = |kind: HeaderProofType| kind.beacon_shape().unwrap().index;
        assert_eq!(index(HeaderProofType::HistoricalRoots), 3228);
        assert_eq!(index(HeaderProofType::HistoricalSummariesCapella), 3228);
        assert_eq!(index(HeaderProofType::HistoricalSummariesDeneb), 6444);
        let lengths = HeaderProofType::ALL.map(HeaderProofType::ssz_len);
        assert_eq!(lengths, [480, 840, 808, 840]);
    }

    /// A proof whose way up to the beacon block is right.
    fn beacon_proof(kind: HeaderProofType, hash: B256) -> Vec<u8> {
        let shape = kind.beacon_shape().unwrap();
        let branch: Vec<_> = (0..shape.execution as u8).map(B256::repeat_byte).collect();
        let root = fold_branch(hash, &branch, shape.index);
        let mut ssz = vec![7; shape.beacon * HASH];
        ssz.extend(root);
        ssz.extend(bytes_of(&branch));
        ssz.extend(5_u64.to_le_bytes());
        ssz
    }

    #[test]
    fn proofs_after_the_merge_lead_to_their_beacon_block_or_are_refused() {
        let merge = Header::default();
        let capella = Header { withdrawals_root: Some(B256::ZERO), ..merge.clone() };
        let deneb = Header { blob_gas_used: Some(0), ..capella.clone() };
        let before = Header { difficulty: U256::from(1), ..merge.clone() };
        let mut scratch = Vec::new();
        for header in [&merge, &capella, &deneb] {
            let (kind, hash) = (HeaderProofType::of_header(header), B256::repeat_byte(9));
            let ssz = beacon_proof(kind, hash);
            let proof = HeaderProof::new(kind, ssz.clone().into()).unwrap();
            assert_eq!(HeaderProof::decode(&proof.encode(), &mut scratch).unwrap(), proof);
            proof.check(header, hash).unwrap();
            let other = proof.check(header, B256::ZERO).unwrap_err();
            assert!(matches!(other, SourceErrorKind::HashMismatch { .. }), "{other}");
            let wrong_fork = proof.check(&before, hash).unwrap_err();
            assert!(matches!(wrong_fork, SourceErrorKind::Format(_)), "{wrong_fork}");
            let short = HeaderProof::new(kind, ssz[1..].to_vec().into()).unwrap_err();
            assert!(matches!(short, SourceErrorKind::Format(_)), "{short}");
        }
    }

    #[test]
    fn entries_that_are_no_proofs_are_refused() {
        let entry = |kind, length| {
            let ssz = Bytes::from(vec![1; length]);
            alloy_rlp::encode(ProofEntry { kind, ssz })
        };
        let mut scratch = Vec::new();
        let mut refused =
            |bytes: &[u8]| HeaderProof::decode(bytes, &mut scratch).unwrap_err().to_string();
        assert!(refused(&entry(4, 840)).contains("unknown type"));
        assert!(refused(&entry(0, 479)).contains("length of its type"));
        assert!(refused(&[entry(0, 480), vec![0]].concat()).contains("RLP"));
        assert!(refused(b"").contains("RLP"));
    }
}
