"""What the scripts that try fleets have in common: what is replayed, how one process does it, and whether a
merged report is the same."""

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
    """Results without what depends on the machine and the moment."""
    names = ["backend", "chain", "from", "to", "blocks", "txs", "gas", "ok", "failures", "root"]

    def outcome(bundle):
        return {name: value for name, value in bundle.items() if name != "seconds"}

    return [
        {name: result[name] for name in names} | {"bundles": [outcome(b) for b in result["bundles"]]}
        for result in report["results"]
    ]


def compare(whole, merged):
    """Fails unless both have the same results; says what of."""
    whole, merged = (json.loads(Path(file).read_text()) for file in (whole, merged))
    if not merged["complete"]:
        nodekit.fail(f"parts are missing: {merged['merged']['missing']}")
    for one, fleet in zip(facts(whole), facts(merged), strict=True):
        # A store whose root depends on all that it was given has another one after another history.
        pure = one["backend"] in ("mpt", "mpt-archive", "prefix", "raw")
        for name in one:
            if one[name] != fleet[name] and (pure or name != "root"):
                nodekit.fail(f"{one['backend']}: {name} differs from that of one process")
        print(f"{one['backend']}: {one['blocks']} blocks, {one['txs']} txs, {one['gas']} gas: the same")


def one_process(program, arguments, folder, name, pin=()):
    """Replays all in one process; returns the report and wall-clock seconds."""
    report = Path(folder) / f"{name}.json"
    began = time.monotonic()
    nodekit.run([*pin, program, "replay", "--json", report, *arguments])
    return report, time.monotonic() - began
