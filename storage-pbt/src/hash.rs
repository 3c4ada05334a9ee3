//! The hash of the tree. EIP-8297 leaves it open, so it is a parameter; BLAKE3 is the draft's
//! choice.

use alloc::vec::Vec;
use alloy_primitives::{B256, keccak256};
use retrie_state::HashId;

/// The longest key in bytes: zone, account, group, sub-index.
pub const MAX_KEY_LEN: usize = 1 + 32 + 32 + 1;

/// The root of the empty tree.
pub const EMPTY_ROOT: B256 = B256::ZERO;

/// The hash function H of the tree's keys and nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeHash {
    /// BLAKE3 with 256 bits of output: the choice of the draft.
    #[default]
    Blake3,
    /// keccak-256, a candidate.
    Keccak256,
    /// Poseidon2 over the KoalaBear field, an algebraic hash.
    #[cfg(feature = "algebraic")]
    Poseidon2,
}

impl TreeHash {
    /// Its name in datadirs and proofs.
    pub const fn id(self) -> HashId {
        match self {
            Self::Blake3 => HashId::Blake3,
            Self::Keccak256 => HashId::Keccak256,
            #[cfg(feature = "algebraic")]
            Self::Poseidon2 => HashId::Poseidon2,
        }
    }

    /// H of `bytes`.
    pub fn hash(self, bytes: &[u8]) -> B256 {
        match self {
            Self::Blake3 => B256::new(*blake3::hash(bytes).as_bytes()),
            Self::Keccak256 => keccak256(bytes),
            #[cfg(feature = "algebraic")]
            Self::Poseidon2 => crate::poseidon2::hash(bytes),
        }
    }

    /// The hash of a leaf: H of `00`, the whole key (at most [`MAX_KEY_LEN`] bytes in a state) and
    /// the value.
    pub fn leaf(self, key: &[u8], value: &B256) -> B256 {
        let mut bytes = [0; 1 + MAX_KEY_LEN + 32];
        let len = 1 + key.len();
        if let Some(place) = bytes.get_mut(1..len)
            && len + 32 <= 1 + MAX_KEY_LEN + 32
        {
            place.copy_from_slice(key);
            bytes[len..len + 32].copy_from_slice(&value[..]);
            return self.hash(&bytes[..len + 32]);
        }
        // Keys of a state are shorter.
        let mut bytes = alloc::vec![0];
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&value[..]);
        self.hash(&bytes)
    }

    /// The hash of a branch: H of `01`, the number of prefix bits (2 bytes), these bits, packed with
    /// the first one highest, and the hashes of both children. The prefix is the bits `from..split` of
    /// `key`, the key of any leaf below; `split` is the number of the bit in which the children
    /// differ.
    pub fn branch(self, key: &[u8], from: usize, split: usize, left: &B256, right: &B256) -> B256 {
        let count = split.saturating_sub(from);
        let prefix_len = count.div_ceil(8);
        let mut short = [0; 3 + MAX_KEY_LEN + 64];
        let mut long = Vec::new();
        let len = 3 + prefix_len + 64;
        let bytes = if len <= short.len() {
            &mut short[..len]
        } else {
            long.resize(len, 0);
            &mut long[..]
        };
        bytes[0] = 1;
        bytes[1..3].copy_from_slice(&(count as u16).to_be_bytes());
        copy_bits(key, from, split, &mut bytes[3..3 + prefix_len]);
        bytes[3 + prefix_len..35 + prefix_len].copy_from_slice(&left[..]);
        bytes[35 + prefix_len..].copy_from_slice(&right[..]);
        self.hash(bytes)
    }
}

/// Copies the bits `from..to` of `key` to the front of `out`, and clears the bits behind them.
fn copy_bits(key: &[u8], from: usize, to: usize, out: &mut [u8]) {
    let shift = from % 8;
    let source = key.get(from / 8..).unwrap_or_default();
    for (at, byte) in out.iter_mut().enumerate() {
        let high = source.get(at).copied().unwrap_or_default();
        let low = source.get(at + 1).copied().unwrap_or_default();
        *byte = (u16::from_be_bytes([high, low]) >> (8 - shift)) as u8;
    }
    let spare = out.len() * 8 - to.saturating_sub(from);
    if let Some(last) = out.last_mut() {
        *last &= 0xff << spare;
    }
}

/// Bit number `at` of `key`, the first one being the highest of the first byte; 0 behind the end.
pub fn bit(key: &[u8], at: usize) -> u8 {
    key.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1)
}

/// How many bits `a` and `b` have in common at the front, at most all of the shorter one.
pub fn common_bits(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let more = match (a.get(same), b.get(same)) {
        (Some(a), Some(b)) => (a ^ b).leading_zeros() as usize,
        _ => 0,
    };
    same * 8 + more
}

/// The front of a key, up to some bit; all behind it is zero.
pub type KeyBits = [u8; MAX_KEY_LEN];

/// The first `bits` bits of `key`.
pub fn key_bits(key: &[u8], bits: usize) -> KeyBits {
    let mut front = [0; MAX_KEY_LEN];
    let len = bits.div_ceil(8).min(MAX_KEY_LEN);
    copy_bits(key, 0, bits.min(len * 8), &mut front[..len]);
    front
}

/// A subtree as its parent sees it, whose position may still change: the hash of a leaf does not
/// depend on the position, that of a branch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subtree {
    /// A leaf, by its hash.
    Leaf(B256),
    /// A branch.
    Branch {
        /// The number of the key's bit in which its children differ.
        split: u16,
        /// The bits before it, which the keys of all leaves in it share.
        key: KeyBits,
        /// Hash of the child with bit 0.
        left: B256,
        /// Hash of the child with bit 1.
        right: B256,
    },
}

impl Subtree {
    /// The branch whose children differ in bit `split`; `key` is the key of any leaf in it.
    pub fn branch(key: &[u8], split: usize, left: B256, right: B256) -> Self {
        Self::Branch { split: split as u16, key: key_bits(key, split), left, right }
    }

    /// Its hash below a parent whose children differ in the bit before `from`; `from` is 0 at the
    /// root.
    pub fn hash(&self, hash: TreeHash, from: usize) -> B256 {
        match self {
            Self::Leaf(leaf) => *leaf,
            Self::Branch { split, key, left, right } => {
                hash.branch(key, from, usize::from(*split), left, right)
            }
        }
    }
}

/// The tree over sorted leaves whose keys differ pairwise, none a prefix of another; each leaf is a
/// key and the hash of the leaf. `None` without leaves.
pub fn sweep<K: AsRef<[u8]>>(
    hash: TreeHash,
    leaves: impl IntoIterator<Item = (K, B256)>,
) -> Option<Subtree> {
    let mut sweep = Sweep::new(hash);
    for (key, leaf) in leaves {
        sweep.push(key.as_ref(), Subtree::Leaf(leaf));
    }
    sweep.finish()
}

/// Makes a tree of sorted leaves in one sweep: a stack holds the finished subtrees left of the path to
/// the last leaf.
#[derive(Clone, Debug)]
pub struct Sweep {
    hash: TreeHash,
    /// The finished subtrees, from the root down, each with the split of the branch that it is the
    /// left child of.
    open: Vec<(usize, Subtree)>,
    /// The last leaf or subtree, and its key.
    last: Option<(KeyBits, usize, Subtree)>,
}

impl Sweep {
    /// No leaves yet.
    pub const fn new(hash: TreeHash) -> Self {
        Self { hash, open: Vec::new(), last: None }
    }

    /// The next leaf, or the next subtree and the key of a leaf in it. Keys have at most
    /// [`MAX_KEY_LEN`] bytes; what is behind is not looked at.
    pub fn push(&mut self, key: &[u8], next: Subtree) {
        if let Some((last, len, subtree)) = self.last.take() {
            let split = common_bits(&last[..len], key);
            let subtree = self.close(&last, subtree, Some(split));
            self.open.push((split, subtree));
        }
        self.last = Some((key_bits(key, key.len() * 8), key.len().min(MAX_KEY_LEN), next));
    }

    /// Joins `subtree` with its finished left siblings below `split`.
    fn close(&mut self, key: &[u8], mut subtree: Subtree, split: Option<usize>) -> Subtree {
        while let Some((at, left)) =
            self.open.pop_if(|(at, _)| split.is_none_or(|split| *at > split))
        {
            let left = left.hash(self.hash, at + 1);
            let right = subtree.hash(self.hash, at + 1);
            subtree = Subtree::branch(key, at, left, right);
        }
        subtree
    }

    /// The whole tree; `None` if there was no leaf.
    pub fn finish(mut self) -> Option<Subtree> {
        let (key, _, subtree) = self.last.take()?;
        Some(self.close(&key, subtree, None))
    }

    /// The root of the whole tree.
    pub fn root(self) -> B256 {
        let hash = self.hash;
        self.finish().map_or(EMPTY_ROOT, |subtree| subtree.hash(hash, 0))
    }
}
