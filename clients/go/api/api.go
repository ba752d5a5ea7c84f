// Package api has every operation and every type of EscrowMQ's REST contract.
//
// It is generated from openapi/openapi.json: run `go generate ./...` in this module first.
package api

import (
	"fmt"
	"net/url"
	"strings"
)

//go:generate go run generate.go ../../../openapi/clients/oapi-codegen.yaml ../../../openapi/openapi.json

// locate returns the URL of a path. It refuses an id that would lead to another resource: one that
// is empty, and "." and "..", which are resolved.
func locate(server *url.URL, path string) (*url.URL, error) {
	for _, part := range strings.Split(strings.TrimPrefix(path, "./"), "/") {
		switch part {
		case "", ".", "..":
			return nil, fmt.Errorf("an id cannot be %q in the path %s", part, path)
		}
	}
	return server.Parse(path)
}
