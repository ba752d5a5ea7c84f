package escrowmq

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"escrowmq.dev/go/api"
)

// callsSentOnce has a call of each operation of [api.SentOnce].
var callsSentOnce = map[string]func(*Client) error{
	"POST /v1/groups/{group}/members": func(client *Client) error {
		_, err := Check(client.API.JoinGroupWithResponse(ctx, "g", api.JoinInput{ClientID: "c"}))
		return err
	},
	"POST /v1/groups/{group}/offsets/reset": func(client *Client) error {
		reset := api.ResetInput{Topic: "orders", To: "latest"}
		_, err := Check(client.API.ResetOffsetsWithResponse(ctx, "g", reset))
		return err
	},
	"POST /v1/groups/{group}/rotate-secret": func(client *Client) error {
		_, err := Check(client.API.RotateGroupSigningSecretWithResponse(ctx, "g", nil))
		return err
	},
	"POST /v1/producer-groups/{producer_group}/rotate-secret": func(client *Client) error {
		_, err := Check(client.API.RotateSigningSecretWithResponse(ctx, "shop", nil))
		return err
	},
}

// machine is a server that does with each request, by its number from 1, what the function says.
func machine(t *testing.T, does func(try int, w http.ResponseWriter, r *http.Request)) (
	*httptest.Server, *atomic.Int64,
) {
	t.Helper()
	var tries atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		does(int(tries.Add(1)), w, r)
	}))
	t.Cleanup(server.Close)
	return server, &tries
}

// breakOff closes the connection of a request that was carried out.
func breakOff(w http.ResponseWriter, r *http.Request) {
	_, _ = io.ReadAll(r.Body)
	connection, _, _ := w.(http.Hijacker).Hijack()
	_ = connection.Close()
}

func problemOf(w http.ResponseWriter, status int, code string, retryable bool) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"status": status, "code": code, "retryable": retryable,
	})
}

func TestAnOperationThatActsEachTimeIsNotRepeatedOnceItMayHaveActed(t *testing.T) {
	lost := map[string]func(http.ResponseWriter, *http.Request){
		"no answer":  breakOff,
		"of a proxy": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
		"not known": func(w http.ResponseWriter, _ *http.Request) {
			problemOf(w, 503, "storage_failed", false)
		},
	}
	for _, name := range api.SentOnce {
		call, has := callsSentOnce[name]
		if !has {
			t.Fatal("no call of", name)
		}
		for why, does := range lost {
			var key atomic.Value
			// A connection that is used again is what net/http repeats requests on by itself.
			server, tries := machine(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					return
				}
				key.Store(r.Header.Get("Idempotency-Key"))
				does(w, r)
			})
			client := newClient(t, server.URL)
			_, _ = client.API.GetVersionWithResponse(ctx)

			err := call(client)

			if err == nil || tries.Load() != 2 || key.Load() != "" {
				t.Error(name, why, err, tries.Load()-1, "tries, key", key.Load())
			}
		}
	}
}

func TestAnOperationThatActsEachTimeIsRepeatedWhereItHasNotActed(t *testing.T) {
	for name, call := range callsSentOnce {
		server, tries := machine(t, func(try int, w http.ResponseWriter, _ *http.Request) {
			if try == 1 {
				problemOf(w, 503, "overloaded", true)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}")
		})
		gone := httptest.NewServer(nil)
		gone.Close()

		err := call(newClient(t, gone.URL+","+server.URL))

		if err != nil || tries.Load() != 2 {
			t.Error(name, err, tries.Load(), "tries")
		}
	}
}

func TestAChangeOfARevisionWhoseAnswerWasLostIsUnknown(t *testing.T) {
	lost := map[string]func(http.ResponseWriter, *http.Request){
		"no answer":   breakOff,
		"of a proxy":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
		"half of one": halfAProblem,
	}
	changes := map[string]func(*Client, *string) error{
		"topic": func(client *Client, revision *string) error {
			params := &api.UpdateTopicParams{IfMatch: revision}
			change := api.TopicChanges{Queues: Ptr(int32(9))}
			_, err := Check(client.API.UpdateTopicWithResponse(ctx, "orders", params, change))
			return err
		},
		"group": func(client *Client, revision *string) error {
			params := &api.PutGroupParams{IfMatch: revision}
			_, err := Check(client.API.PutGroupWithResponse(ctx, "g", params, api.GroupInput{}))
			return err
		},
	}
	for why, loses := range lost {
		for what, change := range changes {
			revision := 1
			server, tries := machine(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-Match") != strconv.Quote(strconv.Itoa(revision)) {
					problemOf(w, 412, "revision_mismatch", false)
					return
				}
				revision++ // the change is made
				loses(w, r)
			})
			client := newClient(t, server.URL)

			err := change(client, Ptr(`"1"`))
			later := change(client, Ptr(`"1"`)) // of another client

			var unknown *ChangeUnknownError
			if !errors.As(err, &unknown) || unknown.Lost == nil || unknown.Problem.Status != 412 {
				t.Fatal(what, why, err)
			}
			if HasCode(err, "revision_mismatch") || !HasCode(later, "revision_mismatch") {
				t.Error(what, why, err, later)
			}
			if revision != 2 || tries.Load() != 3 {
				t.Error(what, why, revision, tries.Load(), "tries")
			}
		}
	}
}

// removals has a call of each operation of [api.Removing].
var removals = map[string]func(*Client) error{
	"DELETE /v1/audit/reports/{report_id}": func(client *Client) error {
		_, err := Check(client.API.DeleteAuditReportWithResponse(ctx, "rpt_1"))
		return err
	},
	"DELETE /v1/groups/{group}": func(client *Client) error {
		_, err := Check(client.API.DeleteGroupWithResponse(ctx, "g", nil))
		return err
	},
	"DELETE /v1/groups/{group}/members/{member_id}": func(client *Client) error {
		_, err := Check(client.API.LeaveGroupWithResponse(ctx, "g", "mem_1"))
		return err
	},
	"DELETE /v1/names/nodes/{node}": func(client *Client) error {
		_, err := Check(client.API.UnregisterNodeWithResponse(ctx, "node_1"))
		return err
	},
	"DELETE /v1/topics/{topic}": func(client *Client) error {
		_, err := Check(client.API.DeleteTopicWithResponse(ctx, "orders", nil))
		return err
	},
}

func dryRun(client *Client) error {
	params := &api.DeleteTopicParams{DryRun: Ptr(true)}
	_, err := Check(client.API.DeleteTopicWithResponse(ctx, "orders", params))
	return err
}

func TestARemovalWhoseAnswerWasLostIsDoneIfItFindsNothingThen(t *testing.T) {
	lost := map[string]func(http.ResponseWriter, *http.Request){
		"no answer":   breakOff,
		"of a proxy":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
		"half of one": halfAProblem,
	}
	for _, name := range api.Removing {
		call, has := removals[name]
		if !has {
			t.Fatal("no call of", name)
		}
		for why, loses := range lost {
			server, tries := machine(t, func(try int, w http.ResponseWriter, r *http.Request) {
				if try == 1 {
					loses(w, r)
				} else {
					problemOf(w, 404, "topic_not_found", false)
				}
			})
			client := newClient(t, server.URL)

			err := call(client)
			later := call(client)

			if err != nil || !HasCode(later, "topic_not_found") || tries.Load() != 3 {
				t.Error(name, why, err, later, tries.Load(), "tries")
			}
		}
	}
}

func TestWhatRemovesNothingOrHasLostNoAnswerIsRefusedAsItIs(t *testing.T) {
	removes := removals["DELETE /v1/topics/{topic}"]
	for why, one := range map[string]struct {
		call  func(*Client) error
		first func(http.ResponseWriter, *http.Request)
		code  string
	}{
		"a dry run": {dryRun, breakOff, "topic_not_found"},
		"refused before": {removes, func(w http.ResponseWriter, _ *http.Request) {
			problemOf(w, 503, "overloaded", true)
		}, "topic_not_found"},
		"of a proxy": {removes, breakOff, ""},
	} {
		server, tries := machine(t, func(try int, w http.ResponseWriter, r *http.Request) {
			switch {
			case try == 1:
				one.first(w, r)
			case one.code == "":
				w.WriteHeader(404)
			default:
				problemOf(w, 404, one.code, false)
			}
		})

		err := one.call(newClient(t, server.URL))

		var problem *ProblemError
		if !errors.As(err, &problem) || problem.Status != 404 || tries.Load() != 2 {
			t.Error(why, err, tries.Load(), "tries")
		}
	}
}

// halfAProblem breaks a refusal off that something between has begun.
func halfAProblem(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusInternalServerError)
}

func TestAChangeOfARevisionThatWasNeverSentBeforeIsRefusedAsItIs(t *testing.T) {
	server, _ := machine(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		problemOf(w, 412, "revision_mismatch", false)
	})
	gone := httptest.NewServer(nil)
	gone.Close()
	client := newClient(t, gone.URL+","+server.URL)
	params := &api.UpdateTopicParams{IfMatch: Ptr(`"1"`)}

	_, err := Check(client.API.UpdateTopicWithResponse(ctx, "orders", params, api.TopicChanges{}))

	if !HasCode(err, "revision_mismatch") {
		t.Error(err)
	}
}

func TestAKeyIsSentWhereTheOperationTakesOne(t *testing.T) {
	keys := map[string]string{}
	server, _ := machine(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		keys[r.URL.Path] = r.Header.Get("Idempotency-Key")
	})
	client := newClient(t, server.URL+"/behind/a%20proxy")

	_, _ = client.Send(ctx, "a/b", Text("x"))
	_, _ = client.API.CommitTransactionWithResponse(ctx, "t")

	if len(keys) != 2 || keys["/behind/a proxy/v1/topics/a/b/messages"] == "" {
		t.Error(keys)
	}
	if keys["/behind/a proxy/v1/transactions/t/commit"] != "" {
		t.Error(keys)
	}
}

func TestAReceiveThatIsRepeatedKeepsItsAttemptID(t *testing.T) {
	var attempts []string
	server, _ := machine(t, func(try int, w http.ResponseWriter, r *http.Request) {
		var sent struct {
			AttemptID   string `json:"attempt_id"`
			MaxMessages int    `json:"max_messages"`
		}
		_ = json.NewDecoder(r.Body).Decode(&sent)
		if sent.MaxMessages == 7 {
			attempts = append(attempts, sent.AttemptID)
		}
		if try == 1 {
			breakOff(w, r)
		}
	})
	client := newClient(t, server.URL)
	input := api.ReceiveInput{MaxMessages: Ptr(int32(7))}

	_, _ = client.API.ReceiveMessagesWithResponse(ctx, "billing", input)
	input.AttemptID = Ptr("mine")
	_, _ = client.API.ReceiveMessagesWithResponse(ctx, "billing", input)

	isKept := len(attempts) == 3 && attempts[0] != "" && attempts[0] == attempts[1]
	if !isKept || attempts[2] != "mine" {
		t.Error(attempts)
	}
}

// hung is the address of a machine that accepts connections, and answers nothing.
func hung(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return "http://" + listener.Addr().String()
}

func impatient(t *testing.T, url string, limit time.Duration) *Client {
	t.Helper()
	client, err := New(url, WithTimeout(limit),
		WithRetry(Retry{Total: time.Minute, First: 1, Longest: 1}))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAMachineThatAcceptsAndNeverAnswersIsLeftForTheNext(t *testing.T) {
	good := answers(t, answer{201, receipt})

	client := impatient(t, hung(t)+","+good.URL, 500*time.Millisecond)
	_, err := client.Send(ctx, "orders", Text("x"))

	if err != nil || len(good.bodies) != 1 {
		t.Error(err, len(good.bodies))
	}
}

func TestATryEndsAfterTenSecondsUnlessTheClientSaysOtherwise(t *testing.T) {
	client, err := New("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	http := client.API.ClientInterface.(*api.Client).Client.(*repeating)
	if http.timeout != 10*time.Second {
		t.Error(http.timeout)
	}
}

func TestAMachineThatDoesNotAnswerInTheTimeOfACallIsLeftForTheNextCall(t *testing.T) {
	good := answers(t, answer{201, receipt})
	client := impatient(t, hung(t)+","+good.URL, time.Minute)
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()

	_, first := client.Send(soon, "orders", Text("x"))
	_, next := client.Send(ctx, "orders", Text("x"))

	if !errors.Is(first, context.DeadlineExceeded) || next != nil {
		t.Error(first, next)
	}
}

func TestTheErrorOfASilentMachineSaysHowLongItWas(t *testing.T) {
	client, err := New(hung(t), WithTimeout(20*time.Millisecond), WithRetry(Retry{}))
	if err != nil {
		t.Fatal(err)
	}

	_, err = client.Send(ctx, "orders", Text("x"))

	if !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "no answer within 20ms") {
		t.Error(err)
	}
}

func TestATryWaitsLongerByTheTimeThatItsRequestAsksTheServiceToWait(t *testing.T) {
	server, tries := machine(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-time.After(300 * time.Millisecond)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`)
	})
	client := impatient(t, server.URL, 100*time.Millisecond)
	asking := api.ReceiveInput{WaitMs: Ptr(int64(2000))}
	polling := api.GetTransactionParams{WaitMs: Ptr(int64(2000))}

	_, err := Check(client.API.ReceiveMessagesWithResponse(ctx, "billing", asking))
	_, again := Check(client.API.GetTransactionWithResponse(ctx, "t", &polling))

	if err != nil || again != nil || tries.Load() != 2 {
		t.Error(err, again, tries.Load(), "tries")
	}
}

func TestAnAnswerMayTakeLongerThanATryWaitsAsLongAsPartsOfItCome(t *testing.T) {
	server, tries := machine(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		for _, part := range strings.SplitAfter(receipt, ",") {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
			<-time.After(300 * time.Millisecond)
		}
	})

	_, err := impatient(t, server.URL, time.Second).Send(ctx, "orders", Text("x"))

	if err != nil || tries.Load() != 1 {
		t.Error(err, tries.Load(), "tries")
	}
}

func TestAnAnswerThatDoesNotGoOnIsAnError(t *testing.T) {
	done := make(chan struct{})
	server, _ := machine(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, receipt[:20])
		w.(http.Flusher).Flush()
		<-done
	})
	t.Cleanup(func() { close(done) })

	_, err := impatient(t, server.URL, 50*time.Millisecond).Send(ctx, "orders", Text("x"))

	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

func TestAnIDThatWouldLeadToAnotherResourceIsRefusedBeforeARequest(t *testing.T) {
	server := answers(t, answer{200, `{}`})
	client := newClient(t, server.URL)

	for _, id := range []string{"..", ".", ""} {
		_, left := client.API.LeaveGroupWithResponse(ctx, "billing", id)
		_, purged := client.API.PurgeDeadLettersWithResponse(ctx, id)
		_, sent := client.Send(ctx, id, Text("x"))
		if left == nil || purged == nil || sent == nil {
			t.Error(id, left, purged, sent)
		}
	}
	_, allowed := client.API.LeaveGroupWithResponse(ctx, "...", "a/../b")

	if allowed != nil || len(server.bodies) != 1 {
		t.Error(allowed, len(server.bodies), "requests")
	}
}

func TestAnAPIKeyThatNoHeaderCanHaveIsRefusedAndNotShown(t *testing.T) {
	for _, key := range []string{"secret\nkey", "secret\r\n", "secret\x00"} {
		_, err := New("http://127.0.0.1:1", WithAPIKey(key))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", key, err)
		}
	}
}
