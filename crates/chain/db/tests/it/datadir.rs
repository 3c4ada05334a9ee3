//! Opening, locking, filling up, crashing and refusing datadirs, with a second process where it
//! takes one. Such a test starts this program again, to run only the test `child_process`.

use alloy_primitives::B256;
use retrie_chainspec::ChainSpec;
use retrie_db::{
    ChainRead, DatabaseEnv, DatadirMetadata, DbError, MetadataError, OpenError, OpenOptions,
    ReadError, StateRootMode, StorageError, SyncMode, WriteTxn,
};
use retrie_state::{BackendIdentity, HashId, KeyForm, RowTable, StoreError};
use retrie_state_store::{KvRead, KvWrite};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

const A: RowTable = RowTable::new(1, "Accounts");
const LATE: RowTable = RowTable::new(2, "Late");

const ROLE: &str = "RETRIE_DB_TEST_ROLE";
const DIR: &str = "RETRIE_DB_TEST_DIR";

/// A child process in a role, with its output lines.
struct ChildProcess {
    child: Child,
    input: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl ChildProcess {
    fn start(role: &str, dir: &Path, prelude: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let script = format!("{prelude} exec \"$0\" --exact datadir::child_process --nocapture");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .arg(program)
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, lines }
    }

    /// The next line that the child prints (as opposed to its test harness).
    fn hear(&mut self) -> String {
        for line in self.lines.by_ref() {
            if let Some((_, said)) = line.unwrap().split_once("SAYS ") {
                return said.to_owned();
            }
        }
        panic!("the child process ended without a word");
    }

    fn go_on(&mut self) {
        writeln!(self.input, "go").unwrap();
    }

    fn end(mut self) {
        // It may have ended already.
        let _ = writeln!(self.input, "go");
        drop(self.input);
        self.child.wait().unwrap();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("SAYS {what}");
}

fn wait() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// The child process; does nothing unless another test of this file has started the program.
#[test]
fn child_process() {
    let (Ok(role), Some(dir)) = (std::env::var(ROLE), std::env::var_os(DIR)) else { return };
    match role.as_str() {
        "writer" => match DatabaseEnv::open(&dir, &OpenOptions::default()) {
            Ok(_) => say("opened"),
            Err(e) => say(e),
        },
        "holder" => {
            let _db = DatabaseEnv::open(&dir, &OpenOptions::default()).unwrap();
            say(std::process::id());
            wait();
        }
        "reader" => {
            let db = DatabaseEnv::open(&dir, &OpenOptions::read_only()).unwrap();
            let old = db.begin_read().unwrap();
            let show = |read: &dyn KvRead| {
                let value = |table| {
                    let value = read.get(table, b"k").unwrap();
                    value.map_or_else(|| "-".to_owned(), |v| String::from_utf8(v.to_vec()).unwrap())
                };
                format!("{} {}", value(A), value(LATE))
            };
            say(show(&old));
            wait();
            say(show(&old));
            say(show(&db.begin_read().unwrap()));
            say(db.begin_write().unwrap_err());
            say(db.is_read_only());
            wait();
        }
        "crash" => {
            let db = DatabaseEnv::open(&dir, &OpenOptions::default()).unwrap();
            write(&db, b"committed", b"1").unwrap();
            let mut txn = db.begin_write().unwrap();
            txn.put(A, b"lost", b"1").unwrap();
            say("now");
            std::process::abort();
        }
        "fill" => {
            let options = OpenOptions { growth_step: 1 << 16, ..OpenOptions::default() };
            let db = DatabaseEnv::open(&dir, &options).unwrap();
            let error = fill(&db, 1 << 16).unwrap_err();
            say(matches!(error, DbError::Storage(StorageError::DiskFull { .. })));
            say(error);
        }
        "fill-new" => {
            let options = OpenOptions { growth_step: 1 << 16, ..OpenOptions::default() };
            let filled = DatabaseEnv::create(&dir, &options).and_then(|db| fill(&db, 1 << 16));
            let error = filled.unwrap_err();
            say(matches!(error, DbError::Storage(StorageError::DiskFull { .. })));
            say(error);
        }
        role => panic!("role {role}"),
    }
}

fn write(db: &DatabaseEnv, key: &[u8], value: &[u8]) -> Result<(), DbError> {
    let mut txn = db.begin_write()?;
    txn.put(A, key, value).map_err(cause)?;
    Ok(txn.commit()?)
}

fn cause(error: StoreError) -> DbError {
    *error.source.downcast().expect("the cause is a DbError")
}

/// Commits batches of rows until one fails.
fn fill(db: &DatabaseEnv, batches: u32) -> Result<(), DbError> {
    for batch in 0..batches {
        let mut txn = db.begin_write()?;
        fill_batch(&mut txn, batch)?;
        txn.commit()?;
    }
    Ok(())
}

fn fill_batch(txn: &mut WriteTxn, batch: u32) -> Result<(), DbError> {
    for row in 0..16_u32 {
        let key = [b"row", batch.to_be_bytes().as_slice(), &row.to_be_bytes()].concat();
        txn.put(A, &key, &[batch as u8; 1500]).map_err(cause)?;
    }
    Ok(())
}

/// The number of rows of a fill; only whole batches may be stored.
fn check_filled(db: &DatabaseEnv) -> u64 {
    let rows = db.state_store().snapshot().unwrap().count(A).unwrap();
    assert!(rows > 0 && rows.is_multiple_of(16), "{rows} rows: a part of a batch is there");
    rows
}

#[test]
fn opening_creating_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let datadir = dir.path().join("some/where");
    let options = OpenOptions { state_tables: vec![A], ..OpenOptions::default() };
    for options in [&options, &OpenOptions::read_only()] {
        let missing = DatabaseEnv::open(&datadir, options).unwrap_err();
        assert!(matches!(missing, DbError::Open(OpenError::NoDatadir { .. })), "{missing:?}");
        assert!(missing.to_string().contains("some/where"), "{missing}");
    }
    assert!(!datadir.exists(), "a failed opening creates nothing");
    let db = DatabaseEnv::create(&datadir, &options).unwrap();
    assert!(db.stats().unwrap().tables.iter().any(|t| t.name == "StateAccounts"));
    write(&db, b"k", b"v").unwrap();
    let twice = DatabaseEnv::open(&datadir, &options).unwrap_err();
    assert!(
        matches!(&twice, DbError::Open(OpenError::InUse { holder, .. }) if holder.contains("this process"))
    );
    // MDBX allows an environment once per process, even for reading.
    let beside = DatabaseEnv::open(&datadir, &OpenOptions::read_only()).unwrap_err();
    assert!(matches!(beside, DbError::Open(OpenError::AlreadyOpen { .. })), "{beside:?}");
    // A snapshot keeps the datadir open, its end closes it.
    let snapshot = db.begin_read().unwrap();
    drop(db);
    assert!(matches!(
        DatabaseEnv::open(&datadir, &options),
        Err(DbError::Open(OpenError::InUse { .. }))
    ));
    drop(snapshot);
    let exists = DatabaseEnv::create(&datadir, &options).unwrap_err();
    assert!(matches!(exists, DbError::Open(OpenError::Exists { .. })), "{exists:?}");
    let no_sync = OpenOptions { sync: SyncMode::NoSync, ..options.clone() };
    let reopened: [&dyn Fn() -> Result<DatabaseEnv, DbError>; 3] = [
        &|| DatabaseEnv::open(&datadir, &options),
        &|| DatabaseEnv::open_or_create(&datadir, &no_sync),
        &|| DatabaseEnv::open(&datadir, &OpenOptions::read_only()),
    ];
    for open in reopened {
        let value = open().unwrap().state_store().snapshot().unwrap().get(A, b"k").unwrap();
        assert_eq!(value.unwrap(), b"v"[..]);
    }
}

#[test]
fn too_many_snapshots_are_an_error_until_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { max_readers: 8, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).unwrap();
    let mut snapshots = Vec::new();
    // MDBX rounds the number up to fill a page.
    let full = loop {
        assert!(snapshots.len() < 10_000, "no limit");
        match db.begin_read() {
            Ok(snapshot) => snapshots.push(snapshot),
            Err(e) => break e,
        }
    };
    assert!(matches!(full, ReadError::Storage(StorageError::ReadersFull { .. })), "{full:?}");
    snapshots.pop();
    db.begin_read().unwrap();
}

#[test]
fn file_that_is_no_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("db")).unwrap();
    std::fs::write(dir.path().join("db/mdbx.dat"), vec![7; 65536]).unwrap();
    for options in [OpenOptions::default(), OpenOptions::read_only()] {
        let refused = DatabaseEnv::open(dir.path(), &options).unwrap_err();
        assert!(matches!(refused, DbError::Open(OpenError::NotADatabase { .. })), "{refused:?}");
        assert!(refused.to_string().contains("mdbx.dat"), "{refused}");
    }
}

#[test]
fn second_process_is_refused_with_the_first_ones_id() {
    let dir = tempfile::tempdir().unwrap();
    drop(DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap());
    let mut holder = ChildProcess::start("holder", dir.path(), "");
    let pid = holder.hear();
    let refused = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap_err();
    let expected = format!("datadir {} is in use by process {pid}", dir.path().display());
    assert!(refused.to_string().starts_with(&expected), "{refused}");
    holder.end();
    let _db = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap();
    let mut other = ChildProcess::start("writer", dir.path(), "");
    let refused = other.hear();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    other.end();
}

#[test]
fn other_process_reads_beside_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
    write(&db, b"k", b"one").unwrap();
    let mut reader = ChildProcess::start("reader", dir.path(), "");
    assert_eq!(reader.hear(), "one -");
    let mut txn = db.begin_write().unwrap();
    txn.put(A, b"k", b"two").unwrap();
    txn.put(LATE, b"k", b"late").unwrap();
    txn.commit().unwrap();
    reader.go_on();
    assert_eq!(reader.hear(), "one -", "the old snapshot has changed");
    assert_eq!(reader.hear(), "two late");
    let refused = reader.hear();
    assert!(refused.contains("read-only"), "{refused}");
    assert_eq!(reader.hear(), "true");
    reader.end();
}

#[test]
fn crash_loses_the_open_transaction_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    drop(DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap());
    let mut child = ChildProcess::start("crash", dir.path(), "");
    assert_eq!(child.hear(), "now");
    child.end();
    let db = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap();
    let snapshot = db.state_store().snapshot().unwrap();
    assert!(snapshot.get(A, b"committed").unwrap().is_some());
    assert!(snapshot.get(A, b"lost").unwrap().is_none());
}

#[test]
fn full_map_is_an_error_and_a_larger_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = OpenOptions { map_limit: 1 << 20, sync: SyncMode::NoSync, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &tiny).unwrap();
    let full = fill(&db, 1000).unwrap_err();
    assert!(
        matches!(full, DbError::Storage(StorageError::MapFull { limit: 1_048_576, .. })),
        "{full:?}"
    );
    let rows = check_filled(&db);
    // A transaction with a failed write cannot be committed.
    let mut txn = db.begin_write().unwrap();
    let failed = (0..100).find_map(|batch| fill_batch(&mut txn, 1000 + batch).err());
    assert!(matches!(failed, Some(DbError::Storage(StorageError::MapFull { .. }))));
    let aborted = txn.commit().unwrap_err();
    assert!(matches!(&aborted, StorageError::Aborted { reason } if reason.contains("size limit")));
    assert_eq!(check_filled(&db), rows);
    drop(db);
    let larger = OpenOptions { map_limit: 64 << 20, ..tiny };
    let db = DatabaseEnv::open(dir.path(), &larger).unwrap();
    assert_eq!(check_filled(&db), rows);
    fill(&db, 200).unwrap();
    assert_eq!(check_filled(&db), 200 * 16);
}

#[test]
#[cfg(unix)]
fn full_disk_is_an_error_and_the_datadir_stays_good() {
    let dir = tempfile::tempdir().unwrap();
    drop(
        DatabaseEnv::create(
            dir.path(),
            &OpenOptions { growth_step: 1 << 16, ..OpenOptions::default() },
        )
        .unwrap(),
    );
    // A limit on file sizes (2 MiB) is the one way to fill a disk that needs no privileges.
    let mut child = ChildProcess::start("fill", dir.path(), "trap '' XFSZ; ulimit -f 4096;");
    let typed = child.hear();
    let message = child.hear();
    child.end();
    assert_eq!(typed, "true", "{message}");
    assert!(message.contains("no space left"), "{message}");
    assert!(message.contains(&dir.path().display().to_string()), "{message}");
    let db = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap();
    let rows = check_filled(&db);
    fill(&db, 100).unwrap();
    assert_eq!(check_filled(&db), rows.max(1600));
}

/// A small disk of its own, if the process may mount one. The last write is cut short, and MDBX
/// reports only "input/output error".
#[test]
#[cfg(target_os = "linux")]
fn a_disk_without_room_is_called_full() {
    let namespace = "unshare --user --map-root-user --mount";
    let may = Command::new("sh").args(["-c", &format!("{namespace} true 2>/dev/null")]).status();
    if !may.unwrap().success() {
        println!("skipped: this process may not mount anything");
        return;
    }
    for kib in [2000, 2004, 2008, 2012] {
        let dir = tempfile::tempdir().unwrap();
        // The rest of the line, which starts the program, goes into the namespace.
        let prelude = format!(
            "{namespace} sh -c 'mount -t tmpfs -o size={kib}k tmpfs \"${DIR}\" && \"$@\"' sh"
        );
        let mut child = ChildProcess::start("fill-new", dir.path(), &prelude);
        let (typed, message) = (child.hear(), child.hear());
        child.end();
        assert_eq!(typed, "true", "{kib} KiB: {message}");
        assert!(message.contains("no space left"), "{message}");
        assert!(message.contains(&dir.path().display().to_string()), "{message}");
    }
}

#[test]
fn a_datadir_keeps_its_chain() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
    let spec = || db.begin_read().unwrap().spec();
    let check = |chain: &ChainSpec| db.begin_read().unwrap().check_spec(chain);
    assert!(matches!(spec(), Err(DbError::Metadata(MetadataError::NotInitialised { .. }))));
    let own = ChainSpec::dev().to_genesis_json().unwrap().replace("1337", "7331");
    let own = ChainSpec::from_genesis_json(&own).unwrap();
    let raw = BackendIdentity::plain("raw", 2, HashId::None);
    let stamp = |chain_id, genesis, mode| {
        let mut txn = db.begin_write().unwrap();
        txn.put_metadata(&DatadirMetadata::new(chain_id, genesis, &raw, KeyForm::Plain, mode))
            .unwrap();
        txn.commit().unwrap();
    };
    stamp(7331, own.genesis_hash(), StateRootMode::Shadow);
    let unknown = spec().unwrap_err();
    assert!(
        matches!(unknown, DbError::Metadata(MetadataError::UnknownChain { id: 7331, .. })),
        "{unknown:?}"
    );
    assert!(unknown.to_string().contains("which rules its chain 7331"), "{unknown}");
    db.store_spec(&own).unwrap();
    let kept = spec().unwrap();
    assert_eq!(kept.genesis_hash(), own.genesis_hash());
    assert!(kept.forks().eq(own.forks()));
    check(&own).unwrap();
    for other in [ChainSpec::dev(), ChainSpec::mainnet()] {
        let refused = check(&other).unwrap_err();
        assert!(
            matches!(
                refused,
                DbError::Metadata(MetadataError::ChainMismatch { found_id: 7331, .. })
            ),
            "{refused:?}"
        );
    }
    // With the backend's own roots the identity has another genesis block than the file.
    stamp(7331, B256::repeat_byte(7), StateRootMode::Native);
    assert_eq!(spec().unwrap().genesis_hash(), own.genesis_hash());
    check(&own).unwrap();
    assert!(check(&ChainSpec::dev()).is_err());
    stamp(7331, B256::repeat_byte(7), StateRootMode::Header);
    assert!(matches!(spec(), Err(DbError::Corrupt(_))), "another genesis block");
    // A known network is kept by its name, and found without.
    let hoodi = ChainSpec::hoodi();
    stamp(hoodi.chain_id(), hoodi.genesis_hash(), StateRootMode::Header);
    assert!(matches!(spec(), Err(DbError::Corrupt(_))), "another chain is kept");
    db.store_spec(&hoodi).unwrap();
    assert_eq!(db.begin_read().unwrap().note("chain").unwrap().unwrap(), b"hoodi"[..]);
    assert_eq!(spec().unwrap().name(), "hoodi");
    let put = |note: Option<&[u8]>| {
        let mut txn = db.begin_write().unwrap();
        match note {
            Some(note) => txn.put_note("chain", note).unwrap(),
            None => assert!(txn.delete_note("chain").unwrap()),
        }
        txn.commit().unwrap();
    };
    for damaged in [&b"goerli"[..], b"{\"config\":", b"\xff"] {
        put(Some(damaged));
        let error = spec().unwrap_err();
        assert!(matches!(error, DbError::Corrupt(_)), "{error:?}");
    }
    put(None);
    assert_eq!(spec().unwrap().name(), "hoodi");
}

#[test]
fn foreign_datadirs_are_refused_and_both_sides_named() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
    let raw = BackendIdentity::plain("raw", 2, HashId::None);
    let made =
        DatadirMetadata::new(1, B256::repeat_byte(7), &raw, KeyForm::Plain, StateRootMode::Shadow);
    assert!(matches!(
        db.check_metadata(&made),
        Err(DbError::Metadata(MetadataError::NotInitialised { .. }))
    ));
    db.init_metadata(&made).unwrap();
    db.init_metadata(&made).unwrap();
    assert_eq!(db.check_metadata(&made).unwrap(), made);
    drop(db);

    let db = DatabaseEnv::open(dir.path(), &OpenOptions::read_only()).unwrap();
    assert_eq!(db.metadata().unwrap(), made);
    type MetadataChange = fn(&mut DatadirMetadata);
    let cases: [(MetadataChange, &[&str]); 9] = [
        (|m| m.backend = "mpt".into(), &["backend raw, not mpt"]),
        (|m| m.backend_version = 3, &["format 2", "format 3", "import again"]),
        (|m| m.backend_version = 1, &["format 2", "format 1", "newer version"]),
        (|m| m.hash = "blake3".into(), &["hash function none, not blake3"]),
        (|m| m.params = B256::repeat_byte(9), &["parameters 0x0000", "0x0909"]),
        (|m| m.keys = KeyForm::Hashed.into(), &["form of keys plain, not hashed"]),
        (|m| m.chain_id = 5, &["chain 1", "chain 5"]),
        (|m| m.genesis = B256::repeat_byte(8), &["genesis 0x0707", "genesis 0x0808"]),
        (|m| m.state_root = StateRootMode::Native, &["state roots shadow, not native"]),
    ];
    for (change, words) in cases {
        let mut expected = made.clone();
        change(&mut expected);
        let refused = db.check_metadata(&expected).unwrap_err().to_string();
        for word in words.iter().copied().chain([dir.path().to_str().unwrap()]) {
            assert!(refused.contains(word), "`{word}` is missing in: {refused}");
        }
    }
    drop(db);

    let db = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap();
    let mut other = made.clone();
    other.backend = "mpt".into();
    assert!(matches!(
        db.init_metadata(&other),
        Err(DbError::Metadata(MetadataError::BackendMismatch { .. }))
    ));
    assert_eq!(db.metadata().unwrap(), made, "a refusal has changed the stamp");
    let mut txn = db.begin_write().unwrap();
    txn.put_metadata(&other).unwrap();
    assert_eq!(txn.metadata().unwrap(), Some(other));
}

#[test]
fn statistics_name_every_table_and_serialise() {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { state_tables: vec![A], ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).unwrap();
    write(&db, b"k", &[1; 10_000]).unwrap();
    let stats = db.stats().unwrap();
    assert_eq!(stats.page_size, 4096);
    assert_eq!(stats.tables.len(), retrie_db::tables::ChainTable::ALL.len() + 1);
    let table = stats.tables.last().unwrap();
    assert_eq!((table.name.as_str(), table.rows), ("StateAccounts", 1));
    assert_eq!((table.leaf_pages, table.overflow_pages, table.bytes), (1, 3, 4 * 4096));
    assert!(stats.used_bytes <= stats.file_bytes);
    assert!(stats.limit_bytes > stats.file_bytes);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["tables"][0]["name"], "Headers");
    assert!(json["tip"].is_null());
}
