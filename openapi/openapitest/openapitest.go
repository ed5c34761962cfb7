// Package openapitest checks what travels over HTTP against celld's description. It is for tests: nothing of the
// daemon imports it.
//
// The check is stricter than the description asks of clients: a field that the description doesn't name is an
// error here, so that nothing is sent without being described.
//
//	spec, err := openapitest.Load()
//	client := &http.Client{Transport: spec.Transport(http.DefaultTransport, func(err error) { t.Error(err) })}
//
// From then on every response of that client is checked while it is read, event streams frame by frame.
package openapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"sort"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/celld/celld/openapi"
)

// Spec is the loaded description. Concurrent calls are fine.
type Spec struct {
	doc    *openapi3.T
	router routers.Router
	event  *openapi3.Schema
}

// Load reads the description and checks that it is valid OpenAPI.
func Load() (*Spec, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.YAML)
	if err != nil {
		return nil, fmt.Errorf("read openapi.yaml: %w", err)
	}
	doc.Servers = nil // whatever host a test listens on
	router, err := legacy.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("check openapi.yaml: %w", err)
	}
	seen := map[*openapi3.Schema]bool{}
	for _, ref := range doc.Components.Schemas {
		forbidUnknown(ref, seen)
	}
	return &Spec{doc: doc, router: router, event: doc.Components.Schemas["Event"].Value}, nil
}

// forbidUnknown makes each object that lists its properties refuse others, unless it says what others may be.
func forbidUnknown(ref *openapi3.SchemaRef, seen map[*openapi3.Schema]bool) {
	if ref == nil || ref.Value == nil || seen[ref.Value] {
		return
	}
	s := ref.Value
	seen[s] = true
	if len(s.Properties) > 0 && s.AdditionalProperties.Has == nil && s.AdditionalProperties.Schema == nil {
		no := false
		s.AdditionalProperties.Has = &no
	}
	for _, p := range s.Properties {
		forbidUnknown(p, seen)
	}
	for _, p := range s.OneOf {
		forbidUnknown(p, seen)
	}
	forbidUnknown(s.Items, seen)
	forbidUnknown(s.AdditionalProperties.Schema, seen)
}

// Operation is one thing the description offers.
type Operation struct {
	Method string
	Path   string // with names in braces: /command/{id}/logs
	Tag    string // general, executions, commands, operations, sessions, code
}

// Operations lists all operations, sorted by path and method.
func (s *Spec) Operations() []Operation {
	var all []Operation
	for path, item := range s.doc.Paths.Map() {
		for method, op := range item.Operations() {
			tag := ""
			if len(op.Tags) > 0 {
				tag = op.Tags[0]
			}
			all = append(all, Operation{method, path, tag})
		}
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].Path != all[j].Path {
			return all[i].Path < all[j].Path
		}
		return all[i].Method < all[j].Method
	})
	return all
}

var pathName = regexp.MustCompile(`/[{:][^/]*`)

// Shape leaves the names out of a path, so that /command/{id}/logs and /command/:id/logs are the same.
func Shape(path string) string { return pathName.ReplaceAllString(path, "/{}") }

// ValidateRequest checks a request's path, query, headers and JSON body. Target is path and query as sent.
func (s *Spec) ValidateRequest(method, target string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(context.Background(), method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for k, v := range header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	route, params, err := s.router.FindRoute(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, target, err)
	}
	err = openapi3filter.ValidateRequest(req.Context(), &openapi3filter.RequestValidationInput{
		Request: req, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, target, err)
	}
	return nil
}

// ValidateResponse checks a whole response: that the status, the content type and the required headers are
// described, and the body. Event streams are checked as by [Stream]. Target is path and query as sent; for a path
// or a method that isn't described the response must be a JSON error.
func (s *Spec) ValidateResponse(method, target string, status int, header http.Header, body []byte) error {
	if err := s.validateResponse(method, target, status, header, body); err != nil {
		return fmt.Errorf("%s %s: status %d: %w", method, target, status, err)
	}
	return nil
}

func (s *Spec) validateResponse(method, target string, status int, header http.Header, body []byte) error {
	media, err := s.head(method, target, status, header)
	if err != nil {
		return err
	}
	switch {
	case media.empty:
		if len(body) > 0 {
			return fmt.Errorf("body %.80q where none is described", body)
		}
		return nil
	case media.events:
		st := s.stream(media)
		_, err := st.Write(body)
		return errors.Join(err, st.Close())
	case media.schema != nil:
		return visit(media.schema, body)
	}
	return nil
}

// media is what the description says of a body.
type media struct {
	name   string           // type/subtype
	empty  bool             // no body
	events bool             // the schema is that of each frame's data
	schema *openapi3.Schema // JSON; nil: any bytes
}

// head checks status and headers, and finds what the body has to be.
func (s *Spec) head(method, target string, status int, header http.Header) (media, error) {
	resp, err := s.response(method, target, status, header)
	if err != nil {
		return media{}, err
	}
	for name, h := range resp.Headers {
		if h.Value.Required && header.Get(name) == "" {
			return media{}, fmt.Errorf("no header %s", name)
		}
	}
	if len(resp.Content) == 0 {
		return media{empty: true}, nil
	}
	name, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return media{}, fmt.Errorf("content type %q: %w", header.Get("Content-Type"), err)
	}
	mt := resp.Content[name]
	if mt == nil {
		return media{}, fmt.Errorf("content type %s is not described", name)
	}
	switch name {
	case eventStream, ndjson:
		return media{name: name, events: true, schema: mt.Schema.Value}, nil
	case "application/json":
		return media{name: name, schema: mt.Schema.Value}, nil
	}
	return media{name: name}, nil
}

// response finds the description of a response.
func (s *Spec) response(method, target string, status int, header http.Header) (*openapi3.Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, target, nil)
	if err != nil {
		return nil, err
	}
	route, _, err := s.router.FindRoute(req)
	if err != nil { // no such path or method
		if status < 400 {
			return nil, err
		}
		if status == http.StatusMethodNotAllowed && header.Get("Allow") == "" {
			return nil, errors.New("no header Allow")
		}
		return s.doc.Components.Responses["Error"].Value, nil
	}
	if ref := route.Operation.Responses.Status(status); ref != nil {
		return ref.Value, nil
	}
	if ref := route.Operation.Responses.Default(); ref != nil && status >= 400 {
		return ref.Value, nil
	}
	return nil, errors.New("the status is not described")
}

// ValidateEvent checks one event's JSON, as in a frame's data or a line of NDJSON.
func (s *Spec) ValidateEvent(text []byte) error {
	if err := visit(s.event, text); err != nil {
		return err
	}
	var ev eventHead
	if err := json.Unmarshal(text, &ev); err != nil {
		return err
	}
	if i := bytes.IndexFunc(text, breaksLines); i >= 0 {
		return fmt.Errorf("%s event holds a raw character that some clients split lines at: %.40q", ev.Type, text[i:])
	}
	switch ev.Type {
	case "stdout", "stderr":
		if (ev.Text == nil) == (ev.Data == nil) {
			return fmt.Errorf("%s event must have one of text and data", ev.Type)
		}
		if ev.Text != nil && *ev.Text == "" {
			return fmt.Errorf("%s event has empty text", ev.Type)
		}
	case "gap":
		if ev.To < ev.From {
			return fmt.Errorf("gap from %d to %d", ev.From, ev.To)
		}
	}
	return nil
}

// breaksLines tells the characters that line readers of some clients take for a line's end.
func breaksLines(r rune) bool {
	switch r {
	case '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

func visit(schema *openapi3.Schema, text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("%.80q is not JSON: %w", text, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("something follows the JSON value %.80q", text)
	}
	if err := schema.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.EnableFormatValidation()); err != nil {
		return fmt.Errorf("%.200s: %s", text, firstLine(err))
	}
	return nil
}

// firstLine is the message without the schema and the value that kin-openapi prints after it.
func firstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\nSchema:")
	return text
}
