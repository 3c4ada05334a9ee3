//! The background task that resolves names and probes peers.

use super::PeerSet;
use std::{
    sync::Weak,
    time::{Duration, Instant},
};

/// How often the task checks whether a probe is due.
const TICK: Duration = Duration::from_millis(100);

/// Runs until the set is dropped.
pub(super) async fn watch(set: Weak<PeerSet>) {
    let mut resolve_at = Instant::now();
    while let Some(set) = set.upgrade() {
        let now = Instant::now();
        if resolve_at <= now {
            let of = set.clone();
            // A panic of the resolver only ends this attempt.
            let _ = tokio::task::spawn_blocking(move || of.resolve()).await;
            resolve_at = now + set.config.resolve;
        }
        let head = (set.head)();
        for peer in &*set.peers.read() {
            if peer.begin_probe_if_due(now) {
                let peer = peer.clone();
                tokio::task::spawn_blocking(move || peer.probe(head));
            }
        }
        drop(set);
        tokio::time::sleep(TICK).await;
    }
}
