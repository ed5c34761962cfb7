package backends

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// EnvFile is the path of a file to which clients add variables for what is run later; empty: there is none. An entry is
// NAME='value', where the value is taken as it is, or NAME="value", where \\, \", \n, \r and \t are what they are in C.
// A value may go over several lines. The last entry of a name counts; lines that are nothing of this are passed over.
type EnvFile string

// maxEnvFile is the size of the largest file of variables that is read, in bytes.
const maxEnvFile = 1 << 20

// under returns env with the file's variables where env has none of that name. It reads the file anew; one that isn't
// there has no variables.
func (f EnvFile) under(env map[string]string) (map[string]string, error) {
	if f == "" {
		return env, nil
	}
	text, err := f.read()
	if errors.Is(err, fs.ErrNotExist) {
		return env, nil
	}
	if err != nil {
		return nil, Refuse(Invalid, "read the variables in the file that EXECD_ENVS names: %w", err)
	}
	all := parseEnv(text)
	maps.Copy(all, env)
	return all, nil
}

func (f EnvFile) read() (string, error) {
	file, err := os.OpenFile(string(f), os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", f)
	case info.Size() > maxEnvFile:
		return "", fmt.Errorf("%s is larger than %d bytes", f, maxEnvFile)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile))
	return string(text), err
}

// parseEnv takes the entries out of a file's text.
func parseEnv(text string) map[string]string {
	env := map[string]string{}
	for text != "" {
		name, value, rest, ok := envEntry(text)
		if ok {
			env[name] = value
			text = rest
		} else {
			_, text, _ = strings.Cut(text, "\n")
		}
	}
	return env
}

// envEntry takes an entry and the end of its last line off the beginning of text.
func envEntry(text string) (name, value, rest string, ok bool) {
	name, rest, ok = strings.Cut(text, "=")
	if !ok || !validName(name) || rest == "" {
		return "", "", "", false
	}
	quote := rest[0]
	switch rest = rest[1:]; quote {
	case '\'':
		value, rest, ok = strings.Cut(rest, "'")
	case '"':
		value, rest, ok = unquote(rest)
	default:
		ok = false
	}
	end, rest, _ := strings.Cut(rest, "\n")
	ok = ok && strings.TrimRight(end, " \t\r") == "" && strings.IndexByte(value, 0) < 0
	return name, value, rest, ok
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// unquote takes text up to a double quote that ends it. An escape that isn't known stands for itself.
func unquote(text string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '"' {
			return b.String(), text[i+1:], true
		}
		if c != '\\' || i+1 == len(text) {
			b.WriteByte(c)
			continue
		}
		i++
		switch text[i] {
		case '\\', '"':
			b.WriteByte(text[i])
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		default:
			b.WriteByte('\\')
			b.WriteByte(text[i])
		}
	}
	return "", "", false
}
