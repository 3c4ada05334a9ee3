package main

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// drainLimit is how long responses may take after the end.
const drainLimit = 10 * time.Second

// schedule holds when each request is due and what has become of it. Times are those since the
// start, and requests are numbered from 0; those below `warm` do not count.
type schedule struct {
	requests     [][]byte
	interval     float64
	warm         int
	nullsAllowed bool
	start        time.Time
	// Nanoseconds for each request; a lag of -1 is that of a request which was never sent.
	latency, lag []int64

	mutex sync.Mutex
	// Requests below `sent` are sent, and those from there to `ready` wait for a connection.
	sent, ready int
	free        []*connection
	inFlight    int
	ended       bool

	answered, errors int
	firstError       string
	lastAnswer       time.Duration
}

func newSchedule(o *options, requests [][]byte) *schedule {
	warm := int(o.warmup.Seconds() * o.rate)
	count := warm + max(int(o.length.Seconds()*o.rate), 1)
	s := &schedule{requests: requests, interval: 1e9 / o.rate, warm: warm, nullsAllowed: o.nullsAllowed}
	s.latency, s.lag = make([]int64, count), make([]int64, count)
	for index := range s.lag {
		// The write also makes the pages resident, before the clock runs.
		s.latency[index], s.lag[index] = 0, -1
	}
	return s
}

func (s *schedule) now() time.Duration { return time.Since(s.start) }

func (s *schedule) due(index int) time.Duration {
	return time.Duration(float64(index) * s.interval)
}

func (s *schedule) end() time.Duration { return s.due(len(s.latency)) }

func (s *schedule) begin(connections []*connection) {
	s.start = time.Now()
	s.free = append(s.free, connections...)
	for _, each := range connections {
		go each.read()
	}
}

// pace sends every request when it is due, or leaves it to the first connection that becomes free.
func (s *schedule) pace() {
	runtime.LockOSThread()
	// PR_SET_TIMERSLACK: the kernel may delay the end of a sleep by 1 ns instead of 50 us.
	syscall.RawSyscall(syscall.SYS_PRCTL, 29, 1, 0)
	for index := range s.latency {
		s.sleepUntil(s.due(index))
		s.mutex.Lock()
		s.ready = index + 1
		var sending *transfer
		if s.sent == index && len(s.free) > 0 {
			sending = s.take(s.free[0])
			s.free = s.free[1:]
		}
		s.mutex.Unlock()
		sending.send(s.due(index))
	}
	s.sleepUntil(s.end())
}

// sleepUntil sleeps in the kernel: Go's own timers are as coarse as a millisecond.
func (s *schedule) sleepUntil(due time.Duration) {
	for rest := due - s.now(); rest > 0; rest = due - s.now() {
		wait := syscall.NsecToTimespec(int64(rest))
		_ = syscall.Nanosleep(&wait, nil)
	}
}

// transfer is a request on its way to a connection; nil is none.
type transfer struct {
	schedule *schedule
	stream   net.Conn
	index    int
}

// take gives a connection the oldest waiting request. The caller holds the mutex.
func (s *schedule) take(c *connection) *transfer {
	c.index = s.sent
	s.sent++
	s.inFlight++
	return &transfer{schedule: s, stream: c.stream, index: c.index}
}

// send writes the request, which could be sent since a time or since it was due.
func (t *transfer) send(since time.Duration) {
	if t == nil {
		return
	}
	s := t.schedule
	s.lag[t.index] = int64(s.now() - max(since, s.due(t.index)))
	// The reader sees a failure, too, and handles it.
	_, _ = t.stream.Write(s.requests[t.index%len(s.requests)])
}

// answer records a response, or a failed connection, and returns what the connection sends next.
func (s *schedule) answer(c *connection, at time.Duration, fault string) *transfer {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.inFlight--
	s.latency[c.index] = int64(at - s.due(c.index))
	if c.index >= s.warm {
		s.count(at, fault)
	}
	c.index = none
	if fault == broken {
		return nil
	}
	return s.next(c)
}

func (s *schedule) count(at time.Duration, fault string) {
	s.lastAnswer = at
	if fault != broken {
		s.answered++
	}
	if fault != "" {
		s.errors++
		if s.firstError == "" {
			s.firstError = fault
		}
	}
}

// bodyOf is the body of the request in flight, for messages.
func (s *schedule) bodyOf(c *connection) []byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if c.index == none {
		return nil
	}
	_, body, _ := bytes.Cut(s.requests[c.index%len(s.requests)], []byte("\r\n\r\n"))
	return body[:min(len(body), headSize)]
}

// next takes a waiting request for a connection or frees the connection. The caller holds the mutex.
func (s *schedule) next(c *connection) *transfer {
	if s.sent < s.ready && !s.ended {
		return s.take(c)
	}
	s.free = append(s.free, c)
	return nil
}

// rejoin gives a broken connection a new stream, and returns what it sends next.
func (s *schedule) rejoin(c *connection, stream net.Conn) *transfer {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	c.stream = stream
	return s.next(c)
}

// leave removes a broken connection from the free ones; it reports whether a request was in flight.
func (s *schedule) leave(c *connection) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for index, each := range s.free {
		if each == c {
			s.free = append(s.free[:index:index], s.free[index+1:]...)
			break
		}
	}
	return c.index != none
}

// drain waits for the responses in flight. What was not sent, or has no response, gets the time that
// it has waited; without a response it is an error, too.
func (s *schedule) drain() {
	s.mutex.Lock()
	s.ended = true
	for s.inFlight > 0 && s.now() < s.end()+drainLimit {
		s.mutex.Unlock()
		time.Sleep(time.Millisecond)
		s.mutex.Lock()
	}
	// The mutex stays locked: nothing that comes now counts.
	for index := range s.latency {
		if s.latency[index] == 0 {
			s.latency[index] = int64(s.end() - s.due(index))
		}
	}
	s.errors += s.inFlight
	if s.inFlight > 0 && s.firstError == "" {
		s.firstError = "no response within " + drainLimit.String()
	}
}
