//! `kill -9` at random moments of imports and unwinds, many times: after every kill the datadir
//! verifies, and at the end it equals one of an import without kills.
//!
//! The test run has a few kills for each backend; `scripts/soak/kill-loop` runs hundreds.
//! Environment: `RETRIE_KILLS` (total kills), `RETRIE_KILL_BACKENDS` (comma-separated; `raw+mpt` is
//! raw with the referee mpt, `raw:hashed` raw with hashed keys and their preimages), `RETRIE_KILL_SEED`, `RETRIE_KILL_BLOCKS` (real blocks), `RETRIE_BIN`
//! (the program).

use crate::common::{
    mainnet, mainnet_blocks, program, retrie, signal, small_flags, succeeds, test_chain, words,
};
use retrie_pipeline::testkit::{TestRules, write_blocks};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// SplitMix64, a small deterministic random number generator.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let Ok(value) = std::env::var(name) else { return default };
    value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))
}

/// The contents of a datadir, independent of the way they were written.
#[derive(Debug, PartialEq)]
struct DatadirContents {
    block: Value,
    root: Value,
    live_keys: Value,
    first_retained: Value,
    rows: BTreeMap<String, u64>,
}

/// At the end of a backend's name: with hashed keys.
const HASHED: &str = ":hashed";

/// One chain, one backend, one datadir.
struct KillLoop {
    folder: PathBuf,
    seed: u64,
    random: SplitMix64,
    /// Flags of the chain and the backend.
    chain: Vec<String>,
    backend: Vec<String>,
    /// Block files, which follow the other arguments of `import`.
    files: Vec<String>,
    /// Whether the files hold one chain without branches. A reorg reverts the chain in one commit
    /// and extends it in the next, so a kill in between leaves a lower head.
    straight: bool,
    step: u32,
    kills: u32,
    doing: String,
}

impl Drop for KillLoop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { folder, seed, step, doing, kills, .. } = self;
            eprintln!("seed {seed}, step {step} after {kills} kills: {doing}");
            eprintln!("kept: {}", folder.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl KillLoop {
    fn new(seed: u64, backend: &str, chain: Vec<String>, files: Vec<String>) -> Self {
        let folder = tempfile::Builder::new().prefix("kill-loop-").tempdir().unwrap().keep();
        let (name, referee) = backend.split_once('+').unwrap_or((backend, ""));
        let (name, is_hashed) = match name.strip_suffix(HASHED) {
            Some(name) => (name, true),
            None => (name, false),
        };
        let mut args = vec!["--state-backend".to_owned(), name.to_owned()];
        if !referee.is_empty() {
            args.extend(["--referee".to_owned(), referee.to_owned()]);
        }
        args.extend(small_flags(name));
        if is_hashed {
            args.extend(["--state.keys", "hashed", "--state.preimages"].map(str::to_owned));
        }
        let (random, doing) = (SplitMix64(seed), String::new());
        let backend = args;
        let straight = chain.iter().any(|arg| arg == "mainnet");
        Self { folder, seed, random, chain, backend, files, straight, step: 0, kills: 0, doing }
    }

    fn command(&self, line: &str, data: &str) -> Command {
        let mut command = retrie(words(line));
        command.arg("--datadir").arg(self.folder.join(data)).args(&self.chain);
        command
    }

    fn import(&self, data: &str) -> Command {
        let mut command = self.command("import", data);
        command.args(&self.backend).args(&self.files);
        command
    }

    fn stats(&self, data: &str) -> Value {
        serde_json::from_str(&succeeds(&mut self.command("db stats --json -", data))).unwrap()
    }

    /// Number of the head, and how many blocks can be unwound; `None` while there is no datadir.
    fn head(&self, data: &str) -> Option<(u64, u64)> {
        let output = self.command("db stats --quiet --json -", data).output().unwrap();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            let young = ["there is no database", "not initialised", "it has no table"];
            assert!(young.iter().any(|what| stderr.contains(what)), "{stderr}");
            return None;
        }
        let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
        let head = stats["state"]["block"].as_u64()?;
        Some((head, stats["state"]["first_retained"].as_u64().unwrap_or(head)))
    }

    fn logical(&self, data: &str) -> DatadirContents {
        // `init` opens the datadir to write and folds all pending rows.
        let mut init = self.command("init", data);
        succeeds(init.args(&self.backend));
        let mut stats = self.stats(data);
        let tables = stats["tables"].as_array().unwrap().iter();
        let rows = |table: &Value| {
            (table["name"].as_str().unwrap().to_owned(), table["rows"].as_u64().unwrap())
        };
        let rows = tables.map(rows).collect();
        let mut take = |name: &str| stats["state"][name].take();
        DatadirContents {
            block: take("block"),
            root: take("root"),
            live_keys: take("live_keys"),
            first_retained: take("first_retained"),
            rows,
        }
    }

    fn verify(&self, data: &str) {
        let output = self.command("db verify", data).output().unwrap();
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(output.status.code(), Some(0), "db verify: {out}{err}");
        assert!(out.contains("nothing is wrong"), "{out}");
    }

    /// Starts a command, kills it after a while, and returns whether it was still running.
    fn killed(&mut self, mut command: Command, after: Duration) -> bool {
        let fold_bytes = [1 << 10, 1 << 14, 1 << 18, 64 << 20][self.random.below(4) as usize];
        let sync = ["durable", "none"][self.random.below(2) as usize];
        command.args(["--db.sync-mode", sync]).env("RETRIE_FOLD_BYTES", fold_bytes.to_string());
        self.doing = format!("{command:?} (RETRIE_FOLD_BYTES={fold_bytes}) killed after {after:?}");
        let log = self.folder.join("last.log");
        let stderr = std::fs::File::create(&log).unwrap();
        let mut child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        std::thread::sleep(after);
        if child.try_wait().unwrap().is_none() {
            signal(&child, "KILL");
        }
        let status = child.wait().unwrap();
        if status.signal() == Some(9) {
            return true;
        }
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(status.code(), Some(0), "{}\n{said}", self.doing);
        assert!(!said.contains("panicked"), "{said}");
        false
    }

    fn run(&mut self, kills: u32) {
        self.doing = "the import without a kill".into();
        let begin = Instant::now();
        succeeds(&mut self.import("whole"));
        let took = begin.elapsed();
        self.verify("whole");
        let expected = self.logical("whole");
        let end = expected.block.as_u64().unwrap();
        while self.kills < kills {
            self.step += 1;
            let before = self.head("data");
            let (command, within, floor) = match before {
                // At the end, and sometimes before: unwind some blocks, at most 64.
                Some((head, first))
                    if head == end || (head > first && self.random.below(5) == 0) =>
                {
                    let back = 1 + self.random.below((head - first).min(64));
                    let to = head.saturating_sub(back).max(first);
                    let command = self.command(&format!("stage unwind --to {to}"), "data");
                    // Short, so that the kill falls into opening, reverting or folding.
                    (command, (took / 8).max(Duration::from_millis(60)), Some(to))
                }
                _ => {
                    let floor = before.filter(|_| self.straight).map(|(head, _)| head);
                    (self.import("data"), took, floor)
                }
            };
            let after = within.mul_f64(self.random.below(1 << 20) as f64 / f64::from(1 << 20));
            let was_killed = self.killed(command, after);
            self.kills += u32::from(was_killed);
            match self.head("data") {
                Some((head, _)) => {
                    assert!(floor.is_none_or(|floor| head >= floor), "blocks are lost: {head}");
                    self.verify("data");
                }
                None => assert!(before.is_none(), "the datadir is gone"),
            }
            // Start again from genesis once all blocks are imported and an unwind was tried.
            if self.random.below(12) == 0 && self.kills < kills {
                self.doing = "starting afresh".into();
                let _ = std::fs::remove_dir_all(self.folder.join("data"));
            }
        }
        self.doing = "the last import".into();
        succeeds(&mut self.import("data"));
        self.verify("data");
        assert_eq!(self.logical("data"), expected);
        self.verify("data");
        println!(
            "{} {}: {} kills in {} steps, seed {}: same end at block {end}",
            self.backend.join(" "),
            self.chain.get(1).map_or("", |chain| chain.rsplit('/').next().unwrap_or("")),
            self.kills,
            self.step,
            self.seed
        );
    }
}

/// Every backend alone, and with a referee if it lacks Ethereum's roots. In a test run each backend
/// runs once in one of the loops, here `refereed` or there alone, and with plain keys in the one and
/// hashed ones in the other; with `RETRIE_KILLS` all variants run in both loops.
fn backends(refereed: bool) -> Vec<String> {
    let names = setting("RETRIE_KILL_BACKENDS", String::new());
    if !names.is_empty() {
        return names.split(',').map(str::to_owned).collect();
    }
    let is_long = setting("RETRIE_KILLS", 0u32) > 0;
    let setups = retrie_backends::all().enumerate().flat_map(|(n, backend)| {
        let can = !backend.profile().ethereum_root;
        let alone = is_long || !refereed || !can;
        let beside = can && (is_long || refereed);
        let forms = ["", HASHED].into_iter().enumerate();
        let forms =
            forms.filter(move |(form, _)| is_long || (n + form) % 2 == usize::from(refereed));
        let forms = forms.filter(move |_| is_long || n / 2 % 2 == usize::from(refereed));
        forms.flat_map(move |(_, form)| {
            let name = format!("{}{form}", backend.name);
            [alone.then(|| name.clone()), beside.then(|| format!("{name}+mpt"))]
        })
    });
    setups.flatten().collect()
}

/// Kills of each loop, over all backends: on real blocks and on generated ones.
fn kills(default: u32) -> u32 {
    let all: u32 = setting("RETRIE_KILLS", 0);
    if all == 0 { default } else { all.div_ceil(2 * backends(true).len() as u32) }
}

#[test]
fn killed_imports_of_real_blocks_end_as_if_nothing_had_happened() {
    let Some(mainnet) = mainnet() else { return };
    println!("{}", program().display());
    let to: u64 = setting("RETRIE_KILL_BLOCKS", 250);
    for (n, backend) in backends(true).iter().enumerate() {
        let seed = setting("RETRIE_KILL_SEED", 1_u64) + n as u64;
        let mut files = vec!["--to".to_owned(), to.to_string()];
        let count = if to <= 8191 { 1 } else { 3 };
        let paths = mainnet_blocks(&mainnet).into_iter().take(count);
        files.extend(paths.map(|path| path.into_os_string().into_string().unwrap()));
        let chain = vec!["--chain".to_owned(), "mainnet".to_owned()];
        KillLoop::new(seed, backend, chain, files).run(kills(1));
    }
}

/// With one root for a batch of blocks, where the backend supports it: a batch is there as a whole
/// or not at all.
#[test]
fn killed_imports_in_batches_end_as_if_nothing_had_happened() {
    let Some(mainnet) = mainnet() else { return };
    let to: u64 = setting("RETRIE_KILL_BLOCKS", 900);
    let names = setting("RETRIE_KILL_BACKENDS", "mpt,raw+mpt".to_owned());
    for (n, backend) in names.split(',').enumerate() {
        let seed = setting("RETRIE_KILL_SEED", 1_u64) + 2000 + n as u64;
        let paths = mainnet_blocks(&mainnet).into_iter().take(if to <= 8191 { 1 } else { 3 });
        let options = ["--check-roots", "batch", "--to"].map(str::to_owned);
        let mut files = [&options[..], &[to.to_string()]].concat();
        files.extend(paths.map(|path| path.into_os_string().into_string().unwrap()));
        let chain = vec!["--chain".to_owned(), "mainnet".to_owned()];
        KillLoop::new(seed, backend, chain, files).run(kills(2));
    }
}

/// Two branches that overtake each other, so that some kills fall into a reorg.
#[test]
fn killed_reorgs_end_as_if_nothing_had_happened() {
    let rules = [TestRules::Byzantium, TestRules::Frontier].into_iter().cycle();
    for (n, (backend, rules)) in backends(false).iter().zip(rules).enumerate() {
        let mut chain = test_chain(rules);
        let genesis = chain.genesis();
        let trunk = *chain.branch(genesis, 20, 12, 0).last().unwrap();
        let [mut left, mut right] = [trunk, trunk];
        let mut blocks = chain.path(genesis, trunk);
        for round in 0..10 {
            // Each time three blocks more than the other branch.
            let count = if round == 0 { 2 } else { 4 };
            let left_tip = *chain.branch(left, count, 12, 1).last().unwrap();
            let right_tip = *chain.branch(right, 4, 12, 2).last().unwrap();
            blocks.extend(chain.path(left, left_tip));
            blocks.extend(chain.path(right, right_tip));
            (left, right) = (left_tip, right_tip);
        }
        let dir = tempfile::tempdir().unwrap();
        let genesis = dir.path().join("genesis.json");
        std::fs::write(&genesis, &chain.genesis_json).unwrap();
        let file = dir.path().join("chain.rlp");
        write_blocks(&file, &blocks);
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        let seed = setting("RETRIE_KILL_SEED", 1_u64) + 1000 + n as u64;
        let chain = vec!["--chain".to_owned(), text(genesis)];
        KillLoop::new(seed, backend, chain, vec![text(file)]).run(kills(2));
    }
}
