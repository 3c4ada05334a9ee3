package client

// retrie as a client of benchmarkoor (https://github.com/ethpandaops/benchmarkoor). This file belongs
// into its folder pkg/client, NewRetrieSpec() into NewRegistry there, and "retrie" into validClients
// of pkg/config. `scripts/check/listings` compiles it, and checks the flags against the program.

// ClientRetrie is the value of `client` in a configuration.
const ClientRetrie ClientType = "retrie"

type retrieSpec struct{}

var _ Spec = (*retrieSpec)(nil)

// NewRetrieSpec tells how retrie is run in a container.
func NewRetrieSpec() Spec { return &retrieSpec{} }

func (*retrieSpec) Type() ClientType { return ClientRetrie }

func (*retrieSpec) DefaultImage() string { return "retrie:latest" }

func (*retrieSpec) DefaultCommand() []string {
	return []string{
		"node",
		"--datadir=/data",
		"--full",
		// The blocks come from benchmarkoor alone.
		"--disable-discovery",
		"--nat=none",
		"--port=0",
		"--http",
		"--http.addr=0.0.0.0",
		"--http.port=8545",
		"--http.vhosts=*",
		"--http.api=admin,debug,eth,net,trace,txpool,web3",
		"--authrpc.addr=0.0.0.0",
		"--authrpc.port=8551",
		"--authrpc.vhosts=*",
		"--authrpc.jwtsecret=/tmp/jwtsecret",
		"--metrics=0.0.0.0:8008",
	}
}

func (*retrieSpec) GenesisFlag() string { return "--chain=" }

// A datadir is made at the first start, from the file that --chain names.
func (*retrieSpec) RequiresInit() bool { return false }

func (*retrieSpec) InitCommand() []string { return nil }

func (*retrieSpec) DataDir() string { return "/data" }

func (*retrieSpec) GenesisPath() string { return "/tmp/genesis.json" }

func (*retrieSpec) JWTPath() string { return "/tmp/jwtsecret" }

func (*retrieSpec) RPCPort() int { return 8545 }

func (*retrieSpec) EnginePort() int { return 8551 }

func (*retrieSpec) MetricsPort() int { return 8008 }

func (*retrieSpec) DefaultEnvironment() map[string]string { return nil }

func (*retrieSpec) RPCRollbackSpec() *RPCRollbackSpec {
	return &RPCRollbackSpec{Method: RollbackMethodSetHeadHex, RPCMethod: "debug_setHead"}
}

func (*retrieSpec) DefaultConfigFiles() map[string]string { return nil }
