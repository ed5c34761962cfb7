package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sort"
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
	MaxRecords   = 10_000           // events kept in one journal, the last three apart
	FlushBytes   = 64 << 10         // output given to a writer between two flushes

	window       = 1 << 20        // bytes that an attached reader may be behind before the program waits
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
	Store  *Store // where the bytes go, an empty one; nil: a store of its own, in memory only
}

// Journal is the record of one execution: append-only, bounded, replayed to any number of readers. It implements
// Hooks. It is safe for concurrent use. The package comment states its invariants.
type Journal struct {
	policy Policy
	store  *Store
	window int64 // what an attached reader may be behind, so that the store still has it

	// order makes events one at a time. It is held while an appender waits for a slow reader: the others wait as
	// well, which is the back-pressure. Readers never take it.
	order   sync.Mutex
	cutters [2]Cutter // guarded by order

	mu       sync.Mutex // guards what follows; never held across I/O or a call to a writer
	init     Init
	records  []record
	first    int64    // number of records dropped before records[0]
	array    []record // what records is the end of
	gone     [2]int64 // bytes of each stream in dropped records
	dropped  int64    // position of the last record dropped; 1 when none is
	pos      int64
	bytes    int64 // offset in the store after the last record
	readers  []*reader
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

// record is one event, or a run of output of one stream. Positions and offsets of records only grow.
type record struct {
	pos    int64  // position after it
	off    int64  // in the store, of its bytes or of where they would be
	size   int64  // bytes in the store
	time   int64  // in Unix nanoseconds
	cut    Cutter // before the output
	event  any    // *Status, *Failure, *Complete; *bundle for a result
	kind   kind
	stream kind // of an end
}

func (r *record) output() bool { return r.kind <= kindStderr }

// before is the position before the record.
func (r *record) before() int64 {
	return r.pos - r.width()
}

// width is how many positions it takes.
func (r *record) width() int64 {
	switch r.kind {
	case kindStdout, kindStderr:
		return r.size
	case kindResult:
		return r.event.(*bundle).parts
	}
	return 1
}

// bundle is a Result whose values lie in the store, one after the other.
type bundle struct {
	Result
	types []string
	sizes []int
	parts int64 // events that text writers make of it
}

// NewJournal makes an empty journal.
func NewJournal(c Config) *Journal {
	if c.Store == nil {
		c.Store = NewBudget("", DefaultLimits).Store("")
	}
	// What comes next may be FlushBytes long, and records, of as much, are kept whole or not at all.
	within := max(1, min(window, c.Store.holds()-2*FlushBytes))
	return &Journal{
		policy: c.Policy, store: c.Store, window: within,
		released: make(chan struct{}), done: make(chan struct{}),
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
	if !j.isReleased() {
		close(j.released)
	}
}

func (j *Journal) isReleased() bool {
	select {
	case <-j.released:
		return true
	default:
		return false
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
	_, j.bytes = j.store.Bounds()
	e.Stamp = Stamp{EID: 1, Time: time.Now()}
	j.init, j.pos, j.dropped = e, 1, 1
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
		j.add(record{kind: k, off: off, size: int64(len(part)), cut: before})
	}
}

// OnResult implements Hooks. A result of more than the store keeps is a gap to readers.
func (j *Journal) OnResult(e Result) {
	b := &bundle{Result: e, parts: int64(len(e.Parts()))}
	b.Data = nil
	b.Metadata = slices.Clone(e.Metadata)
	b.types, b.sizes = make([]string, 0, len(e.Data)), make([]int, 0, len(e.Data))
	j.order.Lock()
	defer j.order.Unlock()
	if !j.waitForReaders() {
		return
	}
	r := record{kind: kindResult, event: b}
	for mime, value := range e.Data {
		off := j.store.Append(value)
		if r.size == 0 {
			r.off = off
		}
		b.types, b.sizes = append(b.types, mime), append(b.sizes, len(value))
		r.size += int64(len(value))
	}
	j.add(r)
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
func (j *Journal) OnError(e Failure) {
	e.Traceback = slices.Clone(e.Traceback)
	j.end(record{kind: kindError, event: &e})
}

// OnComplete implements Hooks.
func (j *Journal) OnComplete(e Complete) { j.end(record{kind: kindComplete, event: &e}) }

// end adds the terminal event. It doesn't wait for readers and drops nothing.
func (j *Journal) end(r record) {
	j.order.Lock()
	defer j.order.Unlock()
	if pos, ended := j.Position(); pos == 0 || ended {
		return
	}
	for _, k := range []kind{kindStdout, kindStderr} {
		if j.cutters[k].Len() > 0 {
			j.add(record{kind: kindEnd, stream: k})
		}
	}
	j.add(r)
	close(j.done)
	j.finish()
}

// finish lets go of the store's bytes once the journal has ended and the readers that were attached have left.
func (j *Journal) finish() {
	j.mu.Lock()
	over := j.ended && len(j.readers) == 0
	j.mu.Unlock()
	if over {
		j.store.Finish()
	}
}

// waitForReaders waits until every attached reader is near enough, and reports whether the journal takes events.
func (j *Journal) waitForReaders() bool {
	for {
		j.mu.Lock()
		open := j.pos > 0 && !j.ended
		since, wait := j.slow()
		if !open || !wait {
			j.mu.Unlock()
			return open
		}
		if j.room == nil {
			j.room = make(chan struct{})
		}
		room := j.room
		j.mu.Unlock()

		timer := time.NewTimer(StallTimeout - time.Since(since))
		select {
		case <-room:
		case <-j.released:
		case <-timer.C:
			j.dropStalled()
		}
		timer.Stop()
	}
}

// slow reports whether the next event has to wait for a reader, and since when the longest one is waited for. The
// caller holds mu.
func (j *Journal) slow() (since time.Time, wait bool) {
	if j.policy != Lossless || len(j.readers) == 0 || j.isReleased() {
		return
	}
	end := j.first + int64(len(j.records))
	for _, r := range j.readers {
		if j.bytes-r.off < j.window && end-r.next < windowEvents {
			continue
		}
		if r.waiting.IsZero() {
			r.waiting = time.Now()
		}
		if at := r.since(); !wait || at.Before(since) {
			since, wait = at, true
		}
	}
	return since, wait
}

// dropStalled gives up the readers that have been waited for long enough.
func (j *Journal) dropStalled() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.readers = slices.DeleteFunc(j.readers, func(r *reader) bool {
		stalled := !r.waiting.IsZero() && time.Since(r.since()) >= StallTimeout
		if stalled {
			r.err = ErrStalled
			close(r.gone)
		}
		return stalled
	})
}

// add stamps r, appends it and wakes the readers. The caller holds order.
func (j *Journal) add(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.time = time.Now().UnixNano()
	j.pos += r.width()
	r.pos = j.pos
	if r.size == 0 {
		r.off = j.bytes
	}
	j.bytes = r.off + r.size
	if !j.merge(&r) {
		j.push(r)
	}
	switch r.kind {
	case kindEnd:
	case kindError, kindComplete:
		j.ended = true
	default:
		j.evict()
	}
	j.wake()
}

// push appends a record. It uses the room of dropped ones again, so that a full journal doesn't allocate.
func (j *Journal) push(r record) {
	if gone := len(j.array) - len(j.records); len(j.array) == cap(j.array) && gone > len(j.array)/8 {
		n := copy(j.array, j.records)
		clear(j.array[n:])
		j.array, j.records = j.array[:n], j.array[:n]
	}
	gone := len(j.array) - len(j.records)
	j.array = append(j.array, r)
	j.records = j.array[gone:]
}

// merge joins output to the record before, if that is of the same stream and young enough for its time to stand for
// both. When records are many, age doesn't count.
func (j *Journal) merge(r *record) bool {
	if len(j.records) == 0 || !r.output() {
		return false
	}
	last := &j.records[len(j.records)-1]
	if last.kind != r.kind || last.size+r.size > FlushBytes || last.off+last.size != r.off ||
		(r.time-last.time > int64(mergeWithin) && len(j.records) < windowEvents) {
		return false
	}
	last.size += r.size
	last.pos = r.pos
	return true
}

// evict drops the oldest records: those past MaxRecords, and those up to the last one of whose bytes any are gone.
func (j *Journal) evict() {
	base, _ := j.store.Bounds()
	n := sort.Search(len(j.records), func(i int) bool { return j.records[i].off >= base })
	for n > 0 && j.records[n-1].size == 0 {
		n--
	}
	j.drop(max(n, len(j.records)-MaxRecords))
}

// drop drops the n oldest records. The caller holds mu.
func (j *Journal) drop(n int) {
	if n <= 0 {
		return
	}
	j.dropped = j.records[n-1].pos
	for _, r := range j.records[:n] {
		if r.output() {
			j.gone[r.kind] += r.size
		}
	}
	clear(j.records[:n])
	j.records = j.records[n:]
	j.first += int64(n)
}

// next returns a channel that is closed at the next event. The caller holds mu.
func (j *Journal) next() <-chan struct{} {
	if j.more == nil {
		j.more = make(chan struct{})
	}
	return j.more
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
