package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// An httpAnswer is one whole answer.
type httpAnswer struct {
	status int
	body   []byte
}

var (
	headEnd       = []byte("\r\n\r\n")
	contentLength = []byte("\r\ncontent-length:")
)

func request(method, path, accept string, body []byte) []byte {
	var made bytes.Buffer
	fmt.Fprintf(&made, "%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\n", method, path)
	if accept != "" {
		fmt.Fprintf(&made, "accept: %s\r\n", accept)
	}
	if method != "GET" {
		fmt.Fprintf(&made, "content-type: application/json\r\ncontent-length: %d\r\n", len(body))
	}
	made.WriteString("\r\n")
	made.Write(body)
	return made.Bytes()
}

// inHTTP is the framing of plans that get one answer with a content-length for each request.
type inHTTP struct{}

func (inHTTP) frame(data []byte) (int, error) {
	head := bytes.Index(data, headEnd)
	if head < 0 {
		return 0, nil
	}
	length, err := bodyBytes(data[:head+2])
	if err != nil || len(data) < head+4+length {
		return 0, err
	}
	return head + 4 + length, nil
}

func bodyBytes(head []byte) (int, error) {
	at := bytes.Index(head, contentLength)
	for from := 0; at < 0; { // an unusual spelling: line by line
		line := bytes.Index(head[from:], []byte("\r\n"))
		if line < 0 || from+line+len(contentLength) > len(head) {
			return 0, fmt.Errorf("an answer without content-length: %.300q", head)
		}
		from += line
		if bytes.EqualFold(head[from:from+len(contentLength)], contentLength) {
			at = from
		}
		from += 2
	}
	value := head[at+len(contentLength):]
	return strconv.Atoi(string(bytes.TrimSpace(value[:bytes.IndexByte(value, '\r')])))
}

// parse takes an answer that is complete.
func parse(answer []byte) httpAnswer {
	status := int(answer[9]-'0')*100 + int(answer[10]-'0')*10 + int(answer[11]-'0')
	return httpAnswer{status, answer[bytes.Index(answer, headEnd)+4:]}
}

// expect fails with what the server said unless the answer has this status.
func (answer httpAnswer) expect(status int) error {
	if answer.status != status {
		return fmt.Errorf("status %d instead of %d: %.300s", answer.status, status, answer.body)
	}
	return nil
}

// valueOf returns the string behind a key like `"transaction_id":"`, and what follows it; nil when there is none.
func valueOf(key, body []byte) (value, rest []byte) {
	at := bytes.Index(body, key)
	if at < 0 {
		return nil, nil
	}
	value = body[at+len(key):]
	end := bytes.IndexByte(value, '"')
	return value[:end], value[end:]
}

var errNothing = errors.New("a receive or pull was answered without messages: more have to be sent before")
