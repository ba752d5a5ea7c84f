package escrowmq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"escrowmq.dev/go/api"
)

// An OutcomeUnknownError says that the local transaction may or may not have committed: the marker
// table cannot be read, or the local transaction is still open. Nothing was decided at the service;
// the check asks the database.
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

// A NotCommittedError says that the database has no marker row of the transaction, and will have
// none: the local transaction was rolled back, or never committed. So the messages were discarded.
type NotCommittedError struct {
	TransactionID string
	// Err is the failure of the local COMMIT. It is nil if the function returned nil all the same:
	// it forgot to commit, or dropped an error.
	Err error
}

func (e *NotCommittedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf(
			"the local transaction of %s was rolled back: %v", e.TransactionID, e.Err)
	}
	return fmt.Sprintf("the local transaction of %s was not committed: its marker row is missing",
		e.TransactionID)
}

func (e *NotCommittedError) Unwrap() error { return e.Err }

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

// ErrNotMarked says that the function of a transaction with markers returned without Local or Mark.
// Nothing is published; the local transaction may have committed without its messages.
var ErrNotMarked = errors.New("the transaction has markers, and ended without Local or Mark")

// localState is what a Tx knows about the transaction of the database.
type localState int

const (
	notBegun  localState = iota // nothing was sent to the service
	begun                       // the service holds the messages; a marker, if any, is the caller's
	marked                      // a marker row was written, or that was tried
	committed                   // the local transaction has committed
	over                        // the begin failed, or found a transaction that was decided
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
	// Without a table of ours, the caller alone knows. A failure came before or after the local
	// commit: the check finds out.
	begun: {sendCommit, sendNothing},
	// The row says whether the local transaction has committed, or a fence prevents it from now on:
	// no return value and no driver has to be trusted.
	marked: {askMarkers, askMarkers},
	// The database has it, whatever failed afterwards.
	committed: {sendCommit, sendCommit},
	// Without an answer to the begin, another call with the id may decide.
	over: {sendNothing, sendNothing},
}

// Tx collects the messages of one transaction. It belongs to one goroutine.
type Tx struct {
	client  *Client
	input   api.BeginInput
	markers *Markers
	db      *sql.DB // that of the markers
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

// WithMarkers sets the table of marker rows for [Tx.Mark] and [Tx.Local], and the database that has
// it. The row decides: it is read from there when the function has returned.
func WithMarkers(markers *Markers, db *sql.DB) TxOption {
	return func(tx *Tx) { tx.markers, tx.db = markers, db }
}

// Transaction publishes messages if, and only if, a database transaction commits:
//
//	err := client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
//		tx.Add("orders", escrowmq.JSON(order, escrowmq.Key(order.ID)))
//		return tx.Local(ctx, nil, func(local *sql.Tx) error {
//			_, err := local.ExecContext(ctx, "INSERT INTO orders ...")
//			return err
//		})
//	}, escrowmq.WithBusinessKey(order.ID), escrowmq.WithMarkers(markers, db))
//
// Local begins the transaction at the service, then runs the local one with a marker row in it.
// [Tx.Mark] writes the row within a local transaction of your own. When the function has returned,
// with an error or without, the row is read: if it is there, the service is sent a commit; if not,
// a fence in the table prevents that it comes later, and the service is sent a rollback. If the
// database cannot be asked, after an error between [Tx.Begin] and [Tx.Mark], and whenever the
// process ends before the decision is sent, the service asks a [Checker] or a [CheckHandler] of the
// producer group, and the marker row is the answer.
//
// With WithMarkers, nil means that the local transaction has committed and the messages are
// published. A function that returns nil without a commit gets a *[NotCommittedError], and one that
// calls neither Local nor Mark [ErrNotMarked]. Without
// WithMarkers, nil means that the function returned nil and the messages are published: after
// [Tx.Begin] it must return nil only if its own local transaction has committed. If it has called
// nothing but Add, that protects against nothing: the process may end between the local commit and
// the begin.
func (c *Client) Transaction(
	ctx context.Context, producerGroup string, do func(*Tx) error, options ...TxOption,
) error {
	id := "txn_" + randomID()
	tx := &Tx{client: c, input: api.BeginInput{ProducerGroup: producerGroup, TransactionID: &id}}
	for _, option := range options {
		option(tx)
	}
	if tx.markers != nil && tx.db == nil {
		return errors.New("WithMarkers needs the database that has the table")
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
// those of an earlier call with the same id. Call it before your database transaction, so that this
// is not open while the service is asked; Mark or Local follows, or a marker of your own, whose id
// must be unique. The error is an *AlreadyResolvedError if the transaction was decided before.
func (tx *Tx) Begin(ctx context.Context) error {
	if tx.state != notBegun {
		return errors.New("this transaction has begun already")
	}
	if len(tx.input.Messages) == 0 {
		return errors.New("this transaction has no message: call Add before Begin, Mark or Local")
	}
	// Without an answer, or with transaction_exists, another call may have begun it, and decides.
	tx.state = over
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

// Mark writes the marker row within your database transaction, and begins the transaction at the
// service first, unless Begin has: then for at most 5 seconds, as your transaction is open
// meanwhile. If it returns an error, roll your transaction back. After that, Mark may be called
// again in another one: after a deadlock, for example.
func (tx *Tx) Mark(ctx context.Context, local Execer) error {
	if tx.markers == nil {
		return errNoMarkers
	}
	if tx.state == notBegun {
		begin, cancel := context.WithTimeout(ctx, beginTimeout)
		defer cancel()
		if err := tx.Begin(begin); err != nil {
			return err
		}
	}
	if err := tx.mayMark(); err != nil {
		return err
	}
	tx.state = marked // also if it fails: another call with the id may have written the row
	return tx.markers.Mark(ctx, local, tx.ID())
}

// Local begins the transaction at the service unless Begin has, and runs a database transaction
// with its marker row. If an earlier call with the same id has committed, the function is not
// called, and Local returns nil. After an error, Local may be called again: after a deadlock, for
// example. A *[NotCommittedError] is the exception: its COMMIT failed, and the id is used up.
func (tx *Tx) Local(ctx context.Context, options *sql.TxOptions, do func(*sql.Tx) error) error {
	if tx.markers == nil {
		return errNoMarkers
	}
	if tx.state == notBegun {
		err := tx.Begin(ctx)
		var resolved *AlreadyResolvedError
		if errors.As(err, &resolved) && resolved.State == string(api.TransactionStateCommitted) {
			if outcome, failure := tx.outcome(ctx); outcome == Commit {
				return nil
			} else if failure != nil {
				return &OutcomeUnknownError{tx.ID(), failure}
			}
		}
		if err != nil {
			return err
		}
	}
	if err := tx.mayMark(); err != nil {
		return err
	}
	tx.state = marked
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

var errNoMarkers = errors.New("a marker row needs the option WithMarkers")

func (tx *Tx) mayMark() error {
	switch tx.state {
	case begun, marked:
		return nil
	case committed:
		return errors.New("the local transaction of " + tx.ID() + " has committed already")
	}
	return errors.New("the begin of " + tx.ID() + " has failed")
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
	if err := local.Commit(); err != nil {
		return tx.commitFailed(ctx, err)
	}
	tx.state = committed
	return nil
}

// commitFailed finds out what became of a local transaction whose COMMIT failed.
func (tx *Tx) commitFailed(ctx context.Context, failure error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(failure, cause) {
		failure = fmt.Errorf("%w: %w", failure, cause) // sql.ErrTxDone, for example
	}
	outcome, err := tx.outcome(ctx)
	switch outcome {
	case Commit:
		tx.state = committed
		return nil
	case Rollback:
		return &NotCommittedError{tx.ID(), failure}
	}
	return &OutcomeUnknownError{tx.ID(), errors.Join(failure, err)}
}

// outcome asks the database, as a check does, also if the context of the call has ended.
func (tx *Tx) outcome(ctx context.Context) (Decision, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	return tx.markers.Outcome(ctx, tx.db, tx.ID())
}

// end sends the decision. It is sent also if the context of the call has ended: the service waits
// for it.
func (tx *Tx) end(ctx context.Context, failure error) error {
	if tx.state == notBegun && len(tx.input.Messages) == 0 {
		return failure
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decisionTimeout)
	defer cancel()
	if failure == nil && tx.markers != nil && (tx.state == notBegun || tx.state == begun) {
		failure = fmt.Errorf("%s: %w", tx.ID(), ErrNotMarked)
		if tx.state == begun {
			return tx.settle(ctx, failure)
		}
	}
	ending := endings[tx.state].succeeded
	if failure != nil {
		ending = endings[tx.state].failed
	}
	switch ending {
	case sendBoth:
		if err := tx.Begin(caller); err != nil { // which is no decision yet
			return unlessCommitted(err)
		}
		return tx.commit(ctx)
	case sendCommit:
		return joined(failure, tx.commit(ctx))
	case askMarkers:
		return tx.settle(ctx, failure)
	}
	return failure
}

// settle sends what the marker table says.
func (tx *Tx) settle(ctx context.Context, failure error) error {
	outcome, err := tx.outcome(ctx)
	switch outcome {
	case Commit:
		if errors.Is(failure, ErrFenced) { // by the row of another call with this id
			failure = &AlreadyResolvedError{tx.ID(), string(api.TransactionStateCommitted), nil}
		}
		return joined(failure, tx.commit(ctx))
	case Rollback:
		// If it fails, the check rolls back.
		_, _ = tx.client.API.RollbackTransactionWithResponse(ctx, tx.ID(), api.RollbackInput{})
		if failure == nil {
			failure = &NotCommittedError{tx.ID(), nil}
		}
		return failure
	}
	if unknown := (*OutcomeUnknownError)(nil); errors.As(failure, &unknown) {
		return failure // it says so already
	}
	return joined(failure, &OutcomeUnknownError{tx.ID(), err})
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

// beginTimeout is how long the begin may take while the caller's local transaction is open.
var beginTimeout = 5 * time.Second

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
