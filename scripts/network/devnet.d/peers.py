"""The devnet with peers: transactions reach a block's builder only by gossip, and a returning node
is told the head and fetches the missing blocks from its peers.
"""

import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from chain import Block, number
from network import Disagreement, Network
from nodekit import wait_until

# Slots that a node is away, and slots after the last transaction within which all must be mined.
SHORTEST, LONGEST, DRAIN = 3, 16, 100
# Seconds for nodes to become peers or to disconnect, and for a returning node to reach the head.
PEERS_LIMIT, RETURN_LIMIT = 60, 60
# Probabilities for each slot.
AWAY, MISSED = 0.12, 0.05
# Senders that send only to a node that is cut off.
CUT_SENDERS = 3


@dataclass
class Absence:
    """A node that is away: `stopped`, `killed`, `cut off`, or `alone`, which is cut off and builds
    a branch of its own."""

    node: object
    manner: str
    back: int
    # Its head, and the block at which it left the others.
    head: Block
    left: Block
    senders: list = field(default_factory=list)
    # When it came back, and the last head that it was told.
    since: float = None
    told: Block = None

    @property
    def is_cut(self):
        return self.manner in ("cut off", "alone")


class PeerNetwork(Network):
    """A node that was sent a still pending transaction never builds a block: so each transaction is
    mined by a node that got it from a peer."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sent_to, self.coming = {}, {}
        self.last_proposer = None
        self.is_draining = False
        self.returns, self.ways = defaultdict(list), Counter()
        self.enodes = {node.name: node.enode() for node in self.nodes}
        for node in self.nodes:
            # geth accepts transactions only after a call from a consensus client.
            self.forkchoice(node, self.genesis)
            self.connect(node)
        self.wait_for_peers()

    # -- peers -----------------------------------------------------------------------------------

    def reachable(self, node):
        """The other running nodes that are not cut off."""
        return [
            other
            for other in self.nodes
            if other is not node and other.is_running() and other.name not in self.away
        ]

    def connect(self, node):
        for other in self.reachable(node):
            node.rpc.call("admin_addPeer", self.enodes[other.name])
            other.rpc.call("admin_addPeer", self.enodes[node.name])

    def cut(self, node):
        def is_alone():
            """A node that dialled during the removal may have become a peer again."""
            for other in self.nodes:
                if other is not node:
                    node.rpc.call("admin_removePeer", self.enodes[other.name])
            for other in self.reachable(node):
                other.rpc.call("admin_removePeer", self.enodes[node.name])
            time.sleep(0.5)
            self.counts["times that peers were removed"] += 1
            return node.peer_count() == 0

        wait_until(f"{node.name} is cut off", PEERS_LIMIT, is_alone)

    def wait_for_peers(self):
        for node in self.nodes:
            count = len(self.reachable(node))
            is_met = lambda: node.peer_count() == count
            wait_until(f"{node.name} has {count} peers", PEERS_LIMIT, is_met)

    # -- a slot ----------------------------------------------------------------------------------

    def run_slot(self, slot):
        self.slot = slot
        until = time.monotonic() + self.options.slot_time - self.options.build_time
        self.bring_back()
        if not self.is_draining:
            if self.rng.random() < AWAY:
                self.send_away()
            self.send_transactions()
        while True:
            for absence in list(self.coming.values()):
                self.tell_head(absence)
            rest = until - time.monotonic()
            if rest <= 0:
                break
            time.sleep(min(rest, 0.1))
        self.propose()
        self.finalize()
        self.check_heads()

    def holders(self):
        """Names of nodes that were sent a still pending transaction."""
        return {self.sent_to[each] for each in self.traffic.waiting if each in self.sent_to}

    def propose(self):
        holders = self.holders()
        at = self.nodes.index(self.last_proposer) + 1 if self.last_proposer else 0
        turns = self.nodes[at:] + self.nodes[:at]
        able = [node for node in turns if node in self.up and node.name not in holders]
        if not able or (not self.is_draining and self.rng.random() < MISSED):
            self.counts["missed" if able else "nobody may propose"] += 1
        else:
            self.last_proposer = able[0]
            block = self.build(able[0], self.head)
            self.spread(block, self.up)
            self.move_head(block)
        for absence in self.away.values():
            if absence.manner == "alone":
                absence.head = self.build(absence.node, absence.head)
                self.spread(absence.head, [absence.node])

    # -- transactions ----------------------------------------------------------------------------

    def send_transactions(self):
        """Sends each transaction to one node. A sender continues while its last ones are pending,
        but not with blobs, whose pools allow no gaps."""
        fork = self.schedule.fork(self.head.timestamp)
        resting = {
            id(each.sender)
            for each in self.traffic.waiting.values()
            if each.kind == "blob" or each.slot < self.slot - 1
        }
        for absence in self.away.values():
            own = set(map(id, absence.senders))
            resting |= own
            if own:
                for each in self.new_transactions(fork, 2, lambda sender: id(sender) in own):
                    self.send(each, absence.node)
        entry = self.entry()
        if entry:
            free = lambda sender: id(sender) not in resting
            for each in self.new_transactions(fork, self.options.txs, free) + self.opening():
                self.send(each, entry)

    def entry(self):
        """The node that gets this slot's transactions; another node must be left to propose."""
        holders = self.holders()
        able = [node for node in self.up if node.name not in holders]
        entries = [node for node in self.up if able and able != [node]]
        return self.rng.choice(entries) if entries else None

    def send(self, each, node):
        answer = node.rpc.ask("eth_sendRawTransaction", each.raw)
        if answer.get("result") != each.hash:
            self.wrong_answer(node, f"a {each.kind}, nonce {each.nonce}", each.hash, answer)
        self.sent_to[each.hash] = node.name

    # -- nodes that are away ---------------------------------------------------------------------

    def send_away(self):
        able = {node.name for node in self.up} - self.holders()
        nodes = [node for node in self.up if able - {node.name}]
        if len(self.up) < 3 or not nodes:
            return
        node = self.rng.choice(nodes)
        # A killed geth has lost its state, and gets it only by snap sync, which no node here
        # serves.
        manners = ["stopped", "cut off", "alone"] + ["killed"] * (not node.is_geth)
        manner = self.rng.choice(manners)
        back = self.slot + self.rng.randrange(SHORTEST, LONGEST)
        absence = Absence(node, manner, back, self.head, self.head)
        self.up.remove(node)
        self.away[node.name] = absence
        self.counts[f"{manner} {node.name}"] += 1
        if absence.is_cut:
            self.cut(node)
            busy = {id(each.sender) for each in self.traffic.waiting.values()}
            busy |= {id(each) for other in self.away.values() for each in other.senders}
            free = [each for each in self.traffic.senders if id(each) not in busy]
            absence.senders = self.rng.sample(free, min(CUT_SENDERS, len(free)))
        else:
            code = node.stop(kill=manner == "killed")
            if manner == "stopped" and code != 0:
                self.wrong_answer(node, "SIGTERM", "exit code 0", code)

    def bring_back(self):
        for name, absence in list(self.away.items()):
            if self.slot < absence.back:
                continue
            node = absence.node
            if absence.is_cut and node.peer_count():
                self.wrong_answer(node, "peers of who is cut off", 0, node.peer_count())
            if not node.is_running():
                node.start()
            del self.away[name]
            self.coming[name] = absence
            self.connect(node)
            absence.since = time.monotonic()

    def tell_head(self, absence):
        """Tells a node that is behind the head, as a consensus client does. The missed blocks are
        not sent to it."""
        node, behind = absence.node, ("SYNCING", "ACCEPTED", "VALID")
        if absence.told is not self.head:
            absence.told = self.head
            what = f"newPayload of block {self.head.number} to who was away"
            self.new_payload(node, self.head.payload, what, behind)
        status = self.forkchoice(node, self.head, wanted=behind)["payloadStatus"]["status"]
        seconds = time.monotonic() - absence.since
        if status == "VALID":
            del self.coming[node.name]
            self.up = [each for each in self.nodes if each in self.up or each is node]
            blocks = len(self.head.branch(absence.left))
            self.returns[absence.manner].append((blocks, seconds))
            dropped = len(absence.head.branch(self.head))
            if dropped:
                self.depths[dropped] += 1
        elif seconds > RETURN_LIMIT:
            stands = number(self.block_of(node, "latest")["number"])
            wanted = f"block {self.head.number} within {RETURN_LIMIT} s"
            self.wrong_answer(node, f"{absence.manner}, and back", wanted, f"block {stands}")

    # -- the end ---------------------------------------------------------------------------------

    def finish(self):
        self.is_draining = True
        for absence in self.away.values():
            absence.back = self.slot
        end = self.slot + DRAIN
        while self.away or self.coming or self.traffic.waiting:
            if self.slot == end:
                lost = [f"{each.kind} {each.hash}" for each in self.traffic.waiting.values()]
                raise Disagreement(f"not mined within {DRAIN} slots: {', '.join(lost)}")
            self.run_slot(self.slot + 1)
        self.wait_for_peers()
        super().finish()
        self.check_mined()

    def check_mined(self):
        """Every transaction is in one block, and the block's builder was not sent it."""
        times = Counter()
        for block in self.head.branch(self.genesis):
            times.update(block.transactions)
            for each in block.transactions:
                self.ways[f"{self.sent_to.get(each)} > {block.proposer}"] += 1
                if self.sent_to.get(each) in (None, block.proposer):
                    raise Disagreement(f"transaction {each} did not come to {block.proposer} by gossip")
        wrong = {each: times[each] for each in self.ours if times[each] != 1}
        if wrong:
            raise Disagreement(f"transactions that are not in one block, and in how many: {wrong}")

    def summary(self):
        returns = {}
        for manner, each in self.returns.items():
            blocks, seconds = zip(*each)
            returns[manner] = (
                f"{len(each)} times, up to {max(blocks)} blocks, "
                f"{statistics.median(seconds):.2f} s in the median, {max(seconds):.2f} s at most"
            )
        times = {manner: len(each) for manner, each in self.returns.items()}
        return {
            "mined_by_who_was_not_sent_it": dict(self.ways),
            "restarts": times.get("stopped", 0) + times.get("killed", 0),
            "partitions": times.get("cut off", 0) + times.get("alone", 0),
            "returns": returns,
        }
