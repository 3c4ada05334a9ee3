//! [`StateServer`]: states in [chunks](retrie_state::Chunks) for other nodes to fetch, over whatever
//! carries them. A state is held from the first request for it, so that it stays while the chain goes on.
//!
//! Each [kind of client](StateClient) has states of its own: whatever strangers ask for, the states of
//! trusted peers stay.

mod pins;

use crate::{state::Need, view::View};
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use pins::{IDLE, StatePins};
use retrie_pipeline::PipelineError;
use retrie_state::{ChunkAnswer, ChunkId, ChunkServer, StateError};
use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Bytes behind which an answer ends; the part that reaches them is whole.
const ENOUGH: usize = 2 << 20;
/// Bytes of an answer at most: a part that would lead beyond them is left for the next one.
const MOST_BYTES: usize = 12 << 20;
/// How long an answer is worked on: then it ends with the part that is done.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// Who asks for parts of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateClient {
    /// A peer that the operator trusts, or has named.
    Trusted,
    /// A caller of JSON-RPC.
    Rpc,
    /// Any other peer.
    Stranger,
}

/// Why a part of a state is not given.
#[derive(Debug, thiserror::Error)]
pub enum StatesError {
    /// It will be.
    #[error("this state is being made ready; try again")]
    NotReady,
    /// Others are in use.
    #[error("{0} other states are being fetched; try again")]
    InUse(usize),
    /// The chain fails, or the state is not kept.
    #[error(transparent)]
    Chain(#[from] PipelineError),
}

impl StatesError {
    /// Whether the state after that block is not kept, or the block not known.
    pub const fn is_no_state(&self) -> bool {
        matches!(
            self,
            Self::Chain(PipelineError::State(
                StateError::UnknownBlock { .. }
                    | StateError::BeyondRetention { .. }
                    | StateError::BeyondHistory { .. }
                    | StateError::NotInHistory { .. }
            ))
        )
    }

    /// Whether asking again, in a while, may help.
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::NotReady | Self::InUse(_))
    }
}

/// States that are held for others to fetch. Clones are the same.
#[derive(Clone, Default)]
pub struct StateServer(Arc<Mutex<StatePins>>);

/// The server of one state; empty while it is being made ready.
type ServerSlot = Arc<OnceLock<Arc<dyn ChunkServer>>>;

impl fmt::Debug for StateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().blocks()).finish()
    }
}

impl StateServer {
    /// Chunks of the state after `block`, which is held from now on: of the first ids, as many as are
    /// enough for one answer; `None` where the state has no such node.
    ///
    /// # Errors
    /// [`StatesError`].
    pub fn chunks(
        &self,
        view: &View,
        client: StateClient,
        block: B256,
        ids: &[ChunkId],
    ) -> Result<Vec<Option<Bytes>>, StatesError> {
        let server = self.server(view, client, block)?;
        let parts =
            up_to_enough(ids, |id| match server.chunk(id).map_err(PipelineError::from)? {
                ChunkAnswer::Chunk(chunk) => Ok(Some(chunk)),
                ChunkAnswer::NoNode => Ok(None),
                ChunkAnswer::NotReady => Err(StatesError::NotReady),
            });
        // Ids of nothing do not hold a state.
        let is_of_use = match &parts {
            Ok(parts) => parts.iter().any(Option::is_some),
            Err(error) => error.is_busy(),
        };
        if is_of_use {
            self.0.lock().touch(Instant::now(), client, block);
        }
        parts
    }

    /// Contract codes by their hashes: of the first, as many as are enough for one answer; `None` where
    /// there is none.
    ///
    /// # Errors
    /// If the database fails.
    pub fn codes(&self, view: &View, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatesError> {
        up_to_enough(hashes, |hash| Ok(view.code(hash)?))
    }

    /// The server of the state after `block`, which is held from now on if it was not.
    fn server(
        &self,
        view: &View,
        client: StateClient,
        block: B256,
    ) -> Result<Arc<dyn ChunkServer>, StatesError> {
        let ready = |slot: ServerSlot| slot.get().cloned().ok_or(StatesError::NotReady);
        if let Some(slot) = self.0.lock().find(Instant::now(), client, block) {
            return ready(slot);
        }
        // Before another one is let go for it.
        let state = view.state_at(&block, Need::Entries)?;
        let (slot, is_new) = self.0.lock().pin(Instant::now(), client, block)?;
        if !is_new {
            return ready(slot);
        }
        match state.serve_chunks(Some(view.durable().datadir())).map_err(PipelineError::from) {
            Ok(server) => {
                self.age();
                tracing::info!(%block, ?client, "handing out the state of a block");
                Ok(slot.get_or_init(|| Arc::from(server)).clone())
            }
            Err(error) => {
                self.0.lock().forget(&slot);
                Err(error.into())
            }
        }
    }

    /// Lets go of states in time, even if no client asks.
    fn age(&self) {
        let weak = Arc::downgrade(&self.0);
        let age = async move {
            while let Some(pins) = Weak::upgrade(&weak) {
                let is_done = pins.lock().age(Instant::now());
                drop(pins);
                if is_done {
                    return;
                }
                tokio::time::sleep(IDLE / 8).await;
            }
        };
        // Servers run on threads of a runtime.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(age));
        }
    }
}

/// What there is of each, up to the one with which it is enough for one answer, or before the one that
/// fails, unless that is the first.
fn up_to_enough<T>(
    items: &[T],
    get: impl Fn(&T) -> Result<Option<Bytes>, StatesError>,
) -> Result<Vec<Option<Bytes>>, StatesError> {
    let begun = Instant::now();
    let mut found = Vec::new();
    let mut bytes = 0;
    for item in items {
        let one = match get(item) {
            Err(_) if !found.is_empty() => break,
            one => one?,
        };
        bytes += one.as_ref().map_or(0, |one| one.len());
        if bytes > MOST_BYTES && !found.is_empty() {
            break;
        }
        found.push(one);
        if bytes >= ENOUGH || begun.elapsed() >= LONG_ENOUGH {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of many parts once took as long as its ids wanted.
    #[test]
    fn an_answer_ends_when_it_has_enough_or_takes_long_and_before_what_is_not_ready() {
        let of = |size: usize| move |_: &u8| Ok(Some(Bytes::from(vec![0; size])));
        assert_eq!(up_to_enough(&[0; 9], of(ENOUGH / 2)).unwrap().len(), 2);
        assert_eq!(up_to_enough(&[0; 9], of(MOST_BYTES + 1)).unwrap().len(), 1);
        let slow = |_: &u8| {
            std::thread::sleep(LONG_ENOUGH / 2);
            Ok(None)
        };
        assert!(up_to_enough(&[0; 9], slow).unwrap().len() <= 2);
        let not_from = |first: u8| {
            move |item: &u8| if *item < first { Ok(None) } else { Err(StatesError::NotReady) }
        };
        assert_eq!(up_to_enough(&[0, 1, 2], not_from(2)).unwrap(), [None, None]);
        let refused = up_to_enough(&[0, 1, 2], not_from(0));
        assert!(matches!(refused, Err(StatesError::NotReady)), "{refused:?}");
    }
}
