package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func TestTelemetryGoesOutOverOTLP(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got[r.URL.Path] += string(body)
		mu.Unlock()
	}))
	defer collector.Close()
	d := start(t, launch{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}})
	if o := d.command("env | grep -c OTEL_"); o.out() != "0" {
		t.Errorf("commands see %s OTEL_ variables", o.out())
	}
	d.stop() // sends what is left
	mu.Lock()
	defer mu.Unlock()
	for path, want := range map[string]string{"/v1/traces": "execute command", "/v1/metrics": "celld.execution.duration"} {
		if !strings.Contains(got[path], want) {
			t.Errorf("%s got no %q in %d bytes", path, want, len(got[path]))
		}
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
