package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// serveCmd is the configuration of the daemon. A flag beats its variables, the first variable beats the next.
type serveCmd struct {
	Listen         string `env:"CELLD_LISTEN" placeholder:"HOST:PORT" help:"Address to listen on; beats --port. Port 0 takes a free one, which the log names."`
	Port           int    `env:"CELLD_PORT" default:"44772" help:"Port to listen on: on 127.0.0.1 without an access token, on all addresses with one."`
	InsecureNoAuth bool   `env:"CELLD_INSECURE_NO_AUTH" help:"Listen on all addresses although there is no access token."`

	AccessToken     string `env:"CELLD_ACCESS_TOKEN,EXECD_ACCESS_TOKEN" placeholder:"TOKEN" help:"Token that every request must carry."`
	AccessTokenFile string `env:"CELLD_ACCESS_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File that holds the access token, where nothing else gives one."`

	Workspace      string `env:"CELLD_WORKSPACE" type:"path" placeholder:"DIR" help:"Where commands and contexts start: else /workspace where it exists, else the current directory."`
	DataDir        string `env:"CELLD_DATA_DIR" type:"path" placeholder:"DIR" help:"Logs and databases: else /var/lib/celld as root, else ~/.local/state/celld."`
	RunDir         string `env:"CELLD_RUN_DIR" type:"path" placeholder:"DIR" help:"Sockets and pipes, at most 80 bytes long: else on a tmpfs."`
	Prefix         string `env:"CELLD_PREFIX" type:"path" placeholder:"DIR" help:"Where kernels and servers are installed: else ./.celld where it exists, else /opt/celld. Then PATH."`
	DefaultSession bool   `env:"CELLD_DEFAULT_SESSION" help:"Commands that name no session run in the session 'default'."`

	JupyterHost  string `env:"CELLD_JUPYTER_HOST,JUPYTER_HOST" placeholder:"URL" help:"A Jupyter Server to use, instead of one of celld's own."`
	JupyterToken string `env:"CELLD_JUPYTER_TOKEN,JUPYTER_TOKEN" placeholder:"TOKEN" help:"Token of that server."`
	JupyterPort  *int   `env:"CELLD_JUPYTER_PORT" placeholder:"PORT" help:"Port on 127.0.0.1 where SDKs look whether code can be run; with a Jupyter Server of celld's own, celld takes their connections there. Else JUPYTER_PORT, else 44771 if celld is on 44772. 0: none."`
	Bash         string `env:"CELLD_BASH" enum:"session,kernel" default:"session" help:"What runs cells of bash: session, celld's own live sessions, or kernel, a Jupyter kernel for bash."`
	Prewarm      bool   `env:"CELLD_PREWARM" help:"Start celld's own Jupyter Server at once and not at the first cell."`
	MaxContexts  int    `env:"CELLD_MAX_CONTEXTS" default:"64" help:"Code contexts at the same time. 0: any number."`
	MaxSessions  int    `env:"CELLD_MAX_SESSIONS" default:"1024" help:"Bash sessions at the same time. 0: any number."`
	MaxTerminals int    `env:"CELLD_MAX_TERMINALS" default:"512" help:"Terminals whose program has not ended, at the same time. 0: any number."`

	Warm map[string]int `env:"CELLD_WARM" mapsep:"," placeholder:"LANGUAGE=N" help:"Kernels that are started ahead, so that a new context has one at once, as python=2,javascript=1. Each takes the memory of a kernel, some 40 MB for Python, which /metrics tells."`

	SQL        string `name:"sql" env:"CELLD_SQL" default:"private" placeholder:"DSN" help:"Where SQL runs: private is a MariaDB or MySQL server of celld's own, started at the first statement; auto is one on 127.0.0.1:3306 that takes root without a password, else private; anything else is a server's DSN, as in user:password@tcp(host:3306)/database."`
	SQLMaxRows int64  `name:"sql-max-rows" env:"CELLD_SQL_MAX_ROWS" default:"1000000" help:"Rows of one result set at the most; the rest is left out, and the result says so. 0: any number."`

	Keep    time.Duration `env:"CELLD_KEEP" default:"24h" help:"How long a finished execution is remembered."`
	MaxKept int           `env:"CELLD_MAX_KEPT" default:"10000" help:"How many finished executions are remembered at the most."`
	MaxBody int64         `env:"CELLD_MAX_BODY" default:"33554432" help:"Largest JSON body, in bytes."`

	MemoryPerExecution int64 `env:"CELLD_MEMORY_PER_EXECUTION" default:"4194304" help:"Newest output of one execution kept in memory, in bytes."`
	MemoryTotal        int64 `env:"CELLD_MEMORY_TOTAL" default:"67108864" help:"The same for all executions."`
	LogPerExecution    int64 `env:"CELLD_LOG_PER_EXECUTION" default:"67108864" help:"Older output of one execution kept in the data directory, in bytes."`
	LogTotal           int64 `env:"CELLD_LOG_TOTAL" default:"1073741824" help:"The same for all executions; the oldest finished ones go first."`

	GracefulShutdown time.Duration `env:"CELLD_GRACEFUL_SHUTDOWN,EXECD_API_GRACE_SHUTDOWN" default:"10s" help:"How long a shutdown may take."`
	LogLevel         string        `env:"CELLD_LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
	LogFormat        string        `env:"CELLD_LOG_FORMAT" enum:"text,json" default:"text" help:"text or json."`
}

// address is where to listen: on loopback unless there is a token or the user said in so many words not to.
func (s *serveCmd) address() string {
	if s.Listen != "" {
		return s.Listen
	}
	host := "127.0.0.1"
	if s.AccessToken != "" || s.InsecureNoAuth {
		host = ""
	}
	return net.JoinHostPort(host, strconv.Itoa(s.Port))
}

// check fills in what has no fixed default and reports what can't be.
func (s *serveCmd) check() error {
	if s.AccessTokenFile != "" && s.AccessToken == "" {
		text, err := os.ReadFile(s.AccessTokenFile)
		if err != nil {
			return fmt.Errorf("read the access token: %w", err)
		}
		if s.AccessToken = strings.TrimSpace(string(text)); s.AccessToken == "" {
			return fmt.Errorf("the access token file %s is empty", s.AccessTokenFile)
		}
	}
	if s.AccessToken != "" { // no header can carry blanks around it
		if s.AccessToken = strings.TrimSpace(s.AccessToken); s.AccessToken == "" {
			return errors.New("the access token is blank; without a token leave it out")
		}
	}
	if s.Listen != "" {
		if _, _, err := net.SplitHostPort(s.Listen); err != nil {
			return fmt.Errorf("--listen %s: want HOST:PORT", s.Listen)
		}
	}
	if s.AccessToken == "" && s.Listen != "" && !s.InsecureNoAuth && !loopback(s.Listen) {
		return fmt.Errorf("--listen %s can be reached from other machines and there is no access token: "+
			"give one with --access-token, or say --insecure-no-auth", s.Listen)
	}
	if s.Workspace == "" {
		s.Workspace = "/workspace"
		if info, err := os.Stat(s.Workspace); err != nil || !info.IsDir() {
			wd, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("find the workspace: %w", err)
			}
			s.Workspace = wd
		}
	}
	if info, err := os.Stat(s.Workspace); err != nil || !info.IsDir() {
		return fmt.Errorf("the workspace %s is not a directory", s.Workspace)
	}
	if s.Prefix == "" {
		s.Prefix = "/opt/celld"
		if local, err := filepath.Abs(".celld"); err == nil {
			if info, err := os.Stat(local); err == nil && info.IsDir() {
				s.Prefix = local
			}
		}
	}
	warm := 0
	for language, n := range s.Warm {
		if n < 0 || language == "" {
			return fmt.Errorf("--warm %s=%d: want a language and a number of kernels", language, n)
		}
		if warm += n; warm > maxWarm {
			return fmt.Errorf("--warm: more than %d kernels", maxWarm)
		}
	}
	return s.checkDirs()
}

// maxWarm bounds the kernels that are started ahead.
const maxWarm = 64

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// maxRunDir leaves room for names of sockets, which sun_path limits to 107 bytes (unix(7)).
const maxRunDir = 80

func (s *serveCmd) checkDirs() error {
	if s.DataDir == "" {
		s.DataDir = "/var/lib/celld"
		if os.Getuid() != 0 {
			state := os.Getenv("XDG_STATE_HOME")
			if state == "" {
				home, err := os.UserHomeDir()
				if err != nil {
					return fmt.Errorf("find a data directory: %w; give one with --data-dir", err)
				}
				state = filepath.Join(home, ".local/state")
			}
			s.DataDir = filepath.Join(state, "celld")
		}
	}
	if s.RunDir == "" {
		s.RunDir = s.findRunDir()
	}
	if len(s.RunDir) > maxRunDir {
		return fmt.Errorf("the run directory %s is longer than %d bytes; give another with --run-dir", s.RunDir, maxRunDir)
	}
	return nil
}

// findRunDir looks for a tmpfs, where pipes and scripts cost no disk. The name is this data directory's own, so that
// two daemons don't meet.
func (s *serveCmd) findRunDir() string {
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if dir != "" && unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
			return filepath.Join(dir, fmt.Sprintf("celld-%d-%08x", os.Getuid(), nameOf(s.DataDir)))
		}
	}
	return filepath.Join(s.DataDir, "run")
}

// lock makes the data directory and takes it for this process; the returned file holds it.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another celld uses the data directory %s; give this one another with --data-dir", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
