//! The HTTP endpoint that Prometheus scrapes.

use crate::Metrics;
use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tiny_http::{Header, Response, Server};

/// The metrics endpoint could not start.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served on {address}: {reason}; choose another address")]
pub struct ServeError {
    address: SocketAddr,
    reason: String,
}

/// Serves `GET /metrics` until dropped, which frees the port (or gives up after a second).
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens on `address`; port 0 takes a free one.
    pub fn start(address: SocketAddr, metrics: Metrics) -> Result<Self, ServeError> {
        let fail = |reason: String| ServeError { address, reason };
        let server = Server::http(address).map_err(|error| fail(error.to_string()))?;
        let local = server.server_addr().to_ip().unwrap_or(address);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(&server, &metrics, &stopped))
            .map_err(|error| fail(error.to_string()))?;
        Ok(Self { address: local, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its only work is to answer; a panic there loses nothing.
            let _ = thread.join();
        }
        // The library's own thread closes the socket a moment after its server is gone. Whoever
        // drops this may want the port next.
        for _ in 0..100 {
            if TcpListener::bind(self.address).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn serve(server: &Server, metrics: &Metrics, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let request = match server.recv_timeout(Duration::from_millis(100)) {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%error, "metrics endpoint stopped");
                return;
            }
        };
        let response = match (request.url(), metrics.encode()) {
            ("/" | "/metrics", Ok(text)) => {
                let mut response = Response::from_data(text);
                if let Ok(kind) =
                    Header::from_bytes("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                {
                    response.add_header(kind);
                }
                response
            }
            ("/" | "/metrics", Err(error)) => {
                Response::from_data(error.to_string()).with_status_code(500)
            }
            _ => Response::from_data("metrics are at /metrics\n").with_status_code(404),
        };
        if let Err(error) = request.respond(response) {
            tracing::debug!(%error, "metrics client went away");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

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
}
