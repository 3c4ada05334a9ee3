//! [`CellMask`]: which cells of a blob (EIP-7594).

use alloy_eips::eip7594::CELLS_PER_EXT_BLOB;
use alloy_primitives::FixedBytes;

/// How many cells make up a blob; as many extend it.
pub const CELLS_PER_BLOB: usize = CELLS_PER_EXT_BLOB / 2;

/// Indices of cells, below 128: the `indices_bitarray` of `engine_getBlobsV4`, the `custodyColumns`
/// of `engine_forkchoiceUpdatedV4`, and the `cell_mask` of eth/72 (EIP-8070).
///
/// In bytes it is SSZ's `Bitvector[128]`: index `i` is bit `i % 8`, the lowest first, of byte
/// `i / 8` (execution-apis #856).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellMask(u128);

impl From<[u8; 16]> for CellMask {
    fn from(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}

impl From<FixedBytes<16>> for CellMask {
    fn from(bytes: FixedBytes<16>) -> Self {
        Self::from(bytes.0)
    }
}

impl From<CellMask> for FixedBytes<16> {
    fn from(mask: CellMask) -> Self {
        Self(mask.0.to_le_bytes())
    }
}

impl CellMask {
    /// All cells.
    pub const ALL: Self = Self(u128::MAX);

    /// The cells that make up the blob.
    pub const BLOB: Self = Self((1 << CELLS_PER_BLOB) - 1);

    /// The indices, in ascending order.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..CELLS_PER_EXT_BLOB).filter(move |index| (self.0 >> *index) & 1 == 1)
    }

    /// How many cells it names.
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it names all cells of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it names a cell that is not part of the blob itself.
    pub const fn names_extension(self) -> bool {
        !Self::BLOB.contains(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_read_as_the_bit_vector_of_ssz() {
        let mut bytes = [0_u8; 16];
        (bytes[0], bytes[1], bytes[15]) = (0b0000_0011, 0b0000_0001, 0b1000_0000);
        let mask = CellMask::from(bytes);
        assert_eq!(mask.indices().collect::<Vec<_>>(), [0, 1, 8, 127]);
        assert_eq!(mask.count(), 4);
        assert_eq!(FixedBytes::<16>::from(mask).0, bytes);
        assert_eq!(CellMask::default().indices().count(), 0);
        assert!(CellMask::ALL.indices().eq(0..128));
        assert!(CellMask::BLOB.indices().eq(0..CELLS_PER_BLOB));
        assert!(mask.names_extension() && !CellMask::BLOB.names_extension());
        assert!(CellMask::ALL.contains(mask) && !CellMask::BLOB.contains(mask));
    }
}
