package hooks

import "context"

// Range is a run of bytes in a store, From included and To not.
type Range struct{ From, To int64 }

// Ranges returns where in the store, between from and to, the bytes of one stream lie, in order.
func (j *Journal) Ranges(stderr bool, from, to int64) []Range {
	k := kindStdout
	if stderr {
		k = kindStderr
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []Range
	for _, r := range j.records {
		if r.kind != k {
			continue
		}
		a, b := max(r.off, from), min(r.off+r.size, to)
		if a < b {
			all = append(all, Range{a, b})
		}
	}
	return all
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
