//! Records and their corruption, versions of generations, folds.

use super::*;
use crate::MemoryStore;
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
        record.push(table(*other), key, value.as_deref());
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
        rows.push((table == OTHER, key.to_vec(), value.map(|value| value.to_vec())));
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
        let mut framed = vec![7, 1, 0];
        framed.extend_from_slice(&bytes);
        let _ = decode_rows(JOURNAL, &TABLES, &framed, |_, _, _| {});
    }
}

#[test]
fn a_record_that_names_an_unknown_table_is_corruption() {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&[0x55, 0, 0, 0, 0, 0, 0]);
    let error = decode_rows(JOURNAL, &TABLES, &bytes, |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("unknown table 0x55"), "{error}");
}

fn layer(rows: &[(u8, Option<u8>)]) -> DiffLayer {
    let mut layer = DiffLayer::default();
    for (key, value) in rows {
        layer.overwrite(
            TABLE,
            RowKey::from_slice(&[*key]),
            value.map(|v| Bytes::from(vec![v; 10])),
        );
    }
    layer
}

fn versions(generation: &RowGeneration, key: u8) -> usize {
    generation.table(TABLE).unwrap().read().versions(&[key]).map_or(0, |v| v.len())
}

#[test]
fn versions_stay_as_long_as_a_reader_can_see_them_and_no_longer() {
    let leases = Arc::new(LeaseTable::default());
    let snapshot = MemoryStore::new().snapshot().unwrap();
    let generation = Arc::new(RowGeneration::new(&TABLES));
    let commit = |seq: u64| {
        let rows = layer(&[(1, Some(seq as u8)), (2, seq.is_multiple_of(2).then_some(seq as u8))]);
        generation.insert(seq, &rows, leases.oldest(seq - 1));
    };
    let open = |seq| DurableRows::new(vec![generation.clone()], seq, snapshot.clone(), &leases);
    let sees = |view: &DurableRows, seq: u8| {
        assert_eq!(view.get(TABLE, &[1]).unwrap(), Some(Bytes::from(vec![seq; 10])));
        let second = seq.is_multiple_of(2).then(|| Bytes::from(vec![seq; 10]));
        assert_eq!(view.get(TABLE, &[2]).unwrap(), second);
    };
    commit(1);
    let one = open(1);
    commit(2);
    commit(3);
    let three = open(3);
    let three_too = open(3);
    for seq in 4..50 {
        commit(seq);
        sees(&one, 1);
        sees(&three, 3);
        let now = open(seq);
        sees(&now, seq as u8);
        sees(&three_too, 3);
    }
    // A reader of commit 1 keeps all that came after it.
    assert_eq!(versions(&generation, 1), 49);
    drop(one);
    commit(50);
    sees(&three, 3);
    assert_eq!(versions(&generation, 1), 48);
    drop(three);
    commit(51);
    sees(&three_too, 3);
    drop(three_too);
    commit(52);
    assert_eq!(versions(&generation, 1), 2, "the newest and the one before, which was the tip");
    assert_eq!(leases.oldest(52), 52);
    let entry = 2 * (1 + ENTRY_OVERHEAD);
    assert_eq!(generation.bytes(), entry + 10 * 3, "bytes follow what is kept");
    assert_eq!((generation.commits(), generation.last_seq()), (52, 52));
}

#[test]
fn replay_and_fold_end_in_the_same_rows() {
    let kv = MemoryStore::new();
    let all: Vec<Vec<(u8, Option<u8>)>> = (0..30u8)
        .map(|n| (0..40u8).map(|k| (k.wrapping_mul(n), (k % 3 > 0).then_some(n))).collect())
        .collect();
    let mut model = BTreeMap::new();
    for (n, rows) in all.iter().enumerate() {
        let mut record = RecordWriter::new(&[]);
        for (_, key, row) in layer(rows).iter() {
            record.push(TABLE, key, row.next.as_deref().map(|value| &value[..]));
        }
        let mut txn = kv.begin_write().unwrap();
        record.write(&mut *txn, JOURNAL, n as u64 + 1).unwrap();
        txn.commit().unwrap();
        for (key, value) in rows {
            model.insert(*key, *value);
        }
    }
    model.retain(|_, value| value.is_some());
    let replayed = replay(&*kv.snapshot().unwrap(), &TABLES, 0, 30).unwrap();
    assert_eq!(replayed.last_seq(), 30);
    for key in 0..=u8::MAX {
        let expected = model.get(&key).copied().flatten().map(|v| Bytes::from(vec![v; 10]));
        assert_eq!(replayed.get(TABLE, &[key], 30).flatten(), expected);
    }
    let slices = std::cell::Cell::new(0);
    fold(&kv, &replayed, || slices.set(slices.get() + 1), |_| Ok(false)).unwrap();
    let rows =
        kv.snapshot().unwrap().scan(TABLE, KeyRange::ALL, ScanDirection::Forward, 999).unwrap();
    assert!(rows.iter().map(|(key, _)| key[0]).eq(model.keys().copied()));
    let missing = replay(&*kv.snapshot().unwrap(), &TABLES, 0, 31).unwrap_err();
    assert!(missing.to_string().contains("record 31 is missing"), "{missing}");
}
