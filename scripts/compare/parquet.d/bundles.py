"""Compares the Parquet files of bundles with the bundles, their headers, and recorded responses of
other nodes."""

import gzip
import json

import duckdb
from nodekit import fail
from trie import bloom_of, decode, encode, keccak, root

BYZANTIUM = 4_370_000
EMPTY_CODE = keccak(b"")


def load(folder):
    for path in sorted(folder.glob("*.json.gz")):
        with gzip.open(path) as file:
            bundle = json.load(file)
        for state in ("pre", "post"):
            for account in (bundle.get(state) or {}).values():
                # Some bundles have slots without leading zeros.
                storage = (account or {}).get("storage", {})
                padded = {f"0x{int(slot, 16):064x}": value for slot, value in storage.items()}
                if account:
                    account["storage"] = padded
        yield bundle


def raw(text):
    return bytes.fromhex(text.removeprefix("0x"))


def number(word):
    return int.from_bytes(word, "big")


class Block:
    """A block of a bundle, decoded without retrie's code."""

    def __init__(self, bundle):
        self.bundle = bundle
        self.is_witness = "state" in bundle
        if bundle.get("block"):
            block = decode(raw(bundle["block"]))
            header, transactions = block[0], block[1]
            # Typed transactions are byte strings, legacy ones lists.
            self.transactions = [
                one if isinstance(one, bytes) else encode(one) for one in transactions
            ]
        else:
            header = decode(raw(bundle["header"]))
            self.transactions = [raw(one) for one in bundle["transactions"]]
        self.header = header
        self.number, self.gas_used = number(header[8]), number(header[10])
        self.hash = keccak(encode(header))
        self.receipts_root, self.bloom, self.transactions_root = header[5], header[6], header[4]


# Position of the value in each type of transaction.
VALUE = {1: 5, 2: 6, 3: 6, 4: 6}


def value_of(transaction):
    if transaction[0] >= 0xC0:
        return number(decode(transaction)[4])
    return number(decode(transaction[1:])[VALUE[transaction[0]]])


def compare(folders, out):
    db = duckdb.connect()

    def rows(sql):
        return db.sql(sql).fetchall()

    def files(table):
        return f"'{out}/*__{table}__*.parquet'"

    blocks = {}
    total = 0
    for folder in folders:
        for bundle in load(folder):
            total += 1
            block = Block(bundle)
            # If a block has two bundles, the witness is exported.
            if block.number not in blocks or block.is_witness:
                blocks[block.number] = block
    print(f"  {total} bundles, {len(blocks)} blocks", flush=True)

    headers(rows, files, blocks)
    transactions(rows, files, blocks)
    receipts(rows, files, blocks)
    changes(rows, files, blocks)


def headers(rows, files, blocks):
    found = rows(f"SELECT block_number, block_hash, gas_used FROM {files('blocks')} ORDER BY 1")
    expected = [(one.number, one.hash, one.gas_used) for _, one in sorted(blocks.items())]
    if found != expected:
        fail("the blocks are others")
    gas = sum(one.gas_used for one in blocks.values())
    print(f"  blocks         {len(found):>9,} rows, hash and gas ({gas:,}) equal", flush=True)


def transactions(rows, files, blocks):
    found = {
        block: (count, int(value), int(used))
        for block, count, value, used in rows(
            f"SELECT block_number, count(*), sum(value_string::DECIMAL(38, 0)), "
            f"sum(gas_used::HUGEINT) FROM {files('transactions')} GROUP BY 1"
        )
    }
    counts = [0, 0]
    for block in blocks.values():
        bundle = block.bundle
        value = sum(map(value_of, block.transactions))
        expected = (bundle["txs"], value, bundle["gasUsed"])
        if found.get(block.number, (0, 0, 0)) != expected:
            fail(f"block {block.number}: {found.get(block.number)}, not {expected}")
        if root([(encode_number(at), one) for at, one in enumerate(block.transactions)]) != block.transactions_root:
            fail(f"block {block.number}: the transactions of the bundle have another root")
        counts[0] += bundle["txs"]
        counts[1] += value
    hashes = rows(f"SELECT transaction_hash FROM {files('transactions')} ORDER BY block_number, transaction_index")
    expected = [(keccak(one),) for _, block in sorted(blocks.items()) for one in block.transactions]
    if hashes != expected:
        fail("hashes of transactions are others")
    senders = 0
    for block in blocks.values():
        if "senders" not in block.bundle:
            continue
        found = rows(
            f"SELECT '0x' || lower(hex(from_address)) FROM {files('transactions')} "
            f"WHERE block_number = {block.number} ORDER BY transaction_index"
        )
        if [one for (one,) in found] != block.bundle["senders"]:
            fail(f"block {block.number}: senders are others than the RPC node said")
        senders += len(found)
    print(
        f"  transactions   {counts[0]:>9,} rows, hash, gas and value ({counts[1]:,} wei) equal by block; "
        f"{senders:,} senders as an RPC node said",
        flush=True,
    )


def encode_number(value):
    return encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def receipts(rows, files, blocks):
    logs = {}
    for block, transaction, address, topics, data in rows(
        f"SELECT block_number, transaction_index, address, [topic0, topic1, topic2, topic3], data "
        f"FROM {files('logs')} ORDER BY block_number, log_index"
    ):
        topics = [topic for topic in topics if topic is not None]
        logs.setdefault((block, transaction), []).append([address, topics, data])
    found = {}
    for block, index, kind, success, state, gas in rows(
        f"SELECT block_number, transaction_index, transaction_type, success, root, cumulative_gas_used "
        f"FROM {files('receipts')} ORDER BY block_number, transaction_index"
    ):
        own = logs.get((block, index), [])
        status = state if block < BYZANTIUM else (b"\x01" if success else b"")
        found.setdefault(block, []).append((kind, status, gas, own))
    counts = {"root": 0, "bloom": 0}
    for block in blocks.values():
        own = found.get(block.number, [])
        if len(own) != block.bundle["txs"]:
            fail(f"block {block.number}: {len(own)} receipts")
        bloom = bytes(256)
        items = []
        for index, (kind, status, gas, of_receipt) in enumerate(own):
            of_this = bloom_of(of_receipt)
            bloom = bytes(one | other for one, other in zip(bloom, of_this))
            if status is None:
                items = None
                continue
            gas = gas.to_bytes((gas.bit_length() + 7) // 8, "big")
            encoded = encode([status, gas, of_this, of_receipt])
            if items is not None:
                items.append((encode_number(index), (bytes([kind]) if kind else b"") + encoded))
        if bloom != block.bloom:
            fail(f"block {block.number}: the bloom of its logs is not that of the header")
        counts["bloom"] += 1
        if items is not None:
            if root(items) != block.receipts_root:
                fail(f"block {block.number}: the root of its receipts is not that of the header")
            counts["root"] += 1
        elif block.is_witness or block.number >= BYZANTIUM:
            fail(f"block {block.number}: its receipts lack what they commit to")
    print(
        f"  receipts       {sum(map(len, found.values())):>9,} rows, and {sum(map(len, logs.values())):,} logs: "
        f"receiptsRoot of {counts['root']} blocks, logsBloom of {counts['bloom']}",
        flush=True,
    )


def changes(rows, files, blocks):
    found = {number: {} for number in blocks}
    counts = {}
    for table, field in [("balance_diffs", "balance"), ("nonce_diffs", "nonce"), ("code_diffs", "code")]:
        values = "from_value_string, to_value_string" if field == "balance" else "from_value, to_value"
        all_rows = rows(f"SELECT block_number, '0x' || lower(hex(address)), {values} FROM {files(table)}")
        counts[table] = len(all_rows)
        for block, address, before, after in all_rows:
            if field == "code":
                before, after = ("0x" + keccak(one).hex() for one in (before, after))
            else:
                before, after = int(before), int(after)
            found[block][address, field] = (before, after)
    slots = rows(
        f"SELECT block_number, '0x' || lower(hex(address)), '0x' || lower(hex(slot)), from_value, to_value "
        f"FROM {files('storage_diffs')}"
    )
    counts["storage_diffs"] = len(slots)
    for block, address, slot, before, after in slots:
        found[block][address, slot] = (number(before), number(after))
    begun = ended = 0
    for block in blocks.values():
        pre, post = block.bundle.get("pre"), block.bundle.get("post")
        own = found[block.number]
        for (address, key), (before, after) in own.items():
            for state, said in ((pre, before), (post, after)):
                if state is None or (state is post and address not in state):
                    continue
                account = state.get(address)
                # A key that a witness does not list was not read, so it has no value here.
                if block.is_witness and address not in state:
                    continue
                value = value_in(account, key)
                if value is None and block.is_witness:
                    continue
                if (value or 0) != said:
                    side = "before" if state is pre else "after"
                    fail(f"block {block.number}: {key} of {address} is {said} {side} it, not {value}")
                begun += state is pre
                ended += state is post
        if pre is not None and post is not None:
            for address, account in post.items():
                keys = ["balance", "nonce", "code", *((account or {}).get("storage", {}))]
                for key in keys:
                    before, after = value_in(pre.get(address), key) or 0, value_in(account, key) or 0
                    if key == "code":
                        before, after = (one or "0x" + EMPTY_CODE.hex() for one in (before, after))
                    if before != after and own.get((address, key)) != (before, after):
                        fail(f"block {block.number}: {key} of {address} goes {before} to {after}, not {own.get((address, key))}")
    text = ", ".join(f"{count:,} {table}" for table, count in counts.items())
    print(f"  changes        {text}: {begun:,} begin where the bundle says, {ended:,} end where eth_getProof said", flush=True)


def value_in(account, key):
    """A field of an account in a bundle; None if the bundle lacks it."""
    if account is None:
        return ("0x" + EMPTY_CODE.hex()) if key == "code" else 0
    if key == "code":
        return account.get("codeHash") or "0x" + EMPTY_CODE.hex()
    if key in ("balance", "nonce"):
        value = account[key]
        return int(value, 16) if isinstance(value, str) else value
    value = account.get("storage", {}).get(key)
    return None if value is None else int(value, 16)
