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

// localState is what a Tx knows about the transaction of the database.
type localState int

const (
	notBegun       localState = iota // nothing was sent to the service
	begun                            // the service holds the messages; the database is the caller's
	notCommitted                     // the local transaction was rolled back, or never began
	committed                        // the local transaction has committed
	outcomeUnknown                   // its COMMIT failed, or its end cannot be seen from here
)

// step is what is done when the function of a transaction has returned.
type step int

const (
	sendNothing step = iota
	sendBoth         // begin and commit, one after the other
	sendCommit
	sendRollback
)

// endings is the whole rule: what is sent, by what is known and by whether the function failed.
var endings = map[localState]struct{ succeeded, failed step }{
	notBegun: {sendBoth, sendNothing},
	// A failure came before or after the local commit: the check finds out.
	begun:        {sendCommit, sendNothing},
	notCommitted: {sendRollback, sendRollback},
	// The database has it, whatever failed afterwards.
	committed:      {sendCommit, sendCommit},
	outcomeUnknown: {sendNothing, sendNothing},
}

// Tx collects the messages of one transaction. It belongs to one goroutine.
type Tx struct {
	client  *Client
	input   api.BeginInput
	markers *Markers
	state   localState
}

// A TxOption changes how a transaction begins.
type TxOption func(*Tx)

// WithID sets the transaction id: at most 127 letters, digits, '_', '-' and '.'. An id of your own,
// that of the order for example, makes a repeated call fail with transaction_exists instead of
// publishing twice.
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
//	}, escrowmq.WithID(order.ID), escrowmq.WithMarkers(markers))
//
// Local begins the transaction at the service, then runs the local one with a marker row in it.
// Afterwards the service is sent a commit if the local transaction committed, a rollback if it did
// not, and nothing if its COMMIT failed without an answer: then, and whenever the process ends
// before the decision is sent, the service asks a [Checker] or a [CheckHandler] of the producer
// group, and the marker row is the answer.
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

// Add adds a message, before Begin, Mark or Local.
func (tx *Tx) Add(topic string, message Message) {
	tx.input.Messages = append(tx.input.Messages,
		api.TransactionMessageInput{Topic: topic, Message: message})
}

// Begin stores the messages at the service, where no consumer sees them before the commit. Call it
// before your database transaction writes a marker of your own.
func (tx *Tx) Begin(ctx context.Context) error {
	if tx.state != notBegun {
		return errors.New("this transaction has begun already")
	}
	// Without an answer, or with transaction_exists, another call may have begun this id: it decides.
	tx.state = outcomeUnknown
	answer, err := tx.client.API.BeginTransactionWithResponse(ctx, nil, tx.input)
	if err == nil {
		err = problemOf(answer.HTTPResponse, answer.Body)
	}
	if err != nil {
		return fmt.Errorf("begin of transaction %s: %w", tx.ID(), err)
	}
	tx.state = begun
	return nil
}

// Mark begins the transaction at the service and writes its marker row within your database
// transaction. If it returns an error, roll that back.
func (tx *Tx) Mark(ctx context.Context, local Execer) error {
	if tx.markers == nil {
		return errors.New("a marker row needs the option WithMarkers")
	}
	if err := tx.Begin(ctx); err != nil {
		return err
	}
	err := tx.markers.Mark(ctx, local, tx.ID())
	if err != nil {
		tx.state = notCommitted
	}
	return err
}

// Local begins the transaction at the service, and runs a database transaction with its marker row.
func (tx *Tx) Local(
	ctx context.Context, db *sql.DB, options *sql.TxOptions, do func(*sql.Tx) error,
) error {
	if tx.markers == nil {
		return errors.New("a marker row needs the option WithMarkers")
	}
	if err := tx.Begin(ctx); err != nil {
		return err
	}
	tx.state = notCommitted
	local, err := db.BeginTx(ctx, options)
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
			return err
		}
		return tx.commit(ctx)
	case sendCommit:
		return errors.Join(failure, tx.commit(ctx))
	case sendRollback:
		// If it fails, the check rolls back.
		_, _ = tx.client.API.RollbackTransactionWithResponse(ctx, tx.ID(), api.RollbackInput{})
	}
	return failure
}

// decisionTimeout is how long an ended call goes on to send its decision.
const decisionTimeout = 40 * time.Second

func (tx *Tx) commit(ctx context.Context) error {
	answer, err := tx.client.API.CommitTransactionWithResponse(ctx, tx.ID())
	if err == nil {
		err = problemOf(answer.HTTPResponse, answer.Body)
	}
	var problem *ProblemError
	if err != nil && (!errors.As(err, &problem) || problem.Retryable) {
		return &CommitPendingError{tx.ID(), err}
	}
	return err
}
