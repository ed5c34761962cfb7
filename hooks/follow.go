package hooks

import (
	"context"
	"errors"
	"io"
	"slices"
	"sort"
	"sync"
	"time"
	"unicode/utf8"
)

// IdleInterval is the silence after which a writer that implements Idler is called.
const IdleInterval = 10 * time.Second

// Idler is implemented by writers that want to show that they are alive while nothing happens. Idle is called by the
// reader's goroutine after each IdleInterval without an event; its error ends the reader.
type Idler interface{ Idle() error }

// Pacer is implemented by writers whose Flush may last although the client takes what it is sent, bit by bit. Accepted
// returns when the client last took something; it is called at any time, must be safe for concurrent use and not wait.
type Pacer interface{ Accepted() time.Time }

// reader is the cursor of one Follow. Journal.mu guards it, but for what is its goroutine's own.
type reader struct {
	pos     int64     // position of the last event given to the writer
	next    int64     // number of the first record past pos
	off     int64     // offset in the store of the first byte past pos
	waiting time.Time // since when the program waits for it; zero when it doesn't
	pacer   Pacer     // its writer, if that is one
	err     error     // why it was given up
	gone    chan struct{}

	// Its goroutine's own.
	begun bool       // the writer has had something
	fresh [2]bool    // the stream's next output doesn't follow what the writer had
	cut   [2]*Cutter // its cutter, where that is not the record's
}

// since is when the reader's client last took something, or the program began to wait for it. The caller holds mu.
func (r *reader) since() time.Time {
	if r.pacer != nil {
		if at := r.pacer.Accepted(); at.After(r.waiting) {
			return at
		}
	}
	return r.waiting
}

// Follow replays to w what comes after position after, then what happens, until the terminal event has been written
// (nil), ctx is done (its cause), w fails (its error), the reader is given up (ErrStalled, ErrLagged) or the store's
// file can't be read. A reader that starts inside a line is given that line's beginning again first, with positions
// at or before after; [Text] makes of this neither loss nor repetition. Several may follow at once.
func (j *Journal) Follow(ctx context.Context, after int64, w Writer) error {
	return j.read(ctx, after, w, true)
}

// Replay is Follow up to what is there now; it doesn't wait for more.
func (j *Journal) Replay(ctx context.Context, after int64, w Writer) error {
	return j.read(ctx, after, w, false)
}

func (j *Journal) read(ctx context.Context, after int64, w Writer, follow bool) error {
	r := &reader{gone: make(chan struct{}), fresh: [2]bool{true, true}}
	r.pacer, _ = w.(Pacer)
	j.attach(r, max(after, 0))
	defer j.detach(r)
	for k := kindStdout; r.pos > 0 && k <= kindStderr; k++ {
		if err := j.takeBack(r, k, w); err != nil {
			return err
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
		if err != nil || b.empty() {
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

func (j *Journal) attach(r *reader, pos int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.move(r, pos)
	j.readers = append(j.readers, r)
}

// move puts r's cursor at pos. The caller holds mu.
func (j *Journal) move(r *reader, pos int64) {
	i := sort.Search(len(j.records), func(i int) bool { return j.records[i].pos > pos })
	r.pos, r.next, r.off = pos, j.first+int64(i), j.bytes
	if i < len(j.records) {
		rec := &j.records[i]
		r.off = rec.off
		if rec.output() {
			r.off += max(0, pos-rec.before())
		}
	}
}

func (j *Journal) detach(r *reader) {
	j.mu.Lock()
	j.readers = slices.DeleteFunc(j.readers, func(other *reader) bool { return other == r })
	j.makeRoom()
	j.mu.Unlock()
	j.finish()
}

// makeRoom tells waiting appenders that a reader has moved. The caller holds mu.
func (j *Journal) makeRoom() {
	if j.room != nil {
		close(j.room)
		j.room = nil
	}
}

// item is the part from..to of a record on its way to a writer.
type item struct {
	record
	from, to int64
}

// offset is where its bytes are in the store.
func (it *item) offset() int64 { return it.off + it.from - it.before() }

func (it *item) stamp() Stamp { return Stamp{EID: it.to, Time: time.Unix(0, it.time)} }

// batch is what a reader takes from the journal at once: OnInit, a gap, then items.
type batch struct {
	init  bool
	gap   *Status
	pos   int64 // position before the items
	items []item
	buf   [FlushBytes]byte
}

func (b *batch) empty() bool { return !b.init && b.gap == nil && len(b.items) == 0 }

var batches = sync.Pool{New: func() any { return new(batch) }}

// collect takes up to FlushBytes of output, and the events between, that come after r. With nothing there b is empty,
// and the channel is closed when there is more; it is nil when there never will be, or when the caller doesn't follow.
func (j *Journal) collect(r *reader, b *batch, follow bool) (<-chan struct{}, error) {
	clear(b.items)
	b.init, b.gap, b.pos, b.items = false, nil, r.pos, b.items[:0]
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	if b.pos == 0 && j.pos > 0 {
		b.init, b.pos = true, 1
	}
	if b.pos > 0 && b.pos < j.dropped {
		b.gap = &Status{State: StateGap, From: b.pos + 1, To: j.dropped}
		b.pos = j.dropped
	}
	from, room := b.pos, int64(FlushBytes)
	// The record before next may have grown.
	for i := max(r.next-1-j.first, 0); i < int64(len(j.records)) && room > 0 && len(b.items) < 256; i++ {
		if j.records[i].pos <= from {
			continue
		}
		it := item{record: j.records[i]}
		it.from, it.to = max(from, it.before()), it.pos
		if it.output() {
			it.to = min(it.to, it.from+room)
			room -= it.to - it.from
		} else {
			room -= it.size
		}
		from = it.to
		b.items = append(b.items, it)
	}
	if !b.empty() || !follow || j.ended {
		return nil, nil
	}
	return j.next(), nil
}

// deliver gives b to w, flushes it and moves r.
func (j *Journal) deliver(r *reader, b *batch, w Writer) error {
	if b.init {
		w.OnInit(j.init) // set once, before pos > 0
	}
	if b.gap != nil {
		if j.policy == Ring && r.begun {
			return ErrLagged
		}
		r.fresh, r.cut = [2]bool{true, true}, [2]*Cutter{}
		b.gap.Time = time.Now()
		w.OnStatus(*b.gap)
	}
	for i := range b.items {
		it := &b.items[i]
		err := j.give(r, it, b.buf[:], w)
		if errors.Is(err, ErrDropped) {
			j.lose(it)
			break // the next batch begins with the gap
		}
		if err != nil {
			return err
		}
		b.pos = it.to
	}
	if err := w.Flush(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r.begun = r.begun || b.pos > r.pos
	j.move(r, b.pos)
	r.waiting = time.Time{}
	j.makeRoom()
	return nil
}

// give calls the hook of w that the item is for.
func (j *Journal) give(r *reader, it *item, buf []byte, w Writer) error {
	stamp := it.stamp()
	switch it.kind {
	case kindStdout, kindStderr:
		return j.giveOutput(r, it, buf, w)
	case kindEnd:
		call(w, it.stream, Output{Stamp: stamp, End: true})
	case kindResult:
		data := make([]byte, it.size)
		if err := j.readFull(data, it.off); err != nil {
			return err
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

func (j *Journal) giveOutput(r *reader, it *item, buf []byte, w Writer) error {
	k := it.kind
	data := buf[:it.to-it.from]
	if err := j.readFull(data, it.offset()); err != nil {
		return err
	}
	o := Output{Stamp: it.stamp(), Data: data}
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

// lose drops the records up to it, whose bytes are gone from the store.
func (j *Journal) lose(it *item) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.evict()
	j.drop(sort.Search(len(j.records), func(i int) bool { return j.records[i].before() >= it.to }))
}

// takeBack gives w the unfinished line of stream k before r.pos again, and remembers the cutter's state there.
func (j *Journal) takeBack(r *reader, k kind, w Writer) error {
	parts := j.before(r.pos, k)
	if len(parts) == 0 {
		return nil
	}
	b := batches.Get().(*batch)
	defer batches.Put(b)
	last := &parts[len(parts)-1]
	data := b.buf[:last.to-last.from]
	switch err := j.readFull(data, last.off); {
	case errors.Is(err, ErrDropped):
		j.lose(last)
		return nil
	case err != nil:
		return err
	}
	cut := last.cut
	cut.Skip(data)
	if cut.Len() == 0 {
		r.cut[k] = &cut
		return nil
	}
	// Go back until the line's beginning, or what is kept of it, is there. A piece of a line that isn't UTF-8 may have begun
	// in what looks like a character, and that is held back whole.
	first := len(parts) - 1
	for want := max(int64(cut.Len()), utf8.UTFMax-1) - last.to + last.from; want > 0 && first > 0; {
		first--
		want -= parts[first].to - parts[first].from
	}
	for i := range parts[first:] {
		err := j.giveOutput(r, &parts[first+i], b.buf[:], w)
		if errors.Is(err, ErrDropped) {
			r.fresh[k] = true
		} else if err != nil {
			return err
		}
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
