"""Shared by the scripts that use the methods of Otterscan: a dev node with the index of addresses, and
a chain with creations, transfers within calls, a SELFDESTRUCT, a revert, and a long history.
"""

from types import SimpleNamespace

import nodekit
from nodekit import RpcError, fail

# Passes its value on to the account that its input names.
FORWARDER = "5f5f5f5f345f355af100"
# Creates a contract of its input, by CREATE.
FACTORY = "365f5f37365f5ff000"
# Runtime code that returns at once, and initialisation code that destroys its contract at once.
NOTHING, SHORT_LIVED = "00", "33ff"
REASON = "no funds"
TARGET = "0x" + "77" * 20
ETHER = 10**18
# Most transactions of one sender that the pool holds.
MOST_PENDING = 16


def word(value):
    return f"{value:064x}"


def reverter():
    """Code that reverts with `Error(REASON)`."""
    text = REASON.encode().ljust(32, b"\0").hex()
    data = "08c379a0" + word(32) + word(len(REASON)) + text
    return f"60{len(data) // 2:02x}600a5f3960{len(data) // 2:02x}5ffd" + data


def initial(code):
    """Initialisation code that returns `code`."""
    size = f"{len(code) // 2:02x}"
    return f"60{size}600c60003960{size}6000f3" + code


def dev_node(backend, folder, programs, flags=()):
    """A dev node that serves `ots` and keeps the index; not started."""
    flags = ["--index.addresses", *flags]
    node = nodekit.make_node(f"retrie:{backend}", backend, folder, None, programs, flags, native=True)
    node.APIS += ",ots"
    return node


class Chain:
    """Makes blocks of a dev node with the transactions that it is told, and no others."""

    def __init__(self, rpc):
        self.rpc = rpc
        self.accounts = rpc.call("eth_accounts")
        rpc.call("evm_setAutomine", False)

    def block(self, *calls):
        """Seals a block of transactions, each of (sender, to, value, input); `to` is None for a
        creation. Returns their receipts."""
        hashes = []
        for sender, to, value, data in calls:
            request = {"from": sender, "value": hex(value), "data": "0x" + data, "gas": hex(500_000)}
            hashes.append(self.rpc.call("eth_sendTransaction", request | ({"to": to} if to else {})))
        self.rpc.call("evm_mine")
        receipts = [self.rpc.call("eth_getTransactionReceipt", each) for each in hashes]
        if None in receipts or len({each["blockNumber"] for each in receipts}) > 1:
            fail("the node has not put all transactions into one block")
        return receipts


def make_scene(rpc, payments=40, busy=0):
    """The chain. Then come `payments` blocks with a transfer to TARGET each, and if `busy` is given a
    block with as many transfers through the forwarder."""
    chain = Chain(rpc)
    one, two, three, *others = chain.accounts
    deployed = chain.block(
        (one, None, 0, initial(FORWARDER)),
        (one, None, 0, initial(FACTORY)),
        (one, None, 0, initial(reverter())),
    )
    forwarder, factory, refuser = (each["contractAddress"] for each in deployed)
    target = TARGET.removeprefix("0x").zfill(64)
    forwarded, created, short_lived, refused = chain.block(
        (two, forwarder, 2 * ETHER, target),
        (three, factory, 0, initial(NOTHING)),
        (three, factory, 0, SHORT_LIVED),
        (two, refuser, 0, ""),
    )
    found = rpc.call("ots_getInternalOperations", created["transactionHash"])
    child = found[0]["to"]
    paid = [chain.block((one, TARGET, ETHER, ""))[0] for _ in range(payments)]
    crowd = None
    if busy:
        if busy > MOST_PENDING * len(others):
            fail(f"at most {MOST_PENDING * len(others)} transactions fit into the pool")
        crowd = chain.block(
            *((others[at % len(others)], forwarder, 1, target) for at in range(busy))
        )
    return SimpleNamespace(
        forwarder=forwarder, factory=factory, child=child, deployed=deployed, forwarded=forwarded,
        created=created, short_lived=short_lived, refused=refused, paid=paid, crowd=crowd,
        senders=(one, two, three),
    )  # fmt: skip


def wait_for_index(rpc):
    """Waits until the index has all blocks but those that are not durable."""

    def is_whole():
        try:
            page = rpc.call("ots_searchTransactionsBefore", TARGET, 0, 1)
        except RpcError:
            return False
        return "indexedFrom" not in page

    nodekit.wait_until("the index of addresses is not whole", 60, is_whole, pause=0.2)
