// Asks Lodestar's prover: a light client of the beacon node at BEACON gives it execution payloads, and with
// their state roots it checks what the node at RPC answers. The file CASES has the requests; the results are
// printed as JSON. With a lie the node's answers are changed on their way.

import { readFileSync } from "node:fs";

import { minimalChainConfig } from "@lodestar/config/configs";
import { createVerifiedExecutionProvider, LCTransport } from "@lodestar/prover";

const { BEACON, RPC, CASES } = process.env;
const errors = [];

// The light client's own timers and streams must not end the program.
process.on("uncaughtException", (error) => errors.push(`uncaught: ${error.message}`));
process.on("unhandledRejection", (error) => errors.push(`unhandled: ${error?.message ?? error}`));

const logger = {
  error: (message, _context, error) => errors.push(`${message} ${error?.message ?? ""}`.trim()),
  warn() {},
  info() {},
  debug() {},
  verbose() {},
};

/** The beacon chain's slots and forks, in the form of Lodestar's configuration. */
async function chainConfig() {
  const spec = (await (await fetch(`${BEACON}/eth/v1/config/spec`)).json()).data;
  const config = { ...minimalChainConfig };
  for (const name of Object.keys(config)) {
    if (!(name in spec)) continue;
    if (name.endsWith("_FORK_VERSION")) config[name] = Uint8Array.from(Buffer.from(spec[name].slice(2), "hex"));
    if (name.endsWith("_FORK_EPOCH")) {
      config[name] = spec[name] === "18446744073709551615" ? Infinity : Number(spec[name]);
    }
    if (name === "SECONDS_PER_SLOT") config[name] = Number(spec[name]);
  }
  return config;
}

function raised(quantity) {
  return `0x${(BigInt(quantity) + 1n).toString(16)}`;
}

function flipped(hex) {
  return hex.slice(0, -1) + (hex.endsWith("0") ? "1" : "0");
}

/** Ways in which a node may lie: a method, and what becomes of its result. */
const LIES = {
  balance: ["eth_getProof", (proof) => ({ ...proof, balance: raised(proof.balance) })],
  nonce: ["eth_getProof", (proof) => ({ ...proof, nonce: raised(proof.nonce) })],
  "node missing": ["eth_getProof", (proof) => ({ ...proof, accountProof: proof.accountProof.slice(0, -1) })],
  "node changed": ["eth_getProof", (proof) => ({ ...proof, accountProof: proof.accountProof.map(flipped) })],
  "storage root": ["eth_getProof", (proof) => ({ ...proof, storageHash: flipped(proof.storageHash) })],
  slot: [
    "eth_getProof",
    (proof) => ({ ...proof, storageProof: proof.storageProof.map((slot) => ({ ...slot, value: raised(slot.value) })) }),
  ],
  code: ["eth_getCode", (code) => (code === "0x" ? "0x00" : flipped(code))],
};

async function answer(payload) {
  const response = await fetch(RPC, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(payload),
  });
  return response.json();
}

/** A provider over the node; `lie.name` names the change of its answers. */
function provider(lie) {
  return {
    request: async (payload) => {
      const response = await answer(payload);
      const [method, change] = LIES[lie.name] ?? [];
      const requests = [payload].flat();
      for (const [index, each] of [response].flat().entries()) {
        if (requests[index].method === method && each.result) each.result = change(each.result);
      }
      return response;
    },
  };
}

const lie = { name: undefined };
const controller = new AbortController();
const made = createVerifiedExecutionProvider(provider(lie), {
  transport: LCTransport.Rest,
  urls: [BEACON],
  config: await chainConfig(),
  signal: controller.signal,
  logger,
});
await made.proofProvider.waitToBeReady();

const blocks = {};
for (const tag of ["latest", "finalized"]) {
  const payload = await made.proofProvider.getExecutionPayload(tag);
  blocks[tag] = {
    number: payload.blockNumber,
    hash: `0x${Buffer.from(payload.blockHash).toString("hex")}`,
    stateRoot: `0x${Buffer.from(payload.stateRoot).toString("hex")}`,
  };
}

const results = [];
for (const { name, method, params, lie: told, tag } of JSON.parse(readFileSync(CASES, "utf8"))) {
  lie.name = told;
  const before = errors.length;
  // `BLOCK` in the parameters stands for the hash of the payload of that tag.
  const asked = params.map((each) => (each === "BLOCK" ? blocks[tag].hash : each));
  let response;
  try {
    response = await made.provider.request({ jsonrpc: "2.0", id: results.length + 1, method, params: asked });
  } catch (error) {
    response = { error: { message: error.message } };
  }
  results.push({ name, response, said: errors.slice(before) });
}
process.stdout.write(JSON.stringify({ blocks, results, status: made.proofProvider.getStatus(), errors }));
controller.abort();
process.exit(0);
