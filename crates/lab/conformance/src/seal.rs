//! Proof-of-work seals of the first 30,000 blocks (Ethash, yellow paper appendix J).
//!
//! The client takes blocks from trusted files or from a consensus client and checks no seals, but
//! the only fault of a few test blocks is their seal. This is the light verification: the parts of
//! the dataset that a seal touches are computed from a cache of 16 MiB.

use alloy_primitives::{B256, U256, keccak256};
use alloy_rlp::{Encodable, Header as ListHeader};
use retrie_chainspec::primitives::Header;
use sha3::{Digest, Keccak512};

/// Blocks that share a cache.
const EPOCH: u64 = 30_000;
/// Rows of 64 bytes in the cache of the first epoch.
const CACHE_ROWS: usize = 16_776_896 / 64;
/// Rows of 64 bytes in the dataset of the first epoch.
const DATASET_ROWS: u32 = (1_073_739_904_u64 / 64) as u32;
/// Passes over the cache during its creation.
const CACHE_ROUNDS: usize = 3;
/// Cache rows for one dataset row.
const PARENTS: u32 = 256;
/// Dataset accesses of one seal, of two rows each.
const ACCESSES: u32 = 64;

/// 64 bytes as little-endian words.
type EthashRow = [u32; 16];

/// Verifies seals of the first epoch.
#[derive(Debug)]
pub struct Ethash {
    cache: Vec<EthashRow>,
}

impl Ethash {
    /// Creates the cache of the first epoch, which takes about a second.
    pub fn new() -> Self {
        let mut cache = Vec::with_capacity(CACHE_ROWS);
        let mut row = keccak512(&[0; 32]);
        for _ in 0..CACHE_ROWS {
            cache.push(row);
            row = keccak512(&bytes(&row));
        }
        for _ in 0..CACHE_ROUNDS {
            for i in 0..CACHE_ROWS {
                let other = cache[i][0] as usize % CACHE_ROWS;
                let before = cache[(i + CACHE_ROWS - 1) % CACHE_ROWS];
                let mixed = std::array::from_fn(|w| before[w] ^ cache[other][w]);
                cache[i] = keccak512(&bytes(&mixed));
            }
        }
        Self { cache }
    }

    /// Checks a header's nonce and mix hash.
    ///
    /// Headers of later epochs pass: the chains of the suites are shorter, so the number is wrong
    /// anyway.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, header: &Header) -> Result<(), String> {
        if header.number >= EPOCH {
            return Ok(());
        }
        let (mix, result) = self.hash(seal_hash(header), u64::from_be_bytes(header.nonce.0));
        if mix != header.mix_hash {
            return Err(format!("the mix hash is {}, the seal gives {mix}", header.mix_hash));
        }
        let bound = match header.difficulty {
            U256::ZERO => return Err("the difficulty is zero".into()),
            // 2^256 itself does not fit 256 bits.
            difficulty if difficulty == U256::from(1) => U256::MAX,
            difficulty => (U256::MAX - difficulty + U256::from(1)) / difficulty + U256::from(1),
        };
        if U256::from_be_bytes(result.0) > bound {
            return Err(format!("the seal {result} is above the bound {bound:#x}"));
        }
        Ok(())
    }

    /// Mix hash and result of a nonce.
    fn hash(&self, seal_hash: B256, nonce: u64) -> (B256, B256) {
        let mut input = [0; 40];
        input[..32].copy_from_slice(seal_hash.as_slice());
        input[32..].copy_from_slice(&nonce.to_le_bytes());
        let seed = keccak512(&input);
        let mut mix: [u32; 32] = std::array::from_fn(|w| seed[w % 16]);
        for i in 0..ACCESSES {
            let page = fnv(i ^ seed[0], mix[i as usize % 32]) % (DATASET_ROWS / 2);
            for half in 0..2 {
                let row = self.dataset_row(2 * page + half);
                for (w, word) in row.into_iter().enumerate() {
                    let at = &mut mix[16 * half as usize + w];
                    *at = fnv(*at, word);
                }
            }
        }
        let mut digest = [0; 32];
        for (four, out) in mix.chunks_exact(4).zip(digest.chunks_exact_mut(4)) {
            let word = fnv(fnv(fnv(four[0], four[1]), four[2]), four[3]);
            out.copy_from_slice(&word.to_le_bytes());
        }
        let result = keccak256([&bytes(&seed)[..], &digest].concat());
        (digest.into(), result)
    }

    fn dataset_row(&self, index: u32) -> EthashRow {
        let mut row = self.cache[index as usize % CACHE_ROWS];
        row[0] ^= index;
        row = keccak512(&bytes(&row));
        for j in 0..PARENTS {
            let parent = fnv(index ^ j, row[j as usize % 16]) as usize % CACHE_ROWS;
            for (word, with) in row.iter_mut().zip(self.cache[parent]) {
                *word = fnv(*word, with);
            }
        }
        keccak512(&bytes(&row))
    }
}

impl Default for Ethash {
    fn default() -> Self {
        Self::new()
    }
}

/// The hash that is sealed: of a header before London, without mix hash and nonce.
fn seal_hash(header: &Header) -> B256 {
    let fields: [&dyn Encodable; 13] = [
        &header.parent_hash,
        &header.ommers_hash,
        &header.beneficiary,
        &header.state_root,
        &header.transactions_root,
        &header.receipts_root,
        &header.logs_bloom,
        &header.difficulty,
        &header.number,
        &header.gas_limit,
        &header.gas_used,
        &header.timestamp,
        &header.extra_data,
    ];
    let payload_length = fields.iter().map(|field| field.length()).sum();
    let mut rlp = Vec::new();
    ListHeader { list: true, payload_length }.encode(&mut rlp);
    fields.iter().for_each(|field| field.encode(&mut rlp));
    keccak256(&rlp)
}

const fn fnv(a: u32, b: u32) -> u32 {
    a.wrapping_mul(0x0100_0193) ^ b
}

fn keccak512(input: &[u8]) -> EthashRow {
    let digest = Keccak512::digest(input);
    std::array::from_fn(|w| {
        u32::from_le_bytes([digest[4 * w], digest[4 * w + 1], digest[4 * w + 2], digest[4 * w + 3]])
    })
}

fn bytes(row: &EthashRow) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (word, out) in row.iter().zip(bytes.chunks_exact_mut(4)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Bytes, address, b64, b256};

    #[test]
    fn the_first_block_of_mainnet_is_sealed() {
        let header = Header {
            parent_hash: b256!("d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3"),
            beneficiary: address!("05a56e2d52c817161883f50c441c3228cfe54d9f"),
            state_root: b256!("d67e4d450343046425ae4271474353857ab860dbc0a1dde64b41b5cd3a532bf3"),
            difficulty: U256::from(17_171_480_576_u64),
            number: 1,
            gas_limit: 5_000,
            timestamp: 1_438_269_988,
            extra_data: Bytes::from_static(b"Geth/v1.0.0/linux/go1.4.2"),
            mix_hash: b256!("969b900de27b6ac6a67742365dd65f55a0526c41fd18e1b16f1a1215c2e66f59"),
            nonce: b64!("539bd4979fef1ec4"),
            ..Header::default()
        };
        assert_eq!(
            header.hash_slow(),
            b256!("88e96d4537bea4d9c05d12549907b32561d3bf31f45aae734cdc119f13406cb6")
        );
        let ethash = Ethash::new();
        assert_eq!(ethash.check(&header), Ok(()));
        let other = Header { nonce: b64!("539bd4979fef1ec5"), ..header.clone() };
        assert!(ethash.check(&other).unwrap_err().contains("mix hash"));
        let (mix_hash, _) = ethash.hash(seal_hash(&other), 0x539b_d497_9fef_1ec5);
        let other = Header { mix_hash, ..other };
        assert!(ethash.check(&other).unwrap_err().contains("bound"));
        let other = Header { extra_data: Bytes::new(), ..header };
        assert!(ethash.check(&other).is_err());
    }
}
