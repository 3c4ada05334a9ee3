"""titanoboa against a dev chain; the address and a key come from scripts/clients/dev-tools."""

import os

import boa
from boa import BoaError
from boa.network import NetworkEnv
from boa.rpc import EthereumRPC
from eth_account import Account

TOKEN = """
event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    amount: uint256

supply: public(uint256)
balances: public(HashMap[address, uint256])

@deploy
def __init__(supply: uint256):
    self.supply = supply
    self.balances[msg.sender] = supply
    log Transfer(sender=empty(address), receiver=msg.sender, amount=supply)

@external
@payable
def give(receiver: address, amount: uint256) -> uint256:
    assert self.balances[msg.sender] >= amount, "not enough"
    self.balances[msg.sender] -= amount
    self.balances[receiver] += amount
    log Transfer(sender=msg.sender, receiver=receiver, amount=amount)
    return self.balances[receiver]
"""
RELAY = """
interface Token:
    def give(receiver: address, amount: uint256) -> uint256: nonpayable

event Relayed:
    total: uint256

@external
def relay(token: address, receiver: address, amount: uint256):
    total: uint256 = extcall Token(token).give(receiver, amount)
    log Relayed(total=total)
"""

rpc = EthereumRPC(os.environ["HTTP"])
boa.set_network_env(os.environ["HTTP"])
owner, other = Account.from_key(os.environ["KEY"]), Account.create().address


def ok(what):
    print(f"titanoboa: {what}: ok", flush=True)


def amounts(contract):
    """The amounts in the Transfer events of the contract's last call, as titanoboa executed it."""
    return [log.amount for log in contract.get_logs() if type(log).__name__ == "Transfer"]


def on_chain(contract):
    """The amounts of all Transfer events of the contract that the node has."""
    criteria = {"address": contract.address, "fromBlock": "earliest", "toBlock": "latest"}
    return [int(log["data"], 16) for log in rpc.fetch("eth_getLogs", [criteria])]


def deploy():
    token = boa.loads(TOKEN, 1000, name="Token")
    assert amounts(token) == [1000], token.get_logs()
    assert token.supply() == 1000 == token.balances(boa.env.eoa)
    assert boa.env.get_code(token.address)
    ok("deploy, read, events of a constructor")
    return token


def send(token):
    given = sum(on_chain(token)) - 1000
    assert token.give(other, 7) == token.balances(other)
    # A call replaces the events of the last execution.
    assert amounts(token) == []
    token.give(other, 5)
    assert amounts(token) == [5], token.get_logs()
    token.give(other, 6, value=9)
    assert amounts(token) == [6] and boa.env.get_balance(token.address) == 9
    assert sum(on_chain(token)) - 1000 == given + 18
    ok("send, events, value")


def nested(token):
    relay = boa.loads(RELAY, name="Relay")
    token.give(relay.address, 50)
    relay.relay(token.address, other, 20)
    assert amounts(relay) == [20], relay.get_logs()
    assert on_chain(token)[-2:] == [50, 20]
    ok("events of a contract that is called")


def reverts(token):
    count = rpc.fetch("eth_getTransactionCount", [boa.env.eoa, "latest"])
    with boa.reverts("not enough"):
        token.give(other, 10**9)
    try:
        token.give(other, 10**9)
    except BoaError as error:
        assert "not enough" in str(error)
    assert rpc.fetch("eth_getTransactionCount", [boa.env.eoa, "latest"]) == count
    ok("reverts")


def snapshots(token):
    before = on_chain(token)
    with boa.env.anchor():
        token.give(other, 3)
        assert on_chain(token) == [*before, 3]
    assert on_chain(token) == before
    token.give(other, 4)
    assert on_chain(token) == [*before, 4]
    ok("anchor")


boa.env.add_account(owner)
contract = deploy()
send(contract)
nested(contract)
reverts(contract)
snapshots(contract)

# The same with an account of the node, which signs by itself.
boa.set_env(NetworkEnv(rpc))
boa.env.add_accounts_from_rpc(rpc)
contract = deploy()
send(contract)
ok("the node's accounts")
