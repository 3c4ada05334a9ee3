"""Checks an answer of eth_getProof (EIP-1186) against a state root, with Python alone: Keccak, RLP
and the way down Ethereum's trie, as the Yellow Paper has them (appendices B and D).
"""

import functools

MASK = (1 << 64) - 1
EMPTY_TRIE = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
# Bytes that Keccak-256 absorbs at once.
RATE = 136


class WrongProof(Exception):
    """What is wrong with a proof."""


# -- Keccak-256 ------------------------------------------------------------------------------------


def round_constants():
    """The 24 constants of Keccak-f[1600], from its shift register of eight bits."""
    register, constants = 1, []
    for _ in range(24):
        constant = 0
        for bit in range(7):
            if register & 1:
                constant |= 1 << ((1 << bit) - 1)
            register <<= 1
            if register & 0x100:
                register ^= 0x171
        constants.append(constant)
    return constants


def lane_walk():
    """For each step of rho and pi: the lane that is written, and how far it is rotated."""
    x, y, steps = 1, 0, []
    for step in range(24):
        x, y = y, (2 * x + 3 * y) % 5
        steps.append((x + 5 * y, (step + 1) * (step + 2) // 2 % 64))
    return steps


ROUNDS, WALK = round_constants(), lane_walk()


def rotate(lane, by):
    return (lane << by | lane >> (64 - by)) & MASK


def permute(lanes):
    """Applies Keccak-f[1600] to 25 lanes, in place."""
    for constant in ROUNDS:
        columns = [
            lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
            for x in range(5)
        ]
        for x in range(5):
            mixed = columns[x - 1] ^ rotate(columns[(x + 1) % 5], 1)
            for y in range(0, 25, 5):
                lanes[x + y] ^= mixed
        carried = lanes[1]
        for lane, by in WALK:
            # The lane itself moves to the next step.
            lanes[lane], carried = rotate(carried, by), lanes[lane]
        for y in range(0, 25, 5):
            row = lanes[y : y + 5]
            for x in range(5):
                lanes[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5] & MASK)
        lanes[0] ^= constant


@functools.lru_cache(maxsize=1 << 16)
def keccak256(data):
    padded = bytearray(data) + b"\1" + bytes(-(len(data) + 1) % RATE)
    padded[-1] |= 0x80
    lanes = [0] * 25
    for start in range(0, len(padded), RATE):
        for lane in range(RATE // 8):
            at = start + 8 * lane
            lanes[lane] ^= int.from_bytes(padded[at : at + 8], "little")
        permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


# -- RLP -------------------------------------------------------------------------------------------


def decode(data):
    """An RLP item: bytes, or a list of items."""
    item, end = item_at(data, 0)
    if end != len(data):
        raise WrongProof(f"{len(data) - end} bytes behind an RLP item")
    return item


def item_at(data, at):
    """The item that starts there, and its end."""
    if at >= len(data):
        raise WrongProof("an RLP item is cut off")
    first = data[at]
    if first < 0x80:
        return data[at : at + 1], at + 1
    base = 0xC0 if first >= 0xC0 else 0x80
    length, start = first - base, at + 1
    if length > 55:
        start += length - 55
        length = int.from_bytes(data[at + 1 : start], "big")
    end = start + length
    if end > len(data):
        raise WrongProof("an RLP item is cut off")
    if base == 0x80:
        return data[start:end], end
    items = []
    while start < end:
        item, start = item_at(data, start)
        items.append(item)
    if start != end:
        raise WrongProof("an item of an RLP list reaches over its end")
    return items, end


# -- the trie --------------------------------------------------------------------------------------


def nibbles(data):
    return [nibble for byte in data for nibble in (byte >> 4, byte & 15)]


def value_under(root, key, nodes):
    """The value that the nodes prove for an unhashed key: bytes, or None for absence. Every node
    must be on the path."""
    path, nodes = nibbles(keccak256(key)), list(nodes)
    if not nodes and root == bytes.fromhex(EMPTY_TRIE[2:]):
        return None

    def follow(child):
        """The node of a reference; a short node is embedded in its parent."""
        if isinstance(child, list):
            return child
        if not nodes or keccak256(nodes[0]) != child:
            raise WrongProof(f"no node with the hash 0x{child.hex()} comes next")
        return decode(nodes.pop(0))

    found, node = None, follow(root)
    while True:
        if len(node) == 17 and path:
            child, path = node[path[0]], path[1:]
        elif len(node) == 2:
            marked = nibbles(node[0])
            own = marked[1:] if marked[0] & 1 else marked[2:]
            if path[: len(own)] != own:
                break
            child, path = node[1], path[len(own) :]
            if marked[0] & 2:
                found = child if not path else None
                break
        else:
            raise WrongProof(f"a node of {len(node)} items with {len(path)} nibbles to go")
        if child == b"":
            break
        node = follow(child)
    if nodes:
        raise WrongProof(f"{len(nodes)} nodes are not on the way")
    return found


def number(text):
    return int(text, 16)


def unhex(text):
    return bytes.fromhex(text[2:])


def check(answer, state_root):
    """Checks all fields of an eth_getProof response against the root; WrongProof says what is
    wrong. The account must exist."""
    nodes = map(unhex, answer["accountProof"])
    shown = value_under(unhex(state_root), unhex(answer["address"]), nodes)
    if shown is None:
        raise WrongProof(f"the proof shows that there is no account {answer['address']}")
    nonce, balance, storage, code = decode(shown)
    account = [int.from_bytes(nonce, "big"), int.from_bytes(balance, "big"), storage, code]
    said = [number(answer["nonce"]), number(answer["balance"])]
    said += [unhex(answer["storageHash"]), unhex(answer["codeHash"])]
    if account != said:
        raise WrongProof(f"the proof shows another account than the fields: {account}")
    for slot in answer["storageProof"]:
        shown = value_under(storage, unhex(slot["key"]), map(unhex, slot["proof"]))
        value = int.from_bytes(decode(shown), "big") if shown is not None else 0
        if value != number(slot["value"]):
            raise WrongProof(f"the proof of slot {slot['key']} shows {value:#x}")
