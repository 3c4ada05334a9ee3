//! State sync from peers that are honest, slow, stale, or lie in many ways.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_p2p::{
    handle::{PeerInfo, StateRequestHandler},
    peers::{NetworkConfig, NetworkManager, StartedNetwork},
    rchk::{self, RchkRefusal},
    serve::EmptyRequestHandler,
    testkit::local,
};
use retrie_state::{
    Account, AnyBackend, BackendKey, BlockRef, ChunkAnswer, ChunkId, ChunkServer, OpenedChunk,
    StateKey, StateValue, encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_state_sync::{
    ConnectedPeers, FetchedState, PeerSource, StateFetcher, StateFormat, StatePeer, StatePeerError,
    StateSyncError, StateSyncOptions,
};
use retrie_storage_bavl::{Bavl, ChunkEntries};
use retrie_storage_mpt::Mpt;
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

type StateEntries = BTreeMap<StateKey, StateValue>;

/// Number of peers so far; it makes their names unique.
static NAMED: AtomicUsize = AtomicUsize::new(0);

/// The answer of a server for an id, once it is ready.
fn chunk(server: &dyn ChunkServer, id: &ChunkId) -> Option<Bytes> {
    loop {
        match server.chunk(id).unwrap() {
            ChunkAnswer::Chunk(chunk) => return Some(chunk),
            ChunkAnswer::NoNode => return None,
            ChunkAnswer::NotReady => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn backends() -> Vec<Arc<dyn AnyBackend>> {
    vec![Arc::new(Mpt::new()), Arc::new(Bavl::new(ChunkEntries::default()))]
}

/// A state that the peers serve.
struct StateFixture {
    backend: Arc<dyn AnyBackend>,
    store: StateStore,
    kv: Arc<dyn KvStore>,
    entries: StateEntries,
    codes: HashMap<B256, Bytes>,
    root: B256,
    block: BlockRef,
}

fn open(backend: &Arc<dyn AnyBackend>) -> (StateStore, Arc<dyn KvStore>) {
    let kv = Arc::new(MemoryStore::new()) as Arc<dyn KvStore>;
    let options = StoreOptions::default();
    (StateStore::open(backend.clone(), kv.clone(), options).unwrap(), kv)
}

impl StateFixture {
    /// Accounts, some of them contracts, one of these with many slots.
    fn new(backend: &Arc<dyn AnyBackend>, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut entries, mut codes) = (StateEntries::new(), HashMap::new());
        for n in 0..9_000u64 {
            let address = Address::from(random.random::<[u8; 20]>());
            let mut code_hash = KECCAK256_EMPTY;
            if n % 40 == 0 {
                // Some contracts share their code.
                let code = Bytes::from(vec![(n % 200) as u8; 50 + (n % 200) as usize]);
                code_hash = keccak256(&code);
                codes.insert(code_hash, code);
                let slots = if n == 0 { 5_000 } else { n % 7 };
                for slot in 0..slots {
                    let value = encode_slot(U256::from(slot + 1)).unwrap();
                    entries.insert(StateKey::Slot(address, B256::from(U256::from(slot))), value);
                }
            }
            let account =
                Account { nonce: n, balance: U256::from(random.random::<u64>()), code_hash };
            entries.insert(StateKey::Account(address), account.encode());
        }
        let (store, kv) = open(backend);
        let block = BlockRef::new(7, keccak256(seed.to_be_bytes()));
        let mut all = entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let mut txn = kv.begin_write().unwrap();
        let (root, after) = store.bulk_load(block, &mut all, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        Self { backend: backend.clone(), store, kv, entries, codes, root, block }
    }

    /// Changes some accounts, as the next block does.
    fn next(&mut self, changed: usize) {
        let session = self.store.begin(StateId::Tip).unwrap();
        let mut delta = retrie_state::DeltaBuilder::new();
        let keys = self.entries.keys().filter(|key| matches!(key, StateKey::Account(_)));
        for key in keys.step_by(37).take(changed) {
            let old = self.entries[key].clone();
            let account = Account { nonce: 1 << 40, ..Account::decode(&old).unwrap() };
            delta.change(*key, Some(old), Some(account.encode()));
        }
        let delta = delta.build();
        let number = self.block.number + 1;
        let proposal = session.finish_as(number, &delta).unwrap();
        self.block = BlockRef::new(number, keccak256(self.block.hash));
        self.store.seal(&proposal, self.block.hash);
        self.root = proposal.root();
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        for change in delta.changes() {
            self.entries.insert(change.key, change.next.clone().unwrap());
        }
    }

    fn peer(&self, lie: PeerLie) -> Arc<MockStatePeer> {
        let state = self.store.at(StateId::Tip).unwrap();
        let nodes = match lie {
            PeerLie::Split => {
                // Inner nodes of the account trie, by their hashes.
                let mut nodes = HashMap::new();
                for key in self.entries.keys() {
                    if let StateKey::Account(address) = key {
                        let proof = state.account_nodes(address, &[]).unwrap();
                        let branches = proof.account.split_last().map(|(_, above)| above);
                        for node in branches.unwrap_or_default() {
                            nodes.insert(keccak256(node), node.clone());
                        }
                    }
                }
                nodes
            }
            _ => HashMap::new(),
        };
        Arc::new(MockStatePeer {
            name: format!("{lie:?} {}", NAMED.fetch_add(1, Ordering::Relaxed)),
            server: state.serve_chunks(None).unwrap(),
            codes: self.codes.clone(),
            nodes,
            lie,
            random: Mutex::new(StdRng::seed_from_u64(3)),
            asked: AtomicUsize::new(0),
        })
    }

    fn fetch(
        &self,
        peers: &[Arc<MockStatePeer>],
        datadir: &Path,
    ) -> Result<FetchedState, StateSyncError> {
        self.fetch_until(peers, datadir, usize::MAX, Duration::from_secs(20))
    }

    /// Stops once `most` answers have come.
    fn fetch_until(
        &self,
        peers: &[Arc<MockStatePeer>],
        datadir: &Path,
        most: usize,
        patience: Duration,
    ) -> Result<FetchedState, StateSyncError> {
        let peers: Vec<_> = peers.iter().map(|peer| peer.clone() as Arc<dyn StatePeer>).collect();
        self.fetch_of(&peers, datadir, most, patience)
    }

    fn fetch_of(
        &self,
        roster: &dyn PeerSource,
        datadir: &Path,
        most: usize,
        patience: Duration,
    ) -> Result<FetchedState, StateSyncError> {
        let stop = AtomicBool::new(false);
        let options = StateSyncOptions { patience };
        let format = StateFormat::Chunks(self.backend.clone());
        let block = (self.block.number, self.block.hash);
        let tell = &mut |progress: &retrie_state_sync::StateSyncProgress| {
            assert!((0.0..1.000_001).contains(&progress.share), "{progress:?}");
            stop.fetch_or(progress.answers >= most as u64, Ordering::Relaxed);
        };
        StateFetcher::open(format, datadir)?.fetch(block, self.root, roster, options, &stop, tell)
    }

    /// Checks the fetched state: it loads, has the root, and has all codes.
    fn check(&self, fetched: FetchedState) {
        let FetchedState { mut entries, parts, mut codes, progress } = fetched;
        assert_eq!(progress.entries, self.entries.len() as u64);
        let plain = |entry: Result<(BackendKey, StateValue), retrie_state::StateError>| {
            let (key, value) = entry.unwrap();
            (key.plain().unwrap(), value)
        };
        let all: StateEntries = entries.entries().unwrap().map(plain).collect();
        assert!(all == self.entries);
        let codes: HashMap<_, _> = codes.iter().map(Result::unwrap).collect();
        assert!(codes == self.codes);
        let (store, kv) = open(&self.backend);
        let mut txn = kv.begin_write().unwrap();
        let entries = &mut entries.entries().unwrap();
        let (root, after) = store.load_chunks(self.block, &parts, entries, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        assert_eq!(root, self.root);
    }
}

/// How a peer misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerLie {
    Nothing,
    /// Flips one bit of one answer.
    Flips,
    Cuts,
    Extends,
    /// Gives the answer to another id.
    Swaps,
    /// Gives answers of 20 MB each.
    Huge,
    /// Gives more answers than were asked for.
    TooMany,
    NoAnswers,
    /// Never has anything.
    HasNothing,
    /// Refuses every request.
    Errors,
    /// Says that it prepares the state, for the first two requests.
    Sorts,
    /// Is silent for 4 s, then fails.
    Stalls,
    /// Answers one item at a time, late.
    Drips,
    WrongCodes,
    /// Splits parts that are too small.
    Split,
}

struct MockStatePeer {
    name: String,
    server: Box<dyn ChunkServer>,
    codes: HashMap<B256, Bytes>,
    nodes: HashMap<B256, Bytes>,
    lie: PeerLie,
    random: Mutex<StdRng>,
    asked: AtomicUsize,
}

impl MockStatePeer {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// The answers, as this peer changes them.
    fn bend(&self, mut answers: Vec<Option<Bytes>>) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let random = &mut *self.random.lock();
        let some = random.random_range(0..answers.len());
        let mut change = |change: &mut dyn FnMut(&mut Vec<u8>, &mut StdRng)| {
            if let Some(answer) = &mut answers[some] {
                let mut bytes = answer.to_vec();
                change(&mut bytes, random);
                *answer = bytes.into();
            }
        };
        match self.lie {
            PeerLie::Nothing | PeerLie::Split | PeerLie::WrongCodes => {}
            PeerLie::Flips => change(&mut |bytes, random| {
                let bit = random.random_range(0..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }),
            PeerLie::Cuts => change(&mut |bytes, random| {
                bytes.truncate(random.random_range(0..bytes.len()));
            }),
            PeerLie::Extends => change(&mut |bytes, random| bytes.push(random.random())),
            PeerLie::Huge => change(&mut |bytes, _| *bytes = vec![1; 20 << 20]),
            PeerLie::Swaps => answers.rotate_left(1),
            PeerLie::TooMany => answers.push(None),
            PeerLie::NoAnswers => answers.clear(),
            PeerLie::HasNothing => answers.fill(None),
            PeerLie::Errors => return Err(StatePeerError::new("no")),
            PeerLie::Sorts if self.asked() <= 2 => return Err(RchkRefusal::Busy.into()),
            PeerLie::Sorts => {}
            PeerLie::Stalls => {
                std::thread::sleep(Duration::from_secs(4));
                return Err(StatePeerError::new("no answer within 4 s"));
            }
            PeerLie::Drips => {
                std::thread::sleep(Duration::from_millis(300));
                answers.truncate(1);
            }
        }
        Ok(answers)
    }
}

impl StatePeer for MockStatePeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn find_root(&self, _: B256) -> Result<Option<B256>, StatePeerError> {
        Err(StatePeerError::new("it is not asked here"))
    }

    fn headers(&self, _: B256, _: u64) -> Result<Vec<Bytes>, StatePeerError> {
        Err(StatePeerError::new("it is not asked here"))
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        self.asked.fetch_add(hashes.len(), Ordering::Relaxed);
        if self.lie == PeerLie::WrongCodes {
            return Ok(hashes.iter().map(|_| Some(Bytes::from_static(b"code"))).collect());
        }
        self.bend(hashes.iter().map(|hash| self.codes.get(hash).cloned()).collect())
    }

    fn chunks(&self, _: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        self.asked.fetch_add(ids.len(), Ordering::Relaxed);
        let answers = ids.iter().map(|id| {
            let hash = B256::from_slice(&id.bytes()[id.bytes().len() - 32..]);
            let answer = chunk(&*self.server, id);
            match (self.nodes.get(&hash), &answer) {
                // A branch node without its children: a split of a part with too few entries.
                (Some(node), Some(honest)) if honest[0] == 0 && node.len() > 100 => {
                    let mut split = vec![1];
                    if node.len() >= 128 {
                        split.push(node.len() as u8 | 0x80);
                    }
                    split.push(if node.len() >= 128 {
                        (node.len() >> 7) as u8
                    } else {
                        node.len() as u8
                    });
                    split.extend(node);
                    split.extend([0, 0]);
                    Some(split.into())
                }
                _ => answer,
            }
        });
        self.bend(answers.collect())
    }
}

/// Serves `rchk` requests with the answers of a peer.
struct MockStateServer(Arc<MockStatePeer>);

impl std::fmt::Debug for MockStateServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl StateRequestHandler for MockStateServer {
    fn answer(&self, _: &PeerInfo, request: rchk::RchkRequest) -> rchk::RchkResponse {
        let parts = match &request {
            rchk::RchkRequest::Chunks { block, ids, .. } => self.0.chunks(*block, ids),
            rchk::RchkRequest::Codes(hashes) => self.0.codes(hashes),
        };
        request.answer(parts.map_err(|_| RchkRefusal::Busy))
    }
}

/// A node on this machine that serves the state of a peer.
fn node_of(peer: &Arc<MockStatePeer>) -> StartedNetwork {
    let states = Arc::new(MockStateServer(peer.clone())) as Arc<dyn StateRequestHandler>;
    local::node(NetworkConfig { states: Some(states), ..local::config() })
}

/// A node without a state, which connects with these nodes.
fn visitor(origin: &StateFixture, nodes: &[&StartedNetwork]) -> (NetworkManager, ConnectedPeers) {
    let states = Some(Arc::new(EmptyRequestHandler) as Arc<dyn StateRequestHandler>);
    let fixed = nodes.iter().map(|node| local::enode(&node.manager)).collect();
    let visitor =
        local::node(NetworkConfig { states, static_nodes: fixed, ..local::config() }).manager;
    let format = origin.backend.extensions().chunks.unwrap().format();
    let peers = ConnectedPeers::new(visitor.peers(), format, visitor.runtime().clone());
    (visitor, peers)
}

#[test]
fn a_state_comes_over_connections_from_nodes_that_lie_come_and_go() {
    for backend in backends() {
        let origin = StateFixture::new(&backend, 5);
        let lies = [
            PeerLie::Flips,
            PeerLie::HasNothing,
            PeerLie::Errors,
            PeerLie::Drips,
            PeerLie::Nothing,
        ];
        let peers = lies.map(|lie| origin.peer(lie));
        let [flips, nothing, errors, drips, honest] = peers.each_ref().map(node_of);
        let (visitor, roster) = visitor(&origin, &[&flips, &nothing, &errors, &drips]);
        let (folder, patience) = (folder(), Duration::from_secs(20));
        let fetched = std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                // One node stops; the only honest and quick one connects later.
                local::eventually("a chunk of the slow one", || peers[3].asked() > 2);
                visitor.remove_peer(&drips.manager.id());
                std::thread::sleep(Duration::from_millis(300));
                visitor.add_peer(local::enode(&honest.manager));
            });
            let fetched = origin.fetch_of(&roster, folder.path(), usize::MAX, patience);
            late.join().unwrap();
            fetched.unwrap()
        });
        assert!(fetched.progress.banned >= 1, "{:?}", fetched.progress);
        assert!(peers[4].asked() > 0);
        origin.check(fetched);
        let liar = flips.manager.id();
        local::eventually("the end of the liar", || {
            visitor.peers().connected().iter().all(|peer| peer.id != liar)
        });
    }
}

#[test]
fn without_anybody_who_hands_out_states_a_fetch_ends_with_a_reason() {
    let origin = StateFixture::new(&backends()[0], 6);
    // A peer that only speaks `eth`.
    let other = local::node(local::config());
    let (visitor, roster) = visitor(&origin, &[&other]);
    local::eventually("a connection", || !visitor.peers().connected().is_empty());
    assert!(roster.peers().is_empty());
    let patience = Duration::from_millis(500);
    let failed = origin.fetch_of(&roster, folder().path(), usize::MAX, patience);
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("no peer that hands out such states"), "{error}");
}

/// Regression: a node that sorted its keys for longer than the patience was given up.
#[test]
fn a_peer_that_makes_its_state_ready_is_waited_for() {
    let origin = StateFixture::new(&backends()[0], 1);
    // It is asked again after 0.25 s, and then after 0.5 s.
    let patience = Duration::from_millis(500);
    let peers = [origin.peer(PeerLie::Sorts)];
    let fetched = origin.fetch_until(&peers, folder().path(), usize::MAX, patience).unwrap();
    assert!(peers[0].asked() > 2);
    origin.check(fetched);
    let failed = origin.fetch_until(&[origin.peer(PeerLie::Errors)], folder().path(), 9, patience);
    assert!(matches!(failed, Err(StateSyncError::NoPeers { .. })), "and no other one");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn honest_peers_share_the_work() {
    for backend in backends() {
        let origin = StateFixture::new(&backend, 1);
        let peers: Vec<_> = (0..3).map(|_| origin.peer(PeerLie::Nothing)).collect();
        let folder = folder();
        let fetched = origin.fetch(&peers, folder.path()).unwrap();
        assert_eq!(fetched.progress.banned, 0);
        let asked: usize = peers.iter().map(|peer| peer.asked()).sum();
        assert_eq!(asked as u64, fetched.progress.answers, "nothing is asked for twice");
        assert!((fetched.progress.share - 1.0).abs() < 1e-6);
        origin.check(fetched);
    }
}

#[test]
fn an_empty_state_is_fetched_by_asking_nobody() {
    for backend in backends() {
        let mut origin = StateFixture::new(&backend, 1);
        let peers = [origin.peer(PeerLie::HasNothing)];
        origin.root = backend.profile().empty_root;
        origin.entries.clear();
        origin.codes.clear();
        let folder = folder();
        origin.check(origin.fetch(&peers, folder.path()).unwrap());
        assert_eq!(peers[0].asked(), 0);
    }
}

#[test]
fn eight_liars_of_any_kind_do_not_keep_one_honest_peer_from_it() {
    let lies = [
        (PeerLie::Flips, true),
        (PeerLie::Cuts, true),
        (PeerLie::Extends, true),
        (PeerLie::Swaps, false),
        (PeerLie::Huge, true),
        (PeerLie::TooMany, false),
        (PeerLie::NoAnswers, false),
        (PeerLie::HasNothing, false),
        (PeerLie::Errors, false),
        (PeerLie::Stalls, false),
        (PeerLie::Drips, false),
        (PeerLie::WrongCodes, false),
    ];
    for backend in backends() {
        let origin = StateFixture::new(&backend, 2);
        for (lie, is_found) in lies {
            let mut peers: Vec<_> = (0..8).map(|_| origin.peer(lie)).collect();
            peers.insert(3, origin.peer(PeerLie::Nothing));
            let folder = folder();
            let fetched =
                origin.fetch(&peers, folder.path()).unwrap_or_else(|e| panic!("{lie:?}: {e}"));
            let asked = peers.iter().filter(|peer| peer.lie == lie && peer.asked() > 0).count();
            if is_found {
                assert_eq!(fetched.progress.banned, asked, "{lie:?}");
            }
            origin.check(fetched);
        }
    }
}

#[test]
fn who_splits_without_need_is_found() {
    let backend = Arc::new(Mpt::new()) as Arc<dyn AnyBackend>;
    let origin = StateFixture::new(&backend, 3);
    let peers = [origin.peer(PeerLie::Split), origin.peer(PeerLie::Nothing)];
    let folder = folder();
    let fetched = origin.fetch(&peers, folder.path()).unwrap();
    origin.check(fetched);

    let alone = self::folder();
    let error = origin.fetch(&peers[..1], alone.path()).unwrap_err().to_string();
    assert!(error.contains("it split a part that is too small to split"), "{error}");
}

#[test]
fn where_all_lie_it_ends_and_says_what_each_did() {
    for backend in backends() {
        let origin = StateFixture::new(&backend, 4);
        let lies = [PeerLie::Flips, PeerLie::Cuts, PeerLie::HasNothing, PeerLie::Huge];
        let peers: Vec<_> = lies.into_iter().map(|lie| origin.peer(lie)).collect();
        let folder = folder();
        let error = origin.fetch(&peers, folder.path()).unwrap_err();
        let StateSyncError::NoPeers { block, reasons } = &error else { panic!("{error}") };
        assert_eq!((*block, reasons.len()), (origin.block.hash, 4));
        assert!(error.to_string().contains(": it does not have that state"), "{error}");

        // For peers that give nothing but do not lie it waits longer.
        let peers: Vec<_> = [PeerLie::Errors, PeerLie::NoAnswers, PeerLie::TooMany]
            .map(|lie| origin.peer(lie))
            .into();
        let started = Instant::now();
        let patience = Duration::from_secs(2);
        let error = origin.fetch_until(&peers, folder.path(), 9999, patience).unwrap_err();
        assert!(matches!(error, StateSyncError::NoPeers { .. }), "{error}");
        let took = started.elapsed();
        assert!(took >= patience && took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn a_root_that_peers_do_not_have_ends_clearly() {
    for backend in backends() {
        let (origin, mut other) = (StateFixture::new(&backend, 5), StateFixture::new(&backend, 6));
        other.root = origin.root;
        let folder = folder();
        let peers = [other.peer(PeerLie::Nothing), other.peer(PeerLie::Nothing)];
        let error = other.fetch(&peers, folder.path()).unwrap_err().to_string();
        assert!(error.contains("another block, or another backend"), "{error}");
    }
}

#[test]
fn a_restart_asks_only_for_what_it_does_not_have() {
    for backend in backends() {
        let mut origin = StateFixture::new(&backend, 7);
        let folder = folder();
        let drip = [origin.peer(PeerLie::Nothing)];
        let stopped = origin.fetch_until(&drip, folder.path(), 30, Duration::from_secs(20));
        assert!(matches!(stopped, Err(StateSyncError::Stopped) | Ok(_)));
        drop(stopped);
        let first = drip[0].asked() as u64;
        let peers = [origin.peer(PeerLie::Nothing)];
        let fetched = origin.fetch(&peers, folder.path()).unwrap();
        let (resumed, answers) = (fetched.progress.resumed, fetched.progress.answers);
        assert!(resumed >= 30 && resumed <= first, "{resumed} of {first}");
        assert_eq!(peers[0].asked() as u64, answers - resumed);
        origin.check(fetched);

        // A newer state asks only for what has changed.
        origin.next(3);
        let peers = [origin.peer(PeerLie::Nothing)];
        let fetched = origin.fetch(&peers, folder.path()).unwrap();
        let asked = peers[0].asked() as u64;
        assert!(asked > 0 && asked * 4 < fetched.progress.answers, "{asked} of {answers}");
        origin.check(fetched);

        // Damaged answers on disk are asked for again.
        let path = retrie_state_sync::sync_dir(folder.path()).join("answers");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        let peers = [origin.peer(PeerLie::Nothing)];
        let fetched = origin.fetch(&peers, folder.path()).unwrap();
        assert!(peers[0].asked() > 0);
        origin.check(fetched);
        retrie_state_sync::remove_sync_dir(folder.path()).unwrap();
        retrie_state_sync::remove_sync_dir(folder.path()).unwrap();
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}

#[test]
fn what_is_opened_is_what_was_asked_for() {
    // The tests above need answers with at least one entry, and splits.
    for backend in backends() {
        let origin = StateFixture::new(&backend, 8);
        let chunks = backend.extensions().chunks.unwrap();
        let whole = chunks.root_chunk(origin.root).unwrap();
        let answer = chunk(&*origin.peer(PeerLie::Nothing).server, &whole).unwrap();
        let OpenedChunk::Split { below, .. } = chunks.open(&whole, &answer).unwrap() else {
            panic!("9000 accounts in one chunk")
        };
        assert!(below.len() > 1);
    }
}
