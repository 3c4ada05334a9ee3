//! The interface of the network to the rest of the node: [`NetworkHandle`], and the types it uses.

use crate::{
    eth::{BlockRange, EthRequest, EthResponse, EthVersion, PeerId, TxGossip},
    rchk,
    rlpx::{BASE_MESSAGES, DisconnectReason},
    snap::{self, SnapVersion},
};
use alloy_eip2124::ForkId;
use std::{fmt, future::Future, net::IpAddr, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::sync::broadcast;

pub use crate::gossip_queue::{GossipReceiver, ReceivedGossip};

/// A future that does not borrow.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connected peer: hello and status messages have been exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its public key.
    pub id: PeerId,
    /// The remote end of the connection.
    pub address: SocketAddr,
    /// The local end of the connection.
    pub local_address: SocketAddr,
    /// The version of `eth` that both sides use.
    pub version: EthVersion,
    /// Whether the peer has dialled this node.
    pub inbound: bool,
    /// Whether it is a trusted peer. Slot limits do not hold for it.
    pub trusted: bool,
    /// Whether it is a static peer, which is dialled again after each disconnect.
    pub is_static: bool,
    /// Its client name: at most 256 bytes of what it has sent, without control characters.
    pub name: String,
    /// Whether `rchk` is used on this connection.
    pub speaks_rchk: bool,
    /// The version of `snap` that is used on this connection, if any.
    pub snap: Option<SnapVersion>,
    /// The capabilities of its hello message, such as `eth/69`.
    pub capabilities: Vec<String>,
    /// The blocks that it serves, by its last status or range update.
    pub range: BlockRange,
}

impl PeerInfo {
    /// The first message id of `rchk`. Capabilities get their ids in the order of their names.
    pub(crate) const fn rchk_base(&self) -> Option<u8> {
        if self.speaks_rchk { Some(self.first_after_eth()) } else { None }
    }

    /// The first message id of `snap`.
    pub(crate) const fn snap_base(&self) -> Option<u8> {
        let before = if self.speaks_rchk { rchk::MESSAGES } else { 0 };
        if self.snap.is_some() { Some(self.first_after_eth() + before) } else { None }
    }

    const fn first_after_eth(&self) -> u8 {
        BASE_MESSAGES + self.version.message_count()
    }
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The peer is not connected, or not any more.
    #[error("the peer is not connected")]
    NotConnected,
    /// The peer has not answered in time. It has been reported for that.
    #[error("the peer has not answered within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The peer has too many requests of this node already.
    #[error("the peer has {0} open requests of this node already")]
    Busy(usize),
    /// The version of `eth` on this connection has no such request.
    #[error("{0} has no such request")]
    Unsupported(EthVersion),
    /// The peer serves no states.
    #[error("the peer does not speak rchk/1")]
    NoStates,
    /// The peer does not speak `snap`.
    #[error("the peer does not speak snap")]
    NoSnap,
    /// The version of `snap` on this connection has no such request.
    #[error("{0} has no such request")]
    UnsupportedSnap(SnapVersion),
    /// The peer has answered something else. It is disconnected for that.
    #[error("the peer has answered another request")]
    WrongAnswer,
}

/// A fault of a peer. The `reputation` module says what each one costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOffence {
    /// It did not answer in time.
    Timeout,
    /// It does not have what it claims to have. A few are forgiven.
    Empty,
    /// Several times in a row it gave fewer headers or bodies than it has and than any client's
    /// limit.
    ShortAnswer,
    /// Data that no honest peer can send: headers that do not link, bodies that do not match their
    /// headers, a block whose execution fails, an invalid chunk of a state. The peer is
    /// disconnected and banned at once.
    WrongData,
    /// A transaction that is invalid under any state. The peer is disconnected but not banned,
    /// since the rules of forks differ.
    BadTransaction,
    /// A blob transaction whose proofs have the form of another fork (EIP-7594). A few are
    /// forgiven: around that fork honest peers send both forms.
    SidecarForm,
    /// It announced transactions of one type or size and sent others, or sent none of them.
    BadAnnouncement,
    /// It breaks the protocol. It is disconnected with this reason, and banned.
    Breach(DisconnectReason),
}

/// A peer whose connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectedPeer {
    /// What it was.
    pub info: Arc<PeerInfo>,
    /// Why the connection ended, in words.
    pub cause: String,
}

/// A change in the set of peers.
#[derive(Clone, Debug)]
pub enum PeerEvent {
    /// A peer has connected.
    Connected(Arc<PeerInfo>),
    /// A peer has disconnected. Its open requests have failed.
    Disconnected(Arc<DisconnectedPeer>),
    /// A peer serves another range of blocks than before.
    RangeUpdate(PeerId, BlockRange),
}

/// Answers `eth` requests of peers from the data of this node.
pub trait EthRequestHandler: fmt::Debug + Send + Sync {
    /// Answers one request. Runs on a thread that may block, one call at a time for each peer.
    fn answer(&self, peer: &PeerInfo, request: EthRequest) -> EthResponse;
}

/// Answers `rchk` requests of peers: chunks of states, and contract codes.
pub trait StateRequestHandler: fmt::Debug + Send + Sync {
    /// Answers one request. Runs on a thread that may block, one call at a time for each peer and a
    /// few calls in total. If the preparation of a state takes longer than a second, it answers
    /// [busy](rchk::RchkRefusal::Busy) until the state is ready.
    fn answer(&self, peer: &PeerInfo, request: rchk::RchkRequest) -> rchk::RchkResponse;
}

/// Answers `snap` requests of peers: ranges of states, contract codes, trie nodes, access lists.
pub trait SnapRequestHandler: fmt::Debug + Send + Sync {
    /// Answers one request of the version that the peer speaks; with nothing if the state is not
    /// there. `None` while the state is being prepared: the call is repeated, and a state that is not
    /// ready for long is not answered for. An answer with nothing would tell a peer never to ask for
    /// this state again. Runs on a thread that may block, one call at a time for each peer and a few
    /// calls in total.
    fn answer(&self, peer: &PeerInfo, request: snap::SnapRequest) -> Option<snap::SnapResponse>;
}

/// Which peers may use `rchk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateAudience {
    /// The peers that the operator has named: trusted and static ones.
    #[default]
    Named,
    /// All peers.
    All,
}

impl StateAudience {
    /// Whether a peer of this kind may use `rchk`.
    pub const fn includes(self, trusted: bool, is_static: bool) -> bool {
        match self {
            Self::Named => trusted || is_static,
            Self::All => true,
        }
    }
}

/// What is behind a [`NetworkHandle`]: the network itself, or a test double.
pub trait PeerNetwork: fmt::Debug + Send + Sync {
    /// See [`NetworkHandle::connected`].
    fn connected(&self) -> Vec<Arc<PeerInfo>>;
    /// See [`NetworkHandle::request`].
    fn request(
        &self,
        peer: PeerId,
        request: EthRequest,
    ) -> BoxFuture<Result<EthResponse, RequestError>>;
    /// See [`NetworkHandle::request_within`]. The default ignores the limit.
    fn request_within(
        &self,
        peer: PeerId,
        request: EthRequest,
        _bytes: usize,
    ) -> BoxFuture<Result<EthResponse, RequestError>> {
        self.request(peer, request)
    }
    /// See [`NetworkHandle::request_state`]. The default refuses: the peer serves no states.
    fn request_state(
        &self,
        _: PeerId,
        _: rchk::RchkRequest,
    ) -> BoxFuture<Result<rchk::RchkResponse, RequestError>> {
        Box::pin(std::future::ready(Err(RequestError::NoStates)))
    }
    /// See [`NetworkHandle::request_snap`]. The default refuses: the peer does not speak `snap`.
    fn request_snap(
        &self,
        _: PeerId,
        _: snap::SnapRequest,
    ) -> BoxFuture<Result<snap::SnapResponse, RequestError>> {
        Box::pin(std::future::ready(Err(RequestError::NoSnap)))
    }
    /// See [`NetworkHandle::send`].
    fn send(&self, peer: PeerId, gossip: TxGossip) -> bool;
    /// See [`NetworkHandle::report`].
    fn report(&self, peer: PeerId, offence: PeerOffence);
    /// See [`NetworkHandle::events`].
    fn events(&self) -> broadcast::Receiver<PeerEvent>;
}

/// A handle to the network of this node. Clones share the same network.
#[derive(Clone, Debug)]
pub struct NetworkHandle(Arc<dyn PeerNetwork>);

impl NetworkHandle {
    /// Makes a handle to `network`.
    pub fn new(network: impl PeerNetwork + 'static) -> Self {
        Self(Arc::new(network))
    }

    /// The connected peers, in no order.
    pub fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.0.connected()
    }

    /// Sends a request to a peer and waits for the answer. The future needs no particular runtime.
    ///
    /// Only two things about the answer are checked: it is of the request's kind, and it has no
    /// more items than the request asks for.
    ///
    /// # Errors
    /// If the peer is not connected, is busy, or does not answer in time (15 s by default).
    pub async fn request(
        &self,
        peer: PeerId,
        request: EthRequest,
    ) -> Result<EthResponse, RequestError> {
        self.0.request(peer, request).await
    }

    /// Sends a request, as [`request`](Self::request) does. If the answer has more than `bytes`
    /// bytes, it is not read, and the peer is banned.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub async fn request_within(
        &self,
        peer: PeerId,
        request: EthRequest,
        bytes: usize,
    ) -> Result<EthResponse, RequestError> {
        self.0.request_within(peer, request, bytes).await
    }

    /// Asks a peer for chunks of a state or for codes, as [`request`](Self::request) asks for
    /// blocks.
    ///
    /// # Errors
    /// As [`request`](Self::request), and if the peer does not use `rchk`.
    pub async fn request_state(
        &self,
        peer: PeerId,
        request: rchk::RchkRequest,
    ) -> Result<rchk::RchkResponse, RequestError> {
        self.0.request_state(peer, request).await
    }

    /// Asks a peer for a part of a state or for access lists, as [`request`](Self::request) asks for
    /// blocks. The answer has at most as many items as were asked for; who asks checks the rest.
    ///
    /// # Errors
    /// As [`request`](Self::request); [`NoSnap`](RequestError::NoSnap) if the peer does not use
    /// `snap`, [`UnsupportedSnap`](RequestError::UnsupportedSnap) if the version that it uses has no
    /// such request.
    pub async fn request_snap(
        &self,
        peer: PeerId,
        request: snap::SnapRequest,
    ) -> Result<snap::SnapResponse, RequestError> {
        self.0.request_snap(peer, request).await
    }

    /// Sends gossip to a peer. Returns false, and drops the message, if the peer is not connected
    /// or reads too slowly.
    pub fn send(&self, peer: PeerId, gossip: TxGossip) -> bool {
        self.0.send(peer, gossip)
    }

    /// Sends each peer the gossip that `what` returns for it.
    pub fn broadcast(&self, mut what: impl FnMut(&PeerInfo) -> Option<TxGossip>) {
        for peer in self.connected() {
            if let Some(gossip) = what(&peer) {
                self.send(peer.id, gossip);
            }
        }
    }

    /// Reports a fault of a peer. Does nothing if the peer is not connected.
    pub fn report(&self, peer: PeerId, offence: PeerOffence) {
        self.0.report(peer, offence);
    }

    /// Peer events from now on. A receiver that reads too slowly misses the oldest ones
    /// ([`Lagged`](broadcast::error::RecvError::Lagged)) and must then call
    /// [`connected`](Self::connected).
    pub fn events(&self) -> broadcast::Receiver<PeerEvent> {
        self.0.events()
    }
}

/// How this node has learned of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CandidateSource {
    /// Discovery version 4.
    Discv4,
    /// Discovery version 5.
    Discv5,
    /// A list in DNS (EIP-1459).
    Dns,
    /// The list of boot nodes.
    Boot,
}

/// A node that may be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its public key.
    pub id: PeerId,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its TCP port, for connections.
    pub tcp_port: u16,
    /// Its UDP port, for discovery.
    pub udp_port: u16,
    /// The fork id in its node record, if there is one. A node whose fork id does not fit is not
    /// dialled.
    pub fork_id: Option<ForkId>,
    /// How this node has learned of it.
    pub source: CandidateSource,
}
