// Hardhat for OpenZeppelin's tests; scripts/clients/dev-tools puts it in place of OpenZeppelin's own.
// The network is `localhost`, at $URL, or Hardhat's own. $SOLC is the version of the compiler, whose
// JavaScript build comes from npm as solc-VERSION: Hardhat would download it from elsewhere.
const fs = require("node:fs");
const path = require("node:path");
const { extendEnvironment, extendProvider, subtask } = require("hardhat/config");
const { TASK_COMPILE_SOLIDITY_GET_SOLC_BUILD } = require("hardhat/builtin-tasks/task-names");

const { URL, SOLC, EVM } = process.env;

// Tests up to version 5.0 use web3 and Truffle's contracts, later ones ethers.
const described = fs.readFileSync(path.join(__dirname, "package.json"), "utf8");
const truffle = described.includes("hardhat-truffle5");
if (truffle) require("@nomiclabs/hardhat-truffle5");
require("@nomicfoundation/hardhat-chai-matchers");
require("@nomicfoundation/hardhat-ethers");
require("hardhat-exposed");
require("hardhat-ignore-warnings");
for (const file of fs.readdirSync(path.join(__dirname, "hardhat"))) {
  require(path.join(__dirname, "hardhat", file));
}
if (truffle) {
  extendProvider(require("./reverts.js"));
  // Else web3 polls for 24 more blocks after every transaction.
  extendEnvironment(({ artifacts }) => {
    const load = artifacts.require;
    artifacts.require = (name) => Object.assign(load(name), { disableConfirmationListener: true });
  });
}

subtask(TASK_COMPILE_SOLIDITY_GET_SOLC_BUILD, async ({ solcVersion }) => ({
  compilerPath: require.resolve(`solc-${solcVersion}/soljson.js`),
  isSolcJs: true,
  version: solcVersion,
  longVersion: require(`solc-${solcVersion}`).version().replace(".Emscripten.clang", ""),
}));

module.exports = {
  solidity: {
    version: SOLC,
    settings: {
      optimizer: { enabled: true, runs: 200 },
      evmVersion: EVM,
      outputSelection: { "*": { "*": ["storageLayout"] } },
    },
  },
  warnings: { "*": { default: "off" } },
  networks: {
    hardhat: { hardfork: "prague" },
    localhost: { url: URL || "http://127.0.0.1:8545", timeout: 60_000 },
  },
  exposed: { imports: true, initializers: true, exclude: ["vendor/**/*", "**/*WithInit.sol"] },
  mocha: { timeout: 120_000, reporter: path.join(__dirname, "reporter.js") },
};
