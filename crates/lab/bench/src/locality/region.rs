//! Regions: adjacent slots of a file.

use std::str::FromStr;

/// Bytes of a page, the unit of disks and page caches.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// What a slot holds of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotContent {
    /// The node's hash: 32 bytes. A slot stands for what a verifier needs of the node.
    #[default]
    NodeHash,
    /// The hashes of both children (sections 3.2 and 5.1.1): 64 bytes. A path is then an
    /// authentication path, siblings included.
    ChildHashes,
}

impl SlotContent {
    /// Bytes of a slot.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::NodeHash => 32,
            Self::ChildHashes => 64,
        }
    }
}

/// Slots do not have this length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a slot has 32 bytes (the node's hash) or 64 (those of its children), and not `{0}`")]
pub struct WrongSlotBytes(String);

impl FromStr for SlotContent {
    type Err = WrongSlotBytes;

    fn from_str(text: &str) -> Result<Self, WrongSlotBytes> {
        match text {
            "32" => Ok(Self::NodeHash),
            "64" => Ok(Self::ChildHashes),
            _ => Err(WrongSlotBytes(text.into())),
        }
    }
}

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

    /// Offset in a file with slots of this content, in bytes.
    pub(crate) const fn offset(self, content: SlotContent) -> u64 {
        self.start * content.bytes()
    }

    /// Its length in bytes, in a file with slots of this content.
    pub(crate) const fn bytes(self, content: SlotContent) -> usize {
        (self.slots() * content.bytes()) as usize
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

/// Number of distinct pages of [merged](merge) regions, in a file with slots of this content.
pub(super) fn pages(regions: &[Region], content: SlotContent) -> u64 {
    let (mut pages, mut next) = (0, 0);
    for region in regions {
        let first = (region.start * content.bytes() / PAGE_BYTES).max(next);
        next = (region.end * content.bytes() - 1) / PAGE_BYTES + 1;
        pages += next - first.min(next);
    }
    pages
}

/// Number of slots that two lists of [merged](merge) regions have in common.
pub(super) fn common_slots(a: &[Region], b: &[Region]) -> u64 {
    let (mut at, mut common) = (0, 0);
    for region in a {
        while b.get(at).is_some_and(|other| other.end <= region.start) {
            at += 1;
        }
        let overlaps = b[at..].iter().take_while(|other| other.start < region.end);
        common += overlaps
            .map(|other| region.end.min(other.end) - region.start.max(other.start))
            .sum::<u64>();
    }
    common
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
        let small = SlotContent::NodeHash;
        assert_eq!((slots(&regions), pages(&regions, small)), (7, 2));
        // 128 slots a page: the first two regions share page 1.
        let near = [of(0, 129), of(130, 131), of(255, 257)];
        assert_eq!((pages(&near, small), pages(&near, SlotContent::ChildHashes)), (3, 5));
        assert_eq!((pages(&[], small), slots(&[])), (0, 0));
        assert_eq!(common_slots(&regions, &[of(0, 6), of(8, 12), of(299, 400)]), 1 + 2 + 1 + 1);
        assert_eq!((common_slots(&regions, &regions), common_slots(&regions, &[])), (7, 0));
    }
}
