//! The verifier of calls for WebAssembly: JSON in, JSON out.
//!
//! ```text
//!  page: retrie_allocate(n) -> memory, which the page fills with CallQuestion as JSON
//!        retrie_verify_call(memory, n) -> 4 bytes of length (little-endian), CallVerdict as JSON
//!        retrie_release(memory, n), which frees what either gave
//! ```
//!
//! `crates/light-client/ts/src/call.ts` is its caller. `scripts/check/light-client --wasm` builds it.

use alloy_primitives::{B256, Bytes, hex};
use alloy_rpc_types_eth::TransactionRequest;
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_light_client::{CallResponse, StateVerifier, TrustedBlock};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// An answer of `state_call`, and what it is checked against.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallQuestion {
    request: TransactionRequest,
    answer: CallResponse,
    /// Hash of the trusted block.
    hash: B256,
    /// The trusted root, if it is not that of the header.
    root: Option<B256>,
    /// Name of a network, or a genesis file as text.
    chain: String,
    /// Trusted parameters by the name of their backend.
    #[serde(default)]
    params: BTreeMap<String, Vec<Bytes>>,
    /// Whether the root is that of a store with hashed keys.
    #[serde(default)]
    hashed: bool,
}

/// What was proven, or why the answer was refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum CallVerdict {
    #[serde(rename_all = "camelCase")]
    Verified {
        output: Bytes,
        success: bool,
        gas_used: u64,
        gas: u64,
        block: u64,
        trust: Vec<String>,
    },
    Refused {
        class: &'static str,
        message: String,
    },
}

fn judge(json: &[u8]) -> CallVerdict {
    verify(json).unwrap_or_else(|(class, message)| CallVerdict::Refused { class, message })
}

fn verify(json: &[u8]) -> Result<CallVerdict, (&'static str, String)> {
    let malformed = |error: String| ("malformed", error);
    let question: CallQuestion =
        serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
    let spec = match question.chain.trim_start().starts_with('{') {
        true => ChainSpec::from_genesis_json(&question.chain).map(Arc::new),
        false => parse_chain(&question.chain),
    };
    let spec = spec.map_err(|error| malformed(format!("the chain: {error}")))?;
    let mut verifier = StateVerifier::new();
    if question.hashed {
        verifier = verifier.hashed_keys();
    }
    for (backend, params) in &question.params {
        for bytes in params {
            let unknown =
                || malformed(format!("0x{} are no parameters of {backend}", hex::encode(bytes)));
            verifier = verifier.pin_bytes(backend, bytes).ok_or_else(unknown)?;
        }
    }
    let trusted = TrustedBlock { hash: question.hash, root: question.root };
    let call = verifier
        .verify_call(&question.request, &question.answer, &trusted, &spec)
        .map_err(|error| (error.class(), error.to_string()))?;
    Ok(CallVerdict::Verified {
        output: call.output,
        success: call.is_success,
        gas_used: call.gas_used,
        gas: call.gas,
        block: call.number,
        trust: call.trust.sentences(),
    })
}

/// Memory for `length` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn retrie_allocate(length: usize) -> *mut u8 {
    Box::into_raw(vec![0u8; length].into_boxed_slice()).cast()
}

/// Frees memory of this length.
///
/// # Safety
/// `memory` came from a function of this module, has this length, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn retrie_release(memory: *mut u8, length: usize) {
    // SAFETY: the caller promises that this is a whole box that it got from here.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, length)) });
}

/// Verifies a call. The answer is the length of the JSON in 4 bytes, little-endian, and the JSON.
///
/// # Safety
/// `memory` has `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn retrie_verify_call(memory: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller promises that the memory is readable.
    let json = unsafe { std::slice::from_raw_parts(memory, length) };
    let verdict = serde_json::to_vec(&judge(json)).unwrap_or_default();
    let mut bytes = (verdict.len() as u32).to_le_bytes().to_vec();
    bytes.extend(verdict);
    Box::into_raw(bytes.into_boxed_slice()).cast()
}
