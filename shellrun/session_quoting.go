package shellrun

import (
	"bytes"
	"iter"
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
	var quote byte // 0, ', " or $ for $'…'
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote == 0 && c == '\n':
			return i + 1
		case quote == 0 && c == '\'' && i > 0 && b[i-1] == '$':
			quote = '$'
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == '$' && c == '\'', quote != 0 && c == quote:
			quote = 0
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
