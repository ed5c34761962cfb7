package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/semconv/v1.40.0/httpconv"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// knownMethods are those that metrics and spans name (OpenTelemetry semantic conventions for HTTP); others are any number.
var knownMethods = map[string]bool{
	http.MethodConnect: true, http.MethodDelete: true, http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true,
	http.MethodPatch: true, http.MethodPost: true, http.MethodPut: true, http.MethodTrace: true,
}

// otherMethod stands for those.
const otherMethod = "_OTHER"

// durations are the buckets that the conventions advise, and longer ones for streams.
var durations = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 60, 600, 3600)

// telemetry gives each request a span, in the trace of the client if that names one by traceparent (W3C Trace Context), and
// counts it. It is outside of everything that may refuse a request. What clients choose freely, paths and queries, is in
// neither: the route is.
func (s *Server) telemetry(tracer trace.Tracer, meter metric.Meter) echo.MiddlewareFunc {
	if meter == nil {
		meter = noopmetric.NewMeterProvider().Meter("")
	}
	// One that can't be made is reported to the error handler and does nothing.
	duration, _ := httpconv.NewServerRequestDuration(meter, durations)
	active, _ := httpconv.NewServerActiveRequests(meter)
	sets := attributeSets{known: map[requestLabels]metric.MeasurementOption{}}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, began := c.Request(), time.Now()
			method := r.Method
			if !knownMethods[method] {
				method = otherMethod
			}
			ctx, span := begin(tracer, r, method)
			if ctx != r.Context() {
				c.SetRequest(r.WithContext(ctx))
			}
			open := sets.of(requestLabels{method: method})
			active.Inst().Add(ctx, 1, open)
			finished := false // or panics, which cuts the connection
			defer func() {
				active.Inst().Add(ctx, -1, open)
				l := requestLabels{method, routeOf(c), c.Response().Status, ""}
				if !finished {
					l.status, l.errorType = 0, "aborted"
				} else if l.status >= 500 {
					l.errorType = strconv.Itoa(l.status)
				}
				if span.IsRecording() {
					span.SetName(spanName(method, l.route))
					span.SetAttributes(append(l.attributes(), semconv.NetworkProtocolVersion(fmt.Sprintf("%d.%d", r.ProtoMajor, r.ProtoMinor)))...)
					if l.errorType != "" {
						span.SetStatus(codes.Error, "")
					}
				}
				span.End()
				duration.Inst().Record(ctx, time.Since(began).Seconds(), sets.of(l))
			}()
			if err := next(c); err != nil {
				s.onError(err, c) // so that the status is known
			}
			finished = true
			return nil
		}
	}
}

// begin starts the span of a request, as a child of the client's. Without a tracer it only keeps that: what runs may be told of it.
func begin(tracer trace.Tracer, r *http.Request, method string) (context.Context, trace.Span) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	if tracer == nil {
		return ctx, nooptrace.Span{}
	}
	return tracer.Start(ctx, spanName(method, ""), trace.WithSpanKind(trace.SpanKindServer))
}

// requestLabels name a request for metrics: few values each. Those of a request under way are the method alone.
type requestLabels struct {
	method, route string
	status        int // 0: none
	errorType     string
}

func (l *requestLabels) attributes() []attribute.KeyValue {
	a := []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(l.method), semconv.URLScheme("http")}
	if l.route != "" {
		a = append(a, semconv.HTTPRoute(l.route))
	}
	if l.status != 0 {
		a = append(a, semconv.HTTPResponseStatusCode(l.status))
	}
	if l.errorType != "" {
		a = append(a, semconv.ErrorTypeKey.String(l.errorType))
	}
	return a
}

// attributeSets makes each set of attributes once, since each request needs two.
type attributeSets struct {
	mu    sync.Mutex
	known map[requestLabels]metric.MeasurementOption
}

func (s *attributeSets) of(l requestLabels) metric.MeasurementOption {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, ok := s.known[l]
	if !ok {
		set = metric.WithAttributeSet(attribute.NewSet(l.attributes()...))
		s.known[l] = set
	}
	return set
}

// spanName is as the conventions have it.
func spanName(method, route string) string {
	return strings.TrimSpace(strings.Replace(method, otherMethod, "HTTP", 1) + " " + route)
}

// routeOf is the route that a request has taken, as openapi.yaml writes it; "" for none.
func routeOf(c echo.Context) string {
	if !strings.Contains(c.Path(), "/:") {
		return c.Path()
	}
	parts := strings.Split(c.Path(), "/")
	for i, part := range parts {
		if name, ok := strings.CutPrefix(part, ":"); ok {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}
