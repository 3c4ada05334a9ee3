//! The blocking HTTP client below downloads and JSON-RPC: timeouts, redirects, proxies, and which
//! failures are worth another try.
//!
//! HTTP/1.1 over plain sockets or TLS (rustls with Mozilla's roots); `HTTPS_PROXY`, `ALL_PROXY` and
//! their kin are honoured. Nothing here knows what is fetched, and a [`HttpFault`] names no URL: the
//! caller does, who knows whether it holds a secret.

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

/// How patient a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// How long to wait for a connection, for the answer to begin, and for its next byte.
    pub timeout: Duration,
    /// How long one exchange may take in all. Without it a long answer that keeps coming never times
    /// out.
    pub whole: Option<Duration>,
    /// How often to try again, in a row and without any progress in between.
    pub retries: u32,
    /// The wait before the first new try; it doubles from one to the next, up to a minute. What the
    /// server asks for (`Retry-After`) goes first.
    pub backoff: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            whole: None,
            retries: 4,
            backoff: Duration::from_millis(500),
        }
    }
}

/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// An HTTP client and the flag that stops it. Clones share connections.
#[derive(Clone)]
pub struct Http {
    agent: Agent,
    options: HttpOptions,
    stop: Arc<AtomicBool>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why an exchange failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpFault {
    /// The address cannot be one.
    #[error("not a usable http or https address ({0})")]
    Address(String),
    /// No connection.
    #[error("cannot connect ({0})")]
    Connect(String),
    /// The connection broke, or the answer ended too early.
    #[error("the connection broke ({0})")]
    Broken(String),
    /// Nothing came for too long.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// A status that is not success.
    #[error("the server answers {code}{}", status_hint(*.code))]
    Status {
        /// The status code.
        code: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The answer is longer than any true one.
    #[error("the answer is longer than {0} bytes")]
    TooLong(u64),
    /// It failed again and again.
    #[error("{last}, {tries} times in a row")]
    Exhausted {
        /// How often it was tried.
        tries: u32,
        /// What it failed with at last.
        last: Box<Self>,
    },
    /// The user stopped it.
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

    /// Whether the server says that there is no such thing.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: 404 | 410, .. })
    }
}

impl Http {
    /// A client that gives up when `stop` is set.
    pub fn new(options: HttpOptions, stop: Arc<AtomicBool>) -> Self {
        let config = config(options).build();
        Self { agent: config.into(), options, stop }
    }

    /// A client of other patience that no proxy is between, which the same flag stops.
    pub(crate) fn direct(&self, options: HttpOptions) -> Self {
        let config = config(options).proxy(None).build();
        Self { agent: config.into(), options, stop: self.stop.clone() }
    }

    /// A client of other patience, which the same flag stops.
    pub fn with(&self, options: HttpOptions) -> Self {
        Self::new(options, self.stop.clone())
    }

    /// One GET with these headers. Redirects are followed; any status is an answer.
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

    /// One request, whatever its method. Any status is an answer, a redirect too unless they are
    /// followed.
    pub(crate) fn run(
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

    /// The whole body, at most `limit` bytes of it.
    pub(crate) fn read(&self, answer: Response<Body>, limit: u64) -> Result<Vec<u8>, HttpFault> {
        let mut body = answer.into_body();
        body.with_config().limit(limit).read_to_vec().map_err(|error| self.fault(error))
    }

    /// A reading of a body that failed.
    pub(crate) fn read_fault(&self, error: io::Error) -> HttpFault {
        self.fault(error.into())
    }

    /// Waits between tries, and counts them.
    pub(crate) const fn backoff(&self) -> Backoff<'_> {
        Backoff { http: self, failed: 0 }
    }

    /// Tries until it succeeds or is not worth another try.
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

    /// Fails once the user wants to stop.
    pub(crate) fn go_on(&self) -> Result<(), HttpFault> {
        if self.stop.load(Ordering::Relaxed) { Err(HttpFault::Stopped) } else { Ok(()) }
    }

    fn fault(&self, error: ureq::Error) -> HttpFault {
        use ureq::Error;
        match error {
            Error::Timeout(ureq::Timeout::Global) => {
                HttpFault::Timeout(self.options.whole.unwrap_or(self.options.timeout))
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
        .timeout_global(options.whole)
}

/// Fails unless the status is success.
pub(crate) fn success(answer: Response<Body>) -> Result<Response<Body>, HttpFault> {
    if answer.status().is_success() { Ok(answer) } else { Err(status_fault(&answer)) }
}

/// The status of an answer as a failure.
pub(crate) fn status_fault(answer: &Response<Body>) -> HttpFault {
    HttpFault::Status { code: answer.status().as_u16(), retry_after: retry_after(answer) }
}

/// How long the server asks to wait. The other form, a date, leaves the wait to us.
pub(crate) fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    let seconds = header(answer, "retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A header, if it is there and is text.
pub(crate) fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Counts failures in a row and waits longer after each.
#[derive(Debug)]
pub(crate) struct Backoff<'a> {
    http: &'a Http,
    failed: u32,
}

impl Backoff<'_> {
    /// There was progress: what failed before no longer counts.
    pub(crate) const fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits after a failure that may pass; gives back one that will not, or has come too often.
    pub(crate) fn wait(&mut self, fault: HttpFault) -> Result<(), HttpFault> {
        let options = self.http.options;
        self.http.go_on()?;
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
            self.http.go_on()?;
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}
