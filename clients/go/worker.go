package escrowmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"escrowmq.dev/go/api"
)

// ErrLeaseLost is the cause of a handler's context (context.Cause) when its lease has ended:
// another consumer may have the message now.
var ErrLeaseLost = errors.New("the lease of this message has ended")

var errMaxLease = fmt.Errorf("%w: it was held for MaxLease", ErrLeaseLost)

// ErrStopped is the cause of a handler's context when the worker's Shutdown time is over.
var ErrStopped = errors.New("the worker stops")

const stopped = "the worker stopped" // why a message was rejected or given back

// A Delivery is a message under a lease.
type Delivery struct{ api.ReceivedMessage }

// Body returns the message's bytes.
func (d Delivery) Body() ([]byte, error) { return Body(d.ReceivedMessage) }

// Decode reads the body as JSON into the value.
func (d Delivery) Decode(value any) error {
	body, err := d.Body()
	if err != nil {
		return err
	}
	return json.Unmarshal(body, value)
}

// RetryAfter is an error with which a handler rejects its message for this long, instead of the
// group's backoff.
func RetryAfter(delay time.Duration, reason string) error {
	return &rejected{delay: &delay, reason: reason}
}

// DeadLetter is an error with which a handler moves its message to the dead letters at once.
func DeadLetter(reason string) error { return &rejected{reason: reason, dead: true} }

type rejected struct {
	delay       *time.Duration // nil: the backoff of the group
	reason      string
	dead        bool
	unprocessed bool // no handler has begun the message: the attempt does not count
}

// notHandled is the outcome of a message whose handler was not called.
func notHandled(reason string) error {
	return &rejected{delay: new(time.Duration), reason: reason, unprocessed: true}
}

func (r *rejected) Error() string { return r.reason }

// Worker receives the messages of a group, calls Handle for each, and acknowledges those for which
// it returned nil. An error rejects the message: it is delivered again, and becomes a dead letter
// after the last attempt of its group.
//
// Leases are extended at a third of their time, for as long as the handler runs. A handler whose
// lease is lost has its context cancelled with the cause ErrLeaseLost. No message is leased that no
// handler is free for. Delivery is at least once: a handler must expect the same message again.
//
// A message whose handler did not finish before Shutdown has used one of its attempts. On its last
// one it becomes a dead letter: so let Shutdown be longer than a handler takes, and max_attempts be
// more than two. The attempt of a message that no handler has begun does not count.
type Worker struct {
	Client *Client
	Group  string
	Handle func(ctx context.Context, delivery Delivery) error
	// Concurrency is the number of handlers at a time. 0: 16.
	Concurrency int
	// MaxLease ends the extension of a lease, so that a handler that hangs gives its message back.
	// 0: an hour.
	MaxLease time.Duration
	// Shutdown is how long handlers may go on when the context of Run has ended. 0: 25 seconds.
	Shutdown time.Duration
	// Name is stored with the leases.
	Name string
	// Log gets failures: an outage of the service at its first failed try, then every 30 seconds,
	// and its end. Nil: slog.Default().
	Log *slog.Logger

	outage                                      *outage
	acknowledged, rejections, lost, deadLetters atomic.Int64

	received atomic.Int64 // when the last receive was answered, in ms
}

// Stats counts what became of messages since the start. DeadLetters are those of [DeadLetter]: the
// last attempt of a message is counted as Rejected, and the service makes a dead letter of it.
type Stats struct{ Acknowledged, Rejected, Lost, DeadLetters int64 }

// Stats returns the counts. Safe while the worker runs.
func (w *Worker) Stats() Stats {
	return Stats{
		w.acknowledged.Load(), w.rejections.Load(), w.lost.Load(), w.deadLetters.Load(),
	}
}

// SinceReceive returns how long ago the service last answered a receive. It is under 30 seconds
// while the worker is well and not all of its handlers are busy.
func (w *Worker) SinceReceive() time.Duration {
	return time.Since(time.UnixMilli(w.received.Load()))
}

// Run receives until the context ends; then it waits for the handlers, at most for Shutdown, and
// rejects what they have not finished, whose attempt counts. A message that no handler has begun is
// given back unprocessed: its attempt does not count. It returns nil then, and an error if the
// service refuses to let this group receive. While the service is away, it is tried again.
func (w *Worker) Run(ctx context.Context) error {
	w.outage = &outage{log: logger(w.Log).With("group", w.Group)}
	var group *api.Group
	err := w.outage.repeat(ctx, func(ctx context.Context) error {
		answer, err := Check(w.Client.API.GetGroupWithResponse(ctx, w.Group))
		if err == nil {
			group, err = value(answer.JSON200, answer)
		}
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()
	handlers, stop := context.WithCancelCause(settling)
	defer stop(nil)
	free := make(chan struct{}, w.concurrency()) // one token for each running handler
	var running sync.WaitGroup
	failure := w.receive(ctx, func(messages []Delivery, lease time.Duration) {
		for _, line := range lines(messages, group.Ordered) {
			running.Add(1)
			go func() {
				defer running.Done()
				w.handleLine(settling, handlers, line, lease, func() { <-free })
			}()
		}
	}, free)
	finished := make(chan struct{})
	go func() { running.Wait(); close(finished) }()
	shutdown := time.NewTimer(orDefault(w.Shutdown, 25*time.Second))
	defer shutdown.Stop()
	select {
	case <-finished:
	case <-shutdown.C:
		stop(ErrStopped)
		defer time.AfterFunc(settleAtStop, stopSettling).Stop()
		<-finished
	}
	return failure
}

// RunUntilIdle handles the messages that are available now, one after another, and returns their
// number: for tests and scheduled jobs. It returns when a receive without a wait finds none. A
// message that is rejected counts each time that it comes.
func (w *Worker) RunUntilIdle(ctx context.Context) (int, error) {
	for handled := 0; ; handled++ {
		list, err := w.receiveOnce(ctx, randomID(), 1, 0)
		if err != nil || len(list.Messages) == 0 {
			return handled, err
		}
		message := list.Messages[0]
		lease := message.LeaseExpiresAt.Sub(list.ServerTime)
		settling := context.WithoutCancel(ctx)
		w.handleLine(settling, ctx, []Delivery{{message}}, lease, func() {})
	}
}

// receive leases messages for free handlers and starts them, until the context ends.
func (w *Worker) receive(
	ctx context.Context, start func([]Delivery, time.Duration), free chan struct{},
) error {
	attempt := randomID()
	for {
		// Wait for one free handler, then take those that are free beside it.
		select {
		case <-ctx.Done():
			return nil
		case free <- struct{}{}:
		}
		wanted := 1
		for ; wanted < cap(free); wanted++ {
			select {
			case free <- struct{}{}:
				continue
			default:
			}
			break
		}
		var list *api.ReceivedMessages
		err := w.outage.repeat(ctx, func(ctx context.Context) (err error) {
			list, err = w.receiveOnce(ctx, attempt, wanted, w.outage.patience())
			return err
		})
		got := 0
		if err == nil {
			got = len(list.Messages)
			attempt = randomID()
			w.received.Store(time.Now().UnixMilli())
		}
		for range wanted - got {
			<-free
		}
		switch {
		case ctx.Err() != nil && got == 0:
			return nil
		case err != nil:
			return err
		case got > 0:
			deliveries := make([]Delivery, got)
			for place, message := range list.Messages {
				deliveries[place] = Delivery{message}
			}
			start(deliveries, list.Messages[0].LeaseExpiresAt.Sub(list.ServerTime))
		}
	}
}

func (w *Worker) receiveOnce(
	ctx context.Context, attempt string, wanted int, patience time.Duration,
) (*api.ReceivedMessages, error) {
	input := api.ReceiveInput{AttemptID: &attempt}
	most, wait := int32(min(wanted, 1000)), patience.Milliseconds()
	input.MaxMessages, input.WaitMs = &most, &wait
	if w.Name != "" {
		input.Worker = &w.Name
	}
	answer, err := Check(w.Client.API.ReceiveMessagesWithResponse(ctx, w.Group, input))
	if err != nil {
		return nil, err
	}
	return value(answer.JSON200, answer)
}

// lines splits messages into those that are handled one after another: of an ordered group, those
// with one ordering key, or without a key in one queue.
func lines(messages []Delivery, ordered bool) [][]Delivery {
	var all [][]Delivery
	places := map[string]int{}
	for _, message := range messages {
		if ordered {
			line := fmt.Sprintf("queue %s/%d", message.Topic, message.QueueID)
			if message.OrderingKey != nil {
				line = "key " + *message.OrderingKey
			}
			if place, found := places[line]; found {
				all[place] = append(all[place], message)
				continue
			}
			places[line] = len(all)
		}
		all = append(all, []Delivery{message})
	}
	return all
}

// settleAtStop is how long a worker still settles messages when their handlers have no more time.
const settleAtStop = 3 * time.Second

// handleLine handles messages one after another. The leases of those that wait are extended, too.
// Handlers may run until the end of handlers, and messages are settled until the end of settling.
func (w *Worker) handleLine(
	settling, handlers context.Context, line []Delivery, lease time.Duration, done func(),
) {
	type held struct {
		ctx     context.Context
		release func()
	}
	leases := make([]held, len(line))
	for place, delivery := range line {
		leases[place].ctx, leases[place].release = w.hold(handlers, delivery, lease)
	}
	failed := false
	for place, delivery := range line {
		var outcome error
		switch {
		case failed:
			outcome = notHandled("an earlier message of its order was rejected")
		case leases[place].ctx.Err() != nil: // by the stop, or its lease was lost while it waited
			outcome = notHandled(stopped)
		default:
			outcome = w.call(leases[place].ctx, handlers, delivery)
		}
		cause := context.Cause(leases[place].ctx)
		leases[place].release()
		failed = w.settle(settling, delivery, outcome, cause) || failed
		done()
	}
}

// hold extends a lease until it is released. Its context ends with it.
func (w *Worker) hold(
	handlers context.Context, delivery Delivery, lease time.Duration,
) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(handlers)
	extending, end := context.WithCancel(context.WithoutCancel(handlers))
	go func() {
		started := time.Now()
		expires := started.Add(lease)
		for sleep(extending, lease/3) == nil {
			now := time.Now()
			if longest := orDefault(w.MaxLease, time.Hour); now.Sub(started) > longest {
				w.log(delivery).Error("a handler took longer than MaxLease: its lease ends",
					"max_lease", longest)
				cancel(errMaxLease)
				return
			}
			if now.After(expires) {
				cancel(ErrLeaseLost)
				return
			}
			until, stop := context.WithDeadline(extending, expires)
			err := w.extend(until, delivery, lease)
			stop()
			if err == nil {
				expires = now.Add(lease)
			} else if HasCode(err, "lease_expired") {
				cancel(ErrLeaseLost)
				return
			}
		}
	}()
	return ctx, func() { end(); cancel(nil) }
}

func (w *Worker) extend(ctx context.Context, delivery Delivery, lease time.Duration) error {
	ctx = w.outage.watch(ctx)
	ms := lease.Milliseconds()
	answer, err := Check(w.Client.API.ExtendLeasesWithResponse(ctx, w.Group, api.ExtendInput{
		Entries: []api.ExtendEntry{{ReceiptHandle: delivery.ReceiptHandle, LeaseMs: &ms}},
	}))
	if err == nil {
		_, err = value(answer.JSON2XX, answer)
	}
	return err
}

// call runs the handler. A panic, and the end of its goroutine (by FailNow of a test, for example),
// become an error, so that one message cannot stop the others. A handler that goes on after the
// worker has stopped is left behind, and its message rejected.
func (w *Worker) call(ctx, handlers context.Context, delivery Delivery) error {
	returned := make(chan error, 1)
	go func() {
		err := errors.New("the handler ended its goroutine")
		defer func() {
			if failure := recover(); failure != nil {
				err = &panicked{failure, debug.Stack()}
			}
			returned <- err
		}()
		err = w.Handle(ctx, delivery)
	}()
	select {
	case err := <-returned:
		return err
	case <-handlers.Done():
	}
	select {
	case err := <-returned:
		return err
	case <-time.After(time.Second):
		return ErrStopped
	}
}

// A panicked is the panic of a function of the caller.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// log is for lines about this message.
func (w *Worker) log(delivery Delivery) *slog.Logger {
	fields := []any{"group", w.Group, "message_id", delivery.MessageID, "topic", delivery.Topic}
	if delivery.Key != nil {
		fields = append(fields, "key", *delivery.Key)
	}
	if delivery.TransactionID != nil {
		fields = append(fields, "transaction_id", *delivery.TransactionID)
	}
	return logger(w.Log).With(fields...)
}

// settle acknowledges or rejects a message, and reports whether it will be delivered again.
func (w *Worker) settle(
	settling context.Context, delivery Delivery, outcome, cause error,
) bool {
	if errors.Is(cause, ErrLeaseLost) {
		w.lost.Add(1)
		if !errors.Is(cause, errMaxLease) { // which was logged when it was reached
			w.log(delivery).Error("the lease of a message was lost while it was handled")
		}
		return true
	}
	ctx, cancel := context.WithTimeout(w.outage.watch(settling), decisionTimeout)
	defer cancel()
	rejects := outcome != nil
	var err error
	switch reason := (*rejected)(nil); {
	case !rejects:
		err = w.ack(ctx, delivery)
	case errors.As(outcome, &reason) && reason.dead:
		rejects = false
		w.log(delivery).Warn("a message becomes a dead letter",
			"reason", reason.reason, "attempt", delivery.Attempt)
		err = w.deadLetter(ctx, delivery, reason.reason)
	case errors.Is(cause, ErrStopped) && (reason == nil || !reason.unprocessed):
		err = w.nack(ctx, delivery, rejected{delay: new(time.Duration), reason: stopped})
	case reason != nil:
		err = w.nack(ctx, delivery, *reason)
	default:
		details := []any{"error", outcome, "attempt", delivery.Attempt}
		if bug := (*panicked)(nil); errors.As(outcome, &bug) {
			details = append(details, "stack", string(bug.stack))
		}
		w.log(delivery).Warn("a message was rejected", details...)
		err = w.nack(ctx, delivery, rejected{reason: outcome.Error()})
	}
	switch {
	case HasCode(err, "lease_expired") && outcome != nil:
		// A rejection that is repeated after a lost answer is refused, too.
		w.lost.Add(1)
		w.log(delivery).Info("a message was rejected before, or its lease had ended", "error", err)
		return true
	case HasCode(err, "lease_expired"):
		w.lost.Add(1)
		w.log(delivery).Error(
			"the lease of a message had ended before it was settled", "error", err)
		return true
	case err != nil:
		w.log(delivery).Error("a message could not be settled; it is delivered again", "error", err)
		return true
	case outcome == nil:
		w.acknowledged.Add(1)
	case !rejects:
		w.deadLetters.Add(1)
	default:
		w.rejections.Add(1)
		if !errors.Is(cause, ErrStopped) {
			break
		}
		log := w.log(delivery).With("attempt", delivery.Attempt)
		if reason := (*rejected)(nil); errors.As(outcome, &reason) && reason.unprocessed {
			log.Info("a message was given back at the stop")
		} else {
			log.Warn("a message was rejected at the stop, and its attempt counts")
		}
	}
	return rejects
}

func (w *Worker) ack(ctx context.Context, delivery Delivery) error {
	answer, err := Check(w.Client.API.AckMessagesWithResponse(ctx, w.Group, api.AckInput{
		Entries: []api.AckEntry{{ReceiptHandle: delivery.ReceiptHandle}},
	}))
	if err == nil {
		_, err = value(answer.JSON2XX, answer)
	}
	return err
}

func (w *Worker) nack(ctx context.Context, delivery Delivery, how rejected) error {
	entry := api.NackEntry{ReceiptHandle: delivery.ReceiptHandle, Reason: reasonOf(how.reason)}
	if how.delay != nil {
		ms := how.delay.Milliseconds()
		entry.DelayMs = &ms
	}
	if how.unprocessed {
		entry.Unprocessed = &how.unprocessed
	}
	answer, err := Check(w.Client.API.NackMessagesWithResponse(
		ctx, w.Group, api.NackInput{Entries: []api.NackEntry{entry}}))
	if err == nil {
		_, err = value(answer.JSON2XX, answer)
	}
	return err
}

func (w *Worker) deadLetter(ctx context.Context, delivery Delivery, reason string) error {
	entry := api.DeadLetterEntry{
		ReceiptHandle: delivery.ReceiptHandle, Reason: reasonOf(reason)}
	answer, err := Check(w.Client.API.DeadLetterMessagesWithResponse(
		ctx, w.Group, api.DeadLetterInput{Entries: []api.DeadLetterEntry{entry}}))
	if err == nil {
		_, err = value(answer.JSON2XX, answer)
	}
	return err
}

func reasonOf(reason string) *string {
	if reason = shortened(reason); reason == "" {
		return nil
	}
	return &reason
}

func (w *Worker) concurrency() int { return orDefault(w.Concurrency, 16) }

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
