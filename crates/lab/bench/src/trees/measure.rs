//! Measures trees: the time of inserts and searches (Fig. 5), the lengths of proofs (Fig. 6), the
//! numbers of chunks (Fig. 7, Table II), and the time of serialisation (Fig. 1).

use super::{
    AuthenticatedTree, AvlPlusTree, BavlTree, TreeStructure, TreesError, avlstar::AvlStarTree,
    bplus::BPlusTree, elements::ElementGenerator,
};
use retrie_report::stats::quantile;
use serde::Serialize;
use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Smallest number of searches per turn, so that the clock's resolution does not matter.
const FEWEST_SEARCHES: u64 = 10_000;
/// Number of proofs of a tree that are made and verified.
const CHECKED: u64 = 1000;
/// Inserts between two checks of the stop flag.
const LOOK: u64 = 4096;
/// A turn with fewer elements is repeated until this number is reached, at most [`MOST_ROUNDS`]
/// times.
const ENOUGH: u64 = 300_000;
const MOST_ROUNDS: u64 = 50;

/// The parameters of the trees.
#[derive(Clone, Copy, Debug)]
pub struct TreeBenchConfig {
    /// Number of elements.
    pub elements: u64,
    /// Bytes of each value.
    pub bytes: usize,
    /// Largest number of elements in a chunk, or in a node of the B+tree.
    pub chunk: usize,
    /// Inserts between two computations of the root; 0 for one at the end.
    pub hash_every: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// Times of one tree, turn by turn.
#[derive(Clone, Debug)]
pub struct TreeTimes {
    /// The tree.
    pub structure: TreeStructure,
    /// Times to insert all elements, with the computation of roots.
    pub inserts: Vec<Duration>,
    /// Number of searches per turn: 10 % of the elements, or more for small trees.
    pub searches: u64,
    /// Times of these searches.
    pub search_times: Vec<Duration>,
}

/// Builds and searches each tree, in turns. The trees of one turn run directly after each other.
///
/// # Errors
/// [`TreesError::Wrong`] if a key is not found; [`TreesError::Stopped`].
pub fn race(
    structures: &[TreeStructure],
    setting: &TreeBenchConfig,
    rounds: u64,
    stop: &AtomicBool,
) -> Result<Vec<TreeTimes>, TreesError> {
    let elements = ElementGenerator::new(setting.seed, setting.bytes);
    let searches = (setting.elements / 10).max(FEWEST_SEARCHES);
    let new = |structure: &TreeStructure| TreeTimes {
        structure: *structure,
        inserts: Vec::new(),
        searches,
        search_times: Vec::new(),
    };
    let mut all: Vec<_> = structures.iter().map(new).collect();
    let rounds = rounds.max((ENOUGH / setting.elements.max(1)).min(MOST_ROUNDS));
    for round in 0..rounds as usize {
        // Rotated, so that no tree always follows the same one.
        for n in 0..all.len() {
            let at = (n + round) % structures.len();
            let times = &mut all[at];
            let (insert, search) = match times.structure {
                TreeStructure::AvlPlus => turn::<AvlPlusTree>(setting, &elements, searches, stop),
                TreeStructure::AvlStar => turn::<AvlStarTree>(setting, &elements, searches, stop),
                TreeStructure::BPlus => turn::<BPlusTree>(setting, &elements, searches, stop),
                TreeStructure::Bavl => turn::<BavlTree>(setting, &elements, searches, stop),
            }?;
            times.inserts.push(insert);
            times.search_times.push(search);
        }
    }
    Ok(all)
}

fn turn<T: AuthenticatedTree>(
    setting: &TreeBenchConfig,
    elements: &ElementGenerator,
    searches: u64,
    stop: &AtomicBool,
) -> Result<(Duration, Duration), TreesError> {
    let start = Instant::now();
    let mut tree = T::new(setting.chunk);
    for n in 0..setting.elements {
        tree.insert(elements.key(n), elements.value(n));
        if setting.hash_every > 0 && (n + 1) % setting.hash_every == 0 {
            black_box(tree.root());
        }
        if n % LOOK == 0 && stop.load(Ordering::Relaxed) {
            return Err(TreesError::Stopped);
        }
    }
    black_box(tree.root());
    let inserts = start.elapsed();
    // In another order than the insertions.
    let number = |n: u64| (n.wrapping_mul(0x9e37_79b1) + n / setting.elements) % setting.elements;
    let start = Instant::now();
    let mut sum = 0;
    for n in 0..searches {
        let key = elements.key(number(n));
        let Some(value) = tree.get(key) else { return Err(wrong::<T>(setting, "value", key)) };
        sum += u64::from(value.first().copied().unwrap_or_default());
    }
    black_box(sum);
    Ok((inserts, start.elapsed()))
}

fn wrong<T: AuthenticatedTree>(
    setting: &TreeBenchConfig,
    what: &'static str,
    key: u32,
) -> TreesError {
    TreesError::Wrong { tree: T::NAME, elements: setting.elements, what, key }
}

/// Measures of a tree's shape after all insertions.
#[derive(Clone, Debug, Serialize)]
pub struct TreeShape {
    /// Name of the tree.
    pub tree: &'static str,
    /// Number of elements.
    pub elements: u64,
    /// Largest number of elements in a chunk, or in a node of the B+tree; absent if the tree has no
    /// chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Number of hashes in the proof of an element, over all elements.
    pub proof_hashes: SummaryStats,
    /// Number of chunks divided by the smallest possible number, after each insertion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<SummaryStats>,
}

/// Summary statistics of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SummaryStats {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

#[derive(Clone, Copy, Debug)]
struct RunningStats {
    count: f64,
    mean: f64,
    /// Sum of squares of the differences from the mean (Welford).
    squares: f64,
    min: f64,
    max: f64,
}

impl RunningStats {
    const fn new() -> Self {
        Self { count: 0.0, mean: 0.0, squares: 0.0, min: f64::INFINITY, max: 0.0 }
    }

    const fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
    }

    fn distribution(self) -> SummaryStats {
        let Self { count, mean, squares, min, max } = self;
        SummaryStats { mean, deviation: (squares / count.max(1.0)).sqrt(), min, max }
    }
}

/// Measures the shape of a tree. Some of its proofs are made and verified.
///
/// # Errors
/// [`TreesError::Wrong`] if a proof is wrong, or has another length; [`TreesError::Stopped`].
pub fn shape(
    structure: TreeStructure,
    setting: &TreeBenchConfig,
    stop: &AtomicBool,
) -> Result<TreeShape, TreesError> {
    match structure {
        TreeStructure::AvlPlus => shape_of::<AvlPlusTree>(setting, stop),
        TreeStructure::AvlStar => shape_of::<AvlStarTree>(setting, stop),
        TreeStructure::BPlus => shape_of::<BPlusTree>(setting, stop),
        TreeStructure::Bavl => shape_of::<BavlTree>(setting, stop),
    }
}

fn shape_of<T: AuthenticatedTree>(
    setting: &TreeBenchConfig,
    stop: &AtomicBool,
) -> Result<TreeShape, TreesError> {
    let elements = ElementGenerator::new(setting.seed, setting.bytes);
    let mut tree = T::new(setting.chunk);
    let mut space = RunningStats::new();
    for n in 0..setting.elements {
        tree.insert(elements.key(n), elements.value(n));
        if let Some(chunks) = tree.chunks() {
            space.add(chunks as f64 / (n + 1).div_ceil(setting.chunk as u64) as f64);
        }
        if n % LOOK == 0 && stop.load(Ordering::Relaxed) {
            return Err(TreesError::Stopped);
        }
    }
    let root = tree.root();
    let mut hashes = RunningStats::new();
    let mut lengths = Vec::with_capacity(setting.elements as usize);
    tree.each_proof(&mut |length| {
        hashes.add(length as f64);
        lengths.push(length as u32);
    });
    let mut keys: Vec<_> = (0..setting.elements).map(|n| (elements.key(n), n)).collect();
    keys.sort_unstable();
    let every = (setting.elements / CHECKED).max(1) as usize;
    for ((key, n), length) in keys.into_iter().zip(lengths).step_by(every) {
        let proof = tree.prove(key).ok_or_else(|| wrong::<T>(setting, "absence", key))?;
        if proof.root(key, elements.value(n)) != root {
            return Err(wrong::<T>(setting, "proof", key));
        }
        if proof.hashes() != length as usize {
            return Err(wrong::<T>(setting, "length of proof", key));
        }
    }
    let is_chunked = tree.chunks().is_some();
    Ok(TreeShape {
        tree: T::NAME,
        elements: setting.elements,
        chunk: is_chunked.then_some(setting.chunk),
        proof_hashes: hashes.distribution(),
        space: is_chunked.then(|| space.distribution()),
    })
}

/// Times to serialise a whole tree to messages and to rebuild it, with inner nodes, without hashes.
#[derive(Clone, Debug, Serialize)]
pub struct MessageTimes {
    /// Name of the tree.
    pub tree: &'static str,
    /// Number of elements.
    pub elements: u64,
    /// Largest number of elements in a message.
    pub chunk: usize,
    /// Number of messages.
    pub messages: usize,
    /// Bytes of all messages.
    pub bytes: u64,
    /// Median time to serialise, in milliseconds.
    pub serialize_ms: f64,
    /// Median time to rebuild, in milliseconds.
    pub deserialize_ms: f64,
}

/// Serialises a tree and rebuilds it: AVL+ element by element, the others chunk by chunk. `None`
/// for the B+tree, which has no messages.
///
/// # Errors
/// [`TreesError::Wrong`] if the rebuilt tree has another root; [`TreesError::Stopped`].
pub fn messages(
    structure: TreeStructure,
    setting: &TreeBenchConfig,
    rounds: u64,
    stop: &AtomicBool,
) -> Result<Option<MessageTimes>, TreesError> {
    let chunk = setting.chunk;
    let turns = MessageTurns { setting, rounds, stop };
    let times = match structure {
        TreeStructure::BPlus => return Ok(None),
        TreeStructure::AvlPlus => {
            turns.run(|tree: &AvlPlusTree| tree.serialize(chunk), AvlPlusTree::deserialize)
        }
        TreeStructure::AvlStar => {
            turns.run(AvlStarTree::serialize, |sent| AvlStarTree::deserialize(chunk, sent))
        }
        TreeStructure::Bavl => {
            turns.run(BavlTree::serialize, |sent| BavlTree::deserialize(chunk, sent))
        }
    };
    times.map(Some)
}

struct MessageTurns<'a> {
    setting: &'a TreeBenchConfig,
    rounds: u64,
    stop: &'a AtomicBool,
}

impl MessageTurns<'_> {
    fn run<T: AuthenticatedTree>(
        &self,
        write: impl Fn(&T) -> Vec<Vec<u8>>,
        read: impl Fn(&[Vec<u8>]) -> Option<T>,
    ) -> Result<MessageTimes, TreesError> {
        let Self { setting, rounds, stop } = *self;
        let elements = ElementGenerator::new(setting.seed, setting.bytes);
        let mut tree = T::new(setting.chunk);
        for n in 0..setting.elements {
            tree.insert(elements.key(n), elements.value(n));
            if n % LOOK == 0 && stop.load(Ordering::Relaxed) {
                return Err(TreesError::Stopped);
            }
        }
        let root = tree.root();
        let (mut wrote, mut rebuilt, mut size) = (Vec::new(), Vec::new(), (0, 0));
        for round in 0..rounds.max(1) {
            if stop.load(Ordering::Relaxed) {
                return Err(TreesError::Stopped);
            }
            let start = Instant::now();
            let messages = write(&tree);
            wrote.push(start.elapsed().as_secs_f64() * 1e3);
            size = (messages.len(), messages.iter().map(|message| message.len() as u64).sum());
            let start = Instant::now();
            let again = read(&messages);
            rebuilt.push(start.elapsed().as_secs_f64() * 1e3);
            if round == 0 && again.is_none_or(|mut tree| tree.root() != root) {
                return Err(wrong::<T>(setting, "tree of messages", 0));
            }
        }
        Ok(MessageTimes {
            tree: T::NAME,
            elements: setting.elements,
            chunk: setting.chunk,
            messages: size.0,
            bytes: size.1,
            serialize_ms: quantile(wrote.into_iter(), 0.5),
            deserialize_ms: quantile(rebuilt.into_iter(), 0.5),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_raced_and_their_shapes_measured() {
        let stop = AtomicBool::new(false);
        let setting =
            TreeBenchConfig { elements: 3000, bytes: 24, chunk: 16, hash_every: 500, seed: 2 };
        let times = race(&TreeStructure::ALL, &setting, 2, &stop).unwrap();
        assert_eq!(times.len(), 4);
        assert!(times.iter().all(|times| times.inserts.len() == 50
            && times.search_times.len() == 50
            && times.searches == FEWEST_SEARCHES));
        let shapes = TreeStructure::ALL.map(|structure| shape(structure, &setting, &stop).unwrap());
        let [avlplus, avlstar, bplus, bavl] =
            shapes.each_ref().map(|shape| shape.proof_hashes.mean);
        assert_eq!(avlstar, avlplus, "chunks do not change the tree");
        // The mean depth of 3,000 leaves is about 11.6.
        assert!((11.0..12.2).contains(&avlplus) && bavl < avlplus * 1.05, "{avlplus} {bavl}");
        assert!(bplus > 2.0 * avlplus, "{bplus}");
        let [none, star, half, more] = shapes.map(|shape| shape.space.map(|space| space.mean));
        assert!(none.is_none() && half.unwrap() > more.unwrap(), "{half:?} {more:?}");
        assert!((1.3..1.6).contains(&star.unwrap()), "{star:?}");
        let [avlplus, avlstar, none, bavl] =
            TreeStructure::ALL.map(|structure| messages(structure, &setting, 2, &stop).unwrap());
        let avlplus = avlplus.unwrap();
        assert_eq!((avlplus.messages, avlplus.bytes), (188, 3000 * (1 + 4 + 4 + 24)));
        assert!(none.is_none());
        for one in [avlstar, bavl].map(Option::unwrap) {
            assert!(one.messages > 188 && one.serialize_ms > 0.0, "{one:?}");
        }
        let stop = AtomicBool::new(true);
        assert!(matches!(race(&TreeStructure::ALL, &setting, 1, &stop), Err(TreesError::Stopped)));
    }
}
