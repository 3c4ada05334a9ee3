//! Round trips of messages, and invalid messages.

use super::*;
use alloy_consensus::{
    Eip658Value, Receipt, SignableTransaction, TxEip1559, TxEip4844, TxEip4844WithSidecar, TxLegacy,
};
use alloy_eip2124::{ForkHash, ForkId};
use alloy_eips::{
    BlockHashOrNumber,
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant, Cell},
};
use alloy_primitives::{Address, B256, Bytes, Log, Signature, TxKind, U256, bytes};
use alloy_rlp::Encodable;
use retrie_chainspec::{
    CellMask,
    primitives::{BlockBody, Header, TxType, Withdrawal},
};

fn signature() -> Signature {
    Signature::new(U256::from(1) << 255, U256::from(3) << 250, true)
}

fn legacy(nonce: u64) -> TxLegacy {
    let to = TxKind::Call(Address::repeat_byte(1));
    TxLegacy { nonce, gas_limit: 21_000, to, ..TxLegacy::default() }
}

fn plain() -> PooledTransaction {
    legacy(1).into_signed(signature()).into()
}

fn dynamic() -> PooledTransaction {
    TxEip1559 { chain_id: 1, nonce: 7, ..TxEip1559::default() }.into_signed(signature()).into()
}

fn blob() -> PooledTransaction {
    let sidecar = BlobTransactionSidecar {
        blobs: vec![Blob::repeat_byte(3)],
        commitments: vec![Bytes48::repeat_byte(4)],
        proofs: vec![Bytes48::repeat_byte(5)],
    };
    with_sidecar(BlobTransactionSidecarVariant::Eip4844(sidecar))
}

/// As eth/72 sends it: proofs of cells, and no blobs.
fn elided_blob() -> PooledTransaction {
    with_sidecar(BlobTransactionSidecarVariant::Eip7594(BlobTransactionSidecarEip7594 {
        blobs: Vec::new(),
        commitments: vec![Bytes48::repeat_byte(4)],
        cell_proofs: vec![Bytes48::repeat_byte(5); 128],
    }))
}

fn with_sidecar(sidecar: BlobTransactionSidecarVariant) -> PooledTransaction {
    let tx = TxEip4844 {
        chain_id: 1,
        blob_versioned_hashes: vec![B256::repeat_byte(1)],
        ..TxEip4844::default()
    };
    TxEip4844WithSidecar { tx, sidecar }.into_signed(signature()).into()
}

fn receipt(tx_type: TxType, status: Eip658Value) -> BlockReceipt {
    let log = Log::new_unchecked(Address::repeat_byte(9), vec![B256::ZERO], bytes!("0102"));
    BlockReceipt {
        tx_type,
        receipt: Receipt { status, cumulative_gas_used: 1 << 40, logs: vec![log] },
    }
}

fn body() -> BlockBody {
    BlockBody {
        transactions: vec![legacy(1).into_signed(signature()).into()],
        ommers: vec![Header::default()],
        withdrawals: Some(vec![Withdrawal::default()].into()),
    }
}

fn range() -> BlockRange {
    BlockRange { earliest: 3, latest: 1 << 33, latest_hash: B256::repeat_byte(2) }
}

fn status(version: EthVersion) -> Status {
    let fork_id = ForkId { hash: ForkHash([1, 2, 3, 4]), next: 5 };
    Status { version, network: 1, genesis: B256::repeat_byte(1), fork_id, range: range() }
}

/// One of each.
fn messages(version: EthVersion) -> Vec<EthMessage> {
    let hashes = vec![B256::repeat_byte(1), B256::repeat_byte(2)];
    let from = |start, reverse| GetBlockHeaders { start, limit: 10, skip: 3, reverse };
    let mut requests = vec![
        EthRequest::Headers(from(BlockHashOrNumber::Number(0), false)),
        EthRequest::Headers(from(BlockHashOrNumber::Number(u64::MAX), true)),
        EthRequest::Headers(from(BlockHashOrNumber::Hash(B256::repeat_byte(7)), true)),
        EthRequest::Bodies(hashes.clone()),
        EthRequest::PooledTransactions(hashes.clone()),
        EthRequest::Receipts { first_index: 0, hashes: hashes.clone() },
    ];
    let lists = vec![
        vec![
            receipt(TxType::Legacy, Eip658Value::PostState(B256::repeat_byte(5))),
            receipt(TxType::Eip7702, Eip658Value::Eip658(false)),
            receipt(TxType::Legacy, Eip658Value::Eip658(true)),
        ],
        vec![],
    ];
    let mut responses = vec![
        EthResponse::Headers(vec![Header::default(), Header { number: 4, ..Header::default() }]),
        EthResponse::Bodies(vec![body(), BlockBody::default()]),
        EthResponse::PooledTransactions(vec![plain(), dynamic(), blob()]),
        EthResponse::Receipts { last_incomplete: false, lists: lists.clone() },
    ];
    if version >= EthVersion::Eth70 {
        requests.push(EthRequest::Receipts { first_index: 300, hashes: hashes.clone() });
        responses.push(EthResponse::Receipts { last_incomplete: true, lists });
    }
    if version >= EthVersion::Eth71 {
        requests.push(EthRequest::AccessLists(hashes.clone()));
        responses.push(EthResponse::AccessLists(vec![None, Some(bytes!("c3820102"))]));
    }
    let mut known = NewPooledTransactionHashes {
        types: vec![0, 3],
        sizes: vec![100, 1 << 20],
        hashes: hashes.clone(),
        cells: CellMask::default(),
    };
    if version >= EthVersion::Eth72 {
        known.cells = CellMask::ALL;
        let mask = CellMask::from([3_u8; 16]);
        requests.push(EthRequest::Cells { hashes: hashes.clone(), mask });
        let cells = vec![(hashes[0], vec![Cell::repeat_byte(6); 3]), (hashes[1], vec![])];
        responses.push(EthResponse::Cells { cells, mask });
        responses.push(EthResponse::PooledTransactions(vec![elided_blob(), plain()]));
    }
    let mut all = vec![
        EthMessage::Status(status(version)),
        EthMessage::BlockRangeUpdate(range()),
        EthMessage::Gossip(TxGossip::Transactions(vec![plain(), dynamic()])),
        EthMessage::Gossip(TxGossip::Hashes(known)),
    ];
    all.extend(requests.iter().map(|request| EthMessage::Response(7, request.empty_response())));
    all.extend(requests.into_iter().map(|request| EthMessage::Request(0, request)));
    all.extend(responses.into_iter().map(|response| EthMessage::Response(u64::MAX, response)));
    all
}

#[test]
fn messages_are_read_as_they_were_written() {
    for version in EthVersion::ALL {
        for message in messages(version) {
            let (id, payload) = message.encode(version).unwrap();
            assert!(limit(version, id).is_some_and(|limit| payload.len() <= limit), "{message:?}");
            assert_eq!(EthMessage::decode(version, id, &payload), Ok(message));
        }
    }
}

#[test]
fn what_is_cut_or_too_long_is_not_read() {
    for version in EthVersion::ALL {
        for message in messages(version) {
            let (id, payload) = message.encode(version).unwrap();
            let step = (payload.len() / 200).max(1);
            for end in (0..payload.len()).step_by(step) {
                assert!(EthMessage::decode(version, id, &payload[..end]).is_err(), "{message:?}");
            }
            let longer = [&payload[..], &[0x80]].concat();
            assert!(EthMessage::decode(version, id, &longer).is_err(), "{message:?}");
        }
    }
}

/// Whatever bytes are changed, the decoder ends, and what it reads is written as it was read.
#[test]
fn changed_bytes_do_no_harm() {
    for version in EthVersion::ALL {
        for message in messages(version) {
            let (id, payload) = message.encode(version).unwrap();
            for at in (0..payload.len()).take(300) {
                for change in [1, 0x40, 0x80, 0xff] {
                    let mut changed = payload.clone();
                    changed[at] ^= change;
                    if let Ok(read) = EthMessage::decode(version, id, &changed) {
                        assert!(read.encode(version).is_some(), "{read:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_later_versions_are_unknown_to_earlier_ones() {
    let lists = EthRequest::AccessLists(vec![]);
    for version in [EthVersion::Eth69, EthVersion::Eth70] {
        assert_eq!(EthMessage::Request(1, lists.clone()).encode(version), None);
        let unknown = EthDecodeError::Unknown { id: id::GET_ACCESS_LISTS, version };
        assert_eq!(EthMessage::decode(version, id::GET_ACCESS_LISTS, &[0xc0]), Err(unknown));
    }
    let cells = EthRequest::Cells { hashes: vec![], mask: CellMask::ALL };
    assert_eq!(EthMessage::Request(1, cells).encode(EthVersion::Eth71), None);
    assert_eq!(limit(EthVersion::Eth71, id::CELLS), None);
    let parts = EthRequest::Receipts { first_index: 1, hashes: vec![] };
    assert_eq!(EthMessage::Request(1, parts).encode(EthVersion::Eth69), None);
    // What proof of work had.
    for id in [0x01, 0x07, 0x0b, 0x0d, 0x0e, 0x14] {
        assert_eq!(limit(EthVersion::Eth71, id), None);
    }
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let payload = items.concat();
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend(payload);
    out
}

fn refused(id: u8, payload: &[u8]) -> String {
    EthMessage::decode(EthVersion::Eth71, id, payload).unwrap_err().to_string()
}

#[test]
fn long_lists_are_counted_before_they_are_decoded() {
    let answer = |items: Vec<Vec<u8>>| list(&[vec![0x01], list(&items)]);
    let small = vec![vec![0xc0]; MAX_ITEMS + 1];
    for id in [id::HEADERS, id::BODIES, id::ACCESS_LISTS] {
        assert!(refused(id, &answer(small.clone())).contains("1024"));
    }
    // Transactions of a byte each would be a hundred times as long in memory.
    let tiny = vec![vec![0xc0]; 1000];
    assert!(refused(id::POOLED_TRANSACTIONS, &answer(tiny.clone())).contains("16 are allowed"));
    assert!(refused(id::TRANSACTIONS, &list(&tiny)).contains("16 are allowed"));
    let body = list(&[list(&tiny), list(&[])]);
    assert!(refused(id::BODIES, &answer(vec![body])).contains("16 are allowed"));
    let receipts = vec![list(&vec![vec![0xc0]; 400_001])];
    let receipts = list(&[vec![0x01], vec![0x80], list(&receipts)]);
    assert!(refused(id::RECEIPTS, &receipts).contains("400000 are allowed"));
}

#[test]
fn values_that_nobody_may_send_are_refused() {
    let encode = |message: EthMessage| message.encode(EthVersion::Eth71).unwrap().1;
    let wrong = BlockRange { earliest: 10, latest: 8, ..range() };
    assert!(
        refused(id::BLOCK_RANGE_UPDATE, &encode(EthMessage::BlockRangeUpdate(wrong)))
            .contains("earliest")
    );
    let zero = BlockRange { latest_hash: B256::ZERO, ..range() };
    assert!(
        refused(id::BLOCK_RANGE_UPDATE, &encode(EthMessage::BlockRangeUpdate(zero)))
            .contains("zero")
    );
    let blobs = EthMessage::Gossip(TxGossip::Transactions(vec![blob()]));
    assert!(refused(id::TRANSACTIONS, &encode(blobs)).contains("blob"));
    for (types, sizes, hashes) in [(1, 2, 1), (1, 1, 2), (2, 1, 1), (0, 0, 1)] {
        let known = NewPooledTransactionHashes {
            types: vec![2; types],
            sizes: vec![9; sizes],
            hashes: vec![B256::ZERO; hashes],
            ..Default::default()
        };
        let payload = encode(EthMessage::Gossip(TxGossip::Hashes(known)));
        assert!(
            EthMessage::decode(EthVersion::Eth71, id::NEW_POOLED_TRANSACTION_HASHES, &payload)
                .is_err()
        );
    }
    // A blob transaction as blocks have it, where one with its blobs is asked for.
    let tx = TxEip4844 { chain_id: 1, ..TxEip4844::default() }.into_signed(signature());
    let block: retrie_chainspec::primitives::Transaction = tx.into();
    let mut bare = Vec::new();
    block.encode(&mut bare);
    assert!(
        EthMessage::decode(
            EthVersion::Eth71,
            id::POOLED_TRANSACTIONS,
            &list(&[vec![1], list(&[bare])])
        )
        .is_err()
    );
}

#[test]
fn lists_that_are_not_there_are_empty_strings() {
    let response = EthResponse::AccessLists(vec![None, Some(Bytes::from_static(&[0xc1, 0x05]))]);
    let (_, payload) = EthMessage::Response(1, response.clone()).encode(EthVersion::Eth71).unwrap();
    assert_eq!(payload, [0xc5, 0x01, 0xc3, 0x80, 0xc1, 0x05]);
    // As an earlier text of EIP-8159 had it.
    let read = EthMessage::decode(
        EthVersion::Eth71,
        id::ACCESS_LISTS,
        &[0xc5, 0x01, 0xc3, 0xc0, 0xc1, 0x05],
    );
    assert_eq!(read, Ok(EthMessage::Response(1, response)));
}

/// The mask of cells as EIP-8070 and as go-ethereum write it, and lists that do not fit together.
#[test]
fn cells_of_blobs_are_read_strictly_and_their_masks_are_not() {
    let read = |id, payload: &[u8]| EthMessage::decode(EthVersion::Eth72, id, payload);
    let of_mask = |mask: &[u8]| {
        let mask = [&[0x80 + mask.len() as u8][..], mask].concat();
        read(id::NEW_POOLED_TRANSACTION_HASHES, &list(&[vec![0x80], vec![0xc0], vec![0xc0], mask]))
    };
    let none = NewPooledTransactionHashes::default();
    for mask in [&[][..], &[0; 16]] {
        assert_eq!(of_mask(mask), Ok(EthMessage::Gossip(TxGossip::Hashes(none.clone()))));
    }
    let all = NewPooledTransactionHashes { cells: CellMask::ALL, ..none };
    assert_eq!(of_mask(&[0xff; 16]), Ok(EthMessage::Gossip(TxGossip::Hashes(all))));
    assert!(of_mask(&[0xff; 15]).is_err() && of_mask(&[0xff; 17]).is_err());

    let hash = [&[0xa0_u8][..], &[7; 32]].concat();
    let cell = |bytes: usize| alloy_rlp::encode(Bytes::from(vec![1_u8; bytes]));
    let answer = |hashes: usize, lists: &[Vec<u8>]| {
        let hashes = list(&vec![hash.clone(); hashes]);
        read(id::CELLS, &list(&[vec![1], hashes, list(lists), vec![0x80]]))
    };
    assert!(answer(1, &[list(&[cell(2048)])]).is_ok());
    for (hashes, lists) in [
        (2, vec![list(&[cell(2048)])]),
        (1, vec![list(&[]), list(&[])]),
        (1, vec![list(&[cell(2047)])]),
        (1, vec![list(&[cell(2049)])]),
        (1, vec![list(&vec![vec![0x80]; 3_000])]),
        (1, vec![cell(2048)]),
    ] {
        assert!(answer(hashes, &lists).is_err(), "{hashes} {}", lists.len());
    }
}

#[test]
fn the_id_of_a_request_is_found_without_decoding() {
    for number in [0, 1, 0x80, u64::MAX] {
        let message = EthMessage::Response(number, EthResponse::Bodies(vec![body()]));
        let (_, payload) = message.encode(EthVersion::Eth69).unwrap();
        assert_eq!(request_id(&payload), Some(number));
    }
    assert_eq!([request_id(&[]), request_id(&[0x80]), request_id(&[0xc0])], [None; 3]);
}

/// A decoder for each version: the first byte is the message's id.
pub(crate) fn fuzz() -> Vec<crate::fuzz::FuzzDecoder> {
    fn run<const AT: usize>(bytes: &[u8]) -> bool {
        let mut version = EthVersion::ALL;
        version.reverse();
        let version = version[AT];
        let message = bytes.split_first();
        message.is_some_and(|(id, payload)| EthMessage::decode(version, *id, payload).is_ok())
    }
    let seeds = |version| {
        let all = messages(version).into_iter().filter_map(|message| message.encode(version));
        all.map(|(id, payload)| [vec![id], payload].concat()).collect()
    };
    let decoder =
        |name, version, run| crate::fuzz::FuzzDecoder { name, seeds: seeds(version), run };
    vec![
        decoder("eth69", EthVersion::Eth69, run::<0>),
        decoder("eth70", EthVersion::Eth70, run::<1>),
        decoder("eth71", EthVersion::Eth71, run::<2>),
        decoder("eth72", EthVersion::Eth72, run::<3>),
    ]
}
