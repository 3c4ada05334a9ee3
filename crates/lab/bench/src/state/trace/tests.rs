//! Trace files of artificial blocks, and what no file may say.

use super::{
    AccessSource, MakeTraceError, RecordedTrace, SyntheticRecipe, TraceFault, TraceSummary,
    decode::decode,
    encode::TraceEncoder,
    make_trace,
    zipf::{TraceCounts, fit},
};
use crate::state::{
    block::{CommitBlock, KeyOp, ReadDigest},
    real::{AccessModel, KeyTouch, TraceFigures},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_pipeline::replay::StatePadding;
use retrie_state::{Account, StateKey, StateValue};
use std::{
    collections::BTreeMap,
    fs,
    io::Cursor,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

fn account(n: u8) -> StateKey {
    StateKey::Account(Address::repeat_byte(n))
}

fn slot(n: u8, slot: u8) -> StateKey {
    StateKey::Slot(Address::repeat_byte(n), B256::with_last_byte(slot))
}

fn value(n: u8) -> Option<StateValue> {
    Some(Bytes::copy_from_slice(&[n]))
}

fn holder(nonce: u64) -> Option<StateValue> {
    Some(Account { nonce, ..Account::default() }.encode())
}

fn contract(nonce: u64) -> Option<StateValue> {
    Some(Account { nonce, code_hash: B256::repeat_byte(7), ..Account::default() }.encode())
}

/// The bytes of a trace with these touches in blocks 10, 11, ..
fn encoded(blocks: &[Vec<KeyTouch>]) -> Vec<u8> {
    let mut encoder = TraceEncoder::new(Vec::new(), "a test").unwrap();
    for (number, touches) in (10..).zip(blocks) {
        encoder.push(number, touches).unwrap();
    }
    encoder.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<RecordedTrace, TraceFault> {
    decode(&mut Cursor::new(bytes), StatePadding::default())
}

type KeyValues = Vec<(StateKey, Option<StateValue>)>;

/// Blocks with their reads and writes, as the model of real blocks sees them.
fn sample() -> Vec<Vec<KeyTouch>> {
    let blocks: Vec<(KeyValues, KeyValues)> = vec![
        (
            vec![(account(1), contract(1)), (slot(1, 1), value(1)), (slot(1, 2), None)],
            vec![(slot(1, 1), None), (slot(1, 2), value(2))],
        ),
        (
            vec![(account(1), contract(1)), (account(2), None), (slot(1, 2), value(2))],
            vec![(account(2), holder(1)), (slot(1, 2), value(3)), (slot(1, 3), value(9))],
        ),
        // The account goes with its slots, one of which this block does not name.
        (vec![(account(1), contract(1)), (slot(1, 2), value(3))], vec![(account(1), None)]),
        (vec![(account(2), holder(1)), (account(3), holder(5))], vec![]),
    ];
    let mut model = AccessModel::default();
    let push = |(pre, writes): (KeyValues, KeyValues)| {
        model.push(pre.into_iter().collect(), writes.into_iter().collect())
    };
    blocks.into_iter().map(push).collect()
}

fn digest(state: &BTreeMap<StateKey, StateValue>, ops: &[KeyOp]) -> ReadDigest {
    let mut reads = ReadDigest::default();
    ops.iter().for_each(|op| reads.note(state.get(op.key()).map(|value| &value[..])));
    reads
}

/// Replays a trace on a plain map, and checks the values that each block reads.
fn replay(trace: &RecordedTrace) -> BTreeMap<StateKey, StateValue> {
    let mut state: BTreeMap<_, _> = trace.base_entries().into_iter().collect();
    let mut cursor = trace.cursor();
    assert_eq!(cursor.read_back(), CommitBlock::default());
    while let Some(CommitBlock { ops, expected }) = cursor.next_block() {
        assert_eq!(digest(&state, &ops), expected);
        for op in ops {
            match op {
                KeyOp::Read(_) => {}
                KeyOp::Write(key, value) => drop(state.insert(key, value)),
                KeyOp::Delete(key) => drop(state.remove(&key)),
            }
        }
        let CommitBlock { ops, expected } = cursor.read_back();
        assert_eq!(digest(&state, &ops), expected);
    }
    state
}

#[test]
fn trace_that_was_written_is_read_back_and_replayed() {
    let trace = read(&encoded(&sample())).unwrap();
    let figures = TraceFigures { blocks: 4, reads: 12, writes: 8, deletes: 4, keys: 6 };
    assert_eq!((trace.figures(), trace.source()), (figures, "a test"));
    assert_eq!(trace.range(), Some((10, 13)));
    // The code's stand-in is the hash.
    let code_hash = keccak256(B256::repeat_byte(7));
    assert_eq!(trace.codes()[&code_hash], Bytes::from(B256::repeat_byte(7)));
    let stood_in = Account { nonce: 1, code_hash, ..Account::default() }.encode();
    let first = trace.base_entries();
    let expected = vec![
        (account(1), stood_in),
        (account(3), holder(5).unwrap()),
        (slot(1, 1), value(1).unwrap()),
    ];
    assert_eq!(first, expected);
    let last = replay(&trace);
    assert_eq!(last.into_keys().collect::<Vec<_>>(), [account(2), account(3)]);
    assert_eq!(trace.lasting_keys(), [account(3)]);
    let blocks = |first, accesses| trace.blocks_for(first, accesses);
    assert_eq!([blocks(0, 0), blocks(0, 1), blocks(0, 3), blocks(0, 4)], [0, 1, 1, 2]);
    assert_eq!([blocks(1, 5), blocks(1, 100), blocks(4, 1), blocks(9, 1)], [2, 3, 0, 0]);
}

#[test]
fn file_that_is_cut_or_changed_anywhere_is_refused() {
    let bytes = encoded(&sample());
    assert!(read(&bytes).is_ok());
    for len in 0..bytes.len() {
        let fault = read(&bytes[..len]).unwrap_err();
        assert!(matches!(fault, TraceFault::Truncated), "{len} bytes: {fault}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let fault = read(&changed).unwrap_err();
        match at {
            0..12 => assert!(matches!(fault, TraceFault::NotATrace), "{fault}"),
            12..16 => assert!(matches!(fault, TraceFault::Version { .. }), "{fault}"),
            _ => assert!(
                matches!(fault, TraceFault::Checksum | TraceFault::Truncated),
                "byte {at}: {fault}"
            ),
        }
    }
}

/// A trace with a right checksum can still be nonsense.
#[test]
fn trace_that_no_chain_can_have_is_refused() {
    let touch = |key, before, after| KeyTouch { key, before, after };
    let wrong = |blocks: &[Vec<KeyTouch>], why: &str| {
        let fault = read(&encoded(blocks)).unwrap_err().to_string();
        assert!(fault.contains(why), "{fault}");
    };
    let there = touch(account(1), holder(1), holder(1));
    wrong(&[vec![touch(slot(1, 1), value(1), value(1))]], "its account has none");
    wrong(&[vec![touch(slot(1, 1), None, value(1))]], "does not exist");
    wrong(&[vec![touch(account(1), value(1), value(1))]], "no account");
    wrong(&[vec![there.clone(), touch(slot(1, 1), value(0), None)]], "no slot");
    let kept = touch(slot(1, 1), value(1), value(1));
    let gone = touch(account(1), holder(1), None);
    wrong(&[vec![there.clone(), kept.clone()], vec![gone.clone()]], "does not exist");
    wrong(&[vec![gone], vec![kept]], "its account has none");
    // Blocks in the wrong order.
    let mut encoder = TraceEncoder::new(Vec::new(), "").unwrap();
    for number in [5, 5] {
        encoder.push(number, std::slice::from_ref(&there)).unwrap();
    }
    assert!(read(&encoder.finish().unwrap()).unwrap_err().to_string().contains("do not rise"));
}

fn make(source: &AccessSource<'_>, file: &Path) -> Result<TraceSummary, MakeTraceError> {
    make_trace(source, file, &AtomicBool::new(false), &mut |_| {})
}

#[test]
fn synthetic_trace_has_the_counts_of_the_paper() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let recipe = SyntheticRecipe::lvmt(0.001, 3).unwrap();
    let summary = make(&AccessSource::Synthetic(recipe), &file).unwrap();
    let TraceFigures { blocks, reads, writes, deletes, keys } = summary.figures;
    assert_eq!((blocks, reads, writes, deletes), (47, 4200, 2400, 0));
    assert!(keys.abs_diff(1300) < 40, "{keys}");
    let trace = RecordedTrace::read(&file, StatePadding::default()).unwrap();
    assert_eq!((trace.figures(), trace.range()), (summary.figures, Some((13_500_000, 13_500_046))));
    // Half of the writes create their key.
    let mut cursor = trace.cursor();
    let blocks = std::iter::from_fn(|| cursor.next_block());
    let created: u64 = blocks.map(|block| block.reads() - block.expected.present).sum();
    assert!(created.abs_diff(1200) < 40, "{created}");
    assert_eq!(replay(&trace).len() as u64, trace.base_entries().len() as u64 + created);
    // The seed decides.
    let bytes = fs::read(&file).unwrap();
    make(&AccessSource::Synthetic(recipe), &file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);
    make(&AccessSource::Synthetic(SyntheticRecipe { seed: 4, ..recipe }), &file).unwrap();
    assert_ne!(fs::read(&file).unwrap(), bytes);
    for wrong in [
        SyntheticRecipe { keys: 50, ..recipe },
        SyntheticRecipe { keys: 4201, creations: 0, ..recipe },
        SyntheticRecipe { writes: 4201, ..recipe },
        SyntheticRecipe { creations: 1301, ..recipe },
        SyntheticRecipe { blocks: 0, ..recipe },
    ] {
        let made = make(&AccessSource::Synthetic(wrong), &file);
        assert!(matches!(made, Err(MakeTraceError::Recipe(_))), "{wrong:?}");
    }
    assert!(SyntheticRecipe::lvmt(2.0, 1).is_err());
}

#[test]
fn zipf_is_fitted_to_the_counts_of_the_whole_trace() {
    let counts = TraceCounts { blocks: 46_700, reads: 4_200_000, keys: 1_300_000 };
    let items = fit(&counts).unwrap();
    // Computed independently in another language.
    assert!(items.abs_diff(16_378_347) < 20_000, "{items}");
    assert_eq!(fit(&TraceCounts { keys: 4_200_000, ..counts }), None);
}

/// Answers of a node for two blocks: creation, a change, a cleared slot, a removal, reads.
const ANSWERS: &str = r#"
{"number":7,"prestate":[
 {"result":{"0x0101010101010101010101010101010101010101":{"balance":"0x64","nonce":3},
            "0x0202020202020202020202020202020202020202":{"balance":"0x0","nonce":1,"code":"0x6001",
              "storage":{"0x0000000000000000000000000000000000000000000000000000000000000001":"0x0000000000000000000000000000000000000000000000000000000000000005",
                         "0x0000000000000000000000000000000000000000000000000000000000000002":"0x0000000000000000000000000000000000000000000000000000000000000000"}}}},
 {"result":{"0x0303030303030303030303030303030303030303":{"balance":"0x0"},
            "0x0101010101010101010101010101010101010101":{"balance":"0x60","nonce":4}}}],
 "diff":[
 {"result":{"pre":{"0x0101010101010101010101010101010101010101":{"balance":"0x64","nonce":3},
                   "0x0202020202020202020202020202020202020202":{"balance":"0x0","nonce":1,"code":"0x6001",
                     "storage":{"0x0000000000000000000000000000000000000000000000000000000000000001":"0x0000000000000000000000000000000000000000000000000000000000000005"}}},
            "post":{"0x0101010101010101010101010101010101010101":{"balance":"0x60","nonce":4},
                    "0x0202020202020202020202020202020202020202":{
                     "storage":{"0x0000000000000000000000000000000000000000000000000000000000000002":"0x0000000000000000000000000000000000000000000000000000000000000009"}}}}},
 {"result":{"pre":{"0x0101010101010101010101010101010101010101":{"balance":"0x60","nonce":4}},
            "post":{"0x0101010101010101010101010101010101010101":{"balance":"0x50","nonce":5},
                    "0x0303030303030303030303030303030303030303":{"balance":"0x10"}}}}]}
{"number":"0x9","diff":[
 {"result":{"pre":{"0x0202020202020202020202020202020202020202":{"balance":"0x0","nonce":1,"code":"0x6001"}},"post":{}}}]}
"#;

#[test]
fn answers_of_a_node_become_accesses() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lines = ANSWERS.replace('\n', " ").replace("{\"number\"", "\n{\"number\"");
    fs::write(at("answers.jsonl"), &lines).unwrap();
    let source = AccessSource::Answers(vec![at("answers.jsonl")]);
    let TraceSummary { figures, last, ended } = make(&source, &at("trace")).unwrap();
    assert!(ended.is_ok() && last == 9);
    // Three accounts and two slots, of which all but account 2 change; then it goes with slot 2.
    let expected = TraceFigures { blocks: 2, reads: 7, writes: 6, deletes: 3, keys: 5 };
    assert_eq!(figures, expected);
    let trace = RecordedTrace::read(&at("trace"), StatePadding::default()).unwrap();
    let last = replay(&trace);
    let holder = |nonce, balance| {
        Account { nonce, balance: U256::from(balance), ..Account::default() }.encode()
    };
    let expected = [(account(1), holder(5, 0x50)), (account(3), holder(0, 0x10))];
    assert_eq!(last.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(trace.base_entries().len(), 3);
    // What is there up to an error, or a stop, is kept.
    for (bad, why) in [("{\"number\":8", "line 4"), (lines.trim(), "comes after block 9")] {
        fs::write(at("more.jsonl"), format!("{lines}\n{bad}")).unwrap();
        let source = AccessSource::Answers(vec![at("more.jsonl")]);
        let made = make(&source, &at("cut")).unwrap();
        assert!(made.ended.unwrap_err().to_string().contains(why));
        assert_eq!(made.figures, figures);
    }
    let stop = AtomicBool::new(false);
    let made = make_trace(&source, &at("stopped"), &stop, &mut |_| {
        stop.store(true, Ordering::Relaxed);
    });
    let made = made.unwrap();
    assert!(matches!(made.ended, Err(MakeTraceError::Stopped)) && made.figures.blocks == 1);
    // Without a block there is no file.
    fs::write(at("none.jsonl"), "\n").unwrap();
    let none = make(&AccessSource::Answers(vec![at("none.jsonl")]), &at("none"));
    assert!(matches!(none, Err(MakeTraceError::NoBlocks)) && !at("none").exists());
    let unequal = r#"{"number":1,"prestate":[{"result":{}}],"diff":[]}"#;
    fs::write(at("unequal.jsonl"), unequal).unwrap();
    let unequal = make(&AccessSource::Answers(vec![at("unequal.jsonl")]), &at("none"));
    assert!(matches!(unequal, Err(MakeTraceError::UnequalAnswers { number: 1, .. })));
}

mod tables {
    //! Parquet tables of two blocks, the second in another file.

    use super::*;
    use parquet::{
        data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type},
        file::writer::SerializedFileWriter,
        schema::parser::parse_message_type,
    };
    use std::{fs::File, sync::Arc};

    enum TestColumn {
        Blocks(Vec<i32>),
        Numbers(Vec<i64>),
        Bytes(Vec<Vec<u8>>),
    }

    fn write(folder: &Path, table: &str, range: &str, columns: &[(&str, TestColumn)]) {
        let field = |(name, column): &(&str, TestColumn)| match column {
            TestColumn::Blocks(_) => format!("required int32 {name} (INTEGER(32,false));"),
            TestColumn::Numbers(_) => format!("required int64 {name} (INTEGER(64,false));"),
            TestColumn::Bytes(_) => format!("required binary {name};"),
        };
        let fields: String = columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message rows {{ {fields} }}")).unwrap();
        let file =
            File::create(folder.join(format!("ethereum__{table}__{range}.parquet"))).unwrap();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for (_, column) in columns {
            let mut to = group.next_column().unwrap().unwrap();
            match column {
                TestColumn::Blocks(all) => to.typed::<Int32Type>().write_batch(all, None, None),
                TestColumn::Numbers(all) => to.typed::<Int64Type>().write_batch(all, None, None),
                TestColumn::Bytes(all) => {
                    let all: Vec<_> = all.iter().map(|all| ByteArray::from(all.clone())).collect();
                    to.typed::<ByteArrayType>().write_batch(&all, None, None)
                }
            }
            .unwrap();
            to.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
    }

    fn words(all: &[u8]) -> TestColumn {
        TestColumn::Bytes(all.iter().map(|n| B256::with_last_byte(*n).to_vec()).collect())
    }

    fn addresses(all: &[u8]) -> TestColumn {
        TestColumn::Bytes(all.iter().map(|n| vec![*n; 20]).collect())
    }

    #[test]
    fn parquet_tables_become_accesses() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for (range, block) in [("00000000_to_00000009", 5), ("00000010_to_00000019", 12)] {
            let blocks = || TestColumn::Blocks(vec![block]);
            // A row for each transaction, as cryo writes them.
            write(
                at,
                "balance_diffs",
                range,
                &[
                    ("block_number", TestColumn::Blocks(vec![block; 2])),
                    ("address", addresses(&[1, 1])),
                    ("from_value_binary", words(&[block as u8, 50])),
                    ("to_value_binary", words(&[50, 12])),
                ],
            );
            write(
                at,
                "nonce_diffs",
                range,
                &[
                    ("block_number", blocks()),
                    ("address", addresses(&[2])),
                    ("from_value", TestColumn::Numbers(vec![1])),
                    ("to_value", TestColumn::Numbers(vec![2])),
                ],
            );
            write(
                at,
                "code_diffs",
                range,
                &[
                    ("block_number", blocks()),
                    ("address", addresses(&[2])),
                    ("from_value", TestColumn::Bytes(vec![vec![]])),
                    ("to_value", TestColumn::Bytes(vec![vec![0x60]])),
                ],
            );
            write(
                at,
                "storage_diffs",
                range,
                &[
                    ("block_number", blocks()),
                    ("address", addresses(&[2])),
                    ("slot", words(&[1])),
                    ("from_value", words(&[0])),
                    ("to_value", words(&[block as u8])),
                ],
            );
        }
        let source = AccessSource::Parquet(at.into());
        let file = at.join("trace");
        let summary = make(&source, &file).unwrap();
        let expected = TraceFigures { blocks: 2, reads: 6, writes: 4, deletes: 0, keys: 3 };
        assert_eq!((summary.figures, summary.last), (expected, 12));
        let trace = RecordedTrace::read(&file, StatePadding::default()).unwrap();
        let last = replay(&trace);
        assert_eq!(last[&slot(2, 1)], value(12).unwrap());
        let account = Account::decode(&last[&account(1)]).unwrap();
        assert_eq!(account.balance, U256::from(12));
        fs::remove_file(at.join("ethereum__code_diffs__00000010_to_00000019.parquet")).unwrap();
        let missing = make(&source, &file).unwrap_err().to_string();
        assert!(missing.contains("code_diffs__00000010_to_00000019"), "{missing}");
    }
}
