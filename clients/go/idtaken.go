package escrowmq

import (
	"errors"
	"fmt"
)

// An IDTakenError says that a transaction with this id was begun with other messages or fields,
// such as a timestamp in the JSON. Nothing was begun, and that transaction goes on as it was. An id
// has the same messages each time.
type IDTakenError struct {
	TransactionID string
	// State is that of the transaction that has the id: prepared, held, committed or rolled_back.
	// It is empty while its begin is still running.
	State string
	Err   *ProblemError
}

func (e *IDTakenError) Error() string {
	state := e.State
	if state == "" {
		state = "being begun"
	}
	return fmt.Sprintf("transaction %s exists with other messages or fields, and is %s; "+
		"repeat it with the same, or use another id", e.TransactionID, state)
}

func (e *IDTakenError) Unwrap() error { return e.Err }

// beginError names the transaction whose begin failed, and what has its id.
func beginError(id string, err error) error {
	var problem *ProblemError
	if errors.As(err, &problem) {
		switch problem.Code {
		case "idempotency_key_reused", "transaction_exists": // the key of a begin is made of its id
			return &IDTakenError{id, problem.Context["state"], problem}
		}
	}
	return fmt.Errorf("begin of transaction %s: %w", id, err)
}
