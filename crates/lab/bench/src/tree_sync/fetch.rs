//! The methods to fetch a tree from peers.

use super::{
    TreeSyncError,
    link::{OVERVIEW, PeerLink, TreeKind},
};
use crate::{
    random::SplitMix64,
    trees::{
        AuthenticatedTree, AvlPlusTree, BavlTree, CheckedChunk, MessageElements, read_elements,
        root_of,
    },
};
use alloy_primitives::B256;
use std::{
    collections::VecDeque,
    fmt,
    str::FromStr,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Interval at which a waiting thread checks the stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// A method to fetch a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchMethod {
    /// The baseline with this policy.
    AvlPlus(BaselinePolicy),
    /// B+AVL: each chunk is checked when it arrives.
    Bavl,
}

/// What the baseline does after a wrong root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselinePolicy {
    /// Fetches everything again from all peers but one that has lied, which an oracle names.
    Refetch,
    /// Fetches everything again from all peers but a random one. When no peer is left, it begins
    /// again with all.
    DropRandom,
    /// Fetches everything from one peer, and after a wrong root from another one.
    Rational,
}

impl BaselinePolicy {
    /// All policies, the paper's first.
    pub const ALL: [Self; 3] = [Self::Refetch, Self::DropRandom, Self::Rational];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refetch => "refetch",
            Self::DropRandom => "drop-random",
            Self::Rational => "rational",
        }
    }
}

impl fmt::Display for BaselinePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`: it is refetch, drop-random or rational")]
pub struct UnknownPolicy(String);

impl FromStr for BaselinePolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.into()))
    }
}

impl FetchMethod {
    /// The name: `bavl`, or `avlplus:` and the policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bavl => "bavl",
            Self::AvlPlus(BaselinePolicy::Refetch) => "avlplus:refetch",
            Self::AvlPlus(BaselinePolicy::DropRandom) => "avlplus:drop-random",
            Self::AvlPlus(BaselinePolicy::Rational) => "avlplus:rational",
        }
    }

    /// The policy of the baseline.
    pub const fn policy(self) -> Option<BaselinePolicy> {
        match self {
            Self::Bavl => None,
            Self::AvlPlus(policy) => Some(policy),
        }
    }

    pub(super) const fn kind(self) -> TreeKind {
        match self {
            Self::Bavl => TreeKind::Bavl,
            Self::AvlPlus(_) => TreeKind::AvlPlus,
        }
    }
}

/// The cost of fetching a tree. All times but `serialize` are measured at the fetching peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchStats {
    /// From the first connection to a tree with the right root.
    pub total: Duration,
    /// Until the last chunk was checked or stored, summed over rounds.
    pub transfer: Duration,
    /// The part of it that was spent on decoding chunks and, for B+AVL, hashing and comparing them,
    /// summed over threads.
    pub read: Duration,
    /// Building and hashing the tree, summed over rounds.
    pub rebuild: Duration,
    /// Serialisation at the serving peers, summed over peers.
    pub serialize: Duration,
    /// Number of rounds, in each of which everything is fetched.
    pub rounds: u32,
    /// Number of received chunks.
    pub chunks: u64,
    /// Bytes of the received chunks.
    pub bytes: u64,
}

/// The expected roots, and the chunk size.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedRoots {
    pub(super) chunk: usize,
    pub(super) bavl: B256,
    pub(super) avlplus: B256,
}

/// Fetches the tree from the peers that `links` connects to. Only the oracle of
/// [`BaselinePolicy::Refetch`] looks at `lies`.
pub(super) fn fetch(
    way: FetchMethod,
    wanted: &ExpectedRoots,
    lies: &[bool],
    links: impl FnOnce() -> Result<Vec<PeerLink>, TreeSyncError>,
    random: &mut SplitMix64,
    stop: &AtomicBool,
) -> Result<FetchStats, TreeSyncError> {
    let start = Instant::now();
    let mut fetch = TreeFetch { stop, fetched: FetchStats::default(), of: 0 };
    let mut links = links()?;
    fetch.of = links.len();
    match way {
        FetchMethod::Bavl => fetch.bavl(wanted, &mut links, random)?,
        FetchMethod::AvlPlus(policy) => match policy {
            BaselinePolicy::Refetch => fetch.refetch(wanted, &mut links, lies)?,
            BaselinePolicy::DropRandom => fetch.drop_random(wanted, &mut links, random)?,
            BaselinePolicy::Rational => fetch.rational(wanted, &mut links, random)?,
        },
    }
    fetch.fetched.total = start.elapsed();
    for link in &mut links {
        // A closed connection gives no answer.
        fetch.fetched.serialize += Duration::from_nanos(link.spent().unwrap_or_default());
        link.close();
    }
    Ok(fetch.fetched)
}

struct TreeFetch<'a> {
    stop: &'a AtomicBool,
    fetched: FetchStats,
    /// Number of peers.
    of: usize,
}

impl TreeFetch<'_> {
    fn bavl(
        &mut self,
        wanted: &ExpectedRoots,
        links: &mut [PeerLink],
        random: &mut SplitMix64,
    ) -> Result<(), TreeSyncError> {
        let start = Instant::now();
        let mut peers: Vec<usize> = (0..links.len()).collect();
        let skeleton = loop {
            if peers.is_empty() {
                return Err(TreeSyncError::NoPeers { peers: self.of });
            }
            let peer = peers.swap_remove(random.below(peers.len() as u64) as usize);
            let overview = overview(&mut links[peer])?;
            let skeleton: Vec<(B256, u8)> = overview
                .as_chunks::<33>()
                .0
                .iter()
                .map(|leaf| (B256::from_slice(&leaf[..32]), leaf[32]))
                .collect();
            if overview.len() % 33 == 0 && root_of(wanted.chunk, &skeleton) == Some(wanted.bavl) {
                break skeleton;
            }
            links[peer].close();
        };
        let check = |at: usize, message: &[u8]| CheckedChunk::read(message, skeleton.get(at)?.0);
        let chunks =
            self.chunks(&mut links.iter_mut().collect::<Vec<_>>(), skeleton.len(), check)?;
        self.fetched.transfer = start.elapsed();
        self.fetched.rounds = 1;
        let start = Instant::now();
        let heights = skeleton.iter().map(|(_, key_height)| *key_height);
        let tree = BavlTree::rebuild(wanted.chunk, chunks.into_iter().zip(heights).collect());
        let is_right = tree.is_some_and(|mut tree| tree.root() == wanted.bavl);
        self.fetched.rebuild = start.elapsed();
        if is_right { Ok(()) } else { Err(TreeSyncError::WrongTree) }
    }

    /// Fetches the tree from these peers; returns whether it has the expected root.
    fn try_avlplus(
        &mut self,
        wanted: &ExpectedRoots,
        links: &mut [&mut PeerLink],
    ) -> Result<bool, TreeSyncError> {
        let start = Instant::now();
        let first = links.first_mut().ok_or(TreeSyncError::NoPeers { peers: self.of })?;
        let overview = overview(first)?;
        let count = overview.first_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize);
        // A message that cannot be decoded counts as wrong.
        let read = |_: usize, message: &[u8]| Some(read_elements(message));
        let chunks: Option<Vec<MessageElements>> =
            self.chunks(links, count, read)?.into_iter().collect();
        self.fetched.transfer += start.elapsed();
        self.fetched.rounds += 1;
        let start = Instant::now();
        let tree = chunks.and_then(AvlPlusTree::rebuild);
        let is_right = tree.is_some_and(|mut tree| tree.root() == wanted.avlplus);
        self.fetched.rebuild += start.elapsed();
        Ok(is_right)
    }

    fn refetch(
        &mut self,
        wanted: &ExpectedRoots,
        links: &mut [PeerLink],
        lies: &[bool],
    ) -> Result<(), TreeSyncError> {
        let mut left: Vec<&mut PeerLink> = links.iter_mut().collect();
        while !self.try_avlplus(wanted, &mut left)? {
            let liar = left.iter().position(|link| lies.get(link.peer) == Some(&true));
            left.swap_remove(liar.ok_or(TreeSyncError::WrongTree)?);
        }
        Ok(())
    }

    fn drop_random(
        &mut self,
        wanted: &ExpectedRoots,
        links: &mut [PeerLink],
        random: &mut SplitMix64,
    ) -> Result<(), TreeSyncError> {
        loop {
            let mut left: Vec<&mut PeerLink> = links.iter_mut().collect();
            while !left.is_empty() {
                if self.try_avlplus(wanted, &mut left)? {
                    return Ok(());
                }
                left.swap_remove(random.below(left.len() as u64) as usize);
            }
            // All honest peers were dropped before the last liar: start again with all peers.
        }
    }

    fn rational(
        &mut self,
        wanted: &ExpectedRoots,
        links: &mut [PeerLink],
        random: &mut SplitMix64,
    ) -> Result<(), TreeSyncError> {
        let mut left: Vec<&mut PeerLink> = links.iter_mut().collect();
        while !left.is_empty() {
            let link = left.swap_remove(random.below(left.len() as u64) as usize);
            if self.try_avlplus(wanted, &mut [link])? {
                return Ok(());
            }
        }
        Err(TreeSyncError::NoPeers { peers: self.of })
    }

    /// Fetches all chunks from these peers in parallel. If `take` rejects a chunk, the connection
    /// to its peer is closed.
    fn chunks<C: Send>(
        &mut self,
        links: &mut [&mut PeerLink],
        count: usize,
        take: impl Fn(usize, &[u8]) -> Option<C> + Sync,
    ) -> Result<Vec<C>, TreeSyncError> {
        let shared = SharedFetch {
            state: Mutex::new(ChunkProgress {
                wanted: (0..count).rev().collect(),
                got: (0..count).map(|_| None).collect(),
                missing: count,
                failed: None,
            }),
            wake: Condvar::new(),
            chunks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            read: AtomicU64::new(0),
            stop: self.stop,
        };
        thread::scope(|scope| {
            for link in &mut *links {
                let (shared, take) = (&shared, &take);
                scope.spawn(move || shared.ask(link, take));
            }
        });
        self.fetched.chunks += shared.chunks.into_inner();
        self.fetched.bytes += shared.bytes.into_inner();
        self.fetched.read += Duration::from_nanos(shared.read.into_inner());
        if self.stop.load(Ordering::Relaxed) {
            return Err(TreeSyncError::Stopped);
        }
        let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all: Option<Vec<C>> = state.got.into_iter().collect();
        all.ok_or_else(|| state.failed.unwrap_or(TreeSyncError::NoPeers { peers: self.of }))
    }
}

fn overview(link: &mut PeerLink) -> Result<Vec<u8>, TreeSyncError> {
    let peer = link.peer;
    let answer = link.ask(OVERVIEW).and_then(|()| link.answer());
    answer.map_err(|source| TreeSyncError::Peer { peer, source })
}

struct ChunkProgress<C> {
    /// Indexes of the chunks still to request, the next one last.
    wanted: Vec<usize>,
    got: Vec<Option<C>>,
    missing: usize,
    /// The first connection error. It is returned if chunks are still missing at the end.
    failed: Option<TreeSyncError>,
}

struct SharedFetch<'a, C> {
    state: Mutex<ChunkProgress<C>>,
    wake: Condvar,
    chunks: AtomicU64,
    bytes: AtomicU64,
    /// Time spent on decoding and checking, in nanoseconds.
    read: AtomicU64,
    stop: &'a AtomicBool,
}

impl<C> SharedFetch<'_, C> {
    fn lock(&self) -> MutexGuard<'_, ChunkProgress<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests chunks from one peer until all chunks have arrived or the peer has sent a wrong
    /// one.
    fn ask(&self, link: &mut PeerLink, take: &impl Fn(usize, &[u8]) -> Option<C>) {
        let mut asked = VecDeque::new();
        let failed = loop {
            let new = self.next(link.window - asked.len(), asked.is_empty());
            let sent = new.iter().try_for_each(|chunk| link.ask(*chunk as u32));
            asked.extend(new);
            if let Err(error) = sent {
                break Some(error);
            }
            let Some(chunk) = asked.pop_front() else { break None };
            let answer = match link.answer() {
                Ok(answer) => answer,
                Err(error) => {
                    asked.push_front(chunk);
                    break Some(error);
                }
            };
            self.chunks.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(answer.len() as u64, Ordering::Relaxed);
            let start = Instant::now();
            let taken = take(chunk, &answer);
            self.read.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            match taken {
                Some(taken) => {
                    let mut state = self.lock();
                    state.got[chunk] = Some(taken);
                    state.missing -= 1;
                    if state.missing == 0 {
                        self.wake.notify_all();
                    }
                }
                None => {
                    asked.push_front(chunk);
                    link.close();
                    break None;
                }
            }
        };
        let mut state = self.lock();
        state.wanted.extend(asked);
        let peer = link.peer;
        if let Some(source) = failed {
            state.failed.get_or_insert(TreeSyncError::Peer { peer, source });
        }
        self.wake.notify_all();
    }

    /// The next chunks to request, at most `most`. If there are none and the caller has no open
    /// request, it waits until other threads return chunks or all have arrived.
    fn next(&self, most: usize, is_idle: bool) -> Vec<usize> {
        let mut state = self.lock();
        loop {
            if state.missing == 0 || self.stop.load(Ordering::Relaxed) {
                return Vec::new();
            }
            let from = state.wanted.len().saturating_sub(most);
            let new: Vec<usize> = state.wanted.drain(from..).rev().collect();
            if !new.is_empty() || !is_idle {
                return new;
            }
            let waited = self.wake.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
