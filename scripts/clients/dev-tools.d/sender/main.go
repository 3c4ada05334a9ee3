// Sends transactions with go-ethereum's ethclient as fast as the node takes them, and waits until all
// are mined, in order.
package main

import (
	"context"
	"crypto/ecdsa"
	"flag"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
)

func main() {
	url := flag.String("url", "", "HTTP address of the node")
	keys := flag.String("keys", "", "private keys of accounts with ether, separated by commas")
	count := flag.Int("count", 500, "transactions of a run, spread over the accounts in turn")
	runs := flag.Int("runs", 1, "runs, one after another")
	limit := flag.Duration("limit", 60*time.Second, "how long a run may take until all is mined")
	flag.Parse()
	if err := start(*url, strings.Split(*keys, ","), *count, *runs, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func start(url string, keys []string, count, runs int, limit time.Duration) error {
	accounts := make([]*ecdsa.PrivateKey, len(keys))
	for i, key := range keys {
		account, err := crypto.HexToECDSA(strings.TrimPrefix(key, "0x"))
		if err != nil {
			return fmt.Errorf("key %d of --keys: %w", i+1, err)
		}
		accounts[i] = account
	}
	client, err := ethclient.Dial(url)
	if err != nil {
		return err
	}
	defer client.Close()
	for number := 1; number <= runs; number++ {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := run(ctx, client, accounts, count)
		cancel()
		if err != nil {
			return fmt.Errorf("run %d of %d: %w", number, runs, err)
		}
	}
	return nil
}

// run sends count transactions and checks where they were mined.
func run(ctx context.Context, client *ethclient.Client, keys []*ecdsa.PrivateKey, count int) error {
	began := time.Now()
	chain, err := client.ChainID(ctx)
	if err != nil {
		return err
	}
	head, err := client.HeaderByNumber(ctx, nil)
	if err != nil {
		return err
	}
	tip := big.NewInt(1_000_000_000)
	fee := new(big.Int).Add(tip, new(big.Int).Mul(head.BaseFee, big.NewInt(10)))
	signer := types.LatestSignerForChainID(chain)
	nonces := make([]uint64, len(keys))
	for i, key := range keys {
		nonces[i], err = client.PendingNonceAt(ctx, crypto.PubkeyToAddress(key.PublicKey))
		if err != nil {
			return err
		}
	}
	sent := make([][]common.Hash, len(keys))
	to := common.HexToAddress("0x00000000000000000000000000000000c0ffee00")
	for i := range count {
		which := i % len(keys)
		tx, err := types.SignNewTx(keys[which], signer, &types.DynamicFeeTx{
			ChainID: chain, Nonce: nonces[which], GasTipCap: tip, GasFeeCap: fee,
			Gas: 21_000, To: &to, Value: big.NewInt(1),
		})
		if err != nil {
			return err
		}
		if err := client.SendTransaction(ctx, tx); err != nil {
			return fmt.Errorf("transaction %d, nonce %d, is refused: %w", i+1, nonces[which], err)
		}
		sent[which] = append(sent[which], tx.Hash())
		nonces[which]++
	}
	took := time.Since(began)
	mined, err := inOrder(ctx, client, sent)
	if err != nil {
		return fmt.Errorf("%d of %d mined: %w", mined, count, err)
	}
	if err := agrees(ctx, client, keys, nonces); err != nil {
		return fmt.Errorf("%d of %d mined, but %w", mined, count, err)
	}
	fmt.Printf("%d of %d mined, of %d accounts: sent in %.1f s, mined after %.1f s\n",
		mined, count, len(keys), took.Seconds(), time.Since(began).Seconds())
	return nil
}

// inOrder waits for every receipt: those of an account must lie in the order of their nonces.
func inOrder(ctx context.Context, client *ethclient.Client, sent [][]common.Hash) (int, error) {
	mined := 0
	var missing error
	for _, hashes := range sent {
		block, index := uint64(0), uint(0)
		for i, hash := range hashes {
			receipt, err := client.TransactionReceipt(ctx, hash)
			for err != nil && ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond)
				receipt, err = client.TransactionReceipt(ctx, hash)
			}
			if err != nil {
				// One last look at the rest, so that the number is of all.
				last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				receipt, err = client.TransactionReceipt(last, hash)
				cancel()
			}
			if err != nil {
				if missing == nil {
					missing = fmt.Errorf("%s, the account's number %d, has no receipt: %w", hash, i+1, err)
				}
				continue
			}
			mined++
			at := receipt.BlockNumber.Uint64()
			if receipt.Status != types.ReceiptStatusSuccessful {
				return mined, fmt.Errorf("%s failed in block %d", hash, at)
			}
			if at < block || at == block && i > 0 && receipt.TransactionIndex <= index {
				return mined, fmt.Errorf("%s is in block %d before its predecessor", hash, at)
			}
			block, index = at, receipt.TransactionIndex
		}
	}
	return mined, missing
}

// agrees compares the nonces at the head and of the pool with what was sent.
func agrees(ctx context.Context, client *ethclient.Client, keys []*ecdsa.PrivateKey, nonces []uint64) error {
	for i, key := range keys {
		address := crypto.PubkeyToAddress(key.PublicKey)
		latest, err := client.NonceAt(ctx, address, nil)
		if err != nil {
			return err
		}
		pending, err := client.PendingNonceAt(ctx, address)
		if err != nil {
			return err
		}
		if latest != nonces[i] || pending != nonces[i] {
			return fmt.Errorf("the nonce of %s is %d, with pending %d, and not %d",
				address, latest, pending, nonces[i])
		}
	}
	return nil
}
