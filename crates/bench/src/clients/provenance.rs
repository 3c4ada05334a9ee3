//! What keys of the key-value store were over the latest blocks, with proofs (COLE 8.2.5).
//!
//! ```text
//!  make the chain, lay down each      as in any race of clients                     (untimed)
//!  import                             all blocks, into one client after the other   (untimed)
//!  for each range                     A: query, verify; query, verify ...    B: ...
//! ```
//!
//! A query is about one random key of the base data and the latest `range` blocks. A backend with
//! [`Provenance`](retrie_state::Provenance) answers it at once; one that can only prove the state of
//! each old block makes a proof for every block of the range, as the paper's MPT does. Their lengths
//! are added up as they would be sent one by one: nodes that several of them share count each time.
//! What a verifier accepts must be the same for all clients, block by block.

use super::{
    prepare::read_made,
    race::{ClientRace, Entrant, Progress},
};
use crate::{
    BenchError, Setting,
    chain::{Base, CHAIN_FILE, MakeChainError},
    error::{Of, OfClient},
    latency::Latency,
    random::Random,
    report::{BenchResult, LatencyPoint},
    state::{ProofFigures, Terms, turn_order},
};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{Chain, ImportOptions, PipelineError, import, report::peak_rss_bytes};
use retrie_sources::BlockSource;
use retrie_state::{
    AnyBackend, At, BlockRef, StateError, StateKey, StateProof, StateReader, StateStore, Value,
    Version,
};
use retrie_telemetry::Metrics;
use serde_json::{Map, Value as Json, json};
use std::{
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Queries {
    /// How many blocks each query reaches back; one set of queries for each number.
    pub ranges: Vec<u64>,
    /// Queries of a range.
    pub count: u64,
}

/// What the queries of one range cost one client.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Name of its backend.
    pub backend: String,
    /// Blocks of the range.
    pub range: u64,
    /// Times to answer and to verify, and lengths of proofs.
    pub proofs: ProofFigures,
    /// Answering and verifying together.
    pub both: Latency,
    /// All of it.
    pub elapsed: Duration,
    /// Bytes of live pages and files of the state.
    pub disk_bytes: u64,
    hash: String,
}

/// How a backend answers.
#[derive(Clone, Copy)]
enum Way {
    /// One query, one proof.
    Versions,
    /// A proof for each block.
    BlockByBlock,
}

impl Way {
    fn of(backend: &dyn AnyBackend) -> Option<Self> {
        if backend.provenance().is_some() {
            return Some(Self::Versions);
        }
        let can = backend.history().is_some() && backend.capabilities().proofs;
        can.then_some(Self::BlockByBlock)
    }
}

/// Whether `backend` can prove what keys were over a range of old blocks.
pub fn proves_the_past(backend: &dyn AnyBackend) -> bool {
    Way::of(backend).is_some()
}

/// A value for each block of a range.
type Values = Vec<Option<Value>>;

impl ClientRace<'_> {
    /// Imports the chain into every client, then asks all the same queries. The workload's recipe is
    /// one of the key-value store. Results come range by range, in the order of the entrants.
    ///
    /// # Errors
    /// When it cannot be run; [`BenchError::WrongProof`] when a proof is refused, or does not show
    /// what the client has or another one shows; [`BenchError::Stopped`].
    pub fn provenance(
        &self,
        entrants: &[Entrant],
        queries: &Queries,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Answers>, BenchError> {
        self.workload.check()?;
        queries.check(self.workload.blocks)?;
        for Entrant { name, backend } in entrants {
            if !proves_the_past(&**backend) {
                let what = format!("backend `{name}` cannot prove what keys were in old blocks");
                return Err(Setting::Backends.refused(what));
            }
        }
        let raced = self.ask(entrants, queries, progress);
        let temp = std::env::temp_dir();
        raced.map_err(|error| match error {
            BenchError::MakeChain(MakeChainError::Stopped { .. }) => BenchError::Stopped,
            error => error.on_disk(self.cache.folder().unwrap_or(&temp)),
        })
    }

    fn ask(
        &self,
        entrants: &[Entrant],
        queries: &Queries,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Answers>, BenchError> {
        let base = self.workload.base()?;
        let blocks = self.make_chain(&base, progress)?;
        let made = read_made(blocks.path())?;
        let spec = Arc::new(base.spec().with_genesis_state_root(made.genesis_root));
        let folders = self.lay_down(&base, &spec, entrants, progress)?;
        drop(base);
        let mut chains = Vec::new();
        for (entrant, folder) in entrants.iter().zip(&folders) {
            let file = blocks.path().join(CHAIN_FILE);
            let chain = self.imported(&spec, entrant, folder.path(), &file, progress)?;
            let disk_bytes = chain.state_bytes().of_client(&entrant.name)?;
            chains.push((entrant, chain, disk_bytes));
        }
        let mut all = Vec::new();
        let total = queries.ranges.len() as u64;
        for (range, n) in queries.ranges.iter().zip(0..) {
            progress(Progress::Racing { done: n, total });
            let asked = self.asked(queries, n);
            let mut answers: Vec<Option<Answers>> = entrants.iter().map(|_| None).collect();
            let mut shown: Option<Vec<Values>> = None;
            for lane in turn_order(chains.len(), n) {
                let (entrant, chain, disk_bytes) = &chains[lane];
                let mut lane_answers = Answers {
                    backend: entrant.name.clone(),
                    range: *range,
                    proofs: ProofFigures::new(true),
                    both: Latency::default(),
                    elapsed: Duration::ZERO,
                    disk_bytes: *disk_bytes,
                    hash: entrant.backend.identity().hash.name().into(),
                };
                let values = self.answer(&mut lane_answers, chain.state(), &asked)?;
                match &shown {
                    None => shown = Some(values),
                    Some(shown) => compare(&entrant.name, &asked, &values, shown)?,
                }
                answers[lane] = Some(lane_answers);
            }
            all.extend(answers.into_iter().flatten());
        }
        Ok(all)
    }

    /// A client with all blocks.
    fn imported(
        &self,
        spec: &Arc<ChainSpec>,
        entrant: &Entrant,
        folder: &Path,
        file: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Chain, BenchError> {
        let name = &entrant.name;
        let options = self.options(spec, entrant, folder, self.terms.sync);
        let chain = Chain::open(options).of_client(name)?;
        let source = BlockSource::open(file).map_err(PipelineError::from).of_client(name)?;
        let metrics = Metrics::new().map_err(|error| BenchError::Workload {
            what: format!("metrics cannot be registered: {error}"),
        })?;
        let total = self.workload.warmup + self.workload.blocks;
        let options = ImportOptions::default();
        let every = 0..=u64::MAX;
        let imported =
            import(&chain, vec![source], every, options, &metrics, self.stop, &mut |report| {
                progress(Progress::Importing { backend: name, done: report.blocks, total });
            });
        imported.and_then(|outcome| outcome.end).of_client(name)?;
        match self.stop.load(Ordering::Relaxed) {
            true => Err(BenchError::Stopped),
            false => Ok(chain),
        }
    }

    /// The keys of the queries of range number `n`.
    fn asked(&self, queries: &Queries, n: u64) -> Vec<StateKey> {
        let recipe = &self.workload.recipe;
        // Beside the choices of the chain, which begin at the seed itself.
        let mut random = Random::new(recipe.seed ^ ((n + 1) << 32));
        (0..queries.count).map(|_| Base::store_slot(random.below(recipe.accounts))).collect()
    }

    /// Asks for `keys`; returns what the verifier has accepted.
    fn answer(
        &self,
        answers: &mut Answers,
        store: &StateStore,
        keys: &[StateKey],
    ) -> Result<Vec<Values>, BenchError> {
        let name = answers.backend.clone();
        let backend = store.backend();
        let tip = store.tip().map_or(0, |tip| tip.block.number);
        let blocks = tip + 1 - answers.range..=tip;
        let Some(way) = Way::of(backend) else { return Ok(Vec::new()) };
        let latest = store.at(At::Tip).of(&name)?;
        // The first one finds caches empty, and is not what is measured.
        if let Some(key) = keys.first() {
            way.query(store, key, &blocks).of(&name)?;
        }
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let start = Instant::now();
            let answered = way.query(store, key, &blocks).of(&name)?;
            let made = start.elapsed();
            let values = way.verify(backend, key, &blocks, &answered.proofs);
            let both = start.elapsed();
            let wrong = || BenchError::WrongProof { backend: name.clone(), key: key.to_string() };
            let values =
                values.filter(|values| answered.says(values, &blocks)).ok_or_else(wrong)?;
            if values.last() != Some(&latest.get(key).of(&name)?) {
                return Err(wrong());
            }
            answers.proofs.add(made, both - made, answered.bytes());
            answers.both.record(both);
            answers.elapsed += both;
            all.push(values);
        }
        Ok(all)
    }
}

impl Queries {
    /// Whether they can be asked of a chain of so many blocks.
    fn check(&self, blocks: u64) -> Result<(), BenchError> {
        if self.count == 0 {
            return Err(Setting::Queries.refused("there must be 1 query at least"));
        }
        match self.ranges.iter().find(|range| !(1..=blocks).contains(*range)) {
            Some(range) => Err(Setting::Range(*range).refused(format!(
                "a range of {range} blocks does not lie within the {blocks} blocks of the chain"
            ))),
            None => Ok(()),
        }
    }
}

/// What a node sends.
struct Answered {
    /// The versions that it names beside the proof, if it does.
    versions: Option<Vec<Version>>,
    proofs: Vec<StateProof>,
}

impl Answered {
    fn bytes(&self) -> usize {
        self.proofs.iter().map(|proof| proof.bytes.len()).sum()
    }

    /// Whether the versions it names, if any, are what the proof shows.
    fn says(&self, values: &Values, blocks: &RangeInclusive<u64>) -> bool {
        self.versions.as_ref().is_none_or(|versions| by_block(versions, blocks) == *values)
    }
}

impl Way {
    fn query(
        self,
        store: &StateStore,
        key: &StateKey,
        blocks: &RangeInclusive<u64>,
    ) -> Result<Answered, StateError> {
        match self {
            Self::Versions => {
                let (mut versions, proof) =
                    store.at(At::Tip).and_then(|state| state.versions(&[*key], blocks.clone()))?;
                Ok(Answered { versions: versions.pop(), proofs: vec![proof] })
            }
            Self::BlockByBlock => {
                // The hash goes into the envelope alone; what is verified is the root.
                let prove = |number| {
                    let block = BlockRef { number, ..BlockRef::default() };
                    store.history(block)?.prove(&[*key])
                };
                let proofs = blocks.clone().map(prove).collect::<Result<_, _>>()?;
                Ok(Answered { versions: None, proofs })
            }
        }
    }

    /// The value after each block; `None` if a proof is refused.
    fn verify(
        self,
        backend: &dyn AnyBackend,
        key: &StateKey,
        blocks: &RangeInclusive<u64>,
        proofs: &[StateProof],
    ) -> Option<Values> {
        match self {
            Self::Versions => {
                let provenance = backend.provenance()?;
                let [StateProof { root, bytes, .. }] = proofs else { return None };
                let shown = provenance.verify_versions(*root, &[*key], blocks.clone(), bytes);
                Some(by_block(shown.ok()?.first()?, blocks))
            }
            Self::BlockByBlock => {
                let one = |StateProof { root, bytes, .. }: &StateProof| {
                    backend.verify(*root, &[*key], bytes).ok()?.pop()
                };
                proofs.iter().map(one).collect()
            }
        }
    }
}

/// The value after each of `blocks`, of versions that come newest first.
fn by_block(versions: &[Version], blocks: &RangeInclusive<u64>) -> Values {
    let after = |block| versions.iter().find(|version| version.block <= block);
    blocks.clone().map(|block| after(block).and_then(|version| version.value.clone())).collect()
}

fn compare(
    name: &str,
    keys: &[StateKey],
    values: &[Values],
    others: &[Values],
) -> Result<(), BenchError> {
    let pairs = values.iter().zip(others);
    match keys.iter().zip(pairs).find(|(_, (a, b))| a != b) {
        None => Ok(()),
        Some((key, _)) => {
            Err(BenchError::WrongProof { backend: name.into(), key: key.to_string() })
        }
    }
}

impl Answers {
    /// As a result of `--json`: an operation is a query with its verification.
    pub fn result(&self, workload: &super::Workload, terms: &Terms) -> BenchResult {
        let seconds = self.elapsed.as_secs_f64();
        let count = self.both.count();
        BenchResult {
            backend: self.backend.clone(),
            workload: workload.name.into(),
            params: self.params(workload, terms),
            ops: count,
            seconds,
            ops_per_s: if seconds > 0.0 { count as f64 / seconds } else { 0.0 },
            p50_us: Some(self.both.micros(0.5)),
            p99_us: Some(self.both.micros(0.99)),
            p999_us: Some(self.both.micros(0.999)),
            max_us: Some(self.both.max_micros()),
            disk_bytes: self.disk_bytes,
            peak_rss_bytes: peak_rss_bytes(),
            latency: LatencyPoint::of(&self.both),
            proofs: vec![self.proofs.result()],
            ..BenchResult::default()
        }
    }

    fn params(&self, workload: &super::Workload, terms: &Terms) -> Map<String, Json> {
        let mut params = workload.params();
        let accounts = params.remove("accounts");
        // Nothing of a race by turns.
        for name in ["slices", "blocks_per_slice", "commit_every", "warmup", "reads", "zipf"] {
            params.remove(name);
        }
        params.extend([
            ("states".to_owned(), json!(accounts)),
            ("range".to_owned(), json!(self.range)),
            ("queries".to_owned(), json!(self.both.count())),
            ("hash".to_owned(), json!(self.hash)),
            ("retention".to_owned(), json!(terms.retention)),
        ]);
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_holds_until_the_next_one() {
        let version = |block, value: Option<u8>| Version {
            block,
            value: value.map(|byte| vec![byte].into()),
        };
        let versions = [version(7, Some(3)), version(5, None), version(2, Some(1))];
        let values = |blocks| -> Vec<Option<u8>> {
            let values = by_block(&versions, &blocks);
            values.iter().map(|value| value.as_ref().map(|bytes| bytes[0])).collect()
        };
        assert_eq!(values(4..=8), [Some(1), None, None, Some(3), Some(3)]);
        assert_eq!(values(0..=2), [None, None, Some(1)]);
    }
}
