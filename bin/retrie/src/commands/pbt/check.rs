//! `retrie pbt check`: whether files are those of a block.

use super::files::{PbtFileArgs, describe, last_header};
use crate::output::{CommandOutput, say};
use alloy_primitives::B256;
use std::{path::PathBuf, sync::atomic::AtomicBool, time::Instant};

/// Arguments of `retrie pbt check`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PbtCheckArgs {
    #[command(flatten)]
    files: PbtFileArgs,
    /// The header of the block in RLP, binary or hex; the last one counts if there are several, as in
    /// the headers.rlp of an export.
    #[arg(long, value_name = "HEADER_FILE", required_unless_present = "state_root")]
    header: Option<PathBuf>,
    /// Hash that this header must have. Without it the file is trusted.
    #[arg(long, value_name = "HASH", requires = "header")]
    header_hash: Option<B256>,
    /// The state root of the block's header, in place of the header.
    #[arg(long, value_name = "ROOT", conflicts_with = "header")]
    state_root: Option<B256>,
}

impl PbtCheckArgs {
    /// Runs the command. It changes nothing.
    pub(super) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let header = self.header.as_deref();
        let header = header.map(|file| last_header(file, self.header_hash)).transpose()?;
        let state_root =
            self.state_root.or_else(|| header.as_ref().map(|header| header.state_root));
        let state_root = state_root.unwrap_or_default();
        let start = Instant::now();
        let checked = self.files.check(state_root, stop)?;
        let of = match header {
            Some(header) => format!("block {} ({})", header.number, header.hash_slow()),
            None => "a block".into(),
        };
        say!(
            CommandOutput::default(),
            "the files are right: the state of {of} with state root {state_root}; {}; {:.1} s",
            describe(&checked),
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}
