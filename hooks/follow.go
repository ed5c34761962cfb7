package hooks

import (
	"context"
	"errors"
	"io"
	"slices"
	"sort"
	"sync"
	"time"
)

// IdleInterval is the silence after which a writer that implements Idler is called.
const IdleInterval = 10 * time.Second

// Idler is implemented by writers that want to show that they are alive while nothing happens. Idle is called by the
// reader's goroutine after each IdleInterval without an event; its error ends the reader.
type Idler interface{ Idle() error }

// reader is the cursor of one Follow. Journal.mu guards it, but for fresh and cut, which are its goroutine's own.
type reader struct {
	pos  int64 // position of the last event given to the writer
	next int64 // number of the first record past pos
	// How far the reader may be behind before the program waits: the window, or what it was behind when it came.
	hold, holdEvents int64
	blocking         bool      // the program waits for it
	waiting          time.Time // since when
	err              error     // why it was dropped
	gone             chan struct{}

	fresh [2]bool    // the stream's next output doesn't follow what the writer had
	cut   [2]*Cutter // its cutter, where that is not the record's
}

func (r *reader) drop(err error) {
	if r.err == nil {
		r.err = err
		close(r.gone)
	}
}

// Follow replays to w what comes after position after, then what happens, until the terminal event has been written
// (nil), ctx is done (its cause), w fails (its error) or the reader is given up (ErrStalled, ErrLagged). A reader
// that starts inside a line is given that line's beginning again first, with positions at or before after; [Text]
// makes of this neither loss nor repetition. Several may follow at once.
func (j *Journal) Follow(ctx context.Context, after int64, w Writer) error {
	return j.read(ctx, after, w, true)
}

// Replay is Follow up to what is there now; it doesn't wait for more.
func (j *Journal) Replay(ctx context.Context, after int64, w Writer) error {
	return j.read(ctx, after, w, false)
}

func (j *Journal) read(ctx context.Context, after int64, w Writer, follow bool) error {
	r := &reader{pos: max(after, 0), gone: make(chan struct{}), fresh: [2]bool{true, true}}
	j.attach(r)
	defer j.detach(r)
	if r.pos > 0 {
		for _, k := range []kind{kindStdout, kindStderr} {
			if err := j.takeBack(r, k, w); err != nil {
				return err
			}
		}
	}
	idle := newIdleTimer(w)
	defer idle.stop()
	for {
		more, err := j.step(ctx, r, w, follow)
		if err != nil || more == nil {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.gone:
		case <-idle.start():
			if err := idle.w.Idle(); err != nil {
				return err
			}
		}
	}
}

// step gives w what is there. It returns a channel that is closed when there is more, nil after the end.
func (j *Journal) step(ctx context.Context, r *reader, w Writer, follow bool) (<-chan struct{}, error) {
	b := batches.Get().(*batch)
	defer batches.Put(b)
	for {
		more, err := j.collect(r, b, follow)
		if err != nil || len(b.items) == 0 && !b.init {
			return more, err
		}
		if err := j.deliver(r, b, w); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (j *Journal) attach(r *reader) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.next = j.first + int64(sort.Search(len(j.records), func(i int) bool { return j.records[i].pos > r.pos }))
	r.hold = max(window, j.pos-r.pos)
	r.holdEvents = max(windowEvents, j.first+int64(len(j.records))-r.next)
	j.readers[r] = struct{}{}
}

func (j *Journal) detach(r *reader) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.readers, r)
	j.makeRoom()
}

// makeRoom tells waiting appenders that a reader has moved. The caller holds mu.
func (j *Journal) makeRoom() {
	if j.room != nil {
		close(j.room)
		j.room = nil
	}
}

// item is the part from..to of a record on its way to a writer; positions gap..from before it are gone, unless gap is 0.
type item struct {
	record
	from, to, gap int64
}

// batch is what a reader takes from the journal at once.
type batch struct {
	items []item
	init  bool
	buf   [FlushBytes]byte
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// collect takes up to FlushBytes of output, and the events between, that come after r. With nothing there b is empty,
// and the channel is closed when there is more; it is nil when there never will be, or when the caller doesn't follow.
func (j *Journal) collect(r *reader, b *batch, follow bool) (<-chan struct{}, error) {
	clear(b.items)
	b.items, b.init = b.items[:0], false
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	from, gap := r.pos, int64(0)
	if from == 0 && j.pos > 0 {
		b.init, from = true, 1
	}
	if from < j.dropped {
		gap, from = from+1, j.dropped
	}
	room := int64(FlushBytes)
	for i := max(r.next-1-j.first, 0); i < int64(len(j.records)) && room > 0 && len(b.items) < 256; i++ {
		rec := j.records[i]
		if rec.pos <= from {
			continue
		}
		it := item{record: rec, from: max(from, rec.before()), to: rec.pos, gap: gap}
		if rec.output() {
			it.to = min(it.to, it.from+room)
		}
		room -= int64(rec.size)
		from, gap = it.to, 0
		b.items = append(b.items, it)
	}
	if len(b.items) > 0 || b.init || !follow || j.ended {
		return nil, nil
	}
	if j.more == nil {
		j.more = make(chan struct{})
	}
	return j.more, nil
}

// deliver gives b to w, flushes it and moves r.
func (j *Journal) deliver(r *reader, b *batch, w Writer) error {
	pos := int64(1)
	if b.init {
		w.OnInit(j.init) // set once, before pos > 0
	}
	for i := range b.items {
		it := &b.items[i]
		if err := j.give(r, it, b.buf[:], w); err != nil {
			return err
		}
		pos = it.to
	}
	if err := w.Flush(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r.pos, r.blocking = pos, false
	for r.next < j.first+int64(len(j.records)) && (r.next < j.first || j.records[r.next-j.first].pos <= pos) {
		r.next++
	}
	r.hold = max(window, min(r.hold, j.pos-pos))
	r.holdEvents = max(windowEvents, min(r.holdEvents, j.first+int64(len(j.records))-r.next))
	j.makeRoom()
	return nil
}

// give calls the hook of w that the item is for.
func (j *Journal) give(r *reader, it *item, buf []byte, w Writer) error {
	if it.gap > 0 {
		if err := j.gap(r, it.gap, it.from, it.time, w); err != nil {
			return err
		}
	}
	stamp := Stamp{EID: it.to, Time: it.time}
	switch it.kind {
	case kindStdout, kindStderr:
		return j.giveOutput(r, it, buf, w)
	case kindEnd:
		call(w, it.stream, Output{Stamp: stamp, End: true})
	case kindResult:
		data := make([]byte, it.size)
		if err := j.readFull(data, it.off); err != nil {
			return j.gap(r, it.to, it.to, it.time, w)
		}
		e := it.event.(*bundle).result(data)
		e.Stamp = stamp
		w.OnResult(e)
	case kindStatus:
		e := *it.event.(*Status)
		e.Stamp = stamp
		w.OnStatus(e)
	case kindError:
		e := *it.event.(*Failure)
		e.Stamp = stamp
		w.OnError(e)
	case kindComplete:
		e := *it.event.(*Complete)
		e.Stamp = stamp
		w.OnComplete(e)
	}
	return nil
}

// gap tells w that positions from..to are gone. Under Ring a reader that had begun to follow is ended instead.
func (j *Journal) gap(r *reader, from, to int64, at time.Time, w Writer) error {
	if j.policy == Ring && !(r.fresh[0] && r.fresh[1]) {
		return ErrLagged
	}
	r.fresh, r.cut = [2]bool{true, true}, [2]*Cutter{}
	w.OnStatus(Status{Stamp: Stamp{Time: at}, State: StateGap, From: from, To: to})
	return nil
}

func (j *Journal) giveOutput(r *reader, it *item, buf []byte, w Writer) error {
	k := it.kind
	data := buf[:it.to-it.from]
	if err := j.readFull(data, it.off+it.from-it.before()); err != nil {
		return j.gap(r, it.from+1, it.to, it.time, w)
	}
	o := Output{Stamp: Stamp{EID: it.to, Time: it.time}, Data: data}
	if r.fresh[k] {
		o.Cut = r.cut[k]
		if o.Cut == nil {
			cut := it.cut
			o.Cut = &cut
		}
		r.fresh[k], r.cut[k] = false, nil
	}
	call(w, k, o)
	return nil
}

// call gives output to the hook of its stream.
func call(w Hooks, stream kind, o Output) {
	if stream == kindStdout {
		w.OnStdout(o)
	} else {
		w.OnStderr(o)
	}
}

func (j *Journal) readFull(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := j.store.ReadAt(p, off)
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// takeBack gives w the unfinished line of stream k before r.pos again, and remembers the cutter's state there.
func (j *Journal) takeBack(r *reader, k kind, w Writer) error {
	parts := j.before(r.pos, k)
	if len(parts) == 0 {
		return nil
	}
	last := &parts[len(parts)-1]
	data := make([]byte, last.to-last.from)
	if j.readFull(data, last.off) != nil {
		return nil
	}
	cut := last.cut
	cut.Skip(data)
	if cut.Len() == 0 {
		r.cut[k] = &cut
		return nil
	}
	// Go back from the end until the line's beginning, or what is kept of it, is there.
	want := int64(cut.Len())
	for i, it := range slices.Backward(parts) {
		if want -= it.to - it.from; want <= 0 || i == 0 {
			parts = parts[i:]
			break
		}
	}
	for i, it := range parts {
		data := make([]byte, it.to-it.from)
		if j.readFull(data, it.off) != nil {
			continue
		}
		o := Output{Stamp: Stamp{EID: it.to, Time: it.time}, Data: data}
		if i == 0 || r.fresh[k] {
			o.Cut = &it.cut
		}
		call(w, k, o)
		r.fresh[k] = false
	}
	return nil
}

// before returns the parts of stream k at or before pos that can hold its unfinished line there, the oldest first.
func (j *Journal) before(pos int64, k kind) []item {
	j.mu.Lock()
	defer j.mu.Unlock()
	var parts []item
	size := int64(0)
	for _, rec := range slices.Backward(j.records) {
		if rec.kind == kindEnd && rec.stream == k && rec.pos <= pos {
			return nil
		}
		if rec.kind != k || rec.before() >= pos {
			continue
		}
		it := item{record: rec, from: rec.before(), to: min(pos, rec.pos)}
		parts = append(parts, it)
		if size += it.to - it.from; size > MaxLine {
			break
		}
	}
	slices.Reverse(parts)
	return parts
}

// idleTimer calls an Idler after each silence. Without one it never fires.
type idleTimer struct {
	w     Idler
	timer *time.Timer
}

func newIdleTimer(w Writer) *idleTimer {
	i, _ := w.(Idler)
	return &idleTimer{w: i}
}

func (t *idleTimer) start() <-chan time.Time {
	switch {
	case t.w == nil:
		return nil
	case t.timer == nil:
		t.timer = time.NewTimer(IdleInterval)
	default:
		t.timer.Reset(IdleInterval)
	}
	return t.timer.C
}

func (t *idleTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}
