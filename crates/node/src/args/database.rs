//! Flags of the database.

use super::number::parse_size;
use retrie_db::{OpenOptions, SyncMode};

/// Flags of the database.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Database")]
pub struct DbArgs {
    /// Limit of the database size: bytes, or with a unit (KB, MB, GB, TB; 1 KB is 1024 bytes).
    #[arg(long = "db.max-size", value_name = "SIZE", default_value = "8TB", value_parser = parse_size)]
    max_size: u64,
    /// `durable`: a commit is on disk when it returns. `none`: after a power failure the database
    /// may be at an earlier commit.
    #[arg(long = "db.sync-mode", value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    sync: SyncMode,
}

/// Parses `durable` or `none`.
///
/// # Errors
/// If it is neither; the text is for the command line.
pub fn parse_sync(name: &str) -> Result<SyncMode, String> {
    match name {
        "durable" => Ok(SyncMode::Durable),
        "none" => Ok(SyncMode::NoSync),
        _ => Err("it is `durable` or `none`".into()),
    }
}

impl DbArgs {
    /// The options of the database that these flags describe.
    pub fn options(&self) -> OpenOptions {
        // Unless its size is a multiple of this, MDBX can open the file only to write.
        let whole = |bytes: u64| bytes.max(1).checked_next_multiple_of(64 << 10).unwrap_or(bytes);
        OpenOptions {
            map_limit: whole(self.max_size),
            // A small limit also keeps the file small.
            growth_step: whole((self.max_size / 8).min(1 << 30)),
            sync: self.sync,
            ..OpenOptions::default()
        }
    }
}
