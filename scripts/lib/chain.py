"""Blocks as a consensus client sees them: the genesis file, forks, payloads and their hashes, and
invalid payloads.
"""

import copy
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import rlp
from eth_hash.auto import keccak
from trie import HexaryTrie

SLOT_SECONDS = 12
GWEI, ETHER = 10**9, 10**18
# The slot at which each fork activates, and the versions of forkchoiceUpdated, getPayload and
# newPayload from that slot on. Forks before London are active from the first block. Amsterdam
# activates only on request.
FORKS = [
    ("paris", 0, (1, 1, 1)),
    ("shanghai", 6, (2, 2, 2)),
    ("cancun", 14, (3, 3, 3)),
    ("prague", 26, (3, 4, 4)),
    ("osaka", 44, (3, 5, 4)),
    ("bpo1", 60, (3, 5, 4)),
    ("bpo2", 68, (3, 5, 4)),
    ("amsterdam", None, (4, 6, 5)),
]
ORDER = [name for name, _, _ in FORKS]
EMPTY_OMMERS = keccak(rlp.encode([]))
# JSON-RPC's code for a payload that belongs to another fork.
UNSUPPORTED_FORK = -38005


def fork_slots(at_genesis, amsterdam):
    """The slot of each fork. No other fork activates after Amsterdam, whose slot may be None."""
    slots = {name: 0 if at_genesis else slot for name, slot, _ in FORKS if slot is not None}
    if amsterdam is not None:
        slots = {name: min(slot, amsterdam) for name, slot in slots.items()}
        slots["amsterdam"] = amsterdam
    return slots


def genesis_file(path, time, funded, slots, contracts, binary_tree=None):
    """Writes the genesis file: forks at their slots after `time`, ether for `funded`, and the system
    contracts. From the slot `binary_tree` on, headers carry roots of the binary tree (EIP-8297).
    """
    genesis = json.loads((Path(__file__).parent / "genesis.json").read_text())
    genesis["alloc"].update(contracts)
    genesis["timestamp"] = hex(time)
    for name, slot in slots.items():
        if name != "paris":
            genesis["config"][f"{name}Time"] = time + slot * SLOT_SECONDS
    if binary_tree is not None:
        genesis["config"]["binaryTrieTime"] = time + binary_tree * SLOT_SECONDS
    for address in funded:
        genesis["alloc"]["0x" + address.hex()] = {"balance": hex(1_000_000 * ETHER)}
    path.write_text(json.dumps(genesis, indent=1))
    return genesis


class Schedule:
    """Tells which fork is active at a time."""

    def __init__(self, genesis):
        self.genesis_time = int(genesis["timestamp"], 16)
        times = {"paris": self.genesis_time}
        times |= {name: genesis["config"].get(f"{name}Time") for name in ORDER[1:]}
        self.starts = [(name, at) for name, at in times.items() if at is not None]
        self.versions = {name: versions for name, _, versions in FORKS}
        self.binary_tree_time = genesis["config"].get("binaryTrieTime")

    def has(self, fork):
        """Whether this chain reaches `fork`."""
        return fork in dict(self.starts)

    def is_binary(self, timestamp):
        """Whether headers of this time carry roots of the binary tree."""
        return self.binary_tree_time is not None and timestamp >= self.binary_tree_time

    def time_of(self, slot):
        return self.genesis_time + slot * SLOT_SECONDS

    def fork(self, timestamp):
        return [name for name, start in self.starts if start <= timestamp][-1]


def since(fork, other):
    """Whether `fork` is `other` or a later one."""
    return ORDER.index(fork) >= ORDER.index(other)


def data(text):
    return bytes.fromhex(text.removeprefix("0x"))


def number(text):
    return int(text, 16)


def type_of(transaction):
    """The type of an encoded transaction; legacy ones are lists."""
    first = data(transaction[:4])[0]
    return first if first < 0x80 else 0


def ordered_root(items):
    """Root of the trie over a list."""
    trie = HexaryTrie({})
    for index, item in enumerate(items):
        trie[rlp.encode(index)] = item
    return trie.root_hash


def requests_hash(requests):
    """EIP-7685."""
    hashes = b"".join(hashlib.sha256(data(request)).digest() for request in requests)
    return hashlib.sha256(hashes).digest()


def versioned_hashes(transactions):
    """The blob hashes that a list of encoded transactions names."""
    hashes = []
    for raw in map(data, transactions):
        if raw[:1] == b"\x03":
            hashes += rlp.decode(raw[1:])[10]
    return ["0x" + each.hex() for each in hashes]


@dataclass
class Payload:
    """What newPayload sends."""

    fork: str
    fields: dict
    beacon_root: str = None
    requests: list = None
    blob_hashes: list = field(default_factory=list)

    @property
    def hash(self):
        return self.fields["blockHash"]

    def params(self):
        if not since(self.fork, "cancun"):
            return [self.fields]
        more = [self.requests] if since(self.fork, "prague") else []
        return [self.fields, self.blob_hashes, self.beacon_root, *more]

    def computed_hash(self):
        """The hash of its header, computed here."""
        f = self.fields
        header = [
            data(f["parentHash"]), EMPTY_OMMERS, data(f["feeRecipient"]), data(f["stateRoot"]),
            ordered_root(list(map(data, f["transactions"]))), data(f["receiptsRoot"]),
            data(f["logsBloom"]), 0, number(f["blockNumber"]), number(f["gasLimit"]),
            number(f["gasUsed"]), number(f["timestamp"]), data(f["extraData"]),
            data(f["prevRandao"]), bytes(8), number(f["baseFeePerGas"]),
        ]  # fmt: skip
        if since(self.fork, "shanghai"):
            withdrawals = [
                rlp.encode([number(w["index"]), number(w["validatorIndex"]), data(w["address"]), number(w["amount"])])
                for w in f["withdrawals"]
            ]  # fmt: skip
            header.append(ordered_root(withdrawals))
        if since(self.fork, "cancun"):
            header += [number(f["blobGasUsed"]), number(f["excessBlobGas"]), data(self.beacon_root)]
        if since(self.fork, "prague"):
            header.append(requests_hash(self.requests))
        if since(self.fork, "amsterdam"):
            header += [keccak(data(f["blockAccessList"])), number(f["slotNumber"])]
        return "0x" + keccak(rlp.encode(header)).hex()

    def rehashed(self):
        self.fields["blockHash"] = self.computed_hash()
        return self


@dataclass
class Block:
    """A payload in the tree of blocks; genesis has none."""

    hash: str
    number: int
    timestamp: int
    slot: int
    parent: "Block" = None
    payload: Payload = None
    proposer: str = None
    transactions: list = field(default_factory=list)

    def ancestor(self, number):
        block = self
        while block.number > number:
            block = block.parent
        return block

    def branch(self, other):
        """The blocks after the last common ancestor with `other` up to this one, oldest first."""
        mine, theirs, blocks = self, other, []
        while mine.hash != theirs.hash:
            if mine.number >= theirs.number:
                blocks.append(mine)
                mine = mine.parent
            else:
                theirs = theirs.parent
        return blocks[::-1]


# -- wrong payloads --------------------------------------------------------------------------------


def flipped(text):
    """The same bytes with the lowest bit flipped."""
    raw = bytearray(data(text))
    raw[-1] ^= 1
    return "0x" + raw.hex()


def add(key, amount):
    def change(payload, parent):
        payload.fields[key] = hex(number(payload.fields[key]) + amount)

    return change


def flip(key):
    def change(payload, parent):
        payload.fields[key] = flipped(payload.fields[key])

    return change


def same_time(payload, parent):
    payload.fields["timestamp"] = hex(parent.timestamp)


def far_gas_limit(payload, parent):
    limit = number(payload.fields["gasLimit"])
    payload.fields["gasLimit"] = hex(limit + limit // 500)


def long_extra_data(payload, parent):
    payload.fields["extraData"] = "0x" + "2a" * 33


def garbage_transaction(payload, parent):
    payload.fields["transactions"].append("0x02ff")


def dropped_transaction(payload, parent):
    payload.fields["transactions"].pop()
    payload.blob_hashes[:] = versioned_hashes(payload.fields["transactions"])


def doubled_transaction(payload, parent):
    payload.fields["transactions"].append(payload.fields["transactions"][0])
    payload.blob_hashes[:] = versioned_hashes(payload.fields["transactions"])


def added_withdrawal(payload, parent):
    payload.fields["withdrawals"].append(
        {"index": "0x1", "validatorIndex": "0x1", "address": "0x" + "77" * 20, "amount": "0x1"}
    )


def added_request(payload, parent):
    """A deposit that was never made. Each type of request occurs once, in ascending order."""
    deposits = "0x00"
    if payload.requests and payload.requests[0].startswith(deposits):
        deposits = payload.requests.pop(0)
    payload.requests.insert(0, deposits + "11" * 192)


def added_blob_hash(payload, parent):
    payload.blob_hashes.append("0x01" + "22" * 31)


def other_beacon_root(payload, parent):
    payload.beacon_root = flipped(payload.beacon_root)


def garbage_access_list(payload, parent):
    payload.fields["blockAccessList"] += "00"


def change_access_list(change):
    """A change of the decoded block access list (EIP-7928): per account its address, changed slots,
    read slots, balances, nonces and code."""

    def changed(payload, parent):
        accounts = rlp.decode(data(payload.fields["blockAccessList"]))
        change(accounts)
        payload.fields["blockAccessList"] = "0x" + rlp.encode(accounts).hex()

    return changed


def one_account_less(accounts):
    accounts.pop()


def one_account_more(accounts):
    accounts.append([b"\xff" * 20, [], [], [], [], []])


def other_balance(accounts):
    balances = next(each[3] for each in accounts if each[3])
    index, after = balances[0]
    balances[0] = [index, rlp.sedes.big_endian_int.serialize(int.from_bytes(after, "big") + 1)]


# Name: first fork, whether it needs a transaction, whether the block hash is recomputed after the
# change (if not, the wrong hash is the fault), and the change.
WRONG = {
    "state root": ("paris", False, True, flip("stateRoot")),
    "receipts root": ("paris", False, True, flip("receiptsRoot")),
    "logs bloom": ("paris", False, True, flip("logsBloom")),
    "gas used": ("paris", False, True, add("gasUsed", 1)),
    "gas limit": ("paris", False, True, far_gas_limit),
    "base fee": ("paris", False, True, add("baseFeePerGas", 1)),
    "timestamp": ("paris", False, True, same_time),
    "extra data": ("paris", False, True, long_extra_data),
    "block hash": ("paris", False, False, flip("blockHash")),
    "transaction garbage": ("paris", False, True, garbage_transaction),
    "transaction dropped": ("paris", True, True, dropped_transaction),
    "transaction doubled": ("paris", True, True, doubled_transaction),
    "withdrawal added": ("shanghai", False, True, added_withdrawal),
    "blob gas used": ("cancun", False, True, add("blobGasUsed", 131_072)),
    "excess blob gas": ("cancun", False, True, add("excessBlobGas", 1)),
    "blob hash added": ("cancun", False, False, added_blob_hash),
    "other beacon root": ("cancun", False, False, other_beacon_root),
    "request added": ("prague", False, True, added_request),
    "access list garbage": ("amsterdam", False, True, garbage_access_list),
    "account not accessed": ("amsterdam", False, True, change_access_list(one_account_more)),
    "account left out": ("amsterdam", False, True, change_access_list(one_account_less)),
    "balance accessed": ("amsterdam", True, True, change_access_list(other_balance)),
    "slot number": ("amsterdam", False, False, add("slotNumber", 1)),
}  # fmt: skip


def wrong_payload(payload, parent, rng, state_roots_checked):
    """A random fault that fits, and the payload with it."""
    fits = [
        name
        for name, (fork, needs_transaction, _, _) in WRONG.items()
        if since(payload.fork, fork)
        and (payload.fields["transactions"] or not needs_transaction)
        and (state_roots_checked or name not in ("state root", "withdrawal added"))
    ]
    if parent.payload and parent.payload.fork != payload.fork:
        # The time of its parent is in another fork, where the method version would be wrong first.
        fits.remove("timestamp")
    name = rng.choice(fits)
    _, _, rehash, change = WRONG[name]
    wrong = copy.deepcopy(payload)
    change(wrong, parent)
    if name == "transaction garbage":
        # No node gets far enough to check the hash of this payload.
        return name, wrong.rehashed()
    return name, wrong.rehashed() if rehash else wrong


def child_of(payload, seconds):
    """A child of `payload`, otherwise like it."""
    child = copy.deepcopy(payload)
    child.fields["parentHash"] = payload.hash
    child.fields["blockNumber"] = hex(number(payload.fields["blockNumber"]) + 1)
    child.fields["timestamp"] = hex(number(payload.fields["timestamp"]) + seconds)
    if "slotNumber" in child.fields:
        child.fields["slotNumber"] = hex(number(payload.fields["slotNumber"]) + 1)
    return child.rehashed()
