//! Establishing a session: RLPx handshake, hello, status.

use super::SessionTiming;
use crate::{
    discovery::ForkTracker,
    eth::{self, BlockRange, EthMessage, EthVersion, PeerId, Status},
    handle::{PeerInfo, StateAudience},
    rchk,
    rlpx::{
        self, BASE_MESSAGES, Capability, DisconnectReason, Hello, MessageReader, MessageWriter,
        PROTOCOL_VERSION, RawMessage, RlpxError, id,
    },
    snap::{self, SnapVersion},
};
use alloy_eip2124::ForkId;
use alloy_primitives::B256;
use parking_lot::RwLock;
use secp256k1::SecretKey;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    time::timeout,
};

/// Maximum bytes of a hello.
const MAX_HELLO_BYTES: usize = 4096;

/// Maximum bytes of a disconnect, ping or pong.
pub(super) const MAX_BASE_BYTES: usize = 256;

/// The chain as this node announces it to peers.
#[derive(Debug)]
pub struct LocalChain {
    network: u64,
    genesis: B256,
    forks: Arc<ForkTracker>,
    range: RwLock<BlockRange>,
}

impl LocalChain {
    /// Makes the chain of this network id and genesis. The head of `forks` must be the head of
    /// `range`.
    pub const fn new(
        network: u64,
        genesis: B256,
        forks: Arc<ForkTracker>,
        range: BlockRange,
    ) -> Self {
        Self { network, genesis, forks, range: RwLock::new(range) }
    }

    /// Sets the served range of blocks; `timestamp` is the time of its head in seconds.
    pub fn set_range(&self, range: BlockRange, timestamp: u64) {
        *self.range.write() = range;
        self.forks.set_head(range.latest, timestamp);
    }

    /// The served range of blocks.
    pub fn range(&self) -> BlockRange {
        *self.range.read()
    }

    /// The network id.
    pub const fn network(&self) -> u64 {
        self.network
    }

    /// Hash of block 0.
    pub const fn genesis(&self) -> B256 {
        self.genesis
    }

    /// The fork id at the head (EIP-2124).
    pub fn fork_id(&self) -> ForkId {
        self.forks.current()
    }

    /// Whether a node with this fork id may be on this chain (EIP-2124).
    pub(crate) fn accepts(&self, fork_id: ForkId) -> bool {
        self.forks.validate(fork_id).is_ok()
    }

    /// The status message of this node.
    fn status(&self, version: EthVersion) -> Status {
        Status {
            version,
            network: self.network,
            genesis: self.genesis,
            fork_id: self.fork_id(),
            range: self.range(),
        }
    }
}

/// This node as its peers see it: key, name and chain.
pub(crate) struct LocalNode {
    /// Its secret key.
    pub(crate) key: SecretKey,
    /// Its public key.
    pub(crate) id: PeerId,
    /// Its client name.
    pub(crate) client: String,
    /// The port that it listens on, or 0.
    pub(crate) port: u16,
    /// Its chain.
    pub(crate) chain: LocalChain,
    /// Which peers may use `rchk`, if it is on.
    pub(crate) rchk: Option<StateAudience>,
    /// The versions of `snap` that it offers.
    pub(crate) snap: Vec<SnapVersion>,
    /// Timeouts.
    pub(crate) timing: SessionTiming,
}

impl LocalNode {
    /// Whether `rchk` is offered to the peer with this slot.
    fn speaks_rchk(&self, place: &dyn PeerSlot) -> bool {
        self.rchk.is_some_and(|audience| audience.includes(place.trusted(), place.is_static()))
    }

    /// The hello message for the peer with this slot.
    fn hello(&self, place: &dyn PeerSlot) -> Hello {
        let capabilities = EthVersion::ALL.iter().rev().map(|version| Capability {
            name: "eth".to_owned(),
            version: u64::from(version.number()),
        });
        let states = Capability { name: rchk::NAME.to_owned(), version: rchk::VERSION };
        let states = self.speaks_rchk(place).then_some(states);
        let ranges = self.snap.iter().map(|version| Capability {
            name: snap::NAME.to_owned(),
            version: u64::from(version.number()),
        });
        Hello {
            version: PROTOCOL_VERSION,
            client: self.client.clone(),
            capabilities: capabilities.chain(states).chain(ranges).collect(),
            port: u64::from(self.port),
            id: self.id,
        }
    }
}

impl fmt::Debug for LocalNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Local").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The slot of a peer. Dropping it frees the slot.
pub(crate) trait PeerSlot: fmt::Debug + Send {
    /// Whether the peer is trusted: slot limits do not hold for it.
    fn trusted(&self) -> bool;
    /// Whether the peer is static: it is dialled again after each disconnect.
    fn is_static(&self) -> bool;
    /// Confirms the slot after the status exchange. False if the slot was given to another
    /// connection of the same node meanwhile.
    fn confirm(&self) -> bool;
}

/// Decides which nodes may become peers.
pub(crate) trait PeerAdmission: fmt::Debug + Send + Sync {
    /// Gives a slot to the node at this address, or returns why there is none.
    fn admit(
        &self,
        id: PeerId,
        ip: IpAddr,
        inbound: bool,
    ) -> Result<Box<dyn PeerSlot>, DisconnectReason>;
}

/// A peer after the status exchange.
#[derive(Debug)]
pub(crate) struct EstablishedPeer<S> {
    /// Its description.
    pub(crate) info: PeerInfo,
    /// Its slot.
    pub(crate) place: Box<dyn PeerSlot>,
    pub(super) reader: MessageReader<ReadHalf<S>>,
    pub(super) writer: MessageWriter<WriteHalf<S>>,
}

/// Why a connection did not lead to a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefusedError {
    /// The connection failed, or an RLPx message was invalid.
    #[error(transparent)]
    Rlpx(#[from] RlpxError),
    /// Its status, or another `eth` message, was invalid.
    #[error(transparent)]
    Eth(#[from] eth::EthDecodeError),
    /// This node refused it, and has sent the reason.
    #[error("refused: {0}")]
    Refused(DisconnectReason),
    /// The id in its hello is not the one in its handshake.
    #[error("its hello has another id than its handshake")]
    Identity,
    /// Its version of the base protocol is too old.
    #[error("it speaks version {0} of the base protocol; 5 is needed")]
    Version(u64),
    /// There is no common version of `eth`.
    #[error("it speaks none of eth/69 to eth/72, but {0}")]
    Capabilities(String),
    /// It is on another network id.
    #[error("it is on network {0}")]
    Network(u64),
    /// It has another genesis.
    #[error("its genesis is {0}")]
    Genesis(B256),
    /// Its fork id does not fit.
    #[error("its fork id {}/{} does not fit", alloy_primitives::hex::encode(.0.hash.0), .0.next)]
    Fork(ForkId),
}

impl RefusedError {
    /// The reason to send to the peer.
    pub(crate) const fn reason(&self) -> Option<DisconnectReason> {
        Some(match self {
            Self::Rlpx(error) => return error.reason(),
            Self::Eth(_) => DisconnectReason::SubprotocolError,
            Self::Refused(reason) => *reason,
            Self::Identity => DisconnectReason::UnexpectedIdentity,
            Self::Version(_) => DisconnectReason::IncompatibleVersion,
            Self::Capabilities(_) | Self::Network(_) | Self::Genesis(_) | Self::Fork(_) => {
                DisconnectReason::UselessPeer
            }
        })
    }

    /// Whether a dial in an hour would fail, too.
    pub(crate) const fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::Identity
                | Self::Version(_)
                | Self::Capabilities(_)
                | Self::Network(_)
                | Self::Genesis(_)
                | Self::Fork(_)
                | Self::Refused(DisconnectReason::ConnectedToSelf)
        )
    }
}

/// Makes a peer of a connection. `dialled` is the id of the node that was dialled; `None` for an
/// inbound connection. If it fails, the remote side has been sent the reason.
///
/// # Errors
/// If the node is refused, is not on this chain, or is too slow.
pub(crate) async fn establish<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    [address, local_address]: [SocketAddr; 2],
    dialled: Option<PeerId>,
    local: &LocalNode,
    gate: &dyn PeerAdmission,
) -> Result<EstablishedPeer<S>, RefusedError> {
    let limit = local.timing.handshake;
    let (secrets, peer) = within(limit, "its handshake", async {
        Ok(match dialled {
            Some(peer) => (rlpx::initiate(&mut stream, &local.key, &peer).await?, peer),
            None => rlpx::accept(&mut stream, &local.key).await?,
        })
    })
    .await?;
    let (reader, writer) = tokio::io::split(stream);
    let (mut reader, mut writer) = rlpx::connect(reader, writer, &secrets);
    let from = (address.ip(), dialled.is_none());
    match greet(&mut reader, &mut writer, peer, from, local, gate).await {
        Ok((place, hello, status)) => {
            let info = PeerInfo {
                id: peer,
                address,
                local_address,
                version: status.version,
                inbound: dialled.is_none(),
                trusted: place.trusted(),
                is_static: place.is_static(),
                name: hello.client,
                speaks_rchk: local.speaks_rchk(&*place) && hello.capabilities.iter().any(is_rchk),
                snap: common_snap(&hello.capabilities, &local.snap),
                capabilities: hello.capabilities.iter().map(ToString::to_string).collect(),
                range: status.range,
            };
            Ok(EstablishedPeer { info, place, reader, writer })
        }
        Err(error) => {
            if let Some(reason) = error.reason() {
                // The reason is a courtesy: a timeout here changes nothing.
                let _ = timeout(limit, farewell(&mut reader, &mut writer, reason)).await;
            }
            Err(error)
        }
    }
}

async fn within<T>(
    limit: Duration,
    what: &'static str,
    future: impl Future<Output = Result<T, RefusedError>>,
) -> Result<T, RefusedError> {
    timeout(limit, future).await.map_err(|_| RlpxError::Timeout(what))?
}

/// Sends the reason for the disconnect, and waits a moment for the remote side to read it: closing
/// a socket with unread bytes would discard the message.
pub(super) async fn farewell<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
    reason: DisconnectReason,
) {
    if writer.write(id::DISCONNECT, &reason.encode()).await.is_ok() {
        writer.shutdown().await;
        // Nothing more is expected from the remote side.
        let _ = timeout(Duration::from_millis(500), reader.drain()).await;
    }
}

/// Exchanges hello and status.
async fn greet<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
    peer: PeerId,
    (ip, inbound): (IpAddr, bool),
    local: &LocalNode,
    gate: &dyn PeerAdmission,
) -> Result<(Box<dyn PeerSlot>, Hello, Status), RefusedError> {
    let limit = local.timing.handshake;
    if peer == local.id {
        return Err(RefusedError::Refused(DisconnectReason::ConnectedToSelf));
    }
    let place = gate.admit(peer, ip, inbound).map_err(RefusedError::Refused)?;
    let ours = local.hello(&*place).encode();
    let hello = within(limit, "its hello", async {
        writer.write(id::HELLO, &ours).await?;
        Ok(read_hello(reader).await?)
    })
    .await?;
    if hello.id != peer {
        return Err(RefusedError::Identity);
    }
    if hello.version < PROTOCOL_VERSION {
        return Err(RefusedError::Version(hello.version));
    }
    reader.set_snappy();
    writer.set_snappy();
    let version = common_version(&hello).ok_or_else(|| {
        let names: Vec<_> = hello.capabilities.iter().map(ToString::to_string).collect();
        RefusedError::Capabilities(names.join(", "))
    })?;
    let status = within(limit, "its status", async {
        let ours = EthMessage::Status(local.chain.status(version));
        let (id, payload) = ours.encode(version).unwrap_or_default();
        writer.write(BASE_MESSAGES + id, &payload).await?;
        read_status(reader, writer, version).await
    })
    .await?;
    check(&status, version, &local.chain)?;
    if !place.confirm() {
        return Err(RefusedError::Refused(DisconnectReason::AlreadyConnected));
    }
    Ok((place, hello, status))
}

/// The newest version of `eth` that both sides support.
fn common_version(hello: &Hello) -> Option<EthVersion> {
    let eth = hello.capabilities.iter().filter(|capability| capability.name == "eth");
    eth.filter_map(|capability| EthVersion::from_number(capability.version)).max()
}

fn is_rchk(capability: &Capability) -> bool {
    capability.name == rchk::NAME && capability.version == rchk::VERSION
}

/// The newest version of `snap` that the peer and this node offer.
fn common_snap(theirs: &[Capability], ours: &[SnapVersion]) -> Option<SnapVersion> {
    let theirs = theirs.iter().filter(|capability| capability.name == snap::NAME);
    let versions = theirs.filter_map(|capability| SnapVersion::from_number(capability.version));
    versions.filter(|version| ours.contains(version)).max()
}

async fn read_hello<R: AsyncRead + Unpin>(
    reader: &mut MessageReader<R>,
) -> Result<Hello, RlpxError> {
    let raw = reader
        .read(|id| match id {
            id::HELLO => Some(MAX_HELLO_BYTES),
            id::DISCONNECT => Some(MAX_BASE_BYTES),
            _ => None,
        })
        .await?;
    match raw.id {
        id::HELLO => Hello::decode(&raw.payload),
        id::DISCONNECT => Err(RlpxError::Disconnected(DisconnectReason::decode(&raw.payload))),
        id => Err(RlpxError::Unexpected { id, expected: "a hello" }),
    }
}

async fn read_status<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
    version: EthVersion,
) -> Result<Status, RefusedError> {
    const STATUS: u8 = BASE_MESSAGES + eth::id::STATUS;
    loop {
        let RawMessage { id, payload } = reader
            .read(|id| match id {
                id::DISCONNECT | id::PING | id::PONG => Some(MAX_BASE_BYTES),
                STATUS => eth::limit(EthVersion::Eth69, eth::id::STATUS),
                _ => None,
            })
            .await?;
        match id {
            STATUS => {
                return match EthMessage::decode(version, eth::id::STATUS, &payload)? {
                    EthMessage::Status(status) => Ok(status),
                    _ => Err(RlpxError::Unexpected { id, expected: "a status" }.into()),
                };
            }
            id::DISCONNECT => {
                let reason = DisconnectReason::decode(&payload);
                return Err(RlpxError::Disconnected(reason).into());
            }
            id::PING => {
                writer.write(id::PONG, &EMPTY_LIST).await?;
            }
            id::PONG => {}
            _ => return Err(RlpxError::Unexpected { id, expected: "a status" }.into()),
        }
    }
}

/// The payload of pings and pongs.
pub(super) const EMPTY_LIST: [u8; 1] = [0xc0];

fn check(status: &Status, version: EthVersion, chain: &LocalChain) -> Result<(), RefusedError> {
    if status.version != version {
        let (id, what) = (eth::id::STATUS, "another version than was agreed on");
        return Err(eth::EthDecodeError::Value { id, version, what }.into());
    }
    if status.network != chain.network {
        return Err(RefusedError::Network(status.network));
    }
    if status.genesis != chain.genesis {
        return Err(RefusedError::Genesis(status.genesis));
    }
    if !chain.accepts(status.fork_id) {
        return Err(RefusedError::Fork(status.fork_id));
    }
    Ok(())
}
