//! Proofs forged by an attacker who knows the whole store. For each forgery exactly one check must
//! reject it.

use super::{
    model::{ModelSource, ModelTree, StoreModel, some_keys},
    *,
};
use crate::wire::{ColeProof, FilterProof};
use retrie_state::BackendKey;
use std::collections::{BTreeMap, BTreeSet};

/// All error classes except that of another kind.
const ANY: [&str; 4] = ["malformed", "missing", "unused", "root"];

/// A question, and the number of verdicts on each kind of forged answer.
struct ForgeryScene {
    state: StoreModel,
    root: B256,
    keys: Vec<BackendKey>,
    asked: AskedKeys,
    blocks: RangeInclusive<u64>,
    verdicts: BTreeMap<(&'static str, &'static str), u32>,
}

impl ForgeryScene {
    fn verdict(&self, root: B256, bytes: &[u8]) -> &'static str {
        let (params, blocks) = (&self.state.params, self.blocks.clone());
        match verify_versions(params, root, &self.keys, blocks, bytes) {
            Ok(_) => "ok",
            Err(error) => class(&error),
        }
    }

    /// Asserts that the verifier rejects these bytes with an error of one of these classes.
    fn refuse_bytes(&mut self, how: &'static str, classes: &[&str], bytes: &[u8]) {
        let verdict = self.verdict(self.root, bytes);
        assert!(classes.contains(&verdict), "{how}: {verdict}: {}", hex::encode(bytes));
        *self.verdicts.entry((how, verdict)).or_default() += 1;
    }

    fn refuse_proof(&mut self, how: &'static str, classes: &[&str], proof: &ColeProof) {
        let bytes = proof.encode(&self.asked);
        self.refuse_bytes(how, classes, &bytes);
    }

    /// The same for a proof of these sources.
    fn refuse(&mut self, how: &'static str, classes: &[&str], sources: &[SourceProof]) {
        let proof = self.state.proof(sources.to_vec());
        self.refuse_proof(how, classes, &proof);
    }

    /// An honest proof of another store: valid under that store's root, and rejected under this
    /// one's.
    fn refuse_other(&mut self, how: &'static str, other: &StoreModel) {
        let bytes = other.prove(&self.keys, &self.blocks);
        if other.root() != self.root && *self.blocks.start() >= other.horizon {
            assert_eq!(self.verdict(other.root(), &bytes), "ok", "{how}");
            self.refuse_bytes(how, &["root"], &bytes);
        }
    }
}

/// Every forgery at every source of some hundred proofs. At the end, checks that each forgery was
/// possible.
#[test]
fn whoever_knows_everything_still_cannot_lie() {
    let rng = &mut StdRng::seed_from_u64(4);
    let mut verdicts = BTreeMap::new();
    for _ in 0..250 {
        let count = [2, 6, 30][rng.random_range(0..3)];
        let state = StoreModel::random(rng, count);
        let asked = rng.random_range(1..4);
        let keys = some_keys(rng, count * 3 / 2, asked);
        let blocks = state.range(rng);
        let (root, asked) = (state.root(), AskedKeys::new(&keys));
        let mut scene = ForgeryScene { state, root, keys, asked, blocks, verdicts };
        other_stores(&mut scene);
        heads(&mut scene);
        for at in 0..scene.state.sources.len() {
            source(&mut scene, at);
            filter(&mut scene, at);
            tree(&mut scene, at);
        }
        verdicts = scene.verdicts;
    }
    let mut by_kind = BTreeMap::<_, u32>::new();
    for ((how, _), count) in &verdicts {
        *by_kind.entry(*how).or_default() += count;
    }
    assert!(by_kind.len() == 36 && by_kind.values().all(|count| *count > 5), "{by_kind:?}");
}

/// Stores that differ in one thing. Their proofs are consistent in themselves.
fn other_stores(scene: &mut ForgeryScene) {
    let state = scene.state.clone();
    for (at, source) in state.sources.iter().enumerate() {
        for (number, pair) in source.pairs.iter().enumerate() {
            if !scene.keys.iter().any(|key| key.encode()[..] == pair.key) {
                continue;
            }
            let change = |how, change: &dyn Fn(&mut ModelSource), scene: &mut ForgeryScene| {
                let mut other = state.clone();
                change(&mut other.sources[at]);
                scene.refuse_other(how, &other);
            };
            if source.pairs.len() > 1 && matches!(source.tree, ModelTree::Inner(_)) {
                let drop = |group: &mut ModelSource| group.without(number);
                change("a store without a version", &drop, scene);
            }
            let value =
                |group: &mut ModelSource| group.pairs[number].value = Some(vec![1, 2].into());
            change("a store with another value", &value, scene);
            let deleted = |group: &mut ModelSource| group.pairs[number].value = None;
            change("a store with a key deleted", &deleted, scene);
            let mut other = pair.key.clone();
            *other.last_mut().unwrap() ^= 0x40;
            let moved = |group: &mut ModelSource| group.pairs[number].key = other.clone();
            let mut keys = source.pairs.clone();
            keys[number].key = other.clone();
            if keys.is_sorted_by(|a, b| (&a.key, a.block) < (&b.key, b.block)) {
                change("a store with a pair moved to another key", &moved, scene);
            }
        }
    }
    for at in 1..state.sources.len() {
        let mut other = state.clone();
        if at != 2 {
            other.sources.swap(at - 1, at);
            scene.refuse_other("a store with two sources swapped", &other);
        }
    }
    let mut other = state.clone();
    other.horizon += 1;
    scene.refuse_other("a store with another horizon", &other);
    let mut other = state;
    if other.levels.first().is_some_and(|level| level[1] > 0) {
        other.levels[0] = [other.levels[0][0] + 1, other.levels[0][1] - 1];
        scene.refuse_other("a store with a run in the other group", &other);
    }
}

/// Forgeries outside of the sources.
fn heads(scene: &mut ForgeryScene) {
    let honest = scene.state.proof(scene.state.show(&scene.asked, &scene.blocks));
    let with = |change: &dyn Fn(&mut ColeProof)| {
        let mut proof = honest.clone();
        change(&mut proof);
        proof
    };
    let late = scene.blocks.start().checked_add(1);
    if let Some(late) = late {
        let proof = with(&|proof| proof.horizon = late);
        scene.refuse_proof("a horizon above the range", &["missing"], &proof);
    }
    if honest.horizon > 0 {
        let proof = with(&|proof| proof.horizon -= 1);
        scene.refuse_proof("an earlier horizon", &["root"], &proof);
    }
    let proof = with(&|proof| proof.levels.push((Vec::new(), Vec::new())));
    scene.refuse_proof("an empty level at the end", &["malformed"], &proof);
    let bytes = honest.encode(&scene.asked);
    scene.refuse_bytes("a byte more", &["malformed"], &[&bytes[..], &[0]].concat());
    // Requested keys are written out, as if other keys had been requested.
    let bytes = honest.encode(&AskedKeys::new(&[]));
    if bytes != honest.encode(&scene.asked) {
        scene.refuse_bytes("an asked key written out", &["malformed"], &bytes);
    }
}

/// Forgeries in which a source claims that it has nothing to show.
fn source(scene: &mut ForgeryScene, at: usize) {
    let honest = scene.state.show(&scene.asked, &scene.blocks);
    let group = &scene.state.sources[at];
    let SourceProof::Searched { .. } = honest[at] else {
        if let SourceProof::Closed(_) = honest[at]
            && !group.pairs.is_empty()
        {
            let mut proof = honest.clone();
            proof[at] = SourceProof::Young(group.source(&scene.state));
            scene.refuse("a tag although no key is open", &["malformed"], &proof);
        }
        return;
    };
    let description = group.source(&scene.state);
    let mut proof = scene.state.show_without(&scene.asked, &scene.blocks, Some(at));
    proof[at] = SourceProof::Closed(description.digest());
    scene.refuse("closed too early", &["malformed"], &proof);
    proof[at] = SourceProof::Empty;
    let class = if at < 2 { "root" } else { "malformed" };
    scene.refuse("said to be empty", &[class], &proof);
    proof[at] = SourceProof::Young(description);
    scene.refuse("young by its tag alone", &["malformed"], &proof);
    if let Some(first_block) = scene.blocks.end().checked_add(1) {
        let last_block = first_block.max(description.last_block);
        proof[at] = SourceProof::Young(SourceHeader { first_block, last_block, ..description });
        scene.refuse("young by a false first block", &["root"], &proof);
    }
    for change in
        [SourceHeader { pairs: 0, ..description }, SourceHeader { filter_blocks: 7, ..description }]
    {
        let mut proof = honest.clone();
        let SourceProof::Searched { source, .. } = &mut proof[at] else { unreachable!() };
        *source = change;
        if change != description {
            // A filter of another size needs other hashes, so all that follows is read at another
            // place.
            let classes = if at < 2 || change.pairs == 0 { &["malformed"][..] } else { &ANY };
            scene.refuse("another description", classes, &proof);
        }
    }
}

/// Forgeries in which a filter that lets a key pass is said to exclude it.
fn filter(scene: &mut ForgeryScene, at: usize) {
    let silent = scene.state.show_without(&scene.asked, &scene.blocks, Some(at));
    let SourceProof::Searched { excluded, .. } = &silent[at] else { return };
    let group = scene.state.sources[at].clone();
    let fanout = scene.state.params.fanout;
    let open = scene.state.open_at(at, &scene.asked, *scene.blocks.start(), None);
    if group.filter.is_empty() || excluded.iter().all(|excluded| *excluded) {
        return;
    }
    let places: Vec<_> =
        open.iter().map(|number| group.passes(scene.asked.key(*number)).1).collect();
    let all: BTreeSet<_> = places.iter().copied().collect();
    let lie = |filter| {
        let mut proof = silent.clone();
        let description = group.source(&scene.state);
        proof[at] = SourceProof::Searched {
            source: description,
            excluded: vec![true; open.len()],
            filter,
            tree: ShownNode::Hidden(description.top),
        };
        proof
    };
    let honest = group.show_filter(fanout, &all);
    let how = "excluded by a filter that does not";
    let mut proofs = vec![(how, &["malformed"][..], lie(honest.clone()))];
    let FilterProof::Blocks { hashes, .. } = honest else { unreachable!() };
    let blocks = vec![[0; 64]; all.len()];
    let made_up = lie(FilterProof::Blocks { blocks, hashes });
    proofs.push(("excluded by made up blocks", &["root"], made_up));
    // A single key: show another block with the hashes of that block's own place.
    let number = open[0];
    let (_, place) = group.passes(scene.asked.key(number));
    let (_, b) = hash::filter_key(scene.asked.key(number));
    let other =
        (0..group.filter.len()).find(|at| *at != place && !filter::may_hold(&group.filter[*at], b));
    if let (Some(other), [_]) = (other, &open[..]) {
        let filter = group.show_filter(fanout, &BTreeSet::from([other]));
        // The number of hashes may differ.
        proofs.push(("excluded by a block of another place", &ANY, lie(filter)));
    }
    for (how, classes, proof) in proofs {
        scene.refuse(how, classes, &proof);
    }
    // A key is said to pass although a block shown excludes it.
    let honest = scene.state.show(&scene.asked, &scene.blocks);
    let SourceProof::Searched { excluded: excluded_keys, .. } = &honest[at] else { return };
    let turned = excluded_keys.iter().enumerate().position(|(key, excluded)| {
        let shares = |other: usize| other != key && places[other] == places[key];
        *excluded && (0..open.len()).any(|other| shares(other) && excluded_keys[other])
    });
    if let Some(turned) = turned {
        let mut proof = honest.clone();
        if let SourceProof::Searched { excluded, tree, .. } = &mut proof[at] {
            excluded[turned] = false;
            if matches!(tree, ShownNode::Pair(_) | ShownNode::Inner(_)) {
                let keys = open.iter().zip(&*excluded).filter(|(_, excluded)| !**excluded);
                let keys: Vec<_> = keys.map(|(number, _)| scene.asked.key(*number)).collect();
                *tree = group.show_tree(&group.tree, &group.needed(&keys, &scene.blocks));
                scene.refuse("a key let pass against its block", &["malformed"], &proof);
            }
        }
    }
}

/// Forgeries that show other parts of a tree than needed.
fn tree(scene: &mut ForgeryScene, at: usize) {
    let honest = scene.state.show(&scene.asked, &scene.blocks);
    let SourceProof::Searched { excluded, tree, .. } = &honest[at] else { return };
    if excluded.iter().all(|excluded| *excluded) {
        return;
    }
    let group = scene.state.sources[at].clone();
    let with = |tree: ShownNode| {
        let mut proof = honest.clone();
        let SourceProof::Searched { tree: old, .. } = &mut proof[at] else { unreachable!() };
        *old = tree;
        proof
    };
    let shown: BTreeSet<_> = ShownPairs::of(tree, false)
        .places
        .iter()
        .filter_map(|place| place.pair)
        .map(|pair| group.pairs.iter().position(|other| other == pair).unwrap())
        .collect();
    for pair in 0..group.pairs.len() {
        let mut others = shown.clone();
        if others.remove(&pair) {
            scene.refuse(
                "a pair hidden",
                &["missing"],
                &with(group.show_tree(&group.tree, &others)),
            );
            for next in [pair.wrapping_sub(1), pair + 1] {
                let mut others = others.clone();
                if next < group.pairs.len() && others.insert(next) {
                    let proof = with(group.show_tree(&group.tree, &others));
                    scene.refuse("a pair farther off shown instead", &["missing"], &proof);
                }
            }
        } else {
            others.insert(pair);
            scene.refuse(
                "a pair too many",
                &["unused"],
                &with(group.show_tree(&group.tree, &others)),
            );
        }
    }
    for path in paths(tree) {
        let (node, real) = (node_at(tree, &path), group.tree_at(&path));
        let edited = |edit: &dyn Fn(&mut ShownNode)| {
            let mut tree = tree.clone();
            edit(path.iter().fold(&mut tree, |node, child| match node {
                ShownNode::Inner(children) => &mut children[*child],
                _ => unreachable!(),
            }));
            with(tree)
        };
        let digest = group.node_digest(real);
        match node {
            ShownNode::Hidden(_) => {
                if let ModelTree::Inner(children) = real {
                    let hidden = |tree| ShownNode::Hidden(group.node_digest(tree));
                    let open = ShownNode::Inner(children.iter().map(hidden).collect());
                    let proof = edited(&|node| *node = open.clone());
                    scene.refuse("a node shown for nothing", &["unused"], &proof);
                }
                let pair = group.pairs[0].clone();
                let proof = edited(&|node| *node = ShownNode::Pair(pair.clone()));
                scene.refuse("a pair in place of a node", &ANY, &proof);
            }
            ShownNode::Inner(_) => {
                let proof = edited(&|node| *node = ShownNode::Hidden(digest));
                scene.refuse("a node hidden", &["missing"], &proof);
                let proof = edited(&|node| {
                    let ShownNode::Inner(children) = node else { unreachable!() };
                    children.pop();
                });
                scene.refuse("a child dropped", &ANY, &proof);
                let proof = edited(&|node| {
                    let ShownNode::Inner(children) = node else { unreachable!() };
                    children.reverse();
                    children.push(ShownNode::Hidden(digest));
                });
                scene.refuse("children turned around", &ANY, &proof);
                let proof = edited(&|node| *node = ShownNode::Inner(vec![node.clone()]));
                scene.refuse("a node below another one", &["root"], &proof);
                let deep = |node: &mut ShownNode| {
                    for _ in 0..=64 {
                        *node = ShownNode::Inner(vec![node.clone()]);
                    }
                };
                scene.refuse("nested too deep", &["malformed"], &edited(&deep));
            }
            ShownNode::Pair(pair) => {
                let proof =
                    edited(&|node| *node = ShownNode::Inner(vec![ShownNode::Hidden(digest)]));
                scene.refuse("a node in place of a pair", &["missing"], &proof);
                for (how, change) in changes(scene, pair) {
                    let proof = edited(&|node| *node = ShownNode::Pair(change.clone()));
                    scene.refuse(how, &ANY, &proof);
                }
            }
            ShownNode::Versions(..) => unreachable!("the model has no version trees"),
        }
    }
}

fn changes(scene: &ForgeryScene, pair: &CompoundPair) -> Vec<(&'static str, CompoundPair)> {
    let key = scene.keys.iter().map(|key| key.encode().to_vec()).find(|key| *key != pair.key);
    let value = match &pair.value {
        None => Some(StateValue::new()),
        Some(_) => None,
    };
    let mut changes = vec![
        ("another value", CompoundPair { value, ..pair.clone() }),
        ("another block", CompoundPair { block: pair.block ^ 1, ..pair.clone() }),
    ];
    changes.extend(key.map(|key| ("another key", CompoundPair { key, ..pair.clone() })));
    changes
}

/// The paths to all nodes shown.
fn paths(node: &ShownNode) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    if let ShownNode::Inner(children) = node {
        for (at, child) in children.iter().enumerate() {
            all.extend(paths(child).into_iter().map(|path| [&[at], &path[..]].concat()));
        }
    }
    all
}

fn node_at<'a>(node: &'a ShownNode, path: &[usize]) -> &'a ShownNode {
    path.iter().fold(node, |node, child| match node {
        ShownNode::Inner(children) => &children[*child],
        _ => unreachable!(),
    })
}

impl ModelSource {
    fn tree_at(&self, path: &[usize]) -> &ModelTree {
        path.iter().fold(&self.tree, |tree, child| match tree {
            ModelTree::Inner(children) => &children[*child],
            ModelTree::Leaf(_) => unreachable!(),
        })
    }

    /// Removes a pair from pairs and tree.
    fn without(&mut self, number: usize) {
        fn prune(tree: &ModelTree, number: usize) -> Option<ModelTree> {
            match tree {
                ModelTree::Leaf(at) if *at == number => None,
                ModelTree::Leaf(at) => Some(ModelTree::Leaf(at - usize::from(*at > number))),
                ModelTree::Inner(children) => {
                    let rest: Vec<_> =
                        children.iter().filter_map(|child| prune(child, number)).collect();
                    (!rest.is_empty()).then_some(ModelTree::Inner(rest))
                }
            }
        }
        self.pairs.remove(number);
        self.tree = prune(&self.tree, number).unwrap();
    }
}
