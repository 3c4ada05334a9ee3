//! A small JSON-RPC client: blocks and state of a node, over HTTP, in batches.
//!
//! ```text
//!  block(n), accounts, slots, proofs --> calls --> batches --> POST --> typed results
//! ```
//!
//! Only `eth_*` methods of the execution API specification are used, with some exceptions: if a block
//! cannot be rebuilt from its JSON (its hash differs), `debug_getRawBlock` is called;
//! [traces](RpcClient::block_traces) come from `debug_traceBlockByNumber`, and
//! [witnesses](RpcClient::execution_witness) from `debug_executionWitness`. An answer
//! with one block is limited to 96 MiB, any other answer to 1 GiB.
//!
//! **The node is not trusted**: a [block](RpcClient::block) is returned only if everything in it
//! hashes to its header; the caller has to check state, by execution or by
//! [proof](RpcClient::proofs).
//!
//! Requests are repeated after transient failures (connection, timeout, 429 with its `Retry-After`,
//! 5xx). If a node refuses a batch, smaller batches and finally single calls are sent.

mod block;
mod error;
mod fetcher;
mod health;
mod proof;
mod state_sync;
mod trace;
mod wire;

use std::{
    sync::atomic::{AtomicU64, AtomicUsize},
    time::Duration,
};

use alloy_eips::BlockHashOrNumber;
use alloy_primitives::{Address, B256, Bytes, TxKind, U64, U256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header, Transaction},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use error::{RpcError, RpcErrorKind};
pub use health::NodeHealth;
pub use state_sync::StateSyncOffer;
pub use trace::{BlockTraces, TracedAccount, TracedDiff, TracedState, TransactionTrace};

use crate::{
    http::{BlockingClient, HttpOptions},
    witness::WitnessAnswer,
};
use wire::RpcCall;

/// Calls in a batch, at most.
const BATCH: usize = 100;

/// A node's JSON-RPC endpoint.
#[derive(Debug)]
pub struct RpcClient {
    http: BlockingClient,
    url: String,
    /// The address without secrets.
    endpoint: String,
    /// Calls in a batch; 1 means no batches.
    batch: AtomicUsize,
    next_id: AtomicU64,
}

/// An account of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteAccount {
    /// Nonce.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// Code, empty for a plain account.
    pub code: Bytes,
}

/// The keys that a transaction touches, according to `eth_createAccessList`.
pub type TouchedKeys = Vec<(Address, Vec<B256>)>;

impl RpcClient {
    /// A client of the endpoint at `url`. Connects with the first request.
    pub fn new(url: &str, http: BlockingClient) -> Self {
        Self {
            http,
            url: url.to_owned(),
            endpoint: origin_of(url),
            batch: AtomicUsize::new(BATCH),
            next_id: AtomicU64::new(1),
        }
    }

    /// A client of the same endpoint with another time-out and without retries.
    pub fn single_try(&self, timeout: Duration) -> Self {
        Self::new(
            &self.url,
            self.http.with_options(HttpOptions { timeout, retries: 0, ..HttpOptions::default() }),
        )
    }

    /// Scheme and host of the endpoint, for messages.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Fails unless the node is on this chain (`eth_chainId`).
    ///
    /// # Errors
    /// [`RpcErrorKind::WrongChain`], or why the node did not answer.
    pub fn check_chain(&self, spec: &ChainSpec) -> Result<(), RpcError> {
        let call = RpcCall::new("eth_chainId", json!([]), None);
        let got: U64 = self.one(&call)?;
        if got.to::<u64>() == spec.chain_id() {
            return Ok(());
        }
        let chain = spec.name().to_owned();
        let (expected, got) = (spec.chain_id(), got.to());
        Err(self.error(&call, RpcErrorKind::WrongChain { chain, expected, got }))
    }

    /// The block with this number on the node's canonical chain. Its hash is checked against the
    /// node's answer, its body against its header.
    ///
    /// # Errors
    /// [`RpcErrorKind::NoBlock`], [`RpcErrorKind::Block`], or why the node did not answer.
    pub fn block(&self, number: u64) -> Result<Block, RpcError> {
        block::fetch(self, number)
    }

    /// The header with this number on the node's canonical chain, and its hash, which is checked.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub fn header(&self, number: u64) -> Result<(B256, Header), RpcError> {
        block::fetch_header(self, number)
    }

    /// The block with this hash, complete and checked, canonical or not.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub fn block_by_hash(&self, hash: B256) -> Result<Block, RpcError> {
        block::fetch_by_hash(self, hash)
    }

    /// The header of the block with this hash, which is checked.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub fn header_by_hash(&self, hash: B256) -> Result<Header, RpcError> {
        block::fetch_header_by_hash(self, hash)
    }

    /// Hash and header of the block that the node calls `tag`: `latest`, `safe`, `finalized`.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub fn tagged(&self, tag: &str) -> Result<(B256, Header), RpcError> {
        block::fetch_tag(self, tag)
    }

    /// The witness of the block with this hash or number (`debug_executionWitness`), in the node's
    /// own form. The caller has to check it.
    ///
    /// # Errors
    /// As [`accounts`](Self::accounts). Only some nodes take a hash.
    pub fn execution_witness(&self, block: BlockHashOrNumber) -> Result<WitnessAnswer, RpcError> {
        let (named, number) = match block {
            BlockHashOrNumber::Hash(hash) => (json!(hash), None),
            BlockHashOrNumber::Number(number) => (json!(quantity(number)), Some(number)),
        };
        self.one(&RpcCall::new("debug_executionWitness", json!([named]), number))
    }

    /// The part of a proof that a retrie node of the same backend keeps (`state_getProofPart`), for
    /// the account and its slots, after the block with this hash. The caller has to check it.
    ///
    /// # Errors
    /// Why the node did not answer.
    pub fn proof_part(
        &self,
        address: Address,
        slots: &[B256],
        block: B256,
    ) -> Result<Bytes, RpcError> {
        let params = json!([address, slots, { "blockHash": block }]);
        self.one(&RpcCall::new("state_getProofPart", params, None))
    }

    /// As [`proof_part`](Self::proof_part), for several accounts with their slots, as the `reads` of
    /// `state_call` have them.
    ///
    /// # Errors
    /// Why the node did not answer.
    pub fn proof_part_of(&self, reads: &impl Serialize, block: B256) -> Result<Bytes, RpcError> {
        let params = json!([reads, { "blockHash": block }]);
        self.one(&RpcCall::new("state_getProofPart", params, None))
    }

    /// Accounts after block `at`; those that do not exist are empty (`eth_getBalance`,
    /// `eth_getTransactionCount`, `eth_getCode`).
    ///
    /// # Errors
    /// [`RpcErrorKind::Pruned`] if the node has dropped this state, or why it did not answer.
    pub fn accounts(&self, addresses: &[Address], at: u64) -> Result<Vec<RemoteAccount>, RpcError> {
        let calls: Vec<_> = addresses
            .iter()
            .flat_map(|address| {
                ["eth_getBalance", "eth_getTransactionCount", "eth_getCode"]
                    .map(|method| RpcCall::new(method, json!([address, quantity(at)]), Some(at)))
            })
            .collect();
        let mut results = calls.iter().zip(self.all(&calls)?);
        let mut accounts = Vec::with_capacity(addresses.len());
        while let (Some(balance), Some(nonce), Some(code)) =
            (results.next(), results.next(), results.next())
        {
            accounts.push(RemoteAccount {
                balance: self.parse(balance.0, balance.1)?,
                nonce: self.parse::<U64>(nonce.0, nonce.1)?.to(),
                code: self.parse(code.0, code.1)?,
            });
        }
        Ok(accounts)
    }

    /// Values of storage slots after block `at` (`eth_getStorageAt`).
    ///
    /// # Errors
    /// As [`accounts`](Self::accounts).
    pub fn slots(&self, keys: &[(Address, B256)], at: u64) -> Result<Vec<U256>, RpcError> {
        let slot = |(address, slot): &(Address, B256)| {
            RpcCall::new("eth_getStorageAt", json!([address, slot, quantity(at)]), Some(at))
        };
        let calls: Vec<_> = keys.iter().map(slot).collect();
        let values = self.all(&calls)?;
        calls.iter().zip(values).map(|(call, value)| self.parse(call, value)).collect()
    }

    /// The trie nodes that prove accounts and slots after block `at` under its state root
    /// (`eth_getProof`), in one list.
    ///
    /// # Errors
    /// As [`accounts`](Self::accounts). Many nodes offer this method for recent blocks only, or not
    /// at all.
    pub fn proofs(&self, keys: &[(Address, Vec<B256>)], at: u64) -> Result<Vec<Bytes>, RpcError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct EthProof {
            account_proof: Vec<Bytes>,
            #[serde(default)]
            storage_proof: Vec<SlotProof>,
        }
        #[derive(Deserialize)]
        struct SlotProof {
            proof: Vec<Bytes>,
        }
        let proof = |(address, slots): &(Address, Vec<B256>)| {
            RpcCall::new("eth_getProof", json!([address, slots, quantity(at)]), Some(at))
        };
        let calls: Vec<_> = keys.iter().map(proof).collect();
        let mut nodes = Vec::new();
        for (call, value) in calls.iter().zip(self.all(&calls)?) {
            let proof: EthProof = self.parse(call, value)?;
            nodes.extend(proof.account_proof);
            nodes.extend(proof.storage_proof.into_iter().flat_map(|slot| slot.proof));
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    /// The keys that each transaction would touch, executed alone on the state after block `at`
    /// (`eth_createAccessList`). A hint: empty if the node gives none.
    ///
    /// # Errors
    /// Why the node did not answer at all.
    pub fn touched<'t>(
        &self,
        transactions: impl IntoIterator<Item = (Address, &'t Transaction)>,
        at: u64,
    ) -> Result<Vec<TouchedKeys>, RpcError> {
        use alloy_consensus::Transaction as _;

        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct CreatedAccessList {
            access_list: Vec<TouchedItem>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct TouchedItem {
            address: Address,
            #[serde(default)]
            storage_keys: Vec<B256>,
        }
        let call = |(from, tx): (Address, &Transaction)| {
            let mut request = json!({
                "from": from,
                "gas": quantity(tx.gas_limit()),
                "value": tx.value(),
                "input": tx.input(),
            });
            if let TxKind::Call(to) = tx.kind() {
                request["to"] = json!(to);
            }
            RpcCall::new("eth_createAccessList", json!([request, quantity(at)]), Some(at))
        };
        let calls: Vec<_> = transactions.into_iter().map(call).collect();
        let results = self.each(&calls)?;
        let hint = |value: Value| {
            let CreatedAccessList { access_list } =
                serde_json::from_value(value).unwrap_or_default();
            access_list.into_iter().map(|item| (item.address, item.storage_keys)).collect()
        };
        Ok(results.into_iter().map(|result| result.map(hint).unwrap_or_default()).collect())
    }
}

/// A number as JSON-RPC writes it.
fn quantity(number: u64) -> String {
    format!("{number:#x}")
}

/// `https://host:port` of an address.
fn origin_of(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "the RPC endpoint".to_owned();
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::origin_of;

    #[test]
    fn keys_in_an_address_are_not_shown() {
        for (url, origin) in [
            ("https://mainnet.infura.io/v3/0123", "https://mainnet.infura.io"),
            ("http://user:secret@host:8545/", "http://host:8545"),
            ("http://host?key=1", "http://host"),
            ("localhost:8545", "the RPC endpoint"),
        ] {
            assert_eq!(origin_of(url), origin);
        }
    }
}
