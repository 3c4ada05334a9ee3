//! The terms of a race about memory: a budget for each store, and whether its pages stay in the page
//! cache.

/// The least memory for unfolded rows, in bytes.
const FEWEST_ROWS: u64 = 1 << 20;

/// The memory that a store may take in a race: its caches, its unfolded rows and, if memory can be
/// capped, the pages of its files.
///
/// | part | of a budget with pages | of one without |
/// |---|---|---|
/// | caches of the store, as far as it can shrink them | a quarter | a half |
/// | unfolded rows | what the caches leave of a half | what they leave of the whole |
/// | pages of its files, and everything else | the rest | not bounded |
///
/// What a store needs in any case, and cannot shrink, counts as its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it covers the pages of files too.
    pub has_pages: bool,
}

impl MemoryBudget {
    /// Bytes of caches and unfolded rows.
    pub const fn store_bytes(self) -> u64 {
        if self.has_pages { self.bytes / 2 } else { self.bytes }
    }

    /// Bytes to which a store limits its caches, as far as it can.
    pub const fn cache_bytes(self) -> u64 {
        self.store_bytes() / 2
    }
}

/// The terms of a race about memory, equal for all contenders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTerms {
    /// The budget of each contender, if there is one.
    pub budget: Option<MemoryBudget>,
    /// Whether the pages of a contender's files are dropped from the page cache before each of its
    /// measured turns.
    pub cold: bool,
}

impl MemoryTerms {
    /// No budget, and pages stay.
    pub const FREE: Self = Self { budget: None, cold: false };

    /// Whether each contender races alone, since memory is capped for it alone.
    pub const fn is_alone(self) -> bool {
        matches!(self.budget, Some(MemoryBudget { has_pages: true, .. }))
    }

    /// The cap on memory in bytes of a race in which `open` stores are open, if the budget covers
    /// pages.
    pub const fn cap(self, open: u64) -> Option<u64> {
        match self.budget {
            Some(MemoryBudget { bytes, has_pages: true }) => Some(bytes.saturating_mul(open)),
            _ => None,
        }
    }

    /// Memory for unfolded rows of a contender with `own` bytes of caches, of `asked` bytes beside
    /// the page cache.
    pub(super) fn rows_bytes(self, asked: u64, own: u64) -> u64 {
        match self.budget {
            None => asked,
            Some(_) => asked.saturating_sub(own).max(FEWEST_ROWS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_budget_add_up_unless_caches_exceed_it() {
        let of = |has_pages| {
            let budget = MemoryBudget { bytes: 400 << 20, has_pages };
            let terms = MemoryTerms { budget: Some(budget), cold: false };
            let rows = |own: u64| terms.rows_bytes(budget.store_bytes(), own << 20) >> 20;
            (budget.cache_bytes() >> 20, [0, 100, 199, 500].map(rows))
        };
        assert_eq!(of(true), (100, [200, 100, 1, 1]));
        assert_eq!(of(false), (200, [400, 300, 201, 1]));
        assert_eq!(MemoryTerms::FREE.rows_bytes(7, 100), 7, "caches come on top");
        assert_eq!(MemoryTerms::default(), MemoryTerms::FREE);
        let cap = |has_pages| {
            let budget = Some(MemoryBudget { bytes: 5, has_pages });
            let terms = MemoryTerms { budget, cold: false };
            (terms.is_alone(), terms.cap(2))
        };
        assert_eq!([cap(true), cap(false)], [(true, Some(10)), (false, None)]);
    }
}
