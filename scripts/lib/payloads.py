"""Blocks of made chains (`retrie bench make-chain`) as the Engine API takes them: with one RPC for the
payload, and one that makes it the head. Needs nothing but the standard library.
"""

import hashlib
import itertools
import json
import time
from pathlib import Path

from nodekit import fail

# Bodies requested at once.
BODIES = 32
ZERO = "0x" + "00" * 32
# The hash of an empty list of requests (EIP-7685).
NO_REQUESTS = "0x" + hashlib.sha256().hexdigest()
# A payload's fields without those of its body, and their names in a block.
FIELDS = {
    "parentHash": "parentHash",
    "feeRecipient": "miner",
    "stateRoot": "stateRoot",
    "receiptsRoot": "receiptsRoot",
    "logsBloom": "logsBloom",
    "prevRandao": "mixHash",
    "blockNumber": "number",
    "gasLimit": "gasLimit",
    "gasUsed": "gasUsed",
    "timestamp": "timestamp",
    "extraData": "extraData",
    "baseFeePerGas": "baseFeePerGas",
    "blobGasUsed": "blobGasUsed",
    "excessBlobGas": "excessBlobGas",
    "blockHash": "hash",
}


class Payload:
    """A block of Prague or, with an access list, of Amsterdam, as the two requests that deliver it."""

    def __init__(self, fields, beacon_root):
        self.fields = fields
        self.number, self.gas = int(fields["blockNumber"], 16), int(fields["gasUsed"], 16)
        self.hash, self.txs = fields["blockHash"], len(fields["transactions"])
        self.list_bytes = len(fields.get("blockAccessList", "")) // 2
        new, choice = (5, 4) if self.list_bytes else (4, 3)
        self.new = request(f"engine_newPayloadV{new}", fields, [], beacon_root, [])
        self.choice_method = f"engine_forkchoiceUpdatedV{choice}"
        self.state = {"headBlockHash": self.hash, "safeBlockHash": ZERO, "finalizedBlockHash": ZERO}
        self.choice = request(self.choice_method, self.state, None)


def of_block(block, body, access_list):
    """The payload of a block, of its body, and of its access list or None."""
    if block["requestsHash"] != NO_REQUESTS:
        fail(f"block {int(block['number'], 16)} makes requests, which its body does not have")
    fields = {name: block[of] for name, of in FIELDS.items()} | body
    if access_list:
        fields |= {"slotNumber": block["slotNumber"], "blockAccessList": access_list}
    return Payload(fields, block["parentBeaconBlockRoot"])


def read_payloads(node, chain):
    """All blocks of a node, which has imported the file `chain`."""
    lists = access_lists(chain)
    head = int(node.rpc.call("eth_blockNumber"), 16)
    for first in range(1, head + 1, BODIES):
        count = min(BODIES, head + 1 - first)
        bodies = node.engine.call("engine_getPayloadBodiesByRangeV1", hex(first), hex(count))
        for number, body in enumerate(bodies, first):
            block = node.rpc.call("eth_getBlockByNumber", hex(number), False)
            yield of_block(block, body, next(lists))


def built_on(node, parent, recipient):
    """An empty payload that a node with the head `parent` builds for this fee recipient."""
    attributes = {
        "timestamp": hex(int(parent.fields["timestamp"], 16) + 1),
        "prevRandao": ZERO,
        "suggestedFeeRecipient": recipient,
        "withdrawals": [],
        "parentBeaconBlockRoot": ZERO,
    }
    get = 4
    if "slotNumber" in parent.fields:
        attributes["slotNumber"] = hex(int(parent.fields["slotNumber"], 16) + 1)
        attributes["targetGasLimit"] = parent.fields["gasLimit"]
        get = 6
    answer = node.engine.call(parent.choice_method, parent.state, attributes)
    if not answer["payloadId"]:
        fail(f"{node.name} builds no payload on block {parent.number}: {answer}")
    built = node.engine.call(f"engine_getPayloadV{get}", answer["payloadId"])["executionPayload"]
    return Payload(built, ZERO)


def access_lists(chain):
    """The access lists of all blocks from Amsterdam on; None for each block of other chains."""
    file = Path(chain).with_name("access-lists.rlp")
    if not file.exists():
        return itertools.repeat(None)
    return ("0x" + item.hex() for item in rlp_lists(file.read_bytes()))


def rlp_lists(raw):
    """The encodings of the RLP lists that lie one after the other in these bytes."""
    at = 0
    while at < len(raw):
        first = raw[at]
        size = 1 + first - 0xC0
        if first > 0xF7:
            more = first - 0xF7
            size = 1 + more + int.from_bytes(raw[at + 1 : at + 1 + more])
        yield raw[at : at + size]
        at += size


def request(method, *params):
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.dumps(call).encode()


def ask(node, body):
    """Seconds until the whole response to a request has arrived, and its result."""
    start = time.perf_counter()
    _, answer = node.engine.post(body)
    took = time.perf_counter() - start
    answer = json.loads(answer)
    if "error" in answer:
        fail(f"{node.name}: {answer['error']}\n{node.last_lines()}")
    return took, answer["result"]
