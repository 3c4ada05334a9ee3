//! Round trips, detection, order and rejections, on files that the tests create.

use std::{fs, path::Path};

use crate::common::{Era1File, EreDraft, chain, encode_all, gzip, receipts, snappy};
use alloy_primitives::U256;
use retrie_sources::{
    BlockSource, BlockWriter, Era1Reader, MAX_ITEM_BYTES, RlpReader, SourceError,
    SourceErrorKind as Kind, SourceKind, SourcePlace, detect, list_bundles, open, verify_era1,
};

fn write(dir: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// All blocks up to the first error, and that error.
fn read_rlp(path: &Path) -> (Vec<retrie_sources::SourceBlock>, Option<SourceError>) {
    let mut blocks = Vec::new();
    for item in RlpReader::open(path).unwrap() {
        match item {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}

#[test]
fn exported_blocks_read_back_and_export_to_identical_bytes() {
    let blocks = chain(5, 60, 40);
    let dir = tempfile::tempdir().unwrap();
    for name in ["chain.rlp", "chain.rlp.gz"] {
        let export = |target: &Path, blocks: &[_]| {
            let mut writer = BlockWriter::create(target).unwrap();
            for block in blocks {
                writer.write(block).unwrap();
            }
            writer.finish().unwrap()
        };
        let first = dir.path().join(name);
        let summary = export(&first, &blocks);
        assert_eq!(summary.rlp_bytes, encode_all(&blocks).len() as u64);
        assert_eq!(summary.blocks, 60);

        let (read, error) = read_rlp(&first);
        assert!(error.is_none());
        assert_eq!(read.iter().map(|b| b.block.clone()).collect::<Vec<_>>(), blocks);
        let mut offset = 0;
        for item in &read {
            assert_eq!(item.origin.offset, offset);
            offset += item.encoded_len;
        }
        assert_eq!(offset, summary.rlp_bytes);

        let second = dir.path().join(format!("second-{name}"));
        export(&second, &read.into_iter().map(|b| b.block).collect::<Vec<_>>());
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    }
    assert_eq!(fs::read(dir.path().join("chain.rlp")).unwrap(), encode_all(&blocks));
}

#[test]
fn unfinished_export_leaves_the_target_and_the_folder_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = write(dir.path(), "chain.rlp", b"precious");
    let mut writer = BlockWriter::create(&target).unwrap();
    writer.write(&chain(1, 1, 9)[0]).unwrap();
    drop(writer);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    let error = BlockWriter::create(dir.path().join("missing/chain.rlp")).unwrap_err();
    assert!(matches!(*error.kind, Kind::Io { .. }), "{error}");
}

#[test]
fn multi_member_gzip_reads_as_one_stream() {
    let blocks = chain(1, 30, 20);
    let bytes = encode_all(&blocks);
    // Cut in the middle of a block, with an empty member in between.
    let mut file = gzip(&bytes[..1234]);
    file.extend(gzip(&[]));
    file.extend(gzip(&bytes[1234..]));
    let dir = tempfile::tempdir().unwrap();
    let (read, error) = read_rlp(&write(dir.path(), "a.rlp.gz", &file));
    assert!(error.is_none());
    assert_eq!(read.len(), 30);

    // Garbage instead of another member: too short for a gzip header, and long enough for one.
    let mut short = file.clone();
    short.extend(b"junk");
    let (read, error) = read_rlp(&write(dir.path(), "b.rlp.gz", &short));
    assert_eq!(read.len(), 30);
    assert!(matches!(*error.unwrap().kind, Kind::Truncated { .. }));
    file.extend([b'x'; 64]);
    let (read, error) = read_rlp(&write(dir.path(), "c.rlp.gz", &file));
    assert_eq!(read.len(), 30);
    assert!(matches!(*error.unwrap().kind, Kind::Gzip(_)));
}

#[test]
fn gzip_is_told_by_magic_whatever_the_name() {
    let bytes = encode_all(&chain(1, 3, 9));
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("plain.rlp.gz", bytes.clone()), ("packed.rlp", gzip(&bytes))] {
        assert_eq!(read_rlp(&write(dir.path(), name, &bytes)).0.len(), 3, "{name}");
    }
}

#[test]
fn rlp_header_claiming_a_terabyte_is_refused_without_reading_on() {
    let dir = tempfile::tempdir().unwrap();
    let good = encode_all(&chain(1, 1, 9));
    let mut bytes = good.clone();
    // List of 2^40 bytes: six length bytes.
    bytes.extend([0xf7 + 6, 1, 0, 0, 0, 0, 0]);
    bytes.extend([0; 100]);
    for bytes in [bytes.clone(), gzip(&bytes)] {
        let (read, error) = read_rlp(&write(dir.path(), "a.rlp", &bytes));
        let error = error.unwrap();
        assert_eq!(read.len(), 1);
        assert!(
            matches!(*error.kind, Kind::TooLarge { claimed: 0x100_0000_0000, limit, .. }
                if limit == MAX_ITEM_BYTES),
            "{error}"
        );
        assert_eq!(error.place, SourcePlace::Item { offset: good.len() as u64, index: 1 });
        assert!(error.to_string().contains("a.rlp, block index 1 at byte"), "{error}");
    }
    // All eight length bytes set, and a claim within the limit that is not backed by bytes.
    let (_, error) = read_rlp(&write(dir.path(), "b.rlp", &[0xff; 32]));
    assert!(matches!(*error.unwrap().kind, Kind::TooLarge { claimed: u64::MAX, .. }));
    let (_, error) = read_rlp(&write(dir.path(), "c.rlp", &[0xfa, 0xff, 0xff, 0xff, 1, 2, 3]));
    assert!(matches!(*error.unwrap().kind, Kind::Truncated { .. }));
}

/// The decoder accepts a wrong length in front of a typed transaction; other clients do not.
#[test]
fn typed_transaction_in_a_string_of_wrong_length_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let block = chain(3, 1, u64::MAX).remove(0);
    let mut bytes = encode_all(&[block]);
    let at = bytes.windows(4).position(|w| w[0] == 0xb8 && w[2..] == [0x02, 0xf8]).unwrap();
    bytes[at + 1] -= 4;
    let (_, error) = read_rlp(&write(dir.path(), "a.rlp", &bytes));
    assert!(matches!(*error.unwrap().kind, Kind::Rlp { .. }));
}

#[test]
fn trailing_garbage_and_emptiness_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = encode_all(&chain(1, 2, 9));
    bytes.push(b'\n');
    let (read, error) = read_rlp(&write(dir.path(), "a.rlp", &bytes));
    assert_eq!(read.len(), 2);
    assert!(matches!(*error.unwrap().kind, Kind::NotABlock { byte: b'\n' }));

    for (name, bytes) in [("empty.rlp", vec![]), ("empty.rlp.gz", gzip(&[]))] {
        let path = write(dir.path(), name, &bytes);
        let (read, error) = read_rlp(&path);
        assert!(read.is_empty());
        assert!(matches!(*error.unwrap().kind, Kind::NoBlocks));
        assert!(matches!(*open(&path).unwrap_err().kind, Kind::NoBlocks));
    }
}

#[test]
fn era1_round_trip_keeps_bodies_receipts_and_difficulty() {
    let blocks = chain(100, 40, u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.era1", &Era1File::of(&blocks, U256::from(1_000)));
    let mut reader = Era1Reader::open(&path).unwrap();
    assert_eq!((reader.first_block(), reader.block_count()), (100, 40));
    let mut total = U256::from(1_000);
    for (era, block) in reader.by_ref().map(Result::unwrap).zip(&blocks) {
        total += block.header.difficulty;
        assert_eq!(era.block, *block);
        assert_eq!(era.receipts, Some(receipts(block.header.number)));
        assert_eq!(era.total_difficulty, total);
        era.check_body().unwrap();
    }
    // The zip above stops with the shorter side, so read to the end here.
    assert!(reader.next().is_none());
    assert!(reader.accumulator().is_some());
    let summary = verify_era1(&path).unwrap();
    assert_eq!(Some(summary.accumulator), reader.accumulator());
    assert_eq!(summary.last_hash, blocks[39].header.hash_slow());
    assert_eq!(summary.parent_hash, blocks[0].header.parent_hash);

    let skipping = Era1Reader::open(&path).unwrap().without_receipts();
    assert!(skipping.map(Result::unwrap).all(|b| b.receipts.is_none()));
}

#[test]
fn era1_lies_are_found_and_placed() {
    let blocks = chain(0, 6, u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let honest = |count: usize| {
        let mut file = Era1File::new(U256::ZERO);
        for block in &blocks[..count] {
            file.block(block, &receipts(block.header.number));
        }
        file
    };
    let verify = |bytes: &[u8]| verify_era1(write(dir.path(), "a.era1", bytes));
    verify(&honest(6).finish()).unwrap();

    // Entries of unknown type between the last block and the accumulator are part of the format.
    let mut file = honest(6);
    file.entry(0x7777, b"whatever");
    verify(&file.finish()).unwrap();

    let mut file = honest(6);
    file.records[3].total_difficulty += U256::from(1);
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("accumulator root"), "{error}");

    let mut file = honest(5);
    file.total_difficulty += U256::from(1);
    file.block(&blocks[5], &receipts(5));
    let error = verify(&file.finish()).unwrap_err();
    assert!(matches!(*error.kind, Kind::TotalDifficulty { .. }), "{error}");
    assert!(matches!(error.place, SourcePlace::Entry { block: Some(5), .. }));

    let mut file = honest(4);
    file.block(&blocks[5], &receipts(5));
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("block number in the header is 5, expected 4"), "{error}");

    let mut file = honest(5);
    let mut orphan = blocks[5].clone();
    orphan.header.parent_hash = alloy_primitives::B256::ZERO;
    file.block(&orphan, &receipts(5));
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("parent hash"), "{error}");

    let mut file = honest(6);
    file.offsets[2] += 8;
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("offset in the block index"), "{error}");

    let mut file = honest(6);
    file.start = Some(1);
    let error = verify(&file.finish()).unwrap_err();
    assert!(matches!(*error.kind, Kind::NumberMismatch { .. }), "{error}");

    // A block the index does not know.
    let mut file = honest(6);
    file.offsets.pop();
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("not in the block index"), "{error}");

    // Bodies and receipts that do not match the headers: only the full check finds them.
    let mut file = honest(5);
    let mut wrong = receipts(5);
    wrong.reverse();
    wrong.push(receipts(3)[0].clone());
    wrong.truncate(receipts(5).len());
    if wrong == receipts(5) {
        wrong = receipts(9).into_iter().take(wrong.len()).collect();
    }
    file.block(&blocks[5], &wrong);
    let bytes = file.finish();
    let error = verify(&bytes).unwrap_err();
    assert!(error.to_string().contains("receiptsRoot"), "{error}");
    assert_eq!(Era1Reader::open(dir.path().join("a.era1")).unwrap().flatten().count(), 6);

    let mut file = honest(5);
    let mut stolen = blocks[5].clone();
    stolen.body.ommers.clear();
    file.block(&stolen, &receipts(5));
    let error = verify(&file.finish()).unwrap_err();
    assert!(error.to_string().contains("ommersHash"), "{error}");

    let mut file = honest(6);
    file.entry(0x07, &[0; 31]);
    file.index();
    let error = verify(&file.bytes).unwrap_err();
    assert!(error.to_string().contains("32 bytes"), "{error}");

    let mut file = honest(6);
    file.index();
    let error = verify(&file.bytes).unwrap_err();
    assert!(matches!(*error.kind, Kind::Truncated { what: "accumulator" }), "{error}");
}

#[test]
fn era1_entry_that_unpacks_beyond_the_limit_is_refused() {
    let mut file = Era1File::new(U256::ZERO);
    file.start = Some(0);
    file.offsets.push(8);
    file.entry(0x03, &snappy(&vec![0; MAX_ITEM_BYTES as usize + 1]));
    let dir = tempfile::tempdir().unwrap();
    let error = verify_era1(write(dir.path(), "a.era1", &file.finish())).unwrap_err();
    assert!(matches!(*error.kind, Kind::TooLarge { .. }), "{error}");
}

#[test]
fn era1_entry_length_beyond_the_file_is_refused_without_allocating() {
    let blocks = chain(0, 2, u64::MAX);
    let mut bytes = Era1File::of(&blocks, U256::ZERO);
    let dir = tempfile::tempdir().unwrap();
    // Length field of the first header entry: first within, then beyond the item limit.
    bytes[10..14].copy_from_slice(&(MAX_ITEM_BYTES as u32).to_le_bytes());
    let error = verify_era1(write(dir.path(), "a.era1", &bytes)).unwrap_err();
    assert!(matches!(*error.kind, Kind::Truncated { .. }), "{error}");
    bytes[10..14].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = verify_era1(write(dir.path(), "a.era1", &bytes)).unwrap_err();
    assert!(matches!(*error.kind, Kind::TooLarge { .. }), "{error}");
}

#[test]
fn folder_is_read_by_first_block_not_by_name() {
    let blocks = chain(0, 30, u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let at = |n: usize| blocks[..n].iter().map(|b| b.header.difficulty).sum::<U256>();
    write(dir.path(), "z.era1", &Era1File::of(&blocks[..10], U256::ZERO));
    write(dir.path(), "y.RLP.GZ", &gzip(&encode_all(&blocks[10..20])));
    write(dir.path(), "a.era1", &Era1File::of(&blocks[20..], at(20)));
    write(dir.path(), "genesis.json", b"{}");
    write(dir.path(), "README.md", b"not a block");
    write(dir.path(), ".hidden.rlp", b"not a block");
    fs::create_dir(dir.path().join("sub.rlp")).unwrap();
    assert_eq!(detect(dir.path()).unwrap(), SourceKind::BlockFolder);
    let source = open(dir.path()).unwrap();
    assert_eq!(source.files().iter().map(|f| f.first_block).collect::<Vec<_>>(), [0, 10, 20]);
    let read: Vec<_> = source.map(|b| b.unwrap().block).collect();
    assert_eq!(read, blocks);

    write(dir.path(), "12.json", b"{}");
    let error = detect(dir.path()).unwrap_err();
    assert!(matches!(*error.kind, Kind::MixedFolder), "{error}");
}

#[test]
fn damaged_era1_yields_no_block_unless_verification_is_off() {
    let blocks = chain(0, 10, u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let mut file = Era1File::new(U256::ZERO);
    for block in &blocks {
        file.block(block, &receipts(block.header.number));
    }
    file.records[0].block_hash = alloy_primitives::B256::ZERO;
    let path = write(dir.path(), "a.era1", &file.finish());
    let mut source = open(&path).unwrap();
    assert!(source.next().unwrap().is_err());
    assert!(source.next().is_none());
    let items: Vec<_> = open(&path).unwrap().without_archive_verification().collect();
    assert_eq!(items.len(), 11);
    assert!(items[..10].iter().all(Result::is_ok));
    assert!(items[10].is_err());
}

#[test]
fn content_decides_where_the_name_says_nothing() {
    let blocks = chain(0, 2, u64::MAX);
    let dir = tempfile::tempdir().unwrap();
    let rlp = encode_all(&blocks);
    for (bytes, expected) in [
        (rlp.clone(), SourceKind::Rlp),
        (gzip(&rlp), SourceKind::Rlp),
        (Era1File::of(&blocks, U256::ZERO), SourceKind::Era1),
        (EreDraft::of(&blocks).bytes(), SourceKind::Ere),
        (b"{}".to_vec(), SourceKind::Bundle),
        (gzip(b"{}"), SourceKind::Bundle),
    ] {
        assert_eq!(detect(write(dir.path(), "download", &bytes)).unwrap(), expected);
    }
    let error = detect(write(dir.path(), "download", b"<html>")).unwrap_err();
    assert!(matches!(*error.kind, Kind::UnknownKind), "{error}");
    assert!(matches!(*detect(dir.path().join("none")).unwrap_err().kind, Kind::Io { .. }));

    let bundle = write(dir.path(), "1.json", b"{}");
    assert!(matches!(*open(&bundle).unwrap_err().kind, Kind::WrongKind { .. }));
    assert!(matches!(*list_bundles(&bundle).unwrap_err().kind, Kind::NotABundle));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(*list_bundles(empty.path()).unwrap_err().kind, Kind::NoBlocks));
    assert!(matches!(*open(empty.path()).unwrap_err().kind, Kind::NoBlocks));
}

#[test]
fn readers_can_move_to_a_read_ahead_thread() {
    const fn send<T: Send + 'static>() {}
    send::<BlockSource>();
    send::<RlpReader>();
    send::<Era1Reader>();
    send::<SourceError>();
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.rlp", &encode_all(&chain(1, 20, 9)));
    let (tx, rx) = std::sync::mpsc::sync_channel(2);
    let source = open(path).unwrap();
    let reader = std::thread::spawn(move || source.for_each(|b| tx.send(b).unwrap()));
    assert_eq!(rx.iter().map(Result::unwrap).count(), 20);
    reader.join().unwrap();
}
