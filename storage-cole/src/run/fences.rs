//! Fence keys: the first key of each value page, in a file of its own, as an index without models.
//!
//! A page is the number of its fences (2 bytes) and the fences: key and number of the page that
//! begins with it. The bottom layer leads to value pages. Each further layer has the first fence of
//! each page of the layer below, up to a layer of one page: a static B+-tree.

use super::{
    build::PauseCheck,
    file::{PAYLOAD, PageWriter, PagedFile},
    model::{self, NUMBER},
    values::{DESCRIPTION, ValueFile},
};
use retrie_state::StateError;
use std::path::Path;

/// Bytes of a fence.
const FENCE: usize = NUMBER + 5;
/// Most fences in a page.
const FENCES: usize = (PAYLOAD - 2) / FENCE;

/// The fence keys of a run.
#[derive(Debug)]
pub(super) struct FenceFile {
    pub(super) file: PagedFile,
    /// The number of the page after each layer, from the bottom up.
    ends: Vec<u64>,
}

impl FenceFile {
    /// Reads the first keys of the value pages, and writes the fences to a file of `dir` that has
    /// no name afterwards.
    pub(super) fn build(
        dir: &Path,
        values: &ValueFile,
        pause: PauseCheck<'_>,
    ) -> Result<Self, StateError> {
        let mut out = FenceWriter { out: PageWriter::new(dir, "fences")?, page: Vec::new() };
        let mut number = DESCRIPTION + 1;
        while number < values.file.pages() {
            if number.is_multiple_of(64) {
                pause()?;
            }
            let page = values.page(number)?;
            let (key, block) = page.first().ok_or_else(|| values.unreadable(number))?;
            out.push(&model::number(key, block), page.number)?;
            number += page.span;
        }
        let mut below = 0..out.end_layer()?;
        let mut ends = vec![below.end];
        while below.end - below.start > 1 {
            for page in below.clone() {
                let first = out.out.read_back(page)?;
                let key = std::array::from_fn(|at| first[2 + at]);
                out.push(&key, page)?;
            }
            below = below.end..out.end_layer()?;
            ends.push(below.end);
        }
        // The map outlives the name.
        Ok(Self { file: out.out.map()?, ends })
    }

    /// The number of pages of the bottom layer, or of all layers.
    pub(super) fn pages(&self, all: bool) -> u64 {
        if all { self.file.pages() } else { self.ends[0] }
    }

    /// The value page of a key, from the top layer down; `None` if the key is below all fences.
    pub(super) fn descend(&self, key: &[u8; NUMBER]) -> Result<Option<u64>, StateError> {
        let mut page = self.file.pages().saturating_sub(1);
        for _ in &self.ends {
            match self.read(page)?.last_up_to(key) {
                Some(below) => page = below,
                None => return Ok(None),
            }
        }
        Ok(Some(page))
    }

    /// The value page of a key, by bisection of the bottom layer.
    pub(super) fn bisect(&self, key: &[u8; NUMBER]) -> Result<Option<u64>, StateError> {
        let (mut low, mut high) = (0, self.ends[0]);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.read(middle)?.0[0][..NUMBER] <= key[..] {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(self.read(low)?.last_up_to(key))
    }

    fn read(&self, page: u64) -> Result<FencePage<'_>, StateError> {
        let payload = self.file.page(page)?;
        let count = usize::from(u16::from_be_bytes([payload[0], payload[1]]));
        let (fences, _) = payload[2..].as_chunks();
        match fences.get(..count) {
            Some(fences) if count > 0 => Ok(FencePage(fences)),
            _ => Err(self.file.corrupt(page, format!("a page cannot have {count} fences"))),
        }
    }
}

/// The fences of a page, at least one.
struct FencePage<'a>(&'a [[u8; FENCE]]);

impl FencePage<'_> {
    /// Where the last fence at or below `key` leads.
    fn last_up_to(&self, key: &[u8; NUMBER]) -> Option<u64> {
        let at = self.0.partition_point(|fence| fence[..NUMBER] <= key[..]).checked_sub(1)?;
        Some(self.0[at][NUMBER..].iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }
}

struct FenceWriter {
    out: PageWriter,
    /// Fences of the page that is being filled.
    page: Vec<u8>,
}

impl FenceWriter {
    fn push(&mut self, key: &[u8; NUMBER], page: u64) -> Result<(), StateError> {
        if self.page.len() == FENCES * FENCE {
            self.end_page()?;
        }
        self.page.extend_from_slice(key);
        // A file has at most 2^40 pages.
        self.page.extend_from_slice(&page.to_be_bytes()[3..]);
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), StateError> {
        let count = (self.page.len() / FENCE) as u16;
        self.out.append(&[&count.to_be_bytes(), &self.page[..]].concat())?;
        self.page.clear();
        Ok(())
    }

    /// Ends a layer, and returns the number of pages so far.
    fn end_layer(&mut self) -> Result<u64, StateError> {
        self.end_page()?;
        Ok(self.out.pages())
    }
}
