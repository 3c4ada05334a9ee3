"""Latencies of both nodes at fixed request rates, measured with scripts/lib/openloop, in turns."""

import random
import statistics
from pathlib import Path

import nodekit
from nodekit import fail
from questions import spread
from speed import busiest_token, request

# Request bodies of a method, at most, and blocks of a search for logs.
MANY, RANGE = 2000, 10
# Seconds of each run that do not count.
WARMUP = 1
# A node that answers a smaller share of the requests in time does not keep up.
KEEPS_UP = 0.98
# A latency is marked if the generator's own lag is a larger share of it, at the same percentile.
TRUSTED = 0.25


def bodies_of(chain):
    """Request bodies by method, all with results that are not null."""
    busiest = busiest_token(chain)
    if not busiest:
        fail("the chain has no ERC-20 transfers: give it more --blocks")
    token, receivers = busiest
    receivers = list(dict.fromkeys(receivers))
    hashes = [each["hash"] for each in chain.txs]
    params = {
        "eth_blockNumber": [[]],
        "eth_getBalance": [[each, "latest"] for each in chain.people],
        "eth_getCode": [[each, "latest"] for each in chain.contracts],
        "eth_getStorageAt": [[address, slot, "latest"] for address, slot in chain.slots],
        "eth_getTransactionByHash": [[each] for each in hashes],
        "eth_getTransactionReceipt": [[each] for each in hashes],
        "eth_getBlockByNumber": [[each["number"], True] for each in chain.blocks[1:]],
        "eth_getLogs": list(narrow_searches(chain, token)),
        "eth_call": [[balance_of(token, each), "latest"] for each in receivers],
        "eth_estimateGas": [[each, "latest"] for each in token_transfers(chain, token, receivers)],
        "eth_getProof": [[address, [slot], "latest"] for address, slot in chain.slots],
    }
    order, bodies = random.Random(1), {}
    for method, each in params.items():
        bodies[method] = [request(method, *some) for some in spread(each, MANY)]
        order.shuffle(bodies[method])
    return bodies


def narrow_searches(chain, token):
    """Searches of a few blocks for the transfers of a token to one receiver."""
    for log in spread(chain.logs, 2 * MANY):
        if log["address"] != token or len(log["topics"]) != 3:
            continue
        first = max(int(log["blockNumber"], 16) - RANGE // 2, 0)
        last = min(first + RANGE - 1, chain.top)
        kind, _, receiver = log["topics"]
        topics = [kind, None, receiver]
        yield [{"fromBlock": hex(first), "toBlock": hex(last), "address": token, "topics": topics}]


def balance_of(token, holder):
    return {"to": token, "input": "0x70a08231" + holder[2:]}


def token_transfers(chain, token, receivers):
    """Transfers of one unit of a token by accounts that have received some."""
    contracts = set(chain.contracts)
    for sender, receiver in zip(receivers, receivers[1:]):
        address = "0x" + sender[-40:]
        if address not in contracts:
            payload = "0xa9059cbb" + receiver[2:] + f"{1:064x}"
            yield {"from": address, "to": token, "input": payload}


def measure(nodes, bodies, rate, rounds, seconds, connections):
    """Reports of `openloop` by node, one for each round; the order changes with every round."""
    reports = {node.name: [] for node in nodes}
    for number in range(rounds):
        for node in nodes if number % 2 == 0 else nodes[::-1]:
            report = nodekit.open_loop(node, bodies, rate, seconds, connections, WARMUP)
            reports[node.name].append(report)
    return reports


def summary(rate, reports):
    """The medians over a node's rounds, the errors of all, and what the figures are worth."""
    names = [name for name in reports[0] if name.endswith("_us")] + ["achieved", "cpu"]
    of = {name: statistics.median(each[name] for each in reports) for name in names}
    of["errors"] = sum(each["errors"] for each in reports)
    of["first_error"] = next((each["first_error"] for each in reports if each["errors"]), None)
    of["keeps_up"] = of["achieved"] >= KEEPS_UP * rate
    for name in ("p50", "p99"):
        of[f"{name}_trusted"] = of[f"lag_{name}_us"] <= TRUSTED * of[f"{name}_us"]
    return of | {"rounds": reports}


def milliseconds(of, name):
    value = of[f"{name}_us"] / 1e3
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}" + ("" if of[f"{name}_trusted"] else " *")


def row(method, results):
    """A line of the Markdown table."""
    cells = [f"`{method}`"]
    cells += [milliseconds(of, name) for of in results for name in ("p50", "p99")]
    rates = [f"{of['achieved']:,.0f}" for of in results]
    cells.append(", ".join(r if of["keeps_up"] else f"**{r}**" for r, of in zip(rates, results)))
    cells.append(", ".join(str(of["errors"]) for of in results))
    cells.append(", ".join(f"{of['lag_p99_us'] / 1e3:.2f}" for of in results))
    return f"| {' | '.join(cells)} |"


def run(chain, nodes, folder, rates, load):
    """Measures all methods at all rates and prints a table for each; `load` is the number of rounds,
    their seconds and the connections."""
    rounds, seconds, connections = load
    both, results = ", ".join(node.name for node in nodes), []
    heads = ["method", *(f"{node.name} {name} ms" for node in nodes for name in ("p50", "p99"))]
    heads += [f"achieved a second: {both}", f"errors: {both}", f"lag p99 ms: {both}"]
    files = {}
    for method, bodies in bodies_of(chain).items():
        files[method] = Path(folder) / f"{method}.txt"
        files[method].write_text("\n".join(bodies) + "\n")
    for rate in rates:
        print(f"\n{rate:,} requests a second, {connections} connections, medians of {rounds} rounds "
              f"of {seconds} s:\n", flush=True)  # fmt: skip
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
        for method, bodies in files.items():
            reports = measure(nodes, bodies, rate, rounds, seconds, connections)
            found = {name: summary(rate, each) for name, each in reports.items()}
            print(row(method, list(found.values())), flush=True)
            results.append({"method": method, "rate": rate, "connections": connections} | found)
    print_notes(results, [node.name for node in nodes])
    return results


def print_notes(results, names):
    print("\n*: the generator was late by more than a quarter of this figure, which is too large.")
    print("Bold: the node does not keep up, and its latencies grow with the length of a round.")
    most = max(of[name]["cpu"] for of in results for name in names)
    print(f"The generator took {most:.0%} of a processor at most.")
    for of in results:
        for name in names:
            if of[name]["errors"]:
                print(f"{of['method']} at {of['rate']:,} on {name}: {of[name]['first_error']}")
