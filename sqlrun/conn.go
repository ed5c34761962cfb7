package sqlrun

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"
)

const (
	connectWithin = 10 * time.Second
	stopWithin    = 2500 * time.Millisecond
	// killEvery is how often it is killed until then: a KILL that comes before the statement has begun is lost.
	killEvery = 200 * time.Millisecond
)

// idleFor is set where the server lets a connection alone: contexts stay open, and clients may read slowly. In seconds.
const idleFor = "31536000"

const codeNoDatabase = 1049 // ER_BAD_DB_ERROR

// conn is an open connection. One goroutine uses it, but for kill.
type conn struct {
	config *mysql.Config
	dc     driver.Conn // the driver's end; closing it says goodbye
	tap    *tap
	p      *packets
	id     string // the server's, for KILL

	// stopWithin is how long a statement may take to end once it is to be stopped; then the connection is given up.
	stopWithin time.Duration
}

// connect opens a connection.
func connect(ctx context.Context, config *mysql.Config) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectWithin, fmt.Errorf("no answer within %v", connectWithin))
	defer cancel()
	c := &conn{config: config, stopWithin: stopWithin}
	connector, err := mysql.NewConnector(tapped(config, func(t *tap) { c.tap = t }))
	if err != nil {
		return nil, err
	}
	if c.dc, err = connector.Connect(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if c.tap != nil && c.tap.failed != nil {
			err = c.tap.failed
		}
		return nil, err
	}
	c.p = newPackets(c.tap)
	stop := context.AfterFunc(ctx, func() { c.tap.Close() })
	err = c.prepare()
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// prepare sets what every context starts with.
func (c *conn) prepare() error {
	first := new(firstValue)
	if err := c.run("SET SESSION wait_timeout="+idleFor+", net_write_timeout="+idleFor+"; SELECT CONNECTION_ID()", first); err != nil {
		return err
	}
	c.id = first.value
	if _, err := strconv.ParseUint(c.id, 10, 64); err != nil {
		return errMalformed
	}
	if c.config.DBName != "" {
		return nil
	}
	err := c.run("USE "+Database, new(firstValue))
	var refused *Error
	if errors.As(err, &refused) && refused.Code == codeNoDatabase { // not made each time: that waits for tables locked there
		err = c.run("CREATE DATABASE IF NOT EXISTS "+Database+"; USE "+Database, new(firstValue))
	}
	if errors.As(err, &refused) {
		return nil // somebody's server that doesn't let us; it may be used without
	}
	return err
}

// run sends text and reads the answer.
func (c *conn) run(text string, to Answer) error {
	if err := c.p.command(commandQuery, text); err != nil {
		return err
	}
	r := &reading{p: c.p, eof: c.tap.capabilities&capDeprecateEOF == 0, call: verb(text) == "CALL", to: to}
	return r.all()
}

// inStep says whether the connection can be used after err.
func inStep(err error) bool {
	var e *Error
	return err == nil || errors.Is(err, errRow) || errors.As(err, &e)
}

// runUntil is run, but stops the statement at the server when ctx is done. killed says that it was tried.
func (c *conn) runUntil(ctx context.Context, text string, to Answer) (killed bool, err error) {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	killer := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killer)
		c.stop(running)
	})
	err = c.run(text, &until{ctx, to})
	end()
	if stop() {
		return false, err
	}
	<-killer
	if inStep(err) { // a KILL that came late would hit the next statement
		if late := c.run("DO 0", new(firstValue)); !inStep(late) {
			err = late
		}
	}
	return true, err
}

// until passes an answer on until ctx is done: some statements that were killed end as if they were complete.
type until struct {
	ctx context.Context
	to  Answer
}

// Columns implements Answer.
func (u *until) Columns(c []Column) {
	if u.ctx.Err() == nil {
		u.to.Columns(c)
	}
}

// Row implements Answer.
func (u *until) Row(values [][]byte) {
	if u.ctx.Err() == nil {
		u.to.Row(values)
	}
}

// Done implements Answer.
func (u *until) Done(s Summary) {
	if u.ctx.Err() == nil {
		u.to.Done(s)
	}
}

// stop kills the statement under way until running is done. If that isn't soon, it closes the connection.
func (c *conn) stop(running context.Context) {
	defer time.AfterFunc(c.stopWithin, func() { c.tap.Close() }).Stop()
	for running.Err() == nil {
		c.kill(running) // if it can't be done it is tried again
		next := time.NewTimer(killEvery)
		select {
		case <-next.C:
		case <-running.Done():
		}
		next.Stop()
	}
}

// kill ends the statement that runs on c, from another connection.
func (c *conn) kill(ctx context.Context) error {
	config := c.config.Clone()
	config.DBName = ""
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	other, err := connector.Connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	_, err = other.(driver.ExecerContext).ExecContext(ctx, "KILL QUERY "+c.id, nil)
	return err
}

// alive says whether the server still holds the connection, without a round trip.
func (c *conn) alive() bool {
	sc, ok := c.tap.raw.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		// Something to read would be the server's goodbye: nothing was asked.
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && alive
}

// close ends the connection; the server then rolls back and drops what was its.
func (c *conn) close() { c.dc.Close() }

// firstValue keeps the first value that comes.
type firstValue struct{ value string }

// Columns implements Answer.
func (f *firstValue) Columns([]Column) {}

// Row implements Answer.
func (f *firstValue) Row(values [][]byte) {
	if f.value == "" && len(values) > 0 {
		f.value = string(values[0])
	}
}

// Done implements Answer.
func (f *firstValue) Done(Summary) {}

// verb is the first word of a statement, in capitals, comments and opening parentheses apart. It names errors; it never
// decides whether there are rows.
func verb(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f\v(;")
		var end string
		switch {
		case strings.HasPrefix(text, "/*"):
			end = "*/"
		case strings.HasPrefix(text, "#"), strings.HasPrefix(text, "--"):
			end = "\n"
		default:
			n := strings.IndexFunc(text, func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') })
			if n < 0 {
				n = len(text)
			}
			return strings.ToUpper(text[:n])
		}
		_, after, ok := strings.Cut(text, end)
		if !ok {
			return ""
		}
		text = after
	}
}
