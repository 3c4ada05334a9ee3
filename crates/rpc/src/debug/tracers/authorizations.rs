//! EIP-7702 authorizations of a transaction, as far as tracers need them.

use alloy_primitives::{Address, U256, map::HashMap};
use retrie_execution::InspectorContext;
use revm::{
    Database,
    context::{TransactionType, TxEnv},
    context_interface::{
        Cfg, ContextTr, JournalTr,
        transaction::{AuthorizationTr, Transaction},
    },
};

/// The authorities of the authorizations, in order; invalid signatures are skipped.
pub(super) fn authorities(tx: &TxEnv) -> impl Iterator<Item = Address> {
    tx.authorization_list().filter_map(|authorization| authorization.authority())
}

/// The refund for applied authorizations of existing accounts. revm adds it after the execution; in
/// geth the refund counter includes it from the first step on. If a read fails, the execution fails
/// too.
pub(super) fn authorization_refund(context: &mut InspectorContext<'_>) -> u64 {
    let tx = context.tx().clone();
    if tx.tx_type() != TransactionType::Eip7702 || context.cfg().is_amsterdam_eip2780_enabled() {
        return 0;
    }
    let chain_id = U256::from(context.cfg().chain_id());
    let mut signers: HashMap<Address, AuthorityState> = HashMap::default();
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
            .or_insert_with(|| AuthorityState::before(context, authority, is_sender));
        if signer.has_code || signer.nonce != authorization.nonce() {
            continue;
        }
        refunded += u64::from(signer.exists);
        let applied = AuthorityState { exists: true, nonce: signer.nonce + 1, has_code: false };
        signers.insert(authority, applied);
    }
    context.cfg().gas_params().tx_eip7702_auth_refund_regular().saturating_mul(refunded)
}

/// State of an authority while authorizations are applied.
#[derive(Clone, Copy)]
struct AuthorityState {
    exists: bool,
    nonce: u64,
    /// Whether it has code that is no delegation.
    has_code: bool,
}

impl AuthorityState {
    /// The state before the first authorization. The nonce of the transaction's sender is already
    /// incremented.
    fn before(context: &mut InspectorContext<'_>, address: Address, is_sender: bool) -> Self {
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
