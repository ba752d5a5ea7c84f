package escrowmq

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Retry is the one rule of when a request is sent again.
//
// A request without an answer, one that was answered 429 or 503 (by a proxy, 502 or 504, too), and
// one whose problem says that it is retryable, is sent again, after the longer of the service's
// Retry-After and a random part of a
// delay that doubles. A POST has an Idempotency-Key that stays the same, so that the service
// carries it out once. A body that cannot be read twice is not sent again, and neither is a request
// whose reply did not come in time (reply_timeout).
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
	next  *http.Client
	retry Retry
}

func (r *repeating) Do(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPost && request.Header.Get("Idempotency-Key") == "" {
		request.Header.Set("Idempotency-Key", randomID())
	}
	started := time.Now()
	watching := outageOf(request)
	for tries := 1; ; tries++ {
		response, err := r.next.Do(request)
		again, asked := verdict(response, err)
		watching.note(request, response, err, again)
		isRepeatable := request.Body == nil || request.GetBody != nil
		isRepeatable = isRepeatable && request.Context().Value(onceKey{}) == nil
		if !again || !isRepeatable || request.Context().Err() != nil {
			return response, err
		}
		wait, ok := r.retry.delay(tries, time.Since(started), asked, mathrand.Float64())
		if !ok {
			return response, err
		}
		if response != nil {
			_ = response.Body.Close()
		}
		if err := sleep(request.Context(), wait); err != nil {
			return nil, err
		}
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// verdict says whether the request may be sent again, and how long the service asks to wait.
func verdict(response *http.Response, err error) (again bool, asked time.Duration) {
	if err != nil {
		return true, 0
	}
	if response.StatusCode < 400 {
		return false, 0
	}
	// A problem is small. What follows a megabyte is no problem of this service.
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return true, 0
	}
	var problem struct {
		Code         string `json:"code"`
		Retryable    bool   `json:"retryable"`
		RetryAfterMs int64  `json:"retry_after_ms"`
	}
	if json.Unmarshal(body, &problem) == nil && problem.Code == "reply_timeout" {
		return false, 0
	}
	asked = time.Duration(problem.RetryAfterMs) * time.Millisecond
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && asked == 0 {
		asked = time.Duration(seconds) * time.Second
	}
	status := response.StatusCode
	again = problem.Retryable || retryableStatus(status) || problem.Code == "" && isProxys(status)
	return again, asked
}

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
