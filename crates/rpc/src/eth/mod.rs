//! The namespace `eth`: blocks, transactions, receipts, state, fees, logs and subscriptions; and
//! `state_getLogs`, which shows that no log is missing.
//!
//! One file per kind of method. [`EthState`](crate::eth_state::EthState) holds what they keep
//! between requests.

mod access_list;
mod account;
mod accounts;
mod block;
mod capabilities;
mod complete_logs;
mod config;
mod fee;
mod fill;
mod filters;
mod log_cursor;
mod log_filter;
mod log_pages;
mod log_tables;
mod logs;
mod pending;
mod proof;
mod receipt;
mod send;
mod subscribe;
mod transaction;

pub(crate) use accounts::personal_methods;
#[cfg(feature = "graphql")]
pub(crate) use {
    account::{account, code, transaction_count},
    block::{protocol_version, syncing},
    fee::{gas_price, next_base_fee, tip},
    logs::search as search_logs,
    receipt::of_block as block_receipts,
    send::send_signed,
};

use crate::RpcContext;
use jsonrpsee::{Methods, RpcModule};

/// Registers `state_getLogs`, which belongs to the namespace `state`.
pub(crate) fn register_complete_logs(module: &mut RpcModule<RpcContext>) {
    complete_logs::register(module);
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
    log_pages::register(&mut module);
    proof::register(&mut module);
    receipt::register(&mut module);
    send::register(&mut module);
    subscribe::register(&mut module);
    transaction::register(&mut module);
    crate::call::register(&mut module);
    module.into()
}
