package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// ServerConfig says which Jupyter server to use and how languages are called.
type ServerConfig struct {
	Managed *Managed          // the server of ours, or
	Client  *Client           // one that somebody else runs
	Names   map[string]string // language to kernelspec, beats everything
	Aliases map[string]string // other name of a language to the language, as py to python
	WarmCwd string            // where kernels of [Server.Warm] start on a server of ours
}

// Server opens kernels on one Jupyter server. Its methods may be called from any goroutine.
type Server struct {
	cfg       ServerConfig
	restartAt time.Duration // when a kernel that ignores interrupts is restarted
	work      sync.WaitGroup

	mu      sync.Mutex
	kernels map[*Kernel]struct{}
	specs   map[string]Kernelspec // as last listed; nil: never
	closed  bool
	pool    *pool // nil without Warm
}

// NewServer returns a server with no kernels. Nothing is started or connected. Close ends it.
func NewServer(cfg ServerConfig) *Server {
	return &Server{cfg: cfg, restartAt: restartAt, kernels: make(map[*Kernel]struct{})}
}

// NoKernelspecError says that no kernel speaks a language.
type NoKernelspecError struct {
	Language  string
	Available []string // names of the kernelspecs there are
}

func (e *NoKernelspecError) Error() string {
	if len(e.Available) == 0 {
		return fmt.Sprintf("no kernel for %q; the Jupyter server has none at all", e.Language)
	}
	return fmt.Sprintf("no kernel for %q; there are: %s", e.Language, strings.Join(e.Available, ", "))
}

// client returns the client of a server that runs, as far as is known.
func (s *Server) client(ctx context.Context) (*Client, error) {
	if s.cfg.Managed != nil {
		return s.cfg.Managed.Client(ctx)
	}
	return s.cfg.Client, nil
}

// suspect has the server behind c looked at before it is used again.
func (s *Server) suspect(c *Client) {
	if s.cfg.Managed != nil {
		s.cfg.Managed.suspect(c)
	}
}

// Kernelspecs returns the kernelspecs the server has, by name: as last listed unless refresh is set. The map is not
// to be changed.
func (s *Server) Kernelspecs(ctx context.Context, refresh bool) (map[string]Kernelspec, error) {
	s.mu.Lock()
	specs := s.specs
	s.mu.Unlock()
	if specs != nil && !refresh {
		return specs, nil
	}
	c, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	if specs, err = c.Kernelspecs(ctx); err != nil {
		if errors.Is(err, ErrUnavailable) {
			s.suspect(c)
		}
		return nil, err
	}
	s.mu.Lock()
	s.specs = specs
	s.mu.Unlock()
	return specs, nil
}

// Kernelspec finds the kernelspec for a language: the configured one, the one of that name, then by alias, then one
// that says it speaks the language, whatever the case; the lowest name wins. If there is none the list is read anew
// once; then the error is a [*NoKernelspecError].
func (s *Server) Kernelspec(ctx context.Context, language string) (Kernelspec, error) {
	for _, refresh := range []bool{false, true} {
		specs, err := s.Kernelspecs(ctx, refresh)
		if err != nil {
			return Kernelspec{}, err
		}
		if spec, ok := s.find(specs, language); ok {
			return spec, nil
		}
	}
	specs, err := s.Kernelspecs(ctx, false)
	if err != nil {
		return Kernelspec{}, err
	}
	return Kernelspec{}, &NoKernelspecError{Language: language, Available: slices.Sorted(maps.Keys(specs))}
}

func (s *Server) find(specs map[string]Kernelspec, language string) (Kernelspec, bool) {
	names := []string{language}
	if other, ok := s.cfg.Aliases[strings.ToLower(language)]; ok {
		names = append(names, other)
	}
	for _, name := range names {
		if spec, ok := specs[s.cfg.Names[name]]; ok {
			return spec, true
		}
	}
	for _, name := range names {
		if spec, ok := specs[name]; ok {
			return spec, true
		}
	}
	for _, name := range names {
		for _, key := range slices.Sorted(maps.Keys(specs)) {
			if strings.EqualFold(specs[key].Language, name) {
				return specs[key], true
			}
		}
	}
	return Kernelspec{}, false
}

// OpenRequest says what kernel to open.
type OpenRequest struct {
	ID       string            // names the session, unless the kernel is a warm one: its notebook would be ID.ipynb; unique among the open ones
	Language string            // or the name of a kernelspec
	Cwd      string            // absolute; the kernel's directory. Empty: the server's choice
	Env      map[string]string // beside the server's environment
	Wish     bool              // on a server that isn't ours: without Cwd if it can't be had
}

// Open starts a kernel and connects to it. It returns when the kernel has answered. The session's notebook,
// ID.ipynb in Cwd on a server of ours, is not made. A language nobody speaks is a [*NoKernelspecError]; a server that can't be had wraps
// [ErrUnavailable] and takes at most 5 s. On a server that isn't ours, Cwd and Env are set by a silent first cell, in
// Python only; what can't be set wraps [ErrPlace].
func (s *Server) Open(ctx context.Context, req OpenRequest) (*Kernel, error) {
	if req.ID == "" || strings.ContainsAny(req.ID, "/\x00") {
		return nil, fmt.Errorf("open kernel: %q is no id", req.ID)
	}
	spec, err := s.Kernelspec(ctx, req.Language)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	p := s.pool
	s.mu.Unlock()
	if p != nil {
		req.Env = maps.Clone(req.Env)
		if k := p.take(ctx, spec, req); k != nil {
			return k, nil
		}
	}
	return s.open(ctx, spec, req)
}

// open starts a kernel.
func (s *Server) open(ctx context.Context, spec Kernelspec, req OpenRequest) (*Kernel, error) {
	k := &Kernel{
		server:  s,
		req:     req,
		spec:    spec,
		turn:    make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
	k.req.Env = maps.Clone(req.Env)
	if s.cfg.Managed == nil && s.setup(k) == "" && (req.Cwd != "" && !req.Wish || len(req.Env) > 0) {
		return nil, fmt.Errorf("open kernel %s: %w: on another's Jupyter server they can be for Python only", spec.Name, ErrPlace)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.kernels[k] = struct{}{}
	s.mu.Unlock()
	if _, err := k.revive(ctx, nil); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		s.work.Go(func() {
			defer cancel()
			_ = k.Close(closing) // the caller has the error that matters
		})
		return nil, fmt.Errorf("open kernel %s: %w", spec.Name, err)
	}
	return k, nil
}

// Close closes all kernels. It returns when they are gone, at the latest when ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	p := s.pool
	s.mu.Unlock()
	if p != nil {
		p.close()
	}
	s.mu.Lock()
	kernels := slices.Collect(maps.Keys(s.kernels))
	s.mu.Unlock()
	errs := make([]error, len(kernels))
	var wg sync.WaitGroup
	for i, k := range kernels {
		wg.Go(func() { errs[i] = k.Close(ctx) })
	}
	wg.Wait()
	s.work.Wait()
	return errors.Join(errs...)
}

func (s *Server) forget(k *Kernel) {
	s.mu.Lock()
	delete(s.kernels, k)
	s.mu.Unlock()
}

// startSession starts k's kernel.
func (s *Server) startSession(ctx context.Context, c *Client, k *Kernel) (Session, error) {
	notebook := k.req.ID + ".ipynb"
	where := k.req.ID + "-" + newID() + ".ipynb" // one that may still have a session would give that
	if m := s.cfg.Managed; m != nil {
		where = strings.TrimPrefix(path.Join(k.req.Cwd, notebook), "/")
		done, err := m.prepareEnv(k.req.ID, k.req.Env)
		if err != nil {
			return Session{}, err
		}
		defer done()
	}
	var session Session
	err := c.guarded(ctx, "", func(ctx context.Context) (err error) {
		session, err = c.CreateSession(ctx, where, notebook, k.spec.Name)
		return err
	})
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrUnavailable)) {
		s.discard(ctx, c, where)
	}
	return session, err
}

// discard ends a session that the server may have started for a call that we gave up.
func (s *Server) discard(ctx context.Context, c *Client, where string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	s.work.Go(func() {
		defer cancel()
		sessions, err := c.Sessions(ctx)
		if err != nil {
			return
		}
		for _, session := range sessions {
			if session.Path == where {
				_ = c.DeleteSession(ctx, session.ID)
			}
		}
	})
}

// setup returns the code of a silent first cell that brings k to its directory and environment where it wasn't started
// there, empty if none is needed or known.
func (s *Server) setup(k *Kernel) string {
	k.mu.Lock()
	moves, name := s.cfg.Managed == nil || k.warm, k.name
	k.mu.Unlock()
	if !moves || k.req.Cwd == "" && len(k.req.Env) == 0 || !strings.EqualFold(k.spec.Language, "python") {
		return ""
	}
	given, err := json.Marshal(struct {
		Cwd  string            `json:"cwd"`
		Env  map[string]string `json:"env"`
		Wish bool              `json:"wish"`

		Session string `json:"session"`
	}{k.req.Cwd, k.req.Env, k.req.Wish, name})
	if err != nil {
		return ""
	}
	literal, err := json.Marshal(ascii(given)) // a JSON string of ASCII is a Python string
	if err != nil {
		return ""
	}
	return fmt.Sprintf(`def _celld_setup(given):
    import json, os
    given = json.loads(given)
    os.environ.update(given["env"] or {})
    if given["session"]:
        os.environ["JPY_SESSION_NAME"] = given["session"]
    try:
        if given["cwd"]:
            os.chdir(given["cwd"])
    except OSError:
        if not given["wish"]:
            raise
    try:
        visited = get_ipython().user_ns["_dh"]
        visited[:] = [type(visited[0])(os.getcwd())]
    except Exception:
        pass
_celld_setup(%s)
del _celld_setup`, literal)
}

// ascii escapes what lies beyond ASCII in JSON text, as JSON allows.
func ascii(text []byte) string {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}
