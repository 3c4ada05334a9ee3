//! Handshakes and frames: the vectors of EIP-8, round trips, and invalid input.

use super::{
    handshake::{HandshakeKeys, open, read_ack, read_auth, secrets},
    *,
};
use crate::vectors::vectors;
use alloy_primitives::{B256, B512, hex};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use secp256k1::{PublicKey, SecretKey};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

type StreamHalves = (MessageReader<ReadHalf<DuplexStream>>, MessageWriter<WriteHalf<DuplexStream>>);

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn key(value: &Value) -> SecretKey {
    SecretKey::from_byte_array(bytes(value).try_into().unwrap()).unwrap()
}

fn id_of(key: &SecretKey) -> B512 {
    node_id(&PublicKey::from_secret_key_global(key))
}

#[test]
fn packets_of_eip_8_are_read_and_give_its_secrets() {
    let Some(vectors) = vectors("rlpx-eip8.json") else { return };
    let keys = &vectors["keys"];
    let [a, b] = ["static_key_a", "static_key_b"].map(|name| key(&keys[name]));
    let [of_a, of_b] = ["a", "b"].map(|who| HandshakeKeys {
        key: key(&keys[format!("ephemeral_key_{who}")]),
        nonce: B256::from_slice(&bytes(&keys[format!("nonce_{who}")])),
    });
    let auth = bytes(&vectors["auth"][1]["packet"]);
    let ack = bytes(&vectors["ack"][1]["packet"]);
    let (who, from_a) = read_auth(&b, &open(&b, &auth).unwrap()).unwrap();
    assert_eq!(node_id(&who), id_of(&a));
    assert_eq!(
        (from_a.key, from_a.nonce),
        (PublicKey::from_secret_key_global(&of_a.key), of_a.nonce)
    );
    let from_b = read_ack(&open(&a, &ack).unwrap()).unwrap();
    assert_eq!(
        (from_b.key, from_b.nonce),
        (PublicKey::from_secret_key_global(&of_b.key), of_b.nonce)
    );

    let mut at_b = secrets(false, &of_b, &from_a, &auth, &ack);
    let expected = &vectors["secrets"];
    assert_eq!(at_b.aes.as_slice(), bytes(&expected["aes_secret"]));
    assert_eq!(at_b.mac.as_slice(), bytes(&expected["mac_secret"]));
    let at_a = secrets(true, &of_a, &from_b, &auth, &ack);
    assert_eq!(at_a.ingress.finalize(), at_b.egress.clone().finalize());
    at_b.ingress.update(b"foo");
    assert_eq!(at_b.ingress.finalize().as_slice(), bytes(&expected["ingress_mac_after_foo"]));

    // The form before EIP-8 uses the same cipher, without a length.
    let old = bytes(&vectors["auth"][0]["packet"]);
    let text = ecies::decrypt(&b, &old, &[]).unwrap();
    assert!(text.windows(32).any(|part| part == of_a.nonce.as_slice()));
}

#[test]
fn a_hello_of_the_future_is_read() {
    let Some(vectors) = vectors("rlpx-eip8.json") else { return };
    let packet = bytes(&vectors["hello"][0]["packet"]);
    let hello = Hello::decode(&packet).unwrap();
    assert_eq!(hello.version, 55);
    assert_eq!(hello.client, "kneth/v0.91/plan9");
    let names: Vec<_> = hello.capabilities.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["eth/61", "mork/22"]);
    assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
}

async fn pair() -> (StreamHalves, StreamHalves) {
    let (mut one, mut two) = tokio::io::duplex(1 << 20);
    let [dials, listens] = [random_key(), random_key()];
    let remote = id_of(&listens);
    let (ours, theirs) =
        tokio::join!(initiate(&mut one, &dials, &remote), accept(&mut two, &listens));
    let (theirs, who) = theirs.unwrap();
    assert_eq!(who, id_of(&dials));
    let ends = |stream, secrets: &RlpxSecrets| {
        let (reader, writer) = tokio::io::split(stream);
        connect(reader, writer, secrets)
    };
    (ends(one, &ours.unwrap()), ends(two, &theirs))
}

#[tokio::test]
async fn messages_come_as_they_were_sent() {
    let ((mut reader, mut writer), (mut their_reader, mut their_writer)) = pair().await;
    let mut random = StdRng::seed_from_u64(1);
    for snappy in [false, true] {
        if snappy {
            reader.set_snappy();
            writer.set_snappy();
            their_reader.set_snappy();
            their_writer.set_snappy();
        }
        for length in [0, 1, 14, 15, 16, 17, 31, 32, 33, 70_000, 300_000] {
            let mut payload = vec![0; length];
            random.fill_bytes(&mut payload[length / 2..]);
            for id in [0, 1, 0x10, 0x7f] {
                writer.write(id, &payload).await.unwrap();
                let raw = their_reader.read(|_| Some(length)).await.unwrap();
                assert_eq!(raw, RawMessage { id, payload: payload.clone() });
                their_writer.write(id, &payload).await.unwrap();
                assert_eq!(reader.read(|_| Some(length)).await.unwrap().payload, payload);
            }
        }
    }
}

#[tokio::test]
async fn one_wrong_bit_anywhere_in_a_frame_is_noticed() {
    for at in (0..32 + 48 + 16).step_by(5) {
        let (mut one, mut two) = tokio::io::duplex(1 << 16);
        let [dials, listens] = [random_key(), random_key()];
        let remote = id_of(&listens);
        let (ours, theirs) =
            tokio::join!(initiate(&mut one, &dials, &remote), accept(&mut two, &listens));
        let (_, mut egress) = frame::directions(&ours.unwrap());
        let mut frame = egress.frame(&[&[0x10], &[7; 40]]);
        assert_eq!(frame.len(), 32 + 48 + 16);
        frame[at] ^= 1;
        one.write_all(&frame).await.unwrap();
        let (reader, writer) = tokio::io::split(two);
        let (mut reader, _) = connect(reader, writer, &theirs.unwrap().0);
        // The first block of a body gives its limit, and is read before the MAC.
        let error = reader.read(|_| Some(1000)).await.unwrap_err();
        let noticed = matches!(error, RlpxError::Mac(_) | RlpxError::MessageId);
        assert!(noticed, "byte {at}: {error}");
        assert_eq!(error.reason(), Some(DisconnectReason::ProtocolBreach));
    }
}

#[tokio::test]
async fn long_frames_are_refused_before_they_are_read() {
    let (mut one, mut two) = tokio::io::duplex(1 << 16);
    let [dials, listens] = [random_key(), random_key()];
    let remote = id_of(&listens);
    let (ours, theirs) =
        tokio::join!(initiate(&mut one, &dials, &remote), accept(&mut two, &listens));
    let (_, mut egress) = frame::directions(&ours.unwrap());
    let frame = egress.frame(&[&[0x02], &vec![0; 5 << 20]]);
    // Only the header and the first block are sent.
    one.write_all(&frame[..48]).await.unwrap();
    let (half, writer) = tokio::io::split(two);
    let (mut reader, _) = connect(half, writer, &theirs.unwrap().0);
    let error = reader.read(|id| (id == 2).then_some(256)).await.unwrap_err();
    assert!(matches!(error, RlpxError::TooLong { id: 2, max: 256, .. }), "{error}");
}

#[tokio::test]
async fn bombs_of_snappy_are_refused_before_they_are_decompressed() {
    let ((_, mut writer), (mut reader, _)) = pair().await;
    let bomb = snap::raw::Encoder::new().compress_vec(&vec![0; 8 << 20]).unwrap();
    assert!(bomb.len() < 1 << 19);
    reader.set_snappy();
    // Sent without a second compression.
    let send = tokio::spawn(async move {
        writer.write(0x12, &bomb).await.unwrap();
        writer.write(0x12, &[0xff; 20]).await.unwrap();
        writer
    });
    let error = reader.read(|_| Some(1 << 20)).await.unwrap_err();
    assert!(matches!(error, RlpxError::TooLong { length: 8_388_608, .. }), "{error}");
    let error = reader.read(|_| Some(1 << 20)).await.unwrap_err();
    assert!(matches!(error, RlpxError::Snappy { id: 0x12 }), "{error}");
    send.await.unwrap();
}

#[tokio::test]
async fn messages_that_do_not_exist_are_refused() {
    let ((_, mut writer), (mut reader, _)) = pair().await;
    writer.write(0x33, &[1]).await.unwrap();
    let error = reader.read(|id| (id < 0x30).then_some(10)).await.unwrap_err();
    assert!(matches!(error, RlpxError::Unexpected { id: 0x33, .. }), "{error}");
}

#[tokio::test]
async fn garbage_is_no_handshake() {
    let key = random_key();
    let mut random = StdRng::seed_from_u64(2);
    for length in [0_u16, 1, 112, 113, 300, 2048, 2049, 65535] {
        let (mut one, mut two) = tokio::io::duplex(1 << 17);
        let mut garbage = vec![0; 2 + usize::from(length)];
        random.fill_bytes(&mut garbage);
        garbage[..2].copy_from_slice(&length.to_be_bytes());
        one.write_all(&garbage).await.unwrap();
        let error = accept(&mut two, &key).await.unwrap_err();
        let fits = (113..=2048).contains(&length);
        assert_eq!(matches!(error, RlpxError::HandshakeCipher), fits, "{length}: {error}");
        assert_eq!(matches!(error, RlpxError::HandshakeLength { .. }), !fits, "{length}: {error}");
    }
}

#[tokio::test]
async fn one_wrong_bit_anywhere_in_a_handshake_is_noticed() {
    let [dials, listens] = [random_key(), random_key()];
    let (mut one, mut two) = tokio::io::duplex(1 << 16);
    let remote = id_of(&listens);
    let dialling = tokio::spawn(async move { initiate(&mut one, &dials, &remote).await.err() });
    let mut auth = vec![0; 2];
    two.read_exact(&mut auth).await.unwrap();
    auth.resize(2 + usize::from(u16::from_be_bytes([auth[0], auth[1]])), 0);
    two.read_exact(&mut auth[2..]).await.unwrap();
    drop(two);
    assert!(matches!(dialling.await.unwrap(), Some(RlpxError::Io(_))));
    for at in (2..auth.len()).step_by(37) {
        let mut wrong = auth.clone();
        wrong[at] ^= 1;
        let error = open(&listens, &wrong).unwrap_err();
        assert!(matches!(error, RlpxError::HandshakeCipher), "byte {at}: {error}");
    }
    assert!(open(&listens, &auth).is_ok());
    assert!(open(&random_key(), &auth).is_err(), "for another key");
}

#[test]
fn hellos_keep_to_their_form() {
    let hello = Hello {
        version: 5,
        client: "a\nb\u{7}c".to_owned(),
        capabilities: vec![
            Capability { name: "eth".into(), version: 69 },
            Capability { name: "much too long".into(), version: 1 },
        ],
        port: 30303,
        id: id_of(&random_key()),
    };
    let read = Hello::decode(&hello.encode()).unwrap();
    assert_eq!(read.client, "abc", "what stands in a log has no control characters");
    assert_eq!(read.capabilities, hello.capabilities[..1]);
    let mut many = hello.clone();
    many.capabilities = vec![hello.capabilities[0].clone(); 65];
    assert!(Hello::decode(&many.encode()).unwrap_err().to_string().contains("64"));
    let whole = hello.encode();
    for end in 0..whole.len() {
        assert!(Hello::decode(&whole[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn reasons_have_the_numbers_of_the_protocol() {
    assert_eq!(DisconnectReason::TooManyPeers.encode(), [0xc1, 0x04]);
    assert_eq!(DisconnectReason::Requested.encode(), [0xc1, 0x80]);
    for code in 0..=255 {
        let reason = DisconnectReason::from_code(code);
        assert_eq!(reason.code(), code);
        assert_eq!(DisconnectReason::decode(&reason.encode()), reason);
    }
    assert_eq!(DisconnectReason::decode(&[0x10]), DisconnectReason::SubprotocolError);
    assert_eq!(DisconnectReason::decode(&[]), DisconnectReason::Requested);
}

/// Plain texts of the handshake, and messages of the base protocol. The first byte is ignored.
pub(crate) fn fuzz() -> Vec<crate::fuzz::FuzzDecoder> {
    use super::handshake::{ack, auth};
    use crate::fuzz::FuzzDecoder;

    fn key() -> SecretKey {
        SecretKey::from_byte_array([1; 32]).unwrap()
    }
    fn text(fields: Vec<u8>) -> Vec<u8> {
        let mut text = vec![0];
        alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut text);
        text.extend(fields);
        text
    }
    let ours = HandshakeKeys::random();
    let dialled = PublicKey::from_secret_key_global(&key());
    let eth = |version| Capability { name: "eth".into(), version };
    let hello = Hello {
        version: PROTOCOL_VERSION,
        client: "retrie/0.1".into(),
        capabilities: vec![eth(69), eth(70)],
        port: 30303,
        id: node_id(&dialled),
    };
    vec![
        FuzzDecoder {
            name: "auth",
            seeds: vec![text(auth(&random_key(), &dialled, &ours))],
            run: |bytes| read_auth(&key(), bytes.get(1..).unwrap_or_default()).is_ok(),
        },
        FuzzDecoder {
            name: "ack",
            seeds: vec![text(ack(&ours))],
            run: |bytes| read_ack(bytes.get(1..).unwrap_or_default()).is_ok(),
        },
        FuzzDecoder {
            name: "hello",
            seeds: vec![[vec![0], hello.encode()].concat()],
            run: |bytes| Hello::decode(bytes.get(1..).unwrap_or_default()).is_ok(),
        },
        FuzzDecoder {
            name: "disconnect",
            seeds: vec![[vec![0], DisconnectReason::TooManyPeers.encode()].concat()],
            run: |bytes| {
                let bytes = bytes.get(1..).unwrap_or_default();
                DisconnectReason::decode(bytes) != DisconnectReason::Requested
            },
        },
    ]
}
