//! State sync: [`StateChunks`] serves the tree in chunks that prove themselves.
//!
//! ```text
//!  id       number of bits (2), the bits of the position, packed; the hash of the node there (32)
//!  answer   00 entry*          all entries below the node, in the order of their leaves
//!           01 branch          the branches at the front of it
//!           02 hash entry*     as 00, where the zone of code is also below: the hash of its node (32)
//!  branch   number of prefix bits (2), these, packed; two children: 00 hash, or 01 branch
//!  entry    key, length of the value (varint), value; after an account with code:
//!           00 size (4), or 01 and the address that it delegates to (20)
//! ```
//!
//! A position is the bits that lead to a node: those of all prefixes and sides above it. Chunks end at
//! stems, so no account is in two. The zone of code is in no chunk: codes are fetched by their hashes,
//! and the root shows that they are the ones.

use crate::{
    Pbt, PbtState,
    hash::{
        EMPTY_ROOT, KeyBits, MAX_KEY_LEN, Subtree, Sweep, TreeHash, bit, common_bits, key_bits,
    },
    key::{
        BASIC_DATA, CODE_HASH, CODE_ZONE, DELEGATION, HEADER_ZONE, STORAGE_ZONE, SlotPlace, Stem,
        account_path, account_word, group_path, slot_of_group,
    },
    leaf::{CodeFacts, account_leaves, account_of, delegation_hash},
    load,
    prove::{LeafValues, Node, OpenedNode, StemContent, TreeWalk},
    state::StateTrees,
};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256};
use retrie_state::{
    Account, AccountKey, AnyCache, BackendKey, BulkSink, ChunkAnswer, ChunkId, ChunkServer,
    NodeRead, OpenedChunk, ProofError, StateChunks, StateError, StateValue, decode_slot,
    encode_slot,
    wire::{WireReader, put_varint},
};
use std::{path::Path, sync::Arc};

/// The most leaves in one answer.
const MOST_LEAVES: usize = 1024;
/// Levels of branches in one answer.
const LEVELS: usize = 5;

const ENTRIES: u8 = 0;
const BRANCH: u8 = 1;
const ENTRIES_AND_CODE: u8 = 2;
const HIDDEN: u8 = 0;

/// A node by its position.
#[derive(Clone, Copy)]
struct NodePlace {
    bits: KeyBits,
    count: usize,
    hash: B256,
}

impl NodePlace {
    fn id(&self) -> Option<ChunkId> {
        let len = self.count.div_ceil(8);
        let count = (self.count as u16).to_be_bytes();
        ChunkId::new([&count, &self.bits[..len], &self.hash[..]].concat())
    }

    /// Parses an id; `None` if it is not an id of this backend.
    fn of(id: &ChunkId) -> Option<Self> {
        let mut reader = WireReader::new(id.bytes());
        let count = usize::from(reader.u16().ok()?);
        if count > MAX_KEY_LEN * 8 {
            return None;
        }
        let packed = reader.take(count.div_ceil(8)).ok()?;
        let bits = key_bits(packed, count);
        let hash = reader.hash().ok()?;
        (reader.is_empty() && bits[..packed.len()] == *packed).then_some(Self { bits, count, hash })
    }

    /// The position one bit below.
    fn child(bits: &KeyBits, split: usize, side: u8, hash: B256) -> Self {
        let mut bits = *bits;
        bits[split / 8] |= side << (7 - split % 8);
        Self { bits, count: split + 1, hash }
    }

    /// Whether the node is in the zone of code.
    const fn is_code(&self) -> bool {
        self.count >= 8 && self.bits[0] == CODE_ZONE
    }
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}

impl StateChunks for Pbt {
    fn format(&self) -> &'static str {
        match self.hash_function() {
            TreeHash::Blake3 => "pbt",
            TreeHash::Keccak256 => "pbt-keccak256",
            #[cfg(feature = "algebraic")]
            TreeHash::Poseidon2 => "pbt-poseidon2",
        }
    }

    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        _: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError> {
        let state = cache.share::<PbtState>()?;
        Ok(Box::new(PbtChunkServer { hash: self.hash_function(), view, state }))
    }

    fn root_chunk(&self, root: B256) -> Option<ChunkId> {
        let place = NodePlace { bits: [0; MAX_KEY_LEN], count: 0, hash: root };
        place.id().filter(|_| root != EMPTY_ROOT)
    }

    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        let place = NodePlace::of(id).ok_or_else(|| malformed("id of a chunk"))?;
        let hash = self.hash_function();
        let mut reader = WireReader::new(answer);
        let (found, opened) = match reader.u8()? {
            tag @ (ENTRIES | ENTRIES_AND_CODE) => {
                let code = (tag == ENTRIES_AND_CODE).then(|| reader.hash()).transpose()?;
                let (subtree, entries) = read_entries(hash, &place, code, &mut reader)?;
                (
                    subtree.hash(hash, place.count),
                    OpenedChunk::Entries { entries, further: Vec::new() },
                )
            }
            BRANCH => {
                let mut walk = BranchReader { hash, reader: &mut reader, below: Vec::new() };
                let found = walk.branch(&place.bits, place.count, 0)?;
                (found, OpenedChunk::Split { below: walk.below, least: 0 })
            }
            _ => return Err(malformed("tag of an answer")),
        };
        reader.finish()?;
        if found == place.hash { Ok(opened) } else { Err(ProofError::RootMismatch) }
    }

    fn load_needs_parts(&self) -> bool {
        false
    }

    fn load(
        &self,
        _: u64,
        _: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        load::load(self.hash_function(), entries, sink)
    }
}

struct BranchReader<'r, 'a> {
    hash: TreeHash,
    reader: &'r mut WireReader<'a>,
    below: Vec<ChunkId>,
}

impl BranchReader<'_, '_> {
    /// The hash of the branch at a position, `level` branches below the requested one.
    fn branch(&mut self, bits: &KeyBits, from: usize, level: usize) -> Result<B256, ProofError> {
        let count = usize::from(self.reader.u16()?);
        let split = from + count;
        if level >= LEVELS || split >= (MAX_KEY_LEN - 1) * 8 {
            return Err(malformed("a branch that is too deep"));
        }
        let packed = self.reader.take(count.div_ceil(8))?;
        let mut key = *bits;
        for at in 0..count {
            key[(from + at) / 8] |= bit(packed, at) << (7 - (from + at) % 8);
        }
        if key_bits(packed, count)[..packed.len()] != *packed {
            return Err(malformed("bits behind the end of a prefix"));
        }
        let mut child = |side| -> Result<B256, ProofError> {
            let place = NodePlace::child(&key, split, side, B256::ZERO);
            // Stems are not cut.
            let depth = if place.count > 8 && key[0] == STORAGE_ZONE { 65 } else { 33 };
            match self.reader.u8()? {
                HIDDEN => {
                    let place = NodePlace { hash: self.reader.hash()?, ..place };
                    if place.count > depth * 8 {
                        return Err(malformed("a part of a stem"));
                    }
                    if !place.is_code() {
                        self.below.extend(place.id());
                    }
                    Ok(place.hash)
                }
                BRANCH if !place.is_code() => self.branch(&place.bits, place.count, level + 1),
                _ => Err(malformed("tag of a node")),
            }
        };
        let (left, right) = (child(0)?, child(1)?);
        Ok(self.hash.branch(&key, from, split, &left, &right))
    }
}

type Entry = (BackendKey, StateValue);

/// Reads all entries below a position, and the subtree that they make.
fn read_entries(
    hash: TreeHash,
    place: &NodePlace,
    mut code_zone: Option<B256>,
    reader: &mut WireReader<'_>,
) -> Result<(Subtree, Vec<Entry>), ProofError> {
    if code_zone.is_some()
        && (place.count >= 8 || common_bits(&[CODE_ZONE], &place.bits) < place.count)
    {
        return Err(malformed("the zone of code, which does not belong to the chunk"));
    }
    let mut sweep = Sweep::new(hash);
    let mut last: Option<(KeyBits, usize)> = None;
    let mut entries: Vec<Entry> = Vec::new();
    let mut form = None;
    while !reader.is_empty() {
        let key = BackendKey::read(reader).ok_or_else(|| malformed("key"))?;
        if *form.get_or_insert_with(|| key.form()) != key.form() {
            return Err(malformed("keys of two forms"));
        }
        let len = reader.count(1)?;
        let value = StateValue::copy_from_slice(reader.take(len)?);
        let path = account_path(hash, key.account());
        let header = Stem::short(HEADER_ZONE, &path);
        let (stem, leaves) = match &key {
            BackendKey::Account(_) => {
                let account = Account::decode(&value).ok_or_else(|| malformed("an account"))?;
                let code = match account.code_hash {
                    KECCAK256_EMPTY => CodeFacts::default(),
                    _ => read_code(reader)?,
                };
                (header, account_leaves_of(&account, &code)?)
            }
            BackendKey::Slot(owner, slot) => {
                let number = decode_slot(&value).ok_or_else(|| malformed("a slot"))?;
                let (stem, sub) = match SlotPlace::of(slot) {
                    SlotPlace::Header(sub) => (header, sub),
                    SlotPlace::Storage { group, sub } => {
                        let group = group_path(hash, &account_word(owner), &group);
                        (Stem::storage(&path, &group), sub)
                    }
                };
                (stem, vec![(sub, B256::from(number))])
            }
        };
        for (sub, value) in leaves {
            let (leaf, len) = stem.key(sub);
            if last.is_some_and(|(last, before)| last[..before] >= leaf[..len]) {
                return Err(malformed("leaves are out of order"));
            }
            if common_bits(&leaf[..len], &place.bits) < place.count.min(len * 8) {
                return Err(malformed("a leaf that does not belong to the chunk"));
            }
            if leaf[0] > CODE_ZONE
                && let Some(code) = code_zone.take()
            {
                push_code(&mut sweep, code);
            }
            sweep.push(&leaf[..len], Subtree::Leaf(hash.leaf(&leaf[..len], &value)));
            last = Some((leaf, len));
        }
        entries.push((key, value));
    }
    if entries.is_empty() {
        return Err(malformed("a chunk without entries"));
    }
    if let Some(code) = code_zone {
        push_code(&mut sweep, code);
    }
    let subtree = sweep.finish().ok_or_else(|| malformed("a chunk without entries"))?;
    Ok((subtree, entries))
}

/// The zone of code is always beside that of headers, so its hash is known as that of a leaf is.
fn push_code(sweep: &mut Sweep, code: B256) {
    sweep.push(&[CODE_ZONE], Subtree::Leaf(code));
}

fn read_code(reader: &mut WireReader<'_>) -> Result<CodeFacts, ProofError> {
    match reader.u8()? {
        0 => Ok(CodeFacts { size: reader.u32()?, delegation: None }),
        1 => {
            let target = Address::from(*reader.array::<20>()?);
            Ok(CodeFacts { size: 23, delegation: Some(target) })
        }
        _ => Err(malformed("tag of a code")),
    }
}

/// The leaves 0, 1 and 2 of an account, if its code can be the one described.
fn account_leaves_of(account: &Account, code: &CodeFacts) -> Result<Vec<(u8, B256)>, ProofError> {
    let fits = match &code.delegation {
        Some(target) => account.code_hash == delegation_hash(target),
        None => (code.size == 0) == (account.code_hash == KECCAK256_EMPTY),
    };
    if !fits {
        return Err(malformed("a code that the account does not have"));
    }
    account_leaves(account, code).ok_or_else(|| malformed("a balance of more than 128 bits"))
}

/// Serves the tree of one state.
struct PbtChunkServer {
    hash: TreeHash,
    view: Arc<dyn NodeRead>,
    state: Arc<PbtState>,
}

impl ChunkServer for PbtChunkServer {
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError> {
        let Some(place) = NodePlace::of(id) else { return Ok(ChunkAnswer::NoNode) };
        let trees = StateTrees { hash: self.hash, view: &*self.view, state: &self.state };
        let walk = TreeWalk { trees, codes: &|_| None };
        let Some(mut node) = walk.root() else { return Ok(ChunkAnswer::NoNode) };
        let mut from = 0;
        while from < place.count {
            if place.bits[0] == CODE_ZONE && from >= 8 {
                return Ok(ChunkAnswer::NoNode);
            }
            let OpenedNode::Branch { key, split, left, right } = walk.open(node)? else {
                return Ok(ChunkAnswer::NoNode);
            };
            if split >= place.count || common_bits(&key, &place.bits) < split {
                return Ok(ChunkAnswer::NoNode);
            }
            node = if bit(&place.bits, split) == 0 { left } else { right };
            from = split + 1;
        }
        let is_code = place.count >= 8 && place.bits[0] == CODE_ZONE;
        if from != place.count || is_code || walk.hash(&node, from)? != place.hash {
            return Ok(ChunkAnswer::NoNode);
        }
        let mut entries =
            EntryWriter { walk: &walk, room: MOST_LEAVES, code: None, out: Vec::new() };
        if entries.node(&node)? {
            return Ok(ChunkAnswer::Chunk(entries.finish().into()));
        }
        let mut out = vec![BRANCH];
        put_branch(&walk, node, from, 0, &mut out)?;
        Ok(ChunkAnswer::Chunk(out.into()))
    }
}

/// Writes all entries below a node.
struct EntryWriter<'a> {
    walk: &'a TreeWalk<'a>,
    /// How many leaves there is room for.
    room: usize,
    /// The hash of the zone of code.
    code: Option<B256>,
    out: Vec<u8>,
}

impl EntryWriter<'_> {
    /// Appends all entries below a node; false if there is no room.
    fn node(&mut self, node: &Node) -> Result<bool, StateError> {
        match stem_or_branch(self.walk, node.clone())? {
            StemOrBranch::Code => {
                self.code = Some(self.walk.hash(node, 8)?);
                Ok(true)
            }
            StemOrBranch::Branch { left, right, .. } => Ok(self.node(&left)? && self.node(&right)?),
            StemOrBranch::Stem(content, subs) => {
                let Some(room) = self.room.checked_sub(subs.len()) else { return Ok(false) };
                self.room = room;
                put_stem(self.walk, &content, &subs, &mut self.out)?;
                Ok(true)
            }
        }
    }

    fn finish(self) -> Vec<u8> {
        match self.code {
            None => [&[ENTRIES], &self.out[..]].concat(),
            Some(code) => [&[ENTRIES_AND_CODE], &code[..], &self.out[..]].concat(),
        }
    }
}

/// Whether more than `leaves` leaves are below a node.
fn has_more(walk: &TreeWalk<'_>, node: &Node, leaves: &mut usize) -> Result<bool, StateError> {
    Ok(match stem_or_branch(walk, node.clone())? {
        StemOrBranch::Code => false,
        StemOrBranch::Branch { left, right, .. } => {
            has_more(walk, &left, leaves)? || has_more(walk, &right, leaves)?
        }
        StemOrBranch::Stem(_, subs) => match leaves.checked_sub(subs.len()) {
            Some(left) => {
                *leaves = left;
                false
            }
            None => true,
        },
    })
}

/// A node that is no part of a stem.
enum StemOrBranch {
    Stem(Arc<StemContent>, Vec<(u8, B256)>),
    Branch {
        key: Vec<u8>,
        split: usize,
        left: Node,
        right: Node,
    },
    /// It is in the zone of code.
    Code,
}

fn stem_or_branch(walk: &TreeWalk<'_>, node: Node) -> Result<StemOrBranch, StateError> {
    if node.is_code() {
        return Ok(StemOrBranch::Code);
    }
    Ok(match walk.settle(node)? {
        Node::Leaves(content, subs) => StemOrBranch::Stem(content, subs),
        node => match walk.open(node)? {
            OpenedNode::Branch { key, split, left, right } => {
                StemOrBranch::Branch { key, split, left, right }
            }
            OpenedNode::Leaf { .. } => StemOrBranch::Code,
        },
    })
}

/// Appends the entries of a stem.
fn put_stem(
    walk: &TreeWalk<'_>,
    content: &StemContent,
    subs: &[(u8, B256)],
    out: &mut Vec<u8>,
) -> Result<(), StateError> {
    let mut put = |key: BackendKey, value: &[u8]| {
        out.extend_from_slice(&key.encode());
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
    };
    let slot = |sub| -> Result<StateValue, StateError> {
        let value = walk.value(content, sub)?;
        encode_slot(U256::from_be_bytes(value.0))
            .ok_or_else(|| StateError::corrupt(crate::STEMS.name, "a slot of zero"))
    };
    match &content.values {
        LeafValues::Header(owner, values) => {
            let leaf = |sub| values.get(&sub).copied();
            let found = account_of(leaf(BASIC_DATA), leaf(CODE_HASH), leaf(DELEGATION));
            let account = found.map_err(|what| StateError::corrupt(crate::STEMS.name, what))?;
            if let Some((account, code)) = account {
                put(BackendKey::Account(*owner), &account.encode());
                if account.code_hash != KECCAK256_EMPTY {
                    put_code(out, &code);
                }
            }
            put_slots(owner, subs.iter().filter(|(sub, _)| *sub > DELEGATION), slot, out)
        }
        LeafValues::Slots(owner, group) => {
            for (sub, _) in subs {
                put(BackendKey::Slot(*owner, slot_of_group(group, *sub)), &slot(*sub)?);
            }
            Ok(())
        }
        LeafValues::Chunks(..) => Ok(()),
    }
}

/// Appends the slots of a header.
fn put_slots<'a>(
    owner: &AccountKey,
    subs: impl Iterator<Item = &'a (u8, B256)>,
    slot: impl Fn(u8) -> Result<StateValue, StateError>,
    out: &mut Vec<u8>,
) -> Result<(), StateError> {
    for (sub, _) in subs {
        let number = B256::with_last_byte(sub - crate::key::FIRST_SLOT);
        let value = slot(*sub)?;
        out.extend_from_slice(&BackendKey::Slot(*owner, number).encode());
        put_varint(out, value.len() as u64);
        out.extend_from_slice(&value);
    }
    Ok(())
}

fn put_code(out: &mut Vec<u8>, code: &CodeFacts) {
    match &code.delegation {
        None => {
            out.push(0);
            out.extend_from_slice(&code.size.to_be_bytes());
        }
        Some(target) => {
            out.push(1);
            out.extend_from_slice(&target[..]);
        }
    }
}

/// Appends the branches at the front of a node: those below which there is too much for one answer.
fn put_branch(
    walk: &TreeWalk<'_>,
    node: Node,
    from: usize,
    level: usize,
    out: &mut Vec<u8>,
) -> Result<(), StateError> {
    let StemOrBranch::Branch { key, split, left, right } = stem_or_branch(walk, node)? else {
        return Err(StateError::corrupt(crate::NODES.name, "a stem of too many leaves"));
    };
    let count = split - from;
    out.extend_from_slice(&(count as u16).to_be_bytes());
    let mut bits = vec![0; count.div_ceil(8)];
    for at in 0..count {
        bits[at / 8] |= bit(&key, from + at) << (7 - at % 8);
    }
    out.extend_from_slice(&bits);
    for child in [left, right] {
        let is_open =
            level + 1 < LEVELS && !child.is_code() && has_more(walk, &child, &mut { MOST_LEAVES })?;
        if is_open {
            out.push(BRANCH);
            put_branch(walk, child, split + 1, level + 1, out)?;
        } else {
            out.push(HIDDEN);
            out.extend_from_slice(&walk.hash(&child, split + 1)?[..]);
        }
    }
    Ok(())
}
