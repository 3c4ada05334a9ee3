//! Small races of whole clients: every workload to its end, also on the mainnet contracts.

use retrie_bench::{
    BenchError, RaceSetting,
    cache::StateCache,
    chain::{
        BlockFill, CHAIN_FILE, ChainFork, ChainMaker, ChainRecipe, ContractSet, GenesisPreload,
        KeyChoice, TransactionMix, write_chain,
    },
    clients::{
        BlockDelivery, ClientEntrant, ClientFigures, ClientRace, ClientWorkload, RealBlockSet,
        RealRace, SenderRecovery,
    },
    memory::MemoryCap,
    race::{MemoryTerms, RaceResult, RaceStep, RaceTerms},
    state::{BlockCorpus, TraceError},
};
use retrie_chainspec::parse_chain;
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{ChainOptions, ChainStore, ImportOptions, import, replay::StatePadding};
use retrie_sources::BlockSource;
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_raw::Raw;
use retrie_telemetry::Metrics;
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const TERMS: RaceTerms = RaceTerms {
    sync: SyncMode::NoSync,
    cache_bytes: 64 << 20,
    retention: 16,
    read_threads: 16,
    memory: MemoryTerms::FREE,
};

fn workload(name: &'static str, mix: TransactionMix, contracts: ContractSet) -> ClientWorkload {
    let preload = GenesisPreload { senders: 20, contracts: contracts.into(), empty_ledgers: false };
    ClientWorkload {
        name,
        recipe: ChainRecipe {
            fork: ChainFork::Prague,
            seed: 3,
            fill: BlockFill::Transactions(15),
            mix,
            accounts: 200,
            keys: KeyChoice { reads: 50, inserts: 0, zipf: None },
            preload: Some(preload),
        },
        blocks: 10,
        warmup: 3,
        slices: 4,
        commit_every: None,
        via: BlockDelivery::Import,
    }
}

fn transfers() -> ClientWorkload {
    workload(
        "transfers",
        TransactionMix { transfers: 1, ..TransactionMix::NOTHING },
        ContractSet::own(),
    )
}

fn entrants() -> Vec<ClientEntrant> {
    let backends: [Arc<dyn AnyBackend>; 3] =
        [Arc::new(Raw), Arc::new(Mpt::default()), Arc::new(MptArchive::new(TrieHash::Keccak256))];
    let entrant = |backend: Arc<dyn AnyBackend>| {
        let name = backend.identity().name.into();
        ClientEntrant { name, backend }
    };
    backends.map(entrant).into()
}

fn race(
    workload: &ClientWorkload,
    senders: SenderRecovery,
    cache: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(RaceStep<'_>),
) -> Result<RaceResult<ClientFigures>, BenchError> {
    ClientRace {
        workload,
        senders,
        terms: &TERMS,
        root_maker: Arc::new(Mpt::default()),
        cache: &StateCache::at(cache.to_owned()),
        memory_limit: None,
        stop,
    }
    .run(&entrants(), progress)
}

/// The same, with memory capped.
fn capped(
    workload: &ClientWorkload,
    limit: u64,
    cache: &Path,
) -> Result<RaceResult<ClientFigures>, BenchError> {
    ClientRace {
        workload,
        senders: SenderRecovery::Recovered,
        terms: &TERMS,
        root_maker: Arc::new(Mpt::default()),
        cache: &StateCache::at(cache.to_owned()),
        memory_limit: Some(limit),
        stop: &AtomicBool::new(false),
    }
    .run(&entrants(), &mut |_| {})
}

fn run(
    workload: &ClientWorkload,
    senders: SenderRecovery,
    cache: &Path,
) -> RaceResult<ClientFigures> {
    race(workload, senders, cache, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// The data folder; `None`, with a message, if it is missing.
fn data() -> Option<PathBuf> {
    retrie_state_testkit::data::find("")
}

/// Figures that hold for every race.
fn check(workload: &ClientWorkload, raced: &RaceResult<ClientFigures>) {
    assert!(raced.ended.is_ok() && raced.outcomes.len() == 3);
    for outcome in &raced.outcomes {
        let result = outcome.result(workload, &TERMS);
        assert_eq!((result.ops, result.workload.as_str()), (150, workload.name));
        assert!(result.tps.unwrap() > 0.0 && result.sustained_ops_per_s.unwrap() > 0.0);
        assert_eq!(outcome.latency().count(), 10);
        let ops: Vec<_> = result.slices.iter().map(|slice| slice.ops).collect();
        // Ten blocks of fifteen in four slices.
        assert_eq!(ops, [30, 75, 105, 150]);
        assert!(result.slices.iter().all(|slice| slice.disk_bytes.unwrap() > 0));
        let parts = result.breakdown.unwrap();
        let sum = parts.execution + parts.authentication + parts.storage_io + parts.other;
        assert!((sum - result.seconds).abs() < 0.05 * result.seconds, "{parts:?} {result:?}");
        assert!(parts.execution > 0.0 && result.disk_bytes > 0);
        assert!(result.reads_per_op.unwrap() > 0.0 && result.writes_per_op.unwrap() >= 1.0);
        assert!(!result.tables.unwrap().is_empty() && result.latency.len() == 9);
    }
    // All have executed the same.
    let keys: Vec<_> = raced.outcomes.iter().map(|outcome| outcome.keys()).collect();
    assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
    assert!(keys[0].0 > 150);
    // A trie writes nodes beside values.
    let writes = |n: usize| raced.outcomes[n].per_write(|counts| counts.writes).unwrap();
    assert!(writes(1) > writes(0) && writes(2) > writes(0));
}

#[test]
fn live_nodes_take_the_same_blocks_one_by_one() {
    let home = tempfile::tempdir().unwrap();
    let mix = TransactionMix { transfers: 1, erc20: 1, swaps: 1, ..TransactionMix::NOTHING };
    let mut workload = workload("new-payload", mix, ContractSet::own());
    (workload.via, workload.commit_every) = (BlockDelivery::EngineApi, Some(1));
    let raced = run(&workload, SenderRecovery::Unrecovered, home.path());
    check(&workload, &raced);
    let [raw, mpt, _] = &raced.outcomes[..] else { panic!("{raced:?}") };
    let ratio = mpt.latency_ratio_to(raw);
    assert!(ratio.median > 0.0 && ratio.lower <= ratio.median && ratio.median <= ratio.upper);
    // What makes a block durable is on the clock of the turn, not in the payload's latency.
    assert!(raw.latency().max_micros() < raw.slices().as_micros() as u64);
    workload.commit_every = None;
    let error = workload.check().unwrap_err();
    assert!(
        matches!(error, BenchError::Setting { setting: RaceSetting::CommitEvery, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("Engine API"), "{error}");
}

/// Every client checks the gas limit of each header against its parent's.
#[test]
fn live_nodes_take_blocks_beyond_mainnets_gas_limit() {
    let home = tempfile::tempdir().unwrap();
    let mix = TransactionMix { transfers: 1, ..TransactionMix::NOTHING };
    let mut workload = workload("new-payload", mix, ContractSet::own());
    workload.recipe.fill = BlockFill::Gas(32_000_000);
    (workload.blocks, workload.warmup, workload.slices) = (2, 0, 1);
    (workload.via, workload.commit_every) = (BlockDelivery::EngineApi, Some(1));
    let raced = run(&workload, SenderRecovery::Unrecovered, home.path());
    assert!(raced.ended.is_ok());
    for outcome in &raced.outcomes {
        assert_eq!(outcome.ops(), 2 * (32_000_000 / 21_000));
        assert_eq!(outcome.result(&workload, &TERMS).params["gas"], 32_000_000);
    }
}

/// A corpus of a few real blocks, of before and after the merge; `None` if there are no data.
fn corpus(home: &Path) -> Option<BlockCorpus> {
    let prestate = home.join("prestate");
    std::fs::create_dir_all(&prestate).unwrap();
    let data = data()?.join("mainnet/prestate");
    // Frontier, Paris and Cancun.
    for number in [46_147, 15_537_394, 19_426_587] {
        let name = format!("{number}.json.gz");
        std::fs::copy(data.join(&name), prestate.join(&name)).unwrap();
    }
    Some(BlockCorpus::at(home.to_owned()))
}

#[test]
fn real_blocks_come_one_by_one_on_a_padded_state_and_leave_nothing() {
    let home = tempfile::tempdir().unwrap();
    let Some(corpus) = corpus(home.path()) else { return };
    let blocks = RealBlockSet::load(&corpus, StatePadding { accounts: 500, slots: 200 }).unwrap();
    assert_eq!((blocks.len(), blocks.payloads()), (3, 2));
    let (cache, stop) = (StateCache::at(home.path().join("cache")), AtomicBool::new(false));
    let race = |terms: &RaceTerms, slices: u64| {
        let (blocks, cache, stop) = (&blocks, &cache, &stop);
        let race = RealRace { blocks, slices, warmup: 1, terms, cache, memory_limit: None, stop };
        race.run(&entrants(), &mut |_| {}).map(|raced| (race.results(&raced), raced))
    };
    let (results, raced) = race(&TERMS, 2).unwrap();
    assert!(raced.ended.is_ok() && results.len() == 3);
    for (result, outcome) in results.iter().zip(&raced.outcomes) {
        assert_eq!((result.workload.as_str(), result.ops), ("new-payload", 2 * blocks.txs()));
        assert_eq!((outcome.latency().count(), result.slices.len()), (6, 2));
        let parts = result.breakdown.unwrap();
        let sum = parts.execution + parts.authentication + parts.storage_io + parts.other;
        assert!((sum - result.seconds).abs() < 0.05 * result.seconds, "{parts:?} {result:?}");
        assert!(parts.execution > 0.0 && parts.storage_io > 0.0);
        assert!(result.writes_per_op.unwrap() >= 1.0 && result.reads_per_op.unwrap() > 0.0);
        assert_eq!(
            (&result.params["chain"], &result.params["blocks"]),
            (&"mainnet".into(), &6.into())
        );
        // What makes a block durable is on the clock of the turn, not in the payload's latency.
        assert!(outcome.latency().max_micros() < outcome.slices().as_micros() as u64);
    }
    // Each pass does the same work: the changes of a block are reverted before the next one.
    let keys: Vec<_> = raced.outcomes.iter().map(|outcome| outcome.keys()).collect();
    assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
    let (_, once) = race(&TERMS, 1).unwrap();
    let (reads, writes) = once.outcomes[0].keys();
    assert_eq!(keys[0], (2 * reads, 2 * writes));
    // Without undo nothing can be reverted.
    let forgetful = RaceTerms { retention: 1, ..TERMS };
    for (terms, slices, setting) in
        [(&forgetful, 1, RaceSetting::Retention), (&TERMS, 0, RaceSetting::Slices)]
    {
        let error = race(terms, slices).unwrap_err();
        assert!(matches!(error, BenchError::Setting { setting: wrong, .. } if wrong == setting));
    }
    stop.store(true, Ordering::Relaxed);
    let (_, stopped) = race(&TERMS, 1).unwrap();
    assert!(stopped.ended.is_err() && stopped.outcomes.is_empty());
}

#[test]
fn missing_or_damaged_real_blocks_are_named() {
    let home = tempfile::tempdir().unwrap();
    let load =
        |at: &Path| RealBlockSet::load(&BlockCorpus::at(at.to_owned()), StatePadding::default());
    let missing = load(&home.path().join("nowhere")).unwrap_err();
    assert!(matches!(missing, TraceError::NoData { missing: "prestate", .. }), "{missing}");
    let prestate = home.path().join("prestate");
    std::fs::create_dir(&prestate).unwrap();
    std::fs::write(prestate.join("46147.json.gz"), "no gzip").unwrap();
    assert!(load(home.path()).unwrap_err().to_string().contains("46147"));
}

#[test]
fn every_workload_runs_to_its_end() {
    let home = tempfile::tempdir().unwrap();
    let nothing = TransactionMix::NOTHING;
    let mixes = [
        ("transfers", TransactionMix { transfers: 1, ..nothing }, SenderRecovery::Recovered),
        ("erc20", TransactionMix { erc20: 1, ..nothing }, SenderRecovery::Unrecovered),
        ("uniswap", TransactionMix { swaps: 1, ..nothing }, SenderRecovery::Recovered),
        ("smallbank", TransactionMix { smallbank: 1, ..nothing }, SenderRecovery::Unrecovered),
        ("kvstore", TransactionMix { kvstore: 1, ..nothing }, SenderRecovery::Recovered),
    ];
    for (n, (name, mix, senders)) in mixes.into_iter().enumerate() {
        let mut workload = workload(name, mix, ContractSet::own());
        workload.commit_every = [None, Some(1), Some(2)][n % 3];
        let raced = run(&workload, senders, home.path());
        check(&workload, &raced);
        let params = raced.outcomes[0].result(&workload, &TERMS).params;
        assert_eq!(params["senders"], senders.to_string());
        assert_eq!(params.contains_key("contracts"), name == "erc20" || name == "uniswap");
    }
}

/// As in the COLE authors' program: one caller, and calls fill ledgers that are empty at first.
#[test]
fn ledgers_may_be_empty_at_first() {
    let home = tempfile::tempdir().unwrap();
    for (name, mix) in [
        ("smallbank", TransactionMix { smallbank: 1, ..TransactionMix::NOTHING }),
        ("kvstore", TransactionMix { kvstore: 1, ..TransactionMix::NOTHING }),
    ] {
        let filled = workload(name, mix, ContractSet::own());
        let mut empty = filled.clone();
        empty.recipe.keys.inserts = 50;
        if let Some(preload) = &mut empty.recipe.preload {
            (preload.empty_ledgers, preload.senders) = (true, 1);
        }
        let [filled, empty] = [filled, empty].map(|workload| {
            let raced = run(&workload, SenderRecovery::Recovered, home.path());
            check(&workload, &raced);
            raced.outcomes[0].result(&workload, &TERMS)
        });
        assert_eq!(
            (empty.params["fresh"].as_bool(), &empty.params["inserts"]),
            (Some(true), &50.into())
        );
        assert!(!filled.params.contains_key("fresh") && !filled.params.contains_key("inserts"));
        assert!(empty.disk_bytes < filled.disk_bytes, "{name}: {}", empty.disk_bytes);
    }
}

#[test]
fn real_contracts_run_to_their_end() {
    let Some(data) = data() else { return };
    let home = tempfile::tempdir().unwrap();
    let both = [
        ("erc20", TransactionMix { erc20: 1, ..TransactionMix::NOTHING }),
        ("uniswap", TransactionMix { swaps: 1, ..TransactionMix::NOTHING }),
    ];
    for (name, mix) in both {
        let workload = workload(name, mix, ContractSet::mainnet(&data).unwrap());
        check(&workload, &run(&workload, SenderRecovery::Unrecovered, home.path()));
    }
    let missing = ContractSet::mainnet(home.path()).unwrap_err().to_string();
    assert!(missing.contains("RETRIE_DATA") && missing.contains("runtime.json.gz"), "{missing}");
}

#[test]
fn blocks_and_states_are_kept_between_runs() {
    let home = tempfile::tempdir().unwrap();
    let workload = transfers();
    let untimed = |senders| {
        let mut steps = 0;
        let raced = race(&workload, senders, home.path(), &AtomicBool::new(false), &mut |step| {
            let is_untimed = matches!(step, RaceStep::Loading { .. } | RaceStep::Making { .. });
            steps += u32::from(is_untimed);
        });
        check(&workload, &raced.unwrap());
        steps
    };
    assert!(untimed(SenderRecovery::Recovered) > 10);
    assert_eq!(untimed(SenderRecovery::Unrecovered), 0);
}

/// These states have gigabytes. If the process is killed, the next one must find and remove them.
#[test]
fn states_of_blocks_being_made_are_kept_in_the_cache() {
    let home = tempfile::tempdir().unwrap();
    let runs = || {
        let runs = std::fs::read_dir(home.path().join("runs")).unwrap();
        runs.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let mut made = Vec::new();
    let raced = race(
        &transfers(),
        SenderRecovery::Recovered,
        home.path(),
        &AtomicBool::new(false),
        &mut |step| {
            if matches!(step, RaceStep::Making { .. }) {
                made = runs();
                assert!(made.iter().any(|folder| folder.join("state").exists()));
            }
        },
    );
    check(&transfers(), &raced.unwrap());
    assert_eq!((made.len(), runs().len()), (2, 0));
}

#[test]
fn stopped_race_gives_the_slices_that_all_have_run() {
    let home = tempfile::tempdir().unwrap();
    let workload = transfers();
    for (stop_at, slices) in [(2, 2), (0, 0)] {
        let stop = AtomicBool::new(false);
        let raced = race(&workload, SenderRecovery::Recovered, home.path(), &stop, &mut |step| {
            let RaceStep::Racing { done, .. } = step else { return };
            stop.fetch_or(done == stop_at, Ordering::Relaxed);
        });
        let raced = raced.unwrap();
        assert!(raced.ended.is_err());
        assert_eq!(raced.outcomes.len(), if slices == 0 { 0 } else { 3 });
        for outcome in &raced.outcomes {
            let result = outcome.result(&workload, &TERMS);
            assert_eq!((outcome.slices_done(), result.ops), (slices, 75));
            assert!(result.tps.unwrap() > 0.0 && result.disk_bytes > 0);
        }
    }
    // A stop before the first state keeps nothing.
    let (home, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(true));
    let raced =
        race(&workload, SenderRecovery::Recovered, home.path(), &stop, &mut |_| {}).unwrap();
    assert!(raced.ended.is_err() && raced.outcomes.is_empty());
    assert_eq!(std::fs::read_dir(home.path().join("runs")).unwrap().count(), 0);
    assert!(!home.path().join("states").exists());
}

#[test]
fn workload_that_cannot_be_run_is_refused() {
    let good = transfers;
    let no_preload = ChainRecipe { preload: None, ..good().recipe };
    for (wrong, says) in [
        (ClientWorkload { blocks: 0, ..good() }, Some(RaceSetting::Blocks)),
        (ClientWorkload { slices: 0, ..good() }, Some(RaceSetting::Slices)),
        (ClientWorkload { slices: 11, ..good() }, Some(RaceSetting::Slices)),
        (ClientWorkload { commit_every: Some(0), ..good() }, Some(RaceSetting::CommitEvery)),
        (ClientWorkload { recipe: no_preload, ..good() }, None),
    ] {
        let error = wrong.check().unwrap_err();
        let found = match &error {
            BenchError::Setting { setting, .. } => Some(*setting),
            _ => None,
        };
        assert_eq!(found, says, "{error}");
        assert!(found.is_some() || error.to_string().contains("preload"), "{error}");
        // A library does not know the flag.
        assert!(!error.to_string().contains("--"), "{error}");
    }
}

/// The files of `make-chain` hold the same blocks as the race, and import on every backend.
#[test]
fn preloaded_chain_imports_from_its_files() {
    let home = tempfile::tempdir().unwrap();
    let mix = TransactionMix { transfers: 1, erc20: 1, swaps: 1, smallbank: 1, kvstore: 1 };
    let workload = workload("all", mix, ContractSet::own());
    check_raced_blocks(&workload, home.path());
}

fn check_raced_blocks(workload: &ClientWorkload, home: &Path) {
    let raced = run(workload, SenderRecovery::Recovered, &home.join("cache"));
    check(workload, &raced);
    let mut maker = ChainMaker::new(workload.recipe.clone(), Arc::new(Mpt::default())).unwrap();
    let (run, made) = (AtomicBool::new(false), home.join("made"));
    let chain = write_chain(&mut maker, 13, &made, &run, &mut |_| {}).unwrap();
    let states = std::fs::read_dir(home.join("cache/states")).unwrap();
    let raced = states
        .map(|state| state.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("blocks-"));
    let bytes = |path: PathBuf| std::fs::read(path).unwrap();
    assert_eq!(bytes(raced.unwrap().join(CHAIN_FILE)), bytes(made.join(CHAIN_FILE)));

    for (backend, root_mode) in [
        (Arc::new(Mpt::default()) as Arc<dyn AnyBackend>, StateRootMode::Header),
        (Arc::new(Raw), StateRootMode::Shadow),
    ] {
        let datadir = home.join(backend.identity().name);
        let opened = ChainStore::open(ChainOptions {
            spec: parse_chain(made.join("genesis.json").to_str().unwrap()).unwrap(),
            backend,
            referee: None,
            root_mode,
            datadir,
            db: OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() },
            store: StoreOptions::default(),
        })
        .unwrap();
        let sources = vec![BlockSource::open(made.join(CHAIN_FILE)).unwrap()];
        let metrics = Metrics::new().unwrap();
        let options = ImportOptions::default();
        let outcome =
            import(&opened, sources, 0..=u64::MAX, options, &metrics, &run, &mut |_| {}).unwrap();
        outcome.end.unwrap();
        assert_eq!((outcome.report.blocks, outcome.report.tip.hash), (13, chain.head));
    }
}

#[test]
fn memory_is_capped_while_clients_race_and_too_small_a_cap_refused() {
    let (cache, workload) = (tempfile::tempdir().unwrap(), transfers());
    // Rows and caches of three clients: checked before anything is made.
    let error = capped(&workload, 256 << 20, cache.path()).unwrap_err().to_string();
    assert!(error.contains("a memory limit of 256 MiB is too small"), "{error}");
    assert_eq!(cache.path().read_dir().unwrap().count(), 0);
    if let Some(why) = MemoryCap::why_no_cgroup() {
        // A balloon would take memory from all processes of the machine. The message goes to stderr
        // directly, because the harness hides the output of passing tests.
        writeln!(std::io::stderr(), "skipped: no cgroup of memory can be made here: {why}")
            .unwrap();
        return;
    }
    let raced = capped(&workload, 4 << 30, cache.path()).unwrap();
    check(&workload, &raced);
    for outcome in &raced.outcomes {
        let params = outcome.result(&workload, &TERMS).params;
        assert_eq!(
            (&params["memory_limit_mb"], &params["memory_limit_by"]),
            (&4096.into(), &"cgroup".into())
        );
        assert_eq!(params["memory_limit_shared_by"], 3);
    }
}
