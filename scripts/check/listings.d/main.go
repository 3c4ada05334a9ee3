// Prints the spec of retrie as JSON.
package main

import (
	"encoding/json"
	"os"

	"check/client"
)

func main() {
	var spec client.Spec = client.NewRetrieSpec()
	err := json.NewEncoder(os.Stdout).Encode(map[string]any{
		"type":     spec.Type(),
		"command":  spec.DefaultCommand(),
		"genesis":  spec.GenesisFlag() + spec.GenesisPath(),
		"datadir":  spec.DataDir(),
		"secret":   spec.JWTPath(),
		"ports":    []int{spec.RPCPort(), spec.EnginePort(), spec.MetricsPort()},
		"init":     spec.RequiresInit(),
		"rollback": spec.RPCRollbackSpec().RPCMethod,
	})
	if err != nil {
		panic(err)
	}
}
