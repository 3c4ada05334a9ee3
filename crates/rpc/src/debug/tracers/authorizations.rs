//! Authorizations of a transaction (EIP-7702), as far as tracers have to know of them.

use alloy_primitives::{Address, U256, map::HashMap};
use retrie_execution::BlockContext;
use revm::{
    Database,
    context::{TransactionType, TxEnv},
    context_interface::{
        Cfg, ContextTr, JournalTr,
        transaction::{AuthorizationTr, Transaction},
    },
};

/// Who has signed authorizations, in their order; those whose signature is none are left out.
pub(super) fn authorities(tx: &TxEnv) -> impl Iterator<Item = Address> {
    tx.authorization_list().filter_map(|authorization| authorization.authority())
}

/// What the applied authorizations give back, for accounts that were there before. In revm that comes in at
/// the end; in geth it is part of the refund counter from the first step on. A read that fails makes the
/// execution fail.
pub(super) fn authorization_refund(context: &mut BlockContext<'_>) -> u64 {
    let tx = context.tx().clone();
    if tx.tx_type() != TransactionType::Eip7702 || context.cfg().is_amsterdam_eip2780_enabled() {
        return 0;
    }
    let chain_id = U256::from(context.cfg().chain_id());
    let mut signers: HashMap<Address, Signer> = HashMap::default();
    let mut refunded = 0;
    for authorization in tx.authorization_list() {
        let of = authorization.chain_id();
        if (!of.is_zero() && of != chain_id) || authorization.nonce() == u64::MAX {
            continue;
        }
        let Some(authority) = authorization.authority() else { continue };
        let is_sender = authority == tx.caller();
        let signer = *signers
            .entry(authority)
            .or_insert_with(|| Signer::before(context, authority, is_sender));
        if signer.has_code || signer.nonce != authorization.nonce() {
            continue;
        }
        refunded += u64::from(signer.exists);
        let applied = Signer { exists: true, nonce: signer.nonce + 1, has_code: false };
        signers.insert(authority, applied);
    }
    context.cfg().gas_params().tx_eip7702_auth_refund_regular().saturating_mul(refunded)
}

/// An account that signs, while authorizations are applied.
#[derive(Clone, Copy)]
struct Signer {
    exists: bool,
    nonce: u64,
    /// Code that is no delegation.
    has_code: bool,
}

impl Signer {
    /// Before the first authorization. The nonce of the transaction's sender is already used up.
    fn before(context: &mut BlockContext<'_>, address: Address, is_sender: bool) -> Self {
        let db = context.journal_mut().db_mut();
        let info = db.basic(address).ok().flatten();
        let exists = info.is_some();
        let info = info.unwrap_or_default();
        let has_code = !info.is_empty_code_hash() && {
            let code = info.code.or_else(|| db.code_by_hash(info.code_hash).ok());
            code.is_some_and(|code| !code.is_empty() && !code.is_eip7702())
        };
        Self { exists, nonce: info.nonce.saturating_add(is_sender.into()), has_code }
    }
}
