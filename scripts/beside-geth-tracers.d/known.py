"""Differences that are known, with their reasons."""

import re

from nodekit import MISSING

# Tracer, path, pattern of geth's and of retrie's value, reason.
KNOWN = []


def text(value):
    return "missing" if value is MISSING else str(value)


def reason(tracer, path, geth, retrie):
    """Why these may differ; None if they may not."""
    for tracers, paths, here, there, why in KNOWN:
        matches = re.fullmatch(tracers, tracer) and re.fullmatch(paths, path)
        if matches and re.fullmatch(here, text(geth), re.S) and re.fullmatch(there, text(retrie), re.S):
            return why
    return None
