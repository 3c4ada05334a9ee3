//! [`WitnessLint`]: compares the witness of some client with the canonical one.

use super::{
    finding::{FindingCode, FindingList, LintCounts, LintReport},
    headers::AncestorChain,
    lists::{CODES, KEYS, STATE, check_members, unique_entries},
    verify::{StatelessError, WitnessInput, executable},
};
use crate::validate_outcome;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256, map::HashSet};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};
use retrie_execution::{DatabaseError, ExecutionError, ExecutionOutcome, RecordedAccesses};
use retrie_sources::witness::WitnessAnswer;
use retrie_state::{NodeUse, PartialState, StateError, StateKey, WitnessAudit};
use std::{collections::BTreeSet, sync::Arc};

/// Checks witnesses.
pub struct WitnessLint<'a> {
    /// Rules of the chain.
    pub spec: Arc<ChainSpec>,
    /// A backend that opens witnesses.
    pub opener: &'a dyn PartialState,
}

impl std::fmt::Debug for WitnessLint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WitnessLint").field("chain", &self.spec.name()).finish_non_exhaustive()
    }
}

impl WitnessLint<'_> {
    /// Compares `answer`, the witness of `block`, with the canonical one.
    ///
    /// # Errors
    /// If the block is invalid or its execution not bounded, so that the witness cannot be judged.
    pub fn check(
        &self,
        block: Block,
        answer: &WitnessAnswer,
    ) -> Result<LintReport, StatelessError> {
        let block = executable(&self.spec, block)?;
        let mut findings = FindingList::default();
        check_members(answer, &mut findings);
        let given = LintCounts {
            state: answer.state.entries.len(),
            codes: answer.codes.entries.len(),
            headers: answer.headers.entries.len(),
        };
        let (needed, complete) = self.check_content(&block, answer, &mut findings)?;
        let findings = findings.0;
        Ok(LintReport {
            number: block.number,
            hash: block.hash(),
            given,
            needed,
            complete,
            findings,
        })
    }

    /// Checks the lists. Returns what was needed, and whether the block came to its root.
    fn check_content(
        &self,
        block: &RecoveredBlock,
        answer: &WitnessAnswer,
        findings: &mut FindingList,
    ) -> Result<(LintCounts, bool), StatelessError> {
        let state = unique_entries("state", &answer.state, STATE, findings);
        let codes = unique_entries("codes", &answer.codes, CODES, findings);
        let keys = unique_entries("keys", &answer.keys, KEYS, findings);
        check_key_lengths(&keys, findings);
        let ancestors = AncestorChain::of(&answer.headers, block.header(), findings);
        let Some(parent) = ancestors.parent() else {
            return Ok((LintCounts::default(), false));
        };
        let nodes: Vec<Bytes> = state.iter().map(|(_, node)| node.clone()).collect();
        let audit = self.opener.audit_witness(parent.state_root, &nodes)?;
        let given_codes = codes.iter().map(|(_, code)| code);
        let input = WitnessInput::of(&*audit.tree, given_codes, ancestors.hashes.clone());
        let (executed, accesses) = input.execute(&self.spec, block);
        let (outcome, complete) = self.check_execution(block, &audit, executed, findings);

        let state = check_state(&state, &audit, complete, findings);
        let codes = check_codes(&codes, &accesses, outcome.as_ref(), findings);
        if let Some(outcome) = &outcome
            && !keys.is_empty()
        {
            check_keys(&keys, &accesses, outcome, findings);
        }
        let oldest = accesses.hashes.keys().next().copied();
        let headers = match outcome {
            Some(_) => ancestors.check_use(oldest, parent.number, findings),
            None => 0,
        };
        Ok((LintCounts { state, codes, headers }, complete))
    }

    /// Judges the execution and computes the root after it. Returns the outcome if there is one, and
    /// whether the root was computed.
    fn check_execution(
        &self,
        block: &RecoveredBlock,
        audit: &WitnessAudit,
        executed: Result<ExecutionOutcome, ExecutionError>,
        findings: &mut FindingList,
    ) -> (Option<ExecutionOutcome>, bool) {
        let outcome = match executed {
            Ok(outcome) => outcome,
            Err(error) => {
                findings.add(code_of(&error), error.to_string());
                return (None, false);
            }
        };
        let spec = self.spec.for_header(block.header());
        if let Err(error) = validate_outcome(&spec, block.sealed_block(), &outcome, None) {
            findings.add(FindingCode::OutcomeDiffers, error.to_string());
        }
        match audit.tree.apply(&outcome.delta) {
            Ok(after) if after.root() == block.state_root => {}
            Ok(after) => {
                let (got, expected) = (after.root(), block.state_root);
                let what = format!("the root after the block is {got}, the header says {expected}");
                findings.add(FindingCode::RootDiffers, what);
            }
            Err(error) => {
                let what = format!("the root after the block: {error}");
                findings.add(code_of_state(&error), what);
                return (Some(outcome), false);
            }
        }
        (Some(outcome), true)
    }
}

/// The kind of a failed execution.
fn code_of(error: &ExecutionError) -> FindingCode {
    let ExecutionError::Database { source, .. } = error else {
        return FindingCode::ExecutionFailed;
    };
    match &**source {
        DatabaseError::State(error) => code_of_state(error),
        DatabaseError::MissingCode { .. } => FindingCode::CodesMissing,
        DatabaseError::MissingBlockHash { .. } => FindingCode::HeadersMissing,
        _ => FindingCode::ExecutionFailed,
    }
}

const fn code_of_state(error: &StateError) -> FindingCode {
    match error {
        StateError::MissingWitness { .. } => FindingCode::StateMissing,
        StateError::Corrupt { .. } => FindingCode::StateMalformed,
        _ => FindingCode::ExecutionFailed,
    }
}

/// Reports trie nodes that are not needed, and those that are none. Returns how many are needed.
fn check_state(
    state: &[(usize, Bytes)],
    audit: &WitnessAudit,
    complete: bool,
    findings: &mut FindingList,
) -> usize {
    let mut needed = 0;
    for ((at, node), found) in state.iter().zip(audit.nodes.uses()) {
        let (code, what) = match found {
            NodeUse::Read => {
                needed += 1;
                continue;
            }
            NodeUse::Unread if !complete => continue,
            NodeUse::Unread => {
                (FindingCode::StateUnused, "neither execution nor the root after it needs it")
            }
            NodeUse::Unlinked => {
                (FindingCode::StateUnlinked, "the root of the parent's state does not lead to it")
            }
            NodeUse::Malformed => (FindingCode::StateMalformed, "it is no node of the state"),
        };
        findings.at(code, "state", *at, format_args!("({}): {what}", keccak256(node)));
    }
    needed
}

/// Reports codes that were not read. Returns how many were.
fn check_codes(
    codes: &[(usize, Bytes)],
    accesses: &RecordedAccesses,
    outcome: Option<&ExecutionOutcome>,
    findings: &mut FindingList,
) -> usize {
    let created: HashSet<B256> =
        outcome.iter().flat_map(|outcome| &outcome.codes).map(|(hash, _)| *hash).collect();
    let mut needed = 0;
    for (at, code) in codes {
        let hash = keccak256(code);
        if accesses.codes.contains_key(&hash) {
            needed += 1;
            continue;
        }
        let (kind, what) = if hash == KECCAK256_EMPTY {
            (FindingCode::CodesEmpty, "no code is empty")
        } else if outcome.is_none() {
            // Only a whole execution shows what it does not read.
            continue;
        } else if created.contains(&hash) {
            (FindingCode::CodesCreated, "the block itself creates it")
        } else {
            (FindingCode::CodesUnused, "execution does not read it")
        };
        findings.at(kind, "codes", *at, format_args!("({hash}): {what}"));
    }
    needed
}

fn check_key_lengths(keys: &[(usize, Bytes)], findings: &mut FindingList) {
    for (at, key) in keys {
        if !matches!(key.len(), 20 | 32) {
            let what = format!("has {} bytes: it is neither an address nor a slot", key.len());
            findings.at(FindingCode::EntryMalformed, "keys", *at, what);
        }
    }
}

/// Compares the keys with those that the block reads or writes.
fn check_keys(
    keys: &[(usize, Bytes)],
    accesses: &RecordedAccesses,
    outcome: &ExecutionOutcome,
    findings: &mut FindingList,
) {
    let written = outcome.delta.changes().iter().map(|change| &change.key);
    let mut touched: BTreeSet<&[u8]> = BTreeSet::new();
    for key in accesses.values.keys().chain(written) {
        touched.insert(key.address().as_slice());
        if let StateKey::Slot(_, slot) = key {
            touched.insert(slot.as_slice());
        }
    }
    for (at, key) in keys.iter().filter(|(_, key)| matches!(key.len(), 20 | 32)) {
        if !touched.remove(&key[..]) {
            let what = format!("({key}): the block neither reads nor writes it");
            findings.at(FindingCode::KeysUnused, "keys", *at, what);
        }
    }
    for key in touched {
        let what = format!("{} is read or written", Bytes::copy_from_slice(key));
        findings.add(FindingCode::KeysMissing, what);
    }
}
