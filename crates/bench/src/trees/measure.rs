//! What trees are measured by: the time of inserts and searches (Fig. 5), the lengths of proofs (Fig. 6),
//! the numbers of chunks (Fig. 7, Table II) and the time to become bytes and a tree again (Fig. 1).

use super::{AvlPlus, Bavl, Structure, Tree, TreesError, bplus::BPlus, elements::Elements};
use crate::figures::quantile;
use serde::Serialize;
use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Searches of a turn, at least: few would measure the clock.
const FEWEST_SEARCHES: u64 = 10_000;
/// Proofs of a tree that are made and checked.
const CHECKED: u64 = 1000;
/// Inserts between two looks at whether to stop.
const LOOK: u64 = 4096;
/// A turn of fewer elements is repeated until it has so many, or [`MOST_ROUNDS`] times.
const ENOUGH: u64 = 300_000;
const MOST_ROUNDS: u64 = 50;

/// Trees of some size.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How many elements.
    pub elements: u64,
    /// Bytes of each value.
    pub bytes: usize,
    /// Most elements of a chunk, or of a cell.
    pub chunk: usize,
    /// Inserts between two calculations of the root; 0 for one at the end.
    pub hash_every: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// Times of one tree, turn by turn.
#[derive(Clone, Debug)]
pub struct Times {
    /// The tree.
    pub structure: Structure,
    /// To insert all elements, roots included.
    pub inserts: Vec<Duration>,
    /// Searches of a turn: 10 % of the elements, or more of small trees.
    pub searches: u64,
    /// To find them.
    pub search_times: Vec<Duration>,
}

/// Builds each tree and searches it, in turns: all trees of one turn are measured next to each other.
///
/// # Errors
/// [`TreesError::Wrong`] if something is not found; [`TreesError::Stopped`].
pub fn race(
    structures: &[Structure],
    setting: &Setting,
    rounds: u64,
    stop: &AtomicBool,
) -> Result<Vec<Times>, TreesError> {
    let elements = Elements::new(setting.seed, setting.bytes);
    let searches = (setting.elements / 10).max(FEWEST_SEARCHES);
    let new = |structure: &Structure| Times {
        structure: *structure,
        inserts: Vec::new(),
        searches,
        search_times: Vec::new(),
    };
    let mut all: Vec<_> = structures.iter().map(new).collect();
    let rounds = rounds.max((ENOUGH / setting.elements.max(1)).min(MOST_ROUNDS));
    for round in 0..rounds as usize {
        // None is always the one behind another.
        for n in 0..all.len() {
            let at = (n + round) % structures.len();
            let times = &mut all[at];
            let (insert, search) = match times.structure {
                Structure::AvlPlus => turn::<AvlPlus>(setting, &elements, searches, stop),
                Structure::BPlus => turn::<BPlus>(setting, &elements, searches, stop),
                Structure::Bavl => turn::<Bavl>(setting, &elements, searches, stop),
            }?;
            times.inserts.push(insert);
            times.search_times.push(search);
        }
    }
    Ok(all)
}

fn turn<T: Tree>(
    setting: &Setting,
    elements: &Elements,
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
    // In another order than they came in.
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

fn wrong<T: Tree>(setting: &Setting, what: &'static str, key: u32) -> TreesError {
    TreesError::Wrong { tree: T::NAME, elements: setting.elements, what, key }
}

/// What a tree's shape is worth once all elements are in it.
#[derive(Clone, Debug, Serialize)]
pub struct Shape {
    /// Name of the tree.
    pub tree: &'static str,
    /// Number of elements.
    pub elements: u64,
    /// Most elements of a chunk, or of a cell; absent of trees that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Hashes in the proof of an element, over all of them.
    pub proof_hashes: Distribution,
    /// Chunks over the fewest possible, after each insertion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Distribution>,
}

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Smallest,
    pub min: f64,
    /// and largest.
    pub max: f64,
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    count: f64,
    mean: f64,
    /// Sum of squares of the differences from the mean (Welford).
    squares: f64,
    min: f64,
    max: f64,
}

impl Sums {
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

    fn distribution(self) -> Distribution {
        let Self { count, mean, squares, min, max } = self;
        Distribution { mean, deviation: (squares / count.max(1.0)).sqrt(), min, max }
    }
}

/// The shape of a tree. Some of its proofs are made and checked.
///
/// # Errors
/// [`TreesError::Wrong`] if a proof does not hold, or is of another length; [`TreesError::Stopped`].
pub fn shape(
    structure: Structure,
    setting: &Setting,
    stop: &AtomicBool,
) -> Result<Shape, TreesError> {
    match structure {
        Structure::AvlPlus => shape_of::<AvlPlus>(setting, stop),
        Structure::BPlus => shape_of::<BPlus>(setting, stop),
        Structure::Bavl => shape_of::<Bavl>(setting, stop),
    }
}

fn shape_of<T: Tree>(setting: &Setting, stop: &AtomicBool) -> Result<Shape, TreesError> {
    let elements = Elements::new(setting.seed, setting.bytes);
    let mut tree = T::new(setting.chunk);
    let mut space = Sums::new();
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
    let mut hashes = Sums::new();
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
    Ok(Shape {
        tree: T::NAME,
        elements: setting.elements,
        chunk: is_chunked.then_some(setting.chunk),
        proof_hashes: hashes.distribution(),
        space: is_chunked.then(|| space.distribution()),
    })
}

/// How long a whole tree takes to become messages, and a tree again, inner nodes but not hashes.
#[derive(Clone, Debug, Serialize)]
pub struct Messages {
    /// Name of the tree.
    pub tree: &'static str,
    /// Number of elements.
    pub elements: u64,
    /// Elements of a message, at most.
    pub chunk: usize,
    /// Number of messages,
    pub messages: usize,
    /// and their bytes.
    pub bytes: u64,
    /// Median time to write them, in milliseconds,
    pub serialize_ms: f64,
    /// and to read them.
    pub deserialize_ms: f64,
}

/// Writes both trees as messages and reads these, turn by turn: B+AVL chunk by chunk, AVL+ element by
/// element.
///
/// # Errors
/// [`TreesError::Wrong`] if another tree comes of it; [`TreesError::Stopped`].
pub fn messages(
    setting: &Setting,
    rounds: u64,
    stop: &AtomicBool,
) -> Result<[Messages; 2], TreesError> {
    let elements = Elements::new(setting.seed, setting.bytes);
    let (mut avlplus, mut bavl) = (AvlPlus::new(setting.chunk), Bavl::new(setting.chunk));
    for n in 0..setting.elements {
        avlplus.insert(elements.key(n), elements.value(n));
        bavl.insert(elements.key(n), elements.value(n));
        if n % LOOK == 0 && stop.load(Ordering::Relaxed) {
            return Err(TreesError::Stopped);
        }
    }
    let roots = (avlplus.root(), bavl.root());
    let mut times = [const { (Vec::new(), Vec::new()) }; 2];
    let mut sizes = [(0, 0); 2];
    for round in 0..rounds.max(1) {
        if stop.load(Ordering::Relaxed) {
            return Err(TreesError::Stopped);
        }
        let (wrote, read, size, again) =
            bytes(|| avlplus.serialize(setting.chunk), AvlPlus::deserialize);
        times[0].0.push(wrote);
        times[0].1.push(read);
        sizes[0] = size;
        if round == 0 && again.is_none_or(|mut tree| tree.root() != roots.0) {
            return Err(wrong::<AvlPlus>(setting, "tree of messages", 0));
        }
        let (wrote, read, size, again) =
            bytes(|| bavl.serialize(), |sent| Bavl::deserialize(setting.chunk, sent));
        times[1].0.push(wrote);
        times[1].1.push(read);
        sizes[1] = size;
        if round == 0 && again.is_none_or(|mut tree| tree.root() != roots.1) {
            return Err(wrong::<Bavl>(setting, "tree of messages", 0));
        }
    }
    let median = |times: &[f64]| quantile(times.iter().copied(), 0.5);
    let of = |at: usize, tree| Messages {
        tree,
        elements: setting.elements,
        chunk: setting.chunk,
        messages: sizes[at].0,
        bytes: sizes[at].1,
        serialize_ms: median(&times[at].0),
        deserialize_ms: median(&times[at].1),
    };
    Ok([of(0, AvlPlus::NAME), of(1, Bavl::NAME)])
}

type Written<T> = (f64, f64, (usize, u64), Option<T>);

fn bytes<T>(
    write: impl FnOnce() -> Vec<Vec<u8>>,
    read: impl FnOnce(&[Vec<u8>]) -> Option<T>,
) -> Written<T> {
    let start = Instant::now();
    let messages = write();
    let wrote = start.elapsed();
    let size = (messages.len(), messages.iter().map(|message| message.len() as u64).sum());
    let start = Instant::now();
    let tree = read(&messages);
    let took = start.elapsed();
    (wrote.as_secs_f64() * 1e3, took.as_secs_f64() * 1e3, size, tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_raced_and_their_shapes_measured() {
        let stop = AtomicBool::new(false);
        let setting = Setting { elements: 3000, bytes: 24, chunk: 16, hash_every: 500, seed: 2 };
        let times = race(&Structure::ALL, &setting, 2, &stop).unwrap();
        assert_eq!(times.len(), 3);
        assert!(times.iter().all(|times| times.inserts.len() == 50
            && times.search_times.len() == 50
            && times.searches == FEWEST_SEARCHES));
        let shapes = Structure::ALL.map(|structure| shape(structure, &setting, &stop).unwrap());
        let [avlplus, bplus, bavl] = shapes.each_ref().map(|shape| shape.proof_hashes.mean);
        // 3,000 leaves lie about 11.6 deep.
        assert!((11.0..12.2).contains(&avlplus) && bavl < avlplus * 1.05, "{avlplus} {bavl}");
        assert!(bplus > 2.0 * avlplus, "{bplus}");
        let [none, half, more] = shapes.map(|shape| shape.space.map(|space| space.mean));
        assert!(none.is_none() && half.unwrap() > more.unwrap(), "{half:?} {more:?}");
        let [avlplus, bavl] = messages(&setting, 2, &stop).unwrap();
        assert_eq!((avlplus.messages, avlplus.bytes), (188, 3000 * (1 + 4 + 4 + 24)));
        assert!(bavl.messages > 188 && bavl.serialize_ms > 0.0);
        let stop = AtomicBool::new(true);
        assert!(matches!(race(&Structure::ALL, &setting, 1, &stop), Err(TreesError::Stopped)));
    }
}
