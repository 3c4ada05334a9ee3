//! The export of a program that was built without it.

use super::{OtlpConfig, OtlpError};
use tracing::Subscriber;
use tracing_subscriber::Layer;

/// A running export of spans. There is none, as this program was built without the feature `otlp`.
#[derive(Debug)]
pub struct SpanExport(std::convert::Infallible);

impl SpanExport {
    /// Fails.
    ///
    /// # Errors
    /// [`OtlpError::Unbuilt`].
    pub const fn start(_: &OtlpConfig) -> Result<Self, OtlpError> {
        Err(OtlpError::Unbuilt)
    }

    /// The layer that turns spans into exported ones.
    pub(crate) fn layer<S: Subscriber>(&self) -> Box<dyn Layer<S> + Send + Sync> {
        match self.0 {}
    }

    /// Exports what is left.
    pub fn stop(self) {
        match self.0 {}
    }
}
