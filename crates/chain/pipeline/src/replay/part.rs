//! Parts of a replay: the inputs are cut into contiguous pieces, for several processes or machines.
//!
//! ```text
//!  inputs, sorted:   b b b b b b b b b b        blocks FROM..TO
//!  parts of 4:      |1/4 |  2/4 | 3/4|  4/4 |   |  1/4  |  2/4  |  3/4  |  4/4  |
//! ```
//!
//! A cut depends only on the inputs and the two numbers of the part, so a part has the same blocks
//! on every machine. Parts follow each other without gaps or overlaps, and their sizes differ by at
//! most one. If there are more parts than inputs, some parts are empty.

use alloy_primitives::{B256, Keccak256};
use retrie_sources::BundleFile;
use serde::{Deserialize, Serialize};
use std::{
    fmt::{Display, Formatter},
    ops::{Range, RangeInclusive},
    str::FromStr,
};

/// Why a text is not a part, or not a range of blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The text is not two numbers.
    #[error("`{text}` is not a part such as 3/8: the third of eight")]
    Text {
        /// What was given.
        text: String,
    },
    /// The part's number is 0 or above the number of parts.
    #[error(
        "there is no part {index}/{count}: parts are numbered from 1/{count} to {count}/{count}"
    )]
    None {
        /// Its number.
        index: u32,
        /// Number of parts.
        count: u32,
    },
    /// The number of parts is 0.
    #[error("inputs cannot be cut into 0 parts")]
    Zero,
    /// The text is not two block numbers.
    #[error("`{text}` is not a range of blocks such as 100..199: the first one and the last")]
    Blocks {
        /// What was given.
        text: String,
    },
    /// The first block is above the last.
    #[error("blocks {from}..{to} are none: the first one is above the last")]
    Backwards {
        /// The first block.
        from: u64,
        /// The last one.
        to: u64,
    },
}

/// A part of a replay, written `I/N`: the `I`th of `N`, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartSpec {
    index: u32,
    count: u32,
}

impl PartSpec {
    /// Part `index` of `count`.
    ///
    /// # Errors
    /// If there is no such part.
    pub const fn new(index: u32, count: u32) -> Result<Self, PartError> {
        match (index, count) {
            (_, 0) => Err(PartError::Zero),
            (index, count) if index == 0 || index > count => Err(PartError::None { index, count }),
            _ => Ok(Self { index, count }),
        }
    }

    /// All parts of `count`, in order.
    pub fn all(count: u32) -> impl DoubleEndedIterator<Item = Self> {
        (1..=count).map(move |index| Self { index, count })
    }

    /// Its number, from 1.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Number of parts.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Whether the part begins with the first input.
    pub const fn is_first(self) -> bool {
        self.index == 1
    }

    /// The part's share of `len` inputs, as positions. `len` is at most 2^64, the number of block
    /// numbers.
    pub const fn share(self, len: u128) -> Range<u128> {
        let (index, count) = (self.index as u128, self.count as u128);
        (len * (index - 1) / count)..(len * index / count)
    }

    /// The part's share of a list.
    pub fn of_list<T>(self, list: &[T]) -> &[T] {
        let Range { start, end } = self.share(list.len() as u128);
        // Both are at most the length of the list.
        &list[start as usize..end as usize]
    }

    /// The part's share of a range of blocks, both ends included; `None` if it is empty.
    pub fn of_blocks(self, blocks: &RangeInclusive<u64>) -> Option<RangeInclusive<u64>> {
        if blocks.is_empty() {
            return None;
        }
        let first = u128::from(*blocks.start());
        let Range { start, end } = self.share(u128::from(*blocks.end()) - first + 1);
        // Both are positions within the range, so they fit 64 bits.
        (start < end).then(|| (first + start) as u64..=(first + end - 1) as u64)
    }
}

impl FromStr for PartSpec {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let wrong = || PartError::Text { text: text.into() };
        let (index, count) = text.split_once('/').ok_or_else(wrong)?;
        let number = |digits: &str| decimal(digits)?.try_into().ok();
        Self::new(number(index).ok_or_else(wrong)?, number(count).ok_or_else(wrong)?)
    }
}

impl Display for PartSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl TryFrom<String> for PartSpec {
    type Error = PartError;

    fn try_from(text: String) -> Result<Self, PartError> {
        text.parse()
    }
}

impl From<PartSpec> for String {
    fn from(part: PartSpec) -> Self {
        part.to_string()
    }
}

/// Reads `FROM..TO` or `FROM..=TO`. Both ends are included.
///
/// # Errors
/// If the text is not a range, or the range is empty.
pub fn parse_blocks(text: &str) -> Result<RangeInclusive<u64>, PartError> {
    let wrong = || PartError::Blocks { text: text.into() };
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let to = to.strip_prefix('=').unwrap_or(to);
    let (from, to) = (decimal(from).ok_or_else(wrong)?, decimal(to).ok_or_else(wrong)?);
    if from > to { Err(PartError::Backwards { from, to }) } else { Ok(from..=to) }
}

/// Digits only: `parse` would accept a sign.
fn decimal(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A bundle, named in the same way on all machines, in whatever folder they keep it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedBundle {
    /// Number of its block.
    pub number: u64,
    /// Its path below the folder that all bundles of the run have in common.
    pub file: String,
}

impl NamedBundle {
    /// The names of the bundles of a run, in the given order.
    pub fn all(bundles: &[BundleFile]) -> Vec<Self> {
        let text = |bundle: &BundleFile| bundle.path.display().to_string();
        let common = bundles.iter().map(text).reduce(|a, b| {
            let alike = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            // Cut at a character boundary: two characters may differ only in their second byte.
            (0..=alike).rev().find_map(|end| a.get(..end)).unwrap_or_default().to_owned()
        });
        let folder = common.and_then(|path| Some(path.rfind('/')? + 1)).unwrap_or(0);
        let named = |bundle: &BundleFile| {
            let path = text(bundle);
            let file = path.get(folder..).unwrap_or(&path).to_owned();
            Self { number: bundle.number, file }
        };
        bundles.iter().map(named).collect()
    }

    /// Digest of a list of bundles: keccak-256 over, for each bundle, its number (8 bytes, big
    /// endian), the length of its name (8 bytes, big endian) and its name.
    pub fn digest<'a>(bundles: impl IntoIterator<Item = &'a Self>) -> B256 {
        let mut hasher = Keccak256::new();
        for Self { number, file } in bundles {
            hasher.update(number.to_be_bytes());
            hasher.update((file.len() as u64).to_be_bytes());
            hasher.update(file);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> PartSpec {
        text.parse().unwrap()
    }

    #[test]
    fn parts_of_a_list_follow_on_each_other_and_are_even() {
        for len in [0, 1, 2, 5, 68, 1000] {
            let list: Vec<_> = (0..len).collect();
            for count in [1, 2, 3, 7, 68, 69, 1001] {
                let parts: Vec<_> = PartSpec::all(count).map(|part| part.of_list(&list)).collect();
                assert_eq!(parts.concat(), list, "{len} in {count}");
                let sizes = || parts.iter().map(|part| part.len());
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1, "{len} in {count}");
            }
        }
    }

    #[test]
    fn parts_of_blocks_have_no_gaps_and_no_overlaps_up_to_the_last_number() {
        let last = u64::MAX;
        for blocks in [0..=last, 0..=0, last..=last, last - 5..=last, 7..=20_999, 1..=last] {
            for count in [1, 2, 3, 8, 21_000, 65_537] {
                let mut next = u128::from(*blocks.start());
                let mut sizes = Vec::new();
                for part in PartSpec::all(count) {
                    let Some(blocks) = part.of_blocks(&blocks) else {
                        sizes.push(0);
                        continue;
                    };
                    let (first, last) = (u128::from(*blocks.start()), u128::from(*blocks.end()));
                    assert_eq!(first, next);
                    sizes.push(last - first + 1);
                    next = last + 1;
                }
                assert_eq!(next, u128::from(*blocks.end()) + 1, "{blocks:?} in {count}");
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
        assert_eq!(part("1/1").of_blocks(&(0..=last)), Some(0..=last));
        assert_eq!(part("2/2").of_blocks(&(0..=last)), Some((last / 2 + 1)..=last));
        #[allow(clippy::reversed_empty_ranges)]
        let none = 5..=4;
        assert_eq!(part("1/1").of_blocks(&none), None);
        assert_eq!(part("4294967295/4294967295").of_blocks(&(0..=last)).unwrap().end(), &last);
    }

    #[test]
    fn parts_are_read_as_they_are_written() {
        for text in ["1/1", "3/8", "4294967295/4294967295"] {
            assert_eq!(part(text).to_string(), text);
            let json = format!("\"{text}\"");
            assert_eq!(serde_json::to_string(&part(text)).unwrap(), json);
            assert_eq!(serde_json::from_str::<PartSpec>(&json).unwrap(), part(text));
        }
        for wrong in ["", "/", "1", "1/", "/1", "+1/2", "1/2/3", "-1/2", "1/4294967296", "a/b"] {
            assert!(matches!(wrong.parse::<PartSpec>(), Err(PartError::Text { .. })), "{wrong}");
        }
        assert_eq!("0/4".parse::<PartSpec>(), Err(PartError::None { index: 0, count: 4 }));
        assert_eq!("5/4".parse::<PartSpec>(), Err(PartError::None { index: 5, count: 4 }));
        assert_eq!("1/0".parse::<PartSpec>(), Err(PartError::Zero));
        assert!(serde_json::from_str::<PartSpec>("\"5/4\"").is_err());
    }

    #[test]
    fn blocks_include_both_ends() {
        assert_eq!(parse_blocks("100..199"), Ok(100..=199));
        assert_eq!(parse_blocks("100..=199"), Ok(100..=199));
        assert_eq!(parse_blocks("0..18446744073709551615"), Ok(0..=u64::MAX));
        assert_eq!(parse_blocks("7..7"), Ok(7..=7));
        assert_eq!(parse_blocks("8..7"), Err(PartError::Backwards { from: 8, to: 7 }));
        for wrong in ["", "7", "..", "7..", "..7", "1..2..3", "+1..2", "1..18446744073709551616"] {
            assert!(matches!(parse_blocks(wrong), Err(PartError::Blocks { .. })), "{wrong}");
        }
    }

    #[test]
    fn bundles_are_named_below_the_folder_they_share() {
        let bundle =
            |(number, path): &(u64, &str)| BundleFile { number: *number, path: path.into() };
        let names = |files: &[(u64, &str)]| {
            let files: Vec<_> = files.iter().map(bundle).collect();
            NamedBundle::all(&files).into_iter().map(|named| named.file).collect::<Vec<_>>()
        };
        let two = [(1, "/a/data/witness/1.json.gz"), (2, "/a/data/prestate/2.json.gz")];
        assert_eq!(names(&two), ["witness/1.json.gz", "prestate/2.json.gz"]);
        assert_eq!(names(&[(1, "/b/witness/1.json.gz")]), ["1.json.gz"]);
        assert_eq!(names(&[(1, "12.json"), (2, "13.json")]), ["12.json", "13.json"]);
        assert_eq!(names(&[(1, "x/é.json"), (2, "x/è.json")]), ["é.json", "è.json"]);
        assert_eq!(names(&[(1, "a/1.json"), (1, "a/1.json")]), ["1.json", "1.json"]);
        assert!(names(&[]).is_empty());
    }

    #[test]
    fn digest_depends_on_numbers_names_and_order() {
        let named = |number, file: &str| NamedBundle { number, file: file.into() };
        let digests = [
            vec![],
            vec![named(1, "a"), named(2, "b")],
            vec![named(2, "b"), named(1, "a")],
            vec![named(1, "a")],
            vec![named(1, "b"), named(2, "a")],
            vec![named(1, "a"), named(2, "b"), named(2, "b")],
        ]
        .map(|list| NamedBundle::digest(&list));
        for (place, digest) in digests.iter().enumerate() {
            assert!(!digests[..place].contains(digest));
        }
    }
}
