//! The three ways to get a tree from peers.

use super::{
    SyncError,
    link::{Kind, Link, OVERVIEW},
};
use crate::{
    random::Random,
    trees::{AvlPlus, Bavl, Checked, Elements, Tree, read_elements, root_of},
};
use alloy_primitives::B256;
use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often who waits looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A way to get a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Chunks of B+AVL that are checked when they come.
    Bavl,
    /// The paper's baseline: all again without one random peer, until the root is right.
    AvlPlus,
    /// All from one peer, and if that was wrong from another one.
    Rational,
}

impl Way {
    /// All of them, the paper's baseline first.
    pub const ALL: [Self; 3] = [Self::AvlPlus, Self::Rational, Self::Bavl];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bavl => "bavl",
            Self::AvlPlus => "avlplus",
            Self::Rational => "avlplus-rational",
        }
    }

    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Bavl => Kind::Bavl,
            Self::AvlPlus | Self::Rational => Kind::AvlPlus,
        }
    }
}

/// How a tree was got, times being those of the one who asks but for `serialize`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetched {
    /// From the first connection to a tree with the right root.
    pub total: Duration,
    /// Until the last chunk was there, of all rounds, what is done to chunks when they come included.
    pub transfer: Duration,
    /// Of this, chunks read and, of B+AVL, hashed and compared: of all threads together.
    pub read: Duration,
    /// The tree put together and hashed, of all rounds.
    pub rebuild: Duration,
    /// At the peers, all of them together: bytes made.
    pub serialize: Duration,
    /// How often all was fetched.
    pub rounds: u32,
    /// Chunks that came,
    pub chunks: u64,
    /// and their bytes.
    pub bytes: u64,
}

/// What the tree must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) chunk: usize,
    pub(super) bavl: B256,
    pub(super) avlplus: B256,
}

/// Gets the tree.
pub(super) fn fetch(
    way: Way,
    wanted: &Wanted,
    links: impl FnOnce() -> Result<Vec<Link>, SyncError>,
    random: &mut Random,
    stop: &AtomicBool,
) -> Result<Fetched, SyncError> {
    let start = Instant::now();
    let mut fetch = Fetch { stop, fetched: Fetched::default(), of: 0 };
    let mut links = links()?;
    fetch.of = links.len();
    match way {
        Way::Bavl => fetch.bavl(wanted, &mut links, random)?,
        Way::AvlPlus => fetch.avlplus(wanted, &mut links, random)?,
        Way::Rational => fetch.rational(wanted, &mut links, random)?,
    }
    fetch.fetched.total = start.elapsed();
    for link in &mut links {
        // Who was hung up on says nothing more.
        fetch.fetched.serialize += Duration::from_nanos(link.spent().unwrap_or_default());
        link.close();
    }
    Ok(fetch.fetched)
}

struct Fetch<'a> {
    stop: &'a AtomicBool,
    fetched: Fetched,
    /// How many peers there are.
    of: usize,
}

impl Fetch<'_> {
    fn bavl(
        &mut self,
        wanted: &Wanted,
        links: &mut [Link],
        random: &mut Random,
    ) -> Result<(), SyncError> {
        let start = Instant::now();
        let mut peers: Vec<usize> = (0..links.len()).collect();
        let skeleton = loop {
            if peers.is_empty() {
                return Err(SyncError::NoPeers { peers: self.of });
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
        let check = |at: usize, message: &[u8]| Checked::read(message, skeleton.get(at)?.0);
        let chunks =
            self.chunks(&mut links.iter_mut().collect::<Vec<_>>(), skeleton.len(), check)?;
        self.fetched.transfer = start.elapsed();
        self.fetched.rounds = 1;
        let start = Instant::now();
        let heights = skeleton.iter().map(|(_, key_height)| *key_height);
        let tree = Bavl::rebuild(wanted.chunk, chunks.into_iter().zip(heights).collect());
        let is_right = tree.is_some_and(|mut tree| tree.root() == wanted.bavl);
        self.fetched.rebuild = start.elapsed();
        if is_right { Ok(()) } else { Err(SyncError::WrongTree) }
    }

    /// A tree of messages from these peers, if it has the root.
    fn try_avlplus(&mut self, wanted: &Wanted, links: &mut [&mut Link]) -> Result<bool, SyncError> {
        let start = Instant::now();
        let first = links.first_mut().ok_or(SyncError::NoPeers { peers: self.of })?;
        let overview = overview(first)?;
        let count = overview.first_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize);
        // What cannot even be read is no less wrong than the rest.
        let read = |_: usize, message: &[u8]| Some(read_elements(message));
        let chunks: Option<Vec<Elements>> = self.chunks(links, count, read)?.into_iter().collect();
        self.fetched.transfer += start.elapsed();
        self.fetched.rounds += 1;
        let start = Instant::now();
        let tree = chunks.and_then(AvlPlus::rebuild);
        let is_right = tree.is_some_and(|mut tree| tree.root() == wanted.avlplus);
        self.fetched.rebuild += start.elapsed();
        Ok(is_right)
    }

    fn avlplus(
        &mut self,
        wanted: &Wanted,
        links: &mut [Link],
        random: &mut Random,
    ) -> Result<(), SyncError> {
        loop {
            let mut left: Vec<&mut Link> = links.iter_mut().collect();
            while !left.is_empty() {
                if self.try_avlplus(wanted, &mut left)? {
                    return Ok(());
                }
                left.swap_remove(random.below(left.len() as u64) as usize);
            }
            // All honest ones were dropped before the last liar.
        }
    }

    fn rational(
        &mut self,
        wanted: &Wanted,
        links: &mut [Link],
        random: &mut Random,
    ) -> Result<(), SyncError> {
        let mut left: Vec<&mut Link> = links.iter_mut().collect();
        while !left.is_empty() {
            let link = left.swap_remove(random.below(left.len() as u64) as usize);
            if self.try_avlplus(wanted, &mut [link])? {
                return Ok(());
            }
        }
        Err(SyncError::NoPeers { peers: self.of })
    }

    /// All chunks from these peers at once. One that gives a chunk that is not taken is hung up on.
    fn chunks<C: Send>(
        &mut self,
        links: &mut [&mut Link],
        count: usize,
        take: impl Fn(usize, &[u8]) -> Option<C> + Sync,
    ) -> Result<Vec<C>, SyncError> {
        let shared = Shared {
            state: Mutex::new(State {
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
            return Err(SyncError::Stopped);
        }
        let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all: Option<Vec<C>> = state.got.into_iter().collect();
        all.ok_or_else(|| state.failed.unwrap_or(SyncError::NoPeers { peers: self.of }))
    }
}

fn overview(link: &mut Link) -> Result<Vec<u8>, SyncError> {
    let peer = link.peer;
    let answer = link.ask(OVERVIEW).and_then(|()| link.answer());
    answer.map_err(|source| SyncError::Peer { peer, source })
}

struct State<C> {
    /// The next one last.
    wanted: Vec<usize>,
    got: Vec<Option<C>>,
    missing: usize,
    /// What went wrong with a line. It matters if nobody else has what is missing.
    failed: Option<SyncError>,
}

struct Shared<'a, C> {
    state: Mutex<State<C>>,
    wake: Condvar,
    chunks: AtomicU64,
    bytes: AtomicU64,
    /// Nanoseconds.
    read: AtomicU64,
    stop: &'a AtomicBool,
}

impl<C> Shared<'_, C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one peer until all is there, or it lies.
    fn ask(&self, link: &mut Link, take: &impl Fn(usize, &[u8]) -> Option<C>) {
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
            state.failed.get_or_insert(SyncError::Peer { peer, source });
        }
        self.wake.notify_all();
    }

    /// What to ask for next. If there is nothing, and nothing is under way, it waits for what others may give
    /// back, and for the end.
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
