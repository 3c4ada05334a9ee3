package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

const (
	// none is the index of no request.
	none = -1
	// broken is the fault of a connection that failed with a request in flight.
	broken = "the connection broke"
	// headSize is how much of a body is looked at.
	headSize = 256
	// bufferSize is the size of a connection's read buffer.
	bufferSize = 64 << 10
	// redialPause is the time between attempts to connect again.
	redialPause = 50 * time.Millisecond
)

// connection is a kept-alive HTTP connection. The schedule's mutex guards `stream`, which only the
// reader replaces, and `index`, the request in flight.
type connection struct {
	address  string
	schedule *schedule
	stream   net.Conn
	in       *bufio.Reader
	index    int
	// The start of the last response's body.
	head []byte
}

func dial(address string, s *schedule) (*connection, error) {
	stream, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(stream, bufferSize)
	return &connection{address, s, stream, in, none, make([]byte, 0, headSize)}, nil
}

// read handles responses until the program ends.
func (c *connection) read() {
	s := c.schedule
	for {
		status, err := c.readResponse()
		at := s.now()
		if err != nil {
			if s.leave(c) {
				s.answer(c, at, broken)
			}
			c.reconnect()
			continue
		}
		fault := ""
		if status != 200 || !isAnswer(c.head, s.nullsAllowed) {
			fault = fmt.Sprintf("status %d: %s, to %s", status, c.head, s.bodyOf(c))
		}
		s.answer(c, at, fault).send(at)
	}
}

func (c *connection) reconnect() {
	_ = c.stream.Close()
	for {
		stream, err := net.Dial("tcp", c.address)
		if err == nil {
			c.in.Reset(stream)
			c.schedule.rejoin(c, stream).send(c.schedule.now())
			return
		}
		time.Sleep(redialPause)
	}
}

// readResponse reads a whole response; it returns the status and keeps the start of the body.
func (c *connection) readResponse() (int, error) {
	c.head = c.head[:0]
	line, err := c.line()
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, errors.New("no HTTP response")
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, fmt.Errorf("no HTTP status: %w", err)
	}
	length, chunked := 0, false
	for {
		if line, err = c.line(); err != nil {
			return 0, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, fmt.Errorf("no length of the body: %w", err)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		}
	}
	if chunked {
		return status, c.readChunks()
	}
	return status, c.body(length)
}

func (c *connection) readChunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil {
			return fmt.Errorf("no size of a chunk: %w", err)
		}
		if err := c.body(int(size)); err != nil {
			return err
		}
		// After each chunk, also the empty last one, is an empty line.
		if _, err := c.line(); err != nil || size == 0 {
			return err
		}
	}
}

// line is the next line without its end; it is valid until the next read.
func (c *connection) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// body skips so many bytes, and keeps the first ones of the whole body.
func (c *connection) body(length int) error {
	if kept := min(length, headSize-len(c.head)); kept > 0 {
		start, err := c.in.Peek(kept)
		if err != nil {
			return err
		}
		c.head = append(c.head, start...)
	}
	_, err := c.in.Discard(length)
	return err
}
