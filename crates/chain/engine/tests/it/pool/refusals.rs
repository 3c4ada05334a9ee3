//! Refused transactions, and the messages.

use super::fixtures::*;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip2930, TxEip7702};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip4844::{Blob, BlobTransactionSidecar},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use retrie_chainspec::primitives::{Header, SealedHeader};
use retrie_engine::pool::{PoolConfig, PoolError, TransactionOrigin};
use retrie_pipeline::testkit::CHAIN_ID;
use std::collections::BTreeSet;

#[test]
fn refusals_are_worded_as_geth_words_them() {
    let mut world = HeadFixture::new("prague");
    world.account_mut(1).nonce = 5;
    world.set_code(2, Bytes::from_static(&[0x60, 0]));
    let code_hash = world.accounts[&address(2)].code_hash;
    let config = PoolConfig { minimum_priority_fee: Some(GWEI), ..Default::default() };
    let pool = world.pool(config);
    let t = transfer(0, 0);
    let create = TxEip1559 {
        to: TxKind::Create,
        input: vec![1; 49_153].into(),
        ..t.gas(10_000_000).fee(GWEI, GWEI).tx()
    };
    let data = |len: usize, gas| TxEip1559 { input: vec![1; len].into(), ..t.gas(gas).tx() };
    let one_of_two = BlobTransactionSidecar { blobs: vec![Blob::ZERO], ..fake_sidecar(2) };
    let cells = fake_cell_sidecar(1);
    let oversized = sign(0, data(128 * 1024, 10_000_000));
    let size = oversized.encode_2718_len();
    let known = transfer(3, 0).signed();
    pool.add(known.clone(), TransactionOrigin::External, &world).unwrap();

    let cases = [
        (known, "already known"),
        (transfer(1, 3).signed(), "nonce too low: next nonce 5, tx nonce 3"),
        (transfer(0, u64::MAX).signed(), "nonce has max value"),
        (
            t.value(20 * ETHER).signed(),
            "insufficient funds for gas * price + value: balance 10000000000000000000, \
             tx cost 20000420000000000000, overshot 10000420000000000000",
        ),
        (t.gas(20_999).signed(), "intrinsic gas too low: gas 20999, minimum needed 21000"),
        (
            sign(0, data(1000, 50_000)),
            "insufficient gas for floor data gas cost: gas 50000, minimum needed 61000",
        ),
        (t.gas(BLOCK_GAS + 1).signed(), "exceeds block gas limit"),
        (t.fee(GWEI, 2 * GWEI).signed(), "max priority fee per gas higher than max fee per gas"),
        (t.fee(6, 6).signed(), "transaction underpriced: gas fee cap 6, minimum needed 7"),
        (
            t.fee(GWEI, 5).signed(),
            "transaction gas price below minimum: gas tip cap 5, minimum needed 1000000000",
        ),
        (
            sign(0, TxEip1559 { chain_id: 1, ..t.tx() }),
            "invalid sender: invalid chain id for signer: have 1 want 7331",
        ),
        (
            transfer(2, 0).signed(),
            &format!("sender not an eoa: address {}, codehash: {code_hash}", address(2)),
        ),
        (oversized, &format!("oversized data: transaction size {size}, limit 131072")),
        (sign(0, create), "max initcode size exceeded: code size 49153 limit 49152"),
        (sign(0, t.delegating(&[])), "set code tx must have at least one authorization tuple"),
        (
            t.blobs(0, fake_sidecar(1)),
            "transaction gas price below minimum: blob fee cap 0, minimum needed 1",
        ),
        (t.blobs(1, fake_sidecar(0)), "blobless blob transaction"),
        (t.blobs(1, fake_sidecar(10)), "transaction blob limit exceeded: blob count 10, limit 9"),
        (t.blobs(1, one_of_two), "invalid number of 1 blobs compared to 2 blob hashes"),
        (t.blobs(1, cells), "Wrong sidecar format: unexpected sidecar version, want: 0, got: 1"),
    ];
    let count = cases.len() as u64;
    for (tx, message) in cases {
        assert_eq!(refusal(&pool, &world, tx), message);
    }
    assert_eq!(pool.stats().counters.rejected, count);
    assert_eq!(status(&pool), (1, 0));
}

#[test]
fn a_signature_that_leads_nowhere_is_an_invalid_sender() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let signature = Signature::new(U256::ZERO, U256::ZERO, false);
    let message = refusal(&pool, &world, transfer(0, 0).tx().into_signed(signature));
    assert_eq!(message, "invalid sender: invalid transaction v, r, s values");
}

#[test]
fn a_slip_in_the_fee_of_a_local_transaction_is_caught() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let dear = transfer(0, 0).fee(100_000 * GWEI, GWEI);
    let error = pool.add(dear.signed(), TransactionOrigin::Local, &world).unwrap_err();
    assert_eq!(error.to_string(), "tx fee (2.10 ether) exceeds the configured cap (1.00 ether)");
    pool.add(dear.signed(), TransactionOrigin::External, &world).unwrap();
}

#[test]
fn types_come_with_their_forks() {
    let access_list = TxEip2930 {
        chain_id: CHAIN_ID,
        gas_price: 30 * GWEI,
        gas_limit: 50_000,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    };
    let last = [("istanbul", 0), ("berlin", 1), ("london", 2), ("shanghai", 2), ("cancun", 3)];
    for (fork, last) in last.into_iter().chain([("prague", 4)]) {
        let world = HeadFixture::new(fork);
        let pool = world.pool(PoolConfig::default());
        pool.add(sign(0, legacy(20 * GWEI)), TransactionOrigin::External, &world).unwrap();
        let typed = [
            (1, "Berlin", sign(1, access_list.clone())),
            (2, "London", transfer(2, 0).signed()),
            (3, "Cancun", transfer(3, 0).blobs(1, fake_sidecar(1))),
            (4, "Prague", sign(4, transfer(4, 0).delegating(&[5]))),
        ];
        for (ty, first, tx) in typed {
            let result = pool
                .add(tx, TransactionOrigin::External, &world)
                .map_err(|error| error.to_string());
            let unknown = format!(
                "transaction type not supported: type {ty} rejected, pool not yet in {first}"
            );
            match result {
                Err(message) if ty > last => assert_eq!(message, unknown, "{fork}"),
                // Its proofs are invalid, and are checked.
                Err(message) if ty == 3 => {
                    assert!(message.starts_with("KZG verification error: "), "{fork}: {message}");
                }
                result => assert!(result.is_ok() && ty <= last, "{fork}, type {ty}: {result:?}"),
            }
        }
    }
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig { disable_blobs: true, ..Default::default() });
    let message = refusal(&pool, &world, transfer(3, 0).blobs(1, fake_sidecar(1)));
    assert_eq!(message, "transaction type not supported: tx type 3 not supported by this pool");
}

#[test]
fn gas_of_creations_lists_and_authorizations_is_intrinsic() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let t = transfer(0, 0);
    let needs = |needed: u64, got: u64| {
        format!("intrinsic gas too low: gas {got}, minimum needed {needed}")
    };
    // 64 bytes that are zero: 4 gas each, and 2 for each of the two words of code.
    let create =
        |gas| TxEip1559 { to: TxKind::Create, input: vec![0; 64].into(), ..t.gas(gas).tx() };
    assert_eq!(refusal(&pool, &world, sign(0, create(53_259))), needs(53_260, 53_259));
    let item = AccessListItem { address: Address::ZERO, storage_keys: vec![B256::ZERO; 3] };
    let list = TxEip1559 { access_list: AccessList(vec![item]), ..t.tx() };
    assert_eq!(refusal(&pool, &world, sign(0, list)), needs(21_000 + 2400 + 3 * 1900, 21_000));
    let tx = TxEip7702 { gas_limit: 70_999, ..t.delegating(&[1, 2]) };
    assert_eq!(refusal(&pool, &world, sign(0, tx)), needs(21_000 + 2 * 25_000, 70_999));
    // Before Shanghai words of code cost nothing (EIP-3860).
    let world = HeadFixture::new("london");
    let pool = world.pool(PoolConfig::default());
    pool.add(sign(0, create(53_256)), TransactionOrigin::External, &world).unwrap();
}

#[test]
fn gas_limits_are_capped_from_osaka_on() {
    let over = transfer(0, 0).gas((1 << 24) + 1);
    let world = HeadFixture::new("prague");
    world
        .pool(PoolConfig::default())
        .add(over.signed(), TransactionOrigin::External, &world)
        .unwrap();
    let world = HeadFixture::new("osaka");
    let pool = world.pool(PoolConfig::default());
    let message = refusal(&pool, &world, over.signed());
    assert_eq!(message, "transaction gas limit too high (cap: 16777216, tx: 16777217)");
    let pool = world.pool(PoolConfig { max_tx_gas_limit: Some(100_000), ..Default::default() });
    let message = refusal(&pool, &world, transfer(0, 0).gas(100_001).signed());
    assert_eq!(message, "transaction gas limit too high (cap: 100000, tx: 100001)");
    // From Amsterdam on the cap limits regular gas; state gas may be added, up to its own cap
    // (EIP-8037).
    let mut world = HeadFixture::new("amsterdam");
    world
        .pool(PoolConfig::default())
        .add(over.signed(), TransactionOrigin::External, &world)
        .unwrap();
    world.next.gas_limit = 1 << 33;
    let pool = world.pool(PoolConfig::default());
    let cheap = |gas| transfer(1, 0).gas(gas).fee(7, 1).signed();
    let message = refusal(&pool, &world, cheap(1 << 32));
    assert_eq!(message, "transaction gas limit too high (cap: 4294967295, tx: 4294967296)");
    pool.add(cheap((1 << 32) - 1), TransactionOrigin::External, &world).unwrap();
}

#[test]
fn a_state_that_cannot_be_read_is_no_fault_of_the_transaction() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    world.account_mut(0).code_hash = B256::repeat_byte(1);
    let error = pool.add(transfer(0, 0).signed(), TransactionOrigin::External, &world).unwrap_err();
    assert!(matches!(error, PoolError::State(_)) && error.code() == -32603, "{error}");

    // A new head that cannot be read leaves the pool as it was.
    pool.add(transfer(1, 0).signed(), TransactionOrigin::External, &world).unwrap();
    world.account_mut(1).code_hash = B256::repeat_byte(1);
    let head = SealedHeader::seal_slow(Header::default());
    assert!(pool.set_head(&head, world.next, &[], &world, vec![]).is_err());
    assert_eq!(status(&pool), (1, 0));
}

// Delegations (EIP-7702).

const IN_FLIGHT: &str = "in-flight transaction limit reached for delegated accounts";

#[test]
fn a_delegated_sender_has_one_transaction_at_a_time() {
    let mut world = HeadFixture::new("prague");
    world.set_code(0, [&[0xef, 0x01, 0x00][..], &[7; 20]].concat().into());
    let pool = world.pool(PoolConfig::default());
    let message = refusal(&pool, &world, transfer(0, 1).signed());
    assert_eq!(message, "gapped-nonce tx from delegated accounts");
    pool.add(transfer(0, 0).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(refusal(&pool, &world, transfer(0, 1).signed()), IN_FLIGHT);
    let replacement = transfer(0, 0).fee(40 * GWEI, 4 * GWEI).signed();
    pool.add(replacement, TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (1, 0));
}

#[test]
fn so_has_one_whose_delegation_is_in_the_pool() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let delegation = sign(0, transfer(0, 0).delegating(&[1, 2]));
    pool.add(delegation.clone(), TransactionOrigin::External, &world).unwrap();
    let pooled = pool.get(delegation.tx_hash()).unwrap();
    let authorities: BTreeSet<_> =
        pooled.authorizations().iter().map(|one| (one.authority, one.nonce)).collect();
    assert_eq!(authorities, [1, 2].map(|n| (address(n), 0)).into());
    pool.add(transfer(1, 0).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(refusal(&pool, &world, transfer(1, 1).signed()), IN_FLIGHT);
    // It is free again when the delegation is gone.
    pool.remove(delegation.tx_hash()).unwrap();
    pool.add(transfer(1, 1).signed(), TransactionOrigin::External, &world).unwrap();
    // And other senders cannot delegate an account with several transactions.
    let message = refusal(&pool, &world, sign(3, transfer(3, 0).delegating(&[1])));
    assert_eq!(message, "authority already reserved");
}
