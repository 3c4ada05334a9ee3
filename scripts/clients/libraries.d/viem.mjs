// viem against a dev chain. Addresses and the contract come from scripts/clients/libraries.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import * as viem from "viem";
import { privateKeyToAccount, generatePrivateKey } from "viem/accounts";

const { HTTP, WS, CONTRACT, KEY } = process.env;
const { abi, bytecode } = JSON.parse(readFileSync(CONTRACT, "utf8"));
const plain = viem.createPublicClient({ transport: viem.http(HTTP, { batch: true }), pollingInterval: 100 });
const chain = viem.defineChain({
  id: await plain.getChainId(),
  name: "dev",
  nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
  rpcUrls: { default: { http: [HTTP] } },
});
const client = viem.createPublicClient({ chain, transport: viem.http(HTTP, { batch: true }), pollingInterval: 100 });
const socket = viem.createPublicClient({ chain, transport: viem.webSocket(WS) });
const account = privateKeyToAccount(KEY);
const wallet = viem.createWalletClient({ account, chain, transport: viem.http(HTTP) });
const other = privateKeyToAccount(generatePrivateKey());
const ok = (what) => console.log(`viem: ${what}: ok`);
const mined = (hash) => client.waitForTransactionReceipt({ hash, timeout: 15_000 });

async function until(what, ready) {
  for (let tries = 0; tries < 300; tries++) {
    if (ready()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what} did not come within 15 s`);
}

const heads = [];
const stopHeads = socket.watchBlocks({ onBlock: (block) => heads.push(block.number), onError: (error) => { throw error; } });
const hash = await wallet.deployContract({ abi, bytecode, args: ["Test Token", "TT"] });
const { contractAddress: address, status } = await mined(hash);
assert.equal(status, "success");
const read = (functionName, ...args) => client.readContract({ abi, address, functionName, args });
assert.equal(await read("symbol"), "TT");
ok("deploy and read");

const seen = [];
const stopLogs = socket.watchContractEvent({
  abi, address, eventName: "Transfer",
  onLogs: (logs) => seen.push(...logs.map((log) => log.args.value)),
  onError: (error) => { throw error; },
});
// The subscription is asked for in the background.
await new Promise((resolve) => setTimeout(resolve, 500));
const write = async (functionName, ...args) => {
  const { request } = await client.simulateContract({ account, abi, address, functionName, args });
  return mined(await wallet.writeContract(request));
};
const minted = await write("mint", account.address, 1000n);
const moved = await write("transfer", other.address, 400n);
assert.equal(await read("balanceOf", other.address), 400n);
await until("logs of the subscription", () => seen.length >= 2);
assert.deepEqual(seen, [1000n, 400n]);
await until("heads of the subscription", () => heads.includes(moved.blockNumber));
ok("send, wait, subscriptions");

const logs = await client.getContractEvents({ abi, address, eventName: "Transfer", fromBlock: minted.blockNumber });
assert.deepEqual(logs.map((log) => log.args.value), [1000n, 400n]);
const filter = await client.createContractEventFilter({ abi, address, fromBlock: 0n });
assert.equal((await client.getFilterLogs({ filter })).length, 2);
await write("transfer", other.address, 1n);
assert.equal((await client.getFilterChanges({ filter })).at(-1).args.value, 1n);
await client.uninstallFilter({ filter });
ok("logs and filters");

const past = await client.readContract({ abi, address, functionName: "balanceOf", args: [other.address], blockNumber: minted.blockNumber });
assert.equal(past, 0n);
const { data } = await client.call({ to: address, data: "0x", stateOverride: [{ address, code: "0x602a60005260206000f3" }] });
assert.equal(BigInt(data), 42n);
const reverted = await read("transfer", account.address, 10n ** 30n).catch((error) => error);
assert(reverted.walk((each) => each instanceof viem.ContractFunctionRevertedError), `${reverted}`);
ok("calls: past, override, revert");

const { results } = await client.simulateCalls({
  account: account.address,
  calls: [
    { to: address, abi, functionName: "transfer", args: [other.address, 5n] },
    { to: address, abi, functionName: "balanceOf", args: [other.address] },
  ],
});
assert.equal(results[1].result, 406n);
ok("eth_simulateV1");

const list = await client.createAccessList({ account: account.address, to: address, data: viem.encodeFunctionData({ abi, functionName: "balanceOf", args: [other.address] }) });
assert.equal(list.accessList.length, 1);
const history = await client.getFeeHistory({ blockCount: 3, rewardPercentiles: [10, 50] });
assert.equal(history.gasUsedRatio.length, 3);
const { maxFeePerGas } = await client.estimateFeesPerGas();
assert(maxFeePerGas > 0n);
ok("access list and fees");

const authorization = await wallet.signAuthorization({ account, contractAddress: address, executor: "self" });
const delegated = await mined(await wallet.sendTransaction({ authorizationList: [authorization], to: account.address, data: viem.encodeFunctionData({ abi, functionName: "symbol" }) }));
assert.equal(delegated.type, "eip7702");
assert.equal(await client.getCode({ address: account.address }), viem.concatHex(["0xef0100", address]).toLowerCase());
const back = await wallet.signAuthorization({ account, contractAddress: viem.zeroAddress, executor: "self" });
await mined(await wallet.sendTransaction({ authorizationList: [back], to: account.address }));
assert.equal(await client.getCode({ address: account.address }), undefined);
ok("set code (EIP-7702), and back");

const block = await client.getBlock({ blockNumber: moved.blockNumber, includeTransactions: true });
assert(block.transactions.some((each) => each.hash === moved.transactionHash && each.from === account.address.toLowerCase()));
const trace = await client.request({ method: "debug_traceTransaction", params: [moved.transactionHash, { tracer: "callTracer" }] });
assert.equal(trace.to, address.toLowerCase());
const states = await client.request({ method: "debug_traceTransaction", params: [moved.transactionHash, { tracer: "prestateTracer", tracerConfig: { diffMode: true } }] });
assert.equal(Object.keys(states.post[address.toLowerCase()].storage).length, 2);
ok("blocks and traces");

stopHeads();
stopLogs();
// viem would go on to reconnect its WebSocket.
process.exit(0);
