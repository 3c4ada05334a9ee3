//! What the kind of state root in a header decides.

use crate::{RpcError, RpcResult};
use retrie_chainspec::primitives::SealedHeader;
use retrie_engine::LiveView;
use retrie_pipeline::RootKind;

/// Refuses what only a header with the root of the Merkle Patricia trie proves.
///
/// # Errors
/// If the header of this block carries the root of the binary tree.
pub(crate) fn refuse_binary_root(
    view: &LiveView,
    block: &SealedHeader,
    what: &str,
) -> RpcResult<()> {
    let chain = view.live().chain();
    if chain.root_kind(block.timestamp) == RootKind::Merkle {
        return Ok(());
    }
    let binary = chain.state().backend().profile().binary_root;
    let advice = match binary {
        true => "state_getProof proves against it",
        false => "state_getProof of a node with --state-backend pbt proves against it",
    };
    Err(RpcError::Rejected(format!(
        "there are no {what} of block {} ({}): the state root in its header is that of the \
         partitioned binary tree (EIP-8297), not of the Merkle Patricia trie; {advice}",
        block.number,
        block.hash()
    )))
}
