//! Namespaces by name, and putting them together.

use crate::{RpcContext, admin, debug, dev, eth, net, state, sync, testing, trace, txpool, web3};
use jsonrpsee::{Methods, RpcModule};
use serde_json::{Map, Value};
use std::{fmt, str::FromStr};

/// A group of methods whose names start alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// Blocks, transactions, state, logs, calls.
    Eth,
    /// The network's id and peers.
    Net,
    /// Name of the client, and keccak-256.
    Web3,
    /// What waits for a block.
    Txpool,
    /// The state store and its proofs.
    State,
    /// The node.
    Admin,
    /// Raw chain data, and traces in geth's forms.
    Debug,
    /// Traces in the form of OpenEthereum.
    Trace,
    /// States handed out to nodes that begin.
    Sync,
    /// Blocks built as a test wants them.
    Testing,
}

impl Namespace {
    /// All of them but [`Testing`](Self::Testing), which is served only where it is named.
    pub const ALL: [Self; 9] = [
        Self::Eth,
        Self::Net,
        Self::Web3,
        Self::Txpool,
        Self::State,
        Self::Admin,
        Self::Debug,
        Self::Trace,
        Self::Sync,
    ];

    /// Those that are served if nothing else is said (`--http.api`, `--ws.api`).
    pub const DEFAULT: [Self; 3] = [Self::Eth, Self::Net, Self::Web3];

    /// Its name, as on the command line and before the `_` of its methods.
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
            Self::Testing => testing::methods(context),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no namespace has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no API namespace {name:?}; there are {}", Namespace::ALL.map(Namespace::name).join(", "))]
pub struct UnknownNamespace {
    /// The name.
    pub name: String,
}

impl FromStr for Namespace {
    type Err = UnknownNamespace;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found =
            Self::ALL.into_iter().chain([Self::Testing]).find(|one| one.name() == name.trim());
        found.ok_or_else(|| UnknownNamespace { name: name.into() })
    }
}

/// The methods of the namespaces `apis`, and `rpc_modules`, which lists them; of a dev chain also those
/// of its tools.
///
/// Filters belong to what this returns: build it once for all transports.
pub fn build_methods(context: &RpcContext, apis: &[Namespace]) -> Methods {
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
