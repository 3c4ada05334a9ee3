//! A chain that is written as a genesis file and read again is the same chain: hash, forks and fork
//! ids, blob parameters.

use std::collections::BTreeSet;

use retrie_chainspec::{
    ChainSpec, ChainSpecError, ChainSpecParts, EthExecutorSpec, EthereumHardfork, ForkCondition,
    KNOWN_CHAINS, parse_chain,
};

/// Heights and times at which rules change, as far as the forks name any.
fn boundaries(spec: &ChainSpec) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut blocks, mut times) = (BTreeSet::new(), BTreeSet::new());
    for (_, condition) in spec.forks() {
        match condition {
            ForkCondition::Block(block) => blocks.insert(block),
            ForkCondition::Timestamp(time) => times.insert(time),
            ForkCondition::TTD { activation_block_number, fork_block, .. } => {
                blocks.extend(fork_block);
                blocks.insert(activation_block_number)
            }
            ForkCondition::Never => false,
        };
    }
    times.extend(spec.blob_schedule().scheduled.iter().map(|(time, _)| *time));
    (blocks, times)
}

/// A value, the one before and the one after.
fn around(values: &BTreeSet<u64>) -> BTreeSet<u64> {
    let around = |at: &u64| [at.saturating_sub(1), *at, at.saturating_add(1)];
    values.iter().flat_map(around).chain([0, u64::MAX]).collect()
}

/// All values of `FORK_HASH` (EIP-2124, EIP-6122), one for each activation.
fn fork_ids(spec: &ChainSpec) -> Vec<u32> {
    let (_, mut times) = boundaries(spec);
    let blocks: BTreeSet<u64> = spec
        .forks()
        .filter_map(|(_, condition)| match condition {
            ForkCondition::Block(block) => Some(block),
            ForkCondition::TTD { fork_block, .. } => fork_block,
            _ => None,
        })
        .filter(|block| *block > 0)
        .collect();
    times.retain(|time| *time > spec.genesis_header().timestamp);
    let mut crc = crc32fast::Hasher::new();
    crc.update(spec.genesis_hash().as_slice());
    let mut ids = vec![crc.clone().finalize()];
    for activation in blocks.into_iter().chain(times) {
        crc.update(&activation.to_be_bytes());
        ids.push(crc.clone().finalize());
    }
    ids
}

fn assert_same(name: &str, read: &ChainSpec, spec: &ChainSpec) {
    assert_eq!(read.genesis_header(), spec.genesis_header(), "{name}");
    assert_eq!(read.genesis_hash(), spec.genesis_hash(), "{name}");
    assert_eq!(read.chain_id(), spec.chain_id(), "{name}");
    assert_eq!(read.genesis().alloc, spec.genesis().alloc, "{name}");
    assert_eq!(read.forks().collect::<Vec<_>>(), spec.forks().collect::<Vec<_>>(), "{name}");
    assert_eq!(fork_ids(read), fork_ids(spec), "{name}");
    assert_eq!(read.merge_block(), spec.merge_block(), "{name}");
    assert_eq!(read.dao_fork(), spec.dao_fork(), "{name}");
    assert_eq!(read.deposit_contract_address(), spec.deposit_contract_address(), "{name}");
    let (blocks, times) = boundaries(spec);
    for time in around(&times) {
        for block in around(&blocks) {
            let fork = spec.fork_at(block, time);
            assert_eq!(read.fork_at(block, time), fork, "{name}, block {block}, time {time}");
        }
        let blobs = spec.blob_params_at_timestamp(time);
        assert_eq!(read.blob_params_at_timestamp(time), blobs, "{name}, time {time}");
    }
}

fn written_and_read(spec: &ChainSpec) -> ChainSpec {
    let json = spec.to_genesis_json().unwrap();
    let read = ChainSpec::from_genesis_json(&json).unwrap();
    assert_eq!(read.to_genesis_json().unwrap(), json, "written twice");
    read
}

#[test]
fn every_known_chain_comes_back_whole() {
    for name in KNOWN_CHAINS {
        let spec = parse_chain(name).unwrap();
        assert!(spec.forks().count() > 15, "{name}");
        assert!(spec.blob_params_at_timestamp(u64::MAX).is_some(), "{name}");
        assert_same(name, &written_and_read(&spec), &spec);
    }
}

#[test]
fn the_known_chains_have_the_fork_ids_of_the_networks() {
    // As nodes of these networks send them in the eth handshake, from the first fork on.
    for (name, ids) in [
        (
            "mainnet",
            &[
                0xfc64_ec04_u32,
                0x97c2_c34c,
                0x91d1_f948,
                0x7a64_da13,
                0x3edd_5b10,
                0xa00b_c324,
                0x668d_b0af,
                0x879d_6e30,
                0xe029_e991,
                0x0eb4_40f6,
                0xb715_077d,
                0x20c3_27fc,
                0xf0af_d0e3,
                0xdce9_6c2d,
                0x9f3d_2254,
                0xc376_cf8b,
                0x5167_e2a6,
                0xcba2_a1c0,
                0x07c9_462e,
            ][..],
        ),
        (
            "sepolia",
            &[
                0xfe33_66e7,
                0xb96c_bd13,
                0xf7f9_bc08,
                0x88cf_81d9,
                0xed88_b5fd,
                0xe2ae_4999,
                0x5607_8a1e,
                0x2689_56b6,
            ],
        ),
        ("hoodi", &[0xbef7_1d30, 0x0929_e24e, 0xe7e0_e7ff, 0x3893_353e, 0x23aa_1351]),
    ] {
        let known = fork_ids(&parse_chain(name).unwrap());
        assert_eq!(known[..ids.len()], *ids, "{name}: {known:08x?}");
    }
}

/// All fields at once: forks at unusual heights, a total difficulty beyond 128 bits, blob
/// parameters for every fork, two of them at the same time.
const ODD: &str = r#"{
  "config": {
    "chainId": 18446744073709551615, "homesteadBlock": 1, "daoForkBlock": 2,
    "daoForkSupport": false, "eip150Block": 3, "eip155Block": 6, "eip158Block": 6,
    "byzantiumBlock": 9, "constantinopleBlock": 12, "istanbulBlock": 18, "berlinBlock": 24,
    "londonBlock": 27, "arrowGlacierBlock": 30, "mergeNetsplitBlock": 36,
    "shanghaiTime": 390, "cancunTime": 420, "pragueTime": 450, "osakaTime": 480,
    "bpo1Time": 510, "bpo2Time": 510, "bpo4Time": 540, "amsterdamTime": 540,
    "terminalTotalDifficulty": "0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "depositContractAddress": "0x4242424242424242424242424242424242424242",
    "blobSchedule": {
      "cancun": {"target": 1, "max": 2, "baseFeeUpdateFraction": 3},
      "prague": {"target": 4, "max": 5, "baseFeeUpdateFraction": 6},
      "osaka": {"target": 7, "max": 8, "baseFeeUpdateFraction": 9},
      "bpo1": {"target": 10, "max": 11, "baseFeeUpdateFraction": 12},
      "bpo2": {"target": 13, "max": 14, "baseFeeUpdateFraction": 15},
      "bpo4": {"target": 16, "max": 17, "baseFeeUpdateFraction": 18},
      "amsterdam": {"target": 19, "max": 20, "baseFeeUpdateFraction": 18446744073709551615}
    }
  },
  "nonce": "0x7", "timestamp": "0x8", "extraData": "0x0102", "gasLimit": "0x9", "difficulty": "0xa",
  "mixHash": "0x00000000000000000000000000000000000000000000000000000000000000ff",
  "coinbase": "0x4343434343434343434343434343434343434343", "number": "0x0",
  "parentHash": "0x00000000000000000000000000000000000000000000000000000000000000fe",
  "baseFeePerGas": "0x7", "excessBlobGas": "0x8", "blobGasUsed": "0x9", "slotNumber": "0xa",
  "alloc": {
    "0x00000000219ab540356cBB839Cbe05303d7705Fa": {
      "balance": "0x1", "code": "0x6001", "nonce": "0xff", "storage": {"0x22": "0x01"}
    }
  }
}"#;

#[test]
fn a_file_with_every_field_comes_back_whole() {
    let spec = ChainSpec::from_genesis_json(ODD).unwrap();
    let read = written_and_read(&spec);
    assert_same("odd", &read, &spec);
    assert_eq!(read.blob_schedule(), spec.blob_schedule());
    let (was, is) = (spec.genesis(), read.genesis());
    assert_eq!((was.base_fee_per_gas, was.slot_number), (is.base_fee_per_gas, is.slot_number));
    assert_eq!((was.excess_blob_gas, was.blob_gas_used), (is.excess_blob_gas, is.blob_gas_used));
    assert_eq!(was.parent_hash, is.parent_hash);
    // geth accepts only a JSON number here, larger than most JSON libraries can hold.
    let digits = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    let json = spec.to_genesis_json().unwrap();
    assert!(json.contains(&format!("\"terminalTotalDifficulty\": {digits}")), "{json}");
}

#[test]
fn what_no_file_can_say_is_an_error() {
    let dev = ChainSpec::dev();
    let parts = || ChainSpecParts {
        name: "odd".into(),
        chain_id: 1,
        genesis: dev.genesis().clone(),
        genesis_header: None,
        forks: dev.forks().collect(),
        blob_schedule: dev.blob_schedule().clone(),
        deposit_contract: None,
        dao_fork: None,
    };
    assert!(ChainSpec::new(parts()).to_genesis_json().is_ok());
    let mut forks = parts();
    forks.forks.retain(|(fork, _)| *fork != EthereumHardfork::London);
    forks.forks.push((EthereumHardfork::London, ForkCondition::Timestamp(7)));
    let mut blobs = parts();
    let params = blobs.blob_schedule.osaka;
    blobs.blob_schedule.scheduled.push((12_345, params));
    for (parts, what) in [(forks, "London"), (blobs, "12345")] {
        let error = ChainSpec::new(parts).to_genesis_json().unwrap_err();
        assert!(matches!(error, ChainSpecError::Inexpressible { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("chain odd") && text.contains(what), "{text}");
    }
}
