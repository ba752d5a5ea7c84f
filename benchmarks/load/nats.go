package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A natsPublish plan publishes to a JetStream stream: single messages, or several in one write, each of which is acknowledged.
type natsPublish struct {
	greeting []byte
	request  []byte
	size     int
	answered int
}

func newNatsPublish(given command, number int) plan {
	inbox := fmt.Sprintf("_INBOX.load.%d", number)
	greeting := fmt.Appendf(nil, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB %s 1\r\n", inbox)
	one := fmt.Appendf(nil, "PUB %s.t %s %d\r\n%s\r\n", given.Topic, inbox, len(given.Body), given.Body)
	return &natsPublish{greeting: greeting, request: bytes.Repeat(one, given.Size), size: given.Size}
}

func (one *natsPublish) start() []byte { return append(one.greeting, one.request...) }

// frame takes a line, or a message with its payload.
func (one *natsPublish) frame(data []byte) (int, error) {
	end := bytes.Index(data, []byte("\r\n"))
	if end < 0 {
		return 0, nil
	}
	if !bytes.HasPrefix(data, []byte("MSG ")) {
		return end + 2, nil
	}
	payload, err := strconv.Atoi(string(data[bytes.LastIndexByte(data[:end], ' ')+1 : end]))
	if length := end + 2 + payload + 2; err != nil || length <= len(data) {
		return length, err
	}
	return 0, nil
}

func (one *natsPublish) next(answer []byte) (step, error) {
	switch {
	case bytes.HasPrefix(answer, []byte("PING")):
		return step{request: []byte("PONG\r\n")}, nil
	case bytes.HasPrefix(answer, []byte("-ERR")), bytes.Contains(answer, []byte(`"error"`)):
		return step{}, fmt.Errorf("nats: %.300s", answer)
	case !bytes.HasPrefix(answer, []byte("MSG ")):
		return step{}, nil
	}
	if one.answered++; one.answered < one.size {
		return step{}, nil
	}
	one.answered = 0
	return step{request: one.request, messages: one.size, ended: true}, nil
}
