"""The consensus driver of the soak: a block in every slot, with reorgs of up to three blocks, and the
times that the soaked node takes.
"""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass

from chain import Block, Schedule
from network import Network

MAX_DEPTH = 3
# Probabilities of a reorg, for each slot without one, and that the node goes back from it at once.
REORG, BACK = 0.08, 0.5
# The soaked node builds every so many blocks itself; a node of no other use builds the rest.
OWN = 10
# Blocks below the head whose payloads are forgotten here.
KEPT = 128


class SoakSchedule(Schedule):
    """A second of the chain for each slot, so that the chain goes by the clock."""

    def time_of(self, slot):
        return self.genesis_time + slot


@dataclass
class SideBranch:
    """The first block of a branch beside the canonical one, which replaces `depth` blocks later."""

    first: Block
    depth: int


class SoakNetwork(Network):
    """Drives the soaked node and the builder. `times` has, by kind of call, pairs of when a call
    ended, on the monotonic clock, and its seconds."""

    def __init__(self, soaked, builder, *more):
        self.soaked, self.builder = soaked, builder
        self.times, self.reorgs, self.side = defaultdict(list), Counter(), None
        super().__init__([soaked, builder], *more)

    def record(self, kind, began):
        ended = time.monotonic()
        self.times[kind].append((ended, ended - began))

    def deliver(self, node, block, side=False):
        began = time.monotonic()
        super().deliver(node, block, side)
        if node is self.soaked:
            self.record("side payload" if side else "new payload", began)

    def forkchoice(self, node, head, attributes=None, **more):
        began = time.monotonic()
        answer = super().forkchoice(node, head, attributes, **more)
        if node is self.soaked and not attributes:
            self.record("forkchoice", began)
        return answer

    # -- a slot ----------------------------------------------------------------------------------

    def run_slot(self, slot):
        self.slot = slot
        self.send_transactions()
        if self.side and self.head.number >= self.side.first.number + self.side.depth - 1:
            self.switch_branch()
        else:
            self.extend()
        self.finalize()
        self.check_heads()
        self.forget()

    def extend(self):
        """A block on the head, and sometimes the first one of a side branch beside it."""
        proposer = self.soaked if self.slot % OWN == 0 else self.builder
        block = self.build(proposer, self.head)
        if not self.side and self.rng.random() < REORG:
            depth = self.rng.randrange(1, MAX_DEPTH + 1)
            self.side = SideBranch(self.build(self.builder, self.head), depth)
        if self.rng.random() < self.options.wrong:
            self.send_wrong(block)
        self.spread(block, self.up)
        self.move_head(block)

    def switch_branch(self):
        """Builds the rest of the side branch and leads the soaked node to it, perhaps back and forth;
        then either branch may win."""
        old, branch = self.head, self.build_branch()
        for block in branch:
            self.deliver(self.soaked, block, side=True)
        self.lead(branch[-1], old)
        if self.rng.random() < BACK:
            self.lead(old, branch[-1])
            self.lead(branch[-1], old)
        winner = self.rng.choice([old, branch[-1]])
        if winner is old:
            self.lead(old, branch[-1])
        self.forkchoice(self.builder, winner)
        self.move_head(winner)
        self.side = None

    def build_branch(self):
        """The whole side branch; the builder follows it, and has its last block at the end."""
        side, now = self.side, self.slot
        blocks = [side.first]
        while True:
            self.deliver(self.builder, blocks[-1], side=True)
            self.forkchoice(self.builder, blocks[-1])
            if len(blocks) == side.depth:
                break
            # A slot for each block, the first of which is that of the first block.
            self.slot = blocks[-1].slot + 1
            blocks.append(self.build(self.builder, blocks[-1]))
        self.slot = now
        return blocks

    def lead(self, block, old):
        """Makes a block of the other branch the soaked node's head."""
        self.forkchoice(self.soaked, block)
        self.reorgs[len(old.branch(block))] += 1
        got = self.block_of(self.soaked, "latest")["hash"]
        if got != block.hash:
            self.wrong_answer(self.soaked, "its head after a reorg", block.hash, got)

    def forget(self):
        """Drops what is only needed of recent blocks."""
        block = self.head.ancestor(max(self.head.number - KEPT, 0))
        for each in block.transactions:
            self.ours.pop(each, None)
        if block.number:
            block.payload, block.transactions = None, []

    def finish(self):
        """Both nodes have the same head, safe and finalized block."""
        for node in self.nodes:
            self.forkchoice(node, self.head)
        self.check_heads()
        for tag, block in [("safe", self.safe), ("finalized", self.finalized)]:
            for node in self.nodes if block.number else []:
                got = self.block_of(node, tag)["hash"]
                if got != block.hash:
                    self.wrong_answer(node, f"block `{tag}`", block.hash, got)
