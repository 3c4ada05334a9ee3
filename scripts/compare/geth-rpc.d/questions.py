"""The requests of the comparison, derived from the chain: the script reads it once from geth, and
every block, transaction, account, slot and log becomes a parameter.

Each request is a method and its parameters; `spread` picks an even sample when there are too many.
"""

import itertools
import json

TRACERS = [
    {},
    {"enableMemory": True, "enableReturnData": True},
    {"disableStack": True, "disableStorage": True},
    {"tracer": "callTracer"},
    {"tracer": "callTracer", "tracerConfig": {"withLog": True}},
    {"tracer": "callTracer", "tracerConfig": {"onlyTopCall": True}},
    {"tracer": "prestateTracer"},
    {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}},
    {"tracer": "prestateTracer", "tracerConfig": {"disableCode": True, "disableStorage": True}},
    {"tracer": "4byteTracer"},
    {"tracer": "flatCallTracer"},
    {"tracer": "noopTracer"},
    {"tracer": "callTracer", "tracerConfig": {"withLog": True, "onlyTopCall": True}},
    {"tracer": "muxTracer", "tracerConfig": {"callTracer": {}, "4byteTracer": {}}},
]
UNKNOWN_HASH, UNKNOWN_ADDRESS = "0x" + "ab" * 32, "0x" + "cd" * 20
CALL_FIELDS = ["from", "to", "gas", "value", "input", "accessList"]


def spread(items, count):
    """At most `count` of them, evenly spread."""
    items = list(items)
    if len(items) <= count:
        return items
    return [items[index * len(items) // count] for index in range(count)]


class Chain:
    """The contents of the chain, read from geth."""

    def __init__(self, rpc):
        self.rpc = rpc
        self.top = int(rpc.call("eth_blockNumber"), 16)
        self.blocks = [rpc.call("eth_getBlockByNumber", hex(n), True) for n in range(self.top + 1)]
        self.txs = [tx for block in self.blocks for tx in block["transactions"]]
        receipts = [rpc.call("eth_getBlockReceipts", hex(n)) for n in range(self.top + 1)]
        self.receipts = [each for block in receipts for each in block or []]
        self.logs = [log for receipt in self.receipts for log in receipt["logs"]]
        self.failed = {
            each["transactionHash"] for each in self.receipts if each.get("status") == "0x0"
        }
        self.slots, people = {}, {}
        for receipt in self.receipts:
            for key in ("from", "to", "contractAddress"):
                people[receipt.get(key)] = None
        for block in self.blocks:
            people[block["miner"]] = None
            people.update((each["address"], None) for each in block.get("withdrawals") or [])
        for tx in spread(self.txs, 400):
            touched = rpc.call("debug_traceTransaction", tx["hash"], {"tracer": "prestateTracer"})
            for address, account in touched.items():
                people[address] = None
                for slot in account.get("storage", {}):
                    self.slots[address, slot] = None
        people.pop(None, None)
        self.people = [*people, UNKNOWN_ADDRESS]
        self.contracts = [
            each for each in self.people if rpc.call("eth_getCode", each, "latest") != "0x"
        ]

    def as_call(self, tx):
        """A transaction as the argument of eth_call."""
        call = {key: tx[key] for key in CALL_FIELDS if tx.get(key) is not None}
        if tx.get("authorizationList"):
            call["authorizationList"] = tx["authorizationList"]
        if tx.get("blobVersionedHashes"):
            call["blobVersionedHashes"] = tx["blobVersionedHashes"]
            call["maxFeePerBlobGas"] = tx["maxFeePerBlobGas"]
        return call

    def block_names(self, count):
        """Blocks by number, tag and hash, as parameters of state methods."""
        for block in spread(self.blocks, count):
            yield block["number"]
        yield from ["latest", "earliest", "safe", "finalized"]
        for block in spread(self.blocks, max(count // 3, 2)):
            yield {"blockHash": block["hash"]}
            yield {"blockHash": block["hash"], "requireCanonical": True}


def questions(chain, many):
    """All requests; `many` limits the requests of each method."""
    makers = [
        whole,
        blocks,
        transactions,
        state,
        logs,
        calls,
        fees,
        proofs,
        traces,
        raw,
        simulations,
        errors,
    ]
    return itertools.chain.from_iterable(maker(chain, many) for maker in makers)


def whole(chain, many):
    names = ["eth_chainId", "net_version", "eth_syncing", "eth_blockNumber", "eth_accounts"]
    names += ["eth_gasPrice", "eth_maxPriorityFeePerGas", "eth_blobBaseFee", "net_listening"]
    names += ["net_peerCount", "txpool_status", "txpool_content", "txpool_inspect", "eth_config"]
    names += ["eth_baseFee", "eth_capabilities"]
    for name in names:
        yield name, []
    for data in ["0x", "0x00", "0x68656c6c6f"]:
        yield "web3_sha3", [data]


def blocks(chain, many):
    tags = ["latest", "earliest", "safe", "finalized", hex(chain.top + 1), hex(2**62)]
    for name in [*(block["number"] for block in spread(chain.blocks, many)), *tags]:
        yield "eth_getBlockByNumber", [name, True]
        yield "eth_getBlockByNumber", [name, False]
        yield "eth_getHeaderByNumber", [name]
        yield "eth_getBlockTransactionCountByNumber", [name]
        yield "eth_getBlockReceipts", [name]
        yield "eth_getUncleCountByBlockNumber", [name]
    for hash in [*(block["hash"] for block in spread(chain.blocks, many)), UNKNOWN_HASH]:
        yield "eth_getBlockByHash", [hash, True]
        yield "eth_getBlockByHash", [hash, False]
        yield "eth_getHeaderByHash", [hash]
        yield "eth_getBlockTransactionCountByHash", [hash]
        yield "eth_getBlockReceipts", [hash]
        yield "eth_getBlockReceipts", [{"blockHash": hash}]
        yield "eth_getUncleCountByBlockHash", [hash]
        yield "eth_getUncleByBlockHashAndIndex", [hash, "0x0"]


def transactions(chain, many):
    for hash in [*(tx["hash"] for tx in spread(chain.txs, many)), UNKNOWN_HASH]:
        yield "eth_getTransactionByHash", [hash]
        yield "eth_getTransactionReceipt", [hash]
        yield "eth_getRawTransactionByHash", [hash]
        yield "debug_getRawTransaction", [hash]
    for block in spread(chain.blocks, many // 2):
        for index in ["0x0", "0x1", hex(10**6)]:
            yield "eth_getTransactionByBlockNumberAndIndex", [block["number"], index]
            yield "eth_getTransactionByBlockHashAndIndex", [block["hash"], index]
            yield "eth_getRawTransactionByBlockNumberAndIndex", [block["number"], index]
            yield "eth_getRawTransactionByBlockHashAndIndex", [block["hash"], index]


def state(chain, many):
    people = spread(chain.people, max(many // 10, 4))
    for address, at in itertools.product(people, chain.block_names(8)):
        yield "eth_getBalance", [address, at]
        yield "eth_getTransactionCount", [address, at]
        yield "eth_getCode", [address, at]
    for (address, slot), at in itertools.product(
        spread(chain.slots, max(many // 10, 4)), chain.block_names(6)
    ):
        yield "eth_getStorageAt", [address, slot, at]
    for address in people[:4]:
        yield "eth_getStorageAt", [address, "0x0", "latest"]
        yield "eth_getBalance", [address, hex(chain.top + 1)]
        yield "eth_getBalance", [address, {"blockHash": UNKNOWN_HASH}]
    for slots in [["0x0"], ["0x" + "00" * 32, "0x" + "00" * 31 + "01"]]:
        yield "eth_getStorageValues", [{people[0]: slots}, "latest"]


def logs(chain, many):
    top = hex(chain.top)
    everything = {"fromBlock": "0x0", "toBlock": top}
    yield "eth_getLogs", [everything]
    yield "eth_getLogs", [{}]
    yield "eth_getLogs", [{"fromBlock": "earliest", "toBlock": "latest"}]
    yield "eth_getLogs", [{"fromBlock": "safe", "toBlock": "finalized"}]
    yield "eth_getLogs", [{"fromBlock": top, "toBlock": "0x0"}]
    yield "eth_getLogs", [{"fromBlock": hex(chain.top + 1), "toBlock": hex(chain.top + 9)}]
    yield "eth_getLogs", [{"blockHash": UNKNOWN_HASH}]
    yield "eth_getLogs", [{"blockHash": UNKNOWN_HASH, "fromBlock": "0x0"}]
    for log in spread(chain.logs, many // 8):
        address, topics = log["address"], log["topics"]
        number = int(log["blockNumber"], 16)
        near = {"fromBlock": hex(max(number - 5, 0)), "toBlock": hex(number + 5)}
        yield "eth_getLogs", [{"blockHash": log["blockHash"]}]
        yield "eth_getLogs", [near]
        yield "eth_getLogs", [near | {"address": address}]
        yield "eth_getLogs", [near | {"address": [address, UNKNOWN_ADDRESS]}]
        yield "eth_getLogs", [near | {"topics": []}]
        # An empty position matches anything: geth wants a topic there, reth and retrie do not.
        if topics:
            yield "eth_getLogs", [near | {"topics": [topics[:1]]}]
        if topics[1:]:
            yield "eth_getLogs", [near | {"topics": [None, *topics[1:]]}]
        yield "eth_getLogs", [everything | {"address": address, "topics": topics}]
        yield "eth_getLogs", [everything | {"topics": [[UNKNOWN_HASH, *topics[:1]]]}]


def to_call(chain):
    """Transactions whose parent block is not genesis. Genesis has a difficulty from before the
    merge, and geth takes it for a block without the forks that activate by time."""
    return [tx for tx in chain.txs if int(tx["blockNumber"], 16) > 1]


def calls(chain, many):
    for tx in spread(to_call(chain), many // 3):
        call, before = chain.as_call(tx), hex(int(tx["blockNumber"], 16) - 1)
        without_gas = {key: value for key, value in call.items() if key != "gas"}
        yield "eth_call", [call, before]
        yield "eth_call", [without_gas, "latest"]
        yield "eth_estimateGas", [without_gas, before]
        yield "eth_estimateGas", [call, "latest"]
        yield "eth_createAccessList", [without_gas, before]
    for address in spread(chain.contracts, 40):
        for data in ["0x", "0x18160ddd", "0x70a08231" + "00" * 32, "0xffffffff"]:
            call = {"to": address, "input": data}
            yield "eth_call", [call, "latest"]
            yield "eth_estimateGas", [call, "latest"]
            yield "eth_createAccessList", [call, "latest"]
    somebody, contract = chain.people[0], (chain.contracts or [UNKNOWN_ADDRESS])[0]
    code = {"code": "0x4760005260206000f3"}
    environment = "0x43600052426020524160405244606052456080524860a052465f5260c06000f3"
    environment = {"code": environment}
    for overrides in [
        {UNKNOWN_ADDRESS: code | {"balance": "0x2a"}},
        {UNKNOWN_ADDRESS: {"code": "0x60005460005260206000f3", "state": {"0x" + "00" * 32: "0x" + "00" * 31 + "07"}}},
        {UNKNOWN_ADDRESS: {"code": "0x60015460005260206000f3", "stateDiff": {"0x" + "00" * 31 + "01": "0x" + "11" * 32}}},
        {UNKNOWN_ADDRESS: {"code": "0x60006000fd"}},
        {UNKNOWN_ADDRESS: {"code": "0xfe"}},
        {UNKNOWN_ADDRESS: {"nonce": "0x5"}},
        {UNKNOWN_ADDRESS: {"state": {}, "stateDiff": {}}},
    ]:  # fmt: skip
        yield "eth_call", [{"to": UNKNOWN_ADDRESS, "from": somebody}, "latest", overrides]
        yield "eth_estimateGas", [{"to": UNKNOWN_ADDRESS, "from": somebody}, "latest", overrides]
    for block in [
        {"number": "0x1234"},
        {"time": "0x7fffffff"},
        {"gasLimit": "0x989680"},
        {"feeRecipient": somebody},
        {"baseFeePerGas": "0x7"},
        {"prevRandao": UNKNOWN_HASH},
        {"blobBaseFee": "0x9"},
    ]:
        yield "eth_call", [{"to": UNKNOWN_ADDRESS}, "latest", {UNKNOWN_ADDRESS: environment}, block]
    broke = {"from": UNKNOWN_ADDRESS, "to": somebody}
    for more in [
        {"value": "0x1"}, {"gasPrice": "0x1", "gas": "0x5208"}, {"gas": "0x5207"}, {"gas": "0x0"},
        {"maxFeePerGas": "0x1"}, {"maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"},
        {"gasPrice": "0x1", "maxFeePerGas": "0x1"}, {"nonce": "0x7"}, {"input": "0x01", "data": "0x02"},
        {"chainId": "0x1"}, {"gas": "0xffffffffffff"},
    ]:  # fmt: skip
        yield "eth_call", [broke | more, "latest"]
        yield "eth_estimateGas", [broke | more, "latest"]
        yield "eth_createAccessList", [broke | more, "latest"]
    creation = {"from": somebody, "input": "0x600160005560016000f3"}
    for method in ["eth_call", "eth_estimateGas", "eth_createAccessList"]:
        yield method, [creation, "latest"]
        yield method, [creation | {"input": "0x" + "00" * 50_000}, "latest"]
        yield method, [creation | {"input": "0xfe"}, "latest"]
        yield method, [{"to": contract}, hex(chain.top + 1)]


def fees(chain, many):
    for newest in ["latest", "earliest", *(block["number"] for block in spread(chain.blocks, 12))]:
        for count, percentiles in [
            ("0x1", []),
            ("0x5", [10, 50, 90]),
            (4, [0, 100]),
            ("0x400", None),
        ]:
            params = [count, newest] if percentiles is None else [count, newest, percentiles]
            yield "eth_feeHistory", params
    for params in [
        ["0x0", "latest", []],
        ["0x2", "latest", [50, 10]],
        ["0x2", "latest", [101]],
        ["0x2", hex(chain.top + 9), []],
    ]:
        yield "eth_feeHistory", params


def proofs(chain, many):
    recent = [hex(n) for n in range(max(chain.top - 60, 0), chain.top + 1, 20)]
    slots = {}
    for address, slot in chain.slots:
        slots.setdefault(address, []).append(slot)
    for address, at in itertools.product(spread(chain.people, many // 10), ["latest", *recent]):
        yield "eth_getProof", [address, slots.get(address, ["0x0"])[:4], at]
    yield "eth_getProof", [UNKNOWN_ADDRESS, [], "latest"]
    yield "eth_getProof", [chain.people[0], ["0x0", "0x" + "ff" * 32], "latest"]


def traces(chain, many):
    failed = [tx for tx in chain.txs if tx["hash"] in chain.failed]
    chosen = spread(failed, many // 10) + spread(chain.txs, many // 5)
    for tx in chosen:
        for options in TRACERS:
            yield "debug_traceTransaction", [tx["hash"], options]
    for block in spread([b for b in chain.blocks[1:] if b["transactions"]], many // 10):
        for options in TRACERS[3:5] + TRACERS[6:8]:
            yield "debug_traceBlockByNumber", [block["number"], options]
            yield "debug_traceBlockByHash", [block["hash"], options]
    for tx in spread(to_call(chain), many // 10):
        call, before = chain.as_call(tx), hex(int(tx["blockNumber"], 16) - 1)
        call.pop("gas", None)
        for options in [TRACERS[0], TRACERS[3], TRACERS[6]]:
            yield "debug_traceCall", [call, before, options]
    yield "debug_traceTransaction", [UNKNOWN_HASH, {}]
    yield "debug_traceTransaction", [chain.txs[0]["hash"], {"tracer": "noSuchTracer"}]
    yield "debug_traceBlockByNumber", ["0x0", {}]
    yield "debug_traceBlockByNumber", [hex(chain.top + 1), {}]


def raw(chain, many):
    for name in [
        *(block["number"] for block in spread(chain.blocks, many // 4)),
        "latest",
        hex(chain.top + 1),
    ]:
        for method in ["debug_getRawHeader", "debug_getRawBlock", "debug_getRawReceipts"]:
            yield method, [name]
    for block in spread(chain.blocks[1:], many // 10):
        number = int(block["number"], 16)
        yield "debug_getModifiedAccountsByNumber", [number]
        yield "debug_getModifiedAccountsByNumber", [number - 1, chain.top]
        yield "debug_getModifiedAccountsByHash", [block["hash"]]
        yield "debug_getModifiedAccountsByHash", [block["parentHash"], block["hash"]]
        for address, _ in spread(chain.slots, 4):
            for start, count in [("0x", 3), ("0x80", 100)]:
                yield "debug_storageRangeAt", [block["hash"], 0, address, start, count]
    # Of blocks whose parent's state both nodes can extend.
    for block in spread(chain.blocks[1:][-60:], many // 10):
        yield "debug_intermediateRoots", [block["hash"], {}]
    for hash in [chain.blocks[0]["hash"], UNKNOWN_HASH]:
        yield "debug_intermediateRoots", [hash]
    yield "debug_getModifiedAccountsByNumber", [2, 1]
    yield "debug_getBadBlocks", []


def simulations(chain, many):
    somebody = max(
        chain.people[:50],
        key=lambda each: int(chain.rpc.call("eth_getBalance", each, "latest"), 16),
    )
    transfer = {"from": somebody, "to": UNKNOWN_ADDRESS, "value": "0x1"}
    block = {"calls": [transfer]}
    for options in [
        {"blockStateCalls": [block]},
        {"blockStateCalls": [block, block], "traceTransfers": True},
        {"blockStateCalls": [block], "returnFullTransactions": True},
        {"blockStateCalls": [{"calls": [{"from": UNKNOWN_ADDRESS, "to": somebody, "value": "0x1"}]}]},
        {"blockStateCalls": [{"stateOverrides": {UNKNOWN_ADDRESS: {"balance": "0x64"}}, "calls": [{"from": UNKNOWN_ADDRESS, "to": somebody, "value": "0x1"}]}]},
        {"blockStateCalls": [{"blockOverrides": {"number": hex(chain.top + 9)}, "calls": []}]},
        {"blockStateCalls": [{"blockOverrides": {"number": "0x1"}}]},
        {"blockStateCalls": []},
    ]:  # fmt: skip
        yield "eth_simulateV1", [options, "latest"]


def errors(chain, many):
    somebody = chain.people[0]
    for method, params in [
        ("eth_noSuchMethod", []), ("nosuch_namespace", []), ("eth_getBalance", []),
        ("eth_getBalance", [somebody]), ("eth_getBalance", ["0x12", "latest"]),
        ("eth_getBalance", [somebody, "newest"]), ("eth_getBalance", [somebody, "0x"]),
        ("eth_getBalance", [somebody, "0x01"]), ("eth_getBalance", [somebody, "latest", "more"]),
        ("eth_getBalance", [somebody, 5]), ("eth_getBalance", [None, "latest"]),
        ("eth_getBalance", [somebody, {"blockNumber": "0x1"}]), ("eth_getBalance", {"address": somebody}),
        ("eth_getBlockByNumber", []), ("eth_getBlockByNumber", ["latest"]),
        ("eth_getBlockByNumber", ["latest", "yes"]), ("eth_getBlockByHash", ["0x1234", True]),
        ("eth_getBlockByHash", [UNKNOWN_HASH[:-1], True]), ("eth_getTransactionByHash", ["hash"]),
        ("eth_getTransactionReceipt", []), ("eth_getStorageAt", [somebody, "0x" + "0" * 65, "latest"]),
        ("eth_getStorageAt", [somebody, "slot", "latest"]), ("eth_call", []), ("eth_call", ["call"]),
        ("eth_call", [{"to": "0x12"}, "latest"]), ("eth_call", [{"value": -1}, "latest"]),
        ("eth_getLogs", [{"topics": ["0x12"]}]), ("eth_getLogs", [{"topics": [[[]]]}]),
        ("eth_getLogs", [{"address": "0x12"}]), ("eth_getLogs", [{"topics": [None] * 5}]), ("eth_getLogs", []),
        ("eth_getFilterChanges", ["0x1"]), ("eth_uninstallFilter", ["0x1"]),
        ("eth_sendRawTransaction", ["0x"]), ("eth_sendRawTransaction", ["0x02ff"]),
        ("eth_sendRawTransaction", []), ("eth_feeHistory", []), ("eth_feeHistory", [5, "newest", []]),
        ("debug_traceTransaction", []), ("debug_traceBlockByNumber", ["newest"]), ("web3_sha3", ["hello"]),
        ("eth_getProof", [somebody, ["slot"], "latest"]), ("eth_getUncleByBlockNumberAndIndex", ["0x1", "x"]),
    ]:  # fmt: skip
        yield method, params


def envelopes():
    """Whole requests that are odd as JSON-RPC: bytes, not method and parameters."""
    good = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    texts = ["", "{", "[]", "1", '"text"', "null", "[1]", "{}", '{"jsonrpc":"2.0"}', '{"id":1}']
    for changed in [
        {"id": "text"},
        {"id": None},
        {"id": 1.5},
        {"id": [1]},
        {"id": {}},
        {"jsonrpc": "1.0"},
        {"method": 5},
        {"params": None},
        {"params": {}},
        {"params": 5},
        {"more": 1},
    ]:
        texts.append(json.dumps(good | changed))
    without = [{key: value for key, value in good.items() if key != left} for left in good]
    texts += [json.dumps(each) for each in without]
    texts += [json.dumps([good, good]), json.dumps([good, {"id": 2}, 3])]
    return texts
