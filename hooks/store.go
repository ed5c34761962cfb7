package hooks

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrDropped says that bytes are gone: dropped to keep within the budget, or because the disk failed.
var ErrDropped = errors.New("no longer kept")

const (
	segmentSize = 64 << 10

	// What a running store keeps at least, for the readers attached to its journal, when all together are over a
	// limit: in memory when there is no file to move it to, and in its file.
	leastMemory = window + 3*segmentSize
	leastLog    = 2 << 20
)

var segments = sync.Pool{New: func() any { return new([segmentSize]byte) }}

// Store keeps the bytes of one execution: the newest in memory, older ones in a file used as a ring, the oldest
// not at all. Bytes are named by their offset in all that was ever appended. It outlives the execution: what a
// surviving child writes later is appended too. A file is written only when memory doesn't hold everything.
//
// It is safe for concurrent use. Invariants: base ≤ mem ≤ end; bytes base..mem are in the file, byte o at (o-origin)
// modulo ring; bytes mem..end are in segments, of which all but the last are full.
type Store struct {
	budget    *Budget
	path      string // "": no file
	maxMemory int64
	maxLog    int64

	// appending makes appends one at a time. It is held while a segment is written to the file; readers never take it.
	appending sync.Mutex

	mu       sync.Mutex // guards what follows; never held across I/O
	segs     [][]byte
	base     int64 // offset of the oldest byte kept
	mem      int64 // offset of the oldest byte in memory
	end      int64 // offset after the newest byte
	origin   int64 // offset of the byte at the file's beginning, the first time round
	ring     int64 // size at which the file begins again
	logBytes int64 // size of the file, for the budget
	file     *os.File
	created  bool // the file may exist
	finished bool
	closed   bool

	places [2]*list.Element // in the budget's lists; guarded by the budget
}

// Bounds returns the offsets of the oldest byte kept and after the newest one.
func (s *Store) Bounds() (base, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base, s.end
}

// holds is how many of the newest bytes a running store keeps for certain while the disk works, whatever others need.
func (s *Store) holds() int64 {
	if s.path != "" {
		return min(s.maxLog, leastLog)
	}
	return min(max(s.maxMemory-segmentSize, segmentSize), leastMemory-segmentSize)
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
	if need := len(*last) + n; need > before { // a lone small segment, or one that was trimmed
		grown := make([]byte, len(*last), min(segmentSize, max(need, 2*before)))
		copy(grown, *last)
		*last = grown
		s.budget.memory.Add(int64(cap(grown) - before))
	}
	*last = append(*last, p[:n]...)
	s.end += int64(n)
	return n
}

// grow adds a segment. A lone one is as small as what comes, since most commands print little.
func (s *Store) grow(size int) {
	var seg []byte
	s.mu.Lock()
	if len(s.segs) == 0 && size < segmentSize/4 {
		seg = make([]byte, 0, max(size, 512))
	} else {
		seg = segments.Get().(*[segmentSize]byte)[:0]
	}
	s.segs = append(s.segs, seg)
	finished := s.finished
	s.mu.Unlock()
	s.budget.memory.Add(int64(cap(seg)))
	if finished {
		s.budget.enter(s, inMemory)
	}
}

// makeRoom moves the oldest segments out of memory while this store or all together hold too much. All segments are
// full when it is called.
func (s *Store) makeRoom() {
	s.budget.reclaim()
	for {
		s.mu.Lock()
		held, finished := int64(len(s.segs))*segmentSize, s.finished
		s.mu.Unlock()
		own := held >= s.maxMemory
		if !own && !s.budget.overMemory() || held <= segmentSize {
			return
		}
		if !s.spill(own || finished || held > leastMemory) {
			return
		}
	}
}

// unload moves everything out of memory. The caller holds appending.
func (s *Store) unload() {
	for s.spill(true) {
	}
}

// spill moves the oldest segment to the file. Where it can't be written it is dropped, with all that is older, or
// stays if drop is false. It reports whether the segment is out of memory. The caller holds appending.
func (s *Store) spill(drop bool) bool {
	s.mu.Lock()
	if len(s.segs) == 0 {
		s.mu.Unlock()
		return false
	}
	seg, toFile := s.segs[0], s.path != "" && !s.closed
	s.mu.Unlock()

	if toFile {
		toFile = s.write(seg) == nil
	}
	if !toFile && !drop {
		return false
	}

	s.mu.Lock()
	s.segs[0] = nil
	s.segs = s.segs[1:]
	s.mem += int64(len(seg))
	if !toFile {
		s.base = s.mem
	}
	s.mu.Unlock()
	if !toFile {
		s.dropLog()
	}
	s.free(seg)
	return true
}

// free gives up a segment that nobody can see any more.
func (s *Store) free(seg []byte) {
	s.budget.memory.Add(-int64(cap(seg)))
	if cap(seg) == segmentSize {
		segments.Put((*[segmentSize]byte)(seg[:segmentSize]))
	}
}

// write puts seg, the oldest segment, into the file. The caller holds appending.
func (s *Store) write(seg []byte) error {
	f, err := s.open()
	if err != nil {
		return err
	}
	size := int64(len(seg))
	s.mu.Lock()
	off := s.mem
	if grow := min(off-s.origin+size, s.ring) - s.logBytes; grow > 0 && s.logBytes >= leastLog && s.budget.log.Load()+grow > s.budget.limits.LogTotal {
		s.ring = s.logBytes // the files are too big together: this one begins again where it is
	}
	s.base = max(s.base, off+size-s.ring) // what is about to be overwritten
	at := (off - s.origin) % s.ring
	first := min(size, s.ring-at)
	grown := max(0, at+first-s.logBytes)
	s.logBytes += grown
	finished := s.finished
	s.mu.Unlock()
	s.budget.log.Add(grown)

	_, err = f.WriteAt(seg[:first], at)
	if err == nil && first < size {
		_, err = f.WriteAt(seg[first:], 0)
	}
	if finished {
		f.Close()
		s.budget.enter(s, inFile)
	}
	return err
}

// open returns the file for writing. While the execution runs the file stays open; later it is opened for each use,
// so that kept logs cost no descriptors. The caller holds appending.
func (s *Store) open() (*os.File, error) {
	s.mu.Lock()
	f, size := s.file, s.logBytes
	s.mu.Unlock()
	if f != nil {
		return f, nil
	}
	if size > 0 {
		f, err := openLog(s.path, size)
		if f != nil || err != nil {
			return f, err
		}
		s.dropLog() // somebody removed it
	}
	f, err := createLog(s.path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.origin, s.ring, s.created = s.mem, s.maxLog, true
	if !s.finished {
		s.file = f
	}
	s.mu.Unlock()
	return f, nil
}

// ReadAt reads up to len(p) bytes from offset off: at least one, unless p is empty or it fails, with [ErrDropped] (off
// is before the oldest byte kept), io.EOF (off is at or past the end) or an error of the disk.
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
	at := (off - s.origin) % s.ring
	n := min(int64(len(p)), s.mem-off, s.ring-at)
	f := s.file
	s.mu.Unlock()
	return s.readLog(f, p[:n], off, at)
}

// readLog reads from the file, and checks afterwards that the ring hasn't come round meanwhile.
func (s *Store) readLog(f *os.File, p []byte, off, at int64) (int, error) {
	var n int
	err := os.ErrClosed
	if f != nil {
		n, err = f.ReadAt(p, at)
	}
	if errors.Is(err, os.ErrClosed) { // the execution is over
		if f, err = os.Open(s.path); err == nil {
			n, err = f.ReadAt(p, at)
			f.Close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case off < s.base:
		return 0, ErrDropped
	case n == len(p):
		return n, nil
	case os.IsNotExist(err) || errors.Is(err, io.EOF): // somebody removed the file, or cut it
		s.base = s.mem
		return 0, ErrDropped
	}
	return 0, fmt.Errorf("read log: %w", err)
}

// Finish tells the store that its execution has ended: it gives up its descriptor, and its bytes may be dropped when
// others need the room. Late output may still be appended. It may be called more than once.
func (s *Store) Finish() {
	s.appending.Lock()
	defer s.appending.Unlock()
	s.finish()
}

func (s *Store) finish() {
	s.mu.Lock()
	f, was := s.file, s.finished
	s.file, s.finished = nil, true
	s.trim()
	memory, log := len(s.segs) > 0, s.logBytes > 0
	s.mu.Unlock()
	if f != nil {
		f.Close()
	}
	if was {
		return
	}
	if memory {
		s.budget.enter(s, inMemory)
	}
	if log {
		s.budget.enter(s, inFile)
	}
}

// trim makes the last segment no larger than what is in it. The caller holds appending and mu.
func (s *Store) trim() {
	if len(s.segs) == 0 {
		return
	}
	last := &s.segs[len(s.segs)-1]
	if old := *last; cap(old)-len(old) > cap(old)/4 {
		*last = append(make([]byte, 0, len(old)), old...)
		s.budget.memory.Add(int64(len(old)))
		s.free(old)
	}
}

// dropLog gives up the file and the bytes in it. The caller holds appending.
func (s *Store) dropLog() {
	s.mu.Lock()
	s.base = s.mem
	f, size, created := s.file, s.logBytes, s.created
	s.file, s.logBytes, s.created = nil, 0, false
	s.mu.Unlock()
	if f != nil {
		f.Close()
	}
	if created {
		os.Remove(s.path)
	}
	s.budget.log.Add(-size)
}

// Close drops everything, and whatever is appended later. It may be called more than once.
func (s *Store) Close() {
	s.appending.Lock()
	defer s.appending.Unlock()
	s.finish()
	s.mu.Lock()
	segs := s.segs
	s.segs, s.closed = nil, true
	s.base, s.mem = s.end, s.end // both at once: nothing of it is in the file
	s.mu.Unlock()
	s.dropLog()
	for _, seg := range segs {
		s.free(seg)
	}
	s.budget.leave(s)
}
