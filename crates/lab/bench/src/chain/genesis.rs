//! The genesis file of generated chains.

use super::{ChainFork, ChainRecipe, sign::ChainSender};
use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS,
    eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip8282::{
        BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_DEPOSIT_CONTRACT_CODE,
        BUILDER_EXIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_CODE,
    },
};
use alloy_primitives::U256;
use retrie_chainspec::ChainSpec;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Chain id of every generated chain.
pub(crate) const CHAIN_ID: u64 = 73_317;
/// 1 January 2025. It lies in the past, so that no client waits for it.
const TIMESTAMP: u64 = 1_735_689_600;
/// Wei that each sender has: a million ether.
pub(crate) const FUNDS: u128 = 1_000_000 * 1_000_000_000_000_000_000;
/// Forks by block number, all at genesis.
const BLOCK_FORKS: [&str; 10] = [
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
];

/// The genesis file in the format of geth, reth and `retrie init`: the fork and proof of stake from
/// the start, system contracts, and `senders` with funds.
pub(crate) fn genesis_json(recipe: &ChainRecipe, senders: &[ChainSender]) -> String {
    let funded = |sender: &ChainSender| {
        (sender.address.to_string(), json!({ "balance": U256::from(FUNDS) }))
    };
    let genesis = genesis_with(recipe, senders.iter().map(funded).collect());
    format!("{genesis:#}\n")
}

/// Like [`genesis_json`], with the accounts of `alloc` instead of the senders.
pub(crate) fn genesis_with(recipe: &ChainRecipe, mut alloc: Map<String, Value>) -> Value {
    let mut config = Map::from_iter([("chainId".to_owned(), json!(CHAIN_ID))]);
    config.extend(BLOCK_FORKS.map(|fork| (fork.to_owned(), json!(0))));
    config.extend([
        ("terminalTotalDifficulty".to_owned(), json!(0)),
        ("shanghaiTime".to_owned(), json!(0)),
        ("cancunTime".to_owned(), json!(0)),
        ("pragueTime".to_owned(), json!(0)),
        (
            "blobSchedule".to_owned(),
            json!({
                "cancun": { "target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477 },
                "prague": { "target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716 },
            }),
        ),
    ]);
    if recipe.fork == ChainFork::Amsterdam {
        for fork in ["osaka", "bpo1", "bpo2", "amsterdam"] {
            config.insert(format!("{fork}Time"), json!(0));
            let blobs = json!({ "target": 14, "max": 21, "baseFeeUpdateFraction": 11_684_671 });
            config["blobSchedule"][fork] = blobs;
        }
    }
    let system = [
        BEACON_ROOTS_ADDRESS,
        HISTORY_STORAGE_ADDRESS,
        WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
        CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    ];
    let dev = ChainSpec::dev();
    for (address, account) in dev.genesis_accounts().filter(|(at, _)| system.contains(at)) {
        let mut fields = json!({ "balance": "0x0", "nonce": "0x1", "code": account.code });
        if let Some(storage) = &account.storage {
            fields["storage"] = json!(storage);
        }
        alloc.insert(address.to_string(), fields);
    }
    if recipe.fork == ChainFork::Amsterdam {
        for (address, code) in [
            (BUILDER_DEPOSIT_CONTRACT_ADDRESS, &BUILDER_DEPOSIT_CONTRACT_CODE),
            (BUILDER_EXIT_CONTRACT_ADDRESS, &BUILDER_EXIT_CONTRACT_CODE),
        ] {
            let fields = json!({ "balance": "0x0", "nonce": "0x1", "code": code });
            alloc.insert(address.to_string(), fields);
        }
    }
    json!({
        "config": Value::Object(config),
        "nonce": "0x0",
        "timestamp": format!("{TIMESTAMP:#x}"),
        "extraData": format!("0x{}", alloy_primitives::hex::encode(format!("retrie {}", recipe.seed))),
        "gasLimit": format!("{:#x}", recipe.gas_limit()),
        "difficulty": "0x0",
        "baseFeePerGas": "0x3b9aca00",
        "alloc": alloc,
    })
}

/// Writes `genesis`. `alloc` writes its accounts, separated by commas.
pub(crate) fn write_with_alloc(
    out: &mut dyn Write,
    genesis: &Value,
    alloc: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write!(out, "{{")?;
    for (name, value) in genesis.as_object().into_iter().flatten() {
        if name != "alloc" {
            write!(out, "\n  {}: {value},", json!(name))?;
        }
    }
    write!(out, "\n  \"alloc\": {{")?;
    alloc(out)?;
    writeln!(out, "\n  }}\n}}")
}
