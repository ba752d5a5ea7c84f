package escrowmq

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"escrowmq.dev/go/api"
)

// Retry is the one rule of when a request is sent again.
//
// A request without an answer, one that was answered 429 or 503 (by a proxy, 502 or 504, too), and
// one whose problem says that it is retryable, is sent again, after the longer of the service's
// Retry-After and a random part of a delay that doubles. An operation that takes an Idempotency-Key
// has one that stays the same, a receive an attempt_id, so that the service carries it out once.
// The operations of [api.SentOnce], a rotation of a secret for example, take none and act each
// time: they are sent again only where the service was not reached, or says that it has done
// nothing. A body that cannot be read twice is not sent again, and neither is a request whose reply
// did not come in time (reply_timeout). A change with If-Match that is refused with 412 when it is
// sent again after a lost answer is a *[ChangeUnknownError]. A removal ([api.Removing]) that finds
// nothing when it is sent again after a lost answer is done: its answer is a 204.
//
// Of several addresses, a request goes on at the next one where a machine does not answer, starts
// or stops. A replica answers not_primary, and leads to its service: at once, three times in a row
// at most.
type Retry struct {
	// Total is the time after which no try begins; 0 leaves every try but the first to net/http,
	// which itself repeats a request whose reused connection was closed without an answer.
	Total time.Duration
	// First is the longest delay before the second try; it doubles with each try, up to Longest.
	First, Longest time.Duration
}

// DefaultRetry tries for 30 seconds.
var DefaultRetry = Retry{
	Total: 30 * time.Second, First: 100 * time.Millisecond, Longest: 5 * time.Second,
}

// delay returns how long to wait before the next try, and whether there is one. `tries` counts
// those that were made, `random` is in [0, 1).
func (r Retry) delay(tries int, spent, asked time.Duration, random float64) (time.Duration, bool) {
	longest := r.Longest
	if tries <= 20 && r.First<<(tries-1) < longest {
		longest = r.First << (tries - 1)
	}
	wait := max(asked, time.Duration(random*float64(longest)))
	return wait, spent+wait < r.Total
}

// repeating sends a request until its answer is final.
type repeating struct {
	next      *http.Client
	retry     Retry
	timeout   time.Duration // of a try, without a sign of the service
	addresses *addresses
}

func (r *repeating) Do(request *http.Request) (*http.Response, error) {
	isOnce := isOne(api.SentOnce, request, r.addresses)
	if isOne(api.Keyed, request, r.addresses) && request.Header.Get("Idempotency-Key") == "" {
		request.Header.Set("Idempotency-Key", randomID())
	}
	if isOne(receives, request, r.addresses) {
		if err := withAttempt(request); err != nil {
			return nil, err
		}
	}
	started, waits := time.Now(), waitOf(request)
	watching := outageOf(request)
	hops := 0
	var lost error // the answer of a try that may have had its effect
	for tries := 1; ; tries++ {
		asked, begun := r.addresses.aim(request), time.Now()
		response, err, isUnsent := r.try(request, waits)
		found := outcomeOf(response, err)
		found.notDone = found.notDone || isUnsent
		if why := lostAnswer(request, response, err, found); why != nil {
			lost = why
		}
		ended := request.Context().Err()
		// The context of a call may have less time than a try.
		isLate := errors.Is(ended, context.DeadlineExceeded) && time.Since(begun) > waits
		if ended == nil || isLate {
			r.addresses.note(asked, found)
		}
		isReadable := request.Body == nil || request.GetBody != nil
		isLed := found.isReplica && found.primary != "" && hops < mostHops && isReadable
		if !isLed {
			watching.note(request, response, err, found.again)
		}
		isRepeatable := isReadable && request.Context().Value(onceKey{}) == nil &&
			(found.notDone || !isOnce)
		if !isLed && !(found.again && isRepeatable) || ended != nil {
			if lost != nil && found.isAnother {
				return nil, changeUnknown(lost, response)
			}
			if lost != nil && found.isNothing && r.onlyRemoves(request) {
				return removed(response), nil
			}
			return response, err
		}
		if isLed {
			hops++
			tries--
		} else {
			hops = 0
			rounds, spent := r.addresses.rounds(tries), time.Since(started)
			wait, ok := r.retry.delay(rounds, spent, found.wait, mathrand.Float64())
			if !ok {
				return response, err
			}
			if response != nil {
				_ = response.Body.Close()
			}
			if err := sleep(request.Context(), wait); err != nil {
				return nil, err
			}
		}
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// onlyRemoves reports whether the request removes something, and has no other result.
func (r *repeating) onlyRemoves(request *http.Request) bool {
	return isOne(api.Removing, request, r.addresses) &&
		request.URL.Query().Get("dry_run") != "true"
}

// removed returns the answer to a removal that an earlier try has made.
func removed(refusal *http.Response) *http.Response {
	done := *refusal
	done.StatusCode = http.StatusNoContent
	done.Status = "204 " + http.StatusText(done.StatusCode)
	done.Header = http.Header{}
	done.Body, done.ContentLength = io.NopCloser(bytes.NewReader(nil)), 0
	return &done
}

// An outcome is what came of a try.
type outcome struct {
	again   bool          // it may be sent again
	notDone bool          // and the service has carried nothing out
	wait    time.Duration // that the service asks for

	isLost    bool // there was no answer of the service
	isAnother bool // the change is of another revision than that of now
	isNothing bool // what it is about does not exist

	isAway    bool   // another machine may be the service by now
	isReplica bool   // and not the service; nothing was carried out
	primary   string // the address of the service, as the replica knows it
}

func outcomeOf(response *http.Response, err error) outcome {
	if err != nil {
		return outcome{again: true, isLost: true, isAway: true}
	}
	if response.StatusCode < 400 {
		return outcome{}
	}
	// A problem is small. What follows a megabyte is no problem of this service.
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return outcome{again: true, isLost: true, isAway: true}
	}
	var problem struct {
		Code         string `json:"code"`
		Retryable    bool   `json:"retryable"`
		RetryAfterMs int64  `json:"retry_after_ms"`
		Context      struct {
			Primary string `json:"primary"`
		} `json:"context"`
	}
	if json.Unmarshal(body, &problem) == nil && problem.Code == "reply_timeout" {
		return outcome{}
	}
	wait := time.Duration(problem.RetryAfterMs) * time.Millisecond
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && wait == 0 {
		wait = time.Duration(seconds) * time.Second
	}
	status := response.StatusCode
	isProxys := problem.Code == "" && isProxys(status)
	isReplica := problem.Code == notPrimary
	return outcome{
		again:     problem.Retryable || retryableStatus(status) || isProxys || isReplica,
		notDone:   problem.Retryable || isReplica,
		wait:      wait,
		isLost:    isProxys || problem.Code == "" && status == http.StatusServiceUnavailable,
		isAnother: problem.Code == "revision_mismatch",
		isNothing: status == http.StatusNotFound && problem.Code != "",
		isAway:    isProxys || problem.Code == "recovering" || problem.Code == "shutting_down",
		isReplica: isReplica,
		primary:   problem.Context.Primary,
	}
}

// notPrimary is the code of a replica, which carries nothing out.
const notPrimary = "not_primary"

func retryableStatus(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// isProxys reports whether an answer without a problem document says that the service gave none.
func isProxys(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusGatewayTimeout
}

func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(id[:])
}
