package proctree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ResolveDir makes an absolute path of a directory as clients name it, and checks that it is one. A leading ~ is
// HOME, $NAME and ${NAME} stand for variables of env, and what is then relative is relative to base. Any other dollar
// is itself. Empty means base. The errors are for the client; they wrap no more than a [unix.Errno].
func ResolveDir(dir, base string, env []string) (string, error) {
	path, err := expand(dir, env)
	if err != nil {
		return "", err
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", errors.New("holds a NUL")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(base, path)
	}
	fi, err := os.Stat(path)
	var pe *os.PathError
	switch {
	case errors.As(err, &pe):
		return "", fmt.Errorf("%s: %w", path, pe.Err)
	case err != nil:
		return "", fmt.Errorf("%s: %w", path, err)
	case !fi.IsDir():
		return "", fmt.Errorf("%s: %w", path, unix.ENOTDIR)
	}
	return path, nil
}

func expand(s string, env []string) (string, error) {
	if s == "~" || strings.HasPrefix(s, "~/") {
		s = "${HOME}" + s[1:]
	}
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, "$")
		b.WriteString(before)
		if !ok {
			return b.String(), nil
		}
		name, rest := variable(after)
		if name == "" {
			b.WriteByte('$')
		} else if value, ok := Lookup(env, name); ok {
			b.WriteString(value)
		} else {
			return "", fmt.Errorf("%s is not set", name)
		}
		s = rest
	}
}

// variable takes NAME or {NAME} off the beginning of s.
func variable(s string) (name, rest string) {
	if in, ok := strings.CutPrefix(s, "{"); ok {
		if name, rest, ok := strings.Cut(in, "}"); ok && ValidName(name) {
			return name, rest
		}
		return "", s
	}
	n := 0
	for n < len(s) && ValidName(s[:n+1]) {
		n++
	}
	return s[:n], s[n:]
}

// ValidName says whether name can be that of a variable: [A-Za-z_][A-Za-z0-9_]*.
func ValidName(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case c == '_', 'a' <= c|0x20 && c|0x20 <= 'z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}
