package hooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// pattern returns the bytes from..to of a stream that is different everywhere and for each seed.
func pattern(seed, from, to int64) []byte {
	p := make([]byte, to-from)
	for i := range p {
		at := uint64(from+int64(i))/8*0x9E3779B97F4A7C15 + uint64(seed)*0xD1B54A32D192ED03
		at ^= at >> 29
		p[i] = byte(at >> (8 * (uint64(from+int64(i)) % 8)))
	}
	return p
}

// model is a store and what was done to it.
type model struct {
	*Store
	seed     int64
	end      int64
	finished bool
	closed   bool
}

// read checks that bytes from off are right, or gone for a reason.
func (m *model) read(t interface{ Fatalf(string, ...any) }, off int64, size int) {
	base, _ := m.Bounds()
	p := make([]byte, size)
	n, err := m.ReadAt(p, off)
	switch after, _ := m.Bounds(); {
	case err == nil:
		if n == 0 && size > 0 || off+int64(n) > m.end || !bytes.Equal(p[:n], pattern(m.seed, off, off+int64(n))) {
			t.Fatalf("store %d: %d wrong bytes at %d, kept %d..%d", m.seed, n, off, base, m.end)
		}
	case errors.Is(err, ErrDropped):
		if off >= after {
			t.Fatalf("store %d: %d dropped, but kept are %d..%d", m.seed, off, after, m.end)
		}
	case errors.Is(err, io.EOF):
		if off < m.end {
			t.Fatalf("store %d: EOF at %d of %d", m.seed, off, m.end)
		}
	default:
		t.Fatalf("store %d: %v", m.seed, err)
	}
}

func (m *model) append(t interface{ Fatalf(string, ...any) }, size int64) {
	if off := m.Append(pattern(m.seed, m.end, m.end+size)); off != m.end {
		t.Fatalf("store %d: appended at %d, want %d", m.seed, off, m.end)
	}
	m.end += size
	base, end := m.Bounds()
	if end != m.end || base > end {
		t.Fatalf("store %d: kept %d..%d, want an end of %d", m.seed, base, end, m.end)
	}
}

// held adds up what a store holds.
func (m *model) held() (memory, log int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, seg := range m.segs {
		memory += int64(cap(seg))
	}
	return memory, m.logBytes
}

// shelf is a budget with stores, and their models.
type shelf struct {
	*Budget
	stores []*model
	lost   bool // files were removed behind its back
}

func newShelf(t *rapid.T, temp string) *shelf {
	const k = segmentSize
	limits := Limits{
		Memory:      rapid.SampledFrom([]int64{0, k, 2 * k, 3*k + 5, 8 * k}).Draw(t, "memory"),
		MemoryTotal: rapid.SampledFrom([]int64{k, 4 * k, 64 * k}).Draw(t, "memory total"),
		Log:         rapid.SampledFrom([]int64{0, 1, k, 3 * k, 5 * k, 50 * k}).Draw(t, "log"),
		LogTotal:    rapid.SampledFrom([]int64{0, 2 * k, 10 * k, 200 * k}).Draw(t, "log total"),
	}
	dir := ""
	if rapid.IntRange(0, 4).Draw(t, "disk") > 0 {
		root, err := os.MkdirTemp(temp, "")
		if err != nil {
			t.Fatalf("%v", err)
		}
		dir = filepath.Join(root, "a", "b")
	}
	return &shelf{Budget: NewBudget(dir, limits)}
}

func (s *shelf) add(*rapid.T) {
	seed := int64(len(s.stores))
	s.stores = append(s.stores, &model{Store: s.Store(fmt.Sprint(seed)), seed: seed})
}

func (s *shelf) pick(t *rapid.T) *model {
	return s.stores[rapid.IntRange(0, len(s.stores)-1).Draw(t, "store")]
}

func (s *shelf) append(t *rapid.T) {
	const k = segmentSize
	m := s.pick(t)
	m.append(t, rapid.SampledFrom([]int64{1, 100, 700, k - 1, k, k + 1, 3 * k, 9*k + 17}).Draw(t, "size"))
	base, end := m.Bounds()
	if kept := min(m.end, m.holds()); !m.finished && !m.closed && end-base < kept {
		t.Fatalf("store %d keeps %d bytes, want %d", m.seed, end-base, kept)
	}
	if m.closed && base != end {
		t.Fatalf("a closed store keeps %d bytes", end-base)
	}
}

func (s *shelf) read(t *rapid.T) {
	const k = segmentSize
	m := s.pick(t)
	base, _ := m.Bounds()
	off := rapid.Int64Range(max(0, base-k), m.end+1).Draw(t, "off")
	m.read(t, off, rapid.SampledFrom([]int{0, 1, 100, k, 3 * k}).Draw(t, "size"))
}

func (s *shelf) finish(t *rapid.T) {
	m := s.pick(t)
	m.Finish()
	m.finished = true
}

func (s *shelf) close(t *rapid.T) {
	if m := s.pick(t); rapid.IntRange(0, 3).Draw(t, "sure") == 0 {
		m.Close()
		m.closed = true
	}
}

func (s *shelf) removeFiles(t *rapid.T) {
	if s.dir != "" && rapid.IntRange(0, 3).Draw(t, "sure") == 0 {
		os.RemoveAll(filepath.Dir(s.dir))
		s.lost = true
	}
}

func TestStoresKeepTheNewestBytesWithinTheirBudget(t *testing.T) {
	temp := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := newShelf(t, temp)
		s.add(t)
		steps := []func(*rapid.T){s.add, s.finish, s.close, s.removeFiles, s.append, s.append, s.append, s.append, s.read, s.read, s.read, s.read}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")](t)
			checkBudget(t, s.Budget, s.stores, s.lost)
		}
		for _, m := range s.stores {
			base, _ := m.Bounds()
			for off := base; off < m.end; off += segmentSize / 3 {
				m.read(t, off, segmentSize/2)
			}
			m.Close()
		}
		if memory, log := s.Used(); memory != 0 || log != 0 {
			t.Fatalf("%d bytes in memory and %d in files after all were closed", memory, log)
		}
		if left, _ := filepath.Glob(filepath.Join(s.dir, "*.log")); s.dir != "" && len(left) > 0 {
			t.Fatalf("left over: %v", left)
		}
		if s.dir != "" {
			os.RemoveAll(filepath.Dir(filepath.Dir(s.dir)))
		}
	})
}

func checkBudget(t *rapid.T, b *Budget, stores []*model, lost bool) {
	var memory, log, slackMemory, slackLog int64
	for _, m := range stores {
		inMemory, inFile := m.held()
		memory, log = memory+inMemory, log+inFile
		if most := max(m.maxMemory, segmentSize) + segmentSize; inMemory > most {
			t.Fatalf("store %d holds %d bytes in memory, limit %d", m.seed, inMemory, m.maxMemory)
		}
		if inFile > m.maxLog {
			t.Fatalf("store %d has %d bytes in its file, limit %d", m.seed, inFile, m.maxLog)
		}
		info, err := os.Stat(m.path)
		if inFile > 0 && !lost && (err != nil || info.Size() != inFile) {
			t.Fatalf("store %d: file %v, %v; want %d bytes", m.seed, info, err, inFile)
		}
		slackLog += leastLog + segmentSize
		slackMemory += 2 * segmentSize
		if m.path == "" {
			slackMemory += leastMemory
		}
	}
	if usedMemory, usedLog := b.Used(); usedMemory != memory || usedLog != log {
		t.Fatalf("used are %d and %d, held are %d and %d", usedMemory, usedLog, memory, log)
	}
	if memory > b.limits.MemoryTotal+slackMemory {
		t.Fatalf("%d bytes in memory, limit %d", memory, b.limits.MemoryTotal)
	}
	if log > b.limits.LogTotal+slackLog {
		t.Fatalf("%d bytes in files, limit %d", log, b.limits.LogTotal)
	}
}

func TestManySmallFinishedStoresStayWithinTheTotal(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		budget := NewBudget(dir, Limits{Memory: 1 << 20, MemoryTotal: 256 << 10, Log: 1 << 20, LogTotal: 512 << 10})
		var stores []*model
		for seed := range int64(200) {
			m := &model{Store: budget.Store(fmt.Sprint(seed)), seed: seed}
			m.append(t, 20_000)
			m.Finish()
			stores = append(stores, m)
			if memory, log := budget.Used(); memory > 256<<10+segmentSize || log > 512<<10+segmentSize {
				t.Fatalf("%d bytes in memory, %d in files", memory, log)
			}
		}
		kept := 0
		for _, m := range stores {
			m.read(t, 0, 20_000)
			if base, _ := m.Bounds(); base == 0 {
				kept++
			} else if kept > 0 {
				t.Fatalf("store %d is gone, an older one isn't", m.seed)
			}
			m.Close()
		}
		if kept < 10 || dir != "" && kept < 30 {
			t.Fatalf("%d of 200 kept", kept)
		}
	}
}

func TestRunningStoresStopGrowingTheirFilesAtTheTotal(t *testing.T) {
	budget := NewBudget(t.TempDir(), Limits{Memory: 128 << 10, MemoryTotal: 1 << 20, Log: 8 << 20, LogTotal: 10 << 20})
	var stores []*model
	for seed := range int64(4) {
		m := &model{Store: budget.Store(fmt.Sprint(seed)), seed: seed}
		defer m.Close()
		stores = append(stores, m)
	}
	for range 300 {
		for _, m := range stores {
			m.append(t, 70_000)
		}
	}
	if _, log := budget.Used(); log > 12<<20 {
		t.Fatalf("%d bytes in files", log)
	}
	for _, m := range stores {
		base, _ := m.Bounds()
		if m.end-base < 2<<20 {
			t.Fatalf("store %d keeps %d bytes", m.seed, m.end-base)
		}
		for off := base; off < m.end; off += 50_000 {
			m.read(t, off, 60_000)
		}
	}
}

func TestADirectoryThatWasRemovedIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	budget := NewBudget(dir, Limits{Memory: segmentSize, MemoryTotal: 1 << 20, Log: 1 << 20, LogTotal: 1 << 30})
	old := &model{Store: budget.Store("old")}
	old.append(t, 5*segmentSize)
	old.Finish()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := old.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrDropped) {
		t.Fatalf("read from a removed file: %v", err)
	}
	old.append(t, 5*segmentSize) // late output
	fresh := &model{Store: budget.Store("fresh"), seed: 1}
	fresh.append(t, 5*segmentSize)
	for _, m := range []*model{old, fresh} {
		base, _ := m.Bounds()
		for off := base; off < m.end; off += 1000 {
			m.read(t, off, 3000)
		}
		if m.end-base < 4*segmentSize {
			t.Fatalf("store %d keeps %d bytes", m.seed, m.end-base)
		}
		m.Close()
	}
}

func TestAFileThatWasCutOrReplacedNeverYieldsWrongBytes(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"cut":      func(path string) error { return os.Truncate(path, segmentSize/2) },
		"replaced": func(path string) error { return os.WriteFile(path, []byte("other"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			budget := NewBudget(dir, Limits{Memory: segmentSize, MemoryTotal: 1 << 20, Log: 1 << 20, LogTotal: 1 << 30})
			m := &model{Store: budget.Store("x")}
			defer m.Close()
			m.append(t, 5*segmentSize)
			m.Finish()
			if err := spoil(filepath.Join(dir, "x.log")); err != nil {
				t.Fatal(err)
			}
			m.append(t, 3*segmentSize)
			for off := int64(0); off < m.end; off += 1000 {
				m.read(t, off, 3000)
			}
		})
	}
}

// A part of a segment in the file shifts all that comes later, so that segments lie across the ring's seam.
func TestLateOutputGoesRoundTheFileAtAnyOffset(t *testing.T) {
	budget := NewBudget(t.TempDir(), Limits{Memory: segmentSize, MemoryTotal: segmentSize, Log: 3 * segmentSize, LogTotal: 1 << 30})
	m := &model{Store: budget.Store("m")}
	defer m.Close()
	m.append(t, 1000)
	m.Finish()
	other := &model{Store: budget.Store("other"), seed: 1}
	defer other.Close()
	other.append(t, 3*segmentSize)
	if memory, _ := m.held(); memory != 0 {
		t.Fatalf("%d bytes are still in memory", memory)
	}
	for range 20 {
		m.append(t, segmentSize)
		base, _ := m.Bounds()
		if m.end-base < min(m.end, 3*segmentSize) {
			t.Fatalf("%d bytes kept of %d", m.end-base, m.end)
		}
		for off := base; off < m.end; off += 10_000 {
			m.read(t, off, 10_000)
		}
	}
}
