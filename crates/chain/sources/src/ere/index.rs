//! The index of an ere file: where each component of each block is.

use crate::{
    e2store::{ENTRY_HEADER, EntryReader, MAX_BLOCKS, entry_type},
    error::{SourceError, SourceErrorKind},
};

/// A part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum EreComponent {
    Header,
    Body,
    Receipts,
    TotalDifficulty,
    Proof,
}

impl EreComponent {
    /// All parts, in the order of the index.
    pub(super) const ALL: [Self; 5] =
        [Self::Header, Self::Body, Self::Receipts, Self::TotalDifficulty, Self::Proof];

    pub(super) const fn entry_type(self) -> u16 {
        match self {
            Self::Header => entry_type::HEADER,
            Self::Body => entry_type::BODY,
            Self::Receipts => entry_type::SLIM_RECEIPTS,
            Self::TotalDifficulty => entry_type::TOTAL_DIFFICULTY,
            Self::Proof => entry_type::PROOF,
        }
    }

    pub(super) const fn what(self) -> &'static str {
        match self {
            Self::Header => "block header",
            Self::Body => "block body",
            Self::Receipts => "receipts",
            Self::TotalDifficulty => "total difficulty",
            Self::Proof => "header proof",
        }
    }

    fn of_entry(kind: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.entry_type() == kind)
    }
}

/// The index, as it is stored.
#[derive(Debug)]
pub(super) struct EreIndex {
    /// Number of the first block.
    pub(super) start: u64,
    /// Number of blocks, 1 to 8192.
    pub(super) count: usize,
    /// Components of each block, 2 to 5.
    components: usize,
    /// File offsets of the components of the first block, of the second, ..
    offsets: Vec<u64>,
    /// File offset of the index.
    pub(super) offset: u64,
}

impl EreIndex {
    /// Reads the index from the end of the file, whose last numbers are those of components and of
    /// blocks.
    pub(super) fn read(entries: &mut EntryReader) -> Result<Self, SourceError> {
        let (components, count) = match entries.last_words::<2>()? {
            Some([components, count])
                if (2..=5).contains(&components) && (1..=MAX_BLOCKS).contains(&count) =>
            {
                (components, count)
            }
            _ => return Err(entries.no_index()),
        };
        let data_len = 8 + 8 * components * count + 16;
        let (offset, words) = entries.read_index(entry_type::DYNAMIC_BLOCK_INDEX, data_len)?;
        let mut words = words.into_iter();
        let start = words.next().unwrap_or_default();
        if start.checked_add(count).is_none() {
            let kind = SourceErrorKind::Format("the first block number overflows");
            return Err(entries.error_at(offset, None, kind));
        }
        // Offsets are signed and relative to the index; a wrapping addition is two's complement.
        let offsets = words.take((components * count) as usize);
        let offsets = offsets.map(|relative| offset.wrapping_add(relative)).collect();
        let (components, count) = (components as usize, count as usize);
        Ok(Self { start, count, components, offsets, offset })
    }

    /// Offset of the component in `slot` of the block at `position` of the file.
    fn at(&self, position: usize, slot: usize) -> Option<u64> {
        self.offsets.get(position * self.components + slot).copied()
    }
}

/// Entries of one component: they follow each other without gaps.
#[derive(Clone, Copy, Debug)]
struct EreSection {
    slot: usize,
    /// Offset of the first entry of the section behind it; `None` for the last section.
    end: Option<u64>,
}

/// Which components a file has, and where.
#[derive(Debug)]
pub(super) struct EreLayout {
    index: EreIndex,
    /// By the number of the component.
    sections: [Option<EreSection>; 5],
}

impl EreLayout {
    /// Finds out which component each slot of the index has, by the types of the first block's entries,
    /// and checks that the sections lie one behind the other, from the first byte on.
    pub(super) fn read(index: EreIndex, entries: &mut EntryReader) -> Result<Self, SourceError> {
        let fail = |entries: &EntryReader, what| {
            entries.error_at(index.offset, None, SourceErrorKind::Format(what))
        };
        let mut starts: Vec<(u64, usize)> =
            (0..index.components).filter_map(|slot| Some((index.at(0, slot)?, slot))).collect();
        starts.sort_unstable();
        if starts.first().map(|(start, _)| *start) != Some(ENTRY_HEADER) {
            return Err(fail(entries, "the index does not begin with the first entry of the file"));
        }
        for position in 0..index.count {
            for (at, (_, slot)) in starts.iter().enumerate() {
                let end = match position + 1 < index.count {
                    true => index.at(position + 1, *slot),
                    false => starts.get(at + 1).map(|(start, _)| *start),
                };
                if index.at(position, *slot) >= Some(end.unwrap_or(index.offset)) {
                    return Err(fail(
                        entries,
                        "the offsets in the index are not in order: damaged",
                    ));
                }
            }
        }
        let mut sections: [Option<EreSection>; 5] = [None; 5];
        for (at, (start, slot)) in starts.iter().enumerate() {
            let component = EreComponent::of_entry(entries.kind_at(*start)?);
            let end = starts.get(at + 1).map(|(start, _)| *start);
            let place = component.and_then(|component| sections.get_mut(component as usize));
            match (component, place) {
                (Some(_), Some(place)) if place.is_none() => {
                    *place = Some(EreSection { slot: *slot, end });
                }
                _ => return Err(fail(entries, "the index has an unknown component, or one twice")),
            }
        }
        let slot = |component: EreComponent| {
            sections.get(component as usize).copied().flatten().map(|section| section.slot)
        };
        if (slot(EreComponent::Header), slot(EreComponent::Body)) != (Some(0), Some(1)) {
            return Err(fail(entries, "the index does not begin with headers and bodies"));
        }
        Ok(Self { index, sections })
    }

    pub(super) const fn index(&self) -> &EreIndex {
        &self.index
    }

    pub(super) fn has(&self, component: EreComponent) -> bool {
        self.section(component).is_some()
    }

    fn section(&self, component: EreComponent) -> Option<EreSection> {
        self.sections.get(component as usize).copied().flatten()
    }

    /// Where the component of the block at `position` begins, and where it must end: for the last
    /// entry of the last section that is not known. `None` if the file does not have the component.
    pub(super) fn place(
        &self,
        component: EreComponent,
        position: usize,
    ) -> Option<(u64, Option<u64>)> {
        let section = self.section(component)?;
        let next = match position + 1 < self.index.count {
            true => self.index.at(position + 1, section.slot),
            false => section.end,
        };
        Some((self.index.at(position, section.slot)?, next))
    }
}
