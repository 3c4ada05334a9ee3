//! What of the chain this node has: `eth_capabilities`.

use crate::{RpcContext, RpcResult, args::read};
use alloy_primitives::{B256, U64};
use jsonrpsee::RpcModule;
use retrie_db::ChainRead;
use retrie_engine::View;
use retrie_state::At;
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    read(module, "eth_capabilities", |_, view, _| capabilities(&view));
}

/// The answer of `eth_capabilities`.
#[derive(Clone, Debug, Serialize)]
struct Capabilities {
    head: Head,
    state: Kept,
    tx: Kept,
    logs: Kept,
    receipts: Kept,
    blocks: Kept,
    stateproofs: Kept,
}

#[derive(Clone, Debug, Serialize)]
struct Head {
    number: U64,
    hash: B256,
}

/// From which block on something is there.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    disabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_block: Option<U64>,
}

impl Kept {
    fn from(block: u64) -> Self {
        Self { disabled: false, oldest_block: Some(U64::from(block)) }
    }
}

fn capabilities(view: &View) -> RpcResult<Capabilities> {
    let store = view.live().chain().state();
    let (durable, head) = (view.durable(), view.head());
    let first = durable.first()?.map_or(0, |first| first.number);
    let whole = Kept::from(first.max(durable.bodies_pruned_below()?));
    let receipts = Kept::from(first.max(durable.receipts_pruned_below()?));
    let retained = store.retained().map_or(head.number, |kept| *kept.start());
    let history = match view.live().backend().history() {
        Some(_) => store.history_kept()?.map(|kept| *kept.start()),
        None => None,
    };
    let values = store.flat_history_kept(At::Tip)?.map(|kept| *kept.start());
    let proven = history.unwrap_or(retained).min(retained);
    let stateproofs = match view.live().backend().capabilities().proofs {
        true => Kept::from(proven),
        false => Kept { disabled: true, oldest_block: None },
    };
    Ok(Capabilities {
        head: Head { number: U64::from(head.number), hash: head.hash() },
        state: Kept::from(values.unwrap_or(proven).min(proven)),
        tx: whole,
        logs: receipts,
        receipts,
        blocks: whole,
        stateproofs,
    })
}
