// Package live tests the client against a running service, whose address is ESCROWMQ_URL, and
// against databases.
package live

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"escrowmq.dev/go"
	"escrowmq.dev/go/api"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	gormlog "gorm.io/gorm/logger"
	_ "modernc.org/sqlite"
)

var ctx = context.Background()

// database is one that a test runs on.
type database struct {
	db      *sql.DB
	markers *escrowmq.Markers
}

// eachDatabase runs the test on SQLite, and on those servers whose addresses are in the
// environment.
func eachDatabase(t *testing.T, test func(t *testing.T, on database)) {
	options := "/shop.db?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=foreign_keys(1)&_txlock=immediate"
	cases := []struct {
		name, driver, address string
		dialect               escrowmq.Dialect
	}{
		{"SQLite", "sqlite", "file:" + t.TempDir() + options, escrowmq.SQLite},
		{"PostgreSQL", "pgx", os.Getenv("ESCROWMQ_TEST_POSTGRESQL"), escrowmq.PostgreSQL},
		{"MySQL", "mysql", os.Getenv("ESCROWMQ_TEST_MYSQL"), escrowmq.MySQL},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.address == "" {
				t.Skip("no server")
			}
			db, err := sql.Open(c.driver, c.address)
			check(t, err)
			defer func() { _ = db.Close() }()
			markers := &escrowmq.Markers{Dialect: c.dialect, Table: unique("markers")}
			check(t, markers.CreateTable(ctx, db))
			check(t, markers.CreateTable(ctx, db))
			_, err = db.Exec("CREATE TABLE IF NOT EXISTS orders (id VARCHAR(100) PRIMARY KEY)")
			check(t, err)
			test(t, database{db, markers})
		})
	}
}

func TestMessagesArePublishedIfAndOnlyIfTheLocalTransactionCommitted(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		client := service(t)
		topic := newTopic(t, client)
		order := func(id string, failure error) error {
			return client.Transaction(ctx, unique("shop"), func(tx *escrowmq.Tx) error {
				tx.Add(topic, escrowmq.JSON(map[string]string{"id": id}, escrowmq.Key(id)))
				return tx.Local(ctx, nil, func(local *sql.Tx) error {
					_, err := local.Exec("INSERT INTO orders VALUES ('" + id + "')")
					return errors.Join(err, failure)
				})
			}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers, on.db))
		}
		paid, refused, away := unique("paid"), unique("refused"), errors.New("no money")

		check(t, order(paid, nil))
		if err := order(refused, away); !errors.Is(err, away) {
			t.Fatal(err)
		}

		expect(t, state(t, client, paid), "committed")
		expect(t, state(t, client, refused), "rolled_back")
		expect(t, outcome(t, on, paid), escrowmq.Commit)
		expect(t, rows(t, on, refused), 0)
	})
}

func TestACommitOfTheDatabaseThatFailsIsDecidedByTheMarkerRow(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		if on.markers.Dialect == escrowmq.MySQL {
			t.Skip("has no deferred constraint")
		}
		client, id := service(t), unique("order")
		topic := newTopic(t, client)
		items := unique("items")
		on.db.SetMaxOpenConns(1) // the row is read by the connection of the COMMIT that failed
		_, err := on.db.Exec("CREATE TABLE " + items +
			" (id VARCHAR(100) REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")
		check(t, err)

		err = client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text("x"))
			return tx.Local(ctx, nil, func(local *sql.Tx) error {
				_, err := local.Exec("INSERT INTO " + items + " VALUES ('no such order')")
				return err
			})
		}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers, on.db))

		isNotCommitted(t, err)
		expect(t, state(t, client, id), "rolled_back")
		expect(t, outcome(t, on, id), escrowmq.Rollback)
	})
}

func isNotCommitted(t *testing.T, err error) {
	t.Helper()
	var notCommitted *escrowmq.NotCommittedError
	var unknown *escrowmq.OutcomeUnknownError
	if !errors.As(err, &notCommitted) || errors.As(err, &unknown) {
		t.Fatal(err)
	}
}

func TestAContextThatEndsBeforeTheCommitIsACertainRollback(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)
		request, cancel := context.WithCancel(ctx)

		err := order.call(func(tx *escrowmq.Tx) error {
			return tx.Local(request, nil, func(local *sql.Tx) error {
				_, err := local.Exec("INSERT INTO orders VALUES ('" + order.id + "')")
				cancel()
				return err
			})
		})

		isNotCommitted(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		expect(t, state(t, order.client, order.id), "rolled_back")
		expect(t, rows(t, on, order.id), 0)
	})
}

func TestAFunctionThatForgetsItsCommitIsAnErrorAndPublishesNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		on.db.SetMaxOpenConns(1) // the row is read by the connection of the local transaction
		order := place(t, on)

		err := order.marked(func(*sql.Tx) error { return nil })

		isNotCommitted(t, err)
		expect(t, state(t, order.client, order.id), "rolled_back")
		expect(t, rows(t, on, order.id), 0)
	})
}

func TestAFailureAfterTheMarkIsDecidedAtOnceByTheRow(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		before, after, away := place(t, on), place(t, on), errors.New("away")
		failures := []error{
			before.marked(func(*sql.Tx) error { return away }),
			after.marked(func(local *sql.Tx) error { return errors.Join(local.Commit(), away) }),
		}

		for _, err := range failures {
			if !errors.Is(err, away) {
				t.Fatal(err)
			}
		}
		expect(t, state(t, before.client, before.id), "rolled_back")
		after.isPlacedOnce()
	})
}

func TestAPanicAfterTheMarkIsDecidedAtOnceByTheRow(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)

		func() {
			defer func() { _ = recover() }()
			_ = order.marked(func(*sql.Tx) error { panic("a bug") })
		}()

		expect(t, state(t, order.client, order.id), "rolled_back")
	})
}

func TestABeginComesBeforeTheLocalTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		for _, isLocal := range []bool{false, true} {
			order := place(t, on)
			insert := func(local *sql.Tx) error {
				_, err := local.Exec("INSERT INTO orders VALUES ('" + order.id + "')")
				return err
			}
			check(t, order.call(func(tx *escrowmq.Tx) error {
				check(t, tx.Begin(ctx))
				expect(t, state(t, order.client, order.id), "prepared")
				if isLocal {
					return tx.Local(ctx, nil, insert)
				}
				local, err := on.db.BeginTx(ctx, nil)
				check(t, err)
				check(t, tx.Mark(ctx, local))
				return errors.Join(insert(local), local.Commit())
			}))
			order.isPlacedOnce()
		}
	})
}

func TestABeginWithoutAMarkIsRolledBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)

		err := order.call(func(tx *escrowmq.Tx) error { return tx.Begin(ctx) })

		if !errors.Is(err, escrowmq.ErrNotMarked) {
			t.Fatal(err)
		}
		expect(t, state(t, order.client, order.id), "rolled_back")
	})
}

func TestAMarkCanBeTriedAgainWithinItsTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)
		check(t, order.call(func(tx *escrowmq.Tx) error {
			for _, commits := range []bool{false, true} {
				local, err := on.db.BeginTx(ctx, nil)
				check(t, err)
				check(t, tx.Mark(ctx, local))
				if !commits {
					check(t, local.Rollback()) // a deadlock
					continue
				}
				_, err = local.Exec("INSERT INTO orders VALUES ('" + order.id + "')")
				check(t, err)
				check(t, local.Commit())
			}
			return nil
		}))
		order.isPlacedOnce()
	})
}

func TestAMarkOfWorkThatAnotherCallHasCommittedSaysSo(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)
		order.died(true)

		err := order.marked(func(*sql.Tx) error { return never() })

		var resolved *escrowmq.AlreadyResolvedError
		if !errors.As(err, &resolved) || resolved.State != "committed" || resolved.Err != nil ||
			errors.Is(err, escrowmq.ErrFenced) {
			t.Fatal(err)
		}
		order.isPlacedOnce()
	})
}

func TestACallWithAnIDOfOtherMessagesLeavesTheirTransactionAlone(t *testing.T) {
	client, id := service(t), unique("order")
	topic := newTopic(t, client)
	begin := func(text string, failure error) error {
		return client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text(text))
			return errors.Join(tx.Begin(ctx), failure)
		}, escrowmq.WithID(id))
	}
	away := errors.New("away")

	first, second := begin("x", away), begin("y", nil)

	if !errors.Is(first, away) || !escrowmq.HasCode(second, "idempotency_key_reused") {
		t.Fatal(first, second)
	}
	var taken *escrowmq.IDTakenError
	if !errors.As(second, &taken) || !strings.Contains(second.Error(), id) {
		t.Fatal(second)
	}
	expect(t, taken.State, "prepared")
	expect(t, state(t, client, id), "prepared")
}

// placing is an order that is placed in calls with one transaction id.
type placing struct {
	t         *testing.T
	on        database
	client    *escrowmq.Client
	topic, id string
}

func place(t *testing.T, on database) placing {
	client := service(t)
	return placing{t, on, client, newTopic(t, client), unique("order")}
}

func (p placing) call(do func(*escrowmq.Tx) error) error {
	return p.client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
		tx.Add(p.topic, escrowmq.Text("x"))
		return do(tx)
	}, escrowmq.WithID(p.id), escrowmq.WithMarkers(p.on.markers, p.on.db))
}

// local places the order; `before` comes first, within the local transaction.
func (p placing) local(before func() error) error {
	return p.call(func(tx *escrowmq.Tx) error {
		return tx.Local(ctx, nil, func(local *sql.Tx) error {
			if err := before(); err != nil {
				return err
			}
			_, err := local.Exec("INSERT INTO orders VALUES ('" + p.id + "')")
			return err
		})
	})
}

// marked places the order in a local transaction of its own, whose end is the caller's.
func (p placing) marked(end func(*sql.Tx) error) error {
	return p.call(func(tx *escrowmq.Tx) error {
		local, err := p.on.db.BeginTx(ctx, nil)
		check(p.t, err)
		defer func() { _ = local.Rollback() }()
		if err := tx.Mark(ctx, local); err != nil {
			return err
		}
		if _, err := local.Exec("INSERT INTO orders VALUES ('" + p.id + "')"); err != nil {
			return err
		}
		return end(local)
	})
}

// died is the end of a process that has begun, and has committed locally or not. It sends nothing
// more: here, as it cannot read the marker row.
func (p placing) died(commits bool) {
	p.t.Helper()
	died, db := errors.New("died"), p.on.db
	p.on.db = closed(p.t)
	err := p.call(func(tx *escrowmq.Tx) error {
		if !commits {
			return errors.Join(tx.Begin(ctx), died)
		}
		local, err := db.BeginTx(ctx, nil)
		check(p.t, err)
		check(p.t, tx.Mark(ctx, local))
		_, err = local.Exec("INSERT INTO orders VALUES ('" + p.id + "')")
		check(p.t, err)
		check(p.t, local.Commit())
		return died
	})
	if !errors.Is(err, died) {
		p.t.Fatal(err)
	}
	expect(p.t, state(p.t, p.client, p.id), "prepared")
}

func (p placing) isPlacedOnce() {
	p.t.Helper()
	expect(p.t, state(p.t, p.client, p.id), "committed")
	expect(p.t, rows(p.t, p.on, p.id), 1)
}

func works() error { return nil }

func never() error { return errors.New("the work is repeated") }

func TestACallWithTheIDOfAProcessThatDiedContinuesItsTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		before, after := place(t, on), place(t, on)
		before.died(false)
		after.died(true)

		check(t, before.local(works))
		check(t, after.local(never))

		before.isPlacedOnce()
		after.isPlacedOnce()
		check(t, after.local(never)) // and a call after the end finds nothing to do
		after.isPlacedOnce()
	})
}

func TestACallWithAnIDThatWasRolledBackSaysSo(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order, deadlock := place(t, on), errors.New("deadlock detected")
		err := order.local(func() error { return deadlock })
		if !errors.Is(err, deadlock) {
			t.Fatal(err)
		}

		err = order.local(works)

		var resolved *escrowmq.AlreadyResolvedError
		if !errors.As(err, &resolved) || resolved.State != "rolled_back" {
			t.Fatal(err)
		}
		expect(t, rows(t, on, order.id), 0)
	})
}

func TestALocalTransactionCanBeTriedAgainWithinItsTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order, tries := place(t, on), 0
		err := order.call(func(tx *escrowmq.Tx) error {
			var err error
			for range 3 {
				err = tx.Local(ctx, nil, func(local *sql.Tx) error {
					tries++
					if tries < 3 {
						return errors.New("deadlock detected")
					}
					_, err := local.Exec("INSERT INTO orders VALUES ('" + order.id + "')")
					return err
				})
			}
			return err
		})

		check(t, err)
		order.isPlacedOnce()
	})
}

func TestTwoCallsWithOneIDAtOncePlaceItOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		for _, firstFails := range []bool{false, true} {
			order, second := place(t, on), make(chan error, 1)
			failure := errors.New("deadlock detected")
			first := order.local(func() error {
				go func() { second <- order.local(works) }() // waits for the row of the first
				time.Sleep(200 * time.Millisecond)
				if firstFails {
					return failure
				}
				return nil
			})

			if firstFails && !errors.Is(first, failure) || !firstFails && first != nil {
				t.Fatal(first)
			}
			err := <-second
			committed := err == nil
			if !committed && !firstFails {
				t.Fatal(err)
			}
			if committed {
				order.isPlacedOnce()
			} else {
				// The first was faster with its fence than the second with its row.
				expect(t, state(t, order.client, order.id), "rolled_back")
				expect(t, rows(t, on, order.id), 0)
			}
		}
	})
}

func TestACallWhoseDatabaseCannotBeAskedLeavesTheTransactionToAnother(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order, away := place(t, on), on
		away.db = closed(t)

		check(t, order.local(func() error {
			other := order
			other.on = away
			var unknown *escrowmq.OutcomeUnknownError
			if err := other.local(never); !errors.As(err, &unknown) {
				t.Error(err)
			}
			return nil
		}))

		order.isPlacedOnce()
	})
}

func TestACommitThatTheServiceRefusesAfterTheLocalOneHasAName(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		order := place(t, on)

		err := order.local(func() error {
			_, err := escrowmq.Check(order.client.API.RollbackTransactionWithResponse(
				ctx, order.id, api.RollbackInput{})) // an operator
			return err
		})

		var resolved *escrowmq.AlreadyResolvedError
		if !errors.As(err, &resolved) || resolved.Err == nil ||
			!escrowmq.HasCode(err, "transaction_already_resolved") {
			t.Fatal(err)
		}
		expect(t, rows(t, on, order.id), 1)
	})
}

func TestASendWithAKeyOfYourOwnIsStoredOnce(t *testing.T) {
	client := service(t)
	topic, key := newTopic(t, client), escrowmq.IdempotencyKey("pay-1")

	first, err := client.Send(ctx, topic, escrowmq.Text("x"), key)
	check(t, err)
	second, err := client.Send(ctx, topic, escrowmq.Text("x"), key)

	check(t, err)
	expect(t, second.MessageID, first.MessageID)
	expect(t, second.Deduplicated, true)
}

func TestAHandlerRepliesAndADeadLetterIsRedriven(t *testing.T) {
	client, topic, group := service(t), unique("quotes"), unique("pricing")
	_, err := client.PutTopic(ctx, topic, api.TopicDefinition{Queues: escrowmq.Ptr(int32(1))})
	check(t, err)
	_, err = client.PutGroup(ctx, group,
		api.GroupInput{MaxAttempts: escrowmq.Ptr(int32(2))}, topic)
	check(t, err)
	asked := make(chan *api.SendRequestResponse, 1)
	go func() {
		answer, _ := escrowmq.Check(client.API.SendRequestWithResponse(ctx, topic, nil,
			api.RequestInput{Message: escrowmq.Text("?"), WaitMs: escrowmq.Ptr(int64(20_000))}))
		asked <- answer
	}()
	running, stop := context.WithCancel(ctx)
	calls := 0
	worker := &escrowmq.Worker{Client: client, Group: group, Concurrency: 1,
		Handle: func(ctx context.Context, delivery escrowmq.Delivery) error {
			calls++
			if calls == 1 {
				return escrowmq.DeadLetter("not yet")
			}
			defer stop()
			for range 2 { // as after a crash behind the first reply
				_, err := client.Reply(ctx, delivery.ReceivedMessage, escrowmq.JSON("4.20"))
				check(t, err)
			}
			return nil
		}}
	ended := make(chan error)
	go func() { ended <- worker.Run(running) }()

	for worker.Stats().DeadLetters == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = client.Redrive(ctx, group, api.RedriveInput{Select: api.RedriveSelectAll})
	check(t, err)

	check(t, <-ended)
	answer := <-asked
	if answer.JSON2XX == nil {
		t.Fatal(string(answer.Body))
	}
	expect(t, *answer.JSON2XX.Reply.Payload, `"4.20"`)
	expect(t, fmt.Sprint(worker.Stats()), "{1 0 0 1}")
}

func TestWithoutALocalTransactionTheMessagesArePublishedUnlessTheFunctionFails(t *testing.T) {
	client, id := service(t), unique("order")
	topic := newTopic(t, client)
	away := errors.New("away")
	run := func(failure error) error {
		return client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text("x"))
			return failure
		}, escrowmq.WithID(id))
	}

	if err := run(away); !errors.Is(err, away) {
		t.Fatal(err)
	}
	answer, err := client.API.GetTransactionWithResponse(ctx, id, nil)
	check(t, err)
	expect(t, answer.HTTPResponse.StatusCode, 404)
	check(t, run(nil))
	expect(t, state(t, client, id), "committed")
}

func TestACheckThatComesFirstFencesASlowProducer(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		client, id := service(t), unique("order")
		topic := newTopic(t, client)

		err := client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text("x"))
			expect(t, outcome(t, on, id), escrowmq.Rollback)
			never := func(*sql.Tx) error { return errors.New("never called") }
			return tx.Local(ctx, nil, never)
		}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers, on.db))

		if !errors.Is(err, escrowmq.ErrFenced) {
			t.Fatal(err)
		}
		expect(t, state(t, client, id), "rolled_back")
	})
}

func TestACheckBesideAnOpenTransactionNeverAnswersOtherwiseThanItEnds(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		for _, commits := range []bool{true, false} {
			id := unique("order")
			local, err := on.db.BeginTx(ctx, nil)
			check(t, err)
			check(t, on.markers.Mark(ctx, local, id))
			answered := make(chan escrowmq.Decision)
			go func() {
				decision, _ := on.markers.Outcome(ctx, on.db, id)
				answered <- decision
			}()
			if commits {
				check(t, local.Commit())
				expect(t, <-answered, escrowmq.Commit)
			} else {
				check(t, local.Rollback())
				expect(t, <-answered, escrowmq.Rollback)
			}
		}
	})
}

func TestACheckerDecidesWhatTheProducerLeftOpen(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		client, group := service(t), unique("shop")
		topic := newTopic(t, client)
		written, lost := unique("written"), unique("lost")
		first := int64(10)
		for _, id := range []string{written, lost} {
			// A process that dies after its local COMMIT, or before it, sends nothing more.
			died := errors.New("died")
			err := client.Transaction(ctx, group, func(tx *escrowmq.Tx) error {
				tx.Add(topic, escrowmq.Text("x"))
				local, err := on.db.BeginTx(ctx, nil)
				check(t, err)
				check(t, tx.Mark(ctx, local))
				if id == written {
					check(t, local.Commit())
				} else {
					check(t, local.Rollback())
				}
				return died
			}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers, closed(t)),
				escrowmq.WithCheck(api.CheckInput{FirstAfterMs: &first}))
			if !errors.Is(err, died) {
				t.Fatal(err)
			}
			expect(t, state(t, client, id), "prepared")
		}

		checker := &escrowmq.Checker{Client: client, ProducerGroup: group,
			Answer: func(ctx context.Context, id string) (escrowmq.Decision, error) {
				return on.markers.Outcome(ctx, on.db, id)
			}}
		for answered := 0; answered < 2; {
			count, err := checker.RunOnce(ctx, 10*time.Second)
			check(t, err)
			answered += count
		}

		expect(t, state(t, client, written), "committed")
		expect(t, state(t, client, lost), "rolled_back")
	})
}

func TestTheHandlerOfChecksIsSafe(t *testing.T) {
	client, group := service(t), unique("shop")
	var secret string
	endpoint := httptest.NewServer(escrowmq.CheckHandler(
		func() []string { return []string{secret} },
		func(context.Context, string) (escrowmq.Decision, error) { return escrowmq.Rollback, nil }))
	defer endpoint.Close()
	mode := api.CheckMode("webhook")
	made, err := client.PutProducerGroup(ctx, group,
		api.ProducerGroupInput{CheckMode: &mode, CheckURL: &endpoint.URL})
	check(t, err)
	secret = *made.SigningSecret

	tested, err := client.API.TestCheckEndpointWithResponse(ctx, group)

	check(t, err)
	if tested.JSON200 == nil || !tested.JSON200.Passed {
		t.Fatal(string(tested.Body))
	}
}

func TestAWorkerHandlesEachMessageAndRepeatsThoseThatFailed(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	noDelay := []int64{0}
	consume(t, client, group, topic, api.GroupInput{BackoffMs: &noDelay})
	for n := range 50 {
		_, err := client.Send(ctx, topic, escrowmq.JSON(n))
		check(t, err)
	}
	running, stop := context.WithCancel(ctx)
	var mutex sync.Mutex
	seen := map[int]int{}
	log, logger := newLog()
	worker := &escrowmq.Worker{Client: client, Group: group, Concurrency: 8, Log: logger,
		Handle: func(_ context.Context, delivery escrowmq.Delivery) error {
			var n int
			if err := delivery.Decode(&n); err != nil {
				return escrowmq.DeadLetter(err.Error())
			}
			mutex.Lock()
			defer mutex.Unlock()
			seen[n]++
			done := 0
			for _, times := range seen {
				done += times
			}
			if done == 52 {
				defer stop()
			}
			switch {
			case n == 7 && seen[n] == 1:
				return errors.New("not now\nno paper")
			case n == 8 && seen[n] == 1:
				panic("a bug")
			case n == 9:
				return escrowmq.DeadLetter("never\nno paper")
			}
			return nil
		}}

	check(t, worker.Run(running))

	expect(t, len(seen), 50)
	expect(t, fmt.Sprint(seen[7], seen[8], seen[9]), "2 2 1")
	expect(t, fmt.Sprint(worker.Stats()), "{49 2 0 1}")
	if !regexp.MustCompile(`panic: a bug.* stack=.*live_test.go`).MatchString(log.String()) {
		t.Fatal(log)
	}
	dead, err := client.API.ListDeadLettersWithResponse(ctx, group, nil)
	check(t, err)
	expect(t, len(dead.JSON200.Items), 1)
}

func TestAHandlerWhoseLeaseIsLostIsCancelledAndOneThatIsSlowKeepsIts(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	lease := int64(600)
	consume(t, client, group, topic, api.GroupInput{LeaseMs: &lease})
	for _, body := range []string{"slow", "lost"} {
		_, err := client.Send(ctx, topic, escrowmq.Text(body))
		check(t, err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	cause, extended := make(chan error, 1), make(chan struct{})
	worker := &escrowmq.Worker{Client: client, Group: group,
		Handle: func(ctx context.Context, delivery escrowmq.Delivery) error {
			body, _ := delivery.Body()
			if string(body) == "slow" {
				<-extended
				return nil
			}
			// Another program settles it with the same handle.
			_, err := client.API.DeadLetterMessagesWithResponse(ctx, group, api.DeadLetterInput{
				Entries: []api.DeadLetterEntry{{ReceiptHandle: delivery.ReceiptHandle}}})
			check(t, err)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}}
	ended := make(chan error)
	go func() { ended <- worker.Run(running) }()

	expect(t, <-cause, escrowmq.ErrLeaseLost)
	close(extended) // both leases have been extended at least once by now, or refused to be
	for worker.Stats().Acknowledged == 0 {
		time.Sleep(time.Millisecond)
	}
	stop()
	check(t, <-ended)
	expect(t, fmt.Sprint(worker.Stats()), "{1 0 1 0}")
}

func TestAWorkerThatRunsUntilIdleHandlesWhatIsAvailable(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	consume(t, client, group, topic, api.GroupInput{BackoffMs: &[]int64{0}})
	for n := range 3 {
		_, err := client.Send(ctx, topic, escrowmq.JSON(n))
		check(t, err)
	}
	failed := false
	worker := &escrowmq.Worker{Client: client, Group: group,
		Handle: func(context.Context, escrowmq.Delivery) error {
			if !failed {
				failed = true
				return errors.New("not now")
			}
			return nil
		}}

	handled, err := worker.RunUntilIdle(ctx)

	check(t, err)
	expect(t, handled, 4)
	expect(t, fmt.Sprint(worker.Stats()), "{3 1 0 0}")
	handled, err = worker.RunUntilIdle(ctx)
	check(t, err)
	expect(t, handled, 0)
}

func TestAHandlerThatTakesLongerThanMaxLeaseIsNamedInTheLog(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	consume(t, client, group, topic, api.GroupInput{LeaseMs: escrowmq.Ptr(int64(300))})
	_, err := client.Send(ctx, topic, escrowmq.Text("x"))
	check(t, err)
	running, stop := context.WithCancel(ctx)
	log, logger := newLog()
	worker := &escrowmq.Worker{
		Client: client, Group: group, MaxLease: time.Millisecond, Log: logger,
		Handle: func(ctx context.Context, _ escrowmq.Delivery) error {
			defer stop()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), escrowmq.ErrLeaseLost) {
				t.Error(context.Cause(ctx))
			}
			return ctx.Err()
		}}

	check(t, worker.Run(running))

	expect(t, fmt.Sprint(worker.Stats()), "{0 0 1 0}")
	if lines := strings.TrimSpace(log.String()); strings.Contains(lines, "\n") ||
		!strings.Contains(lines, "took longer than MaxLease") {
		t.Fatal(lines)
	}
}

func TestAWorkerThatStopsRejectsWhatItHasNotFinished(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	consume(t, client, group, topic, api.GroupInput{})
	_, err := client.Send(ctx, topic, escrowmq.Text("x"))
	check(t, err)
	running, stop := context.WithCancel(ctx)
	log, logger := newLog()
	worker := &escrowmq.Worker{
		Client: client, Group: group, Shutdown: time.Millisecond, Log: logger,
		Handle: func(ctx context.Context, _ escrowmq.Delivery) error {
			stop()
			<-ctx.Done()
			return context.Cause(ctx)
		}}

	check(t, worker.Run(running))
	if !strings.Contains(log.String(), "level=WARN msg=\"a message was rejected at the stop") {
		t.Fatal(log)
	}

	wait := int64(5000)
	again, err := client.API.ReceiveMessagesWithResponse(
		ctx, group, api.ReceiveInput{WaitMs: &wait})
	check(t, err)
	expect(t, len(again.JSON200.Messages), 1)
	expect(t, again.JSON200.Messages[0].Attempt, int32(2))
}

func TestMessagesThatNoHandlerHasBegunKeepTheirLastAttempt(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	consume(t, client, group, topic, api.GroupInput{
		Ordered: escrowmq.Ptr(true), MaxAttempts: escrowmq.Ptr(int32(1)),
		LeaseMs: escrowmq.Ptr(int64(600_000))})
	sent := make([]string, 3)
	for n := range sent {
		message := escrowmq.JSON(n)
		message.OrderingKey = escrowmq.Ptr("k")
		receipt, err := client.Send(ctx, topic, message)
		check(t, err)
		sent[n] = receipt.MessageID
	}
	running, stop := context.WithCancel(ctx)
	worker := &escrowmq.Worker{Client: client, Group: group, Shutdown: time.Millisecond,
		Handle: func(ctx context.Context, _ escrowmq.Delivery) error {
			stop()
			<-ctx.Done() // the others wait for it
			return nil
		}}

	check(t, worker.Run(running))

	expect(t, fmt.Sprint(worker.Stats()), "{1 2 0 0}")
	dead, err := client.API.ListDeadLettersWithResponse(ctx, group, nil)
	check(t, err)
	expect(t, len(dead.JSON200.Items), 0)
	again, err := client.API.ReceiveMessagesWithResponse(
		ctx, group, api.ReceiveInput{WaitMs: escrowmq.Ptr(int64(5000))})
	check(t, err)
	expect(t, len(again.JSON200.Messages), 2)
	for n, message := range again.JSON200.Messages {
		expect(t, message.MessageID, sent[n+1])
		expect(t, message.Attempt, int32(1))
	}
}

// pgxTx is the adapter of the README, for a transaction of pgx itself.
type pgxTx struct{ pgx.Tx }

func (t pgxTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := t.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func TestATransactionOfPgxItselfIsMarkedAndItsRowDecides(t *testing.T) {
	address := os.Getenv("ESCROWMQ_TEST_POSTGRESQL")
	if address == "" {
		t.Skip("no server")
	}
	pool, err := pgxpool.New(ctx, address)
	check(t, err)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	markers := &escrowmq.Markers{Dialect: escrowmq.PostgreSQL, Table: unique("markers")}
	check(t, markers.CreateTable(ctx, db))
	order := place(t, database{db, markers})

	check(t, order.call(func(tx *escrowmq.Tx) error {
		return pgx.BeginFunc(ctx, pool, func(local pgx.Tx) error {
			return tx.Mark(ctx, pgxTx{local})
		})
	}))
	expect(t, state(t, order.client, order.id), "committed")

	order = place(t, database{db, markers})
	err = order.call(func(tx *escrowmq.Tx) error {
		local, err := pool.Begin(ctx)
		check(t, err)
		check(t, tx.Mark(ctx, pgxTx{local}))
		_, _ = local.Exec(ctx, "SELECT 1 / 0")
		if err := local.Commit(ctx); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Fatal(err)
		}
		return nil // the error of the COMMIT is dropped
	})
	isNotCommitted(t, err)
	expect(t, state(t, order.client, order.id), "rolled_back")
}

func TestATransactionOfGormIsMarkedAndItsRowDecides(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		if on.markers.Dialect != escrowmq.PostgreSQL {
			t.Skip("is enough on one")
		}
		orm, err := gorm.Open(postgres.New(postgres.Config{Conn: on.db}),
			&gorm.Config{PrepareStmt: true, Logger: gormlog.Discard})
		check(t, err)
		outer := place(t, on)
		err = outer.call(func(tx *escrowmq.Tx) error {
			return orm.Transaction(func(*gorm.DB) error {
				return tx.Mark(ctx, orm.Statement.ConnPool)
			})
		})
		if err == nil || !strings.Contains(err.Error(), "this is a pool") {
			t.Fatal(err)
		}
		expect(t, state(t, outer.client, outer.id), "rolled_back")
		for _, failure := range []error{nil, errors.New("no money")} {
			order := place(t, on)
			err := order.call(func(tx *escrowmq.Tx) error {
				return orm.WithContext(ctx).Transaction(func(local *gorm.DB) error {
					check(t, tx.Mark(ctx, local.Statement.ConnPool))
					return errors.Join(
						local.Exec("INSERT INTO orders VALUES (?)", order.id).Error, failure)
				})
			})
			if failure == nil {
				check(t, err)
				order.isPlacedOnce()
				continue
			}
			if !errors.Is(err, failure) {
				t.Fatal(err)
			}
			expect(t, state(t, order.client, order.id), "rolled_back")
		}
	})
}

func TestAWorkerOfAGroupThatDoesNotExistSaysSo(t *testing.T) {
	worker := &escrowmq.Worker{Client: service(t), Group: unique("nowhere")}

	if err := worker.Run(ctx); !escrowmq.HasCode(err, "group_not_found") {
		t.Fatal(err)
	}
}

func newLog() (*strings.Builder, *slog.Logger) {
	log := &strings.Builder{} // the logger writes one line at a time
	return log, slog.New(slog.NewTextHandler(log, nil))
}

func service(t *testing.T) *escrowmq.Client {
	t.Helper()
	if os.Getenv("ESCROWMQ_URL") == "" {
		t.Skip("ESCROWMQ_URL is not set")
	}
	key := escrowmq.WithAPIKey(os.Getenv("ESCROWMQ_API_KEY"))
	client, err := escrowmq.New(os.Getenv("ESCROWMQ_URL"), key)
	check(t, err)
	return client
}

func newTopic(t *testing.T, client *escrowmq.Client) string {
	t.Helper()
	topic := unique("orders")
	made, err := client.API.CreateTopicWithResponse(ctx, nil, api.TopicInput{Topic: topic})
	check(t, err)
	if made.JSON2XX == nil {
		t.Fatal(string(made.Body))
	}
	return topic
}

func consume(t *testing.T, client *escrowmq.Client, group, topic string, input api.GroupInput) {
	t.Helper()
	input.Topics = &[]api.SubscriptionInput{{Topic: topic}}
	made, err := client.API.PutGroupWithResponse(ctx, group, nil, input)
	check(t, err)
	if made.JSON2XX == nil {
		t.Fatal(string(made.Body))
	}
}

// closed is a database that cannot be asked.
func closed(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file::memory:")
	check(t, err)
	check(t, db.Close())
	return db
}

func state(t *testing.T, client *escrowmq.Client, id string) string {
	t.Helper()
	answer, err := client.API.GetTransactionWithResponse(ctx, id, nil)
	check(t, err)
	if answer.JSON200 == nil {
		t.Fatal(string(answer.Body))
	}
	return string(answer.JSON200.State)
}

func outcome(t *testing.T, on database, id string) escrowmq.Decision {
	t.Helper()
	decision, err := on.markers.Outcome(ctx, on.db, id)
	check(t, err)
	return decision
}

func rows(t *testing.T, on database, id string) (count int) {
	t.Helper()
	check(t, on.db.QueryRow("SELECT count(*) FROM orders WHERE id = '"+id+"'").Scan(&count))
	return count
}

var counter = time.Now().UnixNano()

func unique(name string) string {
	counter++
	return fmt.Sprintf("%s_%d", name, counter)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect[T comparable](t *testing.T, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%v instead of %v", got, expected)
	}
}
