package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/celld/celld/hostinfo"
)

// slowWriter takes its time for each frame.
type slowWriter struct {
	http.ResponseWriter
	takes  []time.Duration
	frames []time.Duration // when they came
	began  time.Time
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if !strings.HasPrefix(string(p), "data: {") || !strings.HasSuffix(string(p), "}\n\n") {
		panic(string(p))
	}
	w.frames = append(w.frames, time.Since(w.began))
	if n := len(w.frames); n <= len(w.takes) {
		time.Sleep(w.takes[n-1])
	}
	return len(p), nil
}

func (w *slowWriter) Flush() {}

func TestMetricsComeEachSecondWithoutDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Host: hostinfo.New(".")})
		ctx, cancel := context.WithTimeout(t.Context(), 75*time.Second+500*time.Millisecond)
		defer cancel()
		// The client holds up each frame, one of them for two seconds and a half.
		w := &slowWriter{ResponseWriter: httptest.NewRecorder(), began: time.Now(), takes: make([]time.Duration, 40)}
		for i := range w.takes {
			w.takes[i] = time.Duration(i) * 20 * time.Millisecond
		}
		w.takes[10] = 2500 * time.Millisecond
		func() {
			defer func() {
				if recover() != http.ErrAbortHandler { // the client has gone
					t.Error("the answer ended by itself")
				}
			}()
			s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "http://localhost/metrics/watch", nil))
		}()
		if len(w.frames) != 75 { // two are left out while the client holds up one
			t.Errorf("%d samples in 75 s", len(w.frames))
		}
		for n, at := range w.frames {
			late := at % time.Second
			if late != 0 && n != 11 { // the next after that one is late
				t.Errorf("sample %d at %v", n, at)
			}
		}
	})
}

func TestWhoAsksForPrometheus(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "application/json, text/plain, */*": false, "text/html,*/*;q=0.8": false, "text/event-stream": false,
		"text/plain": true, "text/plain;version=0.0.4;q=0.5,*/*;q=0.1": true,
		"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1":        true,
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": true,
	} {
		if got := acceptsPrometheus(header); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
}
