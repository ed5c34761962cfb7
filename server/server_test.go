package server

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPanicIsAnAnswer makes handlers panic: this server has nothing behind it.
func TestPanicIsAnAnswer(t *testing.T) {
	var log strings.Builder
	s := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/command", nil))
		var e struct{ Code, Message string }
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != http.StatusInternalServerError || e.Code != "UNKNOWN" || e.Message == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if strings.Contains(e.Message, "nil pointer") {
			t.Errorf("tells strangers %q", e.Message)
		}
	}
	if !strings.Contains(log.String(), "nil pointer") || !strings.Contains(log.String(), "listCommands") {
		t.Errorf("the log doesn't tell where: %s", log.String())
	}
}
