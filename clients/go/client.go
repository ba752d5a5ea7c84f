// Package escrowmq is a client of EscrowMQ, a transactional messaging service over HTTP.
//
// It has what is hard to get right by hand: a transaction together with a database transaction
// ([Client.Transaction], [Markers]), answers to checks ([Checker], [CheckHandler]), a consumer that
// keeps its leases ([Worker]) and signed webhooks ([Verify]). Every other operation is a method of
// [Client.API], which is generated from the OpenAPI document; [Check] makes an error of a refusal.
package escrowmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"escrowmq.dev/go/api"
)

// A Client sends requests to one service. It is safe for concurrent use.
type Client struct {
	// API has one method for every operation. Its requests are repeated by the client's Retry, too.
	API *api.ClientWithResponses
}

type settings struct {
	apiKey  string
	http    *http.Client
	retry   Retry
	timeout time.Duration
}

// An Option changes how a Client sends its requests.
type Option func(*settings)

// WithAPIKey sends the key with every request.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithHTTPClient replaces http.DefaultClient. Its Timeout, if it has one, must be longer than the
// longest wait of a receive: 30 seconds. [WithTimeout] is what lets a client leave a machine.
func WithHTTPClient(client *http.Client) Option { return func(s *settings) { s.http = client } }

// WithTimeout sets how long a try waits for a sign of the service, beside the time that its request
// asks the service to wait (wait_ms): until the answer begins, and for each further part of it. 10
// seconds without this option; 0 waits for as long as the context says. Streams have no limit: an
// answer of events or of lines, once it has begun, and a request whose body cannot be read twice.
func WithTimeout(limit time.Duration) Option { return func(s *settings) { s.timeout = limit } }

// WithRetry replaces the default rule of when a request is sent again.
func WithRetry(retry Retry) Option { return func(s *settings) { s.retry = retry } }

// New makes a client of the service at this address, for example http://127.0.0.1:8080. Addresses
// of several machines, the service and its replicas, have commas between them: requests go to the
// one that is the service.
func New(url string, options ...Option) (*Client, error) {
	machines, err := parseAddresses(url)
	if err != nil {
		return nil, err
	}
	s := settings{http: http.DefaultClient, retry: DefaultRetry, timeout: 10 * time.Second}
	for _, option := range options {
		option(&s)
	}
	isControl := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
	if strings.ContainsFunc(s.apiKey, isControl) {
		return nil, errors.New("the API key has a control character, such as a line break")
	}
	generated, err := api.NewClientWithResponses(machines.list[0].String(),
		api.WithHTTPClient(&repeating{
			next: s.http, retry: s.retry, timeout: s.timeout, addresses: machines,
		}),
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

// Send stores one message, and returns where. A send that the client repeats is stored once; for
// one that your program repeats, after a crash for example, set [IdempotencyKey].
func (c *Client) Send(
	ctx context.Context, topic string, message Message, options ...SendOption,
) (*api.Receipt, error) {
	var params api.SendMessageParams
	for _, option := range options {
		option(&params)
	}
	answer, err := Check(c.API.SendMessageWithResponse(ctx, topic, &params, message))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON2XX, answer)
}

// A SendOption changes how a message is sent.
type SendOption func(*api.SendMessageParams)

// IdempotencyKey makes a send repeatable: the same key with the same message is stored once. The
// topic's dedup_window_ms is how long a key is remembered.
func IdempotencyKey(key string) SendOption {
	return func(params *api.SendMessageParams) { params.IdempotencyKey = &key }
}

// PutTopic creates a topic, or changes it to this definition.
func (c *Client) PutTopic(
	ctx context.Context, topic string, definition api.TopicDefinition,
) (*api.Topic, error) {
	answer, err := Check(c.API.PutTopicWithResponse(ctx, topic, definition))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON2XX, answer)
}

// PutGroup creates a consumer group, or changes it, that reads these topics beside those of the
// input.
func (c *Client) PutGroup(
	ctx context.Context, group string, input api.GroupInput, topics ...string,
) (*api.Group, error) {
	var all []api.SubscriptionInput
	if input.Topics != nil {
		all = append(all, *input.Topics...)
	}
	for _, topic := range topics {
		all = append(all, api.SubscriptionInput{Topic: topic})
	}
	if all != nil {
		input.Topics = &all
	}
	answer, err := Check(c.API.PutGroupWithResponse(ctx, group, nil, input))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON2XX, answer)
}

// PutProducerGroup creates a producer group, or changes it. Only one whose checks go to a webhook
// needs it: another is created by its first transaction.
func (c *Client) PutProducerGroup(
	ctx context.Context, group string, input api.ProducerGroupInput,
) (*api.ProducerGroup, error) {
	answer, err := Check(c.API.PutProducerGroupWithResponse(ctx, group, nil, input))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON2XX, answer)
}

// Reply answers a request, for example within a handler of a [Worker], which acknowledges the
// request's message afterwards. The same reply to the same request counts once; one to a request
// that has another reply, or that was cancelled, is refused with request_closed.
func (c *Client) Reply(
	ctx context.Context, request api.ReceivedMessage, message Message,
) (*api.ReplyResult, error) {
	if request.RequestID == nil {
		return nil, fmt.Errorf("message %s is not a request", request.MessageID)
	}
	key := "reply-" + *request.RequestID
	answer, err := Check(c.API.ReplyToRequestWithResponse(ctx, *request.RequestID,
		&api.ReplyToRequestParams{IdempotencyKey: &key}, api.ReplyInput{
			ContentType: message.ContentType, JSON: message.JSON, Payload: message.Payload,
			PayloadEncoding: message.PayloadEncoding, Properties: message.Properties,
		}))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON200, answer)
}

// Redrive sends dead letters back to their group, in a task of the service.
func (c *Client) Redrive(
	ctx context.Context, group string, input api.RedriveInput,
) (*api.Task, error) {
	answer, err := Check(c.API.RedriveDeadLettersWithResponse(ctx, group, nil, input))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON202, answer)
}

// Ptr returns a pointer to the value, for the optional fields of package api.
func Ptr[T any](value T) *T { return &value }

// A ProblemError is the service's refusal of a request (RFC 9457). Its text names the fields that
// were refused.
//
// Go by Status and Retryable for a Code that your program does not know: a later service may have
// more codes.
type ProblemError struct{ api.Problem }

func (e *ProblemError) Error() string {
	var same []string // the fields of which Detail speaks
	others := ""
	for _, field := range e.Errors {
		switch {
		case strings.Contains(e.Detail, field.Pointer): // which is named already
		case field.Detail == e.Detail:
			same = append(same, field.Pointer)
		default:
			others += "; " + field.Pointer + ": " + field.Detail
		}
	}
	text := e.Detail + others
	if same != nil {
		text = strings.Join(same, ", ") + ": " + text
	}
	return e.Code + ": " + text
}

// An Answer is what a method of [Client.API] returns.
type Answer interface {
	GetBody() []byte
	StatusCode() int
}

// Check makes one error of all that can be wrong with a call of [Client.API]:
//
//	answer, err := escrowmq.Check(client.API.CommitTransactionWithResponse(ctx, id))
//
// The error is that of the call if there was no answer, a *ProblemError if the service refused the
// request, and a *RefusedError if it refused some entries of it: those of a batch, for example. The
// answer of the others is there then, too.
func Check[A Answer](answer A, err error) (A, error) {
	if err != nil {
		return answer, err
	}
	status, body := answer.StatusCode(), answer.GetBody()
	if status >= http.StatusBadRequest {
		return answer, problemIn(status, body)
	}
	if status == http.StatusMultiStatus {
		if refused := refusedIn(body); len(refused) > 0 {
			return answer, &RefusedError{refused}
		}
	}
	return answer, nil
}

func problemIn(status int, body []byte) *ProblemError {
	found := &ProblemError{}
	if json.Unmarshal(body, &found.Problem) != nil || found.Code == "" {
		// A proxy's answer, for example.
		found.Problem = api.Problem{
			Status:    int32(status),
			Code:      "not_a_problem_document",
			Detail:    fmt.Sprintf("status %d without a problem document", status),
			Retryable: retryableStatus(status) || isProxys(status),
		}
	}
	return found
}

func refusedIn(body []byte) map[int]*ProblemError {
	var answered struct {
		Results []struct {
			Problem *api.Problem `json:"problem"`
		} `json:"results"`
	}
	_ = json.Unmarshal(body, &answered)
	refused := map[int]*ProblemError{}
	for place, one := range answered.Results {
		if one.Problem != nil {
			refused[place] = &ProblemError{*one.Problem}
		}
	}
	return refused
}

// value returns the JSON of an accepted request, or that there is none.
func value[T any](found *T, answer Answer) (*T, error) {
	if found == nil {
		return nil, fmt.Errorf("status %d without the JSON of EscrowMQ", answer.StatusCode())
	}
	return found, nil
}

// HasCode reports whether the error is a refusal with one of these codes, or that of an entry.
func HasCode(err error, codes ...string) bool {
	var entries *RefusedError
	if errors.As(err, &entries) {
		return slices.ContainsFunc(entries.Unwrap(), func(one error) bool {
			return HasCode(one, codes...)
		})
	}
	var problem *ProblemError
	return errors.As(err, &problem) && slices.Contains(codes, problem.Code)
}

// A RefusedError says that a request with several entries was answered, and that the service
// refused some of them. The others were accepted.
type RefusedError struct {
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
	return fmt.Sprintf("entries refused: %d; the first, %d: %v",
		len(e.Refused), first, e.Refused[first])
}

// Unwrap returns the problem of each refused entry, in their order.
func (e *RefusedError) Unwrap() []error {
	all := make([]error, 0, len(e.Refused))
	for _, place := range slices.Sorted(maps.Keys(e.Refused)) {
		all = append(all, e.Refused[place])
	}
	return all
}
