#!/usr/bin/env bash
# Starts retrie in a container of hive, whose simulator has put files into it and set variables:
#
#   /genesis.json   genesis in geth's form; mapper.jq gives it the forks of the variables
#   /chain.rlp      blocks to import before the start, if it is there
#   /blocks/*.rlp   further ones, in the order of their numbers; some are invalid on purpose
#
#   HIVE_CHAIN_ID, HIVE_FORK_*, HIVE_*_TIMESTAMP, HIVE_*_BLOB_*, HIVE_TERMINAL_TOTAL_DIFFICULTY ..  mapper.jq
#   HIVE_LOGLEVEL             0 to 5
#   HIVE_BOOTNODE             enode:// or enr: URLs of nodes to connect to, separated by commas
#   HIVE_NODETYPE             archive, full, or snap: fetch the state from peers
#   HIVE_NETWORK_ID           must be the chain id: retrie has no other network id
#   HIVE_TARGET_GAS_LIMIT     gas limit that built blocks move towards
#   HIVE_EXPECT_DEEP_REORGS   the simulator steps back further than 128 blocks
#   HIVE_GRAPHQL_ENABLED      serve GraphQL
#
# HIVE_MINER, HIVE_MINER_EXTRA and HIVE_CLIQUE_PRIVATEKEY have no effect: retrie seals no blocks.
#
# scripts/check/hive runs this script outside of a container, and therefore sets HIVE_ROOT, a folder in
# place of /, the program RETRIE, and addresses and ports.
set -euo pipefail

root=${HIVE_ROOT:-}
retrie=${RETRIE:-/usr/local/bin/retrie}
address=${RETRIE_ADDRESS:-0.0.0.0}
http_port=${RETRIE_HTTP_PORT:-8545}
ws_port=${RETRIE_WS_PORT:-8546}
auth_port=${RETRIE_AUTH_PORT:-8551}
peer_port=${RETRIE_PEER_PORT:-30303}
datadir=$root/retrie-data
apis=admin,debug,eth,net,ots,state,trace,txpool,web3,testing

note() { echo "retrie.sh: $*" >&2; }

case ${HIVE_LOGLEVEL:-3} in
    0 | 1) verbosity=-v ;;
    2) verbosity=-vv ;;
    3) verbosity=-vvv ;;
    4) verbosity=-vvvv ;;
    *) verbosity=-vvvvv ;;
esac

# -- the chain -------------------------------------------------------------------------------------

genesis=$root/retrie-genesis.json
jq -f "$root/mapper.jq" "$root/genesis.json" > "$genesis"
note "the chain: $(jq --compact-output .config "$genesis")"
chain_id=$(jq --raw-output .config.chainId "$genesis")
if [[ ${HIVE_NETWORK_ID:-$chain_id} != "$chain_id" ]]; then
    note "HIVE_NETWORK_ID is $HIVE_NETWORK_ID, but retrie's network id is the chain id, $chain_id"
fi

retention=()
if [[ -n ${HIVE_EXPECT_DEEP_REORGS:-} ]]; then
    retention=(--retention 1024)
fi

import() {
    "$retrie" import "$verbosity" --chain "$genesis" --datadir "$datadir" "${retention[@]}" "$@"
}

if [[ -f $root/chain.rlp ]]; then
    # An invalid block ends the import; the blocks before it stay.
    import "$root/chain.rlp" || note "chain.rlp was not imported whole"
fi
if [[ -d $root/blocks ]]; then
    mapfile -t blocks < <(find "$root/blocks" -maxdepth 1 -name '*.rlp' | sort --version-sort)
    # One process for all files; only if one of them is refused, one process for each, so that the
    # valid ones after it are imported too. Known blocks are skipped.
    if ((${#blocks[@]})) && ! import "${blocks[@]}"; then
        for block in "${blocks[@]}"; do
            import "$block" || note "${block##*/} was not imported"
        done
    fi
fi

# -- the node --------------------------------------------------------------------------------------

flags=(node "$verbosity" --chain "$genesis" --datadir "$datadir" "${retention[@]}")
case ${HIVE_NODETYPE:-archive} in
    # Nothing is pruned: simulators also ask a full node for old blocks.
    archive | full) ;;
    # A datadir that has blocks keeps its state.
    snap) [[ -d $datadir ]] || flags+=(--syncmode snap) ;;
    *)
        note "there is no node of HIVE_NODETYPE=$HIVE_NODETYPE"
        exit 1
        ;;
esac

# The secret that all clients of hive share.
secret=$root/jwtsecret
if [[ ! -f $secret ]]; then
    printf '0x%s' 7365637265747365637265747365637265747365637265747365637265747365 > "$secret"
fi
flags+=(
    --http --http.addr "$address" --http.port "$http_port" --http.api "$apis"
    --http.vhosts '*' --http.corsdomain '*'
    --ws --ws.addr "$address" --ws.port "$ws_port" --ws.api "$apis" --ws.origins '*'
    --authrpc.addr "$address" --authrpc.port "$auth_port" --authrpc.vhosts '*'
    --authrpc.jwtsecret "$secret" --ipcdisable
)
if [[ -n ${HIVE_GRAPHQL_ENABLED:-} && $HIVE_GRAPHQL_ENABLED != 0 ]]; then
    flags+=(--graphql --graphql.vhosts '*')
fi
if [[ -n ${HIVE_TARGET_GAS_LIMIT:-} ]]; then
    flags+=(--builder.gaslimit "$HIVE_TARGET_GAS_LIMIT")
fi

# Other containers reach this one at its own address.
nat=${RETRIE_NAT:-extip:$(hostname -I | cut -d ' ' -f 1)}
flags+=(--addr "$address" --port "$peer_port" --nat "$nat" --disable-dns-discovery --snap.serve true)
if [[ -n ${HIVE_BOOTNODE:-} ]]; then
    flags+=(--bootnodes "$HIVE_BOOTNODE")
    # Discovery finds the node; one that is also trusted is dialled at once, and again when it is lost.
    trusted=$(tr ',' '\n' <<< "$HIVE_BOOTNODE" | grep '^enode://' | paste --serial --delimiters ,) || true
    if [[ -n $trusted ]]; then
        flags+=(--trusted-peers "$trusted")
    fi
fi
for ignored in HIVE_MINER HIVE_MINER_EXTRA HIVE_CLIQUE_PRIVATEKEY; do
    if [[ -n ${!ignored:-} ]]; then
        note "$ignored has no effect: retrie seals no blocks"
    fi
done

note "retrie ${flags[*]}"
exec "$retrie" "${flags[@]}"
