package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// plansOf returns a plan for each connection.
func plansOf(given command) ([]plan, error) {
	of, ok := map[string]func(command, int) plan{
		"constant":     newConstant,
		"pull":         newPull,
		"transaction":  newTransaction,
		"receive":      newReceive,
		"stream":       newStream,
		"request":      newRequest,
		"redis-add":    newRedisAdd,
		"redis-read":   newRedisRead,
		"nats-publish": newNatsPublish,
	}[given.Work]
	if !ok {
		return nil, fmt.Errorf("no work is called %q", given.Work)
	}
	plans := make([]plan, given.Connections)
	for number := range plans {
		plans[number] = of(given, number)
	}
	return plans, nil
}

// ------------------------------------------------------------------------------------------------------------ constant

// A constant plan sends the same request again and again.
type constant struct {
	inHTTP
	request  []byte
	messages int
	status   int
}

func (one *constant) start() []byte { return one.request }

func (one *constant) next(answer []byte) (step, error) {
	return step{request: one.request, messages: one.messages, ended: true}, parse(answer).expect(one.status)
}

func newConstant(given command, _ int) plan {
	return &constant{
		request:  request("POST", given.Path, "", []byte(given.Body)),
		messages: given.Size,
		status:   given.Status,
	}
}

// ---------------------------------------------------------------------------------------------------------------- pull

// A pull plan reads one queue from its begin to its end, and again.
type pull struct {
	inHTTP
	given command
	queue int
	at    int
}

var (
	queueOffset  = []byte(`"queue_offset":`)
	recordsMagic = []byte("EMQR")
)

const recordCountAt = 32 // in the header of a page of records

func newPull(given command, number int) plan {
	return &pull{given: given, queue: number % given.Queues}
}

func (one *pull) start() []byte {
	const path = "/v1/topics/%s/queues/%d/messages?offset=%d&max_messages=%d"
	return request("GET", fmt.Sprintf(path, one.given.Topic, one.queue, one.at, one.given.Size), one.given.Accept, nil)
}

func (one *pull) next(answer []byte) (step, error) {
	found := parse(answer)
	if err := found.expect(200); err != nil {
		return step{}, err
	}
	count := bytes.Count(found.body, queueOffset)
	if bytes.HasPrefix(found.body, recordsMagic) && len(found.body) > recordCountAt+4 {
		count = int(binary.BigEndian.Uint32(found.body[recordCountAt:]))
	}
	if count < one.given.Size {
		return step{}, errNothing
	}
	if one.at += count; one.at+one.given.Size > one.given.Depth {
		one.at = 0
	}
	return step{request: one.start(), messages: count, ended: true}, nil
}

// --------------------------------------------------------------------------------------------------------- transaction

// A transaction plan begins one with one message, then commits it.
type transaction struct {
	inHTTP
	begin []byte
	begun bool
}

var transactionID = []byte(`"transaction_id":"`)

func newTransaction(given command, _ int) plan {
	return &transaction{begin: request("POST", "/v1/transactions", "", []byte(given.Body))}
}

func (one *transaction) start() []byte { return one.begin }

func (one *transaction) next(answer []byte) (step, error) {
	found := parse(answer)
	if one.begun {
		one.begun = false
		return step{request: one.begin, messages: 1, ended: true}, found.expect(200)
	}
	if err := found.expect(201); err != nil {
		return step{}, err
	}
	id, _ := valueOf(transactionID, found.body)
	one.begun = true
	return step{request: request("POST", "/v1/transactions/"+string(id)+"/commit", "", nil)}, nil
}

// ------------------------------------------------------------------------------------------------------------- receive

// A receive plan leases messages and acknowledges them. Where its group has read all, it goes on with the next group.
type receive struct {
	inHTTP
	given  command
	group  int
	leased int // messages of the acknowledgement under way
}

var receiptHandle = []byte(`"receipt_handle":"`)

func newReceive(given command, _ int) plan { return &receive{given: given} }

func (one *receive) path(verb string) string {
	return fmt.Sprintf("/v1/groups/%s-%d/%s", one.given.Group, one.group, verb)
}

func (one *receive) start() []byte {
	return request("POST", one.path("receive"), "", fmt.Appendf(nil, `{"max_messages":%d}`, one.given.Size))
}

func (one *receive) next(answer []byte) (step, error) {
	found := parse(answer)
	if err := found.expect(200); err != nil {
		return step{}, err
	}
	if one.leased > 0 {
		acknowledged := one.leased
		one.leased = 0
		return step{request: one.start(), messages: acknowledged, ended: true}, nil
	}
	entries := []byte(`{"entries":[`)
	for handle, rest := valueOf(receiptHandle, found.body); handle != nil; handle, rest = valueOf(receiptHandle, rest) {
		entries = fmt.Appendf(entries, `{"receipt_handle":"%s"},`, handle)
		one.leased++
	}
	if one.leased == 0 {
		if one.group++; one.group == one.given.Groups {
			return step{}, errNothing
		}
		return step{request: one.start()}, nil
	}
	entries = append(entries[:len(entries)-1], "]}"...)
	return step{request: request("POST", one.path("ack"), "", entries)}, nil
}

// -------------------------------------------------------------------------------------------------------------- stream

// A stream plan sends single lines by one request that does not end, and a new line for each that was answered.
type stream struct {
	given  command
	line   []byte
	headed bool // the head of the answer has come
	tail   []byte
}

var (
	lineStored  = []byte(`{"status":201,`)
	lineRefused = []byte(`"problem":{`)
)

func newStream(given command, _ int) plan {
	return &stream{given: given, line: []byte(given.Body + "\n")}
}

func (one *stream) lines(count int) []byte {
	if count == 0 {
		return nil
	}
	return fmt.Appendf(nil, "%x\r\n%s\r\n", count*len(one.line), bytes.Repeat(one.line, count))
}

func (one *stream) start() []byte {
	head := "POST " + one.given.Path + " HTTP/1.1\r\nhost: 127.0.0.1\r\n" +
		"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
	return append([]byte(head), one.lines(one.given.Size)...)
}

// frame takes whatever has come: lines are counted, not taken apart.
func (one *stream) frame(data []byte) (int, error) {
	if one.headed {
		return len(data), nil
	}
	head := bytes.Index(data, headEnd)
	if head < 0 {
		return 0, nil
	}
	one.headed = true
	if status := data[9:12]; string(status) != "200" {
		return 0, fmt.Errorf("a stream was answered with %.300s", data)
	}
	return head + 4, nil
}

func (one *stream) next(answer []byte) (step, error) {
	data := append(one.tail, answer...)
	if bytes.Contains(data, lineRefused) {
		return step{}, fmt.Errorf("a line was refused: %.300s", data)
	}
	count := bytes.Count(data, lineStored)
	one.tail = append(one.tail[:0], data[max(0, len(data)-len(lineStored)+1):]...)
	return step{request: one.lines(count), messages: count, ended: count > 0}, nil
}

// ------------------------------------------------------------------------------------------------------------- request

// A request plan waits for the reply to a request; a worker plan, one in five connections, replies.
type asker struct {
	inHTTP
	request []byte
}

func newRequest(given command, number int) plan {
	if number%5 == 4 {
		return &worker{given: given, number: number}
	}
	return &asker{request: request("POST", given.Path, "", []byte(given.Body))}
}

func (one *asker) start() []byte { return one.request }

func (one *asker) next(answer []byte) (step, error) {
	return step{request: one.request, messages: 1, ended: true}, parse(answer).expect(200)
}

type worker struct {
	inHTTP
	given   command
	number  int
	replies [][]byte
}

func (*worker) isHelper() {}

type leased struct {
	Messages []struct {
		RequestID     string `json:"request_id"`
		ReceiptHandle string `json:"receipt_handle"`
	} `json:"messages"`
}

func (one *worker) start() []byte {
	body := fmt.Appendf(nil, `{"max_messages":4,"wait_ms":1000,"worker":"w%d"}`, one.number)
	return request("POST", "/v1/groups/"+one.given.Group+"-0/receive", "", body)
}

func (one *worker) next(answer []byte) (step, error) {
	found := parse(answer)
	if len(one.replies) > 0 {
		one.replies = one.replies[1:]
		if err := found.expect(200); err != nil {
			return step{}, err
		}
	} else {
		var leases leased
		if err := json.Unmarshal(found.body, &leases); err != nil {
			return step{}, err
		}
		for _, lease := range leases.Messages {
			body := fmt.Appendf(nil, `{"payload":"reply","receipt_handle":"%s"}`, lease.ReceiptHandle)
			one.replies = append(one.replies, request("POST", "/v1/requests/"+lease.RequestID+"/reply", "", body))
		}
	}
	if len(one.replies) > 0 {
		return step{request: one.replies[0]}, nil
	}
	return step{request: one.start()}, nil
}
