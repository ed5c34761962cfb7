package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/celld/celld/hostinfo"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// telemetry counts what celld does, for who scrapes it, and sends metrics and traces over OTLP where the standard OTEL_*
// variables name a place to send them to.
type telemetry struct {
	tracer     trace.Tracer // nil: no traces
	meter      metric.Meter
	host       *hostinfo.Reader
	prometheus http.Handler
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
func newTelemetry(ctx context.Context, host *hostinfo.Reader, log *slog.Logger) *telemetry {
	t := &telemetry{host: host}
	var once sync.Once
	warn := func(err error) { once.Do(func() { log.Warn("telemetry is not delivered", "error", err) }) }
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
	if os.Getenv("OTEL_SERVICE_NAME") == "" {
		os.Setenv("OTEL_SERVICE_NAME", "celld")
	}
	res, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.version", version)))
	if err != nil {
		warn(fmt.Errorf("describe the service: %w", err))
	}
	if wanted("TRACES") {
		if exporter, err := otlptracehttp.New(ctx); err != nil {
			warn(fmt.Errorf("export traces: %w", err))
		} else {
			provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
			t.tracer = provider.Tracer("celld")
			t.stops = append(t.stops, provider.Shutdown)
		}
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(res)}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	t.prometheus = promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	if reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo()); err != nil {
		warn(fmt.Errorf("let metrics be scraped: %w", err))
	} else {
		options = append(options, sdkmetric.WithReader(reader))
	}
	if wanted("METRICS") {
		if exporter, err := otlpmetrichttp.New(ctx); err != nil {
			warn(fmt.Errorf("export metrics: %w", err))
		} else {
			options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
		}
	}
	provider := sdkmetric.NewMeterProvider(options...)
	t.meter = provider.Meter("celld")
	t.stops = append(t.stops, provider.Shutdown)
	if err := observe(t.meter, host.Watcher()); err != nil {
		warn(fmt.Errorf("observe the container: %w", err))
	}
	return t
}

// observe lets the container's figures be asked for, by the names of OpenTelemetry's semantic conventions.
func observe(meter metric.Meter, host *hostinfo.Reader) error {
	var failed error
	made := func(err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	count, err := meter.Float64ObservableGauge("system.cpu.logical.count", metric.WithUnit("{cpu}"), metric.WithDescription("CPUs that may be used; a fraction where a quota is."))
	made(err)
	cpu, err := meter.Float64ObservableCounter("container.cpu.time", metric.WithUnit("s"), metric.WithDescription("CPU time used."))
	made(err)
	used, err := meter.Int64ObservableGauge("container.memory.working_set", metric.WithUnit("By"), metric.WithDescription("Memory in use, less what is only cached from files that nobody uses."))
	made(err)
	left, err := meter.Int64ObservableGauge("container.memory.available", metric.WithUnit("By"), metric.WithDescription("Memory up to the limit."))
	made(err)
	disk, err := meter.Int64ObservableGauge("container.filesystem.usage", metric.WithUnit("By"), metric.WithDescription("Disk in use, where the workspace is."))
	made(err)
	free, err := meter.Int64ObservableGauge("container.filesystem.available", metric.WithUnit("By"), metric.WithDescription("Disk that is left there."))
	made(err)
	size, err := meter.Int64ObservableGauge("container.filesystem.capacity", metric.WithUnit("By"), metric.WithDescription("Disk there is there."))
	made(err)
	if failed != nil {
		return failed
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := host.Read()
		o.ObserveFloat64(count, s.CPUs)
		if s.CPUFrom != "" {
			o.ObserveFloat64(cpu, s.CPUTime.Seconds())
		}
		if s.MemoryUsedFrom != "" {
			o.ObserveInt64(used, int64(s.MemoryUsed))
			o.ObserveInt64(left, int64(s.MemoryTotal-min(s.MemoryUsed, s.MemoryTotal)))
		}
		if s.DiskFrom != "" {
			o.ObserveInt64(disk, int64(s.DiskUsed))
			o.ObserveInt64(free, int64(s.DiskAvail))
			o.ObserveInt64(size, int64(s.DiskTotal))
		}
		return nil
	}, count, cpu, used, left, disk, free, size)
	return err
}

// stop sends what is left, within ctx.
func (t *telemetry) stop(ctx context.Context) {
	for _, stop := range t.stops {
		stop(ctx) // what can't be delivered has been told by the error handler
	}
}
