//! Errors of merging reports.

use crate::ReportError;
use retrie_pipeline::replay::PartSpec;

/// Why reports of parts cannot be merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A file is not a report.
    #[error(transparent)]
    Report(Box<ReportError>),
    /// There are no reports.
    #[error("there are no reports to merge")]
    Nothing,
    /// A report is not the report of a part.
    #[error(
        "{file} is not the report of a part: those that `retrie replay --part I/N --json FILE` writes \
         can be merged"
    )]
    NotAPart {
        /// The file.
        file: Box<str>,
    },
    /// Two reports belong to different replays.
    #[error("{file} does not belong to {other}: {what} is {here}, there {there}")]
    Foreign {
        /// The file.
        file: Box<str>,
        /// The file with which it was compared.
        other: Box<str>,
        /// What differs.
        what: Box<str>,
        /// The value in `file`.
        here: Box<str>,
        /// The value in `other`.
        there: Box<str>,
    },
    /// A report contradicts itself.
    #[error("{file} (part {part}) contradicts itself, so it was not written by a replay: {why}")]
    Contradiction {
        /// The file.
        file: Box<str>,
        /// The part.
        part: PartSpec,
        /// The contradiction.
        why: Box<str>,
    },
    /// Two reports of one part have different results.
    #[error(
        "part {part} was run twice, with other results for block {block} on {backend}: {what} is {here} \
         in {file}, {there} in {other}; run it again, and find out which machine is wrong"
    )]
    Differs {
        /// The part.
        part: PartSpec,
        /// The first block that differs.
        block: u64,
        /// Name of the backend.
        backend: Box<str>,
        /// What differs.
        what: &'static str,
        /// The second report.
        file: Box<str>,
        /// The value in `file`.
        here: Box<str>,
        /// The first report.
        other: Box<str>,
        /// The value in `other`.
        there: Box<str>,
    },
    /// The first block of a part does not have the last block of the part before as its parent.
    #[error(
        "block {block} of {file} on {backend} has the parent {parent}, but {other} ends with block {tip}: \
         they are parts of different chains"
    )]
    Unlinked {
        /// First block of the later part.
        block: u64,
        /// The report of the later part.
        file: Box<str>,
        /// Name of the backend.
        backend: Box<str>,
        /// Hash of the block before its first.
        parent: Box<str>,
        /// The report of the part before it.
        other: Box<str>,
        /// Hash of its last block.
        tip: Box<str>,
    },
    /// The bundles of all parts together are not the list that was cut into parts.
    #[error(
        "the bundles of all parts together are not those of the run: their digest is {got}, and should \
         be {expected}; parts {first} to {last} were not cut from one list"
    )]
    OtherBundles {
        /// First part.
        first: PartSpec,
        /// Last part.
        last: PartSpec,
        /// Digest of the replayed bundles.
        got: Box<str>,
        /// Digest of the list, as all parts state it.
        expected: Box<str>,
    },
}

impl From<ReportError> for MergeError {
    fn from(error: ReportError) -> Self {
        Self::Report(Box::new(error))
    }
}
