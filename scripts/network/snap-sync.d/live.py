"""Joins while the head moves, with reorgs: this script is the consensus client of the server and of the
nodes that join."""

import http.client
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from made import tell
from nodekit import fail
from nodes import (
    Killer, check_end, disk_mib, fetched, forget_peak, name_of, new_node, peak_mib, pivots, snap_versions,
)  # fmt: skip
from relay import Relay


class Joiner:
    """A node that joins, and what the driver has seen of it."""

    def __init__(self, kind, folder, made, programs, server, enode, kills, chance):
        self.kind = kind
        extra = ["--syncmode", "snap", "--trusted-peers", enode]
        node = new_node(kind, name_of(kind, "live", "from", server.name), folder, made, programs, extra)
        self.node, self.killer = node, None
        self.joined, self.agreed, self.reorgs = None, 0, 0
        if node.is_geth:
            node.syncmode = "snap"
        self.started = time.monotonic()
        node.start()
        forget_peak(node)
        if node.is_geth:
            node.rpc.call("admin_addPeer", enode)
        elif kills:
            self.killer = Killer(node, kills, chance)
            self.killer.start()

    def take(self, slot, at):
        """Gives it the payloads and the head of a slot."""
        try:
            status = tell(self.node, *slot.payloads)[1]
        except (OSError, http.client.HTTPException):
            # Between the node that waits and the one that has the state, or killed.
            if not self.node.is_running() and not self.is_killed:
                fail(f"{self.kind} has ended:\n{self.node.last_lines()}")
            status = None
        allowed = ["VALID", "SYNCING"]
        if self.joined and not self.killer:
            allowed = ["VALID"]
        elif not self.joined or self.is_killed:
            allowed.append(None)
        if status not in allowed:
            number = slot.head.number
            fail(f"{self.kind} calls block {number}, slot {at}, {status}:\n{self.node.last_lines()}")
        if status != "VALID":
            self.agreed = 0
            return
        if not self.joined:
            self.joined = time.monotonic() - self.started, slot.head.number
        self.agreed += 1
        self.reorgs += slot.is_side

    @property
    def is_killed(self):
        """Whether kills are still to come."""
        return self.killer is not None and not self.killer.is_over

    def is_done(self, after):
        return self.joined and self.agreed >= after and not self.is_killed

    def finish(self, after, least_pivots):
        """Stops it; what was measured."""
        if self.killer:
            self.killer.is_over = True
            self.killer.join()
            if self.killer.fault:
                fail(self.killer.fault)
        if not self.is_done(after):
            said = f"has agreed on the last {self.agreed} heads" if self.joined else "has not joined"
            fail(f"{self.kind} {said}, not on {after}: give more blocks (--live)\n{self.node.last_lines()}")
        took, number = self.joined
        used, peak = pivots(self.node), peak_mib(self.node)
        if len(used) < least_pivots:
            fail(f"{self.kind} used {len(used)} pivots ({used}), not {least_pivots}: see --help")
        result = {"seconds": took, "valid_from": number, "agreed": self.agreed}
        result |= {"reorgs": self.reorgs, "pivots": len(used), "peak_mib": peak}
        if self.node.is_geth:
            self.node.stop()
        else:
            check_end(self.node, self.kind)
            result["fetched"] = fetched(self.node)
        if self.killer:
            result["kills"] = self.killer.said()
        result["disk_mib"] = disk_mib(self.node.datadir)
        shutil.rmtree(self.node.folder)
        return result


def join(kinds, folder, made, programs, server, args, chance):
    """Lets nodes join all at once while the slots pass; what was measured, by kind."""
    joiners, versions, calm, serving = [], set(), [], []
    after = min(args.after, max(1, (len(made.slots) - args.calm) // 3))
    relay = Relay(server.enode(), args.rate) if args.rate else None
    enode = relay.enode if relay else server.enode()
    for at, slot in enumerate(made.slots):
        if at == args.calm:
            with ThreadPoolExecutor(len(kinds)) as pool:
                started = lambda kind: Joiner(  # noqa: E731
                    kind, folder, made, programs, server, enode, args.kills, chance
                )
                joiners = list(pool.map(started, kinds))
        begun = time.monotonic()
        took, status = tell(server, *slot.payloads)
        if status != "VALID":
            fail(f"{server.name} calls block {slot.head.number} {status}:\n{server.last_lines()}")
        if not slot.is_side and not all(joiner.joined for joiner in joiners):
            serving.append(took)
        elif not slot.is_side and not joiners:
            calm.append(took)
        for joiner in joiners:
            joiner.take(slot, at)
        snap_versions(server, versions)
        if joiners and not slot.is_side and all(joiner.is_done(after) for joiner in joiners):
            break
        # Nobody is in a hurry once all have joined.
        if not joiners or not all(joiner.joined and not joiner.is_killed for joiner in joiners):
            time.sleep(max(0, args.slot_time - (time.monotonic() - begun)))
    results = {joiner.kind: joiner.finish(after, args.pivots) for joiner in joiners}
    if relay:
        relay.close()
    for result in results.values():
        result["snap"] = sorted(versions)
        result |= slowed(calm, serving)
    return results


def slowed(calm, serving):
    """How much slower the server's newPayload is while nodes join."""
    if len(calm) < 5 or len(serving) < 5:
        return {}
    calm, serving = statistics.median(calm), statistics.median(serving)
    return {"server_ms": calm * 1e3, "serving_ms": serving * 1e3, "slowed": serving / calm}
