package ptyrun

import (
	"sync"
	"time"
)

const (
	nobody = -1

	// A user who is more than maxBehind bytes behind is waited for, if he has got something within patience.
	maxBehind = 512 << 10
	patience  = 500 * time.Millisecond
)

// flow holds a program back for its user: while he says so, and for as long as he reads but can't keep up.
type flow struct {
	mu      sync.Mutex
	made    int64     // bytes of output so far
	taken   int64     // by the user; nobody: there is none
	moved   time.Time // when taken grew
	lost    bool      // he didn't get on, and isn't waited for until he has caught up
	paused  bool
	over    bool
	changed chan struct{} // closed at the next change; nil when nobody waits
}

// wait returns when the program may go on.
func (f *flow) wait() {
	for {
		changed, limit := f.holds()
		if changed == nil {
			return
		}
		var expired <-chan time.Time
		var timer *time.Timer
		if limit > 0 {
			timer = time.NewTimer(limit)
			expired = timer.C
		}
		select {
		case <-changed:
		case <-expired:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// holds returns nil if the program may go on, else what is closed at the next change, and for how long to wait at the
// most; 0: for ever.
func (f *flow) holds() (changed <-chan struct{}, limit time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil, 0
	}
	if !f.paused {
		if f.taken == nobody || f.lost || f.made-f.taken <= maxBehind {
			return nil, 0
		}
		if limit = patience - time.Since(f.moved); limit <= 0 {
			f.lost = true
			return nil, 0
		}
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed, limit
}

// wake tells of a change. The caller holds mu.
func (f *flow) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *flow) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made += int64(n)
}

func (f *flow) take(off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken, f.moved = max(off, nobody), time.Now()
	if f.taken == nobody || f.made-f.taken <= maxBehind {
		f.lost = false
	}
	f.wake()
}

func (f *flow) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused, f.moved = on, time.Now()
	f.wake()
}

// finish lets the program go on for good.
func (f *flow) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.wake()
}
