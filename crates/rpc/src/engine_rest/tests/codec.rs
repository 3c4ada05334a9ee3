//! Containers, against the plain encoder and the specification's own bytes.

use super::{
    super::containers::{
        CellRequest, ForkchoiceRequest, decode_cell_request, decode_envelope, decode_forkchoice,
        decode_hashes, encode_blobs_v1, encode_blobs_v2, encode_blobs_v4, encode_bodies,
        encode_built_payload_parts, encode_forkchoice, encode_status,
    },
    RandomNumbers,
    plain::{self, SszPart},
    whole,
};
use alloy_eips::{
    eip4844::{Blob, BlobCellsAndProofsV1, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, Cell},
    eip7685::Requests,
};
use alloy_primitives::{B64, B128, B256, Bytes, U256};
use alloy_rpc_types_engine::{
    ExecutionPayloadBodyV2, ForkchoiceState, ForkchoiceUpdated, PayloadId, PayloadStatus,
    PayloadStatusEnum,
};
use retrie_engine::{
    ApiFork,
    pool::{BlobSidecar, PooledBlob},
};
use std::sync::Arc;

#[test]
fn envelopes_of_every_fork_are_read_as_they_were_written() {
    let mut numbers = RandomNumbers(1);
    for fork in ApiFork::ALL {
        for _ in 0..50 {
            let envelope = numbers.envelope(fork);
            let bytes = plain::envelope(&envelope);
            assert_eq!(decode_envelope(fork, bytes.into()), Ok(envelope), "{fork:?}");
        }
    }
}

/// A transaction is a part of the request; what outlives the request is not.
#[test]
fn transactions_are_not_copied_and_extra_data_is() {
    let mut numbers = RandomNumbers(2);
    let mut envelope = numbers.envelope(ApiFork::Cancun);
    envelope.payload.as_v1_mut().transactions = vec![Bytes::from(vec![2; 1000])];
    envelope.payload.as_v1_mut().extra_data = Bytes::from(vec![3; 32]);
    let body = Bytes::from(plain::envelope(&envelope));
    let read = decode_envelope(ApiFork::Cancun, body.clone()).unwrap().payload;
    let within = |part: &Bytes| body.as_ptr_range().contains(&part.as_ptr());
    assert!(within(&read.as_v1().transactions[0]));
    assert!(!within(&read.as_v1().extra_data));
}

#[test]
fn forkchoice_updates_of_every_fork_are_read_as_they_were_written() {
    let mut numbers = RandomNumbers(3);
    for fork in ApiFork::ALL {
        for with in 0..4 {
            let state = ForkchoiceState {
                head_block_hash: numbers.hash(),
                safe_block_hash: numbers.hash(),
                finalized_block_hash: numbers.hash(),
            };
            let attributes = (with % 2 == 1).then(|| numbers.attributes(fork));
            let has_custody = with / 2 == 1 && fork >= ApiFork::Amsterdam;
            let custody_columns = has_custody.then(|| B128::from_slice(&numbers.bytes(16)));
            let bytes = plain::forkchoice(fork, state, attributes.as_ref(), custody_columns);
            let expected = ForkchoiceRequest { state, attributes, custody_columns };
            assert_eq!(decode_forkchoice(fork, bytes.into()), Ok(expected), "{fork:?}");
        }
    }
}

/// The two worked examples of `refactor-ssz.md`.
#[test]
fn statuses_are_the_bytes_of_the_specification() {
    let hash = B256::repeat_byte(7);
    let valid = PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash));
    let expected = [&[0, 9, 0, 0, 0, 41, 0, 0, 0][..], hash.as_slice()].concat();
    assert_eq!(whole(encode_status(&valid)), expected);
    let invalid = PayloadStatus::from_status(PayloadStatusEnum::Invalid {
        validation_error: "bad state root".into(),
    });
    let expected = [&[1, 9, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0][..], b"bad state root"].concat();
    assert_eq!(whole(encode_status(&invalid)), expected);
}

#[test]
fn every_status_has_its_number_and_long_errors_are_cut_between_characters() {
    let hash = Some(B256::repeat_byte(1));
    let long = format!("a{}", "é".repeat(600));
    let invalid = |text: &str| PayloadStatusEnum::Invalid { validation_error: text.into() };
    for (code, status, error) in [
        (0, PayloadStatusEnum::Valid, None),
        (1, invalid(""), Some("")),
        (1, invalid(&long), Some(&long[..1023])),
        (2, PayloadStatusEnum::Syncing, None),
        (3, PayloadStatusEnum::Accepted, None),
    ] {
        let status = PayloadStatus::new(status, hash);
        let expected = plain::status(code, &status, error);
        assert_eq!(whole(encode_status(&status)), expected, "{status:?}");
        let updated = ForkchoiceUpdated::new(status);
        for id in [None, Some(PayloadId(B64::repeat_byte(5)))] {
            let updated = ForkchoiceUpdated { payload_id: id, ..updated.clone() };
            let id = id.map(|id| id.0.to_vec()).unwrap_or_default();
            let parts = vec![SszPart::Variable(expected.clone()), SszPart::Variable(id)];
            assert_eq!(whole(encode_forkchoice(&updated)), plain::sequence(parts));
        }
    }
}

#[test]
fn bodies_have_the_fields_of_their_fork_and_absent_ones_are_empty() {
    let mut numbers = RandomNumbers(4);
    for fork in ApiFork::ALL {
        let mut body = || ExecutionPayloadBodyV2 {
            transactions: numbers.lists(20),
            withdrawals: Some(numbers.withdrawals()),
            block_access_list: Some(vec![1; 5000].into()),
        };
        for bodies in [vec![], vec![None], vec![Some(body()), None, Some(body())]] {
            let expected = plain::bodies(fork, &bodies);
            assert_eq!(whole(encode_bodies(fork, &bodies)), expected, "{fork:?}");
        }
    }
}

fn sidecar(numbers: &mut RandomNumbers, blobs: usize, has_cells: bool) -> Arc<BlobSidecar> {
    let blobs: Vec<_> = (0..blobs).map(|_| Blob::repeat_byte(numbers.next() as u8)).collect();
    let mut many = |count: usize| -> Vec<Bytes48> {
        (0..count).map(|_| Bytes48::repeat_byte(numbers.next() as u8)).collect()
    };
    let commitments = many(blobs.len());
    Arc::new(match has_cells {
        true => {
            let cell_proofs = many(128 * blobs.len());
            let sidecar = BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs };
            BlobSidecar::Eip7594(sidecar)
        }
        false => {
            let proofs = many(blobs.len());
            BlobSidecar::Eip4844(BlobTransactionSidecar { blobs, commitments, proofs })
        }
    })
}

#[test]
fn blobs_are_pieces_of_the_pool_and_absent_ones_are_zero() {
    let sidecar = sidecar(&mut RandomNumbers(5), 2, true);
    let blobs: Vec<_> = [Some(1), None, Some(0)]
        .map(|index| index.map(|index| PooledBlob { sidecar: sidecar.clone(), index }))
        .into();
    let entry = |blob: &Option<PooledBlob>| {
        let zero = Blob::ZERO;
        let (bytes, proofs) = match blob {
            Some(blob) => (blob.blob().unwrap(), blob.proofs().unwrap().concat()),
            None => (&zero, Vec::new()),
        };
        let contents = vec![SszPart::Fixed(bytes.to_vec()), SszPart::Variable(proofs)];
        let contents = SszPart::Variable(plain::sequence(contents));
        SszPart::Variable(plain::sequence(vec![
            SszPart::Fixed(vec![u8::from(blob.is_some())]),
            contents,
        ]))
    };
    let entries = plain::sequence(blobs.iter().map(entry).collect());
    let expected = plain::sequence(vec![SszPart::Variable(entries)]);
    let pieces = encode_blobs_v2(&blobs).into_pieces();
    assert!(pieces.concat() == expected);
    for blob in blobs.iter().flatten() {
        let address = blob.blob().unwrap().as_ptr();
        assert!(pieces.iter().any(|piece| piece.as_ptr() == address), "a blob was copied");
    }
}

#[test]
fn blobs_with_one_proof_are_a_list_without_offsets() {
    let sidecar = sidecar(&mut RandomNumbers(6), 1, false);
    let blob = PooledBlob { sidecar: sidecar.clone(), index: 0 };
    let BlobSidecar::Eip4844(parts) = &*sidecar else { unreachable!() };
    let there = [&[1][..], parts.blobs[0].as_slice(), parts.proofs[0].as_slice()].concat();
    let absent = vec![0; 1 + 131_072 + 48];
    let expected = [&[4, 0, 0, 0][..], &there, &absent].concat();
    assert!(whole(encode_blobs_v1(&[Some(blob), None])) == expected);
}

#[test]
fn cells_stand_at_their_indices() {
    // Indices 1 and 15 of 128; the blob lacks the cell of the second.
    let mask = B128::right_padding_from(&[0x02, 0x80]);
    let (cell, proof) = (Cell::repeat_byte(1), Bytes48::repeat_byte(2));
    let blob = BlobCellsAndProofsV1 {
        blob_cells: vec![Some(cell), None],
        proofs: vec![Some(proof), None],
    };
    let list = |item: &[u8]| {
        let at = |index| SszPart::Variable(if index == 1 { item.to_vec() } else { Vec::new() });
        SszPart::Variable(plain::sequence((0..128).map(at).collect()))
    };
    let there = plain::sequence(vec![list(cell.as_slice()), list(proof.as_slice())]);
    let empty = plain::sequence(vec![SszPart::Variable(vec![]), SszPart::Variable(vec![])]);
    let entries = [(1, there), (0, empty)].map(|(mark, contents)| {
        let parts = vec![SszPart::Fixed(vec![mark]), SszPart::Variable(contents)];
        SszPart::Variable(plain::sequence(parts))
    });
    let entries = SszPart::Variable(plain::sequence(entries.into()));
    let expected = plain::sequence(vec![entries]);
    assert!(whole(encode_blobs_v4(mask, &[Some(blob), None])) == expected);
}

#[test]
fn built_payloads_have_their_fields_in_the_specified_order() {
    let mut numbers = RandomNumbers(7);
    for fork in ApiFork::ALL {
        let payload = numbers.payload(fork);
        let sidecars =
            [2, 1].map(|blobs| sidecar(&mut numbers, blobs, fork >= ApiFork::Osaka)).to_vec();
        let requests = Requests::new(numbers.lists(3));
        let value = U256::from_be_bytes(numbers.hash().0);
        let buffer = encode_built_payload_parts(fork, &payload, value, &sidecars, &requests);

        let (mut commitments, mut proofs, mut blobs) = (vec![], vec![], vec![]);
        for sidecar in &sidecars {
            let (of_blobs, of_proofs, all) = match &**sidecar {
                BlobSidecar::Eip4844(s) => (&s.commitments, &s.proofs, &s.blobs),
                BlobSidecar::Eip7594(s) => (&s.commitments, &s.cell_proofs, &s.blobs),
            };
            commitments.extend(of_blobs.concat());
            proofs.extend(of_proofs.concat());
            blobs.extend(all.concat());
        }
        let bundle = [commitments, proofs, blobs].map(SszPart::Variable);
        let list = requests.iter().map(|one| SszPart::Variable(one.to_vec())).collect();
        let mut parts = vec![
            SszPart::Variable(plain::payload(&payload)),
            SszPart::Fixed(value.as_le_slice().to_vec()),
        ];
        if fork >= ApiFork::Cancun {
            parts.push(SszPart::Variable(plain::sequence(bundle.into())));
        }
        if fork >= ApiFork::Prague {
            parts.push(SszPart::Variable(plain::sequence(list)));
        }
        if fork >= ApiFork::Cancun {
            parts.push(SszPart::Fixed(vec![0]));
        }
        assert!(whole(buffer) == plain::sequence(parts), "{fork:?}");
    }
}

#[test]
fn lists_of_hashes_are_containers() {
    let hashes: Vec<_> = (0..3).map(B256::repeat_byte).collect();
    let cells = B128::repeat_byte(0x81);
    let body = plain::sequence(vec![SszPart::Variable(hashes.concat())]);
    assert_eq!(decode_hashes(body.into()), Ok(hashes.clone()));
    let parts = vec![SszPart::Variable(hashes.concat()), SszPart::Fixed(cells.to_vec())];
    let body = plain::sequence(parts);
    assert_eq!(decode_cell_request(body.into()), Ok(CellRequest { hashes, cells }));
}
