//! Proofs of a run with version trees, made by hand: what each may leave out, and what none may.

use super::*;
use crate::wire::{ColeProof, FilterProof};
use alloy_primitives::Address;
use std::collections::BTreeMap;

/// The versions of four keys in one run; the keys between them are absent.
struct TreeScene {
    params: ColeParams,
    /// By key, the blocks of its versions.
    keys: BTreeMap<u8, Vec<u64>>,
}

fn name(key: u8) -> BackendKey {
    BackendKey::Account(Address::with_last_byte(key).into())
}

fn pair_of(key: u8, block: u64) -> CompoundPair {
    let value = (block != 12).then(|| vec![key, block as u8].into());
    CompoundPair { key: name(key).encode().to_vec(), block, value }
}

fn hidden(node: &ShownNode) -> ShownNode {
    ShownNode::Hidden(ShownPairs::of(node, true).top)
}

fn inner(children: Vec<ShownNode>) -> ShownNode {
    ShownNode::Inner(children)
}

/// The tree over some versions, each shown or hidden. Each joins the tree of those before it.
fn versions(key: u8, blocks: &[u64], is_shown: &dyn Fn(u64) -> bool) -> ShownNode {
    let pair = |block: &u64| {
        let pair = ShownNode::Pair(pair_of(key, *block));
        if is_shown(*block) { pair } else { hidden(&pair) }
    };
    let mut all = blocks.iter().map(pair);
    let first = all.next().unwrap();
    all.fold(first, |tree, next| {
        let is_hidden = |node: &ShownNode| matches!(node, ShownNode::Hidden(_));
        let hide = is_hidden(&tree) && is_hidden(&next);
        let node = inner(vec![tree, next]);
        if hide { hidden(&node) } else { node }
    })
}

impl TreeScene {
    fn new() -> Self {
        let keys = [(10, vec![5, 9, 12, 20]), (20, vec![7]), (30, vec![6, 8]), (40, vec![3, 20])];
        let params = ColeParams { version_trees: true, fanout: 2, ..ColeParams::default() };
        Self { params, keys: keys.into() }
    }

    /// The leaf of a key, with these versions shown.
    fn leaf(&self, key: u8, is_shown: &dyn Fn(u64) -> bool) -> ShownNode {
        let tree = versions(key, &self.keys[&key], is_shown);
        match self.keys[&key].len() {
            1 => ShownNode::Pair(pair_of(key, self.keys[&key][0])),
            _ => ShownNode::Versions(name(key).encode().to_vec(), Box::new(tree)),
        }
    }

    /// A leaf of which nothing but the key is shown.
    fn bare(&self, key: u8) -> ShownNode {
        self.leaf(key, &|_| false)
    }

    /// The tree over four leaves; `None`: hidden.
    fn tree(&self, leaves: [Option<ShownNode>; 4]) -> ShownNode {
        let mut keys = self.keys.keys();
        let leaves = leaves.map(|leaf| {
            let key = *keys.next().unwrap();
            leaf.unwrap_or_else(|| hidden(&self.bare(key)))
        });
        let node = |left: &ShownNode, right: &ShownNode| {
            let is_hidden = |node| matches!(node, &ShownNode::Hidden(_));
            let node = inner(vec![left.clone(), right.clone()]);
            if is_hidden(left) && is_hidden(right) { hidden(&node) } else { node }
        };
        let [a, b, c, d] = &leaves;
        node(&node(a, b), &node(c, d))
    }

    fn source(&self) -> SourceHeader {
        let blocks = || self.keys.values().flatten().copied();
        // A filter that holds every key.
        SourceHeader {
            pairs: blocks().count() as u64,
            first_block: blocks().min().unwrap(),
            last_block: blocks().max().unwrap(),
            top: ShownPairs::of(&self.tree([const { None }; 4]), true).top,
            filter_blocks: 1,
            filter_top: hash::filter_block(&[0xff; 64]),
        }
    }

    fn check(
        &self,
        params: &ColeParams,
        key: u8,
        blocks: RangeInclusive<u64>,
        tree: ShownNode,
    ) -> Result<Vec<u64>, &'static str> {
        let source = self.source();
        let levels = [LevelDigests { writing: vec![source.digest()], merging: Vec::new() }];
        let root = hash::root(1, [B256::ZERO; 2], &levels);
        let filter = FilterProof::Top(source.filter_top);
        let run = SourceProof::Searched { source, excluded: vec![false], filter, tree };
        let memory = [SourceProof::Empty, SourceProof::Empty];
        let proof = ColeProof { horizon: 1, memory, levels: vec![(vec![run], Vec::new())] };
        let asked = [name(key)];
        let bytes = proof.encode(&AskedKeys::new(&asked));
        let shown = verify_versions(params, root, &asked, blocks, &bytes);
        let mut shown = shown.map_err(|error| class(&error))?;
        Ok(shown.remove(0).into_iter().map(|version| version.block).collect())
    }

    fn shows(&self, key: u8, blocks: RangeInclusive<u64>, tree: ShownNode, expected: &[u64]) {
        assert_eq!(self.check(&self.params, key, blocks, tree).as_deref(), Ok(expected));
    }

    fn refuses(&self, class: &str, key: u8, blocks: RangeInclusive<u64>, tree: ShownNode) {
        let shown = self.check(&self.params, key, blocks, tree);
        assert_eq!(shown, Err(class), "key {key}");
    }
}

const LATEST: RangeInclusive<u64> = u64::MAX..=u64::MAX;

#[test]
fn a_proof_shows_the_versions_in_its_range_and_no_neighbours() {
    let scene = TreeScene::new();
    let of_10 = |blocks: &'static [u64]| {
        scene.tree([Some(scene.leaf(10, &|block| blocks.contains(&block))), None, None, None])
    };
    scene.shows(10, LATEST, of_10(&[20]), &[20]);
    scene.shows(10, 12..=19, of_10(&[12, 20]), &[12]);
    scene.shows(10, 6..=9, of_10(&[5, 9, 12]), &[9, 5]);
    scene.shows(10, 1..=30, of_10(&[5, 9, 12, 20]), &[20, 12, 9, 5]);
    scene.shows(10, 4..=4, of_10(&[5]), &[]);
    let of_20 = || scene.tree([None, Some(scene.bare(20)), None, None]);
    for blocks in [LATEST, 7..=7, 1..=7] {
        scene.shows(20, blocks, of_20(), &[7]);
    }
    scene.shows(20, 3..=6, of_20(), &[]);
}

#[test]
fn an_absent_key_is_shown_by_its_neighbours_keys_alone() {
    let scene = TreeScene::new();
    let of = |key| Some(scene.bare(key));
    scene.shows(15, LATEST, scene.tree([of(10), of(20), None, None]), &[]);
    scene.shows(25, 3..=30, scene.tree([None, of(20), of(30), None]), &[]);
    scene.shows(5, 3..=3, scene.tree([of(10), None, None, None]), &[]);
    scene.shows(45, LATEST, scene.tree([None, None, None, of(40)]), &[]);
    // Keys farther off do not do, nor is more than the keys accepted.
    scene.refuses("missing", 15, LATEST, scene.tree([of(10), None, of(30), None]));
    scene.refuses("missing", 20, LATEST, scene.tree([of(10), None, of(30), None]));
    scene.refuses("missing", 15, LATEST, scene.tree([None, of(20), None, None]));
    scene.refuses("unused", 15, LATEST, scene.tree([of(10), of(20), of(30), None]));
    let newest = Some(scene.leaf(10, &|block| block == 20));
    scene.refuses("unused", 15, LATEST, scene.tree([newest, of(20), None, None]));
}

#[test]
fn no_version_can_be_hidden_or_made_up() {
    let scene = TreeScene::new();
    let of_10 = |is_shown: &dyn Fn(u64) -> bool| {
        scene.tree([Some(scene.leaf(10, is_shown)), None, None, None])
    };
    for shown in [5, 9, 12] {
        scene.refuses("missing", 10, LATEST, of_10(&|block| block == shown));
    }
    scene.refuses("missing", 10, LATEST, of_10(&|_| false));
    scene.refuses("unused", 10, LATEST, of_10(&|block| block >= 12));
    scene.refuses("missing", 10, 6..=30, of_10(&|block| block != 9));
    // A store that has pruned the versions before block 12 cannot answer for an older block.
    let pruned = || of_10(&|block| block >= 12);
    scene.shows(10, 12..=12, pruned(), &[12]);
    for blocks in [11..=11, 9..=12, 1..=30] {
        scene.refuses("missing", 10, blocks, pruned());
    }
    let with = |node| scene.tree([Some(node), None, None, None]);
    let key = || name(10).encode().to_vec();
    let leaf = |tree| ShownNode::Versions(key(), Box::new(tree));
    // A pair for the leaf of its key, a key with other versions, the leaf of another key.
    scene.refuses("root", 10, LATEST, with(ShownNode::Pair(pair_of(10, 20))));
    scene.refuses("root", 10, LATEST, with(leaf(versions(10, &[5, 9, 11, 20], &|b| b == 20))));
    scene.refuses("root", 10, 3..=4, with(leaf(versions(10, &[20], &|_| true))));
    let tree = hidden(&versions(10, &scene.keys[&10], &|_| false));
    let other = ShownNode::Versions(name(11).encode().to_vec(), Box::new(tree));
    let tree = scene.tree([Some(other), Some(scene.bare(20)), None, None]);
    scene.refuses("root", 15, LATEST, tree);
    let turned = scene.leaf(10, &|_| false);
    scene.refuses(
        "malformed",
        15,
        LATEST,
        scene.tree([Some(scene.bare(20)), Some(turned), None, None]),
    );
    // A version tree that is too deep.
    let mut deep = versions(10, &[5], &|_| true);
    for _ in 0..600 {
        deep = inner(vec![deep]);
    }
    scene.refuses("malformed", 10, LATEST, with(leaf(deep)));
}

#[test]
fn leaves_of_keys_are_in_runs_of_stores_with_version_trees_alone() {
    let scene = TreeScene::new();
    let tree = || scene.tree([Some(scene.leaf(10, &|block| block == 20)), None, None, None]);
    let plain = ColeParams { version_trees: false, ..scene.params };
    assert_eq!(scene.check(&plain, 10, LATEST, tree()), Err("malformed"));
    // Nor does a single pair show there that its key has no other.
    let single = scene.tree([None, Some(scene.bare(20)), None, None]);
    assert_eq!(scene.check(&plain, 20, LATEST, single.clone()), Err("missing"));
    scene.shows(20, LATEST, single, &[7]);
}
