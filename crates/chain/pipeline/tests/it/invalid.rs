//! Invalid blocks and files: the error names the block, and everything before it stays.

use crate::common;

use alloy_consensus::{
    SignableTransaction, Transaction as _, TxLegacy,
    proofs::{calculate_ommers_root, calculate_transaction_root},
};
use alloy_primitives::{Address, B256, Bloom, Bytes, Signature, U256};
use common::{NodeSetup, TestNode, batches, names_block, test_chain};
use retrie_chainspec::primitives::{Block, Transaction};
use retrie_pipeline::{
    PipelineError,
    testkit::{
        BlockPlan, CHAIN_ID, TestCall, TestChain, TestRules, TestWallet, signed, write_blocks,
    },
};
use retrie_sources::BlockSource;
use std::sync::atomic::AtomicBool;

/// Rules, the change to a block, and a part of the error message.
type InvalidBlockCase = (&'static str, fn(&TestChain, &mut Block), &'static str);

/// `n` for the order of the curve (SEC 2, secp256k1).
const CURVE_ORDER: U256 = alloy_primitives::uint!(
    0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256
);

/// Makes the header commit to the body again, so that only the damage is found.
fn commit_to_body(block: &mut Block) {
    block.header.transactions_root = calculate_transaction_root(&block.body.transactions);
    block.header.ommers_hash = calculate_ommers_root(&block.body.ommers);
}

/// Replaces the first transaction.
fn with_transaction(block: &mut Block, make: impl FnOnce(&Transaction) -> Transaction) {
    block.body.transactions[0] = make(&block.body.transactions[0]);
    commit_to_body(block);
}

fn legacy(transaction: &Transaction) -> (TxLegacy, Signature) {
    let Transaction::Legacy(transaction) = transaction else { panic!("a legacy transaction") };
    (transaction.tx().clone(), *transaction.signature())
}

const ANY_FORK: &[InvalidBlockCase] = &[
    ("state root", |_, b| b.header.state_root = B256::repeat_byte(1), "state root is"),
    ("gas used", |_, b| b.header.gas_used += 1, "execution used"),
    ("bloom", |_, b| b.header.logs_bloom = Bloom::repeat_byte(1), "bloom"),
    ("transactions root", |_, b| b.header.transactions_root = B256::ZERO, "transactions root"),
    ("missing transaction", |_, b| drop(b.body.transactions.pop()), "transactions root"),
    ("ommers hash", |_, b| b.header.ommers_hash = B256::ZERO, "ommers hash"),
    ("parent", |_, b| b.header.parent_hash = B256::repeat_byte(3), "unknown parent"),
    ("number", |_, b| b.header.number += 1, "number is"),
    ("timestamp", |_, b| b.header.timestamp -= 12, "timestamp"),
    ("gas limit", |_, b| b.header.gas_limit += 1_000_000, "gas limit"),
    ("extra data", |_, b| b.header.extra_data = Bytes::from_static(&[0; 33]), "extra data"),
    (
        "nonce",
        |chain, b| {
            let call = TestCall::transfer(0, Address::ZERO, 1);
            let tx = |_: &_| signed(&TestWallet::new(0), &call, 999, b.header.base_fee_per_gas);
            let tx = tx(chain);
            with_transaction(b, |_| tx);
        },
        "transaction 0 is invalid",
    ),
    (
        "poor sender",
        |_, b| {
            let (call, fee) =
                (TestCall::transfer(200, Address::ZERO, 1), b.header.base_fee_per_gas);
            with_transaction(b, |_| signed(&TestWallet::new(200), &call, 0, fee));
        },
        "transaction 0 is invalid",
    ),
    (
        "order of transactions",
        |_, b| {
            // Two of one wallet: the second nonce comes first.
            b.body.transactions.reverse();
            commit_to_body(b);
        },
        "transaction 0 is invalid",
    ),
];

const WORK: &[InvalidBlockCase] = &[
    ("difficulty", |_, b| b.header.difficulty += U256::ONE, "difficulty is"),
    (
        "unrelated ommer",
        |_, b| {
            b.body.ommers.push(b.header.clone());
            commit_to_body(b);
        },
        "ommer",
    ),
    (
        "ommer that is an ancestor",
        |chain, b| {
            b.body.ommers.push(chain.block(b.header.parent_hash).header.clone());
            commit_to_body(b);
        },
        "ommer",
    ),
    (
        "signature without sender",
        |_, b| {
            with_transaction(b, |tx| {
                let (tx, signature) = legacy(tx);
                let none = Signature::new(U256::ZERO, signature.s(), signature.v());
                tx.into_signed(none).into()
            });
        },
        "transaction 0 has an invalid signature",
    ),
    (
        "high s from Homestead on (EIP-2)",
        |_, b| {
            with_transaction(b, |tx| {
                let (tx, signature) = legacy(tx);
                let s = CURVE_ORDER - signature.s();
                tx.into_signed(Signature::new(signature.r(), s, !signature.v())).into()
            });
        },
        "transaction 0 has an invalid signature",
    ),
];

const FRONTIER: &[InvalidBlockCase] = &[(
    "chain id before Spurious Dragon (EIP-155)",
    |_, b| {
        with_transaction(b, |tx| {
            let (tx, _) = legacy(tx);
            let tx = TxLegacy { chain_id: Some(CHAIN_ID), ..tx };
            let signature = TestWallet::new(0).sign(tx.signature_hash());
            tx.into_signed(signature).into()
        });
    },
    "transaction 0 has an invalid signature",
)];

const BYZANTIUM: &[InvalidBlockCase] = &[
    ("receipts root", |_, b| b.header.receipts_root = B256::repeat_byte(1), "receipts root"),
    ("base fee before London", |_, b| b.header.base_fee_per_gas = Some(7), "baseFeePerGas"),
    (
        "another chain's transaction",
        |_, b| {
            with_transaction(b, |tx| {
                let tx = TxLegacy { chain_id: Some(1), ..legacy(tx).0 };
                let signature = TestWallet::new(0).sign(tx.signature_hash());
                tx.into_signed(signature).into()
            });
        },
        "transaction 0 is invalid",
    ),
];

const CANCUN: &[InvalidBlockCase] = &[
    ("receipts root", |_, b| b.header.receipts_root = B256::repeat_byte(1), "receipts root"),
    ("base fee", |_, b| b.header.base_fee_per_gas = Some(8), "base fee"),
    ("difficulty", |_, b| b.header.difficulty = U256::ONE, "block"),
    ("withdrawals root", |_, b| b.header.withdrawals_root = Some(B256::ZERO), "withdrawals root"),
    ("missing withdrawals", |_, b| b.body.withdrawals = None, "withdrawals"),
    ("excess blob gas", |_, b| b.header.excess_blob_gas = Some(131_072), "excess blob gas"),
    ("beacon root", |_, b| b.header.parent_beacon_block_root = None, "header field"),
];

const PRAGUE: &[InvalidBlockCase] =
    &[("requests hash", |_, b| b.header.requests_hash = Some(B256::ZERO), "requests hash")];

#[test]
fn every_broken_rule_names_the_block_and_keeps_what_was_before() {
    for (rules, damages) in [
        (TestRules::Frontier, [ANY_FORK, WORK, FRONTIER].concat()),
        (TestRules::Byzantium, [ANY_FORK, WORK, BYZANTIUM].concat()),
        (TestRules::Cancun, [ANY_FORK, CANCUN].concat()),
        (TestRules::Prague, [ANY_FORK, CANCUN, PRAGUE].concat()),
    ] {
        let mut chain = test_chain(rules);
        let genesis = chain.genesis();
        let trunk = *chain.branch(genesis, 4, 12, 0).last().unwrap();
        let calls = [1, 2, 3].map(|value| TestCall::transfer(0, Address::repeat_byte(7), value));
        let victim = chain.extend(trunk, BlockPlan::new(calls));
        let tip = chain.extend(victim, BlockPlan::new([]));
        let good = chain.path(genesis, tip);
        let checked = NodeSetup::checked();
        for (i, (what, damage, says)) in damages.into_iter().enumerate() {
            let mut bad = good.clone();
            damage(&chain, &mut bad[4]);
            assert_ne!(bad[4], good[4], "{what}");
            let number = bad[4].header.number;
            let node = TestNode::new(&chain.spec, checked[i % checked.len()]);
            let error = node.import_with(&bad, batches(3)).unwrap_err();
            let text = names_block(&error, number);
            assert!(text.contains(says), "{rules:?} {what}: {text}");
            assert!(
                error.is_invalid_block() || matches!(error, PipelineError::UnknownParent { .. }),
                "{rules:?} {what}: {error:?}"
            );
            assert_eq!(node.tip().hash, trunk, "{rules:?} {what}: durable after reopening");
            node.import(&good).unwrap();
            assert_eq!(node.tip().hash, tip, "{rules:?} {what}: usable afterwards");
        }
    }
}

#[test]
fn high_s_is_fine_under_frontier() {
    let mut chain = test_chain(TestRules::Frontier);
    let genesis = chain.genesis();
    let block =
        chain.extend(genesis, BlockPlan::new([TestCall::transfer(0, Address::repeat_byte(7), 1)]));
    let mut block = chain.block(block).clone();
    with_transaction(&mut block, |tx| {
        let (tx, signature) = legacy(tx);
        assert_eq!(tx.nonce(), 0);
        let s = CURVE_ORDER - signature.s();
        tx.into_signed(Signature::new(signature.r(), s, !signature.v())).into()
    });
    // The state is the same, as it is the same sender.
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    node.import(&[block]).unwrap();
    assert_eq!(node.tip().number, 1);
}

fn import_file(node: &TestNode, bytes: &[u8], name: &str) -> Result<u64, String> {
    let file = node.dir.path().join(name);
    std::fs::write(&file, bytes).unwrap();
    let source = BlockSource::open(&file).map_err(|error| error.to_string())?;
    common::import_into(
        &node.open(),
        vec![source],
        0..=u64::MAX,
        batches(2),
        &AtomicBool::new(false),
        &mut |_| {},
    )
    .map(|report| report.tip.number)
    .map_err(|error| error.to_string())
}

#[test]
fn truncated_and_flipped_files_give_one_error_and_keep_whole_blocks() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let hashes = chain.branch(genesis, 7, 12, 0);
    let (blocks, tip) = (chain.path(genesis, hashes[5]), hashes[6]);
    let dir = tempfile::tempdir().unwrap();
    for name in ["blocks.rlp", "blocks.rlp.gz"] {
        let path = dir.path().join(name);
        write_blocks(&path, &blocks);
        let bytes = std::fs::read(&path).unwrap();
        // Ends of blocks in the plain file, where a cut leaves a shorter file without damage.
        let ends: Vec<usize> = (1..=blocks.len())
            .map(|n| {
                let part = dir.path().join("part.rlp");
                write_blocks(&part, &blocks[..n]);
                std::fs::read(&part).unwrap().len()
            })
            .collect();
        let step = bytes.len() / 24;
        for at in (1..bytes.len()).step_by(step) {
            for flip in [false, true] {
                let mut damaged = bytes.clone();
                if flip {
                    damaged[at] ^= 0x10;
                } else {
                    damaged.truncate(at);
                }
                let node = TestNode::new(&chain.spec, NodeSetup::MPT);
                let what = format!("{name}, byte {at} of {}, flip {flip}", bytes.len());
                let outcome = import_file(&node, &damaged, name);
                let kept = node.tip();
                // Neither seal nor child protects the nonce of the last block of a plain file.
                let last = name == "blocks.rlp" && at >= ends[blocks.len() - 2];
                match &outcome {
                    Ok(_) if flip => assert!(last, "{what} went unnoticed"),
                    Ok(_) => assert!(ends.contains(&at), "{what} went unnoticed"),
                    Err(text) => assert_eq!(text.lines().count(), 1, "{what}: {text}"),
                }
                if name == "blocks.rlp" {
                    // All blocks before the damaged one; that one may be valid in itself.
                    let whole = ends.iter().filter(|end| **end <= at).count() as u64;
                    assert!((whole..=whole + 1).contains(&kept.number), "{what}: {kept}");
                }
                node.import(&chain.path(genesis, tip)).unwrap();
                assert_eq!(node.tip().hash, tip, "{what}: usable afterwards");
            }
        }
    }
}
