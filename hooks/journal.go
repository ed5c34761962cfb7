package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Policy says what happens when a reader can't keep up.
type Policy uint8

const (
	// Lossless: what an attached reader hasn't seen is not dropped; the hooks block instead, which slows the
	// program. A reader that accepts nothing for StallTimeout counts as gone.
	Lossless Policy = iota
	// Ring: the hooks never wait. A reader that falls behind what is kept gets ErrLagged and may come back.
	Ring
)

// Limits of a journal.
const (
	StallTimeout = 30 * time.Second // how long a reader may accept nothing while the program waits for it
	MaxRecords   = 10_000           // events kept in one journal
	FlushBytes   = 64 << 10         // output given to a writer between two flushes

	window       = 1 << 20        // positions that an attached reader may be behind before the program waits
	windowEvents = MaxRecords / 2 // the same in records
	mergeWithin  = 50 * time.Millisecond
)

// Errors that end a reader.
var (
	ErrLagged  = errors.New("the reader fell behind what is kept")
	ErrStalled = errors.New("the reader accepted nothing for 30 s")
)

// Config makes a Journal. Its zero value is lossless, in memory, within the default limits.
type Config struct {
	Policy Policy
	Store  *Store // where the bytes go; nil: a store of its own, in memory only
}

// Journal is the record of one execution: append-only, bounded, replayed to any number of readers. It implements
// Hooks. It is safe for concurrent use.
//
// Invariants:
//   - positions only grow; an event's position is that of the one before plus one, or plus the bytes of its output;
//   - the first record is OnInit at position 1, which is kept for good; the last is one terminal event;
//   - before the terminal event a stream that ended inside a line gets an end record;
//   - what is kept is a suffix of what was reported, preceded by a gap for whoever asks for more;
//   - under Lossless a reader that stays attached sees no gap, unless the journal was released.
type Journal struct {
	policy Policy
	store  *Store

	// order makes events one at a time. It is held while an appender waits for a slow reader: the others wait as
	// well, which is the back-pressure. Readers never take it.
	order   sync.Mutex
	cutters [2]Cutter // guarded by order

	mu       sync.Mutex // guards what follows; never held across I/O or a call to a writer
	init     Init
	records  []record
	first    int64 // number of records dropped before records[0]
	dropped  int64 // position of the last record dropped
	pos      int64
	readers  map[*reader]struct{}
	more     chan struct{} // closed at the next event; nil when nobody waits
	room     chan struct{} // closed when a reader has moved; nil when nobody waits
	ended    bool
	released chan struct{} // closed: hooks never block any more
	done     chan struct{} // closed after the terminal event
}

type kind uint8

const (
	kindStdout kind = iota
	kindStderr
	kindEnd // Output.End; stream tells of which
	kindResult
	kindStatus
	kindError
	kindComplete
)

// record is one event, or a run of output of one stream.
type record struct {
	pos    int64 // position after it
	off    int64 // in the store, of output and results
	time   time.Time
	cut    Cutter // before the output
	event  any    // *Status, *Failure, *Complete; *bundle for a result
	size   int32  // bytes in the store
	kind   kind
	stream kind // of an end
}

func (r *record) output() bool { return r.kind <= kindStderr }

// before is the position before the record.
func (r *record) before() int64 {
	if r.output() {
		return r.pos - int64(r.size)
	}
	return r.pos - 1
}

// bundle is a Result whose values lie in the store, one after the other.
type bundle struct {
	Result
	types []string
	sizes []int
}

// NewJournal makes an empty journal.
func NewJournal(c Config) *Journal {
	if c.Store == nil {
		c.Store = NewBudget("", DefaultLimits).Store("")
	}
	return &Journal{
		policy: c.Policy, store: c.Store,
		readers: map[*reader]struct{}{}, released: make(chan struct{}), done: make(chan struct{}),
	}
}

// Store returns the store of the journal's bytes.
func (j *Journal) Store() *Store { return j.store }

// Done is closed once the terminal event is in.
func (j *Journal) Done() <-chan struct{} { return j.done }

// Position returns the position of the newest event, and whether it is the terminal one.
func (j *Journal) Position() (pos int64, ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pos, j.ended
}

// Release lets the hooks never block again: call it when the execution's context is done. What a slow reader then
// hasn't seen may be dropped, and it is told by a gap.
func (j *Journal) Release() {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.released:
	default:
		close(j.released)
	}
}

// ReleaseWith calls Release when ctx is done. Call the returned function when the execution is over.
func (j *Journal) ReleaseWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, j.Release)
}

// OnInit implements Hooks.
func (j *Journal) OnInit(e Init) {
	j.order.Lock()
	defer j.order.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pos != 0 {
		return
	}
	j.pos = 1
	e.Stamp = Stamp{EID: 1, Time: time.Now()}
	j.init = e
	j.dropped = 1
	j.wake()
}

// OnStdout implements Hooks.
func (j *Journal) OnStdout(o Output) { j.output(kindStdout, o.Data) }

// OnStderr implements Hooks.
func (j *Journal) OnStderr(o Output) { j.output(kindStderr, o.Data) }

func (j *Journal) output(k kind, data []byte) {
	j.order.Lock()
	defer j.order.Unlock()
	for len(data) > 0 && j.waitForReaders() {
		part := data[:min(len(data), FlushBytes)]
		data = data[len(part):]
		before := j.cutters[k]
		j.cutters[k].Skip(part)
		off := j.store.Append(part)
		j.add(record{kind: k, off: off, size: int32(len(part)), cut: before})
	}
}

// OnResult implements Hooks.
func (j *Journal) OnResult(e Result) {
	b := &bundle{Result: e}
	b.Data = nil
	j.order.Lock()
	defer j.order.Unlock()
	if !j.waitForReaders() {
		return
	}
	var off int64
	size := 0
	for mime, value := range e.Data {
		at := j.store.Append(value)
		if size == 0 {
			off = at
		}
		b.types, b.sizes = append(b.types, mime), append(b.sizes, len(value))
		size += len(value)
	}
	j.add(record{kind: kindResult, off: off, size: int32(size), event: b})
}

// OnStatus implements Hooks.
func (j *Journal) OnStatus(e Status) {
	j.order.Lock()
	defer j.order.Unlock()
	if j.waitForReaders() {
		j.add(record{kind: kindStatus, event: &e})
	}
}

// OnError implements Hooks.
func (j *Journal) OnError(e Failure) { j.end(record{kind: kindError, event: &e}) }

// OnComplete implements Hooks.
func (j *Journal) OnComplete(e Complete) { j.end(record{kind: kindComplete, event: &e}) }

func (j *Journal) end(r record) {
	j.order.Lock()
	defer j.order.Unlock()
	j.mu.Lock()
	open := j.pos > 0 && !j.ended
	j.mu.Unlock()
	if !open {
		return
	}
	for _, k := range []kind{kindStdout, kindStderr} {
		if j.cutters[k].Len() > 0 {
			j.add(record{kind: kindEnd, stream: k})
		}
	}
	j.add(r)
	j.store.Finish()
	close(j.done)
}

// waitForReaders waits until every attached reader is near enough, and reports whether the journal takes events.
func (j *Journal) waitForReaders() bool {
	var timer *time.Timer
	for {
		j.mu.Lock()
		if j.pos == 0 || j.ended {
			j.mu.Unlock()
			return false
		}
		slow := j.slowest()
		if slow == nil {
			j.mu.Unlock()
			return true
		}
		if j.room == nil {
			j.room = make(chan struct{})
		}
		room := j.room
		left := StallTimeout - time.Since(slow.waiting)
		j.mu.Unlock()

		if timer == nil {
			timer = time.NewTimer(left)
			defer timer.Stop()
		} else {
			timer.Reset(left)
		}
		select {
		case <-room:
		case <-j.released:
			return true
		case <-timer.C:
			j.mu.Lock()
			if slow.blocking && time.Since(slow.waiting) >= StallTimeout {
				slow.drop(ErrStalled)
				delete(j.readers, slow)
			}
			j.mu.Unlock()
		}
	}
}

// slowest returns the reader that the next event has to wait for, or nil. The caller holds mu.
func (j *Journal) slowest() *reader {
	if j.policy != Lossless || len(j.readers) == 0 {
		return nil
	}
	select {
	case <-j.released:
		return nil
	default:
	}
	end := j.first + int64(len(j.records))
	var slow *reader
	for r := range j.readers {
		if (j.pos-r.pos >= r.hold || end-r.next >= r.holdEvents) && (slow == nil || r.pos < slow.pos) {
			slow = r
		}
	}
	if slow != nil && !slow.blocking {
		slow.blocking, slow.waiting = true, time.Now()
	}
	return slow
}

// add stamps r, appends it and wakes the readers. The caller holds order.
func (j *Journal) add(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.time = time.Now()
	if r.output() {
		j.pos += int64(r.size)
	} else {
		j.pos++
	}
	r.pos = j.pos
	if !j.merge(&r) {
		j.records = append(j.records, r)
	}
	j.ended = j.ended || r.kind >= kindError
	j.evict()
	j.wake()
}

// merge joins output to the record before, if that is of the same stream and young enough for its time to stand for
// both. When records are many, age doesn't count.
func (j *Journal) merge(r *record) bool {
	if len(j.records) == 0 || !r.output() {
		return false
	}
	last := &j.records[len(j.records)-1]
	if last.kind != r.kind || last.size+r.size > FlushBytes || last.off+int64(last.size) != r.off ||
		(r.time.Sub(last.time) > mergeWithin && len(j.records) < windowEvents) {
		return false
	}
	last.size += r.size
	last.pos = r.pos
	return true
}

// evict drops the oldest records: those past MaxRecords, and those of whose bytes any are gone.
func (j *Journal) evict() {
	base, _ := j.store.Bounds()
	n := max(0, len(j.records)-MaxRecords)
	for n < len(j.records)-1 && j.records[n].size > 0 && j.records[n].off < base {
		n++
	}
	if n == 0 {
		return
	}
	j.dropped = j.records[n-1].pos
	clear(j.records[:n])
	j.records = j.records[n:]
	j.first += int64(n)
}

// wake tells waiting readers that there is more. The caller holds mu.
func (j *Journal) wake() {
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
}

// result puts a bundle together again from its bytes.
func (b *bundle) result(data []byte) Result {
	r := b.Result
	r.Data = make(map[string]json.RawMessage, len(b.types))
	for i, mime := range b.types {
		r.Data[mime] = data[:b.sizes[i]:b.sizes[i]]
		data = data[b.sizes[i]:]
	}
	return r
}
