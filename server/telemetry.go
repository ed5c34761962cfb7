package server

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
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
	if tracer == nil {
		tracer = nooptrace.NewTracerProvider().Tracer("")
	}
	if meter == nil {
		meter = noopmetric.NewMeterProvider().Meter("")
	}
	// One that can't be made is reported to the error handler and does nothing.
	duration, _ := httpconv.NewServerRequestDuration(meter, durations)
	active, _ := httpconv.NewServerActiveRequests(meter)
	opens := map[string]metric.AddOption{} // by method; made once, since each request needs its own twice
	for method := range knownMethods {
		opens[method] = metric.WithAttributeSet(attribute.NewSet(semconv.HTTPRequestMethodKey.String(method), semconv.URLScheme("http")))
	}
	opens[otherMethod] = metric.WithAttributeSet(attribute.NewSet(semconv.HTTPRequestMethodKey.String(otherMethod), semconv.URLScheme("http")))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, began := c.Request(), time.Now()
			method := r.Method
			if !knownMethods[method] {
				method = otherMethod
			}
			ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
			ctx, span := tracer.Start(ctx, spanName(method, ""), trace.WithSpanKind(trace.SpanKindServer))
			c.SetRequest(r.WithContext(ctx))
			open := opens[method]
			active.Inst().Add(ctx, 1, open)
			finished := false // or panics, which cuts the connection
			defer func() {
				active.Inst().Add(ctx, -1, open)
				tags := append(make([]attribute.KeyValue, 0, 6), semconv.HTTPRequestMethodKey.String(method), semconv.URLScheme("http"))
				route := routeOf(c)
				if route != "" {
					tags = append(tags, semconv.HTTPRoute(route))
				}
				status := c.Response().Status
				switch {
				case !finished:
					tags = append(tags, semconv.ErrorTypeKey.String("aborted"))
					span.SetStatus(codes.Error, "aborted")
				case status >= 500:
					tags = append(tags, semconv.ErrorTypeKey.String(strconv.Itoa(status)))
					span.SetStatus(codes.Error, "")
					fallthrough
				default:
					tags = append(tags, semconv.HTTPResponseStatusCode(status))
				}
				if span.IsRecording() {
					span.SetName(spanName(method, route))
					span.SetAttributes(append(tags, semconv.NetworkProtocolVersion(fmt.Sprintf("%d.%d", r.ProtoMajor, r.ProtoMinor)))...)
				}
				span.End()
				duration.RecordSet(ctx, time.Since(began).Seconds(), attribute.NewSet(tags...))
			}()
			if err := next(c); err != nil {
				s.onError(err, c) // so that the status is known
			}
			finished = true
			return nil
		}
	}
}

// spanName is as the conventions have it.
func spanName(method, route string) string {
	return strings.TrimSpace(strings.Replace(method, otherMethod, "HTTP", 1) + " " + route)
}

// routeOf is the route that a request has taken, as openapi.yaml writes it; "" for none.
func routeOf(c echo.Context) string {
	parts := strings.Split(c.Path(), "/")
	for i, part := range parts {
		if name, ok := strings.CutPrefix(part, ":"); ok {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}
