//! The values file of a run: its pairs in order, page by page.

use super::{
    file::PagedFile,
    page::{Header, Kind, Located, Page, Walk, large_part},
};
use retrie_state::StateError;

/// The page before the first with pairs.
pub(crate) const DESCRIPTION: u64 = 0;

/// Reads pairs.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) file: PagedFile,
    /// Pages read, large ones once.
    #[cfg(test)]
    pub(crate) reads: std::sync::atomic::AtomicUsize,
}

/// A pair where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairRef<'a> {
    /// How many pairs are before it.
    pub(crate) position: u64,
    pub(crate) key: &'a [u8],
    pub(crate) block: u64,
    /// `None`: deleted.
    pub(crate) value: Option<&'a [u8]>,
}

impl Values {
    /// Reads from `file`.
    pub(crate) const fn new(file: PagedFile) -> Self {
        Self {
            file,
            #[cfg(test)]
            reads: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// The error of a page that passes its checksum and still cannot be read.
    pub(super) fn unreadable(&self, page: u64) -> StateError {
        self.file.corrupt(page, "its pairs cannot be read")
    }

    fn header(&self, number: u64) -> Result<Header, StateError> {
        Header::read(self.file.page(number)?)
            .ok_or_else(|| self.file.corrupt(number, "its header cannot be right"))
    }

    /// The page `number`, with the others it belongs to if its pair is large.
    pub(crate) fn page(&self, number: u64) -> Result<Page<'_>, StateError> {
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let header = self.header(number)?;
        match header.kind {
            Kind::Pairs => Page::new(number, header, self.file.page(number)?)
                .ok_or_else(|| self.unreadable(number)),
            Kind::Large(follow) => self.large(number, header.position, follow),
            Kind::Continued(after) => {
                let first = number.checked_sub(after).filter(|first| *first > DESCRIPTION);
                let first = first.ok_or_else(|| self.unreadable(number))?;
                let header = self.header(first)?;
                match header.kind {
                    Kind::Large(follow) if follow >= after => {
                        self.large(first, header.position, follow)
                    }
                    _ => Err(self.file.corrupt(first, "the pair does not go on")),
                }
            }
        }
    }

    fn large(&self, number: u64, position: u64, follow: u64) -> Result<Page<'_>, StateError> {
        let mut bytes = large_part(self.file.page(number)?).to_vec();
        for n in 1..=follow {
            let header = self.header(number + n)?;
            if header.kind != Kind::Continued(n) || header.position != position {
                return Err(self.file.corrupt(number + n, "the pair does not go on"));
            }
            bytes.extend_from_slice(large_part(self.file.page(number + n)?));
        }
        Ok(Page::large(number, follow + 1, position, bytes))
    }

    /// The page behind; `None` at the end.
    pub(super) fn behind(&self, page: &Page<'_>) -> Result<Option<Page<'_>>, StateError> {
        let number = page.number + page.span;
        (number < self.file.pages()).then(|| self.page(number)).transpose()
    }

    pub(super) fn locate(
        &self,
        page: &Page<'_>,
        key: &[u8],
        block: u64,
    ) -> Result<Option<Located>, StateError> {
        page.locate(key, block).ok_or_else(|| self.unreadable(page.number))
    }

    /// The last pair at or below (`key`, `block`), searched from page `guess` on: what the index
    /// says of it, so two pages are read at most.
    pub(crate) fn seek(
        &self,
        guess: u64,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(Page<'_>, Located)>, StateError> {
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
            // The line through a page's first pair is at most half a page too low: what it takes to
            // `guess` is below the first pair of any page further than the next.
            if page.number + page.span >= guess.saturating_add(2) {
                break;
            }
            let Some(next) = self.behind(&page)? else { break };
            let Some(further) = self.locate(&next, key, block)? else { break };
            (page, located) = (next, further);
        }
        Ok(Some((page, located)))
    }

    /// The page with the pair at `position`, of a run with so many `pairs`.
    fn page_at(&self, position: u64, pairs: u64) -> Result<Page<'_>, StateError> {
        let (mut low, mut high) = (DESCRIPTION + 1, self.file.pages());
        // Positions of the first pair of page `low`, and of the one that `high` would have.
        let (mut first, mut end) = (0, pairs);
        let mut halve = false;
        while low < high && first <= position && position < end {
            // Pages have about as many pairs each. Where they have not, every second step halves.
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

    /// Pairs from the first one on.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { values: self, page: None, number: DESCRIPTION + 1, walk: Walk::default() }
    }

    /// Pairs from position `position` on, of so many.
    pub(crate) fn cursor_at(&self, position: u64, pairs: u64) -> Result<Cursor<'_>, StateError> {
        let page = self.page_at(position, pairs)?;
        let index =
            position.checked_sub(page.position).and_then(|index| usize::try_from(index).ok());
        let index = index.filter(|index| *index < page.pairs);
        let index = index.ok_or_else(|| self.unreadable(page.number))?;
        self.cursor_in(page, index)
    }

    /// Pairs from pair `index` of a page on, which may be just behind its last.
    pub(super) fn cursor_in<'a>(
        &'a self,
        page: Page<'a>,
        index: usize,
    ) -> Result<Cursor<'a>, StateError> {
        let walk = match index.checked_sub(1) {
            Some(before) => page.walk_to(before).ok_or_else(|| self.unreadable(page.number))?,
            None => Walk::default(),
        };
        Ok(Cursor { values: self, number: page.number + page.span, page: Some(page), walk })
    }
}

/// Walks over the pairs of a run.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    values: &'a Values,
    page: Option<Page<'a>>,
    /// The page behind.
    number: u64,
    walk: Walk,
}

impl Cursor<'_> {
    /// Goes on to the next pair, or the first one: `false` at the end.
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
            self.values.file.walks_to(self.number);
            let page = self.values.page(self.number)?;
            self.number = page.number + page.span;
            self.page = Some(page);
            self.walk.rewind();
        }
    }

    /// The pair that [`advance`](Self::advance) went to.
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
