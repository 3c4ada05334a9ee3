//! The bytes of a witness, which `docs/formats/witnesses.md` documents.

use crate::{merkle::RangePeaks, point::G1Point};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{BackendKey, ProofError, wire::WireReader};

/// First byte of a witness.
const VERSION: u8 = 1;

/// A witness, not checked yet.
pub(super) struct WitnessBytes<'a> {
    /// Ascending.
    pub(super) keys: Vec<BackendKey>,
    /// The proof of these keys.
    pub(super) proof: &'a [u8],
    /// The increments of entries, ascending.
    pub(super) increments: Vec<(u32, G1Point)>,
    /// \[tau^(n/2)\], if there are increments.
    pub(super) half: Option<G1Point>,
    pub(super) peaks: Vec<B256>,
}

impl<'a> WitnessBytes<'a> {
    #[cfg(feature = "std")]
    pub(super) fn encode(&self) -> Vec<u8> {
        use retrie_state::wire::put_varint;
        let mut out = alloc::vec![VERSION];
        put_varint(&mut out, self.keys.len() as u64);
        self.keys.iter().for_each(|key| out.extend_from_slice(&key.encode()));
        put_varint(&mut out, self.proof.len() as u64);
        out.extend_from_slice(self.proof);
        put_varint(&mut out, self.increments.len() as u64);
        for (entry, point) in &self.increments {
            put_varint(&mut out, (*entry).into());
            out.extend(point.to_compressed());
        }
        out.extend(self.half.iter().flat_map(G1Point::to_compressed));
        out.extend(self.peaks.iter().flatten());
        out
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, ProofError> {
        let malformed = |what| ProofError::Malformed { what };
        let mut reader = WireReader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(malformed("version"));
        }
        // An account takes 21 bytes.
        let count = reader.count(21)?;
        let mut keys: Vec<BackendKey> = Vec::with_capacity(count);
        for _ in 0..count {
            let key = BackendKey::read(&mut reader).ok_or_else(|| malformed("key"))?;
            if keys.last().is_some_and(|last| *last >= key || last.form() != key.form()) {
                return Err(malformed("keys are out of order"));
            }
            keys.push(key);
        }
        let len = reader.count(1)?;
        let proof = reader.take(len)?;
        let point = |reader: &mut WireReader<'_>| {
            let point = G1Point::from_compressed(reader.array()?);
            point.ok_or_else(|| malformed("a point"))
        };
        let count = reader.count(33)?;
        let mut increments: Vec<(u32, G1Point)> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = u32::try_from(reader.varint()?).map_err(|_| malformed("entry"))?;
            if increments.last().is_some_and(|(last, _)| *last >= entry) {
                return Err(malformed("increments are out of order"));
            }
            increments.push((entry, point(&mut reader)?));
        }
        let half = match increments.is_empty() {
            true => None,
            false => Some(point(&mut reader)?),
        };
        let (peaks, rest) = reader.rest().as_chunks::<32>();
        if !rest.is_empty() || peaks.len() > RangePeaks::len(u64::MAX) {
            return Err(malformed("peaks"));
        }
        let peaks = peaks.iter().map(B256::from).collect();
        Ok(Self { keys, proof, increments, half, peaks })
    }
}
