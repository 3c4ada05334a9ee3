#!/usr/bin/env bash
# Turns the variables of Eth Docker into flags, and becomes the command that it is given: `retrie node ..`.
# RETRIE_HOME, the folder of the volume, is another one in scripts/check/listings alone.
set -Eeuo pipefail

home=${RETRIE_HOME:-/var/lib/retrie}
flags=()

refuse() {
    echo "error: $*" >&2
    # The container is started again at once; its log should stay readable.
    sleep "${REFUSAL_PAUSE:-30}"
    exit 1
}

# -- the secret of the Engine API ------------------------------------------------------------------

# The consensus client reads the file as another user.
secret=$home/ee-secret/jwtsecret
mkdir -p "${secret%/*}"
if [[ -n ${JWT_SECRET:-} ]]; then
    printf '%s' "$JWT_SECRET" > "$secret"
elif [[ ! -s $secret ]]; then
    head -c 32 /dev/urandom | od -A n -t x1 | tr -d ' \n' > "$secret"
fi
if [[ -O $secret ]]; then
    chmod 666 "$secret"
fi

# -- the chain -------------------------------------------------------------------------------------

# The entries of a YAML list, or the lines of a text file, joined by commas.
nodes_in() {
    sed -E 's/^[[:space:]]*-[[:space:]]*//; s/[[:space:]]+#.*$//; s/^["'\'']|["'\'']$//g' "$@" \
        | grep -E '^(enode|enr):' | paste -s -d , -
}

case ${NETWORK:-} in
    "") refuse "NETWORK is not set" ;;
    # https://HOST/OWNER/REPOSITORY/tree/BRANCH/FOLDER: a genesis file and nodes to connect to.
    http://*/tree/* | https://*/tree/*)
        repository=${NETWORK%%/tree/*}
        rest=${NETWORK#*/tree/}
        branch=${rest%%/*}
        config=$home/testnet/${rest#*/}
        if [[ ! -d $home/testnet ]]; then
            git clone --quiet --depth 1 --branch "$branch" "$repository" "$home/testnet"
        fi
        flags+=(--chain "$config/genesis.json" --disable-dns-discovery)
        lists=()
        for list in enodes.txt enodes.yaml bootstrap_nodes.txt bootstrap_nodes.yaml; do
            if [[ -f $config/$list ]]; then
                lists+=("$config/$list")
            fi
        done
        nodes=$( ((${#lists[@]})) && nodes_in "${lists[@]}" || true)
        if [[ -n $nodes ]]; then
            flags+=(--bootnodes "$nodes")
        fi
        ;;
    *) flags+=(--chain "$NETWORK") ;;
esac

# -- what is kept ----------------------------------------------------------------------------------

# Blocks whose state, and with `aggressive-expiry` all else, can be read.
recent=10064
# 33,024 epochs, about five months.
months=1056768
state=(--prune.state-history.distance "$recent")
case ${NODE_TYPE:-pre-merge-expiry} in
    archive) ;;
    full) flags+=("${state[@]}") ;;
    pre-merge-expiry)
        flags+=("${state[@]}")
        case $NETWORK in
            mainnet | sepolia) flags+=(--prune.bodies.pre-merge --prune.receipts.pre-merge) ;;
            *) echo "$NETWORK has no blocks from before the merge: all bodies and receipts are kept" ;;
        esac
        ;;
    pre-prague-expiry)
        flags+=("${state[@]}")
        case $NETWORK in
            mainnet) first=22431084 ;;
            sepolia) first=7836331 ;;
            hoodi) first=60412 ;;
            *) first= ;;
        esac
        if [[ -n $first ]]; then
            flags+=(--prune.bodies.before "$first" --prune.receipts.before "$first")
        else
            echo "there is no block of Prague for $NETWORK: all bodies and receipts are kept"
        fi
        ;;
    rolling-expiry)
        flags+=("${state[@]}" --prune.bodies.distance "$months" --prune.receipts.distance "$months")
        ;;
    aggressive-expiry)
        flags+=("${state[@]}" --prune.bodies.distance "$recent" --prune.receipts.distance "$recent"
            --prune.transaction-lookup.distance "$recent")
        ;;
    *) refuse "retrie has no node of type $NODE_TYPE: choose another EL_NODE_TYPE" ;;
esac

# -- where the state comes from --------------------------------------------------------------------

flags+=(--state-backend "${STATE_BACKEND:-mpt}")
if [[ -n ${SNAPSHOT:-} ]]; then
    [[ -n ${CHECKPOINT:-} ]] || refuse "RETRIE_SNAPSHOT needs RETRIE_CHECKPOINT, the hash of its block"
    flags+=(--sync.from "$SNAPSHOT" --checkpoint "$CHECKPOINT")
elif [[ ${SYNC_MODE:-full} != full ]]; then
    flags+=(--syncmode "$SYNC_MODE")
fi
if [[ -n ${ERE_URL:-} ]]; then
    echo "ERE_URL has no effect: fetch files with \`retrie download ere\`, and import them before the first start"
fi

# -- the rest --------------------------------------------------------------------------------------

case ${LOG_LEVEL:-info} in
    error) flags+=(-v) ;;
    warn) flags+=(-vv) ;;
    info) flags+=(-vvv) ;;
    debug) flags+=(-vvvv) ;;
    trace) flags+=(-vvvvv) ;;
    *) echo "LOG_LEVEL $LOG_LEVEL is none that retrie has: it logs as with info" ;;
esac
if [[ -n ${EL_MAX_PEER_COUNT:-} ]]; then
    inbound=$((EL_MAX_PEER_COUNT / 2))
    flags+=(--max-inbound-peers "$inbound" --max-outbound-peers "$((EL_MAX_PEER_COUNT - inbound))")
fi
if [[ ${IPV6:-false} == true ]]; then
    flags+=(--addr ::)
fi
if [[ ${COMPOSE_FILE:-} =~ grafana(-rootless)?\.yml ]]; then
    flags+=(--tracing-otlp=http://tempo:4318/v1/traces)
fi

# A variable that is not set leaves an empty argument in the compose file.
command=()
for argument in "$@"; do
    [[ -z $argument ]] || command+=("$argument")
done
# EL_EXTRAS is flags, separated by spaces.
read -r -a extras <<< "${EL_EXTRAS:-}" || true
exec "${command[@]}" "${flags[@]}" "${extras[@]}"
