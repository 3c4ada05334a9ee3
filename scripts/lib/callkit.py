"""Calls that light clients verify: a made chain with a market of two tokens in its genesis, what wallets
ask there, and both verifiers of the answers.

`make_chain` runs `retrie bench make-chain --preload`. `Market` finds the contracts and their users in the
genesis file: those of this repository (crates/lab/bench/contracts) by their codes, those of mainnet by
their addresses.
"""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

from nodekit import LIB, ROOT, fail, run

# Height of the development parameters of lvmt.
HEIGHT = 16
# What the npm package is built of.
PACKAGE = ROOT / "crates" / "light-client" / "ts" / "dist"
CONTRACTS = ROOT / "crates" / "lab" / "bench" / "contracts"
# Wrapped ether, Tether's token, Uniswap V2's pair of both, and its Router02.
MAINNET = [
    "0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2", "0xdac17f958d2ee523a2206206994597c13d831ec7",
    "0x0d4a11d5eeaac28ec3f61d100daf4d40471f1852", "0x7a250d5630b4cf539739df2c5dacb4c659f2488d",
]  # fmt: skip
# Wei of an account that signs, and of one that only receives.
SIGNER, RECEIVER = 10**24, 10**15
# Bytes of a line of the genesis file that can hold an account without its slots.
HEAD = 100_000


def make_chain(retrie, folder, contracts, accounts, blocks=5, txs=50, signers=200):
    """Makes a chain whose genesis has the market and `accounts` holders of both tokens."""
    run([retrie, "bench", "make-chain", "--preload", "--contracts", contracts, "--mix", "swaps=1",
         "--accounts", accounts, "--signers", signers, "--blocks", blocks, "--txs", txs, folder])  # fmt: skip
    return Path(folder) / "genesis.json", Path(folder) / "chain.rlp"


def rules(genesis, file):
    """Writes the genesis file without its accounts: enough for the rules of calls."""
    kept = []
    with open(genesis) as lines:
        for line in lines:
            kept.append(line)
            if line.startswith('  "alloc": {'):
                break
        else:
            fail(f"{genesis} has no accounts")
    Path(file).write_text("".join(kept) + "  }\n}\n")
    json.loads(Path(file).read_text())
    return Path(file)


def word(value):
    """An address or a number in 32 bytes."""
    digits = f"{value:x}" if isinstance(value, int) else value.removeprefix("0x")
    return digits.rjust(64, "0")


class Market:
    """Two tokens, a pair of them and its router; those who may swap, and those who hold tokens."""

    def __init__(self, genesis, contracts, users=1000):
        self.contracts, self.signers, self.holders = contracts, [], []
        codes = {}
        with open(genesis) as lines:
            for line in lines:
                found = re.match(r' +"(0x[0-9a-f]{40})": ', line)
                if not found:
                    continue
                address, head = found[1], line[:HEAD]
                code = re.search(r'"code":"(0x[0-9a-f]*)"', head)
                balance = re.search(r'"balance":"(0x[0-9a-f]+)"', head)
                if code:
                    codes[address] = code[1]
                elif balance:
                    users_of = {SIGNER: self.signers, RECEIVER: self.holders}.get(int(balance[1], 16), [])
                    if len(users_of) < users:
                        users_of.append(address)
        found = MAINNET if contracts == "mainnet" else own_contracts(codes)
        self.token0, self.token1, self.pair, self.router = found
        missing = [address for address in found if address not in codes]
        if missing or not self.signers or not self.holders:
            fail(f"{genesis} has no market: {missing or 'no block swaps there'}")

    def calls(self):
        """What wallets ask: by name the request of `eth_call`."""
        reserves = "0902f1ac" if self.contracts == "mainnet" else "75172a8b"
        swap = self.swap(self.signers[0])
        return {
            "balanceOf": {"to": self.token1, "data": "0x70a08231" + word(self.holders[0])},
            "symbol": {"to": self.token1, "data": "0x95d89b41"},
            "getReserves": {"to": self.pair, "data": "0x" + reserves},
            "swap": {"from": self.signers[0], "to": self.router, "data": swap},
        }

    def swap(self, sender, amount=10**17):
        """Input of swapExactTokensForTokens of the first token for the second one."""
        deadline = 2**256 - 1
        words = [amount, 1, 160, sender, deadline, 2, self.token0, self.token1]
        return "0x38ed1739" + "".join(map(word, words))

    def transfer(self, receiver, amount=1):
        """Input of transfer of either token."""
        return "0xa9059cbb" + word(receiver) + word(amount)


def own_contracts(codes):
    """The addresses of both tokens, pair and router of this repository."""
    pair, places = match("Pair", codes)
    router, _ = match("Exchange", codes)
    tokens = ["0x" + places[name][24:] for name in ("token0", "token1")]
    return [*tokens, pair, router]


def match(name, codes):
    """The address of a contract by its code, and the values of its immutables."""
    artifact = json.loads((CONTRACTS / f"{name}.json").read_text())
    wanted = artifact["deployedBytecode"].removeprefix("0x")
    for address, code in codes.items():
        blank, values = code.removeprefix("0x"), {}
        if len(blank) != len(wanted):
            continue
        for immutable, places in artifact["immutables"].items():
            for place in places:
                start, end = 2 * place, 2 * place + 64
                values[immutable] = blank[start:end]
                blank = blank[:start] + wanted[start:end] + blank[end:]
        if blank == wanted:
            return address, values
    fail(f"no account has the code of {name}")


# -- verifiers -------------------------------------------------------------------------------------


def find_package():
    """Fails unless the npm package and Node.js are there."""
    if not shutil.which("node"):
        fail("there is no node: install Node.js 20.19 or later")
    for module in (PACKAGE / "retrie_light_client.wasm", PACKAGE / "src" / "index.js"):
        if not module.exists():
            fail(f"there is no {module}: build it with scripts/check/light-client --node-only --wasm")


class Verifiers:
    """`retrie proof verify` and the npm package, for answers of one node. `rules` is a genesis file,
    `backend` what `state_backend` says."""

    def __init__(self, retrie, folder, rules, backend):
        self.retrie, self.folder, self.rules = retrie, folder, rules
        self.pinned, self.flags = {}, []
        if backend["backend"] == "lvmt":
            self.pinned, self.flags = {"lvmtHeight": HEIGHT}, ["--insecure-dev", str(HEIGHT)]
        if backend["backend"] == "cole":
            params = backend["params"]
            self.pinned, self.flags = {"cole": params}, ["--cole-params", params]

    def native(self, request, answer, block, root=None):
        """`retrie proof verify` under the hash of a block, and a root if no header has it: milliseconds,
        what it prints or None, and why it refuses."""
        file = self.folder / "answer.json"
        file.write_text(json.dumps(answer))
        command = [
            self.retrie, "proof", "verify", str(file), "--chain", str(self.rules),
            "--request", json.dumps(request), "--block-hash", block, *self.flags,
            *(["--root", root] if root else []),
        ]  # fmt: skip
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        took = (time.perf_counter() - begun) * 1000
        if done.returncode not in (0, 1) or "panicked" in done.stderr:
            fail(f"retrie proof verify ended with {done.returncode}: {done.stderr}")
        return took, done.stdout if done.returncode == 0 else None, done.stderr.strip()

    def wasm(self, questions):
        """What the npm package says of each of the questions (`verify-calls.mjs`)."""
        file = self.folder / "questions.json"
        asked = [question | self.pinned for question in questions]
        file.write_text(json.dumps({"chain": self.rules.read_text(), "questions": asked}))
        command = ["node", str(LIB / "verify-calls.mjs"), str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            fail(f"{command[1]} ended with {done.returncode}")
        return json.loads(done.stdout)
