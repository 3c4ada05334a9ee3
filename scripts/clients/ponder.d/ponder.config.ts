// A contract of the made chain, whose events, calls and receipts Ponder indexes.
import { createConfig } from "ponder";

import { abi } from "./abi";

export default createConfig({
  chains: {
    made: {
      id: Number(process.env.CHAIN_ID),
      rpc: process.env.RPC_URL,
      pollingInterval: 200,
      disableCache: true,
    },
  },
  contracts: {
    Marks: {
      abi,
      chain: "made",
      address: process.env.CONTRACT as `0x${string}`,
      startBlock: 1,
      includeTransactionReceipts: true,
      includeCallTraces: true,
    },
  },
});
