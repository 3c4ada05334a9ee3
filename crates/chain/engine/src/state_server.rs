//! [`StateServer`]: serves states in [chunks](retrie_state::StateChunks) to other nodes (state sync),
//! independent of the transport. It pins a state at the first request, so that the state stays
//! while the chain goes on.
//!
//! Each [kind of client](StateClient) has its own pins: requests of strangers do not evict the
//! states of trusted peers.

mod pins;

use crate::{state::StateNeed, view::LiveView};
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use pins::{IDLE, StatePinSet};
use retrie_pipeline::PipelineError;
use retrie_state::{ChunkAnswer, ChunkId, ChunkServer, StateError};
use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// An answer ends with the part that reaches this number of bytes.
const TARGET_BYTES: usize = 2 << 20;
/// Largest answer in bytes: a part that exceeds it is left for the next answer.
const MAX_BYTES: usize = 12 << 20;
/// Time for one answer; after it the answer ends with the current part.
const TARGET_TIME: Duration = Duration::from_millis(500);

/// Kinds of clients that fetch states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateClient {
    /// A trusted or static peer.
    Trusted,
    /// A caller of JSON-RPC.
    Rpc,
    /// Any other peer.
    Stranger,
}

/// Why a part of a state is not served.
#[derive(Debug, thiserror::Error)]
pub enum StateServeError {
    /// The state is not ready yet.
    #[error("this state is being made ready; try again")]
    NotReady,
    /// Other states are in use.
    #[error("{0} other states are being fetched; try again")]
    InUse(usize),
    /// Reading the chain failed, or the state is not kept.
    #[error(transparent)]
    Chain(#[from] PipelineError),
}

impl StateServeError {
    /// Whether the state of the block is not kept, or the block is not known.
    pub const fn is_no_state(&self) -> bool {
        matches!(self, Self::Chain(error) if is_gone(error))
    }

    /// Whether a later request may succeed.
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::NotReady | Self::InUse(_))
    }
}

/// Whether the error says that the state of a block is not kept, or that the block is not known.
pub(crate) const fn is_gone(error: &PipelineError) -> bool {
    matches!(
        error,
        PipelineError::State(
            StateError::UnknownBlock { .. }
                | StateError::BeyondRetention { .. }
                | StateError::BeyondHistory { .. }
                | StateError::NotInHistory { .. }
        )
    )
}

/// States that other nodes fetch. Clones share them.
#[derive(Clone, Default)]
pub struct StateServer(Arc<Mutex<StatePinSet>>);

/// The chunk server of one state; empty until it is ready.
type ServerSlot = Arc<OnceLock<Arc<dyn ChunkServer>>>;

impl fmt::Debug for StateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().blocks()).finish()
    }
}

impl StateServer {
    /// Chunks of the state after `block`, in the order of `ids`, up to the size of one answer;
    /// `None` where the state has no such node. Pins the state.
    ///
    /// # Errors
    /// [`StateServeError`].
    pub fn chunks(
        &self,
        view: &LiveView,
        client: StateClient,
        block: B256,
        ids: &[ChunkId],
    ) -> Result<Vec<Option<Bytes>>, StateServeError> {
        let server = self.server(view, client, block)?;
        let parts = fill_answer(ids, |id| match server.chunk(id).map_err(PipelineError::from)? {
            ChunkAnswer::Chunk(chunk) => Ok(Some(chunk)),
            ChunkAnswer::NoNode => Ok(None),
            ChunkAnswer::NotReady => Err(StateServeError::NotReady),
        });
        // A request that gets no chunk does not prolong the pin.
        let is_of_use = match &parts {
            Ok(parts) => parts.iter().any(Option::is_some),
            Err(error) => error.is_busy(),
        };
        if is_of_use {
            self.0.lock().touch(Instant::now(), client, block);
        }
        parts
    }

    /// Contract codes by their hashes, in order, up to the size of one answer; `None` for an
    /// unknown code.
    ///
    /// # Errors
    /// If the database fails.
    pub fn codes(
        &self,
        view: &LiveView,
        hashes: &[B256],
    ) -> Result<Vec<Option<Bytes>>, StateServeError> {
        fill_answer(hashes, |hash| Ok(view.code(hash)?))
    }

    /// The chunk server of the state after `block`; pins the state if it is not pinned.
    fn server(
        &self,
        view: &LiveView,
        client: StateClient,
        block: B256,
    ) -> Result<Arc<dyn ChunkServer>, StateServeError> {
        let ready = |slot: ServerSlot| slot.get().cloned().ok_or(StateServeError::NotReady);
        if let Some(slot) = self.0.lock().find(Instant::now(), client, block) {
            return ready(slot);
        }
        // Checks that the state exists before another one is evicted for it.
        let state = view.state_at(&block, StateNeed::Entries)?;
        let (slot, is_new) = self.0.lock().pin(Instant::now(), client, block)?;
        if !is_new {
            return ready(slot);
        }
        match state.serve_chunks(Some(view.durable().datadir())).map_err(PipelineError::from) {
            Ok(server) => {
                self.spawn_expiry();
                tracing::info!(%block, ?client, "handing out the state of a block");
                Ok(slot.get_or_init(|| Arc::from(server)).clone())
            }
            Err(error) => {
                self.0.lock().forget(&slot);
                Err(error.into())
            }
        }
    }

    /// Starts a task that drops expired pins, also without requests.
    fn spawn_expiry(&self) {
        let weak = Arc::downgrade(&self.0);
        let age = async move {
            while let Some(pins) = Weak::upgrade(&weak) {
                let is_done = pins.lock().drop_expired(Instant::now());
                drop(pins);
                if is_done {
                    return;
                }
                tokio::time::sleep(IDLE / 8).await;
            }
        };
        // Without a runtime (tests), pins expire at the next request only.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(age));
        }
    }
}

/// Gets items until the answer is large enough or took long enough, or until one fails; a failure
/// of the first item is the error.
fn fill_answer<T>(
    items: &[T],
    get: impl Fn(&T) -> Result<Option<Bytes>, StateServeError>,
) -> Result<Vec<Option<Bytes>>, StateServeError> {
    let begun = Instant::now();
    let mut found = Vec::new();
    let mut bytes = 0;
    for item in items {
        let one = match get(item) {
            Err(_) if !found.is_empty() => break,
            one => one?,
        };
        bytes += one.as_ref().map_or(0, |one| one.len());
        if bytes > MAX_BYTES && !found.is_empty() {
            break;
        }
        found.push(one);
        if bytes >= TARGET_BYTES || begun.elapsed() >= TARGET_TIME {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an answer of many parts took unlimited time.
    #[test]
    fn an_answer_ends_when_it_has_enough_or_takes_long_and_before_what_is_not_ready() {
        let of = |size: usize| move |_: &u8| Ok(Some(Bytes::from(vec![0; size])));
        assert_eq!(fill_answer(&[0; 9], of(TARGET_BYTES / 2)).unwrap().len(), 2);
        assert_eq!(fill_answer(&[0; 9], of(MAX_BYTES + 1)).unwrap().len(), 1);
        let slow = |_: &u8| {
            std::thread::sleep(TARGET_TIME / 2);
            Ok(None)
        };
        assert!(fill_answer(&[0; 9], slow).unwrap().len() <= 2);
        let not_from = |first: u8| {
            move |item: &u8| if *item < first { Ok(None) } else { Err(StateServeError::NotReady) }
        };
        assert_eq!(fill_answer(&[0, 1, 2], not_from(2)).unwrap(), [None, None]);
        let refused = fill_answer(&[0, 1, 2], not_from(0));
        assert!(matches!(refused, Err(StateServeError::NotReady)), "{refused:?}");
    }
}
