package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

func sqlBenchmarks() []benchmark {
	return []benchmark{
		{"sql-select-1", "POST /code `SELECT 1` in a warm context, request to last byte; floor: a bare net/http handler around database/sql and go-sql-driver, on the same server", sqlSelect},
		{"sql-16-contexts", "`SELECT 1` from 16 clients in 16 contexts; floor: the bare handler with 16 connections", sqlClients},
		{"sql-rows", "100,000 rows of 10 columns; floor: the bare handler, which sends each value once and not twice", sqlRows},
		{"sql-memory", "1,000,000 rows: memory of celld meanwhile", sqlMemory},
		{"sql-start", "the first `SELECT 1`, which starts the private server on data that is there; floor: mariadbd started by hand with the same flags, until `SELECT 1` has been answered", sqlStart},
	}
}

// sqlPair starts a celld with its SQL server and n contexts that are connected, and a floor on the same server.
func (r *run) sqlPair(ctx context.Context, n int) (*daemon, []string, *floor, error) {
	d, err := r.sqlCelld(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	ids := make([]string, n)
	for i := range ids {
		made, err := askJSON[struct{ ID string }](ctx, d.peer, http.MethodPost, "/code/context", `{"language":"sql"}`)
		if err != nil {
			return nil, nil, nil, err
		}
		ids[i] = made.ID
		if err := d.do(ctx, cell(ids[i], "SELECT 1")); err != nil {
			return nil, nil, nil, err
		}
	}
	f, err := r.floor("sql", "root@unix("+filepath.Join(d.runDir, "m/s")+")/sandbox")
	return d, ids, f, err
}

// sqlCelld starts a celld whose SQL server can reach its directories.
func (r *run) sqlCelld(ctx context.Context) (*daemon, error) {
	if _, err := exec.LookPath("mariadbd"); err != nil {
		return nil, unavailable("images/setup-mariadb.sh installs MariaDB")
	}
	if err := errors.Join(os.Chmod(r.dir, 0o711), os.Chmod(r.fast, 0o711)); err != nil {
		return nil, err
	}
	return r.celld(ctx)
}

// bare is the same for the floor's handler.
func bare(code string) call { return call{path: "/sql", body: object("code", code)} }

func sqlSelect(ctx context.Context, r *run) error {
	d, ids, f, err := r.sqlPair(ctx, 1)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: latencies(f.peer, bare("SELECT 1")), celld: latencies(d.peer, cell(ids[0], "SELECT 1")),
		warm: 200, n: pick(r, 500, 2000, 5000), slice: 250, figures: []figure{p50(atMost(1.5)), p99(atMost(2))},
	})
}

func sqlClients(ctx context.Context, r *run) error {
	d, ids, f, err := r.sqlPair(ctx, 16)
	if err != nil {
		return err
	}
	total := pick(r, 3200, 16000, 32000)
	return r.compare(ctx, contest{
		floor: perSecond(f.peer, 16, total, func(int) call { return bare("SELECT 1") }),
		celld: perSecond(d.peer, 16, total, func(i int) call { return cell(ids[i], "SELECT 1") }),
		warm:  1, n: 1, figures: []figure{middle("rate", "/s", atLeast(0.9))},
	})
}

// manyRows selects rows of ten columns, the last of which is the only one with a Q.
func manyRows(n int) string {
	return fmt.Sprintf("SELECT seq AS a, seq*2 AS b, seq/7 AS c, 'some text' AS d, NULL AS e, seq MOD 3 AS f, "+
		"CONCAT('row ', seq) AS g, DATE'2024-01-02' AS h, 1.5e0 AS i, 'Q' AS j FROM seq_1_to_%d", n)
}

func sqlRows(ctx context.Context, r *run) error {
	d, ids, f, err := r.sqlPair(ctx, 1)
	if err != nil {
		return err
	}
	const n = 100_000
	ours, theirs := cell(ids[0], manyRows(n)), bare(manyRows(n))
	ours.payload, theirs.payload = 2*n+100, n // text, text/plain, and the beginning for people
	rate := func(s side) side {
		return func(ctx context.Context, samples int) ([]float64, error) {
			got, err := s(ctx, samples)
			for i := range got {
				got[i] = n / got[i]
			}
			return got, err
		}
	}
	return r.compare(ctx, contest{
		floor: rate(latencies(f.peer, theirs)), celld: rate(latencies(d.peer, ours)),
		warm: 1, n: pick(r, 2, 4, 8), slice: 1, figures: []figure{middle("rate", "rows/s", atLeast(0.7))},
	})
}

func sqlMemory(ctx context.Context, r *run) error {
	d, ids, _, err := r.sqlPair(ctx, 1)
	if err != nil {
		return err
	}
	const n = 1_000_000
	c := cell(ids[0], manyRows(n))
	c.payload = 2*n + 100
	held, err := peak(d.pid, func() error { return d.do(ctx, c) })
	if err != nil {
		return err
	}
	r.single("peak memory", "MB", held/mb, atMost(64))
	return nil
}

func sqlStart(ctx context.Context, r *run) error {
	first, err := r.sqlCelld(ctx)
	if err != nil {
		return err
	}
	one := call{path: "/code", body: `{"context":{"language":"sql"},"code":"SELECT 1"}`}
	began := time.Now()
	if err := first.do(ctx, one); err != nil {
		return err
	}
	r.single("first query ever, the data directory is made", "ms", time.Since(began).Seconds(), atMost(20))
	if err := first.stop(); err != nil {
		return err
	}
	template := filepath.Join(first.data(), "sql")
	copyTo := func(dir string) error {
		return exec.CommandContext(ctx, "cp", "-a", template, dir).Run()
	}
	f, err := r.floor("mariadbd")
	if err != nil {
		return err
	}
	count := 0
	floor := func(_ context.Context, n int) (got []float64, err error) {
		for range n {
			count++
			dir := filepath.Join(r.dir, fmt.Sprint("sql", count))
			if err := copyTo(dir); err != nil {
				return nil, err
			}
			answer, err := f.do(job{Op: "start", Text: dir})
			if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
				return nil, err
			}
			got = append(got, answer.Total)
		}
		return got, nil
	}
	celld := func(ctx context.Context, n int) (got []float64, err error) {
		for range n {
			d, err := r.celld(ctx)
			if err != nil {
				return nil, err
			}
			if err := copyTo(filepath.Join(d.data(), "sql")); err != nil {
				return nil, err
			}
			began := time.Now()
			if err := d.do(ctx, one); err != nil {
				return nil, err
			}
			got = append(got, time.Since(began).Seconds())
			if err := errors.Join(d.stop(), os.RemoveAll(d.data())); err != nil {
				return nil, err
			}
		}
		return got, nil
	}
	return r.compare(ctx, contest{floor: floor, celld: celld, warm: 1, n: pick(r, 2, 4, 8), slice: 1,
		figures: []figure{middle("time", "ms", atMost(1.1))}})
}
