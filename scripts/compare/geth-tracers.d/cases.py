"""Calls to trace: the programs of `programs`, with the state they need to fail in every way."""

import programs
import signer

SENDER = "0x" + "5e" * 20
POOR = "0x" + "00" * 19 + "99"
HERE = "0x" + "a1" * 20
# Contracts that programs call: one works, one reverts, one delegates, one has no code.
WORKS, REVERTS, DELEGATES, PAYS = ("0x" + byte * 20 for byte in ("b2", "c3", "d1", "e0"))
ADDRESSES = [HERE, WORKS, REVERTS, DELEGATES] + ["0x" + f"{n:02x}" * 20 for n in range(0x21, 0x25)]
AMPLE = 400_000


def account(code=b"", balance=9, **more):
    return {"code": "0x" + code.hex(), "balance": hex(balance), **more}


def slots(**values):
    def key(number):
        return "0x" + f"{int(number):064x}"

    return {key(slot[1:]): key(value) for slot, value in values.items()}


def surroundings(code):
    """Accounts of a call of `code`."""
    works = bytes.fromhex("600760005260016001556020600060003960206000f3")
    return {
        SENDER: {"balance": hex(10**20)},
        HERE: account(code, stateDiff=slots(s1=1, s2=2)),
        WORKS: account(works, stateDiff=slots(s1=3)),
        REVERTS: account(bytes.fromhex("6005600155600060005260206000fd"), balance=0),
        DELEGATES: account(bytes.fromhex("ef0100") + bytes.fromhex("b2" * 20)),
        PAYS: {"balance": "0x7"},
    }


def call(gas=AMPLE, **more):
    return {"from": SENDER, "to": HERE, "gas": hex(gas), **more}


class Case:
    """A call, and the state it runs on. `only` are the tracers to use, all if empty."""

    def __init__(self, name, request, overrides, only=()):
        self.name, self.request, self.overrides, self.only = name, request, overrides, only


def static_call(code):
    """Calls `code`, deployed at another address, statically, and twice within a call."""
    target = "0x" + "21" * 20
    outer = bytes.fromhex("5f5f5f5f73" + target[2:] + "5afa5f5f5f5f5f73" + target[2:] + "5af100")
    outer = outer.replace(b"\x5f", b"\x3d")
    return outer, {target: account(code, stateDiff=slots(s1=1))}


def single(fork, gas_of):
    """Runs each opcode with enough gas, with one gas too little, with almost none, without its
    stack items, and in a static call. `gas_of(request, overrides)` returns the gas before the last
    step and the step's cost."""
    for name, code in programs.single_steps(fork).items():
        around = surroundings(code)
        yield Case(f"{name}", call(), around)
        steps = gas_of(call(), around)
        # With enough gas such a call gets gigabytes of memory.
        if steps and steps[1] < 5_000_000:
            before, cost = steps
            for missing in sorted({1, cost // 2, max(cost - 1, 0), max(cost - 101, 0)}):
                gas = AMPLE - before + cost - missing
                if 0 < missing <= cost and gas >= 21_000:
                    yield Case(f"{name}, {missing} gas too little", call(gas), around, STEPS)
            yield Case(f"{name}, gas as needed", call(max(AMPLE - before + cost, 21_000)), around, STEPS)
        outer, more = static_call(code)
        yield Case(f"{name}, static", call(), surroundings(outer) | more, STEPS)
    for op in range(256):
        yield Case(f"{op:#x} on an empty stack", call(), surroundings(bytes([op])), STEPS)
        full = b"\x60\x01" * 1024 + bytes([op])
        yield Case(f"{op:#x} on a full stack", call(), surroundings(full), ("steps bare", "calls"))


STEPS = ("steps", "calls", "erc7562")


def generated(seed, fork, count):
    """Random programs that call each other, with random gas."""
    made = programs.Programs(seed, fork, ADDRESSES, [SENDER, PAYS, POOR, "0x" + "77" * 20])
    for number in range(count):
        around = surroundings(made.program())
        for address in ADDRESSES[4:]:
            more = {"stateDiff": slots(s0=made.random.randrange(2), s1=made.random.randrange(3))}
            around[address] = account(made.program(), made.random.choice([0, 5]), **more)
        gas = made.random.choice([AMPLE] * 3 + [made.random.randrange(21_100, 90_000)])
        more = {"data": "0x" + made.random.randbytes(made.random.choice([0, 3, 4, 40])).hex()}
        if made.random.random() < 0.3:
            more["value"] = hex(made.random.choice([1, 5]))
        if made.random.random() < 0.15:
            gas += 200_000
            del more["data"]
            request = call(gas, **more) | {"data": around[HERE]["code"]}
            del request["to"]
        else:
            request = call(gas, **more)
        if fork in ("prague", "osaka") and "to" in request and made.random.random() < 0.25:
            request["authorizationList"] = authorizations(made.random)
        if made.random.random() < 0.2:
            keys = ["0x" + f"{slot:064x}" for slot in range(2)]
            request["accessList"] = [{"address": made.random.choice(ADDRESSES), "storageKeys": keys}]
        yield Case(f"program {number} of seed {seed}", request, around)


def authorizations(random):
    made = []
    for _ in range(random.randrange(1, 4)):
        key = random.randrange(1, 4)
        to = random.choice(["0x" + "00" * 20, *ADDRESSES])
        chain = random.choice([0, CHAIN_ID, CHAIN_ID, 5])
        made.append(signer.authorization(key, chain, to, random.choice([0, 0, 0, 1])))
    return made


CHAIN_ID = 7331


def special(fork):
    """Cases that the other functions do not make."""
    own_address = HERE[2:]
    recursion = bytes.fromhex("3d3d3d3d3d30" + "5a" + "f1" + "00")
    yield Case("too deep", call(2**40), surroundings(recursion), ("calls", "flat"))
    yield Case("too little balance", call(value=hex(10**21)), surroundings(b""), STEPS)
    yield Case("no code", call(), surroundings(b""))
    plain = surroundings(b"\x00")
    yield Case("to nobody", call() | {"to": "0x" + "78" * 20}, plain)
    yield Case("to nobody with value", call(value="0x3") | {"to": "0x" + "78" * 20}, plain)
    for precompile in range(1, 18):
        for size in (0, 3, 64, 96, 128, 160, 192, 213, 256, 288, 384, 512):
            for fill in ("00", "01", "ff"):
                to = "0x" + precompile.to_bytes(20, "big").hex()
                request = call(data="0x" + fill * size) | {"to": to}
                name = f"precompile {precompile} of {size} bytes {fill}"
                yield Case(name, request, plain, ("calls", "flat", "4byte"))
                if size in (0, 160, 213) and fill != "00":
                    code = "60" + fill + "5f53" + "5f5f61" + f"{size:04x}" + "5f5f73" + to[2:] + "6101f4f15000"
                    code = bytes.fromhex(code.replace("5f", "6000"))
                    yield Case(f"{name} for little gas", call(), surroundings(code), ("calls", "flat"))
    create = {"from": SENDER, "gas": hex(AMPLE)}
    for init in programs.INIT_CODES:
        yield Case(f"creation of {init.hex()}", create | {"data": "0x" + init.hex()}, plain)
    if fork in ("paris", "shanghai", "cancun"):
        return
    keys = {signer.address(key): key for key in (1, 2, 3)}
    first, second, third = keys
    delegated = {second: account(bytes.fromhex("ef0100" + own_address))}
    around = surroundings(bytes.fromhex("600060015500")) | delegated
    lists = {
        "sets": [signer.authorization(1, CHAIN_ID, HERE, 0)],
        "clears": [signer.authorization(2, 0, "0x" + "00" * 20, 0)],
        "changes": [signer.authorization(2, 0, WORKS, 0), signer.authorization(3, 0, WORKS, 0)],
        "sets and clears": [
            signer.authorization(1, 0, WORKS, 0), signer.authorization(1, 0, "0x" + "00" * 20, 1),
        ],
        "sets for another chain": [signer.authorization(1, 5, WORKS, 0)],
        "sets with a wrong nonce": [signer.authorization(1, 0, WORKS, 3)],
    }  # fmt: skip
    for name, entries in lists.items():
        for to in (HERE, first, second):
            request = call(authorizationList=entries) | {"to": to}
            yield Case(f"authorization {name}, to {to[:6]}", request, around)
