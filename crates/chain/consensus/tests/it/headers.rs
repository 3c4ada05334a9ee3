//! Real headers are valid, and every mutated field is refused by the right rule.

use crate::common;

use std::sync::Arc;

use alloy_primitives::{B64, B256, Bytes, U256};
use retrie_chainspec::{
    ChainSpec,
    EthereumHardfork::{Amsterdam, Cancun, London, Prague, Shanghai},
    primitives::{Header, SealedHeader},
};
use retrie_consensus::{
    ChainHead, ConsensusError as E, next_excess_blob_gas, validate_body, validate_header,
    validate_header_against_parent, validate_merge, validate_not_from_future,
};

fn validate(spec: &ChainSpec, header: &SealedHeader, parent: &SealedHeader) -> Result<(), E> {
    validate_header(spec, header)?;
    validate_header_against_parent(spec, header, parent)
}

#[test]
fn real_headers_of_every_fork_follow_their_parents() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let mut checked = 0;
    let mut check = |header: &SealedHeader, parent: &SealedHeader| {
        if let Err(error) = validate(&spec, header, parent) {
            panic!("{}", error.in_block(header));
        }
        checked += 1;
    };
    let early = common::early_chain(&data);
    for pair in early.windows(2) {
        check(&pair[1].clone_sealed_header(), &pair[0].clone_sealed_header());
    }
    for bundle in common::bundles(&data, "witness") {
        let mut headers: Vec<_> =
            bundle["headers"].as_array().unwrap().iter().map(common::header_of).collect();
        headers.push(common::block_of(&bundle["block"]).clone_sealed_header());
        headers
            .windows(2)
            .filter(|pair| pair[0].number + 1 == pair[1].number)
            .for_each(|pair| check(&pair[1], &pair[0]));
    }
    let shanghai: Vec<_> = common::bundles(&data, "diffs")
        .iter()
        .map(|bundle| common::header_of(&bundle["header"]))
        .collect();
    shanghai.windows(2).for_each(|pair| check(&pair[1], &pair[0]));
    assert!(checked > 4600, "only {checked} headers checked");

    for bundle in common::bundles(&data, "prestate") {
        let header = common::header_of(&bundle["header"]);
        validate_header(&spec, &header).unwrap_or_else(|e| panic!("{}", e.in_block(&header)));
    }
}

#[test]
fn real_bodies_match_their_headers() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let blocks = common::witness_pairs(&data).into_iter().map(|(block, _)| block);
    let complete = common::bundles(&data, "prestate")
        .into_iter()
        .filter(|bundle| !bundle["block"].is_null())
        .map(|bundle| common::block_of(&bundle["block"]));
    let mut checked = 0;
    for block in blocks.chain(complete).chain(common::early_chain(&data)) {
        validate_body(&spec, &block)
            .unwrap_or_else(|error| panic!("{}", error.in_block(&block.clone_sealed_header())));
        checked += 1;
    }
    assert!(checked > 4600, "only {checked} bodies checked");
}

/// A chain that crosses every fork from Frontier to BPO2 in 54 blocks, and merges by total
/// difficulty at a block that its genesis file does not name.
#[test]
fn chain_through_all_forks_is_valid_and_merges_by_difficulty() {
    let Some(data) = common::data() else { return };
    let files = common::archive(&data, "rpc-compat");
    let genesis = std::str::from_utf8(&files["rpc-compat/genesis.json"]).unwrap();
    let spec = Arc::new(ChainSpec::from_genesis_json(genesis).unwrap());
    assert_eq!(spec.merge_block(), None);
    let blocks = common::decode_chain(&files["rpc-compat/chain.rlp"]);
    let mut parent = spec.genesis_header().clone();
    let mut head = ChainHead::genesis(&spec);
    let mut first_pos = None;
    for block in &blocks {
        let header = block.clone_sealed_header();
        let in_block = |error: E| panic!("{}", error.in_block(&header));
        validate(&spec, &header, &parent).unwrap_or_else(in_block);
        validate_merge(&spec, &header, head.total_difficulty).unwrap_or_else(in_block);
        validate_body(&spec, block).unwrap_or_else(in_block);
        head = head.child(&spec, header.hash(), &header);
        if head.is_pos && first_pos.is_none() {
            first_pos = Some(header.number);
            // One block earlier or later would be refused.
            let ttd = spec.terminal_total_difficulty().unwrap();
            assert!(matches!(
                validate_merge(&spec, &header, ttd - U256::from(1)),
                Err(E::ProofOfStakeBeforeMerge { .. })
            ));
            assert!(matches!(
                validate_merge(&spec, &parent, ttd),
                Err(E::ProofOfWorkAfterMerge { .. })
            ));
        }
        parent = header;
    }
    assert_eq!(blocks.len(), 54);
    assert_eq!(first_pos, Some(36));
    assert_eq!(
        head.hash.to_string().get(..10),
        Some("0xd226371d"),
        "the head that the suite documents"
    );
}

/// One chain merged from genesis on, one that stays with proof of work.
#[test]
fn chains_with_geth_genesis_files_are_valid() {
    let Some(data) = common::data() else { return };
    let files = common::archive(&data, "p2p");
    for (folder, file, merge_block, least) in [
        ("p2p/chain-600-prague", "chain.rlp", Some(0), 600),
        ("p2p/chain-3000-pow", "fullchain.rlp", None, 3000),
    ] {
        let genesis = std::str::from_utf8(&files[&format!("{folder}/genesis.json")]).unwrap();
        let spec = ChainSpec::from_genesis_json(genesis).unwrap();
        assert_eq!(spec.merge_block(), merge_block, "{folder}");
        let blocks = common::decode_chain(&files[&format!("{folder}/{file}")]);
        assert!(blocks.len() >= least, "{folder}: {} blocks", blocks.len());
        let mut parent = spec.genesis_header().clone();
        for block in &blocks {
            let header = block.clone_sealed_header();
            if header.number == 0 {
                assert_eq!(header.hash(), spec.genesis_hash(), "{folder}");
                continue;
            }
            validate(&spec, &header, &parent)
                .and_then(|()| validate_body(&spec, block))
                .unwrap_or_else(|error| panic!("{folder} {}", error.in_block(&header)));
            parent = header;
        }
    }
}

/// Mutates a clone of a real header and returns the refusal.
fn refusal(
    spec: &ChainSpec,
    header: &SealedHeader,
    parent: &SealedHeader,
    mutate: impl FnOnce(&mut Header),
) -> E {
    let mut mutated = header.clone_header();
    mutate(&mut mutated);
    validate(spec, &SealedHeader::seal_slow(mutated), parent).unwrap_err()
}

macro_rules! assert_refused {
    ($spec:expr, $header:expr, $parent:expr, $mutate:expr, $error:pat) => {
        let error = refusal($spec, $header, $parent, $mutate);
        assert!(
            matches!(error, $error),
            "block {}: expected {}, got {error:?}",
            $header.number,
            stringify!($error)
        );
    };
}

#[test]
fn mutated_fields_are_refused_on_every_fork() {
    let Some(data) = common::data() else { return };
    let spec = &*ChainSpec::mainnet();
    for (block, parent) in common::witness_pairs(&data) {
        let (header, parent) = (&block.clone_sealed_header(), &parent);
        let limit = parent.gas_limit;
        let time = parent.timestamp;
        assert_refused!(spec, header, parent, |h| h.parent_hash = B256::ZERO, E::ParentHash { .. });
        assert_refused!(spec, header, parent, |h| h.number += 1, _);
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.timestamp = time,
            E::Timestamp { .. } | E::MissingField { .. } | E::UnexpectedField { .. }
        );
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.gas_used = h.gas_limit + 1,
            E::GasUsedAboveLimit { .. }
        );
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.gas_limit = limit * 2 + limit / 512,
            E::GasLimitChange { .. }
        );
        assert_refused!(
            spec,
            header,
            parent,
            |h| {
                h.gas_limit = 4999;
                h.gas_used = 0;
            },
            E::GasLimitTooLow { .. }
        );
        assert_refused!(spec, header, parent, |h| h.gas_limit = 1 << 63, E::GasLimitTooHigh { .. });
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.extra_data = Bytes::from(vec![0; 33]),
            E::ExtraDataTooLong { got: 33, max: 32 }
        );
        if header.number < 15_537_394 {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.difficulty += U256::from(1),
                E::Difficulty { .. }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.difficulty = U256::ZERO,
                E::Difficulty { .. }
            );
        } else {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.difficulty += U256::from(1),
                E::NonZeroDifficulty { .. }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.nonce = B64::with_last_byte(1),
                E::NonZeroNonce { got: 1 }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.ommers_hash = B256::ZERO,
                E::OmmersAfterMerge { .. }
            );
        }
        match header.base_fee_per_gas {
            Some(fee) => {
                assert_refused!(
                    spec,
                    header,
                    parent,
                    |h| h.base_fee_per_gas = Some(fee + 1),
                    E::BaseFee { .. }
                );
                assert_refused!(
                    spec,
                    header,
                    parent,
                    |h| h.base_fee_per_gas = None,
                    E::MissingField { field: "baseFeePerGas", fork: London }
                );
            }
            None => {
                assert_refused!(
                    spec,
                    header,
                    parent,
                    |h| h.base_fee_per_gas = Some(7),
                    E::UnexpectedField { field: "baseFeePerGas", fork: London }
                );
            }
        }
        if header.withdrawals_root.is_some() {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.withdrawals_root = None,
                E::MissingField { field: "withdrawalsRoot", fork: Shanghai }
            );
        } else {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.withdrawals_root = Some(B256::ZERO),
                E::UnexpectedField { field: "withdrawalsRoot", fork: Shanghai }
            );
        }
        if header.excess_blob_gas.is_some() {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.excess_blob_gas = h.excess_blob_gas.map(|e| e + 1),
                E::ExcessBlobGas { .. }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.excess_blob_gas = None,
                E::MissingField { field: "excessBlobGas", fork: Cancun }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.blob_gas_used = None,
                E::MissingField { field: "blobGasUsed", fork: Cancun }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.blob_gas_used = Some(1),
                E::BlobGasNotMultiple { got: 1, .. }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.blob_gas_used = Some(22 * 131_072),
                E::BlobGasAboveMax { .. }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.parent_beacon_block_root = None,
                E::MissingField { field: "parentBeaconBlockRoot", fork: Cancun }
            );
        } else {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.excess_blob_gas = Some(0),
                E::UnexpectedField { field: "excessBlobGas", fork: Cancun }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.blob_gas_used = Some(0),
                E::UnexpectedField { field: "blobGasUsed", fork: Cancun }
            );
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.parent_beacon_block_root = Some(B256::ZERO),
                E::UnexpectedField { field: "parentBeaconBlockRoot", fork: Cancun }
            );
        }
        if header.requests_hash.is_some() {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.requests_hash = None,
                E::MissingField { field: "requestsHash", fork: Prague }
            );
        } else {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.requests_hash = Some(B256::ZERO),
                E::UnexpectedField { field: "requestsHash", fork: Prague }
            );
        }
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.block_access_list_hash = Some(B256::ZERO),
            E::UnexpectedField { field: "blockAccessListHash", fork: Amsterdam }
        );
        assert_refused!(
            spec,
            header,
            parent,
            |h| h.slot_number = Some(0),
            E::UnexpectedField { field: "slotNumber", fork: Amsterdam }
        );
        if (1_920_000..1_920_010).contains(&header.number) {
            assert_refused!(
                spec,
                header,
                parent,
                |h| h.extra_data = Bytes::new(),
                E::DaoExtraData { .. }
            );
        }
    }
}

#[test]
fn gas_limit_may_move_by_less_than_a_1024th() {
    let Some(data) = common::data() else { return };
    let spec = &*ChainSpec::mainnet();
    let (block, parent) = common::witness_pairs(&data)
        .into_iter()
        .find(|(block, _)| block.number == 9_069_000)
        .unwrap();
    let header = block.clone_sealed_header();
    let bound = parent.gas_limit / 1024;
    let with_limit = |limit| {
        let header = Header { gas_limit: limit, gas_used: 0, ..header.clone_header() };
        validate(spec, &SealedHeader::seal_slow(header), &parent)
    };
    assert_eq!(with_limit(parent.gas_limit + bound - 1), Ok(()));
    assert_eq!(with_limit(parent.gas_limit - bound + 1), Ok(()));
    assert!(matches!(with_limit(parent.gas_limit + bound), Err(E::GasLimitChange { .. })));
    assert!(matches!(with_limit(parent.gas_limit - bound), Err(E::GasLimitChange { .. })));
}

#[test]
fn mutated_bodies_are_refused() {
    let Some(data) = common::data() else { return };
    let spec = &*ChainSpec::mainnet();
    for (block, _) in common::witness_pairs(&data) {
        let (header, body) = block.split_sealed_header_body();
        let with = |header: &SealedHeader, body| {
            let block =
                retrie_chainspec::primitives::SealedBlock::from_sealed_parts(header.clone(), body);
            validate_body(spec, &block)
        };
        if !body.transactions.is_empty() {
            let mut fewer = body.clone();
            let removed = fewer.transactions.pop().unwrap();
            let error = with(&header, fewer).unwrap_err();
            assert!(
                matches!(error, E::TransactionsRoot { .. })
                    || (removed.is_eip4844() && matches!(error, E::BlobGasUsed { .. })),
                "{error:?}"
            );
        }
        let mut with_ommer = body.clone();
        with_ommer.ommers.push(Header::default());
        assert!(matches!(with(&header, with_ommer), Err(E::OmmersHash { .. })));
        match &body.withdrawals {
            Some(withdrawals) => {
                let mut changed = body.clone();
                let mut list = withdrawals.to_vec();
                list[0].amount += 1;
                changed.withdrawals = Some(list.into());
                assert!(matches!(with(&header, changed), Err(E::WithdrawalsRoot { .. })));
                let mut none = body.clone();
                none.withdrawals = None;
                assert!(matches!(with(&header, none), Err(E::MissingWithdrawals { .. })));
            }
            None => {
                let mut some = body.clone();
                some.withdrawals = Some(Vec::new().into());
                assert!(matches!(with(&header, some), Err(E::UnexpectedWithdrawals { .. })));
            }
        }
        if header.blob_gas_used.is_some() {
            let mut header = header.clone_header();
            header.blob_gas_used = header.blob_gas_used.map(|used| used + 131_072);
            let header = SealedHeader::seal_slow(header);
            assert!(matches!(with(&header, body.clone()), Err(E::BlobGasUsed { .. })));
        }
        // A typed transaction before its fork.
        if body.transactions.iter().any(|transaction| transaction.is_eip1559()) {
            let header = Header { number: 12_964_999, timestamp: 0, ..header.clone_header() };
            let header = SealedHeader::seal_slow(header);
            assert!(matches!(with(&header, body.clone()), Err(E::TransactionType { .. })));
        }
    }
}

#[test]
fn oversized_osaka_block_is_refused() {
    use alloy_consensus::{Signed, TxLegacy};
    use alloy_primitives::Signature;
    use retrie_chainspec::primitives::{BlockBody, SealedBlock, Transaction};
    let spec = &*ChainSpec::mainnet();
    let block = |bytes: usize, timestamp| {
        let transaction = TxLegacy { input: vec![1; bytes].into(), ..Default::default() };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let transaction: Transaction =
            Signed::new_unchecked(transaction, signature, B256::ZERO).into();
        let header = Header { timestamp, number: 24_000_000, ..Default::default() };
        SealedBlock::seal_parts(
            header,
            BlockBody { transactions: vec![transaction], ..Default::default() },
        )
    };
    let osaka = 1_764_798_551;
    let limit = 8 * 1024 * 1024;
    assert!(matches!(
        validate_body(spec, &block(limit, osaka)),
        Err(E::BlockTooLarge { max: 8_388_608, .. })
    ));
    // Allowed before Osaka and when smaller; refused for its root then.
    for fine in [block(limit, osaka - 1), block(limit - 1024, osaka)] {
        assert!(matches!(validate_body(spec, &fine), Err(E::TransactionsRoot { .. })));
    }
}

#[test]
fn amsterdam_fields_are_required_from_amsterdam_on() {
    let spec = ChainSpec::new(retrie_chainspec::ChainSpecParts {
        name: "amsterdam".to_owned(),
        chain_id: 1,
        genesis: alloy_genesis::Genesis { gas_limit: 30_000_000, ..Default::default() },
        genesis_header: None,
        forks: retrie_chainspec::test_networks::test_network("Amsterdam").unwrap().forks,
        blob_schedule: Default::default(),
        deposit_contract: None,
        dao_fork: None,
    });
    let parent = spec.genesis_header().clone();
    let header = SealedHeader::seal_slow(Header {
        parent_hash: parent.hash(),
        number: 1,
        timestamp: 1,
        base_fee_per_gas: Some(875_000_000),
        ..parent.clone_header()
    });
    assert_eq!(validate(&spec, &header, &parent), Ok(()));
    assert_refused!(
        &spec,
        &header,
        &parent,
        |h| h.block_access_list_hash = None,
        E::MissingField { field: "blockAccessListHash", fork: Amsterdam }
    );
    assert_refused!(
        &spec,
        &header,
        &parent,
        |h| h.slot_number = None,
        E::MissingField { field: "slotNumber", fork: Amsterdam }
    );
}

#[test]
fn hostile_parents_give_errors_instead_of_overflows() {
    let spec = ChainSpec::dev();
    let template = spec.genesis_header().clone_header();
    let child_of = |parent: Header| {
        let parent = SealedHeader::seal_slow(parent);
        let header = Header {
            parent_hash: parent.hash(),
            number: parent.number.wrapping_add(1),
            timestamp: parent.timestamp + 1,
            ..parent.clone_header()
        };
        validate_header_against_parent(&spec, &SealedHeader::seal_slow(header), &parent)
    };
    let error = child_of(Header {
        base_fee_per_gas: Some(u64::MAX),
        gas_used: template.gas_limit,
        ..template.clone()
    });
    assert!(matches!(error, Err(E::BaseFeeOverflow { .. })), "{error:?}");
    for (excess, used) in [(u64::MAX, 131_072), (0, u64::MAX - 131_071)] {
        let parent =
            Header { excess_blob_gas: Some(excess), blob_gas_used: Some(used), ..template.clone() };
        let error = next_excess_blob_gas(&spec, &parent, 1);
        assert!(matches!(error, Err(E::ExcessBlobGasOverflow { .. })), "{error:?}");
    }
    let huge = Header { excess_blob_gas: Some(u64::MAX / 2), ..template.clone() };
    assert!(next_excess_blob_gas(&spec, &huge, 1).is_ok());
    let error = child_of(Header { number: u64::MAX, ..template });
    assert!(matches!(error, Err(E::Number { .. })), "{error:?}");
    let last = SealedHeader::seal_slow(Header {
        number: u64::MAX,
        ..spec.genesis_header().clone_header()
    });
    let again = Header { parent_hash: last.hash(), timestamp: 1, ..last.clone_header() };
    let error = validate_header_against_parent(&spec, &SealedHeader::seal_slow(again), &last);
    assert!(matches!(error, Err(E::Number { .. })), "{error:?}");
}

#[test]
fn blocks_from_the_future_are_a_local_matter() {
    let header = Header { timestamp: 116, ..Default::default() };
    assert_eq!(validate_not_from_future(&header, 101, 15), Ok(()));
    let error = validate_not_from_future(&header, 100, 15).unwrap_err();
    assert!(matches!(error, E::FutureTimestamp { got: 116, now: 100, allowed: 15 }));
    assert!(error.is_local());
}
