//! A peer that sends messages by hand.

use retrie_p2p::{
    eth::{self, EthMessage, EthVersion, PeerId, Status},
    peers::NetworkManager,
    rlpx::{
        self, BASE_MESSAGES, Capability, DisconnectReason, Hello, MessageReader, MessageWriter,
        RawMessage, RlpxError, id,
    },
    testkit::local::{GENESIS, NETWORK, forks, range},
};
use secp256k1::{PublicKey, SecretKey};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{ReadHalf, WriteHalf},
    net::TcpStream,
};

pub(crate) fn id_of(key: &SecretKey) -> PeerId {
    rlpx::node_id(&PublicKey::from_secret_key_global(key))
}

/// A peer whose messages a test sends by hand.
pub(crate) struct ManualPeer {
    pub(crate) key: SecretKey,
    pub(crate) reader: MessageReader<ReadHalf<TcpStream>>,
    pub(crate) writer: MessageWriter<WriteHalf<TcpStream>>,
}

impl ManualPeer {
    /// Dials a node, and runs the RLPx handshake.
    pub(crate) async fn dial(manager: &NetworkManager, key: SecretKey) -> Self {
        let address: SocketAddr = manager.local_address().unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let secrets = rlpx::initiate(&mut stream, &key, &manager.id()).await.unwrap();
        let (reader, writer) = tokio::io::split(stream);
        let (reader, writer) = rlpx::connect(reader, writer, &secrets);
        Self { key, reader, writer }
    }

    /// Connects as a peer: handshake, hello and status.
    pub(crate) async fn peer(manager: &NetworkManager, key: SecretKey) -> Self {
        let mut mouth = Self::dial(manager, key).await;
        mouth.hello(&[71]).await;
        mouth.status(|_| {}).await;
        mouth
    }

    pub(crate) async fn hello(&mut self, versions: &[u64]) {
        let all: Vec<_> = versions.iter().map(|version| ("eth", *version)).collect();
        self.hello_as(&all).await;
    }

    /// Exchanges hellos with these capabilities. Returns the hello of the node.
    pub(crate) async fn hello_as(&mut self, capabilities: &[(&str, u64)]) -> Hello {
        let capability =
            |&(name, version): &(&str, u64)| Capability { name: name.to_owned(), version };
        let hello = Hello {
            version: 5,
            client: "mouth".to_owned(),
            capabilities: capabilities.iter().map(capability).collect(),
            port: 0,
            id: id_of(&self.key),
        };
        self.writer.write(id::HELLO, &hello.encode()).await.unwrap();
        let raw = self.reader.read(|_| Some(4096)).await.unwrap();
        assert_eq!(raw.id, id::HELLO, "{raw:?}");
        self.reader.set_snappy();
        self.writer.set_snappy();
        Hello::decode(&raw.payload).unwrap()
    }

    /// Exchanges statuses; `change` changes the one that is sent.
    pub(crate) async fn status(&mut self, change: impl FnOnce(&mut Status)) {
        let mut status = Status {
            version: EthVersion::Eth71,
            network: NETWORK,
            genesis: GENESIS,
            fork_id: forks().current(),
            range: range(5),
        };
        change(&mut status);
        self.say(EthMessage::Status(status)).await;
        let raw = self.read().await.unwrap();
        assert_eq!(raw.id, BASE_MESSAGES + eth::id::STATUS, "{raw:?}");
    }

    pub(crate) async fn say(&mut self, message: EthMessage) {
        let (id, payload) = message.encode(EthVersion::Eth71).unwrap();
        self.writer.write(BASE_MESSAGES + id, &payload).await.unwrap();
    }

    pub(crate) async fn read(&mut self) -> Result<RawMessage, RlpxError> {
        tokio::time::timeout(Duration::from_secs(60), self.reader.read(|_| Some(16 << 20)))
            .await
            .expect("nothing has come")
    }

    /// The next message of `eth`. Pings are answered.
    pub(crate) async fn hear(&mut self) -> EthMessage {
        loop {
            let raw = self.read().await.unwrap();
            match raw.id {
                id::PING => {
                    self.writer.write(id::PONG, &[0xc0]).await.unwrap();
                }
                id::PONG => {}
                id => {
                    let id = id.checked_sub(BASE_MESSAGES).unwrap_or_else(|| panic!("{raw:?}"));
                    return EthMessage::decode(EthVersion::Eth71, id, &raw.payload).unwrap();
                }
            }
        }
    }

    /// Reads until the node sends the reason for a disconnect.
    pub(crate) async fn end(&mut self) -> DisconnectReason {
        loop {
            let raw = self.read().await.expect("an end without a word");
            if raw.id == id::DISCONNECT {
                return DisconnectReason::decode(&raw.payload);
            }
        }
    }
}
