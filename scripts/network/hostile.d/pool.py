"""Attacks that cost the pool more than their sender. The setup `pool` is a node at an Osaka
genesis."""

import os
import random

from attack import behaviour
from floods import forever
from made import Authorizations, ZeroBlobs, dynamic_fee, stranger_key
from rlp import Raw, decode, encode
from wire import ANNOUNCE, GET_POOLED, POOLED, TRANSACTIONS, keccak

# Keys with ether in the pool's genesis; four are honest.
FUNDED = [stranger_key(f"funded {n}") for n in range(300)]
HONEST = 4


def keys_of(attack, count):
    """Keys that no other hostile peer of this attack has."""
    begin = HONEST + attack.index * count
    return FUNDED[begin : begin + count]


class Feeder:
    """Announces its transactions and serves them on request; `bend` changes what it serves."""

    def __init__(self, have, bend=lambda raw: raw, gives=None):
        self.have, self.bend, self.gives = have, bend, gives

    def __call__(self, session, id, payload):
        if id != GET_POOLED:
            return
        number, asked = decode(payload)
        found = [Raw(encode(self.bend(self.have[hash]))) for hash in asked if hash in self.have]
        session.send(POOLED, encode([number, found if self.gives is None else self.gives]))

    def announce(self, session, size=len, kind=lambda raw: raw[0]):
        for at in range(0, len(self.have), 256):
            some = list(self.have.items())[at : at + 256]
            kinds = bytes(kind(raw) for _, raw in some)
            session.say(ANNOUNCE, kinds, [size(raw) for _, raw in some], [hash for hash, _ in some])


def blobs_of(attack, keys, each, has_cells=True, fee=100 * 10**9):
    made, blobs = {}, ZeroBlobs()
    for nonce in range(each):
        for key in keys:
            made.update([blobs.transaction(key, attack.chain_id, nonce, fee=fee, has_cells=has_cells)])
    return made


def feed(attack, feeder, **more):
    """Announces all of them, and waits for requests."""

    def act(session):
        feeder.announce(session, **more)
        attack.wait()

    attack.again(act, answer=feeder)


@behaviour("pool", peers=6)
def blobs(attack):
    """Serves hundreds of transactions with six blobs each, faster than the node can verify them."""
    feed(attack, Feeder(blobs_of(attack, keys_of(attack, 16), 16)))


@behaviour("pool", peers=6)
def poor_blobs(attack):
    """The same with transactions that no pool has room for: they pay almost nothing."""
    feed(attack, Feeder(blobs_of(attack, keys_of(attack, 16), 16, fee=10**9 + 7)))


@behaviour("pool")
def old_blobs(attack):
    """Serves blob transactions in the form before Osaka."""
    feed(attack, Feeder(blobs_of(attack, keys_of(attack, 16), 4, has_cells=False)))


@behaviour("pool")
def broken_blobs(attack):
    """Serves transactions with a changed byte in a blob, commitment or proof, and reconnects."""

    def bend(raw):
        at = random.randrange(400, len(raw))
        return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]

    feed(attack, Feeder(blobs_of(attack, keys_of(attack, 16), 4), bend=bend))


def announced(attack, count=4_096):
    """Random hashes, announced as transactions of 200 bytes."""
    return {keccak(os.urandom(8)): b"\x02" + bytes(199) for _ in range(count)}


@behaviour("pool", peers=6)
def never_given(attack):
    """Announces transactions and never answers requests for them."""

    def act(session):
        feeder = Feeder(announced(attack))
        while attack.goes_on():
            feeder.announce(session)
            attack.wait(1)

    attack.again(act)


@behaviour("pool", peers=6)
def given_empty(attack):
    """Announces transactions and has none of them."""
    feed(attack, Feeder(announced(attack), gives=[]))


@behaviour("pool")
def other_sizes(attack):
    """Announces transactions with wrong sizes and types."""
    keys = keys_of(attack, 16)

    def act(session):
        made = dict(dynamic_fee(key, attack.chain_id, 50_000, data=os.urandom(64)) for key in keys)
        feeder = Feeder(made)
        session.answer = feeder
        feeder.announce(session, size=lambda raw: 100_000, kind=lambda raw: 3)
        attack.wait(1)

    attack.again(act)


@behaviour("pool")
def other_transactions(attack):
    """Serves another transaction than the requested one."""
    made = announced(attack, 256)
    other = dynamic_fee(keys_of(attack, 1)[0], attack.chain_id, 60_000)[1]
    feed(attack, Feeder(made, bend=lambda raw: other))


@behaviour("pool", peers=6)
def authorizations(attack):
    """Sends underpriced replacements, each with 600 signed authorizations (EIP-7702)."""
    key, made = keys_of(attack, 1)[0], Authorizations(attack.chain_id)

    def act(session):
        session.send(TRANSACTIONS, encode([made.transaction(key, 0, 10**9)[1]]))
        for fee in range(10**7, 10**8):
            if not attack.goes_on():
                return
            low = [made.transaction(key, 0, 15 * fee + n)[1] for n in range(15)]
            session.send(TRANSACTIONS, encode(low))

    attack.again(act)


@behaviour("pool")
def replacements(attack):
    """Sends the same transactions repeatedly, each time with a slightly higher fee."""
    keys = keys_of(attack, 16)

    def once(session, fee=[10**10]):
        fee[0] += fee[0] // 100
        made = [dynamic_fee(key, attack.chain_id, 0, fee=fee[0])[1] for key in keys]
        session.send(TRANSACTIONS, encode(made))
        if fee[0] > 10**14:
            fee[0] = 10**10

    attack.again(forever(attack, once))
