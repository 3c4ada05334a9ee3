//! Advice for errors: which flags and commands of this program help.
//!
//! The libraries' errors state facts only, since a library does not know the program that uses it.
//! The advice for this command line stands here (in `lab` that for measurements), with four
//! exceptions, whose flags are defined elsewhere: the configuration of a race
//! (`commands::bench::advice`), what a node waits for ([`retrie_node`]), a backend's flags (its
//! descriptor), and the checks in the commands themselves.

#[cfg(feature = "lab")]
mod lab;

#[cfg(feature = "lab")]
use lab::about as of_lab;
use retrie_db::{DbError, MetadataError, OpenError, ReadError, StorageError};
use retrie_engine::{DevError, EngineApiError, EngineError, pool::JournalError};
use retrie_pipeline::{
    AnchorError, BlockRangeError, BundleError, ChainSetupError, MigrateError, PipelineError,
    PreimageError,
};
use retrie_sources::{
    DownloadError, HttpFault, ObjectError, RpcError, SourceError, SourceErrorKind,
    download::DownloadErrorKind, rpc::RpcErrorKind,
};
use retrie_state::StateError;
use retrie_state_sync::{StateSyncError, SyncTargetError};
use retrie_storage_pbt::migration::MigrationError;
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
        .or_else(|| typed::<OpenError>(error, datadir))
        .or_else(|| typed::<MetadataError>(error, metadata))
        .or_else(|| typed::<ReadError>(error, db_read))
        .or_else(|| typed::<StorageError>(error, storage))
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
        .or_else(|| typed::<MigrationError>(error, pbt_files))
        .or_else(|| of_lab(error))
}

/// Without the feature `lab` nothing is measured.
#[cfg(not(feature = "lab"))]
fn of_lab(_: &(dyn Error + 'static)) -> AdviceText {
    None
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
        PipelineError::Setup(error) => setup(error),
        PipelineError::Range(BlockRangeError::FilesEnd { .. }) => {
            say("name more files, or a lower block by --to")
        }
        PipelineError::Bundle(BundleError::Genesis) => say("begin with --from 1"),
        PipelineError::Check { .. } => say("--scratch names another folder"),
        PipelineError::Anchor(error) => anchor(error),
        PipelineError::Migrate(error) => migrate(error),
        PipelineError::Preimages(error) => preimages(error),
        PipelineError::State(error) => state(error),
        PipelineError::Db(error) => db(error),
        PipelineError::Rpc(error) => rpc(&error.kind),
        PipelineError::Source(error) => source(error),
        _ => None,
    }
}

fn setup(error: &ChainSetupError) -> AdviceText {
    match error {
        ChainSetupError::ForeignGenesis { .. } => say("check --chain"),
        ChainSetupError::OtherChain { .. } => say("pass the --chain it was made with"),
        ChainSetupError::NoHeaderRoot { .. } => {
            say("run --referee mpt beside it, or leave the roots unchecked (--state-root shadow)")
        }
        ChainSetupError::UncheckedRoots { .. } => say(
            "run both trees: --state-backend mpt --referee pbt, or --state-backend pbt --referee mpt; \
             an existing datadir gets the second one by `retrie db migrate --referee`",
        ),
        ChainSetupError::NoBinaryGenesis { .. } => {
            say("run --state-backend pbt, or --referee pbt beside it")
        }
        ChainSetupError::HashedBinaryTree { .. } => {
            say("make a new datadir with --state.keys plain (`retrie db migrate`)")
        }
        ChainSetupError::BinaryTreeTime { .. } => say(
            "give the genesis file with the time that the datadir was made for, or import the blocks \
             afresh into a new --datadir",
        ),
        ChainSetupError::PlainPreimages { .. } => {
            say("leave out --state.preimages, or make a new datadir with --state.keys hashed")
        }
        ChainSetupError::RefereeBehind { .. } => say("add --referee.join, or drop --referee"),
        ChainSetupError::RefereeJoining { .. } => say("wait until it has joined, and start again"),
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
            say("choose a --state-backend that can be (mpt, prefix, bavl, pbt), or load a dump \
                 (retrie init-state)")
        }
        StateSyncError::NoPeers { .. } => say(
            "name other nodes or mirrors (--sync.from, or peers by --trusted-peers), or a newer \
                 block that they still keep",
        ),
        _ => None,
    }
}

fn migrate(error: &MigrateError) -> AdviceText {
    match error {
        MigrateError::NoBodies { .. } | MigrateError::NoFirstState { .. } => {
            say("leave out --history")
        }
        MigrateError::NoPreimages { .. } => say(
            "import a preimage file of this state (retrie db preimages import), or execute the whole \
             chain again (--history)",
        ),
        _ => None,
    }
}

fn preimages(error: &PreimageError) -> AdviceText {
    match error {
        PreimageError::Missing { .. } => {
            say("import a preimage file of this state first (retrie db preimages import)")
        }
        PreimageError::Stopped => say("run the same command again"),
        _ => None,
    }
}

fn pbt_files(error: &MigrationError) -> AdviceText {
    match error {
        MigrationError::NotRlp { .. }
        | MigrationError::UnknownTag { .. }
        | MigrationError::TagOrder { .. }
        | MigrationError::NumberTooLong { .. }
        | MigrationError::ReservedZone { .. }
        | MigrationError::KeyLength { .. }
        | MigrationError::TrailingBytes { .. } => {
            say("check that --layout is that of the file, or get the file again")
        }
        MigrationError::Truncated { .. }
        | MigrationError::LeafCount { .. }
        | MigrationError::Digest { .. } => {
            say("check that --layout is that of the file, and get the file again")
        }
        MigrationError::StateRoot { .. } => {
            say("check the header of the block (--header, --state-root)")
        }
        MigrationError::EmptyAccount { .. } => say("--layout rlp can"),
        MigrationError::HashedKeys => {
            say("make a datadir with plain keys of it first (retrie db migrate --keys plain)")
        }
        MigrationError::MissingCode { .. } | MigrationError::SlotsWithoutAccount { .. } => DAMAGED,
        MigrationError::Stopped => say("run the same command again"),
        MigrationError::State(error) => state(error).or(say("--scratch names another folder")),
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

fn db(error: &DbError) -> AdviceText {
    match error {
        DbError::Open(error) => datadir(error),
        DbError::Metadata(error) => metadata(error),
        DbError::Corrupt(_) => DAMAGED,
        DbError::Storage(error) => storage(error),
        _ => None,
    }
}

fn db_read(error: &ReadError) -> AdviceText {
    match error {
        ReadError::Corrupt(_) => DAMAGED,
        ReadError::Storage(error) => storage(error),
        _ => None,
    }
}

const DAMAGED: AdviceText = say("`retrie db verify` shows what else is damaged");

fn datadir(error: &OpenError) -> AdviceText {
    match error {
        OpenError::NoDatadir { .. } => {
            say("create one with `retrie init`, or pass another --datadir")
        }
        OpenError::Exists { .. } | OpenError::NotADatabase { .. } => {
            say("choose another --datadir")
        }
        OpenError::InUse { .. } => say("stop it first, or choose another --datadir"),
        OpenError::Unfinished { .. } => say("`retrie db migrate` goes on with it"),
        _ => None,
    }
}

fn storage(error: &StorageError) -> AdviceText {
    /// EIO, a device that cannot read or write. The number is the same on every Unix.
    const DEVICE_FAULT: i32 = 5;
    match error {
        StorageError::System { source, .. } if source.raw_os_error() == Some(DEVICE_FAULT) => {
            say("then `retrie db verify` shows what is damaged")
        }
        _ => None,
    }
}

fn metadata(error: &MetadataError) -> AdviceText {
    match error {
        MetadataError::NotInitialised { .. } => say("run `retrie init` or `retrie import` on it"),
        MetadataError::Schema { found, supported, .. } if found < supported => FRESH,
        MetadataError::BackendFormat { found, expected, .. } if found < expected => FRESH,
        MetadataError::ChainMismatch { .. } => {
            say("leave out --chain or pass the one it was made with, or choose another --datadir")
        }
        MetadataError::UnknownChain { .. } => say(
            "pass --chain with the genesis file it was made with (an import or a node keeps it from \
             then on)",
        ),
        MetadataError::BackendMismatch { found, .. } => {
            let advice = format!(
                "leave out --state-backend or pass --state-backend {found}, or choose another --datadir"
            );
            Some(advice.into())
        }
        MetadataError::BackendParameters { .. } => {
            say("start with those it was made with, or choose another --datadir")
        }
        MetadataError::StateRootMismatch { found, .. } => {
            Some(format!("pass --state-root {found}, or choose another --datadir").into())
        }
        MetadataError::RetentionMismatch { found, .. } => Some(
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use eyre::{Report, WrapErr};
    use retrie_db::CorruptRow;
    use retrie_pipeline::{MissingPreimages, RootKind};
    use retrie_sources::{EraFormat, SourcePlace};
    use retrie_state::{BlockRef, StoreError};
    use retrie_telemetry::{LogFiles, Metrics, MetricsServer};
    use std::{io, net::TcpListener};

    const HASH: B256 = B256::ZERO;

    fn missing() -> MissingPreimages {
        MissingPreimages { accounts: 1, slots: 2 }
    }

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
            (
                OpenError::NoDatadir { path: path() }.into(),
                "`retrie init`, or pass another --datadir",
            ),
            (OpenError::Exists { path: path() }.into(), "another --datadir"),
            (
                OpenError::InUse { path: path(), holder: "process 7".into() }.into(),
                "another --datadir",
            ),
            (OpenError::NotADatabase { path: path(), what: what() }.into(), "another --datadir"),
            (OpenError::Unfinished { path: path(), what: what() }.into(), "`retrie db migrate`"),
            (CorruptRow { table: table(), key: key(), what: what() }.into(), "`retrie db verify`"),
            (MetadataError::NotInitialised { path: path() }.into(), "`retrie import`"),
            (
                MetadataError::Schema {
                    path: path(),
                    found: 1,
                    supported: 2,
                    advice: "import again",
                }
                .into(),
                "another --datadir",
            ),
            (
                MetadataError::BackendFormat {
                    path: path(),
                    backend: version,
                    found: 1,
                    expected: 2,
                    advice: "import again",
                }
                .into(),
                "another --datadir",
            ),
            (
                MetadataError::ChainMismatch {
                    path: path(),
                    found_id: 1,
                    found_genesis: HASH,
                    expected_id: 5,
                    expected_genesis: HASH,
                }
                .into(),
                "leave out --chain",
            ),
            (
                MetadataError::UnknownChain { path: path(), id: 7, genesis: HASH }.into(),
                "pass --chain",
            ),
            (
                MetadataError::BackendMismatch {
                    path: path(),
                    found: found(),
                    expected: expected(),
                }
                .into(),
                "--state-backend raw",
            ),
            (
                MetadataError::BackendParameters {
                    path: path(),
                    backend: found(),
                    what: "parameters",
                    found: found(),
                    expected: expected(),
                }
                .into(),
                "another --datadir",
            ),
            (
                MetadataError::StateRootMismatch {
                    path: path(),
                    found: "shadow".into(),
                    expected: "header".into(),
                }
                .into(),
                "--state-root shadow",
            ),
            (
                MetadataError::RetentionMismatch { path: path(), found: 3, expected: 9 }.into(),
                "pass --retention 3 or leave it out",
            ),
            (
                StorageError::System { path: path(), action: "reading".into(), source: device }
                    .into(),
                "`retrie db verify`",
            ),
        ]
    }

    fn of_chains() -> Vec<(PipelineError, &'static str)> {
        let chain = || "mainnet".to_owned();
        let source = || Box::new(StateError::Poisoned);
        vec![
            (
                ChainSetupError::ForeignGenesis { got: HASH, expected: HASH, chain: chain() }
                    .into(),
                "--chain",
            ),
            (
                ChainSetupError::OtherChain { found: HASH, chain: chain(), expected: HASH }.into(),
                "--chain",
            ),
            (BlockRangeError::FilesEnd { last: 3, to: 9 }.into(), "--to"),
            (BundleError::Genesis.into(), "--from 1"),
            (ChainSetupError::NoHeaderRoot { backend: "raw" }.into(), "--referee mpt"),
            (
                ChainSetupError::UncheckedRoots {
                    chain: chain(),
                    time: 7,
                    kind: RootKind::Binary,
                    own: "mpt",
                    is_shadow: false,
                    referee: None,
                }
                .into(),
                "--referee pbt",
            ),
            (
                ChainSetupError::NoBinaryGenesis { chain: chain(), own: "raw", referee: None }
                    .into(),
                "--state-backend pbt",
            ),
            (ChainSetupError::HashedBinaryTree { backend: "pbt" }.into(), "--state.keys plain"),
            (
                ChainSetupError::BinaryTreeTime {
                    datadir: "/data".into(),
                    kept: Some(7),
                    given: None,
                    tip: BlockRef::new(1, HASH),
                    tip_time: 8,
                }
                .into(),
                "the time that the datadir was made for",
            ),
            (
                ChainSetupError::RefereeBehind { referee: "none".into(), backend: "#3".into() }
                    .into(),
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
            (
                MigrateError::NoPreimages { block: BlockRef::default(), missing: missing() }.into(),
                "(--history)",
            ),
            (
                PreimageError::Missing { block: BlockRef::default(), missing: missing() }.into(),
                "preimages import",
            ),
            (PreimageError::Stopped.into(), "again"),
            (ChainSetupError::PlainPreimages { datadir: "d".into() }.into(), "--state.keys hashed"),
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
                retrie_telemetry::init_logs(0, Some(files), None).unwrap_err().into(),
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
            DownloadErrorKind::NoMirror { format: EraFormat::Era1, chain: chain() },
            DownloadErrorKind::NoFiles { format: EraFormat::Ere, chain: chain() },
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
        let deep = EngineError::TooDeepReorg { number: 3, hash: HASH, source: beyond_retention() };
        let reports: [Report; 6] = [
            PipelineError::Commit { first: 1, last: 3, source: boxed(beyond_retention()) }.into(),
            PipelineError::from(BundleError::Proof { source: Box::new(beyond_retention()) }).into(),
            EngineError::from(PipelineError::from(beyond_retention())).into(),
            EngineApiError::from(deep).into(),
            DevError::from(EngineError::from(PipelineError::from(beyond_retention()))).into(),
            Err::<(), _>(beyond_retention()).wrap_err("unwinding").unwrap_err(),
        ];
        for report in reports {
            let advice = for_error(&report).unwrap_or_else(|| panic!("no advice: {report:#}"));
            assert!(advice.contains("--retention"), "{report:#}: {advice}");
        }
        let found = OpenError::NoDatadir { path: "/data".into() };
        let report = Report::new(PipelineError::from(store(found.into())));
        assert!(for_error(&report).unwrap().contains("`retrie init`"), "{report:#}");
    }

    #[test]
    fn what_no_flag_helps_against_has_no_advice() {
        let newer = MetadataError::Schema {
            path: "/data".into(),
            found: 3,
            supported: 2,
            advice: "use a newer version of this program",
        };
        let refused = io::Error::from_raw_os_error(1);
        let system =
            StorageError::System { path: "/data".into(), action: "x".into(), source: refused };
        let reports: [Report; 4] = [
            DbError::from(newer).into(),
            DbError::from(system).into(),
            PipelineError::from(StateError::Poisoned).into(),
            eyre::eyre!("--from 3 is after --to 2"),
        ];
        for report in reports {
            assert_eq!(for_error(&report), None, "{report:#}");
        }
    }
}
