//! The methods of the dev chain's namespaces.

use crate::{DevNode, MethodParams, RpcContext, RpcError, RpcResult, args::register_async};
use alloy_primitives::{Address, B256, Bytes, U256};
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{DevChain, DevError, SealingMode};
use retrie_execution::AccountOverride;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{future::Future, sync::Arc, time::Duration};

/// What the methods can use.
struct DevTools {
    rpc: RpcContext,
    dev: Arc<DevNode>,
}

type Module = RpcModule<DevTools>;

pub(super) fn namespaces(context: &RpcContext, dev: &Arc<DevNode>) -> Vec<(&'static str, Methods)> {
    let module = || RpcModule::new(DevTools { rpc: context.clone(), dev: dev.clone() });
    let (mut evm, mut hardhat, mut anvil) = (module(), module(), module());
    register_evm(&mut evm);
    register_hardhat(&mut hardhat);
    register_anvil(&mut anvil);
    let personal = crate::eth::personal_methods(context);
    vec![
        ("evm", evm.into()),
        ("hardhat", hardhat.into()),
        ("anvil", anvil.into()),
        ("personal", personal),
    ]
}

impl From<DevError> for RpcError {
    fn from(error: DevError) -> Self {
        match error {
            DevError::TimeGoesBack { .. } | DevError::NonceGoesBack { .. } => {
                Self::InvalidParams(error.to_string())
            }
            error => Self::Rejected(error.to_string()),
        }
    }
}

/// A number as tools send it: `"0x10"`, `"16"` or `16`.
fn number(args: &mut MethodParams<'_>) -> RpcResult<u64> {
    let value: U256 = args.required()?;
    value.try_into().map_err(|_| RpcError::InvalidParams(format!("{value} has more than 64 bits")))
}

fn optional_number(args: &mut MethodParams<'_>) -> RpcResult<Option<u64>> {
    let value: Option<U256> = args.optional()?;
    let fits = |value: U256| {
        let failed = |_| RpcError::InvalidParams(format!("{value} has more than 64 bits"));
        u64::try_from(value).map_err(failed)
    };
    value.map(fits).transpose()
}

/// Registers a method that reads its parameters at once and then may wait.
fn method<A, T, F>(
    module: &mut Module,
    name: &'static str,
    read: impl Fn(&mut MethodParams<'_>) -> RpcResult<A> + Clone + Send + Sync + 'static,
    work: impl Fn(DevChain, A) -> F + Clone + Send + Sync + 'static,
) where
    A: Send + 'static,
    T: Serialize + Clone + Send + 'static,
    F: Future<Output = RpcResult<T>> + Send + 'static,
{
    register_async(module, name, read, move |tools: Arc<DevTools>, read| {
        work(tools.dev.chain.clone(), read)
    });
}

/// Registers a method that runs on the server's own thread.
fn quick<T: Serialize + Clone + Send + 'static>(
    module: &mut Module,
    name: &'static str,
    work: impl Fn(&DevTools, &mut MethodParams<'_>) -> RpcResult<T> + Send + Sync + 'static,
) {
    let registered = module.register_method(name, move |params, tools, _| {
        let mut args = MethodParams::new(&params)?;
        let answer = work(tools, &mut args)?;
        args.end().map(|()| answer)
    });
    registered.expect("a namespace names each of its methods once");
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

// -- methods of both Hardhat and anvil ------------------------------------------------------------

/// Names of the methods that several namespaces have.
struct MethodNames {
    snapshot: &'static str,
    revert: &'static str,
    increase_time: &'static str,
    set_next_timestamp: &'static str,
    set_automine: &'static str,
    set_gas_limit: &'static str,
}

fn register_common(module: &mut Module, names: &MethodNames) {
    method(
        module,
        names.snapshot,
        |_| Ok(()),
        |chain, ()| async move { Ok(hex(chain.snapshot().await)) },
    );
    method(module, names.revert, number, |chain, id| async move { Ok(chain.revert(id).await?) });
    quick(module, names.increase_time, |tools, args| {
        Ok(tools.dev.chain.increase_time(number(args)?))
    });
    quick(module, names.set_next_timestamp, |tools, args| {
        let timestamp = number(args)?;
        tools.dev.chain.set_next_timestamp(timestamp)?;
        Ok(timestamp.to_string())
    });
    quick(module, names.set_automine, |tools, args| {
        let chain = &tools.dev.chain;
        match (args.required::<bool>()?, chain.sealing()) {
            (true, _) => chain.set_sealing(SealingMode::Instant),
            (false, SealingMode::Instant) => chain.set_sealing(SealingMode::Manual),
            (false, _) => {}
        }
        Ok(true)
    });
    quick(module, names.set_gas_limit, |tools, args| {
        tools.dev.chain.set_gas_limit(number(args)?);
        Ok(true)
    });
}

fn set_interval(chain: &DevChain, interval: Duration) {
    match (interval.is_zero(), chain.sealing()) {
        (false, _) => chain.set_sealing(SealingMode::Interval(interval)),
        (true, SealingMode::Interval(_)) => chain.set_sealing(SealingMode::Manual),
        (true, _) => {}
    }
}

/// The parameter of `evm_mine`: a timestamp, or an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum MineRequest {
    At(U256),
    Wishes { timestamp: Option<U256>, blocks: Option<U256> },
}

fn register_evm(module: &mut Module) {
    register_common(
        module,
        &MethodNames {
            snapshot: "evm_snapshot",
            revert: "evm_revert",
            increase_time: "evm_increaseTime",
            set_next_timestamp: "evm_setNextBlockTimestamp",
            set_automine: "evm_setAutomine",
            set_gas_limit: "evm_setBlockGasLimit",
        },
    );
    let wishes = |args: &mut MethodParams<'_>| {
        Ok(match args.optional()? {
            None => (None, 1),
            Some(MineRequest::At(timestamp)) => (Some(timestamp), 1),
            Some(MineRequest::Wishes { timestamp, blocks }) => {
                (timestamp, blocks.map_or(1, |blocks| blocks.saturating_to()))
            }
        })
    };
    method(module, "evm_mine", wishes, |chain, (timestamp, blocks)| async move {
        // Tools send zero for no timestamp.
        let timestamp = timestamp.map(|time| time.saturating_to()).filter(|time| *time > 0);
        chain.mine(blocks, None, timestamp).await?;
        Ok("0x0")
    });
    quick(module, "evm_setTime", |tools, args| {
        tools.dev.chain.set_time(number(args)?)?;
        Ok(true)
    });
    // Hardhat and most of its callers use milliseconds here.
    quick(module, "evm_setIntervalMining", |tools, args| {
        set_interval(&tools.dev.chain, Duration::from_millis(number(args)?));
        Ok(true)
    });
}

/// The methods that Hardhat and anvil both have, with different prefixes.
macro_rules! register_twins {
    ($module:expr, $prefix:literal) => {{
        let module: &mut Module = &mut *$module;
        set(module, concat!($prefix, "_setBalance"), |args| {
            let (address, balance) = (args.required()?, args.required()?);
            Ok((address, AccountOverride { balance: Some(balance), ..Default::default() }))
        });
        set(module, concat!($prefix, "_setCode"), |args| {
            let (address, code): (_, Bytes) = (args.required()?, args.required()?);
            Ok((address, AccountOverride { code: Some(code), ..Default::default() }))
        });
        set(module, concat!($prefix, "_setNonce"), |args| {
            let (address, nonce) = (args.required()?, number(args)?);
            Ok((address, AccountOverride { nonce: Some(nonce), ..Default::default() }))
        });
        set(module, concat!($prefix, "_setStorageAt"), |args| {
            let (address, slot, value) = (args.required()?, args.required()?, args.required()?);
            Ok((address, AccountOverride { slots: vec![(slot, value)], ..Default::default() }))
        });
        quick(module, concat!($prefix, "_impersonateAccount"), |tools, args| {
            tools.dev.chain.impersonate(args.required()?, true);
            Ok(true)
        });
        quick(module, concat!($prefix, "_stopImpersonatingAccount"), |tools, args| {
            tools.dev.chain.impersonate(args.required()?, false);
            Ok(true)
        });
        method(
            module,
            concat!($prefix, "_mine"),
            |args| Ok((optional_number(args)?, optional_number(args)?)),
            |chain, (count, interval)| async move {
                chain.mine(count.unwrap_or(1), interval, None).await?;
                Ok(true)
            },
        );
        quick(module, concat!($prefix, "_dropTransaction"), |tools, args| {
            Ok(tools.dev.chain.drop_transaction(&args.hash()?))
        });
        method(
            module,
            concat!($prefix, "_reset"),
            |args| args.optional::<Value>(),
            |chain, wishes| async move {
                let forking = wishes.as_ref().and_then(|wishes| wishes.get("forking"));
                if forking.is_some_and(|forking| !forking.is_null()) {
                    return Err(RpcError::Rejected(
                        "this node does not fork another chain: reset without `forking`".into(),
                    ));
                }
                chain.reset().await?;
                Ok(true)
            },
        );
        quick(module, concat!($prefix, "_setCoinbase"), |tools, args| {
            tools.dev.chain.set_beneficiary(args.required()?);
            Ok(true)
        });
        quick(module, concat!($prefix, "_setNextBlockBaseFeePerGas"), |tools, args| {
            tools.dev.chain.set_next_base_fee(number(args)?);
            Ok(true)
        });
        quick(module, concat!($prefix, "_setPrevRandao"), |tools, args| {
            tools.dev.chain.set_prev_randao(B256::from(args.required::<U256>()?));
            Ok(true)
        });
        quick(module, concat!($prefix, "_getAutomine"), |tools, _| {
            Ok(tools.dev.chain.sealing() == SealingMode::Instant)
        });
        quick(module, concat!($prefix, "_metadata"), |tools, _| Ok(metadata(tools)));
    }};
}

/// Registers a method that changes an account.
fn set(
    module: &mut Module,
    name: &'static str,
    read: impl Fn(&mut MethodParams<'_>) -> RpcResult<(Address, AccountOverride)>
    + Clone
    + Send
    + Sync
    + 'static,
) {
    method(module, name, read, |chain, (address, changed)| async move {
        chain.set_account(address, changed).await?;
        Ok(true)
    });
}

fn metadata(tools: &DevTools) -> Value {
    let head = tools.rpc.live.head();
    json!({
        "clientVersion": tools.dev.client_version,
        "chainId": tools.rpc.live.spec().chain_id(),
        "latestBlockNumber": head.number,
        "latestBlockHash": head.hash(),
    })
}

fn register_hardhat(module: &mut Module) {
    register_twins!(module, "hardhat");
}

fn register_anvil(module: &mut Module) {
    register_twins!(module, "anvil");
    register_common(
        module,
        &MethodNames {
            snapshot: "anvil_snapshot",
            revert: "anvil_revert",
            increase_time: "anvil_increaseTime",
            set_next_timestamp: "anvil_setNextBlockTimestamp",
            set_automine: "anvil_setAutomine",
            set_gas_limit: "anvil_setBlockGasLimit",
        },
    );
    quick(module, "anvil_setTime", |tools, args| {
        tools.dev.chain.set_time(number(args)?)?;
        Ok(true)
    });
    quick(module, "anvil_setIntervalMining", |tools, args| {
        set_interval(&tools.dev.chain, Duration::from_secs(number(args)?));
        Ok(true)
    });
    quick(module, "anvil_setBlockTimestampInterval", |tools, args| {
        tools.dev.chain.set_block_time_step(Some(number(args)?));
        Ok(true)
    });
    quick(module, "anvil_removeBlockTimestampInterval", |tools, _| {
        tools.dev.chain.set_block_time_step(None);
        Ok(true)
    });
    quick(module, "anvil_autoImpersonateAccount", |tools, args| {
        tools.dev.chain.impersonate_all(args.required()?);
        Ok(true)
    });
    quick(module, "anvil_dropAllTransactions", |tools, _| {
        tools.dev.chain.drop_transactions(None);
        Ok(true)
    });
    quick(module, "anvil_removePoolTransactions", |tools, args| {
        tools.dev.chain.drop_transactions(Some(args.required()?));
        Ok(true)
    });
    quick(module, "anvil_nodeInfo", |tools, _| {
        let (head, next) = (tools.rpc.live.head(), tools.dev.chain.next_block());
        Ok(json!({
            "currentBlockNumber": hex(head.number),
            "currentBlockTimestamp": head.timestamp,
            "currentBlockHash": head.hash(),
            "transactionOrder": "fees",
            "environment": {
                "baseFee": hex(next.base_fee.or(head.base_fee_per_gas).unwrap_or_default()),
                "chainId": tools.rpc.live.spec().chain_id(),
                "gasLimit": hex(next.gas_limit.unwrap_or(head.gas_limit)),
            },
            "forkConfig": {},
        }))
    });
}
