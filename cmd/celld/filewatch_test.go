package main

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"
)

// change is one event of GET /files/watch.
type change struct {
	Type, Path string
	Base64     []byte `json:"path_base64"`
	Timestamp  int64
}

// change returns the next event but pings; ok is false at the end of the stream.
func (s *stream) change() (c change, ok bool) {
	s.t.Helper()
	for {
		line, err := s.frames.ReadString('\n')
		if err != nil {
			return c, false
		}
		if data, found := strings.CutPrefix(line, "data: "); found {
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				s.t.Fatalf("%q: %v", line, err)
			}
			if c.Type != "ping" {
				return c, true
			}
		}
	}
}

// awaitChange reads up to a change.
func (s *stream) awaitChange(kind, path string) change {
	s.t.Helper()
	for {
		c, ok := s.change()
		if !ok {
			s.t.Fatalf("the stream ended before %s %s", kind, path)
		}
		if c.Type == kind && c.Path == path {
			return c
		}
	}
}

func TestFilesAreWatched(t *testing.T) {
	d := start(t, launch{})
	d.refused(400, "GET", "/files/watch", nil)
	d.refused(400, "GET", "/files/watch?path=/tmp&recursive=perhaps", nil)
	d.refused(404, "GET", "/files/watch?path=/nothing/here", nil)
	if err := os.Mkdir(d.ws+"/src", 0o755); err != nil {
		t.Fatal(err)
	}
	all := d.open("/files/watch?recursive=true&path="+url.QueryEscape(d.ws), nil)
	src := d.open("/files/watch?path=src", nil)
	d.command("mkdir -p src/a/b")
	all.awaitChange("created", d.ws+"/src/a")
	all.awaitChange("created", d.ws+"/src/a/b") // what is made and removed in it before that, nobody sees
	d.command(`echo x > src/a/b/f; chmod 600 src/a/b/f; mv src/a/b/f src/a/b/g; rm src/a/b/g; printf y > $'src/\xff'`)
	all.awaitChange("removed", d.ws+"/src/a/b/g")
	if c := all.awaitChange("created", d.ws+"/src/\ufffd"); string(c.Base64) != d.ws+"/src/\xff" || c.Timestamp == 0 {
		t.Errorf("%+v", c)
	}
	if c, ok := src.change(); !ok || c.Type != "created" || c.Path != d.ws+"/src/a" {
		t.Errorf("%+v", c)
	}
	if c, ok := src.change(); !ok || c.Type != "created" || c.Path != d.ws+"/src/\ufffd" { // nothing of what is deeper
		t.Errorf("%+v", c)
	}
	d.command("rm -r src")
	src.awaitChange("removed", d.ws+"/src")
	if c, ok := src.change(); ok {
		t.Errorf("after its end: %+v", c)
	}
	// As many as there may be, and room again when they have gone.
	var open []*stream
	for range 31 {
		open = append(open, d.open("/files/watch?path=.", nil))
	}
	d.refused(429, "GET", "/files/watch?path=.", nil)
	for _, s := range open {
		s.close()
	}
	d.command("touch last")
	all.awaitChange("created", d.ws+"/last")
	d.stop() // with a client that watches
	if c, ok := all.change(); ok && c.Type != "written" && c.Type != "chmod" {
		t.Errorf("after celld's end: %+v", c)
	}
}
