//! [`PoolRules`]: checks of a transaction against the rules of the next block, without state.

use crate::pool::{
    BlobSidecar, PoolConfig, PoolTransaction, SidecarError, TransactionError, TransactionOrigin,
};
use alloy_consensus::{Transaction as _, TxType, Typed2718};
use alloy_eips::{
    eip1559::MIN_PROTOCOL_BASE_FEE,
    eip2718::Encodable2718,
    eip4844::{
        BLOB_TX_MIN_BLOB_GASPRICE, BlobTransactionValidationError, env_settings::EnvKzgSettings,
    },
    eip7840::BlobParams,
};
use alloy_primitives::{B256, U256};
use retrie_chainspec::{
    ChainSpec, EthereumHardfork,
    primitives::{Header, SealedHeader, Transaction},
};
use retrie_consensus::ConsensusError;
use revm::{
    context::CfgEnv,
    context_interface::{Cfg, cfg::gas_params::Eip2780TxInfo},
    primitives::hardfork::SpecId,
};

/// The block after the head, as far as known: it determines forks, fees and gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextBlock {
    /// Number.
    pub number: u64,
    /// Expected timestamp in seconds.
    pub timestamp: u64,
    /// Gas limit.
    pub gas_limit: u64,
    /// Base fee per gas in wei, from London on.
    pub base_fee: Option<u64>,
    /// Fee per blob gas in wei, from Cancun on.
    pub blob_base_fee: Option<u128>,
}

impl NextBlock {
    /// The child of `head` at `timestamp` (seconds), with the same gas limit.
    ///
    /// # Errors
    /// [`ConsensusError`] for a head that can have no child.
    pub fn after(
        spec: &ChainSpec,
        head: &SealedHeader,
        timestamp: u64,
    ) -> Result<Self, ConsensusError> {
        let excess = retrie_consensus::next_excess_blob_gas(spec, head, timestamp)?;
        let blob_base_fee = excess
            .zip(spec.blob_params_at_timestamp(timestamp))
            .map(|(excess, params)| params.calc_blob_fee(excess));
        Ok(Self {
            number: head.number.saturating_add(1),
            timestamp,
            gas_limit: head.gas_limit,
            base_fee: retrie_consensus::next_base_fee(spec, head)?,
            blob_base_fee,
        })
    }
}

/// The rules of the next block.
#[derive(Debug)]
pub(super) struct PoolRules {
    /// The block they are for.
    pub(super) next: NextBlock,
    cfg: CfgEnv<SpecId>,
    blob_params: Option<BlobParams>,
}

impl PoolRules {
    pub(super) fn new(spec: &ChainSpec, head: &Header, next: NextBlock) -> Self {
        let header = Header {
            number: next.number,
            timestamp: next.timestamp,
            gas_limit: next.gas_limit,
            base_fee_per_gas: next.base_fee,
            // Shows proof of stake where the merge block is not known.
            difficulty: head.difficulty,
            ..Default::default()
        };
        let cfg = retrie_execution::evm_env(spec, &header).cfg_env;
        Self { next, cfg, blob_params: spec.blob_params_at_timestamp(next.timestamp) }
    }

    /// The same rules with another base fee per gas (wei) of the next block.
    pub(super) fn with_base_fee(&self, base_fee: Option<u64>) -> Self {
        let next = NextBlock { base_fee, ..self.next };
        Self { next, cfg: self.cfg.clone(), blob_params: self.blob_params }
    }

    /// Whether both rules accept the same transactions, apart from fees and block gas.
    pub(super) fn same_fork(&self, other: &Self) -> bool {
        self.cfg.spec == other.cfg.spec && self.blob_params == other.blob_params
    }

    fn is_active(&self, fork: SpecId) -> bool {
        self.cfg.spec.is_enabled_in(fork)
    }

    /// Whether the gas limit of the next block is large enough for a transaction.
    pub(super) fn fits_block(&self, tx: &PoolTransaction) -> bool {
        tx.transaction.gas_limit() <= self.next.gas_limit
    }

    /// Whether a transaction pays the fees of the next block.
    pub(super) fn pays_fees(&self, tx: &PoolTransaction) -> bool {
        pays(tx, self.next.base_fee.unwrap_or_default(), self.next.blob_base_fee)
    }

    /// All checks of a transaction that need no state, except the proofs of blobs.
    pub(super) fn check(
        &self,
        tx: &PoolTransaction,
        config: &PoolConfig,
    ) -> Result<(), TransactionError> {
        let (inner, sidecar) = (tx.transaction.inner(), tx.sidecar.as_deref());
        self.check_form(inner, sidecar, config)?;
        self.check_signed(tx, config)
    }

    /// The checks that do not need the sender. They only compute lengths and the hashes of
    /// commitments.
    pub(super) fn check_form(
        &self,
        tx: &Transaction,
        sidecar: Option<&BlobSidecar>,
        config: &PoolConfig,
    ) -> Result<(), TransactionError> {
        let (size, limit) = (tx.encode_2718_len(), config.max_tx_input_bytes);
        if size > limit {
            return Err(TransactionError::Oversized { size, limit });
        }
        self.check_type(tx, config)?;
        self.check_chain_id(tx)?;
        if self.is_active(SpecId::SHANGHAI) && tx.is_create() {
            let (size, limit) = (tx.input().len(), self.cfg.max_initcode_size());
            if size > limit {
                return Err(TransactionError::InitCodeSize { size, limit });
            }
        }
        if tx.nonce() == u64::MAX {
            return Err(TransactionError::NonceMax);
        }
        self.check_gas_limit(tx, config)?;
        self.check_fees(tx, config)?;
        if let Some(hashes) = tx.blob_versioned_hashes() {
            self.check_blobs(sidecar, hashes)?;
        }
        if tx.authorization_list().is_some_and(<[_]>::is_empty) {
            return Err(TransactionError::EmptyAuthorizations);
        }
        Ok(())
    }

    /// The checks that need the sender's address, but not its account.
    pub(super) fn check_signed(
        &self,
        tx: &PoolTransaction,
        config: &PoolConfig,
    ) -> Result<(), TransactionError> {
        self.check_intrinsic_gas(tx)?;
        let inner = tx.transaction.inner();
        match config.minimum_priority_fee {
            Some(minimum) if !tx.is_local && inner.priority_fee_or_price() < minimum => {
                return Err(TransactionError::TipTooLow {
                    tip: inner.priority_fee_or_price(),
                    minimum,
                });
            }
            _ => {}
        }
        if let Some(cap) = config.tx_fee_cap
            && tx.origin == TransactionOrigin::Local
        {
            let fee = U256::from(inner.gas_limit()) * U256::from(inner.max_fee_per_gas());
            if fee > U256::from(cap) {
                return Err(TransactionError::FeeCapExceeded { fee, cap });
            }
        }
        Ok(())
    }

    fn check_type(&self, tx: &Transaction, config: &PoolConfig) -> Result<(), TransactionError> {
        let (spec, fork) = match tx.tx_type() {
            TxType::Legacy => return Ok(()),
            TxType::Eip2930 => (SpecId::BERLIN, EthereumHardfork::Berlin),
            TxType::Eip1559 => (SpecId::LONDON, EthereumHardfork::London),
            TxType::Eip4844 => (SpecId::CANCUN, EthereumHardfork::Cancun),
            TxType::Eip7702 => (SpecId::PRAGUE, EthereumHardfork::Prague),
        };
        if !self.is_active(spec) {
            return Err(TransactionError::TypeNotActive { ty: tx.ty(), fork });
        }
        if config.disable_blobs && tx.is_eip4844() {
            return Err(TransactionError::BlobsDisabled);
        }
        Ok(())
    }

    fn check_chain_id(&self, tx: &Transaction) -> Result<(), TransactionError> {
        match tx.chain_id() {
            Some(got) if got != self.cfg.chain_id => {
                Err(TransactionError::ChainId { got, expected: self.cfg.chain_id })
            }
            // Signatures with a chain id are valid from EIP-155 on.
            Some(_) if !self.is_active(SpecId::SPURIOUS_DRAGON) => {
                Err(TransactionError::InvalidSignature)
            }
            _ => Ok(()),
        }
    }

    fn check_gas_limit(
        &self,
        tx: &Transaction,
        config: &PoolConfig,
    ) -> Result<(), TransactionError> {
        let got = tx.gas_limit();
        let fork_cap = retrie_execution::max_tx_gas_limit(&self.cfg);
        let cap = config.max_tx_gas_limit.unwrap_or(u64::MAX).min(fork_cap);
        if got > cap {
            return Err(TransactionError::GasLimitTooHigh { cap, got });
        }
        if got > self.next.gas_limit {
            return Err(TransactionError::ExceedsBlockGasLimit);
        }
        Ok(())
    }

    fn check_intrinsic_gas(&self, tx: &PoolTransaction) -> Result<(), TransactionError> {
        let got = tx.transaction.gas_limit();
        let inner = tx.transaction.inner();
        let (accounts, slots) = inner
            .access_list()
            .map_or((0, 0), |list| (list.len(), list.iter().map(|i| i.storage_keys.len()).sum()));
        let eip2780 = self.cfg.is_amsterdam_eip2780_enabled().then(|| Eip2780TxInfo {
            value: inner.value(),
            is_self_transfer: inner.to() == Some(tx.sender()),
        });
        let gas = self.cfg.gas_params.initial_tx_gas(
            inner.input(),
            inner.is_create(),
            accounts as u64,
            slots as u64,
            inner.authorization_count().unwrap_or_default(),
            eip2780,
        );
        if got < gas.initial_total_gas() {
            return Err(TransactionError::IntrinsicGas { got, needed: gas.initial_total_gas() });
        }
        if self.is_active(SpecId::PRAGUE) && got < gas.floor_gas() {
            return Err(TransactionError::FloorDataGas { got, needed: gas.floor_gas() });
        }
        // With EIP-8037 the cap of EIP-7825 limits regular gas only.
        let regular = gas.initial_regular_gas().max(gas.floor_gas());
        if self.cfg.is_amsterdam_eip8037_enabled() && regular > self.cfg.tx_gas_limit_cap() {
            return Err(TransactionError::GasLimitTooHigh {
                cap: self.cfg.tx_gas_limit_cap(),
                got: regular,
            });
        }
        Ok(())
    }

    fn check_fees(&self, tx: &Transaction, config: &PoolConfig) -> Result<(), TransactionError> {
        let (tip, fee_cap) = (tx.priority_fee_or_price(), tx.max_fee_per_gas());
        if tip > fee_cap {
            return Err(TransactionError::TipAboveFeeCap { tip, fee_cap });
        }
        if let Some(minimum) = self.minimum_fee(config)
            && fee_cap < minimum
        {
            return Err(TransactionError::Underpriced { fee_cap, minimum });
        }
        if let Some(fee_cap) = tx.max_fee_per_blob_gas()
            && fee_cap < BLOB_TX_MIN_BLOB_GASPRICE
        {
            let minimum = BLOB_TX_MIN_BLOB_GASPRICE;
            return Err(TransactionError::BlobFeeTooLow { fee_cap, minimum });
        }
        Ok(())
    }

    /// Smallest accepted maximum fee per gas in wei; `None` before London. A next base fee below
    /// the smallest that the rules can give was set by the user or the genesis of a dev chain; then
    /// it is the minimum.
    fn minimum_fee(&self, config: &PoolConfig) -> Option<u128> {
        let base_fee = self.next.base_fee?;
        let is_set = base_fee < MIN_PROTOCOL_BASE_FEE;
        Some(u128::from(if is_set { base_fee } else { config.minimal_protocol_base_fee }))
    }

    fn check_blobs(
        &self,
        sidecar: Option<&BlobSidecar>,
        named: &[B256],
    ) -> Result<(), TransactionError> {
        let hashes = named.len();
        let sidecar = sidecar.ok_or(SidecarError::Missing)?;
        if hashes == 0 {
            return Err(TransactionError::NoBlobs);
        }
        let permitted = self.blob_params.map_or(0, |params| params.max_blobs_per_tx);
        if hashes as u64 > permitted {
            return Err(TransactionError::TooManyBlobs { have: hashes as u64, permitted });
        }
        let blobs = sidecar.blobs().len();
        if blobs != hashes {
            return Err(SidecarError::BlobCount { blobs, hashes }.into());
        }
        // Before the sidecar's form: a sidecar of another transaction is always wrong, one of
        // another form only at this fork. Both are found before any proof is checked.
        for (have, expected) in named.iter().zip(sidecar.versioned_hashes()) {
            if *have != expected {
                let have = *have;
                let wrong = BlobTransactionValidationError::WrongVersionedHash { have, expected };
                return Err(SidecarError::Wrong(wrong).into());
            }
        }
        let (got, expected) = (sidecar.is_eip7594(), self.is_active(SpecId::OSAKA));
        if got != expected {
            let (expected, got) = (expected.into(), got.into());
            return Err(SidecarError::Version { expected, got }.into());
        }
        Ok(())
    }
}

/// Whether a transaction pays a base fee and, if it has blobs, a blob fee (wei).
pub(super) fn pays(tx: &PoolTransaction, base_fee: u64, blob_base_fee: Option<u128>) -> bool {
    tx.transaction.max_fee_per_gas() >= u128::from(base_fee)
        && tx
            .transaction
            .max_fee_per_blob_gas()
            .is_none_or(|cap| blob_base_fee.is_some_and(|fee| cap >= fee))
}

/// Checks hashes, commitments and proofs of a blob transaction. Takes milliseconds per blob, and
/// about a second the first time, to load the trusted setup.
pub(super) fn check_proofs(tx: &PoolTransaction) -> Result<(), SidecarError> {
    let Some(hashes) = tx.transaction.blob_versioned_hashes() else { return Ok(()) };
    let sidecar = tx.sidecar.as_ref().ok_or(SidecarError::Missing)?;
    sidecar.validate(hashes, EnvKzgSettings::Default.get()).map_err(SidecarError::Wrong)
}
