package hooks

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

// Limits bounds what is kept of the output of executions, in bytes.
type Limits struct {
	Memory      int64 // of one execution in memory; what is older goes to its file
	MemoryTotal int64 // of all executions in memory
	Log         int64 // of one execution in its file; rounded up to a multiple of 64 KiB
	LogTotal    int64 // of all executions in files; the oldest finished ones are dropped first
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
	finished []*Store // in the order they finished; guarded by mu
}

// NewBudget makes a budget whose stores keep their files in dir, which is made when it is first needed, and remade
// when somebody removed it. With an empty dir nothing is written to disk.
func NewBudget(dir string, limits Limits) *Budget {
	limits.Log = (limits.Log + segmentSize - 1) / segmentSize * segmentSize
	return &Budget{dir: dir, limits: limits}
}

// Store makes the store of one execution; name must be unique and a valid file name.
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

func (b *Budget) finish(s *Store) {
	b.mu.Lock()
	b.finished = append(b.finished, s)
	b.mu.Unlock()
}

func (b *Budget) forget(s *Store) {
	b.mu.Lock()
	if i := slices.Index(b.finished, s); i >= 0 {
		b.finished = slices.Delete(b.finished, i, i+1)
	}
	b.mu.Unlock()
}

// reclaim brings the totals back under their limits at the cost of finished stores, the oldest first: their memory
// goes to their files, their files go away. The caller holds self's append lock; a store that is being appended to
// is passed over.
func (b *Budget) reclaim(self *Store) {
	overMemory := func() bool { return b.memory.Load() > b.limits.MemoryTotal }
	overLog := func() bool { return b.log.Load() > b.limits.LogTotal }
	if !overMemory() && !overLog() {
		return
	}
	b.mu.Lock()
	candidates := slices.Clone(b.finished)
	b.mu.Unlock()
	for _, s := range candidates {
		if !overMemory() && !overLog() {
			return
		}
		if s == self || !s.appending.TryLock() {
			continue
		}
		if overMemory() {
			for s.spill(0) {
			}
		}
		if overLog() {
			s.dropLog()
		}
		s.appending.Unlock()
	}
}

// openLog opens a store's file for reading and writing, making the folder when it isn't there.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if os.IsNotExist(err) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	return f, err
}
