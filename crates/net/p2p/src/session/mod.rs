//! The session: the connection with one peer.
//!
//! ```text
//!             establish: RLPx, hello, status                run, until either side ends it
//!  TcpStream --------------------------> EstablishedPeer ------------------------> SessionEnd
//!                                                 |
//!                                         SessionHandle: for the rest of the network
//! ```
//!
//! | part of a session | does | bounded by |
//! |---|---|---|
//! | reading | one message at a time: check the limit, decode, hand over | the byte limit of the message id; a rate of messages and of gossip, beyond which it reads more slowly; a message for a full queue is dropped |
//! | serving | one `eth` request at a time, on a blocking thread, 8 for all peers | 32 waiting requests; a rate of answered bytes |
//! | serving states | `rchk` and `snap` requests, apart from these | see `state_serving` |
//! | writing | pongs, then gossip and requests, then answers, blocks before states | 256 waiting messages, 2 answers and 1 of a state, 128 gossip messages and 1 MiB; 20 s for a message |
//! | timers | a ping every 15 s; request timeouts | 16 open requests for each protocol |
//!
//! A session is one task, and a second one that writes; both end with it. Reading never waits for
//! other peers, nor for the gossip task. While reading waits for anything but bytes, the request
//! timeouts of the peer are paused.

mod establish;
mod link;
mod pauses;
mod requests;
mod run;
mod state_serving;

pub use establish::LocalChain;
pub(crate) use establish::{
    EstablishedPeer, LocalNode, PeerAdmission, PeerSlot, RefusedError, establish,
};
pub(crate) use link::SessionHandle;
pub use run::NetworkStats;
pub(crate) use run::{
    MAX_ANSWERING, RequestHandlers, SessionContext, SessionEnd, SessionHost, add, run,
};

use std::time::Duration;

/// The timeouts of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionTiming {
    /// For connecting, and for each of the three steps of the handshake.
    pub handshake: Duration,
    /// From a request to its answer.
    pub request: Duration,
    /// Between two pings.
    pub ping: Duration,
    /// From one message of the peer to the end of the next one.
    pub idle: Duration,
    /// For writing one message.
    pub write: Duration,
}

impl Default for SessionTiming {
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
