//! The switch of a chain to the partitioned binary tree (EIP-8347), under the names of geth's branch.

use crate::{RpcContext, RpcResult, args::register_read, context::ResolveBlock};
use alloy_primitives::B256;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::SealedHeader;
use retrie_engine::LiveView;
use retrie_pipeline::{JoinStep, RootKind};
use retrie_state::BlockRef;
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "debug_shadowStateRoot", |_, view, args| {
        let block = view.find(args.block()?)?;
        Ok(block.map(|block| view.shadow_root(&block)).transpose()?.flatten())
    });
    register_read(module, "debug_migrationProgress", |_, view, _| progress(&view));
}

/// The response of `debug_migrationProgress`.
#[derive(Clone, Debug, Serialize)]
struct MigrationProgress {
    phase: ChainPhase,
    /// The binary tree before the switch.
    binary: Option<TreeProgress>,
    /// The Merkle Patricia trie after the switch.
    merkle: Option<TreeProgress>,
}

/// How far the chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ChainPhase {
    /// The chain has no `binaryTrieTime`.
    Inactive,
    /// No block with the binary tree's root is final yet.
    Running,
    /// A block with the binary tree's root is final.
    Done,
}

/// The tree whose root headers do not carry.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TreeProgress {
    phase: TreePhase,
    /// Number of the last block whose shadow root it has given.
    cursor: u64,
    cursor_hash: B256,
    shadow_root: B256,
    /// Always empty: a store that fails stops the node.
    error: &'static str,
}

/// What the tree does. Once a store has joined, it changes in one transaction with the other.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum TreePhase {
    /// Its store is loaded from the state of the block at the cursor.
    Loading,
    /// Its store applies blocks, and is behind the head.
    Following,
    /// It is at the head.
    Synced,
    /// Headers carry its root by now.
    Parked,
}

impl TreeProgress {
    fn at(view: &LiveView, block: &SealedHeader, phase: TreePhase) -> RpcResult<Option<Self>> {
        let root = view.shadow_root(block)?;
        Ok(root.map(|shadow_root| Self {
            phase,
            cursor: block.number,
            cursor_hash: block.hash(),
            shadow_root,
            error: "",
        }))
    }
}

/// The tree of a referee that joins the chain.
fn joining(step: JoinStep) -> Option<TreeProgress> {
    let tree = |phase, block: BlockRef, shadow_root| TreeProgress {
        phase,
        cursor: block.number,
        cursor_hash: block.hash,
        shadow_root,
        error: "",
    };
    match step {
        JoinStep::Begun => None,
        JoinStep::Load { block, .. } => Some(tree(TreePhase::Loading, block, B256::ZERO)),
        JoinStep::CatchUp { at, root, .. } => Some(tree(TreePhase::Following, at, root)),
    }
}

fn progress(view: &LiveView) -> RpcResult<MigrationProgress> {
    let chain = view.live().chain();
    let without_trees = |phase| MigrationProgress { phase, binary: None, merkle: None };
    let binary = chain.joining().and_then(|joined| joining(joined.step()));
    if chain.binary_tree_time().is_none() {
        return Ok(MigrationProgress { binary, ..without_trees(ChainPhase::Inactive) });
    }
    if binary.is_some() {
        return Ok(MigrationProgress { binary, ..without_trees(ChainPhase::Running) });
    }
    let finalized = view.finalized().map(|block| view.header(&block.hash)).transpose()?.flatten();
    let is_binary = |header: &SealedHeader| chain.root_kind(header.timestamp) == RootKind::Binary;
    if finalized.is_some_and(|header| is_binary(&header)) {
        return Ok(without_trees(ChainPhase::Done));
    }
    let head = view.head();
    let (binary, merkle) = if is_binary(head) {
        let last = view.last_merkle_block()?;
        let parked = last.map(|block| TreeProgress::at(view, &block, TreePhase::Parked));
        (parked.transpose()?.flatten(), TreeProgress::at(view, head, TreePhase::Synced)?)
    } else {
        (TreeProgress::at(view, head, TreePhase::Synced)?, None)
    };
    Ok(MigrationProgress { phase: ChainPhase::Running, binary, merkle })
}
