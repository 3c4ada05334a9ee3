//! [`StreamPosition`]: where a stream is, and what it needs to go on after a reorganisation.

use crate::{CursorTextError, StreamCursor};
use alloy_primitives::{B256, U64};
use retrie_state::BlockRef;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, str::FromStr};

/// The last blocks of a stream whose hashes its position has. It is far more than a reorganisation
/// undoes; a deeper one can be followed if the node still knows the blocks.
const RECENT: usize = 512;

/// The block that a new stream begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamStart {
    /// The block after the head.
    #[default]
    Latest,
    /// The first block that the node has.
    Earliest,
    /// The block of this number, or the first one that the node has above it.
    Number(u64),
}

impl FromStr for StreamStart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
            _ => text.parse(),
        };
        match (text, number) {
            ("latest", _) => Ok(Self::Latest),
            ("earliest", _) => Ok(Self::Earliest),
            (_, Ok(number)) => Ok(Self::Number(number)),
            _ => Err(format!("`{text}` is neither the number of a block nor latest or earliest")),
        }
    }
}

impl StreamStart {
    /// The number that it stands for while the head is block `head`.
    pub const fn number(self, head: u64) -> u64 {
        match self {
            Self::Latest => head.saturating_add(1),
            Self::Earliest => 0,
            Self::Number(number) => number,
        }
    }
}

/// Where a stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    from: u64,
    cursor: Option<StreamCursor>,
    /// The last blocks of the stream, the highest first.
    recent: VecDeque<BlockRef>,
}

/// How a reader names the position that it resumes from: a cursor, and if it has them blocks of the
/// stream below, the highest first, without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeRequest {
    /// The text of a [`StreamCursor`].
    pub cursor: String,
    /// Numbers and hashes.
    #[serde(default)]
    pub recent: Vec<(U64, B256)>,
}

impl StreamPosition {
    /// Before block `from`, which need not exist yet.
    pub const fn start(from: u64) -> Self {
        Self { from, cursor: None, recent: VecDeque::new() }
    }

    /// The position that a reader names.
    ///
    /// # Errors
    /// [`CursorTextError`] if its cursor is none.
    pub fn resume(request: &ResumeRequest) -> Result<Self, CursorTextError> {
        let cursor: StreamCursor = request.cursor.parse()?;
        let mut position = Self::start(cursor.block.number);
        let recent = request.recent.iter().take(RECENT);
        let recent = recent.map(|(number, hash)| BlockRef::new(number.to(), *hash));
        position.recent = recent.collect();
        position.advance(cursor);
        Ok(position)
    }

    /// This position in the form of a request; `None` before the first record.
    pub fn to_request(&self) -> Option<ResumeRequest> {
        let cursor = self.cursor?.to_string();
        let recent = self.recent.iter().map(|block| (U64::from(block.number), block.hash));
        Some(ResumeRequest { cursor, recent: recent.collect() })
    }

    /// The number of the block that the stream began with.
    pub const fn first(&self) -> u64 {
        self.from
    }

    /// The cursor of the last record; `None` before the first one.
    pub const fn cursor(&self) -> Option<StreamCursor> {
        self.cursor
    }

    /// The number of the next record.
    pub const fn next_sequence(&self) -> u64 {
        match self.cursor {
            Some(cursor) => cursor.sequence.saturating_add(1),
            None => 1,
        }
    }

    /// Moves behind the record of `cursor`.
    pub fn advance(&mut self, cursor: StreamCursor) {
        let number = cursor.block.number;
        while self.recent.front().is_some_and(|block| block.number >= number) {
            self.recent.pop_front();
        }
        // Without a gap, so that a revert names every block.
        if self.recent.front().is_some_and(|block| block.number.saturating_add(1) != number) {
            self.recent.clear();
        }
        self.recent.push_front(cursor.block);
        self.recent.truncate(RECENT);
        self.cursor = Some(cursor);
    }

    /// The blocks of the stream from block `from` downwards, as far as the position has them; empty if
    /// `from` is none of them.
    pub(crate) fn downwards(&self, from: BlockRef) -> impl Iterator<Item = BlockRef> {
        let at = self.recent.iter().position(|block| *block == from);
        let blocks = self.recent.iter().skip(at.unwrap_or(usize::MAX)).copied();
        let mut expected = from.number;
        blocks.take_while(move |block| {
            let is_next = block.number == expected;
            expected = expected.saturating_sub(1);
            is_next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordKind;

    fn block(number: u64, branch: u8) -> BlockRef {
        BlockRef::new(number, B256::with_last_byte(branch))
    }

    fn cursor(sequence: u64, block: BlockRef, kind: RecordKind) -> StreamCursor {
        StreamCursor { sequence, block, kind }
    }

    #[test]
    fn a_position_has_the_last_blocks_of_its_stream() {
        let mut position = StreamPosition::start(10);
        assert_eq!((position.next_sequence(), position.to_request()), (1, None));
        for number in 10..10 + 2 * RECENT as u64 {
            position.advance(cursor(2 * number, block(number, 1), RecordKind::Block));
            position.advance(cursor(2 * number + 1, block(number, 1), RecordKind::Delta));
        }
        let last = 9 + 2 * RECENT as u64;
        assert_eq!(position.recent.len(), RECENT);
        assert_eq!(position.downwards(block(last, 1)).count(), RECENT);
        assert_eq!(position.downwards(block(last - 3, 1)).count(), RECENT - 3);
        assert_eq!(position.downwards(block(last, 2)).count(), 0);

        position.advance(cursor(5_000, block(last - 4, 1), RecordKind::Revert));
        position.advance(cursor(5_001, block(last - 3, 2), RecordKind::Block));
        let blocks: Vec<_> = position.downwards(block(last - 3, 2)).take(2).collect();
        assert_eq!(blocks, [block(last - 3, 2), block(last - 4, 1)]);
        assert_eq!(position.next_sequence(), 5_002);

        let again = StreamPosition::resume(&position.to_request().unwrap()).unwrap();
        assert_eq!((again.cursor, &again.recent), (position.cursor, &position.recent));
    }

    #[test]
    fn blocks_of_a_request_with_gaps_are_not_believed_below_the_gap() {
        let top = cursor(7, block(20, 1), RecordKind::Delta);
        let recent = |blocks: &[BlockRef]| ResumeRequest {
            cursor: top.to_string(),
            recent: blocks.iter().map(|block| (U64::from(block.number), block.hash)).collect(),
        };
        let down = |request: &ResumeRequest| {
            StreamPosition::resume(request).unwrap().downwards(block(20, 1)).count()
        };
        assert_eq!(down(&recent(&[])), 1);
        assert_eq!(down(&recent(&[block(20, 1), block(19, 1), block(18, 1)])), 3);
        assert_eq!(down(&recent(&[block(19, 1), block(17, 1)])), 2);
        assert_eq!(down(&recent(&[block(17, 1), block(16, 1)])), 1);
        assert_eq!(down(&recent(&[block(25, 1), block(19, 1), block(19, 2)])), 2);
        let nonsense = ResumeRequest { cursor: "20".into(), ..ResumeRequest::default() };
        assert!(StreamPosition::resume(&nonsense).is_err());
    }

    #[test]
    fn a_start_is_a_number_or_a_tag() {
        for (text, start) in [
            ("latest", Ok(StreamStart::Latest)),
            ("earliest", Ok(StreamStart::Earliest)),
            ("12", Ok(StreamStart::Number(12))),
            ("0xc", Ok(StreamStart::Number(12))),
            ("-1", Err(())),
            ("0x", Err(())),
            ("head", Err(())),
        ] {
            assert_eq!(text.parse::<StreamStart>().map_err(drop), start, "{text}");
        }
        assert_eq!(StreamStart::Latest.number(7), 8);
    }
}
