package proctree

import (
	"os"
	"slices"
	"strings"
)

// private are the prefixes of the daemon's own variables, which no child gets.
var private = []string{"CELLD_", "EXECD_", "JUPYTER_", "OTEL_"}

// defaults are what a child has at least, but for HOME.
var defaults = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// BaseEnv makes of the daemon's environment what children start from: without the daemon's own variables and what
// tells about its directory, with a PATH, a HOME and a LANG.
func BaseEnv(environ []string) []string {
	env := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, ok := strings.Cut(entry, "=")
		return !ok || name == "PWD" || name == "OLDPWD" || name == "_" ||
			slices.ContainsFunc(private, func(p string) bool { return strings.HasPrefix(name, p) })
	})
	add := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		if _, ok := Lookup(env, name); !ok {
			env = append(env, entry)
		}
	}
	for _, entry := range defaults {
		add(entry)
	}
	if _, ok := Lookup(env, "HOME"); !ok {
		id, _, err := identify("/etc/passwd", "/etc/group", uint32(os.Geteuid()), nil)
		if err != nil {
			id.Home = "/"
		}
		add("HOME=" + id.Home)
	}
	return env
}

// Lookup returns the value that env has for name; the last entry counts.
func Lookup(env []string, name string) (string, bool) {
	for _, entry := range slices.Backward(env) {
		if n, value, ok := strings.Cut(entry, "="); ok && n == name {
			return value, true
		}
	}
	return "", false
}

// Overlay returns env with the entries of over in place of those of the same names.
func Overlay(env []string, over ...string) []string {
	names := make(map[string]bool, len(over))
	for _, entry := range over {
		name, _, _ := strings.Cut(entry, "=")
		names[name] = true
	}
	out := make([]string, 0, len(env)+len(over)+1)
	for _, entry := range env {
		if name, _, _ := strings.Cut(entry, "="); !names[name] {
			out = append(out, entry)
		}
	}
	return append(out, over...)
}
