"""Odd requests: for every method that both nodes serve, each argument missing, null, of the wrong
type, too large, in odd hexadecimal, or in the future; every tag and every form of a block object;
and whole messages that are odd as JSON-RPC.

A method is a list of kinds of arguments. A kind has good values, taken from the chain, and odd
values. In each request one argument is odd and the others are good.
"""

import base64
import json
import os
import re
import socket
import struct

from differ import Differ
from questions import UNKNOWN_ADDRESS, UNKNOWN_HASH

WORDS = ["latest", "earliest", "pending", "safe", "finalized"]
# Values for every kind of argument.
WRONG = [5, -1, 1.5, 2**64, True, "", "text", [], {}, [[]], {"more": 1}]
# Both nodes refuse the request in the same way whatever its other arguments are.
CALL = {"to": UNKNOWN_ADDRESS}


def odd_hex(digits):
    """Malformed variants of a hexadecimal value with `digits` digits."""
    good = "ab" * (digits // 2)
    return [
        "0x", "0x0", "0x00", "0X" + good, "0x" + good.upper(), good, "0x" + good[:-1], "0x" + good[:-2],
        "0x" + good + "a", "0x" + good + "ab", "0x" + "g" * digits, " 0x" + good, "0x" + good + " ", "0x 1",
    ]  # fmt: skip


QUANTITIES = [
    "0x", "0x0", "0x00", "0x01", "0xA", "0Xa", "0xg", "1", "a", "-0x1", "0x-1", "0x+1", " 0x1", "0x1 ", "0x1.5",
    "0xffffffff", "0x7fffffffffffffff", "0x8000000000000000", "0xffffffffffffffff", "0x10000000000000000",
    "0x" + "f" * 64, "0x1" + "0" * 64,
]  # fmt: skip


class Kinds:
    """Good and odd values of each kind of argument on a chain."""

    def __init__(self, chain):
        # A recent block, for the rules of the last forks.
        recent = chain.blocks[max(chain.top - 10, 1) :]
        block = max(recent, key=lambda each: len(each["transactions"]))
        tx, top = block["transactions"][0], chain.top
        somebody = chain.people[0]
        number, hash = block["number"], block["hash"]
        self.good = {
            "address": somebody, "hash": hash, "tx": tx["hash"], "number": number, "block": number, "index": "0x0",
            "bool": False, "bytes": "0x68656c6c6f", "slot": "0x0", "slots": ["0x0"],
            "storage": {somebody: ["0x" + "00" * 32]}, "filter": {"fromBlock": number, "toBlock": number},
            "filter id": "0x1", "call": CALL, "overrides": {}, "block overrides": {}, "count": "0x2",
            "percentiles": [50], "tracer": {}, "call tracer": {}, "simulation": {"blockStateCalls": [{}]},
            "int": 0, "topic": "newHeads", "raw tx": "0x02ff", "raw block": "0xc0", "milliseconds": 1, "file": None,
            "uint": int(number, 16),
        }  # fmt: skip
        numbers = [
            *WORDS, "LATEST", "newest", "0x0", hex(top), hex(top + 1), hex(2**62), *QUANTITIES, top, 0, "5",
        ]  # fmt: skip
        both = {"blockNumber": number, "blockHash": hash}
        blocks = [
            *numbers, hash, UNKNOWN_HASH, *odd_hex(64), {"blockNumber": number}, {"blockHash": hash},
            {"blockHash": hash, "requireCanonical": True}, {"blockHash": hash, "requireCanonical": False},
            {"blockNumber": number, "requireCanonical": True}, {"requireCanonical": True, "blockNumber": number},
            {"requireCanonical": True}, both, {**both, "requireCanonical": True}, {"blockHash": UNKNOWN_HASH},
            {"blockHash": UNKNOWN_HASH, "requireCanonical": True}, {"blockNumber": hex(top + 1)},
            {"blockNumber": "0xffffffffffffffff"}, {"blockNumber": None}, {"blockHash": None},
            {"blockNumber": number, "blockHash": None}, {"blockHash": hash, "more": 1},
            {"blockNumber": 5}, {"blockHash": "0x12"}, {"blockHash": hash, "requireCanonical": "yes"},
            {"blockHash": hash, "requireCanonical": None}, *({"blockNumber": word} for word in WORDS),
        ]  # fmt: skip
        self.odd = {
            "address": [UNKNOWN_ADDRESS, *odd_hex(40)],
            "hash": [UNKNOWN_HASH, *odd_hex(64)],
            "tx": [UNKNOWN_HASH, hash, *odd_hex(64)],
            "number": numbers,
            "block": blocks,
            "index": ["0x1", hex(10**6), *QUANTITIES],
            "bool": ["false", 0, "0x1"],
            "bytes": ["0x", "0x0", "0x00", "0x1", "0X12", "0xAB", "12", "0xgg", " 0x12"],
            "slot": [*QUANTITIES, "0x" + "0" * 64, "0x" + "0" * 65, "0x" + "0" * 66],
            "slots": [[], [None], [5], ["0x"], ["slot"], ["0x" + "0" * 66], "0x0", ["0x0"] * 1025],
            "storage": [
                {somebody: []}, {somebody: None}, {somebody: ["0x0"]}, {somebody: "0x0"}, {"0x12": []},
                {somebody: ["0x" + "00" * 32] * 1025},
            ],
            "filter": self.filters(number, hash, top, somebody),
            "filter id": ["0x", "0x1", "0xffffffffffffffffffffffffffffffff", "1"],
            "call": self.calls(somebody, chain.contracts[0]),
            "overrides": self.overrides(somebody),
            "block overrides": self.block_overrides(somebody),
            "count": ["0x0", 0, 1, 1024, 1025, 2**63, "16", *QUANTITIES],
            "percentiles": [
                [0, 100], [10, 10], [50, 10], [-1], [100.1], [101], ["50"], [None], "50", 50, [50] * 101,
                list(range(101)), [number / 2 for number in range(101)], [1e300],
            ],
            "tracer": self.tracers(),
            "call tracer": [
                *self.tracers(), {"txIndex": "0x0"}, {"txIndex": "0x99"}, {"txIndex": 0}, {"stateOverrides": 5},
                {"stateOverrides": {}}, {"blockOverrides": {"number": "0x99"}}, {"blockOverrides": 5},
            ],
            "simulation": self.simulations(somebody),
            "int": [1, 10**6, 2**31, 2**63, "0", "0x0", None],
            "uint": [top, top + 1, 2**62, 2**63, "0x1", "1"],
            "topic": ["newHats", "logs", "newPendingTransactions", "syncing", "NewHeads", None],
            "raw tx": ["0x", "0x0", "0x00", "0xc0", "0x02c0", "0x05", "0xff", "0x7f", "0xf8", "02ff", "0x02f"],
            "raw block": ["0x", "0x00", "0xc3c0c0c0", "0xf8", "c0", "0xc"],
            "milliseconds": [0, "0x1", "1", 2**63],
            "file": [],
        }  # fmt: skip

    @staticmethod
    def filters(number, hash, top, somebody):
        topic = UNKNOWN_HASH
        ranges = [(start, end) for start in WORDS for end in WORDS]
        ranges += [("0x5", "0x1"), ("0x1", "0x5"), ("0x1", hex(top + 1)), (hex(top + 1), hex(top + 2)), ("0x1", None)]
        ranges += [(word, "0x1") for word in WORDS] + [("0x1", word) for word in WORDS]
        ranges += [("0x0", each) for each in QUANTITIES] + [(each, None) for each in ("5", 5, "newest", "LATEST")]
        near = {"fromBlock": number, "toBlock": number}
        return [
            *({"fromBlock": start, "toBlock": end} for start, end in ranges),
            {"fromBlock": "0x5"}, {"toBlock": "0x5"}, {"fromBlock": hex(top + 1)}, {"fromBlock": "pending"},
            near | {"more": 1}, near | {"fromblock": "0x1"}, {"blockHash": hash}, {"blockHash": hash, "more": []},
            {"blockHash": None}, {"blockHash": None, **near}, {"blockHash": hash, **near}, {"blockHash": UNKNOWN_HASH},
            {"blockHash": hash, "fromBlock": None}, {"blockHash": "0x12"}, {"blockHash": 5},
            *(near | {"address": each} for each in odd_hex(40)),
            *(near | {"address": each} for each in (None, [], 5, {}, [None], [5], [somebody], [somebody, None], [[somebody]], [somebody] * 1001)),
            *(near | {"topics": each} for each in (None, [], 5, {}, "", topic, [None], [None] * 4, [None] * 5, [[]], [[None]], [[topic, None]])),
            *(near | {"topics": each} for each in ([5], [[5]], [[[]]], ["0x12"], [[topic] * 1001], [topic], [[topic, topic]], [{}])),
            *(near | {"topics": [each]} for each in odd_hex(64)),
        ]  # fmt: skip

    @staticmethod
    def calls(somebody, contract):
        broke = {"from": UNKNOWN_ADDRESS, "to": contract}
        fields = {
            "nonce": QUANTITIES, "gas": QUANTITIES, "value": QUANTITIES, "gasPrice": QUANTITIES,
            "maxFeePerGas": QUANTITIES, "maxPriorityFeePerGas": QUANTITIES, "maxFeePerBlobGas": QUANTITIES,
            "chainId": QUANTITIES, "to": odd_hex(40), "from": odd_hex(40),
            "data": ["0x", "0x0", "0x00", "0xg", "00", "0XAB"], "input": ["0x", "0x0", "0x00", "0xg", "00", "0XAB"],
            "accessList": [[], {}, [None], [5], [{}], [{"address": somebody}], [{"address": somebody, "storageKeys": []}],
                           [{"address": somebody, "storageKeys": ["0x0"]}], [{"address": somebody, "storageKeys": None}]],
            "blobVersionedHashes": [[], [None], ["0x12"], [UNKNOWN_HASH], ["0x01" + "00" * 31]],
            "authorizationList": [[], [None], [{}], [5]],
            "blobs": [[], ["0x"]], "type": ["0x0", "0x2", "0x9", 2], "more": [1],
        }  # fmt: skip
        found = [{}, {"to": None}, {"to": ""}, {"data": "0x"}, broke | {"input": "0x01", "data": "0x02"}]
        found += [broke | {"input": "0x01", "data": "0x01"}, broke | {"gasPrice": "0x1", "maxFeePerGas": "0x1"}]
        found += [broke | {"maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"}, broke | {"value": "0x1"}]
        for name, values in fields.items():
            found += [broke | {name: value} for value in [None, 5, -1, True, [], {}, *values]]
        return found

    @staticmethod
    def overrides(somebody):
        fields = {
            "balance": QUANTITIES, "nonce": QUANTITIES, "code": ["0x", "0x0", "0xg", "00", "0xfe"],
            "state": [{"0x0": "0x0"}, {UNKNOWN_HASH: UNKNOWN_HASH}, {UNKNOWN_HASH: "0x12"}, {UNKNOWN_HASH: None}],
            "stateDiff": [{"0x0": "0x0"}, {UNKNOWN_HASH: UNKNOWN_HASH}, {UNKNOWN_HASH: "0x12"}, {UNKNOWN_HASH: None}],
            "movePrecompileToAddress": [UNKNOWN_ADDRESS, "0x12"], "more": [1],
        }  # fmt: skip
        found = [{"0x12": {}}, {somebody: None}, {somebody: 5}, {somebody: {}}, {somebody[2:]: {}}]
        found.append({somebody: {"state": {}, "stateDiff": {}}})
        for name, values in fields.items():
            found += [{somebody: {name: value}} for value in [None, 5, [], {}, *values]]
        return found

    @staticmethod
    def block_overrides(somebody):
        fields = {
            "number": QUANTITIES, "time": QUANTITIES, "gasLimit": QUANTITIES, "baseFeePerGas": QUANTITIES,
            "blobBaseFee": QUANTITIES, "difficulty": QUANTITIES, "feeRecipient": ["0x", somebody, "0x12"],
            "prevRandao": ["0x", "0x0", UNKNOWN_HASH], "coinbase": [somebody], "random": [UNKNOWN_HASH], "more": [1],
            "withdrawals": [[], [{}]], "beaconRoot": ["0x12", UNKNOWN_HASH],
        }  # fmt: skip
        return [{name: value} for name, values in fields.items() for value in [None, 5, [], *values]]

    @staticmethod
    def tracers():
        return [
            {"tracer": None}, {"tracer": 5}, {"tracer": ""}, {"tracer": "calltracer"}, {"more": 1},
            {"tracer": "callTracer", "tracerConfig": None}, {"tracer": "callTracer", "tracerConfig": 5},
            {"tracer": "callTracer", "tracerConfig": {"more": 1}}, {"tracer": "callTracer", "tracerConfig": {"withLog": "yes"}},
            {"tracer": "prestateTracer", "tracerConfig": {"diffMode": 5}}, {"timeout": "5"}, {"timeout": 5},
            {"timeout": "soon"}, {"timeout": "10s"}, {"timeout": None}, {"enableMemory": "yes"}, {"disableStack": None},
            {"reexec": 5}, {"reexec": "5"}, {"limit": 1}, {"limit": -1}, {"limit": "1"},
        ]  # fmt: skip

    @staticmethod
    def simulations(somebody):
        def block(**more):
            return {"blockStateCalls": [more]}

        return [
            {"blockStateCalls": []}, {"blockStateCalls": None}, {"blockStateCalls": [None]}, {"blockStateCalls": [5]},
            {"blockStateCalls": [[]]}, {"blockStateCalls": {}}, {"blockStateCalls": [{}] * 257}, block(more=1),
            block(calls=None), block(calls=5), block(calls=[None]), block(calls=[5]), block(calls=[{}]),
            block(calls=[{"to": "0x12"}]), block(calls=[{"nonce": "0xffffffffffffffff", "to": somebody}]),
            block(calls=[{"nonce": "0x5", "to": somebody}]), block(stateOverrides=None), block(stateOverrides=5),
            block(blockOverrides=None), block(blockOverrides=5), block(blockOverrides={"number": "0x0"}),
            block(blockOverrides={"number": "0xffffffffffffffff"}), block(blockOverrides={"time": "0x0"}),
            block(blockOverrides={"time": "0xffffffffffffffff"}), block(blockOverrides={"gasLimit": "0x0"}),
            {"blockStateCalls": [{}], "validation": "yes"}, {"blockStateCalls": [{}], "traceTransfers": 5},
            {"blockStateCalls": [{}], "returnFullTransactions": None}, {"blockStateCalls": [{}], "more": 1},
        ]  # fmt: skip


METHODS = {
    "web3_clientVersion": [], "web3_sha3": ["bytes"], "net_version": [], "net_listening": [], "net_peerCount": [],
    "eth_chainId": [], "eth_blockNumber": [], "eth_syncing": [], "eth_accounts": [], "eth_gasPrice": [],
    "eth_maxPriorityFeePerGas": [], "eth_blobBaseFee": [], "eth_baseFee": [], "eth_config": [],
    "eth_getBlockByNumber": ["number", "bool"], "eth_getBlockByHash": ["hash", "bool"],
    "eth_getHeaderByNumber": ["number"], "eth_getHeaderByHash": ["hash"],
    "eth_getBlockTransactionCountByNumber": ["number"], "eth_getBlockTransactionCountByHash": ["hash"],
    "eth_getUncleCountByBlockNumber": ["number"], "eth_getUncleCountByBlockHash": ["hash"],
    "eth_getUncleByBlockNumberAndIndex": ["number", "index"], "eth_getUncleByBlockHashAndIndex": ["hash", "index"],
    "eth_getTransactionByBlockNumberAndIndex": ["number", "index"],
    "eth_getTransactionByBlockHashAndIndex": ["hash", "index"],
    "eth_getRawTransactionByBlockNumberAndIndex": ["number", "index"],
    "eth_getRawTransactionByBlockHashAndIndex": ["hash", "index"],
    "eth_getTransactionByHash": ["tx"], "eth_getRawTransactionByHash": ["tx"], "eth_getTransactionReceipt": ["tx"],
    "eth_getBlockReceipts": ["block"], "eth_getBalance": ["address", "block"],
    "eth_getTransactionCount": ["address", "block"], "eth_getCode": ["address", "block"],
    "eth_getStorageAt": ["address", "slot", "block"], "eth_getStorageValues": ["storage", "block"],
    "eth_getProof": ["address", "slots", "block"], "eth_getLogs": ["filter"], "eth_newFilter": ["filter"],
    "eth_newBlockFilter": [], "eth_newPendingTransactionFilter": ["bool"], "eth_uninstallFilter": ["filter id"],
    "eth_getFilterChanges": ["filter id"], "eth_getFilterLogs": ["filter id"],
    "eth_call": ["call", "block", "overrides", "block overrides"],
    "eth_estimateGas": ["call", "block", "overrides", "block overrides"],
    "eth_createAccessList": ["call", "block", "overrides"], "eth_simulateV1": ["simulation", "block"],
    "eth_feeHistory": ["count", "number", "percentiles"], "eth_sendRawTransaction": ["raw tx"],
    "eth_sendRawTransactionSync": ["raw tx", "milliseconds"], "eth_subscribe": ["topic"],
    "eth_unsubscribe": ["filter id"], "txpool_status": [], "txpool_content": [], "txpool_inspect": [],
    "txpool_contentFrom": ["address"], "debug_getRawHeader": ["block"], "debug_getRawBlock": ["block"],
    "debug_getRawReceipts": ["block"], "debug_getRawTransaction": ["tx"], "debug_getBadBlocks": ["file"],
    "debug_storageRangeAt": ["block", "int", "address", "bytes", "int"],
    "debug_getModifiedAccountsByNumber": ["uint", "uint"], "debug_getModifiedAccountsByHash": ["hash", "hash"],
    "debug_traceTransaction": ["tx", "tracer"], "debug_traceBlockByNumber": ["number", "tracer"],
    "debug_traceBlockByHash": ["hash", "tracer"], "debug_traceBlock": ["raw block", "tracer"],
    "debug_traceBadBlock": ["hash", "tracer"], "debug_traceCall": ["call", "block", "call tracer"],
    "eth_noSuchMethod": [], "nosuch_method": [], "eth_": [], "_eth": [], "eth": [],
}  # fmt: skip
# Results that change with each call or differ by client: only their type is compared.
OWN = {
    "web3_clientVersion", "eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter",
}  # fmt: skip


def questions(chain):
    """Yields each odd request once: a method and its parameters."""
    kinds, seen = Kinds(chain), set()
    for method, names in METHODS.items():
        good = [kinds.good[name] for name in names]
        requests = [good[:count] for count in range(len(good) + 1)]
        requests += [good + [None], good + ["0x1"], good + [{}], None, {}, {"address": 1}, "text", 5, True]
        for place, name in enumerate(names):
            for value in [None, *WRONG, *kinds.odd[name]]:
                # geth would write a file with this name.
                if name == "file" and isinstance(value, str):
                    continue
                requests.append([*good[:place], value, *good[place + 1 :]])
        for params in requests:
            key = json.dumps([method, params])
            if key not in seen:
                seen.add(key)
                yield method, params


# -- whole messages --------------------------------------------------------------------------------


def messages():
    """Messages that are odd as JSON-RPC, as bytes."""
    good = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
    ids = [
        "0", "-1", "1.5", "1e3", "1E3", "-0", "18446744073709551615", "18446744073709551616",
        "123456789012345678901234567890", "null", "true", "false", '""', '"x"', '"\\u00e9"', '"\\""', "{}", '{"a":1}',
        "[]", "[1]", "01", "+1", ".5", "0x1", "NaN", "'x'", '"\xff"',
    ]  # fmt: skip
    for each in ids:
        message = b'{"jsonrpc":"2.0","id":%s,"method":"eth_chainId","params":[]}' % each.encode("latin-1")
        unknown = message.replace(b"eth_chainId", b"eth_nope")
        wrong = message.replace(b"[]}", b"[1]}")
        yield from (message, unknown, wrong, b"[" + message + b"," + good + b"]")
    yield from (b"", b" ", b"\n", b"null", b"1", b"-1", b"1.5", b'"x"', b'""', b"true", b"false", b"x", b"nul", b"{")
    yield from (b"}", b"[", b"]", b"{}", b"[]", b"[[]]", b"[null]", b"[1]", b'["x"]', b"[{}]", b"[1,2,3]", b"[,]", b"{]")
    yield from (good + good, good + b"x", good + b"\n", b" " + good, b"[" + good, b"[" + good + b",]", b"\xef\xbb\xbf" + good)
    yield from (b"[" + good + b",null]", b"[" + good + b",{}]", b"[" + good + b"," + good + b"]", b"[" + good + b"]")
    yield from (b'["2.0",1,"eth_chainId",[]]', b'[["2.0",1,"eth_chainId",[]]]')
    for name in (b'"jsonrpc":"2.0"', b'"id":1', b'"method":"eth_chainId"', b'"params":[]'):
        left = good.replace(name + b",", b"").replace(b"," + name, b"")
        yield from (left, b"[" + left + b"]", b"[" + left + b"," + good + b"]")
        field = name.split(b":")[0]
        for value in (b"null", b"5", b'"x"', b"[]", b"{}", b"true", b'"\xff"'):
            if field != b'"id"':
                yield good.replace(name, field + b":" + value)
        yield good.replace(name, field.upper() + b":" + name.split(b":", 1)[1])
    yield good.replace(b"eth_chainId", b"eth_chain\xffId")
    yield good.replace(b"eth_chainId", b"eth_chain\\u0049d")
    yield good.replace(b"[]", b'["\xff"]')
    yield good.replace(b"[]", b'["\xc3"]').replace(b"eth_chainId", b"web3_sha3")
    yield good.replace(b'"id":1', b'"id":1,"more":"\xff"')
    yield good.replace(b'"id":1', b'"id":1,"result":1')
    yield good.replace(b'"id":1', b'"id":1,"id":2')
    yield good.replace(b'"method":"eth_chainId","params":[]', b'"result":1')
    yield good.replace(b"eth_chainId", b"x" * 2048)
    yield good.replace(b"eth_chainId", b"x" * 2049)
    yield good.replace(b"eth_chainId", b"eth_subscription")
    yield good.replace(b"[]", b"[" * 20000 + b"]" * 20000)
    yield good.replace(b"[]}", b"[1,]}")


class Socket:
    """A minimal WebSocket client (RFC 6455)."""

    # Seconds without a message that count as no response.
    PATIENCE = 1.0

    def __init__(self, port):
        self.port, self.stream = port, None

    def ask(self, message):
        """The response to a message; None if there is none, and the close code if the node closes
        the connection."""
        for fresh in (False, True):
            try:
                if self.stream is None or fresh:
                    self.connect()
                self.send(message)
                return self.answer()
            except TimeoutError:
                return None
            except ConnectionError:
                self.stream = None
                if fresh:
                    return "connection lost"

    def connect(self):
        self.stream = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        key = base64.b64encode(os.urandom(16)).decode()
        head = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Upgrade: websocket", "Connection: Upgrade"]
        head += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        self.stream.sendall("\r\n".join([*head, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.read(1)
        if b" 101 " not in answer.split(b"\r\n")[0]:
            raise RuntimeError(f"no WebSocket at port {self.port}: {answer[:80]!r}")
        self.stream.settimeout(self.PATIENCE)

    def send(self, message):
        try:
            message.decode()
            opcode = 1
        except ValueError:
            # Bytes that are not text arrive as bytes.
            opcode = 2
        size = len(message)
        head = bytes([0x80 | opcode])
        head += bytes([0x80 | size]) if size < 126 else (
            bytes([0xFE]) + struct.pack(">H", size) if size < 65536 else bytes([0xFF]) + struct.pack(">Q", size)
        )  # fmt: skip
        mask = os.urandom(4)
        self.stream.sendall(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(message)))

    def read(self, count):
        data = b""
        while len(data) < count:
            part = self.stream.recv(count - len(data))
            if not part:
                raise ConnectionError("the node has closed")
            data += part
        return data

    def answer(self):
        whole = b""
        while True:
            first, second = self.read(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.read(8))
            data, opcode = self.read(size), first & 0x0F
            if opcode == 8:
                self.stream = None
                return f"closed with {struct.unpack('>H', data[:2])[0] if data else 'no code'}"
            if opcode in (0, 1, 2):
                whole += data
                if first & 0x80:
                    return decoded(whole)


def decoded(body):
    """A response as JSON, None if it is empty, else as text."""
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        return body.decode(errors="replace").strip()


def without_words(answer):
    """A response with only the codes of its errors."""
    if isinstance(answer, list):
        return [without_words(each) for each in answer]
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return answer | {"error": answer["error"].get("code")}
    return answer


def shown(message):
    """A message as the name of its kind."""
    return re.sub(r"(.{60}).*", r"\1..", message.decode("latin-1").replace("\n", " "))


# -- comparing -------------------------------------------------------------------------------------


class OddDiffer(Differ):
    """Compares error codes, and checks that retrie's messages leak no words of its decoder."""

    DECODER = re.compile(r"line \d+ column|untagged|struct |variant|serde|EOF while|\b[fiu](8|64)\b|sequence")

    def __init__(self, geth, retrie):
        super().__init__(geth.rpc, retrie.rpc, KNOWN, only_codes=True, own=OWN)
        self.ports = geth.ws_port, retrie.ws_port

    def judge(self, method, params, geth, retrie):
        super().judge(method, params, geth, retrie)
        words = retrie.get("error", {}).get("message", "")
        if self.DECODER.search(words):
            self.note(method, "words of the decoder", params, None, words)

    def note(self, method, kind, params, here, there):
        # A block that only one node has makes every response about it differ.
        if '"pending"' in json.dumps(params):
            kind = f"of pending: {kind}"
        super().note(method, kind, params, here, there)

    def messages(self):
        """Compares the responses to whole messages, over HTTP and over WebSocket."""
        sockets = [Socket(port) for port in self.ports]
        for message in messages():
            answers = [self.posted(rpc, message) for rpc in (self.geth, self.retrie)]
            self.judge_message("(over HTTP)", message, *answers)
            # WebSocket has no empty message.
            if message:
                answers = [without_words(each.ask(message)) for each in sockets]
                self.judge_message("(over WebSocket)", message, *answers)

    @staticmethod
    def posted(rpc, message):
        status, body = rpc.post(message)
        return {"status": status, "body": without_words(decoded(body))}

    def judge_message(self, transport, message, here, there):
        self.asked[transport] += 1
        if here == there:
            self.equal[transport] += 1
            return
        kind = shown(message)
        try:
            message.decode()
        except ValueError:
            kind = "not UTF-8: " + kind
        if here == "closed with 1000":
            kind = "closed by geth: " + kind
        self.note(transport, kind, message.decode("latin-1"), here, there)


def compare(chain, geth, retrie):
    """Sends all requests to both nodes; returns the comparison."""
    differ = OddDiffer(geth, retrie)
    differ.compare(questions(chain))
    differ.messages()
    return differ


# -- known differences -----------------------------------------------------------------------------

# Patterns of method and kind, and why.
LENIENT = r"\(invalid argument N: (json: cannot unmarshal )?(hex number with l|hex string withou|hex string \.\. int|hex string of odd|non-string into G).*\)"
CALLS = "eth_call|eth_estimateGas|eth_createAccessList|debug_traceCall"
PENDING = (
    "eth_get.*|eth_feeHistory|eth_simulateV1|eth_call|eth_estimateGas|eth_createAccessList|debug_getRaw.*|"
    "debug_trace.*|debug_storageRangeAt"
)
KNOWN = [
    # How arguments are read.
    (".*", r"error of geth alone " + LENIENT,
     "numbers may have leading zeros or be decimal, and hexadecimal may lack its 0x, as in reth"),
    (".*", r"error\.code " + LENIENT, "the same; then something else is wrong with the request"),
    ("eth_feeHistory|eth_getBlockBy.*", r"error of geth alone \(missing value for required.*", "what comes last may be left out"),
    (".*", r"error\.code \(too many arguments.*", "of two things that are wrong the other one is told"),
    ("debug_(storageRangeAt|getModifiedAccountsByNumber)", r"error.* \(invalid argument N: json: cannot unmarshal (string|number N).*",
     "numbers may be hexadecimal, and have 64 bits"),
    ("debug_storageRangeAt", r"error\.code \(transaction index -N.*", "no number below zero is an index"),
    ("debug_storageRangeAt", r"error of retrie alone \(invalid argument N: invalid type: integer `-N.*", "nor a count"),
    ("eth_sendRawTransactionSync", r"error\.code \(invalid argument N: json: cannot unmarshal string.*",
     "the time may be hexadecimal; then the transaction is no transaction"),
    ("debug_traceBadBlock", r"error\.code \(invalid argument N: json.*", "that there is no such block is told first"),
    ("debug_traceBlock", r"error\.code \(invalid argument N: json.*", "that it is no block is told first"),
    (CALLS, r"error.* \(invalid argument N: (json: cannot unmarshal (number|bool|object) into Go st.*|hex string has length N.*)",
     "blobs and withdrawals of a call, which nothing is done with, are not read"),
    (CALLS, r"error of retrie alone \(invalid argument N: invalid type: .*",
     "fields that geth does not know (type of a call; coinbase and random of a block) are read, as in reth"),
    (CALLS, r"error of retrie alone \(invalid argument N: invalid length N, expected exactly N byt\)", "the same"),
    (CALLS, r"error of retrie alone \(invalid argument N: unknown field .*", "an override with a wrong name is told, as in reth"),
    (CALLS, r"error of geth alone \(block override .. is not supported.*", "overrides of a call that nothing reads are ignored"),
    (CALLS, r"error of retrie alone \(block override .* is too large: N\)", "numbers of blocks and base fees have 64 bits, blob fees 128"),
    (CALLS, r"error\.code \((err: |failed with N gas: |tracing failed: |failed to apply transaction: N err: )?(insufficient funds for|max priority fee per gas).*",
     "fees have 128 bits: larger ones are wrong arguments"),
    (CALLS, r"error of retrie alone \(invalid argument N: invalid value: string .., expected a N b.*", "the same"),
    (CALLS, r"error\.code \(chainId does not match.*", "ids of chains have 64 bits: larger ones are wrong arguments"),
    ("eth_simulateV1", r"error of retrie alone \(invalid argument N: invalid type: null, expected an object\)", "a block may lack all fields, but null is none"),
    ("eth_simulateV1", r"error of geth alone \(invalid argument N: json: cannot unmarshal array.*", "a block without fields may be a list"),
    ("eth_feeHistory", r"error of retrie alone \(invalid argument N: invalid (value: string|type: null).*", "an empty text is no number, nor is null"),
    ("eth_getProof", r"error of retrie alone \(invalid argument N: invalid type: null.*", "null is no slot"),
    # Logs.
    ("eth_getLogs", r"result", "topics that may be anything need not be there, as in reth; names of fields have one case"),
    ("eth_getLogs", r"error of geth alone \(invalid block range params\)", "from `latest` to a tag that stands for the same block is a range"),
    ("eth_getLogs|eth_newFilter", r"error of geth alone \((exceed max addresses|invalid argument N: exceed max topics).*",
     "the same value a thousand times is one"),
    ("eth_getLogs|eth_newFilter", r"error of geth alone \(invalid argument N: invalid address: hex string without.*", "hexadecimal may lack its 0x"),
    # Blocks.
    (PENDING, r"of pending: .*", "the pending block has no transactions, and elsewhere the tag stands for the head (docs/rpc.md)"),
    ("debug_getRaw.*", r"error of retrie alone \(header not found\)", "an unknown block is an error"),
    ("eth_getRawTransaction.*", "result", "what is unknown is null, not no bytes"),
    ("eth_feeHistory", "(gasUsedRatio|oldestBlock|baseFee.*)", "no blocks: an empty list, not null"),
    ("eth_getProof", r"(codeHash|storageHash) \(of nothing\)", "an absent account has the hashes of nothing (EIP-1186)"),
    ("debug_storageRangeAt", "storage", "no slots: an empty object, not null"),
    # Calls.
    ("eth_createAccessList", r"error of geth alone \((gasPrice must be|maxFeePerGas|maxFeePerBlobGas|failed to apply).*",
     "a list is made as a call is made: without fees unless the request names them"),
    ("eth_estimateGas", r"error of geth alone \(method handler crashed\)", "a fault of geth"),
    # Traces.
    ("debug_trace.*", r"error.* \((SyntaxError|ReferenceError).*", "tracers in JavaScript are optional; without a name there is the struct logger"),
    ("debug_trace.*", r"error of retrie alone \(tracer .. is not one of the native ones.*", "tracers in JavaScript are optional"),
    ("debug_trace.*", r"error of retrie alone \(invalid argument N: invalid value: integer `-N.*", "no number below zero is a limit"),
    # The network.
    ("net_listening", "result", "there is no devp2p yet"),
    # Whole messages.
    ("eth_unsubscribe", r"error\.code .*", "where there are no subscriptions nothing is asked of their ids"),
    (r"\(over HTTP\)", r"\s?", "an empty message gets an answer too"),
    (r"\(over WebSocket\)", r"\s", "an empty message gets an answer too"),
    (r"\(over WebSocket\)", r"closed by geth: .*", "the answer is the same; then geth ends the connection, though each message is one for itself"),
    (r"\(over .*\)", r"not UTF-8: .*", "JSON is UTF-8 (RFC 8259): what is not is a parse error; geth reads it, and gives such an id back"),
    (r"\(over .*\)", r'\{"jsonrpc":"2.0","id":1,"id":2.*', "a field that is there twice makes no request"),
    (r"\(over .*\)", r'\{"jsonrpc":"2.0","id":1,"result":1\}', "an answer to nobody is told to be no request"),
    (r"\(over .*\)", r'.*"params":\[\[\[\[.*', "Go takes no JSON that is so deep; here the argument is wrong"),
]  # fmt: skip
