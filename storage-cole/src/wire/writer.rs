//! Writing the bytes of a proof.

use super::{
    ASKED, AskedKeys, CLOSED, ColeProof, EMPTY, FilterProof, HIDDEN, INNER, KIND, PAIR, SEARCHED,
    SourceProof, VERSIONS, YOUNG,
};
use crate::{
    hash::SourceHeader,
    shown_tree::{CompoundPair, ShownNode},
};
use alloc::{vec, vec::Vec};
use retrie_state::wire::put_varint;

impl ColeProof {
    /// Encodes the proof as an answer for these keys.
    pub(crate) fn encode(&self, asked: &AskedKeys) -> Vec<u8> {
        let mut out = vec![KIND];
        put_varint(&mut out, self.horizon);
        self.memory.iter().for_each(|source| source.put(&mut out, asked));
        put_varint(&mut out, self.levels.len() as u64);
        for (writing, merging) in &self.levels {
            out.extend([writing.len() as u8, merging.len() as u8]);
        }
        let runs = self.levels.iter().flat_map(|(writing, merging)| writing.iter().chain(merging));
        runs.for_each(|source| source.put(&mut out, asked));
        out
    }
}

impl SourceProof {
    fn put(&self, out: &mut Vec<u8>, asked: &AskedKeys) {
        match self {
            Self::Closed(digest) => {
                out.push(CLOSED);
                out.extend(digest);
            }
            Self::Empty => out.push(EMPTY),
            Self::Young(source) => {
                out.push(YOUNG);
                put_description(out, source);
                out.extend(source.top);
                if source.filter_blocks > 0 {
                    out.extend(source.filter_top);
                }
            }
            Self::Searched { source, excluded, filter, tree } => {
                out.push(SEARCHED);
                put_description(out, source);
                if !matches!(filter, FilterProof::None) {
                    out.extend(excluded.chunks(8).map(|bits| {
                        bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))
                    }));
                }
                match filter {
                    FilterProof::None => {}
                    FilterProof::Top(top) => out.extend(top),
                    FilterProof::Blocks { blocks, hashes } => {
                        out.extend(blocks.iter().flatten());
                        out.extend(hashes.iter().flat_map(|hash| hash.0));
                    }
                }
                match tree {
                    ShownNode::Hidden(top) if excluded.iter().all(|excluded| *excluded) => {
                        out.extend(top);
                    }
                    tree => put_node(out, tree, asked),
                }
            }
        }
    }
}

fn put_description(out: &mut Vec<u8>, source: &SourceHeader) {
    let SourceHeader { pairs, first_block, last_block, filter_blocks, .. } = *source;
    for number in [pairs, first_block, last_block, filter_blocks] {
        put_varint(out, number);
    }
}

fn put_node(out: &mut Vec<u8>, node: &ShownNode, asked: &AskedKeys) {
    match node {
        ShownNode::Hidden(digest) => {
            out.push(HIDDEN);
            out.extend(digest);
        }
        ShownNode::Inner(children) => {
            out.extend([INNER, children.len() as u8]);
            children.iter().for_each(|child| put_node(out, child, asked));
        }
        ShownNode::Pair(pair) => {
            out.push(PAIR);
            put_key(out, &pair.key, asked);
            put_version(out, pair);
        }
        ShownNode::Versions(key, tree) => {
            out.push(VERSIONS);
            put_key(out, key, asked);
            put_versions(out, tree);
        }
    }
}

/// A node of the tree over the versions of a key: its pairs do not repeat the key.
fn put_versions(out: &mut Vec<u8>, node: &ShownNode) {
    match node {
        ShownNode::Hidden(digest) => {
            out.push(HIDDEN);
            out.extend(digest);
        }
        ShownNode::Inner(children) => {
            out.extend([INNER, children.len() as u8]);
            children.iter().for_each(|child| put_versions(out, child));
        }
        ShownNode::Pair(pair) => {
            out.push(PAIR);
            put_version(out, pair);
        }
        // No tree over versions has a key below.
        ShownNode::Versions(_, tree) => put_versions(out, tree),
    }
}

fn put_key(out: &mut Vec<u8>, key: &[u8], asked: &AskedKeys) {
    match asked.number(key) {
        Some(number) => put_varint(out, number as u64 + ASKED),
        // The last bit of a key's tag says whether it is a slot; all keys have one form.
        None => {
            put_varint(out, u64::from(key[0] & 1));
            out.extend(&key[1..]);
        }
    }
}

fn put_version(out: &mut Vec<u8>, CompoundPair { block, value, .. }: &CompoundPair) {
    put_varint(out, *block);
    put_varint(out, value.as_ref().map_or(0, |value| value.len() as u64 + 1));
    out.extend(value.iter().flatten());
}
