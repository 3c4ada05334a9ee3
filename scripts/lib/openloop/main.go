// Command openloop sends JSON-RPC requests over HTTP on a fixed schedule and prints latencies as
// JSON. It runs on Linux.
//
// The load is an open loop: request n is due n/rate seconds after the start, whatever the server
// does, and its latency runs from the time at which it was due, not from the time at which it was
// sent (wrk2's remedy for coordinated omission). A connection is kept alive and has one request in
// flight; a request that finds no free connection waits for one, and that time counts.
//
// Work at once:
//
//	pacer    one thread; sleeps until a request is due, and sends it on a free connection
//	readers  a goroutine for each connection; reads the response, then sends the oldest waiting
//	         request or frees the connection
//
// Lag is how late this program itself was: from the time at which a request was due and a
// connection was free to the time at which it was sent. A latency not well above the lag says little
// about the server.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	address, bodies string
	rate            float64
	warmup, length  time.Duration
	connections     int
	nullsAllowed    bool
}

func parse() (*options, error) {
	o := new(options)
	flag.StringVar(&o.address, "address", "", "host:port of the server")
	flag.StringVar(&o.bodies, "bodies", "", "file with a request body on each line, sent in a loop")
	flag.Float64Var(&o.rate, "rate", 1000, "requests a second")
	flag.DurationVar(&o.warmup, "warmup", 0, "time at the same rate that does not count, before the rest")
	flag.DurationVar(&o.length, "length", 5*time.Second, "time that counts")
	flag.IntVar(&o.connections, "connections", 64, "kept-alive connections")
	flag.BoolVar(&o.nullsAllowed, "nulls-allowed", false, "a result of null is no error")
	flag.Parse()
	if o.address == "" || o.bodies == "" || o.rate <= 0 || o.connections < 1 || o.length <= 0 || flag.NArg() > 0 {
		return nil, fmt.Errorf("give -address, -bodies, and a -rate, -length and number of -connections above 0")
	}
	return o, nil
}

// readRequests returns whole HTTP requests, one for each line of the file.
func readRequests(o *options) ([][]byte, error) {
	file, err := os.Open(o.bodies)
	if err != nil {
		return nil, fmt.Errorf("cannot read the bodies: %w", err)
	}
	defer file.Close()
	var requests [][]byte
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
			o.address, len(lines.Bytes()))
		requests = append(requests, append([]byte(head), lines.Bytes()...))
	}
	if lines.Err() != nil || len(requests) == 0 {
		return nil, fmt.Errorf("cannot read a body from %s: %v", o.bodies, lines.Err())
	}
	return requests, nil
}

// report is what the program prints; times are in microseconds.
type report struct {
	// Requests that were due, responses, and those that are errors or never came.
	Due        int    `json:"due"`
	Answered   int    `json:"answered"`
	Errors     int    `json:"errors"`
	FirstError string `json:"first_error,omitempty"`
	// Responses a second, until the last one if that came after the end.
	Achieved float64 `json:"achieved"`
	// A request that was not sent before the end has the time from when it was due to the end.
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
	// How late this program was, and its share of one processor.
	LagP50 float64 `json:"lag_p50_us"`
	LagP99 float64 `json:"lag_p99_us"`
	CPU    float64 `json:"cpu"`
}

// percentile is the smallest of the sorted values that `share` of all do not exceed.
func percentile(sorted []int64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := max(int(math.Ceil(share*float64(len(sorted))))-1, 0)
	return float64(sorted[at]) / 1e3
}

func (s *schedule) report(cpu time.Duration) *report {
	latency, lag := s.latency[s.warm:], []int64{}
	for _, each := range s.lag[s.warm:] {
		if each >= 0 {
			lag = append(lag, each)
		}
	}
	slices.Sort(latency)
	slices.Sort(lag)
	counted := max(s.end(), s.lastAnswer) - s.due(s.warm)
	return &report{
		Due: len(latency), Answered: s.answered, Errors: s.errors, FirstError: s.firstError,
		Achieved: float64(s.answered) / counted.Seconds(),
		P50:      percentile(latency, 0.5), P90: percentile(latency, 0.9), P99: percentile(latency, 0.99),
		P999: percentile(latency, 0.999), Max: percentile(latency, 1),
		LagP50: percentile(lag, 0.5), LagP99: percentile(lag, 0.99),
		CPU: cpu.Seconds() / s.now().Seconds(),
	}
}

// processorTime is the time that all threads of this process have computed.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func run() error {
	o, err := parse()
	if err != nil {
		return err
	}
	requests, err := readRequests(o)
	if err != nil {
		return err
	}
	// One processor for the pacer and one for the readers: more would only look for work.
	runtime.GOMAXPROCS(2)
	s := newSchedule(o, requests)
	connections := make([]*connection, o.connections)
	for index := range connections {
		if connections[index], err = dial(o.address, s); err != nil {
			return fmt.Errorf("cannot connect to %s: %w", o.address, err)
		}
	}
	before := processorTime()
	s.begin(connections)
	s.pace()
	s.drain()
	return json.NewEncoder(os.Stdout).Encode(s.report(processorTime() - before))
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// isAnswer tells whether a body that begins like this has a result.
func isAnswer(start []byte, nullsAllowed bool) bool {
	_, value, found := bytes.Cut(start, []byte(`"result":`))
	return found && (nullsAllowed || !bytes.HasPrefix(value, []byte("null")))
}
