//! One connection to a server, from `hello` to its end.

use super::{
    StatsSource, StatsTarget,
    messages::{self, BlockStats, MAX_HISTORY, ServerMessage},
};
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::TcpStream,
    sync::watch,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Error as WsError, Message, protocol::WebSocketConfig},
};

/// Longest message of a server that is read, in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// Times of the protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatsTiming {
    /// Longest time of a connect, of a login, of a write, and until a pong.
    pub(super) answer: Duration,
    /// Time between two full reports.
    pub(super) report: Duration,
    /// Shortest time between two reports of heads.
    pub(super) head_pause: Duration,
    /// Pause after the first failure, and after many.
    pub(super) first_pause: Duration,
    pub(super) last_pause: Duration,
}

impl Default for StatsTiming {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(10),
            report: Duration::from_secs(15),
            head_pause: Duration::from_millis(100),
            first_pause: Duration::from_secs(1),
            last_pause: Duration::from_secs(60),
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatsError {
    /// It could not be made, or it broke.
    #[error("{0}")]
    Connection(String),
    /// The server took too long.
    #[error("{} within {} s", .0, .1.as_secs_f64())]
    Timeout(&'static str, Duration),
    /// The server has ended it.
    #[error("the server has closed the connection{}", if *.before_ready { " before the login: check the secret" } else { "" })]
    Closed {
        /// Whether it did not let this node in.
        before_ready: bool,
    },
}

impl From<WsError> for StatsError {
    fn from(error: WsError) -> Self {
        Self::Connection(error.to_string())
    }
}

/// The end of a connection.
pub(super) struct SessionEnd {
    /// Whether the server had let the node in.
    pub(super) was_ready: bool,
    /// Why it ended; `None` if the node stops.
    pub(super) error: Option<StatsError>,
}

/// Connects and reports, until the server fails or the node stops.
pub(super) async fn run_session(
    target: &StatsTarget,
    source: &Arc<dyn StatsSource>,
    heads: &mut watch::Receiver<u64>,
    timing: &StatsTiming,
) -> SessionEnd {
    let opened = StatsSession::open(target, source, timing).await;
    match opened {
        Ok(mut session) => {
            tracing::info!("reporting to ethstats at {} as {}", target.host(), target.name());
            SessionEnd { was_ready: true, error: session.serve(heads).await.err() }
        }
        Err(error) => SessionEnd { was_ready: false, error: Some(error) },
    }
}

struct StatsSession<'a> {
    socket: WebSocketStream<TcpStream>,
    target: &'a StatsTarget,
    source: &'a Arc<dyn StatsSource>,
    timing: &'a StatsTiming,
    /// When the last `node-ping` was sent that has no answer.
    pinged: Option<Instant>,
}

/// What happens next on a connection.
enum StatsEvent {
    Message(Option<Result<Message, WsError>>),
    Head(Result<(), watch::error::RecvError>),
    Report,
    NoPong,
}

impl<'a> StatsSession<'a> {
    /// Connects and logs in.
    async fn open(
        target: &'a StatsTarget,
        source: &'a Arc<dyn StatsSource>,
        timing: &'a StatsTiming,
    ) -> Result<Self, StatsError> {
        let connect = async {
            let stream = TcpStream::connect(target.host())
                .await
                .map_err(|error| StatsError::Connection(error.to_string()))?;
            let config = WebSocketConfig::default()
                .max_message_size(Some(MAX_MESSAGE))
                .max_frame_size(Some(MAX_MESSAGE));
            Ok(client_async_with_config(target.url(), stream, Some(config)).await?.0)
        };
        let socket = within(timing.answer, "no connection", connect).await?;
        let mut session = Self { socket, target, source, timing, pinged: None };
        within(timing.answer, "no answer to the login", session.log_in()).await?;
        Ok(session)
    }

    async fn log_in(&mut self) -> Result<(), StatsError> {
        let source = self.source.clone();
        let identity = spawn_blocking(move || source.identity()).await.unwrap_or_default();
        self.send(messages::hello(self.target, &identity)).await?;
        loop {
            let message = self.socket.next().await;
            let Some(message) = message else {
                return Err(StatsError::Closed { before_ready: true });
            };
            match read(message?) {
                ServerMessage::Ready => return Ok(()),
                ServerMessage::KeepAlive(pong) => self.send(pong).await?,
                _ => {}
            }
        }
    }

    /// Reports until the server fails; succeeds when the node stops.
    async fn serve(&mut self, heads: &mut watch::Receiver<u64>) -> Result<(), StatsError> {
        let mut reports = interval(self.timing.report);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_head = Instant::now();
        loop {
            let pong_due = self.pinged.unwrap_or(next_head) + self.timing.answer;
            let event = tokio::select! {
                message = self.socket.next() => StatsEvent::Message(message),
                head = head_after(next_head, heads) => StatsEvent::Head(head),
                _ = reports.tick() => StatsEvent::Report,
                () = sleep_until(pong_due), if self.pinged.is_some() => StatsEvent::NoPong,
            };
            match event {
                StatsEvent::Message(None) => {
                    return Err(StatsError::Closed { before_ready: false });
                }
                StatsEvent::Message(Some(message)) => self.answer(read(message?)).await?,
                StatsEvent::Head(Err(_)) => return Ok(()),
                StatsEvent::Head(Ok(())) => {
                    self.report_head().await?;
                    next_head = Instant::now() + self.timing.head_pause;
                }
                StatsEvent::Report => self.report_all().await?,
                StatsEvent::NoPong => {
                    return Err(StatsError::Timeout("no node-pong", self.timing.answer));
                }
            }
        }
    }

    async fn answer(&mut self, message: ServerMessage) -> Result<(), StatsError> {
        match message {
            ServerMessage::NodePong => match self.pinged.take() {
                Some(pinged) => {
                    let half = pinged.elapsed().as_millis() / 2;
                    self.send(messages::latency(self.target, half)).await
                }
                None => Ok(()),
            },
            ServerMessage::History(numbers) => {
                let source = self.source.clone();
                let found = spawn_blocking(move || history(&*source, numbers)).await;
                self.send(messages::history(self.target, &found.unwrap_or_default())).await
            }
            ServerMessage::KeepAlive(pong) => self.send(pong).await,
            ServerMessage::Ready | ServerMessage::Unknown => Ok(()),
        }
    }

    async fn report_head(&mut self) -> Result<(), StatsError> {
        let source = self.source.clone();
        let found = spawn_blocking(move || (source.block(None), source.stats())).await;
        let Ok((block, stats)) = found else { return Ok(()) };
        if let Some(block) = block {
            self.send(messages::block(self.target, &block)).await?;
        }
        self.send(messages::pending(self.target, &stats)).await
    }

    async fn report_all(&mut self) -> Result<(), StatsError> {
        if self.pinged.is_none() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.send(messages::node_ping(self.target, now.as_millis())).await?;
            self.pinged = Some(Instant::now());
        }
        self.report_head().await?;
        let source = self.source.clone();
        let Ok(stats) = spawn_blocking(move || source.stats()).await else { return Ok(()) };
        self.send(messages::stats(self.target, &stats)).await
    }

    async fn send(&mut self, message: Value) -> Result<(), StatsError> {
        let sent = self.socket.send(Message::text(message.to_string()));
        within(self.timing.answer, "a message was not read", async {
            sent.await.map_err(StatsError::from)
        })
        .await
    }
}

/// Waits for a new head, but not before `time`.
async fn head_after(
    time: Instant,
    heads: &mut watch::Receiver<u64>,
) -> Result<(), watch::error::RecvError> {
    sleep_until(time).await;
    heads.changed().await
}

async fn within<T>(
    time: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, StatsError>>,
) -> Result<T, StatsError> {
    timeout(time, work).await.unwrap_or(Err(StatsError::Timeout(what, time)))
}

/// The content of a frame. The library answers pings of WebSocket itself.
fn read(message: Message) -> ServerMessage {
    match message {
        Message::Text(text) => ServerMessage::read(&text),
        _ => ServerMessage::Unknown,
    }
}

/// The blocks that a server wants, the oldest first.
fn history(source: &dyn StatsSource, numbers: Option<Vec<u64>>) -> Vec<BlockStats> {
    let mut numbers = numbers.unwrap_or_else(|| {
        let head = source.block(None).map_or(0, |head| head.number);
        (0..=head).rev().take(MAX_HISTORY).collect()
    });
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|number| source.block(Some(number))).collect()
}
