//! Proof shards: the errors of a node without the right shard, parts of several nodes put together,
//! and a shard that is made again while blocks come.

use crate::common;

use common::chain::{TestChain, key};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{Backend, ProofError, StateError};
use retrie_state_store::StateId;
use retrie_storage_lvmt::{Lvmt, LvmtError, ProofShard};
use std::time::Duration;

const HEIGHT: u8 = 3;
const KEYS: u64 = 150;

fn shards() -> Vec<ProofShard> {
    (0..4).map(|index| format!("{index}/4").parse().unwrap()).collect()
}

/// The same chain on nodes with these shards.
fn nodes(shards: &[ProofShard], blocks: usize) -> Vec<TestChain> {
    let node = |shard: &ProofShard| {
        let mut chain = TestChain::new(common::lvmt(HEIGHT, *shard), 16);
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..blocks {
            chain.random_block(&mut random, KEYS, 20, 5);
        }
        chain
    };
    shards.iter().map(node).collect()
}

#[test]
fn all_nodes_have_the_same_root_and_together_the_same_proofs() {
    let mut all = shards();
    all.extend([ProofShard::None, ProofShard::All]);
    let nodes = nodes(&all, 40);
    let (whole, parts) = nodes.split_last().unwrap();
    let root = whole.store.tip().unwrap().root;
    assert!(parts.iter().all(|node| node.store.tip().unwrap().root == root));
    let mut random = StdRng::seed_from_u64(6);
    let combine =
        |parts: &[_]| whole.store.backend().extensions().proof_shards.unwrap().combine(parts);
    let mut alone = 0;
    for count in [1, 1, 1, 2, 5, 30] {
        for _ in 0..10 {
            let keys: Vec<_> = (0..count).map(|_| key(random.random_range(0..2 * KEYS))).collect();
            let expected = whole.prove(&keys);
            let mut given: Vec<_> =
                parts.iter().map(|node| node.tip().prove_part(&keys).unwrap().bytes).collect();
            assert_eq!(combine(&given).unwrap(), expected.bytes);
            given.rotate_left(3);
            assert_eq!(combine(&given).unwrap(), expected.bytes);
            for (node, part) in parts.iter().zip(&given) {
                match node.tip().prove(&keys) {
                    Ok(proof) => {
                        alone += 1;
                        assert_eq!(proof.bytes, expected.bytes);
                    }
                    Err(StateError::OutsideShard { what, needed, kept }) => {
                        let shard = node.store.backend().extensions().proof_shards.unwrap().shard();
                        assert_eq!(kept, shard);
                        assert_ne!(needed, kept, "{what}");
                        assert!(needed.ends_with("/4") || needed == "all");
                    }
                    Err(error) => panic!("{error}"),
                }
                let shown = whole.store.backend().verify(
                    root,
                    &retrie_state::KeyForm::Plain.keys(&keys),
                    part,
                );
                assert!(shown.is_err() || *part == expected.bytes, "a part passes for a whole");
            }
        }
    }
    assert!(alone > 0, "no node proved anything alone");
    // Parts of different proofs do not fit together.
    let one = parts[0].tip().prove_part(&[key(1)]).unwrap().bytes;
    let two = parts[1].tip().prove_part(&[key(2), key(3)]).unwrap().bytes;
    assert!(matches!(combine(&[one, two]), Err(ProofError::Malformed { .. })));
    assert!(matches!(combine(&[]), Err(ProofError::Missing { .. })));
    let none = parts[4].tip().prove_part(&[key(1)]).unwrap().bytes;
    assert!(matches!(combine(&[none]), Err(ProofError::Missing { .. })));
}

#[test]
fn what_a_part_lacks_is_told_and_who_has_it() {
    let mut all = shards();
    all.extend([ProofShard::None, ProofShard::All]);
    let nodes = nodes(&all, 40);
    let names: Vec<_> = all.iter().map(ToString::to_string).collect();
    let backend = nodes[0].store.backend();
    let faculty = backend.extensions().proof_shards.unwrap();
    let mut random = StdRng::seed_from_u64(12);
    let mut gathered = 0;
    for count in [1, 1, 2, 20] {
        let keys: Vec<_> = (0..count).map(|_| key(random.random_range(0..2 * KEYS))).collect();
        let parts: Vec<_> =
            nodes.iter().map(|node| node.tip().prove_part(&keys).unwrap().bytes).collect();
        let holes_of =
            |parts: &[_]| faculty.holes(&retrie_state::KeyForm::Plain.keys(&keys), parts).unwrap();
        assert_eq!(holes_of(&parts[5..]), []);
        assert_eq!(holes_of(&parts), []);
        for (part, own) in parts.iter().zip(&names) {
            let holes = holes_of(std::slice::from_ref(part));
            assert!(holes.iter().all(|hole| !faculty.fills(own, hole)), "{own}: {holes:?}");
            assert!(holes.iter().all(|hole| faculty.fills("all", hole)));
            for hole in holes {
                // One shard of four can fill the hole; any node can if it needs no shard.
                let having: Vec<_> =
                    (0..4).filter(|at| faculty.fills(&names[*at], &hole)).collect();
                assert!(matches!(having[..], [_]) || having.len() == 4, "{hole}: {having:?}");
                let left = holes_of(&[part.clone(), parts[having[0]].clone()]);
                assert!(!left.contains(&hole), "{hole} is not filled by {}", names[having[0]]);
                gathered += 1;
            }
        }
    }
    assert!(gathered > 20, "{gathered}");
    assert!(faculty.holes(&[key(1).into()], &[]).is_err());
    let hole =
        faculty.holes(&[key(1).into()], &[nodes[4].tip().prove_part(&[key(1)]).unwrap().bytes]);
    let hole = hole.unwrap()[0];
    for shard in ["", "none", "4/4", "1/3", "everything"] {
        assert!(!faculty.fills(shard, &hole), "{shard} has {hole}");
    }
}

/// For any byte that another node changes in its part: versions, positions, flags of holes, hashes,
/// points.
#[test]
fn every_changed_byte_of_a_part_is_noticed() {
    let mut all = shards();
    all.push(ProofShard::None);
    let nodes = nodes(&all, 40);
    let mut random = StdRng::seed_from_u64(13);
    let mut noticed = 0;
    for count in [1, 2, 8] {
        // Present and absent keys.
        let keys: Vec<_> =
            (0..count).map(|_| key(random.random_range(0..KEYS + KEYS / 2))).collect();
        // The asking node has a proof shard, or none.
        for asker in [&nodes[0], &nodes[4]] {
            let state = asker.tip();
            let own = state.prove_part(&keys).unwrap().bytes;
            for other in &nodes[1..4] {
                let part = other.tip().prove_part(&keys).unwrap().bytes;
                state.check_part(&keys, &own, &part).unwrap().unwrap();
                // Every byte for a single key, every seventh byte for many keys.
                for at in (0..part.len()).step_by(if count == 1 { 1 } else { 7 }) {
                    for mask in [1, 1 << (at % 8), 0xff] {
                        let mut changed = part.to_vec();
                        changed[at] ^= mask;
                        let checked = state.check_part(&keys, &own, &changed.into()).unwrap();
                        assert!(checked.is_err(), "byte {at} of {}, {mask:#x}", part.len());
                        noticed += 1;
                    }
                }
                for cut in [0, 1, part.len() / 2, part.len() - 1] {
                    let cut = part.slice(..cut);
                    assert!(state.check_part(&keys, &own, &cut).unwrap().is_err());
                }
                let longer = [&part[..], &[0]].concat().into();
                assert!(state.check_part(&keys, &own, &longer).unwrap().is_err());
            }
        }
    }
    assert!(noticed > 1000, "{noticed}");
    // The part for other keys, and of another state.
    let (one, other) = (&nodes[0], &nodes[1]);
    let keys = [key(1)];
    let own = one.tip().prove_part(&keys).unwrap().bytes;
    let part = other.tip().prove_part(&[key(2)]).unwrap().bytes;
    assert!(one.tip().check_part(&keys, &own, &part).unwrap().is_err());
    let number = other.store.tip().unwrap().block.number - 1;
    let before = other.store.at(StateId::Block(TestChain::hash(number))).unwrap();
    let part = before.prove_part(&keys).unwrap().bytes;
    assert!(one.tip().check_part(&keys, &own, &part).unwrap().is_err());
}

/// The blocks are so old that only the upper nodes of their proof trees are left.
#[test]
fn parts_of_old_proofs_make_the_whole_too() {
    let all = |height| {
        let mut shards: Vec<ProofShard> =
            ["0/4", "1/4", "2/4", "3/4"].map(|shard| shard.parse().unwrap()).into();
        shards.push(ProofShard::All);
        let node = |shard: ProofShard| {
            let mut chain = TestChain::new(common::lvmt(height, shard), 40);
            let mut random = StdRng::seed_from_u64(7);
            for _ in 0..45 {
                chain.random_block(&mut random, 3 * KEYS, 60, 5);
            }
            chain
        };
        shards.into_iter().map(node).collect::<Vec<_>>()
    };
    let mut random = StdRng::seed_from_u64(8);
    for height in [2, 3, 5, 6] {
        let nodes = all(height);
        let (whole, parts) = nodes.split_last().unwrap();
        for number in [5, 12, 27, 28, 29, 44] {
            let hash = TestChain::hash(number);
            for count in [1, 1, 2, 20] {
                let keys: Vec<_> =
                    (0..count).map(|_| key(random.random_range(0..4 * KEYS))).collect();
                let at = |node: &TestChain| node.store.at(StateId::Block(hash)).unwrap();
                let proof = at(whole).prove(&keys).unwrap();
                let backend = whole.store.backend();
                assert!(
                    backend
                        .verify(proof.root, &retrie_state::KeyForm::Plain.keys(&keys), &proof.bytes)
                        .is_ok()
                );
                let given: Vec<_> =
                    parts.iter().map(|node| at(node).prove_part(&keys).unwrap().bytes).collect();
                let combined = backend.extensions().proof_shards.unwrap().combine(&given).unwrap();
                assert_eq!(combined, proof.bytes, "height {height}, block {number}");
            }
        }
    }
}

#[test]
fn a_shard_is_made_again_while_blocks_go_on() {
    let reference = &nodes(&[ProofShard::All], 60)[0];
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let expected = reference.prove(&keys);
    // The duration of the job, and whether proofs are requested meanwhile.
    for (delay, asks) in [(0, false), (3_000, false), (20_000, false), (20_000, true)] {
        // A node without proofs for 20 blocks, then a node with all proofs on the same store.
        let first = nodes(&[ProofShard::None], 20).remove(0);
        let (kv, values) = (first.kv.clone(), first.values.clone());
        drop(first);
        let mut chain = TestChain::on(kv, common::lvmt(HEIGHT, ProofShard::All), 16);
        chain.values = values;
        chain.store.jobs().set_delay(Duration::from_micros(delay));
        let mut random = StdRng::seed_from_u64(5);
        let mut skipped = TestChain::new(common::lvmt(HEIGHT, ProofShard::None), 16);
        for _ in 0..20 {
            skipped.random_block(&mut random, KEYS, 20, 5);
        }
        for n in 0..40 {
            chain.random_block(&mut random, KEYS, 20, 5);
            std::thread::sleep(Duration::from_millis(1));
            if asks && n % 10 == 5 {
                chain.prove(&[key(n), key(n + 200)]);
            }
        }
        assert_eq!(chain.prove(&keys).bytes, expected.bytes, "{delay} us a slice");
        // A revert to a block at which the job was still under way.
        let tip = chain.store.tip().unwrap();
        let values = chain.values.clone();
        chain.block(&[(key(1), None)]);
        chain.revert(tip.block.number, values);
        assert_eq!(chain.prove(&keys).bytes, expected.bytes);
    }
}

/// Proofs of blocks that came while the proof tree was being made, for different durations of the
/// job.
#[test]
fn trees_that_were_passed_are_kept_for_proofs_of_their_blocks() {
    const DEPTH: u64 = 60;
    let fill = |chain: &mut TestChain, random: &mut StdRng, blocks: usize, pause: Duration| {
        for _ in 0..blocks {
            chain.random_block(random, 3 * KEYS, 40, 5);
            std::thread::sleep(pause);
        }
    };
    let mut random = StdRng::seed_from_u64(11);
    let mut reference = TestChain::new(common::lvmt(5, ProofShard::All), DEPTH);
    fill(&mut reference, &mut random, 80, Duration::ZERO);
    for (delay, pause) in [(0, 0), (2_000, 200), (10_000, 1_000), (60_000, 500)] {
        let mut random = StdRng::seed_from_u64(11);
        let mut first = TestChain::new(common::lvmt(5, ProofShard::None), DEPTH);
        fill(&mut first, &mut random, 20, Duration::ZERO);
        let (kv, values) = (first.kv.clone(), first.values.clone());
        drop(first);
        let mut chain = TestChain::on(kv, common::lvmt(5, ProofShard::All), DEPTH);
        chain.values = values;
        chain.store.jobs().set_delay(Duration::from_micros(delay));
        fill(&mut chain, &mut random, 60, Duration::from_micros(pause));
        for number in (20..80).rev() {
            let keys: Vec<_> = (0..4).map(|n| key(number * 7 + 50 * n)).collect();
            let prove = |chain: &TestChain| {
                chain
                    .store
                    .at(StateId::Block(TestChain::hash(number)))
                    .unwrap()
                    .prove(&keys)
                    .unwrap()
            };
            assert_eq!(prove(&chain).bytes, prove(&reference).bytes, "{number}, {delay} us");
        }
    }
}

#[test]
fn another_shard_lacks_the_trees_of_the_time_before() {
    let (one, other) = (shards()[0], shards()[1]);
    let first = nodes(&[one], 30).remove(0);
    let (kv, values) = (first.kv.clone(), first.values.clone());
    drop(first);
    let mut chain = TestChain::on(kv, common::lvmt(HEIGHT, other).with_slack(20), 16);
    chain.values = values;
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let error = chain.tip().prove(&keys).unwrap_err().to_string();
    assert!(error.contains("proof shard 1/4"), "{error}");
    let mut random = StdRng::seed_from_u64(9);
    for _ in 0..300 {
        chain.random_block(&mut random, KEYS, 20, 5);
        // With or without garbage collection: the missing parts belong to another shard, and are no
        // damage.
        match chain.tip().prove_part(&keys) {
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(chain.faults(), [""; 0]);
}

#[test]
fn shards_that_cannot_be_are_refused() {
    let params = common::params(HEIGHT);
    let shard = "5/16".parse().unwrap();
    let error = Lvmt::new(params, shard).unwrap_err();
    assert_eq!(error, LvmtError::NoSuchShard { shard, height: HEIGHT });
    let bare = common::params_without_proofs(HEIGHT);
    assert!(Lvmt::new(bare.clone(), ProofShard::None).is_ok());
    let error = Lvmt::new(bare, ProofShard::All).unwrap_err();
    assert_eq!(error, LvmtError::NoQuotients(ProofShard::All));
}

/// Benchmarks subtract it from `--memory-limit`.
#[test]
fn memory_is_told_by_tables_and_shard() {
    let bytes = |params, shard: &str| {
        Lvmt::new(params, shard.parse().unwrap()).unwrap().profile().cache_bytes
    };
    let whole = common::params(HEIGHT);
    let points = (6 << HEIGHT) * (1 + u64::from(HEIGHT));
    let [none, some, all] = ["none", "1/4", "all"].map(|shard| bytes(whole.clone(), shard));
    assert!(64 * points < none && none < some && some < all, "{none} {some} {all}");
    let bare = bytes(common::params_without_proofs(HEIGHT), "none");
    assert_eq!(none - bare, 64 * (6 << HEIGHT) * u64::from(HEIGHT), "tables for proofs");
}
