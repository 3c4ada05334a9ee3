//! Lookups: asking the nodes closest to a target for closer ones.

use super::{Discv4Service, NoAnswer};
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

/// How many nodes a lookup asks at once.
const PARALLEL: usize = 3;
/// Number of failed rounds over all boot nodes before a warning is logged.
const WARN_AFTER: u32 = 5;
/// Maximum number of nodes that one lookup asks. Without lying nodes it ends far before.
const MAX_ASKED: usize = 128;

impl Discv4Service {
    /// Looks for nodes close to a target, and sends all that are found to `found`. The ones that
    /// answer are in the table afterwards.
    ///
    /// A found node is asked only while it is among the closest: an answer that leads away costs
    /// one request.
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
                    // If the reader is slow, the node is dropped: the reader has enough nodes then.
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
                // The task was aborted: discovery ends.
                Some(Err(_)) => break,
            }
        }
    }

    /// Looks up a random target.
    pub(in crate::discovery) async fn lookup_random(self: &Arc<Self>, found: &mpsc::Sender<Enode>) {
        // It need not be a valid key: nodes hash it.
        let mut target = PeerId::ZERO;
        rand::rng().fill_bytes(target.as_mut_slice());
        self.lookup(target, found).await;
    }

    /// Bootstraps the table from the boot nodes and the nodes of earlier runs, and repeats that
    /// while no node answers. Then looks up this node itself, and again at intervals.
    pub(in crate::discovery) async fn bootstrap(
        self: Arc<Self>,
        saved: Vec<Enode>,
        found: mpsc::Sender<Enode>,
    ) {
        // As long as no node answers, saved nodes are pinged again too: a packet is easily lost.
        let all: Vec<_> = self.boot.iter().copied().chain(saved).collect();
        let mut seeds = all.clone();
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
            let alone = self.len() == 0 && !all.is_empty();
            tries = if alone { tries.saturating_add(1) } else { 0 };
            if tries == WARN_AFTER {
                warn!(
                    target: "retrie::network",
                    "none of {} boot nodes and saved ones answers; they are tried again. Can UDP \
                     packets leave, and come back?",
                    all.len()
                );
            }
            if !alone {
                self.lookup(self.key.id(), &found).await;
                let (known, live) = (self.len(), self.live_nodes().len());
                info!(target: "retrie::network", known, live, "nodes found by discovery");
            }
            tokio::time::sleep(if alone { self.pace.lookup } else { self.pace.refresh }).await;
            seeds.clone_from(if alone { &all } else { &self.boot });
        }
    }
}
