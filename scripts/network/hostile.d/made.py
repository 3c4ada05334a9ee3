"""Chains and transactions that peers serve: a chain of `retrie bench make-chain` from its files,
and signed transactions of every kind."""

import hashlib
import json
from pathlib import Path

import coincurve

from rlp import Raw, encode, items, prefix, span
from wire import address, keccak

GWEI = 10**9


def sender_key(index):
    """The key of a funded account of the generated chain, whose seed is 1."""
    return coincurve.PrivateKey(keccak(f"retrie chain 1 sender {index}".encode()))


def stranger_key(name):
    """A key that no generated chain has."""
    return coincurve.PrivateKey(keccak(f"stranger {name}".encode()))


class Chain:
    """Headers and bodies in RLP, from the files that make-chain writes."""

    def __init__(self, folder):
        self.genesis = Path(folder) / "genesis.json"
        self.id = json.loads(self.genesis.read_text())["config"]["chainId"]
        self.headers, self.bodies, self.numbers = [None], [None], {}
        data, at = (Path(folder) / "chain.rlp").read_bytes(), 0
        while at < len(data):
            _, begin, end = span(data, at)
            parts = [data[start:stop] for start, stop in items(data, begin, end)]
            self.numbers[keccak(parts[0])] = len(self.headers)
            self.headers.append(parts[0])
            content = b"".join(parts[1:])
            self.bodies.append(prefix(len(content), 0xC0) + content)
            at = end

    @property
    def head(self):
        return len(self.headers) - 1

    def hash(self, number):
        return keccak(self.headers[number])

    def find(self, start):
        """The number of a header request's first block; None if it does not exist."""
        if len(start) == 32:
            return self.numbers.get(start)
        number = int.from_bytes(start, "big")
        return number if 0 < number <= self.head else None

    def headers_for(self, request, most=1024):
        """The headers for a request."""
        start, limit, skip, reverse = request
        at = self.find(start)
        step = (int.from_bytes(skip, "big") + 1) * (-1 if reverse else 1)
        found = []
        while at is not None and 0 < at <= self.head and len(found) < most:
            if len(found) == int.from_bytes(limit, "big"):
                break
            found.append(Raw(self.headers[at]))
            at += step
        return found

    def bodies_for(self, hashes, most=1024):
        found, size = [], 0
        for hash in hashes[:most]:
            if hash not in self.numbers or size > 2 << 20:
                break
            found.append(Raw(self.bodies[self.numbers[hash]]))
            size += len(found[-1].encoded)
        return found


def sign(key, digest):
    """Parity, r and s."""
    raw = key.sign_recoverable(digest, hasher=None)
    return raw[64], int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:64], "big")


def dynamic_fee(key, chain, nonce, fee=100 * GWEI, tip=GWEI, gas=21_000, data=b"", to=b"\x22" * 20):
    """A transaction of type 2: its hash, and its bytes."""
    fields = [chain, nonce, tip, fee, gas, to, 1, data, []]
    signature = sign(key, keccak(b"\x02" + encode(fields)))
    raw = b"\x02" + encode([*fields, *signature])
    return keccak(raw), raw


class ZeroBlobs:
    """Six blobs of zeros, whose commitment and proofs are the point at infinity: quick to make, and
    as slow to verify as any."""

    COUNT, CELLS = 6, 128

    def __init__(self):
        point = b"\xc0" + bytes(47)
        self.hashes = [b"\x01" + hashlib.sha256(point).digest()[1:]] * self.COUNT
        blobs = encode([bytes(131_072)] * self.COUNT)
        commitments = encode([point] * self.COUNT)
        self.cells = blobs + commitments + encode([point] * (self.CELLS * self.COUNT))
        self.blob_proofs = blobs + commitments + encode([point] * self.COUNT)

    def transaction(self, key, chain, nonce, fee=100 * GWEI, blob_fee=100 * GWEI, has_cells=True):
        """A transaction of type 3: its hash, and its bytes with blobs in the form of EIP-7594, or
        in the form before Osaka."""
        fields = [chain, nonce, GWEI, fee, 21_000, b"\x22" * 20, 1, b"", [], blob_fee, self.hashes]
        body = encode([*fields, *sign(key, keccak(b"\x03" + encode(fields)))])
        content = body + (b"\x01" + self.cells if has_cells else self.blob_proofs)
        return keccak(b"\x03" + body), b"\x03" + prefix(len(content), 0xC0) + content


class Authorizations:
    """One signed authorization (EIP-7702), six hundred times."""

    COUNT = 600

    def __init__(self, chain):
        digest = keccak(b"\x05" + encode([chain, b"\x33" * 20, 0]))
        one = [chain, b"\x33" * 20, 0, *sign(stranger_key("authority"), digest)]
        self.chain, self.list = chain, Raw(encode([one] * self.COUNT))

    def transaction(self, key, nonce, fee):
        fields = [self.chain, nonce, 1, fee, 16_000_000, b"\x22" * 20, 0, b"", [], self.list]
        raw = b"\x04" + encode([*fields, *sign(key, keccak(b"\x04" + encode(fields)))])
        return keccak(raw), raw


def osaka_genesis(path, keys, more=None, chain=7331):
    """An Osaka genesis file in which these keys have ether, with the accounts of `more`; the chain
    has no further block."""
    forks = "homestead eip150 eip155 eip158 byzantium constantinople petersburg istanbul berlin london"
    config = {f"{fork}Block": 0 for fork in [*forks.split(), "mergeNetsplit"]}
    config |= {f"{fork}Time": 0 for fork in ("shanghai", "cancun", "prague", "osaka")}
    blobs = {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716}
    config |= {"blobSchedule": {fork: blobs for fork in ("cancun", "prague", "osaka")}}
    config |= {"chainId": chain, "terminalTotalDifficulty": 0}
    alloc = {"0x" + address(key).hex(): {"balance": hex(10**21)} for key in keys}
    alloc |= more or {}
    zero = "0x" + "00" * 32
    genesis = {
        "config": config, "nonce": "0x0", "timestamp": "0x69000000", "extraData": "0x",
        "gasLimit": hex(60_000_000), "difficulty": "0x0", "mixHash": zero, "parentHash": zero,
        "coinbase": "0x" + "00" * 20, "alloc": alloc, "number": "0x0", "gasUsed": "0x0",
        "baseFeePerGas": hex(GWEI), "excessBlobGas": "0x0", "blobGasUsed": "0x0",
    }  # fmt: skip
    path.write_text(json.dumps(genesis))
    return path


# Contracts with large storage.
LARGE = [b"\xaa" * 20, b"\xbb" * 20]


def large_state(accounts=200_000, slots=50_000):
    """Accounts for a genesis file: many, and two contracts with many slots."""
    more = {"0x" + n.to_bytes(20, "big").hex(): {"balance": "0x1"} for n in range(1 << 40, accounts + (1 << 40))}
    storage = {"0x" + n.to_bytes(32, "big").hex(): hex(n) for n in range(1, slots + 1)}
    for contract in LARGE:
        more["0x" + contract.hex()] = {"balance": "0x1", "code": "0x00", "storage": storage}
    return more
