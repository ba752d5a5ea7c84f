package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A redisAdd plan appends to a stream: single entries, or several in one write, each of which is answered.
type redisAdd struct {
	inRESP
	request  []byte
	size     int
	answered int
}

// inRESP is the framing of Redis' protocol: one reply at a time.
type inRESP struct{}

func (inRESP) frame(data []byte) (int, error) {
	rest, err := walkReply(data, 0, nil)
	if rest == nil || err != nil {
		return 0, err
	}
	return len(data) - len(rest), nil
}

// walkReply calls visit for each bulk string of one reply, with how many arrays it is in, and returns what follows the reply:
// nil while the reply is not complete.
func walkReply(data []byte, depth int, visit func(depth int, bulk []byte)) ([]byte, error) {
	end := bytes.Index(data, []byte("\r\n"))
	if end < 0 {
		return nil, nil
	}
	line, rest := data[:end], data[end+2:]
	switch line[0] {
	case '+', ':':
		return rest, nil
	case '-':
		return nil, fmt.Errorf("redis: %s", line[1:])
	}
	count, err := strconv.Atoi(string(line[1:]))
	if err != nil {
		return nil, fmt.Errorf("redis: a reply of an unknown type: %.40q", line)
	}
	if count < 0 { // nothing
		return rest, nil
	}
	if line[0] == '$' {
		if len(rest) < count+2 {
			return nil, nil
		}
		if visit != nil {
			visit(depth, rest[:count])
		}
		return rest[count+2:], nil
	}
	for ; count > 0 && rest != nil && err == nil; count-- {
		rest, err = walkReply(rest, depth+1, visit)
	}
	return rest, err
}

func redisCommand(words ...string) []byte {
	made := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		made = fmt.Appendf(made, "$%d\r\n%s\r\n", len(word), word)
	}
	return made
}

func newRedisAdd(given command, _ int) plan {
	one := redisCommand("XADD", given.Topic, "*", "key", given.Key, "tag", given.Tag, "payload", given.Body)
	return &redisAdd{request: bytes.Repeat(one, given.Size), size: given.Size}
}

func (one *redisAdd) start() []byte { return one.request }

func (one *redisAdd) next([]byte) (step, error) {
	if one.answered++; one.answered < one.size {
		return step{}, nil
	}
	one.answered = 0
	return step{request: one.request, messages: one.size, ended: true}, nil
}

// A redisRead plan reads a stream from its begin to its end, and again.
type redisRead struct {
	inRESP
	given command
	last  string
}

const entryDepth = 4 // of an entry's id: streams, stream, entries, entry

func newRedisRead(given command, _ int) plan { return &redisRead{given: given, last: "0"} }

func (one *redisRead) start() []byte {
	return redisCommand("XREAD", "COUNT", strconv.Itoa(one.given.Size), "STREAMS", one.given.Topic, one.last)
}

func (one *redisRead) next(answer []byte) (step, error) {
	count := 0
	_, err := walkReply(answer, 0, func(depth int, bulk []byte) {
		if depth == entryDepth {
			one.last = string(bulk)
			count++
		}
	})
	if count < one.given.Size {
		one.last = "0"
	}
	return step{request: one.start(), messages: count, ended: true}, err
}
