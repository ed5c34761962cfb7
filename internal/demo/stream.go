package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

type object = map[string]any

// outcome is what a stream of events comes to.
type outcome struct {
	stdout, stderr string
	result         map[string]string // the last one: MIME type to text
	failed         string            // "": it ended well
}

// event is what the demo reads of an event.
type event struct {
	Type, Text, State, Detail string
	Count                     int `json:"execution_count"`
	Took                      int `json:"execution_time"` // ms
	Results                   map[string]any
	Error                     struct {
		Name  string `json:"ename"`
		Value string `json:"evalue"`
	}
}

// send makes a request; an answer other than 2xx is an error.
func (d *daemon) send(ctx context.Context, method, path string, body object) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode < 300 {
		return resp, err
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(resp.Body)
	return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, said)
}

// ask decodes the answer into x.
func (d *daemon) ask(ctx context.Context, method, path string, body object, x any) error {
	resp, err := d.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(x)
}

// run has a scene's code run and prints the events as they come.
func (d *daemon) run(ctx context.Context, s scene) (o outcome, err error) {
	for _, key := range []string{"command", "code"} {
		if code, ok := s.body[key].(string); ok {
			show(">", code)
		}
	}
	resp, err := d.send(ctx, http.MethodPost, s.path, s.body)
	if err != nil {
		return o, err
	}
	defer resp.Body.Close()
	last := ""
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF && (last == "error" || last == "execution_complete") {
			return o, nil
		} else if err != nil {
			return o, fmt.Errorf("the stream ended with %q: %w", last, err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return o, fmt.Errorf("event %s: %w", data, err)
		}
		if last == "error" || last == "execution_complete" {
			return o, errors.New("an event after the end: " + data)
		}
		last = e.Type
		show(e.Type, o.add(e))
		if e.Type == "stdout" && s.interrupt != "" {
			show("(interrupt)", "DELETE "+s.interrupt)
			resp, err := d.send(ctx, http.MethodDelete, s.interrupt, nil)
			if err != nil {
				return o, err
			}
			resp.Body.Close()
		}
	}
}

func show(name, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Printf("  %-18s %s\n", name, line)
		name = ""
	}
}

// add takes an event in and returns what people want to see of it.
func (o *outcome) add(e event) string {
	switch e.Type {
	case "stdout":
		o.stdout += strings.TrimSuffix(e.Text, "\n") + "\n"
	case "stderr":
		o.stderr += strings.TrimSuffix(e.Text, "\n") + "\n"
	case "execution_count":
		return fmt.Sprint(e.Count)
	case "execution_complete":
		return fmt.Sprint(e.Took, " ms")
	case "status":
		return e.State + " " + e.Detail
	case "error":
		o.failed = e.Error.Name + ": " + e.Error.Value
		return o.failed
	case "result":
		o.result = map[string]string{}
		shown := ""
		for _, mime := range slices.Sorted(maps.Keys(e.Results)) {
			o.result[mime] = fmt.Sprint(e.Results[mime])
			if mime != "text" && mime != "text/plain" {
				shown += fmt.Sprintf("[%s, %d bytes]\n", mime, len(o.result[mime]))
			}
		}
		return shown + o.result["text/plain"]
	}
	return e.Text
}
