// ethers against a dev chain. Addresses and the contract come from scripts/clients/libraries.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { ethers } from "ethers";

const { HTTP, WS, CONTRACT, KEY, ETHEREUM_ROOT } = process.env;
const token = JSON.parse(readFileSync(CONTRACT, "utf8"));
const provider = new ethers.JsonRpcProvider(HTTP, undefined, { polling: true, pollingInterval: 100 });
const socket = new ethers.WebSocketProvider(WS);
const wallet = new ethers.NonceManager(new ethers.Wallet(KEY, provider));
const owner = await wallet.getAddress();
const other = ethers.Wallet.createRandom().connect(provider);
const ok = (what) => console.log(`ethers: ${what}: ok`);

async function until(what, ready) {
  for (let tries = 0; tries < 300; tries++) {
    if (ready()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what} did not come within 15 s`);
}

async function fails(promise, check) {
  const error = await promise.then(
    (value) => assert.fail(`it must fail, but gave ${value}`),
    (error) => error,
  );
  check(error);
}

const network = await provider.getNetwork();
assert(network.chainId > 0n);
const funds = await provider.getBalance(owner);
assert(funds > ethers.parseEther("100"));
ok("network and balance");

const heads = [];
await socket.on("block", (number) => heads.push(number));

const factory = new ethers.ContractFactory(token.abi, token.bytecode, wallet);
const contract = await factory.deploy("Test Token", "TT");
await contract.waitForDeployment();
const address = await contract.getAddress();
assert.equal(address, ethers.getCreateAddress(contract.deploymentTransaction()));
assert.equal((await provider.getCode(address)).length, token.deployedBytecode.length);
assert.equal(await contract.name(), "Test Token");
assert.equal(await contract.owner(), owner);
ok("deploy and read");

const seen = [];
const listening = new ethers.Contract(address, token.abi, socket);
await listening.on("Transfer", (from, to, value) => seen.push([from, to, value]));
const minted = await (await contract.mint(owner, 1000n)).wait();
const moved = await (await contract.transfer(other.address, 400n)).wait();
assert.equal(moved.status, 1);
assert.equal(moved.logs.length, 1);
assert.equal(await contract.balanceOf(other.address), 400n);
ok("send, wait, receipt");

await until("logs of the subscription", () => seen.length >= 2);
assert.deepEqual(seen, [[ethers.ZeroAddress, owner, 1000n], [owner, other.address, 400n]]);
await until("heads of the subscription", () => heads.includes(moved.blockNumber));
ok("subscriptions: heads and logs");

const events = await contract.queryFilter("Transfer", minted.blockNumber, moved.blockNumber);
assert.deepEqual(events.map((event) => event.args.value), [1000n, 400n]);
const narrow = await contract.queryFilter(contract.filters.Transfer(owner, null), 0, "latest");
assert.equal(narrow.length, 1);
assert.equal(narrow[0].transactionHash, moved.hash);
ok("logs");

const block = await provider.getBlock(moved.blockNumber, true);
assert.equal(block.hash, moved.blockHash);
assert(block.prefetchedTransactions.some((each) => each.hash === moved.hash));
const sent = await provider.getTransaction(moved.hash);
assert.equal(ethers.Transaction.from(sent).hash, moved.hash);
assert.equal(ethers.Transaction.from(sent).from, owner);
ok("blocks and transactions");

const call = contract.interface.encodeFunctionData("balanceOf", [other.address]);
const before = await provider.call({ to: address, data: call, blockTag: minted.blockNumber });
assert.equal(BigInt(before), 0n);
const answer = "0x602a60005260206000f3";
const overridden = await provider.send("eth_call", [{ to: address, data: call }, "latest", { [address]: { code: answer } }]);
assert.equal(BigInt(overridden), 42n);
ok("calls in the past and with overrides");

await fails(contract.transfer.staticCall(owner, 10n ** 30n), (error) => {
  assert.equal(error.code, "CALL_EXCEPTION");
  assert(error.revert, `the revert must be decoded: ${error}`);
});
await fails(contract.connect(other).mint.staticCall(owner, 1n), (error) => {
  assert.equal(error.revert.name, "NotOwner");
  assert.deepEqual([...error.revert.args], [other.address]);
});
await fails(other.sendTransaction({ to: owner, value: 1n }), (error) => assert.equal(error.code, "INSUFFICIENT_FUNDS"));
const plain = new ethers.Wallet(KEY, provider);
await fails(plain.sendTransaction({ to: owner, value: 1n, nonce: 0 }), (error) => assert.equal(error.code, "NONCE_EXPIRED"));
ok("errors are recognised");

const gas = await contract.transfer.estimateGas(other.address, 1n);
assert(gas > 21000n && gas < 60000n, `${gas}`);
const fees = await provider.getFeeData();
assert(fees.maxFeePerGas > 0n && fees.gasPrice > 0n);
ok("gas and fees");

for (const type of [0, 1, 2]) {
  const receipt = await (await wallet.sendTransaction({ to: other.address, value: 5n, type })).wait();
  assert.equal(receipt.type, type);
  assert.equal(receipt.gasUsed, 21000n);
}
assert.equal(await provider.getBalance(other.address), 15n);
ok("transactions of types 0, 1 and 2");

const trace = await provider.send("debug_traceTransaction", [moved.hash, { tracer: "callTracer", tracerConfig: { withLog: true } }]);
assert.equal(trace.type, "CALL");
assert.equal(ethers.getAddress(trace.to), address);
assert.equal(trace.logs.length, 1);
assert.equal(BigInt(trace.gasUsed), moved.gasUsed);
const steps = await provider.send("debug_traceTransaction", [moved.hash, {}]);
assert(steps.structLogs.some((step) => step.op === "SSTORE") && steps.failed === false);
ok("traces");

if (ETHEREUM_ROOT) {
  const proof = await provider.send("eth_getProof", [address, ["0x0"], "latest"]);
  assert.equal(proof.codeHash, ethers.keccak256(await provider.getCode(address)));
} else {
  await fails(provider.send("eth_getProof", [address, [], "latest"]), (error) => assert.match(error.error.message, /state_getProof/));
}
ok("eth_getProof");

await socket.destroy();
provider.destroy();
