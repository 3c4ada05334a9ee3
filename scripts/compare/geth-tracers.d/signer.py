"""secp256k1 signatures in plain Python, for authorizations (EIP-7702)."""

import hashlib
import hmac

P = 2**256 - 2**32 - 977
N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
G = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)


def add(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0]:
        if (a[1] + b[1]) % P == 0:
            return None
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def multiply(point, times):
    total = None
    while times:
        if times & 1:
            total = add(total, point)
        point, times = add(point, point), times >> 1
    return total


def keccak(data):
    """Keccak-256; Python's hashlib only has SHA-3, with other padding."""
    rate, lanes = 136, [0] * 25
    data = data + b"\x01" + b"\0" * (rate - 1 - len(data) % rate)
    data = data[:-1] + bytes([data[-1] | 0x80])
    for at in range(0, len(data), rate):
        for lane in range(rate // 8):
            lanes[lane] ^= int.from_bytes(data[at + 8 * lane : at + 8 * lane + 8], "little")
        permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes)[:32]


def rotated(lane, by):
    return ((lane << by) | (lane >> (64 - by))) & (2**64 - 1) if by else lane


def permute(a):
    register = 1
    for _ in range(24):
        c = [a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20] for x in range(5)]
        d = [c[(x + 4) % 5] ^ rotated(c[(x + 1) % 5], 1) for x in range(5)]
        for at in range(25):
            a[at] ^= d[at % 5]
        x, y, current = 1, 0, a[1]
        for t in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            current, a[x + 5 * y] = a[x + 5 * y], rotated(current, (t + 1) * (t + 2) // 2 % 64)
        for y in range(0, 25, 5):
            row = a[y : y + 5]
            for x in range(5):
                a[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]) & (2**64 - 1)
        for j in range(7):
            register = ((register << 1) ^ ((register >> 7) * 0x71)) % 256
            if register & 2:
                a[0] ^= 1 << ((1 << j) - 1)


def rlp(item):
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return prefix(0x80, len(item)) + item
    body = b"".join(map(rlp, item))
    return prefix(0xC0, len(body)) + body


def prefix(base, size):
    if size < 56:
        return bytes([base + size])
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(length)]) + length


def sign(digest, key):
    """r, s and the parity. The nonce is derived from key and hash, so that signatures are the same
    in every run."""
    seed = hmac.new(key.to_bytes(32, "big"), digest, hashlib.sha256).digest()
    k = int.from_bytes(seed, "big") % N or 1
    x, y = multiply(G, k)
    r = x % N
    s = pow(k, -1, N) * (int.from_bytes(digest, "big") + r * key) % N
    parity = y & 1
    if s > N // 2:
        s, parity = N - s, parity ^ 1
    return r, s, parity


def address(key):
    x, y = multiply(G, key)
    return "0x" + keccak(x.to_bytes(32, "big") + y.to_bytes(32, "big"))[12:].hex()


def authorization(key, chain_id, to, nonce):
    to_bytes = bytes.fromhex(to.removeprefix("0x"))
    r, s, parity = sign(keccak(b"\x05" + rlp([chain_id, to_bytes, nonce])), key)
    return {
        "chainId": hex(chain_id), "address": to, "nonce": hex(nonce), "yParity": hex(parity),
        "r": hex(r), "s": hex(s),
    }  # fmt: skip
