//! Compound keys, and the search among the keys of a node.

use retrie_state::{AccountKey, BackendKey, wire::WireReader};
use std::cmp::Ordering;

/// Most children of a node, and most pairs of a leaf. Small nodes make short proofs and are cheap
/// to copy.
pub(super) const FANOUT: usize = 8;
/// Places in a node: it may have one child more before it is split.
pub(super) const PLACES: usize = FANOUT + 1;

/// The compound key by which pairs are ordered: state key and block.
pub(crate) type CompoundKey = (BackendKey, u64);

/// A [`CompoundKey`] in words of the same order, which compare in a few instructions: the encoded
/// state key, filled up with zeros, and seven bytes of the block, whose number is below 2^56.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyWords([u64; WORDS]);

const WORDS: usize = 9;
const KEY: usize = BackendKey::MAX_ENCODED_LEN;
const MAX_BLOCK: u64 = (1 << 56) - 1;

impl KeyWords {
    pub(super) fn new(key: &BackendKey, block: u64) -> Self {
        let encoded = key.encode();
        let mut bytes = [0; 8 * WORDS];
        bytes[..encoded.len()].copy_from_slice(&encoded);
        // A larger number asks for the newest version.
        bytes[KEY..].copy_from_slice(&block.min(MAX_BLOCK).to_be_bytes()[1..]);
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }

    pub(super) fn key(&self) -> BackendKey {
        let mut bytes = [0; 8 * WORDS];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = word.to_be_bytes();
        }
        // `new` wrote the encoding of a key.
        BackendKey::read(&mut WireReader::new(&bytes))
            .unwrap_or(BackendKey::Account(AccountKey::MIN))
    }

    pub(super) const fn block(&self) -> u64 {
        self.0[WORDS - 1] & MAX_BLOCK
    }

    /// Whether both have the same state key.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        // The last byte of the key is the first of the last word.
        self.0[..WORDS - 1] == other.0[..WORDS - 1]
            && (self.0[WORDS - 1] ^ other.0[WORDS - 1]) >> 56 == 0
    }

    /// The index of the first word in which they differ; `WORDS` if they are equal.
    fn parting(&self, other: &Self) -> usize {
        self.0.iter().zip(&other.0).take_while(|(a, b)| a == b).count()
    }
}

/// The compound keys in a node, in order: the first key whole, and one word of each key, the first
/// word in which they differ. The other words are elsewhere and cost a cache miss; a search needs
/// them only if that one word is equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeKeys {
    len: usize,
    /// The number of words that all keys have in common; `WORDS` with one key.
    shared: usize,
    first: KeyWords,
    heads: [u64; PLACES],
}

impl NodeKeys {
    pub(super) const fn one(id: KeyWords) -> Self {
        Self { len: 1, shared: WORDS, first: id, heads: [0; PLACES] }
    }

    /// From keys in order: at least one, at most [`PLACES`].
    pub(super) fn of(ids: &[KeyWords]) -> Self {
        let mut keys = Self::one(ids[0]);
        keys.len = ids.len();
        keys.shared = ids[0].parting(&ids[ids.len() - 1]);
        if let Some(word) = keys.word() {
            keys.heads.iter_mut().zip(ids).for_each(|(head, id)| *head = id.0[word]);
        }
        keys
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn first(&self) -> &KeyWords {
        &self.first
    }

    /// The index of the word in `heads`.
    fn word(&self) -> Option<usize> {
        (self.shared < WORDS).then_some(self.shared)
    }

    /// The number of keys that are below `id`, or also equal to it with `or_equal`. `whole` returns
    /// the key at a place.
    #[inline]
    pub(super) fn rank<'a>(
        &self,
        id: &KeyWords,
        or_equal: bool,
        whole: impl Fn(usize) -> &'a KeyWords,
    ) -> usize {
        match id.0[..self.shared].cmp(&self.first.0[..self.shared]) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len,
            Ordering::Equal => {}
        }
        let Some(word) = self.word() else { return usize::from(or_equal) };
        let (head, heads) = (id.0[word], &self.heads[..self.len]);
        let lower = heads.iter().filter(|other| **other < head).count();
        let same = heads[lower..].iter().take_while(|other| **other == head).count();
        let is_below = |n: &usize| {
            let other = whole(lower + n);
            if or_equal { other <= id } else { other < id }
        };
        // Searches mostly look for the newest version.
        lower + (0..same).rev().find(is_below).map_or(0, |n| n + 1)
    }

    /// Reduces the common words to those that `id` shares, too.
    fn admit(&mut self, id: &KeyWords) {
        let shared = self.first.parting(id);
        if shared < self.shared {
            self.shared = shared;
            self.heads = [self.first.0[shared]; PLACES];
        }
    }

    /// Inserts `id`, which is not in the node, at the place `at`.
    pub(super) fn insert(&mut self, at: usize, id: KeyWords) {
        self.admit(&id);
        self.heads.copy_within(at..self.len, at + 1);
        self.len += 1;
        self.set(at, id);
    }

    /// Lowers the first key to `id`.
    pub(super) fn lower_first(&mut self, id: KeyWords) {
        if self.len == 1 {
            *self = Self::one(id);
        } else {
            self.admit(&id);
            self.set(0, id);
        }
    }

    fn set(&mut self, at: usize, id: KeyWords) {
        if let Some(word) = self.word() {
            self.heads[at] = id.0[word];
        }
        if at == 0 {
            self.first = id;
        }
    }

    /// Splits off the keys from `at` on.
    pub(super) fn split<'a>(&mut self, at: usize, whole: impl Fn(usize) -> &'a KeyWords) -> Self {
        let part = |from: usize, to: usize| {
            let mut ids = [self.first; PLACES];
            ids.iter_mut().zip(from..to).for_each(|(id, n)| *id = *whole(n));
            Self::of(&ids[..to - from])
        };
        let (left, right) = (part(0, at), part(at, self.len));
        *self = left;
        right
    }
}
