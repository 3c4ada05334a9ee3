//! Checks stored blocks against their headers: bodies, senders, receipts, roots. On all cores.

use super::{FindingList, VerifyOptions, VerifyReport};
use crate::{PipelineError, RootKind, StatePatch, recover_senders, state_backends::StateBackends};
use alloy_consensus::{TxReceipt, proofs::calculate_receipt_root};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::Bloom;
use rayon::prelude::*;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header, Receipt, SealedBlock},
};
use retrie_consensus::validate_body;
use retrie_db::{ChainRead, DatadirMetadata, ReadError, ReadTxn, StateRootMode, StoredBlock};
use retrie_state::BackendProfile;
use std::{collections::HashMap, sync::Arc};

/// Blocks, and transactions, that are checked at a time.
const BATCH_BLOCKS: usize = 512;
const BATCH_TXS: usize = 4096;

/// Checks all stored blocks, and the tables of the chain along the way.
pub(super) fn check(
    read: &ReadTxn,
    options: &VerifyOptions<'_>,
    metadata: &DatadirMetadata,
    report: &mut VerifyReport,
    findings: &mut FindingList,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<(), PipelineError> {
    let spec = &options.spec;
    let mut number = |number: Result<u64, ReadError>| {
        number.unwrap_or_else(|error| {
            findings.db(error);
            0
        })
    };
    let pruned = number(read.receipts_pruned_below());
    let anchor = number(read.anchor());
    // The profiles of backends whose roots are header roots, by name.
    let mut checkers: HashMap<String, Option<BackendProfile>> = HashMap::new();
    let binary_tree_time = StateBackends::binary_tree_time(spec, metadata.state_root);
    let kind = |time| RootKind::at(binary_tree_time, time);
    let mut batch: Vec<StoredBlock> = Vec::new();
    let mut txs_in_batch = 0;
    let mut damage = Vec::new();
    let mut run = |batch: &mut Vec<StoredBlock>, findings: &mut FindingList| {
        for (name, _) in batch.iter().flat_map(|block| &block.roots) {
            if !checkers.contains_key(name) {
                let is_shadow =
                    *name == metadata.backend && metadata.state_root != StateRootMode::Header;
                let backend = if is_shadow { None } else { (options.backend)(name) };
                checkers.insert(name.clone(), backend.map(|backend| backend.profile()));
            }
        }
        let lines: Vec<String> = std::mem::take(batch)
            .into_par_iter()
            .flat_map_iter(|block| {
                let kind = kind(block.header.timestamp);
                let is_header_root = |name: &String| {
                    let profile = checkers.get(name).and_then(Option::as_ref);
                    profile.is_some_and(|profile| kind.is_of(profile))
                };
                check_block(spec, metadata, &is_header_root, (anchor, pruned), block)
            })
            .collect();
        lines.into_iter().for_each(|line| findings.add(line));
    };
    read.check_chain(
        &mut |block| {
            report.blocks += 1;
            let txs = block.body.as_ref().map_or(0, |(body, _)| body.transactions.len());
            report.txs += txs as u64;
            txs_in_batch += txs;
            batch.push(block);
            if batch.len() >= BATCH_BLOCKS || txs_in_batch >= BATCH_TXS {
                txs_in_batch = 0;
                run(&mut batch, findings);
                progress("blocks", report.blocks);
            }
        },
        &mut |fault| damage.push(fault),
    )?;
    run(&mut batch, findings);
    damage.into_iter().for_each(|fault| findings.db(fault));
    Ok(())
}

/// The faults of one block. Its header must have the roots of backends for whose names
/// `is_header_root` is true. Blocks below `anchor` have no state; blocks below `pruned` may lack
/// receipts.
fn check_block(
    spec: &Arc<ChainSpec>,
    metadata: &DatadirMetadata,
    is_header_root: &dyn Fn(&String) -> bool,
    (anchor, pruned): (u64, u64),
    stored: StoredBlock,
) -> Vec<String> {
    let StoredBlock { hash, header, is_canonical, body, receipts, roots, patch } = stored;
    let mut wrong = Vec::new();
    let number = header.number;
    let mut say = |table: &str, what: String| {
        wrong.push(format!("table {table}, block {number} ({hash}): {what}"));
    };
    if is_canonical && number >= anchor && !roots.iter().any(|(name, _)| *name == metadata.backend)
    {
        say("BackendRoots", format!("the root of {} is missing", metadata.backend));
    }
    for (name, root) in &roots {
        if is_header_root(name)
            && let Some(root) = root
            && *root != header.state_root
        {
            let what = format!("the root of {name} is {root}, the header's {}", header.state_root);
            say("BackendRoots", what);
        }
    }
    if let Some(Err(error)) = patch.map(|patch| StatePatch::decode(&patch)) {
        say("DevPatches", error.to_string());
    }
    if let Some(receipts) = &receipts {
        if let Some(what) = wrong_receipts(spec, &header, receipts) {
            say("Receipts", what);
        }
    } else if is_canonical && body.is_some() && number >= pruned {
        say("Receipts", "a canonical block has no receipts".into());
    }
    let Some((body, senders)) = body else { return wrong };
    let spec = spec.for_header(&header);
    let block = SealedBlock::new_unchecked(Block { header, body }, hash);
    if let Err(error) = validate_body(&spec, &block) {
        say("Bodies", error.to_string());
    }
    match recover_senders(&spec, block.into_block()) {
        Err(error) => say("Transactions", error.to_string()),
        Ok(recovered) => {
            let differs = recovered.senders().iter().zip(&senders).position(|(a, b)| a != b);
            if let Some(index) = differs {
                say("Transactions", format!("the sender of transaction {index} is another one"));
            }
        }
    }
    wrong
}

/// Receipts before Byzantium hold state roots that are not stored; then only bloom and gas are
/// checked.
fn wrong_receipts(spec: &ChainSpec, header: &Header, receipts: &[Receipt]) -> Option<String> {
    let with_bloom: Vec<_> = receipts.iter().map(TxReceipt::with_bloom_ref).collect();
    let bloom = with_bloom.iter().fold(Bloom::ZERO, |bloom, receipt| bloom | receipt.logs_bloom);
    if bloom != header.logs_bloom {
        return Some("their bloom is not the header's".into());
    }
    let rising = receipts.windows(2).all(|r| r[0].cumulative_gas_used < r[1].cumulative_gas_used);
    let last = receipts.last().map_or(0, |receipt| receipt.cumulative_gas_used);
    // From Amsterdam on the header counts gas differently (EIP-7778).
    let counts_alike = header.block_access_list_hash.is_none();
    if !rising || (counts_alike && last != header.gas_used) {
        return Some(format!("their gas is {last}, the header's {}", header.gas_used));
    }
    if spec.is_byzantium_active_at_block(header.number) {
        let root = calculate_receipt_root(&with_bloom);
        if root != header.receipts_root {
            return Some(format!("their root is {root}, the header's {}", header.receipts_root));
        }
    }
    None
}
