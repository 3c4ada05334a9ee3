//! The API namespaces, and building the methods of the chosen ones.

use crate::{
    RpcContext, admin, debug, dev, eth, net, ots, state, sync, testing, trace, txpool, web3,
};
use jsonrpsee::{Methods, RpcModule};
use serde_json::{Map, Value};
use std::{fmt, str::FromStr};

/// A group of methods whose names share a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiNamespace {
    /// Blocks, transactions, state, logs, calls.
    Eth,
    /// Network id and peer count.
    Net,
    /// Client version, and keccak-256.
    Web3,
    /// Content of the transaction pool.
    Txpool,
    /// The state store and its proofs.
    State,
    /// The node and its peers.
    Admin,
    /// Raw chain data, and traces in geth's form.
    Debug,
    /// Traces in OpenEthereum's form.
    Trace,
    /// State chunks for nodes that run state sync.
    Sync,
    /// The methods of Otterscan, a block explorer.
    Ots,
    /// Builds blocks with given contents, for tests.
    Testing,
}

impl ApiNamespace {
    /// All namespaces except [`Testing`](Self::Testing), which is served only if it is named.
    pub const ALL: [Self; 10] = [
        Self::Eth,
        Self::Net,
        Self::Web3,
        Self::Txpool,
        Self::State,
        Self::Admin,
        Self::Debug,
        Self::Trace,
        Self::Sync,
        Self::Ots,
    ];

    /// The default of `--http.api` and `--ws.api`.
    pub const DEFAULT: [Self; 3] = [Self::Eth, Self::Net, Self::Web3];

    /// The name on the command line and before the `_` of method names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eth => "eth",
            Self::Net => "net",
            Self::Web3 => "web3",
            Self::Txpool => "txpool",
            Self::State => "state",
            Self::Admin => "admin",
            Self::Debug => "debug",
            Self::Trace => "trace",
            Self::Sync => "sync",
            Self::Ots => "ots",
            Self::Testing => "testing",
        }
    }

    fn methods(self, context: &RpcContext) -> Methods {
        match self {
            Self::Eth => eth::methods(context),
            Self::Net => net::methods(context),
            Self::Web3 => web3::methods(context),
            Self::Txpool => txpool::methods(context),
            Self::State => state::methods(context),
            Self::Admin => admin::methods(context),
            Self::Debug => debug::methods(context),
            Self::Trace => trace::methods(context),
            Self::Sync => sync::methods(context),
            Self::Ots => ots::methods(context),
            Self::Testing => testing::methods(context),
        }
    }
}

impl fmt::Display for ApiNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no API namespace {name:?}; there are {}", ApiNamespace::ALL.map(ApiNamespace::name).join(", "))]
pub struct UnknownNamespace {
    /// The name.
    pub name: String,
}

impl FromStr for ApiNamespace {
    type Err = UnknownNamespace;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found =
            Self::ALL.into_iter().chain([Self::Testing]).find(|one| one.name() == name.trim());
        found.ok_or_else(|| UnknownNamespace { name: name.into() })
    }
}

/// The methods of the namespaces `apis`, and `rpc_modules`, which lists them. For a dev chain also
/// the methods of its tools.
///
/// Filters and other state of `eth` are in the context, so all transports share them.
pub fn build_methods(context: &RpcContext, apis: &[ApiNamespace]) -> Methods {
    let mut apis = apis.to_vec();
    apis.sort_unstable();
    apis.dedup();
    let tools = dev::namespaces(context);
    let names = apis.iter().map(|api| api.name()).chain(tools.iter().map(|(name, _)| *name));
    let versions: Map<String, Value> = names.map(|name| (name.into(), "1.0".into())).collect();
    let mut modules = RpcModule::new(versions);
    let listed = modules.register_method("rpc_modules", |_, versions, _| {
        let mut versions = versions.clone();
        versions.insert("rpc".into(), "1.0".into());
        Value::Object(versions)
    });
    listed.expect("the first method");
    for api in apis {
        modules.merge(api.methods(context)).expect("names start with that of their namespace");
    }
    for (_, methods) in tools {
        modules.merge(methods).expect("names start with that of their namespace");
    }
    modules.into()
}
