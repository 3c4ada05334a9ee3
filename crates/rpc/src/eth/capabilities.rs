//! `eth_capabilities`: which data of the chain this node has.

use crate::{RpcContext, RpcResult, args::register_read};
use alloy_primitives::{B256, U64};
use jsonrpsee::RpcModule;
use retrie_db::ChainRead;
use retrie_engine::LiveView;
use retrie_state_store::StateId;
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_capabilities", |_, view, _| capabilities(&view));
}

/// The response of `eth_capabilities`.
#[derive(Clone, Debug, Serialize)]
struct EthCapabilities {
    head: CapabilitiesHead,
    state: DataRetention,
    tx: DataRetention,
    logs: DataRetention,
    receipts: DataRetention,
    blocks: DataRetention,
    stateproofs: DataRetention,
}

#[derive(Clone, Debug, Serialize)]
struct CapabilitiesHead {
    number: U64,
    hash: B256,
}

/// The oldest block for which the node has a kind of data.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DataRetention {
    disabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_block: Option<U64>,
}

impl DataRetention {
    fn from(block: u64) -> Self {
        Self { disabled: false, oldest_block: Some(U64::from(block)) }
    }
}

fn capabilities(view: &LiveView) -> RpcResult<EthCapabilities> {
    let store = view.live().chain().state();
    let (durable, head) = (view.durable(), view.head());
    let first = durable.first()?.map_or(0, |first| first.number);
    let whole = DataRetention::from(first.max(durable.bodies_pruned_below()?));
    let receipts = DataRetention::from(first.max(durable.receipts_pruned_below()?));
    let retained = store.retained().map_or(head.number, |kept| *kept.start());
    let history = match view.live().backend().extensions().history {
        Some(_) => store.history_kept()?.map(|kept| *kept.start()),
        None => None,
    };
    let values = store.flat_history_kept(StateId::Tip)?.map(|kept| *kept.start());
    let proven = history.unwrap_or(retained).min(retained);
    let stateproofs = match view.live().backend().profile().proofs {
        true => DataRetention::from(proven),
        false => DataRetention { disabled: true, oldest_block: None },
    };
    Ok(EthCapabilities {
        head: CapabilitiesHead { number: U64::from(head.number), hash: head.hash() },
        state: DataRetention::from(values.unwrap_or(proven).min(proven)),
        tx: whole,
        logs: receipts,
        receipts,
        blocks: whole,
        stateproofs,
    })
}
