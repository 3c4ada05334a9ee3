//! Proofs show the right values, and forged proofs are refused.

use super::{
    TestKit,
    model::{BlockMiner, BlockPtr, BlockSize, TestBlock, ValueFlavour},
    node::{KnownRoots, TestNode, options},
};
use alloy_primitives::B256;
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use retrie_state::{StateKey, StateProof, StateValue};
use retrie_state_store::StateId;
use std::sync::Arc;

/// Whether the backend has proofs; prints a note if not.
fn has_proofs(kit: &TestKit<'_>) -> bool {
    let has = kit.backend().profile().proofs;
    if !has {
        eprintln!("skipped: this backend has no proofs");
    }
    has
}

/// Keys to prove: present keys, and absent ones if the backend can prove absence.
fn keys_for(
    kit: &TestKit<'_>,
    miner: &mut BlockMiner,
    block: &TestBlock,
    count: usize,
) -> Vec<StateKey> {
    let absence = kit.backend().profile().absence_proofs;
    let mut keys = miner.keys(&block.entries, count);
    keys.retain(|key| absence || block.entries.contains_key(key));
    keys
}

fn values(block: &TestBlock, keys: &[StateKey]) -> Vec<Option<StateValue>> {
    keys.iter().map(|key| block.entries.get(key).cloned()).collect()
}

fn prove(node: &TestNode<'_>, at: StateId<'_>, block: &TestBlock, keys: &[StateKey]) -> StateProof {
    let store = node.store();
    let proof = store.at(at).and_then(|state| state.prove(keys)).expect("a proof");
    proof.check_kind(store.identity()).expect("its own kind");
    assert_eq!((proof.block.number, proof.block.hash), (block.number, block.hash));
    assert_eq!(Some(proof.root), node.roots.of(block), "the root of the proof");
    let shown = store.backend().verify(proof.root, &node.keys().keys(keys), &proof.bytes);
    assert_eq!(shown.expect("the proof holds"), values(block, keys), "what the proof shows");
    proof
}

/// Proofs of present and absent keys verify at the tip, on sealed proposals and at every retained
/// block; for one key, many keys, the same key twice, and no key.
///
/// # Panics
/// If a proof does not verify, or shows another value than the model.
pub fn proofs_show_presence_and_absence_at_every_retained_block(kit: &TestKit<'_>) {
    if !has_proofs(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(5, true));
        let mut chain: Vec<BlockPtr> = Vec::new();
        // The first state is empty, and so is one in the middle.
        let empty = miner.block(None, BlockSize::EraseAll);
        node.extend(std::slice::from_ref(&empty));
        chain.push(empty);
        for n in 0..kit.scale.blocks {
            let size = if n == kit.scale.blocks / 2 { BlockSize::EraseAll } else { BlockSize::Any };
            let block = miner.block(chain.last().map(|block| &**block), size);
            let parent = &chain[chain.len() - 1];
            for count in [0, 1, 1, 2, 12] {
                let mut keys = keys_for(kit, &mut miner, parent, count);
                prove(&node, StateId::Tip, parent, &keys);
                if let Some(first) = keys.first().copied() {
                    keys.push(first);
                    prove(&node, StateId::Tip, parent, &keys);
                }
            }
            let proposal = node.propose(StateId::Tip, &block);
            let keys = keys_for(kit, &mut miner, &block, 6);
            prove(&node, StateId::Proposal(&proposal), &block, &keys);
            prove(&node, StateId::Block(block.hash), &block, &keys);
            node.commit(&[proposal]);
            chain.push(block);
            for old in chain.iter().rev().take(6) {
                let keys = keys_for(kit, &mut miner, old, 4);
                prove(&node, StateId::Block(old.hash), old, &keys);
            }
            if n % 5 == 4 {
                node.reopen();
            }
        }
        // All keys at once.
        let tip = &chain[chain.len() - 1];
        let mut keys: Vec<_> = tip.entries.keys().copied().collect();
        keys.shuffle(&mut miner.rng);
        prove(&node, StateId::Tip, tip, &keys);
    });
}

/// Proofs of every retained block are, byte for byte, what they were when the block was the tip:
/// while its cache is in memory, full or compacted, when it is opened from rows, after reverts, and
/// for blocks of another branch on top.
///
/// # Panics
/// If a proof differs.
pub fn proofs_of_old_blocks_are_those_they_had_at_the_tip(kit: &TestKit<'_>) {
    if !has_proofs(kit) {
        return;
    }
    const RETENTION: usize = 30;
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let mut node = TestNode::new(kit, &roots, options(RETENTION as u64, false));
        // The blocks of the chain, each with some keys and their proof.
        let mut chain: Vec<(BlockPtr, Vec<StateKey>, StateProof)> = Vec::new();
        let mut extend = |node: &TestNode<'_>, chain: &mut Vec<_>, blocks: usize| {
            for _ in 0..blocks {
                let parent = chain.last().map(|(block, ..): &(BlockPtr, _, _)| &**block);
                let block = miner.block(parent, BlockSize::Any);
                node.extend(std::slice::from_ref(&block));
                let keys = keys_for(kit, &mut miner, &block, 5);
                let proof = prove(node, StateId::Tip, &block, &keys);
                chain.push((block, keys, proof));
            }
        };
        let check = |node: &TestNode<'_>, chain: &[(BlockPtr, Vec<StateKey>, StateProof)]| {
            let first = node.first_retained();
            let retained = chain.iter().rev().take_while(|(block, ..)| block.number >= first);
            for (block, keys, at_tip) in retained {
                let now = prove(node, StateId::Block(block.hash), block, keys);
                assert_eq!(now.bytes, at_tip.bytes, "block {} for {keys:?}", block.number);
            }
        };
        extend(&node, &mut chain, RETENTION + 9);
        check(&node, &chain);
        for back in [3, 22] {
            chain.truncate(chain.len() - back);
            node.revert(chain[chain.len() - 1].0.number);
            check(&node, &chain);
            extend(&node, &mut chain, 5);
            check(&node, &chain);
        }
        node.reopen();
        check(&node, &chain);
        extend(&node, &mut chain, 20);
        check(&node, &chain);
    });
}

/// A proof with any bit flipped, cut, extended, with parts dropped, doubled, swapped or zeroed is
/// refused, and so is a proof under another root. For other keys than it was made for, a proof is
/// refused or shows their true values.
///
/// # Panics
/// If a verifier accepts something false, or two encodings of one proof.
pub fn mutated_proofs_are_refused(kit: &TestKit<'_>) {
    if !has_proofs(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes.min(8));
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(5, true));
        let (backend, form) = (node.store().backend(), node.keys());
        let chain = miner.chain(None, 12, BlockSize::Any);
        node.extend(&chain);
        let others: Vec<B256> = chain.iter().filter_map(|block| roots.of(block)).collect();
        for block in &chain[7..] {
            for count in [1, 1, 3, 8] {
                let keys = keys_for(kit, &mut miner, block, count);
                if keys.is_empty() {
                    continue;
                }
                let proof = prove(&node, StateId::Block(block.hash), block, &keys);
                let own = form.keys(&keys);
                let accepts = |bytes: &[u8]| backend.verify(proof.root, &own, bytes).is_ok();
                let (what, mutations) = (format!("{keys:?}"), kit.scale.mutations);
                refuses_mutations(&mut miner.rng, &proof.bytes, mutations, &what, &accepts);
                let unknown = B256::from(miner.rng.random::<[u8; 32]>());
                let flipped = proof.root ^ B256::with_last_byte(1);
                for root in others.iter().chain([&unknown, &B256::ZERO, &flipped]) {
                    if *root != proof.root {
                        let shown = backend.verify(*root, &own, &proof.bytes);
                        assert!(shown.is_err(), "a proof against {} holds for {root}", proof.root);
                    }
                }
                for _ in 0..20 {
                    let mut asked = keys_for(kit, &mut miner, block, count);
                    match miner.rng.random_range(0..4) {
                        0 => asked = keys.iter().rev().copied().collect(),
                        1 => asked = keys[1..].to_vec(),
                        2 => asked.extend(&keys),
                        _ => {}
                    }
                    let shown = backend.verify(proof.root, &form.keys(&asked), &proof.bytes);
                    if let Ok(shown) = shown {
                        assert_eq!(shown, values(block, &asked), "fooled about {asked:?}");
                    }
                }
            }
        }
    });
}

/// Tries `mutations` mutations of `bytes`, a proof of `what`; the verifier must refuse all of them.
pub(super) fn refuses_mutations(
    rng: &mut StdRng,
    bytes: &[u8],
    mutations: usize,
    what: &str,
    accepts: &dyn Fn(&[u8]) -> bool,
) {
    let refuse = |mutated: &[u8], how: &str| {
        if mutated != bytes {
            assert!(!accepts(mutated), "a proof of {what} holds although {how}");
        }
    };
    let bits = bytes.len() * 8;
    let mut flip = |bit: usize| {
        let mut mutated = bytes.to_vec();
        mutated[bit / 8] ^= 1 << (bit % 8);
        refuse(&mutated, &format!("bit {bit} of {bits} is flipped"));
    };
    if bits <= mutations {
        (0..bits).for_each(&mut flip);
    } else {
        // The first bits, where counts and tags are, and samples of the rest.
        (0..64.min(mutations / 4)).for_each(&mut flip);
        for _ in 0..mutations / 8 {
            flip(rng.random_range(0..bits));
        }
    }
    refuse(&[], "nothing of it is left");
    for more in [&[0][..], &[1], &[0x80], &[0xff; 32], &[0; 64]] {
        refuse(&[bytes, more].concat(), "it was extended");
        refuse(&[more, bytes].concat(), "something stands before it");
    }
    refuse(&[bytes, bytes].concat(), "it comes twice");
    if bytes.is_empty() {
        return;
    }
    for _ in 0..(mutations / 40).max(4) {
        let from = rng.random_range(0..bytes.len());
        let len = [1, 2, 4, 8, 20, 32, 33, 64][rng.random_range(0..8)].min(bytes.len() - from);
        let to = from + len;
        let (head, part, tail) = (&bytes[..from], &bytes[from..to], &bytes[to..]);
        refuse(head, &format!("it is cut at byte {from}"));
        refuse(&[head, tail].concat(), &format!("bytes {from}..{to} are dropped"));
        refuse(&[head, part, part, tail].concat(), &format!("bytes {from}..{to} are doubled"));
        refuse(&[head, &vec![0; len], tail].concat(), &format!("bytes {from}..{to} are zeroed"));
        refuse(&[tail, part, head].concat(), &format!("its parts around {from}..{to} are swapped"));
        let mut shuffled = bytes.to_vec();
        shuffled.swap(from, rng.random_range(0..bytes.len()));
        refuse(&shuffled, "two bytes are swapped");
    }
}
