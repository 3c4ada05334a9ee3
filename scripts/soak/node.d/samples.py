"""What is sampled of the soaked node, its figures by minute, and the verdict on them."""

import math
import os
import statistics
import threading
import time
from pathlib import Path

# Seconds between samples.
EVERY = 10
# The share of the minutes that do not count, at the start.
WARMUP = 0.1
# How much the second half may have over the first: anonymous memory as a factor and in MiB, open
# descriptors (a few of which belong to calls that are just going on), and the factor of a p99.
MEMORY_FACTOR, MEMORY_MIB, DESCRIPTORS, SLOWER = 1.1, 32, 4, 1.25
SAMPLED = ("rss_mib", "anonymous_mib", "descriptors", "threads")
MIB_IN_KB = 1024


def sample(pid):
    """Memory, descriptors, threads and seconds of processor time of a process. Resident memory has
    pages of mapped files, which the kernel takes back at will; anonymous memory has not."""
    of = Path("/proc") / str(pid)
    rollup = dict(line.split(":", 1) for line in (of / "smaps_rollup").read_text().splitlines()[1:])
    kilobytes = lambda name: int(rollup[name].split()[0])
    # The name of the program, in parentheses, may contain spaces.
    stat = (of / "stat").read_text().rpartition(")")[2].split()
    return {
        "rss_mib": kilobytes("Rss") / MIB_IN_KB,
        "anonymous_mib": kilobytes("Anonymous") / MIB_IN_KB,
        "descriptors": len(os.listdir(of / "fd")),
        "threads": int(stat[17]),
        "processor_s": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    }


class Sampler(threading.Thread):
    """Samples a process in the middle of every interval; `samples` has pairs of time and sample."""

    def __init__(self, pid, began):
        super().__init__(name="sampler", daemon=True)
        self.pid, self.began, self.samples = pid, began, []
        self.done, self.trouble = threading.Event(), None

    def run(self):
        due = self.began + EVERY / 2
        while not self.done.wait(max(due - time.monotonic(), 0)):
            try:
                self.samples.append((time.monotonic(), sample(self.pid)))
            except (OSError, KeyError) as error:
                self.trouble = f"process {self.pid} cannot be sampled: {error}"
                return
            due += EVERY


def percentile(values, share):
    """The smallest value that `share` of all do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def minute_of(minute, began, sampler, times, report):
    """The figures of a minute."""
    start = began + 60 * minute
    within = lambda at: start <= at < start + 60
    taken = [each for at, each in list(sampler.samples) if within(at)]
    of = {"minute": minute}
    for name in SAMPLED:
        of[name] = statistics.median(each[name] for each in taken) if taken else None
    if len(taken) > 1:
        used = taken[-1]["processor_s"] - taken[0]["processor_s"]
        of["processors"] = used / (EVERY * (len(taken) - 1))
    for kind, pairs in list(times.items()):
        seconds = [took for at, took in list(pairs) if within(at)]
        name = kind.replace(" ", "_")
        of[f"{name}_count"] = len(seconds)
        for share in (50, 99) if seconds else ():
            of[f"{name}_p{share}_ms"] = 1e3 * percentile(seconds, share / 100)
    if report:
        of |= {"requests": report["answered"], "request_errors": report["errors"]}
        of |= {f"rpc_p{n}_ms": report[f"p{n}_us"] / 1e3 for n in (50, 99)}
        of["rpc_lag_p99_ms"] = report["lag_p99_us"] / 1e3
    return of


# -- the table -------------------------------------------------------------------------------------

COLUMNS = [
    ("RSS MiB", "rss_mib", 0),
    ("anonymous MiB", "anonymous_mib", 0),
    ("descriptors", "descriptors", 0),
    ("threads", "threads", 0),
    ("processors", "processors", 2),
    ("newPayload p50 ms", "new_payload_p50_ms", 1),
    ("p99", "new_payload_p99_ms", 1),
    ("JSON-RPC p50 ms", "rpc_p50_ms", 2),
    ("p99", "rpc_p99_ms", 1),
]


def middle(minutes, name):
    """The median of a figure over minutes; None if it is in none."""
    values = [each[name] for each in minutes if each.get(name) is not None]
    return statistics.median(values) if values else None


def table_head():
    names = ["minutes", "payloads", "requests", *(name for name, _, _ in COLUMNS)]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def table_row(minutes):
    """Sums and medians over minutes."""
    first, last = minutes[0]["minute"], minutes[-1]["minute"]
    cells = [f"{first} to {last + 1}"]
    for name in ("new_payload_count", "requests"):
        cells.append(f"{sum(each.get(name) or 0 for each in minutes):,}")
    for _, name, digits in COLUMNS:
        value = middle(minutes, name)
        cells.append("" if value is None else f"{value:,.{digits}f}")
    return f"| {' | '.join(cells)} |"


# -- the verdict -----------------------------------------------------------------------------------


def judge(minutes):
    """Compares the halves after the warm-up: lines with both medians, and those lines that tell of
    growth."""
    rest = minutes[math.ceil(WARMUP * len(minutes)) :]
    halves = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    limits = [
        ("anonymous memory, MiB", "anonymous_mib", lambda first: MEMORY_FACTOR * first + MEMORY_MIB),
        ("descriptors", "descriptors", lambda first: first + DESCRIPTORS),
        ("p99 of newPayload, ms", "new_payload_p99_ms", lambda first: SLOWER * first),
        ("p99 of JSON-RPC, ms", "rpc_p99_ms", lambda first: SLOWER * first),
    ]
    lines, growth = [], []
    for title, name, limit in limits:
        first, second = (middle(half, name) for half in halves)
        if first is None or second is None:
            growth.append(f"{title}: too few minutes for two halves")
            continue
        line = f"{title}: {first:,.1f} in the first half, {second:,.1f} in the second"
        if second > limit(first):
            growth.append(f"{line}: more than {limit(first):,.1f}")
        else:
            lines.append(f"{line}, at most {limit(first):,.1f}: ok")
    return lines, growth
