//! Results of execution against headers, with the receipts that the public suites publish.

use crate::common;

use alloy_eip7928::{AccountChanges, SlotChanges, compute_block_access_list_hash};
use alloy_primitives::{Address, B256, Bloom, Log, U256, address};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, BlockBody, Header, Receipt, Requests, SealedBlock, Transaction, TxType},
};
use retrie_consensus::{
    ConsensusError as E, ExecutionResult, pre_byzantium_receipts_root, validate_post_execution,
};
use serde_json::Value;

/// The chain of the rpc-compat suite, and the receipts it publishes for a Frontier block with
/// several transactions: `(state root, receipt)`.
fn frontier_block() -> Option<(ChainSpec, SealedBlock, Vec<B256>, Vec<Receipt>)> {
    let data = common::data()?;
    let files = common::archive(&data, "rpc-compat");
    let genesis = std::str::from_utf8(&files["rpc-compat/genesis.json"]).unwrap();
    let spec = ChainSpec::from_genesis_json(genesis).unwrap();
    let io = &files["rpc-compat/eth_getBlockReceipts/get-block-receipts-n.io"];
    let reply = std::str::from_utf8(io).unwrap().lines().find_map(|l| l.strip_prefix("<< "));
    let reply: Value = serde_json::from_str(reply.unwrap()).unwrap();
    let (mut roots, mut receipts, mut number) = (Vec::new(), Vec::new(), 0);
    for receipt in reply["result"].as_array().unwrap() {
        let quantity = |name: &str| receipt[name].as_str().unwrap().parse::<U256>().unwrap();
        assert_eq!(receipt["logs"].as_array().unwrap().len(), 0);
        roots.push(receipt["root"].as_str().unwrap().parse().unwrap());
        receipts.push(Receipt {
            tx_type: TxType::Legacy,
            success: true,
            cumulative_gas_used: quantity("cumulativeGasUsed").to(),
            logs: Vec::new(),
        });
        number = quantity("blockNumber").to();
    }
    let blocks = common::decode_chain(&files["rpc-compat/chain.rlp"]);
    let block = blocks.into_iter().find(|block| block.number == number).unwrap();
    Some((spec, block, roots, receipts))
}

#[test]
fn receipts_before_byzantium_commit_to_state_roots() {
    let Some((spec, block, roots, receipts)) = frontier_block() else { return };
    assert!(receipts.len() > 1);
    assert_eq!(pre_byzantium_receipts_root(&receipts, &roots), Some(block.receipts_root));
    assert_eq!(pre_byzantium_receipts_root(&receipts, &roots[1..]), None);

    let requests = Requests::default();
    let mut result = ExecutionResult {
        receipts: &receipts,
        gas_used: block.gas_used,
        blob_gas_used: None,
        requests: &requests,
        block_access_list: None,
        intermediate_state_roots: Some(&roots),
    };
    assert_eq!(validate_post_execution(&spec, &block, &result), Ok(()));

    let mut wrong = roots.clone();
    wrong[1] = B256::ZERO;
    result.intermediate_state_roots = Some(&wrong);
    let error = validate_post_execution(&spec, &block, &result);
    assert!(matches!(error, Err(E::ReceiptsRoot { .. })), "{error:?}");
    result.intermediate_state_roots = Some(&roots[1..]);
    let error = validate_post_execution(&spec, &block, &result);
    assert!(matches!(error, Err(E::ReceiptCount { .. })), "{error:?}");
    // Without state roots the receipts root is not checked, gas and bloom still are.
    result.intermediate_state_roots = None;
    assert_eq!(validate_post_execution(&spec, &block, &result), Ok(()));
    result.gas_used += 1;
    let error = validate_post_execution(&spec, &block, &result);
    assert!(matches!(error, Err(E::GasUsed { .. })), "{error:?}");
}

/// A Prague block with one receipt that has a log, with every commitment right.
fn prague_block() -> (SealedBlock, Vec<Receipt>, Requests) {
    use alloy_consensus::{Signed, TxLegacy, TxReceipt, proofs::calculate_receipt_root};
    use alloy_primitives::Signature;
    let log = Log::new_unchecked(
        address!("0xdac17f958d2ee523a2206206994597c13d831ec7"),
        vec![B256::repeat_byte(7)],
        vec![1, 2, 3].into(),
    );
    let receipts = vec![Receipt {
        tx_type: TxType::Legacy,
        success: true,
        cumulative_gas_used: 50_000,
        logs: vec![log],
    }];
    let requests = Requests::new(vec![vec![0u8; 193].into()]);
    let with_bloom: Vec<_> = receipts.iter().map(TxReceipt::with_bloom_ref).collect();
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let transaction: Transaction =
        Signed::new_unchecked(TxLegacy::default(), signature, B256::ZERO).into();
    let mut block = Block {
        body: BlockBody { transactions: vec![transaction], ..Default::default() },
        ..Default::default()
    };
    block.header.number = 22_500_000;
    block.header.timestamp = 1_746_612_311;
    block.header.gas_used = 50_000;
    block.header.blob_gas_used = Some(0);
    block.header.receipts_root = calculate_receipt_root(&with_bloom);
    block.header.logs_bloom = with_bloom[0].logs_bloom;
    block.header.requests_hash = Some(requests.requests_hash());
    (SealedBlock::seal_slow(block), receipts, requests)
}

#[test]
fn every_commitment_to_execution_is_compared() {
    let spec = &*ChainSpec::mainnet();
    let (block, receipts, requests) = prague_block();
    let good = ExecutionResult {
        receipts: &receipts,
        gas_used: 50_000,
        blob_gas_used: Some(0),
        requests: &requests,
        block_access_list: None,
        intermediate_state_roots: None,
    };
    let judge = |result: ExecutionResult<'_>| validate_post_execution(spec, &block, &result);
    assert_eq!(judge(good), Ok(()));

    let error = judge(ExecutionResult { gas_used: 49_999, ..good });
    assert_eq!(error, Err(E::GasUsed { got: 49_999, expected: 50_000 }));
    let error = judge(ExecutionResult { blob_gas_used: Some(131_072), ..good });
    assert_eq!(error, Err(E::BlobGasUsed { got: 131_072, expected: 0 }));
    let error = judge(ExecutionResult { receipts: &[], ..good });
    assert!(matches!(error, Err(E::ReceiptCount { got: 0, expected: 1, .. })), "{error:?}");

    let mut failed = receipts.clone();
    failed[0].success = false;
    let error = judge(ExecutionResult { receipts: &failed, ..good });
    assert!(matches!(error, Err(E::ReceiptsRoot { .. })), "{error:?}");
    let mut typed = receipts.clone();
    typed[0].tx_type = TxType::Eip1559;
    let error = judge(ExecutionResult { receipts: &typed, ..good });
    assert!(matches!(error, Err(E::ReceiptsRoot { .. })), "{error:?}");
    let mut silent = receipts.clone();
    silent[0].logs.clear();
    let error = judge(ExecutionResult { receipts: &silent, ..good });
    assert!(matches!(&error, Err(E::LogsBloom { got, .. }) if **got == Bloom::ZERO), "{error:?}");

    let none = Requests::default();
    let error = judge(ExecutionResult { requests: &none, ..good });
    assert!(matches!(error, Err(E::RequestsHash { .. })), "{error:?}");
    let mut header = block.header().clone();
    header.requests_hash = None;
    let before_prague = SealedBlock::seal_parts(header.clone(), block.body().clone());
    let error = validate_post_execution(spec, &before_prague, &good);
    assert_eq!(error, Err(E::UnexpectedRequests { count: 1 }));

    header.requests_hash = block.requests_hash;
    // Six items: two accounts, two slots that are read, two that are written.
    let mut one = AccountChanges::new(Address::with_last_byte(1));
    one.storage_reads.extend([U256::from(1), U256::from(2)]);
    let write = |slot| SlotChanges::new(U256::from(slot), Vec::new());
    one.storage_changes.extend([write(3), write(4)]);
    let list = [one, AccountChanges::new(Address::with_last_byte(2))];
    header.block_access_list_hash = Some(compute_block_access_list_hash(&list));
    let judge = |gas_limit, list: &[AccountChanges]| {
        let header = Header { gas_limit, ..header.clone() };
        let amsterdam = SealedBlock::seal_parts(header, block.body().clone());
        let result = ExecutionResult { block_access_list: Some(list), ..good };
        validate_post_execution(spec, &amsterdam, &result)
    };
    let error = judge(12_000, &list[..1]);
    assert!(matches!(error, Err(E::BlockAccessListHash { .. })), "{error:?}");
    assert_eq!(judge(12_000, &list), Ok(()));
    let too_long = E::AccessListItems { items: 6, limit: 5, gas_limit: 11_999 };
    assert_eq!(judge(11_999, &list), Err(too_long));
}

#[test]
fn errors_name_the_block_and_both_values() {
    let (block, ..) = prague_block();
    let error = E::GasUsed { got: 1, expected: 2 }.in_block(&block.clone_sealed_header());
    let text = error.to_string();
    assert!(text.starts_with("block 22500000 (0x"), "{text}");
    assert!(text.ends_with("execution used 1 gas, expected 2 by the header"), "{text}");
}
