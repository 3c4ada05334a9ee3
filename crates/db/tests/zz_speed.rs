#![allow(missing_docs)]
use retrie_db::*;
use retrie_state::*;
use std::time::Instant;
const A: Table = Table::new(1, "Accounts");
#[test]
fn speed() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::create(dir.path(), &DbOptions { sync: SyncMode::NoSync, ..Default::default() })
        .unwrap();
    let key = |i: u64| alloy_primitives::keccak256(i.to_be_bytes());
    let mut keys: Vec<_> = (0..500_000u64).map(key).collect();
    keys.sort();
    let t = Instant::now();
    let mut txn = db.begin_write().unwrap();
    for k in &keys {
        txn.append(A, k.as_slice(), &[1; 32]).unwrap();
    }
    println!("append {:?}/row", t.elapsed() / 500_000);
    let t = Instant::now();
    txn.commit().unwrap();
    println!("commit {:?}", t.elapsed());
    let store = db.state_store();
    let t = Instant::now();
    for _ in 0..100_000 {
        drop(db.begin_read().unwrap());
    }
    println!("snapshot {:?}", t.elapsed() / 100_000);
    let snap = store.snapshot().unwrap();
    let probe: Vec<_> = (0..500_000u64).map(key).collect();
    for _ in 0..2 {
        let t = Instant::now();
        for k in &probe {
            assert!(snap.get(A, k.as_slice()).unwrap().is_some());
        }
        println!("get {:?}", t.elapsed() / 500_000);
    }
    let hot: Vec<_> = probe[..1000].to_vec();
    let t = Instant::now();
    for _ in 0..500 {
        for k in &hot {
            assert!(snap.get(A, k.as_slice()).unwrap().is_some());
        }
    }
    println!("get hot {:?}", t.elapsed() / 500_000);
    let t = Instant::now();
    for k in &probe[..100_000] {
        assert!(snap.seek(A, Some(k.as_slice()), Direction::Forward).unwrap().is_some());
    }
    println!("seek {:?}", t.elapsed() / 100_000);
    let t = Instant::now();
    let n = snap.scan(A, KeyRange::ALL, Direction::Forward, usize::MAX).unwrap().len();
    println!("scan {:?}", t.elapsed() / n as u32);
    for threads in [2usize] {
        let t = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| {
                    for k in &probe {
                        assert!(snap.get(A, k.as_slice()).unwrap().is_some());
                    }
                });
            }
        });
        println!("{threads} threads: get {:?} per thread", t.elapsed() / 500_000);
    }
    let ro = store.snapshot().unwrap();
    let mut w = store.begin_write().unwrap();
    w.put(A, b"x", b"y").unwrap();
    w.commit().unwrap();
    let t = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for k in &probe {
                    assert!(ro.get(A, k.as_slice()).unwrap().is_some());
                }
            });
        }
    });
    println!("2 threads, one transaction: get {:?} per thread", t.elapsed() / 500_000);
    let t = Instant::now();
    for i in 0..200u32 {
        let mut w = store.begin_write().unwrap();
        w.put(A, &i.to_be_bytes(), b"y").unwrap();
        w.commit().unwrap();
    }
    println!("small nosync commit {:?}", t.elapsed() / 200);
    let t = Instant::now();
    let mut w = store.begin_write().unwrap();
    for k in &probe[..100_000] {
        w.put(A, k.as_slice(), &[2; 32]).unwrap();
    }
    println!("random put {:?}", t.elapsed() / 100_000);
    let t = Instant::now();
    for k in &probe[..100_000] {
        w.get(A, k.as_slice()).unwrap();
    }
    println!("get in write {:?}", t.elapsed() / 100_000);
}
