"""Compares the Parquet files of a chain with a node's responses."""

import json

import duckdb
from nodekit import RpcError, fail

BLOCK_COLUMNS = {
    # Column: field of eth_getBlockByNumber.
    "block_number": "number", "block_hash": "hash", "parent_hash": "parentHash",
    "uncles_hash": "sha3Uncles", "author": "miner", "state_root": "stateRoot",
    "transactions_root": "transactionsRoot", "receipts_root": "receiptsRoot",
    "gas_used": "gasUsed", "gas_limit": "gasLimit", "extra_data": "extraData",
    "logs_bloom": "logsBloom", "timestamp": "timestamp", "difficulty": "difficulty", "size": "size",
    "mix_hash": "mixHash", "nonce": "nonce", "base_fee_per_gas": "baseFeePerGas",
    "withdrawals_root": "withdrawalsRoot", "blob_gas_used": "blobGasUsed",
    "excess_blob_gas": "excessBlobGas", "parent_beacon_block_root": "parentBeaconBlockRoot",
    "requests_hash": "requestsHash",
}  # fmt: skip
TRANSACTION_COLUMNS = {
    "block_number": "blockNumber", "transaction_index": "transactionIndex",
    "transaction_hash": "hash", "nonce": "nonce", "from_address": "from", "to_address": "to",
    "value_string": "value", "input": "input", "gas_limit": "gas", "gas_price": "gasPrice",
    "transaction_type": "type", "max_priority_fee_per_gas": "maxPriorityFeePerGas",
    "max_fee_per_gas": "maxFeePerGas", "max_fee_per_blob_gas": "maxFeePerBlobGas",
    "block_hash": "blockHash", "r": "r", "s": "s",
}  # fmt: skip
RECEIPT_COLUMNS = {
    "block_number": "blockNumber", "transaction_index": "transactionIndex",
    "transaction_hash": "transactionHash", "transaction_type": "type", "success": "status",
    "cumulative_gas_used": "cumulativeGasUsed", "gas_used": "gasUsed",
    "effective_gas_price": "effectiveGasPrice", "from_address": "from", "to_address": "to",
    "contract_address": "contractAddress", "logs_bloom": "logsBloom",
    "blob_gas_used": "blobGasUsed", "blob_gas_price": "blobGasPrice", "block_hash": "blockHash",
}  # fmt: skip
LOG_COLUMNS = {
    "block_number": "blockNumber", "block_hash": "blockHash",
    "transaction_index": "transactionIndex", "log_index": "logIndex",
    "transaction_hash": "transactionHash", "address": "address", "data": "data",
}  # fmt: skip
# Columns of bytes; all others are numbers.
BYTES = {
    "block_hash", "parent_hash", "uncles_hash", "author", "state_root", "transactions_root",
    "receipts_root", "extra_data", "logs_bloom", "mix_hash", "nonce_bytes", "withdrawals_root",
    "parent_beacon_block_root", "requests_hash", "transaction_hash", "from_address", "to_address",
    "input", "contract_address", "address", "data", "topic0", "topic1", "topic2", "topic3",
    "r", "s",
}  # fmt: skip


# Contracts that blocks call after their transactions to empty their queues (EIP-7002, EIP-7251).
QUEUES = {
    "0x00000961ef480eb55e80d19ad83579a64c007002",
    "0x0000bbddc7ce488642fb579f8b00f3a590007251",
}


def quantity(value):
    return None if value is None else str(int(value, 16))


class Comparison:
    """`out` has the files, `folder` gets the node's responses."""

    def __init__(self, rpc, out, folder, batch):
        self.rpc, self.out, self.folder, self.batch = rpc, out, folder, batch
        self.db = duckdb.connect()
        self.head = int(rpc.call("eth_blockNumber"), 16)

    def ask_all(self, requests):
        """Yields the responses to pairs of method and parameters, in order, as they arrive."""
        for start in range(0, len(requests), self.batch):
            part = requests[start : start + self.batch]
            sent = [
                {"jsonrpc": "2.0", "id": at, "method": method, "params": params}
                for at, (method, params) in enumerate(part)
            ]
            answers = {answer["id"]: answer for answer in self.rpc.raw(sent)}
            for at, (method, _) in enumerate(part):
                if "error" in answers[at]:
                    raise RpcError(method, answers[at]["error"])
                yield answers[at]["result"]

    def files(self, table):
        return f"'{self.out}/*__{table}__*.parquet'"

    def sql(self, query):
        return self.db.sql(query).fetchall()

    # -- rows ----------------------------------------------------------------------------------------

    def answered(self, name, columns, rows):
        """A table of the rows from the node: dictionaries of texts."""
        path = self.folder / f"{name}.ndjson"
        with open(path, "w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        types = ", ".join(f"{column}: 'VARCHAR'" for column in columns)
        self.db.sql(
            f"CREATE TABLE rpc_{name} AS SELECT * FROM read_json('{path}', "
            f"format = 'newline_delimited', maximum_object_size = 100000000, columns = {{{types}}})"
        )

    def exported(self, name, columns, table=None):
        """The same columns of the files, in the same text form."""

        def shown(column):
            if column in BYTES or (name, column) == ("blocks", "nonce"):
                return f"'0x' || lower(hex({column})) AS {column}"
            if column == "success":
                return "success::INT::VARCHAR AS success"
            return f"{column}::VARCHAR AS {column}"

        selected = ", ".join(map(shown, columns))
        self.db.sql(
            f"CREATE TABLE file_{name} AS SELECT {selected} FROM {self.files(table or name)}"
        )

    def same(self, name):
        """Checks that both tables have the same rows, with the same counts."""
        counts = [self.sql(f"SELECT count(*) FROM {side}_{name}")[0][0] for side in ("file", "rpc")]
        for here, there in (("file", "rpc"), ("rpc", "file")):
            query = f"SELECT * FROM {here}_{name} EXCEPT ALL SELECT * FROM {there}_{name} LIMIT 1"
            row = self.sql(query)
            if row:
                names = [one[0] for one in self.sql(f"DESCRIBE {here}_{name}")]
                fail(f"{name}: only {here} has {dict(zip(names, row[0]))}; rows: {counts}")
        if counts[0] != counts[1]:
            fail(f"{name}: {counts[0]} rows in the files, {counts[1]} of the node")
        print(f"  {name:<14} {counts[0]:>9,} rows, all columns equal", flush=True)

    # -- tables --------------------------------------------------------------------------------------

    def run(self):
        self.blocks()
        self.receipts()
        self.logs()
        self.sums()
        self.changes()

    def blocks(self):
        columns = [*BLOCK_COLUMNS, "n_transactions", "n_uncles", "n_withdrawals"]
        extra = ["n_blobs", "n_authorizations", "n_input_bytes"]
        transactions = []

        def rows():
            numbers = range(self.head + 1)
            asked = [("eth_getBlockByNumber", [hex(number), True]) for number in numbers]
            for block in self.ask_all(asked):
                row = {}
                for column, field in BLOCK_COLUMNS.items():
                    is_bytes = column in BYTES or column == "nonce"
                    row[column] = block.get(field) if is_bytes else quantity(block.get(field))
                row["n_transactions"] = str(len(block["transactions"]))
                row["n_uncles"] = str(len(block["uncles"]))
                withdrawals = block.get("withdrawals")
                row["n_withdrawals"] = None if withdrawals is None else str(len(withdrawals))
                transactions.extend(map(transaction, block["transactions"]))
                yield row

        def transaction(answer):
            row = {
                column: answer.get(field) if column in BYTES else quantity(answer.get(field))
                for column, field in TRANSACTION_COLUMNS.items()
            }
            # Words are shown without leading zeros.
            for word in ("r", "s"):
                row[word] = f"0x{int(row[word], 16):064x}"
            row["n_input_bytes"] = str(len(answer["input"]) // 2 - 1)
            for column, field in (("n_blobs", "blobVersionedHashes"), ("n_authorizations", "authorizationList")):
                row[column] = str(len(answer[field])) if field in answer else None
            return row

        self.answered("blocks", columns, rows())
        self.exported("blocks", columns)
        self.same("blocks")
        columns = [*TRANSACTION_COLUMNS, *extra]
        self.answered("transactions", columns, transactions)
        self.exported("transactions", columns)
        self.same("transactions")

    def receipts(self):
        # Before Byzantium receipts have a root instead of the status; the files leave it out.
        columns = [*RECEIPT_COLUMNS, "n_logs"]

        def rows():
            numbers = [number for (number,) in self.sql(
                f"SELECT block_number FROM {self.files('blocks')} WHERE n_transactions > 0 ORDER BY 1"
            )]  # fmt: skip
            asked = [("eth_getBlockReceipts", [hex(number)]) for number in numbers]
            for receipts in self.ask_all(asked):
                for receipt in receipts:
                    row = {
                        column: receipt.get(field)
                        if column in BYTES
                        else quantity(receipt.get(field))
                        for column, field in RECEIPT_COLUMNS.items()
                    }
                    row["n_logs"] = str(len(receipt["logs"]))
                    yield row

        self.answered("receipts", columns, rows())
        self.exported("receipts", columns)
        self.same("receipts")

    def logs(self):
        topics = [f"topic{at}" for at in range(4)]
        columns = [*LOG_COLUMNS, *topics]

        def rows():
            for start in range(0, self.head + 1, 1000):
                end = min(start + 999, self.head)
                for log in self.rpc.call("eth_getLogs", {"fromBlock": hex(start), "toBlock": hex(end)}):
                    row = {
                        column: log[field] if column in BYTES else quantity(log[field])
                        for column, field in LOG_COLUMNS.items()
                    }
                    padded = [*log["topics"], None, None, None, None]
                    yield row | dict(zip(topics, padded))

        self.answered("logs", columns, rows())
        self.exported("logs", columns)
        self.same("logs")

    def sums(self):
        """Typical queries of an analyst, from both sides."""
        for name, table, what in [
            ("gas used", "blocks", "sum(gas_used::HUGEINT)"),
            ("time stamps", "blocks", "sum(timestamp::HUGEINT)"),
            ("value in wei", "transactions", "coalesce(sum(value_string::DECIMAL(38, 0)), 0)"),
            ("fees in wei", "receipts", "coalesce(sum(gas_used::HUGEINT * effective_gas_price::HUGEINT), 0)"),
            ("addresses that logged", "logs", "count(DISTINCT address)"),
        ]:  # fmt: skip
            exported = self.sql(f"SELECT {what} FROM {self.files(table)}")[0][0]
            answered = self.sql(f"SELECT {what} FROM rpc_{table}")[0][0]
            if exported != answered:
                fail(f"{name}: {exported} in the files, {answered} of the node")
            print(f"  {name:<22} {int(exported):>32,} in both", flush=True)
        per_address = "SELECT block_number::INT, {}, count(*) FROM {} GROUP BY ALL ORDER BY ALL"
        exported = self.sql(per_address.format("'0x' || lower(hex(address))", self.files("logs")))
        answered = self.sql(per_address.format("address", "rpc_logs"))
        if exported != answered:
            fail("the logs of addresses by block are others")
        print(f"  {'logs by block, address':<22} {len(exported):>32,} groups in both", flush=True)

    # -- changes -------------------------------------------------------------------------------------

    def changes(self):
        changed = {number: set() for number in range(self.head + 1)}
        kinds = [
            ("balance_diffs", "from_value_string, to_value_string", "eth_getBalance"),
            ("nonce_diffs", "from_value::VARCHAR, to_value::VARCHAR", "eth_getTransactionCount"),
            ("code_diffs", "'0x' || lower(hex(from_value)), '0x' || lower(hex(to_value))", "eth_getCode"),
            ("storage_diffs", "'0x' || lower(hex(from_value)), '0x' || lower(hex(to_value))", "eth_getStorageAt"),
        ]  # fmt: skip
        for table, values, method in kinds:
            slot = "'0x' || lower(hex(slot))" if table == "storage_diffs" else "NULL"
            rows = self.sql(
                f"SELECT block_number, '0x' || lower(hex(address)), {slot}, {values} "
                f"FROM {self.files(table)} ORDER BY block_number"
            )
            asked, expected = [], []
            for number, address, slot, before, after in rows:
                changed[number].add(address)
                for at, value in ((number - 1, before), (number, after)):
                    # Before block 0 there was no state.
                    if at >= 0:
                        params = [address] if slot is None else [address, slot]
                        asked.append((method, [*params, hex(at)]))
                        expected.append(value)
            counts = method in ("eth_getBalance", "eth_getTransactionCount")
            for (_, params), value, answer in zip(asked, expected, self.ask_all(asked)):
                if value != (quantity(answer) if counts else answer):
                    fail(f"{table}: {params} is {value} in the files, {answer} of the node")
            print(f"  {table:<14} {len(rows):>9,} rows, {len(asked):,} values equal", flush=True)
        self.completeness(changed)

    def completeness(self, changed):
        numbers = range(1, self.head + 1)
        asked = [("debug_getModifiedAccountsByNumber", [number]) for number in numbers]
        count = 0
        for number, answer in zip(numbers, self.ask_all(asked)):
            modified = {address.lower() for address in answer}
            if modified != changed[number]:
                only = sorted(modified ^ changed[number])[0]
                where = "node" if only in modified else "files"
                fail(f"block {number}: only the {where} says that {only} changed")
            count += len(modified)
        print(f"  modified accounts, by block: {count:,} in both", flush=True)
        numbers = [number for (number,) in self.sql(
            f"SELECT block_number FROM {self.files('blocks')} WHERE n_transactions > 0 ORDER BY 1"
        )]  # fmt: skip
        config = {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}}
        asked = [("debug_traceBlockByNumber", [hex(number), config]) for number in numbers]
        self.traced(numbers, asked)

    def traced(self, numbers, asked):
        """Checks that the net effect of a block's transactions is among its changes: slots end with
        the value of the last transaction that touched them."""
        slots = {}
        for number, address, slot, before, after in self.sql(
            "SELECT block_number, '0x' || lower(hex(address)), '0x' || lower(hex(slot)), "
            "'0x' || lower(hex(from_value)), '0x' || lower(hex(to_value)) "
            f"FROM {self.files('storage_diffs')}"
        ):
            slots[number, address, slot] = before, after
        zero = "0x" + "00" * 32
        count = 0
        for number, traces in zip(numbers, self.ask_all(asked)):
            net = {}
            for trace in traces:
                pre, post = trace["result"]["pre"], trace["result"]["post"]
                for address, account in pre.items():
                    # An account missing in `post` was destroyed with all its slots; those are
                    # checked above.
                    after = post.get(address)
                    if after is None or address in QUEUES:
                        continue
                    for slot in account.get("storage", {}).keys() | after.get("storage", {}).keys():
                        before = account.get("storage", {}).get(slot, zero)
                        now = after.get("storage", {}).get(slot, zero)
                        first = net.get((address, slot), (before, None))[0]
                        net[address, slot] = (first, now)
            for (address, slot), (before, after) in net.items():
                if before != after and slots.get((number, address, slot)) != (before, after):
                    said = slots.get((number, address, slot))
                    fail(f"block {number}: slot {slot} of {address} goes {before} to {after}, not {said}")
                count += before != after
        print(f"  slots that traces say changed: {count:,}, all in the files", flush=True)
