package escrowmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"escrowmq.dev/go/api"
)

// A Checker receives the checks of a producer group and answers them from the producer's database.
// Any number of processes may run one.
type Checker struct {
	Client        *Client
	ProducerGroup string
	// Answer looks a transaction up, for example with [Markers.Outcome]. After an error, the check
	// is answered with Unknown, and the error is kept as evidence.
	Answer func(ctx context.Context, transactionID string) (Decision, error)
	// Timeout of one call of Answer. 0: 10 seconds, within the 15 for which a check is leased.
	Timeout time.Duration
	// Log gets failures: an outage of the service at its first failed try, then every 30 seconds,
	// and its end. Nil: slog.Default().
	Log *slog.Logger
}

// Run answers checks until the context ends, and returns nil then. A failure of the service is
// logged and tried again.
func (c *Checker) Run(ctx context.Context) error {
	watching := &outage{log: logger(c.Log).With("producer_group", c.ProducerGroup)}
	if watching.repeat(ctx, c.find) != nil && ctx.Err() == nil {
		// The first receive creates a group, so a wrong name would go unnoticed.
		watching.log.Warn("the producer group does not exist: " +
			"no producer has used it yet, or its name is wrong")
	}
	for ctx.Err() == nil {
		var checks []api.Check
		err := watching.repeat(ctx, func(ctx context.Context) (err error) {
			checks, err = c.receive(ctx, watching.patience())
			return err
		})
		if err == nil {
			_, err = c.answer(watching.watch(ctx), checks)
		}
		if HasCode(err, "check_not_open", "check_conflict") {
			// The producer, or another checker, has decided in the meantime.
			logger(c.Log).Info("an answer to a check came too late",
				"producer_group", c.ProducerGroup, "error", err)
		} else if err != nil && ctx.Err() == nil {
			logger(c.Log).Error("checks could not be answered",
				"producer_group", c.ProducerGroup, "error", err)
			_ = sleep(ctx, time.Second)
		}
	}
	return nil
}

// find returns an error if the producer group does not exist.
func (c *Checker) find(ctx context.Context) error {
	_, err := Check(c.Client.API.GetProducerGroupWithResponse(ctx, c.ProducerGroup))
	var problem *ProblemError
	if errors.As(err, &problem) && !problem.Retryable && problem.Status != http.StatusNotFound {
		return nil // the receive will say so
	}
	return err
}

// RunOnce waits for checks, answers them, and returns their number. The error is a *RefusedError if
// the service refused some of the answers.
func (c *Checker) RunOnce(ctx context.Context, wait time.Duration) (int, error) {
	checks, err := c.receive(ctx, wait)
	if err != nil {
		return 0, err
	}
	return c.answer(ctx, checks)
}

func (c *Checker) receive(ctx context.Context, wait time.Duration) ([]api.Check, error) {
	waitMs, most := wait.Milliseconds(), int32(1) // one at a time: each has its whole lease
	answer, err := Check(c.Client.API.ReceiveChecksWithResponse(
		ctx, c.ProducerGroup, api.ReceiveChecksInput{WaitMs: &waitMs, MaxChecks: &most}))
	if err != nil {
		return nil, err
	}
	list, err := value(answer.JSON200, answer)
	if err != nil {
		return nil, err
	}
	return list.Checks, nil
}

func (c *Checker) answer(ctx context.Context, checks []api.Check) (int, error) {
	if len(checks) == 0 {
		return 0, nil
	}
	input := api.AnswersInput{}
	for _, check := range checks {
		decision, evidence := c.ask(ctx, check.TransactionID)
		input.Answers = append(input.Answers, api.AnswerInput{
			CheckID: check.CheckID, Decision: api.CheckDecision(decision), Evidence: evidence,
		})
	}
	answered, err := Check(c.Client.API.AnswerChecksWithResponse(ctx, c.ProducerGroup, input))
	if refused := (*RefusedError)(nil); err != nil && !errors.As(err, &refused) {
		return 0, err
	}
	results, failure := value(answered.JSON2XX, answered)
	if failure != nil {
		return 0, failure
	}
	return int(results.Accepted), err
}

// CheckHandler answers the checks that a service sends to a webhook.
//
// The signature is verified over the raw body before anything of it is read; status 401 refuses it.
// Only an answer of yours is status 200: after an error the status is 500, and the service asks
// again. `secrets` is called for each check, so that a rotation needs no restart.
func CheckHandler(
	secrets func() []string,
	answer func(ctx context.Context, transactionID string) (Decision, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodPost {
			http.Error(w, "send a POST", http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 64<<10))
		if err != nil {
			http.Error(w, "the body is too large or incomplete", http.StatusBadRequest)
			return
		}
		if _, err := Verify(secrets(), request.Header, body, time.Now()); err != nil {
			status := http.StatusInternalServerError
			if errors.Is(err, ErrInvalidSignature) {
				status = http.StatusUnauthorized
			}
			http.Error(w, http.StatusText(status), status)
			return
		}
		var check api.CheckQuestion
		if json.Unmarshal(body, &check) != nil || check.TransactionID == "" {
			http.Error(w, "the body is no check", http.StatusBadRequest)
			return
		}
		decision, err := answer(request.Context(), check.TransactionID)
		if err != nil {
			slog.Error("a check could not be answered",
				"transaction_id", check.TransactionID, "error", err)
			http.Error(w, "no answer: see the log", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(api.CheckAnswer{Decision: api.CheckDecision(decision)})
	})
}

// ask calls Answer. A panic and an error are logged and become Unknown, with the error as evidence.
func (c *Checker) ask(
	ctx context.Context, transactionID string,
) (decision Decision, evidence *api.Texts) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.Timeout, 10*time.Second))
	defer cancel()
	unknown := func(reason string, details ...any) (Decision, *api.Texts) {
		details = append(details, "transaction_id", transactionID, "error", reason)
		logger(c.Log).Warn("a check is answered unknown", details...)
		return Unknown, &api.Texts{"error": shortened(reason)}
	}
	defer func() {
		if failure := recover(); failure != nil {
			decision, evidence = unknown(fmt.Sprint(failure), "stack", string(debug.Stack()))
		}
	}()
	decision, err := c.Answer(ctx, transactionID)
	if err != nil {
		return unknown(err.Error())
	}
	return decision, nil
}

var control = regexp.MustCompile(`\p{Cc}+`)

// shortened makes a text of one line, without control characters, which the service refuses in a
// reason, and keeps it within the limit, on whole characters.
func shortened(text string) string {
	runes := []rune(strings.TrimSpace(control.ReplaceAllString(text, " ")))
	return string(runes[:min(len(runes), 120)]) // at most 480 bytes of the 500
}

func logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}
