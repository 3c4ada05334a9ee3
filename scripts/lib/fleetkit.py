"""Shared by the scripts that test fleets: the replayed blocks, a replay in one process, and the
comparison with a merged report."""

import json
import os
import time
from pathlib import Path

import nodekit


def inputs(repeat):
    data = Path(os.environ.get("RETRIE_DATA") or nodekit.ROOT.parent / "shared" / "data")
    folders = [data / "mainnet" / name for name in ("witness", "prestate")]
    for folder in folders:
        if not folder.is_dir():
            nodekit.fail(f"there is no {folder}: RETRIE_DATA says where the mainnet data is")
    return [str(folder.resolve()) for folder in folders] * repeat


def facts(report):
    """Results without the parts that depend on the machine and the time."""
    names = ["backend", "chain", "from", "to", "blocks", "txs", "gas", "ok", "failures", "root"]

    def outcome(bundle):
        return {name: value for name, value in bundle.items() if name != "seconds"}

    return [
        {name: result[name] for name in names} | {"bundles": [outcome(b) for b in result["bundles"]]}
        for result in report["results"]
    ]


def compare(whole, merged):
    """Fails unless both reports have the same results; prints what was compared."""
    whole, merged = (json.loads(Path(file).read_text()) for file in (whole, merged))
    if not merged["complete"]:
        nodekit.fail(f"parts are missing: {merged['merged']['missing']}")
    for one, fleet in zip(facts(whole), facts(merged), strict=True):
        # A root that depends on the whole history differs after another history.
        pure = one["backend"] in ("mpt", "mpt-archive", "prefix", "raw")
        for name in one:
            if one[name] != fleet[name] and (pure or name != "root"):
                nodekit.fail(f"{one['backend']}: {name} differs from that of one process")
        print(f"{one['backend']}: {one['blocks']} blocks, {one['txs']} txs, {one['gas']} gas: the same")


def one_process(program, arguments, folder, name, pin=()):
    """Replays everything in one process; returns the report and the wall-clock seconds."""
    report = Path(folder) / f"{name}.json"
    began = time.monotonic()
    nodekit.run([*pin, program, "replay", "--json", report, *arguments])
    return report, time.monotonic() - began
