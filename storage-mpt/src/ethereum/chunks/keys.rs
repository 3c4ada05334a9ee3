//! The plain keys of one state, in the order of its tries: sorted by hash.
//!
//! | keys | sorted | kept |
//! |---|---|---|
//! | up to [`MAX_ENTRIES`], as many as one answer may have | by the answer that needs them | no |
//! | up to [`MAX_INLINE`] | by the first answer that needs them | on disk |
//! | more | by a thread, one set at a time in the whole process | on disk |
//!
//! While a thread sorts keys, answers that need them are [not
//! ready](retrie_state::ChunkAnswer::NotReady).

use super::{
    MAX_ENTRIES,
    order::{KeyOrder, KeySorter, ScratchFile, bounds},
};
use crate::TrieHash;
use alloy_primitives::{Address, B256};
use alloy_trie::Nibbles;
use parking_lot::Mutex;
use retrie_state::{AccountKey, NodeRead, StateError, StoreError, flat};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Upper bound of keys that an answer sorts itself, in about 50 ms.
const MAX_INLINE: usize = 1 << 16;
/// Upper bound of sorts that wait for the thread.
const MAX_QUEUED: usize = 64;
/// Bytes of sorted slots on disk. When they are used up, the file is dropped and the slots of all
/// contracts have to be sorted again.
const MAX_SLOT_BYTES: u64 = 8 << 30;
/// Number of keys after which a sort checks again whether the server was dropped.
const CHECK_INTERVAL: usize = 4096;

/// Held while a thread sorts the keys of a whole state or of a large contract: one sort at a time
/// in the process, however many states are served.
static SORTING: Mutex<()> = Mutex::new(());

/// The plain keys of one state.
pub struct PlainKeys(Arc<KeyStore>);

struct KeyStore {
    with: TrieHash,
    view: Arc<dyn NodeRead>,
    /// The folder for files.
    dir: Option<PathBuf>,
    /// The server was dropped.
    stopped: AtomicBool,
    orders: Mutex<KeyOrderCache>,
}

/// A set of keys that is sorted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum KeySet {
    Accounts,
    Slots(Address),
}

#[derive(Default)]
struct KeyOrderCache {
    accounts: Option<Arc<KeyOrder<20>>>,
    slots: HashMap<Address, Arc<KeyOrder<32>>>,
    /// The file of the slots.
    slots_file: Option<Arc<ScratchFile>>,
    /// Sets that are being sorted, or wait for it.
    busy: HashSet<KeySet>,
    queue: VecDeque<KeySet>,
    has_thread: bool,
    /// Failed sorts. The next answer that needs the set returns the error; the one after it tries
    /// again.
    failed: HashMap<KeySet, StateError>,
}

/// Keys in the order of their hashes.
pub(super) enum OrderedKeys<const N: usize> {
    Few(Vec<(B256, [u8; N])>),
    Many(Arc<KeyOrder<N>>),
}

impl<const N: usize> OrderedKeys<N> {
    fn few(with: TrieHash, keys: Vec<[u8; N]>) -> Self {
        let mut keys: Vec<_> = keys.into_iter().map(|key| (with.hash(key), key)).collect();
        keys.sort_unstable();
        Self::Few(keys)
    }

    /// Whether more than `than` keys are below a slot.
    pub(super) fn has_more(&self, slot: &Nibbles, than: usize) -> Result<bool, StateError> {
        match self {
            Self::Few(keys) => Ok(below(keys, slot).len() > than),
            Self::Many(order) => order.has_more(slot, than as u64),
        }
    }

    /// The keys below a slot.
    pub(super) fn below(&self, slot: &Nibbles) -> Result<Vec<[u8; N]>, StateError> {
        match self {
            Self::Few(keys) => Ok(below(keys, slot).iter().map(|(_, key)| *key).collect()),
            Self::Many(order) => order.below(slot),
        }
    }
}

fn below<'a, const N: usize>(keys: &'a [(B256, [u8; N])], slot: &Nibbles) -> &'a [(B256, [u8; N])] {
    let [first, last] = bounds(slot);
    let start = keys.partition_point(|(hash, _)| *hash < first);
    let end = keys.partition_point(|(hash, _)| *hash <= last);
    &keys[start..end.max(start)]
}

impl fmt::Debug for PlainKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainKeys").field("dir", &self.0.dir).finish_non_exhaustive()
    }
}

impl Drop for PlainKeys {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl PlainKeys {
    /// The keys of the flat state in `view`, whose tries are hashed `with` this function. Files go
    /// to the folder `dir`. Nothing is read yet.
    pub(in super::super) fn new(
        with: TrieHash,
        view: Arc<dyn NodeRead>,
        dir: Option<&Path>,
    ) -> Self {
        Self(Arc::new(KeyStore {
            with,
            view,
            dir: dir.map(Path::to_owned),
            stopped: AtomicBool::new(false),
            orders: Mutex::default(),
        }))
    }

    /// The view of the state that the keys belong to.
    pub fn view(&self) -> &dyn NodeRead {
        &*self.0.view
    }

    /// The addresses of all accounts; `None` while they are being sorted.
    pub(super) fn accounts(&self) -> Result<Option<OrderedKeys<20>>, StateError> {
        self.0.get(AccountSet)
    }

    /// The address with this hash, of an account of the state; `None` while they are being sorted.
    pub(in super::super) fn address(&self, hash: &B256) -> Result<Option<[u8; 20]>, StateError> {
        let Some(all) = self.accounts()? else { return Ok(None) };
        let found = all.below(&Nibbles::unpack_array(&hash.0))?;
        let what =
            || StateError::corrupt(flat::TABLE.name, format!("no address has the hash {hash}"));
        found.first().copied().map(Some).ok_or_else(what)
    }

    /// The slots of an account; `None` while they are being sorted.
    pub(super) fn slots(&self, address: &Address) -> Result<Option<OrderedKeys<32>>, StateError> {
        self.0.get(SlotSet(*address))
    }
}

type KeyScan<'a, const N: usize> = Box<dyn Iterator<Item = Result<[u8; N], StateError>> + 'a>;

/// A key set with keys of `N` bytes.
trait SortableKeys<const N: usize>: Copy {
    fn name(self) -> KeySet;
    fn scan(self, view: &dyn NodeRead) -> Result<KeyScan<'_, N>, StateError>;
    fn find(self, orders: &KeyOrderCache) -> Option<Arc<KeyOrder<N>>>;
    fn keep(self, orders: &mut KeyOrderCache, order: Arc<KeyOrder<N>>);
    /// The file for the sorted keys.
    fn file(self, store: &KeyStore) -> Result<Arc<ScratchFile>, StateError>;
}

#[derive(Clone, Copy)]
struct AccountSet;

impl SortableKeys<20> for AccountSet {
    fn name(self) -> KeySet {
        KeySet::Accounts
    }

    fn scan(self, view: &dyn NodeRead) -> Result<KeyScan<'_, 20>, StateError> {
        let plain = |key: AccountKey| {
            let what = || StateError::corrupt(flat::TABLE.name, format!("{key} is not plain"));
            key.address().map(|address| address.0.0).ok_or_else(what)
        };
        Ok(Box::new(flat::accounts(view)?.map(move |key| plain(key?))))
    }

    fn find(self, orders: &KeyOrderCache) -> Option<Arc<KeyOrder<20>>> {
        orders.accounts.clone()
    }

    fn keep(self, orders: &mut KeyOrderCache, order: Arc<KeyOrder<20>>) {
        orders.accounts = Some(order);
    }

    fn file(self, store: &KeyStore) -> Result<Arc<ScratchFile>, StateError> {
        ScratchFile::new(store.dir.as_deref()).map(Arc::new)
    }
}

#[derive(Clone, Copy)]
struct SlotSet(Address);

impl SortableKeys<32> for SlotSet {
    fn name(self) -> KeySet {
        KeySet::Slots(self.0)
    }

    fn scan(self, view: &dyn NodeRead) -> Result<KeyScan<'_, 32>, StateError> {
        Ok(Box::new(flat::slots(view, &self.0.into())?.map(|slot| Ok(slot?.0))))
    }

    fn find(self, orders: &KeyOrderCache) -> Option<Arc<KeyOrder<32>>> {
        orders.slots.get(&self.0).cloned()
    }

    fn keep(self, orders: &mut KeyOrderCache, order: Arc<KeyOrder<32>>) {
        orders.slots.insert(self.0, order);
    }

    /// One file for all contracts. When it is full, it is dropped with its content.
    fn file(self, store: &KeyStore) -> Result<Arc<ScratchFile>, StateError> {
        if let Some(file) = &store.orders.lock().slots_file
            && file.len() < MAX_SLOT_BYTES
        {
            return Ok(file.clone());
        }
        // Without the lock, since it may wait for a file descriptor.
        let file = Arc::new(ScratchFile::new(store.dir.as_deref())?);
        let mut orders = store.orders.lock();
        orders.slots.clear();
        orders.slots_file = Some(file.clone());
        Ok(file)
    }
}

impl KeyStore {
    fn get<const N: usize>(
        self: &Arc<Self>,
        set: impl SortableKeys<N>,
    ) -> Result<Option<OrderedKeys<N>>, StateError> {
        {
            let mut orders = self.orders.lock();
            if let Some(order) = set.find(&orders) {
                return Ok(Some(OrderedKeys::Many(order)));
            }
            if let Some(error) = orders.failed.remove(&set.name()) {
                return Err(error);
            }
            if orders.busy.contains(&set.name()) {
                return Ok(None);
            }
        }
        let mut keys = set.scan(&*self.view)?;
        let mut first: Vec<[u8; N]> =
            keys.by_ref().take(MAX_ENTRIES + 1).collect::<Result<_, _>>()?;
        if first.len() <= MAX_ENTRIES {
            return Ok(Some(OrderedKeys::few(self.with, first)));
        }
        {
            let mut orders = self.orders.lock();
            if let Some(order) = set.find(&orders) {
                return Ok(Some(OrderedKeys::Many(order)));
            }
            // A set is sorted once, however many answers need it.
            if !orders.busy.insert(set.name()) {
                return Ok(None);
            }
        }
        let read = keys.take(MAX_INLINE + 1 - first.len()).try_for_each(|key| {
            first.push(key?);
            Ok::<_, StateError>(())
        });
        if read.is_ok() && first.len() > MAX_INLINE {
            return self.enqueue(set.name()).map(|()| None);
        }
        let sorted = read.and_then(|()| self.sort(set, first.into_iter().map(Ok)));
        let mut orders = self.orders.lock();
        orders.busy.remove(&set.name());
        let order = Arc::new(sorted?);
        set.keep(&mut orders, order.clone());
        Ok(Some(OrderedKeys::Many(order)))
    }

    fn sort<const N: usize>(
        &self,
        set: impl SortableKeys<N>,
        keys: impl Iterator<Item = Result<[u8; N], StateError>>,
    ) -> Result<KeyOrder<N>, StateError> {
        let dir = self.dir.as_deref();
        let mut sorter = KeySorter::new(self.with);
        for (at, key) in keys.enumerate() {
            if at.is_multiple_of(CHECK_INTERVAL) {
                self.check_stopped()?;
            }
            sorter.put(key?, dir)?;
        }
        let file = set.file(self)?;
        sorter.finish(file, dir, &|| self.check_stopped())
    }

    /// Fails once the server was dropped.
    fn check_stopped(&self) -> Result<(), StateError> {
        if self.stopped.load(Ordering::Relaxed) {
            let job = "sorting the keys of a state".to_owned();
            return Err(StateError::Job { job, reason: "cancelled".to_owned() });
        }
        Ok(())
    }

    /// Queues a set for the sorting thread, and starts the thread if there is none.
    fn enqueue(self: &Arc<Self>, set: KeySet) -> Result<(), StateError> {
        let mut orders = self.orders.lock();
        if orders.queue.len() >= MAX_QUEUED {
            // A later request may find room.
            orders.busy.remove(&set);
            return Ok(());
        }
        orders.queue.push_back(set);
        if orders.has_thread {
            return Ok(());
        }
        let inner = self.clone();
        let started =
            std::thread::Builder::new().name("state-sort".into()).spawn(move || inner.work());
        match started {
            Ok(_) => orders.has_thread = true,
            Err(error) => {
                orders.queue.clear();
                orders.busy.remove(&set);
                let action = "starting a thread that sorts the keys of a state";
                return Err(StoreError::new(action, error).into());
            }
        }
        Ok(())
    }

    /// The loop of the sorting thread, until the queue is empty.
    fn work(&self) {
        loop {
            let next = {
                let mut orders = self.orders.lock();
                let next = orders.queue.pop_front();
                orders.has_thread = next.is_some();
                next
            };
            match next {
                None => return,
                Some(KeySet::Accounts) => self.sort_behind(AccountSet),
                Some(KeySet::Slots(address)) => self.sort_behind(SlotSet(address)),
            }
        }
    }

    fn sort_behind<const N: usize>(&self, set: impl SortableKeys<N>) {
        let sort = || {
            let _alone = loop {
                self.check_stopped()?;
                if let Some(alone) = SORTING.try_lock_for(Duration::from_millis(100)) {
                    break alone;
                }
            };
            self.sort(set, set.scan(&*self.view)?)
        };
        let sorted = sort();
        let mut orders = self.orders.lock();
        orders.busy.remove(&set.name());
        match sorted {
            Ok(order) => set.keep(&mut orders, Arc::new(order)),
            Err(error) => {
                orders.failed.insert(set.name(), error);
            }
        }
    }
}
