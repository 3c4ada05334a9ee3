//! Versions of generations, and what readers keep.

use super::*;
use crate::{KvStore, MemoryStore, durable::overlay::PreviousValue};

const TABLE: RowTable = RowTable::new(7, "Test");
const OTHER: RowTable = RowTable::new(9, "Other");
const TABLES: [RowTable; 2] = [TABLE, OTHER];

fn layer(rows: &[(u8, Option<u8>)]) -> DiffLayer {
    let mut layer = DiffLayer::default();
    for (key, value) in rows {
        layer.overwrite(
            TABLE,
            RowKey::from_slice(&[*key]),
            PreviousValue::Unknown,
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
