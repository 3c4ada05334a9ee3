"""Shared by the scripts that start nodes: finding the programs, starting and stopping nodes of geth
and retrie, JSON-RPC, and Python packages outside the standard library.

A node's kind is `geth`, an installed program; `geth:1.17.10`, a node built here from go-ethereum's
packages of that version; or `retrie:BACKEND`, followed by `+REFEREE` for a referee, as in
`retrie:mpt` or `retrie:lvmt+mpt`. All servers listen on loopback, on ports that were free.
"""

import base64
import functools
import hashlib
import hmac
import http.client
import json
import os
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

LIB = Path(__file__).resolve().parent
ROOT = LIB.parents[1]
GETH = "v1.17.8"
# Seconds that a node may take for its first response, and for any other.
START_LIMIT, ANSWER_LIMIT = 120, 60
# Patterns of errors in the logs of geth and retrie, and a false error that geth logs after a
# finished sync.
ERRORS = re.compile(r"^(\S+ +)?(ERROR|CRIT|Fatal|panic)\b|panicked at")
NO_ERROR = "Cleaning spurious beacon sync leftovers"
# Ports given out already.
GIVEN = set()


def fail(line):
    sys.exit(f"error: {line}")


def find_geth(given, needed=True):
    """Geth's program, from --geth, PATH or the folder of `go install`; None if it is not needed."""
    places = [given] if given else ["geth", str(Path.home() / "go" / "bin" / "geth")]
    for place in places:
        found = shutil.which(place)
        if found:
            return found
    if not needed:
        return None
    install = f"GOFLAGS=-p=1 go install github.com/ethereum/go-ethereum/cmd/geth@{GETH}"
    fail(f"there is no geth at {' or '.join(places)}: get it with `{install}`, or give --geth BIN")


def find_geth_packages(kind):
    """The program of a kind like `geth:1.17.10`."""
    module, version = LIB / "gethnode" / "go.mod", kind.removeprefix("geth:")
    if f"github.com/ethereum/go-ethereum v{version}\n" not in module.read_text():
        fail(f"there is no `{kind}`: {module} names the version of go-ethereum")
    return go_program("gethnode")


@functools.cache
def go_program(name):
    """A Go program of this folder, built in the cache if missing."""
    source = LIB / name
    files = sorted(file for file in source.iterdir() if file.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    program = cache_folder(f"{name}-{digest}") / name
    if not program.exists():
        if not shutil.which("go"):
            fail(f"`{name}` is built with Go, which is not on PATH")
        print(f"building {name} into {program.parent}", flush=True)
        unfinished = program.with_name(f"unfinished-{os.getpid()}")
        run(
            ["go", "build", "-C", source, "-buildvcs=false", "-mod=readonly", "-o", unfinished, "."]
        )
        unfinished.rename(program)
    return str(program)


def find_programs(kinds, geth, retrie):
    """The programs for nodes of these kinds, by kind; all kinds of retrie share one. `geth` and
    `retrie` are paths from the command line or None."""
    programs = {}
    for kind in kinds:
        if kind.startswith("retrie:"):
            programs["retrie"] = find_retrie(retrie)
        elif kind.startswith("geth:"):
            programs[kind] = find_geth_packages(kind)
        elif kind == "geth":
            programs[kind] = find_geth(geth)
    return programs


def system_contracts(retrie):
    """The contracts that blocks call, and the deposit contract: all accounts with code in Hoodi's
    genesis."""
    command = [str(retrie), "dump-genesis", "--chain", "hoodi"]
    genesis = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {address: of for address, of in genesis["alloc"].items() if of.get("code", "0x") != "0x"}


def find_retrie(given):
    path = Path(given) if given else ROOT / "target" / "release" / "retrie"
    if not shutil.which(str(path)):
        fail(f"there is no retrie at {path}: build it with `cargo build --release -p retrie`")
    return str(path.resolve())


def run(command):
    """Runs a command that must succeed; returns its output."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        last = done.stdout.strip().splitlines()[-12:]
        fail("\n".join([f"exit code {done.returncode}: {shlex.join(command)}", *last]))
    return done.stdout


def cache_folder(name):
    """A folder that outlives the script, below $XDG_CACHE_HOME or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "retrie-scripts" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def with_packages(packages):
    """Restarts the script in a virtual environment with these PyPI packages, which is made if
    missing."""
    digest = hashlib.sha256(" ".join([sys.version, *packages]).encode()).hexdigest()[:12]
    folder = cache_folder(f"python-{digest}")
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        print(f"installing {', '.join(packages)} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        done.touch()
    sys.stdout.flush()
    os.execv(python, [str(python), *sys.argv])


def with_npm(folder, packages):
    """Installs these npm packages, by name and version, into a folder, unless they are installed."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            fail(f"there is no {program}: install Node.js, or leave out what needs it with --only")
    wanted = {"name": folder.name, "private": True, "dependencies": packages}
    package = folder / "package.json"
    if package.exists() and json.loads(package.read_text()) == wanted:
        return
    names = ", ".join(f"{name} {version}" for name, version in packages.items())
    print(f"installing {names} into {folder}", flush=True)
    package.write_text(json.dumps(wanted))
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        package.unlink()
        fail(f"npm cannot install them: {done.stderr.strip()}")


def wait_until(what, limit, is_so, pause=0.05):
    """Waits `limit` seconds for `is_so()`, or ends with an error."""
    deadline = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > deadline:
            fail(f"{what}: not within {limit} s")
        time.sleep(pause)


def free_ports(count):
    """Loopback ports without a listener that were not given out before. They are below the system's
    range for outgoing connections, which might take one before it is used."""
    ports = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in GIVEN:
            GIVEN.add(port)
            ports.append(port)
    return ports


# -- JSON-RPC --------------------------------------------------------------------------------------


class RpcError(Exception):
    """The error object of an answer."""

    def __init__(self, method, error):
        self.method, self.code = method, error.get("code")
        self.message, self.data = error.get("message", ""), error.get("data")
        super().__init__(f"{method}: {self.code}: {self.message}")


def bearer(secret):
    """An Engine API token for now; `secret` has 32 bytes."""

    def text(raw):
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    head = text(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = head + b"." + text(json.dumps({"iat": int(time.time())}).encode())
    return (body + b"." + text(hmac.new(secret, body, hashlib.sha256).digest())).decode()


class Rpc:
    """JSON-RPC over HTTP, with one kept-alive connection for each thread."""

    def __init__(self, port, secret=None):
        self.port, self.secret = port, secret
        self.local = threading.local()

    def post(self, body):
        """Status and bytes of the response to these bytes."""
        headers = {"Content-Type": "application/json"}
        if self.secret:
            headers["Authorization"] = f"Bearer {bearer(self.secret)}"
        for fresh in (False, True):
            connection = getattr(self.local, "connection", None)
            if fresh or connection is None:
                connection = http.client.HTTPConnection(
                    "127.0.0.1", self.port, timeout=ANSWER_LIMIT
                )
                self.local.connection = connection
            try:
                connection.request("POST", "/", body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (ConnectionError, http.client.HTTPException):
                # A kept-alive connection may have been closed; a new one may not.
                connection.close()
                self.local.connection = None
                if fresh:
                    raise

    def raw(self, request):
        """The decoded response to a request object or a batch."""
        status, body = self.post(json.dumps(request))
        try:
            return json.loads(body)
        except ValueError:
            raise ConnectionError(f"status {status}: {body[:200]!r}") from None

    def ask(self, method, *params):
        """The response object, with `result` or `error`."""
        return self.raw({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})

    def call(self, method, *params):
        answer = self.ask(method, *params)
        if "error" in answer:
            raise RpcError(method, answer["error"])
        return answer["result"]


# -- an open loop of requests ----------------------------------------------------------------------


def open_loop(node, bodies, rate, seconds, connections=64, warmup=0, nulls_allowed=False):
    """Sends a node the request bodies of a file, one on each line, at a fixed rate; returns what
    `openloop`, beside this file, reports: latencies and its own lag in microseconds."""
    command = [
        go_program("openloop"), "-address", f"127.0.0.1:{node.http_port}", "-bodies", bodies,
        "-rate", rate, "-warmup", f"{warmup}s", "-length", f"{seconds}s",
        "-connections", connections, f"-nulls-allowed={str(nulls_allowed).lower()}",
    ]  # fmt: skip
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"openloop: {done.stderr.strip()}")
    return json.loads(done.stdout)


# -- nodes -----------------------------------------------------------------------------------------


class Node:
    """A process that serves a chain. `genesis` is a file; None runs a dev chain (retrie only). With
    a `peer_port` the node has peers; `discovery` sets how it looks for them (retrie only)."""

    is_geth = False
    peer_port = 0

    def __init__(self, kind, name, folder, genesis, program, extra=()):
        self.kind, self.name, self.genesis, self.program = kind, name, genesis, program
        self.folder = Path(folder) / name
        self.datadir, self.log = self.folder / "data", self.folder / "log"
        self.secret_file = self.folder / "jwt.hex"
        self.folder.mkdir(parents=True)
        secret = secrets.token_bytes(32)
        self.secret_file.write_text(secret.hex())
        self.http_port, self.ws_port, self.auth_port = free_ports(3)
        self.rpc, self.engine = Rpc(self.http_port), Rpc(self.auth_port, secret)
        self.extra = [str(flag) for flag in extra]
        self.process = None

    def launch(self):
        """Starts the process without waiting for its first response."""
        command = [str(part) for part in self.command()]
        with open(self.log, "ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            # A process group of its own: Ctrl-C reaches only the script, which stops the nodes.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def start(self):
        self.launch()
        deadline = time.monotonic() + START_LIMIT
        while True:
            if self.process.poll() is not None:
                fail(f"{self.name} ended with {self.process.returncode}:\n{self.last_lines()}")
            try:
                self.rpc.call("eth_chainId")
                if not self.is_dev():
                    self.engine.call("engine_exchangeCapabilities", [])
                return self
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    fail(
                        f"{self.name} does not answer {START_LIMIT} s after its start:\n{self.last_lines()}"
                    )
                time.sleep(0.1)

    def stop(self, kill=False):
        """Stops it; returns the exit code."""
        if self.process is None or self.process.poll() is not None:
            return None
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            return self.process.wait(ANSWER_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            fail(f"{self.name} has not ended {ANSWER_LIMIT} s after SIGTERM:\n{self.last_lines()}")

    def last_lines(self, count=12):
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-count:])

    def complaints(self):
        """Lines of its log with errors."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if ERRORS.search(line) and NO_ERROR not in line]

    def is_dev(self):
        return self.genesis is None

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    # -- peers -----------------------------------------------------------------------------------

    def enode(self):
        """Its enode URL on loopback, whatever address it announces."""
        said = self.rpc.call("admin_nodeInfo")["enode"]
        key = re.match(r"enode://([0-9a-f]{128})@", said)
        if not key:
            fail(f"{self.name} gives no enode: {said}")
        return f"enode://{key[1]}@127.0.0.1:{self.peer_port}"

    def peer_count(self):
        return int(self.rpc.call("net_peerCount"), 16)


class Geth(Node):
    APIS = "eth,net,web3,debug,txpool,admin"
    is_geth = True
    syncmode = "full"

    def command(self):
        if not self.datadir.exists():
            scheme = ["--state.scheme", "path"]
            run([self.program, "init", "--datadir", self.datadir, *scheme, self.genesis])
        chain_id = json.loads(Path(self.genesis).read_text())["config"]["chainId"]
        return [
            self.program, "--datadir", self.datadir, "--networkid", chain_id,
            "--nodiscover", "--maxpeers", 20 if self.peer_port else 0, "--port", self.peer_port,
            "--ipcdisable", "--nat", "none",
            "--syncmode", self.syncmode, "--cache", 256,
            "--http", "--http.port", self.http_port, "--http.api", self.APIS,
            "--ws", "--ws.port", self.ws_port, "--ws.api", self.APIS,
            "--authrpc.port", self.auth_port, "--authrpc.jwtsecret", self.secret_file,
            *self.extra,
        ]  # fmt: skip


class GethPackages(Geth):
    """`gethnode`, beside this file, which creates its datadir itself."""

    def command(self):
        return [
            self.program, "--datadir", self.datadir, "--genesis", self.genesis,
            "--port", self.peer_port, "--syncmode", self.syncmode,
            "--http.port", self.http_port, "--http.api", self.APIS, "--ws.port", self.ws_port,
            "--authrpc.port", self.auth_port, "--authrpc.jwtsecret", self.secret_file,
            *self.extra,
        ]  # fmt: skip


class Retrie(Node):
    APIS = "eth,net,web3,debug,trace,txpool,admin,state"
    native = False
    discovery = ("--disable-discovery",)

    def command(self):
        backend, _, referee = self.kind.removeprefix("retrie:").partition("+")
        command = [
            self.program, "node", "--datadir", self.datadir, "--state-backend", backend,
            "--http", "--http.port", self.http_port, "--http.api", self.APIS,
            "--ws", "--ws.port", self.ws_port, "--ws.api", self.APIS, "--ipcdisable",
            "--authrpc.port", self.auth_port, "--authrpc.jwtsecret", self.secret_file,
        ]  # fmt: skip
        # A dev chain has no peers anyway.
        peers = ["--addr", "127.0.0.1", "--port", self.peer_port, *self.discovery]
        command += ["--dev"] if self.is_dev() else ["--chain", self.genesis, *peers]
        if referee:
            command += ["--referee", referee]
        if self.native:
            command += ["--state-root", "native"]
        return command + self.extra


def make_node(kind, name, folder, genesis, programs, extra=(), native=False):
    """`programs` are those of `find_programs`; `extra` are flags of retrie."""
    if kind == "geth":
        return Geth(kind, name, folder, genesis, programs[kind])
    if kind.startswith("geth:"):
        return GethPackages(kind, name, folder, genesis, programs[kind])
    if kind.startswith("retrie:"):
        node = Retrie(kind, name, folder, genesis, programs["retrie"], extra)
        node.native = native
        return node
    fail(f"`{kind}` is no kind of node: there are geth, geth:VERSION and retrie:BACKEND[+REFEREE]")


# -- comparing answers -----------------------------------------------------------------------------


def differences(one, other, path=""):
    """The differences of two decoded responses: a list of path, first value, second value. Missing
    fields are marked as such."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted(one.keys() | other.keys()):
            here, there = one.get(key, MISSING), other.get(key, MISSING)
            found += differences(here, there, f"{path}.{key}" if path else key)
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            each
            for index, (here, there) in enumerate(zip(one, other))
            for each in differences(here, there, f"{path}[{index}]")
        ]
    # JSON has one number type, but true is not 1.
    same = one == other and isinstance(one, bool) == isinstance(other, bool)
    return [] if same else [(path, one, other)]


class Missing:
    """Marks a missing field."""

    def __repr__(self):
        return "no such field"


MISSING = Missing()
