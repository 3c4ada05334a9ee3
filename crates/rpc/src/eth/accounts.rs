//! Methods of accounts whose keys this node holds: the dev accounts. Other chains have none.

use super::{
    fill, receipt,
    send::{SealWatch, check_fee},
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{register_async, register_quick},
    geth_errors::output,
    replay::{StoredOutcome, state_before},
    wallet::{DevWallet, impersonated_transaction},
};
use alloy_consensus::TypedTransaction;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_eth::TransactionRequest;
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{
    LiveView,
    pool::{PooledTransaction, TransactionOrigin},
};
use revm::inspector::NoOpInspector;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_quick(module, "eth_accounts", |rpc, _| Ok(rpc.accounts.to_vec()));
    register_quick(module, "eth_coinbase", |rpc, _| -> RpcResult<Address> {
        let first = rpc.accounts.first().copied();
        first.ok_or_else(|| RpcError::Rejected("etherbase must be explicitly specified".into()))
    });
    let request = |args: &mut MethodParams<'_>| args.object::<TransactionRequest>();
    register_async(module, "eth_sendTransaction", request, |rpc, request| async move {
        send(&rpc, request).await.map_err(|error| rpc.error_for_client(error))
    });
    register_async(module, "eth_signTransaction", request, |rpc, request| async move {
        let context = (*rpc).clone();
        rpc.run_heavy(move |view| sign_transaction(&context, &view, request.clone())).await
    });
    register_quick(module, "eth_sign", |rpc, args| {
        let (address, message): (Address, Bytes) = (args.required()?, args.required()?);
        wallet(rpc, &address)?.sign_message(&message)
    });
    for name in ["eth_signTypedData", "eth_signTypedData_v4"] {
        register_quick(module, name, |rpc, args| {
            let (address, data): (Address, &RawValue) = (args.required()?, args.required()?);
            wallet(rpc, &address)?.sign_typed_data(data)
        });
    }
}

/// The methods of the namespace `personal` that tools still call.
pub(crate) fn personal_methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "personal_sign", |rpc, args| {
        let (message, address): (Bytes, Address) = (args.required()?, args.required()?);
        // A password; no key of this node has one.
        let _: Option<Value> = args.optional()?;
        wallet(rpc, &address)?.sign_message(&message)
    });
    module.into()
}

fn unknown_account() -> RpcError {
    RpcError::Rejected("unknown account: this node holds no keys".into())
}

/// The key of an unlocked account.
fn wallet(rpc: &RpcContext, address: &Address) -> RpcResult<DevWallet> {
    let is_unlocked = rpc.accounts.contains(address);
    DevWallet::of(address).filter(|_| is_unlocked).ok_or_else(unknown_account)
}

/// How transactions of an account are signed; impersonated accounts need no signature.
enum AccountSigner {
    Wallet(DevWallet),
    Impersonated,
}

fn signer(rpc: &RpcContext, from: &Address) -> RpcResult<AccountSigner> {
    match wallet(rpc, from) {
        Ok(wallet) => Ok(AccountSigner::Wallet(wallet)),
        Err(_) if rpc.dev.as_ref().is_some_and(|dev| dev.chain.is_impersonated(from)) => {
            Ok(AccountSigner::Impersonated)
        }
        Err(error) => Err(error),
    }
}

/// The transaction of a request, with all open fields filled.
fn typed(
    rpc: &RpcContext,
    view: &LiveView,
    mut request: TransactionRequest,
) -> RpcResult<TypedTransaction> {
    if request.blob_versioned_hashes.is_some() {
        return Err(RpcError::Rejected(
            "blob transactions have to be signed and sent with their sidecar: use \
             eth_sendRawTransaction"
                .into(),
        ));
    }
    // The type follows from the other fields.
    request.transaction_type = None;
    fill::complete(rpc, view, &mut request)?;
    request.chain_id = Some(rpc.live.spec().chain_id());
    request.to = Some(request.to.unwrap_or(alloy_primitives::TxKind::Create));
    request.build_typed_tx().map_err(|_| {
        RpcError::InvalidParams("invalid argument 0: fields of different types".into())
    })
}

/// `eth_sendTransaction`: signs and sends. With automining it responds once a block has the
/// transaction. If the transaction failed in that block, the response is an error, as in Hardhat,
/// although the transaction is mined.
async fn send(rpc: &RpcContext, request: TransactionRequest) -> RpcResult<B256> {
    let from = request.from.unwrap_or_default();
    let signer = signer(rpc, &from)?;
    let watch = SealWatch::start(rpc);
    let context = rpc.clone();
    let hash = rpc
        .run_heavy(move |view| {
            // Two concurrent transactions without a nonce must not get the same one.
            let _one_by_one = context.eth.sending.lock();
            let tx = typed(&context, &view, request.clone())?;
            let pool = context.pool()?;
            match &signer {
                AccountSigner::Wallet(wallet) => {
                    let tx = wallet.sign_transaction(tx)?;
                    check_fee(&tx, context.limits.tx_fee_cap)?;
                    Ok(pool.add(tx, TransactionOrigin::Local, &context.live)?)
                }
                AccountSigner::Impersonated => Ok(pool.add_unsigned(
                    impersonated_transaction(tx, &from)?,
                    from,
                    &context.live,
                )?),
            }
        })
        .await?;
    if watch.until_sealed(rpc, &hash).await {
        let context = rpc.clone();
        rpc.run_heavy(move |view| failure(&context, &view, &hash)).await?;
    }
    Ok(hash)
}

/// The error of a mined transaction, if it failed.
fn failure(rpc: &RpcContext, view: &LiveView, hash: &B256) -> RpcResult<()> {
    let Some(receipt) = receipt::of_transaction(rpc, view, hash)? else { return Ok(()) };
    if receipt.status() {
        return Ok(());
    }
    let Some(found) = view.transaction(hash)? else { return Ok(()) };
    let Some(block) = view.block(&found.block.hash)? else { return Ok(()) };
    let (state, index) = (view.state_before(&block)?, found.index as usize);
    let spec = rpc.live.spec().for_header(block.header());
    let mut simulation = state_before(rpc, &spec, &block, index, &state)?;
    let replayed = simulation.replay::<NoOpInspector>(&block, index, None);
    let (tx, outcome) = replayed.map_err(|error| RpcError::Internal(error.to_string()))?;
    StoredOutcome::of(view, &block)?.check(index, &outcome.result)?;
    output(&mut simulation, &tx, outcome.result).map(drop)
}

/// A signed transaction in EIP-2718 encoding and in JSON, in geth's form.
#[derive(Clone, Debug, Serialize)]
struct SignTransactionResult {
    raw: Bytes,
    tx: PooledTransaction,
}

fn sign_transaction(
    rpc: &RpcContext,
    view: &LiveView,
    request: TransactionRequest,
) -> RpcResult<SignTransactionResult> {
    let wallet = wallet(rpc, &request.from.unwrap_or_default())?;
    let tx = wallet.sign_transaction(typed(rpc, view, request)?)?;
    Ok(SignTransactionResult { raw: tx.encoded_2718().into(), tx })
}
