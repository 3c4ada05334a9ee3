"""OpenZeppelin's tests under Hardhat: in Hardhat's own network, then on nodes."""

import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import nodekit
from nodekit import fail

HERE = Path(__file__).resolve().parent
NPM = {
    "@uniswap/v4-core": "1.0.2",
    "hardhat": "2.28.6",
    "@nomicfoundation/hardhat-chai-matchers": "2.1.2",
    "@nomicfoundation/hardhat-ethers": "3.1.3",
    "@nomicfoundation/hardhat-network-helpers": "1.1.2",
    "@nomiclabs/hardhat-truffle5": "2.0.7",
    "@nomiclabs/hardhat-web3": "2.0.0",
    "@noble/curves": "1.9.7",
    "@noble/hashes": "1.8.0",
    "@openzeppelin/merkle-tree": "1.0.8",
    "@openzeppelin/test-helpers": "0.5.16",
    "array.prototype.at": "1.1.3",
    "chai": "4.5.0",
    "eth-sig-util": "3.0.1",
    "ethereumjs-util": "7.1.5",
    "ethereumjs-wallet": "1.0.2",
    "ethers": "6.16.0",
    "hardhat-exposed": "0.3.19",
    "hardhat-ignore-warnings": "0.2.12",
    "keccak256": "1.0.6",
    "lodash.startcase": "4.4.0",
    "lodash.zip": "4.2.0",
    "merkletreejs": "0.2.32",
    "rlp": "2.2.7",
    "solc-0.8.30": "npm:solc@0.8.30",
    "web3": "1.10.4",
    "web3-utils": "1.10.4",
}
SOLC, EVM = "0.8.30", "cancun"
# OpenZeppelin 5.0.2 within the first of these packages.
SHIPPED = "node_modules/@uniswap/v4-core/lib/openzeppelin-contracts"
# The test files that run: at most ten minutes, with contracts of all kinds.
FILES = (
    r"access/(?!manager/AccessManager\.)|finance/|governance/(TimelockController|utils/)|metatx/"
    r"|proxy/|token/ERC20/|token/ERC1155/|token/ERC721/(ERC721\.|extensions/(?!ERC721Wrapper))"
)
FEWEST = 1200
OWN = "hardhat-helpers.test.js"
OURS = ["hardhat.config.js", "reporter.js", "reverts.js"]
# Seconds for compiling and for a run of the tests.
COMPILE_LIMIT, RUN_LIMIT = 1800, 5400


class Hardhat:
    """A project of the tests, with the results from Hardhat's own network."""

    def __init__(self, checkout, files):
        self.checkout = Path(checkout).resolve() if checkout else None
        if self.checkout and not (self.checkout / "test").is_dir():
            fail(f"{checkout} is no checkout of OpenZeppelin's contracts: it has no folder test")
        self.files = files or ("" if checkout else FILES)
        self.base = nodekit.cache_folder("openzeppelin")
        name = hashlib.sha256(str(self.checkout).encode()).hexdigest()[:12] if checkout else "5.0.2"
        self.folder = self.base / name
        self.expected = {}

    def prepare(self, again):
        """Installs and compiles, and runs in Hardhat's own network unless its results are cached."""
        nodekit.with_npm(self.base, NPM)
        self.lay_out()
        self.compile()
        chosen = self.chosen()
        digest = hashlib.sha256("\n".join([self.stamp(), *chosen]).encode()).hexdigest()[:12]
        report = self.folder / f"own-network-{digest}.json"
        if again or not report.exists():
            print(f"hardhat: {len(chosen)} files in Hardhat's own network", flush=True)
            made = self.folder / "own-network.partial"
            self.run("hardhat", None, made)
            made.rename(report)
        results = read(report)
        self.expected = {key: each for key, each in results.items() if each["result"] == "passed"}
        if not self.checkout and len(self.expected) < FEWEST:
            fail(f"only {len(self.expected)} tests pass in Hardhat's own network: see {report}")
        failed = sum(each["result"] == "failed" for each in results.values())
        return f"{len(self.expected)} tests pass in Hardhat's own network, {failed} fail"

    def lay_out(self):
        """The project: a copy of the tests and contracts with our configuration."""
        if not self.folder.exists():
            source = self.checkout or self.base / SHIPPED
            skip = shutil.ignore_patterns(
                ".git", "node_modules", "artifacts", "cache", "contracts-exposed"
            )
            partial = self.folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(source, partial, ignore=skip)
            partial.rename(self.folder)
        for name in OURS:
            shutil.copy(HERE / name, self.folder / name)
        shutil.copy(HERE / "helpers.test.js", self.folder / "test" / OWN)

    def stamp(self):
        """The inputs that the results in Hardhat's own network depend on."""
        parts = [json.dumps(NPM), SOLC, EVM, *(self.folder / name for name in OURS)]
        parts.append(self.folder / "test" / OWN)
        texts = [part if isinstance(part, str) else part.read_text() for part in parts]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def chosen(self):
        tests = self.folder / "test"
        paths = sorted(path.relative_to(tests).as_posix() for path in tests.rglob("*.test.js"))
        return [f"test/{p}" for p in paths if p == OWN or re.match(self.files, p)]

    def hardhat(self, arguments, env, limit, log):
        command = ["node", str(self.base / "node_modules" / ".bin" / "hardhat"), *arguments]
        # Pass only the needed environment: the tests' configuration reads it.
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        env = kept | {"SOLC": SOLC, "EVM": EVM, "HARDHAT_DISABLE_TELEMETRY_PROMPT": "true"} | env
        with open(log, "wb") as output:
            try:
                return subprocess.run(
                    command, cwd=self.folder, env=env, timeout=limit,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return None

    def compile(self):
        done = self.folder / "compiled"
        if done.exists():
            return
        print("hardhat: compiling, which takes some minutes", flush=True)
        log = self.folder / "compile.log"
        if self.hardhat(["compile"], {}, COMPILE_LIMIT, log) != 0:
            fail(f"the contracts do not compile: see {log}\n{last(log)}")
        done.touch()

    def run(self, network, url, report):
        """Runs the tests. Hardhat's exit code is the number of failures, so the report decides."""
        arguments = ["test", "--no-compile", "--network", network, *self.chosen()]
        env = {"REPORT": str(report)} | ({"URL": url} if url else {})
        report.unlink(missing_ok=True)
        log = self.folder / f"{network}.log"
        code = self.hardhat(arguments, env, RUN_LIMIT, log)
        if code is None:
            return f"the tests have not ended within {RUN_LIMIT} s"
        if not report.exists() or report.stat().st_size == 0:
            fail(f"no test has run: see {log}\n{last(log)}")
        return ""

    def on_node(self, url):
        """Runs the tests on a node: whether they match, and the differences."""
        report = self.folder / "node.json"
        said = self.run("localhost", url, report)
        results = read(report)
        lines = [said] if said else []
        for (file, name, number), _ in self.expected.items():
            found = results.get((file, name, number))
            if found is None:
                lines.append(f"{file}: {name}: has not run")
            elif found["result"] != "passed":
                reason = (found.get("message") or found["result"]).replace("\n", " / ")
                lines.append(f"{file}: {name}: {reason[:400]}")
        good = len(self.expected) - (len(lines) - bool(said))
        summary = f"{good} of {len(self.expected)} tests that pass in Hardhat's own network pass"
        return not lines, "\n  ".join([summary, *lines])


def read(report):
    """The results by file, name, and index among equal names."""
    results, seen = {}, collections.Counter()
    for line in report.read_text().splitlines():
        test = json.loads(line)
        name = (test["file"], test["name"])
        seen[name] += 1
        results[(*name, seen[name])] = test
    return results


def last(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
