package openapitest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/celld/celld/openapi"
	"github.com/celld/celld/openapi/openapitest"
)

func load(t *testing.T) *openapitest.Spec {
	t.Helper()
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestJSONFormSaysWhatTheYAMLSays(t *testing.T) {
	var want, got any
	if err := yaml.Unmarshal(openapi.YAML, &want); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(openapi.JSON(), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("openapi.gen.json differs from openapi.yaml; run make generate")
	}
}

func TestEveryOperationHasATagAndAnID(t *testing.T) {
	ops := load(t).Operations()
	if len(ops) < 20 {
		t.Fatalf("only %d operations", len(ops))
	}
	for _, op := range ops {
		if op.Tag == "" {
			t.Errorf("%s %s has no tag", op.Method, op.Path)
		}
	}
}

func TestShapeTellsPathsApartByTheirPlacesOnly(t *testing.T) {
	if a, b := openapitest.Shape("/code/contexts/{id}/restart"), openapitest.Shape("/code/contexts/:id/restart"); a != b {
		t.Errorf("%s and %s", a, b)
	}
	if a, b := openapitest.Shape("/command/status/{id}"), openapitest.Shape("/command/{id}/logs"); a == b {
		t.Errorf("%s twice", a)
	}
}

const (
	initEvent = `{"type":"init","timestamp":1,"eid":1,"text":"c","execution_id":"c"}`
	outEvent  = `{"type":"stdout","timestamp":1,"eid":3,"text":"a"}`
	doneEvent = `{"type":"execution_complete","timestamp":1,"eid":4,"execution_time":2,"exit_code":0}`
	failEvent = `{"type":"error","timestamp":1,"eid":4,"error":{"ename":"CommandExecError","evalue":"7","traceback":["exit status 7"]},"exit_code":7}`
	pingEvent = `{"type":"ping","timestamp":1,"text":"pong"}`
)

func TestValidateEvent(t *testing.T) {
	spec := load(t)
	good := []string{
		initEvent, outEvent, doneEvent, failEvent, pingEvent,
		`{"type":"stderr","timestamp":1,"eid":2,"data":"AP8=","partial":true}`,
		`{"type":"execution_count","timestamp":1,"eid":2,"execution_count":4}`,
		`{"type":"result","timestamp":1,"eid":2,"results":{"text":"2","text/plain":"2","application/json":{"a":[1]}},"execution_count":4}`,
		`{"type":"result","timestamp":1,"eid":2,"results":{"text":"{}"},"table":{"columns":[{"name":"a","type":"INT","nullable":true}]}}`,
		`{"type":"status","timestamp":1,"eid":2,"state":"queued"}`,
		`{"type":"clear_output","timestamp":1,"eid":2,"wait":false}`,
		`{"type":"input_request","timestamp":1,"eid":2,"prompt":"name? ","password":false}`,
		`{"type":"gap","timestamp":1,"from":2,"to":9}`,
		`{"type":"execution_complete","timestamp":1,"execution_time":0}`,
		`{"type":"error","timestamp":1,"eid":2,"error":{"ename":"DBQueryError","evalue":"x","traceback":["x"],"code":1064,"sqlstate":"42000"}}`,
	}
	for _, text := range good {
		if err := spec.ValidateEvent([]byte(text)); err != nil {
			t.Errorf("good event refused: %v", err)
		}
	}
	bad := map[string]string{
		"not JSON":            `{"type":`,
		"two values":          pingEvent + pingEvent,
		"unknown type":        `{"type":"stdin","timestamp":1,"eid":2,"text":"a"}`,
		"no type":             `{"timestamp":1,"eid":2}`,
		"no timestamp":        `{"type":"stdout","eid":2,"text":"a"}`,
		"fractional time":     `{"type":"stdout","timestamp":1.5,"eid":2,"text":"a"}`,
		"no eid":              `{"type":"stdout","timestamp":1,"text":"a"}`,
		"unknown field":       `{"type":"stdout","timestamp":1,"eid":2,"text":"a","x":1}`,
		"neither text":        `{"type":"stdout","timestamp":1,"eid":2}`,
		"text and data":       `{"type":"stdout","timestamp":1,"eid":2,"text":"a","data":"YQ=="}`,
		"empty text":          `{"type":"stdout","timestamp":1,"eid":2,"text":""}`,
		"no execution id":     `{"type":"init","timestamp":1,"eid":1,"text":"c"}`,
		"text of a status":    `{"type":"status","timestamp":1,"eid":2,"state":"queued","text":"a"}`,
		"eid of a ping":       `{"type":"ping","timestamp":1,"text":"pong","eid":3}`,
		"result not a string": `{"type":"result","timestamp":1,"eid":2,"results":{"text":2}}`,
		"empty traceback":     `{"type":"error","timestamp":1,"eid":2,"error":{"ename":"a","evalue":"b","traceback":[]}}`,
		"numeric evalue":      `{"type":"error","timestamp":1,"eid":2,"error":{"ename":"a","evalue":7,"traceback":["x"]}}`,
		"complete with 1":     `{"type":"execution_complete","timestamp":1,"eid":2,"execution_time":0,"exit_code":1}`,
		"gap backwards":       `{"type":"gap","timestamp":1,"from":9,"to":2}`,
		"raw U+2028":          "{\"type\":\"stdout\",\"timestamp\":1,\"eid\":2,\"text\":\"a\u2028b\"}",
		"raw U+0085":          "{\"type\":\"stdout\",\"timestamp\":1,\"eid\":2,\"text\":\"a\u0085b\"}",
	}
	for name, text := range bad {
		if err := spec.ValidateEvent([]byte(text)); err == nil {
			t.Errorf("%s: accepted %s", name, text)
		}
	}
}

// frame makes an SSE frame; without id when id is empty.
func frame(id, event, data string) string {
	if id != "" {
		id = "id: " + id + "\n"
	}
	return id + "event: " + event + "\ndata: " + data + "\n\n"
}

var run = frame("1", "init", initEvent) + frame("3", "stdout", outEvent) + frame("", "ping", pingEvent) + frame("4", "error", failEvent)

func TestStreamTakesARunInAnyPieces(t *testing.T) {
	spec := load(t)
	for _, size := range []int{1, 7, 4096} {
		st := spec.Stream("text/event-stream")
		for rest := run; rest != ""; {
			n := min(size, len(rest))
			if _, err := st.Write([]byte(rest[:n])); err != nil {
				t.Fatalf("pieces of %d: %v", size, err)
			}
			rest = rest[n:]
		}
		if err := st.Close(); err != nil {
			t.Fatalf("pieces of %d: %v", size, err)
		}
		if st.Events() != 4 || st.Terminal() != "error" {
			t.Errorf("pieces of %d: %d events, terminal %q", size, st.Events(), st.Terminal())
		}
	}
}

func TestStreamFindsWhatIsWrong(t *testing.T) {
	spec := load(t)
	cases := map[string]string{
		"id is not the eid":       frame("2", "init", initEvent),
		"no id":                   frame("", "init", initEvent),
		"id on a ping":            frame("9", "ping", pingEvent),
		"name is not the type":    frame("1", "stdout", initEvent),
		"no data":                 "id: 1\nevent: init\n\n",
		"two data lines":          "id: 1\nevent: init\ndata: {\ndata: }\n\n",
		"bare JSON":               initEvent + "\n\n",
		"init in the middle":      frame("3", "stdout", outEvent) + frame("4", "init", strings.Replace(initEvent, `"eid":1`, `"eid":4`, 1)),
		"eid doesn't grow":        frame("3", "stdout", outEvent) + frame("3", "stdout", outEvent),
		"last part doesn't grow":  frame("3", "stdout", outEvent) + frame("3", "result", `{"type":"result","timestamp":1,"eid":3,"results":{"text":"2"}}`),
		"event after the end":     run + frame("", "ping", pingEvent),
		"two ends":                run + frame("4", "execution_complete", doneEvent),
		"the end inside a frame":  run + "id: 9\n",
		"the end inside the data": run[:len(run)-1],
	}
	for name, text := range cases {
		st := spec.Stream("text/event-stream")
		_, err := st.Write([]byte(text))
		if cerr := st.Close(); err == nil && cerr == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPartsOfALargeResultShareAPosition(t *testing.T) {
	st := load(t).Stream("text/event-stream")
	part := `{"type":"result","timestamp":1,"eid":3,"results":{"text/html":"h"},"partial":true}`
	whole := `{"type":"result","timestamp":1,"eid":4,"results":{"text":"2"}}`
	for _, f := range []string{frame("3", "stdout", outEvent), frame("3", "result", part), frame("3", "result", part), frame("4", "result", whole)} {
		if _, err := io.WriteString(st, f); err != nil {
			t.Error(err)
		}
	}
}

func TestStreamOfBareJSONLines(t *testing.T) {
	st := load(t).Stream("application/x-ndjson")
	_, err := io.WriteString(st, initEvent+"\n"+outEvent+"\n"+doneEvent+"\n")
	if err != nil || st.Close() != nil || st.Terminal() != "execution_complete" {
		t.Errorf("refused: %v, %v", err, st.Close())
	}
	if _, err := io.WriteString(st, outEvent+"\n"); err == nil {
		t.Error("an event after the end was accepted")
	}
}

func TestValidateRequest(t *testing.T) {
	spec := load(t)
	jsonType := http.Header{"Content-Type": {"application/json"}}
	cases := []struct {
		method, target, body string
		ok                   bool
	}{
		{"POST", "/command", `{"command":"ls","background":false,"timeout":1000,"envs":{"A":"1"}}`, true},
		{"POST", "/command", `{"argv":["ls"],"uid":0,"output":"raw"}`, true},
		{"POST", "/command", `{"command":1}`, false},
		{"POST", "/command", `{"command":"ls","timeout":-1}`, false},
		{"POST", "/command", `{"command":"ls","output":"colour"}`, false},
		{"POST", "/command", `{"command":"ls","nope":1}`, false},
		{"POST", "/session", ``, true},
		{"POST", "/session", `{"id":"../x"}`, false},
		{"DELETE", "/command?id=a", ``, true},
		{"DELETE", "/command", ``, false},
		{"GET", "/command/c1/logs?cursor=5", ``, true},
		{"GET", "/command/c1/logs?cursor=-5", ``, false},
		{"GET", "/command/status/c1", ``, true},
		{"POST", "/command/operations", `{"operation_id":"a.1.bbbbbbbb","command":"ls"}`, true},
		{"GET", "/executions/c1/events?after=7&follow=false", ``, true},
		{"POST", "/code", `{"code":"1+1","context":{"language":"python"}}`, true},
		{"POST", "/code", `{"context":{"language":"python"}}`, false},
		{"POST", "/nowhere", ``, false},
	}
	for _, c := range cases {
		if err := spec.ValidateRequest(c.method, c.target, jsonType, []byte(c.body)); (err == nil) != c.ok {
			t.Errorf("%s %s %s: ok %v wanted, got %v", c.method, c.target, c.body, c.ok, err)
		}
	}
}

func TestValidateResponse(t *testing.T) {
	spec := load(t)
	typ := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	asJSON, asSSE := typ("Content-Type", "application/json"), typ("Content-Type", "text/event-stream; charset=utf-8")
	const notFound = `{"code":"NOT_FOUND","message":"no such thing"}`
	cases := []struct {
		method, target string
		status         int
		header         http.Header
		body           string
		ok             bool
	}{
		{"GET", "/ping", 200, nil, "", true},
		{"GET", "/ping", 200, nil, "pong", false},
		{"POST", "/command", 200, asSSE, run, true},
		{"POST", "/command", 200, asSSE, run + "x", false},
		{"POST", "/command", 201, asSSE, run, false},
		{"POST", "/command", 200, typ("Content-Type", "text/plain"), run, false},
		{"POST", "/command", 200, asJSON, `{"execution_id":"a","stdout":"","stderr":"","results":[],"execution_time":1,"exit_code":0}`, true},
		{"POST", "/command", 400, asJSON, `{"code":"INVALID_REQUEST_BODY","message":"x"}`, true},
		{"POST", "/command", 400, asJSON, `{"code":"SOMETHING","message":"x"}`, false},
		{"POST", "/command", 503, asJSON, `{"code":"UNAVAILABLE","message":"x"}`, true},
		{"POST", "/command", 400, asSSE, run, false},
		{"GET", "/command/status/x", 404, asJSON, notFound, true},
		{"GET", "/command/status/x", 404, asJSON, "", false},
		{"GET", "/command/status/x", 200, asJSON, `{"id":"x","content":"ls","running":true,"started_at":"2025-01-02T03:04:05.6Z","background":false}`, true},
		{"GET", "/command/status/x", 200, asJSON, `{"id":"x","content":"ls","running":true,"started_at":"yesterday","background":false}`, false},
		{"GET", "/command/status/x", 200, asJSON, `{"id":"x","content":"ls","running":true,"started_at":"2025-01-02T03:04:05Z","background":false,"more":1}`, false},
		{"GET", "/command/x/logs", 200, typ("Content-Type", "text/plain; charset=utf-8", "Execd-Commands-Tail-Cursor", "3", "X-Celld-Log-Kept-From", "0"), "abc", true},
		{"GET", "/command/x/logs", 200, typ("Content-Type", "text/plain"), "abc", false},
		{"GET", "/code/contexts", 200, asJSON, `[]`, true},
		{"GET", "/code/contexts", 200, asJSON, `null`, false},
		{"GET", "/nowhere", 404, asJSON, notFound, true},
		{"GET", "/nowhere", 200, asJSON, `{}`, false},
		{"PUT", "/ping", 405, typ("Content-Type", "application/json", "Allow", "GET"), `{"code":"METHOD_NOT_ALLOWED","message":"x"}`, true},
		{"PUT", "/ping", 405, asJSON, `{"code":"METHOD_NOT_ALLOWED","message":"x"}`, false},
	}
	for _, c := range cases {
		if err := spec.ValidateResponse(c.method, c.target, c.status, c.header, []byte(c.body)); (err == nil) != c.ok {
			t.Errorf("%s %s %d %.60q: ok %v wanted, got %v", c.method, c.target, c.status, c.body, c.ok, err)
		}
	}
}

func TestTransportReportsWhatIsReadAndPassesItOn(t *testing.T) {
	spec := load(t)
	answers := map[string]string{"/good": run, "/bad": run + run}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, answers[r.URL.Query().Get("id")])
	}))
	defer srv.Close()
	for id, want := range answers {
		var errs []error
		client := &http.Client{Transport: spec.Transport(http.DefaultTransport, func(err error) { errs = append(errs, err) })}
		resp, err := client.Get(srv.URL + "/executions/x/events?id=" + id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("%s: body changed: %v", id, err)
		}
		if (len(errs) == 0) != (id == "/good") {
			t.Errorf("%s: reported %v", id, errs)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func FuzzStreamNeverPanics(f *testing.F) {
	spec, err := openapitest.Load()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(run))
	f.Add([]byte("id: 1\n\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		st := spec.Stream("text/event-stream")
		_, err := st.Write(text)
		if cerr := st.Close(); err != nil && cerr != err {
			t.Errorf("the first error is forgotten: %v then %v", err, cerr)
		}
	})
}
