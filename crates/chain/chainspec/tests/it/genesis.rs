//! The built-in networks give the published genesis blocks. Genesis files are read as geth reads
//! them, or refused with the name of the field.

use std::sync::Arc;

use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{Address, B256, U256, b256};
use retrie_chainspec::{
    ChainSpec, ChainSpecError, EthereumHardfork, EthereumHardforks, ForkCondition, KNOWN_CHAINS,
    genesis_state_root, parse_chain, primitives::Header,
};

const MAINNET_STATE_ROOT: B256 =
    b256!("0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544");

#[test]
fn public_networks_have_their_genesis_blocks() {
    let mainnet = ChainSpec::mainnet();
    assert_eq!(mainnet.genesis().alloc.len(), 8893);
    assert_eq!(mainnet.genesis_header().state_root, MAINNET_STATE_ROOT);
    for (name, hash) in [
        ("mainnet", b256!("0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3")),
        ("sepolia", b256!("0x25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9")),
        ("holesky", b256!("0xb5f7f912443c940f21fd611f12828d75b534364ed9e95ca4e307729a4661bde4")),
        ("hoodi", b256!("0xbbe312868b376a3001692a646dd2d7d1e4406380dfd86b98aa8a34d1557c971b")),
    ] {
        let spec = parse_chain(name).unwrap();
        assert_eq!(spec.name(), name);
        assert_eq!(spec.genesis_hash(), hash, "{name}");
        let root = genesis_state_root(spec.genesis());
        assert_eq!(root, spec.genesis_header().state_root, "{name}");
    }
}

#[test]
fn embedded_allocations_stay_small() {
    let bytes: u64 = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/res"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 300_000, "res/ holds {bytes} bytes");
}

#[test]
fn mainnet_forks_activate_at_their_blocks_and_times() {
    let spec = ChainSpec::mainnet();
    for (number, timestamp, fork) in [
        (0, 0, EthereumHardfork::Frontier),
        (1_149_999, 0, EthereumHardfork::Frontier),
        (1_150_000, 0, EthereumHardfork::Homestead),
        (1_920_000, 0, EthereumHardfork::Dao),
        (2_463_000, 0, EthereumHardfork::Tangerine),
        (2_675_000, 0, EthereumHardfork::SpuriousDragon),
        (4_370_000, 0, EthereumHardfork::Byzantium),
        (7_280_000, 0, EthereumHardfork::Petersburg),
        (9_069_000, 0, EthereumHardfork::Istanbul),
        (9_200_000, 0, EthereumHardfork::MuirGlacier),
        (12_244_000, 0, EthereumHardfork::Berlin),
        (12_965_000, 0, EthereumHardfork::London),
        (13_773_000, 0, EthereumHardfork::ArrowGlacier),
        (15_050_000, 0, EthereumHardfork::GrayGlacier),
        (15_537_393, 0, EthereumHardfork::GrayGlacier),
        (15_537_394, 0, EthereumHardfork::Paris),
        (17_034_869, 1_681_338_454, EthereumHardfork::Paris),
        (17_034_870, 1_681_338_455, EthereumHardfork::Shanghai),
        (19_426_587, 1_710_338_135, EthereumHardfork::Cancun),
        (22_431_084, 1_746_612_311, EthereumHardfork::Prague),
        (23_935_694, 1_764_798_551, EthereumHardfork::Osaka),
        (24_000_000, 1_765_290_071, EthereumHardfork::Bpo1),
        (25_000_000, 1_767_747_671, EthereumHardfork::Bpo2),
    ] {
        assert_eq!(spec.fork_at(number, timestamp), fork, "block {number}, time {timestamp}");
    }
    assert_eq!(spec.merge_block(), Some(15_537_394));
    assert!(spec.dao_fork().is_some_and(|dao| dao.block == 1_920_000 && dao.support));
    assert!(spec.ethereum_fork_activation(EthereumHardfork::Dao).transitions_at_block(1_920_000));
    assert_eq!(spec.blob_params_at_timestamp(1_710_338_134), None);
    assert_eq!(spec.blob_params_at_timestamp(1_710_338_135), Some(BlobParams::cancun()));
    assert_eq!(spec.blob_params_at_timestamp(1_746_612_311), Some(BlobParams::prague()));
    assert_eq!(spec.blob_params_at_timestamp(1_764_798_551), Some(BlobParams::osaka()));
    assert_eq!(spec.blob_params_at_timestamp(1_765_290_071), Some(BlobParams::bpo1()));
    assert_eq!(spec.blob_params_at_timestamp(u64::MAX), Some(BlobParams::bpo2()));
}

#[test]
fn amsterdam_has_come_to_sepolia_alone() {
    // EIP-7773. With the blob parameters of the fork before it.
    const SEPOLIA: u64 = 1_791_294_816;
    let sepolia = ChainSpec::sepolia();
    assert_eq!(sepolia.fork_at(11_856_336, SEPOLIA - 1), EthereumHardfork::Bpo2);
    assert_eq!(sepolia.fork_at(11_856_337, SEPOLIA), EthereumHardfork::Amsterdam);
    assert_eq!(sepolia.fork_at(u64::MAX, u64::MAX), EthereumHardfork::Amsterdam);
    assert_eq!(sepolia.blob_params_at_timestamp(SEPOLIA), Some(BlobParams::bpo2()));
    for other in [ChainSpec::mainnet(), ChainSpec::holesky(), ChainSpec::hoodi()] {
        let amsterdam = other.ethereum_fork_activation(EthereumHardfork::Amsterdam);
        assert_eq!(amsterdam, ForkCondition::Never, "{}", other.name());
    }
}

#[test]
fn dev_chain_is_proof_of_stake_with_checked_accounts() {
    let spec = ChainSpec::dev();
    assert_eq!(spec.chain_id(), 1337);
    assert_eq!(spec.merge_block(), Some(0));
    assert_eq!(spec.fork_at(1, 1), EthereumHardfork::Bpo2);
    let header = spec.genesis_header();
    assert!(header.base_fee_per_gas.is_some() && header.requests_hash.is_some());
    // A mistyped account would have the wrong checksum.
    let source = include_str!("../../src/networks.rs");
    for address in retrie_chainspec::DEV_ACCOUNTS {
        assert!(source.contains(&address.to_checksum(None)), "{address}");
        assert!(spec.genesis().alloc[&address].balance > U256::ZERO);
    }
}

const HIVE: &str = r#"{
  "config": {
    "chainId": 3503995874084926, "homesteadBlock": 0, "eip150Block": 3, "eip155Block": 6,
    "eip158Block": 6, "byzantiumBlock": 9, "constantinopleBlock": 12, "petersburgBlock": 15,
    "istanbulBlock": 18, "muirGlacierBlock": 21, "berlinBlock": 24, "londonBlock": 27,
    "arrowGlacierBlock": 30, "grayGlacierBlock": 33, "mergeNetsplitBlock": 36,
    "shanghaiTime": 390, "cancunTime": 420, "pragueTime": 450, "osakaTime": 480,
    "bpo1Time": 510, "bpo2Time": 540, "terminalTotalDifficulty": 58750000000000000000000,
    "depositContractAddress": "0x0000000000000000000000000000000000000000", "ethash": {},
    "blobSchedule": {
      "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477},
      "Prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716},
      "BPO1": {"target": 7, "max": 8, "baseFeeUpdateFraction": 99}
    }
  },
  "nonce": "0x0", "timestamp": "1742212800", "extraData": "", "gasLimit": 100000000,
  "difficulty": "0x01", "mixhash": "0x0000000000000000000000000000000000000000000000000000000000000001",
  "coinbase": "0000000000000000000000000000000000000000", "number": "0x0", "gasUsed": "0x0",
  "baseFeePerGas": null,
  "alloc": {
    "dbdbdb2cbd23b783741e8d7fcf51e459b497e4a6": {"balance": "1000000000000000000000000"},
    "0x00000000219ab540356cBB839Cbe05303d7705Fa": {
      "balance": "0", "code": "0x6001", "nonce": "0xFF",
      "storage": {"0x22": "0x01", "0x0000000000000000000000000000000000000000000000000000000000000000": "0x5"}
    }
  }
}"#;

/// `HIVE` with one piece of text replaced, which must be there.
fn hive(from: &str, to: &str) -> String {
    assert!(HIVE.contains(from), "{from}");
    HIVE.replacen(from, to, 1)
}

#[test]
fn genesis_files_are_read_in_all_their_spellings() {
    let spec = ChainSpec::from_genesis_json(HIVE).unwrap();
    assert_eq!(spec.chain_id(), 3_503_995_874_084_926);
    assert_eq!(spec.genesis_header().timestamp, 1_742_212_800);
    assert_eq!(spec.genesis_header().mix_hash, B256::with_last_byte(1));
    assert_eq!(spec.genesis_header().base_fee_per_gas, None);
    // Time forks build upon London, which comes later here.
    assert_eq!(spec.genesis_header().withdrawals_root, None);
    // A number beyond 64 bits keeps every digit.
    assert_eq!(
        spec.terminal_total_difficulty(),
        Some("58750000000000000000000".parse::<U256>().unwrap())
    );
    assert_eq!(
        spec.ethereum_fork_activation(EthereumHardfork::SpuriousDragon),
        ForkCondition::Block(6)
    );
    let bpo1 = spec.blob_params_at_timestamp(511).unwrap();
    assert_eq!((bpo1.target_blob_count, bpo1.max_blob_count, bpo1.update_fraction), (7, 8, 99));
    assert_eq!((bpo1.max_blobs_per_tx, bpo1.blob_base_cost), (6, 8192));
    assert_eq!(spec.blob_params_at_timestamp(540), Some(BlobParams::bpo2()));
    assert_eq!(spec.blob_params_at_timestamp(480), Some(BlobParams::osaka()));

    let accounts = &spec.genesis().alloc;
    let rich: Address = "0xdbdbdb2cbd23b783741e8d7fcf51e459b497e4a6".parse().unwrap();
    assert_eq!(accounts[&rich].balance, "1000000000000000000000000".parse::<U256>().unwrap());
    let address: Address = "0x00000000219ab540356cBB839Cbe05303d7705Fa".parse().unwrap();
    let contract = &accounts[&address];
    assert_eq!(contract.nonce, Some(255));
    assert_eq!(
        contract.storage.as_ref().unwrap()[&B256::with_last_byte(0x22)],
        B256::with_last_byte(1)
    );
}

#[test]
fn merge_block_is_found_by_difficulty_where_it_is_not_known() {
    let spec = Arc::new(ChainSpec::from_genesis_json(HIVE).unwrap());
    assert_eq!(spec.merge_block(), None);
    let mut header = Header { number: 100, difficulty: U256::from(131_072), ..Default::default() };
    assert!(!spec.is_pos(&header));
    assert!(!spec.for_header(&header).is_paris_active_at_block(100));
    header.difficulty = U256::ZERO;
    assert!(spec.is_pos(&header));
    assert!(spec.for_header(&header).is_paris_active_at_block(100));
    assert_eq!(spec.fork_at_header(&header), EthereumHardfork::Paris);
    let ttd = spec.terminal_total_difficulty().unwrap();
    assert!(!spec.is_paris_active(100, Some(ttd - U256::from(1))));
    assert!(spec.is_paris_active(100, Some(ttd)));
    let fixed = ChainSpec::clone(&spec).with_merge_block(37);
    assert!(!fixed.is_paris_active(36, None) && fixed.is_paris_active(37, None));
    // A genesis that reaches the terminal difficulty is merged at once.
    let merged = hive("58750000000000000000000", "1");
    assert_eq!(ChainSpec::from_genesis_json(&merged).unwrap().merge_block(), Some(0));
}

#[test]
fn mistakes_in_a_genesis_file_name_their_field() {
    for (from, to, field) in [
        ("\"config\"", "\"configuration\"", "field config is missing"),
        ("\"chainId\": 3503995874084926,", "", "field config.chainId is missing"),
        ("\"alloc\"", "\"accounts\"", "field alloc is missing"),
        ("\"gasLimit\": 100000000,", "", "field gasLimit is missing"),
        ("\"difficulty\": \"0x01\",", "", "field difficulty is missing"),
        ("\"difficulty\": \"0x01\"", "\"difficulty\": \"0xzz\"", "field difficulty is 0xzz"),
        ("\"gasLimit\": 100000000", "\"gasLimit\": 1e8", "field gasLimit is 1e8"),
        ("\"gasLimit\": 100000000", "\"gasLimit\": -5", "field gasLimit is -5"),
        ("\"cancunTime\": 420", "\"cancunTime\": 18446744073709551616", "config.cancunTime"),
        ("\"cancunTime\": 420", "\"cancumTime\": 420", "field config.cancumTime is unknown"),
        ("\"cancunTime\": 420,", "", "field config.cancunTime is missing"),
        ("\"cancunTime\": 420", "\"cancunTime\": 20", "config.cancunTime = 20 lies before"),
        ("\"berlinBlock\": 24,", "", "field config.berlinBlock is missing"),
        ("\"berlinBlock\": 24", "\"berlinBlock\": 2", "config.berlinBlock = 2 lies before"),
        ("\"eip155Block\": 6", "\"eip155Block\": 5", "field config.eip155Block is 5"),
        ("\"bpo2Time\": 540", "\"bpo3Time\": 540", "field config.blobSchedule.bpo3 is missing"),
        ("\"max\": 6", "\"max\": 2", "field config.blobSchedule.cancun.target is 3"),
        ("\"max\": 6", "\"max\": 0", "field config.blobSchedule.cancun.max is 0"),
        (": 3338477", ": 0", "field config.blobSchedule.cancun.baseFeeUpdateFraction"),
        (
            "\"terminalTotalDifficulty\": 58750000000000000000000,",
            "",
            "field config.terminalTotalDifficulty is missing",
        ),
        ("\"ethash\"", "\"clique\"", "field config.clique asks for"),
        ("dbdbdb2c", "dbdbdb", "field alloc.dbdbdbbd23b783741e8d7fcf51e459b497e4a6"),
        ("\"balance\": \"0\",", "", "balance is missing"),
        ("\"storage\"", "\"storge\"", "storge is unknown"),
        ("\"0x22\": \"0x01\"", "\"0x22\": \"0xq\"", ".storage.0x22 is 0xq"),
        ("\"0x6001\"", "\"0x600\"", ".code is 0x600"),
        ("\"extraData\": \"\"", "\"extraData\": 7", "field extraData is 7, expected a string"),
        ("{\n  \"config\"", "[", "genesis is not a JSON object"),
        (
            "\"cancunTime\": 420",
            "\"cancunTime\": 420, \"binaryTrieTime\": 419",
            "config.binaryTrieTime = 419 lies before config.cancunTime = 420",
        ),
        (
            "\"cancunTime\": 420",
            "\"cancunTime\": 420, \"binaryTrieTime\": \"soon\"",
            "field config.binaryTrieTime is soon",
        ),
    ] {
        let error = ChainSpec::from_genesis_json(&hive(from, to)).unwrap_err().to_string();
        assert!(error.contains(field), "{from} -> {to}: {error}");
    }
}

#[test]
fn time_of_the_binary_tree_is_read_and_written() {
    let plain = ChainSpec::from_genesis_json(HIVE).unwrap();
    assert_eq!(plain.binary_tree_time(), None);
    assert!(!plain.is_binary_tree_active_at_timestamp(u64::MAX));
    let file = hive("\"cancunTime\": 420", "\"cancunTime\": 420, \"binaryTrieTime\": \"0x3e8\"");
    let spec = ChainSpec::from_genesis_json(&file).unwrap();
    assert_eq!(spec.binary_tree_time(), Some(1000));
    assert!(!spec.is_binary_tree_active_at_timestamp(999));
    assert!(spec.is_binary_tree_active_at_timestamp(1000));
    // Block 0 is far later.
    assert!(spec.has_binary_genesis() && !plain.has_binary_genesis());
    let later = ChainSpec::clone(&spec).with_binary_tree_time(Some(plain.genesis().timestamp + 1));
    assert!(!later.has_binary_genesis());
    assert_eq!(spec.genesis_hash(), plain.genesis_hash());
    let written = spec.to_genesis_json().unwrap();
    let read = ChainSpec::from_genesis_json(&written).unwrap();
    assert_eq!(read.binary_tree_time(), Some(1000), "{written}");
}

#[test]
fn chain_argument_is_a_name_or_a_file() {
    for name in KNOWN_CHAINS {
        assert_eq!(parse_chain(name).unwrap().name(), name);
    }
    assert!(matches!(parse_chain("mainet"), Err(ChainSpecError::UnknownChain { .. })));
    assert!(matches!(parse_chain("no/such/file.json"), Err(ChainSpecError::Read { .. })));
    let path = std::env::temp_dir().join(format!("retrie-genesis-{}.json", std::process::id()));
    std::fs::write(&path, hive("\"alloc\"", "\"accounts\"")).unwrap();
    let error = parse_chain(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("alloc"), "{error}");
    std::fs::write(&path, HIVE).unwrap();
    assert!(parse_chain(path.to_str().unwrap()).is_ok());
    std::fs::remove_file(path).unwrap();
}
