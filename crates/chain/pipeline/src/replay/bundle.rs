//! Replay of bundles on one backend.

use super::{
    codes::settle_code,
    effects::effects,
    pad::synthetic_hash,
    witness::{BlockNeeds, BlockWitness},
};
use crate::{
    BundleError, ImportTimes, PipelineError,
    recover::recover_senders,
    report::{
        BundleOutcome, IoAmplification, PartFigures, ReplayResult, TimeBreakdown, peak_rss_bytes,
    },
};
use alloy_consensus::{TxReceipt, proofs::calculate_receipt_root};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, RecoveredBlock},
};
use retrie_execution::{
    AccessRecorder, CodeCache, ExecutionInput, ExecutionOutcome, execute_block,
    execute_block_with_observer, executed_code, load_trusted_setup,
};
use retrie_sources::{Bundle, BundleKind, PreState, WitnessBundle};
use retrie_state::{
    Account, BlockRef, DeltaBuilder, PartialState, PartialTree, StateDelta, StateKey, StateReader,
    StateValue, encode_slot,
};
use retrie_state_store::{CounterSnapshot, KvStore, StateId, StateStore};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Options of a replay of bundles.
pub struct BundleReplayOptions<'a> {
    /// Rules of the chain.
    pub spec: Arc<ChainSpec>,
    /// A backend that opens witnesses, to find the pre-state of a bundle that lists none.
    pub witness_opener: Option<&'a dyn PartialState>,
    /// Whether to prove what each block reads, untimed.
    pub witnesses: bool,
}

impl std::fmt::Debug for BundleReplayOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleReplayOptions").field("chain", &self.spec.name()).finish()
    }
}

/// Replays bundles on one store and sums up what they cost.
pub struct BundleReplay<'a> {
    pub(super) options: &'a BundleReplayOptions<'a>,
    pub(super) store: &'a StateStore,
    kv: &'a dyn KvStore,
    pub(super) base: BlockRef,
    codes: CodeCache,
    breakdown: TimeBreakdown,
    outcomes: Vec<BundleOutcome>,
    /// Blocks that could not be executed, and the errors.
    failed: Vec<(u64, String)>,
    total: Duration,
    key_reads: u64,
    key_writes: u64,
    counts: CounterSnapshot,
    root: B256,
}

impl std::fmt::Debug for BundleReplay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleReplay").field("store", &self.store).finish_non_exhaustive()
    }
}

/// The outcome of a bundle that was replayed as a payload ([`BundleReplay::run_live`]).
#[derive(Clone, Copy, Debug)]
pub struct LiveBundle<'a> {
    /// Its checks. Its seconds include the commit.
    pub outcome: &'a BundleOutcome,
    /// Time until the block was known to be valid.
    pub latency: Duration,
}

/// What a replay has counted so far.
#[derive(Clone, Debug, Default)]
pub struct ReplayFigures {
    /// The timed seconds by kind of work. Sender recovery counts as execution, reads of the EVM as
    /// authentication.
    pub times: ImportTimes,
    /// Keys read by the EVM.
    pub key_reads: u64,
    /// Keys changed.
    pub key_writes: u64,
    /// Work at the node interface.
    pub counts: CounterSnapshot,
}

/// Codes and ancestor hashes for the block of a bundle.
pub(super) struct BundleContext {
    pub(super) codes: HashMap<B256, Bytes>,
    pub(super) hashes: HashMap<u64, B256>,
}

impl BundleContext {
    pub(super) fn of(bundle: &Bundle) -> Self {
        Self {
            codes: bundle.codes().into_iter().collect(),
            hashes: bundle.ancestor_hashes().into_iter().collect(),
        }
    }
}

impl<'a> BundleReplay<'a> {
    /// A replay on `store`, which is empty or holds a base state. `kv` is the key-value store below
    /// it.
    ///
    /// # Errors
    /// If the base state of an empty store cannot be written.
    pub fn new(
        options: &'a BundleReplayOptions<'a>,
        store: &'a StateStore,
        kv: &'a dyn KvStore,
    ) -> Result<Self, PipelineError> {
        let base = match store.tip() {
            Some(tip) => tip.block,
            None => {
                let block = BlockRef::new(0, synthetic_hash("base", 0));
                let mut txn = kv.begin_write()?;
                let (_, after) = store.bulk_load(block, &mut std::iter::empty(), &mut *txn)?;
                txn.commit()?;
                after.run()?;
                block
            }
        };
        Ok(Self {
            options,
            store,
            kv,
            base,
            codes: CodeCache::default(),
            breakdown: TimeBreakdown::default(),
            outcomes: Vec::new(),
            failed: Vec::new(),
            total: Duration::ZERO,
            key_reads: 0,
            key_writes: 0,
            counts: Default::default(),
            root: store.root(StateId::Tip)?,
        })
    }

    /// Replays one bundle.
    ///
    /// # Errors
    /// If the bundle cannot be executed at all; the error names file and block. After
    /// [`count_failed`](Self::count_failed) the replay can continue. Failed checks are no errors:
    /// they are in the outcome.
    pub fn run(&mut self, bundle: &Bundle) -> Result<&BundleOutcome, PipelineError> {
        self.prepare_for(bundle);
        let outcome = self.run_bundle(bundle).map_err(|error| error.in_bundle(bundle))?;
        self.outcomes.push(outcome);
        Ok(&self.outcomes[self.outcomes.len() - 1])
    }

    /// Counts block `number` as failed, because its bundle could not be read or executed, and
    /// reverts what it has left, so that the next bundle finds the base state.
    ///
    /// # Errors
    /// If the revert fails: then the store has failed.
    pub fn count_failed(
        &mut self,
        number: u64,
        error: &PipelineError,
    ) -> Result<(), PipelineError> {
        if self.store.tip().is_some_and(|tip| tip.block.number > self.base.number) {
            self.revert_to_base()?;
        }
        self.failed.push((number, error.to_string()));
        Ok(())
    }

    pub(super) fn revert_to_base(&self) -> Result<(), PipelineError> {
        let mut txn = self.kv.begin_write()?;
        let after = self.store.revert(self.base.number, &mut *txn)?;
        txn.commit()?;
        Ok(after.run()?)
    }

    /// Replays one bundle as a node handles a payload: `receive` returns the block with its
    /// senders, from whatever form it came in; then the block is executed, proposed and checked,
    /// and only then committed. On every backend the pre-state is written as a plain state. Writing
    /// it and reverting the block are not timed.
    ///
    /// # Errors
    /// Errors of [`run`](Self::run), and of `receive`.
    pub fn run_live(
        &mut self,
        bundle: &Bundle,
        receive: impl FnOnce() -> Result<RecoveredBlock, PipelineError>,
    ) -> Result<LiveBundle<'_>, PipelineError> {
        self.prepare_for(bundle);
        let ran = self.run_on_store(bundle, &BundleContext::of(bundle), receive, true);
        let (outcome, latency) = ran.map_err(|error| error.in_bundle(bundle))?;
        self.outcomes.push(outcome);
        Ok(LiveBundle { outcome: &self.outcomes[self.outcomes.len() - 1], latency })
    }

    /// Loads, untimed, the trusted setup for which the first block with blobs would otherwise wait.
    pub(super) fn prepare_for(&self, bundle: &Bundle) {
        if self.options.spec.is_cancun_active_at_timestamp(bundle.block.header.timestamp) {
            load_trusted_setup();
        }
    }

    /// The figures so far.
    pub fn figures(&self) -> ReplayFigures {
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
        ReplayFigures {
            times: ImportTimes {
                execution: seconds(self.breakdown.execution),
                authentication: seconds(self.breakdown.authentication),
                commit_wait: seconds(self.breakdown.storage_io),
                ..ImportTimes::default()
            },
            key_reads: self.key_reads,
            key_writes: self.key_writes,
            counts: self.counts.clone(),
        }
    }

    fn run_bundle(&mut self, bundle: &Bundle) -> Result<BundleOutcome, PipelineError> {
        let surroundings = BundleContext::of(bundle);
        let partial = self.store.backend().extensions().partial_state;
        match (&bundle.kind, partial) {
            (BundleKind::Witness(witness), Some(opener)) if !self.options.witnesses => {
                self.run_on_witness(bundle, witness, opener, &surroundings)
            }
            _ => {
                let options = self.options;
                let receive = || Ok(recover_senders(&options.spec, bundle.block.clone())?);
                Ok(self.run_on_store(bundle, &surroundings, receive, false)?.0)
            }
        }
    }

    /// The result of all bundles so far.
    pub fn result(mut self, disk_bytes: u64) -> ReplayResult {
        let seconds = self.total.as_secs_f64();
        self.breakdown.attribute_reads(self.counts.read_time);
        self.breakdown.set_other(seconds);
        let sum = |field: fn(&BundleOutcome) -> u64| self.outcomes.iter().map(field).sum::<u64>();
        let (txs, gas) = (sum(|o| o.txs), sum(|o| o.gas));
        let rate = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let failed = self.outcomes.iter().filter(|o| !o.ok()).map(|o| (o.number, o.failure()));
        let mut failed: Vec<_> = failed.chain(self.failed).collect();
        // The sort is stable: the checks of a block come first.
        failed.sort_by_key(|(number, _)| *number);
        let (failed_blocks, failures): (Vec<_>, Vec<_>) = failed.into_iter().unzip();
        ReplayResult {
            backend: self.store.identity().name.into(),
            chain: self.options.spec.name().into(),
            from: self.outcomes.iter().map(|o| o.number).min().unwrap_or(0),
            to: self.outcomes.iter().map(|o| o.number).max().unwrap_or(0),
            blocks: self.outcomes.len() as u64,
            txs,
            gas,
            seconds,
            tps: rate(txs as f64),
            mgas_per_s: rate(gas as f64 / 1e6),
            ok: failures.is_empty(),
            failures,
            root: self.root,
            breakdown: self.breakdown,
            amplification: IoAmplification::new(&self.counts, self.key_reads, self.key_writes),
            disk_bytes,
            peak_rss_bytes: peak_rss_bytes(),
            of_limit: None,
            part: Some(PartFigures {
                key_reads: self.key_reads,
                key_writes: self.key_writes,
                failed_blocks,
                ..PartFigures::default()
            }),
            bundles: self.outcomes,
        }
    }

    /// Executes on the nodes of a witness only.
    fn run_on_witness(
        &mut self,
        bundle: &Bundle,
        witness: &WitnessBundle,
        opener: &dyn PartialState,
        surroundings: &BundleContext,
    ) -> Result<BundleOutcome, PipelineError> {
        let tree = opener.open_witness(witness.pre_state_root, &witness.state)?;
        let start = Instant::now();
        let options = self.options;
        let block = self.received(|| Ok(recover_senders(&options.spec, bundle.block.clone())?))?;
        let header = block.header();
        let spec = self.options.spec.for_header(header);
        let (outcome, roots) = if needs_intermediate_roots(&spec, header) {
            let mut after: Arc<dyn PartialTree> = tree.clone();
            let mut roots = Vec::new();
            let mut authentication = Duration::ZERO;
            let outcome = execute_block_with_observer(
                &spec,
                &block,
                self.input(&*tree, surroundings),
                &mut |_, delta| {
                    let start = Instant::now();
                    after = after.apply(&delta)?;
                    roots.push(after.root());
                    authentication += start.elapsed();
                    Ok(())
                },
            )?;
            TimeBreakdown::add(&mut self.breakdown.authentication, authentication);
            let execution = outcome.timing.execution().saturating_sub(authentication);
            TimeBreakdown::add(&mut self.breakdown.execution, execution);
            (outcome, Some(roots))
        } else {
            let outcome = execute_block(&spec, &block, self.input(&*tree, surroundings))?;
            TimeBreakdown::add(&mut self.breakdown.execution, outcome.timing.execution());
            (outcome, None)
        };
        TimeBreakdown::add(&mut self.breakdown.authentication, outcome.timing.storage);
        let proposing = Instant::now();
        let post = tree.apply(&outcome.delta)?;
        TimeBreakdown::add(&mut self.breakdown.authentication, proposing.elapsed());
        let seconds = self.stop(start);
        self.root = post.root();
        let root_ok = Some(post.root() == witness.post_state_root);
        Ok(self.check(bundle, &spec, header, &outcome, roots.as_deref(), root_ok, seconds))
    }

    /// Writes the pre-state on the base state, executes, proposes, commits, and reverts. Also
    /// returns the time until the commit began. If `checks_first` is set, the checks are within
    /// this time; otherwise they come untimed at the end.
    fn run_on_store(
        &mut self,
        bundle: &Bundle,
        surroundings: &BundleContext,
        receive: impl FnOnce() -> Result<RecoveredBlock, PipelineError>,
        checks_first: bool,
    ) -> Result<(BundleOutcome, Duration), PipelineError> {
        let pre = self.pre_state(bundle)?;
        self.commit("pre-state", self.base.number + 1, &pre)?;

        let before = self.options.witnesses.then(|| self.store.at(StateId::Tip)).transpose()?;
        let counts = self.store.counts();
        let start = Instant::now();
        let block = self.received(receive)?;
        let header = block.header();
        let spec = self.options.spec.for_header(header);
        let session = self.store.begin(StateId::Tip)?;
        let reader = session.reader();
        let recorder = before.as_ref().map(|_| AccessRecorder::new(&reader));
        let state = recorder.as_ref().map_or(&reader as &dyn StateReader, |recorder| recorder);
        let outcome = execute_block(&spec, &block, self.input(state, surroundings))?;
        let accesses = recorder.map(AccessRecorder::into_accesses);
        drop(reader);
        TimeBreakdown::add(&mut self.breakdown.execution, outcome.timing.execution());
        TimeBreakdown::add(&mut self.breakdown.authentication, outcome.timing.storage);

        let proposing = Instant::now();
        let proposal = session.finish(&outcome.delta)?;
        TimeBreakdown::add(&mut self.breakdown.authentication, proposing.elapsed());

        let check =
            |replay: &mut Self| replay.check(bundle, &spec, header, &outcome, None, None, 0.0);
        let checked = checks_first.then(|| check(self));
        let latency = start.elapsed();

        let committing = Instant::now();
        self.store.seal(&proposal, bundle.hash);
        let mut txn = self.kv.begin_write()?;
        let after = self.store.commit(std::slice::from_ref(&proposal), &mut *txn)?;
        txn.commit()?;
        after.run()?;
        TimeBreakdown::add(&mut self.breakdown.storage_io, committing.elapsed());
        let seconds = self.stop(start);

        self.root = proposal.root();
        self.counts = &self.counts + &(&self.store.counts() - &counts);
        let witness = match before.zip(accesses) {
            None => None,
            Some((before, accesses)) => {
                let executed = |chunk_bytes| {
                    let input = self.input(&before, surroundings);
                    let executed = executed_code(&spec, &block, input, chunk_bytes);
                    Ok(executed.map_err(|error| BundleError::CodeTrace(error.into()))?)
                };
                let codes = &surroundings.codes;
                let needs = BlockNeeds { accesses: &accesses, codes, executed: &executed };
                BlockWitness::make(self.store.backend(), &before, needs)?
            }
        };
        self.revert_to_base()?;
        let checked = checked.unwrap_or_else(|| check(self));
        Ok((BundleOutcome { seconds, witness, ..checked }, latency))
    }

    pub(super) fn commit(
        &self,
        what: &str,
        number: u64,
        delta: &StateDelta,
    ) -> Result<(), PipelineError> {
        let proposal = self.store.begin(StateId::Tip)?.finish(delta)?;
        self.store.seal(&proposal, synthetic_hash(what, number));
        let mut txn = self.kv.begin_write()?;
        let after = self.store.commit(&[proposal], &mut *txn)?;
        txn.commit()?;
        Ok(after.run()?)
    }

    fn received(
        &mut self,
        receive: impl FnOnce() -> Result<RecoveredBlock, PipelineError>,
    ) -> Result<RecoveredBlock, PipelineError> {
        let start = Instant::now();
        let block = receive()?;
        TimeBreakdown::add(&mut self.breakdown.execution, start.elapsed());
        Ok(block)
    }

    fn input<'b>(
        &'b self,
        state: &'b dyn StateReader,
        surroundings: &'b BundleContext,
    ) -> ExecutionInput<'b> {
        ExecutionInput::new(state, &surroundings.codes, &surroundings.hashes)
            .with_code_cache(&self.codes)
    }

    fn stop(&mut self, start: Instant) -> f64 {
        let elapsed = start.elapsed();
        self.total += elapsed;
        elapsed.as_secs_f64()
    }

    #[allow(clippy::too_many_arguments)]
    fn check(
        &mut self,
        bundle: &Bundle,
        spec: &ChainSpec,
        header: &Header,
        outcome: &ExecutionOutcome,
        intermediate_roots: Option<&[B256]>,
        root_ok: Option<bool>,
        seconds: f64,
    ) -> BundleOutcome {
        self.key_reads += outcome.accesses.accounts + outcome.accesses.slots;
        self.key_writes += outcome.delta.len() as u64;
        let receipts_root = match intermediate_roots {
            Some(roots) => retrie_consensus::pre_byzantium_receipts_root(&outcome.receipts, roots),
            None if needs_intermediate_roots(spec, header) => None,
            None => {
                let receipts: Vec<_> =
                    outcome.receipts.iter().map(TxReceipt::with_bloom_ref).collect();
                Some(calculate_receipt_root(&receipts))
            }
        };
        BundleOutcome {
            number: bundle.number,
            kind: match bundle.kind {
                BundleKind::Witness(_) => "witness".into(),
                BundleKind::Prestate(_) => "prestate".into(),
            },
            fork: bundle.fork.clone(),
            txs: outcome.receipts.len() as u64,
            gas: outcome.gas_used,
            seconds,
            gas_ok: outcome.gas_used == header.gas_used,
            bloom_ok: outcome.logs_bloom() == header.logs_bloom,
            receipts_ok: receipts_root.map(|root| root == header.receipts_root),
            requests_ok: header.requests_hash.map(|hash| outcome.requests.requests_hash() == hash),
            root_ok,
            witness: None,
        }
    }

    /// The delta from the base state to the bundle's pre-state.
    pub(super) fn pre_state(&self, bundle: &Bundle) -> Result<StateDelta, PipelineError> {
        let wanted = match bundle.pre() {
            Some(pre) => flatten(pre),
            None => effects(bundle, self.options)?.pre,
        };
        let reader = self.store.at(StateId::Tip)?;
        let mut delta = DeltaBuilder::new();
        let mut codes = bundle.codes();
        let needs_codes = self.store.backend().profile().needs_codes;
        for (key, mut value) in wanted {
            if needs_codes && let (StateKey::Account(_), Some(value)) = (&key, &mut value) {
                settle_code(value, &mut codes);
            }
            delta.change(key, reader.get(&key)?, value);
        }
        delta.add_codes(&codes);
        Ok(delta.build())
    }
}

/// Whether each receipt of the block holds a state root (before EIP-658).
fn needs_intermediate_roots(spec: &ChainSpec, header: &Header) -> bool {
    !spec.is_byzantium_active_at_block(header.number) && header.gas_used > 0
}

/// A bundle's pre-state as keys and values. Slots of an absent account are left out.
pub(super) fn flatten(pre: &PreState) -> BTreeMap<StateKey, Option<StateValue>> {
    let mut values = BTreeMap::new();
    for (address, account) in pre {
        let Some(account) = account else {
            values.insert(StateKey::Account(*address), None);
            continue;
        };
        let encoded = Account {
            nonce: account.nonce,
            balance: account.balance,
            code_hash: account.code_hash,
        };
        values.insert(StateKey::Account(*address), Some(encoded.encode()));
        for (slot, value) in &account.storage {
            values.insert(StateKey::Slot(*address, *slot), encode_slot(*value));
        }
    }
    values
}
