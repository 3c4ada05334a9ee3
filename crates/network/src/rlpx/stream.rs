//! Messages over a stream of bytes.

use super::{
    RlpxError, Secrets,
    frame::{Egress, HEADER_BYTES, Ingress, MAC_BYTES, MAX_FRAME_BYTES, directions, padded},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a body that are reserved at once: who says that he sends much must send it first.
const STEP_BYTES: usize = 64 << 10;

/// A message that has not been decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// Its id on the connection.
    pub id: u8,
    /// What is in it.
    pub payload: Vec<u8>,
}

/// The half of a connection from which messages come.
#[derive(Debug)]
pub struct Reader<R> {
    stream: R,
    ingress: Ingress,
    snappy: Option<snap::raw::Decoder>,
}

/// The half of a connection into which messages go.
#[derive(Debug)]
pub struct Writer<W> {
    stream: W,
    egress: Egress,
    snappy: Option<snap::raw::Encoder>,
}

/// The two halves of a connection after the handshake.
pub fn connect<R, W>(reader: R, writer: W, secrets: &Secrets) -> (Reader<R>, Writer<W>) {
    let (ingress, egress) = directions(secrets);
    (
        Reader { stream: reader, ingress, snappy: None },
        Writer { stream: writer, egress, snappy: None },
    )
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// From now on messages are compressed.
    pub fn set_snappy(&mut self) {
        self.snappy = Some(snap::raw::Decoder::new());
    }

    /// The next message. If the future is dropped before it is ready, the connection is of no use.
    ///
    /// `limit` says how long a message of an id may be, in bytes without its id and after
    /// decompression; none if there is no such message.
    ///
    /// # Errors
    /// If the connection ends or fails, or the message is longer than that.
    pub async fn read(&mut self, limit: impl Fn(u8) -> Option<usize>) -> Result<Raw, RlpxError> {
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
        // The first block has the id, and so the limit.
        let mut body = vec![0; rest.min(16)];
        self.stream.read_exact(&mut body).await?;
        self.ingress.part(&mut body);
        let id = match body[0] {
            0x80 => 0,
            id @ 0x01..=0x7f => id,
            _ => return Err(RlpxError::MessageId),
        };
        let max = limit(id).ok_or(RlpxError::Unexpected { id, expected: "another message" })?;
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
                // The length stands before the data (EIP-706).
                let length =
                    snap::raw::decompress_len(body).map_err(|_| RlpxError::Snappy { id })?;
                if length > max {
                    return Err(RlpxError::TooLong { id, length, max });
                }
                decoder.decompress_vec(body).map_err(|_| RlpxError::Snappy { id })?
            }
        };
        Ok(Raw { id, payload })
    }

    /// Reads whatever comes, and forgets it, until the other side has closed the connection.
    pub async fn drain(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.stream.read(&mut bytes).await, Ok(length) if length > 0) {}
    }
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// From now on messages are compressed.
    pub fn set_snappy(&mut self) {
        self.snappy = Some(snap::raw::Encoder::new());
    }

    /// Sends a message; its bytes on the connection. If the future is dropped before it is ready, the
    /// connection is of no use.
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

    /// Ends this direction.
    pub async fn shutdown(&mut self) {
        // Nobody is there who would want to know.
        let _ = self.stream.shutdown().await;
    }
}
