//! From a stream to a peer: keys, hello, status.

use super::Timing;
use crate::{
    discovery::Forks,
    eth::{self, BlockRange, Message, PeerId, Status, Version},
    handle::{PeerInfo, StateAudience},
    rchk,
    rlpx::{
        self, BASE_MESSAGES, Capability, DisconnectReason, Hello, PROTOCOL_VERSION, Raw, Reader,
        RlpxError, Writer, id,
    },
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

/// Bytes of a hello, at most.
const MAX_HELLO_BYTES: usize = 4096;

/// Bytes of a disconnect, ping or pong, at most.
pub(super) const MAX_BASE_BYTES: usize = 256;

/// The chain as peers are told of it.
#[derive(Debug)]
pub struct Chain {
    network: u64,
    genesis: B256,
    forks: Arc<Forks>,
    range: RwLock<BlockRange>,
}

impl Chain {
    /// Of this network and genesis; `forks` are at the head of `range`.
    pub const fn new(network: u64, genesis: B256, forks: Arc<Forks>, range: BlockRange) -> Self {
        Self { network, genesis, forks, range: RwLock::new(range) }
    }

    /// What is served from now on; the head's `timestamp` is in seconds.
    pub fn set_range(&self, range: BlockRange, timestamp: u64) {
        *self.range.write() = range;
        self.forks.set_head(range.latest, timestamp);
    }

    /// What is served.
    pub fn range(&self) -> BlockRange {
        *self.range.read()
    }

    /// The network's id.
    pub const fn network(&self) -> u64 {
        self.network
    }

    /// Hash of block 0.
    pub const fn genesis(&self) -> B256 {
        self.genesis
    }

    /// Forks that have passed, and the next one.
    pub fn fork_id(&self) -> ForkId {
        self.forks.current()
    }

    /// Whether a node that says this may be on this chain (EIP-2124).
    pub fn accepts(&self, fork_id: ForkId) -> bool {
        self.forks.validate(fork_id).is_ok()
    }

    /// What is said first.
    fn status(&self, version: Version) -> Status {
        Status {
            version,
            network: self.network,
            genesis: self.genesis,
            fork_id: self.fork_id(),
            range: self.range(),
        }
    }
}

/// This node, as its peers see it.
pub struct Local {
    /// Its key.
    pub key: SecretKey,
    /// Its public key.
    pub id: PeerId,
    /// What it calls itself.
    pub client: String,
    /// The port on which it listens, or 0.
    pub port: u16,
    /// Its chain.
    pub chain: Chain,
    /// With whom it speaks `rchk`, if it does.
    pub rchk: Option<StateAudience>,
    /// How long things may take.
    pub timing: Timing,
}

impl Local {
    /// Whether it speaks `rchk` with who has this place.
    fn speaks_rchk(&self, place: &dyn Place) -> bool {
        self.rchk.is_some_and(|audience| audience.includes(place.trusted(), place.is_static()))
    }

    /// The hello of this node to who has this place.
    fn hello(&self, place: &dyn Place) -> Hello {
        let capabilities = Version::ALL.iter().rev().map(|version| Capability {
            name: "eth".to_owned(),
            version: u64::from(version.number()),
        });
        let states = Capability { name: rchk::NAME.to_owned(), version: rchk::VERSION };
        let states = self.speaks_rchk(place).then_some(states);
        Hello {
            version: PROTOCOL_VERSION,
            client: self.client.clone(),
            capabilities: capabilities.chain(states).collect(),
            port: u64::from(self.port),
            id: self.id,
        }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Local").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A place among the peers; given back when it is dropped.
pub trait Place: fmt::Debug + Send {
    /// Whether limits of slots do not hold for it.
    fn trusted(&self) -> bool;
    /// Whether it is dialled again and again.
    fn is_static(&self) -> bool;
    /// Says that it has become a peer. False if its place was given to another connection of the same
    /// node meanwhile.
    fn settle(&self) -> bool;
}

/// Who says whether a node may become a peer.
pub trait Gate: fmt::Debug + Send + Sync {
    /// A place for the node that is at this address, or why there is none.
    fn admit(
        &self,
        id: PeerId,
        ip: IpAddr,
        inbound: bool,
    ) -> Result<Box<dyn Place>, DisconnectReason>;
}

/// A peer that has said who it is.
#[derive(Debug)]
pub struct Established<S> {
    /// What is known of it.
    pub info: PeerInfo,
    /// Its place.
    pub place: Box<dyn Place>,
    pub(super) reader: Reader<ReadHalf<S>>,
    pub(super) writer: Writer<WriteHalf<S>>,
}

/// Why a connection has not led to a peer.
#[derive(Debug, thiserror::Error)]
pub enum RefusedError {
    /// The connection, or what came over it.
    #[error(transparent)]
    Rlpx(#[from] RlpxError),
    /// Its status, or another message of `eth`.
    #[error(transparent)]
    Eth(#[from] eth::DecodeError),
    /// We do not want it, and have said why.
    #[error("refused: {0}")]
    Refused(DisconnectReason),
    /// It is the node that was dialled in name alone.
    #[error("its hello has another id than its handshake")]
    Identity,
    /// It speaks an old version of the base protocol.
    #[error("it speaks version {0} of the base protocol; 5 is needed")]
    Version(u64),
    /// It speaks nothing of ours.
    #[error("it speaks none of eth/69, eth/70 and eth/71, but {0}")]
    Capabilities(String),
    /// It is on another network.
    #[error("it is on network {0}")]
    Network(u64),
    /// It has another genesis.
    #[error("its genesis is {0}")]
    Genesis(B256),
    /// Its forks are not ours.
    #[error("its fork id {}/{} does not fit", alloy_primitives::hex::encode(.0.hash.0), .0.next)]
    Fork(ForkId),
}

impl RefusedError {
    /// What the peer is told.
    pub const fn reason(&self) -> Option<DisconnectReason> {
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

    /// Whether the node will be no better in an hour.
    pub const fn is_lasting(&self) -> bool {
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

/// Makes a peer of a connection; `dialled` is the node that was dialled, if we did. If this fails, the
/// other side has been told why.
///
/// # Errors
/// If it is nobody for us, or too slow.
pub async fn establish<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    [address, local_address]: [SocketAddr; 2],
    dialled: Option<PeerId>,
    local: &Local,
    gate: &dyn Gate,
) -> Result<Established<S>, RefusedError> {
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
                capabilities: hello.capabilities.iter().map(ToString::to_string).collect(),
                range: status.range,
            };
            Ok(Established { info, place, reader, writer })
        }
        Err(error) => {
            if let Some(reason) = error.reason() {
                // He who does not take it will find out anyway.
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

/// Says why the connection ends, and waits a moment for the other side to read it: closing a socket
/// with unread bytes would take the message back.
pub(super) async fn farewell<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    reason: DisconnectReason,
) {
    if writer.write(id::DISCONNECT, &reason.encode()).await.is_ok() {
        writer.shutdown().await;
        // A moment is enough: it has nothing to say that we would hear.
        let _ = timeout(Duration::from_millis(500), reader.drain()).await;
    }
}

/// Hello and status.
async fn greet<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    peer: PeerId,
    (ip, inbound): (IpAddr, bool),
    local: &Local,
    gate: &dyn Gate,
) -> Result<(Box<dyn Place>, Hello, Status), RefusedError> {
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
        let ours = Message::Status(local.chain.status(version));
        let (id, payload) = ours.encode(version).unwrap_or_default();
        writer.write(BASE_MESSAGES + id, &payload).await?;
        read_status(reader, writer, version).await
    })
    .await?;
    check(&status, version, &local.chain)?;
    if !place.settle() {
        return Err(RefusedError::Refused(DisconnectReason::AlreadyConnected));
    }
    Ok((place, hello, status))
}

/// The newest version of `eth` that both speak.
fn common_version(hello: &Hello) -> Option<Version> {
    let eth = hello.capabilities.iter().filter(|capability| capability.name == "eth");
    eth.filter_map(|capability| Version::from_number(capability.version)).max()
}

fn is_rchk(capability: &Capability) -> bool {
    capability.name == rchk::NAME && capability.version == rchk::VERSION
}

async fn read_hello<R: AsyncRead + Unpin>(reader: &mut Reader<R>) -> Result<Hello, RlpxError> {
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
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    version: Version,
) -> Result<Status, RefusedError> {
    const STATUS: u8 = BASE_MESSAGES + eth::id::STATUS;
    loop {
        let Raw { id, payload } = reader
            .read(|id| match id {
                id::DISCONNECT | id::PING | id::PONG => Some(MAX_BASE_BYTES),
                STATUS => eth::limit(Version::Eth69, eth::id::STATUS),
                _ => None,
            })
            .await?;
        match id {
            STATUS => {
                return match Message::decode(version, eth::id::STATUS, &payload)? {
                    Message::Status(status) => Ok(status),
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

/// What pings and pongs say.
pub(super) const EMPTY_LIST: [u8; 1] = [0xc0];

fn check(status: &Status, version: Version, chain: &Chain) -> Result<(), RefusedError> {
    if status.version != version {
        let (id, what) = (eth::id::STATUS, "another version than was agreed on");
        return Err(eth::DecodeError::Value { id, version, what }.into());
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
