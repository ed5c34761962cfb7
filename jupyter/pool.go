package jupyter

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Times of the pool.
const (
	handWithin = 5 * time.Second // a warm kernel that doesn't answer in this time isn't handed out; a busy machine's may take a while
	refillBase = 2 * time.Second // after a kernel that couldn't be started; then twice as long each time
	refillMost = time.Minute
)

// pool holds kernels that have been started for whoever comes next. It is filled by one goroutine for each language,
// which starts one kernel at a time.
type pool struct {
	server *Server
	report func(language string, err error)
	closed chan struct{}
	work   sync.WaitGroup

	mu    sync.Mutex // guards what follows; never held over I/O
	racks []*rack
	shut  bool
}

// rack holds the kernels of one language.
type rack struct {
	language string
	want     int
	spec     string    // the kernelspec; empty until one has been started
	ready    []*Kernel // the oldest first
	more     chan struct{}
}

// Warmth is how many kernels of a language wait to be used.
type Warmth struct {
	Language    string
	Want, Ready int
	Memory      int64 // bytes that the ready ones occupy, shared pages in proportion; 0 on a server that isn't ours
}

// Warm starts kernels ahead, as many of each language as want says, and keeps as many ready: [Server.Open] hands them
// out. It returns at once and is called once at the most. report, which may be nil, is told of kernels that can't be
// started. [Server.Close] ends it.
func (s *Server) Warm(want map[string]int, report func(language string, err error)) {
	p := &pool{server: s, report: report, closed: make(chan struct{})}
	for language, n := range want {
		if n > 0 {
			p.racks = append(p.racks, &rack{language: language, want: n, more: make(chan struct{}, 1)})
		}
	}
	slices.SortFunc(p.racks, func(a, b *rack) int { return strings.Compare(a.language, b.language) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.pool = p
	for _, r := range p.racks {
		p.work.Go(func() { p.fill(r) })
	}
}

// fill keeps a rack full.
func (p *pool) fill(r *rack) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.work.Go(func() {
		select {
		case <-p.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	wait := refillBase
	for {
		p.mu.Lock()
		full := len(r.ready) >= r.want
		p.mu.Unlock()
		if full {
			select {
			case <-r.more:
				continue
			case <-p.closed:
				return
			}
		}
		err := p.add(ctx, r)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			wait = refillBase
			continue
		case p.report != nil:
			p.report(r.language, err)
		}
		again := time.NewTimer(wait)
		wait = min(2*wait, refillMost)
		select {
		case <-again.C:
		case <-p.closed:
			again.Stop()
			return
		}
	}
}

// add starts a kernel and puts it on the rack.
func (p *pool) add(ctx context.Context, r *rack) error {
	s := p.server
	spec, err := s.Kernelspec(ctx, r.language)
	if err != nil {
		return err
	}
	req := OpenRequest{ID: newID(), Language: r.language, Wish: true}
	if s.cfg.Managed != nil {
		req.Cwd = s.cfg.WarmCwd
	}
	k, err := s.open(ctx, spec, req)
	if err != nil {
		return err
	}
	if err := k.quietly(ctx, primer(spec)); err != nil {
		p.drop(k)
		return fmt.Errorf("prepare kernel %s: %w", spec.Name, err)
	}
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	p.mu.Lock()
	shut := p.shut
	if !shut {
		r.spec, r.ready = spec.Name, append(r.ready, k)
	}
	p.mu.Unlock()
	if shut { // Server.Close closes it
		return ErrClosed
	}
	p.work.Go(func() {
		select {
		case <-c.lost:
			p.server.suspect(k.usedClient()) // before anybody finds the rack empty
			if p.remove(r, k) {              // nobody has taken it
				p.drop(k)
			}
		case <-p.closed:
		}
	})
	return nil
}

// primer is code that makes the first cell as fast as later ones, empty if none is known.
func primer(spec Kernelspec) string {
	if !strings.EqualFold(spec.Language, "python") {
		return ""
	}
	return "get_ipython().display_formatter.format(1)"
}

// remove takes k from the rack, which is filled up then, and says whether it was there.
func (p *pool) remove(r *rack, k *Kernel) bool {
	p.mu.Lock()
	i := slices.Index(r.ready, k)
	if i >= 0 {
		r.ready = slices.Delete(r.ready, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 {
		return false
	}
	select {
	case r.more <- struct{}{}:
	default:
	}
	return true
}

// drop ends a kernel that nobody has used.
func (p *pool) drop(k *Kernel) {
	p.server.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		_ = k.Close(ctx)
	})
}

// take returns a warm kernel that is as req wants it and has just answered, or nil.
func (p *pool) take(ctx context.Context, spec Kernelspec, req OpenRequest) *Kernel {
	if !p.server.canMove(spec, req) {
		return nil
	}
	for ctx.Err() == nil {
		var k *Kernel
		var from *rack
		p.mu.Lock()
		for _, r := range p.racks {
			if r.spec == spec.Name && len(r.ready) > 0 && !p.shut {
				k, from = r.ready[0], r
			}
		}
		p.mu.Unlock()
		if k == nil {
			return nil
		}
		if !p.remove(from, k) {
			continue // somebody was faster
		}
		k.mu.Lock()
		k.req.Cwd, k.req.Env, k.req.Wish, k.warm = req.Cwd, req.Env, req.Wish, true
		if p.server.cfg.Managed != nil {
			k.name = path.Join(req.Cwd, req.ID+".ipynb")
		}
		k.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, handWithin)
		err := k.quietly(limited, p.server.setup(k))
		cancel()
		if err == nil {
			return k
		}
		p.server.suspect(k.usedClient())
		p.drop(k)
	}
	return nil
}

// canMove says whether a kernel of that spec that runs can be brought to where req wants it.
func (s *Server) canMove(spec Kernelspec, req OpenRequest) bool {
	if strings.EqualFold(spec.Language, "python") {
		return true
	}
	there := s.cfg.Managed != nil && req.Cwd == s.cfg.WarmCwd || s.cfg.Managed == nil && (req.Cwd == "" || req.Wish)
	return there && len(req.Env) == 0
}

// quietly runs code that nobody sees, or asks the kernel something small if there is none. It doesn't connect anew.
func (k *Kernel) quietly(ctx context.Context, code string) error {
	if err := k.take(ctx); err != nil {
		return err
	}
	defer k.release()
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if c == nil || c.isLost() {
		return ErrClosed
	}
	if code == "" {
		_, err := c.ask(ctx, request{channel: shellChannel, header: c.header("kernel_info_request"), content: emptyObject})
		return err
	}
	r, err := k.submit(ctx, c, ExecuteRequest{Code: code, Silent: true}, nothing{})
	if err != nil {
		return err
	}
	select {
	case <-r.done:
		if rest := k.settle(c, r); rest != nil {
			return ErrClosed
		}
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close ends the pool; its kernels are the server's to close.
func (p *pool) close() {
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	close(p.closed)
	p.work.Wait()
}

// Warmth tells how many kernels wait to be used. It is empty without [Server.Warm].
func (s *Server) Warmth() []Warmth {
	s.mu.Lock()
	p := s.pool
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	all := make([]Warmth, len(p.racks))
	ids := make(map[string]int)
	p.mu.Lock()
	for i, r := range p.racks {
		all[i] = Warmth{Language: r.language, Want: r.want, Ready: len(r.ready)}
		for _, k := range r.ready {
			ids[k.req.ID] = i
		}
	}
	p.mu.Unlock()
	if s.cfg.Managed != nil && len(ids) > 0 {
		s.cfg.Managed.memory(ids, func(i int, bytes int64) { all[i].Memory += bytes })
	}
	return all
}
