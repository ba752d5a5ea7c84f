package escrowmq

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"escrowmq.dev/go/api"
)

var ctx = context.Background()

// answering is a server that gives these answers, one after another, and keeps what it was sent.
type answering struct {
	*httptest.Server
	list   *[]answer
	keys   []string
	bodies []string
}

type answer struct {
	status int
	body   string
}

func answers(t *testing.T, list ...answer) *answering {
	t.Helper()
	found := &answering{list: &list}
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		found.keys = append(found.keys, r.Header.Get("Idempotency-Key"))
		found.bodies = append(found.bodies, string(body))
		next := list[min(len(found.bodies), len(list))-1]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(next.status)
		_, _ = io.WriteString(w, next.body)
	}
	found.Server = httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(found.Close)
	return found
}

// leadTo answers as a replica of the service at this address.
func (a *answering) leadTo(url string) { *a.list = []answer{leadsTo(url)} }

const receipt = `{"message_id":"msg_1","topic":"orders","stored_at":"2026-11-24T00:00:00Z",
	"durability":"synced","deduplicated":false}`

func newClient(t *testing.T, url string) *Client {
	t.Helper()
	client, err := New(url, WithRetry(Retry{Total: time.Minute, First: 1, Longest: 1}))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestASendThatIsRepeatedHasTheSameKeyAndTheSameBody(t *testing.T) {
	server := answers(t,
		answer{503, `{"code":"overloaded","status":503,"retryable":true,"retry_after_ms":1}`},
		answer{429, `busy`}, answer{201, receipt})

	got, err := newClient(t, server.URL).Send(ctx, "orders", JSON(map[string]int{"n": 1}))

	if err != nil || got.MessageID != "msg_1" {
		t.Fatal(got, err)
	}
	if len(server.keys) != 3 || server.keys[0] == "" || server.keys[0] != server.keys[2] {
		t.Error("keys:", server.keys)
	}
	if strings.TrimSpace(server.bodies[0]) != `{"json":{"n":1}}` {
		t.Error("body:", server.bodies[0])
	}
	if server.bodies[0] != server.bodies[2] {
		t.Error("bodies:", server.bodies)
	}
}

func TestAProblemWithAnUnknownCodeIsAProblemErrorAndIsNotRepeated(t *testing.T) {
	server := answers(t,
		answer{409, `{"code":"brand_new","detail":"why","status":409,"retryable":false}`})

	_, err := newClient(t, server.URL).Send(ctx, "orders", Text("x"))

	var problem *ProblemError
	if !errors.As(err, &problem) || problem.Code != "brand_new" || problem.Status != 409 {
		t.Fatal(err)
	}
	if len(server.bodies) != 1 {
		t.Error(len(server.bodies), "tries")
	}
}

func TestAProblemErrorNamesItsFields(t *testing.T) {
	key := api.FieldError{Pointer: "/message/key", Detail: "must be without spaces"}
	tag := api.FieldError{Pointer: "/message/tag", Detail: "is too long"}
	cases := []struct {
		detail string
		fields []api.FieldError
		text   string
	}{
		{"why", nil, "validation_failed: why"},
		{key.Detail, []api.FieldError{key},
			"validation_failed: /message/key: must be without spaces"},
		{"2 fields", []api.FieldError{key, tag}, "validation_failed: 2 fields; " +
			"/message/key: must be without spaces; /message/tag: is too long"},
		{"is too long", []api.FieldError{tag, tag},
			"validation_failed: /message/tag, /message/tag: is too long"},
		{"/message/key is bad", []api.FieldError{key}, "validation_failed: /message/key is bad"},
	}
	for _, c := range cases {
		problem := api.Problem{Code: "validation_failed", Detail: c.detail, Errors: c.fields}
		if text := (&ProblemError{problem}).Error(); text != c.text {
			t.Error(text)
		}
	}
}

func TestAReplyThatDidNotComeInTimeIsNotAskedForAgain(t *testing.T) {
	server := answers(t, answer{504, `{"code":"reply_timeout","status":504,"retryable":true}`})

	_, err := newClient(t, server.URL).Send(ctx, "orders", Text("x"))

	if !HasCode(err, "reply_timeout") || len(server.bodies) != 1 {
		t.Fatal(err, len(server.bodies))
	}
}

func TestAnAnswerOfAProxyIsAnError(t *testing.T) {
	for _, one := range []answer{{500, "<html>"}, {200, "<html>"}, {200, ""}} {
		server := answers(t, one)
		if got, err := newClient(t, server.URL).Send(ctx, "orders", Text("x")); err == nil {
			t.Error(one, got)
		}
	}
}

func TestTheDelayGrowsToItsLimitAndIsNeverShorterThanTheServiceAsks(t *testing.T) {
	retry := Retry{Total: time.Minute, First: 100 * time.Millisecond, Longest: 5 * time.Second}
	cases := []struct {
		tries        int
		spent, asked time.Duration
		random       float64
		wait         time.Duration
		again        bool
	}{
		{1, 0, 0, 0.5, 50 * time.Millisecond, true},
		{2, 0, 0, 0.5, 100 * time.Millisecond, true},
		{50, 0, 0, 0.5, 2500 * time.Millisecond, true},
		{1, 0, time.Second, 0.5, time.Second, true},
		{1, 59 * time.Second, 2 * time.Second, 0, 2 * time.Second, false},
		{1, time.Minute, 0, 0, 0, false},
	}
	for _, c := range cases {
		wait, again := retry.delay(c.tries, c.spent, c.asked, c.random)
		if wait != c.wait || again != c.again {
			t.Errorf("%+v: %v %v", c, wait, again)
		}
	}
}

func TestACommitThatCannotBeSentIsPendingAndOneThatIsRefusedIsAProblem(t *testing.T) {
	begun := answer{201, `{"transaction_id":"t","state":"prepared","producer_group":"shop",
		"messages":[],"prepared_at":"2026-11-24T00:00:00Z","answers":0,"checking":false,
		"late":false,"revision":1}`}
	commit := func(second answer) error {
		server := answers(t, begun, second)
		client, err := New(server.URL, WithRetry(Retry{}))
		if err != nil {
			t.Fatal(err)
		}
		return client.Transaction(context.Background(), "shop", func(tx *Tx) error {
			tx.Add("orders", Text("x"))
			return nil
		})
	}

	var pending *CommitPendingError
	err := commit(answer{503, "away"})
	if !errors.As(err, &pending) || pending.TransactionID == "" {
		t.Error(err)
	}
	refused := answer{409, `{"code":"transaction_already_resolved","status":409,"retryable":false}`}
	err = commit(refused)
	if errors.As(err, &pending) || !HasCode(err, "transaction_already_resolved") {
		t.Error(err)
	}
	var resolved *AlreadyResolvedError
	if !errors.As(err, &resolved) || resolved.State != "rolled_back" || resolved.Err == nil {
		t.Error(err)
	}
}

func TestAMessageThatIsAddedAfterTheBeginPanics(t *testing.T) {
	server := answers(t, answer{503, "away"})
	client, err := New(server.URL, WithRetry(Retry{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the message is dropped in silence")
		}
	}()

	_ = client.Transaction(ctx, "shop", func(tx *Tx) error {
		tx.Add("orders", Text("x"))
		_ = tx.Begin(ctx)
		tx.Add("orders", Text("y"))
		return nil
	})
}

func TestABeginWithoutMessagesIsRefusedBeforeARequest(t *testing.T) {
	server := answers(t, answer{422, `{"code":"validation_failed","status":422}`})

	err := newClient(t, server.URL).Transaction(ctx, "shop", func(tx *Tx) error {
		return tx.Begin(ctx)
	})

	if err == nil || !strings.Contains(err.Error(), "call Add before") || len(server.bodies) > 0 {
		t.Error(err, server.bodies)
	}
}

func TestABeginAfterTheFunctionEndsWithTheContextOfTheCall(t *testing.T) {
	server := answers(t, answer{503, "away"})
	client, err := New(server.URL, WithRetry(Retry{}))
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(ctx)

	err = client.Transaction(gone, "shop", func(tx *Tx) error {
		tx.Add("orders", Text("x"))
		leave()
		return nil
	})

	if !errors.Is(err, context.Canceled) || len(server.bodies) > 0 {
		t.Error(err, server.bodies)
	}
}

func TestACheckIsOneErrorForAnAnswerARefusalAndAnEntry(t *testing.T) {
	ack := func(status int, body string) error {
		client := newClient(t, answers(t, answer{status, body}).URL)
		_, err := Check(client.API.AckMessagesWithResponse(ctx, "billing", api.AckInput{}))
		return err
	}
	refused := `{"accepted":1,"rejected":1,"results":[{"status":200,"receipt_handle":"a"},
		{"status":409,"receipt_handle":"b","problem":{"code":"lease_expired","status":409}}]}`

	if err := ack(200, `{"accepted":0,"rejected":0,"results":[]}`); err != nil {
		t.Error(err)
	}
	err := ack(404, `{"code":"group_not_found","status":404}`)
	if !HasCode(err, "group_not_found") {
		t.Error(err)
	}
	var entries *RefusedError
	err = ack(207, refused)
	if !errors.As(err, &entries) || entries.Refused[1] == nil || !HasCode(err, "lease_expired") {
		t.Error(err)
	}
	away, _ := New("http://127.0.0.1:1", WithRetry(Retry{}))
	if _, err := Check(away.API.GetGroupWithResponse(ctx, "billing")); err == nil {
		t.Error("there is no service")
	}
}

func TestTheCodeOfEachRefusedEntryIsFound(t *testing.T) {
	late := &ProblemError{api.Problem{Code: "lease_expired"}}
	bad := &ProblemError{api.Problem{Code: "invalid_receipt"}}
	for range 20 { // the order of a map is another each time
		err := error(&RefusedError{map[int]*ProblemError{0: late, 3: bad}})
		var first *ProblemError
		if !HasCode(err, "lease_expired") || !HasCode(err, "other", "invalid_receipt") ||
			HasCode(err, "other") || !errors.As(err, &first) || first != late {
			t.Fatal(first)
		}
	}
}

func TestACheckThatWasAnsweredMeanwhileIsNoError(t *testing.T) {
	running, stop := context.WithCancel(ctx)
	server := answers(t,
		answer{200, `{"producer_group":"shop"}`},
		answer{200, `{"checks":[{"check_id":"c","transaction_id":"t"}]}`},
		answer{207, `{"accepted":0,"rejected":1,"results":[{"status":409,"check_id":"c",
			"problem":{"code":"check_not_open","status":409}}]}`},
		answer{404, `{"code":"brand_new","status":404}`})
	var written strings.Builder
	checker := &Checker{Client: newClient(t, server.URL), ProducerGroup: "shop",
		Log: slog.New(slog.NewTextHandler(&written, nil)),
		Answer: func(context.Context, string) (Decision, error) {
			time.AfterFunc(100*time.Millisecond, stop)
			return Commit, nil
		}}

	_ = checker.Run(running)

	log := written.String()
	if !strings.Contains(log, "level=INFO msg=\"an answer to a check came too late") ||
		strings.Count(log, "level=ERROR") != 1 { // the third answer alone
		t.Error(log)
	}
}

func TestACheckerWarnsOfAProducerGroupThatDoesNotExist(t *testing.T) {
	running, stop := context.WithCancel(ctx)
	server := answers(t,
		answer{404, `{"code":"producer_group_not_found","status":404}`},
		answer{200, `{"checks":[{"check_id":"c","transaction_id":"t"}]}`},
		answer{200, `{"accepted":1,"rejected":0,"results":[]}`},
		answer{404, `{"code":"brand_new","status":404}`})
	log, logger := newLog()
	ended := make(chan error)
	checker := &Checker{Client: newClient(t, server.URL), ProducerGroup: "shpo", Log: logger,
		Answer: func(context.Context, string) (Decision, error) { panic("a bug") }}
	go func() { ended <- checker.Run(running) }()

	first, second := log.next(t), log.next(t)
	stop()

	if err := <-ended; err != nil {
		t.Error("a clean stop:", err)
	}
	if !strings.Contains(first, `does not exist`) || !strings.Contains(first, `=shpo`) {
		t.Error(first)
	}
	if !strings.Contains(second, `error="a bug"`) || !strings.Contains(second, "client_test.go") {
		t.Error(second)
	}
}

// logged is a log that a test reads while it is written.
type logged struct{ written chan string }

func (l logged) Write(line []byte) (int, error) {
	l.written <- string(line)
	return len(line), nil
}

func newLog() (logged, *slog.Logger) {
	log := logged{make(chan string, 1000)}
	return log, slog.New(slog.NewTextHandler(log, nil))
}

// next returns the next line, which is written within a time in which no call has given up.
func (l logged) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-l.written:
		return line
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is logged")
		return ""
	}
}

// comesBack is a service that is away for its first requests, and the bodies of the receives.
func comesBack(t *testing.T, away int, received string) (url string, bodies chan string) {
	t.Helper()
	bodies = make(chan string, 1000)
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.HasSuffix(r.URL.Path, "/receive") {
			bodies <- string(body)
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/v1/producer-groups/") && r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"producer_group":"shop"}`)
		} else if away--; away >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"group":"billing","ordered":false}`)
		} else if strings.Contains(string(body), `"wait_ms":0`) {
			_, _ = io.WriteString(w, received)
		} else {
			<-r.Context().Done()
		}
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL, bodies
}

func TestAWorkerLogsAnOutageAtItsFirstFailedTryAndItsEnd(t *testing.T) {
	const none = `{"server_time":"2026-11-24T00:00:00Z","messages":[]}`
	url, bodies := comesBack(t, 4, none)
	client, err := New(url) // with its default rule: it repeats a request for 30 seconds
	if err != nil {
		t.Fatal(err)
	}
	log, logger := newLog()
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	worker := &Worker{Client: client, Group: "billing", Log: logger}
	go func() { ended <- worker.Run(running) }()

	first, second := log.next(t), log.next(t)
	waits := <-bodies // of the receive after the outage, which was noticed while the group was read

	stop()
	if err := <-ended; err != nil || len(log.written) != 0 {
		t.Error(err, len(log.written), "more lines")
	}
	if !strings.Contains(first, "the service cannot be reached") ||
		!strings.Contains(second, "the service answers again") {
		t.Error(first, second)
	}
	if !strings.Contains(waits, `"wait_ms":20000`) {
		t.Error(waits)
	}
}

func TestACheckerLogsAnOutageAtItsFirstFailedTryAndItsEnd(t *testing.T) {
	url, bodies := comesBack(t, 4, `{"checks":[]}`)
	client, err := New(url)
	if err != nil {
		t.Fatal(err)
	}
	log, logger := newLog()
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	checker := &Checker{Client: client, ProducerGroup: "shop", Log: logger}
	go func() { ended <- checker.Run(running) }()

	first, second := log.next(t), log.next(t)
	for range 5 {
		<-bodies
	}
	waits := <-bodies

	stop()
	if err := <-ended; err != nil || len(log.written) != 0 {
		t.Error(err, len(log.written), "more lines")
	}
	if !strings.Contains(first, "the service cannot be reached") ||
		!strings.Contains(second, "the service answers again") {
		t.Error(first, second)
	}
	if !strings.Contains(waits, `"wait_ms":20000`) {
		t.Error(waits)
	}
}

func TestABeginWithoutAnAnswerIsNotRolledBack(t *testing.T) {
	server := answers(t, answer{503, "away"})
	client, err := New(server.URL, WithRetry(Retry{}))
	if err != nil {
		t.Fatal(err)
	}

	err = client.Transaction(ctx, "shop", func(tx *Tx) error {
		tx.Add("orders", Text("x"))
		return tx.Begin(ctx)
	}, WithID("order-1"))

	if err == nil || len(server.bodies) != 1 {
		t.Error(err, len(server.bodies), "requests")
	}
}

// noDatabase is one that cannot be asked.
func noDatabase() *sql.DB { return sql.OpenDB(away{}) }

type away struct{}

func (away) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("away") }

func (away) Driver() driver.Driver { return nil }

func TestAFunctionThatForgetsTheMarkIsAnErrorAndPublishesNothing(t *testing.T) {
	server := answers(t, answer{422, `{"code":"validation_failed","status":422}`})

	err := newClient(t, server.URL).Transaction(ctx, "shop", func(tx *Tx) error {
		tx.Add("orders", Text("x"))
		return nil
	}, WithMarkers(&Markers{}, noDatabase()))

	if !errors.Is(err, ErrNotMarked) || len(server.bodies) > 0 {
		t.Error(err, server.bodies)
	}
}

func TestMarkersWithoutTheirDatabaseAreRefused(t *testing.T) {
	server := answers(t, answer{422, `{"code":"validation_failed","status":422}`})

	err := newClient(t, server.URL).Transaction(ctx, "shop", func(tx *Tx) error {
		t.Error("called")
		return nil
	}, WithMarkers(&Markers{}, nil))

	if err == nil || len(server.bodies) > 0 {
		t.Error(err, server.bodies)
	}
}

func TestABeginWithinAnOpenLocalTransactionGivesUpSoon(t *testing.T) {
	soon := beginTimeout
	defer func() { beginTimeout = soon }()
	beginTimeout = 50 * time.Millisecond
	server := answers(t, answer{503, "away"})
	client, err := New(server.URL) // with its default rule: it repeats a request for 30 seconds
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()

	err = client.Transaction(ctx, "shop", func(tx *Tx) error {
		tx.Add("orders", Text("x"))
		return tx.Mark(ctx, nil)
	}, WithMarkers(&Markers{}, noDatabase()))

	if !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > 10*time.Second {
		t.Error(err, time.Since(started))
	}
}

// preparedPool has the methods of gorm.PreparedStmtDB, which begins transactions of its own kind.
type preparedPool struct{ adapter }

func (preparedPool) BeginTx(context.Context, *sql.TxOptions) (Execer, error) { return nil, nil }

func TestAMarkerRowThatWouldCommitAloneIsRefused(t *testing.T) {
	db := noDatabase()
	for _, pool := range []Execer{db, &preparedPool{}, struct{ *sql.DB }{db}} {
		if err := (&Markers{}).Mark(ctx, pool, "t"); err == nil ||
			!strings.Contains(err.Error(), "needs the transaction") {
			t.Error(pool, err)
		}
	}
}

// adapter is a program's own, of a library without ExecContext.
type adapter struct{}

func (adapter) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return driver.RowsAffected(1), nil
}

// nested is a transaction that begins others within it.
type nested struct{ preparedPool }

func (nested) Commit() error { return nil }

func TestWhatMayBeATransactionIsNoPool(t *testing.T) {
	locals := []Execer{adapter{}, &nested{}, &sql.Tx{}, &sql.Conn{}, struct{ *sql.Tx }{}}
	for _, local := range locals {
		if isPool(local) {
			t.Errorf("%T", local)
		}
	}
}

func TestAGatewayThatGotNoAnswerIsAskedAgain(t *testing.T) {
	server := answers(t, answer{502, "<html>"}, answer{504, ""}, answer{201, receipt})

	if _, err := newClient(t, server.URL).Send(ctx, "orders", Text("x")); err != nil {
		t.Fatal(err)
	}
}

func TestEveryStateOfTheLocalTransactionHasAnEnding(t *testing.T) {
	for state := notBegun; state <= over; state++ {
		if _, found := endings[state]; !found {
			t.Error(state)
		}
	}
	if len(endings) != int(over)+1 {
		t.Error(len(endings))
	}
	if endings[over].succeeded != sendNothing || endings[over].failed != sendNothing {
		t.Error("a begin that failed is decided by the check alone")
	}
}

// Source: the vectors of the Standard Webhooks reference libraries.
func TestASignatureIsVerifiedOverTheRawBody(t *testing.T) {
	secret := "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	at := time.Unix(1614265330, 0)
	header := http.Header{}
	header.Set("Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	header.Set("Webhook-Signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	body := []byte(`{"test": 2432232314}`)
	other := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))

	id, err := Verify([]string{other, secret}, header, body, at)
	if err != nil || id != header.Get("Webhook-Id") {
		t.Fatal(id, err)
	}
	verify := func(secret string, header http.Header, body []byte, at time.Time) error {
		_, err := Verify([]string{secret}, header, body, at)
		return err
	}
	refused := map[string]error{
		"another body":   verify(secret, header, body[1:], at),
		"another secret": verify(other, header, body, at),
		"an old one":     verify(secret, header, body, at.Add(tolerance+time.Second)),
		"no header":      verify(secret, http.Header{}, body, at),
	}
	for name, err := range refused {
		if !errors.Is(err, ErrInvalidSignature) {
			t.Error(name, err)
		}
	}
}

func TestAHandlerIsNotReachedWithoutASignatureAndAnErrorIsNoAnswer(t *testing.T) {
	secret := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	handler := CheckHandler(func() []string { return []string{secret} },
		func(context.Context, string) (Decision, error) { return Commit, errors.New("away") })
	unsigned := httptest.NewRecorder()
	check := strings.NewReader(`{"transaction_id":"t"}`)
	handler.ServeHTTP(unsigned, httptest.NewRequest("POST", "/", check))
	if unsigned.Code != http.StatusUnauthorized {
		t.Error(unsigned.Code)
	}
}

// settled is the line that the log has of a message with this outcome.
func settled(t *testing.T, outcome, cause error) string {
	t.Helper()
	server := answers(t, answer{200, `{"accepted":1,"rejected":0,"results":[]}`})
	log, logger := newLog()
	worker := &Worker{Client: newClient(t, server.URL), Group: "billing", Log: logger}
	worker.outage = &outage{log: logger}
	worker.settle(ctx, Delivery{api.ReceivedMessage{
		MessageID: "msg_1", Topic: "orders", Key: Ptr("order-1"), TransactionID: Ptr("txn_1"),
		Attempt: 2,
	}}, outcome, cause)
	return log.next(t)
}

func TestAReasonIsWithoutControlCharactersWhichTheServiceRefuses(t *testing.T) {
	lines := errors.Join(errors.New("no paper"), errors.New("\tno ink\x7f\u0085"))

	if got := *reasonOf(lines.Error()); got != "no paper no ink" {
		t.Errorf("%q", got)
	}
	if got := *reasonOf(strings.Repeat("😀", 200)); got != strings.Repeat("😀", 120) {
		t.Error(got)
	}
	if got := reasonOf(" \n"); got != nil {
		t.Errorf("%q", *got)
	}
}

func TestALineAboutAMessageNamesItsTopicItsKeyAndItsTransaction(t *testing.T) {
	line := settled(t, errors.New("no paper"), nil)

	if !strings.Contains(line, "message_id=msg_1 topic=orders key=order-1 transaction_id=txn_1") {
		t.Error(line)
	}
}

func TestTheLogSaysWhetherAnAttemptCountsThatAStopHasEnded(t *testing.T) {
	rejected := settled(t, ErrStopped, ErrStopped)
	givenBack := settled(t, notHandled(stopped), ErrStopped)

	counts := `level=WARN msg="a message was rejected at the stop, and its attempt counts"`
	if !strings.Contains(rejected, counts) {
		t.Error(rejected)
	}
	if !strings.Contains(givenBack, `level=INFO msg="a message was given back at the stop"`) {
		t.Error(givenBack)
	}
}

func TestMessagesOfAnOrderedGroupAreHandledByKeyOrQueue(t *testing.T) {
	a, b := "a", "b"
	deliver := func(id string, queue int32, key *string) Delivery {
		return Delivery{api.ReceivedMessage{
			MessageID: id, Topic: "t", QueueID: queue, OrderingKey: key}}
	}
	messages := []Delivery{
		deliver("1", 0, &a), deliver("2", 0, &b), deliver("3", 0, &a), deliver("4", 0, nil),
		deliver("5", 1, nil), deliver("6", 0, nil),
	}

	if got := len(lines(messages, false)); got != 6 {
		t.Error(got)
	}
	ordered := lines(messages, true)
	var ids []string
	for _, line := range ordered {
		id := ""
		for _, delivery := range line {
			id += delivery.MessageID
		}
		ids = append(ids, id)
	}
	if strings.Join(ids, " ") != "13 2 46 5" {
		t.Error(ids)
	}
}

func TestAMessageWhoseLeaseIsLostWhileItWaitsIsNotHandled(t *testing.T) {
	var lost atomic.Bool
	kept := make(chan bool, 1000) // extensions of the first message after the loss of the second
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/extend") && strings.Contains(string(body), "second") {
			lost.Store(true)
			w.WriteHeader(http.StatusMultiStatus)
			_, _ = io.WriteString(w, `{"accepted":0,"rejected":1,"results":[{"status":409,
				"problem":{"code":"lease_expired","status":409}}]}`)
			return
		}
		if lost.Load() {
			kept <- true
		}
		_, _ = io.WriteString(w, `{"accepted":1,"rejected":0,"results":[]}`)
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(server.Close)
	var handled []string
	worker := &Worker{Client: newClient(t, server.URL), Group: "billing",
		Log: slog.New(slog.DiscardHandler),
		Handle: func(_ context.Context, delivery Delivery) error {
			handled = append(handled, delivery.ReceiptHandle)
			if delivery.ReceiptHandle == "first" {
				<-kept
				<-kept
			}
			return nil
		}}

	worker.handleLine(ctx, ctx, []Delivery{
		{api.ReceivedMessage{ReceiptHandle: "first"}},
		{api.ReceivedMessage{ReceiptHandle: "second"}},
	}, 300*time.Millisecond, func() {})

	if strings.Join(handled, " ") != "first" || worker.Stats() != (Stats{1, 0, 1, 0}) {
		t.Error(handled, worker.Stats())
	}
}

func TestAStopDoesNotWaitForAServiceThatIsAwayMessageByMessage(t *testing.T) {
	const received = `{"server_time":"2026-11-24T00:00:00Z","messages":[
		{"message_id":"1","receipt_handle":"1","lease_expires_at":"2026-11-24T01:00:00Z"},
		{"message_id":"2","receipt_handle":"2","lease_expires_at":"2026-11-24T01:00:00Z"},
		{"message_id":"3","receipt_handle":"3","lease_expires_at":"2026-11-24T01:00:00Z"}]}`
	answer := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"group":"billing","ordered":true}`)
		} else if strings.HasSuffix(r.URL.Path, "/receive") {
			_, _ = io.WriteString(w, received)
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(server.Close)
	client, err := New(server.URL) // with its default rule: it repeats a request for 30 seconds
	if err != nil {
		t.Fatal(err)
	}
	stopping, stop := context.WithCancel(ctx)
	worker := &Worker{Client: client, Group: "billing", Concurrency: 3,
		Shutdown: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Handle: func(ctx context.Context, _ Delivery) error {
			stop()
			<-ctx.Done()
			return ctx.Err()
		}}
	ended := make(chan error, 1)

	go func() { ended <- worker.Run(stopping) }()

	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second): // in which not even the first message was given up
		t.Fatal("the worker still settles")
	}
}

func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	worker := &Worker{Handle: func(context.Context, Delivery) error {
		runtime.Goexit()
		return nil
	}}
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	err := worker.call(soon, soon, Delivery{})

	if err == nil || soon.Err() != nil {
		t.Error(err)
	}
}

func TestATableNameThatIsNoneIsRefused(t *testing.T) {
	for _, name := range []string{"a b", "a;b", "a.b.c", "1a", `a"`} {
		if _, err := (&Markers{Table: name}).statement("%s"); err == nil {
			t.Error(name)
		}
	}
}
