package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// The trace and the span of a client, and how it tells of them (W3C Trace Context).
const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
	traceparent = "00-" + clientTrace + "-" + clientSpan + "-01"
)

// otlp is a collector.
type otlp struct {
	url     string
	mu      sync.Mutex
	spans   []*trace.Span
	metrics map[string]bool // names
	bad     error
}

func newOTLP(t *testing.T) *otlp {
	o := &otlp{metrics: map[string]bool{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case err != nil:
		case r.URL.Path == "/v1/traces":
			var q collector.ExportTraceServiceRequest
			err = proto.Unmarshal(body, &q)
			for _, rs := range q.ResourceSpans {
				for _, ss := range rs.ScopeSpans {
					o.spans = append(o.spans, ss.Spans...)
				}
			}
		case r.URL.Path == "/v1/metrics":
			var q metrics.ExportMetricsServiceRequest
			err = proto.Unmarshal(body, &q)
			for _, rm := range q.ResourceMetrics {
				for _, sm := range rm.ScopeMetrics {
					for _, one := range sm.Metrics {
						o.metrics[one.Name] = true
					}
				}
			}
		default:
			err = fmt.Errorf("nobody serves %s", r.URL.Path)
		}
		if err != nil {
			o.bad = err
		}
	}))
	t.Cleanup(s.Close)
	o.url = s.URL
	return o
}

// span returns the one span of this name whose parent is this one; "" is any parent.
func (o *otlp) span(t *testing.T, name, parent string) *trace.Span {
	t.Helper()
	var found *trace.Span
	for _, s := range o.spans {
		if s.Name == name && (parent == "" || hex.EncodeToString(s.ParentSpanId) == parent) {
			if found != nil {
				t.Fatalf("there are two spans %q below %q", name, parent)
			}
			found = s
		}
	}
	if found == nil {
		var all []string
		for _, s := range o.spans {
			all = append(all, fmt.Sprintf("%s %x of %x", s.Name, s.SpanId, s.ParentSpanId))
		}
		t.Fatalf("no span %q below %q in %q", name, parent, all)
	}
	return found
}

// attributeOf is the value of a span's attribute as text.
func attributeOf(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if v := a.Value.GetStringValue(); v != "" {
				return v
			}
			return fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return ""
}

func TestTracesLeadFromTheClientToTheCommand(t *testing.T) {
	o := newOTLP(t)
	d := start(t, launch{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + o.url}})
	from := []string{"traceparent", traceparent, "tracestate", "vendor=1"}
	told := map[string]string{} // by kind: what the command found
	out := func(kind string, s *stream) {
		told[kind] = strings.Join(s.rest().stdout, "\n")
	}
	const look = "echo $TRACEPARENT $TRACESTATE; exit 3"
	out("command", d.open("/command", m{"command": look}, from...))
	out("session", d.open("/session/s/run", m{"command": "echo $TRACEPARENT $TRACESTATE", "create": true}, from...))
	if o := d.inSession("s", "echo $TRACEPARENT"); strings.Contains(o.out(), clientTrace) {
		t.Errorf("the next run of the session is in the trace as well: %s", o.out())
	}
	var term struct {
		ID string `json:"session_id"`
	}
	d.call("POST", "/pty", m{"command": "echo $TRACEPARENT; cat"}, &term, from...)
	id := d.open("/command", m{"command": look, "background": true}, from...).rest().init.Text
	d.awaitExit(id)
	told["background-command"], _ = d.logs(id, "")
	if o := d.open("/command", m{"command": look, "envs": m{"TRACEPARENT": "mine"}}, from...).rest(); !strings.HasPrefix(o.out(), "mine") {
		t.Errorf("what the request gives is lost: %q", o.out())
	}
	if o := d.command("echo $TRACEPARENT; env | grep -c OTEL_"); strings.Contains(o.out(), clientTrace) || !strings.HasPrefix(o.out(), "00-") || !strings.HasSuffix(o.out(), "0") {
		t.Errorf("without a client's trace: %q", o.out())
	}
	d.python()
	d.open("/code", m{"context": m{"language": "python"}, "code": "1/0"}, from...).rest()
	heard := make(chan string, 1)
	port := app(t, func(w http.ResponseWriter, r *http.Request) { heard <- r.Header.Get("traceparent") })
	d.bare().call("GET", fmt.Sprintf("/proxy/%d/secret/path?q", port), nil, nil, from...)
	d.call("GET", "/command/status/none", nil, nil, from...)
	d.refused(400, "POST", "/command", m{"command": "true", "cwd": "/nowhere"}, from...)
	d.stop() // sends what is left

	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bad != nil {
		t.Error(o.bad)
	}
	inTrace := o.spans[:0]
	for _, s := range o.spans {
		if hex.EncodeToString(s.TraceId) == clientTrace {
			inTrace = append(inTrace, s)
		}
		if strings.Contains(s.String(), "secret") || strings.Contains(s.String(), "TRACESTATE") {
			t.Errorf("the span tells too much: %v", s)
		}
	}
	o.spans = inTrace
	for kind, want := range map[string]string{"command": "vendor=1", "session": "vendor=1", "background-command": "vendor=1"} {
		parts := strings.FieldsFunc(told[kind], func(r rune) bool { return r == '-' || r == ' ' || r == '\n' })
		if len(parts) != 5 || parts[1] != clientTrace || parts[4] != want {
			t.Errorf("%s was told %q", kind, told[kind])
			continue
		}
		if kind == "command" || kind == "session" {
			execute := o.byID(t, parts[2])
			if execute.Name != "execute "+kind || attributeOf(execute, "celld.execution.id") == "" {
				t.Errorf("%s was told of %v", kind, execute)
			}
			o.span(t, "prepare", parts[2])
			o.span(t, "run", parts[2])
			request := o.byID(t, hex.EncodeToString(execute.ParentSpanId))
			if request.Kind != trace.Span_SPAN_KIND_SERVER || hex.EncodeToString(request.ParentSpanId) != clientSpan {
				t.Errorf("the request of %s: %v", kind, request)
			}
			if kind == "command" && (request.Name != "POST /command" || attributeOf(request, "http.route") != "/command" ||
				attributeOf(request, "http.response.status_code") != "200" || attributeOf(request, "http.request.method") != "POST" ||
				attributeOf(execute, "process.exit.code") != "3" || attributeOf(execute, "error.type") != "CommandExecError" ||
				execute.Status.Code != trace.Status_STATUS_CODE_ERROR) {
				t.Errorf("%v\n%v", request, execute)
			}
		}
	}
	execute := o.span(t, "execute python", "")
	if attributeOf(execute, "error.type") != "ZeroDivisionError" || strings.Contains(execute.String(), "1/0") {
		t.Errorf("%v", execute)
	}
	o.span(t, "wait", hex.EncodeToString(execute.SpanId))
	o.span(t, "run", hex.EncodeToString(execute.SpanId))
	o.span(t, "execute pty", "")
	proxied := o.span(t, "GET /proxy/{port}/", clientSpan)
	if got, want := <-heard, fmt.Sprintf("00-%s-%x-01", clientTrace, proxied.SpanId); got != want {
		t.Errorf("the app was told %s, want %s", got, want)
	}
	if missing := o.span(t, "GET /command/status/{id}", clientSpan); attributeOf(missing, "http.response.status_code") != "404" || missing.Status.GetCode() != trace.Status_STATUS_CODE_UNSET {
		t.Errorf("%v", missing)
	}
	for _, name := range []string{"http.server.request.duration", "http.server.active_requests", "celld.executions", "celld.execution.duration",
		"celld.execution.queue.duration", "celld.execution.output", "celld.executions.active", "celld.sessions.open", "celld.terminals.open",
		"container.cpu.time", "container.memory.working_set"} {
		if !o.metrics[name] {
			t.Errorf("no metric %s in %v", name, o.metrics)
		}
	}
}

// byID returns the span with this id.
func (o *otlp) byID(t *testing.T, id string) *trace.Span {
	t.Helper()
	for _, s := range o.spans {
		if hex.EncodeToString(s.SpanId) == id {
			return s
		}
	}
	t.Fatalf("no span %s", id)
	return nil
}

// TestTraceContextPassesThrough: without a collector the client's own span is the command's parent.
func TestTraceContextPassesThrough(t *testing.T) {
	d := start(t, launch{})
	look := m{"command": `echo "${TRACEPARENT-none}"`}
	for header, want := range map[string]string{traceparent: traceparent, "": "none", "nonsense": "none", "00-" + strings.Repeat("0", 32) + "-" + clientSpan + "-01": "none"} {
		var o *outcome
		if header == "" {
			o = d.open("/command", look).rest()
		} else {
			o = d.open("/command", look, "traceparent", header).rest()
		}
		if o.out() != want {
			t.Errorf("%q: %q", header, o.out())
		}
	}
	heard := make(chan string, 1)
	port := app(t, func(w http.ResponseWriter, r *http.Request) { heard <- r.Header.Get("traceparent") })
	d.bare().call("GET", fmt.Sprintf("/proxy/%d/", port), nil, nil, "traceparent", traceparent)
	if got := <-heard; got != traceparent {
		t.Errorf("the app was told %q", got)
	}
}

func TestUnreachableCollectorIsOneWarning(t *testing.T) {
	d := start(t, launch{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=1"}})
	for range 3 {
		d.command("true")
	}
	d.stop()
	if n := strings.Count(d.log.String(), "telemetry is not delivered"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, d.log.String())
	}
}
