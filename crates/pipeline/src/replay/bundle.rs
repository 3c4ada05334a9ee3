//! Replay of bundles on one backend.

use super::{effects::effects, pad::synthetic_hash};
use crate::{
    ImportTimes, PipelineError,
    recover::recover_senders,
    report::{Amplification, Breakdown, BundleOutcome, PartFigures, ReplayResult, peak_rss_bytes},
};
use alloy_consensus::{TxReceipt, proofs::calculate_receipt_root};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, RecoveredBlock},
};
use retrie_execution::{
    CodeCache, ExecutionInput, ExecutionOutcome, execute_block, execute_block_with_observer,
    load_trusted_setup,
};
use retrie_sources::{Bundle, BundleKind, PreState, WitnessBundle};
use retrie_state::{
    Account, At, BlockRef, Counts, DeltaBuilder, KvStore, PartialState, PartialTree, StateDelta,
    StateKey, StateReader, StateStore, Value, encode_slot,
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// What a replay of bundles needs beside the backend.
pub struct BundleReplayOptions<'a> {
    /// Rules of the chain.
    pub spec: Arc<ChainSpec>,
    /// A backend that can open witnesses, to find the pre-state of a bundle that lists none.
    pub witness_opener: Option<&'a dyn PartialState>,
}

impl std::fmt::Debug for BundleReplayOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleReplayOptions").field("chain", &self.spec.name()).finish()
    }
}

/// Replays bundles on one store and adds up what they cost.
pub struct BundleReplay<'a> {
    options: &'a BundleReplayOptions<'a>,
    store: &'a StateStore,
    kv: &'a dyn KvStore,
    base: BlockRef,
    codes: CodeCache,
    breakdown: Breakdown,
    outcomes: Vec<BundleOutcome>,
    /// Blocks that could not be executed, and why.
    refused: Vec<(u64, String)>,
    total: Duration,
    key_reads: u64,
    key_writes: u64,
    counts: Counts,
    root: B256,
}

impl std::fmt::Debug for BundleReplay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleReplay").field("store", &self.store).finish_non_exhaustive()
    }
}

/// What became of a bundle that came as a payload does ([`BundleReplay::run_live`]).
#[derive(Clone, Copy, Debug)]
pub struct LiveBundle<'a> {
    /// Its checks. Its seconds are those until it was durable.
    pub outcome: &'a BundleOutcome,
    /// Until it was known to be valid.
    pub latency: Duration,
}

/// What a replay has counted so far.
#[derive(Clone, Debug, Default)]
pub struct ReplayFigures {
    /// Where the timed seconds went, sender recovery with execution, reads of the EVM with the
    /// authentication.
    pub times: ImportTimes,
    /// Keys read by the EVM.
    pub key_reads: u64,
    /// Keys changed.
    pub key_writes: u64,
    /// Work at the node interface.
    pub counts: Counts,
}

/// Where a bundle's blocks find code and ancestors.
pub(super) struct Surroundings {
    pub(super) codes: HashMap<B256, Bytes>,
    pub(super) hashes: HashMap<u64, B256>,
}

impl Surroundings {
    pub(super) fn of(bundle: &Bundle) -> Self {
        Self {
            codes: bundle.codes().into_iter().collect(),
            hashes: bundle.ancestor_hashes().into_iter().collect(),
        }
    }
}

impl<'a> BundleReplay<'a> {
    /// A replay on `store`, which is empty or holds a base state, over its own `kv`.
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
            breakdown: Breakdown::default(),
            outcomes: Vec::new(),
            refused: Vec::new(),
            total: Duration::ZERO,
            key_reads: 0,
            key_writes: 0,
            counts: Default::default(),
            root: store.root(At::Tip)?,
        })
    }

    /// Replays one bundle.
    ///
    /// # Errors
    /// When it cannot be executed at all, naming file and block ([`refuse`](Self::refuse) then lets one
    /// go on); checks that do not hold are in the outcome.
    pub fn run(&mut self, bundle: &Bundle) -> Result<&BundleOutcome, PipelineError> {
        self.prepare_for(bundle);
        let outcome = self.run_bundle(bundle).map_err(|error| error.in_bundle(bundle))?;
        self.outcomes.push(outcome);
        Ok(&self.outcomes[self.outcomes.len() - 1])
    }

    /// Counts block `number` as failed, because its bundle could not be read or executed, and takes back
    /// whatever is left of it, so that the next one finds the base state.
    ///
    /// # Errors
    /// If it cannot be taken back: then it is the store that has failed.
    pub fn refuse(&mut self, number: u64, error: &PipelineError) -> Result<(), PipelineError> {
        if self.store.tip().is_some_and(|tip| tip.block.number > self.base.number) {
            self.take_back()?;
        }
        self.refused.push((number, error.to_string()));
        Ok(())
    }

    fn take_back(&self) -> Result<(), PipelineError> {
        let mut txn = self.kv.begin_write()?;
        let after = self.store.revert(self.base.number, &mut *txn)?;
        txn.commit()?;
        Ok(after.run()?)
    }

    /// Replays one bundle as a node meets a payload: `receive` gives the block, its senders recovered,
    /// of whatever it came as; then it is executed, proposed and checked, and only then committed. On
    /// every backend the bundle is laid down as plain state; that is not timed, nor taking it back.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and of `receive`.
    pub fn run_live(
        &mut self,
        bundle: &Bundle,
        receive: impl FnOnce() -> Result<RecoveredBlock, PipelineError>,
    ) -> Result<LiveBundle<'_>, PipelineError> {
        self.prepare_for(bundle);
        let ran = self.run_on_store(bundle, &Surroundings::of(bundle), receive, true);
        let (outcome, latency) = ran.map_err(|error| error.in_bundle(bundle))?;
        self.outcomes.push(outcome);
        Ok(LiveBundle { outcome: &self.outcomes[self.outcomes.len() - 1], latency })
    }

    /// Does, untimed, what the first blocks of blobs would otherwise wait for. Others need not.
    fn prepare_for(&self, bundle: &Bundle) {
        if self.options.spec.is_cancun_active_at_timestamp(bundle.block.header.timestamp) {
            load_trusted_setup();
        }
    }

    /// What it has counted so far.
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
        let surroundings = Surroundings::of(bundle);
        let partial = self.store.backend().partial_state();
        match (&bundle.kind, partial) {
            (BundleKind::Witness(witness), Some(opener)) => {
                self.run_on_witness(bundle, witness, opener, &surroundings)
            }
            _ => {
                let options = self.options;
                let receive = || recover_senders(&options.spec, bundle.block.clone());
                Ok(self.run_on_store(bundle, &surroundings, receive, false)?.0)
            }
        }
    }

    /// The result of all bundles so far.
    pub fn result(mut self, disk_bytes: u64) -> ReplayResult {
        let seconds = self.total.as_secs_f64();
        self.breakdown.attribute_reads(self.counts.read_time);
        self.breakdown.close(seconds);
        let sum = |field: fn(&BundleOutcome) -> u64| self.outcomes.iter().map(field).sum::<u64>();
        let (txs, gas) = (sum(|o| o.txs), sum(|o| o.gas));
        let rate = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let failed = self.outcomes.iter().filter(|o| !o.ok()).map(|o| (o.number, o.failure()));
        let mut failed: Vec<_> = failed.chain(self.refused).collect();
        // Stable: of one block the checks come first.
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
            amplification: Amplification::new(&self.counts, self.key_reads, self.key_writes),
            disk_bytes,
            peak_rss_bytes: peak_rss_bytes(),
            part: Some(PartFigures {
                key_reads: self.key_reads,
                key_writes: self.key_writes,
                failed_blocks,
                ..PartFigures::default()
            }),
            bundles: self.outcomes,
        }
    }

    /// Executes on the nodes of a witness alone.
    fn run_on_witness(
        &mut self,
        bundle: &Bundle,
        witness: &WitnessBundle,
        opener: &dyn PartialState,
        surroundings: &Surroundings,
    ) -> Result<BundleOutcome, PipelineError> {
        let tree = opener.open_witness(witness.pre_state_root, &witness.state)?;
        let start = Instant::now();
        let options = self.options;
        let block = self.received(|| recover_senders(&options.spec, bundle.block.clone()))?;
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
            Breakdown::add(&mut self.breakdown.authentication, authentication);
            let execution = outcome.timing.execution().saturating_sub(authentication);
            Breakdown::add(&mut self.breakdown.execution, execution);
            (outcome, Some(roots))
        } else {
            let outcome = execute_block(&spec, &block, self.input(&*tree, surroundings))?;
            Breakdown::add(&mut self.breakdown.execution, outcome.timing.execution());
            (outcome, None)
        };
        Breakdown::add(&mut self.breakdown.authentication, outcome.timing.storage);
        let proposing = Instant::now();
        let post = tree.apply(&outcome.delta)?;
        Breakdown::add(&mut self.breakdown.authentication, proposing.elapsed());
        let seconds = self.stop(start);
        self.root = post.root();
        let root_ok = Some(post.root() == witness.post_state_root);
        Ok(self.check(bundle, &spec, header, &outcome, roots.as_deref(), root_ok, seconds))
    }

    /// Lays the pre-state down on the base state, executes, proposes, commits, and takes it back. Says
    /// after which time the commit began: the checks come before that, or untimed at the end.
    fn run_on_store(
        &mut self,
        bundle: &Bundle,
        surroundings: &Surroundings,
        receive: impl FnOnce() -> Result<RecoveredBlock, PipelineError>,
        checks_first: bool,
    ) -> Result<(BundleOutcome, Duration), PipelineError> {
        let pre = self.pre_state(bundle)?;
        self.commit("pre-state", self.base.number + 1, &pre)?;

        let counts = self.store.counts();
        let start = Instant::now();
        let block = self.received(receive)?;
        let header = block.header();
        let spec = self.options.spec.for_header(header);
        let session = self.store.begin(At::Tip)?;
        let reader = session.reader();
        let outcome = execute_block(&spec, &block, self.input(&reader, surroundings))?;
        drop(reader);
        Breakdown::add(&mut self.breakdown.execution, outcome.timing.execution());
        Breakdown::add(&mut self.breakdown.authentication, outcome.timing.storage);

        let proposing = Instant::now();
        let proposal = session.finish(&outcome.delta)?;
        Breakdown::add(&mut self.breakdown.authentication, proposing.elapsed());

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
        Breakdown::add(&mut self.breakdown.storage_io, committing.elapsed());
        let seconds = self.stop(start);

        self.root = proposal.root();
        self.counts = &self.counts + &(&self.store.counts() - &counts);
        self.take_back()?;
        let checked = checked.unwrap_or_else(|| check(self));
        Ok((BundleOutcome { seconds, ..checked }, latency))
    }

    fn commit(&self, what: &str, number: u64, delta: &StateDelta) -> Result<(), PipelineError> {
        let proposal = self.store.begin(At::Tip)?.finish(delta)?;
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
        Breakdown::add(&mut self.breakdown.execution, start.elapsed());
        Ok(block)
    }

    fn input<'b>(
        &'b self,
        state: &'b dyn StateReader,
        surroundings: &'b Surroundings,
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
        }
    }

    /// The delta that lays down what the bundle touches.
    fn pre_state(&self, bundle: &Bundle) -> Result<StateDelta, PipelineError> {
        let wanted = match bundle.pre() {
            Some(pre) => flatten(pre),
            None => effects(bundle, self.options)?.pre,
        };
        let reader = self.store.at(At::Tip)?;
        let mut delta = DeltaBuilder::new();
        for (key, value) in wanted {
            delta.change(key, reader.get(&key)?, value);
        }
        Ok(delta.build())
    }
}

/// Whether the block's receipts hold a state root each (before EIP-658).
fn needs_intermediate_roots(spec: &ChainSpec, header: &Header) -> bool {
    !spec.is_byzantium_active_at_block(header.number) && header.gas_used > 0
}

/// A bundle's pre-state as keys and values. Slots of an absent account cannot be.
pub(super) fn flatten(pre: &PreState) -> BTreeMap<StateKey, Option<Value>> {
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
