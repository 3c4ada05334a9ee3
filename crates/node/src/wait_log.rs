//! Logs what the node waits for: since when, and what ends the wait.

use retrie_engine::{BlockSyncWait, DeepBranch, WaitReason};
use std::{
    borrow::Cow,
    mem::{Discriminant, discriminant},
    time::{Duration, Instant, SystemTime},
};

/// How long a wait may last before it is logged, unless only the operator can end it.
const GRACE: Duration = Duration::from_secs(15);
/// Interval between log lines about a wait.
const REPEAT: Duration = Duration::from_secs(60);
/// How long a consensus client may be silent before a warning: ten slots of mainnet.
const SILENCE: Duration = Duration::from_secs(120);
/// Interval between warnings about its silence.
const REPEAT_SILENCE: Duration = Duration::from_secs(300);

/// The node's waits that were logged, and when.
#[derive(Debug)]
pub(super) struct WaitLog {
    wait: Option<LoggedWait>,
    /// Whether blocks come from a consensus client only.
    has_client: bool,
    /// When the consensus client last called, or when its silence was last logged.
    client: Instant,
    silence: Duration,
}

/// The wait that lasts now.
#[derive(Debug)]
struct LoggedWait {
    kind: Discriminant<WaitReason>,
    /// When it is logged next.
    due: Instant,
}

impl WaitLog {
    /// Starts at `now`. With `has_client` the node expects a consensus client.
    pub(super) const fn new(has_client: bool, now: Instant) -> Self {
        Self { wait: None, has_client, client: now, silence: SILENCE }
    }

    /// Logs `wait` if it is due.
    pub(super) fn log_wait(&mut self, wait: Option<&BlockSyncWait>, now: Instant) {
        if !self.is_due(wait, now) {
            return;
        }
        let Some(BlockSyncWait { reason, since, .. }) = wait else { return };
        let remedy = remedy_of(reason);
        let seconds = SystemTime::now().duration_since(*since).unwrap_or_default().as_secs();
        if matches!(reason, WaitReason::Blocks(_)) {
            tracing::info!("behind, and waiting for {reason}, for {seconds} s now");
        } else {
            tracing::warn!("waiting for {reason}, for {seconds} s now; what ends it: {remedy}");
        }
    }

    fn is_due(&mut self, wait: Option<&BlockSyncWait>, now: Instant) -> bool {
        let Some(BlockSyncWait { reason, .. }) = wait else {
            self.wait = None;
            return false;
        };
        let kind = discriminant(reason);
        let is_final = matches!(reason, WaitReason::TooDeepReorg(..));
        let first = if is_final { now } else { now + GRACE };
        let told = self.wait.take().filter(|told| told.kind == kind);
        let LoggedWait { due, .. } = told.unwrap_or(LoggedWait { kind, due: first });
        let is_due = due <= now;
        self.wait = Some(LoggedWait { kind, due: if is_due { now + REPEAT } else { due } });
        is_due
    }

    /// Warns if the expected consensus client has not called for `silence`.
    pub(super) fn log_silence(&mut self, silence: Option<Duration>, now: Instant) {
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

/// What ends a wait of the node. It names flags of `retrie node`.
pub(super) fn remedy_of(reason: &WaitReason) -> Cow<'static, str> {
    match reason {
        WaitReason::NoSource => "its consensus client sends the blocks in between, or the node is started \
             with peers or --follow URL"
            .into(),
        WaitReason::NoPeers => "peers that have the blocks (--bootnodes, --trusted-peers), or \
             --follow URL"
            .into(),
        WaitReason::Blocks(_) => "the blocks, once they have come".into(),
        WaitReason::Failing(_) => "it is tried again; other peers, or another --follow URL".into(),
        WaitReason::TooDeepReorg(_, DeepBranch { fork, .. }) => format!(
            "nothing by itself: the branch forks off deeper than --retention. If the consensus client is \
             right, make a datadir that ends below the branch with `retrie db migrate --history --until \
             {fork} --retention N --to BACKEND NEW`, which executes the stored blocks again, or start a \
             new datadir from the state of peers (--checkpoint HASH); then start the node on it"
        )
        .into(),
        _ => "it is not known".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(reason: WaitReason) -> BlockSyncWait {
        BlockSyncWait { head: None, reason, since: SystemTime::now() }
    }

    #[test]
    fn a_wait_is_told_after_a_while_and_then_each_minute() {
        let start = Instant::now();
        let mut log = WaitLog::new(false, start);
        let peers = wait(WaitReason::NoPeers);
        let mut told = |wait: Option<&BlockSyncWait>, second: u64| {
            log.is_due(wait, start + Duration::from_secs(second))
        };
        assert!(!told(None, 0) && !told(Some(&peers), 1) && !told(Some(&peers), 15));
        assert!(told(Some(&peers), 16) && !told(Some(&peers), 17) && !told(Some(&peers), 75));
        assert!(told(Some(&peers), 76));
        // The wait has ended; a new one starts from the beginning.
        assert!(!told(None, 77) && !told(Some(&peers), 78) && told(Some(&peers), 93));
        // Only the operator can end this wait.
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
        let text = format!("{reason}; {}", remedy_of(&reason));
        for part in ["900", "700", "772", "128", "--retention", "--until 700", "--checkpoint"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
