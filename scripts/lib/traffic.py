"""Generates thousands of transactions of every type: typical ones of each kind of user, ones that
fail, and ones that no pool may accept.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ckzg
import rlp
from chain import ETHER, GWEI, since
from eth_account.typed_transactions.base import TRUSTED_SETUP
from eth_hash.auto import keccak
from eth_keys import keys

CONTRACTS = Path(__file__).resolve().parents[2] / "crates" / "lab" / "bench" / "contracts"
# Most pending transactions of one sender; pools allow 16.
IN_FLIGHT = 8
WITHDRAWAL_REQUESTS = bytes.fromhex("00000961ef480eb55e80d19ad83579a64c007002")
CONSOLIDATION_REQUESTS = bytes.fromhex("0000bbddc7ce488642fb579f8b00f3a590007251")
BLOCK_HASHES = bytes.fromhex("0000f90827f1c53a10cb7a02335b175320002935")
BUILDER_DEPOSITS = bytes.fromhex("0000bff46984e3725691fa540a8c7589300d8282")
BUILDER_EXITS = bytes.fromhex("000064d678505ad48f8ccb093bc65613800e8282")
FACTORY = bytes.fromhex("4e59b44847b379578588920ca78fbf26c0b4956c")
DEPOSITS = bytes.fromhex("00000000219ab540356cbb839cbe05303d7705fa")
# From Amsterdam on new accounts, slots and code cost a multiple of gas, so there is more to spend;
# but from Osaka on a transaction has at most 2^24 gas.
ROOM, MOST_GAS = 10, 15_000_000
TYPES = {"legacy": 0, "access list": 1, "dynamic fee": 2, "blob": 3, "set code": 4}


@dataclass
class Account:
    key: keys.PrivateKey
    address: bytes
    nonce: int = 0


@dataclass
class Transaction:
    hash: str
    kind: str
    sender: Account
    nonce: int
    slot: int
    # The transaction as sent, with blobs and their proofs.
    raw: str


def account(name):
    key = keys.PrivateKey(keccak(name.encode()))
    return Account(key, key.public_key.to_canonical_address())


def contract(name):
    described = json.loads((CONTRACTS / f"{name}.json").read_text())
    return bytes.fromhex(described["bytecode"].removeprefix("0x"))


def word(value):
    return value.rjust(32, b"\0") if isinstance(value, bytes) else value.to_bytes(32, "big")


def text_words(text):
    """The tail of a dynamic `string` or `bytes` in the ABI."""
    raw = text.encode() if isinstance(text, str) else text
    return word(len(raw)) + raw + bytes(-len(raw) % 32)


def invocation(signature, *words):
    return keccak(signature.encode())[:4] + b"".join(map(word, words))


def created_at(address, nonce):
    return keccak(rlp.encode([address, nonce]))[12:]


def signed(chain_id, kind, sender, nonce, gas, to, value, payload, fee, tip, extra=()):
    """The encoded transaction. `extra`: access list (types 1 and 2); blob fee and hashes (3);
    authorizations (4)."""
    number = TYPES[kind]
    if number == 0:
        fields = [nonce, fee, gas, to, value, payload]
        digest = keccak(rlp.encode([*fields, chain_id, 0, 0]))
        v, r, s = sender.key.sign_msg_hash(digest).vrs
        return rlp.encode([*fields, v + 35 + 2 * chain_id, r, s])
    if number == 1:
        fields = [chain_id, nonce, fee, gas, to, value, payload, *extra]
    else:
        extra = list(extra) if number == 2 else [[], *extra]
        fields = [chain_id, nonce, tip, fee, gas, to, value, payload, *extra]
    mark = bytes([number])
    v, r, s = sender.key.sign_msg_hash(keccak(mark + rlp.encode(fields))).vrs
    return mark + rlp.encode([*fields, v, r, s])


def authorization(chain_id, authority, target):
    digest = keccak(b"\x05" + rlp.encode([chain_id, target, authority.nonce]))
    v, r, s = authority.key.sign_msg_hash(digest).vrs
    authority.nonce += 1
    return [chain_id, target, authority.nonce - 1, v, r, s]


class Blobs:
    """A few blobs, whose slow proofs are made once."""

    def __init__(self, rng, count=2):
        blobs = [b"".join(b"\0" + rng.randbytes(31) for _ in range(4096)) for _ in range(count)]
        setup = ckzg.load_trusted_setup(TRUSTED_SETUP, 0)
        self.blobs = blobs
        self.commitments = [ckzg.blob_to_kzg_commitment(blob, setup) for blob in blobs]
        self.hashes = [bytes.fromhex(each[2:]) for each in self.named(self.commitments)]
        made = [ckzg.compute_cells_and_kzg_proofs(blob, setup) for blob in blobs]
        self.cells = [cells for cells, _ in made]
        self.cell_proofs = [proof for _, proofs in made for proof in proofs]

    @staticmethod
    def named(commitments):
        """The versioned hashes of commitments."""
        return ["0x01" + hashlib.sha256(each).hexdigest()[2:] for each in commitments]

    def wrapped(self, raw, count):
        """The pooled form with the first `count` blobs: the form of EIP-7594, which geth wants in
        every fork, and retrie from Osaka on by the clock."""
        proofs = self.cell_proofs[: 128 * count]
        form = [rlp.decode(raw[1:]), b"\x01", self.blobs[:count], self.commitments[:count], proofs]
        return b"\x03" + rlp.encode(form)


class Traffic:
    """The senders, their transactions, and which of them the canonical chain has."""

    def __init__(self, seed, rng, chain_id, blobs_from, roomy=False, senders=40):
        self.rng, self.chain_id, self.blobs_from = rng, chain_id, blobs_from
        self.room = ROOM if roomy else 1
        self.owner = account(f"devnet {seed} owner")
        self.senders = [account(f"devnet {seed} sender {n}") for n in range(senders)]
        # In geth's pool a sender of blob transactions cannot send others.
        self.blob_senders = [account(f"devnet {seed} blobs {n}") for n in range(4)]
        # These accounts delegate and never send.
        self.authorities = [account(f"devnet {seed} authority {n}") for n in range(8)]
        self.poor = account(f"devnet {seed} poor")
        self.blobs = Blobs(rng)
        self.waiting = {}
        self.sent, self.opened = Counter(), False
        self.token = created_at(self.owner.address, 0)
        self.store = created_at(self.owner.address, 1)

    def funded(self):
        people = [self.owner, *self.senders, *self.blob_senders, *self.authorities]
        return [person.address for person in people]

    def watched(self):
        """Addresses whose state is compared at the end."""
        system = [WITHDRAWAL_REQUESTS, CONSOLIDATION_REQUESTS, BLOCK_HASHES, DEPOSITS]
        system += [BUILDER_DEPOSITS, BUILDER_EXITS, FACTORY]
        return [*self.funded(), self.poor.address, self.token, self.store, *system]

    # -- making them ---------------------------------------------------------------------------

    def add(
        self, slot, kind, sender, what, to, value=0, payload=b"", gas=100_000, extra=None, blobs=0
    ):
        tip = self.rng.randrange(GWEI, 3 * GWEI)
        fee = 40 * GWEI
        if gas <= MOST_GAS:
            gas = min(gas * self.room, MOST_GAS)
        if what in ("access list", "dynamic fee") and extra is None:
            extra = [[]]
        raw = signed(
            self.chain_id,
            what,
            sender,
            sender.nonce,
            gas,
            to,
            value,
            payload,
            fee,
            tip,
            extra or (),
        )
        sent = self.blobs.wrapped(raw, blobs) if blobs else raw
        named = "0x" + keccak(raw).hex()
        made = Transaction(named, kind, sender, sender.nonce, slot, "0x" + sent.hex())
        sender.nonce += 1
        self.waiting[made.hash] = made
        self.sent[kind] += 1
        return made

    def opening(self, slot):
        """The first transactions: a token and a store, and tokens for all accounts."""
        self.opened = True
        token = contract("Token") + word(64) + word(128) + text_words("Devnet") + text_words("DEV")
        people = [person.address for person in self.senders]
        airdrop = invocation("airdrop(address[],uint256)", 64, 10**24, len(people), *people)
        return [
            self.add(slot, "deploy", self.owner, "legacy", b"", payload=token, gas=2_000_000),
            self.add(slot, "deploy", self.owner, "legacy", b"", payload=contract("KVStore"), gas=500_000),
            self.add(slot, "token", self.owner, "legacy", self.token, payload=airdrop, gas=5_000_000),
        ]  # fmt: skip

    def some(self, slot, fork, count, may_send):
        """`count` new transactions that are valid in this fork, from senders that `may_send`; fewer
        if too many are pending."""
        kinds = {"transfer": 30, "bad creation": 2, "selfdestruct": 2, "precompile": 6}
        kinds |= {"random code": 5}
        if self.opened:
            kinds |= {"token": 25, "store": 12, "deploy": 3, "reverts": 4, "out of gas": 3}
        if since(fork, self.blobs_from):
            kinds |= {"blob": 4}
        if since(fork, "prague"):
            kinds |= {"set code": 6, "withdrawal request": 1, "consolidation request": 1}
            kinds |= {"deposit": 1, "block hash": 2}
        if since(fork, "amsterdam"):
            kinds |= {"builder deposit": 1, "builder exit": 1, "factory": 3, "new opcodes": 4}
            kinds |= {"much gas": 1}
        in_flight = Counter(id(each.sender) for each in self.waiting.values())
        made = []
        for kind in self.rng.choices(list(kinds), weights=kinds.values(), k=count):
            crowd = self.blob_senders if kind == "blob" else self.senders
            free = [each for each in crowd if in_flight[id(each)] < IN_FLIGHT and may_send(each)]
            if free:
                sender = self.rng.choice(free)
                in_flight[id(sender)] += 1
                made.append(self.one(slot, kind, sender))
        return made

    def one(self, slot, kind, sender):
        rng = self.rng
        what = rng.choice(["legacy", "access list", "dynamic fee", "dynamic fee"])
        other = rng.choice(self.senders).address

        def send(to, **fields):
            return self.add(slot, kind, sender, fields.pop("what", what), to, **fields)

        if kind == "transfer":
            to = rng.choice([other, rng.randbytes(20), rng.choice(self.authorities).address])
            return send(to, value=rng.randrange(ETHER))
        if kind == "token":
            name = rng.choice(["transfer(address,uint256)"] * 3 + ["approve(address,uint256)"])
            accesses = [[[self.token, [word(rng.randrange(8))]]]]
            extra = accesses if what != "legacy" else None
            payload = invocation(name, other, rng.randrange(10**18))
            return send(self.token, payload=payload, extra=extra)
        if kind == "store":
            value = rng.choice([0, rng.randrange(2**256)])
            return send(
                self.store, payload=invocation("set(uint256,uint256)", rng.randrange(64), value)
            )
        if kind == "deploy":
            return send(b"", payload=contract("KVStore"), gas=500_000)
        if kind == "reverts":
            payload = invocation("transfer(address,uint256)", other, 10**30)
            return send(self.token, payload=payload, value=rng.choice([0, 1]))
        if kind == "out of gas":
            payload = invocation("set(uint256,uint256)", 10**6 + rng.randrange(10**6), 1)
            return send(self.store, payload=payload, gas=30_000 // self.room)
        if kind == "bad creation":
            # An invalid instruction; invalid code; a balance that is read and kept.
            code = rng.choice(["fe", "60ef60005360016000f3", "47600052602060006000f0"])
            return send(b"", payload=bytes.fromhex(code), value=rng.randrange(100))
        if kind == "selfdestruct":
            # During creation, to the caller or to itself.
            return send(
                b"",
                payload=bytes.fromhex(rng.choice(["33ff", "30ff"])),
                value=rng.randrange(1, 100),
            )
        if kind == "precompile":
            at = rng.choice([*range(1, 0x12), 0x100])
            return send(
                at.to_bytes(20, "big"), payload=rng.randbytes(rng.choice([32, 128, 160, 192, 213]))
            )
        if kind == "random code":
            return send(b"", payload=rng.randbytes(rng.randrange(4, 96)), gas=200_000)
        if kind == "blob":
            count = rng.randrange(1, len(self.blobs.blobs) + 1)
            extra = [10 * GWEI, self.blobs.hashes[:count]]
            return send(other, what="blob", value=1, extra=extra, blobs=count)
        if kind == "set code":
            target = rng.choice([self.store, self.token, bytes(20)])
            chosen = rng.sample(self.authorities, rng.randrange(1, 4))
            signatures = [authorization(self.chain_id, each, target) for each in chosen]
            payload = invocation("set(uint256,uint256)", rng.randrange(8), rng.randrange(2**64))
            to = chosen[0].address
            return send(to, what="set code", payload=payload, gas=300_000, extra=[signatures])
        if kind == "withdrawal request":
            payload = rng.randbytes(48) + rng.randrange(2**40).to_bytes(8, "big")
            return send(WITHDRAWAL_REQUESTS, payload=payload, value=10_000, gas=200_000)
        if kind == "consolidation request":
            return send(
                CONSOLIDATION_REQUESTS, payload=rng.randbytes(96), value=10_000, gas=300_000
            )
        if kind == "deposit":
            return send(DEPOSITS, payload=deposit(rng), value=ETHER, gas=200_000)
        if kind == "block hash":
            return send(BLOCK_HASHES, payload=word(rng.randrange(max(slot, 1))))
        if kind == "builder deposit":
            # Key, credentials, amount in gwei and signature; the rest of the value is the fee.
            payload = rng.randbytes(48 + 32) + GWEI.to_bytes(8, "big") + rng.randbytes(96)
            return send(BUILDER_DEPOSITS, payload=payload, value=ETHER + 10**6, gas=300_000)
        if kind == "builder exit":
            return send(BUILDER_EXITS, payload=rng.randbytes(48), value=10**6, gas=200_000)
        if kind == "factory":
            return send(FACTORY, payload=rng.randbytes(32) + contract("KVStore"), gas=500_000)
        if kind == "much gas":
            # A gas limit above 2^24, for state gas only (EIP-8037): a loop that writes 180 slots,
            # which a smaller limit cannot pay.
            code = bytes.fromhex("60b45b80805560019003806002575b00")
            return send(b"", payload=code, gas=rng.choice([18_000_000, 24_000_000]))
        if kind == "new opcodes":
            # Stores the slot number, or the result of DUPN, SWAPN or EXCHANGE with any operand on
            # forty words.
            moved = bytes(
                [*b"".join(b"\x60%c" % n for n in range(40)), rng.choice([0xE6, 0xE7, 0xE8])]
            )
            code = rng.choice([b"\x4b", moved + rng.randbytes(1)]) + b"\x5f\x55"
            return send(b"", payload=code, gas=200_000)
        raise AssertionError(kind)

    def refused(self, fork):
        """A transaction that no pool may accept, and the reason."""
        rng, sender = self.rng, self.rng.choice(self.senders)
        common = {"gas": 21_000, "to": bytes(19) + b"\x77", "value": 1, "payload": b""}
        common |= {"fee": 40 * GWEI, "tip": GWEI, "extra": [[]]}
        kinds = {
            "another chain": {"chain_id": self.chain_id + 1},
            "too little gas": {"gas": 20_999},
            "tip above fee": {"tip": 50 * GWEI},
            "no funds": {"sender": self.poor, "nonce": 0},
            "more than there is": {"value": 10**9 * ETHER},
            "more gas than a block": {"gas": 2**40},
        }
        if sender.nonce > IN_FLIGHT + 1:
            kinds["nonce of the past"] = {"nonce": 0}
        if since(fork, "shanghai"):
            # Some pools go by the clock, which is past all forks: these must be invalid in each
            # fork.
            longest = 49_152 if self.room == 1 else 131_072
            kinds["too much init code"] = {
                "to": b"",
                "payload": bytes(longest + 1),
                "gas": 10_000_000,
            }
        if since(fork, "osaka"):
            most = 2**24 if self.room == 1 else 2**32 - 1
            kinds["gas above that of a transaction"] = {"gas": most + 1}
        name = rng.choice(list(kinds))
        fields = {"chain_id": self.chain_id, "sender": sender, "nonce": sender.nonce} | common
        fields |= kinds[name]
        return name, "0x" + signed(kind="dynamic fee", **fields).hex()

    # -- following the chain -------------------------------------------------------------------

    @staticmethod
    def hash_of(raw):
        return "0x" + keccak(bytes.fromhex(raw.removeprefix("0x"))).hex()

    def switch(self, dropped, added, sent):
        """Records blocks that left and joined the canonical chain. `sent` has all our transactions."""
        for block in dropped:
            for each in block.transactions:
                if each in sent:
                    self.waiting[each] = sent[each]
        for block in added:
            for each in block.transactions:
                self.waiting.pop(each, None)

    def old(self, slot, age):
        """The transactions pending for `age` slots or longer, in nonce order."""
        late = [each for each in self.waiting.values() if slot - each.slot >= age]
        return sorted(late, key=lambda each: (each.sender.address, each.nonce))


def deposit(rng):
    """The input of a deposit of one ether, with the root that the deposit contract checks."""
    key, credentials, signature = rng.randbytes(48), rng.randbytes(32), rng.randbytes(96)

    def sha(*parts):
        return hashlib.sha256(b"".join(parts)).digest()

    amount = (ETHER // GWEI).to_bytes(8, "little")
    key_root = sha(key, bytes(16))
    signature_root = sha(sha(signature[:64]), sha(signature[64:], bytes(32)))
    root = sha(sha(key_root, credentials), sha(amount, bytes(24), signature_root))
    heads = word(128) + word(128 + 96) + word(128 + 96 + 64) + root
    tails = text_words(key) + text_words(credentials) + text_words(signature)
    return keccak(b"deposit(bytes,bytes,bytes,bytes32)")[:4] + heads + tails
