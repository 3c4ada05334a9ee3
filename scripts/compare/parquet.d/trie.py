"""RLP, blooms and trie roots (yellow paper, appendices B and D, section 4.3.1), to check what retrie
computed by other code."""

from Crypto.Hash import keccak as hashes


def keccak(data):
    return hashes.new(digest_bits=256, data=data).digest()


def encode(item):
    if isinstance(item, (list, tuple)):
        return head(b"".join(map(encode, item)), 0xC0)
    if len(item) == 1 and item[0] < 0x80:
        return bytes(item)
    return head(bytes(item), 0x80)


def head(payload, offset):
    if len(payload) < 56:
        return bytes([offset + len(payload)]) + payload
    length = len(payload).to_bytes((len(payload).bit_length() + 7) // 8, "big")
    return bytes([offset + 55 + len(length)]) + length + payload


def decode(data):
    item, end = item_at(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes behind the item")
    return item


def item_at(data, at):
    first = data[at]
    if first < 0x80:
        return data[at : at + 1], at + 1
    offset = 0x80 if first < 0xC0 else 0xC0
    begin, length = at + 1, first - offset
    if length > 55:
        begin += length - 55
        length = int.from_bytes(data[at + 1 : begin], "big")
    end = begin + length
    if end > len(data):
        raise ValueError("an item is cut")
    if offset == 0x80:
        return data[begin:end], end
    items, at = [], begin
    while at < end:
        item, at = item_at(data, at)
        items.append(item)
    return items, end


def bloom_of(logs):
    bits = 0
    for address, topics, _ in logs:
        for entry in (address, *topics):
            digest = keccak(entry)
            for at in (0, 2, 4):
                bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
    return bits.to_bytes(256, "big")


def root(items):
    """Root of the trie of these key-value pairs."""
    if not items:
        return keccak(b"\x80")
    nibbles = [([half for byte in key for half in (byte >> 4, byte & 15)], value) for key, value in items]
    return keccak(encode(node(nibbles, 0)))


def node(items, depth):
    if len(items) == 1:
        path, value = items[0]
        return [compact(path[depth:], True), value]
    common = depth
    while all(len(path) > common and path[common] == items[0][0][common] for path, _ in items):
        common += 1
    if common > depth:
        return [compact(items[0][0][depth:common], False), reference(node(items, common))]
    branch = [reference(node(under, depth + 1)) if under else b"" for under in (
        [one for one in items if len(one[0]) > depth and one[0][depth] == nibble] for nibble in range(16)
    )]  # fmt: skip
    own = [value for path, value in items if len(path) == depth]
    return [*branch, own[0] if own else b""]


def reference(of):
    encoded = encode(of)
    return of if len(encoded) < 32 else keccak(encoded)


def compact(path, is_leaf):
    odd = len(path) % 2
    path = [2 * is_leaf + odd, *([] if odd else [0]), *path]
    return bytes(high << 4 | low for high, low in zip(path[::2], path[1::2]))
