//! The namespace `trace`: transactions as trees of calls, in OpenEthereum's form.

mod call;
mod filter;
mod past;
mod replay;
mod rewards;

use crate::RpcContext;
use jsonrpsee::{Methods, RpcModule};

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    past::register(&mut module);
    filter::register(&mut module);
    replay::register(&mut module);
    call::register(&mut module);
    module.into()
}
