//! Flags of the log level.

use clap::ArgAction;

/// Levels of the log.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct VerbosityArgs {
    /// Log level: -v errors, -vv warnings, -vvv info, -vvvv debug, -vvvvv trace. `RUST_LOG` wins.
    #[arg(short, long = "verbosity", action = ArgAction::Count, global = true)]
    verbosity: u8,
    /// Print errors only.
    #[arg(short, long, global = true)]
    quiet: bool,
}

impl VerbosityArgs {
    /// The level, 1 (errors) to 5 (trace).
    pub const fn level(self) -> u8 {
        match (self.quiet, self.verbosity) {
            (true, _) => 1,
            (false, 0) => 3,
            (false, level) => level,
        }
    }
}
