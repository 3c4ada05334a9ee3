// Hardhat's own helpers and matchers, as they come from npm, on OpenZeppelin's contracts: what a
// project's tests use that OpenZeppelin's do not all use.
const { ethers, network } = require("hardhat");
const { expect } = require("chai");
const helpers = require("@nomicfoundation/hardhat-network-helpers");
const { anyValue } = require("@nomicfoundation/hardhat-chai-matchers/withArgs");
const { PANIC_CODES } = require("@nomicfoundation/hardhat-chai-matchers/panic");

const { loadFixture, time, mine } = helpers;
const DAY = 24 * 60 * 60;

async function token() {
  const [owner, holder, other] = await ethers.getSigners();
  const contract = await ethers.deployContract("$ERC20", ["Token", "TT"]);
  await contract.$_mint(holder, 1000n);
  return { contract, owner, holder, other };
}

async function vesting() {
  const [owner, beneficiary] = await ethers.getSigners();
  const start = (await time.latest()) + DAY;
  const wallet = await ethers.deployContract("VestingWallet", [beneficiary, start, 10 * DAY], {
    value: ethers.parseEther("1"),
  });
  return { wallet, owner, beneficiary, start };
}

describe("Hardhat's helpers", function () {
  describe("loadFixture", function () {
    for (const round of [1, 2, 3]) {
      it(`gives the same state again, round ${round}`, async function () {
        const { contract, holder, other } = await loadFixture(token);
        expect(await contract.balanceOf(other)).to.equal(0n);
        await contract.connect(holder).transfer(other, BigInt(round));
        expect(await contract.balanceOf(other)).to.equal(BigInt(round));
      });
    }

    it("goes back and forth between two of them", async function () {
      const first = await loadFixture(token);
      await first.contract.connect(first.holder).transfer(first.other, 1n);
      const second = await loadFixture(vesting);
      expect(await second.wallet.start()).to.equal(second.start);
      const again = await loadFixture(token);
      expect(await again.contract.balanceOf(again.other)).to.equal(0n);
      const block = await time.latestBlock();
      await mine();
      expect(await time.latestBlock()).to.equal(block + 1);
      await loadFixture(token);
      expect(await time.latestBlock()).to.equal(block);
    });

    it("lets the same transaction be sent again", async function () {
      const hashes = new Set();
      for (let round = 0; round < 3; round++) {
        const { contract, holder, other } = await loadFixture(token);
        const fees = { gasLimit: 100_000n, gasPrice: ethers.parseUnits("3", "gwei") };
        const sent = await contract.connect(holder).transfer(other, 7n, fees);
        await sent.wait();
        hashes.add(sent.hash);
        expect(await contract.balanceOf(other)).to.equal(7n);
      }
      expect(hashes.size).to.equal(1);
    });

    it("forgets transactions, receipts and logs of what it leaves", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const sent = await contract.connect(holder).transfer(other, 9n);
      expect(await contract.queryFilter(contract.filters.Transfer(holder, other))).to.have.lengthOf(1);
      await loadFixture(token);
      expect(await ethers.provider.getTransactionReceipt(sent.hash)).to.equal(null);
      expect(await ethers.provider.getTransaction(sent.hash)).to.equal(null);
      expect(await contract.queryFilter(contract.filters.Transfer(holder, other))).to.have.lengthOf(0);
    });
  });

  describe("snapshots", function () {
    it("nest, and die with those before them", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const outer = await helpers.takeSnapshot();
      await contract.connect(holder).transfer(other, 1n);
      const inner = await helpers.takeSnapshot();
      await contract.connect(holder).transfer(other, 2n);
      await inner.restore();
      expect(await contract.balanceOf(other)).to.equal(1n);
      await outer.restore();
      expect(await contract.balanceOf(other)).to.equal(0n);
      await expect(inner.restore()).to.be.rejectedWith("invalid snapshot");
    });

    it("answers false for one that never was", async function () {
      expect(await network.provider.send("evm_revert", ["0xffffff"])).to.equal(false);
    });
  });

  describe("time", function () {
    it("increase and increaseTo mine a block at that time", async function () {
      await loadFixture(token);
      const [then, block] = [await time.latest(), await time.latestBlock()];
      await time.increase(1000);
      expect(await time.latest()).to.equal(then + 1000);
      await time.increaseTo(then + 5000);
      expect(await time.latest()).to.equal(then + 5000);
      expect(await time.latestBlock()).to.equal(block + 2);
    });

    it("setNextBlockTimestamp is the time of the next transaction, and of its estimate", async function () {
      const { wallet, beneficiary, start } = await loadFixture(vesting);
      await time.setNextBlockTimestamp(start + 5 * DAY);
      const sent = wallet.connect(beneficiary)["release()"]();
      await expect(sent).to.changeEtherBalance(beneficiary, ethers.parseEther("0.5"));
      expect(await time.latest()).to.equal(start + 5 * DAY);
    });

    it("goes on from a time that was set", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const then = (await time.latest()) + 30 * DAY;
      await time.increaseTo(then);
      await contract.connect(holder).transfer(other, 1n);
      expect(await time.latest()).to.be.within(then + 1, then + 60);
    });

    it("refuses the past", async function () {
      await loadFixture(token);
      const past = ethers.toQuantity((await time.latest()) - 1);
      await expect(network.provider.send("evm_setNextBlockTimestamp", [past])).to.be.rejected;
    });

    it("evm_increaseTime counts for the next block", async function () {
      await loadFixture(token);
      const then = await time.latest();
      await network.provider.send("evm_increaseTime", [500]);
      await network.provider.send("evm_mine");
      expect(await time.latest()).to.be.within(then + 500, then + 560);
    });
  });

  describe("mine", function () {
    it("many blocks, with an interval", async function () {
      await loadFixture(token);
      const [block, then] = [await time.latestBlock(), await time.latest()];
      await mine(300, { interval: 12 });
      expect(await time.latestBlock()).to.equal(block + 300);
      expect(await time.latest()).to.be.within(then + 299 * 12, then + 300 * 12 + 60);
      const last = await ethers.provider.getBlock(block + 299);
      expect((await time.latest()) - last.timestamp).to.equal(12);
      await helpers.mineUpTo(block + 310);
      expect(await time.latestBlock()).to.equal(block + 310);
    });

    it("puts what waits into one block, without automine", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const block = await time.latestBlock();
      await network.provider.send("evm_setAutomine", [false]);
      const gas = { gasLimit: 100_000n };
      const sent = [
        await contract.connect(holder).transfer(other, 1n, gas),
        await contract.connect(holder).transfer(other, 2n, gas),
        await contract.connect(holder).approve(other, 3n, gas),
      ];
      expect(await time.latestBlock()).to.equal(block);
      expect(await ethers.provider.getTransactionReceipt(sent[0].hash)).to.equal(null);
      await mine();
      await network.provider.send("evm_setAutomine", [true]);
      const receipts = await Promise.all(sent.map((each) => each.wait()));
      expect(receipts.map((each) => [each.blockNumber, each.index])).to.deep.equal([
        [block + 1, 0],
        [block + 1, 1],
        [block + 1, 2],
      ]);
    });

    it("drops a transaction that waits", async function () {
      const { contract, holder, other } = await loadFixture(token);
      await network.provider.send("evm_setAutomine", [false]);
      const sent = await contract.connect(holder).transfer(other, 1n, { gasLimit: 100_000n });
      await helpers.dropTransaction(sent.hash);
      await mine();
      await network.provider.send("evm_setAutomine", [true]);
      expect(await contract.balanceOf(other)).to.equal(0n);
    });
  });

  describe("state", function () {
    it("setBalance, setNonce, setCode, setStorageAt", async function () {
      const { contract, holder } = await loadFixture(token);
      const someone = ethers.Wallet.createRandom().address;
      await helpers.setBalance(someone, ethers.parseEther("3"));
      expect(await ethers.provider.getBalance(someone)).to.equal(ethers.parseEther("3"));
      await helpers.setNonce(someone, 42);
      expect(await ethers.provider.getTransactionCount(someone)).to.equal(42);
      await helpers.setCode(someone, "0x602a60005260206000f3");
      expect(await ethers.provider.getCode(someone)).to.equal("0x602a60005260206000f3");
      expect(BigInt(await ethers.provider.call({ to: someone }))).to.equal(42n);
      // The balances of an ERC-20 of OpenZeppelin lie in a mapping at slot 0.
      const place = ethers.AbiCoder.defaultAbiCoder().encode(["address", "uint256"], [holder.address, 0]);
      const slot = ethers.keccak256(place);
      expect(BigInt(await helpers.getStorageAt(contract.target, slot))).to.equal(1000n);
      await helpers.setStorageAt(contract.target, slot, 5n);
      expect(await contract.balanceOf(holder)).to.equal(5n);
    });

    it("lets accounts be impersonated, contracts too", async function () {
      const { contract, holder } = await loadFixture(token);
      await helpers.setBalance(contract.target, ethers.parseEther("1"));
      await helpers.impersonateAccount(contract.target);
      const self = await ethers.getSigner(contract.target);
      await contract.connect(holder).transfer(self, 10n);
      await contract.connect(self).transfer(holder, 4n);
      expect(await contract.balanceOf(self)).to.equal(6n);
      await helpers.stopImpersonatingAccount(contract.target);
      await expect(contract.connect(self).transfer(holder, 4n)).to.be.rejected;
    });

    it("setCoinbase, setPrevRandao, setNextBlockBaseFeePerGas, setBlockGasLimit", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const miner = ethers.Wallet.createRandom().address;
      await helpers.setCoinbase(miner);
      await helpers.setPrevRandao(12345);
      await helpers.setNextBlockBaseFeePerGas(ethers.parseUnits("7", "gwei"));
      const fees = { maxFeePerGas: ethers.parseUnits("20", "gwei"), gasLimit: 100_000n };
      await contract.connect(holder).transfer(other, 1n, fees);
      const block = await network.provider.send("eth_getBlockByNumber", ["latest", false]);
      expect(ethers.getAddress(block.miner)).to.equal(miner);
      expect(BigInt(block.mixHash)).to.equal(12345n);
      expect(BigInt(block.baseFeePerGas)).to.equal(ethers.parseUnits("7", "gwei"));
      await helpers.setBlockGasLimit(20_000_000);
      await mine();
      expect((await ethers.provider.getBlock("latest")).gasLimit).to.equal(20_000_000n);
    });
  });

  describe("matchers", function () {
    it("revertedWithCustomError and its arguments", async function () {
      const { contract, holder, other } = await loadFixture(token);
      await expect(contract.connect(holder).transfer(other, 2000n))
        .to.be.revertedWithCustomError(contract, "ERC20InsufficientBalance")
        .withArgs(holder.address, 1000n, 2000n);
      await expect(contract.connect(holder).transfer.staticCall(other, 2000n))
        .to.be.revertedWithCustomError(contract, "ERC20InsufficientBalance")
        .withArgs(anyValue, 1000n, 2000n);
      await expect(contract.connect(holder).transfer.estimateGas(other, 2000n)).to.be.reverted;
    });

    it("revertedWithPanic, revertedWithoutReason", async function () {
      const { contract, holder, other } = await loadFixture(token);
      const max = ethers.MaxUint256;
      await expect(contract.$_mint(other, max)).to.be.revertedWithPanic(
        PANIC_CODES.ARITHMETIC_OVERFLOW,
      );
      const revert = "0x60006000fd";
      await helpers.setCode(other.address, revert);
      await expect(holder.sendTransaction({ to: other })).to.be.revertedWithoutReason();
    });

    it("emit, changeTokenBalances, changeEtherBalances", async function () {
      const { contract, holder, other } = await loadFixture(token);
      await expect(contract.connect(holder).transfer(other, 3n))
        .to.emit(contract, "Transfer")
        .withArgs(holder.address, other.address, 3n);
      await expect(contract.connect(holder).transfer(other, 4n)).to.changeTokenBalances(
        contract,
        [holder, other],
        [-4n, 4n],
      );
      await expect(holder.sendTransaction({ to: other, value: 5n })).to.changeEtherBalances(
        [holder, other],
        [-5n, 5n],
      );
    });

    it("signatures of messages and of typed data", async function () {
      const { contract, holder } = await loadFixture(token);
      const signature = await holder.signMessage("hello");
      expect(ethers.verifyMessage("hello", signature)).to.equal(holder.address);
      const { chainId } = await ethers.provider.getNetwork();
      const domain = { name: "Token", version: "1", chainId, verifyingContract: contract.target };
      const types = { Order: [{ name: "amount", type: "uint256" }, { name: "to", type: "address" }] };
      const order = { amount: 12n, to: holder.address };
      const signed = await holder.signTypedData(domain, types, order);
      expect(ethers.verifyTypedData(domain, types, order, signed)).to.equal(holder.address);
    });
  });
});
