//! An HTTP server on a local port with scripted answers: partial, late, or wrong.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct RecordedRequest {
    /// GET or POST.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: Vec<u8>,
}

/// The answer of the server.
#[derive(Clone, Debug)]
pub struct ScriptedReply {
    /// Status code.
    pub status: u16,
    /// Headers. The length is added.
    pub headers: Vec<(&'static str, String)>,
    /// The whole body. Its length is announced.
    pub body: Vec<u8>,
    /// Bytes of the body that are really sent.
    pub sent: usize,
    /// Whether the connection then hangs until the server is dropped, instead of being closed.
    pub hangs: bool,
}

impl ScriptedReply {
    /// A complete answer.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { status, headers: Vec::new(), sent: body.len(), body, hangs: false }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// The same, but only `sent` bytes of the body are sent.
    #[must_use]
    pub fn cut(mut self, sent: usize) -> Self {
        self.sent = sent.min(self.body.len());
        self
    }

    /// The same, but the connection hangs afterwards.
    #[must_use]
    pub const fn hanging(mut self) -> Self {
        self.hangs = true;
        self
    }

    /// A file, or the part of it that the request's `Range` names.
    pub fn file(request: &RecordedRequest, content: &[u8]) -> Self {
        let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let ends = range.and_then(|range| range.split_once('-'));
        let Some(start) = ends.and_then(|(start, _)| start.parse().ok()) else {
            return Self::new(200, content);
        };
        let len = content.len();
        if start >= len {
            return Self::new(416, "").with("content-range", format!("bytes */{len}"));
        }
        let last = ends.and_then(|(_, last)| last.parse().ok()).unwrap_or(len - 1).min(len - 1);
        let range = format!("bytes {start}-{last}/{len}");
        Self::new(206, content.get(start..=last).unwrap_or_default()).with("content-range", range)
    }
}

/// A running server. It ends when dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    stop: Arc<AtomicBool>,
}

impl HttpServer {
    /// Starts a server. It calls `answer` for every request, each on its own thread.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn start(
        answer: impl Fn(&RecordedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (log, stopped, answer) = (requests.clone(), stop.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let (log, stopped, answer) = (log.clone(), stopped.clone(), answer.clone());
                std::thread::spawn(move || {
                    // The client may have closed the connection.
                    let _ = serve(stream, &*answer, &log, &stopped);
                });
            }
        });
        Ok(Self { address, requests, stop })
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(
    stream: TcpStream,
    answer: &dyn Fn(&RecordedRequest) -> ScriptedReply,
    log: &Mutex<Vec<RecordedRequest>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut request = RecordedRequest {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        ..RecordedRequest::default()
    };
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = request.headers.get("content-length").and_then(|length| length.parse().ok());
    reader.take(length.unwrap_or(0)).read_to_end(&mut request.body)?;
    log.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());

    let ScriptedReply { status, headers, body, sent, hangs } = answer(&request);
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status} Status\r\nConnection: close\r\n")?;
    write!(stream, "Content-Length: {}\r\n", body.len())?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(&body[..sent])?;
    stream.flush()?;
    while hangs && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
