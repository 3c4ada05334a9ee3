//! The log index compared with a scan of every block: random chains, filters and reorganisations;
//! pruning, datadirs without an index, and kills.

use crate::common::{FullBlock, child, transactions};
use alloy_primitives::{Address, B256, Bytes, Log, U256, logs_bloom};
use mdbx::{DatabaseFlags, Environment, Geometry};
use retrie_chainspec::primitives::{Receipt, TxType};
use retrie_db::{
    ChainRead, DatabaseEnv, DbError, HistoryKept, KeptBlocks, LogBounds, LogQuery, OpenOptions,
    ReadTxn, StorageError, SyncMode,
};
use retrie_state::BlockRef;
use std::{
    io::{BufRead, BufReader},
    ops::RangeInclusive,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    time::Duration,
};

const ROLE: &str = "RETRIE_DB_TEST_INDEXER";

/// SplitMix64.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn address(number: u64) -> Address {
    Address::from_word(U256::from(number).into())
}

fn topic(number: u64) -> B256 {
    U256::from(number).into()
}

/// Of a few addresses and topics, so that they come again; topics at all places are of one kind.
fn log(random: &mut SplitMix64) -> Log {
    let topics = (0..random.below(5)).map(|_| topic(random.below(12))).collect();
    Log::new_unchecked(address(random.below(6)), topics, Bytes::new())
}

fn receipt(tx_type: TxType, cumulative_gas_used: u64, random: &mut SplitMix64) -> Receipt {
    let logs = (0..random.below(6).saturating_sub(2)).map(|_| log(random)).collect();
    Receipt { tx_type, success: true, cumulative_gas_used, logs }
}

/// A child with up to three transactions, most of them without logs.
fn block(parent: Option<&FullBlock>, random: &mut SplitMix64) -> FullBlock {
    let salt = random.next();
    let mut full = child(parent, salt, transactions(salt >> 8));
    full.block.body.transactions.truncate((salt % 4) as usize);
    full.senders.truncate((salt % 4) as usize);
    let types = full.block.body.transactions.iter().map(|transaction| transaction.tx_type());
    full.receipts = (1..).zip(types).map(|(gas, kind)| receipt(kind, gas, random)).collect();
    full.block.header.logs_bloom = logs_bloom(full.receipts.iter().flat_map(|one| &one.logs));
    full.hash = full.block.header.hash_slow();
    full
}

/// A search; an empty list matches anything.
#[derive(Clone, Debug, Default)]
struct LogFilter {
    addresses: Vec<Address>,
    topics: [Vec<B256>; 4],
}

impl LogFilter {
    fn random(random: &mut SplitMix64) -> Self {
        let mut filter = Self::default();
        let some = |random: &mut SplitMix64| match random.below(6) {
            0..=2 => 0,
            3..=4 => 1,
            _ => 1 + random.below(40),
        };
        filter.addresses = (0..some(random)).map(|_| address(random.below(9))).collect();
        for topics in &mut filter.topics {
            *topics = (0..some(random)).map(|_| topic(random.below(15))).collect();
        }
        filter
    }

    fn query(&self) -> LogQuery {
        LogQuery::new(&self.addresses, self.topics.each_ref())
    }

    fn matches(&self, log: &Log) -> bool {
        (self.addresses.is_empty() || self.addresses.contains(&log.address))
            && (0..4).all(|at| {
                let wanted = &self.topics[at];
                wanted.is_empty() || log.topics().get(at).is_some_and(|one| wanted.contains(one))
            })
    }

    /// Whether each list has a term of the block, in any of its logs.
    fn touches(&self, logs: &[&Log]) -> bool {
        (self.addresses.is_empty() || logs.iter().any(|log| self.addresses.contains(&log.address)))
            && (0..4).all(|at| {
                let wanted = &self.topics[at];
                let has = |log: &&Log| log.topics().get(at).is_some_and(|one| wanted.contains(one));
                wanted.is_empty() || logs.iter().any(has)
            })
    }

    fn is_of_anything(&self) -> bool {
        self.addresses.is_empty() && self.topics.iter().all(Vec::is_empty)
    }
}

fn candidates(read: &ReadTxn, filter: &LogFilter, range: RangeInclusive<u64>) -> Vec<u64> {
    let query = filter.query();
    let found = read.log_candidates(&query, range, u64::MAX).unwrap();
    found.map(Result::unwrap).collect()
}

/// Blocks that the index does not cover.
fn not_indexed(read: &ReadTxn, range: RangeInclusive<u64>) -> Vec<u64> {
    let nobody = LogFilter { addresses: vec![address(1 << 40)], ..LogFilter::default() };
    candidates(read, &nobody, range)
}

/// Candidates must be all blocks without an index, and the indexed blocks that have all wanted
/// terms.
fn assert_searched(
    read: &ReadTxn,
    chain: &[FullBlock],
    filter: &LogFilter,
    range: RangeInclusive<u64>,
) {
    let found = candidates(read, filter, range.clone());
    let not_indexed = not_indexed(read, range.clone());
    let mut expected = Vec::new();
    for number in range {
        let Some(block) = chain.get(number as usize) else {
            expected.push(number);
            continue;
        };
        let logs: Vec<&Log> = block.receipts.iter().flat_map(|receipt| &receipt.logs).collect();
        let is_expected =
            filter.is_of_anything() || filter.touches(&logs) || not_indexed.contains(&number);
        if is_expected {
            expected.push(number);
        }
        let matches = logs.iter().any(|log| filter.matches(log));
        assert!(!matches || found.contains(&number), "block {number} is missed: {filter:?}");
    }
    assert_eq!(found, expected, "{filter:?}");
}

pub(crate) fn assert_whole(read: &ReadTxn) {
    let mut faults = Vec::new();
    read.check_chain(&mut |_| {}, &mut |fault| faults.push(fault.to_string())).unwrap();
    assert_eq!(faults, Vec::<String>::new());
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() }
}

fn step(db: &DatabaseEnv, bounds: &LogBounds) -> bool {
    db.index_logs(bounds, &AtomicBool::new(false)).unwrap()
}

pub(crate) fn extend(
    db: &DatabaseEnv,
    chain: &mut Vec<FullBlock>,
    blocks: u64,
    random: &mut SplitMix64,
) {
    let mut txn = db.begin_write().unwrap();
    for _ in 0..blocks {
        let next = block(chain.last(), random);
        txn.insert_block(&next.new_block()).unwrap();
        chain.push(next);
    }
    txn.commit().unwrap();
}

#[test]
fn index_names_what_a_plain_look_finds_over_growth_and_reorganisations() {
    let mut covered = 0;
    for seed in 0..12 {
        let mut random = SplitMix64(seed);
        let bounds = LogBounds {
            postings: 1 + random.below(150) as usize,
            blocks: 1 + random.below(60),
            behind: random.below(6),
        };
        let dir = tempfile::tempdir().unwrap();
        let mut db = DatabaseEnv::create(dir.path(), &options()).unwrap();
        let mut chain = Vec::new();
        // Abandoned branches.
        let mut left: Vec<(usize, Vec<FullBlock>)> = Vec::new();
        for _ in 0..60 {
            match random.below(12) {
                0..=3 => {
                    let blocks = random.below(25);
                    extend(&db, &mut chain, blocks, &mut random);
                }
                4..=7 => {
                    for _ in 0..random.below(6) {
                        step(&db, &bounds);
                    }
                }
                8 if chain.len() > 1 => {
                    let depth = 1 + random.below(40_u64.min(chain.len() as u64 - 1)) as usize;
                    let keep = chain.len() - depth;
                    let mut txn = db.begin_write().unwrap();
                    txn.unset_canonical_above(keep as u64 - 1).unwrap();
                    txn.commit().unwrap();
                    left.push((keep, chain.split_off(keep)));
                }
                9 => {
                    // Back to a branch that forks from the current one.
                    let last = chain.last().map(|block: &FullBlock| block.hash);
                    let stands = |(keep, branch): &&(usize, Vec<FullBlock>)| {
                        *keep == chain.len() && Some(branch[0].block.header.parent_hash) == last
                    };
                    let Some((_, branch)) = left.iter().find(stands) else { continue };
                    let branch = branch.clone();
                    let mut txn = db.begin_write().unwrap();
                    for block in &branch {
                        txn.set_canonical(block.block.header.number, &block.hash).unwrap();
                    }
                    txn.commit().unwrap();
                    chain.extend(branch);
                }
                10 => {
                    drop(db);
                    db = DatabaseEnv::open(dir.path(), &options()).unwrap();
                }
                _ => {}
            }
            let read = db.begin_read().unwrap();
            let top = chain.len() as u64 + 3;
            let (one, other) = (random.below(top), random.below(top));
            let filter = LogFilter::random(&mut random);
            assert_searched(&read, &chain, &filter, one.min(other)..=one.max(other));
        }
        while step(&db, &bounds) {}
        let read = db.begin_read().unwrap();
        assert_whole(&read);
        let top = chain.len() as u64 - 1;
        let open = not_indexed(&read, 0..=top);
        assert!((open.len() as u64) < bounds.behind.max(1), "{open:?} of {top}");
        assert!(open.iter().all(|number| number + bounds.behind > top), "{open:?} of {top}");
        covered += top + 1 - open.len() as u64;
        for _ in 0..20 {
            assert_searched(&read, &chain, &LogFilter::random(&mut random), 0..=top);
        }
    }
    assert!(covered > 1000, "{covered} blocks are little");
}

#[test]
fn newest_blocks_are_indexed_first_and_segments_are_filled() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::new(), SplitMix64(7));
    let bounds = LogBounds { postings: 1 << 18, blocks: 100, behind: 10 };
    extend(&db, &mut chain, 9, &mut random);
    assert!(!step(&db, &bounds), "too few to begin with");
    extend(&db, &mut chain, 341, &mut random);
    assert!(step(&db, &bounds));
    let open =
        |db: &DatabaseEnv| not_indexed(&db.begin_read().unwrap(), 0..=chain.len() as u64 - 1);
    assert_eq!(open(&db), (0..250).collect::<Vec<_>>());
    while step(&db, &bounds) {}
    assert!(open(&db).is_empty());
    let segments = |db: &DatabaseEnv| {
        let stats = db.stats().unwrap();
        let rows = |name: &str| stats.tables.iter().find(|table| table.name == name).unwrap().rows;
        assert!(rows("LogPostings") >= rows("LogSegments"));
        rows("LogSegments")
    };
    assert_eq!(segments(&db), 4);
    // Growing in small steps makes no more segments than growing at once.
    let mut more = chain.clone();
    for _ in 0..15 {
        extend(&db, &mut more, 10, &mut random);
        while step(&db, &bounds) {}
    }
    assert_eq!(segments(&db), 6);
    assert_whole(&db.begin_read().unwrap());
    // A stopped step has no effect.
    extend(&db, &mut more, 50, &mut random);
    assert!(!db.index_logs(&bounds, &AtomicBool::new(true)).unwrap());
    assert_eq!(not_indexed(&db.begin_read().unwrap(), 500..=549).len(), 50);
}

#[test]
fn pruned_receipts_bound_the_index_and_take_it_along() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = KeptBlocks { from: u64::MAX, last: 30 };
    let kept = HistoryKept { receipts, ..HistoryKept::default() };
    let db = DatabaseEnv::create(dir.path(), &OpenOptions { kept, ..options() }).unwrap();
    let bounds = LogBounds { postings: 1 << 18, blocks: 16, behind: 4 };
    let (mut chain, mut random) = (Vec::new(), SplitMix64(3));
    for _ in 0..20 {
        extend(&db, &mut chain, 12, &mut random);
        let read = db.begin_read().unwrap();
        let pruned = read.receipts_pruned_below().unwrap();
        let top = chain.len() as u64 - 1;
        let open = not_indexed(&read, 0..=top);
        assert!((0..pruned).all(|number| open.contains(&number)), "below {pruned}: {open:?}");
        let filter = LogFilter::random(&mut random);
        assert_searched(&read, &chain, &filter, 0..=top);
        drop(read);
        while step(&db, &bounds) {}
        let read = db.begin_read().unwrap();
        assert_whole(&read);
        let open = not_indexed(&read, pruned..=top);
        assert!(open.iter().all(|number| number + bounds.behind > top), "{open:?} of {top}");
    }
    let pruned = db.begin_read().unwrap().receipts_pruned_below().unwrap();
    assert!(pruned > 200, "{pruned}");
    let stats = db.stats().unwrap();
    let segments = stats.tables.iter().find(|table| table.name == "LogSegments").unwrap().rows;
    assert!(segments <= 4, "{segments} segments over 30 blocks");
}

#[test]
fn blocks_of_a_view_are_not_searched_by_the_index_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::new(), SplitMix64(5));
    extend(&db, &mut chain, 50, &mut random);
    while step(&db, &LogBounds { behind: 1, ..LogBounds::default() }) {}
    let read = db.begin_read().unwrap();
    let nobody = LogQuery::new(&[address(99)], [[].as_slice(); 4]);
    let asked = |range, durable| {
        let found = read.log_candidates(&nobody, range, durable).unwrap();
        found.map(Result::unwrap).collect::<Vec<_>>()
    };
    assert!(asked(0..=49, 49).is_empty());
    assert_eq!(asked(0..=49, 46), [47, 48, 49]);
    assert_eq!(asked(48..=60, 40), (48..=60).collect::<Vec<_>>());
    assert_eq!(asked(u64::MAX - 2..=u64::MAX, 49), [u64::MAX - 2, u64::MAX - 1, u64::MAX]);
    assert!(asked(RangeInclusive::new(5, 4), 49).is_empty());
}

/// Removes the tables of the index, as in a datadir of an earlier version.
fn without_index(dir: &Path) {
    let mut builder = Environment::builder();
    builder
        .set_max_dbs(64)
        .set_geometry(Geometry { size: Some(0..=1 << 30), ..Geometry::default() });
    let env = builder.open(&dir.join("db")).unwrap();
    let tx = env.begin_rw_unsync().unwrap();
    for name in ["LogSegments", "LogPostings"] {
        let table = tx.create_db(Some(name), DatabaseFlags::empty()).unwrap();
        // SAFETY: no other code has a handle of the table, or a cursor on it.
        unsafe { tx.drop_db(table) }.unwrap();
    }
    tx.commit().unwrap();
}

#[test]
fn datadirs_of_before_are_read_as_they_are_and_indexed_once_they_are_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::new(), SplitMix64(11));
    extend(&db, &mut chain, 80, &mut random);
    drop(db);
    without_index(dir.path());
    let rows = |db: &DatabaseEnv| {
        let stats = db.stats().unwrap();
        stats.tables.iter().find(|table| table.name == "LogPostings").unwrap().rows
    };
    let old = DatabaseEnv::open(dir.path(), &OpenOptions::read_only()).unwrap();
    let read = old.begin_read().unwrap();
    assert_whole(&read);
    read.check_rows(&mut |_, _| {}, &mut |fault| panic!("{fault}")).unwrap();
    assert_eq!(rows(&old), 0);
    let filter = LogFilter::random(&mut random);
    assert_searched(&read, &chain, &filter, 0..=79);
    assert_eq!(not_indexed(&read, 0..=79).len(), 80);
    assert!(matches!(
        old.index_logs(&LogBounds::default(), &AtomicBool::new(false)),
        Err(DbError::Storage(StorageError::ReadOnly { .. }))
    ));
    drop((read, old));
    let db = DatabaseEnv::open(dir.path(), &options()).unwrap();
    while step(&db, &LogBounds { behind: 1, ..LogBounds::default() }) {}
    let read = db.begin_read().unwrap();
    assert_whole(&read);
    assert!(rows(&db) > 0 && not_indexed(&read, 0..=79).is_empty());
    assert_searched(&read, &chain, &filter, 0..=79);
}

/// Adds blocks and indexes them until it is killed. Runs only where another test starts it.
#[test]
fn child_process() {
    let (Ok(seed), Some(dir)) = (std::env::var(ROLE), std::env::var_os("RETRIE_DB_TEST_DIR"))
    else {
        return;
    };
    let mut random = SplitMix64(seed.parse().unwrap());
    let db = DatabaseEnv::open_or_create(dir, &options()).unwrap();
    let bounds = LogBounds { postings: 60, blocks: 40, behind: 1 };
    let mut chain = stored(&db.begin_read().unwrap());
    println!("SAYS ready");
    loop {
        extend(&db, &mut chain, 3, &mut random);
        step(&db, &bounds);
        step(&db, &bounds);
        if random.below(4) == 0 {
            let keep = chain.len().saturating_sub(1 + random.below(10) as usize).max(1);
            let mut txn = db.begin_write().unwrap();
            txn.unset_canonical_above(keep as u64 - 1).unwrap();
            txn.commit().unwrap();
            chain.truncate(keep);
        }
    }
}

/// The canonical chain.
fn stored(read: &ReadTxn) -> Vec<FullBlock> {
    let Some(BlockRef { number: tip, .. }) = read.tip().unwrap() else { return Vec::new() };
    let block = |number| {
        let hash = read.canonical_hash(number).unwrap().unwrap();
        FullBlock {
            hash,
            block: read.block(&hash).unwrap().unwrap(),
            senders: read.senders(&hash).unwrap().unwrap(),
            receipts: read.receipts(&hash).unwrap().unwrap(),
            access_list: None,
            total_difficulty: read.total_difficulty(&hash).unwrap().unwrap(),
        }
    };
    (0..=tip).map(block).collect()
}

#[test]
fn killed_processes_leave_an_index_that_is_whole_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut indexed = 0;
    for round in 0..6 {
        kill_after(dir.path(), round, Duration::from_millis(60 + 90 * round));
        let db = DatabaseEnv::open(dir.path(), &options()).unwrap();
        let read = db.begin_read().unwrap();
        assert_whole(&read);
        let chain = stored(&read);
        let top = chain.len() as u64 - 1;
        let mut random = SplitMix64(round);
        for _ in 0..20 {
            assert_searched(&read, &chain, &LogFilter::random(&mut random), 0..=top);
        }
        indexed += chain.len() - not_indexed(&read, 0..=top).len();
    }
    assert!(indexed > 20, "{indexed}");
}

fn kill_after(dir: &Path, round: u64, time: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "logs::child_process", "--nocapture"])
        .env(ROLE, round.to_string())
        .env("RETRIE_DB_TEST_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.contains("SAYS ready"));
    assert!(is_ready, "the child process ended without a word");
    std::thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap();
}
