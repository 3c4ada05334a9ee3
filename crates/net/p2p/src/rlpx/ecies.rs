//! ECIES over secp256k1, as RLPx uses it: AES-128-CTR and HMAC-SHA-256 under keys from SHA-256.
//!
//! ```text
//!  0   1         65    81            len-32
//!  | 4 | R (x,y) | iv  | ciphertext  | mac |    mac over iv, ciphertext and what both sides know
//! ```

use super::RlpxError;
use aes::Aes128;
use alloy_primitives::B512;
use ctr::{
    Ctr128BE,
    cipher::{KeyIvInit, StreamCipher},
};
use hmac::{Hmac, KeyInit, Mac};
use rand::RngCore;
use secp256k1::{PublicKey, SecretKey, ecdh::shared_secret_point};
use sha2::{Digest, Sha256};

/// How much longer an encrypted message is than its plain text.
pub(super) const OVERHEAD: usize = 1 + 64 + 16 + 32;

/// A new secret key.
pub fn random_key() -> SecretKey {
    loop {
        let mut bytes = [0; 32];
        rand::rng().fill_bytes(&mut bytes);
        // All but one in 2^127 numbers are keys.
        if let Ok(key) = SecretKey::from_byte_array(bytes) {
            return key;
        }
    }
}

/// The shared secret: the x coordinate of the common point (ECDH).
pub(super) fn agree(secret: &SecretKey, public: &PublicKey) -> [u8; 32] {
    let point = shared_secret_point(public, secret);
    let mut x = [0; 32];
    x.copy_from_slice(&point[..32]);
    x
}

/// The node id of a public key: its 64 bytes, x and y.
pub fn node_id(key: &PublicKey) -> B512 {
    B512::from_slice(&key.serialize_uncompressed()[1..])
}

/// The public key of a node id, if it is a point of the curve.
pub(super) fn public_key(id: &B512) -> Option<PublicKey> {
    let mut bytes = [4; 65];
    bytes[1..].copy_from_slice(id.as_slice());
    PublicKey::from_byte_array_uncompressed(bytes).ok()
}

/// The cipher key and the MAC key of one message.
fn keys(shared: &[u8; 32]) -> ([u8; 16], [u8; 32]) {
    let derived = Sha256::new().chain_update(1_u32.to_be_bytes()).chain_update(shared).finalize();
    let mut cipher = [0; 16];
    cipher.copy_from_slice(&derived[..16]);
    (cipher, Sha256::digest(&derived[16..]).into())
}

fn mac(key: &[u8; 32], parts: [&[u8]; 3]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes any key");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// Encrypts `text` for the owner of `to`. The MAC covers `known` as well.
pub(super) fn encrypt(to: &PublicKey, text: &[u8], known: &[u8]) -> Vec<u8> {
    let key = random_key();
    let (cipher, mac_key) = keys(&agree(&key, to));
    let mut iv = [0; 16];
    rand::rng().fill_bytes(&mut iv);
    let mut message = Vec::with_capacity(OVERHEAD + text.len());
    message.extend(PublicKey::from_secret_key_global(&key).serialize_uncompressed());
    message.extend(iv);
    message.extend(text);
    Ctr128BE::<Aes128>::new(&cipher.into(), &iv.into()).apply_keystream(&mut message[81..]);
    let tag = mac(&mac_key, [&iv, &message[81..], known]).finalize().into_bytes();
    message.extend(tag);
    message
}

/// Decrypts a message for `key`.
pub(super) fn decrypt(key: &SecretKey, message: &[u8], known: &[u8]) -> Result<Vec<u8>, RlpxError> {
    let (Some((head, rest)), true) = (message.split_at_checked(81), message.len() >= OVERHEAD)
    else {
        return Err(RlpxError::HandshakeCipher);
    };
    let (ciphertext, tag) = rest.split_at(rest.len() - 32);
    let mut point = [0; 65];
    point.copy_from_slice(&head[..65]);
    let mut iv = [0; 16];
    iv.copy_from_slice(&head[65..]);
    let from =
        PublicKey::from_byte_array_uncompressed(point).map_err(|_| RlpxError::HandshakeCipher)?;
    let (cipher, mac_key) = keys(&agree(key, &from));
    mac(&mac_key, [&iv, ciphertext, known])
        .verify_slice(tag)
        .map_err(|_| RlpxError::HandshakeCipher)?;
    let mut text = ciphertext.to_vec();
    Ctr128BE::<Aes128>::new(&cipher.into(), &iv.into()).apply_keystream(&mut text);
    Ok(text)
}
