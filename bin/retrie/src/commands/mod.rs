//! The subcommands and what they share.

pub(crate) mod bench;
pub(crate) mod bundle;
pub(crate) mod config;
pub(crate) mod db;
pub(crate) mod download;
pub(crate) mod dump_genesis;
pub(crate) mod dump_state;
pub(crate) mod existing;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod init_state;
pub(crate) mod params;
pub(crate) mod proof;
pub(crate) mod re_execute;
pub(crate) mod replay;
pub(crate) mod stage;
pub(crate) mod verify;

use crate::registry::{self, BackendArgs, Purpose};
use alloy_primitives::B256;
use eyre::{Context, bail};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{ChainRead, Db, DbError, Kept, KeptBlocks, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::ChainOptions;
use retrie_sources::{Http, HttpOptions};
use retrie_state::{Changes, StoreOptions};
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A flag that Ctrl-C (or SIGTERM) sets; a second one ends the process at once.
pub(crate) fn stop_signal() -> eyre::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        let line = "stopping at the next block; press Ctrl-C again to stop at once";
        let _ = writeln!(std::io::stderr(), "{line}");
    })
    .wrap_err("installing the signal handler")?;
    Ok(stop)
}

/// Chain and datadir.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ChainArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file. A datadir knows its
    /// chain; a new one is of mainnet if nothing is said.
    #[arg(long, value_name = "CHAIN_OR_PATH")]
    chain: Option<String>,
    /// Where chain and state are kept.
    #[arg(long, value_name = "DATA_DIR")]
    datadir: Option<PathBuf>,
}

/// The chain that is meant where nothing is said.
pub(crate) const DEFAULT_CHAIN: &str = "mainnet";

impl ChainArgs {
    /// The chain that `--chain` names.
    pub(crate) fn given(&self) -> eyre::Result<Option<Arc<ChainSpec>>> {
        Ok(self.chain.as_deref().map(parse_chain).transpose()?)
    }

    /// Chain and datadir of a command that makes the datadir if there is none.
    pub(crate) fn resolve(&self) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        self.resolve_or(DEFAULT_CHAIN)
    }

    /// The same, where a new datadir is of chain `default` unless another one is given.
    pub(crate) fn resolve_or(&self, default: &str) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        let datadir = self.datadir_or(default)?;
        let spec = match self.given()? {
            Some(given) => given,
            None => match spec_of(&datadir)? {
                Some(kept) => kept,
                None => parse_chain(default)?,
            },
        };
        Ok((spec, datadir))
    }

    /// The datadir: as given, or by chain in the user's data directory.
    pub(crate) fn datadir(&self) -> eyre::Result<PathBuf> {
        self.datadir_or(DEFAULT_CHAIN)
    }

    /// The same, of chain `default` unless another one is given.
    pub(crate) fn datadir_or(&self, default: &str) -> eyre::Result<PathBuf> {
        if let Some(datadir) = &self.datadir {
            return Ok(datadir.clone());
        }
        let spec = parse_chain(self.chain.as_deref().unwrap_or(default))?;
        let base = std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")));
        match base {
            Some(base) => Ok(base.join("retrie").join(spec.name())),
            None => bail!("there is no home directory: pass --datadir"),
        }
    }
}

/// Backend and what is checked with it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StateArgs {
    /// The state store.
    #[arg(long, value_name = "BACKEND", default_value = "mpt")]
    pub(crate) state_backend: String,
    /// Hash function of the state store, for comparison only; `mpt-archive` has the choice.
    #[arg(long, value_name = "HASH")]
    pub(crate) hash: Option<registry::Hash>,
    /// What header state roots mean: `header` (must equal the backend's root; backends with
    /// Ethereum's roots only, their default), `shadow` (belong to another backend; ours is stored
    /// beside them).
    #[arg(long, value_name = "MODE")]
    pub(crate) state_root: Option<StateRootMode>,
    /// Run this backend beside the state backend, on the same deltas, and check header state roots
    /// with it.
    #[arg(long, value_name = "BACKEND")]
    pub(crate) referee: Option<String>,
    /// How many blocks can be reverted.
    #[arg(long, value_name = "BLOCKS", default_value_t = DEFAULT_RETENTION)]
    pub(crate) retention: u64,
    #[command(flatten)]
    pub(crate) prune: PruneArgs,
    #[command(flatten)]
    pub(crate) backends: BackendArgs,
}

/// Blocks of history that a full node keeps: reth's `MINIMUM_PRUNING_DISTANCE`.
const FULL_NODE_DISTANCE: u64 = 10_064;

/// How much of the past is kept, in reth's words. Accounts and storage have one history here, so
/// reth's `--prune.account-history.*` and `--prune.storage-history.*` are one flag. What can be
/// reverted (`--retention`) is kept in any case.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// Keep the history of states and the receipts of the last 10,064 blocks alone, and no bodies
    /// from before the merge, as a full node does. Without it all are kept. The other pruning flags
    /// go before it.
    #[arg(long)]
    full: bool,
    /// Keep the history of so many blocks before the head: their states can be read. Of several
    /// numbers the largest counts. Backends that keep old states themselves (`mpt-archive`, `cole`)
    /// have this history beside their own only if it is asked for.
    #[arg(
        long = "prune.state-history.distance",
        visible_aliases = ["prune.account-history.distance", "prune.storage-history.distance"],
        value_name = "BLOCKS"
    )]
    history_distance: Vec<u64>,
    /// Keep no history of states.
    #[arg(long = "prune.state-history.full", conflicts_with = "history_distance")]
    no_history: bool,
    /// Keep the receipts of so many blocks before the head.
    #[arg(
        long = "prune.receipts.distance",
        value_name = "BLOCKS",
        conflicts_with_all = ["receipts_before", "no_receipts"]
    )]
    receipts_distance: Option<u64>,
    /// Keep the receipts of this block and of those after it.
    #[arg(
        long = "prune.receipts.before",
        value_name = "BLOCK_NUMBER",
        conflicts_with = "no_receipts"
    )]
    receipts_before: Option<u64>,
    /// Keep no receipts but those of blocks that can be reverted.
    #[arg(long = "prune.receipts.full")]
    no_receipts: bool,
    /// Keep no bodies of blocks from before the merge: their transactions, ommers, receipts.
    #[arg(long = "prune.bodies.pre-merge", conflicts_with_all = ["bodies_distance", "bodies_before"])]
    no_bodies_before_merge: bool,
    /// Keep the bodies of so many blocks before the head.
    #[arg(long = "prune.bodies.distance", value_name = "BLOCKS", conflicts_with = "bodies_before")]
    bodies_distance: Option<u64>,
    /// Keep the bodies of this block and of those after it.
    #[arg(long = "prune.bodies.before", value_name = "BLOCK_NUMBER")]
    bodies_before: Option<u64>,
    /// Find transactions by their hashes in so many blocks before the head.
    #[arg(
        long = "prune.transaction-lookup.distance",
        visible_alias = "prune.transactionlookup.distance",
        value_name = "BLOCKS",
        conflicts_with_all = ["lookup_before", "no_lookup"]
    )]
    lookup_distance: Option<u64>,
    /// Find transactions by their hashes from this block on.
    #[arg(
        long = "prune.transaction-lookup.before",
        visible_alias = "prune.transactionlookup.before",
        value_name = "BLOCK_NUMBER",
        conflicts_with = "no_lookup"
    )]
    lookup_before: Option<u64>,
    /// Find transactions by their hashes in blocks alone that can be reverted.
    #[arg(long = "prune.transaction-lookup.full", visible_alias = "prune.transactionlookup.full")]
    no_lookup: bool,
    /// Refused: senders are kept with their transactions and go with the bodies.
    #[arg(
        long = "prune.sender-recovery.full",
        visible_aliases = [
            "prune.sender-recovery.distance",
            "prune.sender-recovery.before",
            "prune.senderrecovery.full",
            "prune.senderrecovery.distance",
            "prune.senderrecovery.before",
        ],
        value_name = "BLOCKS",
        num_args = 0..=1,
        default_missing_value = "full",
        hide = true,
        value_parser = refuse_senders
    )]
    senders: Option<Never>,
}

/// The value of a flag that is always refused.
#[derive(Clone, Copy, Debug)]
enum Never {}

fn refuse_senders(_: &str) -> Result<Never, String> {
    Err("senders are kept in the rows of their transactions, 20 bytes each, so there is nothing to \
         prune but both: --prune.bodies.distance or --prune.bodies.before"
        .into())
}

/// Generations in which an ommer may lie (yellow paper 11.1): so many bodies the rules look at.
const OMMERS_REACH: u64 = 7;

impl PruneArgs {
    /// The state store's option. A backend that keeps old states itself needs no other history of
    /// them, but may have one.
    fn changes(&self, backend_has_history: bool) -> Changes {
        match self.history_distance.iter().max() {
            _ if self.no_history => Changes::Off,
            Some(blocks) => Changes::Last(*blocks),
            None if backend_has_history => Changes::Off,
            None if self.full => Changes::Last(FULL_NODE_DISTANCE),
            None => Changes::All,
        }
    }

    /// The database's option on this chain, where so many blocks can be reverted.
    fn kept(&self, spec: &ChainSpec, retention: u64) -> eyre::Result<Kept> {
        if let Some(never) = self.senders {
            match never {}
        }
        let merge = spec.merge_block();
        if self.no_bodies_before_merge && merge.is_none() {
            bail!(
                "--prune.bodies.pre-merge: it is not known where chain {} was merged; name the \
                 block: --prune.bodies.before",
                spec.name()
            );
        }
        let merge = merge
            .filter(|_| self.no_bodies_before_merge || self.full && self.bodies_distance.is_none());
        let receipts = self.receipts_distance.or_else(|| self.full.then_some(FULL_NODE_DISTANCE));
        Ok(Kept {
            bodies: kept_blocks(
                false,
                self.bodies_distance,
                self.bodies_before.or(merge),
                retention.max(OMMERS_REACH),
            ),
            receipts: kept_blocks(self.no_receipts, receipts, self.receipts_before, retention),
            lookup: kept_blocks(
                self.no_lookup,
                self.lookup_distance,
                self.lookup_before,
                retention,
            ),
        })
    }
}

/// What the three flags of one part ask for, but always the last `least` blocks.
fn kept_blocks(none: bool, distance: Option<u64>, before: Option<u64>, least: u64) -> KeptBlocks {
    let last = |blocks: u64| KeptBlocks { from: u64::MAX, last: blocks.max(least) };
    match (before, distance) {
        _ if none => last(0),
        (Some(from), _) => KeptBlocks { from, last: least },
        (None, Some(blocks)) => last(blocks),
        (None, None) => KeptBlocks::default(),
    }
}

/// How a server is talked to. Proxies come from the environment (`HTTPS_PROXY`, `ALL_PROXY`).
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HttpArgs {
    /// Seconds to wait for a connection, for an answer to begin, and for each next byte of it.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How often to try again, with growing waits, when the server fails without any progress.
    #[arg(long, value_name = "N", default_value_t = 4)]
    retries: u32,
}

impl HttpArgs {
    /// The client, which `stop` stops.
    pub(crate) fn client(&self, stop: &Arc<AtomicBool>) -> Http {
        let options = HttpOptions {
            timeout: Duration::from_secs(self.timeout),
            retries: self.retries,
            ..HttpOptions::default()
        };
        Http::new(options, stop.clone())
    }
}

/// How the database is opened.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DbArgs {
    /// Limit of the database size: bytes, or with a unit (KB, MB, GB, TB; 1 KB is 1024 bytes).
    #[arg(long = "db.max-size", value_name = "SIZE", default_value = "8TB", value_parser = parse_size)]
    pub(crate) max_size: u64,
    /// `durable`: a commit is on disk when it returns. `none`: a power failure may take the
    /// database back to an earlier commit.
    #[arg(long = "db.sync-mode", value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    pub(crate) sync: SyncMode,
}

pub(crate) fn parse_sync(name: &str) -> Result<SyncMode, String> {
    match name {
        "durable" => Ok(SyncMode::Durable),
        "none" => Ok(SyncMode::NoSync),
        _ => Err("it is `durable` or `none`".into()),
    }
}

/// `4096`, `64MB`, `8 TB`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim().to_ascii_uppercase();
    let shift = match unit.as_str() {
        "" | "B" => Some(0),
        "KB" => Some(10),
        "MB" => Some(20),
        "GB" => Some(30),
        "TB" => Some(40),
        _ => None,
    };
    let size = digits.parse::<u64>().ok().zip(shift);
    size.and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is not a size such as 4096, 64MB or 8TB"))
}

impl DbArgs {
    /// The database's options.
    pub(crate) fn options(&self) -> OpenOptions {
        // MDBX opens a file of another size for writing only.
        let whole = |bytes: u64| bytes.max(1).checked_next_multiple_of(64 << 10).unwrap_or(bytes);
        OpenOptions {
            map_limit: whole(self.max_size),
            // The file of a small database stays small.
            growth_step: whole((self.max_size / 8).min(1 << 30)),
            sync: self.sync,
            ..OpenOptions::default()
        }
    }
}

/// Opens a datadir to read from it, beside a process that may be writing to it.
pub(crate) fn open_to_read(datadir: &Path) -> Result<Db, DbError> {
    Db::open(datadir, &OpenOptions::read_only()).or_else(|error| match error {
        // What a killed process has left with `--db.sync-mode none` takes a writer to recover.
        DbError::Mdbx { .. } | DbError::System { .. } => Db::open(datadir, &OpenOptions::default()),
        error => Err(error),
    })
}

/// The chain that a datadir keeps; `None` if there is none yet.
fn spec_of(datadir: &Path) -> Result<Option<Arc<ChainSpec>>, DbError> {
    let db = match open_to_read(datadir) {
        // A kill while it was made can leave it without tables: then it is made once more. A file
        // of somebody else is refused there.
        Err(DbError::NoDatadir { .. } | DbError::NotADatabase { .. }) => return Ok(None),
        db => db?,
    };
    let read = db.begin_read()?;
    if read.metadata()?.is_none() { Ok(None) } else { read.spec().map(Some) }
}

/// For tests of crashes: with `RETRIE_FOLD_BYTES` the state is folded after so many bytes.
fn fold_bytes_of(mut options: StoreOptions) -> StoreOptions {
    let bytes = std::env::var("RETRIE_FOLD_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    options.fold_bytes = bytes.unwrap_or(options.fold_bytes);
    options
}

/// Blocks that can be reverted if nothing else is said.
const DEFAULT_RETENTION: u64 = 128;

impl StateArgs {
    /// Keeps more blocks revertible than by default, unless a number was named.
    pub(crate) const fn raise_retention(&mut self, blocks: u64) {
        if self.retention == DEFAULT_RETENTION {
            self.retention = blocks;
        }
    }

    /// Everything needed to open a chain in `datadir`.
    pub(crate) fn chain_options(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        db: OpenOptions,
    ) -> eyre::Result<ChainOptions> {
        let stamp = self.params_of(datadir)?;
        let purpose = match stamp {
            Some(params) => Purpose::Existing { datadir, params },
            None => Purpose::New(&spec),
        };
        let names = std::slice::from_ref(&self.state_backend);
        let backend = registry::backends(names, self.hash, &self.backends, purpose)?.remove(0);
        let referee = self.referee.as_deref().map(registry::referee).transpose()?;
        let root_mode = match self.state_root {
            Some(mode) => mode,
            None if backend.capabilities().ethereum_root => StateRootMode::Header,
            None => StateRootMode::Shadow,
        };
        let kept = self.prune.kept(&spec, self.retention)?;
        let changes = self.prune.changes(backend.history().is_some());
        Ok(ChainOptions {
            spec,
            backend,
            referee,
            root_mode,
            datadir: datadir.to_owned(),
            db: OpenOptions { kept, ..db },
            store: fold_bytes_of(StoreOptions {
                retention: self.retention,
                changes,
                ..StoreOptions::default()
            }),
        })
    }
}

impl StateArgs {
    /// Digest of the parameters that a datadir was made with, for backends that have a choice of
    /// them; `None` if it does not exist yet.
    fn params_of(&self, datadir: &Path) -> Result<Option<B256>, DbError> {
        if !registry::is_configured(&self.state_backend) {
            return Ok(None);
        }
        let db = match open_to_read(datadir) {
            // A kill while it was made can leave it without tables: then it is made once more. A
            // file of somebody else is refused there.
            Err(DbError::NoDatadir { .. } | DbError::NotADatabase { .. }) => return Ok(None),
            db => db?,
        };
        let Some(metadata) = db.begin_read()?.metadata()? else { return Ok(None) };
        if metadata.backend != registry::stored_name(&self.state_backend) {
            return Err(DbError::BackendMismatch {
                path: datadir.to_owned(),
                found: metadata.backend,
                expected: self.state_backend.clone(),
            });
        }
        Ok(Some(metadata.params))
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Changes, Kept, KeptBlocks, PruneArgs};
    use retrie_chainspec::parse_chain;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        prune: PruneArgs,
    }

    fn kept_on(chain: &str, line: &str) -> Result<(Changes, Kept), String> {
        let words = ["retrie"].into_iter().chain(line.split_whitespace());
        let line: Line = clap::Parser::try_parse_from(words).map_err(|error| error.to_string())?;
        let spec = parse_chain(chain).unwrap();
        let kept = line.prune.kept(&spec, 128).map_err(|error| error.to_string())?;
        let (plain, own) = (line.prune.changes(false), line.prune.changes(true));
        // Where the backend has a history, another one is there only if it is asked for.
        let is_asked_for = !line.prune.history_distance.is_empty();
        assert_eq!(own, if is_asked_for { plain } else { Changes::Off }, "{:?}", line.prune);
        Ok((plain, kept))
    }

    const MERGE: u64 = 15_537_394;

    const fn last(last: u64) -> KeptBlocks {
        KeptBlocks { from: u64::MAX, last }
    }

    const fn before(from: u64) -> KeptBlocks {
        KeptBlocks { from, last: 128 }
    }

    #[test]
    fn what_is_pruned_is_what_the_flags_of_reth_say() {
        let all = Kept::default();
        let bodies = |bodies| Kept { bodies, ..all };
        let receipts = |receipts| Kept { receipts, ..all };
        let lookup = |lookup| Kept { lookup, ..all };
        let full = Kept { bodies: before(MERGE), receipts: last(10_064), ..all };
        for (line, changes, kept) in [
            ("", Changes::All, all),
            ("--full", Changes::Last(10_064), full),
            ("--prune.state-history.distance 7", Changes::Last(7), all),
            (
                "--full --prune.account-history.distance 20000 \
                 --prune.storage-history.distance=15000",
                Changes::Last(20_000),
                full,
            ),
            ("--prune.state-history.full --full", Changes::Off, full),
            (
                "--full --prune.receipts.distance 300 --prune.bodies.distance 500",
                Changes::Last(10_064),
                Kept { bodies: last(500), receipts: last(300), ..all },
            ),
            ("--prune.receipts.distance 3", Changes::All, receipts(last(128))),
            ("--prune.receipts.full", Changes::All, receipts(last(128))),
            ("--prune.receipts.before 99", Changes::All, receipts(before(99))),
            ("--prune.bodies.pre-merge", Changes::All, bodies(before(MERGE))),
            ("--prune.bodies.before 99", Changes::All, bodies(before(99))),
            ("--prune.bodies.distance 1000", Changes::All, bodies(last(1000))),
            ("--prune.transaction-lookup.full", Changes::All, lookup(last(128))),
            ("--prune.transactionlookup.distance 200", Changes::All, lookup(last(200))),
            ("--prune.transaction-lookup.before 9", Changes::All, lookup(before(9))),
        ] {
            assert_eq!(kept_on("mainnet", line), Ok((changes, kept)), "{line}");
        }
        for both in [
            "--prune.state-history.full --prune.account-history.distance 7",
            "--prune.receipts.full --prune.receipts.before 7",
            "--prune.receipts.distance 7 --prune.receipts.before 7",
            "--prune.bodies.distance 7 --prune.bodies.before 7",
            "--prune.bodies.pre-merge --prune.bodies.before 7",
            "--prune.transaction-lookup.full --prune.transaction-lookup.before 7",
        ] {
            assert!(
                kept_on("mainnet", both).unwrap_err().contains("cannot be used with"),
                "{both}"
            );
        }
        for senders in ["--prune.sender-recovery.full", "--prune.senderrecovery.distance 7"] {
            let error = kept_on("mainnet", senders).unwrap_err();
            assert!(error.contains("rows of their transactions"), "{error}");
        }
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(super::grouped(7), "7");
        assert_eq!(super::grouped(1234), "1,234");
        assert_eq!(super::grouped(1234567), "1,234,567");
    }

    #[test]
    fn sizes_are_binary_and_checked() {
        assert_eq!(super::parse_size("4096"), Ok(4096));
        assert_eq!(super::parse_size("64MB"), Ok(64 << 20));
        assert_eq!(super::parse_size("2 kb"), Ok(2048));
        assert_eq!(super::parse_size("8TB"), Ok(8 << 40));
        for wrong in ["", "MB", "1.5GB", "-1", "10PB", "99999999TB", "10 MB x"] {
            assert!(super::parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
