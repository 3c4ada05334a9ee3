//! States by `snap`, from peers with plain and hashed keys that are honest, or lie in many ways.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_p2p::{
    handle::{PeerInfo, SnapRequestHandler},
    peers::{NetworkConfig, StartedNetwork},
    serve::EmptyRequestHandler,
    snap::{SlimAccount, SnapLeaf, SnapRequest, SnapResponse, SnapVersion},
    testkit::local,
};
use retrie_state::{
    Account, AccountPostValues, AnyBackend, BackendKey, BlockRef, DeltaBuilder, KeyForm,
    RangeAnswer, RangeChanges, RangeServer, StateKey, StateValue, decode_slot, encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_state_sync::{
    FetchedState, SnapPeerSet, StateFetcher, StateFormat, StateSyncError, StateSyncOptions,
    answer_snap, sync_dir,
};
use retrie_storage_mpt::{Mpt, ethereum::ranges::HashedRanges};
use retrie_storage_prefix::prefix::Prefix;
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// What a peer does with its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapLie {
    /// Nothing.
    Honest,
    /// Changes a bit of a value, code or node.
    Flips,
    /// Leaves out an item, but not the last one.
    LeavesOut,
    /// Ends its answers early.
    EndsEarly,
    /// Says of each range that it is longer than an answer, with leaves that it makes up.
    Stretches,
    /// Ends a storage trie early in three answers, and is honest else, as geth is under a new block.
    Slips,
    /// Has no state.
    HasNothing,
    /// Gives what belongs to another request.
    Shifts,
}

/// A state, and its store.
struct SnapFixture {
    entries: BTreeMap<StateKey, StateValue>,
    codes: HashMap<B256, Bytes>,
    store: StateStore,
    kv: Arc<dyn KvStore>,
    block: BlockRef,
    root: B256,
    /// The version by which it is fetched.
    version: SnapVersion,
}

fn entries() -> (BTreeMap<StateKey, StateValue>, HashMap<B256, Bytes>) {
    let mut random = StdRng::seed_from_u64(8);
    let (mut entries, mut codes) = (BTreeMap::new(), HashMap::new());
    for n in 0..12_000u64 {
        let address = Address::from(random.random::<[u8; 20]>());
        let mut code_hash = KECCAK256_EMPTY;
        if n % 40 == 0 {
            // Some contracts share their code.
            let code = Bytes::from(vec![(n % 200) as u8; 50 + (n % 200) as usize]);
            code_hash = keccak256(&code);
            codes.insert(code_hash, code);
            // The first does not fit into an answer.
            let slots = if n == 0 { 18_000 } else { n % 7 };
            for slot in 0..slots {
                let value = encode_slot(U256::from(slot + 1)).unwrap();
                entries.insert(StateKey::Slot(address, B256::from(U256::from(slot))), value);
            }
        }
        let account = Account { nonce: n, balance: U256::from(random.random::<u64>()), code_hash };
        entries.insert(StateKey::Account(address), account.encode());
    }
    (entries, codes)
}

/// A node that waits as long as any: proofs take long on a busy machine.
fn patient_config() -> NetworkConfig {
    NetworkConfig { timing: Default::default(), ..local::config() }
}

impl SnapFixture {
    fn new(backend: Arc<dyn AnyBackend>, keys: KeyForm) -> Self {
        let (entries, codes) = entries();
        let kv = Arc::new(MemoryStore::new()) as Arc<dyn KvStore>;
        let options = StoreOptions { keys, ..StoreOptions::default() };
        let store = StateStore::open(backend, kv.clone(), options).unwrap();
        let mut all = entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let mut txn = kv.begin_write().unwrap();
        let block = BlockRef::new(7, B256::repeat_byte(7));
        let (root, after) = store.bulk_load(block, &mut all, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        Self { entries, codes, store, kv, block, root, version: SnapVersion::Snap2 }
    }

    /// Changes some accounts and slots, as the next block does, and returns what it changed.
    fn next(&mut self, random: &mut StdRng) -> RangeChanges {
        let mut writes: BTreeMap<StateKey, Option<StateValue>> = BTreeMap::new();
        let accounts: Vec<_> = self
            .entries
            .keys()
            .filter_map(|key| match key {
                StateKey::Account(address) => Some(*address),
                StateKey::Slot(..) => None,
            })
            .collect();
        let balance = |nonce| Account { nonce, balance: U256::from(1), ..Default::default() };
        for n in 0..6 {
            let address = accounts[random.random_range(0..accounts.len())];
            let old = Account::decode(&self.entries[&StateKey::Account(address)]).unwrap();
            let new = Account { balance: U256::from(random.random::<u32>()), ..old };
            writes.insert(StateKey::Account(address), Some(new.encode()));
            let created = Address::from(random.random::<[u8; 20]>());
            writes.insert(StateKey::Account(created), Some(balance(n + 1).encode()));
        }
        let slots: Vec<_> =
            self.entries.keys().filter(|key| matches!(key, StateKey::Slot(..))).copied().collect();
        for n in 0..9 {
            let key = slots[random.random_range(0..slots.len())];
            let value = encode_slot(U256::from(random.random::<u64>() | 1)).unwrap();
            writes.insert(key, if n < 3 { None } else { Some(value) });
        }
        let mut delta = DeltaBuilder::new();
        for (key, value) in &writes {
            delta.change(*key, self.entries.get(key).cloned(), value.clone());
        }
        let number = self.block.number + 1;
        let session = self.store.begin(StateId::Tip).unwrap();
        let proposal = session.finish_as(number, &delta.build()).unwrap();
        self.block = BlockRef::new(number, keccak256(self.block.hash));
        self.store.seal(&proposal, self.block.hash);
        self.root = proposal.root();
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        let mut changes = RangeChanges::default();
        for (key, value) in writes {
            let (StateKey::Account(address) | StateKey::Slot(address, _)) = key;
            let values: &mut AccountPostValues = changes.0.entry(keccak256(address)).or_default();
            match key {
                StateKey::Account(_) => {
                    let account = Account::decode(value.as_ref().unwrap()).unwrap();
                    (values.nonce, values.balance) = (Some(account.nonce), Some(account.balance));
                }
                StateKey::Slot(_, slot) => {
                    let number = value.as_ref().and_then(|value| decode_slot(value));
                    values.slots.insert(keccak256(slot), number.unwrap_or_default());
                }
            }
            match value {
                Some(value) => self.entries.insert(key, value),
                None => self.entries.remove(&key),
            };
        }
        changes
    }

    /// A node on this machine that serves the state.
    fn node(&self, lie: SnapLie) -> (StartedNetwork, Arc<SnapServer>) {
        let server = Arc::new(SnapServer {
            state: self.store.at(StateId::Tip).unwrap().serve_ranges(None).unwrap(),
            root: self.root,
            codes: self.codes.clone(),
            lie,
            random: Mutex::new(StdRng::seed_from_u64(4)),
            asked: AtomicUsize::new(0),
            slips: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        let ranges = Some(server.clone() as Arc<dyn SnapRequestHandler>);
        (local::node(NetworkConfig { ranges, ..patient_config() }), server)
    }

    fn fetch(
        &self,
        nodes: &[&StartedNetwork],
        datadir: &Path,
    ) -> Result<FetchedState, StateSyncError> {
        self.fetch_after(nodes, datadir, RangeChanges::default(), u64::MAX)
    }

    /// Fetches it, told what has changed since an earlier state. Stops once `most` answers have come.
    fn fetch_after(
        &self,
        nodes: &[&StartedNetwork],
        datadir: &Path,
        changes: RangeChanges,
        most: u64,
    ) -> Result<FetchedState, StateSyncError> {
        let ranges = Some(Arc::new(EmptyRequestHandler) as Arc<dyn SnapRequestHandler>);
        let static_nodes = nodes.iter().map(|node| local::enode(&node.manager)).collect();
        let snap_versions = vec![self.version];
        let config = NetworkConfig { ranges, static_nodes, snap_versions, ..patient_config() };
        let visitor = local::node(config).manager;
        let runtime = visitor.runtime().clone();
        let peers = SnapPeerSet::new(visitor.peers(), &HashedRanges, self.root, runtime);
        let options = StateSyncOptions { patience: Duration::from_secs(20) };
        let mut fetcher = StateFetcher::open(StateFormat::Ranges(&HashedRanges), datadir)?;
        fetcher.set_changes(changes);
        let (block, stop) = ((self.block.number, self.block.hash), AtomicBool::new(false));
        fetcher.fetch(block, self.root, &peers, options, &stop, &mut |progress| {
            stop.fetch_or(progress.answers >= most, Ordering::Relaxed);
        })
    }

    /// Checks that all has come, with hashed keys, and that any backend loads it.
    fn check(&self, mut fetched: FetchedState) {
        let codes: HashMap<_, _> = fetched.codes.iter().map(Result::unwrap).collect();
        assert_eq!(codes, self.codes);
        let expected: BTreeMap<BackendKey, StateValue> = self
            .entries
            .iter()
            .map(|(key, value)| (KeyForm::Hashed.key(key), value.clone()))
            .collect();
        let got: Vec<_> = fetched.entries.entries().unwrap().map(Result::unwrap).collect();
        assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
        let kv = MemoryStore::new();
        let kv: Arc<dyn KvStore> = Arc::new(kv);
        let options = StoreOptions { keys: KeyForm::Hashed, ..StoreOptions::default() };
        let store = StateStore::open(Arc::new(Mpt::new()), kv.clone(), options).unwrap();
        let mut txn = kv.begin_write().unwrap();
        let mut all = got.into_iter().map(Ok);
        let block = BlockRef::new(7, B256::repeat_byte(7));
        let (root, _) = store.bulk_load_keys(block, &mut all, &mut *txn).unwrap();
        assert_eq!(root, self.root);
    }
}

struct SnapServer {
    state: Box<dyn RangeServer>,
    root: B256,
    codes: HashMap<B256, Bytes>,
    lie: SnapLie,
    random: Mutex<StdRng>,
    asked: AtomicUsize,
    /// Wrong answers of [`SnapLie::Slips`].
    slips: AtomicUsize,
    /// Bytes of its answers, about.
    bytes: AtomicUsize,
}

impl std::fmt::Debug for SnapServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SnapServer").field(&self.lie).finish()
    }
}

impl SnapRequestHandler for SnapServer {
    fn answer(&self, _: &PeerInfo, request: SnapRequest) -> Option<SnapResponse> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut request = request;
        if self.lie == SnapLie::Shifts
            && let SnapRequest::Accounts { first, last, .. } = &mut request
        {
            first[0] ^= 0x80;
            last[0] ^= 0x80;
        }
        let answer = match &request {
            _ if self.lie == SnapLie::HasNothing => None,
            SnapRequest::Codes { hashes, .. } => {
                let codes = hashes.iter().filter_map(|hash| self.codes.get(hash).cloned());
                Some(SnapResponse::Codes(codes.collect()))
            }
            SnapRequest::AccessLists { .. } => None,
            SnapRequest::Accounts { root, .. }
            | SnapRequest::Storage { root, .. }
            | SnapRequest::Nodes { root, .. } => {
                assert_eq!(*root, self.root);
                match answer_snap(&*self.state, &request).unwrap() {
                    RangeAnswer::Found(found) => Some(found),
                    RangeAnswer::NoTrie => None,
                    RangeAnswer::NotReady => return None,
                }
            }
        };
        let mut answer = answer.unwrap_or_else(|| request.empty_answer());
        self.bytes.fetch_add(size(&answer), Ordering::Relaxed);
        let random = &mut *self.random.lock();
        match self.lie {
            SnapLie::Honest | SnapLie::HasNothing | SnapLie::Shifts => {}
            SnapLie::Flips => flip(&mut answer, random),
            SnapLie::LeavesOut => each_list(&mut answer, |list| {
                if list.len() > 2 {
                    list.remove(random.random_range(0..list.len() - 1));
                }
            }),
            SnapLie::Slips => {
                if let SnapResponse::Storage { slots, proof } = &mut answer
                    && proof.is_empty()
                    && self.slips.load(Ordering::Relaxed) < 3
                    && let Some(list) = slots.iter_mut().find(|list| list.len() > 1)
                {
                    list.truncate(1);
                    self.slips.fetch_add(1, Ordering::Relaxed);
                }
            }
            SnapLie::Stretches => stretch(&mut answer, &request, random),
            SnapLie::EndsEarly => {
                each_list(&mut answer, |list| list.truncate(list.len().div_ceil(9)))
            }
        }
        Some(answer)
    }
}

fn size(answer: &SnapResponse) -> usize {
    let leaves = |all: &[SnapLeaf]| all.iter().map(|leaf| 32 + leaf.value.len()).sum::<usize>();
    let nodes = |all: &[Bytes]| all.iter().map(|node| node.len()).sum::<usize>();
    match answer {
        SnapResponse::Accounts { accounts, proof } => leaves(accounts) + nodes(proof),
        SnapResponse::Storage { slots, proof } => {
            slots.iter().map(|slots| leaves(slots)).sum::<usize>() + nodes(proof)
        }
        SnapResponse::Codes(all) | SnapResponse::Nodes(all) => nodes(all),
        SnapResponse::AccessLists(_) => 0,
    }
}

fn each_list(answer: &mut SnapResponse, mut change: impl FnMut(&mut Vec<SnapLeaf>)) {
    match answer {
        SnapResponse::Accounts { accounts, .. } => change(accounts),
        SnapResponse::Storage { slots, .. } => slots.iter_mut().for_each(change),
        SnapResponse::Codes(_) | SnapResponse::Nodes(_) | SnapResponse::AccessLists(_) => {}
    }
}

/// Leaves that begin where the range does, and end early in it, 200 KiB of them.
fn stretch(answer: &mut SnapResponse, request: &SnapRequest, random: &mut StdRng) {
    let (SnapResponse::Accounts { accounts, proof }, SnapRequest::Accounts { first, .. }) =
        (answer, request)
    else {
        return;
    };
    let value = SlimAccount {
        nonce: 1,
        balance: U256::MAX,
        storage_root: B256::repeat_byte(1),
        code_hash: B256::repeat_byte(2),
    };
    let key = |n: u32| {
        let mut key = *first;
        key[28..].copy_from_slice(&n.to_be_bytes());
        SnapLeaf { key, value: value.encode() }
    };
    *accounts = (0..1500).map(|n| key(n * 9 + random.random_range(0..9))).collect();
    assert!(!proof.is_empty());
}

fn flip(answer: &mut SnapResponse, random: &mut StdRng) {
    let of = match answer {
        SnapResponse::Accounts { accounts, .. } => accounts.first_mut().map(|leaf| &mut leaf.value),
        SnapResponse::Storage { slots, .. } => {
            slots.first_mut().and_then(|of| of.first_mut()).map(|leaf| &mut leaf.value)
        }
        SnapResponse::Codes(all) | SnapResponse::Nodes(all) => all.first_mut(),
        SnapResponse::AccessLists(_) => None,
    };
    if let Some(bytes) = of {
        let mut flipped = bytes.to_vec();
        let at = random.random_range(0..flipped.len());
        flipped[at] ^= 1 << random.random_range(0..8);
        *bytes = flipped.into();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_state_comes_by_snap_from_stores_with_plain_and_hashed_keys() {
    for (keys, version) in
        [(KeyForm::Plain, SnapVersion::Snap1), (KeyForm::Hashed, SnapVersion::Snap2)]
    {
        for backend in [Arc::new(Mpt::new()) as Arc<dyn AnyBackend>, Arc::new(Prefix::default())] {
            let origin = SnapFixture { version, ..SnapFixture::new(backend, keys) };
            let (node, server) = origin.node(SnapLie::Honest);
            let folder = folder();
            let fetched = origin.fetch(&[&node], folder.path()).unwrap();
            assert_eq!(fetched.progress.banned, 0);
            origin.check(fetched);
            assert!(server.asked.load(Ordering::Relaxed) > 20);
        }
    }
}

#[test]
fn peers_that_lie_are_banned_and_one_honest_peer_is_enough() {
    let mut origin = SnapFixture::new(Arc::new(Mpt::new()), KeyForm::Hashed);
    for version in SnapVersion::ALL {
        origin.version = version;
        one_honest_peer_is_enough(&origin);
    }
}

fn one_honest_peer_is_enough(origin: &SnapFixture) {
    let lies = [
        SnapLie::Flips,
        SnapLie::LeavesOut,
        SnapLie::EndsEarly,
        SnapLie::Stretches,
        SnapLie::HasNothing,
        SnapLie::Shifts,
    ];
    let liars = lies.map(|lie| origin.node(lie).0);
    let (honest, server) = origin.node(SnapLie::Honest);
    origin.check(origin.fetch(&[&honest], folder().path()).unwrap());
    let alone = server.asked.load(Ordering::Relaxed);
    for liar in &liars {
        let (honest, server) = origin.node(SnapLie::Honest);
        let folder = folder();
        origin.check(origin.fetch(&[liar, &honest], folder.path()).unwrap());
        // A liar cannot have the state cut into small pieces.
        let asked = server.asked.load(Ordering::Relaxed);
        assert!(asked < 2 * alone, "{asked} requests, {alone} without a liar");
    }
    let (honest, _) = origin.node(SnapLie::Honest);
    let all: Vec<_> = liars.iter().chain([&honest]).collect();
    let folder = folder();
    origin.check(origin.fetch(&all, folder.path()).unwrap());
}

#[test]
fn an_honest_peer_with_a_wrong_answer_now_and_then_is_asked_again() {
    let origin = SnapFixture::new(Arc::new(Mpt::new()), KeyForm::Hashed);
    let (node, server) = origin.node(SnapLie::Slips);
    let fetched = origin.fetch(&[&node], folder().path()).unwrap();
    assert_eq!(fetched.progress.banned, 0);
    origin.check(fetched);
    assert_eq!(server.slips.load(Ordering::Relaxed), 3);
}

#[test]
fn a_restart_asks_for_nothing_again() {
    let origin = SnapFixture::new(Arc::new(Mpt::new()), KeyForm::Hashed);
    let (node, server) = origin.node(SnapLie::Honest);
    let folder = folder();
    drop(origin.fetch(&[&node], folder.path()).unwrap());
    let asked = server.asked.load(Ordering::Relaxed);
    let again = origin.fetch(&[&node], folder.path()).unwrap();
    assert!(again.progress.resumed > 0);
    origin.check(again);
    assert_eq!(server.asked.load(Ordering::Relaxed), asked);
}

#[test]
fn a_later_state_takes_little_more_than_what_has_changed() {
    for version in SnapVersion::ALL {
        let origin = SnapFixture::new(Arc::new(Mpt::new()), KeyForm::Hashed);
        catches_up(SnapFixture { version, ..origin });
    }
}

fn catches_up(mut origin: SnapFixture) {
    let mut random = StdRng::seed_from_u64(41);
    let (node, server) = origin.node(SnapLie::Honest);
    let folder = folder();
    drop(origin.fetch(&[&node], folder.path()).unwrap());
    let whole = server.bytes.load(Ordering::Relaxed);
    let mut changes = RangeChanges::default();
    for _ in 0..3 {
        changes.extend(origin.next(&mut random));
        let (node, server) = origin.node(SnapLie::Honest);
        // A node that is stopped goes on where it was.
        let stopped = origin.fetch_after(&[&node], folder.path(), RangeChanges::default(), 5);
        assert!(matches!(stopped, Err(StateSyncError::Stopped) | Ok(_)));
        drop(stopped);
        let fetched = origin.fetch(&[&node], folder.path()).unwrap();
        let bytes = server.bytes.load(Ordering::Relaxed);
        assert!(bytes * 8 < whole, "{bytes} bytes, {whole} for the whole state");
        origin.check(fetched);
    }
    // What is known of the changes need not be asked for: then it is a matter of nodes alone.
    let known = StateFetcher::open(StateFormat::Ranges(&HashedRanges), folder.path()).unwrap();
    assert_eq!(known.first_state(), Some((7, B256::repeat_byte(7))));
    drop(known);
    let [mut told, mut untold] = [0, 0];
    for (bytes, is_told) in [(&mut told, true), (&mut untold, false)] {
        let copy = self::folder();
        let answers = sync_dir(folder.path()).join("answers");
        std::fs::create_dir(sync_dir(copy.path())).unwrap();
        std::fs::copy(&answers, sync_dir(copy.path()).join("answers")).unwrap();
        let more = origin.next(&mut random);
        let mut all = changes.clone();
        all.extend(more.clone());
        changes.extend(more);
        let (node, server) = origin.node(SnapLie::Honest);
        let all = if is_told { all } else { RangeChanges::default() };
        let fetched = origin.fetch_after(&[&node], copy.path(), all, u64::MAX).unwrap();
        *bytes = server.bytes.load(Ordering::Relaxed);
        origin.check(fetched);
    }
    assert!(told * 2 < untold, "{told} bytes with what is known, {untold} without");
}

#[test]
fn wrong_changes_do_no_harm() {
    let mut origin = SnapFixture::new(Arc::new(Prefix::default()), KeyForm::Plain);
    let mut random = StdRng::seed_from_u64(42);
    let (node, _) = origin.node(SnapLie::Honest);
    let folder = folder();
    drop(origin.fetch(&[&node], folder.path()).unwrap());
    let mut wrong = origin.next(&mut random);
    for values in wrong.0.values_mut() {
        values.nonce = Some(1 << 50);
        values.slots.insert(keccak256(b"no slot"), U256::from(1));
    }
    wrong.0.insert(B256::repeat_byte(0x77), AccountPostValues::default());
    let (node, _) = origin.node(SnapLie::Honest);
    origin.check(origin.fetch_after(&[&node], folder.path(), wrong, u64::MAX).unwrap());
}
