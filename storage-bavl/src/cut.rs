//! Cuts entries into chunks.
//!
//! A chunk holds at most M entries. A chunk with more entries, or fewer than M / 2, is merged with
//! its left neighbour (the first chunk with its right neighbour), and the entries of both are cut
//! again. So two full chunks become three, as in B*-trees, and by the same rule a small chunk
//! merges with its neighbour or takes entries from it.

use crate::ChunkEntries;

impl ChunkEntries {
    /// Least number of entries in a chunk, unless it is the only one.
    pub(crate) const fn least(self) -> usize {
        self.most() / 2
    }

    /// Whether a chunk that is not the only one may have `entries` entries.
    pub(crate) const fn holds(self, entries: usize) -> bool {
        self.least() <= entries && entries <= self.most()
    }

    /// Entries of each chunk that a long list is cut into: three quarters of M, to leave room for
    /// insertions.
    pub(crate) const fn usual(self) -> usize {
        self.most() - self.most() / 4
    }

    /// Number of entries in the first chunk that a list of `run` entries is cut into: all, if one
    /// chunk can hold them; half, if this leaves room in two chunks; a third, or the usual number.
    pub(crate) const fn first_of(self, run: usize) -> usize {
        let (most, usual) = (self.most(), self.usual());
        if run <= most {
            run
        } else if run <= most + usual {
            run.div_ceil(2)
        } else if run <= 3 * usual {
            run.div_ceil(3)
        } else {
            usual
        }
    }

    /// Cuts a list of entries into chunks, of which none is empty.
    pub(crate) fn cut<T>(self, mut run: &[T]) -> Vec<&[T]> {
        let mut chunks = Vec::with_capacity(run.len() / self.usual() + 1);
        while !run.is_empty() {
            let (chunk, rest) = run.split_at(self.first_of(run.len()));
            chunks.push(chunk);
            run = rest;
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(most: u32, run: usize) -> Vec<usize> {
        let most = ChunkEntries::new(most).unwrap();
        most.cut(&vec![(); run]).into_iter().map(<[()]>::len).collect()
    }

    #[test]
    fn every_run_is_cut_into_chunks_within_their_bounds() {
        for most in (4..80).chain([256, 1000]) {
            let entries = ChunkEntries::new(most).unwrap();
            for run in 1..12 * most as usize {
                let chunks = cut(most, run);
                assert_eq!(chunks.iter().sum::<usize>(), run);
                let is_sound = chunks.iter().all(|chunk| entries.holds(*chunk));
                let is_alone = chunks.len() == 1 && run <= most as usize;
                assert!(is_sound || is_alone, "{most}: {run} into {chunks:?}");
            }
        }
    }

    #[test]
    fn two_full_chunks_and_one_entry_more_make_three() {
        assert_eq!(cut(256, 513), [171, 171, 171]);
        assert_eq!(cut(256, 257), [129, 128]);
        assert_eq!(cut(256, 448), [224, 224]);
        assert_eq!(cut(256, 449), [150, 150, 149]);
        assert_eq!(cut(256, 577), [192, 193, 192]);
        assert_eq!(cut(256, 1000), [192, 192, 192, 212, 212]);
    }
}
