"""The chain of `snap-sync`: its files, its blocks as payloads, and what a consensus client makes of the
last ones: slots, with reorgs."""

import random
import shutil
from dataclasses import dataclass

import nodekit
import payloads

# How deep a reorg goes at most.
DEEPEST = 3


@dataclass
class Slot:
    """What a node is told in a slot: new payloads, the last of which becomes the head."""

    payloads: list
    is_side: bool = False

    @property
    def head(self):
        return self.payloads[-1]


class Made:
    """A generated chain. The servers have the blocks up to `end`; `rest` come later."""

    def __init__(self, args, folder, rest):
        self.retrie = args.retrie
        made = folder / "chain"
        fork = ["--fork", args.fork] if args.fork != "prague" else []
        nodekit.run(
            [args.retrie, "bench", "make-chain", "--preload", "--accounts", args.accounts,
             "--blocks", args.blocks, "--txs", args.txs, "--mix", "transfers=50,erc20=50",
             "--contracts", "own", "--seed", args.seed, *fork, made]
        )  # fmt: skip
        self.genesis, chain = made / "genesis.json", made / "chain.rlp"
        self.all, self.first, self.last = chain, folder / "first.rlp", folder / "last.rlp"
        self.end = args.blocks - rest
        blocks = list(payloads.rlp_lists(chain.read_bytes()))
        self.first.write_bytes(b"".join(blocks[: self.end]))
        self.last.write_bytes(b"".join(blocks[self.end :]))
        source = nodekit.Retrie("retrie:mpt", "source", folder, self.genesis, args.retrie)
        flags = ["--datadir", source.datadir, "--chain", self.genesis]
        nodekit.run([args.retrie, "import", *flags, "--retention", rest + 2, chain])
        source.start()
        # The number of a block is its index.
        self.payloads = [None, *payloads.read_payloads(source, chain)]
        source.stop()
        self.slots = [Slot([payload]) for payload in self.payloads[self.end + 1 :]]
        if args.live and args.reorgs:
            nodekit.run(
                [args.retrie, "stage", "unwind", "--datadir", source.datadir, "to-block", self.end]
            )
            self.slots = self.with_reorgs(source.start(), random.Random(args.seed), args.reorgs)
            source.stop()
        shutil.rmtree(source.folder)

    @property
    def head(self):
        """The last block that the servers have."""
        return self.payloads[self.end]

    def with_reorgs(self, source, chance, count):
        """The slots with `count` side branches among them, which `source` builds: each takes the place
        of the last 1 to 3 blocks for a slot, and the next block takes it back."""
        main = [slot.head for slot in self.slots]
        # So far from each other that each has a parent of its own.
        room = range(DEEPEST, len(main) - 1, DEEPEST + 1)
        builds, sides, slots = {}, {}, []
        for at in chance.sample(room, min(count, len(room))):
            depth = chance.randint(1, DEEPEST)
            builds[at - depth] = at, depth
        tell(source, self.head)
        for at, payload in enumerate(main):
            slots.append(Slot([payload]))
            tell(source, payload)
            if at in builds:
                after, depth = builds[at]
                sides[after] = self.branch(source, payload, depth)
            if at in sides:
                slots.append(Slot(sides[at], is_side=True))
        return slots

    def branch(self, source, parent, length):
        """Empty blocks on the head of `source`."""
        blocks, on = [], parent
        for number in range(length):
            recipient = "0x" + f"{0xBEEF + number + parent.number:040x}"
            blocks.append(payloads.built_on(source, on, recipient))
            on = blocks[-1]
            tell(source, on)
        return blocks


def tell(node, *new):
    """Gives a node new payloads, and makes the last one its head; seconds of its newPayload, and the
    status of the head."""
    for payload in new:
        took, _ = payloads.ask(node, payload.new)
    _, answer = payloads.ask(node, new[-1].choice)
    return took, answer["payloadStatus"]["status"]
