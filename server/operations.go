package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/internal/exactjson"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// Limits of operations.
const (
	operationRetention = 15 * time.Minute
	operationCapacity  = 4096
	clockTolerance     = time.Minute // how far in the future an operation may have been issued
)

const headerOperationID = "X-EXECD-OPERATION-ID"

var operationID = regexp.MustCompile(`^([0-9a-f]{32})\.([0-9]{1,12})\.([A-Za-z0-9_-]{8,128})$`)

// operations make creations repeatable: the same id with the same body gives what was created the first time, however
// often and however much at once it is asked. An id names this daemon and when it was issued, so that one from before a
// restart, or one that is no longer remembered, is refused and nothing is created twice. Safe for concurrent use.
type operations struct {
	instance string

	mu  sync.Mutex // guards the table; never held while something is created
	all map[string]*operation
}

type operation struct {
	kind    openapi.OperationKind
	body    [sha256.Size]byte
	expires time.Time
	done    chan struct{} // closed when the fields below are set
	id      string
	err     error
}

func newOperations() *operations {
	return &operations{instance: backends.NewID(), all: map[string]*operation{}}
}

// parse checks an id and returns when it expires.
func (o *operations) parse(id string) (time.Time, error) {
	m := operationID.FindStringSubmatch(id)
	if m == nil {
		return time.Time{}, &problem{http.StatusBadRequest, openapi.ErrorCodeInvalidOperationID,
			"operation_id must be INSTANCE.ISSUED_AT.TOKEN, with a token of 8 to 128 letters, digits, '-' and '_'"}
	}
	if m[1] != o.instance {
		return time.Time{}, &problem{http.StatusConflict, openapi.ErrorCodeOperationInstanceMismatch,
			"the operation was issued for another instance; ask /execution/instance"}
	}
	seconds, _ := strconv.ParseInt(m[2], 10, 64) // digits only
	issued := time.Unix(seconds, 0)
	expires := issued.Add(operationRetention)
	now := time.Now()
	if issued.After(now.Add(clockTolerance)) {
		return time.Time{}, &problem{http.StatusBadRequest, openapi.ErrorCodeInvalidOperationID, "the operation was issued in the future"}
	}
	if now.After(expires) {
		return time.Time{}, &problem{http.StatusGone, openapi.ErrorCodeOperationExpired, "the operation has expired"}
	}
	return expires, nil
}

// once creates something, or returns the operation that did or does.
func (o *operations) once(id string, kind openapi.OperationKind, body []byte, create func() (string, error)) (*operation, error) {
	expires, err := o.parse(id)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	key := string(kind) + " " + id
	o.mu.Lock()
	if known := o.all[key]; known != nil {
		o.mu.Unlock()
		if known.body != sum {
			return nil, &problem{http.StatusConflict, openapi.ErrorCodeOperationConflict, "the operation was asked for with another body"}
		}
		return known, nil
	}
	if len(o.all) >= operationCapacity {
		o.expire()
	}
	if len(o.all) >= operationCapacity {
		o.mu.Unlock()
		return nil, &problem{http.StatusServiceUnavailable, openapi.ErrorCodeOperationCapacityExceeded, "too many operations are remembered"}
	}
	op := &operation{kind: kind, body: sum, expires: expires, done: make(chan struct{})}
	o.all[key] = op
	o.mu.Unlock()
	op.id, op.err = create()
	close(op.done)
	return op, nil
}

// expire forgets what has expired. The caller holds mu.
func (o *operations) expire() {
	now := time.Now()
	for key, op := range o.all {
		if now.After(op.expires) {
			delete(o.all, key)
		}
	}
}

// find looks an operation up.
func (o *operations) find(id string, kind openapi.OperationKind) (*operation, error) {
	if _, err := o.parse(id); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[string(kind)+" "+id]; op != nil {
		return op, nil
	}
	return nil, &problem{http.StatusNotFound, openapi.ErrorCodeNotFound, "no such operation"}
}

// answer tells how an operation stands: 202 while it is under way.
func (op *operation) answer(c echo.Context) error {
	a := openapi.Operation{Kind: op.kind, State: openapi.OperationStateCreating, ExpiresAt: op.expires.UTC()}
	select {
	case <-op.done:
	default:
		return c.JSON(http.StatusAccepted, a)
	}
	a.ID, a.State = op.id, openapi.OperationStateCreated
	if op.err != nil {
		a.State = openapi.OperationStateFailed
	}
	return c.JSON(http.StatusOK, a)
}

// executionInstance is GET /execution/instance.
func (s *Server) executionInstance(c echo.Context) error {
	return c.JSON(http.StatusOK, openapi.ExecutionInstance{
		InstanceID: s.operations.instance, IssuedAt: time.Now().Unix(),
		RetentionSeconds: int64(operationRetention / time.Second), Capacity: operationCapacity,
	})
}

// getOperation is GET /execution/operation.
func (s *Server) getOperation(c echo.Context) error {
	kind := openapi.OperationKind(c.QueryParam("kind"))
	if kind != openapi.OperationKindCommand && kind != openapi.OperationKindPTY {
		return badQuery("kind must be command or pty, not %q", kind)
	}
	op, err := s.operations.find(c.Request().Header.Get(headerOperationID), kind)
	if err != nil {
		return err
	}
	return op.answer(c)
}

// createCommandOperation is POST /command/operations: a background command, once.
func (s *Server) createCommandOperation(c echo.Context) error {
	body, err := s.body(c)
	if err != nil {
		return err
	}
	var q openapi.CommandOperationRequest
	if err := decodeJSON(body, &q, exactjson.Refuse); err != nil {
		return err
	}
	background := true
	if q.Background != nil && !*q.Background {
		return badRequest("an operation is a command in the background")
	}
	req, err := s.commandRequest(&openapi.RunCommandRequest{
		Command: q.Command, Argv: q.Argv, Cwd: q.Cwd, Envs: q.Envs, UID: q.UID, GID: q.GID, Timeout: q.Timeout, Background: &background,
	})
	if err != nil {
		return err
	}
	return s.createOnce(c, q.OperationID, openapi.OperationKindCommand, q, func(ctx context.Context) (*backends.Execution, error) {
		return s.controller.Start(ctx, req)
	})
}

// createOnce answers with the operation id, for which create is called unless it has been before. body is what was asked.
func (s *Server) createOnce(c echo.Context, id string, kind openapi.OperationKind, body any,
	create func(context.Context) (*backends.Execution, error)) error {
	same, err := json.Marshal(body) // in one form, whatever the order of its fields
	if err != nil {
		return err
	}
	ctx := context.WithoutCancel(c.Request().Context()) // others may wait for it as well
	op, err := s.operations.once(id, kind, same, func() (string, error) {
		e, err := create(ctx)
		if err != nil {
			return "", err
		}
		return e.ID, nil
	})
	if err != nil {
		return err
	}
	if op.failed() {
		return op.err
	}
	return op.answer(c)
}

// failed says that the operation is over and nothing was created.
func (op *operation) failed() bool {
	select {
	case <-op.done:
		return op.err != nil
	default:
		return false
	}
}
