//! Accounts whose keys this node holds: those of a dev chain, and none elsewhere.

use super::{
    fill, receipt,
    send::{Watch, check_fee},
};
use crate::{
    Args, RpcContext, RpcError, RpcResult,
    args::{quick, waiting},
    replay::{StoredOutcome, state_before},
    wallet::{Wallet, unsigned},
    words::output,
};
use alloy_consensus::TypedTransaction;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_eth::TransactionRequest;
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{
    View,
    pool::{Origin, PooledTransaction},
};
use revm::inspector::NoOpInspector;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    quick(module, "eth_accounts", |rpc, _| Ok(rpc.accounts.to_vec()));
    quick(module, "eth_coinbase", |rpc, _| -> RpcResult<Address> {
        let first = rpc.accounts.first().copied();
        first.ok_or_else(|| RpcError::Rejected("etherbase must be explicitly specified".into()))
    });
    let request = |args: &mut Args<'_>| args.object::<TransactionRequest>();
    waiting(module, "eth_sendTransaction", request, |rpc, request| async move {
        send(&rpc, request).await.map_err(|error| rpc.word(error))
    });
    waiting(module, "eth_signTransaction", request, |rpc, request| async move {
        let context = (*rpc).clone();
        rpc.run(move |view| sign_transaction(&context, &view, request)).await
    });
    quick(module, "eth_sign", |rpc, args| {
        let (address, message): (Address, Bytes) = (args.required()?, args.required()?);
        wallet(rpc, &address)?.sign_message(&message)
    });
    for name in ["eth_signTypedData", "eth_signTypedData_v4"] {
        quick(module, name, |rpc, args| {
            let (address, data): (Address, &RawValue) = (args.required()?, args.required()?);
            wallet(rpc, &address)?.sign_typed_data(data)
        });
    }
}

/// The methods of the namespace `personal` that tools still call.
pub(crate) fn personal_methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    quick(&mut module, "personal_sign", |rpc, args| {
        let (message, address): (Bytes, Address) = (args.required()?, args.required()?);
        // A password, which no key here has.
        let _: Option<Value> = args.optional()?;
        wallet(rpc, &address)?.sign_message(&message)
    });
    module.into()
}

fn unknown_account() -> RpcError {
    RpcError::Rejected("unknown account: this node holds no keys".into())
}

/// The key of an account that is unlocked here.
fn wallet(rpc: &RpcContext, address: &Address) -> RpcResult<Wallet> {
    let is_unlocked = rpc.accounts.contains(address);
    Wallet::of(address).filter(|_| is_unlocked).ok_or_else(unknown_account)
}

/// Who signs for an account, or that nobody has to.
enum Signer {
    Wallet(Wallet),
    Nobody,
}

fn signer(rpc: &RpcContext, from: &Address) -> RpcResult<Signer> {
    match wallet(rpc, from) {
        Ok(wallet) => Ok(Signer::Wallet(wallet)),
        Err(_) if rpc.dev.as_ref().is_some_and(|dev| dev.chain.is_impersonated(from)) => {
            Ok(Signer::Nobody)
        }
        Err(error) => Err(error),
    }
}

/// The transaction of a request, in which everything is filled.
fn typed(
    rpc: &RpcContext,
    view: &View,
    mut request: TransactionRequest,
) -> RpcResult<TypedTransaction> {
    if request.blob_versioned_hashes.is_some() {
        return Err(RpcError::Rejected(
            "blob transactions have to be signed and sent with their sidecar: use \
             eth_sendRawTransaction"
                .into(),
        ));
    }
    // What has a type of its own follows from the other fields.
    request.transaction_type = None;
    fill::complete(rpc, view, &mut request)?;
    request.chain_id = Some(rpc.live.spec().chain_id());
    request.to = Some(request.to.unwrap_or(alloy_primitives::TxKind::Create));
    request.build_typed_tx().map_err(|_| {
        RpcError::InvalidParams("invalid argument 0: fields of different types".into())
    })
}

/// `eth_sendTransaction`: signs and sends. Where blocks are sealed at once it answers once the
/// transaction is in one, and a transaction that failed there is an error, as in Hardhat: it is mined
/// all the same.
async fn send(rpc: &RpcContext, request: TransactionRequest) -> RpcResult<B256> {
    let from = request.from.unwrap_or_default();
    let signer = signer(rpc, &from)?;
    let watch = Watch::start(rpc);
    let context = rpc.clone();
    let hash = rpc
        .run(move |view| {
            // Two transactions that leave their nonce open must not be given the same one.
            let _one_by_one = context.eth.sending.lock();
            let tx = typed(&context, &view, request)?;
            let pool = context.pool()?;
            match signer {
                Signer::Wallet(wallet) => {
                    let tx = wallet.sign_transaction(tx)?;
                    check_fee(&tx, context.limits.tx_fee_cap)?;
                    Ok(pool.add(tx, Origin::Local, &context.live)?)
                }
                Signer::Nobody => {
                    Ok(pool.add_unsigned(unsigned(tx, &from)?, from, &context.live)?)
                }
            }
        })
        .await?;
    if watch.until_sealed(rpc, &hash).await {
        let context = rpc.clone();
        rpc.run(move |view| failure(&context, &view, &hash)).await?;
    }
    Ok(hash)
}

/// How a mined transaction failed, if it did.
fn failure(rpc: &RpcContext, view: &View, hash: &B256) -> RpcResult<()> {
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

/// A signed transaction in its EIP-2718 encoding and in JSON, as geth shows it.
#[derive(Clone, Debug, Serialize)]
struct Signed {
    raw: Bytes,
    tx: PooledTransaction,
}

fn sign_transaction(
    rpc: &RpcContext,
    view: &View,
    request: TransactionRequest,
) -> RpcResult<Signed> {
    let wallet = wallet(rpc, &request.from.unwrap_or_default())?;
    let tx = wallet.sign_transaction(typed(rpc, view, request)?)?;
    Ok(Signed { raw: tx.encoded_2718().into(), tx })
}
