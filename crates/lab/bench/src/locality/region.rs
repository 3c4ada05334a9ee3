//! Regions: adjacent slots of a file.

/// Bytes of a slot: a hash.
pub(crate) const SLOT_BYTES: u64 = 32;
/// Bytes of a page, the unit of disks and page caches.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Adjacent slots `start..end`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Region {
    /// The first slot.
    pub(crate) start: u64,
    /// The slot after the last one.
    pub(crate) end: u64,
}

impl Region {
    /// A single slot.
    pub(crate) const fn slot(slot: u64) -> Self {
        Self { start: slot, end: slot + 1 }
    }

    /// Number of slots.
    pub(crate) const fn slots(self) -> u64 {
        self.end - self.start
    }

    /// Offset in the file, in bytes.
    pub(crate) const fn offset(self) -> u64 {
        self.start * SLOT_BYTES
    }

    /// Its length in bytes.
    pub(crate) const fn bytes(self) -> usize {
        (self.slots() * SLOT_BYTES) as usize
    }

    const fn first_page(self) -> u64 {
        self.start * SLOT_BYTES / PAGE_BYTES
    }

    const fn last_page(self) -> u64 {
        (self.end * SLOT_BYTES - 1) / PAGE_BYTES
    }
}

/// Sorts regions and merges regions that touch or overlap. The results are maximal runs of adjacent
/// slots.
pub(super) fn merge(regions: &mut Vec<Region>) {
    regions.sort_unstable();
    regions.dedup_by(|next, before| {
        let touch = next.start <= before.end;
        if touch {
            before.end = before.end.max(next.end);
        }
        touch
    });
}

/// Number of slots of [merged](merge) regions.
pub(super) fn slots(regions: &[Region]) -> u64 {
    regions.iter().map(|region| region.slots()).sum()
}

/// Number of distinct pages of [merged](merge) regions.
pub(super) fn pages(regions: &[Region]) -> u64 {
    let (mut pages, mut next) = (0, 0);
    for region in regions {
        let first = region.first_page().max(next);
        next = region.last_page() + 1;
        pages += next - first.min(next);
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_regions_become_one_and_pages_count_once() {
        let of = |start, end| Region { start, end };
        let mut regions = vec![of(300, 301), of(7, 9), of(5, 7), of(8, 10), of(11, 12)];
        merge(&mut regions);
        assert_eq!(regions, [of(5, 10), of(11, 12), of(300, 301)]);
        assert_eq!((slots(&regions), pages(&regions)), (7, 2));
        // 128 slots a page: the first two regions share page 1.
        assert_eq!(pages(&[of(0, 129), of(130, 131), of(255, 257)]), 3);
        assert_eq!((pages(&[]), slots(&[])), (0, 0));
    }
}
