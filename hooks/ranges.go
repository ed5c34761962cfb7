package hooks

import "context"

// Range is a run of bytes in a store, From included and To not.
type Range struct{ From, To int64 }

// Section returns where in the store the bytes of one stream lie, in order: at most most of them, from its byte from on.
// next is the stream's byte after them. What is no longer kept is passed over, and what came after the terminal event
// belongs to neither stream.
func (j *Journal) Section(stderr bool, from, most int64) (all []Range, next int64) {
	k := kindStdout
	if stderr {
		k = kindStderr
	}
	base, _ := j.store.Bounds()
	j.mu.Lock()
	defer j.mu.Unlock()
	next = j.gone[k]
	for _, r := range j.records {
		if r.kind != k {
			continue
		}
		first := next
		next += r.size
		a := max(from-first, base-r.off, 0)
		if a >= r.size {
			continue
		}
		b := min(r.size, a+most)
		all = append(all, Range{r.off + a, r.off + b})
		if most -= b - a; most == 0 {
			return all, first + b
		}
	}
	return all, next
}

// Write is Append for those who want an io.Writer. It never fails.
func (s *Store) Write(p []byte) (int, error) {
	s.Append(p)
	return len(p), nil
}

// Unfinished returns what the unfinished line holds so far, in line mode. It is valid until the next call of Feed.
func (t *Text) Unfinished() []byte { return t.pend }

// Wait returns when there is something after position after or the execution has ended, or with ctx's cause.
func (j *Journal) Wait(ctx context.Context, after int64) error {
	for {
		j.mu.Lock()
		if j.pos > after || j.ended {
			j.mu.Unlock()
			return nil
		}
		more := j.next()
		j.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
