package backends

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/celld/celld/hooks"
)

// DefaultSession is the session that always exists: it is made when it is first asked for and can't be deleted.
const DefaultSession = "default"

var givenID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// contexts knows the open contexts of all stateful backends: kernels, sessions, connections.
type contexts struct {
	c *Controller

	mu       sync.Mutex // guards what follows; never held across a call to a backend
	open     map[string]*openContext
	defaults map[string]*openContext // by language
	closed   bool
}

// openContext is a context that is open, or being opened.
type openContext struct {
	Context
	backend Stateful
	queue   queue
	log     *hooks.Store // what its jobs write between runs

	ready chan struct{} // closed when Open has returned
	err   error         // of Open; read after ready
	used  time.Time     // guarded by contexts.mu, as is gone
	gone  bool
}

func newContexts(c *Controller) *contexts {
	return &contexts{c: c, open: map[string]*openContext{}, defaults: map[string]*openContext{}}
}

// language returns the name under which the table or the fallback knows a language, and who runs it.
func (cs *contexts) language(ctx context.Context, name string) (string, Stateful, error) {
	conf := cs.c.config
	key := strings.ToLower(strings.TrimSpace(name))
	if alias, ok := conf.Aliases[key]; ok {
		key = alias
	}
	if b, ok := conf.Table[key].(Stateful); ok && key != KindSession {
		return key, b, nil
	}
	if f, ok := conf.Fallback.(Finder); ok && key != "" {
		canonical, err := f.Canonical(ctx, key)
		return canonical, conf.Fallback, err
	}
	return "", nil, Refuse(Invalid, "unknown language %q", name)
}

// find returns the context that req names, which may have to be made first.
func (cs *contexts) find(ctx context.Context, req *Request) (*openContext, error) {
	if req.Kind == KindSession {
		return cs.findSession(ctx, req)
	}
	if req.ContextID == "" {
		language, backend, err := cs.language(ctx, req.Language)
		if err != nil {
			return nil, err
		}
		return cs.defaultOf(ctx, language, backend)
	}
	entry := cs.get(req.ContextID)
	if entry == nil || entry.Language == "" {
		return nil, Refuse(NoContext, "no context %q", req.ContextID)
	}
	if req.Language != "" {
		if language, _, err := cs.language(ctx, req.Language); err != nil || language != entry.Language {
			return nil, Refuse(Invalid, "context %s is a context of %s, not of %s", entry.ID, entry.Language, req.Language)
		}
	}
	return cs.use(ctx, entry)
}

func (cs *contexts) findSession(ctx context.Context, req *Request) (*openContext, error) {
	entry := cs.get(req.ContextID)
	if entry != nil && entry.Language == "" {
		return cs.use(ctx, entry)
	}
	if entry != nil || !req.Create && req.ContextID != DefaultSession {
		return nil, Refuse(NoContext, "no session %q", req.ContextID)
	}
	made, err := cs.openSession(ctx, OpenRequest{ID: req.ContextID})
	var taken *Error
	if errors.As(err, &taken) && taken.Fault == Conflict { // somebody was faster
		if entry := cs.get(req.ContextID); entry != nil {
			return cs.use(ctx, entry)
		}
	}
	return made, err
}

// use waits until the context is open and marks it as used.
func (cs *contexts) use(ctx context.Context, entry *openContext) (*openContext, error) {
	select {
	case <-entry.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if entry.err != nil {
		return nil, entry.err
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	entry.used = time.Now()
	return entry, nil
}

func (cs *contexts) get(id string) *openContext {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open[id]
}

// defaultOf returns the language's default context; many first users at once make one.
func (cs *contexts) defaultOf(ctx context.Context, language string, backend Stateful) (*openContext, error) {
	cs.mu.Lock()
	entry := cs.defaults[language]
	if entry == nil {
		var err error
		entry, err = cs.add(OpenRequest{ID: NewID(), Language: language}, backend)
		if err != nil {
			cs.mu.Unlock()
			return nil, err
		}
		cs.defaults[language] = entry
		go cs.finishOpen(context.WithoutCancel(ctx), entry, OpenRequest{ID: entry.ID, Language: language, Late: entry.log})
	}
	cs.mu.Unlock()
	return cs.use(ctx, entry)
}

// openLanguage makes a context of a language.
func (cs *contexts) openLanguage(ctx context.Context, req OpenRequest) (*openContext, error) {
	language, backend, err := cs.language(ctx, req.Language)
	if err != nil {
		return nil, err
	}
	req.ID, req.Language = NewID(), language
	return cs.openNow(ctx, req, backend)
}

// openSession makes a session; an empty id gets one.
func (cs *contexts) openSession(ctx context.Context, req OpenRequest) (*openContext, error) {
	backend, ok := cs.c.config.Table[KindSession].(Stateful)
	if !ok {
		return nil, Refuse(NotSupported, "sessions are not available here")
	}
	if req.ID == "" {
		req.ID = NewID()
	} else if !givenID.MatchString(req.ID) {
		return nil, Refuse(Invalid, "session id %q: want a letter or digit, then up to 63 of letters, digits, '.', '_', '-'", req.ID)
	}
	return cs.openNow(ctx, req, backend)
}

func (cs *contexts) openNow(ctx context.Context, req OpenRequest, backend Stateful) (*openContext, error) {
	cs.mu.Lock()
	entry, err := cs.add(req, backend)
	cs.mu.Unlock()
	if err != nil {
		return nil, err
	}
	req.Late = entry.log
	cs.finishOpen(ctx, entry, req)
	return cs.use(context.WithoutCancel(ctx), entry)
}

// add reserves the id. The caller holds mu.
func (cs *contexts) add(req OpenRequest, backend Stateful) (*openContext, error) {
	if cs.closed {
		return nil, Refuse(Unavailable, "the server is shutting down")
	}
	if cs.open[req.ID] != nil {
		return nil, Refuse(Conflict, "id %q is taken", req.ID)
	}
	same := 0
	for _, e := range cs.open {
		if (e.Language == "") == (req.Language == "") {
			same++
		}
	}
	limit := cs.c.config.MaxContexts
	if req.Language == "" {
		limit = cs.c.config.MaxSessions
	}
	if limit > 0 && same >= limit {
		return nil, Refuse(Limit, "there are %d already, which is the limit; delete some first", same)
	}
	now := time.Now()
	entry := &openContext{
		Context: Context{ID: req.ID, Language: req.Language, Created: now, Timeout: req.Timeout},
		backend: backend, log: cs.c.config.Budget.Store(req.ID), ready: make(chan struct{}), used: now,
	}
	cs.open[req.ID] = entry
	return entry, nil
}

// finishOpen lets the backend open the context. One that can't be opened, or was closed meanwhile, is forgotten.
func (cs *contexts) finishOpen(ctx context.Context, entry *openContext, req OpenRequest) {
	cwd, err := entry.backend.Open(ctx, req)
	cs.mu.Lock()
	entry.Cwd, entry.err = cwd, err
	if !entry.gone {
		if err != nil {
			cs.remove(entry)
		}
		close(entry.ready)
		cs.mu.Unlock()
		return
	}
	cs.mu.Unlock()
	if err == nil {
		entry.err = Refuse(NoContext, "context %s was deleted", entry.ID)
		entry.backend.Close(ctx, entry.ID)
	}
	close(entry.ready)
}

// remove takes the context out of the tables. The caller holds mu.
func (cs *contexts) remove(entry *openContext) {
	entry.gone = true
	delete(cs.open, entry.ID)
	if cs.defaults[entry.Language] == entry {
		delete(cs.defaults, entry.Language)
	}
	entry.log.Close()
}

// close ends a context: its runs, then itself.
func (cs *contexts) close(ctx context.Context, entry *openContext) error {
	cs.mu.Lock()
	if entry.gone {
		cs.mu.Unlock()
		return Refuse(NoContext, "no context or session %q", entry.ID)
	}
	cs.remove(entry)
	opening := true
	select {
	case <-entry.ready:
		opening = false
	default:
	}
	cs.mu.Unlock()
	if opening {
		return nil // finishOpen closes it
	}

	cs.c.mu.Lock()
	running := slices.Clone(cs.c.current[entry.ID])
	cs.c.mu.Unlock()
	for _, e := range slices.Backward(running) { // the last first, so that none begins
		e.Stop(ErrClosed)
	}
	return entry.backend.Close(ctx, entry.ID)
}

// deleted says that the context was deleted meanwhile.
func (cs *contexts) deleted(entry *openContext) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return entry.gone
}

// list returns the contexts that match, in the order they were made.
func (cs *contexts) list(match func(*openContext) bool) []*openContext {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var all []*openContext
	for _, e := range cs.open {
		if match(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *openContext) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// refuse lets no more contexts be opened.
func (cs *contexts) refuse() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
}

// closeAll closes all contexts. None must be opened any more.
func (cs *contexts) closeAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, e := range cs.list(func(*openContext) bool { return true }) {
		wg.Go(func() { cs.close(ctx, e) })
	}
	wg.Wait()
}

// OpenContext makes a context of req.Language.
func (c *Controller) OpenContext(ctx context.Context, req OpenRequest) (Context, error) {
	entry, err := c.contexts.openLanguage(ctx, req)
	if err != nil {
		return Context{}, err
	}
	return entry.Context, nil
}

// Context returns the context with this id.
func (c *Controller) Context(id string) (Context, error) {
	entry, err := c.contexts.named(id, false)
	if err != nil {
		return Context{}, err
	}
	return c.contexts.copyOf(entry), nil
}

func (cs *contexts) copyOf(e *openContext) Context {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return e.Context
}

// named returns the context or session with this id.
func (cs *contexts) named(id string, session bool) (*openContext, error) {
	entry := cs.get(id)
	if entry == nil || (entry.Language == "") != session {
		if session {
			return nil, Refuse(NoContext, "no session %q", id)
		}
		return nil, Refuse(NoContext, "no context %q", id)
	}
	return entry, nil
}

// Contexts returns the contexts of a language, or of all with "", in the order they were made.
func (c *Controller) Contexts(ctx context.Context, language string) ([]Context, error) {
	if language != "" {
		canonical, _, err := c.contexts.language(ctx, language)
		if err != nil {
			return nil, err
		}
		language = canonical
	}
	var all []Context
	for _, e := range c.contexts.list(func(e *openContext) bool {
		return e.Language != "" && (language == "" || e.Language == language)
	}) {
		all = append(all, c.contexts.copyOf(e))
	}
	return all, nil
}

// CloseContext deletes a context; what runs in it ends with CommandInterrupted.
func (c *Controller) CloseContext(ctx context.Context, id string) error {
	entry, err := c.contexts.named(id, false)
	if err != nil {
		return err
	}
	return c.contexts.close(ctx, entry)
}

// RestartContext gives a context a fresh state under the same id; what runs in it ends.
func (c *Controller) RestartContext(ctx context.Context, id string) error {
	entry, err := c.contexts.named(id, false)
	if err != nil {
		return err
	}
	r, ok := entry.backend.(Restarter)
	if !ok {
		return Refuse(NotSupported, "a context of %s can't be restarted", entry.Language)
	}
	c.mu.Lock()
	running := slices.Clone(c.current[id])
	c.mu.Unlock()
	for _, e := range slices.Backward(running) {
		e.Stop(ErrInterrupted)
	}
	return r.Restart(ctx, id)
}
