//! `retrie params`: public parameters of backends.

use crate::output::{CommandOutput, grouped, say};
use eyre::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_storage_lvmt::{LvmtParams, ParamsError, SetupPhase};
use std::{
    io::IsTerminal,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// `retrie params ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum ParamsCommand {
    /// Make the parameter file of `lvmt` from the powers of a ceremony.
    Lvmt(LvmtArgs),
}

impl ParamsCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::Lvmt(args) => args.run(stop),
        }
    }
}

/// Arguments of `retrie params lvmt`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct LvmtArgs {
    /// Powers of tau of a ceremony on BN254 (bn128) in snarkjs's format; phase 1 is enough. The
    /// file needs as many powers as an AMT has entries: 2^height.
    #[arg(long, value_name = "FILE", group = "source")]
    ptau: Option<PathBuf>,
    /// Make development parameters. Their secret is public: anyone can forge proofs under them.
    #[arg(long, group = "source")]
    insecure_dev: bool,
    /// The parameter file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Height of the AMTs. All nodes that share roots need the same height.
    #[arg(long, value_name = "HEIGHT", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=16))]
    height: u8,
    /// Leave out the tables for proofs, which at height 16 are sixteen times as large as the rest.
    /// Roots are the same without them.
    #[arg(long)]
    without_proofs: bool,
}

impl LvmtArgs {
    fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        // Checked first, and not after minutes of work.
        let folder = self.output.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) || self.output.is_dir() {
            bail!(
                "{} cannot be written: name a file in a folder that exists",
                self.output.display()
            );
        }
        self.check_output()?;
        let started = Instant::now();
        let progress = ParamsProgress::new(stop);
        let heard = |phase, done, total| progress.update(phase, done, total);
        let with_proofs = !self.without_proofs;
        let params = match &self.ptau {
            Some(file) => LvmtParams::from_ptau(file, self.height, with_proofs, &heard),
            None => LvmtParams::insecure_dev(self.height, with_proofs, &heard),
        };
        progress.finish();
        params?.write(&self.output)?;
        let params = LvmtParams::load(&self.output)?;
        let seconds = started.elapsed().as_secs_f64();

        let out = CommandOutput::default();
        let name = self.output.display();
        let with = if with_proofs { "with" } else { "without" };
        say!(out, "wrote {name}: height {}, {with} proofs, {seconds:.1} s", self.height);
        say!(out, "digest {}", params.digest());
        say!(
            out,
            "{} bytes; the verifier's part has {}",
            grouped(file_len(&self.output)?),
            grouped(params.verifier().to_bytes().len() as u64)
        );
        if params.is_insecure() {
            say!(out, "INSECURE: the secret of these parameters is public");
            tracing::warn!(
                "{name} holds INSECURE development parameters: everybody can forge proofs under them"
            );
        }
        Ok(())
    }
}

impl LvmtArgs {
    /// Rejects an existing output file. If the file holds parameters, a datadir made with them
    /// cannot be opened without them.
    fn check_output(&self) -> eyre::Result<()> {
        let name = self.output.display();
        let Ok(there) = std::fs::metadata(&self.output) else { return Ok(()) };
        let is_parameters = there.is_file() && LvmtParams::load_verifier(&self.output).is_ok();
        if !is_parameters {
            bail!("{name} exists and holds no parameters of lvmt; name another file");
        }
        bail!(
            "{name} exists and holds parameters, and state made with them cannot be read without \
             them; name another file, or remove it first"
        )
    }
}

fn file_len(path: &Path) -> Result<u64, ParamsError> {
    let len = std::fs::metadata(path).map(|metadata| metadata.len());
    len.map_err(|source| ParamsError::Io { doing: "reading", path: path.into(), source })
}

/// Shows the progress, which any thread may report: a bar on a terminal, plain lines otherwise.
/// Shows nothing if logs show errors only.
struct ParamsProgress<'a> {
    stop: &'a AtomicBool,
    bar: Option<ProgressBar>,
    shown: Mutex<(Option<SetupPhase>, Instant)>,
}

impl<'a> ParamsProgress<'a> {
    fn new(stop: &'a AtomicBool) -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent}%  {msg}  ETA {eta}")
            {
                bar.set_style(style);
            }
            bar
        });
        Self { stop, bar, shown: Mutex::new((None, Instant::now())) }
    }

    fn update(&self, phase: SetupPhase, done: u64, total: u64) -> ControlFlow<()> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = shown.0 != Some(phase);
        let what = match phase {
            SetupPhase::Powers => "checking the powers of tau",
            SetupPhase::Commitments => "points for commitments",
            SetupPhase::Quotients => "points for proofs",
        };
        if let Some(bar) = &self.bar {
            if is_new {
                bar.reset();
                bar.set_length(total);
                bar.set_message(what);
            }
            bar.set_position(done);
        } else if is_new || shown.1.elapsed() >= LINE_EVERY {
            shown.1 = Instant::now();
            tracing::info!("{what}: {}%", done * 100 / total.max(1));
        }
        shown.0 = Some(phase);
        if self.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Removes the bar.
    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
