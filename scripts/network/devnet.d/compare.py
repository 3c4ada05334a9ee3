"""What the nodes of a devnet must agree on at the end, over JSON-RPC."""

from collections import Counter

from chain import data, since
from network import Disagreement
from nodekit import differences
from traffic import invocation

# Blocks below the head whose state every node still has.
STATE_WINDOW = 100


def short(value):
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}..."


# Fields that only retrie returns for a transaction from Amsterdam on, whose gas has two dimensions
# (EIP-8037).
GAS_DIMENSIONS = {"executionGasUsed", "stateGasUsed", "gasRefund"}


def without_details(trace):
    """A trace with errors marked but without their messages: clients describe failures of an
    opcode, the stack or a precompile in their own words."""
    if isinstance(trace, list):
        return [without_details(each) for each in trace]
    if not isinstance(trace, dict):
        return trace
    return {
        key: "error" if key == "error" else without_details(value)
        for key, value in trace.items()
        if key not in GAS_DIMENSIONS
    }


class Comparison:
    def __init__(self, network, rng):
        self.network, self.rng = network, rng
        self.nodes = network.nodes
        self.chain = network.head.branch(network.genesis)
        self.compared = Counter()

    def all_equal(self, method, *params, engine=False, nodes=None, view=lambda result: result):
        """Sends all nodes the same request; the responses, passed through `view`, must be equal.
        Returns the first."""
        first, *others = nodes or self.nodes
        ask = (lambda node: node.engine.ask) if engine else (lambda node: node.rpc.ask)
        answer = ask(first)(method, *params)
        if "error" in answer:
            raise Disagreement(f"node {first.name}: {method}{list(params)}: {answer['error']}")
        for node in others:
            other = ask(node)(method, *params)
            if "error" in other:
                raise Disagreement(f"node {node.name}: {method}{list(params)}: {other['error']}")
            found = differences(view(answer["result"]), view(other["result"]))
            if found:
                path, here, there = found[0]
                raise Disagreement(
                    f"{method}{list(params)}: `{path or 'result'}` is {short(here)} on {first.name}, "
                    f"{short(there)} on {node.name} ({len(found)} differences in all)"
                )
        self.compared[method] += 1
        return answer["result"]

    def run(self):
        # It describes only forks from Cancun on.
        if since(self.network.head.payload.fork, "cancun"):
            self.all_equal("eth_config")
        self.blocks()
        self.logs()
        self.state()
        self.proofs()
        self.trees()
        self.bodies()
        self.access_lists()
        self.traces()
        return self.compared

    def blocks(self):
        for block in self.chain:
            full = self.all_equal("eth_getBlockByNumber", hex(block.number), True)
            if full["hash"] != block.hash:
                raise Disagreement(f"block {block.number} is {full['hash']}, not {block.hash}")
            self.all_equal("debug_getRawHeader", hex(block.number))
            receipts = self.all_equal("eth_getBlockReceipts", block.hash)
            if [each["transactionHash"] for each in receipts] != block.transactions:
                raise Disagreement(f"receipts of block {block.number} are of other transactions")
            if block.transactions:
                chosen = self.rng.choice(block.transactions)
                self.all_equal("eth_getTransactionByHash", chosen)
                self.all_equal("eth_getTransactionReceipt", chosen)

    def logs(self):
        top = len(self.chain)
        token = "0x" + self.network.traffic.token.hex()
        spans = [(0, top)] + [sorted(self.rng.sample(range(top + 1), 2)) for _ in range(8)]
        for start, end in reversed(spans):
            span = {"fromBlock": hex(start), "toBlock": hex(end)}
            logs = self.all_equal("eth_getLogs", span)
            self.all_equal("eth_getLogs", span | {"address": token})
            # Code of random bytes also emits logs without topics.
            topics = [each["topics"] for each in logs if each["topics"]]
            if topics:
                topics = self.rng.choice(topics)
                self.all_equal("eth_getLogs", span | {"topics": [[topics[0]]]})
                if topics[1:]:
                    self.all_equal("eth_getLogs", span | {"topics": [None, topics[1]]})
        if not logs:
            raise Disagreement("no block has logs: the transactions have done nothing")

    def state(self):
        top = len(self.chain)
        heights = {top, max(top - STATE_WINDOW, 0)}
        heights |= {self.rng.randrange(max(top - STATE_WINDOW, 0), top + 1) for _ in range(6)}
        traffic = self.network.traffic
        token, store = ("0x" + each.hex() for each in (traffic.token, traffic.store))
        for height in map(hex, sorted(heights)):
            for address in ("0x" + each.hex() for each in traffic.watched()):
                self.all_equal("eth_getBalance", address, height)
                self.all_equal("eth_getTransactionCount", address, height)
                self.all_equal("eth_getCode", address, height)
            for slot in range(8):
                self.all_equal("eth_getStorageAt", token, hex(slot), height)
            for key in range(16):
                asked = {"to": store, "input": "0x" + invocation("values(uint256)", key).hex()}
                self.all_equal("eth_call", asked, height)
            for person in traffic.senders[:16]:
                asked = invocation("balanceOf(address)", person.address)
                self.all_equal("eth_call", {"to": token, "input": "0x" + asked.hex()}, height)

    def proofs(self):
        """Nodes with Ethereum's state root."""
        able = [node for node in self.nodes if node.is_geth or ":mpt" in node.kind]
        if self.network.schedule.is_binary(self.network.head.timestamp):
            return self.proofs_refused()
        if len(able) > 1:
            traffic = self.network.traffic
            token = "0x" + traffic.token.hex()
            # For an absent account geth returns zero as code hash and storage hash; EIP-1186 wants
            # the hash of nothing.
            there = [each for each in traffic.watched() if each != traffic.poor.address]
            for address in ("0x" + each.hex() for each in there):
                self.all_equal("eth_getProof", address, ["0x0"], "latest", nodes=able)
            self.all_equal("eth_getProof", token, [hex(n) for n in range(8)], "latest", nodes=able)
        for backend in {node.kind for node in self.nodes if node.kind.startswith("retrie:")}:
            same = [node for node in self.nodes if node.kind == backend]
            if len(same) > 1:
                for block in self.chain[-20:]:
                    self.all_equal("state_getRoot", hex(block.number), nodes=same)

    def proofs_refused(self):
        """No node has proofs of the Merkle trie under a root of the binary tree."""
        token = "0x" + self.network.traffic.token.hex()
        for node in self.nodes:
            answer = node.rpc.ask("eth_getProof", token, ["0x0"], "latest")
            message = answer.get("error", {}).get("message", "")
            if "partitioned binary tree" not in message:
                raise Disagreement(f"node {node.name}: eth_getProof after the switch: {answer}")
            self.compared["eth_getProof refused"] += 1

    def trees(self):
        """The roots of both trees, for every block of a chain that switches to the binary tree: one
        is in the header, the other is the shadow root. A node's own store has one of the two."""
        if self.network.schedule.binary_tree_time is None:
            return
        for block in self.chain:
            shadow = self.all_equal("debug_shadowStateRoot", block.hash)
            header = block.payload.fields["stateRoot"]
            is_binary = self.network.schedule.is_binary(block.timestamp)
            for node in self.nodes:
                own = node.rpc.call("state_getRoot", block.hash)["root"]
                wanted = header if is_binary == (":pbt" in node.kind) else shadow
                if own != wanted or header == shadow:
                    raise Disagreement(
                        f"node {node.name} has the root {own} of block {block.number}, whose header "
                        f"has {header}, beside {shadow}"
                    )
            side = "from the switch on" if is_binary else "before the switch"
            self.compared[f"roots of both trees {side}"] += 1
        self.all_equal("debug_migrationProgress")

    def bodies(self):
        for start in range(1, len(self.chain) + 1, 64):
            range_of = [hex(start), "0x40"]
            self.all_equal("engine_getPayloadBodiesByRangeV1", *range_of, engine=True)
        chosen = [each.hash for each in self.rng.sample(self.chain, min(16, len(self.chain)))]
        unknown = "0x" + "33" * 32
        bodies = self.all_equal("engine_getPayloadBodiesByHashV1", [*chosen, unknown], engine=True)
        if bodies[-1] is not None or any(
            len(data(b["transactions"][0])) == 0 for b in bodies[:-1] if b["transactions"]
        ):
            raise Disagreement(
                "engine_getPayloadBodiesByHashV1 does not give null for what is unknown"
            )

    def access_lists(self):
        """The block access list of each recent block (EIP-7928), whose hash is in the header,
        equals the list delivered with the block. geth stores it, retrie rebuilds it."""
        of_ours = [node for node in self.nodes if not node.is_geth]
        for block in self.chain[-STATE_WINDOW:]:
            if not since(block.payload.fork, "amsterdam"):
                continue
            wanted, height = block.payload.fields["blockAccessList"], hex(block.number)
            for node in self.nodes:
                if node.is_geth:
                    bodies = node.engine.call("engine_getPayloadBodiesByHashV2", [block.hash])
                    got = bodies[0]["blockAccessList"]
                else:
                    got = node.rpc.call("debug_getRawBlockAccessList", height)
                if got != wanted:
                    raise Disagreement(
                        f"the access list of block {block.number} is {short(got)} on {node.name}, "
                        f"but it came with {short(wanted)}"
                    )
            self.compared["access lists as they came"] += 1
            if of_ours:
                self.all_equal("eth_getBlockAccessList", height, nodes=of_ours)

    def traces(self):
        recent = [block for block in self.chain[-STATE_WINDOW:] if block.transactions]
        for block in self.rng.sample(recent, min(10, len(recent))):
            tracer = {"tracer": "callTracer"}
            self.all_equal("debug_traceBlockByHash", block.hash, tracer, view=without_details)
