package escrowmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// quiet is the time between two reports, so that a service that comes and goes floods no log.
const quiet = 30 * time.Second

// An outage logs the first failed try of the requests of a worker or checker, further ones every 30
// seconds while the service is away, and its end.
type outage struct {
	log *slog.Logger

	mutex         sync.Mutex
	begun, logged time.Time // begun: zero while the service answers
	isLogged      bool
}

type (
	outageKey struct{} // of the outage that a request reports to
	onceKey   struct{} // of a request that is not repeated
)

// watch returns a context whose requests report to the outage.
func (o *outage) watch(ctx context.Context) context.Context {
	return context.WithValue(ctx, outageKey{}, o)
}

func outageOf(request *http.Request) *outage {
	found, _ := request.Context().Value(outageKey{}).(*outage)
	return found
}

// repeat calls once, whose requests are not repeated, until it succeeds, with growing pauses. It
// returns an error that does not pass by itself, and that of the context.
func (o *outage) repeat(ctx context.Context, once func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := once(context.WithValue(o.watch(ctx), onceKey{}, true))
		var problem *ProblemError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &problem) && !problem.Retryable && problem.Code != notPrimary:
			return err
		}
		o.failed(err)
		var asked time.Duration
		if problem != nil && problem.RetryAfterMs != nil {
			asked = time.Duration(*problem.RetryAfterMs) * time.Millisecond
		}
		wait, _ := DefaultRetry.delay(tries, 0, asked, mathrand.Float64())
		_ = sleep(ctx, wait)
	}
}

// isOn reports whether a try has failed since the last answer.
func (o *outage) isOn() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return !o.begun.IsZero()
}

// patience returns how long a receive waits: not at all in an outage, to notice its end at once.
func (o *outage) patience() time.Duration {
	if o.isOn() {
		return 0
	}
	return 20 * time.Second
}

// note takes what came of one try of a request. Without an outage it does nothing.
func (o *outage) note(request *http.Request, response *http.Response, err error, again bool) {
	switch {
	case o == nil || request.Context().Err() != nil:
	case !again:
		o.ended()
	case err != nil:
		o.failed(err)
	default:
		path := request.URL.Path
		o.failed(fmt.Errorf("%s %s: %s", request.Method, path, response.Status))
	}
}

func (o *outage) failed(err error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	now := time.Now()
	if o.begun.IsZero() {
		o.begun = now
	}
	if now.Sub(o.logged) < quiet {
		return
	}
	o.logged, o.isLogged = now, true
	o.log.Error("the service cannot be reached", "error", err)
}

func (o *outage) ended() {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.isLogged {
		away := time.Since(o.begun).Round(time.Millisecond)
		o.log.Info("the service answers again", "away", away)
	}
	o.begun, o.isLogged = time.Time{}, false
}
