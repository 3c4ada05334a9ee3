//! [`StateServer`]: states in [chunks](retrie_state::Chunks) for other nodes to fetch, over whatever
//! carries them. A state is held from the first request for it, so that it stays while the chain goes on.

use crate::{state::Need, view::View};
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use retrie_pipeline::PipelineError;
use retrie_state::{ChunkId, ChunkServer, StateError};
use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// States at most: each keeps the database from using pages again that were freed since.
const MOST: usize = 2;
/// How long one is held that nobody asks for.
const IDLE: Duration = Duration::from_secs(120);
/// How long one that was asked for cannot be put aside for another.
const IN_USE: Duration = Duration::from_secs(20);
/// How long one is held at all; asked for again it is pinned again, if it still is kept.
const LONGEST: Duration = Duration::from_secs(3600);

/// Bytes behind which an answer ends; the part that reaches them is whole.
const ENOUGH: usize = 2 << 20;
/// Bytes of an answer at most: a part that would lead beyond them is left for the next one.
const MOST_BYTES: usize = 12 << 20;

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
pub struct StateServer(Arc<Mutex<Vec<Pin>>>);

struct Pin {
    block: B256,
    since: Instant,
    used: Instant,
    /// Empty while the state is being made ready.
    server: Arc<OnceLock<Arc<dyn ChunkServer>>>,
}

impl fmt::Debug for StateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|pin| pin.block)).finish()
    }
}

impl Pin {
    fn is_over(&self) -> bool {
        self.used.elapsed() > IDLE || self.since.elapsed() > LONGEST
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
        block: B256,
        ids: &[ChunkId],
    ) -> Result<Vec<Option<Bytes>>, StatesError> {
        let server = self.server(view, block)?;
        up_to_enough(ids, |id| Ok(server.chunk(id).map_err(PipelineError::from)?))
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
    fn server(&self, view: &View, block: B256) -> Result<Arc<dyn ChunkServer>, StatesError> {
        let ready = {
            let mut pins = self.0.lock();
            pins.retain(|pin| !pin.is_over());
            if let Some(pin) = pins.iter_mut().find(|pin| pin.block == block) {
                pin.used = Instant::now();
                return pin.server.get().cloned().ok_or(StatesError::NotReady);
            }
            if pins.len() >= MOST {
                let oldest = pins.iter().enumerate().min_by_key(|(_, pin)| pin.used);
                match oldest {
                    Some((at, pin)) if pin.used.elapsed() > IN_USE => drop(pins.remove(at)),
                    _ => return Err(StatesError::InUse(MOST)),
                }
            }
            let (now, server) = (Instant::now(), Arc::default());
            pins.push(Pin { block, since: now, used: now, server: Arc::clone(&server) });
            server
        };
        let made = view
            .state_at(&block, Need::Entries)
            .and_then(|state| Ok(Arc::<dyn ChunkServer>::from(state.serve_chunks()?)));
        match made {
            Ok(server) => {
                self.age();
                tracing::info!(%block, "handing out the state of a block");
                Ok(ready.get_or_init(|| server).clone())
            }
            Err(error) => {
                self.0.lock().retain(|pin| !Arc::ptr_eq(&pin.server, &ready));
                Err(error.into())
            }
        }
    }

    /// Lets go of states in time, though nobody asks.
    fn age(&self) {
        let weak = Arc::downgrade(&self.0);
        let age = async move {
            while let Some(pins) = Weak::upgrade(&weak) {
                let is_done = {
                    let mut pins = pins.lock();
                    pins.retain(|pin| !pin.is_over());
                    pins.is_empty()
                };
                drop(pins);
                if is_done {
                    return;
                }
                tokio::time::sleep(IDLE / 8).await;
            }
        };
        // Whoever serves does so on threads of a runtime.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(age));
        }
    }
}

/// What there is of each, up to the one with which it is enough for one answer.
fn up_to_enough<T>(
    items: &[T],
    get: impl Fn(&T) -> Result<Option<Bytes>, StatesError>,
) -> Result<Vec<Option<Bytes>>, StatesError> {
    let mut found = Vec::new();
    let mut bytes = 0;
    for item in items {
        let one = get(item)?;
        bytes += one.as_ref().map_or(0, |one| one.len());
        if bytes > MOST_BYTES && !found.is_empty() {
            break;
        }
        found.push(one);
        if bytes >= ENOUGH {
            break;
        }
    }
    Ok(found)
}
