// A reporter for Mocha: one line of JSON in the file $REPORT for each test that has ended, so that a
// run that breaks off says how far it came.
const fs = require("node:fs");
const path = require("node:path");

module.exports = class {
  constructor(runner) {
    const out = fs.openSync(process.env.REPORT, "w");
    const put = (test, result, error) => {
      const file = path.relative(process.cwd(), test.file ?? "");
      const name = test.titlePath().join(" > ");
      const message = error && String(error.stack ?? error.message ?? error);
      const ms = test.duration;
      fs.writeSync(out, JSON.stringify({ file, name, result, ms, message }) + "\n");
    };
    runner.on("pass", (test) => put(test, "passed"));
    runner.on("fail", (test, error) => put(test, "failed", error));
    runner.on("pending", (test) => put(test, "skipped"));
    runner.once("end", () => fs.closeSync(out));
  }
};
