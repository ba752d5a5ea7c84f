package escrowmq

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"regexp"
	"time"
)

// A Dialect is the SQL of one kind of database.
type Dialect int

// The dialects of [Markers].
const (
	PostgreSQL Dialect = iota
	MySQL
	SQLite
)

// A Decision is the answer to a check.
type Decision string

// The decisions. Answer Unknown while the local transaction may still be running.
const (
	Commit   Decision = "commit"
	Rollback Decision = "rollback"
	Unknown  Decision = "unknown"
)

// ErrFenced says that a check was answered with rollback before the local transaction wrote its
// marker row. Roll the local transaction back.
var ErrFenced = fmt.Errorf("a check has already rolled this transaction back")

// Execer is what Mark writes with: an *sql.Tx, an *sql.Conn within a transaction, or an adapter of
// the transaction of another library.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Markers is a table with one row for each transaction whose outcome is known to the database.
//
// The producer's own transaction inserts (id, commit). A check of an id without a row inserts
// (id, rollback) before it answers: a producer that is slower than the check then collides with
// that row and cannot commit any more. So both see one outcome, whichever comes first.
type Markers struct {
	Dialect Dialect
	// Table is its name: letters, digits, '_', with an optional schema. Empty: escrowmq_markers.
	Table string
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// CreateTable creates the table if it does not exist.
func (m *Markers) CreateTable(ctx context.Context, db Execer) error {
	definition := "CREATE TABLE IF NOT EXISTS %s " +
		"(transaction_id VARCHAR(255) NOT NULL PRIMARY KEY, " +
		"outcome VARCHAR(8) NOT NULL, written_at_ms BIGINT NOT NULL)"
	if m.Dialect == MySQL {
		// Ids differ by case, which MySQL's default collation takes no notice of.
		definition += " CHARACTER SET ascii COLLATE ascii_bin"
	}
	return m.execute(ctx, db, definition)
}

// Mark writes the marker row within the producer's own transaction. It returns ErrFenced if a check
// was faster. A pool is refused, an *sql.DB or that of another library: the row would commit alone,
// before the work.
func (m *Markers) Mark(ctx context.Context, local Execer, transactionID string) error {
	if isPool(local) {
		return fmt.Errorf("a marker row needs the transaction, and this is a pool: %T", local)
	}
	inserted, err := m.insert(ctx, local, transactionID, Commit)
	if err == nil && !inserted {
		err = fmt.Errorf("%w: %s", ErrFenced, transactionID)
	}
	return err
}

// isPool reports whether this begins transactions and commits none: an *sql.DB, the pool of GORM
// with PrepareStmt, or what embeds a pool. An *sql.Conn is none: it may be within a transaction.
func isPool(local Execer) bool {
	if _, isConn := local.(interface{ Raw(func(any) error) error }); isConn {
		return false
	}
	// By name: the result of BeginTx is a type of the library.
	_, begins := reflect.TypeOf(local).MethodByName("BeginTx")
	_, commits := reflect.TypeOf(local).MethodByName("Commit")
	return begins && !commits
}

// Outcome answers a check: Commit if the producer's transaction has committed; otherwise Rollback,
// and the producer's transaction cannot commit any more. While the producer's transaction is open
// this waits for its row, as long as the context and the database's lock timeout allow. An error
// means that the outcome is unknown.
func (m *Markers) Outcome(ctx context.Context, db *sql.DB, transactionID string) (Decision, error) {
	// Two statements with a commit of their own: the second sees what the first has collided with.
	inserted, err := m.insert(ctx, db, transactionID, Rollback)
	if err != nil {
		return Unknown, err
	}
	if inserted {
		return Rollback, nil
	}
	query, err := m.statement("SELECT outcome FROM %s WHERE transaction_id = " + m.parameter(1))
	if err != nil {
		return Unknown, err
	}
	var outcome Decision
	if err := db.QueryRowContext(ctx, query, transactionID).Scan(&outcome); err != nil {
		return Unknown, err
	}
	return outcome, nil
}

// Prune deletes rows that are older than this. It must be longer than a transaction can stay
// undecided at the service (a day, unless its check says otherwise): a row that is gone is a
// rollback to the next check.
func (m *Markers) Prune(ctx context.Context, db Execer, age time.Duration) error {
	return m.execute(ctx, db, "DELETE FROM %s WHERE written_at_ms < "+m.parameter(1),
		time.Now().Add(-age).UnixMilli())
}

// insert reports whether the row is new. It waits for another transaction that has inserted it.
func (m *Markers) insert(
	ctx context.Context, db Execer, transactionID string, outcome Decision,
) (bool, error) {
	into := "INTO %s (transaction_id, outcome, written_at_ms) VALUES (" +
		m.parameter(1) + ", " + m.parameter(2) + ", " + m.parameter(3) + ")"
	insert := "INSERT " + into + " ON CONFLICT (transaction_id) DO NOTHING"
	if m.Dialect == MySQL {
		insert = "INSERT IGNORE " + into
	}
	query, err := m.statement(insert)
	if err != nil {
		return false, err
	}
	now := time.Now().UnixMilli()
	result, err := db.ExecContext(ctx, query, transactionID, string(outcome), now)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

func (m *Markers) parameter(place int) string {
	if m.Dialect == PostgreSQL {
		return fmt.Sprintf("$%d", place)
	}
	return "?"
}

// statement puts the name of the table into the text.
func (m *Markers) statement(text string) (string, error) {
	table := m.Table
	if table == "" {
		table = "escrowmq_markers"
	}
	if !tableName.MatchString(table) {
		return "", fmt.Errorf("%q is not the name of a table", table)
	}
	return fmt.Sprintf(text, table), nil
}

func (m *Markers) execute(ctx context.Context, db Execer, text string, arguments ...any) error {
	query, err := m.statement(text)
	if err == nil {
		_, err = db.ExecContext(ctx, query, arguments...)
	}
	return err
}
