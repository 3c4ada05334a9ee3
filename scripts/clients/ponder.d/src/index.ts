import { ponder } from "ponder:registry";
import { call, mark, total } from "ponder:schema";

ponder.on("Marks:Mark", async ({ event, context }) => {
  const { id, at } = event.args;
  await context.db.insert(mark).values({
    key: `${event.block.hash}-${event.log.logIndex}`,
    id: id.toString(),
    at: at.toString(),
    block: event.block.number.toString(),
    hash: event.block.hash,
    transaction: event.transaction.hash,
    gas: event.transactionReceipt.gasUsed.toString(),
  });
  await context.db
    .insert(total)
    .values({ name: "all", count: 1, sum: id })
    .onConflictDoUpdate((row) => ({ count: row.count + 1, sum: row.sum + id }));
});

ponder.on("Marks.mark()", async ({ event, context }) => {
  // The one argument, whether Ponder gives a list or names.
  const [id] = Object.values(event.args) as bigint[];
  await context.db.insert(call).values({
    key: event.transaction.hash,
    id: id.toString(),
    block: event.block.number.toString(),
    hash: event.block.hash,
  });
});
