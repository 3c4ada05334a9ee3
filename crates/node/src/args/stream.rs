//! Flags of streams.

use clap::Args;
use retrie_stream::{RecordKind, RecordSelection, StreamOptions, StreamStart, StreamTarget};

/// Flags of streams for indexers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Streams")]
pub(crate) struct StreamArgs {
    /// Stream the chain to indexers, as lines of JSON with cursors: `file:PATH` appends to a file,
    /// `ws://ADDR:PORT` serves clients that say where they begin, `kafka://HOST:PORT/TOPIC` produces
    /// to a topic (in programs with the feature `kafka`).
    #[arg(id = "stream_targets", long = "stream", value_name = "TARGET,..", value_delimiter = ',')]
    pub(crate) targets: Vec<StreamTarget>,
    /// Records for each block. Reverts always come.
    #[arg(
        id = "stream_records",
        long = "stream.records",
        value_name = "KIND,..",
        value_delimiter = ',',
        default_value = "block,receipts,delta"
    )]
    pub(crate) records: Vec<RecordKind>,
    /// The block that a new stream begins with: its number, `earliest`, or `latest` for the next one.
    #[arg(
        id = "stream_from",
        long = "stream.from",
        value_name = "BLOCK",
        default_value = "latest"
    )]
    pub(crate) from: StreamStart,
}

impl StreamArgs {
    /// What each stream has.
    pub(crate) fn options(&self) -> StreamOptions {
        StreamOptions { kinds: RecordSelection::new(&self.records), start: self.from }
    }
}
