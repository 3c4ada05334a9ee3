"""Sends the same requests to both nodes and sorts the differences into kinds."""

import json
import re
from collections import Counter

import questions
from nodekit import MISSING, differences

BATCH = 20
NO_HASH = "0x" + "00" * 32
# The hash of no bytes, and the root of an empty trie.
OF_NOTHING = [
    "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470",
    "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421",
]
LACK = "known lack: "
# Known differences: patterns of method and kind, and the reason. The kind is the path of a field,
# or the part of the error that differs. A reason that starts with LACK is a missing feature of
# retrie, not a choice.
INTENDED = [
    # Errors: same code, other message.
    (".*", r"error.message \(-32602: .*", "wording of what is wrong with a parameter"),
    (".*", r"error.message .*transaction type not sup.*", "geth also names the type and the sender"),
    ("eth_createAccessList", r"error.message .*(failed to apply transaction: N err|maxFeePerGas).*",
     "worded as eth_call words it; geth names a transaction hash that nobody knows"),
    ("eth_createAccessList", "error", "a failure is worded with its reason, as in eth_call"),
    ("eth_sendRawTransaction", r"error.message .*(typed transaction too short|rlp:).*", "wording"),
    (".*", r"error.message .*(header for hash not found|block #N not found).*", "wording"),
    ("debug_trace.*", r"error.code \(ReferenceError.*", "tracers in JavaScript are optional: -32602 names the cargo feature"),
    # Requests that one node accepts and the other refuses.
    ("eth_getBlockByNumber|eth_feeHistory", "error of geth alone .*missing value for required.*",
     "the last parameter may be left out"),
    ("eth_getBalance", "error of geth alone .*leading zero.*", "numbers may have leading zeros"),
    ("eth_getStorageValues", "error of geth alone .*hex string of odd.*", "slots may be short, as in eth_getStorageAt"),
    ("debug_getRaw.*", r"error of retrie alone \(header not found\)", "an unknown block is an error"),
    ("eth_getRawTransaction.*", "result", "what is unknown is null, not no bytes"),
    ("debug_traceCall", r"error of retrie alone \(Response is too big.*", "answers have a limit in bytes"),
    ("debug_storageRangeAt", "storage", "no slots: an empty object, not null"),
    ("debug_intermediateRoots", "result", "no transactions: an empty list, not null"),
    ("eth_feeHistory", "(gasUsedRatio|oldestBlock|baseFee.*)", "no blocks: an empty list, not null"),
    # Fields of an absent account.
    ("eth_getProof", r"(codeHash|storageHash) \(of nothing\)", "an absent account has the hashes of nothing (EIP-1186)"),
    ("eth_config", r".*DEPOSIT_CONTRACT_ADDRESS", "a genesis that names none has mainnet's, as in reth"),
    ("net_listening", "result", "there is no devp2p yet"),
    ("eth_capabilities", r"stateproofs.*", "mpt proves blocks as far as its retention goes"),
    ("eth_capabilities", r"logs\.deleteStrategy \(missing at retrie\)", "the index of geth ends, logs here go with receipts"),
    # JSON-RPC itself.
    (r"\(odd requests\)", "", "an empty message gets an answer too"),
]  # fmt: skip


def kind_of(path):
    """A path without its indices, addresses and hashes."""
    path = re.sub(r"\[\d+\]", "[]", path)
    return re.sub(r"0x[0-9a-fA-F]{40,64}|(?<=\.)0x[0-9a-f]+", "KEY", path)


def remark(geth, retrie):
    """The parts of a value that make its difference a kind of its own."""
    if geth is MISSING or retrie is MISSING:
        return f" (missing at {'geth' if geth is MISSING else 'retrie'})"
    if geth == NO_HASH and retrie in OF_NOTHING:
        return " (of nothing)"
    return " (0 at retrie)" if type(retrie) is int and retrie == 0 else ""


def scrubbed(message):
    """A message without the parts that depend on the request."""
    message = re.sub(r"0x[0-9a-fA-F]+|\d+", "N", message)
    return re.sub(r'"[^"]*"|\[N.*|\(.*', "..", message)[:60]


def without_wording(answer):
    """A response, or a list of them, with error codes only."""
    if isinstance(answer, list):
        return [without_wording(each) for each in answer]
    if isinstance(answer, dict) and "error" in answer:
        return answer | {"error": answer["error"].get("code")}
    return answer


def shown(value, limit=160):
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= limit else f"{text[:limit]}..."


class Differ:
    """Compares two nodes. `known` are the differences that may be; with `only_codes`, errors may have
    other words; of the methods `own` only the types of results count.
    """

    def __init__(self, geth, retrie, known=INTENDED, only_codes=False, own=()):
        self.geth, self.retrie = geth, retrie
        self.known, self.only_codes, self.own = known, only_codes, own
        self.asked, self.equal, self.kinds = Counter(), Counter(), {}

    def compare(self, stream):
        batch = []
        for request in stream:
            batch.append(request)
            if len(batch) == BATCH:
                self.batch(batch)
                batch = []
        if batch:
            self.batch(batch)

    def batch(self, batch):
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(batch)
        ]
        sides = []
        for rpc in (self.geth, self.retrie):
            answers = rpc.raw(body)
            if not isinstance(answers, list):
                answers = [rpc.raw(each) for each in body]
            sides.append({answer["id"]: answer for answer in answers})
        for number, (method, params) in enumerate(batch):
            self.judge(method, params, *(side.get(number, {}) for side in sides))

    def judge(self, method, params, geth, retrie):
        self.asked[method] += 1
        if method in self.own and "result" in geth and "result" in retrie:
            geth, retrie = ({"result": str(type(side["result"]))} for side in (geth, retrie))
        found = list(self.differing(geth, retrie))
        if not found:
            self.equal[method] += 1
        for kind, here, there in found[:20]:
            self.note(method, kind, params, here, there)

    def differing(self, geth, retrie):
        """Yields the differences of two responses: each one's kind, and both values."""
        if "error" in geth and "error" in retrie:
            here, there = geth["error"], retrie["error"]
            if here.get("code") != there.get("code"):
                yield f"error.code ({scrubbed(here['message'])})", here, there
            elif self.only_codes:
                pass
            elif here.get("message") != there.get("message"):
                yield (
                    f"error.message ({here['code']}: {scrubbed(here['message'])})",
                    here["message"],
                    there["message"],
                )
            elif here.get("data") != there.get("data"):
                yield "error.data", here.get("data"), there.get("data")
        elif "error" in geth:
            yield (
                f"error of geth alone ({scrubbed(geth['error']['message'])})",
                geth["error"],
                retrie.get("result"),
            )
        elif "error" in retrie:
            yield (
                f"error of retrie alone ({scrubbed(retrie['error']['message'])})",
                geth.get("result"),
                retrie["error"],
            )
        else:
            for path, here, there in differences(geth.get("result"), retrie.get("result")):
                yield (kind_of(path) or "result") + remark(here, there), here, there

    def note(self, method, kind, params, here, there):
        key = method, kind
        if key not in self.kinds:
            self.kinds[key] = {"count": 0, "params": params, "geth": here, "retrie": there}
        self.kinds[key]["count"] += 1

    def envelopes(self):
        for text in questions.envelopes():
            self.asked["(odd requests)"] += 1
            answers = []
            for rpc in (self.geth, self.retrie):
                status, body = rpc.post(text)
                try:
                    answer = json.loads(body) if body else None
                except ValueError:
                    answer = body.decode(errors="replace").strip()
                answers.append({"status": status, "body": without_wording(answer)})
            if answers[0] == answers[1]:
                self.equal["(odd requests)"] += 1
            else:
                self.note("(odd requests)", text[:80], text, *answers)

    def intended(self, method, kind):
        for names, path, reason in self.known:
            if re.fullmatch(names, method) and re.fullmatch(path, kind):
                return reason
        return None

    def report(self):
        """Prints counts and kinds; returns the number of unknown kinds."""
        print(f"  {'method':<42} {'asked':>7} {'equal':>7}")
        for method, count in sorted(self.asked.items()):
            mark = "" if count == self.equal[method] else "  <-"
            print(f"  {method:<42} {count:>7} {self.equal[method]:>7}{mark}")
        unmeant = 0
        for (method, kind), found in sorted(self.kinds.items()):
            reason = self.intended(method, kind)
            unmeant += reason is None
            label = f"known: {reason}" if reason else "DIFFERENT"
            print(f"  {label}: {method} {kind}, {found['count']} times")
            if reason is None:
                print(f"      params {shown(found['params'], 300)}")
                print(f"      geth   {shown(found['geth'])}")
                print(f"      retrie {shown(found['retrie'])}")
        return unmeant
