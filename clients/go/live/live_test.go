// Package live tests the client against a running service, whose address is ESCROWMQ_URL, and
// against databases.
package live

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"escrowmq.dev/go"
	"escrowmq.dev/go/api"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
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
				return tx.Local(ctx, on.db, nil, func(local *sql.Tx) error {
					_, err := local.Exec("INSERT INTO orders VALUES ('" + id + "')")
					return errors.Join(err, failure)
				})
			}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers))
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

func TestACommitOfTheDatabaseThatFailsIsLeftToTheCheck(t *testing.T) {
	eachDatabase(t, func(t *testing.T, on database) {
		if on.markers.Dialect == escrowmq.MySQL {
			t.Skip("has no deferred constraint")
		}
		client, id := service(t), unique("order")
		topic := newTopic(t, client)
		items := unique("items")
		on.db.SetMaxOpenConns(1) // the check uses the connection of the COMMIT that failed
		_, err := on.db.Exec("CREATE TABLE " + items +
			" (id VARCHAR(100) REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")
		check(t, err)

		err = client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text("x"))
			return tx.Local(ctx, on.db, nil, func(local *sql.Tx) error {
				_, err := local.Exec("INSERT INTO " + items + " VALUES ('no such order')")
				return err
			})
		}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers))

		var unknown *escrowmq.OutcomeUnknownError
		if !errors.As(err, &unknown) {
			t.Fatal(err)
		}
		expect(t, state(t, client, id), "prepared")
		expect(t, outcome(t, on, id), escrowmq.Rollback)
	})
}

func TestACallWithAnIDThatExistsLeavesTheOtherTransactionAlone(t *testing.T) {
	client, id := service(t), unique("order")
	topic := newTopic(t, client)
	begin := func(failure error) error {
		return client.Transaction(ctx, "shop", func(tx *escrowmq.Tx) error {
			tx.Add(topic, escrowmq.Text("x"))
			return errors.Join(tx.Begin(ctx), failure)
		}, escrowmq.WithID(id))
	}
	away := errors.New("away")

	first, second := begin(away), begin(nil)

	if !errors.Is(first, away) || !escrowmq.HasCode(second, "transaction_exists") {
		t.Fatal(first, second)
	}
	expect(t, state(t, client, id), "prepared")
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
			return tx.Local(ctx, on.db, nil, never)
		}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers))

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
			}, escrowmq.WithID(id), escrowmq.WithMarkers(on.markers),
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
	made, err := client.API.PutProducerGroupWithResponse(ctx, group, nil,
		api.ProducerGroupInput{CheckMode: &mode, CheckURL: &endpoint.URL})
	check(t, err)
	if made.JSON2XX == nil {
		t.Fatal(string(made.Body))
	}
	secret = *made.JSON2XX.SigningSecret

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
	worker := &escrowmq.Worker{Client: client, Group: group, Concurrency: 8,
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
				return errors.New("not now")
			case n == 8 && seen[n] == 1:
				panic("a bug")
			case n == 9:
				return escrowmq.DeadLetter("never")
			}
			return nil
		}}

	check(t, worker.Run(running))

	expect(t, len(seen), 50)
	expect(t, fmt.Sprint(seen[7], seen[8], seen[9]), "2 2 1")
	expect(t, fmt.Sprint(worker.Stats()), "{49 3 0}")
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
	expect(t, fmt.Sprint(worker.Stats()), "{1 0 1}")
}

func TestAWorkerThatStopsGivesBackWhatItHasNotFinished(t *testing.T) {
	client, group := service(t), unique("billing")
	topic := newTopic(t, client)
	consume(t, client, group, topic, api.GroupInput{})
	_, err := client.Send(ctx, topic, escrowmq.Text("x"))
	check(t, err)
	running, stop := context.WithCancel(ctx)
	worker := &escrowmq.Worker{Client: client, Group: group, Shutdown: time.Millisecond,
		Handle: func(ctx context.Context, _ escrowmq.Delivery) error {
			stop()
			<-ctx.Done()
			return context.Cause(ctx)
		}}

	check(t, worker.Run(running))

	wait := int64(5000)
	again, err := client.API.ReceiveMessagesWithResponse(
		ctx, group, api.ReceiveInput{WaitMs: &wait})
	check(t, err)
	expect(t, len(again.JSON200.Messages), 1)
	expect(t, again.JSON200.Messages[0].Attempt, int32(2))
}

func TestAWorkerOfAGroupThatDoesNotExistSaysSo(t *testing.T) {
	worker := &escrowmq.Worker{Client: service(t), Group: unique("nowhere")}

	if err := worker.Run(ctx); !escrowmq.HasCode(err, "group_not_found") {
		t.Fatal(err)
	}
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
