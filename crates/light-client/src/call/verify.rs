//! Executes a call again, on proven values alone.
//!
//! ```text
//!  headers --> hash of the block --> environment, BLOCKHASH
//!  proof ----> values of the reads --.
//!  codes ----> by their hashes -------+--> EvmSimulation --> output, gas: as the answer states
//!  request --> transaction ----------'         '--> reads: exactly those of the answer
//! ```
//!
//! The rules of calls are the node's own, from `retrie-execution`: only the values are not.

extern crate std;

use super::response::{AccountReads, CallResponse};
use crate::{LightClientError, StateVerifier, TrustBasis, TrustedRoot};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::ToString,
    sync::Arc,
    vec::Vec,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use alloy_rpc_types_eth::TransactionRequest;
use retrie_chainspec::{ChainSpec, primitives::Header};
use retrie_execution::{
    AccessRecorder, CallRules, EvmSimulation, ExecutionInput, TransactError, prepare_call,
};
use retrie_state::{ProofError, StateError, StateKey, StateReader, StateValue};

/// A block that the caller trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedBlock {
    /// Hash of its header.
    pub hash: B256,
    /// Root of the state after it, if that is not the `stateRoot` of the header: for stores whose
    /// roots no header has.
    pub root: Option<B256>,
}

/// What a call returns on the state after a trusted block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "this is what was proven; what the answer says besides was not"]
pub struct VerifiedCall {
    /// Output: what the call returns, or the data of its revert; empty if it halted.
    pub output: Bytes,
    /// Whether it succeeded.
    pub is_success: bool,
    /// Gas that it used, after refunds.
    pub gas_used: u64,
    /// Gas limit. The node chooses it if the request has none: a call may fail because of that.
    pub gas: u64,
    /// Number of the block.
    pub number: u64,
    /// The basis of trust.
    pub trust: TrustBasis,
}

impl StateVerifier {
    /// Verifies the answer of `state_call` to `request`: executes it by the rules of `spec` on the
    /// values that the proof shows under the root of the trusted block.
    ///
    /// # Errors
    /// A [`LightClientError`]: as [`values`](Self::values), and if the headers do not lead to the
    /// trusted block, if the execution reads what the answer does not show or does not read what it
    /// shows, or if its outcome is another one.
    pub fn verify_call(
        &self,
        request: &TransactionRequest,
        response: &CallResponse,
        trusted: &TrustedBlock,
        spec: &Arc<ChainSpec>,
    ) -> Result<VerifiedCall, LightClientError> {
        let headers = HeaderChain::open(&response.headers, trusted.hash)?;
        let number = headers.block.number;
        let root = match (trusted.root, response.headers.last()) {
            (Some(root), _) => TrustedRoot::Checkpoint { number, root },
            (None, rlp) => {
                let rlp = rlp.cloned().unwrap_or_default();
                TrustedRoot::Header { hash: trusted.hash, rlp }
            }
        };
        let proof = response.to_proof();
        if proof.block.hash != trusted.hash {
            let (trusted, proof) = (trusted.hash.to_string(), proof.block.hash.to_string());
            return Err(LightClientError::OtherBlock { trusted, proof });
        }
        let keys = AccountReads::keys(&response.reads);
        let (values, trust) = self.values(&proof, &keys, &root)?;
        let given: BTreeSet<StateKey> = keys.iter().copied().collect();
        if given.len() != keys.len() {
            return Err(ProofError::Unused.into());
        }
        let state = ProvenState(keys.into_iter().zip(values).collect());
        let codes: BTreeMap<B256, Bytes> =
            response.codes.iter().map(|code| (keccak256(code), code.clone())).collect();

        let reads = ProvenReads { codes: &codes, hashes: &headers.hashes };
        let recorder = AccessRecorder::of_input(ExecutionInput::new(&state, &reads, &reads));
        let spec = spec.for_header(&headers.block);
        let gas = response.gas.to::<u64>();
        let request = with_gas(request, gas)?;
        let mut simulation = EvmSimulation::new(&spec, &headers.block, recorder.input());
        let tx = prepare_call(&mut simulation, request, CallRules::Call, 0)
            .map_err(|error| LightClientError::Call { why: error.to_string() })?;
        let result = simulation.transact(tx).map_err(failed)?.result;
        drop(simulation);

        // What the execution does not need may not be there: an answer has one form.
        let read = recorder.into_accesses();
        let wanted: BTreeSet<StateKey> =
            AccountReads::keys(&AccountReads::of(read.values.keys())).into_iter().collect();
        let oldest = read.hashes.keys().next().map_or(number, |oldest| oldest + 1);
        let is_canonical = wanted == given
            && AccountReads::of(&given) == response.reads
            && read.codes.into_values().eq(response.codes.iter().cloned())
            && headers.oldest == oldest;
        if !is_canonical {
            return Err(ProofError::Unused.into());
        }
        let verified = VerifiedCall {
            output: result.output().cloned().unwrap_or_default(),
            is_success: result.is_success(),
            gas_used: result.gas().tx_gas_used(),
            gas,
            number,
            trust,
        };
        let outcome = |what| Err(LightClientError::CallOutcome { what });
        if verified.output != response.output {
            return outcome("output");
        }
        if u64::from(verified.is_success) != response.status.to::<u64>() {
            return outcome("status");
        }
        if verified.gas_used != response.gas_used.to::<u64>() {
            return outcome("gas used");
        }
        Ok(verified)
    }
}

/// The gas of a call whose request names none, at most: the default of `--rpc.gascap`. A node that
/// chose it freely could keep a verifier busy for ever.
const GAS_CAP: u64 = 50_000_000;

/// The request with this gas limit, if a node may choose it.
fn with_gas(
    request: &TransactionRequest,
    gas: u64,
) -> Result<TransactionRequest, LightClientError> {
    match request.gas {
        Some(asked) if gas > asked => Err(LightClientError::CallOutcome { what: "gas limit" }),
        None if gas > GAS_CAP => Err(LightClientError::Call {
            why: format!(
                "{gas} gas is above {GAS_CAP}, the most for a call that names no gas limit"
            ),
        }),
        _ => Ok(TransactionRequest { gas: Some(gas), ..request.clone() }),
    }
}

fn failed(error: TransactError) -> LightClientError {
    let why = match error {
        TransactError::Database(error) => format!("{error}"),
        error => error.to_string(),
    };
    LightClientError::Call { why }
}

/// Headers that lead to a trusted block.
struct HeaderChain {
    block: Header,
    /// Number of the first one.
    oldest: u64,
    /// Hashes of the ancestors that they name, by number.
    hashes: BTreeMap<u64, B256>,
}

impl HeaderChain {
    /// Reads headers, oldest first; the last one has the trusted hash.
    fn open(rlp: &[Bytes], trusted: B256) -> Result<Self, LightClientError> {
        let (mut wanted, mut hashes, mut block) = (trusted, BTreeMap::new(), None::<Header>);
        let mut oldest = 0;
        for rlp in rlp.iter().rev() {
            let refused = |fault| LightClientError::Header { hash: wanted, fault };
            let got = keccak256(rlp);
            if got != wanted {
                return Err(refused(crate::HeaderFault::OtherHash(got)));
            }
            let mut bytes = rlp.as_ref();
            let header = Header::decode(&mut bytes).ok().filter(|_| bytes.is_empty());
            let header = header.ok_or_else(|| refused(crate::HeaderFault::Malformed))?;
            oldest = header.number;
            if let Some(parent) = oldest.checked_sub(1) {
                hashes.insert(parent, header.parent_hash);
            }
            wanted = header.parent_hash;
            block.get_or_insert(header);
        }
        let missing =
            LightClientError::Header { hash: trusted, fault: crate::HeaderFault::Malformed };
        Ok(Self { block: block.ok_or(missing)?, oldest, hashes })
    }
}

/// The values that a proof shows.
struct ProvenState(BTreeMap<StateKey, Option<StateValue>>);

impl StateReader for ProvenState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let missing = || StateError::MissingWitness { what: key.to_string() };
        self.0.get(key).cloned().ok_or_else(missing)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        Err(StateError::MissingWitness { what: format!("the list of the slots of {address}") })
    }
}

/// Codes and hashes that were given with a proof.
struct ProvenReads<'a> {
    codes: &'a BTreeMap<B256, Bytes>,
    hashes: &'a BTreeMap<u64, B256>,
}

impl retrie_execution::CodeReader for ProvenReads<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        let missing = || StateError::MissingWitness { what: format!("the code {hash}") };
        self.codes.get(hash).cloned().map(Some).ok_or_else(missing)
    }
}

impl retrie_execution::BlockHashes for ProvenReads<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        let missing = || StateError::MissingWitness { what: format!("the hash of block {number}") };
        self.hashes.get(&number).copied().map(Some).ok_or_else(missing)
    }
}
