package hooks

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrDropped says that bytes were dropped to keep within the budget.
var ErrDropped = errors.New("no longer kept")

const segmentSize = 64 << 10

var segments = sync.Pool{New: func() any { return new([segmentSize]byte) }}

// Store keeps the bytes of one execution: the newest in memory, older ones in a file used as a ring, the oldest
// not at all. Bytes are named by their offset in all that was ever appended. It outlives the execution: what a
// surviving child writes later is appended too. A file is written only when memory doesn't hold everything.
//
// It is safe for concurrent use. Invariants: base ≤ mem ≤ end; bytes base..mem are in the file at offset modulo
// maxLog, bytes mem..end in segments; every segment but the last is full, so mem is a multiple of segmentSize.
type Store struct {
	budget    *Budget
	path      string // "": no file
	maxMemory int64
	maxLog    int64

	// appending makes appends one at a time. It is held while a full segment is written to the file; readers and
	// everybody else never take it.
	appending sync.Mutex

	mu       sync.Mutex // guards what follows; never held across I/O
	segs     [][]byte
	base     int64 // offset of the oldest byte kept
	mem      int64 // offset of the oldest byte in memory
	end      int64 // offset after the newest byte
	logBytes int64 // size of the file, for the budget
	file     *os.File
	finished bool
	closed   bool
}

// Bounds returns the offsets of the oldest byte kept and after the newest one.
func (s *Store) Bounds() (base, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base, s.end
}

// Append adds p and returns its offset. It never fails: what can't be kept is dropped, oldest first.
func (s *Store) Append(p []byte) int64 {
	s.appending.Lock()
	defer s.appending.Unlock()
	off := s.end // only appends change it
	for len(p) > 0 {
		n := s.fill(p)
		if n == 0 {
			s.makeRoom()
			s.grow(len(p))
		}
		p = p[n:]
	}
	return off
}

// fill copies as much of p into the last segment as it can hold.
func (s *Store) fill(p []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.end += int64(len(p))
		s.base, s.mem = s.end, s.end
		return len(p)
	}
	if len(s.segs) == 0 {
		return 0
	}
	last := &s.segs[len(s.segs)-1]
	n := min(segmentSize-len(*last), len(p))
	before := cap(*last)
	if need := len(*last) + n; need > before { // only a first, small segment grows
		grown := make([]byte, len(*last), min(segmentSize, max(need, 2*before)))
		copy(grown, *last)
		*last = grown
	}
	*last = append(*last, p[:n]...)
	s.budget.memory.Add(int64(cap(*last) - before))
	s.end += int64(n)
	return n
}

// grow adds a segment. The first of a store is as small as what comes, since most commands print little.
func (s *Store) grow(size int) {
	var seg []byte
	s.mu.Lock()
	if s.end == 0 && size < segmentSize/4 {
		seg = make([]byte, 0, max(size, 512))
	} else {
		seg = segments.Get().(*[segmentSize]byte)[:0]
	}
	s.segs = append(s.segs, seg)
	s.mu.Unlock()
	s.budget.memory.Add(int64(cap(seg)))
}

// makeRoom moves the oldest segments out of memory while this store or all together hold too much.
func (s *Store) makeRoom() {
	s.budget.reclaim(s)
	for {
		s.mu.Lock()
		held := int64(len(s.segs)) * segmentSize
		s.mu.Unlock()
		if held < s.maxMemory && s.budget.memory.Load() <= s.budget.limits.MemoryTotal || held <= segmentSize {
			return
		}
		if !s.spill(1) {
			return
		}
	}
}

// spill moves the oldest segment to the file, or drops it where there is none, unless no more than keep segments are
// left. Only full segments move. The caller holds appending.
func (s *Store) spill(keep int) bool {
	s.mu.Lock()
	if len(s.segs) <= keep || len(s.segs[0]) < segmentSize {
		s.mu.Unlock()
		return false
	}
	seg, off := s.segs[0], s.mem
	toFile := s.path != "" && !s.closed
	if toFile {
		s.base = max(s.base, off+segmentSize-s.maxLog) // what the file is about to overwrite
	}
	s.mu.Unlock()

	if toFile {
		toFile = s.write(seg, off) == nil
	}

	s.mu.Lock()
	s.segs = s.segs[1:]
	s.mem = off + segmentSize
	if !toFile {
		s.base = s.mem
	}
	s.mu.Unlock()
	s.budget.memory.Add(-segmentSize)
	segments.Put((*[segmentSize]byte)(seg[:segmentSize]))
	return true
}

func (s *Store) write(seg []byte, off int64) error {
	f, done, err := s.open()
	if err != nil {
		return err
	}
	defer done()
	at := off % s.maxLog
	if _, err := f.WriteAt(seg, at); err != nil {
		return err
	}
	s.mu.Lock()
	grown := max(0, at+int64(len(seg))-s.logBytes)
	s.logBytes += grown
	s.mu.Unlock()
	s.budget.log.Add(grown)
	return nil
}

// open returns the file and what to call when done with it: while the execution runs the file stays open, later it
// is opened for each use, so that kept logs cost no descriptors.
func (s *Store) open() (*os.File, func(), error) {
	s.mu.Lock()
	f, finished := s.file, s.finished
	s.mu.Unlock()
	if f != nil {
		return f, func() {}, nil
	}
	f, err := openLog(s.path)
	if err != nil {
		return nil, nil, fmt.Errorf("open log: %w", err)
	}
	if finished {
		return f, func() { f.Close() }, nil
	}
	s.mu.Lock()
	s.file = f
	s.mu.Unlock()
	return f, func() {}, nil
}

// ReadAt reads up to len(p) bytes from offset off: at least one, unless it fails with [ErrDropped] (off is before the
// oldest byte kept) or io.EOF (off is at or past the end).
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	switch {
	case off < s.base:
		s.mu.Unlock()
		return 0, ErrDropped
	case off >= s.end:
		s.mu.Unlock()
		return 0, io.EOF
	case off >= s.mem:
		n := 0
		at := int(off - s.mem)
		for i := at / segmentSize; i < len(s.segs) && n < len(p); i++ {
			n += copy(p[n:], s.segs[i][at%segmentSize:])
			at = 0
		}
		s.mu.Unlock()
		return n, nil
	}
	at := off % s.maxLog
	n := min(int64(len(p)), s.mem-off, s.maxLog-at)
	s.mu.Unlock()
	return s.readLog(p[:n], off, at)
}

// readLog reads from the file, and checks afterwards that the ring hasn't come round meanwhile.
func (s *Store) readLog(p []byte, off, at int64) (int, error) {
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	var n int
	var err error
	if f != nil {
		n, err = f.ReadAt(p, at)
	}
	if f == nil || errors.Is(err, os.ErrClosed) { // finished meanwhile
		if f, err = os.Open(s.path); err != nil {
			return 0, ErrDropped
		}
		defer f.Close()
		n, err = f.ReadAt(p, at)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < s.base || err != nil || n == 0 {
		return 0, ErrDropped
	}
	return n, nil
}

// Finish tells the store that its execution has ended: it gives up its descriptor, and its bytes may be dropped when
// others need the room. Late output may still be appended.
func (s *Store) Finish() {
	s.appending.Lock()
	s.mu.Lock()
	f, was := s.file, s.finished
	s.file, s.finished = nil, true
	s.mu.Unlock()
	s.appending.Unlock()
	if f != nil {
		f.Close()
	}
	if !was {
		s.budget.finish(s)
	}
}

// dropLog gives up the bytes in the file. The caller holds appending.
func (s *Store) dropLog() {
	s.mu.Lock()
	s.base = s.mem
	size := s.logBytes
	s.logBytes = 0
	s.mu.Unlock()
	if size > 0 {
		os.Remove(s.path)
		s.budget.log.Add(-size)
	}
}

// Close drops everything, and whatever is appended later. It may be called more than once.
func (s *Store) Close() {
	s.Finish()
	s.budget.forget(s)
	s.appending.Lock()
	defer s.appending.Unlock()
	s.mu.Lock()
	segs := s.segs
	s.segs, s.closed = nil, true
	s.mem = s.end
	s.mu.Unlock()
	s.dropLog()
	for _, seg := range segs {
		s.budget.memory.Add(-int64(cap(seg)))
	}
}
