//! Shared by the tests: nodes on test chains, and clients of their servers.
#![allow(dead_code, unreachable_pub, missing_docs)]

use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatusEnum};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use jsonrpsee::Methods;
use retrie_chainspec::{ChainSpec, DEV_ACCOUNTS, primitives::Block};
use retrie_db::{HistoryKept, OpenOptions, StateRootMode, SyncMode};
use retrie_engine::{
    BuilderConfig, DevChain, Engine, EngineConfig, LiveChain, PayloadBuilder, PoolMaintainer,
    SealingMode,
    pool::{PoolConfig, TransactionPool},
};
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportOptions, import, prepare,
    testkit::{TestCall, TestChain, TestRules, TestWallet, signed},
};
use retrie_rpc::{
    ApiNamespace, DevNode, RpcContext, build_methods,
    server::{ConnectionLimits, HttpConfig, RunningServers, ServerConfig, WsConfig},
};
use retrie_sources::BlockSource;
use retrie_state::AnyBackend;
use retrie_state_store::{FlatHistory, StoreOptions};
use retrie_storage_mpt::Mpt;
use retrie_telemetry::Metrics;
use serde_json::{Value, json};
use soketto::handshake::{Client, ServerResponse, client::Header};
use std::{
    cell::OnceCell,
    net::SocketAddr,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};
use tempfile::TempDir;
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// A test chain whose headers carry Ethereum's roots.
pub fn test_chain(rules: TestRules) -> TestChain {
    TestChain::new(rules, Arc::new(Mpt::default()))
}

/// The backend of this name with small limits: it flushes, merges or collects every few blocks.
fn small(name: &str) -> Arc<dyn AnyBackend> {
    (retrie_backends::find(name).unwrap().small)()
}

pub fn mpt() -> Arc<dyn AnyBackend> {
    small("mpt")
}

pub fn pbt() -> Arc<dyn AnyBackend> {
    small("pbt")
}

pub fn raw() -> Arc<dyn AnyBackend> {
    small("raw")
}

pub fn lvmt() -> Arc<dyn AnyBackend> {
    small("lvmt")
}

pub fn cole() -> Arc<dyn AnyBackend> {
    small("cole")
}

pub fn mpt_archive() -> Arc<dyn AnyBackend> {
    small("mpt-archive")
}

/// All backends, with small limits.
pub fn backends() -> Vec<Arc<dyn AnyBackend>> {
    retrie_backends::all().map(|backend| (backend.small)()).collect()
}

fn open(
    dir: &TempDir,
    spec: &Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    store: StoreOptions,
    root_mode: StateRootMode,
    preimages: Option<bool>,
) -> ChainStore {
    ChainStore::open(options(dir, spec, backend, store, root_mode, preimages)).unwrap()
}

fn options(
    dir: &TempDir,
    spec: &Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    store: StoreOptions,
    root_mode: StateRootMode,
    preimages: Option<bool>,
) -> ChainOptions {
    ChainOptions {
        spec: spec.clone(),
        backend,
        referee: None,
        root_mode,
        datadir: dir.path().join("data"),
        db: OpenOptions {
            map_limit: 1 << 30,
            growth_step: 1 << 20,
            sync: SyncMode::NoSync,
            preimages,
            ..OpenOptions::default()
        },
        store,
    }
}

/// A running node without servers.
pub struct NodeFixture {
    pub engine: Engine,
    pub pool: TransactionPool,
    pub maintainer: PoolMaintainer,
    pub rpc: RpcContext,
    pub dir: TempDir,
    /// Seals the blocks of a dev chain.
    sealing: Option<JoinHandle<()>>,
    methods: OnceCell<Methods>,
}

impl NodeFixture {
    pub fn new(spec: &Arc<ChainSpec>, backend: Arc<dyn AnyBackend>) -> Self {
        Self::with_file(spec, backend, None)
    }

    /// A node that has imported a file of blocks.
    pub fn with_file(
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        blocks: Option<&Path>,
    ) -> Self {
        let store = StoreOptions { flat_history: FlatHistory::All, ..StoreOptions::default() };
        Self::with_store(spec, backend, blocks, store)
    }

    /// As [`Self::with_file`], with these options of the state store.
    pub fn with_store(
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        blocks: Option<&Path>,
        store: StoreOptions,
    ) -> Self {
        Self::with_preimages(spec, backend, blocks, store, None)
    }

    /// As [`Self::with_store`]; the datadir keeps preimages or not.
    pub fn with_preimages(
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        blocks: Option<&Path>,
        store: StoreOptions,
        preimages: Option<bool>,
    ) -> Self {
        let root_mode = match backend.profile().ethereum_root {
            true => StateRootMode::Header,
            false => StateRootMode::Shadow,
        };
        let dir = TempDir::new().unwrap();
        let chain = open(&dir, spec, backend, store, root_mode, preimages);
        let metrics = Metrics::new().unwrap();
        if let Some(file) = blocks {
            let sources = vec![BlockSource::open(file).unwrap()];
            let (options, stop) = (ImportOptions::default(), AtomicBool::new(false));
            let all = 0..=u64::MAX;
            import(&chain, sources, all, options, &metrics, &stop, &mut |_| {})
                .unwrap()
                .end
                .unwrap();
        }
        Self::on(dir, chain, EngineConfig::default())
    }

    /// A node on the datadir of one that was made by [`Self::with_file`], and stopped; old blocks keep
    /// this much.
    pub fn reopened(
        dir: TempDir,
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        kept: HistoryKept,
    ) -> Self {
        let store = StoreOptions { flat_history: FlatHistory::All, ..StoreOptions::default() };
        let given = options(&dir, spec, backend, store, StateRootMode::Header, None);
        let given = ChainOptions { db: OpenOptions { kept, ..given.db }, ..given };
        let chain = ChainStore::open(given).unwrap();
        Self::on(dir, chain, EngineConfig::default())
    }

    /// A node whose backend and referee check header roots, each at its time.
    pub fn with_referee(
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        referee: Arc<dyn AnyBackend>,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let chain = Self::refereed(&dir, spec, backend, referee);
        Self::on(dir, chain, EngineConfig::default())
    }

    fn refereed(
        dir: &TempDir,
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        referee: Arc<dyn AnyBackend>,
    ) -> ChainStore {
        let (store, mode) = (StoreOptions::default(), StateRootMode::Header);
        let options = options(dir, spec, backend, store, mode, None);
        ChainStore::open(ChainOptions { referee: Some(referee), ..options }).unwrap()
    }

    /// As [`Self::dev`], for a chain whose headers have the roots of the backend and the referee,
    /// each at its time.
    pub fn dev_with_referee(
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn AnyBackend>,
        referee: Arc<dyn AnyBackend>,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let chain = Self::refereed(&dir, spec, backend, referee);
        Self::dev_on(dir, chain)
    }

    /// An automining dev chain with its tools; its headers have the backend's own roots. Call it
    /// within a tokio runtime.
    pub fn dev(backend: Arc<dyn AnyBackend>) -> Self {
        Self::dev_in(TempDir::new().unwrap(), backend)
    }

    /// As [`Self::dev`], in a folder that may contain a dev chain.
    pub fn dev_in(dir: TempDir, backend: Arc<dyn AnyBackend>) -> Self {
        Self::dev_of_in(dir, &ChainSpec::dev(), backend)
    }

    /// As [`Self::dev`], of another dev chain.
    pub fn dev_of(spec: &Arc<ChainSpec>, backend: Arc<dyn AnyBackend>) -> Self {
        Self::dev_of_in(TempDir::new().unwrap(), spec, backend)
    }

    fn dev_of_in(dir: TempDir, spec: &Arc<ChainSpec>, backend: Arc<dyn AnyBackend>) -> Self {
        let chain = open(&dir, spec, backend, StoreOptions::default(), StateRootMode::Native, None);
        Self::dev_on(dir, chain)
    }

    fn dev_on(dir: TempDir, chain: ChainStore) -> Self {
        let config = EngineConfig { is_dev: true, ..EngineConfig::default() };
        let mut node = Self::on(dir, chain, config);
        let config = BuilderConfig::default();
        let payloads = PayloadBuilder::new(node.live().clone(), node.pool.clone(), config);
        let chain = DevChain::new(
            node.engine.handle().clone(),
            payloads,
            node.pool.clone(),
            node.maintainer.clone(),
            SealingMode::Instant,
            DEV_ACCOUNTS[0],
        );
        let sealing = chain.clone().run();
        node.sealing = Some(tokio::spawn(async { sealing.await.unwrap() }));
        let dev = DevNode {
            chain,
            client_version: "HardhatNetwork/test".into(),
            waits_for_sealing: true,
        };
        node.rpc = node.rpc.clone().with_dev(dev);
        node
    }

    fn on(dir: TempDir, chain: ChainStore, config: EngineConfig) -> Self {
        let spec = chain.spec().clone();
        let engine = Engine::start(Arc::new(chain), config, Metrics::new().unwrap()).unwrap();
        let live = engine.handle().live().clone();
        let pool = TransactionPool::new(PoolConfig::default(), spec);
        let maintainer = PoolMaintainer::start(&live, pool.clone()).unwrap();
        let rpc = RpcContext::new(live, 4).with_pool(pool.clone());
        Self { engine, pool, maintainer, rpc, dir, sealing: None, methods: OnceCell::new() }
    }

    /// Stops the node as a user does; returns its folder, which no thread uses any more.
    pub async fn stop(self) -> TempDir {
        let Self { engine, dir, sealing, rpc, methods, pool, maintainer } = self;
        let held = Arc::downgrade(rpc.live.chain());
        if let Some(sealing) = sealing {
            sealing.abort();
            sealing.await.unwrap_err();
        }
        engine.stop().unwrap();
        drop((rpc, methods, pool, maintainer));
        while held.strong_count() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        dir
    }

    pub fn live(&self) -> &LiveChain {
        self.engine.handle().live()
    }

    /// Sends blocks to the engine, as a consensus client does.
    pub async fn add(&self, blocks: &[Block]) {
        for block in blocks {
            let prepared = prepare(self.live().spec(), block.clone()).unwrap();
            let status = self.engine.handle().new_block(prepared).await.unwrap();
            assert!(
                matches!(status.status, PayloadStatusEnum::Valid | PayloadStatusEnum::Accepted),
                "{status:?}"
            );
        }
    }

    /// Sets the head, the safe and the finalized block.
    pub async fn set_head(&mut self, head: B256, safe: B256, finalized: B256) {
        let state = ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: safe,
            finalized_block_hash: finalized,
        };
        let outcome = self.engine.handle().forkchoice(state).await.unwrap();
        assert_eq!(outcome.status.status, PayloadStatusEnum::Valid);
        self.maintainer.wait_for(head).await;
    }
}

impl NodeFixture {
    /// Configuration of servers on free loopback ports, with all namespaces.
    pub fn config(&self) -> ServerConfig {
        let free = "127.0.0.1:0".parse().unwrap();
        ServerConfig {
            http: Some(HttpConfig {
                addr: free,
                apis: ApiNamespace::ALL.into(),
                ..HttpConfig::default()
            }),
            ws: Some(WsConfig {
                addr: free,
                apis: ApiNamespace::ALL.into(),
                ..WsConfig::default()
            }),
            auth: None,
            ipc: None,
            limits: ConnectionLimits::default(),
        }
    }

    pub async fn serve(&self, config: &ServerConfig) -> RunningServers {
        RunningServers::start(config, &self.rpc, None).await.unwrap()
    }

    /// The result of a call; panics on an error.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The code and message of a call that fails.
    pub async fn fail(&self, method: &str, params: Value) -> (i64, String) {
        let answer = self.ask(method, params).await;
        let error = answer.get("error").unwrap_or_else(|| panic!("{method}: {answer}"));
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().into())
    }

    /// The whole response.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        ask(self.methods(), method, params).await
    }

    /// All methods.
    pub fn methods(&self) -> &Methods {
        self.methods.get_or_init(|| build_methods(&self.rpc, &ApiNamespace::ALL))
    }
}

/// The whole response of one of `methods`.
pub async fn ask(methods: &Methods, method: &str, params: Value) -> Value {
    let request = request(method, params).to_string();
    let (answer, _) = methods.raw_json_request(&request, 1).await.unwrap();
    serde_json::from_str(answer.get()).unwrap()
}

/// The response of an HTTP server.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn error(&self) -> (i64, String) {
        let error = &self.json()["error"];
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().into())
    }
}

/// Sends one HTTP request on its own connection; the answer is text.
pub async fn http(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> HttpAnswer {
    let answer = http_bytes(addr, method, path, headers, body.into()).await;
    let (parts, body) = answer.into_parts();
    HttpAnswer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Sends one HTTP request on its own connection.
pub async fn http_bytes(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> http::Response<Bytes> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", addr.to_string());
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(hyper::body::Bytes::from(body))).unwrap();
    let answer = client.send_request(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    http::Response::from_parts(parts, body.into())
}

/// Posts JSON.
pub async fn post(addr: SocketAddr, body: &str) -> HttpAnswer {
    http(addr, "POST", "/", &[("content-type", "application/json")], body).await
}

/// A WebSocket client.
pub struct WsClient {
    sender: soketto::Sender<Compat<TcpStream>>,
    receiver: soketto::Receiver<Compat<TcpStream>>,
}

impl WsClient {
    /// Connects; the HTTP status if the server refuses.
    pub async fn connect(addr: SocketAddr, headers: &[(&str, &str)]) -> Result<Self, u16> {
        let stream = TcpStream::connect(addr).await.unwrap();
        let host = addr.to_string();
        let mut client = Client::new(stream.compat(), &host, "/");
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        client.set_headers(&headers);
        match client.handshake().await.unwrap() {
            ServerResponse::Accepted { .. } => {}
            ServerResponse::Rejected { status_code } => return Err(status_code),
            other => panic!("{other:?}"),
        }
        let (sender, receiver) = client.into_builder().finish();
        Ok(Self { sender, receiver })
    }

    pub async fn send(&mut self, message: &str) {
        self.sender.send_text(message).await.unwrap();
        self.sender.flush().await.unwrap();
    }

    /// Both sides, for concurrent use.
    pub const fn split(
        &mut self,
    ) -> (&mut soketto::Sender<Compat<TcpStream>>, &mut soketto::Receiver<Compat<TcpStream>>) {
        (&mut self.sender, &mut self.receiver)
    }

    /// The next message.
    pub async fn next(&mut self) -> Value {
        let mut data = Vec::new();
        self.receiver.receive_data(&mut data).await.unwrap();
        serde_json::from_slice(&data).unwrap()
    }

    /// The response to a call; no notification may arrive before it.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&request(method, params).to_string()).await;
        self.next().await
    }

    /// The next notification of a subscription.
    pub async fn event(&mut self, subscription: &Value) -> Value {
        let message = self.next().await;
        assert_eq!(message["method"], "eth_subscription", "{message}");
        assert_eq!(&message["params"]["subscription"], subscription, "{message}");
        message["params"]["result"].clone()
    }
}

/// A transfer signed by a test-kit wallet for the first block, in hexadecimal.
pub fn signed_transfer(wallet: u8, nonce: u64) -> Bytes {
    let call = TestCall::transfer(wallet, Address::with_last_byte(0xaa), 1000 + nonce);
    signed(&TestWallet::new(wallet), &call, nonce, Some(1_000_000_000)).encoded_2718().into()
}

/// A request in JSON.
pub fn request(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}
