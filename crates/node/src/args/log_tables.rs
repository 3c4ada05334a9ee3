//! Flags of the log index.

/// Flags of the log index.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogTablesArgs {
    /// Keep index tables (EIP-8304), from which `state_getLogs` shows in a few kilobytes that no log
    /// is missing. A new dev chain gets the contract that has their roots.
    #[arg(id = "logs_tables", long = "logs.tables")]
    pub(crate) tables: bool,
}
