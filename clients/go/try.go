package escrowmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A silence is why a try ended: the service has given no sign for this long.
type silence struct{ limit time.Duration }

func (s *silence) Error() string { return fmt.Sprintf("no answer within %v", s.limit) }
func (s *silence) Timeout() bool { return true }
func (s *silence) Unwrap() error { return os.ErrDeadlineExceeded }

// try sends a request once. Its error says that there was no answer in time, and the last result
// whether there was no connection to send it on.
func (r *repeating) try(request *http.Request, waits time.Duration) (*http.Response, error, bool) {
	var hasAsked, hasConnection atomic.Bool
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { hasAsked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { hasConnection.Store(true) },
	})
	ctx, end := context.WithCancelCause(ctx)
	limit := r.timeout + waits
	if r.timeout <= 0 {
		limit = forever
	}
	late := &silence{limit}
	watch := &watch{limit: limit, timer: time.AfterFunc(limit, func() { end(late) })}
	if request.Body != nil && request.GetBody == nil {
		watch.timer.Stop() // the program takes its time with a stream
	}
	response, err := r.next.Do(watch.sending(request.WithContext(ctx)))
	watch.answered()
	isUnsent := err != nil && hasAsked.Load() && !hasConnection.Load()
	if err != nil {
		end(nil)
		return response, inTime(ctx, late, err), isUnsent
	}
	if isStream(response) {
		watch.limit = forever
	}
	response.Body = &arriving{response.Body, ctx, end, late, watch}
	return response, nil, false
}

// isStream reports whether the answer goes on for as long as the program likes: events, and lines
// of results for lines that the program still sends.
func isStream(response *http.Response) bool {
	kind := response.Header.Get("Content-Type")
	return strings.HasPrefix(kind, "text/event-stream") || strings.Contains(kind, "ndjson")
}

// forever is the limit of a try that has none.
const forever = 1 << 62

// inTime returns the error of a try, which is the silence if that ended it.
func inTime(ctx context.Context, late *silence, err error) error {
	if context.Cause(ctx) != late {
		return err
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		return &url.Error{Op: failed.Op, URL: failed.URL, Err: late}
	}
	return late
}

// A watch ends a try whose service gives no sign for its limit.
type watch struct {
	limit time.Duration
	timer *time.Timer

	mutex      sync.Mutex
	isAnswered bool
}

// sending returns the request with a body of which each part that is taken is a sign.
func (w *watch) sending(request *http.Request) *http.Request {
	again := request.GetBody
	if request.Body == nil || request.ContentLength == 0 || again == nil {
		return request
	}
	request.Body = &leaving{request.Body, w}
	request.GetBody = func() (io.ReadCloser, error) {
		body, err := again()
		return &leaving{body, w}, err
	}
	return request
}

func (w *watch) answered() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.isAnswered = true
	w.timer.Stop()
}

// leaving is the body of a request.
type leaving struct {
	io.ReadCloser
	watch *watch
}

func (l *leaving) Read(part []byte) (int, error) {
	l.watch.mutex.Lock()
	if !l.watch.isAnswered {
		l.watch.timer.Reset(l.watch.limit)
	}
	l.watch.mutex.Unlock()
	return l.ReadCloser.Read(part)
}

// arriving is the body of an answer. Its time counts while it is read.
type arriving struct {
	io.ReadCloser
	ctx   context.Context
	end   context.CancelCauseFunc
	late  *silence
	watch *watch
}

func (a *arriving) Read(part []byte) (int, error) {
	a.watch.timer.Reset(a.watch.limit)
	read, err := a.ReadCloser.Read(part)
	a.watch.timer.Stop()
	if err != nil && err != io.EOF {
		err = inTime(a.ctx, a.late, err)
	}
	return read, err
}

func (a *arriving) Close() error {
	err := a.ReadCloser.Close()
	a.watch.timer.Stop()
	a.end(nil)
	return err
}
