package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// secretsFD names, in the environment of a celld that has started itself again, the descriptor that holds its secrets.
const secretsFD = "CELLD_SECRETS_FD"

// secrets are what must be neither in the environment nor in the arguments of celld, where its children could read it.
type secrets struct{ AccessToken, JupyterToken, SQL string }

var secretVariables = []string{"CELLD_ACCESS_TOKEN", "EXECD_ACCESS_TOKEN", "CELLD_JUPYTER_TOKEN", "JUPYTER_TOKEN", "CELLD_SQL"}

var secretFlags = []string{"--access-token", "--jupyter-token", "--sql"}

// hideSecrets starts celld again, in the same process, with its secrets on a descriptor, if any is in the environment
// or the arguments; the second start reads them from there. Other users' processes and, unless celld is root, its
// own user's can't look into its memory.
func (s *serveCmd) hideSecrets() error {
	if text := os.Getenv(secretsFD); text != "" {
		os.Unsetenv(secretsFD)
		if err := s.readSecrets(text); err != nil {
			return fmt.Errorf("read the secrets from descriptor %s: %w", text, err)
		}
	} else if exposed() {
		return s.startAgain()
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

func (s *serveCmd) readSecrets(fd string) error {
	n, err := strconv.Atoi(fd)
	if err != nil || n < 3 {
		return fmt.Errorf("not a descriptor: %q", fd)
	}
	f := os.NewFile(uintptr(n), "secrets")
	defer f.Close()
	var x secrets
	if err := json.NewDecoder(f).Decode(&x); err != nil {
		return err
	}
	s.AccessToken, s.JupyterToken, s.SQL = x.AccessToken, x.JupyterToken, x.SQL
	return nil
}

func exposed() bool {
	for _, name := range secretVariables {
		if _, ok := os.LookupEnv(name); ok {
			return true
		}
	}
	_, had := withoutSecrets(os.Args)
	return had
}

func (s *serveCmd) startAgain() error {
	text, err := json.Marshal(secrets{s.AccessToken, s.JupyterToken, s.SQL})
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("celld-secrets", 0) // survives the exec, and nothing else gets it
	if err != nil {
		return fmt.Errorf("hide the secrets: %w", err)
	}
	if _, err := unix.Write(fd, text); err != nil {
		return fmt.Errorf("hide the secrets: %w", err)
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return fmt.Errorf("hide the secrets: %w", err)
	}
	for _, name := range secretVariables {
		os.Unsetenv(name)
	}
	os.Setenv(secretsFD, strconv.Itoa(fd))
	args, _ := withoutSecrets(os.Args)
	return fmt.Errorf("start again: %w", unix.Exec("/proc/self/exe", args, os.Environ()))
}

// withoutSecrets returns args without the flags that hold secrets, and whether there were any.
func withoutSecrets(args []string) (rest []string, had bool) {
	for i := 0; i < len(args); i++ {
		flag, _, joined := strings.Cut(args[i], "=")
		secret := false
		for _, f := range secretFlags {
			secret = secret || flag == f
		}
		if !secret {
			rest = append(rest, args[i])
			continue
		}
		had = true
		if !joined {
			i++
		}
	}
	return rest, had
}

// nameOf makes a short name of a path.
func nameOf(path string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(path))
	return h.Sum32()
}
