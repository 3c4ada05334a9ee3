//! The namespace `eth`: blocks, transactions, receipts, state, fees, logs and subscriptions.
//!
//! One file per kind of method. [`EthState`](crate::eth_state::EthState) holds what they keep
//! between requests.

mod access_list;
mod account;
mod accounts;
mod block;
mod capabilities;
mod config;
mod fee;
mod fill;
mod filters;
mod log_filter;
mod logs;
mod pending;
mod proof;
mod receipt;
mod send;
mod subscribe;
mod transaction;

pub(crate) use accounts::personal_methods;

use crate::RpcContext;
use jsonrpsee::{Methods, RpcModule};

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
