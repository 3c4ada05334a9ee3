//! OTLP over HTTP: a protobuf message in the body of a POST request.

use super::sender::{MAX_ANSWER, SendError, SpanTransport};
use std::time::Duration;
use ureq::Agent;

/// A collector that takes protobuf over HTTP or HTTPS.
#[derive(Debug)]
pub(super) struct HttpTransport {
    agent: Agent,
    url: String,
    timeout: Duration,
}

impl HttpTransport {
    /// Posts to `url`. A `local` collector is never behind a proxy.
    pub(super) fn new(url: &str, local: bool, timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0);
        let config = if local { config.proxy(None) } else { config };
        Self { agent: config.build().into(), url: url.into(), timeout }
    }
}

impl SpanTransport for HttpTransport {
    fn send(&mut self, request: Vec<u8>) -> Result<Vec<u8>, SendError> {
        let fault = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => SendError::Timeout(self.timeout),
            error => SendError::Connection(error.to_string()),
        };
        let post = self.agent.post(&self.url).header("content-type", "application/x-protobuf");
        let mut answer = post.send(&request[..]).map_err(fault)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(SendError::Refusal(status.to_string()));
        }
        let body = answer.body_mut().with_config().limit(MAX_ANSWER as u64);
        body.read_to_vec().map_err(fault)
    }
}
