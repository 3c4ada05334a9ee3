//! `verify` finds a flipped byte in every table, folded or not, and finds nothing in an intact
//! datadir; `unwind` and a second import leave the datadir as it was.

use crate::common::{NodeSetup, TestNode, batches, import_into, test_chain};
use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use mdbx::{DatabaseFlags, Environment, Geometry, WriteFlags};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Receipt, RecoveredBlock},
};
use retrie_db::{
    AddressBounds, BlockParticipants, ChainRead, ContractCreation, DatabaseEnv, DbError, LogBounds,
    OpenOptions, TransactionParticipants,
};
use retrie_pipeline::{
    ImportOptions, PipelineError, RootCheckMode,
    testkit::TestRules,
    verify::{VerifyOptions, VerifyReport, verify},
};
use retrie_sources::BlockSource;
use retrie_state::{AnyBackend, StateError};
use retrie_state_testkit::sample;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

fn data(node: &TestNode) -> PathBuf {
    node.dir.path().join("data")
}

fn check(node: &TestNode) -> VerifyReport {
    let backend = |name: &str| -> Option<Arc<dyn AnyBackend>> {
        let own = node.setup.backend();
        match own.identity().name == name {
            true => Some(own),
            false => Some((retrie_backends::find(name).ok()?.small)()),
        }
    };
    let db = DatabaseEnv::open(data(node), &OpenOptions::read_only()).unwrap();
    let scratch = data(node);
    let options = VerifyOptions {
        spec: node.spec.clone(),
        backend: &backend,
        max_findings: 10_000,
        scratch: &scratch,
    };
    verify(&db, &options, &mut |_, _| {}).unwrap()
}

/// Names of the tables and their rows.
fn tables(node: &TestNode) -> Vec<(String, u64)> {
    let db = DatabaseEnv::open(data(node), &OpenOptions::read_only()).unwrap();
    let stats = db.stats().unwrap();
    stats.tables.into_iter().map(|table| (table.name, table.rows)).collect()
}

/// Indexes all logs, in several segments.
fn index_logs(node: &TestNode) {
    let chain = node.open();
    let bounds = LogBounds { postings: 12, behind: 1, ..LogBounds::default() };
    while chain.db().index_logs(&bounds, &AtomicBool::new(false)).unwrap() {}
    let bounds = AddressBounds { participants: 12, ..AddressBounds::default() };
    let shown = |hash: &B256| -> Result<_, DbError> {
        let read = chain.db().begin_read()?;
        let receipts = read.receipts(hash)?.unwrap_or_default();
        Ok(read.recovered_block(hash)?.map(|block| shown_by_block(&block, &receipts)))
    };
    while chain.db().index_addresses(&bounds, &AtomicBool::new(false), shown).unwrap() {}
}

/// The participants that a block shows by itself; each transaction counts as a creation too.
fn shown_by_block(block: &RecoveredBlock, receipts: &[Receipt]) -> BlockParticipants {
    let body = block.body().transactions.iter().zip(block.senders());
    let transactions = body.zip(receipts).map(|((transaction, sender), receipt)| {
        let (sender, nonce) = (*sender, transaction.nonce());
        let contract = sender.create(nonce);
        let logging = receipt.logs.iter().map(|log| log.address);
        let accounts = transaction.to().into_iter().chain([sender, contract]).chain(logging);
        let created = vec![ContractCreation { contract, creator: sender }];
        TransactionParticipants { sender, nonce, accounts: accounts.collect(), created }
    });
    BlockParticipants {
        number: block.number,
        hash: block.hash(),
        is_traced: true,
        transactions: transactions.collect(),
    }
}

#[derive(Clone, Copy, Debug)]
enum RowPart {
    Key,
    Value,
}

/// Flips bits of one byte of a row, bypassing this workspace's own code. A second call restores the
/// row.
fn flip(node: &TestNode, table: &str, row: u64, part: RowPart, at: usize) {
    let mut builder = Environment::builder();
    builder
        .set_max_dbs(64)
        .set_geometry(Geometry { size: Some(0..=1 << 30), ..Geometry::default() });
    let env = builder.open(&data(node).join("db")).unwrap();
    let tx = env.begin_rw_unsync().unwrap();
    let db = tx.create_db(Some(table), DatabaseFlags::empty()).unwrap();
    let (mut key, mut value) = {
        let mut cursor = tx.cursor(db).unwrap();
        let mut found = cursor.first::<Vec<u8>, Vec<u8>>().unwrap();
        for _ in 0..row {
            found = cursor.next().unwrap();
        }
        found.unwrap()
    };
    tx.del(db, &key, None).unwrap();
    match part {
        RowPart::Key => {
            let at = at % key.len();
            key[at] ^= 0x10;
        }
        RowPart::Value => {
            let at = at % value.len();
            value[at] ^= 0x10;
        }
    }
    assert!(tx.get::<Vec<u8>>(db.dbi(), &key).unwrap().is_none(), "the flipped key is free");
    tx.put(db, &key, &value, WriteFlags::UPSERT).unwrap();
    tx.commit().unwrap();
}

/// A chain with contracts, logs, ommers of both kinds of branches, and what a file of it holds.
fn made(rules: TestRules) -> (Arc<ChainSpec>, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let trunk = *chain.branch(genesis, 9, 12, 0).last().unwrap();
    let side = *chain.branch(trunk, 2, 30, 1).last().unwrap();
    let tip = *chain.branch(trunk, 6, 6, 2).last().unwrap();
    let blocks = [chain.path(genesis, side), chain.path(trunk, tip)].concat();
    (chain.spec.clone(), blocks)
}

#[test]
fn flipped_byte_is_found_in_every_table_folded_or_not() {
    let mut seen = std::collections::BTreeSet::new();
    let rules = [
        TestRules::Prague,
        TestRules::Frontier,
        TestRules::Byzantium,
        TestRules::Amsterdam,
        TestRules::Cancun,
    ];
    let rules = rules.into_iter().cycle();
    let setups =
        NodeSetup::all().into_iter().chain([NodeSetup::MPT, NodeSetup::RAW, NodeSetup::REFEREED]);
    for (number, (setup, rules)) in setups.zip(rules).enumerate() {
        let fold = number % 3 != 1;
        let (spec, blocks) = made(rules);
        let node = TestNode::new(&spec, setup);
        node.import(&blocks).unwrap();
        index_logs(&node);
        if fold {
            node.open().flush().unwrap();
        }
        let clean = check(&node);
        assert_eq!(clean.findings, Vec::<String>::new(), "{setup:?} {rules:?}");
        assert_eq!(clean.states.len(), if setup.has_referee() { 2 } else { 1 });
        let roots = clean.states.last().unwrap().roots;
        // A root is rebuilt from values only if it depends on values alone.
        let can = setup.backend().profile();
        let is_rebuilt = setup.has_referee() || (can.proofs && can.state_determined_root);
        assert!(if is_rebuilt { roots >= 3 } else { roots == 0 }, "{setup:?}: {roots}");
        let files = clean.states[0].files;
        assert_eq!(files > 0, setup.is_cole(), "{setup:?}: {files} files");
        for (table, rows) in tables(&node).into_iter().filter(|(_, rows)| *rows > 0) {
            let picks = [
                (0, RowPart::Value, 0),
                (rows / 2, RowPart::Value, 5),
                (rows - 1, RowPart::Key, 3),
            ];
            for (n, (row, part, at)) in picks.into_iter().enumerate() {
                if !sample::takes(number + n, 3) {
                    continue;
                }
                // The row of a flipped key may sort elsewhere, so the datadir is kept aside.
                let copy = node.dir.path().join("copy.dat");
                let file = data(&node).join("db/mdbx.dat");
                std::fs::copy(&file, &copy).unwrap();
                flip(&node, &table, row, part, at);
                let report = check(&node);
                let named = report.findings.iter().any(|line| line.contains(&table));
                let what = format!("{setup:?}, {table} row {row} {part:?}");
                assert!(named, "{what}: {:?}", report.findings);
                std::fs::rename(&copy, &file).unwrap();
            }
            seen.insert(table);
        }
        assert_eq!(check(&node).count, 0, "what was flipped is put back");
    }
    for table in ["StateColeMemory", "StateColeMeta"] {
        assert!(seen.contains(table), "{table} was not tried: {seen:?}");
    }
    for table in ["StateFlat", "StateJournal", "StateUndo", "StateMeta", "StateMptAccountNodes"] {
        assert!(seen.contains(table), "{table} was not tried: {seen:?}");
        let referee = table.replace("State", "StateReferee");
        assert!(seen.contains(&referee), "{referee} was not tried: {seen:?}");
    }
    assert!(seen.contains("Receipts") && seen.contains("Codes") && seen.contains("Metadata"));
    assert!(seen.contains("AccessLists"), "{seen:?}");
    assert!(seen.contains("LogSegments") && seen.contains("LogPostings"), "{seen:?}");
    for table in ["AddressBlocks", "AddressHistory", "SenderNonces", "ContractCreators"] {
        assert!(seen.contains(table), "{table} was not tried: {seen:?}");
    }
}

/// Rows that are intact but wrong: checksums do not help.
#[test]
fn rows_that_contradict_each_other_are_found() {
    let (spec, blocks) = made(TestRules::Prague);
    for setup in [NodeSetup::MPT, NodeSetup::REFEREED] {
        let node = TestNode::new(&spec, setup);
        node.import(&blocks).unwrap();
        index_logs(&node);
        node.open().flush().unwrap();
        let prefix = if setup == NodeSetup::MPT { "State" } else { "StateReferee" };
        for table in [
            "Headers",
            "BlockIndex",
            "Canonical",
            "Bodies",
            "Transactions",
            "Receipts",
            "TxLookup",
            "Codes",
            "TotalDifficulty",
            "BackendRoots",
            "Metadata",
            "LogSegments",
            "LogPostings",
            "AddressBlocks",
            "AddressHistory",
            "SenderNonces",
            "ContractCreators",
            "Flat",
            "MptAccountNodes",
            "MptStorageNodes",
            "Undo",
            "Meta",
        ] {
            let is_state = ["Flat", "MptAccountNodes", "MptStorageNodes", "Undo", "Meta"];
            let name = if is_state.contains(&table) {
                format!("{prefix}{table}")
            } else {
                table.to_owned()
            };
            let rows = tables(&node).iter().find(|(found, _)| *found == name).unwrap().1;
            let copy = node.dir.path().join("copy.dat");
            let file = data(&node).join("db/mdbx.dat");
            std::fs::copy(&file, &copy).unwrap();
            // Of the metadata only the identity: older datadirs lack the note of their chain.
            remove(&node, &name, if table == "Metadata" { 0 } else { rows / 2 });
            let report = check(&node);
            assert!(report.count > 0, "{name}: a row that is gone is not missed");
            std::fs::rename(&copy, &file).unwrap();
        }
        assert_eq!(check(&node).count, 0);
    }
}

/// A root that was never computed is not reported as missing.
#[test]
fn roots_within_runs_are_not_missed_and_any_row_that_is_gone_is() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, 60, 12, 0).last().unwrap();
    for setup in [NodeSetup::MPT, NodeSetup::RAW, NodeSetup::REFEREED] {
        let node = TestNode { retention: 5, ..TestNode::new(&chain.spec, setup) };
        let options =
            ImportOptions { check_roots: RootCheckMode::Batch, ..ImportOptions::default() };
        node.import_with(&chain.path(genesis, tip), options).unwrap();
        node.open().flush().unwrap();
        assert_eq!(check(&node).findings, Vec::<String>::new(), "{setup:?}");
        let stores = if setup.has_referee() { 2 } else { 1 };
        // In the batch, its last block, and one block above.
        for number in [20, 55, 57] {
            let copy = node.dir.path().join("copy.dat");
            let file = data(&node).join("db/mdbx.dat");
            std::fs::copy(&file, &copy).unwrap();
            for _ in 0..stores {
                remove(&node, "BackendRoots", number * stores);
            }
            let missing = format!("block {number} ");
            let found = check(&node).findings;
            let is_told = |line: &String| {
                line.contains("BackendRoots") && line.contains(&missing) && line.contains("missing")
            };
            assert!(found.iter().any(is_told), "{setup:?}, {number}: {found:?}");
            std::fs::rename(&copy, &file).unwrap();
        }
        assert_eq!(check(&node).count, 0);
    }
}

fn remove(node: &TestNode, table: &str, row: u64) {
    let mut builder = Environment::builder();
    builder
        .set_max_dbs(64)
        .set_geometry(Geometry { size: Some(0..=1 << 30), ..Geometry::default() });
    let env = builder.open(&data(node).join("db")).unwrap();
    let tx = env.begin_rw_unsync().unwrap();
    let db = tx.create_db(Some(table), DatabaseFlags::empty()).unwrap();
    let key = {
        let mut cursor = tx.cursor(db).unwrap();
        let mut found = cursor.first::<Vec<u8>, Vec<u8>>().unwrap();
        for _ in 0..row {
            found = cursor.next().unwrap();
        }
        found.unwrap().0
    };
    tx.del(db, &key, None).unwrap();
    tx.commit().unwrap();
}

/// Rows of all tables, after folding.
fn logical(node: &TestNode) -> Vec<(String, u64)> {
    node.open().flush().unwrap();
    tables(node)
}

#[test]
fn unwinding_and_importing_again_leaves_the_same_datadir() {
    let rules = [TestRules::Prague, TestRules::Frontier, TestRules::Byzantium].into_iter().cycle();
    for (setup, rules) in NodeSetup::all().into_iter().zip(rules) {
        let (spec, blocks) = made(rules);
        let node = TestNode::new(&spec, setup);
        node.import_with(&blocks, batches(4)).unwrap();
        let (before, picture) = (logical(&node), node.picture(&blocks));
        for to in [14, 10, 9, 3, 0] {
            let removed = node.open().unwind(to, &mut |_| {}).unwrap();
            assert!(removed >= 15 - to, "{removed}");
            assert_eq!(node.tip().number, to);
            let report = check(&node);
            assert_eq!(report.findings, Vec::<String>::new(), "{setup:?}, unwound to {to}");
            node.import(&blocks).unwrap();
            assert!(node.picture(&blocks) == picture, "{setup:?}, unwound to {to}");
            assert_eq!(logical(&node), before, "{setup:?}, unwound to {to}");
        }
        assert_eq!(check(&node).count, 0);
        let above = node.open().unwind(16, &mut |_| {}).unwrap_err();
        assert!(matches!(above, PipelineError::State(StateError::AboveTip { .. })), "{above}");
    }
}

#[test]
fn unwinding_below_the_window_is_refused_before_anything_changes() {
    let (spec, blocks) = made(TestRules::Cancun);
    let mut node = TestNode::new(&spec, NodeSetup::REFEREED);
    node.retention = 4;
    node.import_with(&blocks, batches(1)).unwrap();
    let before = logical(&node);
    let error = node.open().unwind(10, &mut |_| {}).unwrap_err();
    assert!(matches!(error, PipelineError::State(StateError::BeyondRetention { .. })));
    assert!(error.to_string().contains("starts at block 11 (depth 4)"), "{error}");
    assert!(error.to_string().contains("block 10 lies below the retention window"), "{error}");
    assert_eq!(logical(&node), before);
    node.open().unwind(11, &mut |_| {}).unwrap();
    assert_eq!(check(&node).count, 0);
}

/// Real blocks, more than 64 of them back and forth.
#[test]
fn real_blocks_verify_and_come_back_after_unwinding() {
    let Some(file) = era1() else { return };
    // One referee is enough: all referees are the same store, beside any backend.
    let setups = NodeSetup::all().into_iter().filter(|setup| !setup.has_referee());
    for setup in setups.chain([NodeSetup::REFEREED]) {
        let node = TestNode::new(&ChainSpec::mainnet(), setup);
        let head = sample::or_all(400, 1000);
        let import = |to: u64| {
            let sources = vec![BlockSource::open(&file).unwrap()];
            let chain = node.open();
            let options = ImportOptions::default();
            let stop = AtomicBool::new(false);
            import_into(&chain, sources, 0..=to, options, &stop, &mut |_| {}).unwrap();
        };
        import(head);
        assert_eq!(check(&node).findings, Vec::<String>::new(), "{setup:?}, not folded");
        let (before, tip) = (logical(&node), node.tip());
        assert_eq!(node.open().unwind(head - 64, &mut |_| {}).unwrap(), 64);
        assert_eq!(check(&node).findings, Vec::<String>::new(), "{setup:?}, unwound");
        import(head);
        assert_eq!((logical(&node), node.tip()), (before, tip), "{setup:?}");
        let report = check(&node);
        assert_eq!(report.findings, Vec::<String>::new(), "{setup:?}, folded");
        assert_eq!(report.blocks, head + 1);
        // A byte of the state, deep inside.
        let (table, rows) = largest_of_state(&node);
        flip(&node, &table, rows / 3, RowPart::Value, 6);
        let found = check(&node).findings;
        assert!(found.iter().any(|line| line.contains(&table)), "{setup:?}, {table}: {found:?}");
    }
}

/// The backend's own table, or Flat, that has most rows.
fn largest_of_state(node: &TestNode) -> (String, u64) {
    let framework = ["Referee", "Journal", "Undo", "Meta", "Files", "Chang"];
    let is_own = |name: &str| {
        let name = name.strip_prefix("State");
        name.is_some_and(|name| !framework.iter().any(|other| name.starts_with(other)))
    };
    let own = tables(node).into_iter().filter(|(name, _)| is_own(name));
    own.max_by_key(|(_, rows)| *rows).filter(|(_, rows)| *rows > 0).expect("rows of the state")
}

/// The first file of mainnet; `None`, after a message, if it is missing.
fn era1() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet/chain/mainnet-00000-5ec1ffb8.era1")
}
