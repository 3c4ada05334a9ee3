//! Reading and [writing](mod@write) geth-style genesis files.
//!
//! The format is that of `geth init`: header fields and `alloc` at the top, forks under `config`.
//! As geth does, field names are matched without regard to case, quantities may be JSON numbers
//! of any size, decimal strings or `0x` hex, and `null` means absent. Unlike geth, unknown
//! `*Time` fields and unknown account fields are refused, since ignoring them would silently give
//! another chain.

mod write;

use std::collections::BTreeMap;

use alloy_eips::{BlobScheduleBlobParams, eip7840::BlobParams};
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_hardforks::{EthereumHardfork, ForkCondition};
use alloy_primitives::{Address, B256, Bytes, U256, hex};
use serde_json::value::RawValue;

use crate::{ChainSpec, ChainSpecError, ChainSpecParts, DaoFork, blobs};

pub(crate) use write::{write, write_config};

/// A fork field of `config`: its name, the fork, and whether chains may leave it out.
type ForkField = (&'static str, EthereumHardfork, bool);

const BLOCK_FORKS: [ForkField; 12] = [
    ("homesteadBlock", EthereumHardfork::Homestead, false),
    ("eip150Block", EthereumHardfork::Tangerine, false),
    ("eip158Block", EthereumHardfork::SpuriousDragon, false),
    ("byzantiumBlock", EthereumHardfork::Byzantium, false),
    ("constantinopleBlock", EthereumHardfork::Constantinople, false),
    ("petersburgBlock", EthereumHardfork::Petersburg, false),
    ("istanbulBlock", EthereumHardfork::Istanbul, false),
    ("muirGlacierBlock", EthereumHardfork::MuirGlacier, true),
    ("berlinBlock", EthereumHardfork::Berlin, false),
    ("londonBlock", EthereumHardfork::London, false),
    ("arrowGlacierBlock", EthereumHardfork::ArrowGlacier, true),
    ("grayGlacierBlock", EthereumHardfork::GrayGlacier, true),
];

const TIME_FORKS: [ForkField; 6] = [
    ("shanghaiTime", EthereumHardfork::Shanghai, false),
    ("cancunTime", EthereumHardfork::Cancun, false),
    ("pragueTime", EthereumHardfork::Prague, false),
    ("osakaTime", EthereumHardfork::Osaka, false),
    ("amsterdamTime", EthereumHardfork::Amsterdam, false),
    ("bogotaTime", EthereumHardfork::Bogota, false),
];

/// Blob-parameter-only forks (EIP-7892) may interleave with the forks after Osaka.
const BPO_FORKS: [ForkField; 6] = [
    ("osakaTime", EthereumHardfork::Osaka, false),
    ("bpo1Time", EthereumHardfork::Bpo1, true),
    ("bpo2Time", EthereumHardfork::Bpo2, true),
    ("bpo3Time", EthereumHardfork::Bpo3, true),
    ("bpo4Time", EthereumHardfork::Bpo4, true),
    ("bpo5Time", EthereumHardfork::Bpo5, true),
];

const QUANTITY: &str = "a whole number: JSON number, decimal string or 0x hex, within range";

/// The time from which on headers carry the root of the partitioned binary tree (EIP-8297). It is no
/// fork of the execution rules, so `EthereumHardfork` does not have it.
const BINARY_TREE_TIME: &str = "binaryTrieTime";

/// The block from which on roots of index tables are stored (EIP-8304). It has no fork yet.
pub(super) const INDEX_TABLES_BLOCK: &str = "eip8304Block";

/// Parses a genesis file.
pub(crate) fn parse(json: &str) -> Result<ChainSpec, ChainSpecError> {
    let top = JsonObject::parse("", json)?;
    let genesis = header_fields(&top)?;
    let config = JsonObject::parse("config", top.required("config", "it holds the forks")?)?;
    let chain_id = config.required_u64("chainId", "it is signed into every transaction")?;

    let forks = ForkActivations::read(&config)?;
    let paris = paris(&config, &forks, genesis.difficulty)?;
    if genesis.number.unwrap_or_default() != 0 {
        return Err(ChainSpecError::Unsupported {
            field: top.path("number"),
            what: "a genesis block that is not block 0",
            hint: "leave the field out",
        });
    }
    if config.get("clique").is_some()
        && !matches!(paris, ForkCondition::TTD { activation_block_number: 0, .. })
    {
        return Err(ChainSpecError::Unsupported {
            field: config.path("clique"),
            what: "proof-of-authority sealing",
            hint: "use a chain that is proof of stake from genesis on, or proof of work",
        });
    }
    let dao_fork = config.u64("daoForkBlock")?.map(|block| -> Result<_, ChainSpecError> {
        Ok(DaoFork { block, support: config.bool("daoForkSupport")?.unwrap_or(false) })
    });
    let dao_fork = dao_fork.transpose()?;
    let deposit_contract = match config.string("depositContractAddress")? {
        None => None,
        Some(text) => Some(parse_address(&text).ok_or_else(|| {
            config.bad("depositContractAddress", &text, "a 20-byte address in hex")
        })?),
    };

    let binary_tree_time = binary_tree_time(&config, &forks)?;
    let blob_schedule = blob_schedule(&config, &forks)?;
    let mut conditions = forks.conditions();
    conditions.push((EthereumHardfork::Paris, paris));
    let spec = ChainSpec::new(ChainSpecParts {
        name: format!("chain-{chain_id}"),
        chain_id,
        genesis,
        genesis_header: None,
        forks: conditions,
        blob_schedule,
        deposit_contract,
        dao_fork,
    });
    let index_tables_block = config.u64(INDEX_TABLES_BLOCK)?;
    Ok(spec.with_binary_tree_time(binary_tree_time).with_index_tables_block(index_tables_block))
}

/// The binary tree builds upon Cancun, from which on only contracts of the same transaction are
/// destroyed (EIP-6780): else codes that no account has any more could not be told from the tree.
fn binary_tree_time(
    config: &JsonObject<'_>,
    forks: &ForkActivations,
) -> Result<Option<u64>, ChainSpecError> {
    let Some(time) = config.u64(BINARY_TREE_TIME)? else { return Ok(None) };
    match forks.at(EthereumHardfork::Cancun) {
        None => Err(config.missing("cancunTime", "config.binaryTrieTime builds upon it")),
        Some(cancun) if cancun > time => Err(ChainSpecError::ForkOrder {
            earlier: "cancunTime",
            earlier_at: cancun,
            later: BINARY_TREE_TIME,
            later_at: time,
        }),
        Some(_) => Ok(Some(time)),
    }
}

/// Everything outside `config`.
fn header_fields(top: &JsonObject<'_>) -> Result<Genesis, ChainSpecError> {
    let hash = |name| -> Result<Option<B256>, ChainSpecError> {
        let Some(text) = top.string(name)? else { return Ok(None) };
        parse_word(&text).map(Some).ok_or_else(|| top.bad(name, &text, "a 32-byte hash in hex"))
    };
    let extra_data = match top.string("extraData")? {
        None => Bytes::new(),
        Some(text) => {
            parse_bytes(&text).ok_or_else(|| top.bad("extraData", &text, "bytes in hex"))?
        }
    };
    let coinbase = match top.string("coinbase")? {
        None => Address::ZERO,
        Some(text) => parse_address(&text)
            .ok_or_else(|| top.bad("coinbase", &text, "a 20-byte address in hex"))?,
    };
    let difficulty = top
        .quantity("difficulty")?
        .ok_or_else(|| top.missing("difficulty", "it belongs to the genesis header"))?;
    Ok(Genesis {
        nonce: top.u64("nonce")?.unwrap_or_default(),
        timestamp: top.u64("timestamp")?.unwrap_or_default(),
        extra_data,
        gas_limit: top.required_u64("gasLimit", "it belongs to the genesis header")?,
        difficulty,
        mix_hash: hash("mixHash")?.unwrap_or_default(),
        coinbase,
        alloc: alloc(top)?,
        base_fee_per_gas: top.u64("baseFeePerGas")?.map(u128::from),
        excess_blob_gas: top.u64("excessBlobGas")?,
        blob_gas_used: top.u64("blobGasUsed")?,
        slot_number: top.u64("slotNumber")?,
        number: top.u64("number")?,
        parent_hash: hash("parentHash")?,
        ..Default::default()
    })
}

fn alloc(top: &JsonObject<'_>) -> Result<BTreeMap<Address, GenesisAccount>, ChainSpecError> {
    let reason = "it holds the initial accounts (may be empty)";
    let raw = JsonObject::parse("alloc", top.required("alloc", reason)?)?;
    let mut alloc = BTreeMap::new();
    for (key, value) in &raw.fields {
        let address = parse_address(key)
            .ok_or_else(|| raw.bad(key, key, "an account named by its 20-byte address"))?;
        let account = account(&JsonObject::parse(&raw.path(key), value.get())?)?;
        if alloc.insert(address, account).is_some() {
            return Err(raw.bad(key, key, "every address only once"));
        }
    }
    Ok(alloc)
}

fn account(raw: &JsonObject<'_>) -> Result<GenesisAccount, ChainSpecError> {
    const KNOWN: [&str; 5] = ["balance", "nonce", "code", "storage", "secretKey"];
    if let Some(unknown) =
        raw.fields.keys().find(|key| !KNOWN.iter().any(|known| known.eq_ignore_ascii_case(key)))
    {
        return Err(ChainSpecError::UnknownField { field: raw.path(unknown) });
    }
    let balance = raw
        .quantity("balance")?
        .ok_or_else(|| raw.missing("balance", "every account states its balance in wei"))?;
    let code = match raw.string("code")? {
        None => None,
        Some(text) => {
            Some(parse_bytes(&text).ok_or_else(|| raw.bad("code", &text, "bytes in hex"))?)
        }
    };
    let storage = match raw.get("storage") {
        None => None,
        Some(value) => {
            let slots = JsonObject::parse(&raw.path("storage"), value)?;
            let mut storage = BTreeMap::new();
            for key in slots.fields.keys() {
                let expected = "at most 32 bytes in hex";
                let slot = parse_word(key).ok_or_else(|| slots.bad(key, key, expected))?;
                let text = slots.string(key)?.unwrap_or_default();
                let value = parse_word(&text).ok_or_else(|| slots.bad(key, &text, expected))?;
                storage.insert(slot, value);
            }
            Some(storage)
        }
    };
    Ok(GenesisAccount {
        nonce: raw.u64("nonce")?,
        balance,
        code: code.filter(|code| !code.is_empty()),
        storage: storage.filter(|storage| !storage.is_empty()),
        ..Default::default()
    })
}

/// The activation of every block and time fork, checked for order.
struct ForkActivations(Vec<(ForkField, u64)>);

impl ForkActivations {
    fn read(config: &JsonObject<'_>) -> Result<Self, ChainSpecError> {
        let known_time = |key: &str| {
            let mut names = TIME_FORKS.iter().chain(&BPO_FORKS).map(|(name, ..)| *name);
            names.any(|name| name.eq_ignore_ascii_case(key))
                || BINARY_TREE_TIME.eq_ignore_ascii_case(key)
        };
        if let Some(unknown) =
            config.present_keys().find(|key| key.ends_with("Time") && !known_time(key))
        {
            return Err(ChainSpecError::UnknownField { field: config.path(unknown) });
        }

        let mut forks = Vec::new();
        let mut read = |field: ForkField| -> Result<(), ChainSpecError> {
            let at = match field.0 {
                "eip158Block" => spurious_dragon(config)?,
                // Petersburg undoes a part of Constantinople. As in geth, a file without
                // `petersburgBlock` activates it together with Constantinople.
                "petersburgBlock" => match config.u64("petersburgBlock")? {
                    None => config.u64("constantinopleBlock")?,
                    at => at,
                },
                name => config.u64(name)?,
            };
            forks.extend(at.map(|at| (field, at)));
            Ok(())
        };
        BLOCK_FORKS.into_iter().chain(TIME_FORKS).try_for_each(&mut read)?;
        BPO_FORKS.into_iter().skip(1).try_for_each(&mut read)?;
        let forks = Self(forks);
        // A block number cannot be compared with a time, so each list is checked alone. That
        // time forks need all block forks is checked below.
        forks.check_order(&BLOCK_FORKS, config)?;
        forks.check_order(&TIME_FORKS, config)?;
        forks.check_order(&BPO_FORKS, config)?;
        if let Some(time_fork) = forks.first_time_fork() {
            for (name, fork, optional) in BLOCK_FORKS {
                if !optional && forks.at(fork).is_none() {
                    let reason = format!("config.{time_fork} builds upon it");
                    return Err(config.missing(name, &reason));
                }
            }
        }
        Ok(forks)
    }

    fn at(&self, fork: EthereumHardfork) -> Option<u64> {
        self.0.iter().find(|((_, found, _), _)| *found == fork).map(|(_, at)| *at)
    }

    fn first_time_fork(&self) -> Option<&'static str> {
        self.0.iter().map(|((name, ..), _)| *name).find(|name| name.ends_with("Time"))
    }

    fn check_order(
        &self,
        order: &[ForkField],
        config: &JsonObject<'_>,
    ) -> Result<(), ChainSpecError> {
        let mut last: Option<(&'static str, u64)> = None;
        let mut absent: Option<&'static str> = None;
        for (name, fork, optional) in order {
            let Some(at) = self.at(*fork) else {
                if !optional && absent.is_none() {
                    absent = Some(name);
                }
                continue;
            };
            if let Some(absent) = absent {
                return Err(config.missing(absent, &format!("config.{name} builds upon it")));
            }
            if let Some((earlier, earlier_at)) = last.filter(|(_, earlier_at)| *earlier_at > at) {
                return Err(ChainSpecError::ForkOrder {
                    earlier,
                    earlier_at,
                    later: name,
                    later_at: at,
                });
            }
            last = Some((name, at));
        }
        Ok(())
    }

    fn conditions(&self) -> Vec<(EthereumHardfork, ForkCondition)> {
        let condition = |name: &str, at| {
            if name.ends_with("Time") {
                ForkCondition::Timestamp(at)
            } else {
                ForkCondition::Block(at)
            }
        };
        self.0.iter().map(|((name, fork, _), at)| (*fork, condition(name, *at))).collect()
    }
}

/// Spurious Dragon is EIP-155 and EIP-158 (161) together; files name both, or one of them.
fn spurious_dragon(config: &JsonObject<'_>) -> Result<Option<u64>, ChainSpecError> {
    match (config.u64("eip155Block")?, config.u64("eip158Block")?) {
        (Some(eip155), Some(eip158)) if eip155 != eip158 => {
            let expected = "the same block as config.eip158Block (both are Spurious Dragon)";
            Err(config.bad("eip155Block", &eip155.to_string(), expected))
        }
        (eip155, eip158) => Ok(eip158.or(eip155)),
    }
}

fn paris(
    config: &JsonObject<'_>,
    forks: &ForkActivations,
    genesis_difficulty: U256,
) -> Result<ForkCondition, ChainSpecError> {
    let netsplit = config.u64("mergeNetsplitBlock")?;
    if let Some(ttd) = config.quantity("terminalTotalDifficulty")? {
        if forks.at(EthereumHardfork::London).is_none() {
            return Err(config.missing("londonBlock", "the merge builds upon it"));
        }
        return Ok(ChainSpec::paris_condition(ttd, genesis_difficulty, netsplit));
    }
    let Some(time_fork) = forks.first_time_fork() else {
        return Ok(ForkCondition::Never);
    };
    if config.bool("terminalTotalDifficultyPassed")? == Some(true) || genesis_difficulty.is_zero() {
        return Ok(ChainSpec::paris_condition(U256::ZERO, genesis_difficulty, netsplit));
    }
    Err(config.missing("terminalTotalDifficulty", &format!("config.{time_fork} follows the merge")))
}

fn blob_schedule(
    config: &JsonObject<'_>,
    forks: &ForkActivations,
) -> Result<BlobScheduleBlobParams, ChainSpecError> {
    let mut entries = BTreeMap::new();
    if let Some(raw) = config.get("blobSchedule") {
        let raw = JsonObject::parse(&config.path("blobSchedule"), raw)?;
        for (key, value) in &raw.fields {
            // An unknown fork never activates, so its parameters do not matter.
            let Ok(fork) = key.parse::<EthereumHardfork>() else { continue };
            if value.get() != "null" {
                let entry = JsonObject::parse(&raw.path(key), value.get())?;
                entries.insert(fork, blob_entry(&entry)?);
            }
        }
    }
    blobs::blob_schedule(|fork| forks.at(fork), &entries).map_err(|missing| {
        let name = missing.0.name().to_ascii_lowercase();
        let reason = format!("config.{name}Time activates it and it has no default");
        config.missing(&format!("blobSchedule.{name}"), &reason)
    })
}

fn blob_entry(raw: &JsonObject<'_>) -> Result<BlobParams, ChainSpecError> {
    let reason = "blob parameters have target, max and baseFeeUpdateFraction";
    let number = |name| raw.required_u64(name, reason);
    blobs::blob_params(number("target")?, number("max")?, number("baseFeeUpdateFraction")?)
        .map_err(|error| raw.bad(error.field, &error.got.to_string(), error.expected))
}

/// A JSON object whose values are still text, so that numbers beyond 64 bits keep every digit.
struct JsonObject<'a> {
    /// Dotted path of the object; empty for the whole file.
    at: String,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> JsonObject<'a> {
    fn parse(at: &str, json: &'a str) -> Result<Self, ChainSpecError> {
        let fields = serde_json::from_str(json).map_err(|error| ChainSpecError::NotAnObject {
            field: if at.is_empty() { "genesis".to_owned() } else { at.to_owned() },
            reason: error.to_string(),
        })?;
        Ok(Self { at: at.to_owned(), fields })
    }

    fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    fn missing(&self, name: &str, reason: &str) -> ChainSpecError {
        ChainSpecError::MissingField { field: self.path(name), reason: reason.to_owned() }
    }

    fn bad(&self, name: &str, value: &str, expected: &'static str) -> ChainSpecError {
        let mut value: String = value.chars().take(80).collect();
        if value.is_empty() {
            value.push_str("empty");
        }
        ChainSpecError::BadField { field: self.path(name), value, expected }
    }

    /// The text of a field that is present and not null; exact spelling wins over other case.
    fn get(&self, name: &str) -> Option<&'a str> {
        let same_but_case = || {
            self.fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, raw)| raw)
        };
        let raw = self.fields.get(name).or_else(same_but_case)?.get();
        (raw != "null").then_some(raw)
    }

    fn present_keys(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(|(_, raw)| raw.get() != "null").map(|(key, _)| key.as_str())
    }

    fn required(&self, name: &str, reason: &str) -> Result<&'a str, ChainSpecError> {
        self.get(name).ok_or_else(|| self.missing(name, reason))
    }

    fn string(&self, name: &str) -> Result<Option<String>, ChainSpecError> {
        let Some(raw) = self.get(name) else { return Ok(None) };
        serde_json::from_str(raw).map(Some).map_err(|_| self.bad(name, raw, "a string"))
    }

    fn bool(&self, name: &str) -> Result<Option<bool>, ChainSpecError> {
        let Some(raw) = self.get(name) else { return Ok(None) };
        serde_json::from_str(raw).map(Some).map_err(|_| self.bad(name, raw, "true or false"))
    }

    fn quantity(&self, name: &str) -> Result<Option<U256>, ChainSpecError> {
        let Some(raw) = self.get(name) else { return Ok(None) };
        let text = if raw.starts_with('"') {
            self.string(name)?.unwrap_or_default()
        } else {
            raw.to_owned()
        };
        parse_quantity(&text).map(Some).ok_or_else(|| self.bad(name, &text, QUANTITY))
    }

    fn u64(&self, name: &str) -> Result<Option<u64>, ChainSpecError> {
        let Some(value) = self.quantity(name)? else { return Ok(None) };
        u64::try_from(value).map(Some).map_err(|_| self.bad(name, &value.to_string(), QUANTITY))
    }

    fn required_u64(&self, name: &str, reason: &str) -> Result<u64, ChainSpecError> {
        self.u64(name)?.ok_or_else(|| self.missing(name, reason))
    }
}

/// Decimal or `0x` hex. Empty text is refused, except `0x`, which geth reads as zero.
fn parse_quantity(text: &str) -> Option<U256> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some("") => Some(U256::ZERO),
        Some(digits) => digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| U256::from_str_radix(digits, 16).ok())?,
        None => (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| U256::from_str_radix(text, 10).ok())?,
    }
}

fn parse_bytes(text: &str) -> Option<Bytes> {
    hex::decode(text).ok().map(Bytes::from)
}

fn parse_address(text: &str) -> Option<Address> {
    let bytes = parse_bytes(text)?;
    (bytes.len() == 20).then(|| Address::from_slice(&bytes))
}

/// Up to 32 bytes of hex, also of odd length, padded on the left.
fn parse_word(text: &str) -> Option<B256> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.len() > 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    B256::try_from(hex::decode(format!("{digits:0>64}")).ok()?.as_slice()).ok()
}
