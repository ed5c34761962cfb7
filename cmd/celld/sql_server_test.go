package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// sqlPID is the process of the daemon's own SQL server.
func (d *daemon) sqlPID() (pid int) {
	d.t.Helper()
	for _, p := range processesWith(d.run) {
		if strings.Contains(p, "--datadir="+d.data) {
			fmt.Sscanf(p, "/proc/%d ", &pid)
		}
	}
	if pid == 0 {
		d.t.Fatal("no SQL server runs")
	}
	return pid
}

// sqlBackend is what /version says of SQL.
func (d *daemon) sqlBackend() (b struct {
	Name, Detail, Reason, Hint string
	Available                  bool
}) {
	d.t.Helper()
	var v struct {
		Backends []struct {
			Name, Detail, Reason, Hint string
			Available                  bool
		}
	}
	d.call("GET", "/version", nil, &v)
	for _, x := range v.Backends {
		if x.Name == "sql" {
			return x
		}
	}
	d.t.Fatalf("/version has no sql: %+v", v)
	return b
}

// statements counts in the default context which statements are under way.
func (d *daemon) statements(like string) string {
	d.t.Helper()
	return d.sql("SELECT COUNT(*) AS n FROM information_schema.processlist WHERE info LIKE '" + like + "' AND id <> CONNECTION_ID()")[0].Rows[0][0].(string)
}

// awaitStatement returns when a statement is under way. The server raises no event for that.
func (d *daemon) awaitStatement(like string) {
	d.t.Helper()
	for d.statements(like) == "0" {
		if d.t.Context().Err() != nil {
			d.t.Fatal(context.Cause(d.t.Context()))
		}
	}
}

func testSQLStops(t *testing.T, d *daemon) {
	const forever = "SELECT BENCHMARK(2000000000, SHA2('x',512))"
	c := d.sqlContext()
	d.cell(c.ID, "SET @v = 1")
	check := func(how string) {
		t.Helper()
		if got := d.cell(c.ID, "SELECT @v AS v").tables(t); !reflect.DeepEqual(got[0].Rows, [][]any{{"1"}}) {
			t.Errorf("%s: then %q", how, got)
		}
		if n := d.statements("SELECT BENCH%"); n != "0" {
			t.Errorf("%s: %s statements run on", how, n)
		}
	}
	s := d.begin(c.ID, forever)
	d.awaitStatement("SELECT BENCH%")
	queued := d.begin(c.ID, "SELECT @v AS v")
	queued.until(func(e event) bool { return e.State == "queued" })
	if status := d.call("DELETE", "/code?id="+c.ID, nil, nil); status != http.StatusOK {
		t.Errorf("interrupt: %d", status)
	}
	if o := s.rest(); o.failed() != "CommandInterrupted" || len(o.results) > 0 {
		t.Errorf("interrupted: %+v", o.end)
	}
	if o := queued.rest(); o.end.Error != nil {
		t.Errorf("what was queued behind: %+v", o.end)
	}
	check("interrupted")

	if o := d.cell(c.ID, forever, m{"timeout": 300}); o.failed() != "CellTimeout" || len(o.results) > 0 {
		t.Errorf("timed out: %+v", o.end)
	}
	check("timed out")

	s = d.begin(c.ID, forever)
	d.awaitStatement("SELECT BENCH%")
	s.close()
	check("the client went away") // queued behind it: its end is waited for

	s = d.begin(c.ID, "SELECT SLEEP(600)", m{"on_disconnect": "continue"})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	s.close()
	d.awaitStatement("SELECT SLEEP%")
	rest := d.open("/executions/"+id+"/events?after=0", nil)
	d.call("DELETE", "/code?id="+c.ID, nil, nil)
	if o := rest.rest(); o.failed() != "CommandInterrupted" {
		t.Errorf("followed again: %+v", o.end)
	}
}

func testSQLLarge(t *testing.T, shared *daemon) {
	d := shared.unchecked()
	c := d.sqlContext()
	s := d.begin(c.ID, "SELECT seq AS n, CONCAT('row ', seq, ' \"é\"') AS text, REPEAT('x', 20) AS x FROM seq_1_to_60000")
	n, pieces, last := 0, 0, false
	for {
		e, ok := s.next()
		if !ok {
			break
		}
		if e.Type == "error" {
			t.Fatalf("%+v", e.Error)
		}
		if e.Type != "result" {
			continue
		}
		pieces++
		for _, r := range (&outcome{results: []event{e}}).tables(t)[0].Rows {
			if n++; r[0] != fmt.Sprint(n) || r[1] != fmt.Sprintf("row %d \"é\"", n) {
				t.Fatalf("row %d is %q", n, r)
			}
		}
		if _, has := e.Results["text/markdown"]; has != (pieces == 1) || last {
			t.Fatalf("piece %d: for people %v, after the last %v", pieces, has, last)
		}
		last = !e.Partial
	}
	if n != 60_000 || !last || pieces < 4 {
		t.Errorf("%d rows in %d pieces, the last seen: %v", n, pieces, last)
	}
	if peak := d.peakMemory(); peak > 256<<20 { // this daemon runs under the race detector
		t.Errorf("the daemon took %d MiB", peak>>20)
	}
	// An error after pieces have been sent: none of them is the last.
	o := d.cell(c.ID, "SELECT REPEAT('y', 200), CAST(seq AS SIGNED) + 9223372036854765807 FROM seq_1_to_20000")
	if o.failed() != "DBQueryError" || len(o.results) < 2 {
		t.Errorf("%d pieces, then %+v", len(o.results), o.end)
	}
	for _, e := range o.results {
		if !e.Partial {
			t.Error("a piece that looks like the end")
		}
	}
	o = d.cell(c.ID, "SELECT REPEAT('z', 17000000)")
	if o.failed() != "DBQueryError" || !strings.Contains(o.end.Error.Evalue, "larger than") {
		t.Errorf("a row that is too large: %+v", o.end.Error)
	}
	if o = d.cell(c.ID, "SELECT REPEAT('z', 4000000)"); o.end.Error != nil || len(o.tables(t)[0].Rows[0][0].(string)) != 4_000_000 {
		t.Errorf("a large row: %+v", o.end.Error)
	}
}

func testSQLAnswer(t *testing.T, shared *daemon) {
	d := shared.unchecked()
	for rows, want := range map[int]int{2: 2, 17: 16} { // of a MiB each, in a result each
		var answer struct {
			Results   []event
			Truncated bool
		}
		code := fmt.Sprintf("SELECT REPEAT('x', 1024 * 1024 - 1024) AS x FROM seq_1_to_%d", rows)
		d.call("POST", "/code", m{"context": m{"language": "sql"}, "code": code}, &answer, "Accept", "application/json")
		if n := len(answer.Results); n != want || answer.Truncated != (n < rows) || answer.Results[0].Table == nil || answer.Results[n-1].Partial != (n < rows) {
			t.Errorf("%d rows: %d results, truncated: %v", rows, n, answer.Truncated)
		}
	}
}

// peakMemory is the most that the daemon had resident.
func (d *daemon) peakMemory() (bytes int) {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid()))
	if err != nil {
		d.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	fmt.Sscan(after, &bytes)
	return bytes << 10
}

// The daemon's own server dies, is found again by a second daemon as a DSN, and keeps its data over restarts.
func TestSQLServers(t *testing.T) {
	t.Parallel()
	d := start(t, launch{args: []string{"--sql=auto", "--sql-max-rows=2"}})
	if b := d.sqlBackend(); !b.Available || b.Detail == "" {
		t.Errorf("/version says %+v", b)
	}
	if o := d.code("sql", "SELECT 1 AS x UNION SELECT 2 UNION SELECT 3"); !reflect.DeepEqual(o.tables(t)[0].Rows, [][]any{{"1"}, {"2"}}) || !o.results[0].Table.Truncated ||
		!strings.Contains(o.results[0].Results["text/markdown"].(string), "cut after 2 of 3 rows") {
		t.Errorf("more rows than allowed: %+v", o.results)
	}
	if strings.Contains(d.sqlBackend().Detail, "celld's own") {
		testOwnServer(t, d)
	}
}

func testOwnServer(t *testing.T, d *daemon) {
	d.sql("CREATE TABLE kept (n INT); INSERT INTO kept VALUES (7)")
	dsn := "root@unix(" + filepath.Join(d.run, "m/s") + ")/"
	other := start(t, launch{env: []string{"CELLD_SQL=" + dsn}})
	other.answers("SELECT n FROM kept", "n", row{"7"})
	if b := other.sqlBackend(); !b.Available || !strings.Contains(b.Detail, d.run) {
		t.Errorf("/version of the other says %+v", b)
	}
	if o := other.command("tr '\\0' '\\n' < /proc/$PPID/environ | grep -c SQL"); o.out() != "0" {
		t.Errorf("the DSN is in the environment: %q", o.out())
	}

	other.sql("SET @v = 1")
	kill(t, d.sqlPID(), syscall.SIGKILL)
	for _, x := range []*daemon{d, other} {
		o := x.code("sql", "SELECT n, @v FROM kept")
		if o.end.Error == nil || o.end.Error.Code != 2013 || o.end.Error.SQLState != "HY000" {
			t.Errorf("the first statement after the server's death: %+v", o.end)
		}
	}
	if o := other.code("sql", "SELECT 1"); o.failed() != "DBInitError" {
		t.Errorf("where the server is down: %+v", o.end)
	}
	if b := other.sqlBackend(); b.Available || b.Reason == "" || b.Hint == "" {
		t.Errorf("/version of the other says %+v", b)
	}
	d.answers("SELECT n, @v AS v FROM kept", "n v", row{"7", nil})     // celld starts its own again
	other.answers("SELECT n, @v AS v FROM kept", "n v", row{"7", nil}) // and it is tried again

	other.stop()
	pid := d.sqlPID()
	d.stop()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Error("the SQL server survived its celld")
	}
	again := start(t, launch{data: d.data})
	again.answers("SELECT n FROM kept", "n", row{"7"})

	again.cmd.Process.Kill() // and its server with it
	<-again.done
	again.cmd.Wait()
	start(t, launch{data: d.data}).answers("SELECT n FROM kept", "n", row{"7"})
}

func TestSQLAsAnotherUserAndWithoutAServer(t *testing.T) {
	t.Parallel()
	d := start(t, launch{uid: 65533})
	d.answers("SELECT DATABASE() AS d, CURRENT_USER() AS u", "d u", row{"sandbox", "root@localhost"})

	hide := func(argv []string) []string { // no server is installed in its mounts
		script := "mount --make-rprivate / && mount -t tmpfs none /usr/sbin && exec \"$@\""
		return append([]string{"unshare", "-m", "sh", "-c", script, "sh"}, argv...)
	}
	none := start(t, launch{wrap: hide})
	o := none.code("sql", "SELECT 1")
	if o.failed() != "DBInitError" || !strings.Contains(o.end.Error.Evalue, "mariadb-server-core") {
		t.Errorf("without a server: %+v", o.end)
	}
	if b := none.sqlBackend(); b.Available || !strings.Contains(b.Reason, "mariadb-server-core") {
		t.Errorf("/version says %+v", b)
	}
	if status := none.call("POST", "/code/context", m{"language": "sql"}, nil); status != http.StatusOK {
		t.Errorf("a context without a server: %d", status)
	}
	out, err := runToEnd(t, "serve", "--sql=nonsense", "--listen=127.0.0.1:0", "--data-dir="+t.TempDir(), "--run-dir="+t.TempDir())
	if err == nil || !strings.Contains(out, "--sql: a DSN is wanted") {
		t.Errorf("a DSN that isn't one: %v\n%s", err, out)
	}
}
