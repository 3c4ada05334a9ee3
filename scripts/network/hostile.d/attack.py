"""A behaviour of hostile peers, and what it gets: sessions with the node, the time left, and
counters. Each hostile peer is a process of its own."""

import ctypes
import multiprocessing
import os
import threading
import time

from rlp import encode
from wire import DISCONNECT, EMPTY, PING, PONG, Closed, Session, reason

BEHAVIOURS = {}


class Behaviour:
    """`act` is called with an `Attack`, in `peers` processes. `place` is the setup of the attacked
    node (see `scripts/network/hostile`)."""

    def __init__(self, name, act, place, peers, **more):
        self.name, self.act, self.place, self.peers = name, act, place, peers
        self.about = act.__doc__.strip().splitlines()[0]
        # Whether a gossiped transaction must reach the pool, whatever it is.
        self.passes_on = more.pop("passes_on", place != "sync")
        self.backend = more.pop("backend", "mpt")
        # Whether honest peers connect before hostile ones: always, unless the node syncs.
        self.comes_later = more.pop("comes_later", place != "sync")
        # Limit of open files of the node.
        self.files = more.pop("files", None)
        assert not more, more


def behaviour(place, peers=3, **more):
    def register(act):
        name = act.__name__.replace("_", "-")
        BEHAVIOURS[name] = Behaviour(name, act, place, peers, **more)
        return act

    return register


class Counters:
    """Counters of all processes of an attack."""

    NAMES = ("messages", "kilobytes", "connections", "refused", "ended")

    def __init__(self):
        self.values = multiprocessing.Array(ctypes.c_longlong, len(self.NAMES))

    def add(self, name, count=1):
        with self.values.get_lock():
            self.values[self.NAMES.index(name)] += count

    def __str__(self):
        said = dict(zip(self.NAMES, self.values))
        parts = [f"{said['messages']} messages of {said['kilobytes'] / 1024:.0f} MiB"]
        parts.append(f"{said['connections']} connections")
        parts += [f"{said[name]} {name}" for name in ("refused", "ended") if said[name]]
        return ", ".join(parts)


class HostileSession(Session):
    """A session that counts what it sends. A thread reads messages, unless reading is off, and
    passes them to `answer`, which may be slow. Without `answer`, the thread answers the node's
    pings."""

    def __init__(self, attack, reads=True, answer=None, **more):
        self.attack, self.answer, self.over = attack, answer, None
        super().__init__(attack.enode, **more)
        if reads:
            threading.Thread(target=self.keep_reading, daemon=True).start()

    def keep_reading(self):
        try:
            while True:
                id, payload = self.receive(timeout=600)
                if id == DISCONNECT:
                    raise Closed(f"disconnected: {reason(payload)}")
                if id == PING:
                    self.send(PONG, EMPTY)
                elif self.answer:
                    self.answer(self, id, payload)
        except Closed as error:
            self.over = self.over or error
            self.close()

    def write(self, data):
        if self.over:
            raise self.over
        super().write(data)
        self.attack.counters.add("messages")
        self.attack.counters.add("kilobytes", -(-len(data) // 1024))

    def say(self, id, *fields):
        self.send(id, encode(list(fields)))


class Attack:
    """What one hostile peer can use."""

    def __init__(self, target, index, seconds, counters):
        self.enode, self.chain, self.chain_id = target["enode"], target["chain"], target["chain_id"]
        self.ports, self.state = target["ports"], target["state"]
        self.index, self.counters = index, counters
        self.until = time.monotonic() + seconds

    def goes_on(self):
        return time.monotonic() < self.until

    def wait(self, seconds=None):
        """Waits this long, or until the end of the attack."""
        left = self.until - time.monotonic()
        time.sleep(max(0, left if seconds is None else min(seconds, left)))

    def connect(self, **more):
        try:
            session = HostileSession(self, **more)
        except Closed:
            self.counters.add("refused")
            raise
        self.counters.add("connections")
        return session

    def again(self, act, pause=0.05, **more):
        """Calls `act` with a new session, and with another one whenever the node disconnects."""
        while self.goes_on():
            try:
                session = self.connect(**more)
                try:
                    act(session)
                finally:
                    session.close()
            except Closed:
                self.counters.add("ended")
                time.sleep(pause)


def claims(chain):
    """A status that claims to have the whole chain."""

    def status(ours):
        ours[4:7] = [0, chain.head, chain.hash(chain.head)]
        return ours

    return status


def run(behaviour, target, index, seconds, counters):
    # In reality the attacker has a machine of its own: it must not take the node's time.
    os.nice(10)
    try:
        behaviour.act(Attack(target, index, seconds, counters))
    except (Closed, KeyboardInterrupt):
        pass
    # Threads that still answer end with the process.
    os._exit(0)


def start(behaviour, target, seconds):
    """The running processes, and their counters."""
    counters, fork = Counters(), multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=run, args=(behaviour, target, index, seconds, counters), daemon=True)
        for index in range(behaviour.peers)
    ]
    for process in processes:
        process.start()
    return processes, counters
