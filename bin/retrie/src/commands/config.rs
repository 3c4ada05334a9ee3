//! `retrie config`: the configuration file of a node.

use crate::output::{CommandOutput, say};
use retrie_node::config;
use std::path::PathBuf;

/// Arguments of `retrie config`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Show all flags with their defaults, as comments to start from.
    #[arg(long)]
    default: bool,
    /// Check this file, and show the command line that it stands for.
    #[arg(value_name = "FILE", required_unless_present = "default", conflicts_with = "default")]
    file: Option<PathBuf>,
}

impl ConfigArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let out = CommandOutput::default();
        let Some(file) = self.file else {
            say!(out, "{}", config::defaults().trim_end());
            return Ok(());
        };
        let flags = config::flags_of(&file)?;
        config::check(&file, &flags)?;
        for flag in flags {
            say!(out, "{}", flag.to_string_lossy());
        }
        Ok(())
    }
}
