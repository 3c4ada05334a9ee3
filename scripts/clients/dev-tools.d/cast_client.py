"""cast against a dev chain. The program, the address, a key and the contract come from
scripts/clients/dev-tools. $FUNDED is the key's account, $UNLOCKED another one that the node signs for;
$ETHEREUM_ROOT is empty on backends whose state root is not Ethereum's.
"""

import json
import os
import subprocess

CAST, KEY = os.environ["CAST"], os.environ["KEY"]
FUNDED, UNLOCKED = os.environ["FUNDED"], os.environ["UNLOCKED"]
CONTRACT = json.loads(open(os.environ["CONTRACT"]).read())
OTHER = "0x00000000000000000000000000000000C0FFEE01"
ETHER = 10**18


def ok(what):
    print(f"cast: {what}: ok", flush=True)


def run(*parts):
    command = [CAST, *(str(part) for part in parts)]
    env = os.environ | {"ETH_RPC_URL": os.environ["HTTP"]}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def cast(*parts):
    done = run(*parts)
    assert done.returncode == 0, f"cast {' '.join(map(str, parts))}: {done.stderr.strip()}"
    return done.stdout.strip()


def fails(words, *parts):
    done = run(*parts)
    assert done.returncode != 0, f"cast {' '.join(map(str, parts))} must fail: {done.stdout}"
    assert words in done.stderr, done.stderr


def mined(*parts):
    receipt = json.loads(cast("send", "--json", *parts))
    assert receipt["status"] == "0x1", receipt
    return receipt


def number(text):
    """A number as cast prints it, `1000000 [1e6]`."""
    return int(text.split()[0], 0)


def chain():
    assert number(cast("chain-id")) == int(cast("rpc", "eth_chainId").strip('"'), 16)
    assert "/" in cast("client")
    before = number(cast("block-number"))
    assert number(cast("balance", FUNDED)) > 100 * ETHER
    assert number(cast("gas-price")) >= number(cast("base-fee")) > 0
    block = json.loads(cast("block", "latest", "--json"))
    assert int(block["number"], 16) >= before and block["hash"].startswith("0x")
    assert cast("block", "latest", "--field", "hash") == block["hash"]
    assert cast("block", "0", "--field", "number") == "0"
    ok("chain id, client, balance, fees, blocks")


def deploy():
    made = mined(
        "--private-key", KEY, "--create", CONTRACT["bytecode"],
        "constructor(string,string)", "Test Token", "TT",
    )  # fmt: skip
    token = made["contractAddress"]
    assert cast("code", token) == cast("rpc", "eth_getCode", token, "latest").strip('"') != "0x"
    assert cast("call", token, "name()(string)").strip('"') == "Test Token"
    assert cast("call", token, "owner()(address)").lower() == FUNDED.lower()
    # It verifies a proof in Ethereum's form, which nodes without Ethereum's root refuse.
    if os.environ["ETHEREUM_ROOT"]:
        assert cast("codehash", token) == cast("keccak", cast("code", token))
        assert json.loads(cast("proof", token, "0x0"))["storageProof"]
    else:
        fails("state_getProof", "codehash", token)
    ok("send --create, code, call, codehash, proof")
    return token


def send(token):
    first = number(cast("nonce", FUNDED))
    minted = mined("--private-key", KEY, token, "mint(address,uint256)", FUNDED, 1000)
    moved = mined("--private-key", KEY, token, "transfer(address,uint256)", UNLOCKED, 400)
    mined("--private-key", KEY, "--legacy", "--value", "1wei", OTHER)
    assert number(cast("nonce", FUNDED)) == first + 3
    balance = ("balanceOf(address)(uint256)", UNLOCKED)
    assert number(cast("call", token, *balance)) == 400
    assert number(cast("call", "--block", int(minted["blockNumber"], 16), token, *balance)) == 0
    gas = number(cast("estimate", "--from", FUNDED, token, "transfer(address,uint256)", OTHER, 1))
    assert 21_000 < gas < 100_000, gas
    # The total supply is in slot 0.
    assert int(cast("storage", token, 0), 16) == 1000
    ok("send --private-key, call, estimate, nonce, storage")
    return moved


def unlocked(token):
    before = number(cast("balance", OTHER))
    assert UNLOCKED.lower() in cast("rpc", "eth_accounts").lower()
    mined("--unlocked", "--from", UNLOCKED, "--value", "2wei", OTHER)
    sent = mined("--unlocked", "--from", UNLOCKED, token, "transfer(address,uint256)", OTHER, 5)
    assert sent["from"].lower() == UNLOCKED.lower() and len(sent["logs"]) == 1
    assert number(cast("balance", OTHER)) == before + 2
    ok("send --unlocked")


def read(token, moved):
    name = moved["transactionHash"]
    assert json.loads(cast("receipt", name, "--json"))["blockHash"] == moved["blockHash"]
    assert cast("receipt", name, "status").startswith(("1", "true"))
    sent = json.loads(cast("tx", name, "--json"))
    assert sent["hash"] == name and sent["from"].lower() == FUNDED.lower()
    assert cast("tx", name, "nonce") == str(int(sent["nonce"], 16))
    assert cast("tx", name, "--raw").startswith("0x02")
    event = "Transfer(address indexed,address indexed,uint256)"
    logs = json.loads(cast("logs", "--json", "--from-block", 0, "--address", token, event))
    assert [int(log["data"], 16) for log in logs] == [1000, 400, 5], logs
    receipts = json.loads(cast("rpc", "eth_getBlockReceipts", moved["blockNumber"]))
    assert name in [each["transactionHash"] for each in receipts]
    assert json.loads(cast("rpc", "--raw", "eth_getTransactionByHash", json.dumps([name])))
    listed = cast("access-list", "--from", FUNDED, token, "transfer(address,uint256)", OTHER, 1)
    assert token.lower() in listed.lower()
    assert "pending" in cast("tx-pool", "status")
    ok("receipt, tx, logs, rpc, access-list, tx-pool")


def made_offline(token):
    signed = cast("mktx", "--private-key", KEY, token, "transfer(address,uint256)", OTHER, 6)
    decoded = json.loads(json.loads(cast("decode-transaction", signed)))
    receipt = json.loads(cast("publish", signed))
    assert receipt["transactionHash"] == decoded["hash"] == cast("keccak", signed)
    assert receipt["status"] == "0x1"
    ok("mktx, decode-transaction, publish")


def errors(token):
    to_much = (token, "transfer(address,uint256)", OTHER, 10**6)
    data = cast("sig", "InsufficientBalance(address,uint256,uint256)")
    fails(data, "call", "--from", FUNDED, *to_much)
    fails(data, "estimate", "--from", FUNDED, *to_much)
    fails(data, "send", "--private-key", KEY, *to_much)
    nonce = number(cast("nonce", FUNDED))
    # With an explicit gas limit it is sent and mined although it reverts.
    reverted = json.loads(
        cast("send", "--json", "--private-key", KEY, "--gas-limit", 100_000, *to_much)
    )
    assert reverted["status"] == "0x0" and number(cast("nonce", FUNDED)) == nonce + 1
    fails("nonce too low", "send", "--private-key", KEY, "--nonce", 0, "--gas-limit", 21_000, OTHER)
    fails("", "send", "--private-key", KEY, "--value", 10**30, OTHER)
    ok("errors")


def wallet():
    assert cast("wallet", "address", "--private-key", KEY).lower() == FUNDED.lower()
    signature = cast("wallet", "sign", "--private-key", KEY, "hello")
    cast("wallet", "verify", "--address", FUNDED, "hello", signature)
    # The node's signature equals cast's.
    assert cast("rpc", "personal_sign", cast("from-utf8", "hello"), FUNDED).strip('"') == signature
    authorization = cast("wallet", "sign-auth", OTHER, "--private-key", KEY, "--self-broadcast")
    sent = mined("--private-key", KEY, "--auth", authorization, FUNDED)
    assert sent["type"] == "0x4"
    assert cast("code", FUNDED).lower() == "0xef0100" + OTHER[2:].lower()
    ok("wallet: address, sign, verify, sign-auth")


def traced(moved):
    shown = cast("run", "--quick", moved["transactionHash"])
    assert "Transaction successfully executed" in shown, shown
    trace = json.loads(cast("rpc", "debug_traceTransaction", moved["transactionHash"],
                            '{"tracer":"callTracer"}'))  # fmt: skip
    assert int(trace["gasUsed"], 16) == int(moved["gasUsed"], 16)
    ok("run, trace")


def dev_node():
    """The methods of anvil that users call through cast."""
    snapshot = cast("rpc", "evm_snapshot").strip('"')
    before = number(cast("block-number"))
    cast("rpc", "anvil_setBalance", OTHER, hex(7 * ETHER))
    assert number(cast("balance", OTHER)) == 7 * ETHER
    cast("rpc", "anvil_impersonateAccount", OTHER)
    sent = mined("--unlocked", "--from", OTHER, "--value", "1ether", UNLOCKED)
    assert sent["from"].lower() == OTHER.lower()
    cast("rpc", "anvil_stopImpersonatingAccount", OTHER)
    cast("rpc", "anvil_mine", "0x3")
    assert number(cast("block-number")) >= before + 4
    then = int(json.loads(cast("block", "latest", "--json"))["timestamp"], 16)
    cast("rpc", "evm_increaseTime", "3600")
    cast("rpc", "evm_mine")
    assert int(json.loads(cast("block", "latest", "--json"))["timestamp"], 16) >= then + 3600
    assert cast("rpc", "evm_revert", snapshot) == "true"
    assert number(cast("block-number")) == before
    mined("--private-key", KEY, "--value", "1wei", OTHER)
    ok("rpc evm_*, anvil_*")


chain()
contract = deploy()
transfer = send(contract)
unlocked(contract)
read(contract, transfer)
made_offline(contract)
errors(contract)
traced(transfer)
dev_node()
wallet()
