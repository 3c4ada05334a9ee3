"""RLP: bytes, integers and lists of them; `Raw` is encoded already."""


class Raw:
    def __init__(self, encoded):
        self.encoded = encoded


def prefix(length, base):
    if length < 56:
        return bytes([base + length])
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(size)]) + size


def encode(item):
    if isinstance(item, Raw):
        return item.encoded
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if isinstance(item, (bytes, bytearray)):
        if len(item) == 1 and item[0] < 0x80:
            return bytes(item)
        return prefix(len(item), 0x80) + item
    content = b"".join(map(encode, item))
    return prefix(len(content), 0xC0) + content


def span(data, at):
    """Whether the item here is a list, and the bounds of its content."""
    first = data[at]
    if first < 0x80:
        return False, at, at + 1
    is_list = first >= 0xC0
    size = first - (0xC0 if is_list else 0x80)
    begin = at + 1
    if size > 55:
        width = size - 55
        size = int.from_bytes(data[begin : begin + width], "big")
        begin += width
    return is_list, begin, begin + size


def decode(data, at=0):
    is_list, begin, end = span(data, at)
    if not is_list:
        return bytes(data[begin:end])
    return [decode(data, at) for at, _ in items(data, begin, end)]


def items(data, begin, end):
    """The bounds of the items in a list's content."""
    while begin < end:
        _, _, after = span(data, begin)
        yield begin, after
        begin = after


def number(item):
    return int.from_bytes(item, "big")
