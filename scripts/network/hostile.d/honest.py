"""Honest peers, which record the node's response times."""

import threading
import time

from made import dynamic_fee
from rlp import Raw, decode, encode
from wire import (
    ANNOUNCE, BODIES, DISCONNECT, EMPTY, GET_BODIES, GET_HEADERS, GET_POOLED, HEADERS, PING, POOLED,
    PONG, TRANSACTIONS, Closed, Session, random_key, reason,
)  # fmt: skip

# Seconds between the pings, requests and transactions of a peer, and how long it tries to connect.
PACE, PATIENCE = 1.0, 20


class HonestPeer:
    """Pings, asks for headers and sends a transaction every second, and serves `chain` if it has one.
    `sender` is the key and next nonce of its transactions, if it sends any."""

    def __init__(self, enode, chain, sender, chain_id, highest):
        self.enode, self.chain, self.chain_id, self.highest = enode, chain, chain_id, highest
        self.sender, self.nonce = sender or (None, 0)
        self.key = random_key()
        self.latencies = {"ping": [], "headers": []}
        self.waiting, self.sent = {}, {}
        self.lost, self.is_over = None, False
        self.session = self.keep_connecting()
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.read, self.act)]
        for thread in self.threads:
            thread.start()

    def connect(self):
        def status(ours):
            if self.chain:
                ours[4:7] = [0, self.chain.head, self.chain.hash(self.chain.head)]
            return ours

        return Session(self.enode, key=self.key, name="honest/1", status=status)

    def keep_connecting(self):
        """A rejected peer dials again."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.connect()
            except Closed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.25)

    def read(self):
        try:
            while True:
                self.take(*self.session.receive(timeout=600))
        except Closed as error:
            if not self.is_over:
                self.lost = self.lost or str(error)

    def take(self, id, payload):
        if id == PONG:
            self.answered("ping")
        elif id == HEADERS:
            self.answered("headers")
        elif id == PING:
            self.session.send(PONG, EMPTY)
        elif id == DISCONNECT:
            raise Closed(f"disconnected: {reason(payload)}")
        elif id in (GET_HEADERS, GET_BODIES, GET_POOLED):
            number, *asked = decode(payload)
            answer, found = self.answer(id, asked)
            self.session.send(answer, encode([number, found]))

    def answer(self, id, asked):
        if id == GET_POOLED:
            return POOLED, [Raw(encode(self.sent[hash])) for hash in asked[0] if hash in self.sent]
        if id == GET_HEADERS:
            request = [asked[0][0], *asked[0][1:3], bool(asked[0][3])]
            return HEADERS, self.chain.headers_for(request) if self.chain else []
        return BODIES, self.chain.bodies_for(asked[0]) if self.chain else []

    def answered(self, what):
        since = self.waiting.pop(what, None)
        if since:
            self.latencies[what].append(time.monotonic() - since)

    def act(self):
        try:
            while not self.is_over:
                self.once()
                time.sleep(PACE)
        except Closed:
            # The reader thread has the reason.
            pass

    def once(self):
        if "ping" not in self.waiting:
            self.waiting["ping"] = time.monotonic()
            self.session.send(PING, EMPTY)
        if "headers" not in self.waiting:
            self.waiting["headers"] = time.monotonic()
            self.session.send(GET_HEADERS, encode([1, [self.highest // 2, 16, 0, 0]]))
        if self.sender:
            hash, raw = dynamic_fee(self.sender, self.chain_id, self.nonce)
            self.nonce += 1
            self.sent[hash] = raw
            # In turns whole and by hash, as peers do.
            if self.nonce % 2:
                self.session.send(TRANSACTIONS, encode([raw]))
            else:
                self.session.send(ANNOUNCE, encode([bytes([2]), [len(raw)], [hash]]))

    def end(self):
        """Stops it. A pending request counts with its time so far."""
        self.is_over = True
        for what, since in list(self.waiting.items()):
            waited = time.monotonic() - since
            # A request that was just sent says nothing.
            if waited > PACE / 2:
                self.latencies[what].append(waited)
        self.session.close()
        for thread in self.threads:
            thread.join(5)

    def is_banned(self):
        """Checks that the node takes the peer back; returns a reason if not, else None."""
        for _ in range(20):
            try:
                self.connect().close()
                return None
            except Closed as error:
                why = str(error)
            # The node may not have noticed the end of the last connection.
            time.sleep(0.25)
        return why
