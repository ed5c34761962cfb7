package backends

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/celld/celld/hooks"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// Names of attributes, of metrics and spans.
const (
	attrKind     = "celld.kind"
	attrLanguage = "celld.language"
	attrOutcome  = "celld.outcome"
)

// instruments count what the Controller does. Concurrent use is fine.
type instruments struct {
	tracer   trace.Tracer // nil: none
	count    metric.Int64Counter
	duration metric.Float64Histogram // seconds, as is waited
	waited   metric.Float64Histogram
	output   metric.Int64Counter // bytes

	mu   sync.Mutex
	sets map[labels]metric.MeasurementOption
}

// seconds are the buckets of times: a builtin in a session takes a millisecond, a training run hours.
var seconds = metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)

// newInstruments makes the instruments and lets the meter ask c for what is open. With neither tracer nor meter they do nothing.
func newInstruments(tracer trace.Tracer, meter metric.Meter, c *Controller) *instruments {
	if meter == nil {
		meter = noopmetric.NewMeterProvider().Meter("")
	}
	i := &instruments{tracer: tracer, sets: map[labels]metric.MeasurementOption{}}
	// An instrument that can't be made is reported to the error handler and does nothing.
	i.count, _ = meter.Int64Counter("celld.executions", metric.WithUnit("{execution}"), metric.WithDescription("Executions that ended."))
	i.duration, _ = meter.Float64Histogram("celld.execution.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from acceptance to the terminal event."))
	i.waited, _ = meter.Float64Histogram("celld.execution.queue.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time that runs of contexts and sessions waited for their turn."))
	i.output, _ = meter.Int64Counter("celld.execution.output", metric.WithUnit("By"), metric.WithDescription("What executions printed."))
	meter.Int64ObservableGauge("celld.executions.active", metric.WithUnit("{execution}"), metric.WithInt64Callback(c.observeActive),
		metric.WithDescription("Executions that have not ended, waiting ones and terminals included."))
	meter.Int64ObservableGauge("celld.contexts.open", metric.WithUnit("{context}"), metric.WithInt64Callback(c.contexts.observeOpen),
		metric.WithDescription("Code contexts that are open, by language."))
	meter.Int64ObservableGauge("celld.sessions.open", metric.WithUnit("{session}"), metric.WithInt64Callback(c.contexts.observeSessions),
		metric.WithDescription("Bash sessions that are open."))
	meter.Int64ObservableGauge("celld.terminals.open", metric.WithUnit("{terminal}"), metric.WithInt64Callback(c.observeTerminals),
		metric.WithDescription("Terminals whose program has not ended."))
	return i
}

func (c *Controller) observeActive(_ context.Context, o metric.Int64Observer) error {
	c.mu.Lock()
	active := maps.Clone(c.unfinished)
	c.mu.Unlock()
	for kind, n := range active {
		o.Observe(int64(n), metric.WithAttributes(attribute.String(attrKind, kind)))
	}
	return nil
}

func (c *Controller) observeTerminals(_ context.Context, o metric.Int64Observer) error {
	c.mu.Lock()
	n := c.unfinished[KindPTY]
	c.mu.Unlock()
	o.Observe(int64(n))
	return nil
}

// counts returns how many contexts are open, by language; sessions have the language "".
func (cs *contexts) counts() map[string]int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	n := map[string]int{}
	for _, entry := range cs.open {
		n[entry.Language]++
	}
	return n
}

func (cs *contexts) observeOpen(_ context.Context, o metric.Int64Observer) error {
	for language, n := range cs.counts() {
		if language != "" {
			o.Observe(int64(n), metric.WithAttributes(attribute.String(attrLanguage, language)))
		}
	}
	return nil
}

func (cs *contexts) observeSessions(_ context.Context, o metric.Int64Observer) error {
	o.Observe(int64(cs.counts()[""]))
	return nil
}

// labels name what ran, and where it has ended how, for metrics: few values each.
type labels struct{ kind, language, outcome string }

// set returns the attributes, which are made once: each execution needs some several times.
func (i *instruments) set(l labels) metric.MeasurementOption {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, ok := i.sets[l]; ok {
		return known
	}
	a := []attribute.KeyValue{attribute.String(attrKind, l.kind)}
	if l.language != "" {
		a = append(a, attribute.String(attrLanguage, l.language))
	}
	if l.outcome != "" {
		a = append(a, attribute.String(attrOutcome, l.outcome))
	}
	made := metric.WithAttributeSet(attribute.NewSet(a...))
	i.sets[l] = made
	return made
}

// ended counts an execution that has ended.
func (i *instruments) ended(ctx context.Context, e *Execution, took time.Duration, bytes int64) {
	l := labels{kind: e.Kind, language: e.Language}
	i.output.Add(ctx, bytes, i.set(l))
	l.outcome = outcomeClass(ctx, e.Outcome().Failure)
	set := i.set(l)
	i.count.Add(ctx, 1, set)
	i.duration.Record(ctx, took.Seconds(), set)
}

// outcomeClass is one of ok, error, timeout and interrupted: the names of errors are any number.
func outcomeClass(ctx context.Context, failure *hooks.ExecError) string {
	switch {
	case failure == nil:
		return "ok"
	case ctx.Err() == nil:
		return "error"
	case errors.Is(context.Cause(ctx), ErrTimeout):
		return "timeout"
	}
	return "interrupted"
}

// begin starts the span of an execution, whose children are the steps, and lets what runs know of it: a command finds it in
// TRACEPARENT and TRACESTATE (W3C Trace Context, OpenTelemetry's environment variables for context propagation), if its
// request doesn't give them.
func (i *instruments) begin(ctx context.Context, req *Request) (context.Context, trace.Span) {
	var span trace.Span = nooptrace.Span{}
	if i.tracer != nil {
		name := req.Kind
		if req.Kind == KindCode && req.Language != "" {
			name = req.Language
		}
		ctx, span = i.tracer.Start(ctx, "execute "+name, trace.WithAttributes(
			attribute.String("celld.execution.id", req.ExecutionID), attribute.String(attrKind, req.Kind)))
	}
	if req.Kind == KindCode || !trace.SpanContextFromContext(ctx).IsValid() { // without a tracer the client's
		return ctx, span
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	env := map[string]string{}
	for variable, field := range map[string]string{"TRACEPARENT": "traceparent", "TRACESTATE": "tracestate"} {
		if value := carrier[field]; value != "" {
			env[variable] = value
		}
	}
	maps.Copy(env, req.Env)
	req.Env = env
	return ctx, span
}

// step starts the span of a part of an execution.
func (i *instruments) step(ctx context.Context, name string) (context.Context, func(error)) {
	if i.tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := i.tracer.Start(ctx, name)
	return ctx, func(err error) { endSpan(span, err) }
}

// endSpan ends a span with what came of it. The texts of errors may hold what users print, and stay here.
func endSpan(span trace.Span, err error) {
	if err == nil {
		span.End()
		return
	}
	var failed *hooks.ExecError
	var refused *Error
	switch {
	case errors.As(err, &failed):
		span.SetAttributes(attribute.String("error.type", failed.Name))
		span.SetStatus(codes.Error, failed.Name)
	case errors.As(err, &refused):
		span.SetAttributes(attribute.String("error.type", "refused"))
		span.SetStatus(codes.Error, refused.Message)
	default:
		span.SetAttributes(attribute.String("error.type", "_OTHER"))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// endExecution ends the span of an execution that has ended.
func (i *instruments) endExecution(ctx context.Context, e *Execution) {
	if i.tracer == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	o := e.Outcome()
	if e.Language != "" {
		span.SetAttributes(attribute.String(attrLanguage, e.Language))
	}
	if o.ExitCode != nil {
		span.SetAttributes(attribute.Int("process.exit.code", *o.ExitCode))
	}
	if o.Failure != nil {
		endSpan(span, o.Failure)
		return
	}
	span.End()
}
