export const abi = [
  {
    type: "event",
    name: "Mark",
    inputs: [
      { name: "id", type: "uint256", indexed: true },
      { name: "at", type: "uint256", indexed: false },
    ],
  },
  {
    type: "function",
    name: "mark",
    stateMutability: "nonpayable",
    inputs: [{ name: "id", type: "uint256" }],
    outputs: [],
  },
] as const;
