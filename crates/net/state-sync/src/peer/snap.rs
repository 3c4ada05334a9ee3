//! [`SnapPeerSet`]: peers that serve states by `snap/1`. A chunk is asked for as a range of leaves; if
//! it is longer than an answer, as the node at its slot, which names the chunks below.
//!
//! | chunk | request |
//! |---|---|
//! | above the depth at which chunks of its trie fit into an answer, or mostly known | `GetTrieNodes`, many at once |
//! | a whole storage trie, of which nothing is known | `GetStorageRanges`, many accounts at once |
//! | any other | `GetAccountRange` or `GetStorageRanges`, one each, some at the same time |
//!
//! `snap/2` has no `GetTrieNodes`: there a node comes in the proof of the first leaf below it.
//!
//! The hash in the chunk's id checks what a peer sends. Only an answer that ends before its chunk does
//! needs the peer's proof: without it, a peer could have every chunk split down to single leaves.

use super::{PeerSource, StatePeer, StatePeerError};
use alloy_primitives::{B256, Bytes, hex, keccak256};
use futures::future::join_all;
use parking_lot::Mutex;
use retrie_p2p::{
    eth::PeerId,
    handle::{NetworkHandle, PeerInfo, PeerOffence, RequestError},
    snap::{SlimAccount, SnapLeaf, SnapRequest, SnapResponse, SnapVersion, TrieNodePaths},
};
use retrie_state::{ChunkId, ChunkPlace, OpenedChunk, RangeFormat, StateTrie, TrieLeaf};
use std::{collections::HashMap, sync::Arc};
use tokio::runtime::Handle;

/// Bytes of an answer that is asked for.
const ASKED_BYTES: u64 = 512 << 10;
/// An answer with fewer bytes than this ends where the range ends. geth gives what was asked for,
/// other clients half of it at least.
const CUT_BYTES: u64 = ASKED_BYTES / 4;
/// Most requests for ranges that are open at one peer.
const RANGES_AT_ONCE: usize = 8;
/// Most accounts of one request for storage tries, and nodes of one request for nodes.
const ITEMS_AT_ONCE: usize = 512;
/// Most tries whose depth is remembered.
const MAX_DEPTHS: usize = 1 << 16;
/// The share of a chunk that a whole answer is counted as: chunks of equal depth differ in size.
const FULL: f64 = 1.5;
/// The largest key.
const LARGEST: B256 = B256::repeat_byte(0xff);

/// The connected peers that serve states by `snap`.
#[derive(Clone, Debug)]
pub struct SnapPeerSet {
    peers: NetworkHandle,
    runtime: Handle,
    format: &'static dyn RangeFormat,
    /// Root of the state.
    root: B256,
    depths: Arc<TrieDepths>,
}

impl SnapPeerSet {
    /// Takes the peers of a network, to ask for the state with this root. Requests run on `runtime`; the caller's threads block on them and must not
    /// belong to it.
    pub fn new(
        peers: NetworkHandle,
        format: &'static dyn RangeFormat,
        root: B256,
        runtime: Handle,
    ) -> Self {
        Self { peers, runtime, format, root, depths: Arc::default() }
    }
}

impl PeerSource for SnapPeerSet {
    fn peers(&self) -> Vec<Arc<dyn StatePeer>> {
        let serving = self.peers.connected().into_iter().filter(|info| info.snap.is_some());
        let remote = |info: Arc<PeerInfo>| SnapPeer {
            name: format!("{} ({})", info.address.ip(), hex::encode(&info.id[..6])),
            id: info.id,
            version: info.snap,
            of: self.clone(),
        };
        serving.map(|info| Arc::new(remote(info)) as Arc<dyn StatePeer>).collect()
    }

    fn may_grow(&self) -> bool {
        true
    }
}

/// At which depth the chunks of large tries fit into an answer.
#[derive(Debug, Default)]
struct TrieDepths(Mutex<HashMap<StateTrie, usize>>);

impl TrieDepths {
    fn of(&self, trie: StateTrie) -> usize {
        self.0.lock().get(&trie).copied().unwrap_or_default()
    }

    /// Records that an answer for a slot of this depth had only this share of what is below it.
    fn cut(&self, trie: StateTrie, depth: usize, share: f64) {
        let levels = (FULL / share.clamp(1e-9, 1.0)).log(16.0).ceil().max(1.0);
        let mut depths = self.0.lock();
        if depths.len() >= MAX_DEPTHS && !depths.contains_key(&trie) {
            return;
        }
        let known = depths.entry(trie).or_default();
        *known = (*known).max(depth + levels as usize).min(64);
    }
}

/// One connected peer that serves states.
#[derive(Debug)]
struct SnapPeer {
    name: String,
    id: PeerId,
    /// The version that is spoken with it.
    version: Option<SnapVersion>,
    of: SnapPeerSet,
}

/// How a chunk is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkRequest {
    Node,
    WholeStorage,
    Range,
    /// Its node is in the id.
    Embedded,
}

impl SnapPeer {
    async fn ask(&self, request: SnapRequest) -> Result<SnapResponse, StatePeerError> {
        Ok(self.of.peers.request_snap(self.id, request).await?)
    }

    /// The places of these chunks.
    fn places<'a>(
        &self,
        ids: &'a [ChunkId],
    ) -> Result<Vec<(&'a ChunkId, ChunkPlace)>, StatePeerError> {
        let unknown = || StatePeerError::new("an unknown chunk");
        ids.iter().map(|id| Ok((id, self.of.format.place(id).ok_or_else(unknown)?))).collect()
    }

    fn request_of(&self, place: &ChunkPlace) -> ChunkRequest {
        let depth = self.of.depths.of(place.trie);
        match place.trie {
            _ if place.embedded.is_some() => ChunkRequest::Embedded,
            _ if place.path.len() < depth => ChunkRequest::Node,
            StateTrie::Storage(_) if place.path.is_empty() => ChunkRequest::WholeStorage,
            _ => ChunkRequest::Range,
        }
    }

    /// Answers the first of these chunks, as far as they are asked for in the same way.
    async fn answers(&self, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let places = self.places(ids)?;
        let Some((_, first)) = places.first() else { return Ok(Vec::new()) };
        let way = self.request_of(first);
        let most = match way {
            ChunkRequest::Node if !self.gives_nodes() => RANGES_AT_ONCE,
            ChunkRequest::Node | ChunkRequest::WholeStorage => ITEMS_AT_ONCE,
            ChunkRequest::Range => RANGES_AT_ONCE,
            ChunkRequest::Embedded => usize::MAX,
        };
        let alike = places.iter().take_while(|(_, place)| self.request_of(place) == way).take(most);
        let places: Vec<_> = alike.cloned().collect();
        match way {
            ChunkRequest::Embedded => {
                Ok(places.iter().map(|(_, place)| self.embedded(place)).collect())
            }
            ChunkRequest::Node => self.nodes(&places).await,
            ChunkRequest::WholeStorage => self.storages(&places).await,
            ChunkRequest::Range => {
                let given = join_all(places.iter().map(|(id, place)| self.range(id, place))).await;
                first_answers(given)
            }
        }
    }

    /// The node in a chunk's id, as an answer.
    fn embedded(&self, place: &ChunkPlace) -> Option<Bytes> {
        place.embedded.as_ref().map(|node| self.of.format.pack_node(node))
    }

    /// Whether the peer is asked for nodes; from `snap/2` on they come in proofs alone.
    fn gives_nodes(&self) -> bool {
        self.version == Some(SnapVersion::Snap1)
    }

    /// The node at a slot, from the proof of the first leaf below it.
    async fn proven_node(
        &self,
        id: &ChunkId,
        place: &ChunkPlace,
    ) -> Result<Option<Bytes>, StatePeerError> {
        let (leaves, proof) = self.leaves(place, 1).await?;
        let format = self.of.format;
        Ok(match format.find_node(id, &proof) {
            Some(node) => Some(format.pack_node(node)),
            // A whole trie comes without a proof.
            None if !leaves.is_empty() => Some(format.pack_leaves(&leaves)),
            None => None,
        })
    }

    /// The nodes at these slots, as answers; fewer if the peer gives fewer.
    async fn nodes(
        &self,
        places: &[(&ChunkId, ChunkPlace)],
    ) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        if !self.gives_nodes() {
            let some = places.iter().take(RANGES_AT_ONCE);
            let nodes = some.map(|(id, place)| self.proven_node(id, place));
            return first_answers(join_all(nodes).await);
        }
        let mut paths: Vec<TrieNodePaths> = Vec::new();
        let mut last = None;
        for (_, ChunkPlace { trie, path, .. }) in places {
            let path = compact(path);
            match (trie, paths.last_mut()) {
                (StateTrie::Accounts, _) => paths.push(vec![path]),
                (StateTrie::Storage(_), Some(of)) if last == Some(*trie) => of.push(path),
                (StateTrie::Storage(account), _) => {
                    paths.push(vec![Bytes::copy_from_slice(account.as_slice()), path]);
                }
            }
            last = Some(*trie);
        }
        let request = SnapRequest::Nodes { root: self.of.root, paths, bytes: ASKED_BYTES };
        match self.ask(request).await? {
            SnapResponse::Nodes(nodes) if nodes.is_empty() => Ok(vec![None]),
            SnapResponse::Nodes(nodes) => {
                let format = self.of.format;
                let answer = |node: &Bytes| (!node.is_empty()).then(|| format.pack_node(node));
                Ok(nodes.iter().map(answer).collect())
            }
            _ => Err(RequestError::WrongAnswer.into()),
        }
    }

    /// The first leaves from a slot on, at least one and about `bytes` of them, and the proof that
    /// the peer sends with them.
    async fn leaves(
        &self,
        place: &ChunkPlace,
        bytes: u64,
    ) -> Result<(Vec<TrieLeaf>, Vec<Bytes>), StatePeerError> {
        let (root, first, last) = (self.of.root, *place.keys.start(), *place.keys.end());
        match place.trie {
            StateTrie::Accounts => {
                let request = SnapRequest::Accounts { root, first, last, bytes };
                let SnapResponse::Accounts { accounts, proof } = self.ask(request).await? else {
                    return Err(RequestError::WrongAnswer.into());
                };
                let leaves = accounts.into_iter().map(account_leaf).collect::<Option<_>>();
                let wrong = || StatePeerError::new("an account that is no account");
                Ok((leaves.ok_or_else(wrong)?, proof))
            }
            StateTrie::Storage(account) => {
                let request = SnapRequest::Storage {
                    root,
                    accounts: vec![account],
                    first: Bytes::copy_from_slice(first.as_slice()),
                    last: Bytes::copy_from_slice(last.as_slice()),
                    bytes,
                };
                let SnapResponse::Storage { slots, proof } = self.ask(request).await? else {
                    return Err(RequestError::WrongAnswer.into());
                };
                let slots = slots.into_iter().next().unwrap_or_default();
                Ok((slots.into_iter().map(slot_leaf).collect(), proof))
            }
        }
    }

    /// The answer for one slot: its leaves, or its node if they do not fit.
    async fn range(
        &self,
        id: &ChunkId,
        place: &ChunkPlace,
    ) -> Result<Option<Bytes>, StatePeerError> {
        let (leaves, proof) = self.leaves(place, ASKED_BYTES).await?;
        let is_whole = leaves.last().is_some_and(|leaf| leaf.key >= *place.keys.end());
        self.given(id, place, leaves, if is_whole { None } else { Some(&proof) })
    }

    /// Storage tries, as many as the answer has.
    async fn storages(
        &self,
        places: &[(&ChunkId, ChunkPlace)],
    ) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let account = |(_, place): &(&ChunkId, ChunkPlace)| match place.trie {
            StateTrie::Storage(account) => account,
            StateTrie::Accounts => B256::ZERO,
        };
        let request = SnapRequest::Storage {
            root: self.of.root,
            accounts: places.iter().map(account).collect(),
            first: Bytes::new(),
            last: Bytes::new(),
            bytes: ASKED_BYTES,
        };
        let SnapResponse::Storage { slots, proof } = self.ask(request).await? else {
            return Err(RequestError::WrongAnswer.into());
        };
        if slots.is_empty() {
            return Ok(vec![None]);
        }
        let end = slots.len() - 1;
        let all = slots.into_iter().zip(places).enumerate();
        all.map(|(at, (slots, (id, place)))| {
            let leaves = slots.into_iter().map(slot_leaf).collect();
            // Only the last one may be cut, and then it has a proof.
            let may_be_cut = at == end && !proof.is_empty();
            self.given(id, place, leaves, may_be_cut.then_some(&proof[..]))
        })
        .collect()
    }

    /// The answer that these leaves are for the chunk; `None` if there are none. They are from its
    /// first key on, and maybe beyond its last. With a proof, they may end before the chunk does:
    /// then the answer is the node at its slot.
    fn given(
        &self,
        id: &ChunkId,
        place: &ChunkPlace,
        mut leaves: Vec<TrieLeaf>,
        proof: Option<&[Bytes]>,
    ) -> Result<Option<Bytes>, StatePeerError> {
        let format = self.of.format;
        if leaves.is_empty() {
            return Ok(None);
        }
        let bytes: u64 = leaves.iter().map(|leaf| 32 + leaf.value.len() as u64).sum();
        let (first, last) = (*place.keys.start(), *place.keys.end());
        let end = leaves.last().map_or(LARGEST, |leaf| leaf.key);
        leaves.retain(|leaf| place.keys.contains(&leaf.key));
        let answer = format.pack_leaves(&leaves);
        // Without a leaf beyond it the range may be whole, if it is the end of its trie.
        let is_end = || matches!(format.open_range(id, &answer), Ok(OpenedChunk::Entries { .. }));
        let Some(proof) = proof.filter(|_| !is_end()) else { return Ok(Some(answer)) };
        if bytes < CUT_BYTES {
            let what = format!("an answer of {bytes} bytes that ends too early");
            return Err(StatePeerError::new(what));
        }
        // Without its proof the part counts as the whole, which it is not.
        if let Err(error) = format.check_part(id, &leaves, proof) {
            tracing::debug!(peer = self.name, %error, "the end of a range is not proven");
            return Ok(Some(answer));
        }
        let part = fraction(&end) - fraction(&first);
        let all = fraction(&last) - fraction(&first);
        self.of.depths.cut(place.trie, place.path.len(), part / all.max(f64::MIN_POSITIVE));
        // The proof begins with the nodes on the path to the slot.
        let node = format.find_node(id, proof).ok_or_else(|| StatePeerError::new("no node"))?;
        Ok(Some(format.pack_node(node)))
    }
}

/// The answers before the first failure; the failure if it comes first.
fn first_answers(
    answers: Vec<Result<Option<Bytes>, StatePeerError>>,
) -> Result<Vec<Option<Bytes>>, StatePeerError> {
    let mut good = Vec::with_capacity(answers.len());
    for answer in answers {
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) if good.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(good)
}

/// A key as a number between 0 and 1, roughly.
fn fraction(key: &B256) -> f64 {
    key.iter().rev().fold(0.0, |below, byte| (below + f64::from(*byte)) / 256.0)
}

fn account_leaf(leaf: SnapLeaf) -> Option<TrieLeaf> {
    let value = SlimAccount::decode(&leaf.value)?.to_leaf();
    Some(TrieLeaf { key: leaf.key, value })
}

fn slot_leaf(leaf: SnapLeaf) -> TrieLeaf {
    TrieLeaf { key: leaf.key, value: leaf.value }
}

/// A path of nibbles in compact encoding (yellow paper, appendix C), as that of an extension.
fn compact(path: &[u8]) -> Bytes {
    let (odd, even) = path.split_at(path.len() % 2);
    let head = odd.first().map_or(0, |nibble| 0x10 | nibble);
    let pairs = even.chunks_exact(2).map(|pair| match pair {
        [high, low] => high << 4 | low,
        _ => 0,
    });
    std::iter::once(head).chain(pairs).collect::<Vec<_>>().into()
}

impl StatePeer for SnapPeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_available(&self) -> bool {
        self.of.peers.connected().iter().any(|info| info.id == self.id)
    }

    fn find_root(&self, _: B256) -> Result<Option<B256>, StatePeerError> {
        Err(StatePeerError::new("peers cannot find the block of a root: name the block"))
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, StatePeerError> {
        super::connected::headers(&self.of.peers, &self.of.runtime, self.id, block, count)
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let request = SnapRequest::Codes { hashes: hashes.to_vec(), bytes: ASKED_BYTES };
        let SnapResponse::Codes(codes) = self.of.runtime.block_on(self.ask(request))? else {
            return Err(RequestError::WrongAnswer.into());
        };
        // Codes that the peer does not have are left out.
        let mut codes = codes.into_iter().map(|code| (keccak256(&code), code)).peekable();
        let mut answers = Vec::new();
        for hash in hashes {
            if codes.peek().is_none() {
                break;
            }
            answers.push(codes.next_if(|(of, _)| of == hash).map(|(_, code)| code));
        }
        // A code that was not asked for is the wrong answer to the first that it leaves out.
        if let Some((_, wrong)) = codes.next()
            && let Some(left_out) = answers.iter_mut().find(|answer| answer.is_none())
        {
            *left_out = Some(wrong);
        }
        // It has none of them.
        if answers.is_empty() {
            answers.push(None);
        }
        Ok(answers)
    }

    fn chunks(&self, _: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        self.of.runtime.block_on(self.answers(ids))
    }

    fn nodes(&self, _: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let places = self.places(&ids[..ids.len().min(ITEMS_AT_ONCE)])?;
        // A short node is in its id.
        let short = places.iter().take_while(|(_, place)| place.embedded.is_some());
        let short: Vec<_> = short.map(|(_, place)| self.embedded(place)).collect();
        match short.is_empty() {
            true => {
                let long = places.iter().take_while(|(_, place)| place.embedded.is_none());
                let long: Vec<_> = long.cloned().collect();
                self.of.runtime.block_on(Self::nodes(self, &long))
            }
            false => Ok(short),
        }
    }

    fn access_lists(&self, blocks: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let request = SnapRequest::AccessLists { hashes: blocks.to_vec(), bytes: ASKED_BYTES };
        match self.of.runtime.block_on(self.ask(request))? {
            SnapResponse::AccessLists(lists) => Ok(lists),
            _ => Err(RequestError::WrongAnswer.into()),
        }
    }

    /// geth ends a range of slots without a word where a new block moves its database under the
    /// iterator. A range from the first key on comes without a proof.
    fn may_be_mistaken(&self, chunk: &ChunkId, wrong: &[u8]) -> bool {
        let place = self.of.format.place(chunk);
        let is_unproven = |place: ChunkPlace| {
            matches!(place.trie, StateTrie::Storage(_)) && place.keys.start().is_zero()
        };
        wrong.len() as u64 <= 2 * ASKED_BYTES && place.is_some_and(is_unproven)
    }

    fn report_lie(&self) {
        self.of.peers.report(self.id, PeerOffence::WrongData);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compact_as_those_of_extensions() {
        for (path, expected) in [
            (&[][..], &[0x00][..]),
            (&[0xb], &[0x1b]),
            (&[1, 2], &[0x00, 0x12]),
            (&[1, 2, 3], &[0x11, 0x23]),
        ] {
            assert_eq!(compact(path)[..], *expected, "{path:?}");
        }
    }

    #[test]
    fn the_depth_of_a_trie_follows_from_the_share_that_an_answer_had() {
        let depths = TrieDepths::default();
        for (share, depth) in [(0.9, 1), (0.1, 1), (0.09, 2), (1.0 / 250.0, 3), (0.0, 8)] {
            let trie = StateTrie::Storage(B256::repeat_byte(depth as u8 + (share * 100.0) as u8));
            depths.cut(trie, 0, share);
            assert_eq!(depths.of(trie), depth, "{share}");
            depths.cut(trie, 0, 1.0);
            assert_eq!(depths.of(trie), depth.max(1), "it never falls");
        }
        assert_eq!(depths.of(StateTrie::Accounts), 0);
    }
}
