"""JSON-RPC traffic of many methods, at a fixed rate, with new parameters in every minute."""

import json
import random
import threading
import time

import nodekit
from chain import number

# Blocks below the head that no reorg reaches, and recent blocks that are asked for.
SETTLED, RECENT = 4, 64
# Blocks and bodies of a minute.
BLOCKS, BODIES = 24, 4000
# Seconds before the end of a minute at which its requests end.
MARGIN = 1.0
CONNECTIONS = 32
# Requests of each kind in a hundred, about.
WEIGHTS = {
    "eth_blockNumber": 5, "eth_chainId": 2, "eth_gasPrice": 2, "eth_syncing": 1,
    "net_peerCount": 1, "web3_clientVersion": 1, "txpool_status": 1, "txpool_content": 0.2,
    "eth_feeHistory": 2, "eth_getBlockByNumber": 6, "eth_getBlockByHash": 4,
    "eth_getHeaderByNumber": 2, "eth_getBlockReceipts": 3, "eth_getTransactionByHash": 8,
    "eth_getTransactionReceipt": 10, "eth_getBalance": 14, "eth_getTransactionCount": 5,
    "eth_getCode": 4, "eth_getStorageAt": 5, "eth_call": 13, "eth_estimateGas": 4,
    "eth_createAccessList": 1, "eth_simulateV1": 0.5, "eth_getLogs": 5, "eth_newFilter": 0.2,
    "eth_newBlockFilter": 0.2, "debug_traceTransaction": 1, "debug_traceBlockByNumber": 0.2,
    "debug_getRawBlock": 1, "trace_block": 0.3, "proof": 4,
}  # fmt: skip
# The method that proves accounts, by backend; others have none by default.
PROOFS = {"mpt": "eth_getProof", "mpt-archive": "eth_getProof", "cole": "state_getProof"}


class RequestLoad(threading.Thread):
    """Runs `openloop` in each minute; `reports` has what it reports, by minute."""

    def __init__(self, node, network, backend, rate, began, folder, seed):
        super().__init__(name="requests", daemon=True)
        self.node, self.network, self.rate, self.began = node, network, rate, began
        self.proof = PROOFS.get(backend)
        self.file, self.rng = folder / "bodies.txt", random.Random(seed)
        self.done = threading.Event()
        self.reports, self.trouble = {}, None

    def run(self):
        try:
            while not self.done.is_set():
                self.run_minute(int((time.monotonic() - self.began) // 60))
        except (Exception, SystemExit) as error:
            self.trouble = f"JSON-RPC load: {type(error).__name__}: {error}"

    def run_minute(self, minute):
        end = self.began + 60 * (minute + 1)
        if self.network.head.number > 2 * SETTLED:
            self.file.write_text("\n".join(self.bodies()) + "\n")
            seconds = end - MARGIN - time.monotonic()
            if seconds > 1:
                self.reports[minute] = nodekit.open_loop(
                    self.node, self.file, self.rate, seconds, CONNECTIONS, nulls_allowed=True
                )
        self.done.wait(min(max(end - time.monotonic(), 0), 60) if self.reports else 1)

    # -- bodies ----------------------------------------------------------------------------------

    def bodies(self):
        """Requests about blocks that stay canonical, without an expected error."""
        top = self.network.head.number - SETTLED
        numbers = [self.rng.randrange(max(top - RECENT, 1), top + 1) for _ in range(BLOCKS)]
        numbers += [self.rng.randrange(1, top + 1) for _ in range(BLOCKS // 4)]
        blocks = [self.node.rpc.call("eth_getBlockByNumber", hex(at), False) for at in set(numbers)]
        makers = self.makers(blocks, [tx for block in blocks for tx in block["transactions"]])
        kinds = self.rng.choices(list(makers), [WEIGHTS[kind] for kind in makers], k=BODIES)
        return [self.body(kind, makers[kind]()) for kind in kinds]

    def body(self, kind, params):
        method = self.proof if kind == "proof" else kind
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def makers(self, blocks, hashes):
        """Functions that make parameters, by kind of request."""
        traffic, choice = self.network.traffic, self.rng.choice
        people = ["0x" + each.hex() for each in traffic.watched()]
        token, store = "0x" + traffic.token.hex(), "0x" + traffic.store.hex()
        person = lambda: choice(people)
        at_number = lambda: choice(blocks)["number"]
        at = lambda: choice(["latest", "latest", "latest", at_number()])
        slot = lambda: f"0x{self.rng.randrange(64):064x}"
        plain = ["0x" + each.address.hex() for each in traffic.senders]
        transfer = lambda: {"from": choice(plain), "to": choice(plain), "value": "0x1"}

        def balance_of():
            return {"to": token, "input": "0x70a08231" + person()[2:].rjust(64, "0")}

        def search():
            first = number(at_number())
            last = min(first + 9, self.network.head.number - SETTLED)
            return [{"address": token, "fromBlock": hex(first), "toBlock": hex(max(first, last))}]

        nothing = "eth_blockNumber eth_chainId eth_gasPrice eth_syncing net_peerCount " \
            "web3_clientVersion txpool_status txpool_content eth_newBlockFilter"  # fmt: skip
        makers = {kind: list for kind in nothing.split()}
        makers |= {
            "eth_feeHistory": lambda: ["0x5", at_number(), [10, 50, 90]],
            "eth_getBlockByNumber": lambda: [at_number(), True],
            "eth_getBlockByHash": lambda: [choice(blocks)["hash"], False],
            "eth_getHeaderByNumber": lambda: [at_number()],
            "eth_getBlockReceipts": lambda: [at_number()],
            "eth_getBalance": lambda: [person(), at()],
            "eth_getTransactionCount": lambda: [person(), at()],
            "eth_getCode": lambda: [choice([token, store, person()]), "latest"],
            "eth_getStorageAt": lambda: [store, slot(), at()],
            "eth_call": lambda: [balance_of(), at()],
            "eth_estimateGas": lambda: [transfer(), "latest"],
            "eth_createAccessList": lambda: [balance_of(), "latest"],
            "eth_simulateV1": lambda: [{"blockStateCalls": [{"calls": [balance_of()]}]}, "latest"],
            "eth_getLogs": search,
            "eth_newFilter": search,
            "debug_traceBlockByNumber": lambda: [at_number(), {"tracer": "callTracer"}],
            "debug_getRawBlock": lambda: [at_number()],
            "trace_block": lambda: [at_number()],
        }
        if hashes:
            makers |= {
                "eth_getTransactionByHash": lambda: [choice(hashes)],
                "eth_getTransactionReceipt": lambda: [choice(hashes)],
                "debug_traceTransaction": lambda: [choice(hashes), {"tracer": "callTracer"}],
            }
        if self.proof:
            makers["proof"] = lambda: [store, [slot()], "latest"]
        return makers
