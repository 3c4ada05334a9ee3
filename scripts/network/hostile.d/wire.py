"""A devp2p client that sends what its caller wants: RLPx (EIP-8, EIP-706), hello, and the status of
eth/69 to eth/71; rchk/1 on request (its bytes: docs/network.md).
"""

import hashlib
import hmac
import os
import socket
import struct
import threading

import coincurve
import cramjam
from Crypto.Cipher import AES
from Crypto.Hash import keccak as _keccak

from rlp import decode, encode, number

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
HELLO, DISCONNECT, PING, PONG = range(4)
# Messages of eth, from 0x10 on.
STATUS, TRANSACTIONS, GET_HEADERS, HEADERS, GET_BODIES, BODIES = 0x10, 0x12, 0x13, 0x14, 0x15, 0x16
ANNOUNCE, GET_POOLED, POOLED, GET_RECEIPTS, RECEIPTS = 0x18, 0x19, 0x1A, 0x1F, 0x20
RANGE, GET_ACCESS_LISTS, ACCESS_LISTS = 0x21, 0x22, 0x23
# Messages of rchk, from the first free id after eth/71.
GET_CHUNKS, GET_CODES = 0x24, 0x26
EMPTY = b"\xc0"
ETH = [("eth", 69), ("eth", 70), ("eth", 71)]


class Closed(Exception):
    """The node has closed or refused the connection; has the reason."""


def keccak(*parts):
    digest = _keccak.new(digest_bits=256)
    for part in parts:
        digest.update(part)
    return digest.digest()


def random_key():
    return coincurve.PrivateKey()


def public(key):
    return key.public_key.format(compressed=False)[1:]


def address(key):
    return keccak(public(key))[12:]


def shared(key, other):
    """The x-coordinate of the product of a private and a public key."""
    point = coincurve.PublicKey(b"\x04" + other).multiply(key.secret)
    return point.format(compressed=False)[1:33]


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other))


def stream(key, iv):
    return AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=iv)


def ecies_keys(secret):
    derived = hashlib.sha256(struct.pack(">I", 1) + secret).digest()
    return derived[:16], hashlib.sha256(derived[16:]).digest()


def seal(to, text, known):
    key, iv = random_key(), os.urandom(16)
    cipher, mac = ecies_keys(shared(key, to))
    body = iv + stream(cipher, iv).encrypt(text)
    tag = hmac.new(mac, body + known, hashlib.sha256).digest()
    return b"\x04" + public(key) + body + tag


def unseal(key, sealed):
    cipher, _ = ecies_keys(shared(key, sealed[1:65]))
    return stream(cipher, sealed[65:81]).decrypt(sealed[81:-32])


class FrameMac:
    def __init__(self, key, seed):
        self.state = _keccak.new(digest_bits=256, update_after_digest=True, data=seed)
        self.cipher = AES.new(key, AES.MODE_ECB)

    def digest(self):
        return self.state.digest()[:16]

    def mix(self, block):
        self.state.update(xor(self.cipher.encrypt(self.digest()), block))
        return self.digest()


def parse_enode(url):
    key, place = url.removeprefix("enode://").split("@")
    host, port = place.split("?")[0].rsplit(":", 1)
    return host, int(port), bytes.fromhex(key)


class Session:
    """A connection with a node after hello and status. `status` changes our status, which otherwise
    equals the node's. Several threads may send, one may read."""

    def __init__(self, enode, key=None, extra=(), name="hostile/1", status=None, timeout=10):
        host, port, self.remote = parse_enode(enode)
        self.key = key or random_key()
        self.lock = threading.Lock()
        try:
            self.socket = socket.create_connection((host, port), timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.shake_hands()
            self.greet(name, [*ETH, *extra])
            self.theirs = decode(self.expect(STATUS))
            ours = list(self.theirs)
            self.send(STATUS, encode(status(ours) if status else ours))
        except OSError as error:
            raise Closed(str(error)) from None

    def shake_hands(self):
        ephemeral, nonce = random_key(), os.urandom(32)
        digest = xor(shared(self.key, self.remote), nonce)
        signature = ephemeral.sign_recoverable(digest, hasher=None)
        auth = encode([signature, public(self.key), nonce, 4]) + os.urandom(150)
        length = struct.pack(">H", len(auth) + 113)
        auth = length + seal(self.remote, auth, length)
        self.socket.sendall(auth)
        length = self.read(2)
        sealed = self.read(struct.unpack(">H", length)[0])
        theirs, their_nonce = decode(unseal(self.key, sealed))[:2]
        secret = shared(ephemeral, theirs)
        aes = keccak(secret, keccak(secret, keccak(their_nonce, nonce)))
        mac = keccak(secret, aes)
        self.out_mac = FrameMac(mac, xor(mac, their_nonce) + auth)
        self.in_mac = FrameMac(mac, xor(mac, nonce) + length + sealed)
        self.out_cipher, self.in_cipher = stream(aes, bytes(16)), stream(aes, bytes(16))
        self.is_compressed = False

    def greet(self, name, capabilities):
        offered = [[kind.encode(), version] for kind, version in capabilities]
        self.send(HELLO, encode([5, name.encode(), offered, 0, public(self.key)]))
        hello = decode(self.expect(HELLO))
        self.capabilities = [(kind.decode(), number(version)) for kind, version in hello[2]]
        self.is_compressed = True

    def read(self, count, timeout=None):
        got = bytearray()
        while len(got) < count:
            try:
                if timeout:
                    self.socket.settimeout(timeout)
                some = self.socket.recv(min(1 << 20, count - len(got)))
            except OSError as error:
                raise Closed(str(error)) from None
            if not some:
                raise Closed("the node has closed the connection")
            got += some
        return bytes(got)

    def frame(self, id, payload):
        """The bytes of a message; they must be sent in the order in which they are made."""
        if self.is_compressed:
            payload = bytes(cramjam.snappy.compress_raw(payload))
        return self.raw_frame(id, payload)

    def raw_frame(self, id, payload):
        """The same with a payload that is already compressed."""
        body = (b"\x80" if id == 0 else bytes([id])) + payload
        header = len(body).to_bytes(3, "big") + b"\xc2\x80\x80" + bytes(10)
        header = self.out_cipher.encrypt(header)
        header += self.out_mac.mix(header)
        body = self.out_cipher.encrypt(body + bytes(-len(body) % 16))
        self.out_mac.state.update(body)
        return header + body + self.out_mac.mix(self.out_mac.digest())

    def send(self, id, payload):
        with self.lock:
            self.write(self.frame(id, payload))

    def write(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self, timeout=None):
        """Id and payload of the next message."""
        header = self.read(32, timeout)
        self.in_mac.mix(header[:16])
        size = int.from_bytes(self.in_cipher.decrypt(header[:16])[:3], "big")
        body = self.read(size + -size % 16 + 16)
        self.in_mac.state.update(body[:-16])
        self.in_mac.mix(self.in_mac.digest())
        body = self.in_cipher.decrypt(body[:-16])[:size]
        payload = body[1:]
        if self.is_compressed:
            payload = bytes(cramjam.snappy.decompress_raw(payload))
        return (0 if body[0] == 0x80 else body[0]), payload

    def expect(self, wanted):
        id, payload = self.receive()
        if id == DISCONNECT:
            raise Closed(f"disconnected: {reason(payload)}")
        if id != wanted:
            raise Closed(f"message {id:#x} came, not {wanted:#x}")
        return payload

    def close(self):
        try:
            # Otherwise a reading thread keeps the connection open.
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The node closed it first.
            pass
        self.socket.close()


def reason(payload):
    """The number of a disconnect message, as hexadecimal."""
    said = decode(payload) if payload else b""
    return "0x" + (said[0] if isinstance(said, list) and said else said or b"").hex()
