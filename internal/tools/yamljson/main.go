// Yamljson prints a YAML file as JSON on one line, its keys in the order of the file.
//
//	go run ./yamljson openapi.yaml > openapi.gen.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: yamljson FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "yamljson:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	var out bytes.Buffer
	if err := write(&out, &doc); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	out.WriteByte('\n')
	_, err = os.Stdout.Write(out.Bytes())
	return err
}

func write(out *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.DocumentNode:
		return write(out, n.Content[0])
	case yaml.AliasNode:
		return write(out, n.Alias)
	case yaml.MappingNode:
		return list(out, '{', '}', len(n.Content)/2, func(i int) error {
			key, err := json.Marshal(n.Content[2*i].Value)
			if err != nil {
				return err
			}
			out.Write(key)
			out.WriteByte(':')
			return write(out, n.Content[2*i+1])
		})
	case yaml.SequenceNode:
		return list(out, '[', ']', len(n.Content), func(i int) error { return write(out, n.Content[i]) })
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	out.Truncate(out.Len() - 1) // Encode adds a line feed
	return nil
}

// list writes n items between two brackets, with commas.
func list(out *bytes.Buffer, open, end byte, n int, item func(int) error) error {
	out.WriteByte(open)
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := item(i); err != nil {
			return err
		}
	}
	out.WriteByte(end)
	return nil
}
