//! What the node waits for, in its log: since when, and what ends it.

use crate::advice;
use retrie_engine::{SyncWait, WaitReason};
use std::{
    mem::{Discriminant, discriminant},
    time::{Duration, Instant, SystemTime},
};

/// How long a wait may last before it is told, unless only the operator can end it.
const GRACE: Duration = Duration::from_secs(15);
/// How often it is told again.
const REPEAT: Duration = Duration::from_secs(60);
/// How long a consensus client may be silent: ten slots of mainnet.
const SILENCE: Duration = Duration::from_secs(120);
/// How often its silence is told.
const REPEAT_SILENCE: Duration = Duration::from_secs(300);

/// What was told of the node's waits, and when.
#[derive(Debug)]
pub(super) struct WaitLog {
    wait: Option<ToldWait>,
    /// Whether blocks come from a consensus client alone.
    has_client: bool,
    /// When the consensus client was last heard, or its silence told.
    client: Instant,
    silence: Duration,
}

/// A wait under way.
#[derive(Debug)]
struct ToldWait {
    kind: Discriminant<WaitReason>,
    /// When it is told next.
    due: Instant,
}

impl WaitLog {
    /// Begins `now`; with `has_client` a consensus client is expected to lead the node.
    pub(super) const fn new(has_client: bool, now: Instant) -> Self {
        Self { wait: None, has_client, client: now, silence: SILENCE }
    }

    /// Tells `wait`, if it is time to.
    pub(super) fn tell(&mut self, wait: Option<&SyncWait>, now: Instant) {
        if !self.is_due(wait, now) {
            return;
        }
        let Some(SyncWait { reason, since, .. }) = wait else { return };
        let remedy = advice::of_wait(reason);
        let seconds = SystemTime::now().duration_since(*since).unwrap_or_default().as_secs();
        if matches!(reason, WaitReason::Blocks(_)) {
            tracing::info!("behind, and waiting for {reason}, for {seconds} s now");
        } else {
            tracing::warn!("waiting for {reason}, for {seconds} s now; what ends it: {remedy}");
        }
    }

    fn is_due(&mut self, wait: Option<&SyncWait>, now: Instant) -> bool {
        let Some(SyncWait { reason, .. }) = wait else {
            self.wait = None;
            return false;
        };
        let kind = discriminant(reason);
        let is_final = matches!(reason, WaitReason::TooDeepReorg(..));
        let first = if is_final { now } else { now + GRACE };
        let told = self.wait.take().filter(|told| told.kind == kind);
        let ToldWait { due, .. } = told.unwrap_or(ToldWait { kind, due: first });
        let is_due = due <= now;
        self.wait = Some(ToldWait { kind, due: if is_due { now + REPEAT } else { due } });
        is_due
    }

    /// Warns of a consensus client that has not called for `silence`, if one is expected.
    pub(super) fn tell_silence(&mut self, silence: Option<Duration>, now: Instant) {
        if !self.is_silent(silence, now) {
            return;
        }
        let heard = match silence {
            None => "has not called yet".to_owned(),
            Some(silence) => format!("has not called for {} s", silence.as_secs()),
        };
        tracing::warn!(
            "no new head: the consensus client {heard}; what ends it: one that is started with this \
             node's --authrpc.addr, --authrpc.port and --authrpc.jwtsecret, or --follow URL"
        );
    }

    fn is_silent(&mut self, silence: Option<Duration>, now: Instant) -> bool {
        if !self.has_client {
            return false;
        }
        if let Some(silence) = silence.filter(|silence| *silence < SILENCE) {
            (self.client, self.silence) = (now.checked_sub(silence).unwrap_or(now), SILENCE);
        }
        let is_silent = now.duration_since(self.client) >= self.silence;
        if is_silent {
            (self.client, self.silence) = (now, REPEAT_SILENCE);
        }
        is_silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_engine::DeepBranch;

    fn wait(reason: WaitReason) -> SyncWait {
        SyncWait { head: None, reason, since: SystemTime::now() }
    }

    #[test]
    fn a_wait_is_told_after_a_while_and_then_each_minute() {
        let start = Instant::now();
        let mut log = WaitLog::new(false, start);
        let peers = wait(WaitReason::NoPeers);
        let mut told = |wait: Option<&SyncWait>, second: u64| {
            log.is_due(wait, start + Duration::from_secs(second))
        };
        assert!(!told(None, 0) && !told(Some(&peers), 1) && !told(Some(&peers), 15));
        assert!(told(Some(&peers), 16) && !told(Some(&peers), 17) && !told(Some(&peers), 75));
        assert!(told(Some(&peers), 76));
        // It has ended, and begins anew.
        assert!(!told(None, 77) && !told(Some(&peers), 78) && told(Some(&peers), 93));
        // Nothing but the operator ends this one.
        let branch = DeepBranch { fork: 1, first_retained: 5, retention: 3 };
        let deep = wait(WaitReason::TooDeepReorg(9, branch));
        assert!(told(Some(&deep), 94) && !told(Some(&deep), 95) && told(Some(&deep), 154));
    }

    #[test]
    fn the_silence_of_a_consensus_client_is_told() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let ago = |seconds| Some(Duration::from_secs(seconds));
        let mut log = WaitLog::new(true, start);
        assert!(!log.is_silent(None, after(119)) && log.is_silent(None, after(120)));
        assert!(!log.is_silent(None, after(419)) && log.is_silent(None, after(420)));
        assert!(!log.is_silent(ago(1), after(430)));
        assert!(!log.is_silent(ago(120), after(548)) && log.is_silent(ago(121), after(550)));
        let mut alone = WaitLog::new(false, start);
        assert!(!alone.is_silent(None, after(9999)));
    }

    #[test]
    fn a_reorganisation_that_is_too_deep_is_told_with_its_flag_and_the_way_out() {
        let branch = DeepBranch { fork: 700, first_retained: 772, retention: 128 };
        let reason = WaitReason::TooDeepReorg(900, branch);
        let text = format!("{reason}; {}", advice::of_wait(&reason));
        for part in ["900", "700", "772", "128", "--retention", "--until 700", "--checkpoint"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
