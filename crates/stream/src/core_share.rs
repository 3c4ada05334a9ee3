//! [`CoreShare`]: how much of a busy core a stream takes.
//!
//! The lowest priority alone does not keep a thread from slowing others: it fills caches, and it may
//! have to leave its core while it holds a lock that the execution of blocks needs. So a thread that
//! had to wait for a core pauses for many times as long as it ran.

use std::time::Duration;

/// A stream runs for one part in this many of the time while other threads want its core.
const PARTS: u32 = 32;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Counters of the scheduler for one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadTimes {
    /// On a core.
    ran: Duration,
    /// Ready to run, without a core.
    waited: Duration,
}

impl ThreadTimes {
    /// Those of the calling thread; `None` if the system does not tell.
    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// Reads Linux's `schedstat`: nanoseconds on a core, nanoseconds of waiting, and a count.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten().map(Duration::from_nanos);
        Some(Self { ran: next()?, waited: next()? })
    }
}

/// What the calling thread takes of its core.
#[derive(Debug)]
pub(crate) struct CoreShare {
    last: Option<ThreadTimes>,
}

impl CoreShare {
    /// Begins to watch the calling thread.
    pub(crate) fn begin() -> Self {
        Self { last: ThreadTimes::now() }
    }

    /// How long the thread is to pause after what it did since the last call: zero unless it had to
    /// wait for a core.
    pub(crate) fn pause(&mut self) -> Duration {
        let now = ThreadTimes::now();
        let before = std::mem::replace(&mut self.last, now);
        before.zip(now).map_or(Duration::ZERO, |(before, now)| {
            let ran = now.ran.saturating_sub(before.ran);
            pause_after(ran, now.waited.saturating_sub(before.waited))
        })
    }
}

fn pause_after(ran: Duration, waited: Duration) -> Duration {
    // On a machine with cores to spare a thread also waits now and then.
    if waited < ran / 4 { Duration::ZERO } else { (ran * (PARTS - 1)).min(LONGEST_PAUSE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_its_core_leaves_it_alone_for_long() {
        let ms = Duration::from_millis;
        for (ran, waited, pause) in [(10, 0, 0), (10, 2, 0), (10, 3, 310), (10, 900, 310)] {
            assert_eq!(pause_after(ms(ran), ms(waited)), ms(pause), "{ran} {waited}");
        }
        assert_eq!(pause_after(Duration::ZERO, ms(1)), Duration::ZERO);
        assert_eq!(pause_after(ms(5000), ms(5000)), LONGEST_PAUSE);
    }

    #[test]
    fn counters_of_another_form_are_no_counters() {
        let times = ThreadTimes::parse("2500 40 7\n").unwrap();
        let ns = Duration::from_nanos;
        assert_eq!(times, ThreadTimes { ran: ns(2500), waited: ns(40) });
        for text in ["", "1", "x 2 3", "1 -2 3"] {
            assert_eq!(ThreadTimes::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn linux_counts_the_calling_thread() {
        // Some systems that run Linux programs have no such counters.
        let Some(before) = ThreadTimes::now().filter(|times| !times.ran.is_zero()) else { return };
        let began = std::time::Instant::now();
        // The kernel counts at its ticks.
        while ThreadTimes::now().unwrap().ran == before.ran {
            assert!(began.elapsed() < Duration::from_secs(20), "{before:?}");
        }
    }
}
