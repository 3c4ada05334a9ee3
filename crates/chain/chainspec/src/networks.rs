//! The networks known by name.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, LazyLock},
};

use alloy_consensus::constants::ETH_TO_WEI;
use alloy_eips::{
    BlobScheduleBlobParams,
    eip2935::{HISTORY_STORAGE_ADDRESS, HISTORY_STORAGE_CODE},
    eip4788::{BEACON_ROOTS_ADDRESS, BEACON_ROOTS_CODE},
    eip6110::MAINNET_DEPOSIT_CONTRACT_ADDRESS,
    eip7002::{WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, WITHDRAWAL_REQUEST_PREDEPLOY_CODE},
    eip7251::{CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_CODE},
    eip7840::BlobParams,
};
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_hardforks::{
    EthereumHardfork, ForkCondition,
    holesky::{HOLESKY_BPO1_TIMESTAMP, HOLESKY_BPO2_TIMESTAMP},
    hoodi::{HOODI_BPO1_TIMESTAMP, HOODI_BPO2_TIMESTAMP},
    mainnet::{
        MAINNET_BPO1_TIMESTAMP, MAINNET_BPO2_TIMESTAMP, MAINNET_DAO_BLOCK, MAINNET_PARIS_BLOCK,
    },
    sepolia::{SEPOLIA_BPO1_TIMESTAMP, SEPOLIA_BPO2_TIMESTAMP, SEPOLIA_PARIS_BLOCK},
};
use alloy_primitives::{Address, B256, Bytes, U256, address, b256, bytes};
use retrie_log_tables::{INDEX_CONTRACT, INDEX_CONTRACT_CODE};

use crate::{
    ChainSpec, ChainSpecError, ChainSpecParts, DaoFork, alloc_codec::unpack_alloc, genesis_json,
};

/// Names accepted by [`parse_chain`].
pub const KNOWN_CHAINS: [&str; 5] = ["mainnet", "sepolia", "holesky", "hoodi", "dev"];

/// Hash of Ethereum mainnet's block 0.
pub const MAINNET_GENESIS_HASH: B256 =
    b256!("0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3");
const MAINNET_STATE_ROOT: B256 =
    b256!("0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544");
/// Hash of Sepolia's block 0.
const SEPOLIA_GENESIS_HASH: B256 =
    b256!("0x25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9");
const SEPOLIA_STATE_ROOT: B256 =
    b256!("0x5eb6e371a698b8d68f665192350ffcecbbbf322916f4b51bd79bb6887da3f494");
/// Hash of Holesky's block 0.
const HOLESKY_GENESIS_HASH: B256 =
    b256!("0xb5f7f912443c940f21fd611f12828d75b534364ed9e95ca4e307729a4661bde4");
const HOLESKY_STATE_ROOT: B256 =
    b256!("0x69d8c9d72f6fa4ad42d4702b433707212f90db395eb54dc20bc85de253788783");
/// Hash of Hoodi's block 0.
const HOODI_GENESIS_HASH: B256 =
    b256!("0xbbe312868b376a3001692a646dd2d7d1e4406380dfd86b98aa8a34d1557c971b");
const HOODI_STATE_ROOT: B256 =
    b256!("0xda87d7f5f91c51508791bbcbd4aa5baf04917830b86985eeb9ad3d5bfb657576");

/// Accounts of the development chain: the first twenty of the mnemonic that Ethereum tools use
/// for local chains (`test test test test test test test test test test test junk`, path
/// `m/44'/60'/0'/0/i`). Their private keys are public: never send anything of value to them.
pub const DEV_ACCOUNTS: [Address; 20] = [
    address!("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
    address!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
    address!("0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"),
    address!("0x90F79bf6EB2c4f870365E785982E1f101E93b906"),
    address!("0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65"),
    address!("0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc"),
    address!("0x976EA74026E726554dB657fA54763abd0C3a0aa9"),
    address!("0x14dC79964da2C08b23698B3D3cc7Ca32193d9955"),
    address!("0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f"),
    address!("0xa0Ee7A142d267C1f36714E4a8F75612F20a79720"),
    address!("0xBcd4042DE499D14e55001CcbB24a551F3b954096"),
    address!("0x71bE63f3384f5fb98995898A86B02Fb2426c5788"),
    address!("0xFABB0ac9d68B0B445fB7357272Ff202C5651694a"),
    address!("0x1CBd3b2770909D4e10f157cABC84C7264073C9Ec"),
    address!("0xdF3e18d64BC6A983f673Ab319CCaE4f1a57C7097"),
    address!("0xcd3B766CCDd6AE721141F452C550Ca635964ce71"),
    address!("0x2546BcD3c84621e976D8185a91A922aE77ECEc30"),
    address!("0xbDA5747bFD65F08deb54cb465eB87D40e51B197E"),
    address!("0xdD2FD4581271e230360230F9337D5c0430Bf44C0"),
    address!("0x8626f6940E2eb28930eFb4CeF49B2d1F2C9C1199"),
];

/// The mnemonic of [`DEV_ACCOUNTS`].
pub const DEV_MNEMONIC: &str = "test test test test test test test test test test test junk";

/// Private keys of [`DEV_ACCOUNTS`]. They are public.
pub const DEV_KEYS: [B256; 20] = [
    b256!("0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"),
    b256!("0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"),
    b256!("0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a"),
    b256!("0x7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6"),
    b256!("0x47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a"),
    b256!("0x8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba"),
    b256!("0x92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e"),
    b256!("0x4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356"),
    b256!("0xdbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97"),
    b256!("0x2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6"),
    b256!("0xf214f2b2cd398c806f84e317254e0f0b801d0643303237d97a22a48e01628897"),
    b256!("0x701b615bbdfb9de65240bc28bd21bbc0d996645a3dd57e7b12bc2bdf6f192c82"),
    b256!("0xa267530f49f8280200edf313ee7af6b827f2a8bce2897751d06a843f644967b1"),
    b256!("0x47c99abed3324a2707c28affff1267e45918ec8c3f20b8aa892e8b065d2942dd"),
    b256!("0xc526ee95bf44d8fc405a158bb884d9d1238d99f0612e9f33d006bb0789009aaa"),
    b256!("0x8166f546bab6da521a8369cab06c5d2b9e46670292d85c875ee9ec20e84ffb61"),
    b256!("0xea6c44ac03bff858b476bba40716402b03e41b8e97e276d1baec7c37d42484a0"),
    b256!("0x689af8efa8c651a91ad287602527f3af2fe9f6501a7ac4b061667b5a93e037fd"),
    b256!("0xde9be858da4a475276426320d5e9262ecfc3ba460bfac56360bfa6c4c28b4ee0"),
    b256!("0xdf57089febbacf7ba0bc227dafbffa9fc08a93fdc68e1e42411a14efcf23656e"),
];

/// Resolves a `--chain` argument: a name of [`KNOWN_CHAINS`], or the path of a genesis JSON file.
///
/// # Errors
/// [`ChainSpecError`] naming the file and field, or the known names.
pub fn parse_chain(name_or_path: &str) -> Result<Arc<ChainSpec>, ChainSpecError> {
    match name_or_path {
        "mainnet" => Ok(ChainSpec::mainnet()),
        "sepolia" => Ok(ChainSpec::sepolia()),
        "holesky" => Ok(ChainSpec::holesky()),
        "hoodi" => Ok(ChainSpec::hoodi()),
        "dev" => Ok(ChainSpec::dev()),
        other => {
            let path = Path::new(other);
            // A bare word that is no file is a misspelt network, not a missing file.
            if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
                return Err(ChainSpecError::UnknownChain { name: other.to_owned() });
            }
            let json = std::fs::read_to_string(path)
                .map_err(|source| ChainSpecError::Read { path: path.to_owned(), source })?;
            ChainSpec::from_genesis_json(&json).map(Arc::new).map_err(|source| {
                ChainSpecError::InFile { path: path.to_owned(), source: Box::new(source) }
            })
        }
    }
}

impl ChainSpec {
    /// Ethereum mainnet.
    pub fn mainnet() -> Arc<Self> {
        static SPEC: LazyLock<Arc<ChainSpec>> = LazyLock::new(|| Arc::new(mainnet()));
        Arc::clone(&SPEC)
    }

    /// The Sepolia test network.
    pub fn sepolia() -> Arc<Self> {
        static SPEC: LazyLock<Arc<ChainSpec>> = LazyLock::new(|| Arc::new(sepolia()));
        Arc::clone(&SPEC)
    }

    /// The Holesky test network.
    pub fn holesky() -> Arc<Self> {
        static SPEC: LazyLock<Arc<ChainSpec>> = LazyLock::new(|| Arc::new(holesky()));
        Arc::clone(&SPEC)
    }

    /// The Hoodi test network.
    pub fn hoodi() -> Arc<Self> {
        static SPEC: LazyLock<Arc<ChainSpec>> = LazyLock::new(|| Arc::new(hoodi()));
        Arc::clone(&SPEC)
    }

    /// The local development chain: chain id 1337, proof of stake with all forks up to BPO2 from
    /// genesis on, the system contracts of Cancun and Prague in place, and a million ether for
    /// each of [`DEV_ACCOUNTS`].
    pub fn dev() -> Arc<Self> {
        static SPEC: LazyLock<Arc<ChainSpec>> = LazyLock::new(|| Arc::new(dev()));
        Arc::clone(&SPEC)
    }

    /// As [`dev`](Self::dev), with the index contract of EIP-8304, in which each block stores the roots
    /// of index tables.
    pub fn dev_with_index_tables() -> Arc<Self> {
        let mut parts = dev_parts();
        let contract = GenesisAccount {
            nonce: Some(1),
            code: Some(INDEX_CONTRACT_CODE.clone()),
            ..Default::default()
        };
        parts.genesis.alloc.insert(INDEX_CONTRACT, contract);
        Arc::new(Self::new(parts).with_index_tables_block(Some(0)))
    }

    /// Whether this is one of the public networks, by its genesis block.
    pub fn is_public(&self) -> bool {
        [MAINNET_GENESIS_HASH, SEPOLIA_GENESIS_HASH, HOLESKY_GENESIS_HASH, HOODI_GENESIS_HASH]
            .contains(&self.genesis_hash())
    }

    /// Reads a genesis file as `geth init` takes it.
    ///
    /// A file that gives the genesis block of a public network also gets that network's known
    /// merge block.
    ///
    /// # Errors
    /// [`ChainSpecError`] naming the missing or odd field.
    pub fn from_genesis_json(json: &str) -> Result<Self, ChainSpecError> {
        let spec = genesis_json::parse(json)?;
        Ok(match spec.genesis_hash() {
            MAINNET_GENESIS_HASH => spec.with_merge_block(MAINNET_PARIS_BLOCK),
            SEPOLIA_GENESIS_HASH => spec.with_merge_block(SEPOLIA_PARIS_BLOCK),
            _ => spec,
        })
    }

    /// The chain as a genesis file that [`Self::from_genesis_json`] and `geth init` take: header
    /// fields, accounts, and under `config` every fork and all blob parameters. A merge block or a
    /// genesis state root that were set afterwards are not part of it.
    ///
    /// # Errors
    /// [`ChainSpecError::Inexpressible`] for a chain built from parts that genesis files have no
    /// fields for; never for a built-in chain or one read from a file.
    pub fn to_genesis_json(&self) -> Result<String, ChainSpecError> {
        genesis_json::write(self)
    }

    /// The member `config` of [`Self::to_genesis_json`].
    ///
    /// # Errors
    /// As there.
    pub fn config_json(&self) -> Result<serde_json::Value, ChainSpecError> {
        genesis_json::write_config(self)
    }
}

/// A public network. A test checks that its accounts lead to this state root.
fn public(state_root: B256, parts: ChainSpecParts) -> ChainSpec {
    ChainSpec::with_root(parts, |_| state_root)
}

/// Unpacks the embedded allocation of a public network. WebAssembly, where calls are verified by the
/// rules of a network, has none: a page would load it for nothing.
fn embedded(packed: &[u8]) -> BTreeMap<Address, GenesisAccount> {
    if cfg!(target_family = "wasm") {
        return BTreeMap::new();
    }
    unpack_alloc(packed).expect("compiled into the binary and covered by a test")
}

fn bpo_schedule(bpo1: u64, bpo2: u64) -> BlobScheduleBlobParams {
    BlobScheduleBlobParams::mainnet()
        .with_scheduled([(bpo1, BlobParams::bpo1()), (bpo2, BlobParams::bpo2())])
}

fn mainnet() -> ChainSpec {
    let parts = ChainSpecParts {
        name: "mainnet".to_owned(),
        chain_id: 1,
        genesis: Genesis {
            nonce: 0x42,
            extra_data: bytes!(
                "0x11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa"
            ),
            gas_limit: 5000,
            difficulty: U256::from(0x4_0000_0000_u64),
            alloc: embedded(include_bytes!("../res/mainnet.alloc")),
            ..Default::default()
        },
        genesis_header: None,
        forks: EthereumHardfork::mainnet().into(),
        blob_schedule: bpo_schedule(MAINNET_BPO1_TIMESTAMP, MAINNET_BPO2_TIMESTAMP),
        deposit_contract: Some(MAINNET_DEPOSIT_CONTRACT_ADDRESS),
        dao_fork: Some(DaoFork { block: MAINNET_DAO_BLOCK, support: true }),
    };
    public(MAINNET_STATE_ROOT, parts)
}

fn sepolia() -> ChainSpec {
    let mut forks: Vec<_> = EthereumHardfork::sepolia().into();
    forks.push((EthereumHardfork::MuirGlacier, ForkCondition::ZERO_BLOCK));
    let parts = ChainSpecParts {
        name: "sepolia".to_owned(),
        chain_id: 11_155_111,
        genesis: Genesis {
            timestamp: 0x6159_af19,
            extra_data: Bytes::from_static(b"Sepolia, Athens, Attica, Greece!"),
            gas_limit: 30_000_000,
            difficulty: U256::from(0x2_0000),
            alloc: embedded(include_bytes!("../res/sepolia.alloc")),
            ..Default::default()
        },
        genesis_header: None,
        forks,
        blob_schedule: bpo_schedule(SEPOLIA_BPO1_TIMESTAMP, SEPOLIA_BPO2_TIMESTAMP),
        deposit_contract: Some(address!("0x7f02c3e3c98b133055b8b348b2ac625669ed295d")),
        dao_fork: None,
    };
    public(SEPOLIA_STATE_ROOT, parts)
}

fn holesky() -> ChainSpec {
    let parts = ChainSpecParts {
        name: "holesky".to_owned(),
        chain_id: 17_000,
        genesis: Genesis {
            nonce: 0x1234,
            timestamp: 1_695_902_100,
            gas_limit: 25_000_000,
            difficulty: U256::from(1),
            alloc: embedded(include_bytes!("../res/holesky.alloc")),
            ..Default::default()
        },
        genesis_header: None,
        forks: EthereumHardfork::holesky().into(),
        blob_schedule: bpo_schedule(HOLESKY_BPO1_TIMESTAMP, HOLESKY_BPO2_TIMESTAMP),
        deposit_contract: Some(address!("0x4242424242424242424242424242424242424242")),
        dao_fork: None,
    };
    public(HOLESKY_STATE_ROOT, parts)
}

fn hoodi() -> ChainSpec {
    let parts = ChainSpecParts {
        name: "hoodi".to_owned(),
        chain_id: 560_048,
        genesis: Genesis {
            nonce: 0x1234,
            timestamp: 1_742_212_800,
            gas_limit: 36_000_000,
            difficulty: U256::from(1),
            alloc: embedded(include_bytes!("../res/hoodi.alloc")),
            ..Default::default()
        },
        genesis_header: None,
        forks: EthereumHardfork::hoodi().into(),
        blob_schedule: bpo_schedule(HOODI_BPO1_TIMESTAMP, HOODI_BPO2_TIMESTAMP),
        deposit_contract: Some(MAINNET_DEPOSIT_CONTRACT_ADDRESS),
        dao_fork: None,
    };
    public(HOODI_STATE_ROOT, parts)
}

fn dev() -> ChainSpec {
    ChainSpec::new(dev_parts())
}

fn dev_parts() -> ChainSpecParts {
    let system_contract = |code: &Bytes| GenesisAccount {
        nonce: Some(1),
        code: Some(code.clone()),
        ..Default::default()
    };
    // A contract that queues requests starts with its fee switched off until its first call; a
    // chain that has Prague at genesis stores that state directly (EIP-7002, EIP-7251).
    let request_queue = |code: &Bytes| GenesisAccount {
        storage: Some(BTreeMap::from([(B256::ZERO, B256::repeat_byte(0xff))])),
        ..system_contract(code)
    };
    let funded = GenesisAccount {
        balance: U256::from(ETH_TO_WEI) * U256::from(1_000_000),
        ..Default::default()
    };
    let alloc = DEV_ACCOUNTS.iter().map(|address| (*address, funded.clone())).chain([
        (BEACON_ROOTS_ADDRESS, system_contract(&BEACON_ROOTS_CODE)),
        (HISTORY_STORAGE_ADDRESS, system_contract(&HISTORY_STORAGE_CODE)),
        (WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, request_queue(&WITHDRAWAL_REQUEST_PREDEPLOY_CODE)),
        (
            CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
            request_queue(&CONSOLIDATION_REQUEST_PREDEPLOY_CODE),
        ),
    ]);
    ChainSpecParts {
        name: "dev".to_owned(),
        chain_id: 1337,
        genesis: Genesis {
            extra_data: Bytes::from_static(b"retrie dev"),
            gas_limit: 60_000_000,
            alloc: alloc.collect(),
            ..Default::default()
        },
        genesis_header: None,
        forks: EthereumHardfork::devnet().into(),
        blob_schedule: bpo_schedule(0, 0),
        // Stated explicitly: clients read a file without this field in different ways.
        deposit_contract: Some(MAINNET_DEPOSIT_CONTRACT_ADDRESS),
        dao_fork: None,
    }
}
