// Package openapi is celld's HTTP interface as data: its description, and the Go types made from it.
//
// openapi.yaml is the source of truth. `make generate` makes the types and the JSON form from it, and `make check`
// fails when they are behind. Of a request's optional fields, a nil pointer, map or slice means that it was absent.
//
//	var req openapi.RunCommandRequest
//	err := json.NewDecoder(body).Decode(&req)
//
// What checks requests, responses and events against the description is package openapitest, for tests only.
package openapi

import _ "embed"

// YAML is the description, OpenAPI 3.0.3. It is for reading only.
//
//go:embed openapi.yaml
var YAML []byte

//go:embed openapi.gen.json
var jsonText []byte

// JSON returns the description as JSON on one line, its keys in the order of [YAML]. It is for reading only.
func JSON() []byte { return jsonText }
