package escrowmq

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// mostHops is how often in a row a request goes at once where a replica leads it.
const mostHops = 3

// addresses are those of one service: of the machine that takes requests, and of its replicas. All
// requests go to one until it fails; then to the next of the list, or where a replica leads.
type addresses struct {
	list []*url.URL

	mutex sync.Mutex
	now   *url.URL
	at    int // the last one of the list that was taken
}

// parseAddresses takes URLs with commas between them. They may not differ in their paths, which are
// part of every request already.
func parseAddresses(text string) (*addresses, error) {
	found := &addresses{}
	for _, one := range strings.Split(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		address, err := url.Parse(one)
		if err != nil {
			return nil, err
		}
		if address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
			return nil, fmt.Errorf("an address begins with http:// or https://, not %q", one)
		}
		found.list = append(found.list, address)
	}
	if found.list == nil {
		return nil, fmt.Errorf("the address of the service is empty")
	}
	for _, one := range found.list {
		if !samePath(one, found.list[0]) {
			return nil, fmt.Errorf("addresses of one service have one path, not %s", text)
		}
	}
	found.now = found.list[0]
	return found, nil
}

// rounds returns how often the addresses have had their turn behind so many tries, begun ones
// included. Waits grow with it: those that are left in a round may answer.
func (a *addresses) rounds(tries int) int {
	return (tries + len(a.list) - 1) / len(a.list)
}

// aim sends the request to the address of the moment, and returns that.
func (a *addresses) aim(request *http.Request) *url.URL {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	target := *request.URL // that of an earlier try may still be in use
	target.Scheme, target.Host = a.now.Scheme, a.now.Host
	request.URL, request.Host = &target, a.now.Host
	return a.now
}

// note takes another address, if a request that went to this one failed so that it may help.
func (a *addresses) note(asked *url.URL, found outcome) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.now != asked { // another request has seen it
		return
	}
	switch {
	case found.isReplica:
		if a.now = allowed(found.primary, asked); a.now == nil {
			a.next(asked)
		}
	case found.isAway:
		a.next(asked)
	}
}

// next takes the next one of the list that was not asked; the same one where it has no other.
func (a *addresses) next(asked *url.URL) {
	for range a.list {
		a.at = (a.at + 1) % len(a.list)
		if *a.list[a.at] != *asked {
			break
		}
	}
	a.now = a.list[a.at]
}

// allowed returns the address that a replica has named, and nil where the key must not be sent.
func allowed(primary string, replica *url.URL) *url.URL {
	named, err := url.Parse(primary)
	if err != nil || named.Host == "" || !samePath(named, replica) {
		return nil
	}
	schemes := []string{"https"}
	if replica.Scheme == "http" {
		schemes = append(schemes, "http")
	}
	if !slices.Contains(schemes, named.Scheme) {
		return nil
	}
	return named
}

func samePath(one, other *url.URL) bool {
	return strings.TrimSuffix(one.Path, "/") == strings.TrimSuffix(other.Path, "/")
}
