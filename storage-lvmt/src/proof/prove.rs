//! Making proofs (paper, Algorithms 6, 8, 9 and 10) for many keys at once. An entry, a commitment
//! of a sub-AMT or a block that several keys need is in the proof once.

use super::wire::{
    self, EntryProof, LvmtProof, ProvenPosition, ProvenTuple, SlotOccupant, TreeProof,
};
use crate::{
    amt,
    entries::{NodeEntries, occupant, sub_entries},
    hash,
    merkle::{self, MerkleGroup},
    params::LvmtParams,
    point::G1Point,
    record::{
        BLOCKS, BlockRow, EntryPath, KEY_SLOTS, KEYS, KeyRecord, RANGE, SLOTS, TREES,
        TuplePosition, corrupt, group_key, range_key, slot_key,
    },
    shard::ProofShard,
    state::LvmtState,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{BackendKey, KeyForm, NodeRead, StateError};
use std::collections::BTreeMap;

/// The proof of the values of `keys`.
///
/// # Errors
/// [`StateError::OutsideShard`] if this node's proof shard has only a part of the proof.
pub(crate) fn prove(
    params: &LvmtParams,
    shard: ProofShard,
    view: &dyn NodeRead,
    state: &LvmtState,
    keys: &[BackendKey],
) -> Result<Bytes, StateError> {
    let (proof, ways) = parts(params, view, state, keys)?;
    let missing = proof.missing();
    let outside = |what: String, needed: ProofShard| StateError::OutsideShard {
        what,
        needed: needed.to_string(),
        kept: shard.to_string(),
    };
    if let Some(way) = missing.entries.first().and_then(|at| ways.get(*at)) {
        let key = keys.iter().find(|key| {
            let location = hash::location(&key.encode());
            hash::entry_of(&location, params.height(), 0) == Some(way[0].into())
        });
        let what = key.map_or_else(|| format!("entry {way}"), ToString::to_string);
        return Err(outside(what, shard.of_entry(params.height(), way[0].into())));
    }
    if let Some(block) = missing.blocks.first() {
        let what = format!("the Merkle tree of block {block}, which has a tuple of the proof,");
        return Err(if shard.keeps_tree(*block) {
            // The node had another shard when the block came.
            let needed = format!("{shard}, kept since before that block");
            StateError::OutsideShard { what, needed, kept: shard.to_string() }
        } else {
            outside(what, shard.of_block(*block))
        });
    }
    Ok(proof.encode().into())
}

/// A requested key and its record.
struct KeyQuery {
    location: B256,
    key: BackendKey,
    record: Option<KeyRecord>,
}

/// The part of the proof that this node can make, and the paths of its entries.
pub(crate) fn parts(
    params: &LvmtParams,
    view: &dyn NodeRead,
    state: &LvmtState,
    keys: &[BackendKey],
) -> Result<(LvmtProof, Vec<EntryPath>), StateError> {
    let height = params.height();
    let mut asked = Vec::with_capacity(keys.len());
    for key in keys {
        let encoded = key.encode();
        let row = view.get(KEYS, &encoded)?;
        let record = row.map(|row| KeyRecord::decode(key, &row)).transpose()?;
        asked.push(KeyQuery { location: hash::location(&encoded), key: *key, record });
    }
    asked.sort_unstable_by_key(|asked| asked.location);
    asked.dedup_by_key(|asked| asked.location);

    let next_entry = |asked: &KeyQuery, way: &EntryPath| {
        let entry = hash::entry_of(&asked.location, height, way.len());
        // The height is at most 16, so an entry has at most 16 bits.
        entry.map(|entry| way.entry(entry as u16)).ok_or_else(|| {
            corrupt(KEYS, format!("the path of {} is longer than its hash", asked.key))
        })
    };
    let mut coming = BTreeMap::<EntryPath, Vec<&KeyQuery>>::new();
    for asked in &asked {
        coming.entry(next_entry(asked, &EntryPath::root())?).or_default().push(asked);
    }
    let (mut ways, mut entries) = (Vec::new(), Vec::new());
    while let Some((way, here)) = coming.pop_first() {
        let mut entry = EntryProof {
            versions: [0; amt::SLOTS],
            quotients: None,
            tuples: Default::default(),
            amt: None,
        };
        let mut down = Vec::new();
        let mut shows = [false; amt::SLOTS];
        for asked in &here {
            match &asked.record {
                Some(record) if record.way == way => shows[usize::from(record.slot)] = true,
                Some(_) => down.push(*asked),
                None => shows = [true; amt::SLOTS],
            }
        }
        for slot in KEY_SLOTS {
            let Some(row) = view.get(SLOTS, &slot_key(&way, slot))? else { break };
            let (key, record) = occupant(view, &row)?;
            if record.way != way || record.slot != slot {
                return Err(corrupt(SLOTS, format!("{key} is not in slot {slot} of entry {way}")));
            }
            entry.versions[usize::from(slot)] = record.version;
            if shows[usize::from(slot)] {
                let at = here.iter().position(|asked| asked.key == key);
                entry.tuples[usize::from(slot) - 1] = Some(ProvenTuple {
                    occupant: at
                        .map_or(SlotOccupant::Other(key), |at| SlotOccupant::Asked(at as u32)),
                    value: record.value,
                    place: place(record.position),
                });
            }
        }
        if entry.occupied() == amt::SLOTS - 1 {
            let below = state.amt(params, view, &way)?;
            entry.versions[0] = below.version;
            if below.version > 0 {
                down.extend(here.iter().filter(|asked| asked.record.is_none()));
            }
            if !down.is_empty() {
                entry.amt = Some(wire::ProvenAmt {
                    commitment: below.commitment.to_compressed(),
                    place: place(below.position),
                });
            }
        }
        down.sort_unstable_by_key(|asked| asked.location);
        for asked in down {
            coming.entry(next_entry(asked, &way)?).or_default().push(asked);
        }
        entries.push(entry);
        ways.push(way);
    }
    open(params, view, state, &ways, &mut entries)?;

    let mut proof = LvmtProof {
        form: KeyForm::of(keys),
        height,
        commitment: state.meta.commitment.to_compressed(),
        first: state.meta.first,
        blocks: state.meta.blocks,
        entries,
        trees: Vec::new(),
        range: Vec::new(),
    };
    let mut shown = Vec::new();
    for (block, positions) in proof.positions() {
        proof.trees.push(tree(view, block, &positions)?);
        shown.push(block.saturating_sub(state.meta.first));
    }
    let range = merkle::prove(state.meta.blocks, &shown, |level, group, size| {
        let row = view.get(RANGE, &range_key(level, group))?;
        Ok(row.and_then(|row| MerkleGroup::decode(&row, size)))
    })?;
    proof.range = range.ok_or_else(|| {
        corrupt(RANGE, format!("a hash on the paths of blocks {shown:?} is missing"))
    })?;
    Ok((proof, ways))
}

const fn place(position: TuplePosition) -> ProvenPosition {
    ProvenPosition { block: position.block, position: position.leaf }
}

/// Fills in the quotients that this node can compute.
fn open(
    params: &LvmtParams,
    view: &dyn NodeRead,
    state: &LvmtState,
    ways: &[EntryPath],
    entries: &mut [EntryProof],
) -> Result<(), StateError> {
    let mut by_amt = BTreeMap::<EntryPath, Vec<(u16, usize)>>::new();
    for (at, way) in ways.iter().enumerate() {
        if let Some((entry, above)) = way.split_last() {
            by_amt.entry(EntryPath::new(above)).or_default().push((entry, at));
        }
    }
    let compress =
        |points: Vec<G1Point>| points.iter().map(G1Point::to_compressed).collect::<Vec<_>>();
    for (way, asked) in by_amt {
        if way.is_empty() {
            let Some(tree) = &state.tree else { continue };
            let roots: Vec<u16> = asked.iter().map(|(entry, _)| *entry).collect();
            let second = &state.apply_base(params, view)?.second;
            let opened = tree.quotients(params, view, second, &roots)?;
            for ((_, at), quotients) in asked.iter().zip(opened) {
                entries[*at].quotients = quotients.map(compress);
            }
        } else if params.has_quotients() {
            let mut below = NodeEntries::default();
            for (entry, at) in asked {
                let entry = entry.into();
                // The upper quotients, if they are in memory; the rest from the few entries below.
                let upper = match way[..] {
                    [of] => state.sub_trees.as_ref().and_then(|trees| trees.upper(of, entry)),
                    _ => None,
                };
                let mut quotients = upper.unwrap_or_default();
                let depth = quotients.len() as u8;
                quotients.extend(below.open(params, depth, entry, |range| {
                    sub_entries(params.height(), view, &way, range, &|| Ok(()))
                })?);
                entries[at].quotients = Some(compress(quotients));
            }
        }
    }
    Ok(())
}

/// The part of a block's tree that the proof shows; a hole if the tree belongs to another shard.
fn tree(view: &dyn NodeRead, block: u64, positions: &[u64]) -> Result<TreeProof, StateError> {
    let row = view
        .get(BLOCKS, &block.to_be_bytes())?
        .ok_or_else(|| corrupt(BLOCKS, format!("the row of block {block} is missing")))?;
    let row = BlockRow::decode(block, &row)?;
    // A tree that needs no hash is no hole, on any node.
    if merkle::siblings(row.leaves.into(), positions) == 0 {
        return Ok(TreeProof { leaves: row.leaves, siblings: Some(Vec::new()) });
    }
    if row.kept == 0 {
        return Ok(TreeProof { leaves: row.leaves, siblings: None });
    }
    let siblings = merkle::prove(row.leaves.into(), positions, |level, group, size| {
        let row = view.get(TREES, &group_key(block, level, group as u32))?;
        Ok(row.and_then(|row| MerkleGroup::decode(&row, size)))
    })?;
    let missing = || {
        corrupt(
            TREES,
            format!("a hash on the paths of leaves {positions:?} of block {block} is missing"),
        )
    };
    Ok(TreeProof { leaves: row.leaves, siblings: Some(siblings.ok_or_else(missing)?) })
}
