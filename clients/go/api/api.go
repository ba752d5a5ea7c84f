// Package api has every operation and every type of EscrowMQ's REST contract.
//
// It is generated from openapi/openapi.json: run `go generate ./...` in this module first.
package api

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config ../../../openapi/clients/oapi-codegen.yaml -package api -o api.gen.go ../../../openapi/openapi.json
