//! The namespace `ots`: the methods of Otterscan, a block explorer that has no database of its own
//! (level 8 of its API); and `erigon_getHeaderByNumber`, which it calls too.
//!
//! Block numbers and sizes are JSON numbers, as Otterscan sends them, or hexadecimal. Methods that
//! search by address need the address index (`--index.addresses`).

mod blocks;
mod calls;
mod lookups;
mod search;
mod trace;

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{register_quick, register_read},
    context::ResolveBlock,
};
use alloy_primitives::{Address, KECCAK256_EMPTY, U64};
use jsonrpsee::{Methods, RpcModule};
use retrie_state::StateReader;

/// The level of the API, which Otterscan compares with the one that it needs.
const API_LEVEL: u8 = 8;
/// Most transactions that a page asks for.
const MOST_PAGE: usize = 250;

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "ots_getApiLevel", |_, _| Ok(API_LEVEL));
    register_read(&mut module, "ots_hasCode", |_, view, args| {
        let address: Address = args.required()?;
        let block = args.optional_lenient_block()?.unwrap_or_default();
        let account = view.state_after(block)?.account(&address)?;
        Ok(account.is_some_and(|account| account.code_hash != KECCAK256_EMPTY))
    });
    blocks::register(&mut module);
    lookups::register(&mut module);
    search::register(&mut module);
    trace::register(&mut module);
    module.into()
}

/// Reads the next parameter: the size of a page.
fn page_size(args: &mut MethodParams<'_>) -> RpcResult<usize> {
    let size: U64 = args.required()?;
    match usize::try_from(size.to::<u64>()) {
        Ok(size @ 1..=MOST_PAGE) => Ok(size),
        _ => Err(RpcError::InvalidParams(format!(
            "a page of {size} transactions; ask for 1 to {MOST_PAGE}"
        ))),
    }
}
