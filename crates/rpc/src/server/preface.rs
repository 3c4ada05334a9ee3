//! Tells HTTP/2 from HTTP/1 by the first bytes of a connection.
//!
//! Without TLS nothing else says it: a client of HTTP/2 that knows what the server speaks begins at
//! once (RFC 9113, section 3.3).

use std::{io, time::Duration};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// The beginning of what every client of HTTP/2 sends first (RFC 9113, section 3.4), and of no request
/// of HTTP/1.
const PREFACE: [u8; 4] = *b"PRI ";
/// First pause until the rest of these bytes is looked for. Each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest pause: a client that sends the rest late costs no more.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// Whether the client begins with HTTP/2. The bytes stay unread.
///
/// # Errors
/// If nothing comes within `limit`, or the client is gone.
pub(super) async fn begins_with_http2(stream: &TcpStream, limit: Duration) -> io::Result<bool> {
    let (mut first, mut pause) = ([0; PREFACE.len()], PAUSE);
    let look = async {
        loop {
            let seen = stream.peek(&mut first).await?;
            let (seen, _) = first.split_at(seen);
            if seen.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            if seen == PREFACE || !PREFACE.starts_with(seen) {
                return Ok(seen == PREFACE);
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    timeout(limit, look).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn the_first_bytes_tell() {
        let limit = Duration::from_secs(10);
        for (parts, expected) in [
            (vec!["PRI * HTTP/2.0\r\n"], true),
            (vec!["P", "R", "I * HTTP/2.0"], true),
            (vec!["POST / HTTP/1.1\r\n"], false),
            (vec!["P", "OST / HTTP/1.1"], false),
            (vec!["G"], false),
        ] {
            let (mut client, server) = pair().await;
            let write = async {
                for part in &parts {
                    client.write_all(part.as_bytes()).await.unwrap();
                    sleep(3 * PAUSE).await;
                }
            };
            let (_, found) = tokio::join!(write, begins_with_http2(&server, limit));
            assert_eq!(found.unwrap(), expected, "{parts:?}");
        }
    }

    #[tokio::test]
    async fn a_silent_client_is_not_waited_for_and_one_that_left_is_noticed() {
        let (client, server) = pair().await;
        let silent = begins_with_http2(&server, Duration::from_millis(20)).await;
        assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(client);
        let gone = begins_with_http2(&server, Duration::from_secs(10)).await;
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
