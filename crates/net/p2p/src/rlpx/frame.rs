//! Frames: a header of 16 bytes and its MAC, a body of up to 16 MiB and its MAC.
//!
//! ```text
//!  header = length of the body (3 bytes), RLP [0, 0], zeros; encrypted
//!  body   = message id (RLP), message; padded with zeros to 16 bytes; encrypted
//!  MAC    = first 16 bytes of a Keccak-256 over everything that was sent in this direction, mixed
//!           with itself under AES-256
//! ```

use super::{RlpxSecrets, error::RlpxError};
use aes::{
    Aes256,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use alloy_primitives::Keccak256;
use ctr::{
    Ctr128BE,
    cipher::{KeyIvInit, StreamCipher},
};
use std::fmt;

/// Maximum bytes of a body: its length field has three bytes.
pub(super) const MAX_FRAME_BYTES: usize = (1 << 24) - 1;

/// Bytes of a header with its MAC.
pub(super) const HEADER_BYTES: usize = 32;

/// Bytes of a MAC.
pub(super) const MAC_BYTES: usize = 16;

/// The keys and the running MAC of one direction of a connection.
struct FrameCipher {
    cipher: Ctr128BE<Aes256>,
    mixer: Aes256,
    hash: Keccak256,
}

impl FrameCipher {
    fn new(secrets: &RlpxSecrets, hash: Keccak256) -> Self {
        let cipher = Ctr128BE::<Aes256>::new(&secrets.aes.0.into(), &[0; 16].into());
        Self { cipher, mixer: Aes256::new(&secrets.mac.0.into()), hash }
    }

    fn digest(&self) -> [u8; 16] {
        let mut first = [0; 16];
        first.copy_from_slice(&self.hash.clone().finalize()[..16]);
        first
    }

    /// Mixes a block into the hash.
    fn mix(&mut self, block: [u8; 16]) -> [u8; 16] {
        let mut mixed = self.digest().into();
        self.mixer.encrypt_block(&mut mixed);
        for (byte, other) in mixed.iter_mut().zip(block) {
            *byte ^= other;
        }
        self.hash.update(mixed);
        self.digest()
    }

    fn mac_of_header(&mut self, encrypted: [u8; 16]) -> [u8; 16] {
        self.mix(encrypted)
    }

    /// Call it after the hash has consumed the body.
    fn mac_of_body(&mut self) -> [u8; 16] {
        self.mix(self.digest())
    }
}

/// The receiving direction.
pub(super) struct IngressCipher(FrameCipher);

/// The sending direction.
pub(super) struct EgressCipher(FrameCipher);

impl fmt::Debug for IngressCipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ingress")
    }
}

impl fmt::Debug for EgressCipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Egress")
    }
}

/// The states of both directions.
pub(super) fn directions(secrets: &RlpxSecrets) -> (IngressCipher, EgressCipher) {
    (
        IngressCipher(FrameCipher::new(secrets, secrets.ingress.clone())),
        EgressCipher(FrameCipher::new(secrets, secrets.egress.clone())),
    )
}

/// Length of a body with its padding.
pub(super) const fn padded(length: usize) -> usize {
    length.next_multiple_of(16)
}

impl EgressCipher {
    /// Encrypts a frame with this body, which has at most [`MAX_FRAME_BYTES`].
    pub(super) fn frame(&mut self, body: &[&[u8]]) -> Vec<u8> {
        let length: usize = body.iter().map(|part| part.len()).sum();
        debug_assert!(length <= MAX_FRAME_BYTES);
        let mut frame = Vec::with_capacity(HEADER_BYTES + padded(length) + MAC_BYTES);
        let mut header = [0; 16];
        header[..3].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        header[3..6].copy_from_slice(&[0xc2, 0x80, 0x80]);
        self.0.cipher.apply_keystream(&mut header);
        frame.extend(header);
        frame.extend(self.0.mac_of_header(header));
        for part in body {
            frame.extend(*part);
        }
        frame.resize(HEADER_BYTES + padded(length), 0);
        self.0.cipher.apply_keystream(&mut frame[HEADER_BYTES..]);
        self.0.hash.update(&frame[HEADER_BYTES..]);
        frame.extend(self.0.mac_of_body());
        frame
    }
}

impl IngressCipher {
    /// Checks and decrypts a header. Returns the length of the body that follows.
    pub(super) fn header(&mut self, bytes: [u8; HEADER_BYTES]) -> Result<usize, RlpxError> {
        let mut header = [0; 16];
        header.copy_from_slice(&bytes[..16]);
        if self.0.mac_of_header(header) != bytes[16..] {
            return Err(RlpxError::Mac("header"));
        }
        self.0.cipher.apply_keystream(&mut header);
        Ok(u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize)
    }

    /// Decrypts a part of a body in place. The part must have whole blocks.
    pub(super) fn part(&mut self, bytes: &mut [u8]) {
        self.0.hash.update(&*bytes);
        self.0.cipher.apply_keystream(bytes);
    }

    /// Checks the MAC of the body, after all parts.
    pub(super) fn end(&mut self, mac: [u8; MAC_BYTES]) -> Result<(), RlpxError> {
        if self.0.mac_of_body() == mac { Ok(()) } else { Err(RlpxError::Mac("body")) }
    }
}
