"""Joins from ten servers, four of which lie."""

import re
import shutil
import time

import nodekit
from nodekit import fail
from nodes import LIMIT, begun, check_end, fetched, load_chain, name_of, new_node, peak_mib
from still import answers

GETH = "geth:1.17.10"
# The kinds of the honest servers of retrie.
HONEST = ["retrie:mpt", "retrie:mpt/hashed", "retrie:prefix", "retrie:prefix/hashed", "retrie:mpt/hashed"]
# What a joiner's log says of a peer that lied, and of one that gave nothing.
BANNED = re.compile(r"the peer is banned|is disconnected for an offence|why=we disconnect: (?!client quitting)")
USELESS = re.compile(r"gave no answer|lacks|does not have")
# Of a storage trie from its first slot on three wrong answers are forgiven: geth gives such ones.
FORGIVEN, MISTAKEN = 3, re.compile(r"wrong answer; the peer is asked again")
# Answers that an honest peer may give now and then: so many of them leave a peer out (docs/state-sync.md).
# An answer of 15 MiB may still be on its way when a small state is whole.
ENOUGH = {"empty": 5, "gaps": 5, "bombs": 2}


class Servers:
    """Honest nodes: five of retrie and a geth. The liars are geths whose answers are changed."""

    def __init__(self, folder, made, programs):
        self.folder, self.made, self.programs = folder, made, programs
        self.origins, self.nodes = {}, []
        for count, kind in enumerate([*HONEST, GETH]):
            self.nodes.append(self.start(kind, f"honest-{count}"))

    def start(self, kind, name, extra=()):
        """A node on a copy of the datadir of its kind, which is made once."""
        of, _, form = kind.partition("/")
        if kind not in self.origins:
            origin = new_node(of, name_of("origin", kind), self.folder, self.made, self.programs)
            load_chain(origin, of, self.made, form)
            self.origins[kind] = origin.datadir
        flags = ["--snap.serve", "true"] if kind.startswith("retrie:") else list(extra)
        node = new_node(of, name, self.folder, self.made, self.programs, flags)
        node.extra = flags
        # A copy has the same chain and another key.
        ignored = shutil.ignore_patterns("lock", "LOCK", "nodekey", "jwt*", "p2p*", "peers*", "discovery*")
        shutil.copytree(self.origins[kind], node.datadir, ignore=ignored)
        return node.start()

    def stop(self):
        for node in self.nodes:
            node.stop()
            shutil.rmtree(node.folder)


def lies(node):
    return node.log.read_text(errors="replace").count("Lied")


def key_of(node):
    """How logs of retrie name a peer."""
    return re.search("enode://([0-9a-f]{12})", node.enode())[1]


def join(kind, folder, made, programs, servers, names):
    """Lets a node of retrie join from the honest servers and liars with these names; what was
    measured, and what the joiner says of each liar."""
    liars = [servers.start(GETH, f"liar-{at}-{name}", ["-lie", name]) for at, name in enumerate(names)]
    enodes = [node.enode() for node in [*liars, *servers.nodes]]
    extra = ["--checkpoint", made.head.hash, "--state.keys", "hashed", "--trusted-peers", ",".join(enodes)]
    node = new_node(kind, name_of(kind, "among", *names), folder, made, programs, [*extra, "-vvvv"])
    started = time.monotonic()
    node.launch()
    while not begun(node):
        if not node.is_running() or time.monotonic() > started + LIMIT:
            fail(f"{node.name} has not joined:\n{node.last_lines()}")
        time.sleep(0.05)
    took, peak = time.monotonic() - started, peak_mib(node)
    said = {f"{name} {at}": verdict(name, node, liar) for at, (name, liar) in enumerate(zip(names, liars))}
    honest = [other.name for other in servers.nodes if "banned" in named(node, other)]
    nodekit.wait_until(f"{node.name} answers", 60, lambda: answers(node), 0.1)
    check_end(node, kind)
    referee = kind.partition("+")[2]
    referee = ["--referee", referee] if referee else []
    nodekit.run([node.program, "import", "--datadir", node.datadir, *referee, made.last])
    result = {"seconds": took, "peak_mib": peak, "liars": said, "fetched": fetched(node)}
    unnamed = [f"its log does not name the liar {name}" for name, what in said.items() if "UNNAMED" in what]
    result["faults"] = unnamed + [f"it banned the honest {name}" for name in honest]
    for liar in liars:
        liar.stop()
        shutil.rmtree(liar.folder)
    if not result["faults"]:
        shutil.rmtree(node.folder)
    return result


def verdict(name, node, liar):
    count = lies(liar)
    if not count:
        return "was not asked"
    found = named(node, liar)
    if not found and count < ENOUGH.get(name, 1):
        return f"gave {count} useless answers, too few to be left out"
    return f"{found or 'UNNAMED'} after {count} lies"


def named(node, other):
    """What the log of a node says of another."""
    key = key_of(other)
    lines = [line for line in node.log.read_text(errors="replace").splitlines() if key in line]
    if any(BANNED.search(line) for line in lines):
        return "banned"
    if 0 < sum(bool(MISTAKEN.search(line)) for line in lines) <= FORGIVEN:
        return "mistaken"
    return "useless" if any(USELESS.search(line) for line in lines) else ""
