package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func soakBenchmarks() []benchmark {
	return []benchmark{
		{"leaks", "10,000 commands and 1,000 dropped connections: what is left of them; compared with a fresh celld", leaks},
		{"soak", "mixed load with dropped clients for a time: what went wrong and what is left", soak},
	}
}

// faults counts what went wrong. It is safe for concurrent use.
type faults struct {
	n   atomic.Int64
	mu  sync.Mutex
	one error
}

func (f *faults) count(err error) {
	if err == nil {
		return
	}
	f.n.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.one == nil {
		f.one = err
	}
}

func (f *faults) first() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.one
}

// event is what the checks read of an event.
type event struct {
	Type, Text string
	Error      struct {
		Value string `json:"evalue"`
	}
}

// firstEvent decodes the first event of an answer.
func firstEvent(answer []byte) (event, error) {
	var e event
	frame, _, _ := bytes.Cut(answer, []byte("\n\n"))
	_, data, ok := bytes.Cut(frame, []byte("data: "))
	if !ok {
		return e, fmt.Errorf("no event in %q", short(string(answer)))
	}
	return e, json.Unmarshal(data, &e)
}

// drop starts a command and goes away after its first output.
func (d *daemon) drop(ctx context.Context, text string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := d.send(ctx, http.MethodPost, "/command", strings.NewReader(object("command", text)))
	if err != nil {
		return err
	}
	defer resp.Body.Close() // with the body unread: the connection is reset
	buf := make([]byte, 4096)
	for said := ""; !strings.Contains(said, `"type":"stdout"`); {
		n, err := resp.Body.Read(buf)
		if said += string(buf[:n]); err != nil {
			return fmt.Errorf("before any output, %w after %q", err, said)
		}
	}
	return nil
}

// belongings is what a celld holds.
type belongings struct {
	descriptors, children, threads int
	outside                        map[string]bool // files it made outside its data directory
	logs                           int64           // bytes in the data directory
}

func (d *daemon) belongings() (b belongings, err error) {
	d.http.CloseIdleConnections()
	if b.descriptors, err = entries(fmt.Sprintf("/proc/%d/fd", d.pid)); err != nil {
		return b, err
	}
	if b.threads, err = entries(fmt.Sprintf("/proc/%d/task", d.pid)); err != nil {
		return b, err
	}
	children, err := below(d.pid)
	if err != nil {
		return b, err
	}
	b.children = len(children)
	names, err := files(d.runDir, filepath.Join(d.home, "tmp"), filepath.Join(d.home, "work"))
	if err != nil {
		return b, err
	}
	b.outside = map[string]bool{}
	for _, name := range names {
		b.outside[name] = true
	}
	kept, err := files(d.data())
	if err != nil {
		return b, err
	}
	for _, name := range kept {
		if info, err := os.Stat(name); err == nil {
			b.logs += info.Size()
		}
	}
	return b, nil
}

// restLimit is longer than celld keeps a connection to its Jupyter Server that it doesn't use: a minute.
const restLimit = 90 * time.Second

// left waits until celld holds no more than before, or a while, and adds lines for what it still has.
func (r *run) left(ctx context.Context, d *daemon, before belongings) error {
	var now belongings
	more := 0
	err := settled(ctx, restLimit, func() (done bool, err error) {
		now, err = d.belongings()
		more = 0
		for name := range now.outside {
			if !before.outside[name] {
				more++
			}
		}
		return now.descriptors <= before.descriptors && now.children <= before.children && more == 0, err
	})
	if err != nil {
		return err
	}
	r.single("descriptors more", "", float64(now.descriptors-before.descriptors), atMost(0))
	r.single("child processes more", "", float64(now.children-before.children), atMost(0))
	r.single("files more, not in data dir", "", float64(more), atMost(0))
	r.single("files in data dir", "MB", float64(now.logs)/mb, atMost(1100)) // the default budget of all logs
	r.single("threads more", "", float64(now.threads-before.threads), goal{})
	held, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	r.single("resident memory", "MB", held/mb, goal{})
	return nil
}

// goroutinesLeft compares d's goroutines with those of a fresh celld that has served one command. It ends d.
func (r *run) goroutinesLeft(ctx context.Context, d *daemon) error {
	fresh, err := r.celld(ctx)
	if err != nil {
		return err
	}
	if err := fresh.do(ctx, command("true")); err != nil {
		return err
	}
	want, err := fresh.goroutinesAtRest(ctx)
	if err != nil {
		return err
	}
	have, err := d.goroutinesAtRest(ctx)
	if err != nil {
		return err
	}
	more := 0
	for by, n := range have {
		if n > want[by] {
			more += n - want[by]
			fmt.Fprintf(r.report.w, "  %d goroutines, of a fresh celld %d, started by %s\n", n, want[by], by)
		}
	}
	r.single("goroutines more", "", float64(more), atMost(0))
	return nil
}

// goroutinesAtRest is goroutines a moment after the last connection has been closed.
func (d *daemon) goroutinesAtRest(ctx context.Context) (map[string]int, error) {
	d.http.CloseIdleConnections()
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return nil, err
	}
	return d.goroutines()
}

func leaks(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	if err := together(16, func(int) error { return d.do(ctx, command("true")) }); err != nil { // what is kept for good
		return err
	}
	before, err := d.belongings()
	if err != nil {
		return err
	}
	n := pick(r, 1_000, 10_000, 10_000)
	var wrong faults
	err = together(16, func(worker int) error {
		for i := range n / 16 {
			c := command(fmt.Sprintf("echo QQQ; echo %d-%d", worker, i))
			c.payload, c.says = 3, fmt.Sprintf("%d-%d", worker, i)
			wrong.count(d.do(ctx, c))
			if i%10 == 0 {
				wrong.count(d.drop(ctx, "sleep 3131 & yes"))
			}
		}
		return context.Cause(ctx)
	})
	r.single(fmt.Sprintf("wrong of %d commands", n/16*16), "", float64(wrong.n.Load()), atMost(0))
	if err := errors.Join(err, wrong.first(), r.left(ctx, d, before)); err != nil {
		return err
	}
	return r.goroutinesLeft(ctx, d)
}

// chore is one kind of work in the mixed load; i is different each time.
type chore struct {
	name string
	do   func(ctx context.Context, i int) error
}

func soak(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	chores, err := d.chores(ctx)
	if err != nil {
		return err
	}
	for _, c := range chores { // what is kept for good
		if err := c.do(ctx, 0); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	before, err := d.belongings()
	if err != nil {
		return err
	}
	lasts := pick(r, 5*time.Second, 30*time.Second, 10*time.Minute)
	var wrong faults
	var next atomic.Int64
	end := time.Now().Add(lasts)
	err = together(8, func(int) error {
		for time.Now().Before(end) && ctx.Err() == nil {
			i := int(next.Add(1))
			c := chores[i%len(chores)]
			if err := c.do(ctx, i); err != nil {
				wrong.count(fmt.Errorf("%s: %w", c.name, err))
			}
		}
		return context.Cause(ctx)
	})
	if err != nil {
		return err
	}
	names := make([]string, len(chores))
	for i, c := range chores {
		names[i] = c.name
	}
	r.single(fmt.Sprintf("wrong of %d", next.Load()), "", float64(wrong.n.Load()), atMost(0))
	fmt.Fprintf(r.report.w, "  for %s with 8 clients, in turn: %s\n", lasts, strings.Join(names, ", "))
	return errors.Join(wrong.first(), r.left(ctx, d, before))
}

// chores are the kinds of work that this celld can do.
func (d *daemon) chores(ctx context.Context) ([]chore, error) {
	all := []chore{
		{"a command", func(ctx context.Context, i int) error {
			c := command(fmt.Sprintf("echo QQ >&2; echo done %d", i))
			c.payload, c.says = 2, fmt.Sprint("done ", i)
			return d.do(ctx, c)
		}},
		{"a failing command", func(ctx context.Context, i int) error {
			return d.fails(ctx, fmt.Sprintf("exit %d", i%255+1), fmt.Sprint(i%255+1))
		}},
		{"1 MB in lines", func(ctx context.Context, _ int) error { return d.do(ctx, pipeline(1_000_000).in("lines")) }},
		{"a dropped client", func(ctx context.Context, _ int) error { return d.drop(ctx, "setsid sleep 3131 & yes | cat") }},
		{"a timeout", func(ctx context.Context, _ int) error {
			_, err := d.ask(ctx, http.MethodPost, "/command", object("command", "sleep 3131 | cat", "timeout", 50))
			return err
		}},
		{"a background command", d.backgroundChore},
	}
	id, err := d.newSession(ctx)
	if err == nil {
		all = append(all, chore{"a run in a session", func(ctx context.Context, i int) error {
			c := within(id, fmt.Sprintf("n=%d; echo $n Q", i))
			c.payload, c.says = 1, fmt.Sprint(i, " Q")
			return d.do(ctx, c)
		}})
	} else if _, ok := errors.AsType[unavailable](err); !ok {
		return nil, err
	}
	context1, err := d.newContext(ctx)
	var refused *statusError
	if errors.As(err, &refused) {
		return all, nil // no Jupyter here
	}
	return append(all, chore{"a cell", func(ctx context.Context, i int) error {
		c := cell(context1, fmt.Sprintf("print('Q %d')", i))
		c.payload, c.says = 1, fmt.Sprint("Q ", i)
		return d.do(ctx, c)
	}}), err
}

// fails runs a command that must fail with the given status.
func (d *daemon) fails(ctx context.Context, text, status string) error {
	answer, err := d.ask(ctx, http.MethodPost, "/command", object("command", text))
	if err != nil {
		return err
	}
	frames := bytes.Split(bytes.TrimSpace(answer), []byte("\n\n"))
	last, err := firstEvent(frames[len(frames)-1])
	if err == nil && (last.Type != "error" || last.Error.Value != status) {
		err = fmt.Errorf("%s ended with %q", text, frames[len(frames)-1])
	}
	return err
}

// backgroundChore starts a command, looks at its status, follows it to its output and ends it.
func (d *daemon) backgroundChore(ctx context.Context, i int) error {
	answer, err := d.ask(ctx, http.MethodPost, "/command", object("command", fmt.Sprintf("echo here %d; sleep 3131", i), "background", true))
	if err != nil {
		return err
	}
	id, err := initID(answer)
	if err != nil {
		return err
	}
	resp, err := d.send(ctx, http.MethodGet, "/executions/"+id+"/events", nil)
	if err != nil {
		return err
	}
	said := make([]byte, 0, 4096)
	for !bytes.Contains(said, fmt.Appendf(nil, "here %d", i)) && err == nil {
		var n int
		n, err = resp.Body.Read(said[len(said):cap(said)])
		said = said[:len(said)+n]
	}
	resp.Body.Close()
	if err != nil && err != io.EOF {
		return fmt.Errorf("follow: %w", err)
	}
	status, err := askJSON[struct{ Running bool }](ctx, d.peer, http.MethodGet, "/command/status/"+id, "")
	if err != nil {
		return err
	}
	if !status.Running {
		return fmt.Errorf("command %s doesn't run, and said %q", id, said)
	}
	_, err = d.ask(ctx, http.MethodDelete, "/command?id="+id, "")
	return err
}
