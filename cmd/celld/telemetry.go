package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/contrib/instrumentation/github.com/labstack/echo/otelecho"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// telemetry sends traces and metrics over OTLP where the standard OTEL_* variables name a place to send them to.
// Nothing of it exists otherwise.
type telemetry struct {
	tracer     trace.Tracer          // nil: no traces
	meter      metric.Meter          // nil: no metrics
	middleware []echo.MiddlewareFunc // spans of requests
	stops      []func(context.Context) error
}

// wanted says that signal TRACES or METRICS is to be exported (OpenTelemetry specification, SDK environment variables).
func wanted(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") ||
		strings.EqualFold(os.Getenv("OTEL_"+signal+"_EXPORTER"), "none") {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// newTelemetry sets up what is wanted. It never fails: what can't be set up, or can't be sent later, is one warning.
func newTelemetry(ctx context.Context, log *slog.Logger) *telemetry {
	t := &telemetry{}
	if !wanted("TRACES") && !wanted("METRICS") {
		return t
	}
	var once sync.Once
	warn := func(err error) { once.Do(func() { log.Warn("telemetry is not delivered", "error", err) }) }
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
	if os.Getenv("OTEL_SERVICE_NAME") == "" {
		os.Setenv("OTEL_SERVICE_NAME", "celld")
	}
	res, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		warn(fmt.Errorf("describe the service: %w", err))
	}
	if wanted("TRACES") {
		if exporter, err := otlptracehttp.New(ctx); err != nil {
			warn(fmt.Errorf("export traces: %w", err))
		} else {
			provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
			t.tracer = provider.Tracer("celld")
			t.middleware = append(t.middleware, otelecho.Middleware("celld", otelecho.WithTracerProvider(provider),
				otelecho.WithPropagators(propagation.TraceContext{})))
			t.stops = append(t.stops, provider.Shutdown)
		}
	}
	if wanted("METRICS") {
		if exporter, err := otlpmetrichttp.New(ctx); err != nil {
			warn(fmt.Errorf("export metrics: %w", err))
		} else {
			provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)), sdkmetric.WithResource(res))
			t.meter = provider.Meter("celld")
			t.stops = append(t.stops, provider.Shutdown)
		}
	}
	return t
}

// stop sends what is left, within ctx.
func (t *telemetry) stop(ctx context.Context) {
	for _, stop := range t.stops {
		stop(ctx) // what can't be delivered has been told by the error handler
	}
}
