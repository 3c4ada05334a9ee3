//! Entries: their binary form, which gives both order and hash.

use alloc::vec::Vec;
use alloy_primitives::{Address, B256};
use core::fmt;
use sha2::{Digest, Sha256};

/// Types of entries, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Hash of a block.
    Block = 0,
    /// Hash of a transaction.
    Transaction = 1,
    /// Address of a log.
    Address = 2,
    /// First topic of a log; those of the others follow.
    Topic = 3,
}

const HASH: usize = 32;
const BLOCK_LENGTH: usize = 2 + HASH + 8;
const ADDRESS_LENGTH: usize = 2 + 20 + 16;
const LONGEST: usize = 2 + HASH + 16;

/// Length of an entry of a type; `None` if there is no such type.
const fn length(kind: [u8; 2]) -> Option<usize> {
    match kind {
        [0, 0] => Some(BLOCK_LENGTH),
        [0, 2] => Some(ADDRESS_LENGTH),
        [0, 1 | 3..=6] => Some(LONGEST),
        _ => None,
    }
}

/// Where the content of an entry occurs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPosition {
    /// Number of the block.
    pub block: u64,
    /// Index of the transaction; 0 of a block.
    pub transaction: u32,
    /// Index of the log in its transaction; of a transaction the number of logs before it in the
    /// block; 0 of a block.
    pub log: u32,
}

/// An entry of an index table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    bytes: [u8; LONGEST],
    length: u8,
}

impl IndexEntry {
    /// The entry of a key, which has a content, at a position.
    pub(crate) fn new(key: &EntryKey, position: EntryPosition) -> Self {
        let mut entry = Self { bytes: [0; LONGEST], length: 0 };
        entry.push(key.as_bytes());
        entry.push(&position.block.to_be_bytes());
        if key.bytes[1] != EntryKind::Block as u8 {
            entry.push(&position.transaction.to_be_bytes());
            entry.push(&position.log.to_be_bytes());
        }
        entry
    }

    fn push(&mut self, more: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..start + more.len()].copy_from_slice(more);
        self.length += more.len() as u8;
    }

    /// The entry with this binary form; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if length(*bytes.first_chunk()?)? != bytes.len() {
            return None;
        }
        let mut entry = Self { bytes: [0; LONGEST], length: 0 };
        entry.push(bytes);
        Some(entry)
    }

    /// Its binary form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Number of its type.
    pub const fn kind(&self) -> u8 {
        self.bytes[1]
    }

    /// Where its content occurs.
    pub fn position(&self) -> EntryPosition {
        let bytes = self.as_bytes();
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let tail = bytes.len() - if self.kind() == EntryKind::Block as u8 { 8 } else { 16 };
        let block = u64::from(number(tail)) << 32 | u64::from(number(tail + 4));
        match self.kind() {
            0 => EntryPosition { block, ..EntryPosition::default() },
            _ => EntryPosition { block, transaction: number(tail + 8), log: number(tail + 12) },
        }
    }

    /// The hash of a block or a transaction, or a topic; `None` of an address.
    pub fn hash(&self) -> Option<B256> {
        let is_address = self.kind() == EntryKind::Address as u8;
        (!is_address).then(|| B256::from_slice(&self.bytes[2..2 + HASH]))
    }

    /// SHA-256 of its binary form, the leaf of the table's tree.
    pub fn leaf(&self) -> B256 {
        B256::new(Sha256::digest(self.as_bytes()).into())
    }
}

impl PartialOrd for IndexEntry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IndexEntry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Debug for IndexEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&alloy_primitives::hex::encode(self.as_bytes()))
    }
}

/// What an entry begins with: its type and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryKey {
    bytes: [u8; 2 + HASH],
    length: u8,
}

impl EntryKey {
    fn new(kind: u8, content: &[u8]) -> Self {
        let mut bytes = [0; 2 + HASH];
        bytes[1] = kind;
        bytes[2..2 + content.len()].copy_from_slice(content);
        Self { bytes, length: 2 + content.len() as u8 }
    }

    /// A block.
    pub fn block(hash: &B256) -> Self {
        Self::new(EntryKind::Block as u8, hash.as_slice())
    }

    /// A transaction.
    pub fn transaction(hash: &B256) -> Self {
        Self::new(EntryKind::Transaction as u8, hash.as_slice())
    }

    /// An address of logs.
    pub fn address(address: &Address) -> Self {
        Self::new(EntryKind::Address as u8, address.as_slice())
    }

    /// A topic at its position, 0 to 3.
    pub fn topic(place: u8, topic: &B256) -> Self {
        Self::new(EntryKind::Topic as u8 + place.min(3), topic.as_slice())
    }

    /// Every address: the key of all logs.
    pub fn any_address() -> Self {
        Self::new(EntryKind::Address as u8, &[])
    }

    /// The bytes with which its entries begin.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Whether `entry` is one of its entries.
    pub fn has(&self, entry: &IndexEntry) -> bool {
        entry.as_bytes().starts_with(self.as_bytes())
    }
}

/// Entries in order, each as the number of bytes that it shares with the one before, and its other
/// bytes.
pub fn encode_entries(entries: &[IndexEntry]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut before: &[u8] = &[];
    for entry in entries {
        let bytes = entry.as_bytes();
        let shared = bytes.iter().zip(before).take_while(|(one, other)| one == other).count();
        encoded.push(shared as u8);
        encoded.extend_from_slice(&bytes[shared..]);
        before = bytes;
    }
    encoded
}

/// The entries of these bytes, in strictly ascending order; `None` if they are no such entries. An
/// entry has at least two bytes there, and 51 in memory.
pub fn decode_entries(mut encoded: &[u8]) -> Option<Vec<IndexEntry>> {
    let mut entries = Vec::<IndexEntry>::new();
    while let Some((shared, rest)) = encoded.split_first() {
        let before = entries.last().map_or(&[][..], IndexEntry::as_bytes);
        let shared = before.get(..usize::from(*shared))?;
        let mut start = shared.iter().chain(rest).copied();
        let length = length([start.next()?, start.next()?])?;
        let (more, rest) = rest.split_at_checked(length.checked_sub(shared.len())?)?;
        let mut entry = IndexEntry { bytes: [0; LONGEST], length: 0 };
        entry.push(shared);
        entry.push(more);
        if entries.last().is_some_and(|before| *before >= entry) {
            return None;
        }
        entries.push(entry);
        encoded = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;

    #[test]
    fn entries_have_the_encoding_of_the_eip() {
        // Rows of the example of the EIP.
        let weth = Address::new(hex!("c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2"));
        let transfer =
            B256::new(hex!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"));
        let hash =
            B256::new(hex!("42f66a2e9f9c68e223e8d826145d7cfacb00520dba6a9555803121de29790b65"));
        let transaction =
            B256::new(hex!("ca2d12d1b8132de09d0d668cc87349dc70134bee3010e03ddb2d83f7160bd6e3"));
        let at = |block, transaction, log| EntryPosition { block, transaction, log };
        let cases = [
            (
                EntryKey::block(&hash),
                at(40, 0, 0),
                "000042f66a2e9f9c68e223e8d826145d7cfacb00520dba6a9555803121de29790b65\
                 0000000000000028",
            ),
            (
                EntryKey::transaction(&transaction),
                at(42, 0, 0),
                "0001ca2d12d1b8132de09d0d668cc87349dc70134bee3010e03ddb2d83f7160bd6e3\
                 000000000000002a0000000000000000",
            ),
            (
                EntryKey::address(&weth),
                at(42, 1, 0),
                "0002c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2000000000000002a0000000100000000",
            ),
            (
                EntryKey::topic(0, &transfer),
                at(42, 0, 1),
                "0003ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef\
                 000000000000002a0000000000000001",
            ),
        ];
        let mut entries = Vec::new();
        for (key, position, expected) in cases {
            let entry = IndexEntry::new(&key, position);
            assert_eq!(hex::encode(entry.as_bytes()), expected);
            assert_eq!(entry.position(), position);
            assert_eq!(IndexEntry::parse(entry.as_bytes()), Some(entry));
            assert!(key.has(&entry));
            entries.push(entry);
        }
        assert!(EntryKey::any_address().has(&entries[2]));
        assert!(!EntryKey::any_address().has(&entries[3]));
    }

    #[test]
    fn entries_that_are_none_are_refused() {
        let key = EntryKey::address(&Address::repeat_byte(7));
        let at = |block| IndexEntry::new(&key, EntryPosition { block, transaction: 1, log: 2 });
        let entries = [at(5), at(6), at(0x1_0000_0000)];
        let encoded = encode_entries(&entries);
        assert_eq!(decode_entries(&encoded).as_deref(), Some(&entries[..]));
        assert!(encoded.len() < 3 * 25);
        assert_eq!(decode_entries(&encoded[..encoded.len() - 1]), None);
        assert_eq!(decode_entries(&encode_entries(&[at(5), at(5)])), None, "twice the same");
        assert_eq!(decode_entries(&encode_entries(&[at(6), at(5)])), None, "descending");
        assert_eq!(decode_entries(&[0, 0, 7]), None, "there is no type 7");
        assert_eq!(decode_entries(&[1, 0, 0]), None, "nothing to share");
        assert_eq!(decode_entries(&[0]), None);
        assert_eq!(IndexEntry::parse(&[0, 0]), None);
        assert_eq!(IndexEntry::parse(&[]), None);
    }
}
