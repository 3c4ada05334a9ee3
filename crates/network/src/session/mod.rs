//! The connection with one peer.
//!
//! ```text
//!             establish: ECIES, hello, status            run, until somebody ends it
//!  TcpStream ------------------------------> Established ----------------------------> Ended
//!                                                 |
//!                                                Link: what others hold of it
//! ```
//!
//! | of a session | does | bounded by |
//! |---|---|---|
//! | reading | one message at a time: limit, decode, hand over | its kind's bytes; messages and gossip a second, else it is read more slowly; what has nowhere to go is dropped |
//! | serving | one request of `eth` at a time, on a thread that may block, 8 of all peers | 32 requests wait; answers' bytes a second |
//! | serving states | requests of `rchk` apart from these | see `states` |
//! | writing | pongs, then what is told and asked, then what is answered, blocks before states | 256 messages, 2 answers and one of a state wait, of gossip 128 and 1 MiB; 20 s a message |
//! | timers | pings each 15 s; requests whose time is over | 16 requests of each protocol under way |
//!
//! All of it is one task and one more that writes; both end with the session. Reading never waits for
//! other peers, nor for gossip to be looked at. While it waits for anything but bytes, the peer's time to
//! answer does not run.

mod establish;
mod link;
mod reading;
mod requests;
mod run;
mod states;

pub use establish::{Chain, Established, Gate, Local, Place, RefusedError, establish};
pub use link::Link;
pub use run::{Context, Ended, Host, Stats, run};
pub(crate) use run::{MAX_ANSWERING, add};
pub use states::StateLanes;

use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Connecting, and each of the three steps of a handshake.
    pub handshake: Duration,
    /// From a request to its answer.
    pub request: Duration,
    /// From one ping to the next.
    pub ping: Duration,
    /// From one message of a peer to the end of the next.
    pub idle: Duration,
    /// Writing a message.
    pub write: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            request: Duration::from_secs(15),
            ping: Duration::from_secs(15),
            idle: Duration::from_secs(40),
            write: Duration::from_secs(20),
        }
    }
}
