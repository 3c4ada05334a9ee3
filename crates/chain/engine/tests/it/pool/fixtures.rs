//! Fixtures of the pool tests: accounts, transactions, blobs.

use alloy_consensus::{
    SignableTransaction, Signed, TxEip1559, TxEip4844, TxEip4844WithSidecar, TxEip7702, TxLegacy,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48, env_settings::EnvKzgSettings},
    eip7594::BlobTransactionSidecarEip7594,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, SealedHeader, Transaction},
};
use retrie_engine::pool::{
    BlobSidecar, HeadState, HeadStateProvider, NextBlock, PoolConfig, PoolStatus, PoolTransaction,
    PooledTransaction, TransactionOrigin, TransactionPool,
};
use retrie_pipeline::testkit::{CHAIN_ID, TestWallet};
use retrie_state::{Account, StateError};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

pub(crate) const GWEI: u128 = 1_000_000_000;
pub(crate) const ETHER: u128 = GWEI * GWEI;
pub(crate) const BLOCK_GAS: u64 = 30_000_000;

/// Forks by block up to London, then by time, as genesis files name them.
pub(crate) const FORKS: [&str; 15] = [
    "homesteadBlock",
    "eip150Block",
    "eip155Block",
    "eip158Block",
    "byzantiumBlock",
    "constantinopleBlock",
    "petersburgBlock",
    "istanbulBlock",
    "berlinBlock",
    "londonBlock",
    "shanghaiTime",
    "cancunTime",
    "pragueTime",
    "osakaTime",
    "amsterdamTime",
];

/// A chain with the forks up to `last` from genesis on, and more settings.
pub(crate) fn spec(last: &str, more: &[(&str, u64)]) -> Arc<ChainSpec> {
    let end = FORKS.iter().position(|fork| fork.starts_with(last)).expect("a fork");
    let mut config = json!({ "chainId": CHAIN_ID });
    for (name, value) in FORKS[..=end].iter().map(|fork| (*fork, 0)).chain(more.iter().copied()) {
        config[name] = value.into();
    }
    if end >= 9 {
        config["terminalTotalDifficulty"] = 0.into();
    }
    let genesis = json!({
        "config": config,
        "difficulty": if end >= 9 { 0 } else { 1 },
        "gasLimit": BLOCK_GAS,
        "alloc": {},
    });
    Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).expect("a genesis file"))
}

/// A head state, and the block after it.
#[derive(Clone)]
pub(crate) struct HeadFixture {
    pub(crate) spec: Arc<ChainSpec>,
    pub(crate) accounts: BTreeMap<Address, Account>,
    pub(crate) codes: HashMap<B256, Bytes>,
    pub(crate) next: NextBlock,
    /// Sequence number of the head.
    pub(crate) sequence: u64,
}

impl HeadState for HeadFixture {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn account(&self, address: Address) -> Result<Option<Account>, StateError> {
        Ok(self.accounts.get(&address).copied())
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).cloned())
    }
}

impl HeadStateProvider for HeadFixture {
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError> {
        Ok(Box::new(self))
    }
}

impl HeadFixture {
    /// Wallets 0 to 15 have ten ether each; base fee and blob fee are 10 gwei and 1 wei.
    pub(crate) fn new(fork: &str) -> Self {
        let spec = spec(fork, &[]);
        let account = Account { balance: U256::from(10 * ETHER), ..Default::default() };
        let next = NextBlock {
            number: 1,
            timestamp: 12,
            gas_limit: BLOCK_GAS,
            base_fee: spec.genesis_header().base_fee_per_gas.map(|_| 10 * GWEI as u64),
            blob_base_fee: spec.blob_params_at_timestamp(0).map(|_| 1),
        };
        let accounts = (0..16).map(|n| (address(n), account)).collect();
        Self { spec, accounts, codes: HashMap::new(), next, sequence: 1 }
    }

    pub(crate) fn pool(&self, config: PoolConfig) -> TransactionPool {
        let pool = TransactionPool::new(config, Arc::clone(&self.spec));
        self.go(&pool, &[], vec![]);
        pool
    }

    pub(crate) fn account_mut(&mut self, n: u8) -> &mut Account {
        self.accounts.entry(address(n)).or_default()
    }

    pub(crate) fn set_code(&mut self, n: u8, code: Bytes) {
        let hash = keccak256(&code);
        self.codes.insert(hash, code);
        self.account_mut(n).code_hash = hash;
    }

    /// Makes this the head of `pool`.
    pub(crate) fn go(
        &self,
        pool: &TransactionPool,
        mined: &[B256],
        reinserted: Vec<Recovered<Transaction>>,
    ) {
        let head = SealedHeader::seal_slow(Header {
            number: self.next.number - 1,
            gas_limit: self.next.gas_limit,
            ..Default::default()
        });
        pool.set_head(&head, self.next, mined, self, reinserted).unwrap();
        pool.check_invariants().unwrap();
    }

    /// Takes transactions into a block: nonces and balances move.
    pub(crate) fn mine(&mut self, txs: &[Arc<PoolTransaction>]) -> Vec<B256> {
        for tx in txs {
            let account = self.accounts.get_mut(&tx.sender()).unwrap();
            assert_eq!(account.nonce, tx.nonce());
            account.nonce += 1;
            account.balance -= tx.cost();
        }
        self.next.number += 1;
        self.sequence += 1;
        txs.iter().map(|tx| *tx.hash()).collect()
    }
}

pub(crate) fn address(n: u8) -> Address {
    TestWallet::new(n).address
}

/// An unsigned transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestTransfer {
    pub(crate) from: u8,
    pub(crate) nonce: u64,
    pub(crate) fee: u128,
    pub(crate) tip: u128,
    pub(crate) gas: u64,
    pub(crate) value: u128,
}

/// A transfer that pays 20 gwei per gas, at most 2 of them as a tip.
pub(crate) const fn transfer(from: u8, nonce: u64) -> TestTransfer {
    TestTransfer { from, nonce, fee: 20 * GWEI, tip: 2 * GWEI, gas: 21_000, value: 1 }
}

pub(crate) fn sign<T: SignableTransaction<Signature>>(from: u8, tx: T) -> PooledTransaction
where
    PooledTransaction: From<Signed<T>>,
{
    let signature = TestWallet::new(from).sign(tx.signature_hash());
    tx.into_signed(signature).into()
}

impl TestTransfer {
    pub(crate) const fn fee(self, fee: u128, tip: u128) -> Self {
        Self { fee, tip, ..self }
    }

    pub(crate) const fn gas(self, gas: u64) -> Self {
        Self { gas, ..self }
    }

    pub(crate) const fn value(self, value: u128) -> Self {
        Self { value, ..self }
    }

    pub(crate) fn cost(&self) -> U256 {
        U256::from(self.value + self.fee * u128::from(self.gas))
    }

    pub(crate) fn tx(self) -> TxEip1559 {
        TxEip1559 {
            chain_id: CHAIN_ID,
            nonce: self.nonce,
            gas_limit: self.gas,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: TxKind::Call(Address::repeat_byte(0xee)),
            value: U256::from(self.value),
            ..Default::default()
        }
    }

    pub(crate) fn signed(self) -> PooledTransaction {
        sign(self.from, self.tx())
    }

    /// With blobs, for which it pays `blob_fee` wei per blob gas.
    pub(crate) fn blobs(
        self,
        blob_fee: u128,
        sidecar: impl Into<BlobSidecar>,
    ) -> PooledTransaction {
        let sidecar = sidecar.into();
        let tx = TxEip4844 {
            chain_id: CHAIN_ID,
            nonce: self.nonce,
            gas_limit: self.gas,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: Address::repeat_byte(0xee),
            value: U256::from(self.value),
            max_fee_per_blob_gas: blob_fee,
            blob_versioned_hashes: sidecar.versioned_hashes().collect(),
            ..Default::default()
        };
        sign(self.from, TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar))
    }

    /// With authorizations; the gas is for up to six.
    pub(crate) fn delegating(self, authorities: &[u8]) -> TxEip7702 {
        TxEip7702 {
            chain_id: CHAIN_ID,
            nonce: self.nonce,
            gas_limit: 200_000,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: Address::repeat_byte(0xee),
            authorization_list: authorities.iter().map(|n| authorization(*n)).collect(),
            ..Default::default()
        }
    }
}

pub(crate) fn authorization(n: u8) -> SignedAuthorization {
    let inner = Authorization { chain_id: U256::from(CHAIN_ID), address: Address::ZERO, nonce: 0 };
    let signature = TestWallet::new(n).sign(inner.signature_hash());
    inner.into_signed(signature)
}

/// A legacy transfer.
pub(crate) fn legacy(gas_price: u128) -> TxLegacy {
    TxLegacy {
        chain_id: Some(CHAIN_ID),
        gas_price,
        gas_limit: 21_000,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    }
}

pub(crate) fn hashes<const N: usize>(txs: [&PooledTransaction; N]) -> Vec<B256> {
    txs.map(|tx| *tx.tx_hash()).to_vec()
}

/// Pending and queued transactions.
pub(crate) fn status(pool: &TransactionPool) -> (usize, usize) {
    pool.check_invariants().unwrap();
    let PoolStatus { pending, queued } = pool.status();
    (pending, queued)
}

/// A transaction in the form of blocks.
pub(crate) fn mined(tx: &PooledTransaction) -> Recovered<Transaction> {
    let sender = tx.recover_signer().unwrap();
    Recovered::new_unchecked(tx.clone().map_eip4844(|tx| tx.into_parts().0), sender)
}

pub(crate) fn refusal(
    pool: &TransactionPool,
    world: &HeadFixture,
    tx: impl Into<PooledTransaction>,
) -> String {
    let error = pool.add(tx.into(), TransactionOrigin::External, world).expect_err("refused");
    pool.check_invariants().unwrap();
    assert_eq!(error.code(), -32000, "{error}");
    error.to_string()
}

/// Blobs with commitments and proofs that are all zero.
pub(crate) fn fake_sidecar(blobs: usize) -> BlobTransactionSidecar {
    let bytes = vec![Bytes48::ZERO; blobs];
    BlobTransactionSidecar {
        blobs: vec![Blob::ZERO; blobs],
        commitments: bytes.clone(),
        proofs: bytes,
    }
}

/// The same with cell proofs that are all zero.
pub(crate) fn fake_cell_sidecar(blobs: usize) -> BlobTransactionSidecarEip7594 {
    let BlobTransactionSidecar { blobs, commitments, .. } = fake_sidecar(blobs);
    let proofs = vec![Bytes48::ZERO; 128 * blobs.len()];
    BlobTransactionSidecarEip7594::new(blobs, commitments, proofs)
}

/// Different blobs with their commitments and the proofs of their cells.
pub(crate) fn cell_sidecar(bytes: &[u8]) -> BlobTransactionSidecarEip7594 {
    BlobSidecar::from(true_sidecar(bytes)).try_into_eip7594().unwrap()
}

/// Different blobs with their commitments and proofs.
pub(crate) fn true_sidecar(bytes: &[u8]) -> BlobTransactionSidecar {
    let blobs = bytes.iter().map(|byte| Blob::right_padding_from(&[0, *byte])).collect();
    BlobTransactionSidecar::try_from_blobs_with_settings(blobs, EnvKzgSettings::Default.get())
        .unwrap()
}
