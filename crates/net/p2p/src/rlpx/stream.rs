//! Messages over a byte stream.

use super::{
    RlpxError, RlpxSecrets,
    frame::{
        EgressCipher, HEADER_BYTES, IngressCipher, MAC_BYTES, MAX_FRAME_BYTES, directions, padded,
    },
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a body that are allocated at once: a peer must send the bytes before more are
/// allocated.
const STEP_BYTES: usize = 64 << 10;

/// A message that is not decoded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMessage {
    /// Its message id on this connection.
    pub id: u8,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct MessageReader<R> {
    stream: R,
    ingress: IngressCipher,
    snappy: Option<snap::raw::Decoder>,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct MessageWriter<W> {
    stream: W,
    egress: EgressCipher,
    snappy: Option<snap::raw::Encoder>,
}

/// Makes the two halves of a connection after the handshake.
pub fn connect<R, W>(
    reader: R,
    writer: W,
    secrets: &RlpxSecrets,
) -> (MessageReader<R>, MessageWriter<W>) {
    let (ingress, egress) = directions(secrets);
    (
        MessageReader { stream: reader, ingress, snappy: None },
        MessageWriter { stream: writer, egress, snappy: None },
    )
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Turns compression on for all later messages.
    pub fn set_snappy(&mut self) {
        self.snappy = Some(snap::raw::Decoder::new());
    }

    /// Reads the next message. Not cancel safe: if the future is dropped early, the connection is
    /// unusable.
    ///
    /// `limit` returns the maximum length of a message with an id, in bytes without the id and
    /// after decompression; `None` if there is no such message.
    ///
    /// # Errors
    /// If the connection ends or fails, or the message is longer than its limit.
    pub async fn read(
        &mut self,
        limit: impl Fn(u8) -> Option<usize>,
    ) -> Result<RawMessage, RlpxError> {
        let mut header = [0; HEADER_BYTES];
        let first = self.stream.read(&mut header).await?;
        if first == 0 {
            return Err(RlpxError::Closed);
        }
        self.stream.read_exact(&mut header[first..]).await?;
        let length = self.ingress.header(header)?;
        let rest = padded(length);
        if length == 0 {
            return Err(RlpxError::MessageId);
        }
        // The first block has the id, which gives the limit.
        let mut body = vec![0; rest.min(16)];
        self.stream.read_exact(&mut body).await?;
        self.ingress.part(&mut body);
        let id = match body[0] {
            0x80 => 0,
            id @ 0x01..=0x7f => id,
            _ => return Err(RlpxError::MessageId),
        };
        let max = limit(id).ok_or(RlpxError::Unexpected { id, expected: "an allowed message" })?;
        let compressed = if self.snappy.is_some() { snap::raw::max_compress_len(max) } else { max };
        if length - 1 > compressed {
            return Err(RlpxError::TooLong { id, length: length - 1, max });
        }
        while body.len() < rest {
            let start = body.len();
            body.resize(rest.min(start + STEP_BYTES), 0);
            self.stream.read_exact(&mut body[start..]).await?;
            self.ingress.part(&mut body[start..]);
        }
        let mut mac = [0; MAC_BYTES];
        self.stream.read_exact(&mut mac).await?;
        self.ingress.end(mac)?;
        body.truncate(length);
        let payload = match &mut self.snappy {
            None => body.split_off(1),
            Some(decoder) => {
                let body = &body[1..];
                // The decompressed length is before the data (EIP-706).
                let length =
                    snap::raw::decompress_len(body).map_err(|_| RlpxError::Snappy { id })?;
                if length > max {
                    return Err(RlpxError::TooLong { id, length, max });
                }
                decoder.decompress_vec(body).map_err(|_| RlpxError::Snappy { id })?
            }
        };
        Ok(RawMessage { id, payload })
    }

    /// Reads and drops everything until the remote side has closed the connection.
    pub async fn drain(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.stream.read(&mut bytes).await, Ok(length) if length > 0) {}
    }
}

impl<W: AsyncWrite + Unpin> MessageWriter<W> {
    /// Turns compression on for all later messages.
    pub fn set_snappy(&mut self) {
        self.snappy = Some(snap::raw::Encoder::new());
    }

    /// Sends a message, and returns its number of bytes on the wire. Not cancel safe: if the future
    /// is dropped early, the connection is unusable.
    ///
    /// # Errors
    /// If the connection fails, or the message does not fit into a frame.
    pub async fn write(&mut self, id: u8, payload: &[u8]) -> Result<usize, RlpxError> {
        let compressed;
        let payload = match &mut self.snappy {
            None => payload,
            Some(encoder) => {
                let too_long =
                    |_| RlpxError::TooLong { id, length: payload.len(), max: MAX_FRAME_BYTES - 1 };
                compressed = encoder.compress_vec(payload).map_err(too_long)?;
                &compressed
            }
        };
        if payload.len() >= MAX_FRAME_BYTES {
            let (length, max) = (payload.len(), MAX_FRAME_BYTES - 1);
            return Err(RlpxError::TooLong { id, length, max });
        }
        let id = if id == 0 { 0x80 } else { id };
        let frame = self.egress.frame(&[&[id], payload]);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        Ok(frame.len())
    }

    /// Closes this direction.
    pub async fn shutdown(&mut self) {
        // The connection ends anyway, so an error changes nothing.
        let _ = self.stream.shutdown().await;
    }
}
