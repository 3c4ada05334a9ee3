//! [`RangeServers`]: the recent states that peers ask for by root, with `snap`.

use crate::{state::StateNeed, state_server::is_gone, view::LiveView};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_pipeline::{PipelineError, RootKind};
use retrie_state::RangeServer;
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// How far below the head the states are served, in blocks: as far as geth serves them.
const RECENT_BLOCKS: u64 = 127;
/// How many states are open at once.
const MAX_OPEN: usize = 8;
/// A state without requests is closed after this time.
const IDLE: Duration = Duration::from_secs(60);
/// A state is closed at this age: it keeps the database from reusing pages that were freed since.
const MAX_AGE: Duration = Duration::from_secs(1800);

/// The states that are open for peers. Clones share them.
#[derive(Clone, Default)]
pub struct RangeServers(Arc<Mutex<VecDeque<OpenState>>>);

struct OpenState {
    root: B256,
    since: Instant,
    used: Instant,
    server: Arc<dyn RangeServer>,
}

impl OpenState {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) > IDLE || now.duration_since(self.since) > MAX_AGE
    }
}

impl fmt::Debug for RangeServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|open| open.root)).finish()
    }
}

impl RangeServers {
    /// The state of a recent canonical block whose header has this state root; `None` if there is
    /// none, or if it is not kept.
    ///
    /// # Errors
    /// If the database fails.
    pub fn state(
        &self,
        view: &LiveView,
        root: B256,
    ) -> Result<Option<Arc<dyn RangeServer>>, PipelineError> {
        if let Some(server) = self.find(root) {
            return Ok(Some(server));
        }
        let Some(hash) = recent_block(view, root)? else { return Ok(None) };
        let server = view
            .state_at(&hash, StateNeed::Entries)
            .and_then(|state| Ok(state.serve_ranges(Some(view.durable().datadir()))?));
        let server = match server {
            Ok(server) => Arc::from(server),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(self.open(root, server)))
    }

    fn find(&self, root: B256) -> Option<Arc<dyn RangeServer>> {
        let now = Instant::now();
        let mut states = self.0.lock();
        states.retain(|open| !open.is_over(now));
        let open = states.iter_mut().find(|open| open.root == root)?;
        open.used = now;
        Some(open.server.clone())
    }

    /// Keeps a state open. If too many are, closes the one that was idle for longest.
    fn open(&self, root: B256, server: Arc<dyn RangeServer>) -> Arc<dyn RangeServer> {
        let now = Instant::now();
        let mut states = self.0.lock();
        if let Some(open) = states.iter().find(|open| open.root == root) {
            return open.server.clone();
        }
        if states.len() >= MAX_OPEN
            && let Some((at, _)) = states.iter().enumerate().min_by_key(|(_, open)| open.used)
        {
            states.remove(at);
        }
        if states.is_empty() {
            self.spawn_expiry();
        }
        states.push_back(OpenState { root, since: now, used: now, server: server.clone() });
        server
    }

    /// Starts a task that closes states that are over, also without requests.
    fn spawn_expiry(&self) {
        let weak = Arc::downgrade(&self.0);
        let age = async move {
            loop {
                tokio::time::sleep(IDLE / 8).await;
                let Some(states) = Weak::upgrade(&weak) else { return };
                let now = Instant::now();
                let mut states = states.lock();
                states.retain(|open| !open.is_over(now));
                if states.is_empty() {
                    return;
                }
            }
        };
        // Without a runtime (tests), states are closed at the next request only.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(age));
        }
    }
}

/// The hash of the latest canonical block with this state root, not far below the head. The ranges
/// are proven by the Merkle Patricia trie, so a root of the binary tree counts as unknown.
fn recent_block(view: &LiveView, root: B256) -> Result<Option<B256>, PipelineError> {
    let mut next = Some(view.head().clone());
    for _ in 0..=RECENT_BLOCKS {
        let Some(header) = next else { return Ok(None) };
        let kind = view.live().chain().root_kind(header.timestamp);
        if header.state_root == root && kind == RootKind::Merkle {
            return Ok(Some(header.hash()));
        }
        next = match header.number {
            0 => None,
            _ => view.header(&header.parent_hash)?,
        };
    }
    Ok(None)
}
