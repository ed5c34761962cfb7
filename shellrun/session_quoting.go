package shellrun

import (
	"bytes"
	"iter"
	"strconv"
	"strings"
)

// commands yields the commands of what bash prints to be read again (declare -p, trap -p, alias -p), each with the
// line feed that ends it. A line feed inside quotes ends none.
func commands(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := commandLen(b)
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// commandLen returns the length of the first command of b, which isn't empty.
func commandLen(b []byte) int {
	var quote byte // what ends the quotes we are in, or 0
	raw := false   // a backslash in them is itself
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '\\' && !raw:
			i++
		case quote != 0:
			if c == quote {
				quote, raw = 0, false
			}
		case c == '\n':
			return i + 1
		case c == '"':
			quote = c
		case c == '\'':
			quote, raw = c, i == 0 || b[i-1] != '$'
		}
	}
	return len(b)
}

// declared splits a command printed by declare -p: the attributes, as "-x", and the name. ok is false for another.
func declared(command []byte) (attributes, name string, ok bool) {
	rest, ok := bytes.CutPrefix(command, []byte("declare -"))
	if !ok {
		return "", "", false
	}
	i := bytes.IndexByte(rest, ' ')
	if i < 0 {
		return "", "", false
	}
	attributes, rest = string(rest[:i]), rest[i+1:]
	if i = bytes.IndexAny(rest, "=\n"); i < 0 {
		i = len(rest)
	}
	return attributes, string(rest[:i]), true
}

// exported returns the variables that declare -p shows as exported, as NAME=value.
func exported(variables []byte) []string {
	var env []string
	for command := range commands(variables) {
		attributes, name, ok := declared(command)
		if !ok || !strings.Contains(attributes, "x") {
			continue
		}
		if _, word, ok := bytes.Cut(command, []byte("=")); ok {
			env = append(env, name+"="+unquote(bytes.TrimSuffix(word, []byte("\n"))))
		}
	}
	return env
}

// unquote reads one word as bash prints it: "…", $'…', '…' or bare.
func unquote(word []byte) string {
	switch {
	case bytes.HasPrefix(word, []byte(`$'`)) && len(word) > 2:
		return unescape(word[2 : len(word)-1])
	case bytes.HasPrefix(word, []byte(`"`)) && len(word) > 1:
		var b strings.Builder
		in := word[1 : len(word)-1]
		for i := 0; i < len(in); i++ {
			if in[i] == '\\' && i+1 < len(in) {
				i++
			}
			b.WriteByte(in[i])
		}
		return b.String()
	case bytes.HasPrefix(word, []byte(`'`)) && len(word) > 1:
		return string(word[1 : len(word)-1])
	}
	return string(word)
}

// escapes are those of $'…' that bash prints, but for octal numbers.
var escapes = map[byte]byte{'a': '\a', 'b': '\b', 'E': 0x1b, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v'}

func unescape(in []byte) string {
	var b strings.Builder
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' || i+1 == len(in) {
			b.WriteByte(in[i])
			continue
		}
		i++
		if c, ok := escapes[in[i]]; ok {
			b.WriteByte(c)
			continue
		}
		end := i
		for end < len(in) && end < i+3 && in[end] >= '0' && in[end] <= '7' {
			end++
		}
		if n, err := strconv.ParseUint(string(in[i:end]), 8, 8); err == nil {
			b.WriteByte(byte(n))
			i = end - 1
		} else {
			b.WriteByte(in[i])
		}
	}
	return b.String()
}
