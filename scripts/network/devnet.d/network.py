"""The devnet's consensus driver: who proposes, what each node is told, and which faults are
injected. The first wrong response ends the run.
"""

import copy
import time
from collections import Counter

from chain import (
    Block,
    Payload,
    SLOT_SECONDS,
    UNSUPPORTED_FORK,
    child_of,
    data,
    number,
    since,
    type_of,
    versioned_hashes,
    wrong_payload,
)
from nodekit import RpcError

ZERO = "0x" + "00" * 32
# Blocks between the head and the last finalized one, and the last safe one.
FINALITY_LAG, SAFE_LAG = 64, 40
# After this many slots a pending transaction is lost; after this many it is sent again.
LOST_AFTER, AGAIN_AFTER = 150, 5
# Around the switch to the binary tree: slots before it without other splits and without nodes going
# away, slots on either side of it that the split covers, and how often all nodes then change branch.
CALM, SPLIT_REACH, SWINGS = 26, 4, 6
# Slots within which a transaction of every type is expected.
LONG_ENOUGH = 30


class Disagreement(Exception):
    """A wrong response."""


class Network:
    def __init__(self, nodes, schedule, traffic, rng, options):
        self.nodes, self.schedule, self.traffic = nodes, schedule, traffic
        self.rng, self.options = rng, options
        self.up = list(nodes)
        self.away = {}
        self.split = None
        self.no_finality_until = -1
        self.slot = 0
        self.withdrawals = 0
        self.has_split_at_switch = False
        self.counts = Counter()
        self.proposed, self.mined, self.notes = Counter(), Counter(), Counter()
        self.blocks, self.mined_types = Counter(), Counter()
        self.wrong, self.depths = Counter(), Counter()
        self.ours = {}
        genesis = {node.name: self.block_of(node, 0) for node in nodes}
        self.same("the genesis hash", {name: block["hash"] for name, block in genesis.items()})
        first = genesis[nodes[0].name]
        self.genesis_gas_limit = number(first["gasLimit"])
        self.genesis = Block(first["hash"], 0, number(first["timestamp"]), 0)
        self.head = self.safe = self.finalized = self.genesis
        self.roots_checked = all(self.checks_roots(node) for node in nodes)

    def checks_roots(self, node):
        return self.options.native or "lvmt" not in node.kind or "+" in node.kind

    # -- what must hold --------------------------------------------------------------------------

    def wrong_answer(self, node, what, wanted, got):
        raise Disagreement(
            f"slot {self.slot}, node {node.name}: {what}: expected {wanted}, got {got}"
        )

    def same(self, what, answers):
        """`answers`, by node name, must be equal."""
        values = list(answers.values())
        if any(value != values[0] for value in values):
            lines = "".join(f"\n  {name}: {value}" for name, value in answers.items())
            raise Disagreement(f"slot {self.slot}: {what} differs:{lines}")

    def engine(self, node, what, method, *params):
        try:
            return node.engine.call(method, *params)
        except RpcError as error:
            self.wrong_answer(node, what, "an answer", error)

    def block_of(self, node, at):
        """A block over JSON-RPC, by number or tag, without its transactions' bodies."""
        at = at if isinstance(at, str) else hex(at)
        return node.rpc.call("eth_getBlockByNumber", at, False)

    # -- Engine API ------------------------------------------------------------------------------

    def versions(self, timestamp):
        return self.schedule.versions[self.schedule.fork(timestamp)]

    def state(self, head):
        safe = self.safe if self.safe.number <= head.number else self.finalized
        return {
            "headBlockHash": head.hash,
            "safeBlockHash": safe.hash if safe.number else ZERO,
            "finalizedBlockHash": self.finalized.hash if self.finalized.number else ZERO,
        }

    def forkchoice(self, node, head, attributes=None, wanted=("VALID",)):
        """Sends a node its head; returns the response."""
        time_of = number(attributes["timestamp"]) if attributes else head.timestamp
        method = f"engine_forkchoiceUpdatedV{self.versions(time_of)[0]}"
        what = f"{method} to block {head.number} {head.hash}"
        # From Amsterdam on the call may name the blob columns that a consensus client keeps
        # (EIP-8070).
        columns = [[], [None], ["0x" + "0f" * 16]][head.number % 3] if method[-1] == "4" else []
        answer = self.engine(node, what, method, self.state(head), attributes, *columns)
        status = answer["payloadStatus"]["status"]
        if status not in wanted:
            self.wrong_answer(node, what, " or ".join(wanted), answer["payloadStatus"])
        if attributes and not answer["payloadId"]:
            self.wrong_answer(node, what, "a payload id", answer)
        return answer

    def new_payload(self, node, payload, what, wanted=("VALID",)):
        """Sends a node a payload; returns its status."""
        version = self.schedule.versions[payload.fork][2]
        answer = self.engine(node, what, f"engine_newPayloadV{version}", *payload.params())
        if answer["status"] not in wanted:
            self.wrong_answer(node, what, " or ".join(wanted), answer)
        if answer["status"] == "VALID" and answer["latestValidHash"] != payload.hash:
            self.wrong_answer(node, what, f"latestValidHash {payload.hash}", answer)
        return answer

    def deliver(self, node, block, side=False):
        """A valid block. Beside the canonical chain a node may accept it without execution."""
        wanted = ("VALID", "ACCEPTED") if side else ("VALID",)
        what = f"newPayload of block {block.number} {block.hash} by {block.proposer}"
        status = self.new_payload(node, block.payload, what, wanted)["status"]
        if side:
            self.counts[f"side blocks {status}"] += 1

    # -- proposing -------------------------------------------------------------------------------

    def attributes(self, timestamp):
        rng, fork = self.rng, self.schedule.fork(timestamp)
        attributes = {
            "timestamp": hex(timestamp),
            "prevRandao": "0x" + rng.randbytes(32).hex(),
            "suggestedFeeRecipient": "0x" + f"{rng.randrange(1, 9):040x}",
        }
        if since(fork, "shanghai"):
            attributes["withdrawals"] = []
            for _ in range(rng.choice([0, 0, 1, 4, 16])):
                receiver = rng.choice(self.traffic.senders).address
                receiver = rng.choice([receiver, rng.randbytes(20)])
                attributes["withdrawals"].append(
                    {
                        "index": hex(self.withdrawals),
                        "validatorIndex": hex(rng.randrange(2**16)),
                        "address": "0x" + receiver.hex(),
                        "amount": hex(rng.choice([1, 10**6, 32 * 10**9])),
                    }
                )
                self.withdrawals += 1
        if since(fork, "cancun"):
            attributes["parentBeaconBlockRoot"] = "0x" + rng.randbytes(32).hex()
        if since(fork, "amsterdam"):
            attributes["slotNumber"] = hex(self.slot)
            attributes["targetGasLimit"] = hex(rng.choice([30_000_000, 36_000_000, 60_000_000]))
        return attributes

    def gas_limit(self, parent, target):
        """The gas limit of a block on `parent`: as near to the target as allowed."""
        limit = self.genesis_gas_limit
        if parent.payload:
            limit = number(parent.payload.fields["gasLimit"])
        step = limit // 1024 - 1
        return max(limit - step, min(limit + step, target))

    def build(self, node, parent):
        """A block of this slot built by a node, checked here as far as possible without execution."""
        timestamp = self.schedule.time_of(self.slot)
        fork, (_, get, _) = self.schedule.fork(timestamp), self.versions(timestamp)
        attributes = self.attributes(timestamp)
        identity = self.forkchoice(node, parent, attributes)["payloadId"]
        time.sleep(self.options.build_time)
        what = f"getPayloadV{get} on block {parent.number}"
        answer = self.engine(node, what, f"engine_getPayloadV{get}", identity)
        fields = answer["executionPayload"] if get > 1 else answer
        # geth returns null for fields of later forks; a consensus client would not pass these on.
        fields = {name: value for name, value in fields.items() if value is not None}
        payload = Payload(
            fork,
            fields,
            attributes.get("parentBeaconBlockRoot"),
            answer.get("executionRequests") if get > 1 else None,
            versioned_hashes(fields["transactions"]),
        )
        wanted = {
            "parentHash": parent.hash,
            "blockNumber": hex(parent.number + 1),
            "timestamp": attributes["timestamp"],
            "prevRandao": attributes["prevRandao"],
            "feeRecipient": attributes["suggestedFeeRecipient"],
        }
        wanted |= {
            name: attributes[name] for name in ("withdrawals", "slotNumber") if name in attributes
        }
        if "targetGasLimit" in attributes:
            wanted["gasLimit"] = hex(self.gas_limit(parent, number(attributes["targetGasLimit"])))
        for name, value in wanted.items():
            if fields.get(name) != value:
                self.wrong_answer(node, f"{what}, {name}", value, fields.get(name))
        if payload.computed_hash() != payload.hash:
            self.wrong_answer(node, what, f"block hash {payload.computed_hash()}", payload.hash)
        if get > 2:
            self.check_bundle(node, what, fork, payload, answer["blobsBundle"])
        transactions = [self.traffic.hash_of(raw) for raw in fields["transactions"]]
        block = Block(
            payload.hash, parent.number + 1, timestamp, self.slot, parent, payload, node.name, transactions
        )  # fmt: skip
        self.proposed[node.name] += 1
        return block

    def check_bundle(self, node, what, fork, payload, bundle):
        """The blobs of a payload must be those that its transactions name, with as many proofs."""
        hashes = self.traffic.blobs.named(map(data, bundle["commitments"]))
        proofs = len(hashes) * (128 if since(fork, "osaka") else 1)
        if hashes != payload.blob_hashes or len(bundle["blobs"]) != len(hashes):
            self.wrong_answer(node, f"{what}, blobsBundle", payload.blob_hashes, hashes)
        if len(bundle["proofs"]) != proofs:
            self.wrong_answer(
                node, f"{what}, blobsBundle", f"{proofs} proofs", len(bundle["proofs"])
            )
        self.counts["blobs"] += len(hashes)

    def spread(self, block, nodes):
        """Makes a block the head of these nodes, in random order."""
        nodes = self.shuffled(nodes)
        for node in nodes:
            self.deliver(node, block)
        for node in self.shuffled(nodes):
            self.forkchoice(node, block)

    def shuffled(self, nodes):
        return self.rng.sample(nodes, len(nodes))

    def move_head(self, block):
        dropped, added = self.head.branch(block), block.branch(self.head)
        if dropped:
            self.depths[len(dropped)] += 1
        self.traffic.switch(dropped, added, self.ours)
        self.head = block

    # -- a slot ----------------------------------------------------------------------------------

    def run_slot(self, slot):
        self.slot = slot
        began = time.monotonic()
        self.bring_back()
        self.send_transactions()
        if self.split:
            self.slot_of_a_split()
        else:
            self.slot_of_all()
        self.finalize()
        self.check_heads()
        rest = self.options.slot_time - (time.monotonic() - began)
        if rest > 0:
            time.sleep(rest)

    def slot_of_all(self):
        event = self.rng.choices(
            ["block", "missed", "late", "split", "away"], weights=[80, 7, 5, 4, 4]
        )[0]
        quiet = self.slot <= 3 or self.slot > self.options.slots - 2
        if self.is_near_switch(CALM) and event in ("split", "away", "late"):
            event = "block"
        if self.is_near_switch(SPLIT_REACH) and not self.has_split_at_switch:
            self.has_split_at_switch = True
            return self.begin_split(2 * SPLIT_REACH)
        if event == "split" and not quiet and len(self.up) > 1:
            return self.begin_split()
        if event == "away" and not quiet and len(self.up) > 1:
            self.send_away()
        if event == "missed" and not quiet:
            self.counts["missed"] += 1
            return
        proposer = self.up[self.slot % len(self.up)]
        if event == "late" and not quiet and len(self.up) > 1:
            return self.late_block(proposer)
        block = self.build(proposer, self.head)
        if self.rng.random() < self.options.wrong:
            self.send_wrong(block)
        self.spread(block, self.up)
        self.move_head(block)
        if self.is_near_switch(CALM):
            self.send_other_root(block)
        if self.rng.random() < self.options.wrong:
            self.send_wrong(block)

    def late_block(self, proposer):
        """A late proposal: no node gets it before the next block with the same parent."""
        late = self.build(proposer, self.head)
        self.slot += 1
        self.send_transactions()
        others = [node for node in self.up if node is not proposer]
        block = self.build(self.rng.choice(others), self.head)
        self.spread(block, self.up)
        self.move_head(block)
        for node in self.shuffled(self.up):
            self.deliver(node, late, side=True)
        self.counts["late"] += 1

    # -- two halves that do not hear each other --------------------------------------------------

    def is_near_switch(self, slots):
        """Whether the switch to the binary tree is at most so many slots away."""
        at = getattr(self.options, "binary_tree_at", None)
        return at is not None and abs(at - self.slot) <= slots

    def begin_split(self, depth=None):
        nodes = self.shuffled(self.up)
        cut = self.rng.randrange(1, len(nodes))
        at_switch = depth is not None
        depth = depth or self.rng.choice([1, 1, 2, 3, 5, 8, self.options.max_reorg])
        depth = min(depth, self.options.slots - 2 - self.slot)
        self.split = {"until": self.slot + depth, "halves": [nodes[:cut], nodes[cut:]]}
        self.split |= {"heads": [self.head, self.head], "at_switch": at_switch}
        self.counts["splits"] += 1
        self.slot_of_a_split()

    def slot_of_a_split(self):
        split = self.split
        for side, half in enumerate(split["halves"]):
            if self.rng.random() < 0.15 and not split["at_switch"]:
                self.counts["missed"] += 1
                continue
            block = self.build(half[self.slot % len(half)], split["heads"][side])
            self.spread(block, half)
            split["heads"][side] = block
            if side == 0:
                self.move_head(block)
            if split["at_switch"]:
                self.send_other_root(block, half)
        if self.slot >= split["until"]:
            self.heal()

    def heal(self):
        """Joins the halves: the longer chain wins, blocks of the other become side blocks."""
        heads, halves, at_switch = (self.split[of] for of in ("heads", "halves", "at_switch"))
        self.split = None
        winner = 0 if heads[0].number > heads[1].number else 1
        if heads[0].number == heads[1].number:
            winner = self.rng.randrange(2)
        won, lost = heads[winner], heads[1 - winner]
        for node in self.shuffled(halves[1 - winner]):
            for block in won.branch(lost):
                self.deliver(node, block)
            self.forkchoice(node, won)
        for node in self.shuffled(halves[winner]):
            for block in lost.branch(won):
                self.deliver(node, block, side=True)
            self.forkchoice(node, won)
        # In the order in which the losing half saw the blocks.
        if winner == 0 and lost.branch(won):
            self.depths[len(lost.branch(won))] += 1
        self.move_head(won)
        if at_switch:
            self.swing(won, lost)

    def swing(self, won, lost):
        """Takes all nodes to the other branch and back, again and again, across the switch to the
        binary tree."""
        fork = won.branch(lost)[0].parent
        is_binary = self.schedule.is_binary
        if is_binary(fork.timestamp) or not is_binary(min(won.timestamp, lost.timestamp)):
            raise Disagreement(f"slot {self.slot}: the branches do not both cross the switch")
        for head in [lost, won] * (SWINGS // 2):
            for node in self.shuffled(self.up):
                self.forkchoice(node, head)
            self.move_head(head)
            self.check_heads()
            self.check_trees(head)
            self.counts["reorgs of all nodes across the switch"] += 1

    def check_trees(self, block):
        """Both roots of a block, which must be the same on all nodes, and what they say of the
        switch."""
        roots = {
            node.name: node.rpc.call("debug_shadowStateRoot", block.hash) for node in self.up
        }
        self.same(f"the shadow root of block {block.number}", roots)
        root = next(iter(roots.values()))
        if root in (None, block.payload.fields["stateRoot"]):
            raise Disagreement(f"slot {self.slot}: block {block.number} has the shadow root {root}")
        progress = {node.name: node.rpc.call("debug_migrationProgress") for node in self.up}
        self.same("the progress of the switch", progress)
        return root

    # -- nodes that go away ----------------------------------------------------------------------

    def send_away(self):
        node = self.rng.choice(self.up)
        # A killed geth has lost its state, and waits for peers to snap sync it.
        manners = ["silent", "stopped"] + ["killed"] * (not node.is_geth)
        manner = self.rng.choice(manners)
        back = min(self.slot + self.rng.randrange(2, 20), self.options.slots - 1)
        self.up.remove(node)
        self.away[node.name] = (node, back, manner)
        self.counts[f"{manner} {node.name}"] += 1
        if manner != "silent":
            code = node.stop(kill=manner == "killed")
            if manner == "stopped" and code != 0:
                self.wrong_answer(node, "SIGTERM", "exit code 0", code)

    def bring_back(self):
        for name, (node, back, manner) in list(self.away.items()):
            if self.slot < back or self.split:
                continue
            del self.away[name]
            if manner != "silent":
                node.start()
            self.catch_up(node)
            self.up.append(node)
            self.up.sort(key=self.nodes.index)
            self.resend(self.traffic.old(self.slot, 0), [node])

    def catch_up(self, node):
        """Sends the node all blocks from its last known one up to the head, in order."""
        stands = number(self.block_of(node, "latest")["number"])
        at = self.head.ancestor(min(stands, self.head.number))
        while self.block_of(node, at.number)["hash"] != at.hash:
            at = at.parent
        missing = self.head.branch(at)
        if len(missing) > 1:
            # A node cannot validate a block without its parent.
            what = f"newPayload of block {self.head.number} before its parent"
            self.new_payload(node, self.head.payload, what, ("SYNCING", "ACCEPTED", "VALID"))
        for count, block in enumerate(missing):
            self.deliver(node, block)
            if count % 8 == 0 and block.number >= self.finalized.number:
                self.forkchoice(node, block)
        self.forkchoice(node, self.head)
        self.counts["blocks caught up"] += len(missing)

    # -- wrong payloads --------------------------------------------------------------------------

    def send_wrong(self, block):
        """A payload like that of `block` with a fault: every node must reject it."""
        name, wrong = wrong_payload(block.payload, block.parent, self.rng, self.roots_checked)
        self.wrong[name] += 1
        what = f"newPayload with another {name} than block {block.number} {block.hash}"
        answers = {}
        for node in self.shuffled(self.up):
            answers[node.name] = self.new_payload(node, wrong, what, ("INVALID",))
        hashes = {name: answer["latestValidHash"] for name, answer in answers.items()}
        if len(set(hashes.values())) > 1:
            self.notes[f"latestValidHash of a wrong {name}: {self.described(hashes, block)}"] += 1
        # Children of an invalid payload are invalid too. A payload with a wrong hash leaves no
        # trace.
        if wrong.hash == wrong.computed_hash() and name in (
            "state root",
            "gas used",
            "receipts root",
        ):
            for node in self.shuffled(self.up):
                child = child_of(wrong, 1)
                self.new_payload(node, child, f"child of: {what}", ("INVALID",))
        self.wrong_version(block)

    def send_other_root(self, block, nodes=None):
        """The payload of a block with the root of the other tree, which all nodes that have the block
        must reject."""
        nodes = nodes or self.up
        shadow = nodes[0].rpc.call("debug_shadowStateRoot", block.hash)
        wrong = copy.deepcopy(block.payload)
        wrong.fields["stateRoot"] = shadow
        wrong.rehashed()
        what = f"newPayload with the root of the other tree than block {block.number} {block.hash}"
        for node in self.shuffled(nodes):
            self.new_payload(node, wrong, what, ("INVALID",))
        side = "from the switch on" if self.schedule.is_binary(block.timestamp) else "before it"
        self.wrong[f"root of the other tree {side}"] += 1

    def described(self, hashes, block):
        names = {block.parent.hash: "parent", None: "null", ZERO: "zero"}
        return ", ".join(
            f"{node} {names.get(value, value)}" for node, value in sorted(hashes.items())
        )

    def wrong_version(self, block):
        """The method of another fork must refuse the payload."""
        right = self.schedule.versions[block.payload.fork][2]
        if right < 3:
            return
        fields, hashes, root, *requests = copy.deepcopy(block.payload.params())
        other = {3: 4, 4: self.rng.choice([3, 5]), 5: 4}[right]
        if other == 5:
            fields |= {"blockAccessList": "0xc0", "slotNumber": hex(self.slot)}
        elif right == 5:
            del fields["blockAccessList"], fields["slotNumber"]
        params = [fields, hashes, root] + ([[]] if other > 3 else [])
        codes = {}
        for node in self.shuffled(self.up):
            answer = node.engine.ask(f"engine_newPayloadV{other}", *params)
            codes[node.name] = answer.get("error", {}).get("code")
        if set(codes.values()) != {UNSUPPORTED_FORK}:
            raise Disagreement(
                f"slot {self.slot}: newPayloadV{other} of a payload of {block.payload.fork}: "
                f"expected error {UNSUPPORTED_FORK} of all, got {codes}"
            )

    # -- transactions ----------------------------------------------------------------------------

    def new_transactions(self, fork, count, may_send=lambda sender: True):
        self.read_authorities()
        new = self.traffic.some(self.slot, fork, count, may_send)
        self.ours |= {each.hash: each for each in new}
        return new

    def opening(self):
        """The first contracts, compiled for Shanghai and later, once Shanghai is active."""
        if self.traffic.opened or not since(self.schedule.fork(self.head.timestamp), "shanghai"):
            return []
        new = self.traffic.opening(self.slot)
        self.ours |= {each.hash: each for each in new}
        return new

    def send_transactions(self):
        fork = self.schedule.fork(self.schedule.time_of(self.slot))
        new = self.new_transactions(fork, self.options.txs) + self.opening()
        self.resend(self.traffic.old(self.slot, AGAIN_AFTER), self.up)
        self.resend(new, self.up)
        lost = self.traffic.old(self.slot, LOST_AFTER)
        if lost:
            each = lost[0]
            raise Disagreement(
                f"slot {self.slot}: transaction {each.hash} ({each.kind}, nonce {each.nonce}), sent "
                f"at slot {each.slot}, is in no block yet"
            )
        if self.slot > 3 and not self.split and self.rng.random() < 0.5:
            # Pools apply the rules of the head's fork.
            self.send_refused(self.schedule.fork(self.head.timestamp))

    def resend(self, transactions, nodes):
        for each in transactions:
            for node in self.shuffled(nodes):
                answer = node.rpc.ask("eth_sendRawTransaction", each.raw)
                if "error" in answer:
                    message = answer["error"]["message"]
                    if "already known" not in message and "nonce too low" not in message:
                        self.notes[f"{node.name} refused a {each.kind}: {message[:60]}"] += 1
                elif answer["result"] != each.hash:
                    self.wrong_answer(node, "eth_sendRawTransaction", each.hash, answer)

    def send_refused(self, fork):
        name, raw = self.traffic.refused(fork)
        for node in self.up:
            answer = node.rpc.ask("eth_sendRawTransaction", raw)
            if "error" not in answer:
                self.wrong_answer(node, f"a transaction with {name}", "an error", answer)
        self.counts["transactions refused"] += 1

    def read_authorities(self):
        """Reads the authorities' nonces: blocks decide which of their delegations count."""
        for each in self.traffic.authorities:
            address = "0x" + each.address.hex()
            each.nonce = number(self.up[0].rpc.call("eth_getTransactionCount", address, "latest"))

    # -- finality and heads ----------------------------------------------------------------------

    def finalize(self):
        if self.split:
            return
        if self.slot > self.no_finality_until and self.rng.random() < 0.006:
            self.no_finality_until = self.slot + self.rng.randrange(40, 120)
            self.counts["times without finality"] += 1
        if self.slot <= self.no_finality_until:
            return
        final = self.head.ancestor(max(self.head.number - FINALITY_LAG, 0))
        self.finalized = max(self.finalized, final, key=lambda block: block.number)
        safe = self.head.ancestor(max(self.head.number - SAFE_LAG, 0))
        self.safe = max(self.safe, safe, key=lambda block: block.number)

    def check_heads(self):
        if self.split:
            return
        for node in self.up:
            block = self.block_of(node, "latest")
            if block["hash"] != self.head.hash:
                wanted = f"{self.head.number} {self.head.hash}"
                self.wrong_answer(
                    node, "its head", wanted, f"{number(block['number'])} {block['hash']}"
                )

    def finish(self):
        """All nodes run again and are at the head, with the same safe and finalized blocks."""
        self.slot += 1
        for name, (node, _, manner) in list(self.away.items()):
            self.away[name] = (node, self.slot, manner)
        self.bring_back()
        for node in self.nodes:
            self.forkchoice(node, self.head)
        self.check_heads()
        for tag, block in [("safe", self.safe), ("finalized", self.finalized)]:
            if block.number:
                for node in self.nodes:
                    got = self.block_of(node, tag)["hash"]
                    if got != block.hash:
                        self.wrong_answer(node, f"block `{tag}`", block.hash, got)
        self.count_mined()

    def summary(self):
        """More figures for the summary."""
        return {}

    def count_mined(self):
        """What the canonical chain has, by kind and by type."""
        for block in self.head.branch(self.genesis):
            side = self.side(block.payload.fork)
            self.blocks[side] += 1
            for each, raw in zip(block.transactions, block.payload.fields["transactions"]):
                kind = self.ours[each].kind if each in self.ours else "unknown"
                self.mined[kind] += 1
                self.mined_types[f"{side}: type {type_of(raw)}"] += 1
        self.check_types()

    def side(self, fork):
        """Figures of Amsterdam, on chains that reach it."""
        if not self.schedule.has("amsterdam"):
            return "all blocks"
        return "from Amsterdam on" if since(fork, "amsterdam") else "before Amsterdam"

    def check_types(self):
        """A chain that reaches Amsterdam must have all types of transactions before and after it,
        if it was long enough."""
        starts = dict(self.schedule.starts)
        if "amsterdam" not in starts:
            return
        for kind in range(5):
            first = {3: self.options.blobs_from, 4: "prague"}.get(kind, "paris")
            early = starts["amsterdam"] - starts[first] >= LONG_ENOUGH * SLOT_SECONDS
            for side in ["before Amsterdam"] * early + ["from Amsterdam on"]:
                if not self.mined_types[f"{side}: type {kind}"]:
                    raise Disagreement(
                        f"no transaction of type {kind} was mined {side}: let there be more --slots"
                    )
