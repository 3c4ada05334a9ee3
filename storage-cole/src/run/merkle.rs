//! The complete m-ary trees over the pairs and over the filter of a run (COLE, Algorithm 4).
//!
//! Most digests of a tree are in its lowest layers. These follow from few pairs, so they are not
//! stored. The lowest stored layer is written while the leaves come; each layer above is computed
//! from the layer below, which is read back once. Memory is needed for a few leaves only.

use super::file::{PAYLOAD, PageWriter, PagedFile};
use crate::hash::HashBatch;
use alloy_primitives::B256;
use retrie_state::StateError;
use std::ops::Range;

/// Digests in a page.
const DIGESTS: u64 = (PAYLOAD / 32) as u64;
/// The least number of leaves below a stored digest, if the tree has that many.
const LEAVES_A_DIGEST: u64 = 16;
/// About the number of leaves that are hashed together.
const HASHED_TOGETHER: u64 = 1024;

/// The number of layers that are not stored, and the number of leaves below a digest of the lowest
/// stored layer.
fn skipped(fanout: u8) -> (usize, u64) {
    let (mut layers, mut width) = (0, 1);
    while width < LEAVES_A_DIGEST {
        width *= u64::from(fanout);
        layers += 1;
    }
    (layers, width)
}

/// The layers of a tree, and their positions in the file.
#[derive(Clone, Debug)]
pub(crate) struct TreeShape {
    fanout: u64,
    /// The number of digests of each layer, from the leaves to the top.
    counts: Vec<u64>,
    /// The lowest stored layer.
    lowest: usize,
    /// For each stored layer, the number of its first digest in the file.
    starts: Vec<u64>,
    end: u64,
}

impl TreeShape {
    /// The tree over `leaves` leaves (at least one), stored from digest `start` of the file on.
    pub(crate) fn new(leaves: u64, fanout: u8, start: u64) -> Self {
        let m = u64::from(fanout.max(2));
        let mut counts = vec![leaves];
        while let Some(last) = counts.last().filter(|last| **last > 1) {
            counts.push(last.div_ceil(m));
        }
        let lowest = skipped(fanout.max(2)).0.min(counts.len() - 1);
        let mut end = start;
        let starts = counts[lowest..].iter().map(|count| {
            end += count;
            end - count
        });
        let starts = starts.collect();
        Self { fanout: m, counts, lowest, starts, end }
    }

    /// The layer with the top.
    pub(crate) const fn top(&self) -> usize {
        self.counts.len() - 1
    }

    /// The lowest layer that is stored.
    pub(crate) const fn lowest(&self) -> usize {
        self.lowest
    }

    /// The number of digests in a layer.
    pub(crate) fn count(&self, layer: usize) -> u64 {
        self.counts[layer]
    }

    /// The number of the digest after the last one of this tree.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// The number of pages of a file that ends with this tree.
    pub(crate) const fn pages(&self) -> u64 {
        self.end.div_ceil(DIGESTS)
    }

    /// The children of a node, in the layer below.
    pub(crate) fn children(&self, layer: usize, index: u64) -> Range<u64> {
        let start = index * self.fanout;
        start..(start + self.fanout).min(self.counts[layer - 1])
    }

    /// The leaves below a node.
    pub(crate) fn leaves(&self, layer: usize, index: u64) -> Range<u64> {
        let width = self.fanout.pow(layer as u32);
        index * width..((index + 1) * width).min(self.counts[0])
    }

    /// Reads a stored digest.
    pub(crate) fn digest(
        &self,
        file: &PagedFile,
        layer: usize,
        index: u64,
    ) -> Result<B256, StateError> {
        let number = self.starts[layer - self.lowest] + index;
        let page = file.page(number / DIGESTS)?;
        Ok(in_page(page, number))
    }
}

fn in_page(page: &[u8; PAYLOAD], number: u64) -> B256 {
    let at = (number % DIGESTS) as usize * 32;
    B256::from_slice(&page[at..at + 32])
}

/// Replaces `layer` by the layer above it.
pub(crate) fn reduce(layer: &mut Vec<B256>, fanout: u64, batch: &mut HashBatch) {
    for children in layer.chunks(fanout as usize) {
        batch.node(children);
    }
    layer.clear();
    batch.finish_into(layer);
}

/// Turns a stream of leaves into the lowest stored layer.
#[derive(Debug)]
pub(crate) struct LeafHasher {
    fanout: u8,
    count: u64,
    gathered: Vec<B256>,
    /// Indexes of the gathered leaves whose inputs are in `batch`.
    waiting: Vec<usize>,
    batch: HashBatch,
}

impl LeafHasher {
    /// Starts without leaves.
    pub(crate) fn new(fanout: u8) -> Self {
        let (gathered, waiting) = (Vec::new(), Vec::new());
        Self { fanout, count: 0, gathered, waiting, batch: HashBatch::default() }
    }

    /// Adds a leaf by its digest.
    pub(crate) fn add_digest(&mut self, digest: B256) {
        self.gathered.push(digest);
    }

    /// Adds a leaf whose digest is not computed yet: `add` adds its input to the batch.
    pub(crate) fn add_input(&mut self, add: impl FnOnce(&mut HashBatch)) {
        self.waiting.push(self.gathered.len());
        self.gathered.push(B256::ZERO);
        add(&mut self.batch);
    }

    /// Digests of the lowest stored layer, once enough leaves are gathered.
    pub(crate) fn drain(&mut self) -> Option<Vec<B256>> {
        let (layers, width) = skipped(self.fanout);
        let together = (HASHED_TOGETHER / width).max(1) * width;
        (self.gathered.len() as u64 >= together).then(|| self.hash_layers(layers))
    }

    /// The last digests, and the number of all leaves.
    pub(crate) fn finish(mut self) -> (Vec<B256>, u64) {
        let (mut layers, width) = skipped(self.fanout);
        if self.count == 0 && self.gathered.len() as u64 <= width {
            layers = TreeShape::new(self.gathered.len() as u64, self.fanout, 0).top();
        }
        let last = self.hash_layers(layers);
        (last, self.count)
    }

    fn hash_layers(&mut self, layers: usize) -> Vec<B256> {
        let mut digests = Vec::new();
        self.batch.finish_into(&mut digests);
        for (at, digest) in self.waiting.drain(..).zip(digests) {
            self.gathered[at] = digest;
        }
        self.count += self.gathered.len() as u64;
        let mut layer = std::mem::take(&mut self.gathered);
        for _ in 0..layers {
            reduce(&mut layer, self.fanout.into(), &mut self.batch);
        }
        layer
    }
}

/// Writes the trees of a run.
#[derive(Debug)]
pub(crate) struct MerkleWriter {
    out: PageWriter,
    page: Vec<u8>,
    count: u64,
}

impl MerkleWriter {
    /// An empty file.
    pub(crate) const fn new(out: PageWriter) -> Self {
        Self { out, page: Vec::new(), count: 0 }
    }

    /// Adds digests of the lowest stored layer of a tree.
    pub(crate) fn extend(&mut self, digests: &[B256]) -> Result<(), StateError> {
        for digest in digests {
            self.page.extend_from_slice(&digest[..]);
            self.count += 1;
            if self.count.is_multiple_of(DIGESTS) {
                self.out.append(&self.page)?;
                self.page.clear();
            }
        }
        Ok(())
    }

    /// Adds the layers above the lowest stored one, and returns the top.
    pub(crate) fn climb(&mut self, shape: &TreeShape) -> Result<B256, StateError> {
        let mut batch = HashBatch::default();
        let mut above = Vec::new();
        let mut page = (u64::MAX, [0; PAYLOAD]);
        for layer in shape.lowest + 1..=shape.top() {
            let below = shape.starts[layer - 1 - shape.lowest];
            let mut children = Vec::with_capacity(shape.fanout as usize);
            for index in 0..shape.count(layer) {
                children.clear();
                for child in shape.children(layer, index) {
                    children.push(self.read(below + child, &mut page)?);
                }
                batch.node(&children);
                if batch.len() == 64 || index + 1 == shape.count(layer) {
                    batch.finish_into(&mut above);
                    self.extend(&above)?;
                    above.clear();
                }
            }
        }
        self.read(shape.end - 1, &mut page)
    }

    fn read(&self, number: u64, page: &mut (u64, [u8; PAYLOAD])) -> Result<B256, StateError> {
        let wanted = number / DIGESTS;
        if wanted == self.out.pages() {
            let at = (number % DIGESTS) as usize * 32;
            return Ok(B256::from_slice(&self.page[at..at + 32]));
        }
        if page.0 != wanted {
            *page = (wanted, self.out.read_back(wanted)?);
        }
        Ok(in_page(&page.1, number))
    }

    /// Writes the remaining digests and returns the file.
    pub(crate) fn finish(mut self) -> Result<PageWriter, StateError> {
        if !self.page.is_empty() {
            self.out.append(&self.page)?;
        }
        Ok(self.out)
    }
}
