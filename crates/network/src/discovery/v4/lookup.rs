//! Looking for nodes: asking those nearest to a target for nearer ones.

use super::{NoAnswer, V4};
use crate::{
    discovery::{enode::Enode, table::BUCKET_NODES},
    eth::PeerId,
};
use alloy_primitives::B256;
use rand::RngCore;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Instant,
};
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{info, warn};

/// Nodes that a lookup asks at once.
const PARALLEL: usize = 3;
/// Tries of all boot nodes without an answer before the log says so.
const WARN_AFTER: u32 = 5;
/// Nodes that one lookup asks at most. It ends by itself far before, unless nodes lie.
const MAX_ASKED: usize = 128;

impl V4 {
    /// Looks for nodes near to a target, and hands on all that are told of. Those who answer are in the
    /// table afterwards.
    ///
    /// Whoever is found is asked in turn while it is among the nearest: so an answer that leads away
    /// costs one question.
    pub(in crate::discovery) async fn lookup(
        self: &Arc<Self>,
        target: PeerId,
        found: &mpsc::Sender<Enode>,
    ) {
        let hash = alloy_primitives::keccak256(target);
        let mut seen: HashSet<PeerId> = HashSet::new();
        let mut nearest: BTreeMap<B256, (Enode, bool)> = BTreeMap::new();
        let mut asked = 0;
        let mut tasks = JoinSet::new();
        let mut news = self.state.lock().table.closest(&hash, BUCKET_NODES, false);
        loop {
            for node in news.drain(..) {
                if seen.insert(node.id) {
                    // Nobody waits for a reader that is slow: it has enough.
                    let _ = found.try_send(node);
                    nearest.insert(node.hash() ^ hash, (node, false));
                }
            }
            while nearest.len() > BUCKET_NODES {
                nearest.pop_last();
            }
            for (node, is_asked) in nearest.values_mut().filter(|(_, is_asked)| !is_asked) {
                if tasks.len() >= PARALLEL || asked >= MAX_ASKED {
                    break;
                }
                *is_asked = true;
                asked += 1;
                let (v4, node) = (Arc::clone(self), *node);
                tasks.spawn(async move { (node, v4.find_node(&node, target).await) });
            }
            match tasks.join_next().await {
                None => break,
                Some(Ok((_, Ok(nodes)))) => {
                    let now = Instant::now();
                    let mut state = self.state.lock();
                    for node in &nodes {
                        state.table.add(*node, now);
                    }
                    drop(state);
                    news = nodes;
                }
                Some(Ok((node, Err(NoAnswer)))) => {
                    nearest.remove(&(node.hash() ^ hash));
                }
                // Aborted: discovery ends.
                Some(Err(_)) => break,
            }
        }
    }

    /// A lookup for a target that nobody can foresee.
    pub(in crate::discovery) async fn lookup_anywhere(
        self: &Arc<Self>,
        found: &mpsc::Sender<Enode>,
    ) {
        // It needs not be a key: nodes hash it.
        let mut target = PeerId::ZERO;
        rand::rng().fill_bytes(target.as_mut_slice());
        self.lookup(target, found).await;
    }

    /// Enters the network by way of the boot nodes and those of earlier runs, and keeps at it while
    /// nobody is there; then fills the table from near to us, and again from time to time.
    pub(in crate::discovery) async fn enter(
        self: Arc<Self>,
        saved: Vec<Enode>,
        found: mpsc::Sender<Enode>,
    ) {
        let mut seeds: Vec<_> = self.boot.iter().copied().chain(saved).collect();
        let mut tries = 0_u32;
        loop {
            let mut tasks = JoinSet::new();
            for node in seeds.drain(..) {
                while tasks.len() >= 16 {
                    tasks.join_next().await;
                }
                let v4 = Arc::clone(&self);
                tasks.spawn(async move { v4.ping(&node).await });
            }
            while tasks.join_next().await.is_some() {}
            let alone = self.len() == 0 && !self.boot.is_empty();
            tries = if alone { tries.saturating_add(1) } else { 0 };
            if tries == WARN_AFTER {
                warn!(
                    target: "retrie::network",
                    "none of {} boot nodes answers; they are tried again. Can UDP packets leave, and \
                     come back?",
                    self.boot.len()
                );
            }
            if !alone {
                self.lookup(self.key.id(), &found).await;
                let (known, live) = (self.len(), self.live_nodes().len());
                info!(target: "retrie::network", known, live, "nodes found by discovery");
            }
            tokio::time::sleep(if alone { self.pace.lookup } else { self.pace.refresh }).await;
            seeds.clone_from(&self.boot);
        }
    }
}
