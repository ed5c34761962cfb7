package hooks

import (
	"container/list"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// Limits bounds what is kept of the output of executions, in bytes. All but Log are kept to within a segment, 64 KiB.
type Limits struct {
	Memory int64 // of one execution in memory, at least 64 KiB; what is older goes to its file
	// MemoryTotal is that of all executions in memory. A running one for which there is no file keeps 1 MiB all the
	// same, as far as Memory allows.
	MemoryTotal int64
	Log         int64 // of one execution in its file; rounded up to a multiple of 64 KiB
	// LogTotal is that of all executions in files. The oldest finished ones are dropped first; then no file grows any
	// more, past 2 MiB.
	LogTotal int64
}

// DefaultLimits are the limits of a daemon that was told nothing else.
var DefaultLimits = Limits{Memory: 4 << 20, MemoryTotal: 64 << 20, Log: 64 << 20, LogTotal: 1 << 30}

// Budget shares memory and disk among the stores of all executions. It is safe for concurrent use.
type Budget struct {
	dir    string // "": no files, memory only
	limits Limits

	memory atomic.Int64 // bytes held in memory by all stores
	log    atomic.Int64 // bytes held in files by all stores

	mu       sync.Mutex
	finished [2]list.List // finished stores that hold something in memory, and in files; the oldest first
}

// The lists of a budget.
const (
	inMemory = iota
	inFile
)

// NewBudget makes a budget whose stores keep their files in dir, which is made when it is first needed, and remade
// when somebody removed it. With an empty dir nothing is written to disk.
func NewBudget(dir string, limits Limits) *Budget {
	limits.Log = (limits.Log + segmentSize - 1) / segmentSize * segmentSize
	return &Budget{dir: dir, limits: limits}
}

// Store makes the store of one execution; name must be unique and a valid file name. The caller closes it.
func (b *Budget) Store(name string) *Store {
	s := &Store{budget: b, maxMemory: b.limits.Memory}
	if b.dir != "" && b.limits.Log > 0 {
		s.path = filepath.Join(b.dir, name+".log")
		s.maxLog = b.limits.Log
	}
	return s
}

// Used returns the bytes held in memory and in files.
func (b *Budget) Used() (memory, log int64) { return b.memory.Load(), b.log.Load() }

func (b *Budget) overMemory() bool { return b.memory.Load() > b.limits.MemoryTotal }
func (b *Budget) overLog() bool    { return b.log.Load() > b.limits.LogTotal }

// enter notes that the finished store s holds something in memory or in its file.
func (b *Budget) enter(s *Store, where int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.places[where] == nil {
		s.places[where] = b.finished[where].PushBack(s)
	}
}

// leave takes s out of the lists.
func (b *Budget) leave(s *Store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for where := range s.places {
		b.remove(s, where)
	}
}

func (b *Budget) remove(s *Store, where int) {
	if s.places[where] != nil {
		b.finished[where].Remove(s.places[where])
		s.places[where] = nil
	}
}

// take removes the oldest store from a list and returns it with its append lock held, or nil. Stores that are being
// appended to are passed over.
func (b *Budget) take(where int) *Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := b.finished[where].Front(); e != nil; e = e.Next() {
		s := e.Value.(*Store)
		if s.appending.TryLock() {
			b.remove(s, where)
			return s
		}
	}
	return nil
}

// reclaim brings the totals back under their limits at the cost of finished stores, the oldest first: their memory
// goes to their files, their files go away. The caller holds its own store's append lock, so that one is passed over.
func (b *Budget) reclaim() {
	for b.overMemory() {
		s := b.take(inMemory)
		if s == nil {
			break
		}
		s.unload()
		s.appending.Unlock()
	}
	for b.overLog() {
		s := b.take(inFile)
		if s == nil {
			break
		}
		s.dropLog()
		s.appending.Unlock()
	}
}

// createLog makes an empty file for a store, and the folder when it isn't there.
func createLog(path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(path, flags, 0o600)
	if os.IsNotExist(err) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("create log folder: %w", err)
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	return f, nil
}

// openLog opens a store's file, which should have size bytes. It returns nil when that file is no longer there.
func openLog(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if info, err := f.Stat(); err != nil || info.Size() < size {
		f.Close()
		return nil, nil
	}
	return f, nil
}
