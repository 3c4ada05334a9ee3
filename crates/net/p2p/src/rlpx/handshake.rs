//! The handshake (EIP-8): `auth` from the dialling node, `ack` from the dialled node.
//!
//! ```text
//!  packet = length (2 bytes), ECIES(RLP list and 100 to 300 random bytes); the length is under the MAC
//!  auth   = [signature (65), public key (64), nonce (32), version]
//!  ack    = [ephemeral public key (64), nonce (32), version]
//! ```
//!
//! Additional elements, other versions and bytes after the list are ignored. The form before EIP-8,
//! which has no length, is refused: no client sends it any more.

use super::{
    RlpxError,
    ecies::{self, agree, node_id, public_key},
};
use alloy_primitives::{B256, B512, Keccak256, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use rand::{Rng, RngCore};
use secp256k1::{
    Message, PublicKey, SECP256K1, SecretKey,
    ecdsa::{RecoverableSignature, RecoveryId},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum bytes of a packet without its length. Real ones have fewer than 700.
const MAX_PACKET_BYTES: usize = 2048;

/// The keys of a connection after the handshake, as one side holds them.
#[derive(Clone, Debug)]
pub struct RlpxSecrets {
    /// The key of the ciphers.
    pub(super) aes: B256,
    /// The key of the MACs.
    pub(super) mac: B256,
    /// The running hash of the sending direction.
    pub(super) egress: Keccak256,
    /// The running hash of the receiving direction.
    pub(super) ingress: Keccak256,
}

/// The ephemeral key and nonce of one side, for one handshake.
#[derive(Debug)]
pub(super) struct HandshakeKeys {
    pub(super) key: SecretKey,
    pub(super) nonce: B256,
}

impl HandshakeKeys {
    pub(super) fn random() -> Self {
        Self { key: ecies::random_key(), nonce: random_nonce() }
    }
}

fn random_nonce() -> B256 {
    let mut nonce = B256::ZERO;
    rand::rng().fill_bytes(nonce.as_mut_slice());
    nonce
}

/// Runs the handshake as the dialling side, with the node of this id.
///
/// # Errors
/// If the connection fails, or the node does not own this id. There is no timeout here: the caller
/// sets one.
pub async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    key: &SecretKey,
    remote: &B512,
) -> Result<RlpxSecrets, RlpxError> {
    let remote =
        public_key(remote).ok_or(RlpxError::HandshakeField("the node's id is no public key"))?;
    let ours = HandshakeKeys::random();
    let auth = seal(&remote, &auth(key, &remote, &ours));
    stream.write_all(&auth).await?;
    let ack = read_packet(stream).await?;
    let theirs = read_ack(&open(key, &ack)?)?;
    Ok(secrets(true, &ours, &theirs, &auth, &ack))
}

/// Runs the handshake as the dialled side. Also returns the id of the dialling node.
///
/// # Errors
/// If the connection fails, or the packets are no handshake. There is no timeout here: the caller
/// sets one.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    key: &SecretKey,
) -> Result<(RlpxSecrets, B512), RlpxError> {
    let auth = read_packet(stream).await?;
    let (remote, theirs) = read_auth(key, &open(key, &auth)?)?;
    let ours = HandshakeKeys::random();
    let ack = seal(&remote, &ack(&ours));
    stream.write_all(&ack).await?;
    Ok((secrets(false, &ours, &theirs, &auth, &ack), node_id(&remote)))
}

/// The public part of the remote side's [`HandshakeKeys`].
#[derive(Debug)]
pub(super) struct RemoteKeys {
    pub(super) key: PublicKey,
    pub(super) nonce: B256,
}

pub(super) fn auth(key: &SecretKey, remote: &PublicKey, ours: &HandshakeKeys) -> Vec<u8> {
    let message = B256::from(agree(key, remote)) ^ ours.nonce;
    let signature = SECP256K1.sign_ecdsa_recoverable(Message::from_digest(message.0), &ours.key);
    let (recovery, compact) = signature.serialize_compact();
    let mut signed = [0; 65];
    signed[..64].copy_from_slice(&compact);
    signed[64] = i32::from(recovery) as u8;
    let mut fields = Vec::new();
    signed.as_slice().encode(&mut fields);
    node_id(&PublicKey::from_secret_key_global(key)).encode(&mut fields);
    ours.nonce.encode(&mut fields);
    4_u8.encode(&mut fields);
    fields
}

pub(super) fn ack(ours: &HandshakeKeys) -> Vec<u8> {
    let mut fields = Vec::new();
    node_id(&PublicKey::from_secret_key_global(&ours.key)).encode(&mut fields);
    ours.nonce.encode(&mut fields);
    4_u8.encode(&mut fields);
    fields
}

/// Encrypts the fields as a list with random padding, so that the length reveals nothing, and puts
/// the length before it.
fn seal(to: &PublicKey, fields: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(fields.len() + 303);
    Header { list: true, payload_length: fields.len() }.encode(&mut text);
    text.extend(fields);
    let mut random = rand::rng();
    let filled = text.len();
    text.resize(filled + random.random_range(100..=300), 0);
    random.fill_bytes(&mut text[filled..]);
    let length = (text.len() + ecies::OVERHEAD) as u16;
    let mut packet = length.to_be_bytes().to_vec();
    packet.extend(ecies::encrypt(to, &text, &length.to_be_bytes()));
    packet
}

/// Decrypts a packet, which begins with its length.
pub(super) fn open(key: &SecretKey, packet: &[u8]) -> Result<Vec<u8>, RlpxError> {
    let (length, message) = packet.split_at_checked(2).ok_or(RlpxError::HandshakeCipher)?;
    ecies::decrypt(key, message, length)
}

/// Reads a packet with its length.
async fn read_packet<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, RlpxError> {
    let mut prefix = [0; 2];
    stream.read_exact(&mut prefix).await?;
    let length = usize::from(u16::from_be_bytes(prefix));
    if !(ecies::OVERHEAD..=MAX_PACKET_BYTES).contains(&length) {
        return Err(RlpxError::HandshakeLength {
            length,
            min: ecies::OVERHEAD,
            max: MAX_PACKET_BYTES,
        });
    }
    let mut packet = vec![0; 2 + length];
    packet[..2].copy_from_slice(&prefix);
    stream.read_exact(&mut packet[2..]).await?;
    Ok(packet)
}

/// The fields of the list at the start of a plain text.
fn fields(text: &[u8]) -> Result<&[u8], RlpxError> {
    let mut rest = text;
    Header::decode_bytes(&mut rest, true).map_err(|_| RlpxError::HandshakeField("no list"))
}

/// Parses an `auth`: the dialling node's public key, and its ephemeral key and nonce.
pub(super) fn read_auth(
    key: &SecretKey,
    text: &[u8],
) -> Result<(PublicKey, RemoteKeys), RlpxError> {
    let mut fields = fields(text)?;
    let signature = <[u8; 65]>::decode(&mut fields)
        .map_err(|_| RlpxError::HandshakeField("no signature of 65 bytes"))?;
    let id = B512::decode(&mut fields)
        .map_err(|_| RlpxError::HandshakeField("no public key of 64 bytes"))?;
    let nonce =
        B256::decode(&mut fields).map_err(|_| RlpxError::HandshakeField("no nonce of 32 bytes"))?;
    let remote = public_key(&id).ok_or(RlpxError::HandshakeField("invalid public key"))?;
    let message = B256::from(agree(key, &remote)) ^ nonce;
    let ephemeral = RecoveryId::try_from(i32::from(signature[64]))
        .and_then(|recovery| RecoverableSignature::from_compact(&signature[..64], recovery))
        .and_then(|signature| SECP256K1.recover_ecdsa(Message::from_digest(message.0), &signature))
        .map_err(|_| RlpxError::HandshakeField("invalid signature"))?;
    Ok((remote, RemoteKeys { key: ephemeral, nonce }))
}

/// Parses an `ack`: the remote side's ephemeral key and nonce.
pub(super) fn read_ack(text: &[u8]) -> Result<RemoteKeys, RlpxError> {
    let mut fields = fields(text)?;
    let id = B512::decode(&mut fields)
        .map_err(|_| RlpxError::HandshakeField("no public key of 64 bytes"))?;
    let nonce =
        B256::decode(&mut fields).map_err(|_| RlpxError::HandshakeField("no nonce of 32 bytes"))?;
    let key = public_key(&id).ok_or(RlpxError::HandshakeField("invalid public key"))?;
    Ok(RemoteKeys { key, nonce })
}

/// Derives the keys of the connection. The packets are complete, with their lengths.
pub(super) fn secrets(
    initiator: bool,
    ours: &HandshakeKeys,
    theirs: &RemoteKeys,
    auth: &[u8],
    ack: &[u8],
) -> RlpxSecrets {
    let agreed = agree(&ours.key, &theirs.key);
    let both = |first: &[u8], second: &[u8]| keccak256([first, second].concat());
    let (of_initiator, of_recipient) =
        if initiator { (ours.nonce, theirs.nonce) } else { (theirs.nonce, ours.nonce) };
    let shared = both(&agreed, both(of_recipient.as_slice(), of_initiator.as_slice()).as_slice());
    let aes = both(&agreed, shared.as_slice());
    let mac = both(&agreed, aes.as_slice());
    let running = |nonce: B256, packet: &[u8]| {
        let mut hash = Keccak256::new();
        hash.update(mac ^ nonce);
        hash.update(packet);
        hash
    };
    let from_initiator = running(of_recipient, auth);
    let from_recipient = running(of_initiator, ack);
    let (egress, ingress) =
        if initiator { (from_initiator, from_recipient) } else { (from_recipient, from_initiator) };
    RlpxSecrets { aes, mac, egress, ingress }
}
