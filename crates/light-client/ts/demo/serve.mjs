// Serves the package's folder on 127.0.0.1, so that a browser can open demo/index.html. POST /rpc is
// forwarded to a node, so that no CORS is needed, or to `answer`, which replaces the node in tests.
//
//     node demo/serve.mjs RPC_URL [PORT]
import { createReadStream } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('..', import.meta.url));
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.json': 'application/json' };

/** Starts a server; `answer` takes the body of a request and returns the body of the response. */
export async function serve(answer, port = 0) {
  const server = createServer((request, response) => {
    const work = request.method === 'POST' ? post(request, response, answer) : get(request, response);
    work.catch((error) => response.writeHead(502).end(String(error)));
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return { server, url: `http://127.0.0.1:${server.address().port}` };
}

/** Forwards requests to a node. */
export function node(url) {
  return async (body) => {
    const headers = { 'content-type': 'application/json' };
    return (await fetch(url, { method: 'POST', headers, body })).text();
  };
}

async function post(request, response, answer) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = await answer(Buffer.concat(parts).toString());
  response.writeHead(200, { 'content-type': TYPES['.json'] }).end(body);
}

async function get(request, response) {
  const { pathname } = new URL(request.url, 'http://localhost');
  try {
    const root = await realpath(FOLDER);
    const file = await realpath(join(root, decodeURIComponent(pathname)));
    if (!file.startsWith(root + sep) || !(await stat(file)).isFile()) throw new Error('no file');
    response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' });
    createReadStream(file).pipe(response);
  } catch {
    response.writeHead(404).end('not found');
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [rpc, port = '8600'] = process.argv.slice(2);
  if (!rpc) {
    console.error('usage: node demo/serve.mjs RPC_URL [PORT]');
    process.exit(2);
  }
  const { url } = await serve(node(rpc), Number(port));
  console.log(`${url}/demo/index.html?rpc=/rpc`);
}
