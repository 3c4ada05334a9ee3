use super::{
    codec::{MAX_ITEMS, id},
    *,
};
use alloy_consensus::EMPTY_ROOT_HASH;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, U256};

fn account(nonce: u64, storage_root: B256, code_hash: B256) -> SlimAccount {
    SlimAccount { nonce, balance: U256::from(1000), storage_root, code_hash }
}

fn messages() -> Vec<SnapMessage> {
    let hash = B256::repeat_byte;
    let slims = [
        account(0, EMPTY_ROOT_HASH, KECCAK256_EMPTY),
        account(7, hash(3), KECCAK256_EMPTY),
        account(u64::MAX, EMPTY_ROOT_HASH, hash(4)),
    ];
    let leaf = |n: u8, value: Bytes| SnapLeaf { key: hash(n), value };
    let accounts = (1..).zip(slims).map(|(n, slim)| leaf(n, slim.encode())).collect();
    let slots = vec![
        vec![leaf(1, Bytes::from_static(&[5])), leaf(2, Bytes::from_static(&[0x81, 0x80]))],
        Vec::new(),
        vec![leaf(3, vec![0xa0; 33].into())],
    ];
    let nodes: Vec<Bytes> = vec![vec![0xc0].into(), vec![1; 532].into(), Bytes::new()];
    let requests = [
        SnapRequest::Accounts { root: hash(1), first: hash(0), last: hash(0xff), bytes: 1 << 20 },
        SnapRequest::Storage {
            root: hash(1),
            accounts: vec![hash(2), hash(3)],
            first: Bytes::new(),
            last: vec![0xff; 32].into(),
            bytes: 0,
        },
        SnapRequest::Codes { hashes: vec![hash(9); 3], bytes: 5 },
        SnapRequest::Nodes {
            root: hash(1),
            paths: vec![vec![vec![0x00].into()], vec![vec![7; 32].into(), vec![0x11].into()]],
            bytes: 5,
        },
        SnapRequest::AccessLists { hashes: vec![hash(9), hash(8)], bytes: 2 << 20 },
        SnapRequest::AccessLists { hashes: Vec::new(), bytes: 0 },
    ];
    let list = Bytes::from_static(&[0xc3, 0x82, 1, 2]);
    let responses = [
        SnapResponse::Accounts { accounts, proof: nodes.clone() },
        SnapResponse::Accounts { accounts: Vec::new(), proof: Vec::new() },
        SnapResponse::Storage { slots, proof: nodes.clone() },
        SnapResponse::Codes(nodes.clone()),
        SnapResponse::Nodes(nodes),
        SnapResponse::AccessLists(vec![None, Some(list), Some(vec![0xc0].into()), None]),
        SnapResponse::AccessLists(Vec::new()),
    ];
    let requests = (0..).zip(requests).map(|(n, request)| SnapMessage::Request(n, request));
    let responses = responses.map(|response| SnapMessage::Response(u64::MAX, response));
    requests.chain(responses).collect()
}

/// The versions that have messages with this id.
fn versions(id: u8) -> Vec<SnapVersion> {
    SnapVersion::ALL.into_iter().filter(|version| limit(*version, id).is_some()).collect()
}

fn decode(id: u8, payload: &[u8]) -> Result<SnapMessage, SnapDecodeError> {
    SnapMessage::decode(versions(id)[0], id, payload)
}

#[test]
fn messages_come_back_as_they_were() {
    for message in messages() {
        let (id, payload) = message.encode();
        for version in versions(id) {
            assert!(payload.len() <= limit(version, id).unwrap());
            assert_eq!(SnapMessage::decode(version, id, &payload).unwrap(), message);
        }
        let number = match &message {
            SnapMessage::Request(number, request) => {
                assert_eq!(request.answered_by(), id + 1);
                assert!(!is_response(id) && is_response(id + 1));
                let of: Vec<_> =
                    SnapVersion::ALL.into_iter().filter(|of| request.is_of(*of)).collect();
                assert_eq!((&of, of.len()), (&versions(id), if id < 6 { 2 } else { 1 }));
                number
            }
            SnapMessage::Response(number, _) => number,
        };
        assert_eq!(request_id(&payload), Some(*number));
        for cut in 0..payload.len().min(300) {
            assert!(decode(id, &payload[..cut]).is_err(), "{id}: cut at {cut}");
        }
        assert!(decode(id, &[&payload[..], &[0]].concat()).is_err());
    }
    for (version, ids) in [(SnapVersion::Snap1, 8..=10), (SnapVersion::Snap2, 6..=7)] {
        for id in ids {
            assert_eq!(limit(version, id), None);
            let unknown = Err(SnapDecodeError::Unknown { id, version });
            assert_eq!(SnapMessage::decode(version, id, &[0xc0]), unknown);
        }
    }
    assert_eq!(limit(SnapVersion::Snap2, 10), None);
}

/// The forms that the devp2p specification and geth give the fields.
#[test]
fn bytes_are_as_specified() {
    let bytes = |message: SnapMessage| alloy_primitives::hex::encode(message.encode().1);
    let key = B256::repeat_byte(0xbb);
    let slim = account(5, EMPTY_ROOT_HASH, KECCAK256_EMPTY).encode();
    assert_eq!(slim[..], [0xc6, 5, 0x82, 3, 0xe8, 0x80, 0x80]);
    let accounts = vec![SnapLeaf { key, value: slim }];
    let response = SnapResponse::Accounts { accounts, proof: vec![vec![1, 2].into()] };
    // The account is a list within the list of the leaf.
    let hash = format!("a0{key:x}").replace("0x", "");
    assert_eq!(
        bytes(SnapMessage::Response(9, response)),
        format!("ef09e9e8{hash}c6058203e88080c3820102")
    );
    let slots = vec![vec![SnapLeaf { key, value: Bytes::from_static(&[0x82, 1, 2]) }]];
    let response = SnapResponse::Storage { slots, proof: Vec::new() };
    // The value of a slot is a byte string.
    assert_eq!(
        bytes(SnapMessage::Response(9, response)),
        format!("e909e7e6e5{hash}83820102c0").replace("e909e7e6e5", "ea09e7e6e5")
    );
    let request = SnapRequest::AccessLists { hashes: vec![key], bytes: 1 };
    assert_eq!(bytes(SnapMessage::Request(9, request)), format!("e409e1{hash}01"));
    // A list is an item itself; the empty string is none.
    let lists = vec![None, Some(vec![0xc1, 0xc0].into())];
    let response = SnapResponse::AccessLists(lists);
    assert_eq!(bytes(SnapMessage::Response(9, response)), "c509c380c1c0");
}

#[test]
fn an_access_list_is_a_list_or_the_empty_string() {
    let decode = |items: &[u8]| {
        let length = items.len() as u8;
        let payload = [&[0xc2 + length, 9, 0xc0 + length], items].concat();
        SnapMessage::decode(SnapVersion::Snap2, id::ACCESS_LISTS, &payload)
    };
    let two = SnapResponse::AccessLists(vec![Some(vec![0xc0].into()), None]);
    assert_eq!(decode(&[0xc0, 0x80]), Ok(SnapMessage::Response(9, two)));
    // Another string, a list that ends beyond the message, the empty string in a longer form.
    for items in [&[0x05][..], &[0x81, 0x80], &[0xc2, 0], &[0xb8, 0], &[0xf8, 1, 0]] {
        assert!(decode(items).is_err(), "{items:?}");
    }
}

#[test]
fn accounts_have_one_encoding() {
    for slim in [
        account(0, EMPTY_ROOT_HASH, KECCAK256_EMPTY),
        account(1, B256::repeat_byte(1), B256::repeat_byte(2)),
    ] {
        let bytes = slim.encode();
        assert_eq!(SlimAccount::decode(&bytes), Some(slim));
        assert_eq!(SlimAccount::decode(&[&bytes[..], &[0]].concat()), None);
        for cut in 0..bytes.len() {
            assert_eq!(SlimAccount::decode(&bytes[..cut]), None);
        }
    }
    // A default that is written out, and a hash that is too short.
    for (root, code) in [
        (EMPTY_ROOT_HASH.to_vec(), Vec::new()),
        (Vec::new(), KECCAK256_EMPTY.to_vec()),
        (vec![1; 31], Vec::new()),
    ] {
        let mut fields = vec![1, 0x80];
        for field in [root, code] {
            alloy_rlp::Encodable::encode(&Bytes::from(field), &mut fields);
        }
        let mut bytes = Vec::new();
        alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut bytes);
        bytes.extend(fields);
        assert_eq!(SlimAccount::decode(&bytes), None);
    }
}

#[test]
fn requests_have_limits() {
    let hashes = |count| {
        SnapMessage::Request(1, SnapRequest::Codes { hashes: vec![B256::ZERO; count], bytes: 1 })
            .encode()
    };
    let lists = |count| {
        let hashes = vec![B256::ZERO; count];
        SnapMessage::Request(1, SnapRequest::AccessLists { hashes, bytes: 1 }).encode()
    };
    let entries =
        |count| SnapMessage::Response(1, SnapResponse::AccessLists(vec![None; count])).encode();
    let all: [&dyn Fn(usize) -> (u8, Vec<u8>); 3] = [&hashes, &lists, &entries];
    for message in all {
        let (id, payload) = message(MAX_ITEMS);
        assert!(decode(id, &payload).is_ok());
        let (id, payload) = message(MAX_ITEMS + 1);
        assert_eq!(decode(id, &payload), Err(SnapDecodeError::TooMany { id }));
    }
    let nodes = |count| {
        let paths = vec![vec![Bytes::new(); count / 2]; 2];
        SnapMessage::Request(1, SnapRequest::Nodes { root: B256::ZERO, paths, bytes: 1 }).encode()
    };
    let (id, payload) = nodes(MAX_ITEMS);
    assert!(decode(id, &payload).is_ok());
    let (id, payload) = nodes(MAX_ITEMS + 2);
    assert_eq!(decode(id, &payload), Err(SnapDecodeError::TooMany { id }));
}

pub(crate) fn fuzz() -> Vec<crate::fuzz::FuzzDecoder> {
    fn run(version: SnapVersion, bytes: &[u8]) -> bool {
        let message = bytes.split_first();
        message.is_some_and(|(id, payload)| SnapMessage::decode(version, *id, payload).is_ok())
    }
    fn run_account(bytes: &[u8]) -> bool {
        SlimAccount::decode(bytes).is_some()
    }
    let seeds = |version| {
        let encoded = messages().into_iter().map(|message| message.encode());
        let of = encoded.filter(|(id, _)| limit(version, *id).is_some());
        of.map(|(id, payload)| [vec![id], payload].concat()).collect()
    };
    let accounts = vec![account(3, B256::repeat_byte(1), KECCAK256_EMPTY).encode().to_vec()];
    vec![
        crate::fuzz::FuzzDecoder {
            name: "snap1",
            seeds: seeds(SnapVersion::Snap1),
            run: |bytes| run(SnapVersion::Snap1, bytes),
        },
        crate::fuzz::FuzzDecoder {
            name: "snap2",
            seeds: seeds(SnapVersion::Snap2),
            run: |bytes| run(SnapVersion::Snap2, bytes),
        },
        crate::fuzz::FuzzDecoder { name: "snap1-account", seeds: accounts, run: run_account },
    ]
}
