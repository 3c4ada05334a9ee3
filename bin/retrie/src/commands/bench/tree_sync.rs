//! `retrie bench sync`: fetches a tree from peers, some of which lie, as in the B+AVL paper.

use super::measurement::RaceMeasurement;
use crate::{
    args::parse_count,
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
};
use eyre::{WrapErr, bail, eyre};
use retrie_bench::{
    paper::{Paper, add_phases, references},
    tree_sync::{
        ServedTreeConfig,
        fetch::{BaselinePolicy, FetchMethod},
        peer,
        race::{FetchOutcome, FetchRaceConfig, race},
        report::{FetchPhases, TreeSyncReport, faster, outcome_of, policy_ratios},
    },
};
use retrie_report::BenchReport;
use std::{
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
    time::Duration,
};

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "Peers are processes of this program on loopback, which wait as if they were far away. A \
lying peer changes a byte of every other chunk that it sends. avlplus is the paper's baseline: the AVL+ tree \
of Tendermint, whose chunks prove nothing before the whole tree is there. After a wrong root, \
avlplus:refetch fetches all chunks again from all peers but one that has lied, which an oracle names: the \
paper says only that all is fetched again, and that one liar costs twice as many chunks. \
avlplus:drop-random has no oracle and leaves out one random peer. avlplus:rational fetches all chunks from \
one peer at a time, and never again from a peer that was wrong; `faster` and `on average` are over it. For \
each seed all methods run one after the other, with the same lying peers, the same delays and new \
connections. Times are medians over seeds; `on average` is the ratio of the total times. For the state of a \
chain use `retrie node --sync.from`.";

/// Flags about the tree, for `bench sync` and for its peers.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TreeArgs {
    /// Elements of the tree.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_elements)]
    pub(super) elements: u64,
    /// Bytes of each value.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Most elements in a chunk.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    pub(super) chunk: u32,
    /// Seed of keys and values, and of the choice of liars.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl TreeArgs {
    const fn setting(&self) -> ServedTreeConfig {
        let Self { elements, bytes, chunk, seed } = *self;
        ServedTreeConfig { elements, bytes: bytes as usize, chunk: chunk as usize, seed }
    }
}

/// Arguments of `retrie bench sync`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TreeFetchArgs {
    #[command(flatten)]
    pub(super) tree: TreeArgs,
    /// Number of peers that have the tree.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) peers: u32,
    /// Number of peers that lie.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) byzantine: u32,
    /// Milliseconds from a request to the first byte of its response, peer by peer; the list is
    /// repeated if it is too short. Seeds shuffle it [default: round trips between regions of
    /// Europe].
    #[arg(
        long,
        value_name = "MS,MS,..",
        value_delimiter = ',',
        default_value = "2,8,10,12,16,22,25,30,36,40,45,50",
        value_parser = clap::value_parser!(u32).range(0..=10_000)
    )]
    delays: Vec<u32>,
    /// Bandwidth of each peer in megabits per second.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    bandwidth: u32,
    /// Let peers prepare the messages of the baseline before the first request, as Tendermint's
    /// snapshots do. Without this flag they walk their tree for each request, as in the paper.
    #[arg(long)]
    snapshots: bool,
    /// Policies of the baseline after a wrong root, separated by commas: refetch, drop-random,
    /// rational [default: all].
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    policies: Vec<BaselinePolicy>,
    /// How many times the tree is fetched, each time with other liars and delays.
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

impl TreeFetchArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(&self.report)?;
        let mut report = TreeSyncReport::new(BenchReport::new(command_line(), Vec::new()));
        report.bench.references = references(Paper::Bavl);
        report.bench.references.retain(|figure| figure.workload == "sync");
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        add_phases(&mut report.bench.results, &report.phases);
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Measures, and returns the results, with the phases among their measures.
    pub(super) fn measured(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let mut report = TreeSyncReport::new(BenchReport::new(String::new(), Vec::new()));
        let ended = self.measure(out, stop, &mut report);
        add_phases(&mut report.bench.results, &report.phases);
        let BenchReport { results, notes, .. } = report.bench;
        Ok(RaceMeasurement { results, notes, references: Vec::new(), ended })
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut TreeSyncReport,
    ) -> eyre::Result<()> {
        if self.byzantine >= self.peers {
            bail!(
                "--byzantine {} of --peers {}: one peer has to be honest",
                self.byzantine,
                self.peers
            );
        }
        let policies = match &self.policies[..] {
            [] => &BaselinePolicy::ALL[..],
            given => given,
        };
        if let Some((_, twice)) =
            policies.iter().enumerate().find(|(n, policy)| policies[..*n].contains(policy))
        {
            bail!("--policies names `{twice}` twice");
        }
        let baselines = policies.iter().map(|policy| FetchMethod::AvlPlus(*policy));
        let setting = FetchRaceConfig {
            tree: self.tree.setting(),
            methods: baselines.chain([FetchMethod::Bavl]).collect(),
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
        // The results measured before an error are kept.
        if !reached.is_empty() {
            print(out, &setting, ports.len(), &reached)?;
            report.add(&setting, ports.len(), &reached);
        }
        ended?;
        Ok(())
    }

    /// The peers, when all have their trees.
    fn start(&self) -> eyre::Result<Vec<PeerProcess>> {
        let starting: eyre::Result<Vec<_>> = (0..self.peers)
            .map(|number| PeerProcess::launch(number, &self.tree, self.snapshots))
            .collect();
        starting?.into_iter().map(StartingPeer::ready).collect()
    }
}

fn print(
    out: &CommandOutput,
    setting: &FetchRaceConfig,
    peers: usize,
    outcomes: &[FetchOutcome],
) -> eyre::Result<()> {
    say!(
        out,
        "\n{:<19} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>8} {:>8} {:>10}",
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
    let baseline = outcome_of(outcomes, FetchMethod::AvlPlus(BaselinePolicy::Rational));
    for outcome in outcomes {
        let phases = FetchPhases::of(setting.byzantine, outcome);
        let (ratio, average) = match baseline {
            Some(other) => {
                let (ratio, average) = faster(outcome, other);
                (format!("{:.2}x", ratio.median), format!("{average:.2}x"))
            }
            None => ("-".into(), "-".into()),
        };
        say!(
            out,
            "{:<19} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>9.0} {:>7.1} {:>8.0} {ratio:>8} {average:>10}",
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
         peers, both of all threads together. faster, on average: over avlplus:rational"
    );
    for ratio in policy_ratios(setting, peers, outcomes) {
        say!(
            out,
            "bavl over avlplus:{:<11} {:>6.2}x median ({:.2} to {:.2}), {:.2}x on average",
            ratio.policy,
            ratio.median,
            ratio.quartiles[0],
            ratio.quartiles[1],
            ratio.average
        );
    }
    Ok(())
}

/// A peer process that still builds its tree.
struct StartingPeer {
    number: u32,
    child: Child,
}

/// A peer process, killed on drop.
struct PeerProcess {
    child: Child,
    port: u16,
}

impl PeerProcess {
    fn launch(number: u32, tree: &TreeArgs, snapshots: bool) -> eyre::Result<StartingPeer> {
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
        Ok(StartingPeer { number, child })
    }
}

impl StartingPeer {
    fn ready(mut self) -> eyre::Result<PeerProcess> {
        let number = self.number;
        let mut line = String::new();
        let said = self.child.stdout.take().map(BufReader::new);
        let read = said.map(|mut said| said.read_line(&mut line)).transpose();
        let port = line.trim().parse();
        let peer = PeerProcess { child: self.child, port: port.unwrap_or_default() };
        read.wrap_err_with(|| format!("reading the port of peer {number}"))?;
        if peer.port == 0 {
            return Err(eyre!("peer {number} did not start"));
        }
        Ok(peer)
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Arguments of `retrie bench sync-peer`, which `bench sync` starts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Prepare all messages of the baseline at the start.
    #[arg(long)]
    snapshots: bool,
}

impl PeerArgs {
    /// Prints its port and serves the tree, until it is killed or its parent process ends.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        std::thread::spawn(|| {
            // Stdin closes when the parent process ends.
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            std::process::exit(0);
        });
        peer::serve(self.tree.setting(), self.snapshots, stop, |port| {
            // If the parent cannot read the port, no request comes.
            let mut out = stdout();
            drop(writeln!(out, "{port}").and_then(|()| out.flush()));
        })?;
        Ok(())
    }
}
