import { Hono } from "hono";
import { db } from "ponder:api";
import schema from "ponder:schema";

const app = new Hono();

app.get("/tables", async (context) => {
  const tables = {
    mark: await db.select().from(schema.mark),
    call: await db.select().from(schema.call),
    total: await db.select().from(schema.total),
  };
  const text = JSON.stringify(tables, (_, value) => (typeof value === "bigint" ? value.toString() : value));
  return context.body(text, 200, { "content-type": "application/json" });
});

export default app;
