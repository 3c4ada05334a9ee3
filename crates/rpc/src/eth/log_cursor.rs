//! [`LogCursor`]: the place between two pages of `eth_getLogsWithCursor`.
//!
//! ```text
//!  version 1 | filter 16 | first 8 | last 8 | block number 8 | block hash 32 | next 4 | check 4
//! ```
//!
//! Numbers are big-endian. `filter` is a digest of the genesis block and the filter, `first` and
//! `last` are the range that the first page resolved from it. Logs of the block from index `next` on
//! are still to come. `check` is a digest of what is before it. The text is `0x` and hexadecimal.
//!
//! A cursor is no secret and has no signature, so that every node of the chain can continue it.
//! A client that makes one up can say no more with it than with `fromBlock`: block and number are looked
//! up, and the range has the same limits.

use crate::RpcError;
use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{B256, hex, keccak256};
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterSet};
use retrie_state::BlockRef;
use std::hash::Hash;

const VERSION: u8 = 1;
const CHECKED: usize = 1 + 16 + 8 + 8 + 8 + 32 + 4;
const LEN: usize = CHECKED + 4;

/// Why a cursor is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LogCursorError {
    /// It is not the text of a cursor.
    #[error("invalid cursor: it is not one that eth_getLogsWithCursor has given")]
    Malformed,
    /// Another version of this program has made it.
    #[error("invalid cursor: it has version {0}, and this node knows version {known}", known = VERSION)]
    Version(u8),
    /// It belongs to another filter or another chain.
    #[error(
        "invalid cursor: it was given for another filter or another chain; repeat the filter of the \
         first page"
    )]
    ForeignFilter,
    /// It names a block by a wrong number, or one outside the filter.
    #[error("invalid cursor: {0} is no block that a page of this filter can end at")]
    ForeignBlock(BlockRef),
    /// Its block was undone, and this node no longer knows the block.
    #[error(
        "block {0} of the cursor is not known: it was undone and forgotten, or this node does not \
         have it yet; repeat the query without a cursor"
    )]
    UnknownBlock(BlockRef),
}

impl From<LogCursorError> for RpcError {
    fn from(error: LogCursorError) -> Self {
        match error {
            LogCursorError::UnknownBlock(_) => Self::Rejected(error.to_string()),
            _ => Self::InvalidParams(error.to_string()),
        }
    }
}

/// What the pages of one query have in common: the chain and the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterDigest([u8; 16]);

impl FilterDigest {
    /// The digest of `filter` on the chain that begins with block `genesis`.
    pub(super) fn of(genesis: &B256, filter: &Filter) -> Self {
        let mut bytes = genesis.to_vec();
        match filter.block_option {
            FilterBlockOption::AtBlockHash(hash) => {
                bytes.push(0);
                bytes.extend_from_slice(hash.as_slice());
            }
            FilterBlockOption::Range { from_block, to_block } => {
                bytes.push(1);
                for tag in [from_block, to_block] {
                    put_tag(&mut bytes, tag.unwrap_or_default());
                }
            }
        }
        put_set(&mut bytes, &filter.address);
        for topic in &filter.topics {
            put_set(&mut bytes, topic);
        }
        let digest = keccak256(&bytes);
        Self(digest.first_chunk().copied().unwrap_or_default())
    }
}

fn put_tag(bytes: &mut Vec<u8>, tag: BlockNumberOrTag) {
    let (kind, number) = match tag {
        BlockNumberOrTag::Number(number) => (0, number),
        BlockNumberOrTag::Latest => (1, 0),
        BlockNumberOrTag::Earliest => (2, 0),
        BlockNumberOrTag::Safe => (3, 0),
        BlockNumberOrTag::Finalized => (4, 0),
        BlockNumberOrTag::Pending => (5, 0),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&number.to_be_bytes());
}

/// A set in an order that does not depend on how it was given.
fn put_set<T: AsRef<[u8]> + Ord + Eq + Hash>(bytes: &mut Vec<u8>, set: &FilterSet<T>) {
    let mut values: Vec<&T> = set.iter().collect();
    values.sort_unstable();
    bytes.extend_from_slice(&(values.len() as u64).to_be_bytes());
    values.iter().for_each(|value| bytes.extend_from_slice((*value).as_ref()));
}

/// The place where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogCursor {
    /// The filter.
    pub(super) filter: FilterDigest,
    /// First block of the range.
    pub(super) first: u64,
    /// Last block of the range.
    pub(super) last: u64,
    /// The last block that the page looked at.
    pub(super) block: BlockRef,
    /// Index in the block of the first log that was not given; [`ALL`](Self::ALL) if there is none.
    pub(super) next: u32,
}

impl LogCursor {
    /// The value of `next` behind a whole block.
    pub(super) const ALL: u32 = u32::MAX;

    /// The text of the cursor.
    pub(super) fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.filter.0);
        for number in [self.first, self.last, self.block.number] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(self.block.hash.as_slice());
        bytes.extend_from_slice(&self.next.to_be_bytes());
        let check = keccak256(&bytes);
        bytes.extend_from_slice(&check[..4]);
        hex::encode_prefixed(bytes)
    }

    /// Reads the text of a cursor that was given for `filter`.
    ///
    /// # Errors
    /// [`LogCursorError`], except [`LogCursorError::UnknownBlock`].
    pub(super) fn decode(text: &str, filter: FilterDigest) -> Result<Self, LogCursorError> {
        let cursor = Self::parse(text)?;
        if cursor.filter != filter {
            return Err(LogCursorError::ForeignFilter);
        }
        if cursor.first > cursor.last || cursor.block.number > cursor.last {
            return Err(LogCursorError::ForeignBlock(cursor.block));
        }
        Ok(cursor)
    }

    fn parse(text: &str) -> Result<Self, LogCursorError> {
        let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 2 * LEN);
        let digits = digits.ok_or(LogCursorError::Malformed)?;
        let mut bytes = [0; LEN];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| LogCursorError::Malformed)?;
        let (checked, check) =
            bytes.split_first_chunk::<CHECKED>().ok_or(LogCursorError::Malformed)?;
        if keccak256(checked)[..4] != *check {
            return Err(LogCursorError::Malformed);
        }
        let mut rest = &checked[..];
        let [version] = take::<1>(&mut rest)?;
        if version != VERSION {
            return Err(LogCursorError::Version(version));
        }
        let filter = FilterDigest(take(&mut rest)?);
        let mut number = || take(&mut rest).map(u64::from_be_bytes);
        let (first, last, block) = (number()?, number()?, number()?);
        let block = BlockRef::new(block, B256::from(take::<32>(&mut rest)?));
        Ok(Self { filter, first, last, block, next: u32::from_be_bytes(take(&mut rest)?) })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], LogCursorError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(LogCursorError::Malformed)?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    fn cursor() -> LogCursor {
        let filter = FilterDigest::of(&B256::repeat_byte(7), &Filter::default());
        let block = BlockRef::new(300, B256::repeat_byte(0xab));
        LogCursor { filter, first: 5, last: 1_000, block, next: 17 }
    }

    #[test]
    fn a_cursor_is_read_back_and_no_other_text_is() {
        let cursor = cursor();
        let text = cursor.encode();
        assert_eq!(text.len(), 2 + 2 * LEN);
        assert_eq!(LogCursor::decode(&text, cursor.filter), Ok(cursor));
        for (at, digit) in text.char_indices().skip(2) {
            let other = if digit == '0' { "1" } else { "0" };
            let mut wrong = text.clone();
            wrong.replace_range(at..=at, other);
            let refused = LogCursor::decode(&wrong, cursor.filter);
            assert_eq!(refused, Err(LogCursorError::Malformed), "digit {at}");
        }
        let (short, long) = (&text[..text.len() - 2], format!("{text}00"));
        for wrong in ["", "0x", "0xzz", &text[2..], short, &long, "🦀"] {
            assert_eq!(LogCursor::parse(wrong), Err(LogCursorError::Malformed), "{wrong}");
        }
    }

    #[test]
    fn a_cursor_belongs_to_one_filter_in_any_order_of_its_sets() {
        let genesis = B256::repeat_byte(7);
        let [a, b] = [1, 2].map(Address::repeat_byte);
        let of = |filter: &Filter| FilterDigest::of(&genesis, filter);
        let one = Filter::new().address(vec![a, b]);
        assert_eq!(of(&one), of(&Filter::new().address(vec![b, a])));
        let topic = B256::repeat_byte(3);
        let all = [
            of(&one),
            of(&Filter::new().address(a)),
            of(&Filter::new()),
            of(&Filter::new().event_signature(topic)),
            of(&Filter::new().topic1(topic)),
            of(&Filter::new().from_block(1u64)),
            of(&Filter::new().to_block(1u64)),
            of(&Filter::new().at_block_hash(topic)),
            FilterDigest::of(&topic, &Filter::new()),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        let cursor = cursor();
        let foreign = LogCursor::decode(&cursor.encode(), all[0]);
        assert_eq!(foreign, Err(LogCursorError::ForeignFilter));
    }

    #[test]
    fn a_cursor_beyond_its_range_is_refused() {
        let cursor = cursor();
        for wrong in [
            LogCursor { first: 2_000, ..cursor },
            LogCursor { block: BlockRef::new(1_001, B256::ZERO), ..cursor },
        ] {
            let refused = LogCursor::decode(&wrong.encode(), cursor.filter);
            assert_eq!(refused, Err(LogCursorError::ForeignBlock(wrong.block)));
        }
    }
}
