"""Compares the Parquet files of cryo with those of `retrie export`, and its traces with callTracer's."""

import duckdb
from nodekit import RpcError, fail

# Columns that differ, and why. A name that ends in `*` stands for all that begin so.
KNOWN = {
    ("blocks", "total_difficulty*"): "JSON-RPC no longer has it; retrie writes what its datadir knows",
}
KEYS = {
    "blocks": ["block_number"],
    "transactions": ["transaction_hash"],
    "logs": ["block_number", "log_index"],
}
# Contracts that a block itself calls: EIP-4788, EIP-2935, EIP-7002, EIP-7251.
SYSTEM = {
    "000f3df6d732807ef1319fb7b8bb8522d0beac02",
    "0000f90827f1c53a10cb7a02335b175320002935",
    "00000961ef480eb55e80d19ad83579a64c007002",
    "0000bbddc7ce488642fb579f8b00f3a590007251",
}
# callTracer shows calls of precompiled contracts, traces in OpenEthereum's form do not.
LAST_PRECOMPILE = 0x1FF


def is_precompile(address):
    return address is not None and 0 < int(address, 16) <= LAST_PRECOMPILE


def reason(table, column):
    for (of, name), why in KNOWN.items():
        if of == table and (column == name or name.endswith("*") and column.startswith(name[:-1])):
            return why
    return None


class Comparison:
    """`theirs` has the files of cryo, `ours` those of retrie; both have blocks 1 to `head`."""

    def __init__(self, rpc, theirs, ours, head):
        self.rpc, self.head, self.db = rpc, head, duckdb.connect()
        self.folders = {"cryo": theirs, "retrie": ours}
        self.failures = []

    def files(self, side, table):
        return f"'{self.folders[side]}/*__{table}__*.parquet'"

    def sql(self, query):
        return self.db.sql(query).fetchall()

    def columns(self, side, table):
        """Names and types."""
        rows = self.sql(f"DESCRIBE SELECT * FROM {self.files(side, table)}")
        return {row[0]: row[1] for row in rows}

    def run(self):
        for table, key in KEYS.items():
            self.rows(table, key)
        for table in ("balance_diffs", "nonce_diffs", "code_diffs", "storage_diffs"):
            self.differences(table)
        self.traces()
        if self.failures:
            fail("\n".join(["differences that are not known:", *self.failures]))

    # -- rows that both have -----------------------------------------------------------------------

    def rows(self, table, key):
        sides = {side: self.columns(side, table) for side in self.folders}
        shared = [name for name in sides["cryo"] if name in sides["retrie"]]
        for name in key:
            if name not in shared:
                fail(f"{table}: there is no column {name} in both")
        counts = {side: self.sql(f"SELECT count(*) FROM {self.files(side, table)}")[0][0] for side in sides}
        joined = " AND ".join(f"t.{name} = o.{name}" for name in key)
        source = f"{self.files('cryo', table)} t JOIN {self.files('retrie', table)} o ON {joined}"
        pairs = self.sql(f"SELECT count(*) FROM {source}")[0][0]
        if len({*counts.values(), pairs}) != 1:
            fail(f"{table}: {counts} rows, {pairs} of them of the same key")
        print(f"{table}: {pairs:,} rows, {len(shared)} columns in both", flush=True)
        for name in shared:
            one = self.shown("t", name, sides["cryo"][name])
            other = self.shown("o", name, sides["retrie"][name])
            where = f"{one} IS DISTINCT FROM {other}"
            count = self.sql(f"SELECT count(*) FROM {source} WHERE {where}")[0][0]
            if count:
                sample = self.sql(f"SELECT {one}, {other} FROM {source} WHERE {where} LIMIT 1")[0]
                self.tell(table, name, f"{count:,} rows, such as {self.short(sample[0])} of cryo, {self.short(sample[1])} of retrie")
        for side, other in (("cryo", "retrie"), ("retrie", "cryo")):
            alone = [name for name in sides[side] if name not in sides[other]]
            if alone:
                print(f"  only {side} has: {', '.join(alone)}", flush=True)

    @staticmethod
    def shown(table, name, kind):
        """The value of a column as text, whatever its width."""
        if kind == "BLOB":
            return f"lower(hex({table}.{name}))"
        if kind in ("DOUBLE", "FLOAT"):
            return f"{table}.{name}::DOUBLE"
        return f"{table}.{name}::VARCHAR"

    @staticmethod
    def short(value):
        text = str(value)
        return text if len(text) <= 40 else f"{text[:37]}.."

    def tell(self, table, column, what):
        why = reason(table, column)
        print(f"  {column}: {what}; {why or 'not known'}", flush=True)
        if why is None:
            self.failures.append(f"{table}.{column}: {what}")

    # -- state -------------------------------------------------------------------------------------

    def changed(self, side, table):
        """Changes by block, address and slot, in the order of the transactions."""
        kind = "_string" if table == "balance_diffs" else ""
        values = ", ".join(
            f"lower(hex({name}))" if table in ("code_diffs", "storage_diffs") else f"{name}{kind}::VARCHAR"
            for name in ("from_value", "to_value")
        )
        slot = "lower(hex(slot))" if table == "storage_diffs" else "''"
        return self.sql(
            f"SELECT block_number, lower(hex(address)), {slot}, {values} FROM {self.files(side, table)} "
            "ORDER BY block_number, transaction_index"
        )

    def differences(self, table):
        net = {}
        rows = self.changed("cryo", table)
        for block, address, slot, before, after in rows:
            first, last = net.get((block, address, slot), (before, before))
            if last != before:
                self.failures.append(
                    f"{table}: block {block}: {address} {slot} is {self.short(last)} after a transaction "
                    f"and {self.short(before)} before the next"
                )
            net[block, address, slot] = (first, after)
        net = {key: value for key, value in net.items() if value[0] != value[1]}
        ours = {(row[0], row[1], row[2]): (row[3], row[4]) for row in self.changed("retrie", table)}
        paid = self.withdrawals()
        only_ours = 0
        for key in sorted(net.keys() | ours.keys()):
            block, address, slot = key
            is_system = address in SYSTEM or (table == "balance_diffs" and (block, address) in paid)
            if net.get(key) == ours.get(key):
                continue
            if is_system:
                only_ours += 1
                continue
            self.failures.append(f"{table}: block {block}: {address} {slot}: cryo {net.get(key)}, retrie {ours.get(key)}")
        print(
            f"{table}: {len(rows):,} of transactions, {len(net):,} of blocks, {len(ours):,} of retrie, "
            f"{only_ours:,} of these by system calls and withdrawals",
            flush=True,
        )

    def withdrawals(self):
        """Blocks and the addresses that they pay."""
        if not hasattr(self, "paid"):
            self.paid = set()
            for number in range(1, self.head + 1):
                block = self.rpc.call("eth_getBlockByNumber", hex(number), False)
                for one in block.get("withdrawals") or []:
                    self.paid.add((number, one["address"][2:].lower()))
        return self.paid

    # -- traces ------------------------------------------------------------------------------------

    def traces(self):
        found = {}
        columns = ["action_from", "action_to", "result_address", "action_input", "action_init", "result_output", "result_code"]
        shown = ", ".join(f"lower(hex({name}))" for name in columns)
        for row in self.sql(
            f"SELECT lower(hex(transaction_hash)), trace_address, action_type, action_call_type, "
            f"action_value::VARCHAR, error, {shown} FROM {self.files('cryo', 'traces')} "
            "WHERE transaction_hash IS NOT NULL"
        ):
            transaction, place, kind, call_type, value, error, *rest = row
            place = tuple(int(part) for part in place.split("_") if part)
            frame = self.frame(kind, call_type, value, error, dict(zip(columns, rest)))
            found.setdefault(transaction, {})[place] = frame
        frames = 0
        for (transaction,) in self.sql(
            f"SELECT lower(hex(transaction_hash)) FROM {self.files('retrie', 'transactions')} ORDER BY block_number, transaction_index"
        ):
            try:
                root = self.rpc.call("debug_traceTransaction", f"0x{transaction}", {"tracer": "callTracer"})
            except RpcError as error:
                fail(f"callTracer: {error}")
            expected = list(self.flattened(root))
            theirs = [frame for _, frame in sorted(found.get(transaction, {}).items())]
            frames += len(expected)
            if theirs != expected:
                pairs = [pair for pair in zip(theirs, expected) if pair[0] != pair[1]]
                shown = pairs[0] if pairs else (len(theirs), len(expected))
                self.failures.append(f"traces: 0x{transaction}: cryo {shown[0]}, callTracer {shown[1]}")
                if len(self.failures) > 20:
                    break
        rewards = self.sql(f"SELECT count(*) FROM {self.files('cryo', 'traces')} WHERE transaction_hash IS NULL")[0][0]
        if rewards:
            self.failures.append(f"traces: {rewards} of no transaction, in a chain without rewards")
        print(f"traces: {frames:,} frames of {len(found):,} transactions, as callTracer's", flush=True)

    @staticmethod
    def frame(kind, call_type, value, error, of):
        if kind == "create":
            to = None if error else of["result_address"]
            return ("create", of["action_from"], to, value, of["action_init"], None if error else of["result_code"], bool(error))
        if kind == "suicide":
            return ("suicide", of["action_from"], of["action_to"], value, None, None, False)
        # The value of these is that of the caller's frame, or none.
        value = value if call_type in ("call", "callcode", "call_code") else None
        output = None if error else of["result_output"]
        call_type = call_type.replace("_", "")
        return (call_type, of["action_from"], of["action_to"], value, of["action_input"], output, bool(error))

    def flattened(self, frame):
        """The frames of callTracer in the order of traces, in the same form."""

        def raw(name):
            return (frame.get(name) or "0x")[2:].lower()

        kind, failed = frame["type"].lower(), "error" in frame
        value = str(int(frame.get("value") or "0x0", 16))
        to = (frame.get("to") or "0x")[2:].lower() or None
        output = None if failed else raw("output")
        if kind.startswith("create"):
            yield ("create", raw("from"), None if failed else to, value, raw("input"), output, failed)
        elif kind == "selfdestruct":
            yield ("suicide", raw("from"), to, value, None, None, False)
        else:
            value = value if kind in ("call", "callcode") else None
            yield (kind, raw("from"), to, value, raw("input"), output, failed)
        for inner in frame.get("calls", []):
            if not is_precompile(inner.get("to")):
                yield from self.flattened(inner)
