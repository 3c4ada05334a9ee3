//! States that are held for others to fetch.

use crate::{RpcError, RpcResult};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_engine::{Need, View};
use retrie_state::ChunkServer;
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

/// States that are held for others to fetch.
#[derive(Default)]
pub(crate) struct Pinned(Arc<Mutex<Vec<Pin>>>);

struct Pin {
    block: B256,
    since: Instant,
    used: Instant,
    /// Empty while the state is being made ready.
    server: Arc<OnceLock<Arc<dyn ChunkServer>>>,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|pin| pin.block)).finish()
    }
}

impl Pin {
    fn is_over(&self) -> bool {
        self.used.elapsed() > IDLE || self.since.elapsed() > LONGEST
    }
}

impl Pinned {
    /// The server of the state after `block`, pinned from now on if it was not.
    ///
    /// # Errors
    /// [`RpcError::Rejected`] while it is made ready, or others are in use; if its state is not kept.
    pub(crate) fn server(&self, view: &View, block: B256) -> RpcResult<Arc<dyn ChunkServer>> {
        let ready = {
            let mut pins = self.0.lock();
            pins.retain(|pin| !pin.is_over());
            if let Some(pin) = pins.iter_mut().find(|pin| pin.block == block) {
                pin.used = Instant::now();
                return pin.server.get().cloned().ok_or_else(|| {
                    RpcError::Rejected("this state is being made ready; try again".into())
                });
            }
            if pins.len() >= MOST {
                let oldest = pins.iter().enumerate().min_by_key(|(_, pin)| pin.used);
                match oldest {
                    Some((at, pin)) if pin.used.elapsed() > IN_USE => drop(pins.remove(at)),
                    _ => {
                        let message = format!("{MOST} other states are being fetched; try again");
                        return Err(RpcError::Rejected(message));
                    }
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
        // Methods run on threads of the servers' runtime.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(age));
        }
    }
}
