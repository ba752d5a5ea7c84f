package escrowmq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"escrowmq.dev/go/api"
)

// An OutcomeUnknownError says that the local transaction may or may not have committed: its COMMIT
// failed. Nothing was decided at the service; the check asks the database.
type OutcomeUnknownError struct {
	TransactionID string
	Err           error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf(
		"whether the local transaction of %s committed is unknown until its check: %v",
		e.TransactionID, e.Err)
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// A CommitPendingError says that the local transaction has committed, and that the service could
// not be reached, so that its messages are published after the check. Nothing is lost; do not
// repeat the work.
type CommitPendingError struct {
	TransactionID string
	Err           error
}

func (e *CommitPendingError) Error() string {
	return fmt.Sprintf(
		"the messages of %s are published after its check: %v", e.TransactionID, e.Err)
}

func (e *CommitPendingError) Unwrap() error { return e.Err }

// An AlreadyResolvedError says that the service had decided the transaction before: it was checked,
// or an operator or another call with its id was faster.
type AlreadyResolvedError struct {
	TransactionID string
	// State is committed or rolled_back.
	State string
	// Err is the service's refusal of the commit of a local transaction that has committed. It is
	// nil if the begin found the decision, so that nothing was done.
	Err error
}

func (e *AlreadyResolvedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s has committed in the database, but at the service it is %s: %v",
			e.TransactionID, e.State, e.Err)
	}
	return fmt.Sprintf("transaction %s is %s already; other work needs another id",
		e.TransactionID, e.State)
}

func (e *AlreadyResolvedError) Unwrap() error { return e.Err }

// localState is what a Tx knows about the transaction of the database.
type localState int

const (
	notBegun       localState = iota // nothing was sent to the service
	begun                            // the service holds the messages; the database is the caller's
	notCommitted                     // Local failed: its marker row, if any, is of another call
	committed                        // the local transaction has committed
	outcomeUnknown                   // its COMMIT failed, or another call with the id decides
)

// step is what is done when the function of a transaction has returned.
type step int

const (
	sendNothing step = iota
	sendBoth         // begin and commit, one after the other
	sendCommit
	askMarkers // and send what they say
)

// endings is the whole rule: what is sent, by what is known and by whether the function failed.
var endings = map[localState]struct{ succeeded, failed step }{
	notBegun: {sendBoth, sendNothing},
	// A failure came before or after the local commit: the check finds out.
	begun: {sendCommit, sendNothing},
	// Another call with the id may have committed. The marker row says so, or a fence prevents it.
	notCommitted: {askMarkers, askMarkers},
	// The database has it, whatever failed afterwards.
	committed:      {sendCommit, sendCommit},
	outcomeUnknown: {sendNothing, sendNothing},
}

// Tx collects the messages of one transaction. It belongs to one goroutine.
type Tx struct {
	client  *Client
	input   api.BeginInput
	markers *Markers
	db      *sql.DB // that of Local
	state   localState
}

// A TxOption changes how a transaction begins.
type TxOption func(*Tx)

// WithID sets the transaction id: at most 127 letters, digits, '_', '-' and '.'. Another call with
// the id and the same messages within a day continues the transaction, after a crash for example:
// the messages are published once, and Local does not repeat work that has committed. A transaction
// that was rolled back stays so ([AlreadyResolvedError]): work that is tried again after a failure
// needs another id. So give the order's id to [WithBusinessKey], and let the client make the
// transaction id, unless a call must continue an earlier one.
func WithID(id string) TxOption { return func(tx *Tx) { tx.input.TransactionID = &id } }

// WithBusinessKey sets the key by which the transaction can be found.
func WithBusinessKey(key string) TxOption { return func(tx *Tx) { tx.input.BusinessKey = &key } }

// WithCheck sets when the producer is checked, and what happens if the outcome stays unknown.
func WithCheck(check api.CheckInput) TxOption { return func(tx *Tx) { tx.input.Check = &check } }

// WithMarkers sets the table of marker rows for [Tx.Mark] and [Tx.Local].
func WithMarkers(markers *Markers) TxOption { return func(tx *Tx) { tx.markers = markers } }

// Transaction publishes messages if, and only if, a database transaction commits:
//
//	err := client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
//		tx.Add("orders", escrowmq.JSON(order, escrowmq.Key(order.ID)))
//		return tx.Local(ctx, db, nil, func(local *sql.Tx) error {
//			_, err := local.ExecContext(ctx, "INSERT INTO orders ...")
//			return err
//		})
//	}, escrowmq.WithBusinessKey(order.ID), escrowmq.WithMarkers(markers))
//
// Local begins the transaction at the service, then runs the local one with a marker row in it.
// Afterwards the service is sent a commit if the local transaction committed, a rollback if it did
// not (a fence in the table then prevents that another call with the id commits), and nothing if
// its COMMIT failed without an answer, or if the database cannot be asked: then, and whenever the
// process ends before the decision is sent, the service asks a [Checker] or a [CheckHandler] of the
// producer group, and the marker row is the answer.
//
// A function that calls neither Local, Mark nor Begin has its messages published when it returns
// without an error. That protects against nothing: the process may end between the local commit
// and the begin.
func (c *Client) Transaction(
	ctx context.Context, producerGroup string, do func(*Tx) error, options ...TxOption,
) error {
	id := "txn_" + randomID()
	tx := &Tx{client: c, input: api.BeginInput{ProducerGroup: producerGroup, TransactionID: &id}}
	for _, option := range options {
		option(tx)
	}
	returned := false
	defer func() {
		if !returned { // a panic: what is known about the local transaction still decides
			_ = tx.end(ctx, errors.New("panic"))
		}
	}()
	err := do(tx)
	returned = true
	return tx.end(ctx, err)
}

// ID returns the transaction id.
func (tx *Tx) ID() string { return *tx.input.TransactionID }

// Add adds a message. It panics after Begin, Mark or Local, which have sent the messages.
func (tx *Tx) Add(topic string, message Message) {
	if tx.state != notBegun {
		panic("escrowmq: Add after Begin, Mark or Local: the messages of " + tx.ID() + " were sent")
	}
	tx.input.Messages = append(tx.input.Messages,
		api.TransactionMessageInput{Topic: topic, Message: message})
}

// Begin stores the messages at the service, where no consumer sees them before the commit, or finds
// those of an earlier call with the same id. Call it before your database transaction writes a
// marker of your own, whose id must be unique. The error is an *AlreadyResolvedError if the
// transaction was decided before.
func (tx *Tx) Begin(ctx context.Context) error {
	if tx.state != notBegun {
		return errors.New("this transaction has begun already")
	}
	if len(tx.input.Messages) == 0 {
		return errors.New("this transaction has no message: call Add before Begin, Mark or Local")
	}
	// Without an answer, or with transaction_exists, another call may have begun it, and decides.
	tx.state = outcomeUnknown
	key := "begin-" + tx.ID() // the begin of an earlier run is found by it
	answer, err := Check(tx.client.API.BeginTransactionWithResponse(ctx,
		&api.BeginTransactionParams{IdempotencyKey: &key}, tx.input))
	if err == nil {
		_, err = value(answer.JSON201, answer)
	}
	if err != nil {
		return beginError(tx.ID(), err)
	}
	switch state := answer.JSON201.State; state {
	case api.TransactionStateCommitted, api.TransactionStateRolledBack:
		return &AlreadyResolvedError{TransactionID: tx.ID(), State: string(state)}
	}
	tx.state = begun
	return nil
}

// Mark begins the transaction at the service and writes its marker row within your database
// transaction. If it returns an error, roll that back; the check decides.
func (tx *Tx) Mark(ctx context.Context, local Execer) error {
	if tx.markers == nil {
		return errors.New("a marker row needs the option WithMarkers")
	}
	if err := tx.Begin(ctx); err != nil {
		return err
	}
	err := tx.markers.Mark(ctx, local, tx.ID())
	if err != nil {
		tx.state = outcomeUnknown // another call with the id may have written the row
	}
	return err
}

// Local begins the transaction at the service, and runs a database transaction with its marker row.
// If an earlier call with the same id has committed, the function is not called, and Local returns
// nil. After an error that is not that of COMMIT, Local may be called again: after a deadlock, for
// example.
func (tx *Tx) Local(
	ctx context.Context, db *sql.DB, options *sql.TxOptions, do func(*sql.Tx) error,
) error {
	if tx.markers == nil {
		return errors.New("a marker row needs the option WithMarkers")
	}
	tx.db = db
	if tx.state != notCommitted {
		err := tx.Begin(ctx)
		var resolved *AlreadyResolvedError
		if errors.As(err, &resolved) && resolved.State == string(api.TransactionStateCommitted) {
			if outcome, failure := tx.outcome(ctx); outcome == Commit {
				return nil
			} else if failure != nil {
				return failure
			}
		}
		if err != nil {
			return err
		}
	}
	tx.state = notCommitted
	err := tx.runLocal(ctx, options, do)
	if errors.Is(err, ErrFenced) {
		// The row that is there is a check's fence, or the marker of another call with this id.
		if outcome, _ := tx.outcome(ctx); outcome == Commit {
			tx.state = committed
			return nil
		}
	}
	return err
}

func (tx *Tx) runLocal(
	ctx context.Context, options *sql.TxOptions, do func(*sql.Tx) error,
) error {
	local, err := tx.db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = local.Rollback() }() // after a commit, this does nothing
	if err := tx.markers.Mark(ctx, local, tx.ID()); err != nil {
		return err
	}
	if err := do(local); err != nil {
		return err
	}
	tx.state = outcomeUnknown
	if err := local.Commit(); err != nil {
		return &OutcomeUnknownError{tx.ID(), err}
	}
	tx.state = committed
	return nil
}

// outcome asks the database, as a check does.
func (tx *Tx) outcome(ctx context.Context) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, outcomeTimeout)
	defer cancel()
	outcome, err := tx.markers.Outcome(ctx, tx.db, tx.ID())
	if err != nil {
		return Unknown, &OutcomeUnknownError{tx.ID(), err}
	}
	return outcome, nil
}

// end sends the decision. It is sent also if the context of the call has ended: the service waits
// for it.
func (tx *Tx) end(ctx context.Context, failure error) error {
	ending := endings[tx.state].succeeded
	if failure != nil {
		ending = endings[tx.state].failed
	}
	if ending == sendBoth && len(tx.input.Messages) == 0 {
		ending = sendNothing
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decisionTimeout)
	defer cancel()
	switch ending {
	case sendBoth:
		if err := tx.Begin(ctx); err != nil {
			return unlessCommitted(err)
		}
		return tx.commit(ctx)
	case sendCommit:
		return joined(failure, tx.commit(ctx))
	case askMarkers:
		outcome, err := tx.outcome(ctx)
		switch outcome {
		case Commit:
			err = tx.commit(ctx)
		case Rollback:
			// If it fails, the check rolls back.
			_, _ = tx.client.API.RollbackTransactionWithResponse(ctx, tx.ID(), api.RollbackInput{})
		}
		return joined(failure, err)
	}
	return failure
}

// unlessCommitted returns nil for messages that an earlier call with the same id has published.
func unlessCommitted(err error) error {
	var resolved *AlreadyResolvedError
	if errors.As(err, &resolved) && resolved.State == string(api.TransactionStateCommitted) {
		return nil
	}
	return err
}

func joined(failure, further error) error {
	if failure == nil {
		return further
	}
	if further == nil {
		return failure
	}
	return errors.Join(failure, further)
}

// outcomeTimeout is how long the database may take to say whether the local transaction has
// committed, before that is left to a check.
const outcomeTimeout = 5 * time.Second

// decisionTimeout is how long an ended call goes on to send its decision.
const decisionTimeout = 40 * time.Second

func (tx *Tx) commit(ctx context.Context) error {
	answer, err := Check(tx.client.API.CommitTransactionWithResponse(ctx, tx.ID()))
	if err == nil {
		_, err = value(answer.JSON200, answer)
	}
	var problem *ProblemError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &problem) || problem.Retryable:
		return &CommitPendingError{tx.ID(), err}
	case problem.Code == "transaction_already_resolved":
		return &AlreadyResolvedError{tx.ID(), string(api.TransactionStateRolledBack), err}
	}
	return err
}
