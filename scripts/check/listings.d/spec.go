// Package client stands for pkg/client of benchmarkoor: what a spec of a client must have.
package client

type ClientType string

type RollbackMethodType string

const RollbackMethodSetHeadHex RollbackMethodType = "debug_setHead_hex"

type RPCRollbackSpec struct {
	Method    RollbackMethodType
	RPCMethod string
}

type Spec interface {
	Type() ClientType
	DefaultImage() string
	DefaultCommand() []string
	GenesisFlag() string
	RequiresInit() bool
	InitCommand() []string
	DataDir() string
	GenesisPath() string
	JWTPath() string
	RPCPort() int
	EnginePort() int
	MetricsPort() int
	DefaultEnvironment() map[string]string
	RPCRollbackSpec() *RPCRollbackSpec
	DefaultConfigFiles() map[string]string
}
