package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/eth/protocols/snap"
	"github.com/ethereum/go-ethereum/log"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/holiman/uint256"
)

const (
	// staleDepth is how far below the head the state is that a stale answer comes from; geth keeps 128.
	staleDepth = 110
	// bombBytes is the size of an oversized answer, below the 16 MiB that RLPx allows.
	bombBytes = 15 << 20
)

// A lie changes decoded answers of snap; it returns whether it did. The packet is that of geth's
// package, or a rawNodes or rawLists.
type lie func(packet any) bool

// rawNodes and rawLists are answers as they are on the wire.
type rawNodes struct {
	ID    uint64
	Nodes [][]byte
}

type rawLists struct {
	ID    uint64
	Lists []rlp.RawValue
}

var lies = map[string]lie{
	"edges": wrongInside,
	"gaps":  missingAtEnd,
	"empty": nothing,
	"stale": nil, // The request is changed instead.
	"codes": wrongCodes,
	"bombs": oversized,
}

func lieNames() []string {
	names := make([]string, 0, len(lies))
	for name := range lies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// liar is a peer's connection whose answers of snap are changed on their way.
type liar struct {
	p2p.MsgReadWriter
	name  string
	chain *core.BlockChain
}

// makeLiar puts a liar before every connection of snap.
func makeLiar(protocols []p2p.Protocol, chain *core.BlockChain, name string) {
	for i := range protocols {
		if protocols[i].Name != snap.ProtocolName {
			continue
		}
		honest := protocols[i].Run
		protocols[i].Run = func(peer *p2p.Peer, rw p2p.MsgReadWriter) error {
			return honest(peer, &liar{rw, name, chain})
		}
	}
}

// packetOf is a fresh value for each kind of message that is changed.
func packetOf(code uint64) any {
	switch code {
	case snap.GetAccountRangeMsg:
		return new(snap.GetAccountRangePacket)
	case snap.GetStorageRangesMsg:
		return new(snap.GetStorageRangesPacket)
	case snap.GetTrieNodesMsg:
		return new(snap.GetTrieNodesPacket)
	case snap.AccountRangeMsg:
		return new(snap.AccountRangePacket)
	case snap.StorageRangesMsg:
		return new(snap.StorageRangesPacket)
	case snap.ByteCodesMsg:
		return new(snap.ByteCodesPacket)
	case snap.TrieNodesMsg:
		return new(rawNodes)
	case snap.AccessListsMsg:
		return new(rawLists)
	}
	return nil
}

// ReadMsg reads a request; a stale liar takes it for one of an older state.
func (l *liar) ReadMsg() (p2p.Msg, error) {
	msg, err := l.MsgReadWriter.ReadMsg()
	if err != nil || l.name != "stale" {
		return msg, err
	}
	return l.changed(msg, func(packet any) bool {
		head := l.chain.CurrentBlock().Number.Uint64()
		header := l.chain.GetHeaderByNumber(max(head, staleDepth) - staleDepth)
		if header == nil {
			return false
		}
		switch request := packet.(type) {
		case *snap.GetAccountRangePacket:
			request.Root = header.Root
		case *snap.GetStorageRangesPacket:
			request.Root = header.Root
		case *snap.GetTrieNodesPacket:
			request.Root = header.Root
		default:
			return false
		}
		return true
	})
}

// WriteMsg sends an answer, changed.
func (l *liar) WriteMsg(msg p2p.Msg) error {
	if change := lies[l.name]; change != nil {
		var err error
		if msg, err = l.changed(msg, change); err != nil {
			return err
		}
	}
	return l.MsgReadWriter.WriteMsg(msg)
}

// changed is the message after the lie, which is logged.
func (l *liar) changed(msg p2p.Msg, change lie) (p2p.Msg, error) {
	packet := packetOf(msg.Code)
	if packet == nil {
		return msg, nil
	}
	raw := make([]byte, msg.Size)
	if _, err := io.ReadFull(msg.Payload, raw); err != nil {
		return msg, err
	}
	if err := rlp.DecodeBytes(raw, packet); err == nil && change(packet) {
		encoded, err := rlp.EncodeToBytes(packet)
		if err != nil {
			return msg, err
		}
		raw = encoded
		log.Info("Lied", "how", l.name, "message", msg.Code, "bytes", len(raw))
	}
	msg.Size, msg.Payload = uint32(len(raw)), bytes.NewReader(raw)
	return msg, nil
}

// wrongInside changes what is between the first and the last item of an answer.
func wrongInside(packet any) bool {
	switch answer := packet.(type) {
	case *snap.AccountRangePacket:
		if len(answer.Accounts) < 3 {
			return false
		}
		at := len(answer.Accounts) / 2
		account, err := types.FullAccount(answer.Accounts[at].Body)
		if err != nil {
			return false
		}
		account.Balance = new(uint256.Int).AddUint64(account.Balance, 1)
		answer.Accounts[at].Body = types.SlimAccountRLP(*account)
		return true
	case *snap.StorageRangesPacket:
		for _, slots := range answer.Slots {
			if len(slots) >= 3 {
				at := len(slots) / 2
				slots[at].Body = flipped(slots[at].Body)
				return true
			}
		}
	case *rawNodes:
		return flipMiddle(answer.Nodes)
	case *rawLists:
		// The list of another block, or none.
		if len(answer.Lists) > 0 {
			answer.Lists[0] = answer.Lists[len(answer.Lists)-1]
			return len(answer.Lists) > 1
		}
	}
	return false
}

func flipMiddle(items [][]byte) bool {
	if len(items) == 0 {
		return false
	}
	at := len(items) / 2
	items[at] = flipped(items[at])
	return true
}

// flipped has another last byte.
func flipped(raw []byte) []byte {
	other := bytes.Clone(raw)
	if len(other) > 0 {
		other[len(other)-1] ^= 1
	}
	return other
}

// missingAtEnd leaves the last quarter out, with the proof of the whole.
func missingAtEnd(packet any) bool {
	switch answer := packet.(type) {
	case *snap.AccountRangePacket:
		if len(answer.Accounts) < 2 {
			return false
		}
		answer.Accounts = shorter(answer.Accounts)
		return true
	case *snap.StorageRangesPacket:
		for at := len(answer.Slots) - 1; at >= 0; at-- {
			if len(answer.Slots[at]) >= 2 {
				answer.Slots[at] = shorter(answer.Slots[at])
				return true
			}
		}
	case *rawNodes:
		return flipMiddle(answer.Nodes)
	}
	return false
}

func shorter[T any](items []T) []T {
	return items[:len(items)-max(1, len(items)/4)]
}

func nothing(packet any) bool {
	switch answer := packet.(type) {
	case *snap.AccountRangePacket:
		answer.Accounts, answer.Proof = nil, nil
	case *snap.StorageRangesPacket:
		answer.Slots, answer.Proof = nil, nil
	case *snap.ByteCodesPacket:
		answer.Codes = nil
	case *rawNodes:
		answer.Nodes = nil
	case *rawLists:
		for at := range answer.Lists {
			answer.Lists[at] = rlp.EmptyString
		}
	}
	return true
}

func wrongCodes(packet any) bool {
	answer, is := packet.(*snap.ByteCodesPacket)
	return is && flipMiddle(answer.Codes)
}

// oversized fills an answer up to what a message can have, with bytes that compress well.
func oversized(packet any) bool {
	switch answer := packet.(type) {
	case *snap.AccountRangePacket:
		answer.Accounts = nil
		for at := range uint64(bombBytes / 40) {
			account := &snap.AccountData{Hash: ascending(at), Body: rlp.RawValue{0xc4, 0x80, 0x80, 0x80, 0x80}}
			answer.Accounts = append(answer.Accounts, account)
		}
	case *snap.StorageRangesPacket:
		var slots []*snap.StorageData
		for at := range uint64(bombBytes / 40) {
			slots = append(slots, &snap.StorageData{Hash: ascending(at), Body: []byte{1}})
		}
		answer.Slots = [][]*snap.StorageData{slots}
	case *snap.ByteCodesPacket:
		answer.Codes = bomb()
	case *rawNodes:
		answer.Nodes = bomb()
	case *rawLists:
		return false
	}
	return true
}

// bomb is one item beyond all bounds and very many empty ones.
func bomb() [][]byte {
	return append(make([][]byte, bombBytes/2), make([]byte, bombBytes/2))
}

func ascending(at uint64) (hash common.Hash) {
	binary.BigEndian.PutUint64(hash[:], at<<40)
	return hash
}
