//! Rules of ommers (uncles), yellow paper section 11.1.
//!
//! An ommer is a valid block off the chain: its parent is an ancestor of the including block, two
//! to seven generations back, but it is no ancestor itself. A block may include two ommers, and
//! only ommers that none of its ancestors includes.

use std::fmt::Display;

use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, SealedBlock, SealedHeader},
};

use crate::{ConsensusError, validate_header, validate_header_against_parent};

/// Largest number of ommers of a block.
pub const MAX_OMMERS: usize = 2;

/// How many generations of ancestors are searched for the parent of an ommer.
const OMMER_GENERATIONS: usize = 7;

/// Gives the headers and ommers of ancestors.
pub trait HeaderProvider {
    /// Why reading failed.
    type Error: Display;

    /// The header with this hash, on any branch, and the ommers its block includes; `None` if the
    /// block is unknown.
    ///
    /// # Errors
    /// Only if reading failed.
    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, Self::Error>;
}

impl<P: HeaderProvider + ?Sized> HeaderProvider for &P {
    type Error = P::Error;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, Self::Error> {
        (**self).header_and_ommers(hash)
    }
}

/// Checks the ommers of a block, whose header and ancestors must be valid.
///
/// Reads up to seven ancestors, and none for a block without ommers.
///
/// # Errors
/// [`ConsensusError`] naming the ommer and the broken rule; [`ConsensusError::UnknownAncestor`]
/// and [`ConsensusError::AncestorLookup`] say nothing about the block.
pub fn validate_ommers(
    spec: &ChainSpec,
    block: &SealedBlock,
    ancestors: impl HeaderProvider,
) -> Result<(), ConsensusError> {
    let ommers = &block.body().ommers;
    if ommers.is_empty() {
        return Ok(());
    }
    if spec.is_pos(block.header()) {
        return Err(ConsensusError::OmmersAfterMerge { got: block.ommers_hash });
    }
    if ommers.len() > MAX_OMMERS {
        return Err(ConsensusError::TooManyOmmers { got: ommers.len(), max: MAX_OMMERS });
    }
    let family = OmmerAncestors::read(block, &ancestors)?;
    let ommers: Vec<_> = ommers.iter().cloned().map(SealedHeader::seal_slow).collect();
    for (index, ommer) in ommers.iter().enumerate() {
        let hash = ommer.hash();
        if ommers[..index].iter().any(|earlier| earlier.hash() == hash) {
            return Err(ConsensusError::DuplicateOmmer { hash });
        }
        validate_ommer(spec, block, &family, ommer)?;
    }
    Ok(())
}

fn validate_ommer(
    spec: &ChainSpec,
    block: &SealedBlock,
    family: &OmmerAncestors,
    ommer: &SealedHeader,
) -> Result<(), ConsensusError> {
    let hash = ommer.hash();
    if let Some((_, included_by)) = family.ommers.iter().find(|(ommer, _)| *ommer == hash) {
        return Err(ConsensusError::OmmerAlreadyIncluded { hash, included_by: *included_by });
    }
    if hash == block.hash() || family.ancestors.iter().any(|ancestor| ancestor.hash() == hash) {
        return Err(ConsensusError::OmmerIsAncestor { hash });
    }
    // A child of the block's own parent is a sibling and not an ommer, so the search skips the
    // parent.
    let parent =
        family.ancestors.iter().skip(1).find(|ancestor| ancestor.hash() == ommer.parent_hash);
    let Some(parent) = parent else {
        return Err(ConsensusError::OmmerWithoutAncestor { hash, parent: ommer.parent_hash });
    };
    let invalid = |error| ConsensusError::InvalidOmmer { hash, error: Box::new(error) };
    if spec.is_pos(ommer) {
        // Zero difficulty would otherwise pass where the merge block is unknown.
        let expected = crate::next_difficulty(spec, parent, ommer.timestamp);
        return Err(invalid(ConsensusError::Difficulty { got: ommer.difficulty, expected }));
    }
    validate_header(spec, ommer).map_err(invalid)?;
    validate_header_against_parent(spec, ommer, parent).map_err(invalid)
}

/// The last ancestors of a block, youngest first, and the ommers they include.
struct OmmerAncestors {
    ancestors: Vec<SealedHeader>,
    /// Hash of each ommer, and hash of the ancestor that includes it.
    ommers: Vec<(B256, B256)>,
}

impl OmmerAncestors {
    fn read(block: &SealedBlock, provider: &impl HeaderProvider) -> Result<Self, ConsensusError> {
        let mut family =
            Self { ancestors: Vec::with_capacity(OMMER_GENERATIONS), ommers: Vec::new() };
        let mut hash = block.parent_hash;
        let mut number = block.number;
        while number > 0 && family.ancestors.len() < OMMER_GENERATIONS {
            let found = provider.header_and_ommers(hash).map_err(|error| {
                ConsensusError::AncestorLookup { hash, reason: error.to_string() }
            })?;
            let (header, ommers) = found.ok_or(ConsensusError::UnknownAncestor { hash })?;
            family.ommers.extend(ommers.iter().map(|ommer| (ommer.hash_slow(), hash)));
            (hash, number) = (header.parent_hash, header.number);
            family.ancestors.push(header);
        }
        Ok(family)
    }
}
