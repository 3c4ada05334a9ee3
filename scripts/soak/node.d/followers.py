"""Nodes that sync from the soaked node over devp2p, and are stopped or killed now and then."""

import random
import threading
import time
from collections import Counter

from nodekit import fail

BEHIND = ("SYNCING", "ACCEPTED", "VALID")
# Seconds between two heads that a follower is told, and for it to be away.
TOLD_EVERY, LONGEST_AWAY = 8, 20
# Seconds for it to reach a head before it is told a newer one, and to reach any.
HEAD_LIMIT, REACH_LIMIT = 10, 90


class Follower(threading.Thread):
    """A node whose only peer is the soaked one. It is told only heads, and far apart, as by a
    consensus client that lags: it gets the blocks between from its peer."""

    def __init__(self, node, network, enode, lifetime, seed):
        super().__init__(name=node.name, daemon=True)
        self.node, self.network, self.enode = node, network, enode
        self.lifetime, self.rng = lifetime, random.Random(f"{seed} {node.name}")
        self.done = threading.Event()
        self.counts, self.slowest, self.trouble = Counter(), 0.0, None

    def run(self):
        try:
            while not self.done.is_set():
                self.live()
        except (Exception, SystemExit) as error:
            self.trouble = f"{self.node.name}: {type(error).__name__}: {error}"
        finally:
            self.node.stop(kill=True)

    def live(self):
        """From a start to the next end."""
        until = time.monotonic() + self.rng.uniform(0.5, 1.5) * self.lifetime
        self.node.start()
        self.node.rpc.call("admin_addPeer", self.enode)
        while time.monotonic() < until and not self.done.is_set():
            self.follow()
            self.done.wait(TOLD_EVERY)
        if self.done.is_set():
            self.follow()
        manner = self.rng.choice(["stopped", "killed"]) if not self.done.is_set() else "stopped"
        code = self.node.stop(kill=manner == "killed")
        if manner == "stopped" and code != 0:
            fail(f"exit code {code} after SIGTERM")
        self.counts["ended" if self.done.is_set() else manner] += 1
        self.done.wait(self.rng.uniform(0, LONGEST_AWAY))

    def follow(self):
        """Tells the node heads until it has reached one."""
        began = time.monotonic()
        while True:
            head = self.network.head
            if head.number == 0:
                return
            told = time.monotonic()
            self.network.new_payload(self.node, head.payload, "newPayload of a follower", BEHIND)
            while time.monotonic() - told < HEAD_LIMIT:
                answer = self.network.forkchoice(self.node, head, wanted=BEHIND)
                if answer["payloadStatus"]["status"] == "VALID":
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.counts["heads reached"] += 1
                    return
                time.sleep(0.25)
            if time.monotonic() - began > REACH_LIMIT:
                at = int(self.node.rpc.call("eth_blockNumber"), 16)
                fail(f"is at block {at} after {REACH_LIMIT} s; the head is {head.number}")

    def finish(self):
        """Ends it at the head; returns what went wrong, or None."""
        self.done.set()
        self.join(2 * REACH_LIMIT)
        if self.is_alive():
            return f"{self.node.name} does not end"
        return self.trouble
