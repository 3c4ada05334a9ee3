"""Known differences, with their reasons."""

import re

from nodekit import MISSING

# Tracer, path, pattern of geth's and of retrie's value, reason. If one side has an error, the path
# is `error`, and the other side's result is compared field by field with an empty one.
KNOWN = []
CRASH = "method handler crashed"


def text(value):
    return "missing" if value is MISSING else str(value)


def whole(tracer, geth, retrie):
    """The reason why two whole responses may differ; None if they must be compared."""
    crashed = geth.get("error", {}).get("message") == CRASH
    if crashed and tracer.startswith("erc7562") and "result" in retrie:
        return "erc7562Tracer of geth reads below the stack of an opcode that lacks its items, and crashes"
    return None


def reason(tracer, path, geth, retrie):
    """The reason why two values may differ; None if they must be equal."""
    for tracers, paths, here, there, why in KNOWN:
        matches = re.fullmatch(tracers, tracer) and re.fullmatch(paths, path)
        if matches and re.fullmatch(here, text(geth), re.S) and re.fullmatch(there, text(retrie), re.S):
            return why
    return None
