//! Answers `snap` requests from the state that a [`RangeServer`] has. Limits are geth's, so that
//! every client's requests fit.

use alloy_primitives::{B256, Bytes};
use retrie_p2p::snap::{SlimAccount, SnapLeaf, SnapRequest, SnapResponse, TrieNodePaths};
use retrie_state::{RangeAnswer, RangeServer, StateError, StateTrie, TrieLeaf};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

/// Most bytes of an answer, about.
pub const MAX_SNAP_BYTES: u64 = 2 << 20;
/// Most codes, or trie nodes, of one answer.
pub const MAX_SNAP_LOOKUPS: usize = 1024;
/// Longest time for trie nodes.
const MAX_TIME: Duration = Duration::from_secs(5);

/// The answer to a request for a part of `state`, which has the root that is asked for; `NoTrie` if
/// the state does not have it, or if codes are asked for.
///
/// # Errors
/// If the state cannot be read.
pub fn answer_snap(
    state: &dyn RangeServer,
    request: &SnapRequest,
) -> Result<RangeAnswer<SnapResponse>, StateError> {
    match request {
        SnapRequest::Accounts { first, last, bytes, .. } => accounts(state, *first, *last, *bytes),
        SnapRequest::Storage { accounts, first, last, bytes, .. } => {
            storage(state, accounts, [first, last], *bytes)
        }
        SnapRequest::Nodes { paths, bytes, .. } => nodes(state, paths, *bytes),
        SnapRequest::Codes { .. } | SnapRequest::AccessLists { .. } => Ok(RangeAnswer::NoTrie),
    }
}

/// What was found, or the answer that there is none.
fn found<T, A>(answer: RangeAnswer<T>) -> Result<T, RangeAnswer<A>> {
    match answer {
        RangeAnswer::Found(found) => Ok(found),
        RangeAnswer::NoTrie => Err(RangeAnswer::NoTrie),
        RangeAnswer::NotReady => Err(RangeAnswer::NotReady),
    }
}

fn accounts(
    state: &dyn RangeServer,
    first: B256,
    last: B256,
    bytes: u64,
) -> Result<RangeAnswer<SnapResponse>, StateError> {
    let mut room = AnswerRoom::new(bytes.min(MAX_SNAP_BYTES));
    // An account that cannot be read ends the answer.
    let mut accounts = Vec::new();
    let mut enough = |leaf: &TrieLeaf| {
        let Some(account) = SlimAccount::from_leaf(&leaf.value) else { return true };
        let value = account.encode();
        let is_last = room.take(&value) || leaf.key >= last;
        accounts.push(SnapLeaf { key: leaf.key, value });
        is_last
    };
    state.leaves(StateTrie::Accounts, first, &mut enough)?;
    let ends = [Some(first), accounts.last().map(|leaf| leaf.key)];
    Ok(match found(proof(state, StateTrie::Accounts, ends)?) {
        Ok(proof) => RangeAnswer::Found(SnapResponse::Accounts { accounts, proof }),
        Err(none) => none,
    })
}

fn storage(
    state: &dyn RangeServer,
    accounts: &[B256],
    [first, last]: [&Bytes; 2],
    bytes: u64,
) -> Result<RangeAnswer<SnapResponse>, StateError> {
    // An answer may exceed the limit by a tenth, if a trie is whole then.
    let soft = bytes.min(MAX_SNAP_BYTES);
    let mut room = AnswerRoom::new(soft + soft / 10);
    let mut slots = Vec::new();
    for (at, account) in accounts.iter().enumerate() {
        if room.used >= soft && at > 0 {
            break;
        }
        // The ends hold for the first account.
        let end = |bytes: &Bytes| (at == 0 && !bytes.is_empty()).then(|| padded(bytes));
        let (first, last) = (end(first).unwrap_or_default(), end(last).unwrap_or(LARGEST));
        let (trie, mut is_cut) = (StateTrie::Storage(*account), false);
        let mut enough = |leaf: &TrieLeaf| {
            is_cut = room.take(&leaf.value);
            is_cut || leaf.key >= last
        };
        let leaves = match found(state.leaves(trie, first, &mut enough)?) {
            Ok(leaves) => leaves,
            Err(none) => return Ok(none),
        };
        let end = leaves.last().map(|leaf| leaf.key);
        let is_partial = !first.is_zero() || is_cut || end.is_some_and(|end| end >= last);
        if !leaves.is_empty() {
            slots.push(leaves.into_iter().map(slot).collect());
        }
        if is_partial {
            return Ok(match found(proof(state, trie, [Some(first), end])?) {
                Ok(proof) => RangeAnswer::Found(SnapResponse::Storage { slots, proof }),
                Err(none) => none,
            });
        }
    }
    Ok(RangeAnswer::Found(SnapResponse::Storage { slots, proof: Vec::new() }))
}

const LARGEST: B256 = B256::repeat_byte(0xff);

fn slot(leaf: TrieLeaf) -> SnapLeaf {
    SnapLeaf { key: leaf.key, value: leaf.value }
}

/// The last 32 of these bytes, with zeros before them.
fn padded(bytes: &Bytes) -> B256 {
    B256::left_padding_from(&bytes[bytes.len().saturating_sub(32)..])
}

/// The nodes on the paths to both ends.
fn proof(
    state: &dyn RangeServer,
    trie: StateTrie,
    ends: [Option<B256>; 2],
) -> Result<RangeAnswer<Vec<Bytes>>, StateError> {
    let (mut seen, mut nodes) = (HashSet::new(), Vec::new());
    for key in ends.into_iter().flatten() {
        let path = match found(state.path(trie, key)?) {
            Ok(path) => path,
            Err(none) => return Ok(none),
        };
        nodes.extend(path.into_iter().filter(|node| seen.insert(node.clone())));
    }
    Ok(RangeAnswer::Found(nodes))
}

fn nodes(
    state: &dyn RangeServer,
    paths: &[TrieNodePaths],
    bytes: u64,
) -> Result<RangeAnswer<SnapResponse>, StateError> {
    let (mut nodes, mut used) = (Vec::new(), 0);
    let begun = Instant::now();
    let all = paths.iter().flat_map(|of| match &of[..] {
        [path] => vec![(Some(StateTrie::Accounts), path)],
        [account, paths @ ..] => {
            let account = B256::try_from(&account[..]).ok().map(StateTrie::Storage);
            paths.iter().map(|path| (account, path)).collect()
        }
        [] => Vec::new(),
    });
    for (trie, path) in all.take(MAX_SNAP_LOOKUPS) {
        // The answer ends with the first trie that is not there; an absent node is empty.
        let Some(trie) = trie else { break };
        let node = match state.node(trie, &nibbles(path))? {
            RangeAnswer::Found(node) => node.unwrap_or_default(),
            RangeAnswer::NoTrie => break,
            RangeAnswer::NotReady if nodes.is_empty() => return Ok(RangeAnswer::NotReady),
            RangeAnswer::NotReady => break,
        };
        used += node.len() as u64;
        nodes.push(node);
        if used > bytes.min(MAX_SNAP_BYTES) || begun.elapsed() > MAX_TIME {
            break;
        }
    }
    Ok(RangeAnswer::Found(SnapResponse::Nodes(nodes)))
}

/// The nibbles of a path in compact encoding (yellow paper, appendix C).
fn nibbles(compact: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = compact.split_first() else { return Vec::new() };
    let odd = (first & 0x10 != 0).then_some(first & 0x0f);
    let rest = rest.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    odd.into_iter().chain(rest).collect()
}

/// The bytes that an answer may still have.
struct AnswerRoom {
    used: u64,
    limit: u64,
}

impl AnswerRoom {
    const fn new(limit: u64) -> Self {
        Self { used: 0, limit }
    }

    /// Counts a leaf with this value. Returns whether the answer has enough.
    fn take(&mut self, value: &Bytes) -> bool {
        self.used += 32 + value.len() as u64;
        self.used > self.limit
    }
}
