package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"
)

// serveSQLFloor serves a bare handler around database/sql on a free port, until the process ends.
func serveSQLFloor(dsn string) (address string, err error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return "", err
	}
	db.SetMaxIdleConns(32)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sql", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Code string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Trailer", "Exit-Status")
		if err := floorQuery(r.Context(), w, db, q.Code); err != nil {
			w.Header().Set("Exit-Status", err.Error())
			return
		}
		w.Header().Set("Exit-Status", "0")
	})
	go http.Serve(l, mux)
	return l.Addr().String(), nil
}

// floorQuery writes the rows of a query as JSON, once.
func floorQuery(ctx context.Context, w http.ResponseWriter, db *sql.DB, code string) error {
	rows, err := db.QueryContext(ctx, code)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	head, err := json.Marshal(columns)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	out.WriteString(`{"columns":` + string(head) + `,"rows":[`)
	values := make([]sql.RawBytes, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	var b []byte
	for n := 0; rows.Next(); n++ {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		b = b[:0]
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for i, v := range values {
			if i > 0 {
				b = append(b, ',')
			}
			if v == nil {
				b = append(b, "null"...)
			} else {
				b = strconv.AppendQuote(b, string(v)) // it is all ASCII
			}
		}
		out.Write(append(b, ']'))
	}
	out.WriteString("]}")
	return errors.Join(rows.Err(), out.Flush())
}

// mariadbdJob starts a server on the data in a copy of celld's directory, asks it for 1 and stops it; its Total is the
// time from the start to the answer.
func mariadbdJob(j job) (r result, err error) {
	socket := filepath.Join(j.Text, "s")
	cmd := exec.Command("mariadbd", "--no-defaults", "--datadir="+filepath.Join(j.Text, "data"), "--tmpdir="+filepath.Join(j.Text, "tmp"),
		"--innodb-buffer-pool-size=16M", "--innodb-log-buffer-size=2M", "--innodb-log-file-size=16M", "--key-buffer-size=1M",
		"--performance-schema=OFF", "--skip-log-bin", "--skip-name-resolve", "--character-set-server=utf8mb4",
		"--local-infile=0", "--max-allowed-packet=64M", "--innodb-flush-log-at-trx-commit=2",
		"--socket="+socket, "--skip-networking", "--pid-file="+filepath.Join(j.Text, "pid"))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir = "/"
	said, err := cmd.StderrPipe()
	if err != nil {
		return r, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return r, err
	}
	lines := bufio.NewScanner(said)
	for ready := false; !ready; ready = strings.Contains(lines.Text(), "ready for connections") {
		if !lines.Scan() {
			return r, errors.Join(errors.New("mariadbd did not start"), cmd.Wait())
		}
	}
	db, err := sql.Open("mysql", "root@unix("+socket+")/")
	if err != nil {
		return r, err
	}
	var one int
	err = db.QueryRow("SELECT 1").Scan(&one)
	r.Total = time.Since(began).Seconds()
	db.Close()
	cmd.Process.Signal(syscall.SIGTERM)
	for lines.Scan() {
	}
	return r, errors.Join(err, cmd.Wait())
}
