"""What a behaviour of hostile peers is, and what it is given to act: sessions with the node, the time
that is left, and counters. Each hostile peer is a process of its own."""

import ctypes
import multiprocessing
import os
import threading
import time

from rlp import encode
from wire import DISCONNECT, EMPTY, PING, PONG, Closed, Session, reason

BEHAVIOURS = {}


class Behaviour:
    """`act` is called with an `Attack`, in as many processes as there are `peers`. `place` says of what
    the node that is attacked consists (see `p2p-hostile`)."""

    def __init__(self, name, act, place, peers, **more):
        self.name, self.act, self.place, self.peers = name, act, place, peers
        self.about = act.__doc__.strip().splitlines()[0]
        # Whether a transaction that was passed on comes to the pool all the same, whatever it is.
        self.passes_on = more.pop("passes_on", place != "sync")
        self.backend = more.pop("backend", "mpt")
        # Whether honest peers are there before hostile ones are: always where nothing is synced.
        self.comes_later = more.pop("comes_later", place != "sync")
        # Files that the node may open.
        self.files = more.pop("files", None)
        assert not more, more


def behaviour(place, peers=3, **more):
    def register(act):
        name = act.__name__.replace("_", "-")
        BEHAVIOURS[name] = Behaviour(name, act, place, peers, **more)
        return act

    return register


class Counters:
    """What all processes of an attack have done together."""

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
    """A session that counts what it sends; a thread reads what comes, unless it shall not be read, and
    gives messages to `answer`, which may be slow. Without one, the node's pings are answered."""

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
    """One hostile peer's means."""

    def __init__(self, target, index, seconds, counters):
        self.enode, self.chain, self.chain_id = target["enode"], target["chain"], target["chain_id"]
        self.ports, self.state = target["ports"], target["state"]
        self.index, self.counters = index, counters
        self.until = time.monotonic() + seconds

    def goes_on(self):
        return time.monotonic() < self.until

    def wait(self, seconds=None):
        """Waits so long, or to the end of the attack."""
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
        """Calls `act` with a new session, and with another one when the node has ended that."""
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
    """A status that says that all of the chain is here."""

    def status(ours):
        ours[4:7] = [0, chain.head, chain.hash(chain.head)]
        return ours

    return status


def run(behaviour, target, index, seconds, counters):
    # The attacker's machine is another one: it must not take the node's time on this.
    os.nice(10)
    try:
        behaviour.act(Attack(target, index, seconds, counters))
    except (Closed, KeyboardInterrupt):
        pass
    # Threads that still answer end with the process.
    os._exit(0)


def start(behaviour, target, seconds):
    """The processes, at work, and their counters."""
    counters, fork = Counters(), multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=run, args=(behaviour, target, index, seconds, counters), daemon=True)
        for index in range(behaviour.peers)
    ]
    for process in processes:
        process.start()
    return processes, counters
