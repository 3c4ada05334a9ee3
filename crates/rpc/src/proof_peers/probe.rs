//! Watching: names are resolved and peers asked how they are, in the background.

use super::Set;
use std::{
    sync::Weak,
    time::{Duration, Instant},
};

/// How often it is looked whether a probe is due.
const TICK: Duration = Duration::from_millis(100);

/// Watches until the set is gone.
pub(super) async fn watch(set: Weak<Set>) {
    let mut resolve_at = Instant::now();
    while let Some(set) = set.upgrade() {
        let now = Instant::now();
        if resolve_at <= now {
            let of = set.clone();
            // A panic of a resolver ends its attempt alone.
            let _ = tokio::task::spawn_blocking(move || of.resolve()).await;
            resolve_at = now + set.config.resolve;
        }
        let head = (set.head)();
        for peer in &*set.peers.read() {
            if peer.is_due(now) {
                let peer = peer.clone();
                tokio::task::spawn_blocking(move || peer.probe(head));
            }
        }
        drop(set);
        tokio::time::sleep(TICK).await;
    }
}
