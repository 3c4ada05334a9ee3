"""EVM programs generated from a seed: with every opcode, and with every kind of failure."""

import random

# Opcodes by the number of stack items they take, whether they push one, and their first fork.
FORKS = ["paris", "shanghai", "cancun", "prague", "osaka", "amsterdam"]
NULLARY = {
    "ADDRESS": 0x30, "ORIGIN": 0x32, "CALLER": 0x33, "CALLVALUE": 0x34, "CALLDATASIZE": 0x36,
    "CODESIZE": 0x38, "GASPRICE": 0x3A, "RETURNDATASIZE": 0x3D, "COINBASE": 0x41,
    "TIMESTAMP": 0x42, "NUMBER": 0x43, "PREVRANDAO": 0x44, "GASLIMIT": 0x45, "CHAINID": 0x46,
    "SELFBALANCE": 0x47, "BASEFEE": 0x48, "BLOBBASEFEE": 0x4A, "PC": 0x58, "MSIZE": 0x59,
    "GAS": 0x5A, "PUSH0": 0x5F,
}  # fmt: skip
UNARY = {
    "ISZERO": 0x15, "NOT": 0x19, "CALLDATALOAD": 0x35, "BLOCKHASH": 0x40, "BLOBHASH": 0x49,
    "CLZ": 0x1E, "SLOAD": 0x54, "TLOAD": 0x5C, "MLOAD": 0x51,
}  # fmt: skip
BINARY = {
    "ADD": 1, "MUL": 2, "SUB": 3, "DIV": 4, "SDIV": 5, "MOD": 6, "SMOD": 7, "EXP": 10,
    "SIGNEXTEND": 11, "LT": 0x10, "GT": 0x11, "SLT": 0x12, "SGT": 0x13, "EQ": 0x14, "AND": 0x16,
    "OR": 0x17, "XOR": 0x18, "BYTE": 0x1A, "SHL": 0x1B, "SHR": 0x1C, "SAR": 0x1D,
}  # fmt: skip
TERNARY = {"ADDMOD": 8, "MULMOD": 9}
OF_ADDRESS = {"BALANCE": 0x31, "EXTCODESIZE": 0x3B, "EXTCODEHASH": 0x3F}
COPIES = {"CALLDATACOPY": 0x37, "CODECOPY": 0x39, "RETURNDATACOPY": 0x3E, "MCOPY": 0x5E}
STORES = {"SSTORE": 0x55, "TSTORE": 0x5D, "MSTORE": 0x52, "MSTORE8": 0x53}
CALLS = {"CALL": 0xF1, "CALLCODE": 0xF2, "DELEGATECALL": 0xF4, "STATICCALL": 0xFA}
POP, JUMP, JUMPI, JUMPDEST, STOP, RETURN, REVERT = 0x50, 0x56, 0x57, 0x5B, 0x00, 0xF3, 0xFD
MSTORE, SHA3, CREATE, CREATE2, SELFDESTRUCT, INVALID = 0x52, 0x20, 0xF0, 0xF5, 0xFF, 0xFE
SINCE = {
    "PUSH0": "shanghai", "BLOBHASH": "cancun", "BLOBBASEFEE": "cancun", "TLOAD": "cancun",
    "TSTORE": "cancun", "MCOPY": "cancun", "CLZ": "osaka",
}  # fmt: skip


def has(fork, name):
    return FORKS.index(fork) >= FORKS.index(SINCE.get(name, "paris"))


def push(value, width=None):
    if isinstance(value, str):
        raw = bytes.fromhex(value.removeprefix("0x"))
    elif width:
        raw = value.to_bytes(width, "big")
    else:
        raw = value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
    return bytes([0x5F + len(raw)]) + raw


def word(raw):
    """Code that puts up to 32 bytes to the start of memory."""
    return b"\x7f" + raw.ljust(32, b"\0") + push(0) + bytes([MSTORE])


# The parts of a generated contract.
INIT_CODES = [
    b"",
    bytes([STOP]),
    bytes.fromhex("60006000f3"),
    bytes.fromhex("600a60005360016000f3"),  # returns one byte
    bytes.fromhex("60ef60005360016000f3"),  # code that begins with 0xef
    bytes.fromhex("60006000fd"),
    bytes.fromhex("fe"),
    bytes.fromhex("30ff"),  # its own heir
    bytes.fromhex("33ff"),
    bytes.fromhex("600160015560006001556000ff"),
    bytes.fromhex("61c3506000f3"),  # too much code
    bytes.fromhex("6160006000f3"),  # as much as there may be
    bytes.fromhex("60016000f0"),
    bytes.fromhex("50"),
]
ERROR_NO = bytes.fromhex("08c379a0" + "20".rjust(64, "0") + "02".rjust(64, "0") + "6e6f".ljust(64, "0"))
PANIC = bytes.fromhex("4e487b71" + "11".rjust(64, "0"))


class Programs:
    """Random programs that call each other's addresses."""

    def __init__(self, seed, fork, addresses, people):
        self.random = random.Random(f"{seed}-{fork}")
        self.fork, self.addresses, self.people = fork, addresses, people

    def number(self):
        pick = self.random.random()
        if pick < 0.7:
            return self.random.choice([0, 1, 2, 3, 5, 31, 32, 33, 64, 100, 255])
        if pick < 0.9:
            return self.random.randrange(1 << 16)
        return self.random.choice([2**32, 2**64 - 1, 2**64, 2**128, 2**255, 2**256 - 1])

    def small(self):
        return self.random.choice([0, 0, 1, 4, 31, 32, 33, 64, 100])

    def offset(self):
        pick = self.random.random()
        return self.number() if pick < 0.06 else self.random.choice([0, 0, 1, 32, 64, 200])

    def address(self):
        pick = self.random.random()
        if pick < 0.6:
            return self.random.choice(self.addresses)
        if pick < 0.8:
            return self.random.choice(self.people)
        if pick < 0.95:
            return "0x" + self.random.choice(range(1, 19)).to_bytes(20, "big").hex()
        return "0x" + self.random.randbytes(20).hex()

    def program(self):
        code = b"".join(self.statement() for _ in range(self.random.randrange(1, 14)))
        return code + self.end()

    def end(self):
        return self.random.choice([
            b"", b"", bytes([STOP]), push(self.small()) + push(0) + bytes([RETURN]),
            push(self.small()) + push(0) + bytes([REVERT]), bytes([INVALID]),
            self.reason(ERROR_NO), self.reason(PANIC),
            push(self.address()) + bytes([SELFDESTRUCT]), bytes([0x30, SELFDESTRUCT]),
            push(self.number()) + bytes([JUMP]), bytes([self.random.randrange(256)]),
        ])  # fmt: skip

    def reason(self, data):
        code = b""
        for at in range(0, len(data), 32):
            code += b"\x7f" + data[at : at + 32].ljust(32, b"\0") + push(at) + bytes([MSTORE])
        return code + push(len(data)) + push(0) + bytes([REVERT])

    def pick(self, table):
        names = [name for name in table if has(self.fork, name)]
        return bytes([table[self.random.choice(names)]])

    def statement(self):
        makers = [
            (4, self.plain), (3, self.arithmetic), (3, self.storage), (2, self.look), (2, self.copy),
            (2, self.log), (6, self.call), (3, self.create), (1, self.hash), (1, self.jump),
            (1, self.stack), (1, self.odd), (1, self.memory),
        ]  # fmt: skip
        return self.random.choices([m for _, m in makers], [w for w, _ in makers])[0]()

    def plain(self):
        return self.pick(NULLARY) + bytes([POP])

    def arithmetic(self):
        if self.random.random() < 0.2:
            return b"".join(push(self.number()) for _ in "123") + self.pick(TERNARY) + bytes([POP])
        if self.random.random() < 0.3:
            return push(self.offset()) + self.pick(UNARY) + bytes([POP])
        return push(self.number()) + push(self.number()) + self.pick(BINARY) + bytes([POP])

    def storage(self):
        slot = push(self.random.randrange(4))
        if self.random.random() < 0.4:
            name = self.random.choice(["SLOAD"] + ["TLOAD"] * has(self.fork, "TLOAD"))
            return slot + bytes([UNARY[name], POP])
        name = self.random.choice(["SSTORE", "SSTORE"] + ["TSTORE"] * has(self.fork, "TSTORE"))
        return push(self.random.choice([0, 0, 1, 2, 7])) + slot + bytes([STORES[name]])

    def look(self):
        if self.random.random() < 0.3:
            copied = push(self.small()) + push(self.offset()) + push(self.offset())
            return copied + push(self.address()) + bytes([0x3C])
        after = self.random.choice([bytes([POP]), bytes([0x15, POP])])
        return push(self.address()) + self.pick(OF_ADDRESS) + after

    def copy(self):
        return push(self.small()) + push(self.offset()) + push(self.offset()) + self.pick(COPIES)

    def memory(self):
        if self.random.random() < 0.5:
            return push(self.number()) + push(self.offset()) + self.random.choice([b"\x52", b"\x53"])
        return push(self.offset()) + b"\x51" + bytes([POP])

    def hash(self):
        return push(self.small()) + push(self.offset()) + bytes([SHA3, POP])

    def log(self):
        topics = self.random.randrange(5)
        code = b"".join(push(self.number()) for _ in range(topics))
        return code + push(self.small()) + push(self.offset()) + bytes([0xA0 + topics])

    def call(self):
        name = self.random.choice(list(CALLS))
        code = push(self.small()) + push(self.offset()) + push(self.small()) + push(self.offset())
        if name in ("CALL", "CALLCODE"):
            code += push(self.random.choice([0, 0, 0, 1, 3, 2**100]))
        code += push(self.address())
        gas = [b"\x5a"] * 3 + [push(g) for g in (0, 100, 3000, 30000, 2**64, 2**256 - 1)]
        return code + self.random.choice(gas) + bytes([CALLS[name], POP])

    def create(self):
        init = self.random.choice(INIT_CODES)
        name = self.random.choice([CREATE, CREATE2])
        code = word(init) + (push(self.random.randrange(3)) if name == CREATE2 else b"")
        size = len(init) if self.random.random() < 0.95 else self.number()
        return code + push(size) + push(0) + push(self.random.choice([0, 0, 1, 2**90])) + bytes([name, POP])

    def jump(self):
        # Jumps over an INVALID. Jump targets are relative to PC, so the code can be at any offset.
        if self.random.random() < 0.8:
            return bytes.fromhex("5860070156fefe5b")
        return push(self.random.randrange(2)) + push(self.number()) + bytes([JUMPI])

    def stack(self):
        count = self.random.randrange(1, 18)
        op = bytes([self.random.choice([0x80, 0x90]) + self.random.randrange(16)])
        return b"".join(push(self.number()) for _ in range(count)) + op

    def odd(self):
        return self.random.choice([
            bytes([self.random.randrange(256)]), bytes([POP]),
            push(self.number()) + push(self.number()) + bytes([RETURN]),
            bytes.fromhex("5b600080600057"), b"\x3d" + push(1) + b"\x01" + push(0) + push(0) + b"\x3e",
        ])  # fmt: skip


def single_steps(fork):
    """Yields each opcode alone: its name and code that prepares its arguments; the opcode is the
    last step."""
    found = {}
    for name, op in NULLARY.items():
        found[name] = bytes([op])
    for name, op in UNARY.items():
        found[name] = push(64) + bytes([op])
    for name, op in BINARY.items():
        found[name] = push(0x1234) + push(0x5678) + bytes([op])
    for name, op in TERNARY.items():
        found[name] = push(7) + push(0x1234) + push(0x5678) + bytes([op])
    for name, op in OF_ADDRESS.items():
        found[f"{name} cold"] = push("0x" + "77" * 20) + bytes([op])
        found[f"{name} warm"] = b"\x30" + bytes([op])
    for name, op in COPIES.items():
        size = 0 if name == "RETURNDATACOPY" else 70
        found[name] = push(size) + push(3) * (size > 0) + push(0) * (size == 0) + push(40) + bytes([op])
    found["RETURNDATACOPY bounds"] = push(1) + push(0) + push(0) + b"\x3e"
    found["EXTCODECOPY cold"] = push(70) + push(0) + push(9) + push("0x" + "77" * 20) + b"\x3c"
    found["EXTCODECOPY warm"] = push(70) + push(0) + push(9) + b"\x30\x3c"
    for topics in range(5):
        found[f"LOG{topics}"] = push(5) * topics + push(50) + push(9) + bytes([0xA0 + topics])
    # Before the call slot 1 is 1, and slot 0 is 0.
    for value, slot in [(0, 0), (5, 0), (0, 1), (1, 1), (5, 1)]:
        found[f"SSTORE {value} to {slot}"] = push(value) + push(slot) + b"\x55"
        warm = push(slot) + b"\x54\x50"
        found[f"SSTORE {value} to {slot} warm"] = warm + push(value) + push(slot) + b"\x55"
        twice = push(0) + push(slot) + b"\x55" + push(3) + push(slot) + b"\x55"
        found[f"SSTORE {value} to {slot} dirty"] = twice + push(value) + push(slot) + b"\x55"
    for name, op in STORES.items():
        if name != "SSTORE":
            found[name] = push(5) + push(90) + bytes([op])
    found["SLOAD warm"] = push(64) + b"\x54\x50" + push(64) + b"\x54"
    found["KECCAK256"] = push(90) + push(9) + b"\x20"
    found["JUMP"] = push(4, 1) + b"\x56" + b"\xfe" + b"\x5b"
    found["JUMP bad"] = push(3) + b"\x56\xfe"
    found["JUMPI"] = push(1) + push(6, 1) + b"\x57" + b"\xfe" + b"\x5b"
    found["JUMPI bad"] = push(1) + push(3) + b"\x57"
    found["JUMPDEST"] = b"\x5b"
    found["RETURN"] = push(90) + push(9) + b"\xf3"
    found["REVERT"] = push(90) + push(9) + b"\xfd"
    found["STOP"] = b"\x00"
    found["INVALID"] = b"\xfe"
    found["POP"] = push(1) + b"\x50"
    for width in (1, 2, 31, 32):
        found[f"PUSH{width}"] = bytes([0x5F + width]) + b"\x11" * width
        found[f"PUSH{width} cut"] = bytes([0x5F + width]) + b"\x11" * (width - 1)
    for depth in (1, 2, 16):
        found[f"DUP{depth}"] = push(1) * depth + bytes([0x7F + depth])
        found[f"SWAP{depth}"] = push(1) * (depth + 1) + bytes([0x8F + depth])
    for name, op in CALLS.items():
        for to in ("77" * 20, "02".rjust(40, "0"), "b2" * 20, "d1" * 20):
            for value in (0, 1) if name in ("CALL", "CALLCODE") else (None,):
                code = push(40) + push(0) + push(50) + push(9)
                code += push(value) if value is not None else b""
                for gas in (0, 30_000, 2**70):
                    called = code + push("0x" + to) + push(gas) + bytes([op])
                    found[f"{name} {to[:4]} value {value} gas {gas}"] = called
    for init in INIT_CODES:
        for value in (0, 1):
            call = push(len(init)) + push(0) + push(value)
            found[f"CREATE {init.hex()} value {value}"] = word(init) + call + b"\xf0"
            found[f"CREATE2 {init.hex()} value {value}"] = word(init) + push(5) + call + b"\xf5"
    found["CREATE beyond the limit"] = push(60_000) + push(0) + push(0) + b"\xf0"
    found["CREATE collides"] = word(b"\0") + (push(1) + push(1) + push(0) + push(0) + b"\xf5\x50") * 2
    for to in ("77" * 20, "b2" * 20):
        found[f"SELFDESTRUCT {to[:4]}"] = push("0x" + to) + b"\xff"
    found["SELFDESTRUCT itself"] = b"\x30\xff"
    for bad in (0x0C, 0x21, 0x4F, 0xA5, 0xD0, 0xE6, 0xF6, 0xFB):
        found[f"undefined {bad:#x}"] = push(1) * 4 + bytes([bad])
    huge = push(2**64)
    found["MLOAD overflow"] = huge + b"\x51"
    found["MSTORE beyond"] = push(1) + push(2**40) + b"\x52"
    found["KECCAK256 overflow"] = huge + push(0) + b"\x20"
    found["CALLDATACOPY overflow"] = huge + push(0) + push(0) + b"\x37"
    found["LOG0 overflow"] = huge + push(0) + b"\xa0"
    found["RETURN beyond"] = push(2**33) + push(0) + b"\xf3"
    found["CALL beyond"] = push(2**40) + push(0) * 4 + push(2) + b"\x5a\xf1"
    wanted = {}
    for name, code in found.items():
        # `push` never emits PUSH0, so that all forks run the same programs.
        if has(fork, name.split()[0]):
            wanted[name] = code
    return wanted
