//! The namespace `eth`: blocks, transactions, receipts, state, fees, logs and subscriptions.
//!
//! One file per kind of question. What is needed between requests is in [`Shared`].

mod access_list;
mod account;
mod accounts;
mod block;
mod capabilities;
mod config;
pub(crate) mod convert;
mod fee;
mod fill;
mod filters;
mod interests;
mod log_filter;
mod logs;
mod proof;
mod receipt;
mod send;
mod subscribe;
mod transaction;

pub(crate) use accounts::personal_methods;
pub(crate) use convert::pool_transaction;
pub(crate) use receipt::intermediate_roots;

use crate::RpcContext;
use jsonrpsee::{Methods, RpcModule};

/// What methods of `eth` keep between requests, whatever transport these come by.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    filters: filters::Filters,
    tips: fee::Tips,
    pub(crate) proofs: proof::Permits,
    roots: receipt::IntermediateRoots,
    subscriptions: subscribe::Subscriptions,
    /// Held while a transaction of this node's accounts gets its nonce and goes into the pool.
    sending: parking_lot::Mutex<()>,
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    access_list::register(&mut module);
    account::register(&mut module);
    accounts::register(&mut module);
    block::register(&mut module);
    capabilities::register(&mut module);
    config::register(&mut module);
    fee::register(&mut module);
    fill::register(&mut module);
    filters::register(&mut module);
    logs::register(&mut module);
    proof::register(&mut module);
    receipt::register(&mut module);
    send::register(&mut module);
    subscribe::register(&mut module);
    transaction::register(&mut module);
    crate::call::register(&mut module);
    module.into()
}
