//! Records of a chain that grows, is reorganised, and loses blocks.

use crate::common::{TestIndexer, TestNode, import_blocks, imported, imported_with, test_chain};
use alloy_primitives::{Address, B256, U64};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_chainspec::primitives::Block;
use retrie_engine::LiveChain;
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestRules, TestWallet};
use retrie_state_store::FlatHistory;
use retrie_stream::{
    RecordKind, RecordReader, RecordSelection, ResumeRequest, StreamError, StreamPosition,
    StreamRecord,
};
use serde_json::{Value, json};

/// All records from the start of the chain.
fn all(live: &LiveChain, kinds: RecordSelection) -> Vec<StreamRecord> {
    let mut reader = RecordReader::new(live.clone(), kinds);
    let mut position = StreamPosition::start(0);
    let mut records = Vec::new();
    loop {
        let next = reader.read(&mut position).unwrap();
        if next.is_empty() {
            return records;
        }
        records.extend(next);
    }
}

#[test]
fn deltas_lead_from_genesis_to_the_state_of_the_head_whatever_they_come_from() {
    // Byzantium destroys contracts with their storage; Amsterdam has block access lists.
    for rules in [TestRules::Byzantium, TestRules::Prague, TestRules::Amsterdam] {
        let mut chain = test_chain(rules);
        let tip = *chain.branch(chain.genesis(), 17, 12, 3).last().unwrap();
        let mut streams = Vec::new();
        for history in [FlatHistory::All, FlatHistory::Off] {
            let (_dir, store) = imported(&chain, tip, history);
            let live = LiveChain::new(store).unwrap();
            let records = all(&live, RecordSelection::default());
            let mut indexer = TestIndexer::default();
            records.iter().for_each(|record| indexer.take(&record.json));
            indexer.assert_at(&live);
            assert_eq!((indexer.sequence, indexer.reverts), (3 * 18, 0));
            let wallets = (0..8).map(|wallet| TestWallet::new(wallet).address);
            let others = [GENESIS_CONTRACT, Address::repeat_byte(3), Address::with_last_byte(4)];
            for address in wallets.chain(others) {
                let account = chain.account(tip, address);
                let expected = account.map_or(Value::Null, |account| {
                    json!({
                        "nonce": U64::from(account.nonce),
                        "balance": account.balance,
                        "codeHash": account.code_hash,
                    })
                });
                assert_eq!(indexer.account(&address.to_string()), expected, "{address}");
            }
            streams.push(records);
        }
        assert_eq!(streams[0], streams[1], "{rules:?}");
    }
}

#[test]
fn a_delta_that_is_not_kept_is_null_with_a_reason() {
    let mut chain = test_chain(TestRules::Cancun);
    let tip = *chain.branch(chain.genesis(), 12, 12, 3).last().unwrap();
    let (_dir, store) = imported_with(&chain, tip, FlatHistory::Off, 4);
    let live = LiveChain::new(store).unwrap();
    let records = all(&live, RecordSelection::new(&[RecordKind::Delta]));
    assert_eq!(records.len(), 13);
    for record in &records[1..] {
        let json: Value = serde_json::from_str(&record.json).unwrap();
        let number = record.cursor.block.number;
        if number > 8 {
            assert!(json["delta"].is_object() && json.get("reason").is_none(), "{json}");
        } else if number < 8 {
            assert!(json["delta"].is_null(), "{json}");
            assert!(json["reason"].as_str().unwrap().contains("are not kept"), "{json}");
        }
    }
}

/// Regression: while a node caught up by batches, deltas that were kept came as null.
#[test]
fn a_delta_is_not_given_up_before_the_next_head_is_published() {
    let mut chain = test_chain(TestRules::Cancun);
    let blocks = chain.branch(chain.genesis(), 12, 12, 3);
    let (dir, store) = imported_with(&chain, blocks[2], FlatHistory::All, 4);
    let behind = LiveChain::new(store.clone()).unwrap();
    let before = behind.view().unwrap();
    assert!(!before.has_lost_state() && before.successor().unwrap().is_none());
    import_blocks(&store, &dir, &chain.path(blocks[2], blocks[11]));
    assert!(before.has_lost_state());

    let kinds = RecordSelection::new(&[RecordKind::Delta]);
    assert_eq!(all(&behind, kinds).len(), 1, "genesis needs no state, and the others wait");
    let records = all(&LiveChain::new(store).unwrap(), kinds);
    assert_eq!(records.len(), 13);
    for record in &records {
        let json: Value = serde_json::from_str(&record.json).unwrap();
        assert!(json["delta"].is_object(), "{json}");
    }
}

#[test]
fn a_stream_of_some_kinds_has_no_others() {
    let mut chain = test_chain(TestRules::Cancun);
    let tip = *chain.branch(chain.genesis(), 4, 12, 3).last().unwrap();
    let (_dir, store) = imported(&chain, tip, FlatHistory::All);
    let live = LiveChain::new(store).unwrap();
    let records = all(&live, RecordSelection::new(&[RecordKind::Delta]));
    let kinds: Vec<_> = records.iter().map(|record| record.cursor.kind).collect();
    assert_eq!(kinds, [RecordKind::Delta; 5]);
    let sequences: Vec<_> = records.iter().map(|record| record.cursor.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
}

/// Two branches above a trunk.
struct ForkedChain {
    genesis: B256,
    trunk: Vec<B256>,
    branches: [Vec<B256>; 2],
    blocks: Vec<Block>,
}

fn fork() -> (retrie_pipeline::testkit::TestChain, ForkedChain) {
    let mut chain = test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let trunk = chain.branch(genesis, 5, 12, 1);
    let base = *trunk.last().unwrap();
    let branches = [chain.branch(base, 7, 12, 2), chain.branch(base, 9, 12, 4)];
    let mut blocks = chain.path(genesis, branches[0][6]);
    blocks.extend(chain.path(base, branches[1][8]));
    (chain, ForkedChain { genesis, trunk, branches, blocks })
}

#[test]
fn a_stream_that_is_killed_and_resumed_anywhere_has_no_gap_and_no_double() {
    let (chain, fork) = fork();
    let random = &mut StdRng::seed_from_u64(11);
    let mut undone = 0;
    for _ in 0..6 {
        let node = TestNode::new(&chain.spec, FlatHistory::All);
        node.add(&fork.blocks);
        let mut indexer = TestIndexer::default();
        let mut position = StreamPosition::start(0);
        for _ in 0..60 {
            // The head is anywhere on either branch, also behind the stream.
            if random.random_bool(0.5) {
                let branch = &fork.branches[random.random_range(0..2)];
                node.set_head(branch[random.random_range(0..branch.len())], false);
            }
            let mut reader = RecordReader::new(node.live().clone(), RecordSelection::default());
            let records = reader.read(&mut position).unwrap();
            // A kill after any record: the rest is lost, and the cursor is all that stays.
            let taken = random.random_range(0..=records.len().min(9));
            records[..taken].iter().for_each(|record| indexer.take(&record.json));
            let blocks = indexer.blocks.iter().rev().skip(1);
            let recent =
                blocks.map(|block| (U64::from(block.number), block.hash.parse::<B256>().unwrap()));
            let recent: Vec<(U64, B256)> = recent.collect();
            position = match records[..taken].last() {
                Some(last) => {
                    let cursor = last.cursor.to_string();
                    let request = ResumeRequest { cursor, recent };
                    let text = serde_json::to_string(&request).unwrap();
                    StreamPosition::resume(&serde_json::from_str(&text).unwrap()).unwrap()
                }
                None if indexer.sequence == 0 => StreamPosition::start(0),
                None => continue_at(&indexer, &position, recent),
            };
        }
        node.set_head(fork.branches[1][8], false);
        let mut reader = RecordReader::new(node.live().clone(), RecordSelection::default());
        loop {
            let records = reader.read(&mut position).unwrap();
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| indexer.take(&record.json));
        }
        indexer.assert_at(node.live());
        undone += indexer.undone;
    }
    assert!(undone > 20, "{undone}");
}

/// The position of an indexer that has taken nothing of the last batch.
fn continue_at(
    indexer: &TestIndexer,
    read: &StreamPosition,
    recent: Vec<(U64, B256)>,
) -> StreamPosition {
    let Some(last) = indexer.blocks.last() else { return StreamPosition::start(read.first()) };
    let kind = last.kinds.last().unwrap();
    let cursor = format!("{}-{}-{}-{kind}", indexer.sequence, last.number, last.hash);
    StreamPosition::resume(&ResumeRequest { cursor, recent }).unwrap()
}

#[test]
fn blocks_that_the_node_has_lost_are_undone_by_the_hashes_of_the_position() {
    let (chain, fork) = fork();
    let first = TestNode::new(&chain.spec, FlatHistory::All);
    first.add(&fork.blocks);
    first.set_head(fork.branches[0][6], false);
    let mut position = StreamPosition::start(0);
    let mut indexer = TestIndexer::default();
    let mut reader = RecordReader::new(first.live().clone(), RecordSelection::default());
    while !indexer.is_at(fork.branches[0][6]) {
        for record in reader.read(&mut position).unwrap() {
            indexer.take(&record.json);
        }
    }
    // As after a crash that took the last blocks: another node has the trunk, then the other branch.
    let second = TestNode::new(&chain.spec, FlatHistory::All);
    second.add(&chain.path(fork.genesis, fork.trunk[4]));
    second.set_head(fork.trunk[4], false);
    let mut reader = RecordReader::new(second.live().clone(), RecordSelection::default());
    let mut moved = position.clone();
    let records = reader.read(&mut moved).unwrap();
    records.iter().for_each(|record| indexer.take(&record.json));
    assert_eq!((records.len(), indexer.undone), (1, 7));
    indexer.assert_at(second.live());
    second.add(&chain.path(fork.trunk[4], fork.branches[1][8]));
    second.set_head(fork.branches[1][8], false);
    while !indexer.is_at(fork.branches[1][8]) {
        for record in reader.read(&mut moved).unwrap() {
            indexer.take(&record.json);
        }
    }
    indexer.assert_at(second.live());

    // Without them nothing says what to undo, and the position stays.
    let cursor = position.cursor().unwrap().to_string();
    let alone =
        StreamPosition::resume(&ResumeRequest { cursor, ..ResumeRequest::default() }).unwrap();
    let mut read = alone.clone();
    let error = reader.read(&mut read).unwrap_err();
    assert!(matches!(error, StreamError::UnknownBlock { .. }), "{error}");
    assert_eq!(read, alone);
}

#[test]
fn cursors_that_were_made_up_are_refused() {
    let (chain, fork) = fork();
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    node.add(&fork.blocks);
    node.set_head(fork.branches[0][6], false);
    let mut reader = RecordReader::new(node.live().clone(), RecordSelection::default());
    let mut read = |cursor: String| {
        let request = ResumeRequest { cursor, ..ResumeRequest::default() };
        reader.read(&mut StreamPosition::resume(&request).unwrap())
    };
    let (known, unknown) = (fork.trunk[2], B256::repeat_byte(8));
    let wrong = read(format!("1-9-{known}-delta")).unwrap_err();
    assert!(matches!(wrong, StreamError::WrongNumber { number: 3, .. }), "{wrong}");
    let unknown = read(format!("1-3-{unknown}-delta")).unwrap_err();
    assert!(matches!(unknown, StreamError::UnknownBlock { .. }), "{unknown}");
    // The largest numbers do not overflow.
    let last = read(format!("{}-3-{known}-delta", u64::MAX)).unwrap();
    assert_eq!(last[0].cursor.block.number, 4);
    let far = format!("1-{}-{}-block", u64::MAX, B256::repeat_byte(9));
    assert!(matches!(read(far).unwrap_err(), StreamError::UnknownBlock { .. }));
}

#[test]
fn a_stream_begins_where_it_is_told_and_waits_for_blocks_to_come() {
    let (chain, fork) = fork();
    let node = TestNode::new(&chain.spec, FlatHistory::All);
    node.add(&fork.blocks);
    node.set_head(fork.branches[0][2], false);
    let mut reader =
        RecordReader::new(node.live().clone(), RecordSelection::new(&[RecordKind::Block]));
    let mut position = StreamPosition::start(10);
    assert_eq!(reader.read(&mut position).unwrap(), []);
    node.set_head(fork.branches[0][6], false);
    let records = reader.read(&mut position).unwrap();
    let numbers: Vec<_> = records.iter().map(|record| record.cursor.block.number).collect();
    assert_eq!(numbers, [10, 11, 12]);
}
