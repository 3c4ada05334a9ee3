//! A tree in a file on disk.

use super::{DenseTree, LayoutNode, LocalityError, NodePlace, PAGE_BYTES, Region, SLOT_BYTES};
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
/// Bytes of a slot.
const SLOT: usize = SLOT_BYTES as usize;

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

    fn bytes(&self) -> usize {
        self.regions.iter().map(|region| region.bytes()).sum()
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
        let mut slots = 0_u64;
        tree.nodes(|node| {
            slots += 1;
            if slots.is_multiple_of(1 << 16) && stop.load(Ordering::Relaxed) {
                return Err(LocalityError::Stopped);
            }
            let bytes = node.map_or([0; SLOT], content);
            writer.write_all(&bytes).map_err(|source| file.failed("writing to", source))
        })?;
        writer.flush().map_err(|source| file.failed("writing to", source))?;
        drop(writer);
        file.file.sync_all().map_err(|source| file.failed("syncing", source))?;
        // Without readahead by the system.
        file.advise(PageAdvice::Random)?;
        Ok(file)
    }

    /// Length of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tree.slots() * SLOT_BYTES
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
        let bytes = batch.bytes();
        // Filled before the clock starts, so that the system has allocated its memory.
        buffer.clear();
        buffer.resize(bytes, 0xff);
        let start = Instant::now();
        let mut rest = &mut buffer[..];
        for region in &batch.regions {
            let (into, others) = rest.split_at_mut(region.bytes());
            self.read_at(into, region.offset())?;
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
        for slot in buffer.chunks_exact_mut(SLOT) {
            let stamp = &mut slot[TAG..];
            stamp.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(1));
        }
        if is_cold {
            self.evict_pages()?;
        }
        let start = Instant::now();
        let mut rest = &buffer[..];
        for region in &batch.regions {
            let (bytes, others) = rest.split_at(region.bytes());
            let written = self.file.write_all_at(bytes, region.offset());
            written.map_err(|source| self.failed("writing to", source))?;
            goes_on(stop)?;
            rest = others;
        }
        self.file.sync_data().map_err(|source| self.failed("syncing", source))?;
        Ok(start.elapsed())
    }

    /// Checks that the slots of all paths hold their nodes. `bytes` is the content of all regions.
    fn check(&self, batch: &AccessBatch, bytes: &[u8]) -> Result<(), LocalityError> {
        let mut rest = bytes;
        for (leaf, regions) in batch.leaves() {
            let (own, others) = rest.split_at(regions.iter().map(|region| region.bytes()).sum());
            rest = others;
            let mut wrong = None;
            self.tree.path(leaf, |place| {
                if found(regions, own, place.slot) != Some(&tag(place.node)) {
                    wrong = Some(place);
                }
            });
            if let Some(NodePlace { node, slot }) = wrong {
                return Err(LocalityError::WrongNode {
                    layout: self.tree.layout().name(),
                    height: self.tree.height(),
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
        let path =
            self.folder.join(format!("({} of height {})", self.tree.layout(), self.tree.height()));
        LocalityError::Io { action, path, source }
    }
}

fn goes_on(stop: &AtomicBool) -> Result<(), LocalityError> {
    if stop.load(Ordering::Relaxed) { Err(LocalityError::Stopped) } else { Ok(()) }
}

/// Number of bytes of a slot that name its node.
const TAG: usize = 8;

/// The name of a node: height and index; never all zero.
fn tag(LayoutNode { height, index }: LayoutNode) -> [u8; TAG] {
    (u64::from(height + 1) << 56 | index).to_be_bytes()
}

/// The content of a slot: the node's name, then bytes that look like a hash.
fn content(node: LayoutNode) -> [u8; SLOT] {
    let tag = tag(node);
    let mut bytes = [0; SLOT];
    let mut word = u64::from_be_bytes(tag);
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&word.to_be_bytes());
        // SplitMix64's multiplier: not a good mixer alone, but enough to avoid a pattern.
        word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    bytes
}

/// The name of the node in `slot`; `bytes` is the content of `regions`.
fn found<'b>(regions: &[Region], bytes: &'b [u8], slot: u64) -> Option<&'b [u8; TAG]> {
    let mut before = 0;
    for region in regions {
        if (region.start..region.end).contains(&slot) {
            let at = before + (slot - region.start) as usize * SLOT;
            return bytes.get(at..)?.first_chunk();
        }
        before += region.bytes();
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

const _: () = assert!(PAGE_BYTES.is_multiple_of(SLOT_BYTES), "a slot lies in one page");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::TreeLayout;

    static GO: AtomicBool = AtomicBool::new(false);

    fn made(layout: TreeLayout, height: u32) -> TreeFile {
        TreeFile::create(&std::env::temp_dir(), DenseTree::new(layout, height).unwrap(), &GO)
            .unwrap()
    }

    #[test]
    fn files_of_all_layouts_are_read_and_written_and_still_hold_their_nodes() {
        let mut buffer = Vec::new();
        for layout in TreeLayout::ALL {
            let file = made(layout, 7);
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
        file.file
            .write_all_at(&content(LayoutNode { height: 2, index: 3 }), slot * SLOT_BYTES)
            .unwrap();
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
            preadv2(&file.file, &mut into, slot * SLOT_BYTES, ReadWriteFlags::NOWAIT)
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
