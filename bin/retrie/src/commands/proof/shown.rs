//! Prints what was verified, and what it rests on.

use crate::output::{CommandOutput, say};
use retrie_light_client::{
    CompleteLogs, ProvenValue, TabledLogs, TrustBasis, VerifiedCall, VerifiedLog,
    VerifiedProvenance, VerifiedState,
};
use std::ops::RangeInclusive;

/// Prints the values of a proof.
pub(super) fn print_state(verified: &VerifiedState, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    if let Some(number) = verified.as_of {
        say!(out, "state after block {number}:");
    }
    for shown in &verified.shown {
        say!(out, "{}", line(shown));
    }
    print_trust(&out, &verified.trust, origin)
}

/// Prints the versions of a key.
pub(super) fn print_versions(verified: &VerifiedProvenance, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    let (from, to) = (verified.blocks.start(), verified.blocks.end());
    say!(out, "{}, blocks {from} to {to}: {} versions", verified.key, verified.versions.len());
    for (block, shown) in &verified.versions {
        say!(out, "set by block {block}: {}", line(shown));
    }
    print_trust(&out, &verified.trust, origin)
}

/// Prints the outcome of a call.
pub(super) fn print_call(verified: &VerifiedCall, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    let VerifiedCall { output, is_success, gas_used, gas, number, trust } = verified;
    let outcome = if *is_success { "returns" } else { "fails with" };
    say!(out, "on the state after block {number} the call {outcome} {output}");
    say!(out, "gas used {gas_used} of {gas}");
    print_trust(&out, trust, origin)
}

/// Prints all logs of a range.
pub(super) fn print_logs(verified: &CompleteLogs, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    print_log_lines(&out, &verified.blocks, &verified.logs)?;
    say!(out, "trusted: {origin}");
    say!(
        out,
        "verified: these blocks lead to the trusted hash and have no other log that matches; the \
         hashes of transactions are not shown"
    );
    Ok(())
}

/// Prints all logs of a range, as index tables show them.
pub(super) fn print_log_tables(verified: &TabledLogs, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    print_log_lines(&out, &verified.blocks, &verified.logs)?;
    say!(out, "trusted: {origin}");
    for sentence in verified.trust.iter().flat_map(TrustBasis::sentences) {
        say!(out, "verified: {sentence}");
    }
    say!(
        out,
        "verified: the index tables whose roots are in that state have these logs, and no other one \
         that matches (EIP-8304)"
    );
    Ok(())
}

fn print_log_lines(
    out: &CommandOutput,
    blocks: &RangeInclusive<u64>,
    logs: &[VerifiedLog],
) -> eyre::Result<()> {
    let (first, last) = (blocks.start(), blocks.end());
    say!(out, "blocks {first} to {last}: {} logs match the filter", logs.len());
    for shown in logs {
        let VerifiedLog { log, block, transaction_index, log_index, .. } = shown;
        let topics: Vec<_> = log.topics().iter().map(ToString::to_string).collect();
        let (address, topics, data) = (log.address, topics.join(", "), &log.data.data);
        say!(
            out,
            "block {}, transaction {transaction_index}, log {log_index}: address {address}, topics \
             [{topics}], data {data}",
            block.number
        );
    }
    Ok(())
}

fn line(shown: &ProvenValue) -> String {
    match shown {
        ProvenValue::Account { address, account: None } => {
            format!("account {address}: there is none")
        }
        ProvenValue::Account { address, account: Some(account) } => format!(
            "account {address}: balance {} wei, nonce {}, code hash {}",
            account.balance, account.nonce, account.code_hash
        ),
        ProvenValue::Slot { slot, value, .. } => format!("slot {slot}: {value:#x}"),
    }
}

fn print_trust(out: &CommandOutput, trust: &TrustBasis, origin: &str) -> eyre::Result<()> {
    say!(out, "trusted: {origin}");
    for sentence in trust.sentences() {
        say!(out, "verified: {sentence}");
    }
    Ok(())
}
