//! Provenance queries on the key-value store: the values of a key over the latest blocks, with
//! proofs (COLE 8.2.5).
//!
//! ```text
//!  make the chain, prepare each       as in any race of clients                     (untimed)
//!  import                             all blocks, into one client after the other   (untimed)
//!  for each range                     A: query, verify; query, verify ...    B: ...
//! ```
//!
//! A query is about one random key of the base data and the latest `range` blocks. A backend with
//! [`ProvenanceQueries`](retrie_state::ProvenanceQueries) answers it with one proof. A backend that
//! can only prove the state of each old block makes a proof for every block of the range, as the
//! paper's MPT does. The lengths of these proofs are added as if they were sent one by one: a node
//! that several proofs share counts each time. The verified values must be the same for all
//! clients, block by block.

use super::{
    prepare::read_made,
    race::{ClientEntrant, ClientRace},
};
use crate::{
    BenchError, RaceSetting,
    chain::{CHAIN_FILE, GenesisBase, MakeChainError},
    error::{BackendErrorExt, ClientErrorExt},
    race::{RaceStep, RaceTerms, drop_pages, turn_order},
    random::SplitMix64,
    state::ProofFigures,
};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{ChainStore, ImportOptions, PipelineError, import, report::peak_rss_bytes};
use retrie_report::{BenchResult, LatencyPoint, latency::LatencyHistogram};
use retrie_sources::BlockSource;
use retrie_state::{
    AnyBackend, BlockRef, StateError, StateKey, StateProof, StateReader, StateValue, ValueVersion,
};
use retrie_state_store::{StateId, StateStore};
use retrie_telemetry::Metrics;
use serde_json::{Map, Value as Json, json};
use std::{
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// The queries of a race.
#[derive(Clone, Debug)]
pub struct QueryConfig {
    /// Numbers of blocks that queries reach back; one set of queries for each number.
    pub ranges: Vec<u64>,
    /// Number of queries per range.
    pub count: u64,
}

/// The cost of the queries of one range on one client.
#[derive(Clone, Debug)]
pub struct ProvenanceOutcome {
    /// Name of its backend.
    pub backend: String,
    /// Blocks of the range.
    pub range: u64,
    /// Times to prove and to verify, and lengths of proofs.
    pub proofs: ProofFigures,
    /// Times to prove and verify together.
    pub both: LatencyHistogram,
    /// Sum of these times.
    pub elapsed: Duration,
    /// Bytes of live pages and files of the state.
    pub disk_bytes: u64,
    hash: String,
}

/// How a backend answers a query.
#[derive(Clone, Copy)]
enum ProvenanceMethod {
    /// One proof for the whole range.
    Versions,
    /// One proof for each block of the range.
    BlockByBlock,
}

impl ProvenanceMethod {
    fn of(backend: &dyn AnyBackend) -> Option<Self> {
        if backend.extensions().provenance.is_some() {
            return Some(Self::Versions);
        }
        let can = backend.extensions().history.is_some() && backend.profile().proofs;
        can.then_some(Self::BlockByBlock)
    }
}

/// Whether `backend` can prove the values of keys over a range of old blocks.
pub fn can_prove_history(backend: &dyn AnyBackend) -> bool {
    ProvenanceMethod::of(backend).is_some()
}

/// The value of a key after each block of a range.
type BlockValues = Vec<Option<StateValue>>;

impl ClientRace<'_> {
    /// Imports the chain into every client, then runs the same queries on all clients. The
    /// workload's mix must have the key-value store. Results come range by range, in the order of
    /// the contenders.
    ///
    /// # Errors
    /// If the race cannot be run; [`BenchError::WrongProof`] if a proof is refused, or shows other
    /// values than the client has or another client shows; [`BenchError::Stopped`].
    pub fn provenance(
        &self,
        entrants: &[ClientEntrant],
        queries: &QueryConfig,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<ProvenanceOutcome>, BenchError> {
        self.workload.check()?;
        queries.check(self.workload.blocks)?;
        for ClientEntrant { name, backend } in entrants {
            if !can_prove_history(&**backend) {
                let what = format!("backend `{name}` cannot prove what keys were in old blocks");
                return Err(RaceSetting::Backends.refused(what));
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
        entrants: &[ClientEntrant],
        queries: &QueryConfig,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<ProvenanceOutcome>, BenchError> {
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
            progress(RaceStep::Racing { done: n, total });
            let asked = self.asked(queries, n);
            let mut answers: Vec<Option<ProvenanceOutcome>> =
                entrants.iter().map(|_| None).collect();
            let mut shown: Option<Vec<BlockValues>> = None;
            for lane in turn_order(chains.len(), n) {
                let (entrant, chain, disk_bytes) = &chains[lane];
                if self.terms.memory.cold {
                    drop_pages(folders[lane].path())?;
                }
                let mut lane_answers = ProvenanceOutcome {
                    backend: entrant.name.clone(),
                    range: *range,
                    proofs: ProofFigures::new(true),
                    both: LatencyHistogram::default(),
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

    /// Opens a client and imports all blocks.
    fn imported(
        &self,
        spec: &Arc<ChainSpec>,
        entrant: &ClientEntrant,
        folder: &Path,
        file: &Path,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<ChainStore, BenchError> {
        let name = &entrant.name;
        let options = self.options(spec, entrant, folder, self.terms.sync);
        let chain = ChainStore::open(options).of_client(name)?;
        let source = BlockSource::open(file).map_err(PipelineError::from).of_client(name)?;
        let metrics = Metrics::new().map_err(|error| BenchError::Workload {
            what: format!("metrics cannot be registered: {error}"),
        })?;
        let total = self.workload.warmup + self.workload.blocks;
        let options = ImportOptions::default();
        let every = 0..=u64::MAX;
        let imported =
            import(&chain, vec![source], every, options, &metrics, self.stop, &mut |report| {
                progress(RaceStep::Importing { backend: name, done: report.blocks, total });
            });
        imported.and_then(|outcome| outcome.end).of_client(name)?;
        match self.stop.load(Ordering::Relaxed) {
            true => Err(BenchError::Stopped),
            false => Ok(chain),
        }
    }

    /// The keys of the queries of range number `n`.
    fn asked(&self, queries: &QueryConfig, n: u64) -> Vec<StateKey> {
        let recipe = &self.workload.recipe;
        // A different sequence than the choices of the chain, which begin at the seed itself.
        let mut random = SplitMix64::new(recipe.seed ^ ((n + 1) << 32));
        (0..queries.count).map(|_| GenesisBase::store_slot(random.below(recipe.accounts))).collect()
    }

    /// Runs the queries for `keys`; returns the verified values.
    fn answer(
        &self,
        answers: &mut ProvenanceOutcome,
        store: &StateStore,
        keys: &[StateKey],
    ) -> Result<Vec<BlockValues>, BenchError> {
        let name = answers.backend.clone();
        let backend = store.backend();
        let tip = store.tip().map_or(0, |tip| tip.block.number);
        let blocks = tip + 1 - answers.range..=tip;
        let Some(way) = ProvenanceMethod::of(backend) else { return Ok(Vec::new()) };
        let latest = store.at(StateId::Tip).of_backend(&name)?;
        // The first query finds empty caches and is not measured.
        if let Some(key) = keys.first() {
            way.query(store, key, &blocks).of_backend(&name)?;
        }
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let start = Instant::now();
            let answered = way.query(store, key, &blocks).of_backend(&name)?;
            let made = start.elapsed();
            let values = way.verify(backend, key, &blocks, &answered.proofs);
            let both = start.elapsed();
            let wrong = || BenchError::WrongProof { backend: name.clone(), key: key.to_string() };
            let values =
                values.filter(|values| answered.says(values, &blocks)).ok_or_else(wrong)?;
            if values.last() != Some(&latest.get(key).of_backend(&name)?) {
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

impl QueryConfig {
    /// Checks whether the queries fit a chain of `blocks` blocks.
    fn check(&self, blocks: u64) -> Result<(), BenchError> {
        if self.count == 0 {
            return Err(RaceSetting::Queries.refused("there must be 1 query at least"));
        }
        match self.ranges.iter().find(|range| !(1..=blocks).contains(*range)) {
            Some(range) => Err(RaceSetting::Range(*range).refused(format!(
                "a range of {range} blocks does not lie within the {blocks} blocks of the chain"
            ))),
            None => Ok(()),
        }
    }
}

/// The answer of a node to a query.
struct ProvenanceAnswer {
    /// The versions beside the proof, if the method returns them.
    versions: Option<Vec<ValueVersion>>,
    proofs: Vec<StateProof>,
}

impl ProvenanceAnswer {
    fn bytes(&self) -> usize {
        self.proofs.iter().map(|proof| proof.bytes.len()).sum()
    }

    /// Whether the versions, if there are any, equal the values that the proof shows.
    fn says(&self, values: &BlockValues, blocks: &RangeInclusive<u64>) -> bool {
        self.versions.as_ref().is_none_or(|versions| by_block(versions, blocks) == *values)
    }
}

impl ProvenanceMethod {
    fn query(
        self,
        store: &StateStore,
        key: &StateKey,
        blocks: &RangeInclusive<u64>,
    ) -> Result<ProvenanceAnswer, StateError> {
        match self {
            Self::Versions => {
                let (mut versions, proof) = store
                    .at(StateId::Tip)
                    .and_then(|state| state.versions(&[*key], blocks.clone()))?;
                Ok(ProvenanceAnswer { versions: versions.pop(), proofs: vec![proof] })
            }
            Self::BlockByBlock => {
                // The block hash goes into the envelope of the proof only. The verifier checks the
                // root.
                let prove = |number| {
                    let block = BlockRef { number, ..BlockRef::default() };
                    store.history(block)?.prove(&[*key])
                };
                let proofs = blocks.clone().map(prove).collect::<Result<_, _>>()?;
                Ok(ProvenanceAnswer { versions: None, proofs })
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
    ) -> Option<BlockValues> {
        match self {
            Self::Versions => {
                let provenance = backend.extensions().provenance?;
                let [StateProof { root, bytes, .. }] = proofs else { return None };
                let shown =
                    provenance.verify_versions(*root, &[(*key).into()], blocks.clone(), bytes);
                Some(by_block(shown.ok()?.first()?, blocks))
            }
            Self::BlockByBlock => {
                let one = |StateProof { root, bytes, .. }: &StateProof| {
                    backend.verify(*root, &[(*key).into()], bytes).ok()?.pop()
                };
                proofs.iter().map(one).collect()
            }
        }
    }
}

/// The value after each of `blocks`, from versions that come newest first.
fn by_block(versions: &[ValueVersion], blocks: &RangeInclusive<u64>) -> BlockValues {
    let after = |block| versions.iter().find(|version| version.block <= block);
    blocks.clone().map(|block| after(block).and_then(|version| version.value.clone())).collect()
}

fn compare(
    name: &str,
    keys: &[StateKey],
    values: &[BlockValues],
    others: &[BlockValues],
) -> Result<(), BenchError> {
    let pairs = values.iter().zip(others);
    match keys.iter().zip(pairs).find(|(_, (a, b))| a != b) {
        None => Ok(()),
        Some((key, _)) => {
            Err(BenchError::WrongProof { backend: name.into(), key: key.to_string() })
        }
    }
}

impl ProvenanceOutcome {
    /// The figures as a result of `--json`. An operation is a query with its verification.
    pub fn result(&self, workload: &super::ClientWorkload, terms: &RaceTerms) -> BenchResult {
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

    fn params(&self, workload: &super::ClientWorkload, terms: &RaceTerms) -> Map<String, Json> {
        let mut params = workload.params();
        let accounts = params.remove("accounts");
        // Params of a race with slices do not apply.
        for name in ["slices", "blocks_per_slice", "commit_every", "warmup", "reads", "zipf"] {
            params.remove(name);
        }
        params.extend(terms.memory_params());
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
        let version = |block, value: Option<u8>| ValueVersion {
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
