//! The value file of a run: its pairs in order, page by page.

use super::{
    file::PagedFile,
    page::{LocatedPair, PageHeader, PageKind, PageWalk, ValuePage, large_part},
};
use retrie_state::StateError;

/// The first page, which holds the description and no pairs.
pub(crate) const DESCRIPTION: u64 = 0;

/// Reads pairs from a value file.
#[derive(Debug)]
pub(crate) struct ValueFile {
    pub(crate) file: PagedFile,
    /// The number of pages read. A large pair counts once.
    #[cfg(test)]
    pub(crate) reads: std::sync::atomic::AtomicUsize,
}

/// A pair, borrowed from a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairRef<'a> {
    /// The number of pairs before it.
    pub(crate) position: u64,
    pub(crate) key: &'a [u8],
    pub(crate) block: u64,
    /// `None`: deleted.
    pub(crate) value: Option<&'a [u8]>,
}

impl ValueFile {
    /// Reads from `file`.
    pub(crate) const fn new(file: PagedFile) -> Self {
        Self {
            file,
            #[cfg(test)]
            reads: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// The error of a page with a valid checksum and malformed pairs.
    pub(super) fn unreadable(&self, page: u64) -> StateError {
        self.file.corrupt(page, "its pairs are malformed")
    }

    fn header(&self, number: u64) -> Result<PageHeader, StateError> {
        PageHeader::read(self.file.page(number)?)
            .ok_or_else(|| self.file.corrupt(number, "its header is malformed"))
    }

    /// The page `number`, or all pages of its pair if that is large.
    pub(crate) fn page(&self, number: u64) -> Result<ValuePage<'_>, StateError> {
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let header = self.header(number)?;
        match header.kind {
            PageKind::Pairs => ValuePage::new(number, header, self.file.page(number)?)
                .ok_or_else(|| self.unreadable(number)),
            PageKind::Large(follow) => self.large(number, header.position, follow),
            PageKind::Continued(after) => {
                let first = number.checked_sub(after).filter(|first| *first > DESCRIPTION);
                let first = first.ok_or_else(|| self.unreadable(number))?;
                let header = self.header(first)?;
                match header.kind {
                    PageKind::Large(follow) if follow >= after => {
                        self.large(first, header.position, follow)
                    }
                    _ => Err(self.file.corrupt(first, "the large pair does not continue")),
                }
            }
        }
    }

    fn large(&self, number: u64, position: u64, follow: u64) -> Result<ValuePage<'_>, StateError> {
        let mut bytes = large_part(self.file.page(number)?).to_vec();
        for n in 1..=follow {
            let header = self.header(number + n)?;
            if header.kind != PageKind::Continued(n) || header.position != position {
                return Err(self.file.corrupt(number + n, "the large pair does not continue"));
            }
            bytes.extend_from_slice(large_part(self.file.page(number + n)?));
        }
        Ok(ValuePage::large(number, follow + 1, position, bytes))
    }

    /// The next page; `None` at the end.
    pub(super) fn behind(&self, page: &ValuePage<'_>) -> Result<Option<ValuePage<'_>>, StateError> {
        let number = page.number + page.span;
        (number < self.file.pages()).then(|| self.page(number)).transpose()
    }

    pub(super) fn locate(
        &self,
        page: &ValuePage<'_>,
        key: &[u8],
        block: u64,
    ) -> Result<Option<LocatedPair>, StateError> {
        page.locate(key, block).ok_or_else(|| self.unreadable(page.number))
    }

    /// The last pair at or below (`key`, `block`). The search starts at page `guess`, which must
    /// come from the index; so it reads at most two pages.
    pub(crate) fn seek(
        &self,
        guess: u64,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(ValuePage<'_>, LocatedPair)>, StateError> {
        let last = self.file.pages().saturating_sub(1).max(DESCRIPTION + 1);
        let guess = guess.clamp(DESCRIPTION + 1, last);
        let mut page = self.page(guess)?;
        let Some(mut located) = self.locate(&page, key, block)? else {
            while page.number > DESCRIPTION + 1 {
                page = self.page(page.number - 1)?;
                if let Some(located) = self.locate(&page, key, block)? {
                    return Ok(Some((page, located)));
                }
            }
            return Ok(None);
        };
        while located.index + 1 == page.pairs && !(located.same_key && located.block == block) {
            // The model's line through a page's first pair is at most half a page too low. So if it
            // leads to `guess`, the key is below the first pair of any page after the next one.
            if page.number + page.span >= guess.saturating_add(2) {
                break;
            }
            let Some(next) = self.behind(&page)? else { break };
            let Some(further) = self.locate(&next, key, block)? else { break };
            (page, located) = (next, further);
        }
        Ok(Some((page, located)))
    }

    /// The page with the pair at `position`, in a run of `pairs` pairs.
    fn page_at(&self, position: u64, pairs: u64) -> Result<ValuePage<'_>, StateError> {
        let (mut low, mut high) = (DESCRIPTION + 1, self.file.pages());
        // Positions of the first pair of page `low`, and of the first pair that page `high` would
        // have.
        let (mut first, mut end) = (0, pairs);
        let mut halve = false;
        while low < high && first <= position && position < end {
            // Pages have similar numbers of pairs. If not, every second step halves the range.
            let (wanted, span) = (u128::from(position - first), u128::from(end - first));
            let guess = match halve {
                true => (high - low) / 2,
                false => (wanted * u128::from(high - low) / span) as u64,
            };
            halve = !halve;
            let guess = low + guess.min(high - low - 1);
            let header = self.header(guess)?;
            let behind = header.position.saturating_add(header.pairs.max(1) as u64);
            if header.position > position {
                (high, end) = (guess, header.position);
            } else if behind <= position {
                (low, first) = (guess + 1, behind);
            } else {
                return self.page(guess);
            }
        }
        Err(self.file.wrong(format!("it has no pair {position}, of {pairs}")))
    }

    /// A cursor over all pairs.
    pub(crate) fn cursor(&self) -> PairCursor<'_> {
        PairCursor { values: self, page: None, number: DESCRIPTION + 1, walk: PageWalk::default() }
    }

    /// A cursor from position `position` on, in a run of `pairs` pairs.
    pub(crate) fn cursor_at(
        &self,
        position: u64,
        pairs: u64,
    ) -> Result<PairCursor<'_>, StateError> {
        let page = self.page_at(position, pairs)?;
        let index =
            position.checked_sub(page.position).and_then(|index| usize::try_from(index).ok());
        let index = index.filter(|index| *index < page.pairs);
        let index = index.ok_or_else(|| self.unreadable(page.number))?;
        self.cursor_in(page, index)
    }

    /// A cursor from pair `index` of a page on. `index` may be the number of pairs of the page.
    pub(super) fn cursor_in<'a>(
        &'a self,
        page: ValuePage<'a>,
        index: usize,
    ) -> Result<PairCursor<'a>, StateError> {
        let walk = match index.checked_sub(1) {
            Some(before) => page.walk_to(before).ok_or_else(|| self.unreadable(page.number))?,
            None => PageWalk::default(),
        };
        Ok(PairCursor { values: self, number: page.number + page.span, page: Some(page), walk })
    }
}

/// A cursor over the pairs of a run.
#[derive(Debug)]
pub(crate) struct PairCursor<'a> {
    values: &'a ValueFile,
    page: Option<ValuePage<'a>>,
    /// The number of the next page.
    number: u64,
    walk: PageWalk,
}

impl PairCursor<'_> {
    /// Moves to the next pair, at first to the first one. Returns `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, StateError> {
        loop {
            if let Some(page) = &self.page
                && self.walk.next < page.pairs
            {
                let step = page.step(&mut self.walk);
                return step.map(|()| true).ok_or_else(|| self.values.unreadable(page.number));
            }
            if self.number >= self.values.file.pages() {
                return Ok(false);
            }
            self.values.file.prefetch_after(self.number);
            let page = self.values.page(self.number)?;
            self.number = page.number + page.span;
            self.page = Some(page);
            self.walk.rewind();
        }
    }

    /// The current pair, after [`advance`](Self::advance).
    pub(crate) fn pair(&self) -> PairRef<'_> {
        let first = self.page.as_ref().map_or(0, |page| page.position);
        let current = &self.walk.current;
        PairRef {
            position: (first + self.walk.next as u64).saturating_sub(1),
            key: &current.key,
            block: current.block,
            value: current.value(),
        }
    }

    /// The next pair; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<PairRef<'_>>, StateError> {
        Ok(self.advance()?.then(|| self.pair()))
    }
}
