//! Advice for errors: which flags and commands of this program help.
//!
//! The libraries' errors state facts only, since a library does not know the program that uses it.
//! The advice for this command line stands in this file, with three exceptions, whose flags are
//! defined elsewhere: the configuration of a race ([`bench::advice`]), a backend's flags (its
//! descriptor), and the checks in the commands themselves.

use crate::commands::bench;
use retrie_bench::{BenchError, chain::MakeChainError};
use retrie_db::DbError;
use retrie_engine::{
    DeepBranch, DevError, EngineApiError, EngineError, WaitReason, pool::JournalError,
};
use retrie_export::ExportError;
use retrie_pipeline::{AnchorError, MigrateError, PipelineError};
use retrie_sources::{
    DownloadError, HttpFault, ObjectError, RpcError, SourceError, SourceErrorKind,
    download::DownloadErrorKind, rpc::RpcErrorKind,
};
use retrie_state::StateError;
use retrie_state_sync::{StateSyncError, SyncTargetError};
use retrie_telemetry::{LogError, ServeError};
use std::{borrow::Cow, error::Error};

type AdviceText = Option<Cow<'static, str>>;

/// The advice for an error: for the outermost of its causes that has any.
pub(crate) fn for_error(error: &eyre::Report) -> Option<String> {
    error.chain().find_map(about).map(Cow::into_owned)
}

fn about(error: &(dyn Error + 'static)) -> AdviceText {
    typed::<PipelineError>(error, pipeline)
        .or_else(|| typed::<DbError>(error, db))
        .or_else(|| typed::<StateError>(error, state))
        .or_else(|| typed::<EngineError>(error, engine))
        .or_else(|| typed::<EngineApiError>(error, engine_api))
        .or_else(|| typed::<DevError>(error, dev))
        .or_else(|| typed::<JournalError>(error, journal))
        .or_else(|| typed::<RpcError>(error, |error| rpc(&error.kind)))
        .or_else(|| typed::<SourceError>(error, source))
        .or_else(|| typed::<DownloadError>(error, |error| download(&error.kind)))
        .or_else(|| typed::<ServeError>(error, |_| say("--metrics sets it")))
        .or_else(|| typed::<LogError>(error, |_| say("choose another --log.file.directory")))
        .or_else(|| typed::<SyncTargetError>(error, origin))
        .or_else(|| typed::<StateSyncError>(error, fetch))
        .or_else(|| typed::<BenchError>(error, race))
        .or_else(|| typed::<ExportError>(error, export))
        .or_else(|| bench::advice::of(error).map(Cow::Owned))
}

/// Applies `advise` if the error is an `E`, also where it is kept in a box.
fn typed<E: Error + 'static>(
    error: &(dyn Error + 'static),
    advise: impl FnOnce(&E) -> AdviceText,
) -> AdviceText {
    let boxed = || error.downcast_ref::<Box<E>>().map(|error| &**error);
    error.downcast_ref().or_else(boxed).and_then(advise)
}

/// For match arms of one line.
const fn say(advice: &'static str) -> AdviceText {
    Some(Cow::Borrowed(advice))
}

// An error that shows another as its own text (`transparent`) hides it from the chain of causes.
// The functions below look into such errors.

fn pipeline(error: &PipelineError) -> AdviceText {
    match error {
        PipelineError::ForeignGenesis { .. } => say("check --chain"),
        PipelineError::OtherChain { .. } => say("pass the --chain it was made with"),
        PipelineError::FilesEnd { .. } => say("name more files, or a lower block by --to"),
        PipelineError::GenesisBundle => say("begin with --from 1"),
        PipelineError::NoHeaderRoot { .. } => {
            say("run --referee mpt beside it, or leave the roots unchecked (--state-root shadow)")
        }
        PipelineError::RefereeBehind { .. } => say("drop --referee, or import afresh with it"),
        PipelineError::Check { .. } => say("--scratch names another folder"),
        PipelineError::Anchor(error) => anchor(error),
        PipelineError::Migrate(error) => migrate(error),
        PipelineError::State(error) => state(error),
        PipelineError::Db(error) => db(error),
        PipelineError::Rpc(error) => rpc(&error.kind),
        PipelineError::Source(error) => source(error),
        _ => None,
    }
}

fn anchor(error: &AnchorError) -> AdviceText {
    match error {
        AnchorError::NoHeader { .. } => say("give the header of its block (--header)"),
        AnchorError::OtherHash { .. } => say("check --header and --header-hash"),
        AnchorError::NoTotalDifficulty { .. } => say("give it by --total-difficulty"),
        AnchorError::HistoryRoot { .. } => say(
            "leave out --state-root native if the headers carry Ethereum's roots, not the backend's",
        ),
        _ => None,
    }
}

fn origin(error: &SyncTargetError) -> AdviceText {
    match error {
        SyncTargetError::Disagree { .. } => say("trust one of them by its hash (--checkpoint)"),
        SyncTargetError::NoHeaders { .. } => say(
            "check the hash, and that nodes of --sync.from serve the namespace sync (--http.api) \
                 or, without any, that peers can be found (--bootnodes, --trusted-peers)",
        ),
        _ => None,
    }
}

fn fetch(error: &StateSyncError) -> AdviceText {
    match error {
        StateSyncError::Unsupported { .. } => {
            say("choose a --state-backend that can be (mpt, prefix, bavl), or load a dump \
                 (retrie init-state)")
        }
        StateSyncError::NoPeers { .. } => say(
            "name other nodes (--sync.from, or peers by --trusted-peers), or a newer block that \
                 they still keep",
        ),
        _ => None,
    }
}

fn migrate(error: &MigrateError) -> AdviceText {
    match error {
        MigrateError::NoBodies { .. } | MigrateError::NoFirstState { .. } => {
            say("leave out --history")
        }
        _ => None,
    }
}

fn state(error: &StateError) -> AdviceText {
    match error {
        StateError::BeyondRetention { .. } => say(
            "import again with a larger --retention, or use a backend with a history of its own",
        ),
        StateError::BeyondHistory { .. } => say(
            "import again with a larger --prune.state-history.distance, or without pruning, or use a \
             backend with a history of its own",
        ),
        StateError::Job { .. } => say(
            "make room if the disk is full, then run the same command again; if it fails again, \
             `retrie db verify` shows whether the datadir is damaged, and `retrie node` on it still \
             answers all that reads",
        ),
        _ => None,
    }
}

/// What ends a wait of the node.
pub(crate) fn for_wait(reason: &WaitReason) -> Cow<'static, str> {
    match reason {
        WaitReason::NoSource => "its consensus client sends the blocks in between, or the node is started \
             with peers or --follow URL"
            .into(),
        WaitReason::NoPeers => "peers that have the blocks (--bootnodes, --trusted-peers), or \
             --follow URL"
            .into(),
        WaitReason::Blocks(_) => "the blocks, once they have come".into(),
        WaitReason::Failing(_) => "it is tried again; other peers, or another --follow URL".into(),
        WaitReason::TooDeepReorg(_, DeepBranch { fork, .. }) => format!(
            "nothing by itself: the branch forks off deeper than --retention. If the consensus client is \
             right, make a datadir that ends below the branch with `retrie db migrate --history --until \
             {fork} --retention N --to BACKEND NEW`, which executes the stored blocks again, or start a \
             new datadir from the state of peers (--checkpoint HASH); then start the node on it"
        )
        .into(),
        _ => "it is not known".into(),
    }
}

fn db(error: &DbError) -> AdviceText {
    /// EIO, a device that cannot read or write. The number is the same on every Unix.
    const DEVICE_FAULT: i32 = 5;
    match error {
        DbError::NoDatadir { .. } => {
            say("create one with `retrie init`, or pass another --datadir")
        }
        DbError::Exists { .. } | DbError::NotADatabase { .. } => say("choose another --datadir"),
        DbError::InUse { .. } => say("stop it first, or choose another --datadir"),
        DbError::NotInitialised { .. } => say("run `retrie init` or `retrie import` on it"),
        DbError::Unfinished { .. } => say("`retrie db migrate` goes on with it"),
        DbError::Corrupt { .. } => say("`retrie db verify` shows what else is damaged"),
        DbError::System { source, .. } if source.raw_os_error() == Some(DEVICE_FAULT) => {
            say("then `retrie db verify` shows what is damaged")
        }
        DbError::Schema { found, supported, .. } if found < supported => FRESH,
        DbError::BackendFormat { found, expected, .. } if found < expected => FRESH,
        DbError::ChainMismatch { .. } => {
            say("leave out --chain or pass the one it was made with, or choose another --datadir")
        }
        DbError::UnknownChain { .. } => say(
            "pass --chain with the genesis file it was made with (an import or a node keeps it from \
             then on)",
        ),
        DbError::BackendMismatch { found, .. } => {
            let advice = format!(
                "leave out --state-backend or pass --state-backend {found}, or choose another --datadir"
            );
            Some(advice.into())
        }
        DbError::BackendParameters { .. } => {
            say("start with those it was made with, or choose another --datadir")
        }
        DbError::StateRootMismatch { found, .. } => {
            Some(format!("pass --state-root {found}, or choose another --datadir").into())
        }
        DbError::RetentionMismatch { found, .. } => Some(
            format!("pass --retention {found} or leave it out, or choose another --datadir").into(),
        ),
        _ => None,
    }
}

/// For datadirs of an earlier version.
const FRESH: AdviceText = say("choose another --datadir to import into");

fn engine(error: &EngineError) -> AdviceText {
    match error {
        EngineError::Pipeline(error) => pipeline(error),
        EngineError::TooDeepReorg { source, .. } => state(source),
        _ => None,
    }
}

fn engine_api(error: &EngineApiError) -> AdviceText {
    match error {
        EngineApiError::Engine(error) => engine(error),
        _ => None,
    }
}

fn dev(error: &DevError) -> AdviceText {
    match error {
        DevError::Engine(error) => engine(error),
        _ => None,
    }
}

fn journal(error: &JournalError) -> AdviceText {
    match error {
        JournalError::Io { .. } => say(
            "name another file with --txpool.journal, or run without it (--txpool.disable-journal)",
        ),
        JournalError::Foreign { .. } => say("name another file with --txpool.journal"),
        _ => None,
    }
}

fn rpc(error: &RpcErrorKind) -> AdviceText {
    match error {
        RpcErrorKind::WrongChain { .. } => say("check --chain and --rpc"),
        _ => None,
    }
}

fn download(error: &DownloadErrorKind) -> AdviceText {
    match error {
        DownloadErrorKind::NoMirror { .. } => say("name one with --mirror"),
        DownloadErrorKind::NoFiles { .. }
        | DownloadErrorKind::Checksum { .. }
        | DownloadErrorKind::Foreign { .. } => say("name another one with --mirror"),
        DownloadErrorKind::Object(error) => object(error),
        _ => None,
    }
}

fn source(error: &SourceError) -> AdviceText {
    match &*error.kind {
        SourceErrorKind::Object(error) => object(error),
        _ => None,
    }
}

fn object(error: &ObjectError) -> AdviceText {
    match error {
        ObjectError::Broken { fault: HttpFault::Exhausted { .. }, .. }
        | ObjectError::Request { fault: HttpFault::Exhausted { .. }, .. } => {
            say("--retries tries more often, --timeout waits longer")
        }
        _ => None,
    }
}

fn race(error: &BenchError) -> AdviceText {
    match error {
        BenchError::MakeChain(MakeChainError::Pipeline(error)) => pipeline(error),
        _ => None,
    }
}

fn export(error: &ExportError) -> AdviceText {
    match error {
        ExportError::Damaged { .. } => say("delete it, or write all files anew (--overwrite)"),
        ExportError::OtherContent { .. } => {
            say("export into another folder, or write all files anew (--overwrite)")
        }
        ExportError::Overlap { .. } => {
            say("export into another folder, delete the file, or give the --chunk-size of before")
        }
        ExportError::NoState { .. } => {
            say("begin with a later block (--from), or leave out the tables that end with _diffs")
        }
        ExportError::Db(error) => db(error),
        ExportError::Source(error) => self::source(error),
        ExportError::Bundle(error) => pipeline(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use eyre::{Report, WrapErr};
    use retrie_bench::RaceSetting;
    use retrie_sources::SourcePlace;
    use retrie_state::StoreError;
    use retrie_telemetry::{LogFiles, Metrics, MetricsServer};
    use std::{io, net::TcpListener};

    const HASH: B256 = B256::ZERO;

    fn beyond_retention() -> StateError {
        StateError::BeyondRetention { number: 3, first: 6, retention: 6 }
    }

    fn of_datadirs() -> Vec<(DbError, &'static str)> {
        let path = || "/data".into();
        let version = "another version".into();
        let (table, key, what) = (|| "Headers".into(), || "0x01".into(), || "wrong".into());
        let (found, expected) = (|| "raw".to_owned(), || "mpt".to_owned());
        let device = io::Error::from_raw_os_error(5);
        vec![
            (DbError::NoDatadir { path: path() }, "`retrie init`, or pass another --datadir"),
            (DbError::Exists { path: path() }, "another --datadir"),
            (DbError::InUse { path: path(), holder: "process 7".into() }, "another --datadir"),
            (DbError::NotADatabase { path: path(), what: what() }, "another --datadir"),
            (DbError::Unfinished { path: path(), what: what() }, "`retrie db migrate`"),
            (DbError::Corrupt { table: table(), key: key(), what: what() }, "`retrie db verify`"),
            (DbError::NotInitialised { path: path() }, "`retrie import`"),
            (
                DbError::Schema { path: path(), found: 1, supported: 2, advice: "import again" },
                "another --datadir",
            ),
            (
                DbError::BackendFormat {
                    path: path(),
                    backend: version,
                    found: 1,
                    expected: 2,
                    advice: "import again",
                },
                "another --datadir",
            ),
            (
                DbError::ChainMismatch {
                    path: path(),
                    found_id: 1,
                    found_genesis: HASH,
                    expected_id: 5,
                    expected_genesis: HASH,
                },
                "leave out --chain",
            ),
            (DbError::UnknownChain { path: path(), id: 7, genesis: HASH }, "pass --chain"),
            (
                DbError::BackendMismatch { path: path(), found: found(), expected: expected() },
                "--state-backend raw",
            ),
            (
                DbError::BackendParameters {
                    path: path(),
                    backend: found(),
                    what: "parameters",
                    found: found(),
                    expected: expected(),
                },
                "another --datadir",
            ),
            (
                DbError::StateRootMismatch {
                    path: path(),
                    found: "shadow".into(),
                    expected: "header".into(),
                },
                "--state-root shadow",
            ),
            (
                DbError::RetentionMismatch { path: path(), found: 3, expected: 9 },
                "pass --retention 3 or leave it out",
            ),
            (
                DbError::System { path: path(), action: "reading".into(), source: device },
                "`retrie db verify`",
            ),
        ]
    }

    fn of_chains() -> Vec<(PipelineError, &'static str)> {
        let chain = || "mainnet".to_owned();
        let source = || Box::new(StateError::Poisoned);
        vec![
            (
                PipelineError::ForeignGenesis { got: HASH, expected: HASH, chain: chain() },
                "--chain",
            ),
            (PipelineError::OtherChain { found: HASH, chain: chain(), expected: HASH }, "--chain"),
            (PipelineError::FilesEnd { last: 3, to: 9 }, "--to"),
            (PipelineError::GenesisBundle, "--from 1"),
            (PipelineError::NoHeaderRoot { backend: "raw" }, "--referee mpt"),
            (
                PipelineError::RefereeBehind { referee: "none".into(), backend: "#3".into() },
                "drop --referee",
            ),
            (PipelineError::Check { folder: "/tmp".into(), source: "full".into() }, "--scratch"),
            (AnchorError::NoHeader { root: HASH }.into(), "(--header)"),
            (
                AnchorError::OtherHash { number: 3, got: HASH, expected: HASH }.into(),
                "--header-hash",
            ),
            (AnchorError::NoTotalDifficulty { number: 3 }.into(), "--total-difficulty"),
            (AnchorError::HistoryRoot { backend: "lvmt" }.into(), "--state-root native"),
            (MigrateError::NoBodies { first: 1, last: 3 }.into(), "--history"),
            (MigrateError::NoFirstState { number: 3, source: source() }.into(), "--history"),
            (beyond_retention().into(), "--retention"),
            (
                StateError::Job { job: "merge".into(), reason: "no space".into() }.into(),
                "`retrie db verify`",
            ),
            (
                StateError::BeyondHistory { number: 3, first: 6 }.into(),
                "--prune.state-history.distance",
            ),
        ]
    }

    fn of_servers() -> Vec<(Report, &'static str)> {
        let fault = || io::Error::other("no");
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = LogFiles { directory: file.path().join("x"), max_bytes: 1, max_files: 1 };
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let served = MetricsServer::start(address, Metrics::new().unwrap());
        let path = || "/data/txpool.journal".into();
        let chain = || "sepolia".to_owned();
        let mut errors: Vec<(Report, &'static str)> = vec![
            (
                retrie_telemetry::init_logs(0, Some(files)).unwrap_err().into(),
                "--log.file.directory",
            ),
            (served.unwrap_err().into(), "--metrics"),
            (
                JournalError::Io { action: "opening", path: path(), source: fault() }.into(),
                "--txpool.disable-journal",
            ),
            (JournalError::Foreign { path: path() }.into(), "--txpool.journal"),
            (
                RpcError {
                    endpoint: "http://localhost".into(),
                    method: "eth_chainId",
                    block: None,
                    kind: Box::new(RpcErrorKind::WrongChain {
                        chain: chain(),
                        expected: 1,
                        got: 2,
                    }),
                }
                .into(),
                "--chain and --rpc",
            ),
        ];
        let last = Box::new(HttpFault::Broken("closed".into()));
        let fault = HttpFault::Exhausted { tries: 5, last };
        let broken = SourceError {
            file: "s3://bucket/1.json.gz".into(),
            place: SourcePlace::File,
            kind: Box::new(ObjectError::Broken { offset: 7, fault }.into()),
        };
        errors.push((PipelineError::from(broken).into(), "--retries"));
        let kinds = [
            DownloadErrorKind::NoMirror { chain: chain() },
            DownloadErrorKind::NoFiles { chain: chain() },
            DownloadErrorKind::Checksum { expected: HASH, got: HASH },
            DownloadErrorKind::Foreign { what: "its chain".into() },
        ];
        for kind in kinds {
            let error =
                DownloadError { url: "http://localhost".into(), file: None, kind: Box::new(kind) };
            errors.push((error.into(), "--mirror"));
        }
        errors
    }

    /// The library states the facts, which hold for any program; the flags come from here.
    #[test]
    fn every_error_that_a_flag_helps_against_names_it_here_alone() {
        let mut errors = of_servers();
        errors.extend(of_datadirs().into_iter().map(|(error, flag)| (error.into(), flag)));
        errors.extend(of_chains().into_iter().map(|(error, flag)| (error.into(), flag)));
        for (error, flag) in errors {
            let facts = format!("{error:#}");
            assert!(!facts.contains("--") && !facts.contains("`retrie "), "{facts}");
            let advice = for_error(&error).unwrap_or_else(|| panic!("no advice: {facts}"));
            assert!(advice.contains(flag), "`{flag}` is not in: {advice}");
        }
    }

    #[test]
    fn causes_are_found_however_they_are_wrapped() {
        let boxed = |error| Box::new(PipelineError::from(error));
        let store = |error: DbError| StateError::from(StoreError::new("opening a snapshot", error));
        let race = || BenchError::State { backend: "mpt".into(), source: beyond_retention() };
        let deep = EngineError::TooDeepReorg { number: 3, hash: HASH, source: beyond_retention() };
        let reports: [Report; 9] = [
            PipelineError::Commit { first: 1, last: 3, source: boxed(beyond_retention()) }.into(),
            PipelineError::Proof { source: Box::new(beyond_retention()) }.into(),
            EngineError::from(PipelineError::from(beyond_retention())).into(),
            EngineApiError::from(deep).into(),
            DevError::from(EngineError::from(PipelineError::from(beyond_retention()))).into(),
            race().into(),
            BenchError::DiskFull { folder: "/data".into(), source: Box::new(race()) }.into(),
            BenchError::from(MakeChainError::from(PipelineError::from(beyond_retention()))).into(),
            Err::<(), _>(beyond_retention()).wrap_err("unwinding").unwrap_err(),
        ];
        for (index, report) in reports.iter().enumerate() {
            let advice = for_error(report).unwrap_or_else(|| panic!("no advice: {report:#}"));
            // The advice about a full disk comes before the advice about the command that filled
            // it.
            let flag = if index == 6 { "--state-cache" } else { "--retention" };
            assert!(advice.contains(flag), "{report:#}: {advice}");
        }
        let found = DbError::NoDatadir { path: "/data".into() };
        let report = Report::new(PipelineError::from(store(found)));
        assert!(for_error(&report).unwrap().contains("`retrie init`"), "{report:#}");
        let setting = BenchError::Setting { setting: RaceSetting::Blocks, what: "none".into() };
        assert_eq!(for_error(&setting.into()).unwrap(), "change --blocks");
    }

    #[test]
    fn what_no_flag_helps_against_has_no_advice() {
        let newer = DbError::Schema {
            path: "/data".into(),
            found: 3,
            supported: 2,
            advice: "use a newer version of this program",
        };
        let refused = io::Error::from_raw_os_error(1);
        let system = DbError::System { path: "/data".into(), action: "x".into(), source: refused };
        let reports: [Report; 4] = [
            newer.into(),
            system.into(),
            PipelineError::from(StateError::Poisoned).into(),
            eyre::eyre!("--from 3 is after --to 2"),
        ];
        for report in reports {
            assert_eq!(for_error(&report), None, "{report:#}");
        }
    }
}
