// Package escrowmq is a client of EscrowMQ, a transactional messaging service over HTTP.
//
// It has what is hard to get right by hand: a transaction together with a database transaction
// ([Client.Transaction], [Markers]), answers to checks ([Checker], [CheckHandler]), a consumer that
// keeps its leases ([Worker]) and signed webhooks ([Verify]). Every other operation is a method of
// [Client.API], which is generated from the OpenAPI document; [Problem] reads its errors.
package escrowmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"escrowmq.dev/go/api"
)

// A Client sends requests to one service. It is safe for concurrent use.
type Client struct {
	// API has one method for every operation. Its requests are repeated by the client's Retry, too.
	API *api.ClientWithResponses
}

type settings struct {
	apiKey string
	http   *http.Client
	retry  Retry
}

// An Option changes how a Client sends its requests.
type Option func(*settings)

// WithAPIKey sends the key with every request.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithHTTPClient replaces http.DefaultClient. Its Timeout must be longer than the longest wait of a
// receive: 30 seconds.
func WithHTTPClient(client *http.Client) Option { return func(s *settings) { s.http = client } }

// WithRetry replaces the default rule of when a request is sent again.
func WithRetry(retry Retry) Option { return func(s *settings) { s.retry = retry } }

// New makes a client of the service at this address, for example http://127.0.0.1:8080.
func New(url string, options ...Option) (*Client, error) {
	s := settings{http: http.DefaultClient, retry: DefaultRetry}
	for _, option := range options {
		option(&s)
	}
	generated, err := api.NewClientWithResponses(url,
		api.WithHTTPClient(&repeating{next: s.http, retry: s.retry}),
		api.WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
			if s.apiKey != "" {
				request.Header.Set("Authorization", "Bearer "+s.apiKey)
			}
			return nil
		}))
	if err != nil {
		return nil, err
	}
	return &Client{API: generated}, nil
}

// Send stores one message, and returns where. A send that is repeated is stored once: it has an
// Idempotency-Key.
func (c *Client) Send(ctx context.Context, topic string, message Message) (*api.Receipt, error) {
	answer, err := c.API.SendMessageWithResponse(ctx, topic, nil, message)
	if err != nil {
		return nil, err
	}
	return result(answer.JSON2XX, answer.HTTPResponse, answer.Body)
}

// A ProblemError is the service's refusal of a request (RFC 9457).
//
// Go by Status and Retryable for a Code that your program does not know: a later service may have
// more codes.
type ProblemError struct{ api.Problem }

func (e *ProblemError) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Detail) }

// Problem returns the refusal in an answer of [Client.API], or nil if the request was accepted.
func Problem(response *http.Response, body []byte) *ProblemError {
	if response.StatusCode < 400 {
		return nil
	}
	found := &ProblemError{}
	if json.Unmarshal(body, &found.Problem) != nil || found.Code == "" {
		// A proxy's answer, for example.
		found.Problem = api.Problem{
			Status:    int32(response.StatusCode),
			Code:      "not_a_problem_document",
			Detail:    fmt.Sprintf("status %d without a problem document", response.StatusCode),
			Retryable: retryableStatus(response.StatusCode) || isProxys(response.StatusCode),
		}
	}
	return found
}

// result returns the value of an accepted request, or why there is none.
func result[T any](value *T, response *http.Response, body []byte) (*T, error) {
	if problem := Problem(response, body); problem != nil {
		return nil, problem
	}
	if value == nil {
		return nil, fmt.Errorf("status %d without the JSON of EscrowMQ", response.StatusCode)
	}
	return value, nil
}

func problemOf(response *http.Response, body []byte) error {
	if problem := Problem(response, body); problem != nil {
		return problem
	}
	return nil
}

// HasCode reports whether the error is a refusal with one of these codes.
func HasCode(err error, codes ...string) bool {
	var problem *ProblemError
	if !errors.As(err, &problem) {
		return false
	}
	for _, code := range codes {
		if problem.Code == code {
			return true
		}
	}
	return false
}

// A RefusedError says that a request with several entries was answered, and that the service
// refused some of them. The others were accepted.
type RefusedError struct {
	// What the entries were: acknowledgements, for example.
	What string
	// Refused has the problem of each refused entry by its place in the request.
	Refused map[int]*ProblemError
}

func (e *RefusedError) Error() string {
	first := -1
	for place := range e.Refused {
		if first < 0 || place < first {
			first = place
		}
	}
	return fmt.Sprintf("%d %s refused, the first: %v", len(e.Refused), e.What, e.Refused[first])
}

// Unwrap returns the problem of each refused entry.
func (e *RefusedError) Unwrap() []error {
	all := make([]error, 0, len(e.Refused))
	for _, problem := range e.Refused {
		all = append(all, problem)
	}
	return all
}
