//! Every hash of LVMT: BLAKE2b-256; the first byte of the input names the domain.
//!
//! No input of one domain can be read as an input of another, nor as two inputs of its own: every
//! field has a fixed length, is led by its length, or comes last. Numbers are big-endian.

use crate::amt::VERSION_BITS;
use alloc::vec::Vec;
use alloy_primitives::B256;
#[cfg(feature = "std")]
use retrie_state::blake2b;
pub(crate) use retrie_state::blake2b::hash as parts;

/// The location of a state key, from its [encoding](retrie_state::BackendKey::encode). [`entry_of`]
/// cuts it into the entries of the key's path.
pub(crate) fn location(key: &[u8]) -> B256 {
    parts(&[&[0x00], key])
}

/// The entry of `location` at `level`: the `height` bits that start at bit `level * height`, most
/// significant first (1 to 16 bits). `None` when the hash is used up.
pub(crate) fn entry_of(location: &B256, height: u8, level: usize) -> Option<u32> {
    if level >= 256 / usize::from(height) {
        return None;
    }
    let from = level * usize::from(height);
    let mut window = [0; 4];
    for (to, byte) in window.iter_mut().zip(&location[from / 8..]) {
        *to = *byte;
    }
    // 16 bits from within the first byte on: 23 at most.
    Some(u32::from_be_bytes(window) << (from % 8) >> (32 - u32::from(height)))
}

/// The tuple of a key: at this version of its slot it had this value (`None`: deleted).
pub(crate) fn key_tuple(
    level: u8,
    slot: u8,
    version: u64,
    key: &[u8],
    value: Option<&[u8]>,
) -> B256 {
    let mut input = Vec::new();
    put_key_tuple(&mut input, level, slot, version, key, value);
    parts(&[&input])
}

/// The tuple of the sub-AMT at the path `way` (entries from the root AMT down, at least one): at
/// this version it had this commitment.
pub(crate) fn amt_tuple(way: &[u16], version: u64, commitment: &[u8; 64]) -> B256 {
    let mut input = Vec::new();
    put_amt_tuple(&mut input, way, version, commitment);
    parts(&[&input])
}

/// An inner node of a Merkle tree.
pub(crate) fn node(left: &B256, right: &B256) -> B256 {
    parts(&[&[0x03], &left[..], &right[..]])
}

/// The leaf of the range for block `number`, whose Merkle tree has `leaves` leaves and this top.
pub(crate) fn block(number: u64, leaves: u32, top: &B256) -> B256 {
    parts(&[&[0x04], &number.to_be_bytes(), &leaves.to_be_bytes(), &top[..]])
}

/// The root of a state, from the commitment of the root AMT and the range over `blocks` blocks from
/// block `first` on.
pub(crate) fn root(commitment: &[u8; 64], first: u64, blocks: u64, top: &B256) -> B256 {
    parts(&[&[0x05], commitment, &first.to_be_bytes(), &blocks.to_be_bytes(), &top[..]])
}

/// Hashes many inputs together, more than twice as fast as one by one. The digests equal those of
/// the functions of the same names.
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub(crate) struct HashBatch(blake2b::Blake2bBatch);

#[cfg(feature = "std")]
impl HashBatch {
    /// An empty batch with room for `count` inputs of keys.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(blake2b::Blake2bBatch::with_capacity(count, 128))
    }

    /// Adds a [`location`].
    pub(crate) fn location(&mut self, key: &[u8]) {
        self.0.push(|input| {
            input.push(0x00);
            input.extend_from_slice(key);
        });
    }

    /// Adds a [`key_tuple`].
    pub(crate) fn key_tuple(
        &mut self,
        level: u8,
        slot: u8,
        version: u64,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        self.0.push(|input| put_key_tuple(input, level, slot, version, key, value));
    }

    /// Adds an [`amt_tuple`].
    pub(crate) fn amt_tuple(&mut self, way: &[u16], version: u64, commitment: &[u8; 64]) {
        self.0.push(|input| put_amt_tuple(input, way, version, commitment));
    }

    /// The digests, in the order in which the inputs were added.
    pub(crate) fn finish(mut self) -> Vec<B256> {
        let mut digests = Vec::new();
        self.0.finish_into(&mut digests);
        digests
    }
}

/// Appends to `parents` the [`node`] over each pair of neighbours. A last child without a neighbour
/// is its own parent.
#[cfg(feature = "std")]
pub(crate) fn nodes(children: &[B256], parents: &mut Vec<B256>) {
    const AT_ONCE: usize = 16;
    let mut inputs = [[0x03; 1 + 32 + 32]; AT_ONCE];
    let (pairs, odd) = children.as_chunks::<2>();
    parents.reserve(pairs.len() + odd.len());
    for pairs in pairs.chunks(AT_ONCE) {
        for (input, [left, right]) in inputs.iter_mut().zip(pairs) {
            input[1..33].copy_from_slice(&left[..]);
            input[33..].copy_from_slice(&right[..]);
        }
        blake2b::hash_many(inputs[..pairs.len()].iter().map(|input| &input[..]), parents);
    }
    parents.extend_from_slice(odd);
}

fn put_key_tuple(
    out: &mut Vec<u8>,
    level: u8,
    slot: u8,
    version: u64,
    key: &[u8],
    value: Option<&[u8]>,
) {
    // State keys have 53 bytes at most.
    debug_assert!(key.len() < 256 && version >> VERSION_BITS == 0);
    out.extend_from_slice(&[0x01, level, slot]);
    put_version(out, version);
    out.push(key.len() as u8);
    out.extend_from_slice(key);
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(value.unwrap_or_default());
}

fn put_amt_tuple(out: &mut Vec<u8>, way: &[u16], version: u64, commitment: &[u8; 64]) {
    debug_assert!((1..256).contains(&way.len()) && version >> VERSION_BITS == 0);
    out.extend_from_slice(&[0x02, way.len() as u8]);
    out.extend(way.iter().flat_map(|entry| entry.to_be_bytes()));
    put_version(out, version);
    out.extend_from_slice(commitment);
}

fn put_version(out: &mut Vec<u8>, version: u64) {
    // 40 bits.
    out.extend_from_slice(&version.to_be_bytes()[3..]);
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use alloy_primitives::hex;
    use blake2::{Blake2b, Digest, digest::consts::U32};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// BLAKE2b-256 by another library.
    fn reference(input: &[u8]) -> B256 {
        B256::from_slice(&Blake2b::<U32>::digest(input))
    }

    #[test]
    fn every_domain_hashes_the_bytes_of_the_format_page() {
        let (a, b) = (B256::repeat_byte(0xaa), B256::repeat_byte(0xbb));
        let cases: [(B256, String); 7] = [
            (location(&[1, 2]), "00 0102".into()),
            (
                key_tuple(2, 5, 0x0102030405, b"key", Some(b"value")),
                "01 02 05 0102030405 03 6b6579 01 76616c7565".into(),
            ),
            (key_tuple(0, 1, 7, b"key", None), "01 00 01 0000000007 03 6b6579 00".into()),
            (
                amt_tuple(&[0x1234, 5], 6, &[0xcc; 64]),
                format!("02 02 1234 0005 0000000006 {}", "cc".repeat(64)),
            ),
            (node(&a, &b), format!("03 {} {}", hex::encode(a), hex::encode(b))),
            (block(3, 4, &a), format!("04 0000000000000003 00000004 {}", hex::encode(a))),
            (
                root(&[0xcc; 64], 1, 2, &a),
                format!(
                    "05 {} 0000000000000001 0000000000000002 {}",
                    "cc".repeat(64),
                    hex::encode(a)
                ),
            ),
        ];
        for (digest, input) in cases {
            assert_eq!(digest, reference(&hex::decode(input.replace(' ', "")).unwrap()), "{input}");
        }
    }

    #[test]
    fn hashing_many_at_once_gives_the_same_digests() {
        let rng = &mut StdRng::seed_from_u64(5);
        for count in [0, 1, 2, 3, 4, 5, 15, 16, 17, 100, 1000] {
            let mut batch = HashBatch::with_capacity(count);
            let mut expected = Vec::new();
            for _ in 0..count {
                let mut key = vec![0; rng.random_range(0..54)];
                rng.fill(&mut key[..]);
                let mut value = vec![0; rng.random_range(0..300)];
                rng.fill(&mut value[..]);
                let (level, slot) = (rng.random(), rng.random());
                let version = rng.random_range(0..1 << VERSION_BITS);
                let value = rng.random_bool(0.8).then_some(&value[..]);
                match rng.random_range(0..3) {
                    0 => {
                        batch.location(&key);
                        expected.push(location(&key));
                    }
                    1 => {
                        batch.key_tuple(level, slot, version, &key, value);
                        expected.push(key_tuple(level, slot, version, &key, value));
                    }
                    _ => {
                        let way = vec![rng.random(); rng.random_range(1..20)];
                        batch.amt_tuple(&way, version, &[slot; 64]);
                        expected.push(amt_tuple(&way, version, &[slot; 64]));
                    }
                }
            }
            let digests = batch.finish();
            assert_eq!(digests, expected);
            let mut parents = Vec::new();
            nodes(&digests, &mut parents);
            let one_by_one = digests.chunks(2).map(|pair| match pair {
                [left, right] => node(left, right),
                odd => odd[0],
            });
            assert_eq!(parents, one_by_one.collect::<Vec<_>>());
        }
    }

    #[test]
    fn entries_are_the_bits_of_the_location_one_level_after_the_other() {
        let rng = &mut StdRng::seed_from_u64(6);
        for height in 1..=16u8 {
            let location = B256::from(rng.random::<[u8; 32]>());
            let bits: String = location.iter().map(|byte| format!("{byte:08b}")).collect();
            let levels = 256 / usize::from(height);
            for level in 0..levels {
                let from = level * usize::from(height);
                let bits = &bits[from..from + usize::from(height)];
                let expected = u32::from_str_radix(bits, 2).unwrap();
                assert_eq!(entry_of(&location, height, level), Some(expected));
            }
            assert_eq!(entry_of(&location, height, levels), None);
            assert_eq!(entry_of(&location, height, usize::MAX), None);
        }
    }
}
