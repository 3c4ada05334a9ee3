//! ere files: round trips, what is left out, and every fault refused with its place.

use std::{fs, path::Path};

use crate::common::{EreDraft, Xorshift64, chain, merged_chain, receipts, rlp_list, snappy};
use alloy_consensus::ReceiptEnvelope;
use alloy_primitives::{B256, U256};
use retrie_chainspec::primitives::{Block, Receipt, TxType};
use retrie_sources::{
    EreProfile, EreReader, EreSummary, EreWriter, SlimReceipt, SourceError,
    SourceErrorKind as Kind, SourceKind, SourcePlace, detect, ere::HeaderProofType, open,
    verify_ere,
};
use tempfile::TempDir;

/// The first block of the second epoch.
const FIRST: u64 = 8192;

fn slim(number: u64) -> Vec<SlimReceipt> {
    let receipt = |envelope: ReceiptEnvelope| {
        let inner = envelope.as_receipt().unwrap().clone();
        SlimReceipt {
            tx_type: envelope.tx_type() as u8,
            status: inner.status,
            cumulative_gas_used: inner.cumulative_gas_used,
            logs: inner.logs,
        }
    };
    receipts(number).into_iter().map(receipt).collect()
}

/// Writes blocks with our writer; before the first one lies a difficulty of 1000.
fn export(folder: &Path, blocks: &[Block], with_receipts: bool) -> retrie_sources::ExportedFile {
    let first = blocks[0].header.number;
    let mut writer = EreWriter::create(folder, "mainnet", first, with_receipts).unwrap();
    let mut total = U256::from(if first == 0 { 0 } else { 1000 });
    for block in blocks {
        total += block.header.difficulty;
        let receipts = with_receipts.then(|| slim(block.header.number));
        writer.write(block, receipts, Some(total)).unwrap();
    }
    writer.finish().unwrap()
}

struct DraftFile(TempDir);

impl DraftFile {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn write(&self, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.0.path().join("a.ere");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn verify(&self, bytes: &[u8]) -> Result<EreSummary, SourceError> {
        verify_ere(self.write(bytes))
    }

    fn refused(&self, draft: &EreDraft, what: &str) -> SourceError {
        let error = self.verify(&draft.bytes()).unwrap_err();
        assert!(error.to_string().contains(what), "`{what}` is not in: {error}");
        error
    }
}

#[test]
fn our_files_are_those_of_the_specification_and_come_back() {
    let genesis = chain(0, 30, 20);
    let before = chain(FIRST, 40, FIRST + 20);
    let transition = merged_chain(FIRST, 40, FIRST + 30, FIRST + 15);
    let after = merged_chain(FIRST, 40, FIRST + 20, 0);
    for (blocks, has_proofs) in
        [(genesis, true), (before, true), (transition, false), (after, false)]
    {
        for with_receipts in [true, false] {
            let folder = TempDir::new().unwrap();
            let file = export(folder.path(), &blocks, with_receipts);
            let last = blocks.last().unwrap().header.hash_slow();
            let profile = EreProfile { no_receipts: !with_receipts, no_proofs: !has_proofs };
            let first = blocks[0].header.number;
            let name = EreWriter::file_name("mainnet", first, last, profile).to_string();
            assert_eq!(file.path, folder.path().join(&name));
            let count = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(count, 1, "no temporary file is left");

            // The same bytes as the test's own writer.
            let mut draft = EreDraft::of(&blocks);
            if !with_receipts {
                draft = draft.without(EreDraft::RECEIPTS);
            }
            let bytes = fs::read(&file.path).unwrap();
            assert!(bytes == draft.bytes(), "{name}");
            assert_eq!((file.bytes, file.blocks), (bytes.len() as u64, blocks.len() as u64));

            let summary = verify_ere(&file.path).unwrap();
            assert_eq!((summary.first_block, summary.block_count), (first, file.blocks));
            assert_eq!(
                (summary.parent_hash, summary.last_hash),
                (blocks[0].header.parent_hash, last)
            );
            assert_eq!((summary.has_receipts, summary.has_proofs), (with_receipts, has_proofs));
            let is_pre_merge = !blocks[0].header.difficulty.is_zero();
            assert_eq!(summary.accumulator.is_some(), is_pre_merge);

            let mut total = U256::from(if first == 0 { 0 } else { 1000 });
            for (read, block) in EreReader::open(&file.path).unwrap().zip(&blocks) {
                let read = read.unwrap();
                total += block.header.difficulty;
                assert_eq!(read.block, *block);
                assert_eq!(read.receipts, with_receipts.then(|| receipts(block.header.number)));
                assert_eq!(read.total_difficulty, is_pre_merge.then_some(total));
                let kind = read.proof.map(|proof| proof.kind);
                assert_eq!(kind, has_proofs.then_some(HeaderProofType::HistoricalHashes));
            }
            assert_eq!(detect(&file.path).unwrap(), SourceKind::Ere);
            let read: Vec<_> = open(&file.path).unwrap().map(|b| b.unwrap().block).collect();
            assert_eq!(read, blocks);
        }
    }
}

#[test]
fn a_folder_holds_all_kinds_of_block_files() {
    let blocks = chain(0, 30, u64::MAX);
    let folder = TempDir::new().unwrap();
    let end: Vec<_> = blocks[20..].to_vec();
    fs::write(folder.path().join("a.ere"), EreDraft::of(&end).bytes()).unwrap();
    let path = export(folder.path(), &blocks[..20], true).path;
    assert!(path.exists());
    fs::write(folder.path().join("checksums.txt"), "0x00").unwrap();
    assert_eq!(detect(folder.path()).unwrap(), SourceKind::BlockFolder);
    let source = open(folder.path()).unwrap();
    let counts: Vec<_> = source.files().iter().map(|file| file.block_count).collect();
    assert_eq!(counts, [Some(20), Some(10)]);
    assert_eq!(source.map(|b| b.unwrap().block).collect::<Vec<_>>(), blocks);
}

#[test]
fn optional_components_may_be_missing() {
    let file = DraftFile::new();
    let draft = EreDraft::of(&chain(FIRST, 12, FIRST + 6));
    let verify = |draft: &EreDraft| file.verify(&draft.bytes()).unwrap();
    let whole = verify(&draft);
    // Proofs have the total difficulties too.
    let no_difficulties = draft.clone().without(EreDraft::DIFFICULTIES);
    assert_eq!(verify(&no_difficulties).accumulator, whole.accumulator);
    let no_proofs = draft.clone().without(EreDraft::PROOFS);
    assert_eq!(verify(&no_proofs).accumulator, whole.accumulator);
    let no_accumulator = draft.without(EreDraft::ACCUMULATOR);
    assert_eq!(verify(&no_accumulator).accumulator, whole.accumulator);
    let bare = no_accumulator
        .without(EreDraft::PROOFS)
        .without(EreDraft::DIFFICULTIES)
        .without(EreDraft::RECEIPTS);
    let bare = verify(&bare);
    assert_eq!((bare.accumulator, bare.has_receipts, bare.has_proofs), (None, false, false));
    // Entries of unknown types between the blocks and the accumulator are part of the format.
    let mut other = EreDraft::of(&chain(FIRST, 12, FIRST + 6));
    other.tail.insert(0, (0x7777, b"whatever".to_vec()));
    assert_eq!(verify(&other), whole);
}

#[test]
fn lies_are_found_and_placed() {
    let file = DraftFile::new();
    let blocks = chain(FIRST, 12, FIRST + 6);
    let base = EreDraft::of(&blocks);
    let honest = || base.clone();
    file.verify(&honest().bytes()).unwrap();
    let at = |error: &SourceError, number: u64| {
        let place = &error.place;
        assert!(matches!(place, SourcePlace::Entry { block: Some(block), .. } if *block == number));
    };

    // Accumulators.
    let mut draft = honest();
    draft.tail[0].1[3] ^= 1;
    let error = file.refused(&draft, "accumulator root of the blocks");
    assert!(matches!(*error.kind, Kind::HashMismatch { .. }));
    let mut draft = honest();
    draft.tail[0].1.pop();
    file.refused(&draft, "must have 32 bytes");
    let mut draft = honest();
    draft.tail.push((0x7777, Vec::new()));
    file.refused(&draft, "an entry behind the accumulator");
    let bare = honest().without(EreDraft::PROOFS).without(EreDraft::DIFFICULTIES);
    file.refused(&bare, "no total difficulties");
    let mut merged = EreDraft::of(&merged_chain(FIRST, 12, FIRST, 0));
    merged.tail.push((EreDraft::ACCUMULATOR, vec![0; 32]));
    file.refused(&merged, "no blocks from before the merge");

    // Proofs.
    let proof = |kind: u8, ssz: &[u8]| {
        let mut fields = Vec::new();
        alloy_rlp::Encodable::encode(&kind, &mut fields);
        alloy_rlp::Encodable::encode(ssz, &mut fields);
        snappy(&rlp_list(&fields))
    };
    let mut draft = honest();
    draft.section(EreDraft::PROOFS).swap(4, 5);
    // The other block's total difficulty is not this one's.
    at(&file.refused(&draft, ""), FIRST + 4);
    for (kind, length, what) in [
        (0, 479, "length of its type"),
        (1, 840, "type that the fork of its block requires"),
        (9, 480, "unknown type"),
        (0, 480, "accumulator root of the proof"),
    ] {
        let mut draft = honest();
        draft.section(EreDraft::PROOFS)[5] = proof(kind, &vec![1; length]);
        at(&file.refused(&draft, what), FIRST + 5);
    }
    // All proofs agree with each other, but are of a longer list.
    let mut longer = EreDraft::of(&chain(FIRST, 13, FIRST + 6));
    let mut draft = honest();
    let proofs = longer.section(EreDraft::PROOFS);
    proofs.truncate(12);
    *draft.section(EreDraft::PROOFS) = proofs.clone();
    file.refused(&draft, "accumulator root of the proofs");

    // Total difficulties.
    let mut draft = honest();
    draft.section(EreDraft::DIFFICULTIES)[7][0] ^= 1;
    let error = file.refused(&draft, "total difficulty");
    assert!(matches!(*error.kind, Kind::TotalDifficulty { .. }), "{error}");
    at(&error, FIRST + 7);
    let mut draft = honest();
    draft.section(EreDraft::DIFFICULTIES)[7].pop();
    file.refused(&draft, "must have 32 bytes");

    // Receipts.
    let mut draft = honest();
    draft.section(EreDraft::RECEIPTS)[3] = snappy(&[0xc0]);
    file.refused(&draft, "number of receipts");
    let mut draft = honest();
    draft.section(EreDraft::RECEIPTS).swap(1, 5);
    let error = file.refused(&draft, "receiptsRoot");
    at(&error, FIRST + 1);
    let mut draft = honest();
    let mut wrong = slim(FIRST + 2);
    wrong[1].tx_type = 1;
    draft.section(EreDraft::RECEIPTS)[2] = snappy(&alloy_rlp::encode(&wrong));
    file.refused(&draft, "type of a receipt");

    // Headers and bodies.
    let mut draft = honest();
    draft.section(EreDraft::HEADERS).swap(3, 4);
    at(&file.refused(&draft, "block number in the header"), FIRST + 3);
    let mut orphan = blocks[5].header.clone();
    orphan.parent_hash = B256::ZERO;
    let mut draft = honest();
    draft.section(EreDraft::HEADERS)[5] = snappy(&alloy_rlp::encode(&orphan));
    file.refused(&draft, "parent hash");
    let mut draft = honest();
    draft.section(EreDraft::BODIES).swap(3, 4);
    file.refused(&draft, "");
    let mut draft = honest();
    draft.section(EreDraft::BODIES)[0] = b"not snappy".to_vec();
    file.refused(&draft, "snappy framed");
    let mut draft = honest();
    draft.start += 1;
    file.refused(&draft, "block number in the header");
    let mut blocks = merged_chain(FIRST, 12, FIRST, FIRST + 6);
    blocks.truncate(7);
    let mut again = chain(FIRST + 7, 1, FIRST).remove(0);
    again.header.parent_hash = blocks[6].header.hash_slow();
    blocks.push(again);
    let draft = EreDraft::of(&blocks).without(EreDraft::ACCUMULATOR);
    file.refused(&draft, "difficulty after the merge");
}

#[test]
fn an_index_that_does_not_fit_the_entries_is_refused() {
    let file = DraftFile::new();
    let blocks = chain(FIRST, 12, FIRST + 6);
    let base = EreDraft::of(&blocks);
    let honest = || base.clone();
    // Word 0 is the first number, 1 to 5 the components of the first block.
    for (word, shift) in [(1, 8), (2, 1), (6, 1), (8, 8), (12, 0_u64.wrapping_sub(1)), (60, 8)] {
        let mut draft = honest();
        draft.shifts.push((word, shift));
        let error = file.verify(&draft.bytes()).unwrap_err();
        let is_typed = matches!(
            *error.kind,
            Kind::Format(_)
                | Kind::NumberMismatch { .. }
                | Kind::EntryType { .. }
                | Kind::Truncated { .. }
        );
        assert!(is_typed, "{word}: {error}");
    }
    // Numbers of components and blocks.
    for (word, shift) in [(61, 1), (61, u64::MAX), (62, 1), (62, u64::MAX), (62, 9000)] {
        let mut draft = honest();
        draft.shifts.push((word, shift));
        file.refused(&draft, "does not end with a block index");
    }
    let mut draft = honest();
    draft.start = u64::MAX;
    file.refused(&draft, "overflows");
    // A component lacks an entry, has one too many, or is there twice.
    for kind in [EreDraft::BODIES, EreDraft::RECEIPTS, EreDraft::PROOFS, EreDraft::DIFFICULTIES] {
        let mut draft = honest();
        draft.section(kind).pop();
        file.verify(&draft.bytes()).unwrap_err();
        let mut draft = honest();
        let more = draft.section(kind)[3].clone();
        draft.section(kind).push(more);
        file.verify(&draft.bytes()).unwrap_err();
    }
    let mut draft = honest();
    draft.section(EreDraft::HEADERS).pop();
    file.verify(&draft.bytes()).unwrap_err();
    let twice = honest().without(EreDraft::DIFFICULTIES).without(EreDraft::PROOFS);
    let mut twice = twice.without(EreDraft::ACCUMULATOR);
    let bodies = twice.section(EreDraft::BODIES).clone();
    *twice.section(EreDraft::RECEIPTS) = bodies;
    twice.sections[2].0 = EreDraft::BODIES;
    file.refused(&twice, "one twice");
    let no_bodies = honest().without(EreDraft::BODIES);
    file.refused(&no_bodies, "does not begin with headers and bodies");
    // A block that the index does not know.
    let mut draft = honest();
    draft.tail.insert(0, (EreDraft::HEADERS, vec![1]));
    file.refused(&draft, "not in the index");
    // era1, and nothing.
    for bytes in [&b""[..], b"e2", &[0x65, 0x32, 0, 0, 0, 0, 0, 0]] {
        file.verify(bytes).unwrap_err();
    }
}

#[test]
fn cut_or_mutated_anywhere_it_is_noticed() {
    let file = DraftFile::new();
    let blocks = chain(0, 16, 8);
    let bytes = EreDraft::of(&blocks).bytes();
    let path = file.write(&bytes);
    let read = || -> Result<Vec<_>, SourceError> {
        verify_ere(&path)?;
        EreReader::open(&path)?
            .map(|b| b.map(|b| (b.block, b.receipts, b.total_difficulty, b.proof)))
            .collect()
    };
    let original = read().unwrap();
    for cut in (0..bytes.len()).step_by(61).chain(bytes.len() - 20..bytes.len()) {
        file.write(&bytes[..cut]);
        let error = read().unwrap_err();
        assert!(!matches!(*error.kind, Kind::Io { .. }), "{cut}: {error}");
    }
    let mut rng = Xorshift64(4243);
    for i in 0..300 {
        file.write(&rng.mutate(&bytes));
        match read() {
            // Snappy can encode the same bytes in two ways.
            Ok(read) => assert!(read == original, "mutation {i} changed a block unnoticed"),
            Err(error) => assert!(!matches!(*error.kind, Kind::Io { .. }), "{error}"),
        }
    }
}

#[test]
fn the_writer_refuses_what_no_reader_would_take() {
    let folder = TempDir::new().unwrap();
    let blocks = chain(FIRST, 5, u64::MAX);
    let create =
        |with_receipts| EreWriter::create(folder.path(), "mainnet", FIRST, with_receipts).unwrap();
    let total = Some(U256::from(1_000_000));
    let says = |outcome: Result<(), SourceError>, what: &str| {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(what), "`{what}` is not in: {error}");
    };
    let odd = EreWriter::create(folder.path(), "mainnet", 5, true).unwrap_err();
    assert!(odd.to_string().contains("8192 divides"), "{odd}");
    says(create(true).write(&blocks[1], Some(slim(FIRST + 1)), total), "block number");
    says(create(true).write(&blocks[0], None, total), "receipts are missing");
    says(create(true).write(&blocks[0], Some(slim(FIRST + 1)), total), "receiptsRoot");
    says(create(false).write(&blocks[0], None, None), "total difficulty");
    says(create(false).write(&blocks[0], None, Some(U256::from(1))), "total difficulty");
    let mut writer = create(false);
    writer.write(&blocks[0], None, total).unwrap();
    says(writer.write(&blocks[2], None, total), "block number");
    let mut orphan = blocks[1].clone();
    orphan.header.parent_hash = B256::ZERO;
    says(writer.write(&orphan, None, total), "parent hash");
    let empty = create(true).finish().unwrap_err();
    assert!(matches!(*empty.kind, Kind::NoBlocks), "{empty}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written for nothing");
    // Receipts as the database has them.
    let stored = Receipt {
        tx_type: TxType::Eip1559,
        success: true,
        cumulative_gas_used: 5,
        logs: Vec::new(),
    };
    let envelope = SlimReceipt::from(stored).into_envelope().unwrap();
    assert!(matches!(envelope, ReceiptEnvelope::Eip1559(_)));
}
