//! Records come back, and damage is seen.

use super::*;
use crate::{KvStore, MemoryStore, durable::journal::JOURNAL};
use proptest::prelude::*;

const TABLE: RowTable = RowTable::new(7, "Test");
const OTHER: RowTable = RowTable::new(9, "Other");
const TABLES: [RowTable; 2] = [TABLE, OTHER];

type RowChange = (bool, Vec<u8>, Option<Vec<u8>>);

fn changes() -> impl Strategy<Value = Vec<RowChange>> {
    let small = prop::collection::vec(any::<u8>(), 0..40);
    let value = prop_oneof![9 => small, 1 => prop::collection::vec(any::<u8>(), 3000..9000)];
    let key = prop::collection::vec(any::<u8>(), 0..60);
    prop::collection::vec((any::<bool>(), key, prop::option::of(value)), 0..30)
}

fn table(is_other: bool) -> RowTable {
    TABLES[usize::from(is_other)]
}

fn record(changes: &[RowChange]) -> RecordWriter {
    let mut record = RecordWriter::new(b"head");
    for (other, key, value) in changes {
        record.push(table(*other), key, value.clone().map(Bytes::from).as_ref(), None);
    }
    record
}

fn write_record(kv: &MemoryStore, id: u64, changes: &[RowChange]) {
    let mut txn = kv.begin_write().unwrap();
    record(changes).write(&mut *txn, JOURNAL, id).unwrap();
    txn.commit().unwrap();
}

fn read(kv: &MemoryStore, id: u64) -> Result<Option<Vec<RowChange>>, StateError> {
    let Some(record) = read_record(&*kv.snapshot()?, JOURNAL, id)? else { return Ok(None) };
    let rest = record.strip_prefix(b"head").ok_or_else(|| StateError::corrupt("test", "head"))?;
    let mut rows = Vec::new();
    decode_rows(JOURNAL, &TABLES, rest, |table, key, value| {
        let value = match value {
            RecordValue::Absent => None,
            RecordValue::Whole(value) => Some(value.to_vec()),
            RecordValue::Patch(patch) => panic!("a patch {patch} without a base"),
        };
        rows.push((table == OTHER, key.to_vec(), value));
    })?;
    Ok(Some(rows))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn records_come_back_whole_and_apart(first in changes(), second in changes()) {
        let kv = MemoryStore::new();
        write_record(&kv, 5, &first);
        write_record(&kv, 6, &second);
        prop_assert_eq!(read(&kv, 5).unwrap(), Some(first));
        prop_assert_eq!(read(&kv, 6).unwrap(), Some(second.clone()));
        prop_assert_eq!(read(&kv, 4).unwrap(), None);
        prop_assert_eq!(read(&kv, 7).unwrap(), None);
        let pieces = kv.snapshot().unwrap().scan(JOURNAL, KeyRange::ALL, ScanDirection::Forward, 99);
        prop_assert!(pieces.unwrap().iter().all(|(_, piece)| piece.len() <= PIECE));
        let mut txn = kv.begin_write().unwrap();
        delete_records(&mut *txn, JOURNAL, 0, 6).unwrap();
        txn.commit().unwrap();
        prop_assert_eq!(read(&kv, 5).unwrap(), None);
        prop_assert_eq!(read(&kv, 6).unwrap(), Some(second));
    }

    #[test]
    fn a_flipped_bit_in_a_record_is_corruption(
        changes in changes(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 20),
    ) {
        let kv = MemoryStore::new();
        write_record(&kv, 1, &changes);
        let rows = kv.snapshot().unwrap().scan(JOURNAL, KeyRange::ALL, ScanDirection::Forward, 99);
        let rows = rows.unwrap();
        let total: usize = rows.iter().map(|(_, piece)| piece.len()).sum();
        for (at, bit) in flips {
            let mut at = at.index(total);
            let (key, piece) = rows
                .iter()
                .find(|(_, piece)| {
                    let is_here = at < piece.len();
                    if !is_here { at -= piece.len() }
                    is_here
                })
                .unwrap();
            let mut damaged = piece.to_vec();
            damaged[at] ^= 1 << bit;
            let mut txn = kv.begin_write().unwrap();
            txn.put(JOURNAL, key, &damaged).unwrap();
            txn.commit().unwrap();
            let outcome = read(&kv, 1);
            let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
            prop_assert!(is_corrupt, "{:?}", outcome);
            let mut txn = kv.begin_write().unwrap();
            txn.put(JOURNAL, key, piece).unwrap();
            txn.commit().unwrap();
        }
        // A piece that is missing or cut.
        for (key, piece) in &rows {
            for damaged in [None, Some(&piece[..piece.len() - 1])] {
                let mut txn = kv.begin_write().unwrap();
                match damaged {
                    Some(damaged) => txn.put(JOURNAL, key, damaged).unwrap(),
                    None => drop(txn.delete(JOURNAL, key).unwrap()),
                }
                txn.commit().unwrap();
                let outcome = read(&kv, 1);
                let is_gone = rows.len() == 1 && matches!(outcome, Ok(None));
                let is_corrupt = matches!(outcome, Err(StateError::Corrupt { .. }));
                prop_assert!(is_gone || is_corrupt);
                let mut txn = kv.begin_write().unwrap();
                txn.put(JOURNAL, key, piece).unwrap();
                txn.commit().unwrap();
            }
        }
    }

    #[test]
    fn decoding_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_rows(JOURNAL, &TABLES, &bytes, |_, _, _| {});
        let framed = [&[7, 0, 1, 0], &bytes[..]].concat();
        let _ = decode_rows(JOURNAL, &TABLES, &framed, |_, _, _| {});
    }
}

#[test]
fn a_record_that_names_an_unknown_table_is_corruption() {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&[0x55, 0, 0, 0]);
    let error = decode_rows(JOURNAL, &TABLES, &bytes, |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("unknown table 0x55"), "{error}");
}

/// The encoding byte by byte, as `docs/formats/state.md` has it.
#[test]
fn rows_share_their_keys_beginnings_and_long_values_become_patches() {
    let mut record = RecordWriter::new(&[]);
    let base = Bytes::from([7; 200]);
    let mut value = [7; 200];
    value[100] = 8;
    record.push(TABLE, b"aa", Some(&Bytes::from_static(b"x")), None);
    record.push(TABLE, b"ab", None, Some(&base));
    record.push(OTHER, b"ab", Some(&value.into()), Some(&base));
    record.push(OTHER, b"b", Some(&[0; 50].into()), Some(&base));
    let crc = crc32fast::hash(&value).to_le_bytes();
    let expected = [
        &[7, 0, 2, b'a', b'a', 3, b'x'][..],
        &[7, 1, 1, b'b', 0],
        &[9, 2, 0, 2 * 9],
        &crc,
        &[200, 1, 100, 2, 8],
        &[9, 0, 1, b'b', 2 * 50 + 1],
        &[0; 50],
    ];
    assert_eq!(record.bytes[8..], expected.concat());
}
