// A headless Chromium, driven over a pipe by the DevTools protocol.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/**
 * Opens a page; `evaluate` runs an expression in it and gives its value, a promise's too; `send` sends it a command
 * of the protocol.
 */
export async function openPage(program, url) {
  const profile = mkdtempSync(join(tmpdir(), 'light-client-'));
  const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe', `--user-data-dir=${profile}`];
  const browser = spawn(program, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => browser.once('close', resolve));
  const send = protocol(browser);
  const close = async () => {
    browser.kill();
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  };
  try {
    const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
    const evaluate = async (expression) => {
      const how = { expression, awaitPromise: true, returnByValue: true };
      const { result, exceptionDetails } = await send('Runtime.evaluate', how, sessionId);
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    };
    await send('Page.enable', {}, sessionId);
    await send('Page.navigate', { url }, sessionId);
    while (!(await evaluate(`document.readyState === 'complete' && location.href !== 'about:blank'`))) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return { evaluate, send: (method, params = {}) => send(method, params, sessionId), close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Sends commands, messages in JSON that end with a zero byte, and gives their results. */
function protocol(browser) {
  const [, , , input, output] = browser.stdio;
  const waiting = new Map();
  let [last, rest] = [0, ''];
  output.setEncoding('utf8').on('data', (text) => {
    const messages = (rest + text).split('\0');
    rest = messages.pop();
    for (const { id, result, error } of messages.map((message) => JSON.parse(message))) {
      const { resolve, reject } = waiting.get(id) ?? {};
      waiting.delete(id);
      if (error) reject?.(new Error(error.message));
      else resolve?.(result);
    }
  });
  const fail = (error) => waiting.forEach(({ reject }) => reject(error));
  input.on('error', fail);
  browser.on('error', fail);
  browser.on('exit', (code) => fail(new Error(`the browser has ended (${code})`)));
  return (method, params, sessionId) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      input.write(`${JSON.stringify({ id: last, method, params, sessionId })}\0`);
    });
}
