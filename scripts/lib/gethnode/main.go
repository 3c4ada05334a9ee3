// Command gethnode runs a chain on go-ethereum's packages, with an Engine API and JSON-RPC: what a
// devnet needs of geth where cmd/geth does not build. With a port it has peers, without discovery,
// and serves and fetches states by snap; it may also lie to those that fetch (lies.go).
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/eth/tracers"
	_ "github.com/ethereum/go-ethereum/eth/tracers/native"
	"github.com/ethereum/go-ethereum/log"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/version"
)

// options are the command line; the names are geth's own, but for --genesis.
type options struct {
	datadir, genesis, apis, secret string
	syncMode, lie                  string
	httpPort, wsPort, authPort     int
	peerPort, cache                int
	snapV2                         bool
	gasLimit                       uint64
}

func parse() (*options, error) {
	o := new(options)
	flag.StringVar(&o.datadir, "datadir", "", "folder of the chain, made when it is missing")
	flag.StringVar(&o.genesis, "genesis", "", "genesis file; it must be that of the datadir")
	flag.IntVar(&o.httpPort, "http.port", 8545, "port of JSON-RPC over HTTP")
	flag.IntVar(&o.wsPort, "ws.port", 0, "port of JSON-RPC over WebSocket; none at 0")
	flag.StringVar(&o.apis, "http.api", "eth,net,web3,debug,txpool,admin", "namespaces of JSON-RPC")
	flag.IntVar(&o.authPort, "authrpc.port", 8551, "port of the Engine API")
	flag.StringVar(&o.secret, "authrpc.jwtsecret", "", "file with the secret of the Engine API")
	flag.IntVar(&o.peerPort, "port", 0, "port for peers; no peers at 0")
	flag.StringVar(&o.syncMode, "syncmode", "full", "full, or snap for a new datadir")
	flag.BoolVar(&o.snapV2, "snap.v2", true, "fetch states by snap/2 where Amsterdam is active")
	flag.StringVar(&o.lie, "lie", "", "lie to whoever fetches a state: "+strings.Join(lieNames(), ", "))
	flag.IntVar(&o.cache, "cache", 256, "megabytes of caches")
	flag.Uint64Var(&o.gasLimit, "miner.gaslimit", ethconfig.Defaults.Miner.GasCeil, "gas limit that built blocks tend to")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return nil, fmt.Errorf("`%s` is no flag", flag.Arg(0))
	case o.datadir == "" || o.genesis == "" || o.secret == "":
		return nil, errors.New("give --datadir, --genesis and --authrpc.jwtsecret")
	case o.syncMode != "full" && o.syncMode != "snap":
		return nil, fmt.Errorf("`%s` is no mode of sync: there are full and snap", o.syncMode)
	case o.lie != "" && !slices.Contains(lieNames(), o.lie):
		return nil, fmt.Errorf("`%s` is no lie: there are %s", o.lie, strings.Join(lieNames(), ", "))
	}
	return o, nil
}

func readGenesis(path string) (*core.Genesis, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the genesis: %w", err)
	}
	genesis := new(core.Genesis)
	if err := json.Unmarshal(text, genesis); err != nil {
		return nil, fmt.Errorf("cannot decode the genesis %s: %w", path, err)
	}
	return genesis, nil
}

// nodeConfig says what listens where: on loopback alone.
func nodeConfig(o *options) *node.Config {
	config := node.DefaultConfig
	apis := strings.Split(o.apis, ",")
	config.Name = "geth"
	config.Version = fmt.Sprintf("%d.%d.%d-packages", version.Major, version.Minor, version.Patch)
	config.DataDir = o.datadir
	config.IPCPath = ""
	config.HTTPHost, config.HTTPPort, config.HTTPModules = "127.0.0.1", o.httpPort, apis
	if o.wsPort != 0 {
		config.WSHost, config.WSPort, config.WSModules = "127.0.0.1", o.wsPort, apis
	}
	config.AuthAddr, config.AuthPort, config.JWTSecret = "127.0.0.1", o.authPort, o.secret
	config.P2P = p2p.Config{NoDiscovery: true, NoDial: true}
	if o.peerPort != 0 {
		address := fmt.Sprintf("127.0.0.1:%d", o.peerPort)
		config.P2P = p2p.Config{NoDiscovery: true, ListenAddr: address, MaxPeers: 50}
	}
	return &config
}

func chainConfig(o *options, genesis *core.Genesis) *ethconfig.Config {
	config := ethconfig.Defaults
	config.Genesis = genesis
	config.SyncMode = ethconfig.FullSync
	if o.syncMode == "snap" {
		config.SyncMode = ethconfig.SnapSync
	}
	config.SnapV2 = &o.snapV2
	config.StateScheme = rawdb.PathScheme
	config.Miner.GasCeil = o.gasLimit
	config.DatabaseHandles = 256
	config.DatabaseCache = o.cache / 2
	config.TrieCleanCache = o.cache / 6
	config.TrieDirtyCache = o.cache / 6
	config.SnapshotCache = o.cache / 6
	return &config
}

// run serves until the process is told to end.
func run(o *options) (err error) {
	genesis, err := readGenesis(o.genesis)
	if err != nil {
		return err
	}
	stack, err := node.New(nodeConfig(o))
	if err != nil {
		return fmt.Errorf("cannot set up the node: %w", err)
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	config := chainConfig(o, genesis)
	backend, err := eth.New(stack, config)
	if err != nil {
		return fmt.Errorf("cannot open the chain in %s: %w", o.datadir, err)
	}
	system := filters.NewFilterSystem(backend.APIBackend, filters.Config{
		LogCacheSize:  config.FilterLogCacheSize,
		LogQueryLimit: config.LogQueryLimit,
	})
	stack.RegisterAPIs([]rpc.API{{Namespace: "eth", Service: filters.NewFilterAPI(system)}})
	stack.RegisterAPIs(tracers.APIs(backend.APIBackend))
	if err := catalyst.Register(stack, backend); err != nil {
		return fmt.Errorf("cannot offer the Engine API: %w", err)
	}
	if o.lie != "" {
		makeLiar(stack.Server().Protocols, backend.BlockChain(), o.lie)
	}
	if err := stack.Start(); err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	log.Info("Ending", "signal", <-ended)
	return nil
}

func main() {
	log.SetDefault(log.NewLogger(log.NewTerminalHandlerWithLevel(os.Stderr, log.LevelInfo, false)))
	o, err := parse()
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
