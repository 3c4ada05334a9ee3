//! The blocks of a table, and when and where the index contract has its root.

use alloc::vec::Vec;
use alloy_primitives::{B256, U256};

/// Numbers of blocks of a table, by level.
pub const TABLE_SIZES: [u64; 5] = [1, 4, 16, 64, 256];

/// Tables of one level whose roots the index contract keeps.
pub const TABLES_PER_LEVEL: u64 = 1024;

/// The blocks of an index table: its first block is a multiple of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableSpan {
    first: u64,
    size: u64,
}

impl TableSpan {
    /// The span of `size` blocks that begins with `first`; `None` if there is no such table.
    pub fn new(first: u64, size: u64) -> Option<Self> {
        let fits = TABLE_SIZES.contains(&size)
            && first.is_multiple_of(size)
            && first.checked_add(size - 1).is_some();
        fits.then_some(Self { first, size })
    }

    /// The span of `size` blocks, one of [`TABLE_SIZES`], that has this block; `None` for others.
    pub fn containing(block: u64, size: u64) -> Option<Self> {
        Self::new(block.checked_div(size)?.checked_mul(size)?, size)
    }

    /// Number of the first block.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Number of the last block.
    pub const fn last(&self) -> u64 {
        self.first + (self.size - 1)
    }

    /// Number of blocks.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The block after whose transactions the root is stored: the last one, or a quarter of the size
    /// later.
    pub const fn stored_at(&self) -> u64 {
        self.last().saturating_add(self.size / 4)
    }

    /// The tables whose roots are stored by block `number`, if index tables begin with the block
    /// `active_from`, in ascending order of size.
    pub fn due_at(number: u64, active_from: u64) -> impl Iterator<Item = Self> {
        TABLE_SIZES.into_iter().filter_map(move |size| {
            let last = number.checked_sub(size / 4)?;
            let span = Self::containing(last, size)?;
            (span.last() == last && span.first >= active_from && number > 0).then_some(span)
        })
    }

    /// Whether the state after block `number` has the root, if index tables begin with the block
    /// `active_from`: it has been stored, and not been replaced. Genesis stores none.
    pub fn is_referenced_at(&self, number: u64, active_from: u64) -> bool {
        let replaced_at = self.stored_at().saturating_add(self.size * TABLES_PER_LEVEL);
        let stored_at = self.stored_at();
        self.first >= active_from && stored_at > 0 && stored_at <= number && number < replaced_at
    }

    /// The slot of the index contract that has the root.
    pub fn slot(&self) -> B256 {
        let place = self.first / self.size % TABLES_PER_LEVEL;
        U256::from(self.size * TABLES_PER_LEVEL + place).into()
    }

    /// Spans that cover the blocks `from` to `to`, in order, of tables that are available; or the first
    /// block that no such table has. Of several tables the largest is taken that lies at least half in
    /// the range, else the smallest.
    ///
    /// # Errors
    /// That of `is_available`.
    pub fn cover<E>(
        from: u64,
        to: u64,
        mut is_available: impl FnMut(Self) -> Result<bool, E>,
    ) -> Result<Result<Vec<Self>, u64>, E> {
        let mut spans = Vec::new();
        let mut next = from;
        loop {
            let mut best = None;
            for size in TABLE_SIZES.into_iter().rev() {
                let Some(span) = Self::containing(next, size) else { continue };
                if !is_available(span)? {
                    continue;
                }
                best = Some(span);
                if 2 * (span.last().min(to).saturating_sub(next) + 1) >= size {
                    break;
                }
            }
            let Some(span) = best else { return Ok(Err(next)) };
            spans.push(span);
            if span.last() >= to {
                return Ok(Ok(spans));
            }
            next = span.last() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, size: u64) -> TableSpan {
        TableSpan::new(first, size).unwrap()
    }

    #[test]
    fn roots_are_due_a_quarter_of_a_table_after_its_last_block() {
        let due = |number| TableSpan::due_at(number, 0).collect::<Vec<_>>();
        assert_eq!(due(0), []);
        assert_eq!(due(3), [span(3, 1)]);
        assert_eq!(due(4), [span(4, 1), span(0, 4)]);
        assert_eq!(due(19), [span(19, 1), span(0, 16)]);
        assert_eq!(due(319), [span(319, 1), span(0, 256)]);
        let later = TableSpan::due_at(19, 1).collect::<Vec<_>>();
        assert_eq!(later, [span(19, 1)], "the table would begin before the EIP does");
        for number in 1..400 {
            assert!(due(number).iter().all(|span| span.is_referenced_at(number, 0)));
            assert!(due(number).iter().all(|span| !span.is_referenced_at(number - 1, 0)));
        }
    }

    #[test]
    fn a_root_is_gone_when_the_ring_comes_round() {
        assert!(span(8, 4).is_referenced_at(8 + 4 * 1024 + 3, 0));
        assert!(!span(8, 4).is_referenced_at(8 + 4 * 1024 + 4, 0));
        assert_eq!(span(8, 4).slot(), span(8 + 4096, 4).slot());
        assert!(!span(0, 1).is_referenced_at(5, 0), "genesis stores no root");
        assert_eq!(TableSpan::new(2, 4), None);
        assert_eq!(TableSpan::new(0, 8), None);
        assert_eq!(TableSpan::containing(7, 0), None);
    }

    #[test]
    fn few_large_tables_cover_a_range() {
        let cover = |from, to, at: u64| {
            let is_there = |span: TableSpan| Ok::<_, ()>(span.is_referenced_at(at, 0));
            TableSpan::cover(from, to, is_there).unwrap()
        };
        assert_eq!(cover(5, 5, 9), Ok([span(5, 1)].to_vec()));
        let spans = cover(30, 700, 900).unwrap();
        let mut next = 30;
        for span in &spans {
            assert!(span.first() <= next && next <= span.last());
            next = span.last() + 1;
        }
        assert!(next > 700 && spans.len() < 8, "{spans:?}");
        // Only larger tables have old blocks.
        assert_eq!(cover(5, 5, 2000), Ok([span(4, 4)].to_vec()));
        assert_eq!(cover(5, 12, 10), Err(11));
    }
}
