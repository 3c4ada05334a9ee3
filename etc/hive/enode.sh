#!/usr/bin/env bash
# Prints the enode URL of the running node; a simulator that lets nodes find each other calls it.
# RETRIE_HTTP_PORT is as in retrie.sh.
set -euo pipefail
curl --silent --show-error --fail --header 'Content-Type: application/json' \
    --data '{"jsonrpc":"2.0","id":1,"method":"admin_nodeInfo","params":[]}' \
    "http://127.0.0.1:${RETRIE_HTTP_PORT:-8545}" | jq --exit-status --raw-output .result.enode
