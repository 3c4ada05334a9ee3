"""Peers that serve block sync. The node is at genesis and syncs to a named head. The hostile peers
are its first peers, except in the last behaviour; honest ones connect a moment later."""

import os
import time

from attack import behaviour, claims
from connections import hold
from rlp import Raw, decode, encode
from wire import BODIES, GET_BODIES, GET_HEADERS, HEADERS, Closed, keccak

# Just below the time after which the node asks another peer, and just below the response timeout.
NEARLY_LATE, NEARLY_NEVER = 1.8, 14


class Server:
    """Serves the chain; a behaviour overrides a method."""

    def __init__(self, attack):
        self.attack, self.chain = attack, attack.chain

    def __call__(self, session, id, payload):
        if id not in (GET_HEADERS, GET_BODIES):
            return
        number, asked = decode(payload)
        if id == GET_HEADERS:
            found = self.headers([asked[0], *asked[1:3], bool(asked[3])])
        else:
            found = self.bodies(asked)
        if found is not None:
            answer = HEADERS if id == GET_HEADERS else BODIES
            self.send(session, answer, encode([number, found]))

    def headers(self, request):
        return self.chain.headers_for(request)

    def bodies(self, hashes):
        return self.chain.bodies_for(hashes)

    def send(self, session, id, payload):
        session.send(id, payload)


def serve(attack, server):
    more = {"answer": server(attack), "status": claims(attack.chain)}
    attack.again(lambda session: wait_for(attack, session), **more)


def wait_for(attack, session):
    while attack.goes_on() and not session.over:
        attack.wait(0.1)


@behaviour("sync")
def dripped_headers(attack):
    """Returns one header each time, 1.8 s later."""

    class Dripping(Server):
        def headers(self, request):
            time.sleep(NEARLY_LATE)
            return self.chain.headers_for(request, most=1)

    serve(attack, Dripping)


@behaviour("sync")
def late_headers(attack):
    """Returns all headers, 1.8 s later."""

    class Late(Server):
        def headers(self, request):
            time.sleep(NEARLY_LATE)
            return self.chain.headers_for(request)

    serve(attack, Late)


@behaviour("sync")
def withheld_headers(attack):
    """Never answers header requests."""

    class Silent(Server):
        def headers(self, request):
            return None

    serve(attack, Silent)


@behaviour("sync")
def denied_headers(attack):
    """Claims to have all blocks, and returns none."""

    class Empty(Server):
        def headers(self, request):
            return []

        def bodies(self, hashes):
            return []

    serve(attack, Empty)


@behaviour("sync")
def forged_headers(attack):
    """Answers requests by number with headers of a branch of its own."""

    class Forging(Server):
        def headers(self, request):
            found = self.chain.headers_for(request)
            return found if len(request[0]) == 32 or not found else self.forged(found)

        def forged(self, found):
            parent, made = os.urandom(32), []
            for header in reversed(found):
                fields = decode(header.encoded)
                fields[0] = parent
                raw = encode(fields)
                parent = keccak(raw)
                made.append(Raw(raw))
            return made[::-1]

    serve(attack, Forging)


@behaviour("sync")
def dripped_bodies(attack):
    """Returns one body each time, 1.8 s later."""

    class Dripping(Server):
        def bodies(self, hashes):
            time.sleep(NEARLY_LATE)
            return self.chain.bodies_for(hashes, most=1)

    serve(attack, Dripping)


@behaviour("sync")
def late_bodies(attack):
    """Returns all bodies, 14 s later."""

    class Late(Server):
        def bodies(self, hashes):
            time.sleep(NEARLY_NEVER)
            return self.chain.bodies_for(hashes)

    serve(attack, Late)


@behaviour("sync")
def dripped_answers(attack):
    """Sends its responses a few bytes at a time."""

    class Dripping(Server):
        def send(self, session, id, payload):
            with session.lock:
                frame = session.frame(id, payload)
                for at in range(0, len(frame), 64):
                    session.write(frame[at : at + 64])
                    time.sleep(0.02)

    serve(attack, Dripping)


@behaviour("sync")
def broken_answers(attack):
    """Disconnects in the middle of each response, and reconnects."""

    class Leaving(Server):
        def send(self, session, id, payload):
            with session.lock:
                frame = session.frame(id, payload)
                session.write(frame[: len(frame) // 2])
            session.close()
            session.over = session.over or Closed("it has left")

    serve(attack, Leaving)


@behaviour("sync", peers=2, backend="cole", files=1_024, comes_later=True)
def idle_connections_of_a_store(attack):
    """Holds a thousand idle connections to a node on cole, which may open 1,024 files."""
    hold(attack, attack.ports, 500)
