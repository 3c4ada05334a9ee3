//! The stream of a node: what happens on its canonical chain, as records for indexers.
//!
//! ```text
//!                       +-- RecordReader <--- LiveView: blocks, receipts, state history
//!  thread `stream`, ----+        | records, each with its cursor
//!  at low priority      |        v
//!                       +-- RecordSink: a file | Kafka -----> checkpoint: file NAME.cursor
//!
//!  thread `stream-client` per WebSocket client: RecordReader --> client, which keeps its cursor itself
//! ```
//!
//! The node does not push: a stream *reads* the chain, from its own position on. A sink that is slow,
//! full or gone holds up its stream and nothing else; the stream continues from the database later.
//! So a stream keeps one batch of records in memory, however far behind it is.
//!
//! # Vocabulary
//!
//! * **Record** ([`StreamRecord`]): one line of JSON. Its [`RecordKind`] is a block, its receipts, its
//!   state delta, or a revert, which names blocks that were undone.
//! * **Cursor** ([`StreamCursor`]): the place behind a record. A reader that resumes with it gets the next
//!   record.
//! * **Position** ([`StreamPosition`]): a cursor and the last blocks of the stream. With their hashes a
//!   revert can name blocks that the node has lost, in a crash or by `stage unwind`.
//! * **Sink**: what takes the records: [`StreamTarget`].
//! * **Checkpoint**: sink and position are durable. Records since the last checkpoint may come again
//!   after a crash, with the same sequence numbers.
//!
//! # Assumptions
//!
//! The chain and the cursor file are trusted, unless they contradict each other; clients are not.
//! `docs/stream.md` is the page for readers of the stream.

mod core_share;
mod cursor;
mod cursor_file;
mod error;
mod file;
mod json;
#[cfg(feature = "kafka")]
mod kafka;
mod position;
mod reader;
mod service;
mod target;
mod websocket;

pub use cursor::{CursorTextError, RecordKind, RecordSelection, StreamCursor};
pub use error::{CursorFileError, SinkError, StreamError};
pub use position::{ResumeRequest, StreamPosition, StreamStart};
pub use reader::{RecordReader, StreamRecord};
pub use service::{RunningStream, StreamOptions};
pub use target::{StreamTarget, TargetError};
