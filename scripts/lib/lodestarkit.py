"""Lodestar, a consensus client, as the driver of a node: a beacon node and eight validators of a chain of
its own (minimal preset, Capella from genesis).

Lodestar is 1.5.1: npm lacks packages of the newer releases. To run today it needs some changes, all made
here: exact versions of its own packages, addons compiled for this Node.js, a function that Node.js 20
lacks, a total difficulty in the blocks it reads (nodes no longer send one), and permission to run
without peers.
"""

import http.server
import json
import os
import shutil
import subprocess

import nodekit
from nodekit import fail

VERSION = "1.5.1"
PARTS = ["api", "beacon-node", "config", "db", "fork-choice", "light-client", "params", "reqresp"]
PARTS += ["state-transition", "types", "utils", "validator"]
ADDONS = ["snappy", "classic-level", "bcrypto", "bigint-buffer"]
SLOT_SECONDS, TO_GENESIS = 2, 25
# The beacon node's REST port, which its validators use.
REST_PORT = 9596
# `Promise.withResolvers` for Node.js 20.
POLYFILL = """
Promise.withResolvers ??= function () {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};
"""


def install():
    for program in ("node", "npm"):
        if not shutil.which(program):
            fail(f"there is no {program}: install Node.js")
    folder = nodekit.cache_folder(f"lodestar-{VERSION}")
    if (folder / "complete").exists():
        return folder
    print(f"installing Lodestar {VERSION} into {folder}", flush=True)
    package = {
        "name": "consensus",
        "private": True,
        "dependencies": {"@chainsafe/lodestar": VERSION},
    }
    package["overrides"] = {f"@lodestar/{part}": VERSION for part in PARTS}
    (folder / "package.json").write_text(json.dumps(package))
    (folder / "polyfill.cjs").write_text(POLYFILL)
    for command in (
        ["install", "--ignore-scripts", "--no-audit", "--no-fund"],
        ["rebuild", *ADDONS],
    ):
        nodekit.run(["npm", "--prefix", folder, *command])
    libp2p = "node_modules/@lodestar/beacon-node/node_modules/libp2p/dist/src/transport-manager.js"
    text = (folder / libp2p).read_text()
    refusal = "throw errCode(new Error(message), codes.ERR_NO_VALID_ADDRESSES);"
    if refusal not in text:
        fail(f"libp2p is not as expected: {folder / libp2p}")
    (folder / libp2p).write_text(text.replace(refusal, "return;"))
    (folder / "complete").touch()
    return folder


class WithDifficulty(http.server.BaseHTTPRequestHandler):
    """Forwards requests to the node, and adds a total difficulty to the blocks in its responses."""

    protocol_version = "HTTP/1.1"
    node = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        _, answer = self.node.rpc.post(body)
        answer = json.loads(answer)
        for each in answer if isinstance(answer, list) else [answer]:
            if isinstance(each.get("result"), dict) and "difficulty" in each["result"]:
                each["result"]["totalDifficulty"] = "0x0"
        answer = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def start_lodestar(folder, node, datadir, log, proxy_port, genesis_time):
    genesis = node.rpc.call("eth_getBlockByNumber", "0x0", False)["hash"]
    flags = {
        "genesisValidators": 8, "startValidators": "0..7", "genesisTime": genesis_time,
        "genesisEth1Hash": genesis, "params.SECONDS_PER_SLOT": SLOT_SECONDS,
        "params.ALTAIR_FORK_EPOCH": 0, "params.BELLATRIX_FORK_EPOCH": 0,
        "params.CAPELLA_FORK_EPOCH": 0, "params.TERMINAL_TOTAL_DIFFICULTY": 0,
        "execution.urls": f"http://127.0.0.1:{node.auth_port}", "jwt-secret": node.secret_file,
        "eth1": "true", "eth1.providerUrls": f"http://127.0.0.1:{proxy_port}",
        "dataDir": datadir, "network.connectToDiscv5Bootnodes": "false",
        "suggestedFeeRecipient": "0x" + "42" * 20,
    }  # fmt: skip
    command = ["node", str(folder / "node_modules" / ".bin" / "lodestar"), "dev"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    env = os.environ | {"LODESTAR_PRESET": "minimal"}
    env["NODE_OPTIONS"] = f"--require {folder / 'polyfill.cjs'}"
    # It writes files into its working directory.
    return subprocess.Popen(
        command, env=env, cwd=datadir.parent, stdout=log, stderr=log, start_new_session=True
    )
