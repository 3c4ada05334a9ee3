//! Witnesses of the blocks of tests: each valid block must be executable on its execution witness alone,
//! and each piece of the witness be needed.
//!
//! ```text
//!  accepted block --> ExecutionWitness --> verify_witness: the root of its header
//!                                      --> WitnessLint: nothing to find
//!                                      --> a piece left out: refused
//!                 --> StateWitnessFile --> verify_state_witness
//! ```
//!
//! The suite of the zkEVM ([`run_refilled`]) follows a devnet with other prices of gas, so its blocks are
//! invalid here. Its tests are filled again: the same accounts, with the builder contracts (EIP-8282)
//! that it does not know yet, and the same transactions, in blocks of this client. Of the witness in the
//! file, two things do not depend on prices: how its lists are ordered, and which codes a block reads.
//! Some witnesses are wrong by design, as the file says; these are not compared.

use crate::{
    blockchain::{BadBlocks, BlockEntry, BlockchainTest, block_of},
    engine::{self, ConsensusDriver, PayloadCall, SendOutcome},
    format::{CaseResult, TestVerdict, parse},
    worker::TestWorker,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip8282::{
        BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_DEPOSIT_CONTRACT_CODE,
        BUILDER_EXIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_CODE,
    },
};
use alloy_primitives::{Address, Bytes};
use alloy_rpc_types_engine::PayloadAttributes;
use retrie_chainspec::primitives::{Block, RecoveredBlock};
use retrie_engine::{LiveChain, TestBlock, TestPayload};
use retrie_pipeline::{
    PipelineError,
    stateless::{FindingCode, StatelessError, WitnessLint, verify_state_witness, verify_witness},
};
use retrie_sources::witness::{ExecutionWitness, WitnessAnswer};
use retrie_state::{PartialState, StateError};
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// Most pieces of a list that are left out, one at a time.
const MOST_LEFT_OUT: usize = 12;

/// The builder contracts (EIP-8282), without which no block of Amsterdam is valid.
fn builder_contracts() -> [(Address, &'static Bytes); 2] {
    [
        (BUILDER_DEPOSIT_CONTRACT_ADDRESS, &BUILDER_DEPOSIT_CONTRACT_CODE),
        (BUILDER_EXIT_CONTRACT_ADDRESS, &BUILDER_EXIT_CONTRACT_CODE),
    ]
}

/// Runs a blockchain test through the Engine API, and checks the witness of each valid block; `None` if
/// its chain begins before the merge.
pub(crate) fn run(
    json: &RawValue,
    bad_blocks: BadBlocks,
    worker: &TestWorker,
) -> Option<CaseResult> {
    engine::run_with(json, bad_blocks, worker, |live| check_head(live).map(drop))
}

/// Fills a test of the zkEVM again and checks the witness of each block, also against that of the file.
pub(crate) fn run_refilled(json: &RawValue, worker: &TestWorker) -> TestVerdict {
    let test: BlockchainTest<'_> = parse(json)?;
    let spec = test.spec_with(builder_contracts())?;
    engine::with_driver(spec, worker, |driver| {
        for (index, entry) in test.blocks.iter().enumerate() {
            refill(driver, entry).map_err(|error| format!("entry {index}: {error}"))?;
        }
        Ok(())
    })
}

/// Makes the block of an entry again on the head, and compares its witness with that of the entry.
fn refill(driver: &ConsensusDriver<'_>, entry: &BlockEntry<'_>) -> TestVerdict {
    let given = entry.get("executionWitness").ok_or("has no executionWitness")?;
    let given: ExecutionWitness =
        serde_json::from_str(given.get()).map_err(|e| format!("executionWitness: {e}"))?;
    let block = block_of(entry)??;
    let header = &block.header;
    let attributes = PayloadAttributes {
        timestamp: header.timestamp,
        prev_randao: header.mix_hash,
        suggested_fee_recipient: header.beneficiary,
        withdrawals: Some(block.body.withdrawals.clone().unwrap_or_default().into_inner()),
        parent_beacon_block_root: header.parent_beacon_block_root,
        slot_number: header.slot_number,
        target_gas_limit: Some(header.gas_limit),
    };
    let transactions = block.body.transactions.iter().map(|tx| tx.encoded_2718().into());
    let made = TestBlock {
        parent: driver.live.head().hash(),
        attributes,
        transactions: Some(transactions.collect()),
        extra_data: Some(header.extra_data.clone()),
    };
    let made = made.build(&driver.live, &driver.pool).map_err(|error| error.to_string())?;
    let TestPayload::V6(made) = made else { return Err("it is not of Amsterdam".into()) };
    let root = header.parent_beacon_block_root.unwrap_or_default();
    let requests = made.execution_requests.take();
    match driver.send(PayloadCall::V5(made.execution_payload, Vec::new(), root, requests))? {
        SendOutcome::Accepted => {}
        other => return Err(format!("the block filled again is not accepted: {other:?}")),
    }
    let own = check_head(&driver.live)?;
    if !is_right(entry)? {
        return Ok(());
    }
    compare_codes(&own, &given)?;
    // Its canonical order is that of every other client, too.
    let answer = WitnessAnswer::from(given);
    let lint = WitnessLint { spec: driver.live.spec().clone(), opener: opener(&driver.live)? };
    let report = lint.check(block, &answer).map_err(|error| format!("lint: {error}"))?;
    let of_form = report.findings.iter().find(|finding| !depends_on_prices(finding.code));
    match of_form {
        Some(finding) => Err(format!("the lint names a fault of the file's witness: {finding:?}")),
        None => Ok(()),
    }
}

/// Whether a stateless client must accept the block on the file's witness: in `statelessOutputBytes` the
/// byte behind the root.
fn is_right(entry: &BlockEntry<'_>) -> Result<bool, String> {
    let output = entry.get("statelessOutputBytes").ok_or("has no statelessOutputBytes")?;
    let output: Bytes =
        serde_json::from_str(output.get()).map_err(|e| format!("statelessOutputBytes: {e}"))?;
    match output.get(32) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err("statelessOutputBytes has no verdict".into()),
    }
}

/// Whether a block of a devnet with other prices, and without builder contracts, can have this finding
/// with a canonical witness.
const fn depends_on_prices(code: FindingCode) -> bool {
    matches!(
        code,
        FindingCode::StateMissing
            | FindingCode::StateUnused
            | FindingCode::CodesMissing
            | FindingCode::CodesUnused
            | FindingCode::CodesCreated
            | FindingCode::HeadersMissing
            | FindingCode::HeadersUnused
            | FindingCode::ExecutionFailed
            | FindingCode::OutcomeDiffers
            | FindingCode::RootDiffers
    )
}

/// The codes of both witnesses must be the same, but for those of the builder contracts.
fn compare_codes(own: &ExecutionWitness, given: &ExecutionWitness) -> TestVerdict {
    let codes = |witness: &ExecutionWitness| -> BTreeSet<Bytes> {
        let new = |code: &&Bytes| builder_contracts().iter().all(|(_, known)| known != code);
        witness.codes.iter().filter(new).cloned().collect()
    };
    let (own, given) = (codes(own), codes(given));
    if own == given {
        return Ok(());
    }
    let first = |mut codes: std::collections::btree_set::Difference<'_, Bytes>| {
        codes.next().map_or_else(|| "none".into(), |code| code.to_string())
    };
    let (extra, missing) = (first(own.difference(&given)), first(given.difference(&own)));
    Err(format!(
        "codes differ from those of the file: one too many is {extra}, missing is {missing}"
    ))
}

/// Checks both witnesses of the head, and returns the first.
fn check_head(live: &LiveChain) -> Result<ExecutionWitness, String> {
    let hash = live.head().hash();
    let view = live.view().map_err(|error| error.to_string())?;
    let block = view.block(&hash).map_err(|error| error.to_string())?;
    let block = block.ok_or_else(|| format!("block {hash} is not there"))?;
    let witness = view.execution_witness(&block).map_err(|error| format!("witness: {error}"))?;
    check(live, opener(live)?, &block, &witness)?;

    let file = match view.state_witness(&block) {
        Ok(file) => file,
        // It clears a storage, as only SELFDESTRUCT before Cancun does.
        Err(PipelineError::State(StateError::NoWitness { .. })) => return Ok(witness),
        Err(error) => return Err(format!("state witness: {error}")),
    };
    let backend = live.backend();
    let extensions = backend.extensions();
    let maker = extensions.witness_maker(backend.identity()).map_err(|error| error.to_string())?;
    let opened = maker.open_witness(file.root, &file.witness);
    let opened = opened.map_err(|error| format!("state witness: {error}"))?;
    match verify_state_witness(live.spec(), unsealed(&block), &file, &*opened) {
        Ok(_) | Err(StatelessError::TooMuchGas { .. }) => Ok(witness),
        Err(error) => Err(format!("state witness: {error}")),
    }
}

/// Checks an execution witness: whole, and with each of some pieces left out.
fn check(
    live: &LiveChain,
    opener: &dyn PartialState,
    block: &RecoveredBlock,
    witness: &ExecutionWitness,
) -> TestVerdict {
    let spec = live.spec();
    let shown = match verify_witness(spec, opener, unsealed(block), witness) {
        Ok(shown) => shown,
        // A bound of the verifier, which no block of mainnet comes near.
        Err(StatelessError::TooMuchGas { .. }) => return Ok(()),
        Err(error) => return Err(format!("witness: {error}")),
    };
    if shown.after != block.state_root {
        return Err(format!("the witness leads to {}", shown.after));
    }
    let lint = WitnessLint { spec: spec.clone(), opener };
    let answer = WitnessAnswer::from(witness.clone());
    let report = lint.check(unsealed(block), &answer).map_err(|error| format!("lint: {error}"))?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("the lint finds in our own witness: {finding:?}"));
    }
    type List = fn(&mut ExecutionWitness) -> &mut Vec<Bytes>;
    let lists: [(&str, usize, List); 3] = [
        ("node", witness.state.len(), |witness| &mut witness.state),
        ("code", witness.codes.len(), |witness| &mut witness.codes),
        ("header", witness.headers.len(), |witness| &mut witness.headers),
    ];
    for (what, length, list) in lists {
        for at in (0..length).step_by(length.div_ceil(MOST_LEFT_OUT).max(1)) {
            let mut less = witness.clone();
            list(&mut less).remove(at);
            // The oldest header is needed for its place alone: its child names its hash. So is the root
            // node of a block that reads nothing. The lint misses them.
            let is_missed = |less: &ExecutionWitness| {
                let report = lint.check(unsealed(block), &WitnessAnswer::from(less.clone()));
                report.is_ok_and(|report| !report.findings.is_empty())
            };
            if verify_witness(spec, opener, unsealed(block), &less).is_ok() && !is_missed(&less) {
                return Err(format!("the witness suffices without {what} {at} of {length}"));
            }
        }
    }
    Ok(())
}

fn unsealed(block: &RecoveredBlock) -> Block {
    block.sealed_block().clone().into_block()
}

fn opener(live: &LiveChain) -> Result<&dyn PartialState, String> {
    let opener = live.backend().extensions().partial_state;
    opener.ok_or_else(|| "the store opens no witness".into())
}
