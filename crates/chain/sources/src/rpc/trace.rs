//! What the transactions of a block touch and change (`debug_traceBlockByNumber` with geth's
//! `prestateTracer`).

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, Deserializer, de};
use serde_json::json;

use super::{RpcClient, RpcError, quantity, wire::RpcCall};

/// What the transactions of a block touch and change, in the order of the block. Rewards,
/// withdrawals and system calls are no transactions, so they are not there.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct BlockTraces {
    /// Number of the block.
    #[serde(deserialize_with = "number")]
    pub number: u64,
    /// The accounts and slots that each transaction touches, with their values before it. May be
    /// empty if only changes are known.
    #[serde(default, rename = "prestate")]
    pub touched: Vec<TransactionTrace<TracedState>>,
    /// What each transaction changes (`diffMode`).
    #[serde(rename = "diff")]
    pub changed: Vec<TransactionTrace<TracedDiff>>,
}

/// The trace of one transaction.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawTransactionTrace<T>")]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct TransactionTrace<T>(pub T);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawTransactionTrace<T> {
    tx_hash: Option<B256>,
    result: Option<T>,
    error: Option<String>,
}

impl<T> TryFrom<RawTransactionTrace<T>> for TransactionTrace<T> {
    type Error = String;

    fn try_from(raw: RawTransactionTrace<T>) -> Result<Self, String> {
        let RawTransactionTrace { tx_hash, result, error } = raw;
        let hash = tx_hash.map_or_else(String::new, |hash| format!(" {hash}"));
        result.map(Self).ok_or_else(|| match error {
            Some(error) => format!("the node could not trace transaction{hash}: {error}"),
            None => format!("transaction{hash} has no `result`"),
        })
    }
}

/// Accounts and the slots of each.
pub type TracedState = BTreeMap<Address, TracedAccount>;

/// What a transaction changes. An account that it removes is in `pre` alone; a slot that it clears
/// is in `pre` alone too.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TracedDiff {
    /// The accounts that change, before the transaction, and those of their slots that change.
    pub pre: TracedState,
    /// The fields and slots that change, after it.
    pub post: TracedState,
}

/// An account, or the fields of it that change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TracedAccount {
    /// Balance in wei.
    pub balance: Option<U256>,
    /// Nonce.
    #[serde(deserialize_with = "optional_number")]
    pub nonce: Option<u64>,
    /// Code.
    pub code: Option<Bytes>,
    /// Keccak-256 of the code; many nodes leave it out.
    pub code_hash: Option<B256>,
    /// Slots with their values; a slot that is not there is zero.
    pub storage: BTreeMap<B256, B256>,
}

/// A number as nodes write it: `5`, `"0x5"`.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberForm {
        Plain(u64),
        Text(String),
    }
    match NumberForm::deserialize(from)? {
        NumberForm::Plain(number) => Ok(number),
        NumberForm::Text(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        }
        .map_err(|_| de::Error::custom(format!("`{text}` is no number of 64 bits"))),
    }
}

fn optional_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    number(from).map(Some)
}

impl RpcClient {
    /// What the transactions of a block touch and change, as the node says. Nothing here can be
    /// checked against the block.
    ///
    /// # Errors
    /// Why the node did not answer. It must offer the `debug` namespace, and have the state before
    /// the block.
    pub fn block_traces(&self, number: u64) -> Result<BlockTraces, RpcError> {
        let call = |diff: bool| {
            let config = json!({
                "tracer": "prestateTracer",
                "tracerConfig": { "diffMode": diff },
            });
            let params = json!([quantity(number), config]);
            RpcCall::new("debug_traceBlockByNumber", params, Some(number))
        };
        let (touched, changed) = (call(false), call(true));
        Ok(BlockTraces { number, touched: self.one(&touched)?, changed: self.one(&changed)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shapes of geth's answers: plain nonces, missing fields, failed transactions.
    #[test]
    fn answers_of_nodes_are_read_and_failures_are_told() {
        let account = r#"{"balance":"0x10","nonce":7,"code":"0x60","storage":{}}"#;
        let address = Address::repeat_byte(1);
        let line = format!(
            r#"{{"number":"0x11","prestate":[{{"txHash":"{}","result":{{"{address}":{account}}}}}],
            "diff":[{{"result":{{"pre":{{}},"post":{{"{address}":{{"nonce":"0x8"}}}}}}}}]}}"#,
            B256::ZERO
        );
        let traces: BlockTraces = serde_json::from_str(&line).unwrap();
        let read = &traces.touched[0].0[&address];
        assert_eq!((traces.number, read.nonce, read.balance), (17, Some(7), Some(U256::from(16))));
        let post = &traces.changed[0].0.post[&address];
        assert_eq!((post.nonce, post.balance, post.storage.len()), (Some(8), None, 0));
        for (wrong, why) in [
            (r#"{"number":1,"diff":[{"error":"timeout"}]}"#, "timeout"),
            (r#"{"number":1,"diff":[{}]}"#, "no `result`"),
            (r#"{"number":"x","diff":[]}"#, "no number"),
            (r#"{"number":1}"#, "diff"),
        ] {
            let error = serde_json::from_str::<BlockTraces>(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
