//! Peers as the rest of a node sees them.

use crate::{
    eth::{BlockRange, Gossip, PeerId, Request, Response, Version},
    rchk,
    rlpx::{BASE_MESSAGES, DisconnectReason},
};
use alloy_eip2124::ForkId;
use std::{fmt, future::Future, net::IpAddr, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::sync::broadcast;

pub use crate::heard::{GossipReceiver, Heard};

/// A future that does not borrow.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A peer with which status messages have been exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its public key.
    pub id: PeerId,
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Our end of it.
    pub local_address: SocketAddr,
    /// The version of `eth` that is spoken.
    pub version: Version,
    /// Whether it has dialled us.
    pub inbound: bool,
    /// Whether it is one of the trusted peers, for whom limits of slots do not hold.
    pub trusted: bool,
    /// Whether it is one that is dialled again and again.
    pub is_static: bool,
    /// What it calls itself; at most 256 bytes of what it has sent, without control characters.
    pub name: String,
    /// Whether `rchk` is spoken with it too.
    pub speaks_rchk: bool,
    /// What it says it can speak, as `eth/69`.
    pub capabilities: Vec<String>,
    /// What it serves, by its last word.
    pub range: BlockRange,
}

impl PeerInfo {
    /// The first message id of `rchk`: protocols follow each other by their names.
    pub const fn rchk_base(&self) -> Option<u8> {
        if self.speaks_rchk { Some(BASE_MESSAGES + self.version.message_count()) } else { None }
    }
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not, or no longer, connected.
    #[error("the peer is not connected")]
    Gone,
    /// It has not answered in time, and has been reported for it.
    #[error("the peer has not answered within {} s", .0.as_secs())]
    Timeout(Duration),
    /// It has too many requests of ours already.
    #[error("the peer has {0} requests of ours to answer already")]
    Busy(usize),
    /// The version that is spoken with it has no such request.
    #[error("{0} has no such request")]
    Unspoken(Version),
    /// It hands out no states.
    #[error("the peer does not speak rchk/1")]
    NoStates,
    /// It has answered something else, and is disconnected for it.
    #[error("the peer has answered what was not asked")]
    WrongAnswer,
}

/// What a peer has done wrong. How much each costs is in `reputation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// It did not answer in time.
    Timeout,
    /// It has not what it said it has. A few are forgiven.
    Empty,
    /// Again and again it gave fewer headers or bodies than it has and any client would give.
    ShortAnswer,
    /// Data that no honest peer can send: headers that do not link, bodies that do not match, a
    /// block whose execution fails, a part of a state that is none. Disconnected and banned at once.
    WrongData,
    /// A transaction that cannot be valid under any state: disconnected, not banned, as forks
    /// differ in their rules.
    BadTransaction,
    /// A blob transaction with proofs in the form of another fork (EIP-7594). A few are forgiven:
    /// around that fork honest peers send both.
    SidecarForm,
    /// It announced transactions of one kind or size and sent others, or none of them.
    BadAnnouncement,
    /// It breaks the protocol. Disconnected with this reason, and banned.
    Breach(DisconnectReason),
}

/// What happens to peers.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer is there.
    Connected(Arc<PeerInfo>),
    /// It is gone. Requests under way have failed.
    Disconnected(PeerId),
    /// It serves other blocks than before.
    RangeUpdate(PeerId, BlockRange),
}

/// Answers requests from what this node has.
pub trait Serve: fmt::Debug + Send + Sync {
    /// The answer. Called on a thread that may block; one call at a time for each peer.
    fn answer(&self, peer: &PeerInfo, request: Request) -> Response;
}

/// Answers requests for parts of states.
pub trait ServeStates: fmt::Debug + Send + Sync {
    /// The answer. Called on a thread that may block, one call at a time for each peer and a few for all
    /// of them. What has to be made ready for longer than a second is refused as
    /// [busy](rchk::Refusal::Busy) meanwhile.
    fn answer(&self, peer: &PeerInfo, request: rchk::Request) -> rchk::Response;
}

/// With whom `rchk` is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateAudience {
    /// With the peers that the operator has named: trusted ones, and static ones.
    #[default]
    Named,
    /// With all peers.
    All,
}

impl StateAudience {
    /// Whether it is spoken with such a peer.
    pub const fn includes(self, trusted: bool, is_static: bool) -> bool {
        match self {
            Self::Named => trusted || is_static,
            Self::All => true,
        }
    }
}

/// What carries [`Peers`]: the manager, or something made up in a test.
pub trait Network: fmt::Debug + Send + Sync {
    /// See [`Peers::connected`].
    fn connected(&self) -> Vec<Arc<PeerInfo>>;
    /// See [`Peers::request`].
    fn request(&self, peer: PeerId, request: Request) -> BoxFuture<Result<Response, RequestError>>;
    /// See [`Peers::request_within`]. Of any length by default.
    fn request_within(
        &self,
        peer: PeerId,
        request: Request,
        _bytes: usize,
    ) -> BoxFuture<Result<Response, RequestError>> {
        self.request(peer, request)
    }
    /// See [`Peers::request_state`]. Of those who hand out no states by default.
    fn request_state(
        &self,
        _: PeerId,
        _: rchk::Request,
    ) -> BoxFuture<Result<rchk::Response, RequestError>> {
        Box::pin(std::future::ready(Err(RequestError::NoStates)))
    }
    /// See [`Peers::send`].
    fn send(&self, peer: PeerId, gossip: Gossip) -> bool;
    /// See [`Peers::report`].
    fn report(&self, peer: PeerId, offence: Offence);
    /// See [`Peers::events`].
    fn events(&self) -> broadcast::Receiver<Event>;
}

/// The peers of a node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Peers(Arc<dyn Network>);

impl Peers {
    /// Over something that carries them.
    pub fn new(network: impl Network + 'static) -> Self {
        Self(Arc::new(network))
    }

    /// Those who are connected, in no order.
    pub fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.0.connected()
    }

    /// Asks a peer. The future needs no particular runtime.
    ///
    /// That the answer is of the request's kind and no longer than it has been checked, and nothing
    /// else.
    ///
    /// # Errors
    /// If the peer is gone, busy, or does not answer in time, which is some 15 s.
    pub async fn request(&self, peer: PeerId, request: Request) -> Result<Response, RequestError> {
        self.0.request(peer, request).await
    }

    /// Asks a peer, as [`request`](Self::request) does. An answer of more than `bytes` is not read, and
    /// its sender is banned.
    ///
    /// # Errors
    /// As there.
    pub async fn request_within(
        &self,
        peer: PeerId,
        request: Request,
        bytes: usize,
    ) -> Result<Response, RequestError> {
        self.0.request_within(peer, request, bytes).await
    }

    /// Asks a peer for parts of a state, as [`request`](Self::request) asks for blocks.
    ///
    /// # Errors
    /// As there, and if it does not speak `rchk`.
    pub async fn request_state(
        &self,
        peer: PeerId,
        request: rchk::Request,
    ) -> Result<rchk::Response, RequestError> {
        self.0.request_state(peer, request).await
    }

    /// Tells a peer. False if it is gone, or does not read as fast as it is told: then it is not told
    /// this.
    pub fn send(&self, peer: PeerId, gossip: Gossip) -> bool {
        self.0.send(peer, gossip)
    }

    /// Tells each peer what `what` has for it.
    pub fn broadcast(&self, mut what: impl FnMut(&PeerInfo) -> Option<Gossip>) {
        for peer in self.connected() {
            if let Some(gossip) = what(&peer) {
                self.send(peer.id, gossip);
            }
        }
    }

    /// Says that a peer has done wrong. Nothing happens if it is gone.
    pub fn report(&self, peer: PeerId, offence: Offence) {
        self.0.report(peer, offence);
    }

    /// What happens from now on. Who reads too slowly misses the oldest
    /// ([`Lagged`](broadcast::error::RecvError::Lagged)) and should ask [`connected`](Self::connected).
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.events()
    }
}

/// Who has told of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CandidateSource {
    /// Discovery, version 4.
    Discv4,
    /// Discovery, version 5.
    Discv5,
    /// A list in DNS (EIP-1459).
    Dns,
    /// A boot node.
    Boot,
}

/// A node that may be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its public key.
    pub id: PeerId,
    /// Where it is.
    pub ip: IpAddr,
    /// Its port for connections.
    pub tcp_port: u16,
    /// Its port for discovery.
    pub udp_port: u16,
    /// What its record says of forks, if it does: one that does not fit is not dialled.
    pub fork_id: Option<ForkId>,
    /// Who has told of it.
    pub source: CandidateSource,
}
