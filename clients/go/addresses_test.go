package escrowmq

import (
	"context"
	"net/url"
	"testing"
)

const replica = `{"code":"not_primary","status":421,"retryable":false,"context":{"primary":`

func leadsTo(url string) answer { return answer{421, replica + `"` + url + `"}}`} }

var (
	stored   = answer{201, receipt}
	starts   = answer{503, `{"code":"recovering","status":503,"retryable":true}`}
	overload = answer{503, `{"code":"overloaded","status":503,"retryable":true}`}
)

func send(t *testing.T, client *Client) {
	t.Helper()
	if _, err := client.Send(ctx, "orders", Text("x")); err != nil {
		t.Fatal(err)
	}
}

func TestAReplicaLeadsToItsServiceWithTheSameKeyAndTheNextRequestGoesThereAtOnce(t *testing.T) {
	service := answers(t, stored)
	asked := answers(t, leadsTo(service.URL))
	client := newClient(t, asked.URL)

	send(t, client)
	send(t, client)

	if len(asked.keys) != 1 || len(service.keys) != 2 || asked.keys[0] != service.keys[0] {
		t.Error(asked.keys, service.keys)
	}
	if asked.bodies[0] != service.bodies[0] {
		t.Error(asked.bodies, service.bodies)
	}
}

func TestAMachineThatIsGoneStartsOrKnowsNoServiceIsLeftForTheNext(t *testing.T) {
	for name, first := range map[string]answer{
		"starts": starts, "knows none": leadsTo(""), "a proxy": {502, "bad gateway"},
	} {
		service, asked := answers(t, stored), answers(t, first)
		send(t, newClient(t, asked.URL+", "+service.URL))
		if len(asked.keys) != 1 || len(service.keys) != 1 {
			t.Error(name, asked.keys, service.keys)
		}
	}
	service, gone := answers(t, stored), answers(t, stored)
	gone.Close()
	send(t, newClient(t, gone.URL+","+service.URL))
	if len(service.keys) != 1 {
		t.Error(service.keys)
	}
}

func TestAServiceThatIsBusyIsNotLeft(t *testing.T) {
	busy, other := answers(t, overload, stored), answers(t, stored)

	send(t, newClient(t, busy.URL+","+other.URL))

	if len(busy.keys) != 2 || len(other.keys) != 0 {
		t.Error(busy.keys, other.keys)
	}
}

func TestReplicasThatLeadInACircleAreAskedWithPauses(t *testing.T) {
	var one, other *answering
	one = answers(t, leadsTo("http://127.0.0.1:9"))
	other = answers(t, leadsTo(one.URL))
	one.leadTo(other.URL)
	client, err := New(one.URL, WithRetry(Retry{}))
	if err != nil {
		t.Fatal(err)
	}

	_, err = client.Send(ctx, "orders", Text("x"))

	if !HasCode(err, "not_primary") {
		t.Error(err)
	}
	if len(one.keys) != 2 || len(other.keys) != 2 { // the first try, and three hops
		t.Error(len(one.keys), len(other.keys))
	}
}

func TestAnotherRefusalWith421IsAnAnswer(t *testing.T) {
	server := answers(t, answer{421, `{"code":"host_not_allowed","status":421,"retryable":false,
		"context":{"primary":"http://127.0.0.1:9"}}`})

	_, err := newClient(t, server.URL).Send(ctx, "orders", Text("x"))

	if !HasCode(err, "host_not_allowed") || len(server.keys) != 1 {
		t.Error(err, server.keys)
	}
}

func TestAKeyIsNotSentWithoutTLSBecauseAReplicaSaysSo(t *testing.T) {
	secure, _ := url.Parse("https://shop-1")
	plain, _ := url.Parse("http://shop-1")
	for primary, from := range map[string]*url.URL{
		"http://shop-2": secure, "ftp://shop-2": plain, "": plain, "shop-2": plain,
		"http://": plain, "http://shop-2/behind": plain, "://": plain,
	} {
		if found := allowed(primary, from); found != nil {
			t.Error(primary, found)
		}
	}
	for primary, from := range map[string]*url.URL{
		"https://shop-2": plain, "http://shop-2/": plain, "https://shop-2:8443": secure,
	} {
		if allowed(primary, from) == nil {
			t.Error(primary)
		}
	}
}

func TestAddressesThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{"", " , ", "shop:8080", "ftp://shop", "http://", "http://a,b",
		"http://a/x,http://b/y", "http://a b"} {
		if _, err := New(text); err == nil {
			t.Error(text)
		}
	}
	if _, err := New("http://a/x, http://b/x/"); err != nil {
		t.Error(err)
	}
}

func TestAWorkerGoesOnWhereAReplicaKnowsNoService(t *testing.T) {
	_, log := newLog()
	watching := &outage{log: log}
	tries := 0

	err := watching.repeat(ctx, func(context.Context) error {
		if tries++; tries == 1 {
			return problemIn(421, []byte(leadsTo("").body))
		}
		return problemIn(409, []byte(`{"code":"group_active","status":409}`))
	})

	if tries != 2 || !HasCode(err, "group_active") {
		t.Error(tries, err)
	}
}

func TestTheWaitGrowsWhenEveryAddressHasFailedOnceMore(t *testing.T) {
	three, err := parseAddresses("http://a,http://b,http://c")
	if err != nil {
		t.Fatal(err)
	}
	one, err := parseAddresses("http://a")
	if err != nil {
		t.Fatal(err)
	}
	for tries, rounds := range []int{1: 1, 2: 1, 3: 1, 4: 2, 6: 2, 7: 3} {
		if rounds != 0 && three.rounds(tries) != rounds {
			t.Errorf("%d tries are %d rounds, want %d", tries, three.rounds(tries), rounds)
		}
		if tries != 0 && one.rounds(tries) != tries {
			t.Errorf("%d tries of one address are %d rounds", tries, one.rounds(tries))
		}
	}
}
