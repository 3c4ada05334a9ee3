//! `retrie bench sync`: a tree fetched from peers, some of which lie, as the B+AVL paper does.

use super::measured::Measured;
use crate::{
    args::parse_count,
    output::{Output, ReportArgs, command_line, grouped, say},
};
use eyre::{WrapErr, bail, eyre};
use retrie_bench::{
    paper::{Paper, references},
    report::BenchReport,
    sync::{
        TreeSetting,
        fetch::Way,
        peer,
        race::{Outcome, Setting, race},
        report::{Phases, SyncReport, faster, of},
    },
};
use std::{
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
    time::Duration,
};

/// What the figures mean, below `--help`.
const HELP: &str = "Peers are processes of this program on loopback, which wait as if they were far away. A \
liar changes a byte of every other chunk that it sends. avlplus is the paper's baseline: the AVL+ tree of \
Tendermint, whose chunks prove nothing, so that after a wrong root all is fetched again without one \
random peer. avlplus-rational fetches all from one peer at a time, and never again from one that was \
wrong. For each seed, all three have the same liars, the same delays and new connections, one after the \
other. Times are medians over seeds, `on average` is all time of one over all time of another. States of a \
chain are synchronised by `retrie node --sync.from`.";

/// Elements that a tree is made of: as peers need it, too.
#[derive(Clone, Debug, clap::Args)]
struct TreeArgs {
    /// Elements of the tree.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_elements)]
    elements: u64,
    /// Bytes of each value.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Elements of a chunk at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    chunk: u32,
    /// Seed of keys and values, and of who lies.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl TreeArgs {
    const fn setting(&self) -> TreeSetting {
        let Self { elements, bytes, chunk, seed } = *self;
        TreeSetting { elements, bytes: bytes as usize, chunk: chunk as usize, seed }
    }
}

/// Arguments of `retrie bench sync`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    tree: TreeArgs,
    /// Peers that have it.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// How many of them lie.
    #[arg(long, value_name = "N", default_value_t = 0)]
    byzantine: u32,
    /// Milliseconds from a question to the first byte of its answer, peer by peer, and again from the
    /// front: round trips between regions of Europe by default. Seeds deal them out.
    #[arg(
        long,
        value_name = "MS,MS,..",
        value_delimiter = ',',
        default_value = "2,8,10,12,16,22,25,30,36,40,45,50",
        value_parser = clap::value_parser!(u32).range(0..=10_000)
    )]
    delays: Vec<u32>,
    /// Megabits a second of each peer's line.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    bandwidth: u32,
    /// Peers have made the messages of the baseline before they are asked for them, as Tendermint's take
    /// snapshots; else they walk their tree for whoever asks, as the paper's do.
    #[arg(long)]
    snapshots: bool,
    /// How many times all is fetched, with other liars and delays each time.
    #[arg(long, value_name = "N", default_value_t = 20)]
    seeds: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_elements(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("there is nothing to fetch of a tree without elements".into()),
        count if count > 100_000_000 => Err(format!("`{text}` elements do not fit into memory")),
        count => Ok(count),
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = Output::open(&self.report)?;
        let mut report = SyncReport::new(BenchReport::new(command_line(), Vec::new()));
        report.bench.references = references(Paper::Bavl);
        report.bench.references.retain(|figure| figure.workload == "sync");
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Measures, and leaves the report to the caller. Phases are in its notes.
    pub(super) fn measured(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let mut report = SyncReport::new(BenchReport::new(String::new(), Vec::new()));
        let ended = self.measure(out, stop, &mut report);
        let BenchReport { results, notes, .. } = report.bench;
        Ok(Measured { results, notes, references: Vec::new(), ended })
    }

    fn measure(
        &self,
        out: &Output,
        stop: &AtomicBool,
        report: &mut SyncReport,
    ) -> eyre::Result<()> {
        if self.byzantine >= self.peers {
            bail!(
                "--byzantine {} of --peers {}: one peer has to be honest",
                self.byzantine,
                self.peers
            );
        }
        let setting = Setting {
            tree: self.tree.setting(),
            byzantine: self.byzantine as usize,
            delays: self.delays.iter().map(|ms| Duration::from_millis((*ms).into())).collect(),
            speed: u64::from(self.bandwidth) * 125_000,
            snapshots: self.snapshots,
            seeds: self.seeds.max(1),
        };
        say!(
            out,
            "{} elements of {} bytes, chunks of {}; {} peers of {} Mbit/s, {} of which lie; {} seeds{}",
            grouped(self.tree.elements),
            self.tree.bytes,
            self.tree.chunk,
            self.peers,
            self.bandwidth,
            self.byzantine,
            setting.seeds,
            if self.snapshots { "; snapshots" } else { "" }
        );
        let peers = self.start()?;
        let ports: Vec<u16> = peers.iter().map(|peer| peer.port).collect();
        let mut reached = Vec::new();
        let ended = race(&setting, &ports, stop, &mut |outcomes| reached = outcomes.to_vec());
        drop(peers);
        // What was measured is not lost with what was not.
        if !reached.is_empty() {
            print(out, &setting, &reached)?;
            report.add(&setting, ports.len(), &reached);
        }
        ended?;
        Ok(())
    }

    /// The peers, once each has its tree.
    fn start(&self) -> eyre::Result<Vec<Peer>> {
        let starting: eyre::Result<Vec<_>> = (0..self.peers)
            .map(|number| Peer::launch(number, &self.tree, self.snapshots))
            .collect();
        starting?.into_iter().map(Starting::ready).collect()
    }
}

fn print(out: &Output, setting: &Setting, outcomes: &[Outcome]) -> eyre::Result<()> {
    say!(
        out,
        "\n{:<17} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>8} {:>8} {:>10}",
        "",
        "ms",
        "mean ms",
        "transfer",
        "reading",
        "rebuild",
        "serialize",
        "rounds",
        "chunks",
        "faster",
        "on average"
    );
    let baseline = of(outcomes, Way::AvlPlus);
    for outcome in outcomes {
        let phases = Phases::of(setting.byzantine, outcome);
        let (ratio, average) = match baseline {
            Some(other) => {
                let (ratio, average) = faster(outcome, other);
                (format!("{:.2}x", ratio.median), format!("{average:.2}x"))
            }
            None => ("-".into(), "-".into()),
        };
        say!(
            out,
            "{:<17} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>9.0} {:>7.1} {:>8.0} {ratio:>8} {average:>10}",
            phases.way,
            phases.median_ms,
            phases.mean_ms,
            phases.transfer_ms,
            phases.read_ms,
            phases.rebuild_ms,
            phases.serialize_ms,
            phases.rounds,
            phases.chunks,
        );
    }
    say!(
        out,
        "ms: median; what follows are means over seeds. Reading is within the transfer, serializing at the \
         peers, both of all threads together"
    );
    Ok(())
}

/// A process that makes its tree.
struct Starting {
    number: u32,
    child: Child,
}

/// A peer's process. It ends with this value.
struct Peer {
    child: Child,
    port: u16,
}

impl Peer {
    fn launch(number: u32, tree: &TreeArgs, snapshots: bool) -> eyre::Result<Starting> {
        let program = std::env::current_exe().wrap_err("finding this program for the peers")?;
        let TreeArgs { elements, bytes, chunk, seed } = tree;
        let child = Command::new(program)
            .args(["bench", "sync-peer", "--quiet"])
            .args(["--elements", &elements.to_string(), "--bytes", &bytes.to_string()])
            .args(["--chunk", &chunk.to_string(), "--seed", &seed.to_string()])
            .args(snapshots.then_some("--snapshots"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .wrap_err_with(|| format!("starting peer {number}"))?;
        Ok(Starting { number, child })
    }
}

impl Starting {
    fn ready(mut self) -> eyre::Result<Peer> {
        let number = self.number;
        let mut line = String::new();
        let said = self.child.stdout.take().map(BufReader::new);
        let read = said.map(|mut said| said.read_line(&mut line)).transpose();
        let port = line.trim().parse();
        let peer = Peer { child: self.child, port: port.unwrap_or_default() };
        read.wrap_err_with(|| format!("reading the port of peer {number}"))?;
        if peer.port == 0 {
            return Err(eyre!("peer {number} did not start"));
        }
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Arguments of `retrie bench sync-peer`, which `bench sync` starts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Make all messages of the baseline at once.
    #[arg(long)]
    snapshots: bool,
}

impl PeerArgs {
    /// Serves the tree, after saying on which port, until it is killed, or whoever started it is gone.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        std::thread::spawn(|| {
            // It ends with whoever holds the other end.
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            std::process::exit(0);
        });
        peer::serve(self.tree.setting(), self.snapshots, stop, |port| {
            // If nobody reads it, nobody asks.
            let mut out = stdout();
            drop(writeln!(out, "{port}").and_then(|()| out.flush()));
        })?;
        Ok(())
    }
}
