package escrowmq

import (
	"fmt"
	"io"
	"net/http"
)

// A ChangeUnknownError says that a change of one revision (If-Match) may have been made, or not:
// its answer was lost, and when it was sent again, the service refused it with revision_mismatch,
// as this call has made the change, or another one has. Read the resource, and compare it with what
// you asked for.
type ChangeUnknownError struct {
	Lost    error         // of the try whose answer was lost
	Problem *ProblemError // of the last try
}

func (e *ChangeUnknownError) Error() string {
	return fmt.Sprintf("%v; sent again: %v; this call has made the change, or another one has",
		e.Lost, e.Problem)
}

// Unwrap returns why the answer was lost. It does not return the problem: that of a change that
// another client has made has the same code.
func (e *ChangeUnknownError) Unwrap() error { return e.Lost }

// lostAnswer returns why the answer of a try was lost; nil if it was not.
func lostAnswer(request *http.Request, response *http.Response, err error, found outcome) error {
	switch {
	case !found.isLost || found.notDone:
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("%s %s: no answer but %s", request.Method, request.URL, response.Status)
	}
}

// changeUnknown returns the error of a refusal after a try whose answer was lost.
func changeUnknown(lost error, refusal *http.Response) error {
	body, err := io.ReadAll(refusal.Body)
	if err != nil {
		return err
	}
	return &ChangeUnknownError{lost, problemIn(refusal.StatusCode, body)}
}
