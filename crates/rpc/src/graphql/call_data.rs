//! Calls and estimates.

use super::{
    scalars::{AddressScalar, BigIntScalar, BytesScalar, LongScalar},
    scope::{QueryScope, wrong_argument},
};
use crate::{RpcResult, call};
use alloy_eips::BlockId;
use alloy_primitives::TxKind;
use alloy_rpc_types_eth::{TransactionInput, TransactionRequest};
use async_graphql::{InputObject, SimpleObject};

/// A call. What is left out is empty or 0, as in `eth_call`.
#[derive(Debug, InputObject)]
pub(super) struct CallData {
    /// The account that calls.
    from: Option<AddressScalar>,
    /// The account that is called; without it, the call creates a contract.
    to: Option<AddressScalar>,
    /// Gas of the call.
    gas: Option<LongScalar>,
    /// Price of gas in wei.
    gas_price: Option<BigIntScalar>,
    /// Highest price of gas in wei (EIP-1559).
    max_fee_per_gas: Option<BigIntScalar>,
    /// Highest tip for each unit of gas in wei (EIP-1559).
    max_priority_fee_per_gas: Option<BigIntScalar>,
    /// Wei that the call transfers.
    value: Option<BigIntScalar>,
    /// Its input.
    data: Option<BytesScalar>,
}

impl CallData {
    fn into_request(self) -> RpcResult<TransactionRequest> {
        let fee = |fee: Option<BigIntScalar>, name: &str| {
            let fee = fee.map(|BigIntScalar(fee)| u128::try_from(fee)).transpose();
            fee.map_err(|_| wrong_argument(format!("{name} has more than 128 bits")))
        };
        Ok(TransactionRequest {
            from: self.from.map(|from| from.0),
            to: self.to.map(|to| TxKind::Call(to.0)),
            gas: self.gas.map(|gas| gas.0),
            gas_price: fee(self.gas_price, "gasPrice")?,
            max_fee_per_gas: fee(self.max_fee_per_gas, "maxFeePerGas")?,
            max_priority_fee_per_gas: fee(self.max_priority_fee_per_gas, "maxPriorityFeePerGas")?,
            value: self.value.map(|value| value.0),
            input: self.data.map_or_else(TransactionInput::default, |data| data.0.into()),
            ..TransactionRequest::default()
        })
    }

    /// Executes the call on the state after a block.
    pub(super) fn call(self, scope: &QueryScope, block: BlockId) -> RpcResult<CallOutcome> {
        let QueryScope { rpc, view, .. } = scope;
        let result = call::call_result(rpc, view, self.into_request()?, block)?;
        Ok(CallOutcome {
            gas_used: LongScalar(result.tx_gas_used()),
            status: LongScalar(u64::from(result.is_success())),
            data: BytesScalar(result.into_output().unwrap_or_default()),
        })
    }

    /// The least gas with which the call succeeds after a block.
    pub(super) fn estimate(self, scope: &QueryScope, block: BlockId) -> RpcResult<LongScalar> {
        let QueryScope { rpc, view, .. } = scope;
        call::least_gas(rpc, view, self.into_request()?, block).map(LongScalar)
    }
}

/// The result of a call.
#[derive(Debug, SimpleObject)]
#[graphql(name = "CallResult")]
pub(super) struct CallOutcome {
    /// What it returned, also if it was reverted.
    data: BytesScalar,
    /// Gas that it used, after refunds.
    gas_used: LongScalar,
    /// 1 if it succeeded, 0 if not.
    status: LongScalar,
}
