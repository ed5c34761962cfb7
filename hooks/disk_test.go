package hooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// failing returns a budget whose files can't be written, as long as spoil is called before each append.
func failing(t *testing.T, how string, limits Limits) (b *Budget, spoil func()) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.log")
	switch how {
	case "no space":
		return NewBudget(dir, limits), func() { // the store removes what it couldn't write
			os.Remove(path)
			if err := os.Symlink("/dev/full", path); err != nil {
				t.Fatal(err)
			}
		}
	case "no folder":
		dir = filepath.Join(dir, "file")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return NewBudget(dir, limits), func() {}
}

func TestWhatTheDiskDoesntTakeIsDropped(t *testing.T) {
	for _, how := range []string{"no space", "no folder"} {
		t.Run(how, func(t *testing.T) {
			budget, spoil := failing(t, how, Limits{Memory: 2 * segmentSize, MemoryTotal: 1 << 20, Log: 1 << 20, LogTotal: 1 << 30})
			m := &model{Store: budget.Store("x")}
			defer m.Close()
			for range 40 {
				spoil()
				m.append(t, segmentSize/2)
			}
			base, _ := m.Bounds()
			if kept := m.end - base; kept < segmentSize || kept > 2*segmentSize {
				t.Fatalf("%d bytes kept", kept)
			}
			for off := int64(0); off < m.end; off += 1000 {
				m.read(t, off, 3000)
			}
			if memory, log := budget.Used(); log != 0 || memory > 2*segmentSize {
				t.Fatalf("%d bytes in memory, %d in files", memory, log)
			}
		})
	}
}

func TestAStoreUsesItsFileAgainOnceTheDiskWorks(t *testing.T) {
	budget, spoil := failing(t, "no space", Limits{Memory: 2 * segmentSize, MemoryTotal: 1 << 20, Log: 1 << 20, LogTotal: 1 << 30})
	m := &model{Store: budget.Store("x")}
	defer m.Close()
	for range 10 {
		spoil()
		m.append(t, segmentSize)
	}
	m.append(t, 10*segmentSize)
	base, _ := m.Bounds()
	if m.end-base < 9*segmentSize {
		t.Fatalf("%d bytes kept", m.end-base)
	}
	for off := base; off < m.end; off += 1000 {
		m.read(t, off, 3000)
	}
}

func TestAFullDiskAndNoMemoryCostAttachedReadersNothing(t *testing.T) {
	for _, how := range []string{"no space", "no folder"} {
		budget, spoil := failing(t, how, Limits{Memory: 4 << 20, MemoryTotal: segmentSize, Log: 1 << 20, LogTotal: 1 << 30})
		m := &model{Store: budget.Store("x")}
		defer m.Close()
		for range 100 {
			spoil()
			m.append(t, segmentSize)
			if base, _ := m.Bounds(); m.end-base < min(m.end, window+FlushBytes) {
				t.Fatalf("%d bytes kept of %d", m.end-base, m.end)
			}
		}
	}
}

// descriptors lists the open files below dir.
func descriptors(t *testing.T, dir string) (names []string) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(links) == 0 {
		t.Fatalf("no descriptors listed: %v", err)
	}
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && strings.HasPrefix(name, dir) {
			names = append(names, name)
		}
	}
	return names
}

func TestAFinishedStoreKeepsNoDescriptor(t *testing.T) {
	dir := t.TempDir()
	budget := NewBudget(dir, Limits{Memory: segmentSize, MemoryTotal: 1 << 20, Log: 1 << 20, LogTotal: 1 << 30})
	m := &model{Store: budget.Store("x")}
	defer m.Close()
	m.append(t, 5*segmentSize)
	if open := descriptors(t, dir); len(open) != 1 {
		t.Fatalf("running: open are %v", open)
	}
	m.Finish()
	for range 2 {
		m.append(t, 5*segmentSize)
		m.read(t, m.end-4*segmentSize, 100)
		if base, _ := m.Bounds(); base != 0 {
			t.Fatalf("late output pushed out %d bytes", base)
		}
		if open := descriptors(t, dir); len(open) != 0 {
			t.Fatalf("finished: open are %v", open)
		}
	}
	m.Finish()
}

func TestSmallOutputMakesNoFile(t *testing.T) {
	dir := t.TempDir()
	m := &model{Store: NewBudget(dir, DefaultLimits).Store("x")}
	m.append(t, 1<<20)
	m.Finish()
	m.Close()
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Fatalf("a small output made files: %v", names)
	}
}

// Readers near the oldest byte race with appends, the end, late output and the budget's demands.
func TestReadsRacingWithEvictionAreRightOrDropped(t *testing.T) {
	const k = segmentSize
	small := Limits{Memory: 2 * k, MemoryTotal: 6 * k, Log: 3 * k, LogTotal: 5 * k}
	for _, where := range []string{"disk", "memory", "no space", "no folder"} {
		t.Run(where, func(t *testing.T) {
			budget, spoil := failing(t, where, small)
			if where == "memory" {
				budget = NewBudget("", small)
			}
			m := &model{Store: budget.Store("x")}
			defer m.Close()
			stop := make(chan struct{})
			var group sync.WaitGroup
			for seed := range uint64(3) {
				group.Go(func() { readNearBase(t, m.Store, seed, stop) })
			}
			other := &model{Store: budget.Store("other"), seed: 1}
			defer other.Close()
			for i := range 400 {
				if i < 100 {
					spoil()
				}
				m.append(t, 20_000)
				if i == 200 {
					m.Finish()
				}
				if i > 200 && i%3 == 0 {
					other.append(t, k) // makes the budget reclaim m
				}
			}
			close(stop)
			group.Wait()
		})
	}
}

// readNearBase reads what is about to be dropped until stop is closed.
func readNearBase(t *testing.T, s *Store, seed uint64, stop <-chan struct{}) {
	random := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, 2*segmentSize)
	for !isDone(stop) {
		base, end := s.Bounds()
		off := base + random.Int64N(min(end-base, 2*segmentSize)+1)
		n, err := s.ReadAt(p[:1+random.IntN(len(p))], off)
		if err == nil && !bytes.Equal(p[:n], pattern(0, off, off+int64(n))) {
			t.Errorf("%d wrong bytes at %d", n, off)
			return
		}
		if err != nil && !errors.Is(err, ErrDropped) && !errors.Is(err, io.EOF) {
			t.Error(err)
			return
		}
	}
}

// A reader that panics has the store's lock, and whoever closes the store waits for ever.
func TestReadsRacingWithCloseAreRightOrDropped(t *testing.T) {
	for range 2000 {
		s := NewBudget("", DefaultLimits).Store("")
		s.Append([]byte("kept"))
		reads, result := make(chan struct{}), make(chan error, 1)
		go func() {
			defer func() {
				if p := recover(); p != nil {
					result <- fmt.Errorf("panic: %v", p)
				}
			}()
			close(reads)
			result <- readUntilDropped(s, "kept")
		}()
		<-reads
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.Close()
		}()
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		<-closed
	}
}

// readUntilDropped reads want from the beginning until it is gone.
func readUntilDropped(s *Store, want string) error {
	for p := make([]byte, len(want)); ; {
		n, err := s.ReadAt(p, 0)
		if errors.Is(err, ErrDropped) {
			return nil
		}
		if err != nil || string(p[:n]) != want {
			return fmt.Errorf("%q, %w", p[:n], err)
		}
	}
}
