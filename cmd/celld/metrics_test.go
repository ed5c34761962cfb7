package main

import (
	"bufio"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// figures is the answer to GET /metrics.
type figures struct {
	CPUCount  float64 `json:"cpu_count"`
	CPUUsed   float64 `json:"cpu_used_pct"`
	MemTotal  float64 `json:"mem_total_mib"`
	MemUsed   float64 `json:"mem_used_mib"`
	DiskTotal float64 `json:"disk_total_mib"`
	Timestamp int64
	Sources   map[string]string
}

func TestMetrics(t *testing.T) {
	d := start(t, launch{})
	var one figures
	if got := d.call("GET", "/metrics", nil, &one); got != 200 {
		t.Fatal(got)
	}
	if one.CPUCount <= 0 || one.CPUUsed < 0 || one.CPUUsed > 100 || one.MemTotal <= 0 || one.MemUsed <= 0 || one.DiskTotal <= 0 || one.Timestamp == 0 || len(one.Sources) != 5 {
		t.Errorf("%+v", one)
	}
	if one.MemUsed > one.MemTotal {
		t.Errorf("%v of %v MiB are used", one.MemUsed, one.MemTotal)
	}
	s := d.open("/metrics/watch", nil)
	last := int64(0)
	for range 3 {
		line, err := s.frames.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		s.frames.ReadString('\n')
		stamp, err := strconv.ParseInt(regexp.MustCompile(`"timestamp":(\d+)`).FindStringSubmatch(line)[1], 10, 64)
		if err != nil || stamp < last {
			t.Errorf("%s after %d: %v", line, last, err)
		}
		last = stamp
	}
	s.close()
	resp := d.do("GET", "/metrics/watch", nil, "Accept", "application/x-ndjson")
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"cpu_count"`) {
		t.Errorf("%q %v", line, err)
	}
	d.stop() // with a client that watches
	resp.Body.Close()
}

// scrape reads the metrics of Prometheus: values by name and labels.
func (d *daemon) scrape() map[string]float64 {
	d.t.Helper()
	resp := d.do("GET", "/metrics", nil, "Accept", "text/plain;version=0.0.4,*/*;q=0.1")
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain; version=0.0.4") {
		d.t.Errorf("content type %q", got)
	}
	all := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		text := lines.Text()
		if strings.HasPrefix(text, "#") {
			continue
		}
		i := strings.LastIndexByte(text, ' ')
		v, err := strconv.ParseFloat(text[i+1:], 64)
		if err != nil {
			d.t.Errorf("%q: %v", text, err)
		}
		all[text[:i]] = v
	}
	return all
}

func TestPrometheusCountsWhatCelldDoes(t *testing.T) {
	d := start(t, launch{})
	d.command("printf 12345")
	d.command("exit 3")
	d.command("sleep 99", m{"timeout": 1})
	d.inSession("one", "echo hi")
	d.inSession("two", "true")
	gate := d.gate()
	held := d.background("echo x; " + gate.pass())
	d.python()
	d.code("python", "print('abc')")
	d.code("python", "class Odd(Exception): pass\nraise Odd()")
	var term struct {
		ID string `json:"session_id"`
	}
	d.call("POST", "/pty", m{"command": "cat"}, &term)
	app := app(t, func(w http.ResponseWriter, r *http.Request) {}) // nothing is there before the request is counted
	d.bare().call("MKCOL", fmt.Sprintf("/proxy/%d/some/path", app), nil, nil)
	d.call("GET", "/nothing/at/all", nil, nil)
	d.call("GET", "/command/status/"+strings.Repeat("0", 32), nil, nil)

	got := d.scrape()
	for name, want := range map[string]float64{
		`celld_executions_total{celld_kind="command",celld_outcome="ok"}`:                            1,
		`celld_executions_total{celld_kind="command",celld_outcome="error"}`:                         1,
		`celld_executions_total{celld_kind="command",celld_outcome="timeout"}`:                       1,
		`celld_executions_total{celld_kind="session",celld_outcome="ok"}`:                            2,
		`celld_executions_total{celld_kind="code",celld_language="python",celld_outcome="error"}`:    1,
		`celld_execution_duration_seconds_count{celld_kind="command",celld_outcome="ok"}`:            1,
		`celld_execution_duration_seconds_bucket{celld_kind="command",celld_outcome="ok",le="+Inf"}`: 1,
		`celld_execution_queue_duration_seconds_count{celld_kind="session"}`:                         2,
		`celld_execution_output_bytes_total{celld_kind="command"}`:                                   5,
		`celld_executions_active{celld_kind="background-command"}`:                                   1,
		`celld_executions_active{celld_kind="command"}`:                                              0,
		`celld_contexts_open{celld_language="python"}`:                                               1,
		`celld_sessions_open`:  2,
		`celld_terminals_open`: 1,
		`http_server_active_requests{http_request_method="GET",url_scheme="http"}`:                                                                                  1,
		`http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="200",http_route="/command",url_scheme="http"}`:            4,
		`http_server_request_duration_seconds_count{http_request_method="GET",http_response_status_code="404",http_route="/command/status/{id}",url_scheme="http"}`: 1,
		`http_server_request_duration_seconds_count{http_request_method="GET",http_response_status_code="404",url_scheme="http"}`:                                   1,
		`http_server_request_duration_seconds_count{http_request_method="_OTHER",http_response_status_code="200",http_route="/proxy/{port}/",url_scheme="http"}`:    1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"container_cpu_time_seconds_total", "container_memory_working_set_bytes", "container_filesystem_capacity_bytes",
		"system_cpu_logical_count", "process_resident_memory_bytes", "go_goroutines"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	for name := range got {
		if strings.Contains(name, "nothing") || strings.Contains(name, "Odd") || strings.Contains(name, "some/path") || strings.Contains(name, "MKCOL") {
			t.Errorf("clients make %s", name)
		}
	}
	gate.open()
	d.awaitExit(held)
	d.call("DELETE", "/session/one", nil, nil)
	d.call("DELETE", "/pty/"+term.ID, nil, nil)
	got = d.scrape()
	for name, want := range map[string]float64{
		`celld_sessions_open`: 1, `celld_terminals_open`: 0, `celld_executions_total{celld_kind="background-command",celld_outcome="ok"}`: 1,
	} {
		if got[name] != want {
			t.Errorf("later %s is %v, want %v", name, got[name], want)
		}
	}
}
