"""The nodes of `snap-sync`: servers with the chain, nodes that join, and what is measured of them."""

import contextlib
import re
import shutil
import threading
import time
from pathlib import Path

import nodekit
from made import tell
from nodekit import fail

# Seconds that a join may take.
LIMIT = 900
# All nodes, so that none outlives the script.
NODES = []
# Log lines of retrie with which the phases of a join begin, in their order.
PHASES = {
    "waiting": "waiting for the consensus client to name a head|looking for peers that serve",
    "fetching": r"fetching the state of block (\d+)",
    "loading": "; loading them",
    "blocks": r"has the root .*begun in [0-9.]+ s|has a chain|, state roots .* at block #?[1-9]",
}
# The same of geth, whose pivot moves while it fetches.
GETH_PIVOT = "Pivot seemingly stale, moving"


def name_of(*parts):
    return re.sub("[:/+.]", "-", "-".join(parts))


def new_node(kind, name, folder, made, programs, extra=()):
    """A node with a port for peers; not yet started."""
    node = nodekit.make_node(kind, name, folder, made.genesis, programs, extra)
    node.peer_port = nodekit.free_ports(1)[0]
    NODES.append(node)
    return node


def kill_all():
    for node in NODES:
        node.stop(kill=True)


def load_chain(node, kind, made, form="", file=None):
    """Gives a stopped node a datadir with the blocks of a file, by default those that servers have."""
    file = file or made.first
    if kind == "geth":
        scheme = ["--state.scheme", "path"]
        nodekit.run([node.program, "init", "--datadir", node.datadir, *scheme, made.genesis])
        nodekit.run([node.program, "import", "--datadir", node.datadir, *scheme, "--nocompaction", file])
    elif kind.startswith("geth:"):
        # It has no import.
        node.start()
        new = made.payloads[1:] if file == made.all else made.payloads[1 : made.end + 1]
        for payload in new:
            if tell(node, payload)[1] != "VALID":
                fail(f"{node.name} does not call block {payload.number} VALID:\n{node.last_lines()}")
        node.stop()
    else:
        backend, _, referee = kind.removeprefix("retrie:").partition("+")
        keys = ["--state.keys", form] if form else []
        referee = ["--referee", referee] if referee else []
        nodekit.run(
            [node.program, "import", "--datadir", node.datadir, "--chain", made.genesis,
             "--state-backend", backend, *keys, *referee, file]
        )  # fmt: skip


def start_server(kind, folder, made, programs, is_kept=False):
    """A node with the blocks up to `made.end`; with `is_kept`, the next one begins with a copy of its state."""
    kind, _, form = kind.partition("/")
    # With plain keys a node serves no states by default.
    node = new_node(kind, name_of("server", kind, form), folder, made, programs, ["--snap.serve", "true"])
    loaded = Path(folder) / name_of("loaded", kind, form)
    if loaded.exists():
        shutil.copytree(loaded, node.datadir)
    else:
        load_chain(node, kind, made, form)
        if is_kept:
            shutil.copytree(node.datadir, loaded)
    node.start()
    number = int(node.rpc.call("eth_blockNumber"), 16)
    if number != made.end:
        fail(f"{node.name} is at block {number}, not {made.end}")
    return node


def phase(node):
    """The phase of a join that the log of its last start shows; None before the first."""
    log = node.log.read_text(errors="replace").rpartition("\n$ ")[2]
    found = [name for name, line in PHASES.items() if re.search(line, log)]
    return found[-1] if found else None


def begun(node):
    """Whether a node of retrie has the state, in this run or an earlier one."""
    return re.search(PHASES["blocks"], node.log.read_text(errors="replace"))


def pivots(node):
    """The numbers of the blocks whose states were fetched; of geth, as many as its log shows."""
    log = node.log.read_text(errors="replace")
    if node.is_geth:
        return list(range(1 + log.count(GETH_PIVOT)))
    return list(dict.fromkeys(int(number) for number in re.findall(PHASES["fetching"], log)))


def fetched(node):
    """What the log says of the last fetch."""
    lines = [line for line in node.log.read_text().splitlines() if "INFO fetched" in line]
    return lines[-1].split("INFO ")[1].removesuffix("; loading them") if lines else ""


def peak_mib(node):
    """The most memory of a running node so far, with mapped files."""
    try:
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10
    except (OSError, TypeError):
        return 0


def forget_peak(node):
    """Lets the peak of its memory begin now."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{node.process.pid}/clear_refs").write_text("5")


def disk_mib(folder):
    """The space that a folder takes."""
    files = [file for file in Path(folder).rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_blocks * 512 for file in files) / (1 << 20)


class ImportedSizes:
    """The disk space of nodes that have imported the chain, by kind."""

    def __init__(self, folder, made, programs):
        self.folder, self.made, self.programs, self.known = folder, made, programs, {}

    def of(self, kind):
        if kind not in self.known:
            node = new_node(kind, name_of("imported", kind), self.folder, self.made, self.programs)
            load_chain(node, kind, self.made, "" if node.is_geth else "hashed", self.made.all)
            self.known[kind] = disk_mib(node.datadir)
            shutil.rmtree(node.folder)
        return self.known[kind]


def snap_versions(server, seen):
    """Adds to `seen` the versions of snap that a server speaks with its peers."""
    for peer in server.rpc.call("admin_peers") or []:
        spoken = peer["protocols"].get("snap")
        # retrie lists what the peer offers, and speaks all versions itself.
        offered = [int(cap[5:]) for cap in peer["caps"] if cap.startswith("snap/")]
        if isinstance(spoken, dict) and "version" in spoken:
            seen.add(spoken["version"])
        elif offered:
            seen.add(max(offered))


class Killer(threading.Thread):
    """Kills a joining node (-9) at random moments of random phases, and starts it again."""

    # Seconds after the beginning of a phase within which it is killed, and that it waits for a phase.
    WITHIN = {"waiting": 1.0, "fetching": 2.0, "loading": 0.6, "blocks": 2.0}
    PATIENCE = 10
    # Share of the kills that come before it has the state.
    EARLY = 0.75

    def __init__(self, node, count, chance):
        super().__init__(daemon=True)
        self.node, self.count, self.chance = node, count, chance
        self.kills, self.is_over, self.fault = {}, False, None

    def run(self):
        order = list(PHASES)
        while sum(self.kills.values()) < self.count and not self.is_over:
            is_early = sum(self.kills.values()) < self.EARLY * self.count
            wanted = self.chance.choice(order[:-1]) if is_early else order[-1]
            deadline = time.monotonic() + (self.PATIENCE if is_early else LIMIT)
            while time.monotonic() < deadline and not self.is_over:
                now = phase(self.node)
                if now and order.index(now) >= order.index(wanted):
                    break
                if not self.node.is_running():
                    self.fault = f"{self.node.name} has ended:\n{self.node.last_lines()}"
                    return
                time.sleep(0.01)
            time.sleep(self.chance.uniform(0, self.WITHIN[phase(self.node) or "waiting"]))
            now = phase(self.node) or "starting"
            self.node.stop(kill=True)
            self.kills[now] = self.kills.get(now, 0) + 1
            self.node.launch()
        self.is_over = True

    def said(self):
        return "killed " + ", ".join(f"{count} times {when}" for when, count in self.kills.items())


def check_end(node, kind):
    """Stops a joined retrie, which must be sound."""
    log = node.log.read_text(errors="replace")
    if "+" in kind and "header state roots are checked by the referee" not in log:
        fail(f"{node.name} does not check its headers' roots")
    if node.stop() != 0 or node.complaints():
        fail(f"{node.name} did not end well:\n{node.last_lines()}\n" + "\n".join(node.complaints()[:5]))
    nodekit.run([node.program, "db", "verify", "--datadir", node.datadir])
