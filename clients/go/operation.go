package escrowmq

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// receives are the operations that an attempt_id makes repeatable.
var receives = []string{"POST /v1/groups/{group}/receive"}

// isOne reports whether the request is one of these operations, each a method and a path.
func isOne(operations []string, request *http.Request, machines *addresses) bool {
	// The addresses may have a path, which is that of each request, too.
	prefix := strings.TrimSuffix(machines.list[0].EscapedPath(), "/")
	parts := strings.Split(strings.TrimPrefix(request.URL.EscapedPath(), prefix), "/")
	return slices.ContainsFunc(operations, func(operation string) bool {
		method, path, _ := strings.Cut(operation, " ")
		return method == request.Method &&
			slices.EqualFunc(strings.Split(path, "/"), parts, func(wanted, part string) bool {
				return wanted == part || strings.HasPrefix(wanted, "{")
			})
	})
}

// withAttempt gives a receive the id by which it is found again, unless it has one.
func withAttempt(request *http.Request) error {
	var fields map[string]json.RawMessage
	body, err := bodyOf(request)
	if err != nil || json.Unmarshal(body, &fields) != nil || fields == nil {
		return err // what is no object is refused by the service
	}
	if _, has := fields["attempt_id"]; has {
		return nil
	}
	fields["attempt_id"] = json.RawMessage(strconv.Quote(randomID()))
	if body, err = json.Marshal(fields); err != nil {
		return err
	}
	request.ContentLength = int64(len(body))
	request.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(body)), nil
	}
	request.Body, err = request.GetBody()
	return err
}

// waitOf returns how long the request asks the service to wait before it answers.
func waitOf(request *http.Request) time.Duration {
	given := struct {
		WaitMs int64 `json:"wait_ms"`
	}{}
	if text := request.URL.Query().Get("wait_ms"); text != "" {
		given.WaitMs, _ = strconv.ParseInt(text, 10, 64)
	} else if body, _ := bodyOf(request); bytes.Contains(body, []byte(`"wait_ms"`)) {
		_ = json.Unmarshal(body, &given)
	}
	// Prefer: wait=SECONDS (RFC 7240) asks for the same.
	for _, one := range strings.Split(request.Header.Get("Prefer"), ",") {
		if text, has := strings.CutPrefix(strings.TrimSpace(one), "wait="); has {
			seconds, _ := strconv.ParseInt(text, 10, 64)
			given.WaitMs = max(given.WaitMs, seconds*1000)
		}
	}
	return time.Duration(min(max(given.WaitMs, 0), longestWaitMs)) * time.Millisecond
}

// longestWaitMs is more than the service waits for any request.
const longestWaitMs = 24 * 60 * 60 * 1000

// bodyOf returns a body that can be read twice; nothing of any other.
func bodyOf(request *http.Request) ([]byte, error) {
	if request.GetBody == nil {
		return nil, nil
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}
