package main

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// parkDelay is from a pull that waits to the send that wakes it: the pull is parked by then, and the server idle.
const parkDelay = 300 * time.Microsecond

// wake measures how long a pull that waits takes to get a message, from the first byte of its send on. The topic has one queue.
func wake(given command) (seen window, err error) {
	puller, err := dial(given.Port)
	if err != nil {
		return seen, err
	}
	defer syscall.Close(puller.descriptor)
	sender, err := dial(given.Port)
	if err != nil {
		return seen, err
	}
	defer syscall.Close(sender.descriptor)
	sent := newConstant(given, 0).start()
	begin := time.Now().Add(seconds(given.WarmSeconds))
	counting := false
	for {
		now := time.Now()
		if !counting && !now.Before(begin) {
			counting, begin = true, now
			fmt.Println(`{"event":"begin"}`)
		}
		if seen.seconds = now.Sub(begin).Seconds(); counting && seen.seconds >= given.Seconds {
			fmt.Println(`{"event":"end"}`)
			return seen, nil
		}
		const path = "/v1/topics/%s/queues/0/messages?offset=%d&max_messages=1&wait_ms=10000"
		pull := request("GET", fmt.Sprintf(path, given.Topic, given.Depth), "", nil)
		if err := puller.send(pull); err != nil {
			return seen, err
		}
		time.Sleep(parkDelay)
		sentAt := time.Now()
		if err := sender.send(sent); err != nil {
			return seen, err
		}
		found, err := puller.answer()
		taken := time.Since(sentAt)
		if err := errors.Join(err, found.expect(200)); err != nil {
			return seen, err
		}
		if bytes.Count(found.body, queueOffset) != 1 {
			return seen, errNothing
		}
		found, err = sender.answer()
		if err := errors.Join(err, found.expect(201)); err != nil {
			return seen, err
		}
		given.Depth++
		if counting {
			seen.operations++
			seen.messages++
			seen.latencies = append(seen.latencies, taken)
		}
	}
}

// A blocking connection waits in the read itself.
type blocking struct {
	descriptor int
	received   []byte
}

func dial(port int) (*blocking, error) {
	descriptor, err := connect(port)
	if err != nil {
		return nil, err
	}
	return &blocking{descriptor, nil}, syscall.SetNonblock(descriptor, false)
}

func (one *blocking) send(request []byte) error {
	_, err := write(one.descriptor, request)
	return err
}

// answer is valid until the next one.
func (one *blocking) answer() (httpAnswer, error) {
	buffer := make([]byte, 1<<12)
	one.received = one.received[:0]
	for {
		count, err := read(one.descriptor, buffer)
		if err != nil {
			return httpAnswer{}, err
		}
		one.received = append(one.received, buffer[:count]...)
		length, err := inHTTP{}.frame(one.received)
		if err != nil {
			return httpAnswer{}, err
		}
		if length > 0 {
			return parse(one.received[:length]), nil
		}
	}
}
