"""Requests per second of both nodes, measured with wrk, in turns."""

import json
import re
import shutil
import statistics
import subprocess
from collections import Counter
from pathlib import Path

from nodekit import fail

# Each thread of wrk sends the bodies of a file in a loop. Responses with an error are counted in
# the first thread's summary line.
LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local at = 0
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args) wrong = 0 end
function request()
  at = at %% #bodies + 1
  return wrk.format("POST", "/", {["Content-Type"] = "application/json"}, bodies[at])
end
function response(status, headers, body)
  if status ~= 200 or not body:find('"result"', 1, true) then wrong = wrong + 1 end
end
function done(summary, latency, requests)
  local errors = 0
  for _, thread in ipairs(threads) do errors = errors + thread:get("wrong") end
  local s = summary.errors
  errors = errors + s.connect + s.read + s.write + s.timeout
  io.write(string.format("RESULT %%d %%d %%d %%f\\n", summary.requests, summary.duration, errors, latency:percentile(99)))
end
"""

# Depths below the head of the blocks whose accounts are proven.
PROVEN = (1, 8, 120)


def request(method, *params):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})


def busiest_token(chain):
    """The generated chain's token with the most transfers, and their receivers as topics; None
    without transfers."""
    transfers = {}
    for log in chain.logs:
        if len(log["topics"]) == 3:
            transfers.setdefault(log["address"], []).append(log["topics"][2])
    return max(transfers.items(), key=lambda each: len(each[1]), default=None)


def bodies_of(chain):
    """The loads: balances of all accounts, proofs of them in blocks below the head, token balances
    of the generated chain, and log searches over the whole chain, for rare receivers and for unused
    addresses."""
    people, busiest = chain.people[:5000], busiest_token(chain)
    loads = {"eth_getBalance": [request("eth_getBalance", each, "latest") for each in people]}
    for below in (number for number in PROVEN if number < chain.top):
        block = hex(chain.top - below)
        proofs = [request("eth_getProof", each, [], block) for each in people[:500]]
        loads[f"eth_getProof, {below} below"] = proofs
    if busiest:
        token, holders = busiest
        loads["eth_call"] = [
            request("eth_call", {"to": token, "input": "0x70a08231" + holder[2:]}, "latest")
            for holder in dict.fromkeys(holders[:5000])
        ]
        kinds = Counter(log["topics"][0] for log in chain.logs if log["address"] == token)
        kind = kinds.most_common(1)[0][0]
        rare = [holder for holder, _ in Counter(holders).most_common()[: -200 - 1 : -1]]
        nobody = [f"0x{number:064x}" for number in range(1 << 160, (1 << 160) + 200)]
        for load, receivers in (("rare", rare), ("none", nobody)):
            loads[f"eth_getLogs, {load}"] = [
                request(
                    "eth_getLogs",
                    {"fromBlock": "0x0", "address": token, "topics": [kind, None, receiver]},
                )
                for receiver in receivers
            ]
    return loads


def measure(wrk, node, script, seconds, connections):
    url = f"http://127.0.0.1:{node.http_port}/"
    command = [wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"RESULT (\d+) (\d+) (\d+) ([\d.]+)", done.stdout)
    if done.returncode != 0 or not found:
        fail(f"wrk: {(done.stderr or done.stdout).strip()}")
    requests, micros, errors, p99 = (float(each) for each in found.groups())
    if errors:
        fail(f"{int(errors)} of {int(requests)} answers of {node.name} were errors")
    return requests / micros * 1e6, p99


def race(chain, nodes, folder, rounds, seconds, connections):
    wrk = shutil.which("wrk")
    if not wrk:
        fail("there is no wrk: install Debian's package `wrk`, or pass --rounds 0")
    results = []
    for method, bodies in bodies_of(chain).items():
        name = re.sub(r"\W+", "-", method)
        path, script = Path(folder) / f"{name}.txt", Path(folder) / f"{name}.lua"
        path.write_text("\n".join(bodies) + "\n")
        script.write_text(LUA % path)
        rates = {node.name: [] for node in nodes}
        tails = {node.name: [] for node in nodes}
        for node in nodes:
            measure(wrk, node, script, 1, connections)
        for number in range(rounds):
            for node in nodes if number % 2 == 0 else nodes[::-1]:
                rate, tail = measure(wrk, node, script, seconds, connections)
                rates[node.name].append(rate)
                tails[node.name].append(tail)
        middle = {name: statistics.median(each) for name, each in rates.items()}
        results.append(
            {
                "method": method,
                "connections": connections,
                "rates": rates,
                "p99_us": {name: statistics.median(each) for name, each in tails.items()},
                "ratio": middle["retrie"] / middle["geth"],
            }
        )
        cells = ", ".join(
            f"{name} {middle[name]:,.0f}/s ({min(each):,.0f} to {max(each):,.0f}; p99 "
            f"{statistics.median(tails[name]) / 1000:.1f} ms)"
            for name, each in rates.items()
        )
        print(f"  {method}: {cells}, retrie / geth {results[-1]['ratio']:.2f}", flush=True)
    return results
