//! What all subscriptions share: the next event, and sending it to a client that may be slow.

use jsonrpsee::{
    SubscriptionSink,
    core::{SubscriptionError, to_json_raw_value},
};
use serde::Serialize;
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Longest time to deliver a message to a client that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The next event; `None` when the client or the node is gone. A client that is too slow to read
/// all events gets an error and must subscribe again.
pub(crate) async fn next<T: Clone>(
    sink: &SubscriptionSink,
    events: &mut Receiver<T>,
) -> Result<Option<T>, SubscriptionError> {
    tokio::select! {
        () = sink.closed() => Ok(None),
        event = events.recv() => match event {
            Ok(event) => Ok(Some(event)),
            Err(RecvError::Closed) => Ok(None),
            Err(RecvError::Lagged(lost)) => {
                Err(format!("{lost} events were lost, as they were not read in time").into())
            }
        },
    }
}

/// Sends an event.
pub(crate) async fn send(
    sink: &SubscriptionSink,
    message: &impl Serialize,
) -> Result<(), SubscriptionError> {
    sink.send_timeout(to_json_raw_value(message)?, SEND_TIMEOUT).await?;
    Ok(())
}
