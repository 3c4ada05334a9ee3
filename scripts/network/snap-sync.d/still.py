"""Joins of a named block, whose state its servers keep."""

import http.client
import shutil
import time

import nodekit
from made import tell
from nodekit import fail
from nodes import (
    LIMIT, Killer, begun, check_end, disk_mib, fetched, name_of, new_node, peak_mib, snap_versions,
)  # fmt: skip


def join(kind, folder, made, programs, server, kills, chance):
    """Lets a node join; what was measured."""
    name = name_of(kind, "from", server.name)
    if kind.startswith("geth"):
        return join_geth(kind, name, folder, made, programs, server)
    return join_retrie(kind, name, folder, made, programs, server, kills, chance)


def join_geth(kind, name, folder, made, programs, server):
    node, versions = new_node(kind, name, folder, made, programs), set()
    node.syncmode = "snap"
    started = time.monotonic()
    node.start()
    node.rpc.call("admin_addPeer", server.enode())
    while True:
        tell(node, made.head)
        snap_versions(server, versions)
        if int(node.rpc.call("eth_blockNumber"), 16) == made.end:
            break
        if time.monotonic() > started + LIMIT:
            fail(f"{name} has not joined within {LIMIT} s:\n{node.last_lines()}")
        time.sleep(0.25)
    took, peak = time.monotonic() - started, peak_mib(node)
    for payload in made.payloads[made.end + 1 :]:
        if tell(node, payload)[1] != "VALID":
            fail(f"{name} does not call block {payload.number} VALID:\n{node.last_lines()}")
    node.stop()
    result = {"seconds": took, "peak_mib": peak, "disk_mib": disk_mib(node.datadir), "snap": sorted(versions)}
    shutil.rmtree(node.folder)
    return result


def join_retrie(kind, name, folder, made, programs, server, kills, chance):
    extra = ["--checkpoint", made.head.hash, "--state.keys", "hashed", "--trusted-peers", server.enode()]
    node, versions = new_node(kind, name, folder, made, programs, extra), set()
    result = {}
    if kills:
        node.launch()
        killer = Killer(node, kills, chance)
        killer.start()
        killer.join()
        if killer.fault:
            fail(killer.fault)
        node.stop(kill=True)
        result["kills"] = killer.said()
    started = time.monotonic()
    node.launch()
    while not begun(node):
        if not node.is_running() or time.monotonic() > started + LIMIT:
            fail(f"{name} has not joined:\n{node.last_lines()}")
        snap_versions(server, versions)
        time.sleep(0.05)
    took = time.monotonic() - started
    nodekit.wait_until(f"{name} answers", 60, lambda: answers(node), 0.1)
    # Its body is not there; the blocks imported below must be its children.
    if int(node.rpc.call("eth_blockNumber"), 16) != made.end:
        fail(f"{name} is not at the head of its server")
    peak = peak_mib(node)
    check_end(node, kind)
    referee = kind.partition("+")[2]
    referee = ["--referee", referee] if referee else []
    nodekit.run([node.program, "import", "--datadir", node.datadir, *referee, made.last])
    result |= {"seconds": took, "peak_mib": peak, "disk_mib": disk_mib(node.datadir)}
    result |= {"snap": sorted(versions), "fetched": fetched(node)}
    shutil.rmtree(node.folder)
    return result


def answers(node):
    try:
        return node.rpc.call("eth_chainId")
    except (OSError, http.client.HTTPException):
        return None
