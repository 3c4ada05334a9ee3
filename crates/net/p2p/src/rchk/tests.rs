use super::{codec::MAX_ITEMS, *};
use alloy_primitives::{B256, Bytes};
use retrie_state::ChunkId;

/// How many message ids the protocol uses.
const MESSAGE_COUNT: u8 = 4;

fn messages() -> Vec<RchkMessage> {
    let id = |byte: u8, len| ChunkId::new(vec![byte; len]).unwrap();
    let chunks = RchkRequest::Chunks {
        format: "mpt".to_owned(),
        block: B256::repeat_byte(7),
        ids: vec![id(0, 0), id(1, 1), id(0x80, 1), id(3, 60), id(4, ChunkId::MAX_LEN)],
    };
    let parts = vec![
        Some(Bytes::from_static(b"\x00")),
        None,
        Some(Bytes::from_static(b"\xc0")),
        Some(vec![9; 3000].into()),
        Some(Bytes::new()),
    ];
    let refusals =
        [RchkRefusal::Busy, RchkRefusal::NoState, RchkRefusal::Format, RchkRefusal::Failed];
    let mut all = vec![
        RchkMessage::Request(0, chunks.clone()),
        RchkMessage::Request(u64::MAX, RchkRequest::Codes(vec![B256::repeat_byte(1); 3])),
        RchkMessage::Request(1, RchkRequest::Codes(Vec::new())),
        RchkMessage::Response(5, RchkResponse::Chunks(Ok(parts.clone()))),
        RchkMessage::Response(6, RchkResponse::Codes(Ok(parts))),
        RchkMessage::Response(7, RchkResponse::Codes(Ok(Vec::new()))),
    ];
    all.extend(refusals.map(|refusal| RchkMessage::Response(8, chunks.answer(Err(refusal)))));
    all
}

#[test]
fn messages_come_back_as_they_were() {
    for message in messages() {
        let (id, payload) = message.encode();
        assert!(id < MESSAGE_COUNT && payload.len() <= limit(id).unwrap());
        assert_eq!(RchkMessage::decode(id, &payload).unwrap(), message);
        let (RchkMessage::Request(number, _) | RchkMessage::Response(number, _)) = message;
        assert_eq!(request_id(&payload), Some(number));
        for cut in 0..payload.len().min(200) {
            assert!(RchkMessage::decode(id, &payload[..cut]).is_err(), "{id}: cut at {cut}");
        }
        assert!(RchkMessage::decode(id, &[&payload[..], &[0]].concat()).is_err());
    }
    assert_eq!(limit(MESSAGE_COUNT), None);
    assert_eq!(RchkMessage::decode(9, &[0xc0]), Err(RchkDecodeError::Unknown(9)));
}

/// The bytes in `docs/network.md`.
#[test]
fn bytes_are_as_documented() {
    let bytes = |message: RchkMessage| alloy_primitives::hex::encode(message.encode().1);
    let id = ChunkId::new(vec![1, 2]).unwrap();
    let block = B256::repeat_byte(0xbb);
    let request = RchkRequest::Chunks { format: "mpt".to_owned(), block, ids: vec![id] };
    let hash = "bb".repeat(32);
    assert_eq!(bytes(RchkMessage::Request(9, request)), format!("ea09836d7074a0{hash}c3820102"));
    assert_eq!(
        bytes(RchkMessage::Request(9, RchkRequest::Codes(vec![block]))),
        format!("e309e1a0{hash}")
    );
    let parts = vec![Some(Bytes::from_static(b"\x01\x02")), None];
    assert_eq!(
        bytes(RchkMessage::Response(9, RchkResponse::Chunks(Ok(parts)))),
        "c70980c4820102c0"
    );
    assert_eq!(
        bytes(RchkMessage::Response(9, RchkResponse::Codes(Err(RchkRefusal::NoState)))),
        "c30902c0"
    );
}

#[test]
fn what_nobody_may_send_is_refused() {
    let hashes =
        |count| RchkMessage::Request(1, RchkRequest::Codes(vec![B256::ZERO; count])).encode();
    let (id, payload) = hashes(MAX_ITEMS);
    assert!(RchkMessage::decode(id, &payload).is_ok());
    let (id, payload) = hashes(MAX_ITEMS + 1);
    assert_eq!(RchkMessage::decode(id, &payload), Err(RchkDecodeError::TooMany { id }));
    // A refusal with parts, and an unknown refusal.
    for payload in [&[0xc4, 9, 2, 0xc1, 1][..], &[0xc3, 9, 5, 0xc0]] {
        let refused = RchkMessage::decode(id::CHUNKS, payload);
        assert!(matches!(refused, Err(RchkDecodeError::Value { .. })), "{refused:?}");
    }
    for format in ["a format", "0123456789012345678901234567890123"] {
        let request =
            RchkRequest::Chunks { format: format.to_owned(), block: B256::ZERO, ids: Vec::new() };
        let (id, payload) = RchkMessage::Request(1, request).encode();
        let refused = RchkMessage::decode(id, &payload);
        assert!(matches!(refused, Err(RchkDecodeError::Value { .. })), "{refused:?}");
    }
}

pub(crate) fn fuzz() -> Vec<crate::fuzz::FuzzDecoder> {
    fn run(bytes: &[u8]) -> bool {
        let message = bytes.split_first();
        message.is_some_and(|(id, payload)| RchkMessage::decode(*id, payload).is_ok())
    }
    let seed = |message: RchkMessage| {
        let (id, payload) = message.encode();
        [vec![id], payload].concat()
    };
    let seeds = messages().into_iter().map(seed).collect();
    vec![crate::fuzz::FuzzDecoder { name: "rchk1", seeds, run }]
}
