//! [`RunningStream`]: the threads of a stream.
//!
//! | thread | work | waits for | ends |
//! |---|---|---|---|
//! | `stream` | reads a batch, gives it to the sink, checkpoints | the sink; 50 ms at the head; 5 s after a failure | with the stream, after a last checkpoint |
//! | `stream-listen` | takes WebSocket clients | clients | with the stream |
//! | `stream-client`, at most 16 | reads a batch, sends it | its client; 50 ms at the head | with its client, or with the stream |
//!
//! All of them run at the lowest priority, so that the execution of blocks goes first, and pause on
//! a busy machine ([`CoreShare`]).

#[cfg(feature = "kafka")]
use crate::kafka::KafkaSink;
use crate::{
    RecordReader, RecordSelection, StreamError, StreamPosition, StreamRecord, StreamStart,
    StreamTarget, core_share::CoreShare, cursor_file::CursorFile, file::FileSink, websocket,
};
use retrie_engine::{BackgroundControl, BackgroundThread, LiveChain};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The `nice` value of the threads: the lowest priority.
pub(crate) const NICE: i32 = 19;
/// Time between two looks at the head.
pub(crate) const AT_HEAD: Duration = Duration::from_millis(50);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time between two checkpoints while there are records.
const CHECKPOINT: Duration = Duration::from_secs(1);

const WAITS: &str = "a stream cannot go on, and tries again";

/// What takes the records of a stream.
pub(crate) trait RecordSink: Send {
    /// Takes the first records of a list that is not empty, and says how many. After an error it has
    /// none of them, or it is a sink that can get records twice.
    fn append(&mut self, records: &[StreamRecord]) -> Result<usize, StreamError>;

    /// Makes all records and the position behind them durable.
    fn checkpoint(&mut self, position: &StreamPosition) -> Result<(), StreamError>;
}

/// What a stream has.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOptions {
    /// The kinds of records for each block.
    pub kinds: RecordSelection,
    /// Where a stream begins that has no position yet.
    pub start: StreamStart,
}

/// A stream that runs until it is dropped.
#[derive(Debug)]
pub struct RunningStream {
    thread: BackgroundThread,
    address: Option<SocketAddr>,
}

impl RunningStream {
    /// Starts the stream of `live` to `target`. The position of a file is beside it, in
    /// `PATH.cursor`; that of a topic is in `datadir`; clients of a WebSocket have their own.
    ///
    /// # Errors
    /// If the position or the sink cannot be opened, does not fit the chain, or a thread cannot start.
    /// What fails later is tried again, and shown by [`BackgroundThread::last_error`].
    pub fn start(
        live: LiveChain,
        target: &StreamTarget,
        options: StreamOptions,
        datadir: &Path,
    ) -> Result<Self, StreamError> {
        let genesis = live.spec().genesis_hash();
        let start = StreamPosition::start(options.start.number(live.head().number));
        let reader = RecordReader::new(live.clone(), options.kinds);
        let without_address = |thread| Self { thread, address: None };
        match target {
            StreamTarget::File(path) => {
                let cursor = CursorFile::new(cursor_path(path), genesis);
                let (sink, position) = FileSink::open(path, cursor, start)?;
                log_start(target, &position);
                run("stream to a file", reader, sink, position).map(without_address)
            }
            StreamTarget::WebSocket(address) => {
                let (thread, address) = websocket::listen(*address, live, options.kinds)?;
                tracing::info!("streaming to clients of ws://{address}");
                Ok(Self { thread, address: Some(address) })
            }
            #[cfg(feature = "kafka")]
            StreamTarget::Kafka { broker, topic } => {
                let path = datadir.join(format!("stream-{topic}.cursor"));
                let cursor = CursorFile::new(path, genesis);
                let (sink, position) = KafkaSink::open(broker, topic, cursor, start)?;
                log_start(target, &position);
                run("stream to Kafka", reader, sink, position).map(without_address)
            }
            #[cfg(not(feature = "kafka"))]
            StreamTarget::Kafka { .. } => {
                let _ = datadir;
                let target = target.to_string();
                Err(crate::SinkError::NotBuilt { feature: "kafka", target }.into())
            }
        }
    }

    /// Its thread.
    pub const fn thread(&self) -> &BackgroundThread {
        &self.thread
    }

    /// The address on which it takes WebSocket clients, if it does.
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

/// The cursor file of a file of records.
fn cursor_path(path: &Path) -> PathBuf {
    path.with_added_extension("cursor")
}

fn log_start(target: &StreamTarget, position: &StreamPosition) {
    match position.cursor() {
        Some(cursor) => tracing::info!("streaming to {target}, on from record {cursor}"),
        None => tracing::info!("streaming to {target}, from block {} on", position.first()),
    }
}

fn run(
    work: &'static str,
    reader: RecordReader,
    sink: impl RecordSink + 'static,
    position: StreamPosition,
) -> Result<BackgroundThread, StreamError> {
    let stream = SinkStream { reader, sink, position, is_durable: true, last: Instant::now() };
    let run = move |control: &BackgroundControl| stream.run(control);
    Ok(BackgroundThread::start("stream", work, run)?)
}

/// A stream to one sink.
struct SinkStream<S> {
    reader: RecordReader,
    sink: S,
    /// Behind the last record that the sink took.
    position: StreamPosition,
    /// Whether there is a checkpoint for this position.
    is_durable: bool,
    /// The time of the last checkpoint.
    last: Instant,
}

impl<S: RecordSink> SinkStream<S> {
    fn run(mut self, control: &BackgroundControl) {
        retrie_state::lower_thread_priority(NICE);
        let mut share = CoreShare::begin();
        while !control.is_stopping() {
            let pause = match self.step() {
                Ok(is_at_head) => {
                    control.record(None, WAITS);
                    if is_at_head { AT_HEAD } else { Duration::ZERO }
                }
                Err(error) => {
                    control.record(Some(error.to_string()), WAITS);
                    AFTER_FAILURE
                }
            };
            let pause = pause.max(share.pause());
            if !pause.is_zero() && !control.pause(pause) {
                break;
            }
        }
        if let Err(error) = self.checkpoint() {
            tracing::warn!(%error, "the stream has ended without a last checkpoint");
        }
    }

    /// One batch. Returns whether the stream is at the head.
    fn step(&mut self) -> Result<bool, StreamError> {
        let records = self.reader.read(&mut self.position.clone())?;
        let mut rest = records.as_slice();
        while !rest.is_empty() {
            let (taken, later) = rest.split_at(self.sink.append(rest)?.min(rest.len()));
            taken.iter().for_each(|record| self.position.advance(record.cursor));
            self.is_durable = false;
            rest = later;
        }
        if records.is_empty() || self.last.elapsed() >= CHECKPOINT {
            self.checkpoint()?;
        }
        Ok(records.is_empty())
    }

    fn checkpoint(&mut self) -> Result<(), StreamError> {
        if !self.is_durable {
            self.sink.checkpoint(&self.position)?;
            self.is_durable = true;
            self.last = Instant::now();
        }
        Ok(())
    }
}
