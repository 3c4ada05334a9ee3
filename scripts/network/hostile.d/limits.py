"""Requests at their size limits, at the rate that the connection takes."""

import os

from attack import behaviour
from floods import forever
from rlp import encode
from wire import (
    GET_ACCESS_LISTS, GET_BODIES, GET_CHUNKS, GET_CODES, GET_HEADERS, GET_POOLED, GET_RECEIPTS,
)  # fmt: skip


def hashes(attack):
    """The topmost blocks, as many as one response holds."""
    chain = attack.chain
    return [chain.hash(number) for number in range(max(1, chain.head - 1_023), chain.head + 1)]


def messages(attack):
    """A request of each kind whose response has the maximum size."""
    chain, all = attack.chain, hashes(attack)
    return {
        "headers": (GET_HEADERS, [1, [chain.hash(chain.head), 1_024, 0, 1]]),
        "sparse headers": (GET_HEADERS, [2, [chain.hash(chain.head), 1_024, 1, 1]]),
        "bodies": (GET_BODIES, [3, all]),
        "receipts": (GET_RECEIPTS, [4, 0, all]),
        "access lists": (GET_ACCESS_LISTS, [5, all]),
        "transactions": (GET_POOLED, [6, [os.urandom(32) for _ in range(4_096)]]),
    }


def flood(attack, kinds, **more):
    made = messages(attack)
    frames = [(made[kind][0], encode(made[kind][1])) for kind in kinds]

    def once(session, at=[0]):
        at[0] += 1
        session.send(*frames[at[0] % len(frames)])

    attack.again(forever(attack, once), **more)


@behaviour("chain", peers=4)
def header_requests(attack):
    """Requests 1,024 headers downwards, with and without gaps."""
    flood(attack, ["headers", "sparse headers"])


@behaviour("chain", peers=4)
def body_requests(attack):
    """Requests 1,024 bodies."""
    flood(attack, ["bodies"])


@behaviour("chain", peers=4)
def receipt_requests(attack):
    """Requests the receipts of 1,024 blocks."""
    flood(attack, ["receipts"])


@behaviour("chain", peers=4)
def pooled_requests(attack):
    """Requests 4,096 unknown transactions."""
    flood(attack, ["transactions"])


@behaviour("chain", peers=4)
def access_list_requests(attack):
    """Requests the access lists of 1,024 blocks."""
    flood(attack, ["access lists"])


@behaviour("chain", peers=8)
def all_requests(attack):
    """Sends requests of every kind in turns."""
    flood(attack, list(messages(attack)))


@behaviour("chain", peers=8)
def unread_answers(attack):
    """Sends requests of every kind and never reads its socket."""
    flood(attack, list(messages(attack)), reads=False)


@behaviour("state", peers=8)
def chunk_requests(attack):
    """If the node serves states: requests chunks of a large state and of large contracts in turns,
    existing or not, and codes."""
    state, wait = attack.state, attack.wait
    accounts = [b"\x00\x00\xa0" + root for root in (state["root"], os.urandom(32))]
    slots = [b"\x01" + at + b"\x00\xa0" + root for at, root in state["contracts"]]
    chunks = [encode([1, b"mpt", state["head"], ids]) for ids in (accounts, slots * 4)]
    codes = encode([2, [os.urandom(32) for _ in range(1_024)]])

    def act(session):
        if ("rchk", 1) not in session.capabilities:
            return wait()
        while attack.goes_on():
            for message in chunks:
                session.send(GET_CHUNKS, message)
            session.send(GET_CODES, codes)

    attack.again(act, extra=[("rchk", 1)])
