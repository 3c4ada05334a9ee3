//! The blocking HTTP client of downloads and JSON-RPC: timeouts, redirects, proxies, and retries.
//!
//! HTTP/1.1 over plain sockets or TLS (rustls with Mozilla's roots). `HTTPS_PROXY`, `ALL_PROXY` and
//! similar variables are used. The client does not know what it fetches, and an [`HttpFault`] names
//! no URL: only the caller knows whether the URL holds a secret.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ureq::{
    Agent, Body,
    config::{Config, ConfigBuilder},
    http::{Method, Request, Response},
    typestate::AgentScope,
};

/// Time-outs and retries of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Time-out of a connection, of the beginning of an answer, and of each next byte.
    pub timeout: Duration,
    /// Time-out of a whole exchange. Without it a long answer that keeps coming never times out.
    pub total_timeout: Option<Duration>,
    /// Retries in a row, without progress in between.
    pub retries: u32,
    /// Wait before the first retry. It doubles with every retry, up to a minute. The server's
    /// `Retry-After` has precedence.
    pub backoff: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            total_timeout: None,
            retries: 4,
            backoff: Duration::from_millis(500),
        }
    }
}

/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// An HTTP client with the flag that stops it. Clones share connections.
#[derive(Clone)]
pub struct BlockingClient {
    agent: Agent,
    options: HttpOptions,
    stop: Arc<AtomicBool>,
}

impl fmt::Debug for BlockingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why an exchange failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpFault {
    /// The address is invalid.
    #[error("not a usable http or https address ({0})")]
    Address(String),
    /// The connection could not be made.
    #[error("cannot connect ({0})")]
    Connect(String),
    /// The connection broke, or the answer ended too early.
    #[error("the connection broke ({0})")]
    Broken(String),
    /// Nothing was received for too long.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// An error status.
    #[error("the server answers {code}{}", status_hint(*.code))]
    Status {
        /// The status code.
        code: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The answer exceeds the size limit.
    #[error("the answer is longer than {0} bytes")]
    TooLong(u64),
    /// All retries failed.
    #[error("{last}, {tries} times in a row")]
    Exhausted {
        /// Number of tries.
        tries: u32,
        /// The last failure.
        last: Box<Self>,
    },
    /// The user has stopped it.
    #[error("stopped")]
    Stopped,
}

const fn status_hint(code: u16) -> &'static str {
    match code {
        401 | 403 => " (access denied: check the address and its key)",
        404 | 410 => " (not found)",
        407 => " (the proxy wants a login)",
        429 => " (too many requests)",
        503 => " (unavailable)",
        _ => "",
    }
}

impl HttpFault {
    fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Broken(_) | Self::Timeout(_) => true,
            Self::Status { code, .. } => matches!(code, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            Self::Address(_) | Self::TooLong(_) | Self::Exhausted { .. } | Self::Stopped => false,
        }
    }

    /// Whether the server says that the resource does not exist.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: 404 | 410, .. })
    }
}

impl BlockingClient {
    /// A client that stops once `stop` is set.
    pub fn new(options: HttpOptions, stop: Arc<AtomicBool>) -> Self {
        let config = config(options).build();
        Self { agent: config.into(), options, stop }
    }

    /// A client with other options and without a proxy, stopped by the same flag.
    pub(crate) fn direct(&self, options: HttpOptions) -> Self {
        let config = config(options).proxy(None).build();
        Self { agent: config.into(), options, stop: self.stop.clone() }
    }

    /// A client with other options, stopped by the same flag.
    pub(crate) fn with_options(&self, options: HttpOptions) -> Self {
        Self::new(options, self.stop.clone())
    }

    /// One GET with these headers. Redirects are followed. Any status is an answer.
    pub(crate) fn get(
        &self,
        url: &str,
        headers: &[(&str, String)],
    ) -> Result<Response<Body>, HttpFault> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request.call().map_err(|error| self.fault(error))
    }

    /// One POST of JSON. Any status is an answer.
    pub(crate) fn post_json(&self, url: &str, json: &[u8]) -> Result<Response<Body>, HttpFault> {
        let request = self.agent.post(url).header("content-type", "application/json");
        request.send(json).map_err(|error| self.fault(error))
    }

    /// One request with any method. Any status is an answer; so is a redirect if `follows` is
    /// false.
    pub(crate) fn send(
        &self,
        request: Request<Vec<u8>>,
        follows: bool,
    ) -> Result<Response<Body>, HttpFault> {
        let (parts, body) = request.into_parts();
        let redirects = if follows { 10 } else { 0 };
        let has_body = !body.is_empty() || [Method::PUT, Method::POST].contains(&parts.method);
        let answer = if has_body {
            let request = Request::from_parts(parts, body);
            let request = self.agent.configure_request(request).max_redirects(redirects).build();
            self.agent.run(request)
        } else {
            let request = Request::from_parts(parts, ());
            let request = self.agent.configure_request(request).max_redirects(redirects).build();
            self.agent.run(request)
        };
        answer.map_err(|error| self.fault(error))
    }

    /// The whole body; an error if it has more than `limit` bytes.
    pub(crate) fn read(&self, answer: Response<Body>, limit: u64) -> Result<Vec<u8>, HttpFault> {
        let mut body = answer.into_body();
        body.with_config().limit(limit).read_to_vec().map_err(|error| self.fault(error))
    }

    /// The fault of a body that could not be read.
    pub(crate) fn read_fault(&self, error: io::Error) -> HttpFault {
        self.fault(error.into())
    }

    /// A new count of tries, and the waits between them.
    pub(crate) const fn backoff(&self) -> RetryBackoff<'_> {
        RetryBackoff { http: self, failed: 0 }
    }

    /// Repeats `attempt` until it succeeds or a retry cannot help.
    pub(crate) fn retry<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, HttpFault>,
    ) -> Result<T, HttpFault> {
        let mut backoff = self.backoff();
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(fault) => backoff.wait(fault)?,
            }
        }
    }

    /// Fails if the user wants to stop.
    pub(crate) fn check_stop(&self) -> Result<(), HttpFault> {
        if self.stop.load(Ordering::Relaxed) { Err(HttpFault::Stopped) } else { Ok(()) }
    }

    fn fault(&self, error: ureq::Error) -> HttpFault {
        use ureq::Error;
        match error {
            Error::Timeout(ureq::Timeout::Global) => {
                HttpFault::Timeout(self.options.total_timeout.unwrap_or(self.options.timeout))
            }
            Error::Timeout(_) => HttpFault::Timeout(self.options.timeout),
            Error::BodyExceedsLimit(limit) => HttpFault::TooLong(limit),
            Error::BadUri(_)
            | Error::Http(_)
            | Error::InvalidProxyUrl
            | Error::HostNotFound
            | Error::RedirectFailed
            | Error::TooManyRedirects
            | Error::TlsRequired => HttpFault::Address(error.to_string()),
            Error::ConnectionFailed | Error::ConnectProxyFailed(_) => {
                HttpFault::Connect(error.to_string())
            }
            Error::Io(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::AddrNotAvailable => HttpFault::Connect(error.to_string()),
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    HttpFault::Timeout(self.options.timeout)
                }
                _ => HttpFault::Broken(error.to_string()),
            },
            error => HttpFault::Broken(error.to_string()),
        }
    }
}

fn config(options: HttpOptions) -> ConfigBuilder<AgentScope> {
    Config::builder()
        .http_status_as_error(false)
        .user_agent(concat!("retrie/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(options.timeout))
        .timeout_connect(Some(options.timeout))
        .timeout_per_write(Some(options.timeout))
        .timeout_recv_response(Some(options.timeout))
        .timeout_per_read(Some(options.timeout))
        .timeout_global(options.total_timeout)
}

/// Fails unless the status is success.
pub(crate) fn success(answer: Response<Body>) -> Result<Response<Body>, HttpFault> {
    if answer.status().is_success() { Ok(answer) } else { Err(status_fault(&answer)) }
}

/// The fault for the status of an answer.
pub(crate) fn status_fault(answer: &Response<Body>) -> HttpFault {
    HttpFault::Status { code: answer.status().as_u16(), retry_after: retry_after(answer) }
}

/// The wait that the server asks for, if it is in seconds. A date is ignored.
pub(crate) fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    let seconds = header(answer, "retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A header, if it exists and is text.
pub(crate) fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Counts failures in a row, and waits longer after each.
#[derive(Debug)]
pub(crate) struct RetryBackoff<'a> {
    http: &'a BlockingClient,
    failed: u32,
}

impl RetryBackoff<'_> {
    /// There was progress: earlier failures do not count any more.
    pub(crate) const fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits after a transient failure. Returns a permanent one, or one beyond the retries.
    pub(crate) fn wait(&mut self, fault: HttpFault) -> Result<(), HttpFault> {
        let options = self.http.options;
        self.http.check_stop()?;
        if !fault.is_transient() {
            return Err(fault);
        }
        self.failed += 1;
        if self.failed > options.retries {
            return Err(match self.failed {
                1 => fault,
                tries => HttpFault::Exhausted { tries, last: Box::new(fault) },
            });
        }
        let doubled = options.backoff.saturating_mul(1 << (self.failed - 1).min(16));
        let wait = match fault {
            HttpFault::Status { retry_after: Some(wait), .. } => wait,
            _ => doubled,
        };
        let until = Instant::now() + wait.min(LONGEST_WAIT);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.http.check_stop()?;
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}
