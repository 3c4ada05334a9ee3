"""web3.py against a dev chain. Addresses and the contract come from scripts/clients/libraries."""

import asyncio
import json
import os

from eth_utils import keccak
from rlp import decode
from trie import HexaryTrie
from web3 import AsyncWeb3, Web3
from web3.exceptions import ContractCustomError, ContractLogicError, Web3RPCError
from web3.middleware import SignAndSendRawMiddlewareBuilder
from web3.providers import WebSocketProvider

CONTRACT = json.loads(open(os.environ["CONTRACT"]).read())
w3 = Web3(Web3.HTTPProvider(os.environ["HTTP"]))
owner = w3.eth.account.from_key(os.environ["KEY"])
other = w3.eth.account.create()
w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(owner), layer=0)
w3.eth.default_account = owner.address


def ok(what):
    print(f"web3.py: {what}: ok", flush=True)


def mined(sent):
    receipt = w3.eth.wait_for_transaction_receipt(sent, timeout=15, poll_latency=0.05)
    assert receipt.status == 1, receipt
    return receipt


def fails(kind, action, *words):
    try:
        done = action()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"it must fail, but gave {done}")


def deploy():
    factory = w3.eth.contract(abi=CONTRACT["abi"], bytecode=CONTRACT["bytecode"])
    receipt = mined(factory.constructor("Test Token", "TT").transact())
    token = w3.eth.contract(address=receipt.contractAddress, abi=CONTRACT["abi"])
    assert token.functions.name().call() == "Test Token"
    assert token.functions.owner().call() == owner.address
    ok("deploy and read")
    return token


def send_and_read(token):
    minted = mined(token.functions.mint(owner.address, 1000).transact())
    moved = mined(token.functions.transfer(other.address, 400).transact())
    assert token.functions.balanceOf(other.address).call() == 400
    events = token.events.Transfer().process_receipt(moved)
    assert [event.args.value for event in events] == [400]
    logs = token.events.Transfer().get_logs(from_block=minted.blockNumber)
    assert [log.args.value for log in logs] == [1000, 400], logs
    before = token.functions.balanceOf(other.address).call(block_identifier=minted.blockNumber)
    assert before == 0
    block = w3.eth.get_block(moved.blockNumber, full_transactions=True)
    assert moved.transactionHash in [each.hash for each in block.transactions]
    receipts = w3.eth.get_block_receipts(moved.blockNumber)
    assert moved.transactionHash in [each.transactionHash for each in receipts]
    ok("send, wait, receipts, logs, state of the past")
    return moved


def filters(token):
    blocks, logs = (
        w3.eth.filter("latest"),
        token.events.Transfer().create_filter(from_block="latest"),
    )
    blocks.get_new_entries(), logs.get_new_entries()
    receipt = mined(token.functions.transfer(other.address, 7).transact())
    assert receipt.blockHash in blocks.get_new_entries()
    assert [entry.args.value for entry in logs.get_new_entries()] == [7]
    ok("filters")


def calls(token):
    code = {token.address: {"code": "0x602a60005260206000f3"}}
    assert int.from_bytes(w3.eth.call({"to": token.address}, "latest", code), "big") == 42
    lookup = token.functions.balanceOf(other.address)
    assert 21_000 < lookup.estimate_gas() < 60_000
    fails(
        (ContractCustomError, ContractLogicError),
        token.functions.transfer(owner.address, 10**30).call,
    )
    fails(
        ContractCustomError,
        lambda: token.functions.mint(owner.address, 1).call({"from": other.address}),
    )
    history = w3.eth.fee_history(2, "latest", [25, 75])
    assert len(history.reward) == 2 and len(history.baseFeePerGas) == 3
    ok("calls, overrides, reverts, fees")


def transaction_types():
    base = {"to": other.address, "value": 3, "gas": 21_000, "chainId": w3.eth.chain_id}
    price = {"gasPrice": 2 * w3.eth.gas_price}
    fees = {"maxFeePerGas": 3 * w3.eth.gas_price, "maxPriorityFeePerGas": w3.eth.max_priority_fee}
    blob = {"type": 3, "maxFeePerBlobGas": 10**9, **fees}
    for kind, more in [
        (0, price),
        (1, {"accessList": [], "type": 1, **price}),
        (2, fees),
        (3, blob),
    ]:
        fields = base | more | {"nonce": w3.eth.get_transaction_count(owner.address)}
        blobs = [b"\0" * 131_072] if kind == 3 else None
        signed = w3.eth.account.sign_transaction(fields, owner.key, blobs=blobs)
        sent = w3.eth.send_raw_transaction(signed.raw_transaction)
        receipt = mined(sent)
        assert receipt.type == kind and receipt.transactionHash == sent, receipt
        # The hash covers the transaction without its blobs; blobs are only sent beside it.
        if kind == 3:
            assert receipt.blobGasUsed == 131_072
        else:
            assert sent == signed.hash
            assert w3.eth.get_raw_transaction(sent) == signed.raw_transaction
    assert w3.eth.get_balance(other.address) == 12
    ok("transactions of types 0 to 3")


def pool_errors():
    def send(**fields):
        base = {"to": other.address, "value": 0, "gas": 21_000, "gasPrice": 2 * w3.eth.gas_price}
        base |= {"chainId": w3.eth.chain_id, "nonce": w3.eth.get_transaction_count(owner.address)}
        signed = w3.eth.account.sign_transaction(base | fields, owner.key)
        return w3.eth.send_raw_transaction(signed.raw_transaction)

    fails(Web3RPCError, lambda: send(nonce=0), "nonce too low")
    fails(Web3RPCError, lambda: send(value=10**30), "insufficient funds")
    fails(Web3RPCError, lambda: send(gas=20_000), "intrinsic gas too low")
    fails((Web3RPCError, ValueError), lambda: w3.eth.send_raw_transaction(b"\x02\xff"))
    ok("errors of the pool")


def traces(moved, token):
    trace = w3.provider.make_request(
        "debug_traceTransaction", [Web3.to_hex(moved.transactionHash), {"tracer": "callTracer"}]
    )["result"]
    assert Web3.to_checksum_address(trace["to"]) == token.address, trace
    assert int(trace["gasUsed"], 16) == moved.gasUsed
    ok("traces")


def proof(token):
    """The account and a slot, from the state root down. Slot 0 is the total supply of the token."""
    block = w3.eth.get_block("latest")
    proof = w3.eth.get_proof(token.address, [0], block.number)
    account = HexaryTrie.get_from_proof(
        block.stateRoot,
        keccak(bytes.fromhex(token.address[2:])),
        [decode(node) for node in proof.accountProof],
    )
    nonce, balance, storage, code = decode(account)
    assert storage == proof.storageHash and code == proof.codeHash
    assert int.from_bytes(nonce, "big") == proof.nonce == 1 and balance == b""
    slot = proof.storageProof[0]
    stored = HexaryTrie.get_from_proof(
        storage, keccak(bytes(32)), [decode(node) for node in slot.proof]
    )
    supply = int.from_bytes(decode(stored), "big") if stored else 0
    assert supply == int.from_bytes(slot.value, "big") == token.functions.totalSupply().call() > 0
    ok("eth_getProof, verified against the state root")


async def subscriptions(token):
    async with AsyncWeb3(WebSocketProvider(os.environ["WS"])) as socket:
        heads = await socket.eth.subscribe("newHeads")
        logs = await socket.eth.subscribe("logs", {"address": token.address})
        sent = token.functions.transfer(other.address, 9).transact()
        got = {}
        async for message in socket.socket.process_subscriptions():
            got[message["subscription"]] = message["result"]
            if {heads, logs} <= got.keys():
                break
        assert got[logs]["transactionHash"] == sent
        assert got[heads]["hash"] == got[logs]["blockHash"]
        assert await socket.eth.unsubscribe(heads)
    ok("subscriptions: heads and logs")


def main():
    assert w3.is_connected() and w3.eth.get_balance(owner.address) > 10**20
    token = deploy()
    moved = send_and_read(token)
    filters(token)
    calls(token)
    traces(moved, token)
    asyncio.run(asyncio.wait_for(subscriptions(token), 30))
    transaction_types()
    pool_errors()
    if os.environ.get("ETHEREUM_ROOT"):
        proof(token)
    else:
        fails(
            Web3RPCError, lambda: w3.eth.get_proof(token.address, [0], "latest"), "state_getProof"
        )
        ok("eth_getProof is refused")


main()
