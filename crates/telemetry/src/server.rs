//! The HTTP endpoint that Prometheus scrapes.
//!
//! | limit | value |
//! |---|---|
//! | connections of all clients | 16; more are closed at once |
//! | duration of a connection | 10 s, then it is closed |
//! | bytes of a request | 8 KiB |

use crate::Metrics;
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Connections at once.
const MAX_CONNECTIONS: usize = 16;
/// Time limit of a connection.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request, at most.
const MAX_REQUEST: usize = 8 << 10;
/// Interval between two checks for a connection and for the end. Also the pause after a failed
/// accept, for example without a free file descriptor: the endpoint keeps running.
const POLL: Duration = Duration::from_millis(20);

/// The metrics endpoint could not start.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served on {address}: {reason}; choose another address")]
pub struct ServeError {
    address: SocketAddr,
    reason: String,
}

/// Serves `GET /metrics` until dropped. Dropping it frees the port.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or a thread cannot be started.
    pub fn start(address: SocketAddr, metrics: Metrics) -> Result<Self, ServeError> {
        let fail = |error: io::Error| ServeError { address, reason: error.to_string() };
        let listener = TcpListener::bind(address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let local = listener.local_addr().map_err(fail)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("metrics".into())
            .spawn(move || accept(&listener, &metrics, &stopped))
            .map_err(fail)?;
        Ok(Self { address: local, stop, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only answers requests; a panic there loses nothing.
            let _ = thread.join();
        }
    }
}

/// A slot among the connections. It is freed when dropped.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept(listener: &TcpListener, metrics: &Metrics, stop: &AtomicBool) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::debug!(%error, "a connection for metrics could not be taken");
                }
                thread::sleep(POLL);
                continue;
            }
        };
        let place = ConnectionSlot(open.clone());
        if open.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            continue;
        }
        let metrics = metrics.clone();
        let serving = thread::Builder::new().name("metrics-answer".into()).spawn(move || {
            let _place = place;
            if let Err(error) = serve(stream, &metrics) {
                tracing::debug!(%error, "a client of metrics went away");
            }
        });
        if let Err(error) = serving {
            tracing::debug!(%error, "no thread for a client of metrics");
        }
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let end = Instant::now() + MAX_TIME;
    stream.set_nonblocking(false)?;
    let request = read_request(&mut stream, end)?;
    let mut line = request.split(' ');
    let (status, kind, body) = match (line.next(), line.next(), metrics.encode()) {
        (Some("GET"), Some("/" | "/metrics"), Ok(text)) => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text)
        }
        (Some("GET"), Some("/" | "/metrics"), Err(error)) => {
            ("500 Internal Server Error", "text/plain", error.to_string().into())
        }
        (Some("GET"), Some(_), _) => {
            ("404 Not Found", "text/plain", b"metrics are at /metrics\n".to_vec())
        }
        _ => ("405 Method Not Allowed", "text/plain", b"metrics are got by GET\n".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let answer = [head.as_bytes(), &body].concat();
    let mut rest = &answer[..];
    // A client that reads one byte at a time is cut off, too.
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
    }
    Ok(())
}

/// The first line of a request, once its header is complete.
fn read_request(stream: &mut TcpStream, end: Instant) -> io::Result<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(end)?))?;
        let read = stream.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..read]);
        if read == 0 || request.len() > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_served_and_the_port_is_freed() {
        let metrics = Metrics::new().unwrap();
        metrics.blocks.inc_by(7);
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), metrics).unwrap();
        let address = server.address();
        assert!(get(address, "/metrics").contains("retrie_import_blocks_total 7"));
        assert!(get(address, "/other").starts_with("HTTP/1.1 404"));
        let taken = MetricsServer::start(address, Metrics::new().unwrap());
        assert!(taken.unwrap_err().to_string().contains("choose another"));
        drop(server);
        MetricsServer::start(address, Metrics::new().unwrap()).unwrap();
    }

    /// Regression: idle connections once held a descriptor and a thread each, without a limit.
    #[test]
    fn connections_are_bounded_and_those_beyond_are_closed() {
        let metrics = Metrics::new().unwrap();
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), metrics).unwrap();
        let connect = || TcpStream::connect(server.address()).unwrap();
        let mut idle: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        for _ in 0..20 {
            let mut more = connect();
            more.set_read_timeout(Some(MAX_TIME / 2)).unwrap();
            // Closed long before its time limit.
            assert!(!matches!(more.read(&mut [0]), Ok(1..)), "it was answered");
        }
        let mut one = idle.pop().unwrap();
        one.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        one.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let asked = (0..200).find(|_| {
            let mut stream = connect();
            let wrote = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let mut answer = String::new();
            wrote.is_ok() && stream.read_to_string(&mut answer).is_ok() && !answer.is_empty()
        });
        assert!(asked.is_some(), "a place that was given back is given to the next one");
    }
}
