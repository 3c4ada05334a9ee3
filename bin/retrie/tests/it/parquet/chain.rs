//! Tables of a datadir, checked against its database and against a dump of its state.

use super::{ParquetRow, bytes, export, files, flag, number, rows, text};
use crate::common::{MAINNET_600, TestFolder, mainnet, mainnet_blocks, retrie, succeeds, words};
use ::parquet::record::Field;
use alloy_consensus::{Transaction as _, TxReceipt};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_db::{ChainRead, DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::TestRules;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// What an account has.
#[derive(Debug, Default, PartialEq, Eq)]
struct DumpedAccount {
    balance: U256,
    nonce: u64,
    code: Bytes,
    slots: BTreeMap<B256, B256>,
}

type DumpedState = BTreeMap<Address, DumpedAccount>;

/// The state of the head as `dump-state` writes it, without Frontier's empty accounts.
fn dumped(scene: &TestFolder) -> DumpedState {
    let file = scene.at("state.jsonl");
    succeeds(&mut retrie(["dump-state", "--datadir", &scene.at("data"), &file]));
    let text = std::fs::read_to_string(file).unwrap();
    let account = |line: &str| -> Option<(Address, DumpedAccount)> {
        let line: Value = serde_json::from_str(line).unwrap();
        let parse = |value: &Value| value.as_str().unwrap().parse().unwrap();
        let slots = line["storage"].as_object().into_iter().flatten();
        let account = DumpedAccount {
            balance: line["balance"].as_str()?.parse().unwrap(),
            nonce: line["nonce"].as_u64().unwrap(),
            code: line["code"].as_str().unwrap_or("0x").parse().unwrap(),
            slots: slots.map(|(slot, value)| (slot.parse().unwrap(), parse(value))).collect(),
        };
        Some((line["address"].as_str()?.parse().unwrap(), account))
    };
    text.lines()
        .filter_map(account)
        .filter(|(_, account)| *account != DumpedAccount::default())
        .collect()
}

/// Applies all changes in the files to an empty state. Each change must start from the value
/// before.
fn replayed(out: &Path) -> DumpedState {
    let mut state = DumpedState::new();
    let address = |row: &ParquetRow| {
        assert_eq!(row["transaction_index"], Field::Null);
        assert_eq!(row["transaction_hash"], Field::Null);
        Address::from_slice(bytes(row, "address").unwrap())
    };
    for row in rows(out, "balance_diffs") {
        let [from, to] = ["from_value", "to_value"].map(|side| {
            let word = U256::from_be_slice(bytes(&row, &format!("{side}_binary")).unwrap());
            assert_eq!(text(&row, &format!("{side}_string")).unwrap(), word.to_string());
            let Field::Double(double) = row[&format!("{side}_f64")] else { panic!("{row:?}") };
            assert_eq!(double, word.to_string().parse::<f64>().unwrap());
            word
        });
        let balance = &mut state.entry(address(&row)).or_default().balance;
        assert!(*balance == from && from != to, "{row:?}");
        *balance = to;
    }
    for row in rows(out, "nonce_diffs") {
        let nonce = &mut state.entry(address(&row)).or_default().nonce;
        assert_eq!(Some(*nonce), number(&row, "from_value"), "{row:?}");
        *nonce = number(&row, "to_value").unwrap();
    }
    for row in rows(out, "code_diffs") {
        let code = &mut state.entry(address(&row)).or_default().code;
        assert_eq!(Some(&code[..]), bytes(&row, "from_value"), "{row:?}");
        *code = Bytes::copy_from_slice(bytes(&row, "to_value").unwrap());
    }
    for row in rows(out, "storage_diffs") {
        let [slot, from, to] = ["slot", "from_value", "to_value"]
            .map(|column| B256::from_slice(bytes(&row, column).unwrap()));
        let slots = &mut state.entry(address(&row)).or_default().slots;
        assert_eq!(slots.insert(slot, to).unwrap_or_default(), from, "{row:?}");
        if to.is_zero() {
            slots.remove(&slot);
        }
    }
    state.retain(|_, account| *account != DumpedAccount::default());
    state
}

/// The files have exactly the rows of the database.
fn compare(scene: &TestFolder, has_status: bool) {
    let out = scene.path("out");
    let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::read_only()).unwrap();
    let read = db.begin_read().unwrap();
    let tip = read.tip().unwrap().unwrap().number;
    let table = |name| rows(&out, name);
    let (mut txs, mut receipts, mut logs) = (
        table("transactions").into_iter(),
        table("__receipts").into_iter(),
        table("logs").into_iter(),
    );
    let blocks = table("blocks");
    assert_eq!(blocks.len() as u64, tip + 1);
    for (at, row) in (0..).zip(&blocks) {
        let hash = read.canonical_hash(at).unwrap().unwrap();
        let block = read.recovered_block(&hash).unwrap().unwrap();
        let header = block.header();
        for (column, expected) in [
            ("block_number", Some(at)),
            ("gas_used", Some(header.gas_used)),
            ("gas_limit", Some(header.gas_limit)),
            ("timestamp", Some(header.timestamp)),
            ("difficulty", Some(header.difficulty.to())),
            ("base_fee_per_gas", header.base_fee_per_gas),
            ("n_transactions", Some(block.body().transactions.len() as u64)),
            ("n_uncles", Some(block.body().ommers.len() as u64)),
            ("n_withdrawals", block.body().withdrawals.as_ref().map(|all| all.len() as u64)),
            ("blob_gas_used", header.blob_gas_used),
            ("excess_blob_gas", header.excess_blob_gas),
            ("slot_number", header.slot_number),
        ] {
            assert_eq!(number(row, column), expected, "block {at}: {column}");
        }
        for (column, expected) in [
            ("block_hash", Some(hash)),
            ("parent_hash", Some(header.parent_hash)),
            ("state_root", Some(header.state_root)),
            ("receipts_root", Some(header.receipts_root)),
            ("withdrawals_root", header.withdrawals_root),
            ("block_access_list_hash", header.block_access_list_hash),
        ] {
            assert_eq!(bytes(row, column), expected.as_ref().map(|hash| &hash[..]), "{column}");
        }
        assert_eq!(bytes(row, "author").unwrap(), header.beneficiary.as_slice());
        assert_eq!(bytes(row, "logs_bloom").unwrap(), header.logs_bloom.as_slice());
        let difficulty = read.total_difficulty(&hash).unwrap().unwrap();
        assert_eq!(text(row, "total_difficulty_string").unwrap(), difficulty.to_string());
        let (mut gas_before, mut log_index) = (0, 0);
        let stored = read.receipts(&hash).unwrap().unwrap_or_default();
        for (index, (sender, tx)) in block.transactions_with_sender().enumerate() {
            let (row, receipt_row) = (txs.next().unwrap(), receipts.next().unwrap());
            let receipt = &stored[index];
            for row in [&row, &receipt_row] {
                assert_eq!(number(row, "block_number"), Some(at));
                assert_eq!(number(row, "transaction_index"), Some(index as u64));
                assert_eq!(bytes(row, "transaction_hash").unwrap(), tx.tx_hash().as_slice());
                assert_eq!(bytes(row, "from_address").unwrap(), sender.as_slice());
                assert_eq!(bytes(row, "to_address"), tx.to().as_ref().map(|to| to.as_slice()));
                let gas = receipt.cumulative_gas_used - gas_before;
                assert_eq!(number(row, "gas_used"), Some(gas));
                assert_eq!(flag(row, "success"), has_status.then_some(receipt.success));
                assert_eq!(number(row, "transaction_type"), Some(tx.tx_type() as u64));
            }
            gas_before = receipt.cumulative_gas_used;
            let price = tx.effective_gas_price(header.base_fee_per_gas) as u64;
            assert_eq!(number(&row, "gas_price"), Some(price));
            assert_eq!(number(&receipt_row, "effective_gas_price"), Some(price));
            assert_eq!(text(&row, "value_string").unwrap(), tx.value().to_string());
            assert_eq!(bytes(&row, "input").unwrap(), &tx.input()[..]);
            assert_eq!(number(&row, "nonce"), Some(tx.nonce()));
            assert_eq!(number(&row, "n_rlp_bytes"), Some(tx.encode_2718_len() as u64));
            let zeros = number(&row, "n_input_zero_bytes").unwrap();
            let others = number(&row, "n_input_nonzero_bytes").unwrap();
            assert_eq!(zeros + others, tx.input().len() as u64);
            assert_eq!(number(&receipt_row, "n_logs"), Some(receipt.logs.len() as u64));
            assert_eq!(bytes(&receipt_row, "logs_bloom").unwrap(), receipt.bloom().as_slice());
            assert_eq!(bytes(&receipt_row, "contract_address").is_some(), tx.is_create());
            for log in &receipt.logs {
                let row = logs.next().unwrap();
                assert_eq!(number(&row, "block_number"), Some(at));
                assert_eq!(number(&row, "log_index"), Some(log_index));
                assert_eq!(bytes(&row, "transaction_hash").unwrap(), tx.tx_hash().as_slice());
                assert_eq!(bytes(&row, "address").unwrap(), log.address.as_slice());
                for topic in 0..4 {
                    let expected = log.topics().get(topic).map(|topic| &topic[..]);
                    assert_eq!(bytes(&row, &format!("topic{topic}")), expected);
                }
                assert_eq!(bytes(&row, "data").unwrap(), &log.data.data[..]);
                log_index += 1;
            }
        }
    }
    assert!(txs.next().is_none() && receipts.next().is_none() && logs.next().is_none());
    drop((read, db));
    let (replayed, dumped) = (replayed(&out), dumped(scene));
    let differs = replayed.iter().find(|(address, account)| dumped.get(*address) != Some(account));
    assert_eq!(differs, None, "the state has not what the files lead to");
    assert_eq!(replayed.len(), dumped.len());
}

#[test]
fn parquet_files_have_every_row_of_the_database() {
    for (rules, backend) in [
        (TestRules::Amsterdam, "mpt"),
        (TestRules::Merge(30_000_000), "raw --referee mpt"),
        // Old states come from the backend's own history.
        (TestRules::Cancun, "cole --referee mpt"),
        (TestRules::Frontier, "mpt-archive"),
    ] {
        let (scene, _) = TestFolder::with_chain(rules, 24);
        succeeds(&mut scene.import("chain.rlp", &format!("--state-backend {backend}")));
        let printed = succeeds(&mut export(&scene, "--chunk-size 10"));
        assert!(printed.contains("blocks 0 to 24"), "{printed}");
        assert!(printed.contains("24 files written, 0 were there"), "{printed}");
        compare(&scene, rules != TestRules::Frontier);
        let names = files(&scene.path("out"), "logs");
        let name =
            |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let names: Vec<_> = names.iter().map(name).collect();
        assert_eq!(
            names,
            [(0, 9), (10, 19), (20, 24)].map(|(first, last)| format!(
                "network_7331__logs__{first:08}_to_{last:08}.parquet"
            ))
        );
        assert!(!rows(&scene.path("out"), "logs").is_empty());
        assert!(!rows(&scene.path("out"), "storage_diffs").is_empty());
    }
}

#[test]
fn receipts_that_are_not_kept_are_made_again() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
    for to in [10, 20] {
        let flags = format!("--to {to} --retention 3 --prune.receipts.full");
        succeeds(&mut scene.import("chain.rlp", &flags));
    }
    let (other, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
    succeeds(&mut other.import("chain.rlp", ""));
    for scene in [&scene, &other] {
        succeeds(&mut export(scene, "--tables txs,receipts,logs"));
    }
    for table in ["transactions", "__receipts", "logs"] {
        let made = rows(&scene.path("out"), table);
        assert!(!made.is_empty() && made == rows(&other.path("out"), table), "{table}");
    }
    assert!(files(&scene.path("out"), "blocks").is_empty());
}

#[test]
fn first_mainnet_blocks_are_what_the_database_has() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let era1 = mainnet_blocks(&mainnet)[0].to_str().unwrap().to_owned();
    let line = format!("import --datadir {} --to 600 {era1}", scene.at("data"));
    succeeds(&mut retrie(words(&line)));
    succeeds(&mut export(&scene, "--chunk-size 256"));
    compare(&scene, false);
    let out = scene.path("out");
    let names = files(&out, "ethereum__blocks");
    assert!(names[0].ends_with("ethereum__blocks__00000000_to_00000255.parquet"), "{names:?}");
    let last = rows(&out, "blocks").pop().unwrap();
    let hash: B256 = MAINNET_600.parse().unwrap();
    assert_eq!(bytes(&last, "block_hash"), Some(&hash[..]));
    assert_eq!(number(&last, "chain_id"), Some(1));
    assert_eq!(rows(&out, "transactions"), [] as [ParquetRow; 0]);
}
