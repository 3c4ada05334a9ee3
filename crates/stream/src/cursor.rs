//! [`StreamCursor`]: the place behind a record of a stream.

use alloy_primitives::B256;
use retrie_state::BlockRef;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// The kind of a record. The records of a block come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A block: header, transactions, withdrawals.
    Block,
    /// The receipts of a block.
    Receipts,
    /// What a block changed in the state.
    Delta,
    /// Blocks that are no longer canonical.
    Revert,
}

impl RecordKind {
    const ALL: [Self; 4] = [Self::Block, Self::Receipts, Self::Delta, Self::Revert];

    /// Its name in cursors, in records and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Receipts => "receipts",
            Self::Delta => "delta",
            Self::Revert => "revert",
        }
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RecordKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("`{name}` is none of block, receipts, delta"))
    }
}

/// The kinds of records that a stream has for each block, at least one. Reverts always come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSelection {
    block: bool,
    receipts: bool,
    delta: bool,
}

impl Default for RecordSelection {
    fn default() -> Self {
        Self { block: true, receipts: true, delta: true }
    }
}

impl RecordSelection {
    /// These kinds; all of them if none is named but reverts.
    pub fn new(kinds: &[RecordKind]) -> Self {
        let has = |kind| kinds.contains(&kind);
        let [block, receipts, delta] =
            [RecordKind::Block, RecordKind::Receipts, RecordKind::Delta].map(has);
        if block || receipts || delta { Self { block, receipts, delta } } else { Self::default() }
    }

    const fn has(self, kind: RecordKind) -> bool {
        match kind {
            RecordKind::Block => self.block,
            RecordKind::Receipts => self.receipts,
            RecordKind::Delta => self.delta,
            RecordKind::Revert => false,
        }
    }

    /// The kind of the first record of a block.
    pub(crate) fn first(self) -> RecordKind {
        RecordKind::ALL.into_iter().find(|kind| self.has(*kind)).unwrap_or(RecordKind::Block)
    }

    /// The kind of the record of a block that follows `kind`; `None` after the last one.
    pub(crate) fn after(self, kind: RecordKind) -> Option<RecordKind> {
        RecordKind::ALL.into_iter().find(|next| *next > kind && self.has(*next))
    }
}

/// The place behind a record. Its text is `SEQUENCE-NUMBER-HASH-KIND`, e.g. `7-2-0x1f..9a-delta`; to
/// users it has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCursor {
    /// Number of the record in its stream, from 1 on, without gaps.
    pub sequence: u64,
    /// The block of the record; of a revert the block that is the last one now.
    pub block: BlockRef,
    /// The kind of the record.
    pub kind: RecordKind,
}

impl fmt::Display for StreamCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, block, kind } = self;
        write!(f, "{sequence}-{}-{}-{kind}", block.number, block.hash)
    }
}

/// A text is not the cursor of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the cursor of a stream")]
pub struct CursorTextError {
    /// The text, shortened.
    pub text: String,
}

impl FromStr for StreamCursor {
    type Err = CursorTextError;

    fn from_str(text: &str) -> Result<Self, CursorTextError> {
        let cursor = parse(text).filter(|cursor| cursor.to_string() == text);
        cursor.ok_or_else(|| CursorTextError { text: text.chars().take(120).collect() })
    }
}

fn parse(text: &str) -> Option<StreamCursor> {
    let mut parts = text.splitn(4, '-');
    let mut part = || parts.next();
    let (sequence, number, hash, kind) = (part()?, part()?, part()?, part()?);
    let hash: B256 = hash.parse().ok()?;
    Some(StreamCursor {
        sequence: sequence.parse().ok()?,
        block: BlockRef::new(number.parse().ok()?, hash),
        kind: kind.parse().ok()?,
    })
}

impl Serialize for StreamCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_its_text_and_no_other_text_is_one() {
        let block = BlockRef::new(12, B256::repeat_byte(0xa9));
        let cursor = StreamCursor { sequence: 40, block, kind: RecordKind::Delta };
        let text = cursor.to_string();
        assert_eq!(text, format!("40-12-0x{}-delta", "a9".repeat(32)));
        assert_eq!(text.parse(), Ok(cursor));
        let hash = B256::repeat_byte(0xa9);
        for wrong in [
            String::new(),
            "40".into(),
            format!("40-12-{hash}"),
            format!("40-12-{hash}-delta-"),
            format!("040-12-{hash}-delta"),
            format!("+40-12-{hash}-delta"),
            format!("40-0xc-{hash}-delta"),
            format!("40-99999999999999999999-{hash}-delta"),
            format!("40-12-{}-delta", "a9".repeat(32)),
            format!("40-12-{hash}-deltas"),
            text.to_uppercase(),
            "9".repeat(100_000),
        ] {
            let refused = wrong.parse::<StreamCursor>().unwrap_err();
            assert!(refused.text.len() <= 120, "{refused}");
        }
    }

    #[test]
    fn the_records_of_a_block_have_one_order() {
        use RecordKind::{Block, Delta, Receipts, Revert};
        let order = |kinds: &[RecordKind]| {
            let kinds = RecordSelection::new(kinds);
            std::iter::successors(Some(kinds.first()), |kind| kinds.after(*kind))
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&[]), [Block, Receipts, Delta]);
        assert_eq!(order(&[Delta, Block]), [Block, Delta]);
        assert_eq!(order(&[Receipts]), [Receipts]);
        assert_eq!(order(&[Revert]), [Block, Receipts, Delta]);
        assert_eq!(RecordSelection::default().after(Revert), None);
    }
}
