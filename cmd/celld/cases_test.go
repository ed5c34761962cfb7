package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestInterruptKeyWorksWhereCelldWasStartedWithTheSignalIgnored: as nohup, or a shell without job control, starts it.
func TestInterruptKeyWorksWhereCelldWasStartedWithTheSignalIgnored(t *testing.T) {
	d := start(t, launch{wrap: func(argv []string) []string {
		return append([]string{"sh", "-c", `trap '' INT QUIT; exec "$@"`, "sh"}, argv...)
	}})
	c := d.attach(d.pty(m{"command": "trap 'kill $!; echo caught; exit 3' INT; sleep 97.96 & echo ready; wait"}), "")
	c.until("ready\r\n")
	c.typed("\x03")
	if code := c.exit(); code != 3 || !strings.Contains(c.text(), "caught") {
		t.Errorf("exit code %d, %q", code, c.text())
	}
}

// TestLineEndThatComesInTwoPieces: what follows a carriage return may be its line feed.
func TestLineEndThatComesInTwoPieces(t *testing.T) {
	d := start(t, launch{})
	g := d.gate()
	s := d.open("/command", m{"command": `printf 'a\r'; ` + g.pass() + `; printf '\nb\n'`})
	g.open()
	if o := s.rest(); !slices.Equal(o.stdout, []string{"a", "b"}) {
		t.Errorf("%q", o.stdout)
	}
}

// TestAnswersOnKeptConnectionsAreTheirOwn: whatever happens to the connections of others.
func TestAnswersOnKeptConnectionsAreTheirOwn(t *testing.T) {
	d := start(t, launch{})
	var work sync.WaitGroup
	for client := range 4 {
		work.Go(func() {
			for i := range 50 {
				want := fmt.Sprintf("%d-%d", client, i)
				a, err := d.answer(t.Context(), m{"command": "echo " + want + "; echo " + want + " >&2"})
				if err != nil || a.Stdout != want+"\n" || a.Stderr != want+"\n" {
					t.Errorf("%s: %+v, %v", want, a, err)
				}
			}
		})
	}
	work.Go(func() { // resets connections with answers unread
		for range 50 {
			conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(conn, strings.Repeat("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", 3))
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	})
	work.Wait()
}
