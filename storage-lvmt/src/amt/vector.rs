//! Commitment and quotients of a whole vector, computed from its entries.
//!
//! Each result is a sum of precomputed points times versions. Versions are small numbers. So a
//! version is cut into digits, and the point goes into the bucket of every digit (Pippenger's
//! method); the buckets of many sums are filled together.

use super::SLOTS;
use crate::{
    params::LvmtParams,
    point::{G1Point, PointAdder},
};
use ark_bn254::{G1Affine, G1Projective};
use ark_ec::CurveGroup;
use ark_ff::AdditiveGroup;
use std::{convert::Infallible, ops::Range};

/// The entries of a vector that have a version above zero, in ascending order.
pub(crate) type SparseEntries<'a> = &'a [(u32, [u64; SLOTS])];

/// Points that go into buckets between two calls of `pause`: a few milliseconds of work.
const SLICE: usize = 1 << 14;

/// The commitment of a vector.
pub(crate) fn commit(params: &LvmtParams, entries: SparseEntries<'_>) -> G1Point {
    let terms = versions(entries).map(|(entry, slot, version)| SumTerm {
        sum: 0,
        weight: version,
        point: params.increment(entry, slot),
    });
    never_paused(|pause| weighted_sums(1, terms, pause))[0]
}

/// The quotients above `entry` at the depths from `first` to h - 1, root side first. `entries` must
/// contain at least all entries below the node at depth `first`. `params` must have quotients.
pub(crate) fn open_sparse(
    params: &LvmtParams,
    entries: SparseEntries<'_>,
    entry: u32,
    first: u8,
) -> Vec<G1Point> {
    let (height, first) = (u32::from(params.height()), u32::from(first));
    if first == height {
        return Vec::new();
    }
    let terms = versions(entries).flat_map(|(other, slot, version)| {
        // The nodes that are above both entries.
        let common = (other ^ entry).leading_zeros() - (u32::BITS - height);
        let (from, to) = (first as usize, height.min(common + 1) as usize);
        let points = params.quotient_increments(other, slot).get(from..to).unwrap_or_default();
        (0..).zip(points).map(move |(sum, point)| SumTerm { sum, weight: version, point })
    });
    never_paused(|pause| weighted_sums((height - first) as usize, terms, pause))
}

/// The quotients of the nodes from the root down to node (`shard_bits`, `shard`), then of all nodes
/// below it, numbered by [`node_index`]. `params` must have quotients.
///
/// The function calls `pause` every few milliseconds; an error of `pause` ends the work.
pub(crate) fn proof_tree<E>(
    params: &LvmtParams,
    entries: SparseEntries<'_>,
    shard_bits: u32,
    shard: u32,
    pause: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Vec<G1Point>, E> {
    let height = u32::from(params.height());
    let mut tree = Vec::with_capacity(node_count(params.height(), shard_bits));
    for depth in 0..height {
        let nodes = match depth.checked_sub(shard_bits) {
            None => shard >> (shard_bits - depth)..(shard >> (shard_bits - depth)) + 1,
            Some(below) => shard << below..(shard + 1) << below,
        };
        // Entries below a node; and as many nodes at a time as fill one slice.
        let width = 1 << (height - depth);
        let at_a_time = (SLICE / (SLOTS * width as usize)).max(1);
        for first in nodes.clone().step_by(at_a_time) {
            let end = nodes.end.min(first + at_a_time as u32);
            let entries = entries_in(entries, first * width..end * width);
            let terms = versions(entries).map(|(entry, slot, weight)| SumTerm {
                sum: entry / width - first,
                weight,
                point: params.quotient_increment(depth as usize, entry, slot),
            });
            tree.extend(weighted_sums((end - first) as usize, terms, pause)?);
            pause()?;
        }
    }
    Ok(tree)
}

/// The quotients of all nodes at the first `depths` depths of several vectors: vector by vector, in
/// each the position of a node is [`upper_node`]. `params` must have quotients.
///
/// The function calls `pause` every few milliseconds; an error of `pause` ends the work.
pub(crate) fn upper_trees<E>(
    params: &LvmtParams,
    vectors: &[Vec<(u32, [u64; SLOTS])>],
    depths: u8,
    pause: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Vec<G1Point>, E> {
    let (height, nodes) = (params.height(), node_count(depths, 0));
    if vectors.is_empty() || nodes == 0 {
        return Ok(Vec::new());
    }
    let terms = (0..).zip(vectors).flat_map(move |(vector, entries)| {
        versions(entries).flat_map(move |(entry, slot, weight)| {
            let points = (0..depths).zip(params.quotient_increments(entry, slot));
            points.map(move |(depth, point)| {
                let sum = vector * nodes as u32 + upper_node(height, depth, entry);
                SumTerm { sum, weight, point }
            })
        })
    });
    weighted_sums(vectors.len() * nodes, terms, pause)
}

/// The position of the node at `depth` above `entry` among the nodes of a vector, root first, then
/// level by level.
pub(crate) const fn upper_node(height: u8, depth: u8, entry: u32) -> u32 {
    (1 << depth) - 1 + (entry >> (height - depth))
}

/// The number of nodes that [`proof_tree`] returns.
pub(crate) const fn node_count(height: u8, shard_bits: u32) -> usize {
    shard_bits as usize + (1 << (height as u32 - shard_bits)) - 1
}

/// The position in [`proof_tree`] of the node at `depth` above `entry`: first come the ancestors of
/// the shard's node, root first; then the shard's subtree, level by level. `None` for other nodes.
pub(crate) fn node_index(
    height: u8,
    shard_bits: u32,
    shard: u32,
    depth: u32,
    entry: u32,
) -> Option<usize> {
    let node = entry >> (u32::from(height) - depth);
    if depth < shard_bits {
        (node == shard >> (shard_bits - depth)).then_some(depth as usize)
    } else {
        let below = depth - shard_bits;
        let first = shard_bits as usize + (1 << below) - 1;
        (node >> below == shard).then(|| first + (node - (shard << below)) as usize)
    }
}

/// All versions above zero, with entry and slot.
fn versions(entries: SparseEntries<'_>) -> impl Iterator<Item = (u32, usize, u64)> + Clone {
    entries.iter().flat_map(|(entry, versions)| {
        let slots = versions.iter().enumerate().filter(|(_, version)| **version > 0);
        slots.map(|(slot, version)| (*entry, slot, *version))
    })
}

fn entries_in(entries: SparseEntries<'_>, range: Range<u32>) -> SparseEntries<'_> {
    let start = entries.partition_point(|(entry, _)| *entry < range.start);
    let end = entries.partition_point(|(entry, _)| *entry < range.end);
    &entries[start..end]
}

/// `weight` times `point`, to be added to one of many sums.
#[derive(Clone, Copy)]
struct SumTerm<'a> {
    sum: u32,
    weight: u64,
    point: &'a G1Point,
}

/// The first `sums` sums of `terms`. The function calls `pause` after every slice.
fn weighted_sums<'a, E>(
    sums: usize,
    terms: impl Iterator<Item = SumTerm<'a>> + Clone,
    pause: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Vec<G1Point>, E> {
    let (mut count, mut all_bits) = (0, 1);
    for term in terms.clone() {
        count += 1;
        all_bits |= term.weight;
    }
    let bits = u64::BITS - all_bits.leading_zeros();
    let digit_bits = (1..=8).min_by_key(|digit| cost(*digit, bits, count / sums)).unwrap_or(1);
    let places = bits.div_ceil(digit_bits) as usize;
    // A digit of zero adds nothing, so it has no bucket.
    let buckets_per_place = (1 << digit_bits) - 1;

    let mut buckets = vec![G1Point::INFINITY; sums * places * buckets_per_place];
    let (mut pending, mut summer) =
        (Vec::with_capacity(count.min(SLICE) + places), PointAdder::default());
    for term in terms {
        for place in 0..places {
            let digit = (term.weight >> (place as u32 * digit_bits)) as usize & buckets_per_place;
            if digit > 0 {
                let bucket = (term.sum as usize * places + place) * buckets_per_place + digit - 1;
                pending.push((bucket as u32, *term.point));
            }
        }
        if pending.len() >= SLICE {
            summer.sum(&mut buckets, &mut pending);
            pause()?;
        }
    }
    summer.sum(&mut buckets, &mut pending);

    let mut totals = Vec::with_capacity(sums);
    for places in buckets.chunks_exact(places * buckets_per_place) {
        let mut total = G1Projective::ZERO;
        for buckets in places.chunks_exact(buckets_per_place).rev() {
            for _ in 0..digit_bits {
                total.double_in_place();
            }
            // 1 times the first bucket, 2 times the second, and so on.
            let mut suffix = G1Projective::ZERO;
            for bucket in buckets.iter().rev() {
                suffix += G1Affine::from(*bucket);
                total += suffix;
            }
        }
        totals.push(total);
    }
    Ok(G1Projective::normalize_batch(&totals).into_iter().map(G1Point::from).collect())
}

/// The cost, in affine additions, of a sum of `count` terms with weights of `bits` bits, cut into
/// digits of `digit` bits. The additions that end a sum are Jacobian, three times as expensive.
fn cost(digit: u32, bits: u32, count: usize) -> usize {
    let places = bits.div_ceil(digit) as usize;
    let buckets = (1 << digit) - 1;
    places * (count * buckets / (buckets + 1) + 6 * buckets)
}

/// Runs `work` with a `pause` that never ends it.
fn never_paused<T>(
    work: impl FnOnce(&mut dyn FnMut() -> Result<(), Infallible>) -> Result<T, Infallible>,
) -> T {
    match work(&mut || Ok(())) {
        Ok(done) => done,
    }
}
