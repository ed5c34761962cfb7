package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// What the kernel says about processes (proc(5)).

// memory returns a field of /proc/PID/status such as VmRSS or VmHWM, in bytes.
func memory(pid int, field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(l, field+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
}

// peak returns the most memory that pid held while f ran, in bytes.
func peak(pid int, f func() error) (float64, error) {
	// 5 sets the high-water mark to what is held now.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	return memory(pid, "VmHWM")
}

// entries counts what is in a directory such as /proc/PID/fd or /proc/PID/task.
func entries(dir string) (int, error) {
	all, err := os.ReadDir(dir)
	return len(all), err
}

// process is a process as it was seen.
type process struct {
	pid, parent int
	state       byte
	started     string // ticks since boot: with pid, its identity
	args        []string
}

func lookAt(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name before it may hold anything
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	p := process{pid: pid, state: fields[0][0], started: fields[19]}
	if p.parent, err = strconv.Atoi(fields[1]); err != nil {
		return process{}, err
	}
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		p.args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	}
	return p, nil
}

// alive says whether p still runs; a zombie doesn't.
func (p process) alive() bool {
	now, err := lookAt(p.pid)
	return err == nil && now.started == p.started && now.state != 'Z'
}

func (p process) String() string { return fmt.Sprintf("%d %s", p.pid, strings.Join(p.args, " ")) }

// below returns the living processes that descend from pid.
func below(pid int) ([]process, error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, name := range names {
		n, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if p, err := lookAt(n); err == nil && p.state != 'Z' { // else it has ended meanwhile
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var all []process
	for todo := []int{pid}; len(todo) > 0; {
		found := children[todo[0]]
		todo = todo[1:]
		for _, p := range found {
			todo = append(todo, p.pid)
		}
		all = append(all, found...)
	}
	return all, nil
}
