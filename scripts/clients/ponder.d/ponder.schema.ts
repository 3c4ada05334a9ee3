import { onchainTable } from "ponder";

/** An event, with what its transaction cost. */
export const mark = onchainTable("mark", (t) => ({
  key: t.text().primaryKey(),
  id: t.text().notNull(),
  at: t.text().notNull(),
  block: t.text().notNull(),
  hash: t.text().notNull(),
  transaction: t.text().notNull(),
  gas: t.text().notNull(),
}));

/** A call of the contract, from traces. */
export const call = onchainTable("call", (t) => ({
  key: t.text().primaryKey(),
  id: t.text().notNull(),
  block: t.text().notNull(),
  hash: t.text().notNull(),
}));

/** A row that every event changes: a reorg must give it its earlier value. */
export const total = onchainTable("total", (t) => ({
  name: t.text().primaryKey(),
  count: t.integer().notNull(),
  sum: t.bigint().notNull(),
}));
