// Says in words what a node answers as the data of a revert, as Hardhat's own network does, which
// knows the artifacts: the tests that use Truffle's contracts read errors from the message alone.
const fs = require("node:fs");
const { ethers } = require("ethers");
const { ProviderWrapper } = require("hardhat/plugins");
const { panicErrorCodeToReason } = require("@nomicfoundation/hardhat-chai-matchers/internal/reverted/panic");

let known;

// The errors of all artifacts, by selector.
async function customErrors() {
  if (!known) {
    known = new Map();
    for (const file of await require("hardhat").artifacts.getArtifactPaths()) {
      const { abi } = JSON.parse(fs.readFileSync(file, "utf8"));
      for (const item of abi.filter(({ type }) => type === "error")) {
        const fragment = ethers.ErrorFragment.from(item);
        known.set(fragment.selector, fragment);
      }
    }
  }
  return known;
}

async function inWords(data) {
  const coder = ethers.AbiCoder.defaultAbiCoder();
  const [selector, args] = [data.slice(0, 10), "0x" + data.slice(10)];
  const start = "VM Exception while processing transaction: reverted with";
  if (selector === "0x08c379a0") {
    return `${start} reason string '${coder.decode(["string"], args)[0]}'`;
  }
  if (selector === "0x4e487b71") {
    const [code] = coder.decode(["uint256"], args);
    return `${start} panic code 0x${code.toString(16)} (${panicErrorCodeToReason(code)})`;
  }
  const fragment = (await customErrors()).get(selector);
  if (!fragment) return `${start} an unrecognized custom error (return data: ${data})`;
  const values = coder.decode(fragment.inputs, args).map((value) =>
    typeof value === "string" ? `"${value}"` : String(value),
  );
  return `${start} custom error '${fragment.name}(${values.join(", ")})'`;
}

class Reverts extends ProviderWrapper {
  async request(args) {
    try {
      return await this._wrappedProvider.request(args);
    } catch (error) {
      const { data } = error;
      if (typeof data === "string" && data !== "0x") error.message = await inWords(data);
      throw error;
    }
  }
}

module.exports = async (provider, _config, network) =>
  network === "localhost" ? new Reverts(provider) : provider;
