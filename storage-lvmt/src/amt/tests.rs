//! Tables, sums, trees and openings, compared with the [model](super::model).

use super::{
    SLOTS, commit, domain_point, entry_value,
    model::{self, AmtModel},
    node_count, node_index, open_sparse, proof_tree, root_of_unity, upper_node, upper_trees,
};
use crate::{
    params::{EntryOpening, LvmtParams},
    point::{G1Point, sum},
};
use ark_bn254::Fr;
use ark_ff::{Field, One, PrimeField};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{convert::Infallible, ops::ControlFlow};

const SEED: [u8; 32] = [7; 32];

fn params_of(height: u8, tau: Fr) -> LvmtParams {
    LvmtParams::of_tau(height, tau, true, &|_, _, _| ControlFlow::Continue(())).unwrap()
}

fn random_tau(rng: &mut StdRng) -> Fr {
    Fr::from_le_bytes_mod_order(&rng.random::<[u8; 32]>())
}

/// A vector with versions of all sizes, many of them zero.
fn random_model(rng: &mut StdRng, height: u8) -> AmtModel {
    let mut model = AmtModel::new(height, random_tau(rng));
    for version in model.versions.as_flattened_mut() {
        *version = rng.random::<u64>() >> rng.random_range(24..64);
        *version *= u64::from(rng.random_ratio(2, 3));
    }
    model
}

fn tree(params: &LvmtParams, model: &AmtModel, bits: u32, shard: u32) -> Vec<G1Point> {
    let entries = model.entries();
    let Ok(tree) = proof_tree::<Infallible>(params, &entries, bits, shard, &mut || Ok(()));
    tree
}

#[test]
fn domain_points_of_a_node_are_the_roots_of_its_polynomial() {
    for height in 1..=6u8 {
        for depth in 0..height {
            let m = 1u64 << (height - 1 - depth);
            for entry in 0..1u32 << height {
                let sibling = entry ^ (m as u32);
                let (x, y) = (domain_point(height, entry), domain_point(height, sibling));
                assert_eq!(x.pow([m]), -y.pow([m]), "siblings have opposite constants");
                let first = entry >> (height - depth) << (height - depth);
                assert_eq!(x.pow([2 * m]), domain_point(height, first).pow([2 * m]));
            }
        }
        // The usual root of unity: 5 is the smallest generator of the field.
        let exponent = (-Fr::one() / Fr::from(1u64 << height)).into_bigint();
        assert_eq!(root_of_unity(height), Fr::from(5u64).pow(exponent));
        let product =
            |x: Fr| (0..1 << height).fold(Fr::one(), |p, e| p * (x - domain_point(height, e)));
        let x = Fr::from(5u64);
        assert_eq!(product(x), x.pow([1 << height]) - Fr::one(), "all roots, each once");
    }
}

#[test]
fn values_are_versions_side_by_side_and_longer_versions_are_refused() {
    let mut model = random_model(&mut StdRng::seed_from_u64(1), 5);
    model.versions[0] = [(1 << 40) - 1; SLOTS];
    for entry in 0..32 {
        assert_eq!(entry_value(&model.versions[entry as usize]), Some(model.value(entry)));
    }
    for slot in 0..SLOTS {
        let mut versions = [0; SLOTS];
        versions[slot] = 1 << 40;
        assert_eq!(entry_value(&versions), None, "slot {slot}");
    }
}

#[test]
fn tables_are_commitment_and_quotients_of_unit_vectors() {
    let mut rng = StdRng::seed_from_u64(2);
    for height in 1..=4 {
        let mut model = AmtModel::new(height, random_tau(&mut rng));
        let params = params_of(height, model.tau);
        for entry in 0..1 << height {
            for slot in 0..SLOTS {
                model.versions[entry as usize][slot] = 1;
                assert_eq!(*params.increment(entry, slot), model.commitment());
                assert_eq!(params.quotient_increments(entry, slot), model.quotients(entry));
                for depth in 0..usize::from(height) {
                    let point = params.quotient_increment(depth, entry, slot);
                    assert_eq!(*point, params.quotient_increments(entry, slot)[depth]);
                }
                model.versions[entry as usize][slot] = 0;
            }
        }
    }
}

#[test]
fn updates_by_sums_lead_where_the_polynomial_is() {
    let mut rng = StdRng::seed_from_u64(3);
    for height in 1..=6 {
        let mut model = AmtModel::new(height, random_tau(&mut rng));
        let params = params_of(height, model.tau);
        // The commitment, then the nodes of the whole tree.
        let mut points = vec![G1Point::INFINITY; 1 + node_count(height, 0)];
        for _ in 0..4 {
            let mut terms = Vec::new();
            for _ in 0..rng.random_range(1..200) {
                let (entry, slot) = (rng.random_range(0..1 << height), rng.random_range(0..SLOTS));
                model.versions[entry as usize][slot] += 1;
                terms.push((0, *params.increment(entry, slot)));
                for (depth, add) in (0..).zip(params.quotient_increments(entry, slot)) {
                    let node = node_index(height, 0, 0, depth, entry).unwrap();
                    terms.push((1 + node as u32, *add));
                }
            }
            sum(&mut points, &mut terms);
            assert_eq!(points[0], model.commitment());
            assert_eq!(points[0], commit(&params, &model.entries()));
            assert_eq!(points[1..], tree(&params, &model, 0, 0));
        }
        let f = model.polynomial();
        for depth in 0..u32::from(height) {
            for entry in 0..1 << height {
                let node = node_index(height, 0, 0, depth, entry).unwrap();
                assert_eq!(points[1 + node], model.quotient(&f, depth, entry));
            }
        }
    }
}

#[test]
fn upper_trees_are_the_tops_of_whole_trees() {
    let mut rng = StdRng::seed_from_u64(5);
    for height in 1..=6u8 {
        let tau = random_tau(&mut rng);
        let params = params_of(height, tau);
        let models: Vec<_> =
            (0..3).map(|_| AmtModel { tau, ..random_model(&mut rng, height) }).collect();
        let mut vectors: Vec<_> = models.iter().map(AmtModel::entries).collect();
        vectors[1].clear();
        for depths in 0..=height {
            let Ok(upper) = upper_trees::<Infallible>(&params, &vectors, depths, &mut || Ok(()));
            let nodes = node_count(depths, 0);
            assert_eq!(upper.len(), 3 * nodes);
            let whole = [tree(&params, &models[0], 0, 0), tree(&params, &models[2], 0, 0)];
            assert_eq!(upper[..nodes], whole[0][..nodes]);
            assert!(upper[nodes..2 * nodes].iter().all(G1Point::is_infinity));
            assert_eq!(upper[2 * nodes..], whole[1][..nodes]);
            for (depth, entry) in (0..depths).flat_map(|d| (0..1 << height).map(move |e| (d, e))) {
                let index = node_index(height, 0, 0, depth.into(), entry).unwrap();
                assert_eq!(upper_node(height, depth, entry) as usize, index);
            }
        }
    }
}

#[test]
fn opened_vectors_have_the_quotients_of_polynomial_division() {
    let mut rng = StdRng::seed_from_u64(4);
    for height in 1..=6 {
        let model = random_model(&mut rng, height);
        let params = params_of(height, model.tau);
        let entries = model.entries();
        assert_eq!(commit(&params, &entries), model.commitment());
        for _ in 0..4 {
            let entry = rng.random_range(0..1 << height);
            for first in 0..=height {
                // The entries below the first node suffice.
                let below = entries
                    .iter()
                    .filter(|(other, _)| u64::from(other ^ entry) >> (height - first) == 0);
                let below: Vec<_> = below.copied().collect();
                let quotients = &model.quotients(entry)[first.into()..];
                assert_eq!(open_sparse(&params, &entries, entry, first), quotients);
                assert_eq!(open_sparse(&params, &below, entry, first), quotients);
            }
        }
        let nothing = vec![G1Point::INFINITY; height.into()];
        assert_eq!(open_sparse(&params, &[], 0, 0), nothing);
    }
}

#[test]
fn every_shard_has_its_part_of_the_whole_tree() {
    let mut rng = StdRng::seed_from_u64(5);
    let height = 5;
    let model = random_model(&mut rng, height);
    let params = params_of(height, model.tau);
    let whole = tree(&params, &model, 0, 0);
    for bits in 0..=u32::from(height) {
        for shard in 0..1 << bits {
            let part = tree(&params, &model, bits, shard);
            assert_eq!(part.len(), node_count(height, bits));
            let mut seen = vec![false; part.len()];
            for (depth, entry) in (0..5).flat_map(|d| (0..32).map(move |e| (d, e))) {
                let index = node_index(height, bits, shard, depth, entry);
                let is_common =
                    depth <= bits && entry >> (5 - depth) == shard >> (bits - depth.min(bits));
                let is_below = depth >= bits && entry >> (5 - bits) == shard;
                assert_eq!(
                    index.is_some(),
                    is_common || is_below,
                    "{bits} {shard} {depth} {entry}"
                );
                if let Some(index) = index {
                    seen[index] = true;
                    let in_whole = node_index(height, 0, 0, depth, entry).unwrap();
                    assert_eq!(part[index], whole[in_whole]);
                }
            }
            assert!(seen.into_iter().all(|seen| seen), "every number names a node");
        }
    }
}

#[test]
fn a_pause_can_end_the_making_of_a_tree() {
    let params = params_of(3, Fr::from(99u64));
    let ended = proof_tree(&params, &[(1, [1; SLOTS])], 0, 0, &mut || Err("enough"));
    assert_eq!(ended, Err("enough"));
}

#[test]
fn true_openings_pass_alone_and_together_and_any_change_is_found() {
    let mut rng = StdRng::seed_from_u64(6);
    for height in [1, 3, 6] {
        let tau = random_tau(&mut rng);
        let params = params_of(height, tau);
        let verifier = params.verifier();
        let vectors: Vec<_> =
            (0..3).map(|_| AmtModel { tau, ..random_model(&mut rng, height) }).collect();
        let entries: Vec<u32> = vectors.iter().map(|_| rng.random_range(0..1 << height)).collect();
        let quotients: Vec<_> =
            vectors.iter().zip(&entries).map(|(v, e)| v.quotients(*e)).collect();
        let opening = |i: usize| EntryOpening {
            commitment: vectors[i].commitment(),
            entry: entries[i],
            versions: vectors[i].versions[entries[i] as usize],
            quotients: &quotients[i],
        };
        let all = [opening(0), opening(1), opening(2)];
        assert!(verifier.check_openings(&[], &SEED), "no claim is no false claim");
        assert!(verifier.check_openings(&all[..1], &SEED));
        assert!(verifier.check_openings(&all, &SEED));

        for wrong in 0..3 {
            let refused = |change: &dyn Fn(&mut EntryOpening<'_>)| {
                let mut claims = all;
                change(&mut claims[wrong]);
                assert!(!verifier.check_openings(&claims, &SEED));
                assert!(!verifier.check_openings(&claims[wrong..=wrong], &SEED));
            };
            refused(&|claim| claim.commitment = model::point(Fr::from(5u64)));
            refused(&|claim| claim.commitment = G1Point::INFINITY);
            refused(&|claim| claim.entry = 1 << height);
            refused(&|claim| claim.quotients = &[]);
            for slot in 0..SLOTS {
                refused(&|claim| claim.versions[slot] += 1);
                refused(&|claim| claim.versions[slot] |= 1 << 40);
            }
            for depth in 0..usize::from(height) {
                let mut changed = quotients[wrong].clone();
                changed[depth] = model::point(Fr::from(3u64));
                let mut claims = all;
                claims[wrong].quotients = &changed;
                assert!(!verifier.check_openings(&claims, &SEED), "quotient {depth}");
            }
            let other = entries[wrong] ^ 1;
            if vectors[wrong].value(other) != vectors[wrong].value(entries[wrong]) {
                refused(&|claim| claim.entry = other);
            }
        }
    }
}

#[test]
fn versions_that_carry_into_the_next_slot_are_not_the_same_value() {
    // 2^40 in slot 0 is 1 in slot 1: only the range check tells them apart.
    let mut model = AmtModel::new(2, Fr::from(1234u64));
    model.versions[3] = [0, 1, 0, 0, 0, 0];
    let params = params_of(2, model.tau);
    let quotients = model.quotients(3);
    let mut opening = EntryOpening {
        commitment: model.commitment(),
        entry: 3,
        versions: model.versions[3],
        quotients: &quotients,
    };
    assert!(params.verifier().check_openings(&[opening], &SEED));
    opening.versions = [1 << 40, 0, 0, 0, 0, 0];
    assert!(!params.verifier().check_openings(&[opening], &SEED));
}

#[test]
fn openings_whose_errors_cancel_are_refused_together() {
    // Two false claims whose errors are opposite: their plain sum holds, a random one does not.
    let model = AmtModel::new(2, Fr::from(77u64));
    let params = params_of(2, model.tau);
    let nothing = vec![G1Point::INFINITY; 2];
    let off = model::point(Fr::from(9u64));
    let claim = |commitment| EntryOpening {
        commitment,
        entry: 0,
        versions: [0; SLOTS],
        quotients: &nothing,
    };
    assert!(params.verifier().check_openings(&[claim(G1Point::INFINITY); 2], &SEED));
    assert!(!params.verifier().check_openings(&[claim(off), claim(-off)], &SEED));
}
