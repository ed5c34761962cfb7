package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// crash ends the daemon as the kernel does when memory runs out.
func (d *daemon) crash() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatal(err)
	}
	<-d.done
	d.cmd.Wait()
}

func TestProcessOneReapsOrphansAndKeepsStatuses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("only root may make a pid namespace")
	}
	d := start(t, launch{wrap: func(argv []string) []string {
		return append([]string{"unshare", "-p", "--kill-child", "--mount-proc"}, argv...)
	}})
	if o := d.command("echo $PPID"); o.out() != "1" {
		t.Fatalf("celld is process %s", o.out())
	}
	h := d.holder()
	const n = 200
	codes := make(chan error, n)
	for range n {
		go func() {
			a, err := d.answer(t.Context(), m{"command": h.held("(sleep 0.05 &) ; exit 7")})
			if err == nil && (a.ExitCode == nil || *a.ExitCode != 7) {
				err = fmt.Errorf("%+v", a)
			}
			codes <- err
		}()
	}
	for range n {
		if err := <-codes; err != nil {
			t.Error(err)
		}
	}
	h.wait() // every orphan has died
	d.settled("zombies", d.children, 0)
	if o := d.inSession("s", "sleep 981.1 & (setsid sleep 981.2 &); echo $?"); o.out() != "0" {
		t.Errorf("%q", o.stdout)
	}
	o := d.open("/command", m{"command": "(setsid sleep 981.3 &); sleep 981.4", "timeout": 200}).rest()
	d.ended(o, "CommandTimeout", killedAt(d.status(o.init.ID), 200*time.Millisecond, 143))
}

// children are the daemon's child processes, the dead ones that nobody has waited for included.
func (d *daemon) children() []string {
	d.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.pid()))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("children of %d: %v", d.pid(), err)
	}
	var all []string
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have gone
		for _, pid := range strings.Fields(string(text)) {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline") // nothing, if it is dead
			all = append(all, pid+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return all
}

// descriptors are the daemon's open files.
func (d *daemon) descriptors() []string {
	d.t.Helper()
	all := d.names("fd")
	for i, fd := range all {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", d.pid(), fd)) // nothing, if it has been closed
		all[i] = fd + " " + target
	}
	return all
}

// threads are the daemon's.
func (d *daemon) threads() []string {
	d.t.Helper()
	return d.names("task")
}

// names are those in a folder of /proc that is about the daemon.
func (d *daemon) names(folder string) (all []string) {
	d.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", d.pid(), folder))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// files are what is in the daemon's folders.
func (d *daemon) files() (all []string) {
	for _, dir := range []string{d.run, d.ws, d.data} {
		filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error { all = append(all, path); return nil })
	}
	return all
}

// fewest is the least that there is of something while a number of requests are answered. Their connections aren't kept,
// as they would count.
func (d *daemon) fewest(things func() []string) int {
	d.t.Helper()
	least := len(things())
	for range 500 {
		d.call("GET", "/ping", nil, nil)
		d.http.CloseIdleConnections()
		least = min(least, len(things()))
	}
	return least
}

// settled returns when things have come down to as many as are wanted: what follows the end of an answer takes a moment.
func (d *daemon) settled(what string, things func() []string, most int) {
	d.t.Helper()
	late := time.Now().Add(patience)
	for got := things(); len(got) > most; got = things() {
		if time.Now().After(late) {
			d.t.Errorf("%d %s, want at most %d: %q", len(got), what, most, got)
			return
		}
		d.call("GET", "/ping", nil, nil)
		d.http.CloseIdleConnections()
	}
}

func TestWhatAKilledDaemonLeavesEndsWithTheNextStart(t *testing.T) {
	other := start(t, launch{})
	spared := other.holder()
	other.command(spared.held("setsid sleep 982.1 & echo up"))

	first := start(t, launch{})
	h := first.holder()
	shell := first.background(h.held("echo up; sleep 982.2; :"))
	first.waitFor(shell, m{"pattern": "up"}, "pattern")
	leader := pidfd(t, first.status(shell).PID)
	session := first.open("/session/s/run", m{"command": h.held("echo $$; sleep 982.3"), "create": true})
	pid, err := strconv.Atoi(session.until(func(e event) bool { return e.Type == "stdout" }).Text)
	if err != nil {
		t.Fatal(err)
	}
	bash := pidfd(t, pid)
	first.command(h.held("(setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 982.4; done' &) ; nohup sleep 982.5 >/dev/null 2>&1 & echo up"))
	first.crash()
	awaitDeath(t, leader)
	awaitDeath(t, bash)
	if !h.isHeld() {
		t.Error("nothing was left: the test shows nothing")
	}

	second := start(t, launch{data: first.data})
	h.wait()
	if !strings.Contains(second.log.String(), "earlier celld") {
		t.Errorf("log:\n%s", second.log.String())
	}
	if o := second.command("echo again"); o.out() != "again" {
		t.Errorf("%q", o.stdout)
	}
	if !spared.isHeld() {
		t.Error("what belongs to another daemon was killed")
	}
	if left := processesWith(first.run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestShutdownEndsEverythingInTime(t *testing.T) {
	d := start(t, launch{args: []string{"--graceful-shutdown=60s"}}) // it takes six or so
	h := d.holder()
	streams := []*stream{
		d.open("/command", m{"command": h.held("trap '' TERM INT HUP; echo up; while :; do sleep 984.1; done")}),
		d.open("/command", m{"command": h.held("(setsid sleep 984.2 &) ; echo up; sleep 984.3 | cat")}),
		d.open("/session/s/run", m{"command": h.held("sleep 984.4 & echo up; sleep 984.5"), "create": true}),
	}
	for _, s := range streams {
		s.until(prints("up"))
	}
	queued := d.open("/session/s/run", m{"command": "echo never"})
	queued.until(func(e event) bool { return e.Type == "init" })
	id := d.background(h.held("echo up; sleep 984.6; :"))
	d.waitFor(id, m{"pattern": "up"}, "pattern")
	streams = append(streams, queued, d.open("/executions/"+id+"/events?after=1", nil))
	// Both this and the first one get their three seconds, one after the other: time to ask a server that shuts down.
	d.command(h.held("(trap '' TERM HUP; exec nohup setsid sleep 984.7) >/dev/null 2>&1 & echo up"))
	unread := d.narrow().open("/command", m{"command": h.held("yes")})
	unread.until(prints("y")) // and no more

	if err := syscall.Kill(d.pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.log.await(t, "shutting down")
	d.refused(http.StatusServiceUnavailable, "GET", "/readyz", nil)
	d.refused(http.StatusServiceUnavailable, "POST", "/command", m{"command": "true"})
	d.refused(http.StatusServiceUnavailable, "POST", "/session", m{})
	if got := d.call("GET", "/healthz", nil, nil); got != 200 {
		t.Errorf("alive: %d", got)
	}
	for i, s := range streams {
		if o := s.rest(); o.failed() != "CommandInterrupted" {
			t.Errorf("stream %d ended with %+v", i, o.end)
		}
	}
	h.wait()
	<-d.done
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("celld ended with %v", err)
	}
	if strings.Contains(d.log.String(), "level=WARN") || strings.Contains(d.log.String(), "level=ERROR") {
		t.Errorf("log:\n%s", d.log.String())
	}
	if left := processesWith(d.run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if names, _ := os.ReadDir(d.run); len(names) > 0 {
		t.Errorf("left in the run directory: %v", names)
	}
}

func TestOneDataDirectoryHasOneDaemon(t *testing.T) {
	d := start(t, launch{})
	if out := refusedStart(t, "--listen=127.0.0.1:0", "--data-dir="+d.data); !strings.Contains(out, "another celld uses the data directory "+d.data) {
		t.Errorf("%s", out)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(d.url, "http://"), ":")
	if out := refusedStart(t, "--listen=127.0.0.1:"+port); !strings.Contains(out, "address already in use") {
		t.Errorf("%s", out)
	}
}

// TestOddParents starts celld as a careless parent does: with signals ignored, descriptors open, a log that nobody reads
// and a folder for temporary files that isn't there.
func TestOddParents(t *testing.T) {
	const script = `trap '' INT HUP PIPE USR1; exec 7</etc/passwd 2> >(sed /msg=listening/q >&2); export TMPDIR=/nonexistent; exec "$@"`
	d := start(t, launch{wrap: func(argv []string) []string { return append([]string{"bash", "-c", script, "bash"}, argv...) }})
	if o := d.command("grep -E '^Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd | wc -l; [ -e /proc/self/fd/7 ]; echo $?"); !slices.Equal(o.stdout, []string{
		"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "4", "1"}) {
		t.Errorf("%q %q", o.stdout, o.stderr)
	}
	for _, sig := range []string{"INT", "HUP", "USR1", "PIPE"} {
		o := d.command("kill -" + sig + " $$")
		if want := map[string]int{"INT": 130, "HUP": 129, "USR1": 138, "PIPE": 141}[sig]; o.code != want {
			t.Errorf("%s: %d", sig, o.code)
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGINT} {
		if err := syscall.Kill(d.pid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	if o := d.command("yes | head -n 3"); len(o.stdout) != 3 || o.code != 0 {
		t.Errorf("%q %d", o.stdout, o.code)
	}
	if o := d.inSession("s", "cat <<<here"); o.out() != "here" {
		t.Errorf("%q %q", o.stdout, o.stderr)
	}
}

func TestChildrenGoFirstWhenMemoryRunsOut(t *testing.T) {
	d := start(t, launch{})
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.pid()))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func(text string) *stream{
		"command": func(text string) *stream { return d.open("/command", m{"command": text}) },
		"session": func(text string) *stream { return d.open("/session/s/run", m{"command": text, "create": true}) },
		"limited": func(text string) *stream {
			return d.open("/command", m{"command": text, "rlimits": m{"nofile": 100}})
		},
	} {
		g := d.gate()
		s := open("echo up; " + g.pass() + "; cat /proc/self/oom_score_adj")
		s.until(prints("up"))
		g.open()
		o := s.rest()
		if child, err := strconv.Atoi(o.out()); err != nil || child <= daemon && daemon < 1000 {
			t.Errorf("%s: %q, celld's is %d", name, o.out(), daemon)
		}
	}
}

// TestAnotherUsersDaemon runs celld as somebody who may not become another user.
func TestAnotherUsersDaemon(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("only root may start it as another user")
	}
	const nobody = 65534
	d := start(t, launch{uid: nobody, env: []string{"EXECD_ACCESS_TOKEN=" + secret, "HOME="}})
	token := []string{"X-EXECD-ACCESS-TOKEN", secret}
	run := func(text string, more ...m) *outcome {
		t.Helper()
		return d.open("/command", with(m{"command": text}, more), token...).rest()
	}
	if o := run("id -u; id -g"); !slices.Equal(o.stdout, []string{"65534", "65534"}) {
		t.Errorf("%q %q", o.stdout, o.stderr)
	}
	if o := run("id -u", m{"uid": nobody, "gid": nobody}); o.out() != "65534" { // no switch is needed
		t.Errorf("%q %q", o.stdout, o.stderr)
	}
	for _, who := range []m{{"uid": 0}, {"uid": 1}, {"uid": nobody, "gid": 0}} {
		for _, more := range []m{{"command": "true"}, {"command": "true", "background": true}, {"argv": []string{"true"}}} {
			d.refused(400, "POST", "/command", with(m{}, []m{who, more}), token...)
		}
		d.refused(400, "POST", "/session", who, token...)
	}
	o := run("exec 2>&1; cat /proc/$PPID/environ; ls /proc/$PPID/fd; :")
	if strings.Count(o.out(), "Permission denied") != 2 {
		t.Errorf("looked into the daemon: %q", o.stdout)
	}
	h := d.holder()
	o = run(h.held("(setsid sleep 985.1 &); echo up; sleep 985.2 | cat"), m{"timeout": 300})
	d.http = &http.Client{Transport: withHeader{token, d.http.Transport}}
	d.ended(o, "CommandTimeout", killedAt(d.status(o.init.ID), 300*time.Millisecond, 143))
	h.wait()
}

// withHeader adds headers to each request.
type withHeader struct {
	header []string
	next   http.RoundTripper
}

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for i := 0; i < len(w.header); i += 2 {
		r.Header.Set(w.header[i], w.header[i+1])
	}
	return w.next.RoundTrip(r)
}

func TestThousandsOfCallsLeaveNothing(t *testing.T) {
	d := start(t, launch{raw: true})
	work := func(commands, dropped int) {
		t.Helper()
		h := d.holder()
		done := make(chan error, 8)
		for range cap(done) {
			go func() {
				var err error
				for i := 0; i < commands/cap(done) && err == nil; i++ {
					_, err = d.answer(t.Context(), m{"command": "echo out; echo err >&2; exit $((RANDOM % 3))"})
				}
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		var ids []string
		for i := range dropped {
			var s *stream
			switch text := h.held("echo up; sleep 986.1 | cat"); i % 3 {
			case 0:
				s = d.open("/command", m{"command": text})
			case 1:
				s = d.open("/session/s/run", m{"command": text, "create": true})
			case 2:
				id := d.background(h.held("(setsid sleep 986.2 &); echo up"))
				ids = append(ids, id)
				s = d.open("/executions/"+id+"/events", nil)
			}
			s.until(prints("up"))
			s.close()
		}
		for _, id := range ids {
			d.awaitExit(id) // as long as a command runs, it has no survivors
			if left := d.status(id).Survivors; len(left) != 1 {
				t.Errorf("%d survive %s, want 1", len(left), id)
			}
			d.call("DELETE", "/command?id="+id, nil, nil)
		}
		d.inSession("s", "exec 9>&-") // so that the last of its runs has ended
		h.wait()
		d.http.CloseIdleConnections()
	}
	work(80, 12)
	descriptors, children := d.fewest(d.descriptors), d.fewest(d.children)
	threads, files := len(d.threads()), d.fewest(d.files)
	work(500, 102)
	d.settled("descriptors", d.descriptors, descriptors)
	d.settled("children", d.children, children)
	d.settled("threads", d.threads, threads+100) // the runtime keeps what a busy moment needed; there were 600 commands
	d.settled("files", d.files, files+1)         // the pipe by which this test waits
}
