package server

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/celld/celld/hostinfo"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// metricsInterval is the time between two samples of GET /metrics/watch.
const metricsInterval = time.Second

func (s *Server) metricsRoutes() {
	s.get("/metrics", s.metrics)
	s.get("/metrics/prometheus", s.prometheus)
	s.echo.GET("/metrics/watch", s.watchMetrics)
}

// metrics is GET /metrics.
func (s *Server) metrics(c echo.Context) error {
	if acceptsPrometheus(c.Request().Header.Get("Accept")) {
		return s.prometheus(c)
	}
	m := hostMetrics(s.config.Host.Read())
	if s.config.Warm != nil {
		m.WarmKernels = s.config.Warm()
	}
	return c.JSON(http.StatusOK, m)
}

// acceptsPrometheus says that who asks is a scraper: it names the formats of Prometheus, of which plain text is one, and not
// JSON.
func acceptsPrometheus(header string) bool {
	text := false
	for part := range strings.SplitSeq(header, ",") {
		switch t, _, _ := mime.ParseMediaType(part); t {
		case typeJSON:
			return false
		case "text/plain", "application/openmetrics-text", "application/vnd.google.protobuf":
			text = true
		}
	}
	return text
}

// prometheus is GET /metrics/prometheus, in the text format whatever else the client takes.
func (s *Server) prometheus(c echo.Context) error {
	r := c.Request().Clone(c.Request().Context())
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	s.config.Prometheus.ServeHTTP(c.Response(), r)
	return nil
}

// watchMetrics is GET /metrics/watch. The samples are due at whole intervals from the start: one that is late makes the
// next no later.
func (s *Server) watchMetrics(c echo.Context) error {
	host, w := s.config.Host.Watcher(), newFeed(c)
	ticks := time.NewTicker(metricsInterval)
	defer ticks.Stop()
	for {
		text, err := json.Marshal(hostMetrics(host.Read()))
		if err != nil {
			return err
		}
		if w.send("", text) != nil {
			return abort(c)
		}
		select {
		case <-ticks.C:
		case <-s.closing:
			return nil
		case <-c.Request().Context().Done():
			return abort(c)
		}
	}
}

// mib are bytes in MiB, as the API has them.
func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

func hostMetrics(s hostinfo.Stats) openapi.Metrics {
	m := openapi.Metrics{
		Timestamp: s.Time.UnixMilli(), CPUCount: s.CPUs, CPUUsedPct: s.CPUPercent, CPUWindowMs: s.Window.Milliseconds(),
		MemTotalMib: mib(s.MemoryTotal), MemUsedMib: mib(s.MemoryUsed),
		DiskPath: s.Disk, DiskTotalMib: mib(s.DiskTotal), DiskUsedMib: mib(s.DiskUsed), DiskAvailableMib: mib(s.DiskAvail),
		Sources: map[string]openapi.MetricSource{},
	}
	for name, source := range map[string]hostinfo.Source{
		"cpu_count": s.CPUsFrom, "cpu_used_pct": s.CPUFrom, "mem_total_mib": s.MemoryTotalFrom, "mem_used_mib": s.MemoryUsedFrom, "disk": s.DiskFrom,
	} {
		if source != "" {
			m.Sources[name] = openapi.MetricSource(source)
		}
	}
	return m
}
