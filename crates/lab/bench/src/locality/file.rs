//! A tree in a file on disk.

use super::{
    DenseTree, LayoutNode, LocalityError, NodePlace, PAGE_BYTES, Region, SlotContent,
    error::goes_on,
};
use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Bytes that are written at once, or read at once to warm the page cache.
const CHUNK: usize = 1 << 20;

/// The file of a tree. It has no name, and is deleted when it is dropped.
#[derive(Debug)]
pub(super) struct TreeFile {
    tree: DenseTree,
    file: File,
    folder: PathBuf,
}

/// The accesses of one timed batch.
#[derive(Debug, Default)]
pub(super) struct AccessBatch {
    leaves: Vec<u64>,
    /// The regions of all leaves, one leaf after the other.
    regions: Vec<Region>,
    /// The end of each leaf's regions in `regions`.
    ends: Vec<usize>,
}

impl AccessBatch {
    /// The regions of `access` to each of `leaves`.
    pub(super) fn of(
        tree: DenseTree,
        access: fn(DenseTree, u64, &mut Vec<Region>),
        leaves: impl Iterator<Item = u64>,
    ) -> Self {
        let (mut batch, mut regions) = (Self::default(), Vec::new());
        for leaf in leaves {
            access(tree, leaf, &mut regions);
            batch.leaves.push(leaf);
            batch.regions.extend(&regions);
            batch.ends.push(batch.regions.len());
        }
        batch
    }

    /// Each leaf with its regions.
    fn leaves(&self) -> impl Iterator<Item = (u64, &[Region])> {
        let mut rest = &self.regions[..];
        let mut before = 0;
        self.leaves.iter().zip(&self.ends).map(move |(leaf, end)| {
            let (own, others) = rest.split_at(end - before);
            (before, rest) = (*end, others);
            (*leaf, own)
        })
    }
}

impl TreeFile {
    /// Writes a whole tree, slot after slot, and syncs it.
    pub(super) fn create(
        folder: &Path,
        tree: DenseTree,
        stop: &AtomicBool,
    ) -> Result<Self, LocalityError> {
        let failed =
            |source| LocalityError::Io { action: "making a file in", path: folder.into(), source };
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        let file = Self { tree, file, folder: folder.into() };
        let mut writer = io::BufWriter::with_capacity(CHUNK, &file.file);
        let mut slot = vec![0; tree.content().bytes() as usize];
        let mut slots = 0_u64;
        tree.nodes(|node| {
            slots += 1;
            if slots.is_multiple_of(1 << 16) && stop.load(Ordering::Relaxed) {
                return Err(LocalityError::Stopped);
            }
            fill(&mut slot, node);
            writer.write_all(&slot).map_err(|source| file.failed("writing to", source))
        })?;
        writer.flush().map_err(|source| file.failed("writing to", source))?;
        drop(writer);
        file.file.sync_all().map_err(|source| file.failed("syncing", source))?;
        // Without readahead by the system.
        file.advise(PageAdvice::Random)?;
        Ok(file)
    }

    /// The tree.
    pub(super) const fn tree(&self) -> DenseTree {
        self.tree
    }

    /// Length of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tree.bytes()
    }

    /// Reads the whole file, so that it is in the page cache if it fits.
    pub(super) fn warm(&self, stop: &AtomicBool) -> Result<(), LocalityError> {
        let mut buffer = vec![0; CHUNK];
        for offset in (0..self.bytes()).step_by(CHUNK) {
            let len = (self.bytes() - offset).min(CHUNK as u64) as usize;
            self.read_at(&mut buffer[..len], offset)?;
            goes_on(stop)?;
        }
        Ok(())
    }

    /// Syncs the file, and drops its pages from the page cache.
    pub(super) fn evict_pages(&self) -> Result<(), LocalityError> {
        // Only what is on disk can be dropped.
        self.file.sync_all().map_err(|source| self.failed("syncing", source))?;
        self.advise(PageAdvice::DontNeed)
    }

    /// Whether the file lies in memory (tmpfs).
    pub(super) fn is_in_memory(&self) -> Result<bool, LocalityError> {
        is_tmpfs(&self.file).map_err(|source| self.failed("asking for the file system of", source))
    }

    /// Reads the regions of a batch, one read per region, and checks afterwards that all paths are
    /// in them.
    pub(super) fn read(
        &self,
        batch: &AccessBatch,
        buffer: &mut Vec<u8>,
        stop: &AtomicBool,
    ) -> Result<Duration, LocalityError> {
        let content = self.tree.content();
        let len = bytes(&batch.regions, content);
        // Filled before the clock starts, so that the system has allocated its memory.
        buffer.clear();
        buffer.resize(len, 0xff);
        let start = Instant::now();
        let mut rest = &mut buffer[..];
        for region in &batch.regions {
            let (into, others) = rest.split_at_mut(region.bytes(content));
            self.read_at(into, region.offset(content))?;
            goes_on(stop)?;
            rest = others;
        }
        let elapsed = start.elapsed();
        self.check(batch, buffer)?;
        Ok(elapsed)
    }

    /// Writes the regions of a batch, one write per region, then syncs the file. Before the clock
    /// starts, it reads them: the new bytes differ from the old ones, but name the same nodes.
    pub(super) fn write(
        &self,
        batch: &AccessBatch,
        is_cold: bool,
        buffer: &mut Vec<u8>,
        stop: &AtomicBool,
    ) -> Result<Duration, LocalityError> {
        self.read(batch, buffer, stop)?;
        let content = self.tree.content();
        for slot in buffer.chunks_exact_mut(content.bytes() as usize) {
            let stamp = &mut slot[TAG..];
            stamp.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(1));
        }
        if is_cold {
            self.evict_pages()?;
        }
        let start = Instant::now();
        let mut rest = &buffer[..];
        for region in &batch.regions {
            let (bytes, others) = rest.split_at(region.bytes(content));
            let written = self.file.write_all_at(bytes, region.offset(content));
            written.map_err(|source| self.failed("writing to", source))?;
            goes_on(stop)?;
            rest = others;
        }
        self.file.sync_data().map_err(|source| self.failed("syncing", source))?;
        Ok(start.elapsed())
    }

    /// Checks that the slots of all paths hold their nodes. `read` is the content of all regions.
    fn check(&self, batch: &AccessBatch, read: &[u8]) -> Result<(), LocalityError> {
        let content = self.tree.content();
        let mut rest = read;
        for (leaf, regions) in batch.leaves() {
            let (own, others) = rest.split_at(bytes(regions, content));
            rest = others;
            let mut wrong = None;
            self.tree.path(leaf, |place| {
                if found(regions, own, place.slot, content) != Some(&tag(place.node)) {
                    wrong = Some(place);
                }
            });
            if let Some(NodePlace { node, slot }) = wrong {
                return Err(LocalityError::WrongNode {
                    tree: self.tree.to_string(),
                    slot,
                    node_height: node.height,
                    index: node.index,
                });
            }
        }
        Ok(())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<(), LocalityError> {
        self.file.read_exact_at(into, offset).map_err(|source| self.failed("reading", source))
    }

    fn advise(&self, advice: PageAdvice) -> Result<(), LocalityError> {
        advise(&self.file, advice)
            .map_err(|source| self.failed("advising the system about", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> LocalityError {
        let path = self.folder.join(format!("({})", self.tree));
        LocalityError::Io { action, path, source }
    }
}

/// Bytes of all regions together.
fn bytes(regions: &[Region], content: SlotContent) -> usize {
    regions.iter().map(|region| region.bytes(content)).sum()
}

/// Number of bytes of a slot that name its node.
const TAG: usize = 8;

/// The name of a node: height and index; never all zero.
fn tag(LayoutNode { height, index }: LayoutNode) -> [u8; TAG] {
    (u64::from(height + 1) << 56 | index).to_be_bytes()
}

/// Sets the content of a slot: the node's name, then bytes that look like hashes; zeros if it is
/// empty.
fn fill(slot: &mut [u8], node: Option<LayoutNode>) {
    let Some(node) = node else { return slot.fill(0) };
    let mut word = u64::from_be_bytes(tag(node));
    for part in slot.chunks_exact_mut(8) {
        part.copy_from_slice(&word.to_be_bytes());
        // SplitMix64's multiplier: not a good mixer alone, but enough to avoid a pattern.
        word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
}

/// The name of the node in `slot`; `read` is the content of `regions`.
fn found<'b>(
    regions: &[Region],
    read: &'b [u8],
    slot: u64,
    content: SlotContent,
) -> Option<&'b [u8; TAG]> {
    let mut before = 0;
    for region in regions {
        if (region.start..region.end).contains(&slot) {
            let at = before + (slot - region.start) as usize * content.bytes() as usize;
            return read.get(at..)?.first_chunk();
        }
        before += region.bytes(content);
    }
    None
}

/// Advice to the system about a file (posix_fadvise).
#[derive(Clone, Copy, Debug)]
enum PageAdvice {
    /// Access is random, without readahead.
    Random,
    /// Its pages may leave the page cache.
    DontNeed,
}

#[cfg(target_os = "linux")]
fn advise(file: &File, advice: PageAdvice) -> io::Result<()> {
    let advice = match advice {
        PageAdvice::Random => rustix::fs::Advice::Random,
        PageAdvice::DontNeed => rustix::fs::Advice::DontNeed,
    };
    Ok(rustix::fs::fadvise(file, 0, None, advice)?)
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &File, advice: PageAdvice) -> io::Result<()> {
    match advice {
        PageAdvice::Random => Ok(()),
        PageAdvice::DontNeed => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(target_os = "linux")]
fn is_tmpfs(file: &File) -> io::Result<bool> {
    /// `TMPFS_MAGIC` of Linux (linux/magic.h).
    const MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::fstatfs(file)?.f_type as i64 == MAGIC)
}

#[cfg(not(target_os = "linux"))]
const fn is_tmpfs(_: &File) -> io::Result<bool> {
    Ok(false)
}

const _: () =
    assert!(PAGE_BYTES.is_multiple_of(SlotContent::ChildHashes.bytes()), "a slot lies in one page");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::TreeLayout;

    static GO: AtomicBool = AtomicBool::new(false);
    /// Bytes of a slot by default.
    const SLOT: usize = SlotContent::NodeHash.bytes() as usize;

    fn made(layout: TreeLayout, height: u32) -> TreeFile {
        TreeFile::create(&std::env::temp_dir(), DenseTree::new(layout, height).unwrap(), &GO)
            .unwrap()
    }

    #[test]
    fn files_of_all_layouts_are_read_and_written_and_still_hold_their_nodes() {
        let mut buffer = Vec::new();
        let trees = TreeLayout::ALL.map(|layout| DenseTree::new(layout, 7).unwrap());
        let wide = trees.map(|tree| {
            tree.with_slots(SlotContent::ChildHashes).with_subtrees("8".parse().unwrap())
        });
        for tree in trees.into_iter().chain(wide) {
            let layout = tree.name();
            let file = TreeFile::create(&std::env::temp_dir(), tree, &GO).unwrap();
            assert_eq!(file.file.metadata().unwrap().len(), file.bytes(), "{layout}");
            let all = || 0..file.tree.leaves();
            let reads = AccessBatch::of(file.tree, DenseTree::read, all());
            file.read(&reads, &mut buffer, &GO).unwrap();
            let before = buffer.clone();
            let writes = AccessBatch::of(file.tree, DenseTree::write, all().take(3));
            file.write(&writes, false, &mut buffer, &GO).unwrap();
            file.read(&reads, &mut buffer, &GO).unwrap();
            assert_ne!(before, buffer, "{layout}: nothing was written");
        }
    }

    #[test]
    fn a_node_in_a_wrong_slot_is_found() {
        let file = made(TreeLayout::Third, 5);
        let batch = AccessBatch::of(file.tree, DenseTree::read, 0..32);
        let mut slot = None;
        file.tree.path(9, |place| {
            if place.node.height == 2 {
                slot = Some(place.slot);
            }
        });
        let slot = slot.unwrap();
        let mut other = [0; SLOT];
        fill(&mut other, Some(LayoutNode { height: 2, index: 3 }));
        file.file.write_all_at(&other, slot * SLOT as u64).unwrap();
        match file.read(&batch, &mut Vec::new(), &GO) {
            Err(LocalityError::WrongNode { slot: found, node_height: 2, index: 2, .. }) => {
                assert_eq!(found, slot);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_chilled_file_is_not_in_the_page_cache_and_a_warm_one_is() {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        let file = made(TreeLayout::Naive, 14);
        if file.is_in_memory().unwrap() {
            return;
        }
        let mut buffer = [0; SLOT];
        // Fails if it would have to wait for the disk.
        let mut at_once = |slot: u64| {
            let mut into = [io::IoSliceMut::new(&mut buffer)];
            preadv2(&file.file, &mut into, slot * SLOT as u64, ReadWriteFlags::NOWAIT)
        };
        // The system may ignore the advice, for example for a page under writeback.
        let chilled = (0..20).find_map(|_| {
            file.evict_pages().unwrap();
            at_once(20_000).err()
        });
        match chilled {
            // Some file systems cannot tell.
            Some(Errno::OPNOTSUPP) => return,
            found => assert_eq!(found, Some(Errno::AGAIN), "its page was still there"),
        }
        file.warm(&GO).unwrap();
        assert_eq!(at_once(20_000), Ok(SLOT));
    }

    #[test]
    fn stopping_ends_it_and_a_missing_folder_is_named() {
        let stop = AtomicBool::new(true);
        let tree = DenseTree::new(TreeLayout::Naive, 17).unwrap();
        let stopped = TreeFile::create(&std::env::temp_dir(), tree, &stop);
        assert!(matches!(stopped, Err(LocalityError::Stopped)));
        let error = TreeFile::create(Path::new("/no/such/folder"), tree, &GO).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }
}
