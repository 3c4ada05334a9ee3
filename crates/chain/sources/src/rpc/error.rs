//! Why an RPC endpoint gave no usable answer. Errors name the endpoint, the method and the block.

use std::fmt;

use alloy_primitives::B256;

use crate::{error::SourceErrorKind, http::HttpFault};

/// JSON-RPC 2.0: the method does not exist.
const NO_SUCH_METHOD: i64 = -32601;

/// Why an RPC endpoint gave no usable answer. Displays as one line.
///
/// The endpoint is named by scheme and host only: paths and logins often hold keys.
#[derive(Debug)]
pub struct RpcError {
    /// Scheme and host of the endpoint.
    pub endpoint: String,
    /// The method.
    pub method: &'static str,
    /// The block that the request was about.
    pub block: Option<u64>,
    /// The failure.
    pub kind: Box<RpcErrorKind>,
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, method, block, kind } = self;
        write!(f, "{endpoint}, {method}")?;
        if let Some(block) = block {
            write!(f, " at block {block}")?;
        }
        write!(f, ": {kind}")
    }
}

// The message includes the cause.
impl std::error::Error for RpcError {}

/// The failure of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcErrorKind {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpFault),
    /// The answer is not JSON-RPC.
    #[error("the answer is not JSON-RPC 2.0 ({0}): is this an RPC endpoint?")]
    NotJsonRpc(String),
    /// The node refused the request.
    #[error("the node refuses: {message} (code {code})")]
    Refused {
        /// JSON-RPC error code.
        code: i64,
        /// Its message.
        message: String,
    },
    /// The node no longer has the state of the block.
    #[error(
        "the node does not have the state of that block ({message}): an archive node is needed"
    )]
    Pruned {
        /// The node's message.
        message: String,
    },
    /// The node does not have the block.
    #[error("the node has no such block; is it synced that far?")]
    NoBlock,
    /// The result has another shape than the method's.
    #[error("the result is not what the method gives: {0}")]
    Result(serde_json::Error),
    /// The node is on another chain.
    #[error("the node is on chain id {got}, but {chain} has {expected}")]
    WrongChain {
        /// Name of the expected chain.
        chain: String,
        /// Its chain id.
        expected: u64,
        /// The node's chain id.
        got: u64,
    },
    /// The block contradicts itself.
    #[error("the node's block is not sound: {0}")]
    Block(SourceErrorKind),
    /// More ommers than a block may have.
    #[error("the node's block names {count} ommers, and no block has more than {most}")]
    TooManyOmmers {
        /// Number of ommers.
        count: usize,
        /// The maximum.
        most: usize,
    },
    /// The node's answers contradict each other.
    #[error("{what} is {got}, expected {expected}: the node's answers contradict each other")]
    Mismatch {
        /// The value that differs.
        what: &'static str,
        /// The value in another answer.
        expected: B256,
        /// The value in this answer.
        got: B256,
    },
}

impl RpcErrorKind {
    /// Classifies the refusal of a node.
    pub(super) fn refusal(code: i64, message: String) -> Self {
        const PRUNED: [&str; 9] = [
            "missing trie node",
            "is not available",
            "not available, not found",
            "prun",
            "historical state",
            "distance to target block exceeds",
            "no state available",
            "state not available",
            "required historical",
        ];
        let lower = message.to_ascii_lowercase();
        let message = message.replace('\n', " ");
        // "The method does not exist/is not available" is not about the state.
        if code != NO_SUCH_METHOD && PRUNED.iter().any(|sign| lower.contains(sign)) {
            Self::Pruned { message }
        } else {
            Self::Refused { code, message }
        }
    }

    /// Whether the node refused the request, so that another method may succeed.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Pruned { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::RpcErrorKind;

    #[test]
    fn dropped_state_is_told_from_missing_methods() {
        for message in [
            "missing trie node 0102 (path ) state 0x03 is not available",
            "required historical state unavailable (reexec=0)",
            "distance to target block exceeds maximum proof window",
            "old data not available due to pruning",
        ] {
            let kind = RpcErrorKind::refusal(-32000, message.to_owned());
            assert!(matches!(kind, RpcErrorKind::Pruned { .. }), "{kind}");
        }
        let message = "the method eth_getProof does not exist/is not available";
        let kind = RpcErrorKind::refusal(-32601, message.to_owned());
        assert!(matches!(kind, RpcErrorKind::Refused { .. }), "{kind}");
    }
}
