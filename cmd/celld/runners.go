package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/internal/proctree"
	"github.com/celld/celld/jupyter"
	"github.com/celld/celld/openapi"
	"github.com/celld/celld/ptyrun"
	"github.com/celld/celld/shellrun"
	"github.com/celld/celld/sqlrun"
)

// aliases are other names of languages. They live here and nowhere else.
var aliases = map[string]string{
	"py": "python", "python3": "python", "ipython": "python",
	"js": "javascript", "node": "javascript", "ts": "typescript",
	"sh": "bash", "shell": "bash", "golang": "go",
}

// preferred are the kernels that are used where they are installed, whatever else there is for their language.
var preferred = map[string]string{"go": "gonb"}

// jupyterStart is what a first cell waits for celld's own Jupyter Server, which a busy machine or a cold disk makes slow.
// One that can't be started is told at once.
const jupyterStart = 45 * time.Second

// sqlAnswerWithin is what /version waits for an SQL server.
const sqlAnswerWithin = 5 * time.Second

// kernelLanguages are the languages that run in Jupyter kernels. bash is one of them with --bash=kernel only.
var kernelLanguages = []string{"python", "javascript", "typescript", "java", "go"}

const (
	bashLanguage = "bash"
	bashSession  = "session" // of --bash
	bashKernel   = "kernel"
)

// install says how to get a kernel for a language.
var install = map[string]string{
	"python":     "images/setup-python.sh installs Jupyter and ipykernel for it",
	"javascript": "images/setup-kernels.sh installs tslab for it, which needs Node.js",
	"typescript": "images/setup-kernels.sh installs tslab for it, which needs Node.js",
	"java":       "images/setup-kernels.sh installs jjava for it, which needs a JDK, 11 or newer",
	"go":         "make build makes " + goKernel + " for it, which belongs beside celld, below the prefix or on PATH; gonb will do too",
	"bash":       "images/setup-kernels.sh installs bash_kernel for it; without --bash=kernel none is needed",
}

// runners are the backends and what they need.
type runners struct {
	table    map[string]backends.Backend
	fallback backends.Stateful
	kernels  *jupyter.Server
	managed  *jupyter.Managed // nil with another's Jupyter Server
	sql      *sqlrun.Server
	hub      *shellrun.Sessions
	runDir   string

	languages []string // that run in kernels
	bash      string   // its path, empty if there is none
	askBash   sync.Once
	bashSays  string // its version, once it was asked
}

// backends makes the table: who runs each kind and each language.
func (s *serveCmd) backends(log *slog.Logger) (*runners, error) {
	if err := os.MkdirAll(s.RunDir, 0o711); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	r := &runners{runDir: s.RunDir}
	if err := r.clear(); err != nil { // of an earlier celld
		return nil, err
	}
	env, envs, err := s.childEnv()
	if err != nil {
		return nil, err
	}
	var oomScore *int
	if score, err := proctree.ChildOOMScore(); err == nil { // without it they die when celld would
		oomScore = &score
	}
	shell := &shellrun.Runner{Workspace: s.Workspace, Env: env, OOMScore: oomScore, Grace: backends.Grace}
	bash, _ := exec.LookPath("bash") // absolute, or empty: sessions then say so
	sh, _ := exec.LookPath("sh")
	if r.hub, err = shellrun.NewSessions(filepath.Join(s.RunDir, sessionsDir)); err != nil {
		return nil, err
	}
	conf := jupyter.ServerConfig{WarmCwd: s.Workspace, Aliases: aliases, Names: preferred}
	if s.JupyterHost != "" {
		conf.Client, err = jupyter.NewClient(jupyter.ClientConfig{URL: hostURL(s.JupyterHost), Token: s.JupyterToken})
		if err != nil {
			return nil, fmt.Errorf("--jupyter-host: %w", err)
		}
	} else {
		r.managed = jupyter.NewManaged(jupyter.ManagedConfig{
			Prefix: s.Prefix, RunDir: filepath.Join(s.RunDir, jupyterDir), Log: filepath.Join(s.DataDir, "jupyter.log"), Env: env,
			OOMScore: oomScore, AnswerWithin: jupyterStart, KernelDirs: []string{s.Prefix, filepath.Join(s.RunDir, specsDir)},
		})
		if err := writeGoKernelspec(filepath.Join(s.RunDir, specsDir), s.Prefix); err != nil {
			return nil, err
		}
		conf.Managed = r.managed
	}
	r.kernels = jupyter.NewServer(conf)
	r.sql, err = sqlrun.NewServer(sqlrun.Config{DSN: s.SQL, Private: sqlrun.NewPrivate(sqlrun.PrivateConfig{
		Dir: filepath.Join(s.DataDir, "sql"), RunDir: filepath.Join(s.RunDir, sqlDir), Env: env, OOMScore: oomScore,
	})})
	if err != nil {
		return nil, fmt.Errorf("--sql: %w", err)
	}
	r.languages = kernelLanguages
	others := []string{backends.KindSQL, bashLanguage}
	if s.Bash == bashKernel {
		r.languages = append(slices.Clone(kernelLanguages), bashLanguage)
		others = others[:1]
	}
	kernels := &backends.Kernels{Server: r.kernels, Remote: r.managed == nil, Languages: r.languages, Others: others, Runner: shell, Envs: envs, Install: install}
	command := &backends.Command{Runner: shell, Envs: envs}
	r.fallback = kernels
	r.table = map[string]backends.Backend{
		backends.KindCommand:    command,
		backends.KindBackground: command,
		backends.KindSession:    &backends.Sessions{Hub: r.hub, Runner: shell, Bash: bash, Envs: envs},
		backends.KindPTY:        &backends.Terminals{Runner: &ptyrun.Runner{Shell: cmp.Or(bash, sh)}, Shell: shell, Envs: envs},
	}
	r.table[backends.KindSQL] = &backends.SQL{Server: r.sql, Runner: shell, Envs: envs, MaxRows: s.SQLMaxRows}
	r.bash = bash
	r.table[bashLanguage] = &backends.Sessions{Hub: r.hub, Runner: shell, Bash: bash, Envs: envs}
	for _, language := range r.languages {
		r.table[language] = kernels
	}
	for language := range s.Warm {
		name := strings.ToLower(language)
		if b, known := r.table[cmp.Or(aliases[name], name)]; known && b != backends.Backend(kernels) {
			return nil, fmt.Errorf("--warm: %s runs in no kernel that could be started ahead", language)
		}
	}
	if len(s.Warm) > 0 {
		r.kernels.Warm(s.Warm, func(language string, err error) { log.Warn("start a kernel ahead", "language", language, "error", err) })
	}
	if s.Prewarm {
		go r.prewarm(log)
	}
	return r, nil
}

// childEnv returns the environment that everything starts from, and the file of variables that comes on top of it.
func (s *serveCmd) childEnv() (env []string, envs backends.EnvFile, err error) {
	mark, err := proctree.DaemonMark()
	if err != nil {
		return nil, "", err
	}
	env = append(proctree.BaseEnv(os.Environ()), proctree.DaemonEnv+"="+mark)
	if path := os.Getenv("EXECD_ENVS"); path != "" {
		if path, err = filepath.Abs(path); err != nil {
			return nil, "", fmt.Errorf("EXECD_ENVS: %w", err)
		}
		envs = backends.EnvFile(path)
		env = append(env, "EXECD_ENVS="+path) // clients write to it by commands
	}
	if port, given := s.givenJupyterPort(); given && port > 0 {
		env = append(env, "JUPYTER_PORT="+strconv.Itoa(port)) // clients look for it by commands
	}
	return env, envs, nil
}

// prewarm starts the Jupyter Server; who needs it later waits for the same start.
func (r *runners) prewarm(log *slog.Logger) {
	if _, err := r.kernels.Kernelspecs(context.Background(), false); err != nil {
		log.Warn("prewarm", "error", err)
	}
}

// warm tells of the kernels that were started ahead.
func (r *runners) warm() []openapi.WarmKernels {
	var all []openapi.WarmKernels
	for _, w := range r.kernels.Warmth() {
		all = append(all, openapi.WarmKernels{Language: w.Language, Wanted: w.Want, Ready: w.Ready, MemoryMib: float64(w.Memory) / (1 << 20)})
	}
	return all
}

// hostURL takes host:port for a URL, as the incumbent's images give it.
func hostURL(host string) string {
	if u, err := url.Parse(host); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		return host
	}
	return "http://" + host
}

// close ends what the runners hold. The Controller has closed their contexts.
func (r *runners) close(ctx context.Context) error {
	err := r.kernels.Close(ctx)
	if r.managed != nil {
		err = errors.Join(err, r.managed.Close(ctx))
	}
	err = errors.Join(err, r.sql.Close(ctx), r.hub.Close(), r.clear())
	os.Remove(r.runDir) // unless there is something of others in it
	return err
}

// Names in the run directory, short because of sun_path.
const (
	sessionsDir = "s"
	jupyterDir  = "j"
	sqlDir      = "m"
	specsDir    = "k"
)

// clear removes from the run directory what is celld's.
func (r *runners) clear() error {
	var err error
	for _, dir := range []string{sessionsDir, jupyterDir, sqlDir, specsDir} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(r.runDir, dir)))
	}
	return err
}

// version tells what there is. It starts the Jupyter Server, since only that knows its kernels.
func (r *runners) version(ctx context.Context) openapi.VersionInfo {
	goVersion := runtime.Version()
	info := openapi.VersionInfo{Version: version, Go: &goVersion}
	for _, kind := range []string{backends.KindCommand, backends.KindSession, backends.KindPTY} {
		info.Backends = append(info.Backends, openapi.BackendInfo{Name: kind, Available: true})
	}
	specs, err := r.kernels.Kernelspecs(ctx, true)
	jupyterInfo := openapi.BackendInfo{Name: "jupyter", Available: err == nil}
	hint := "make setup, or images/setup-python.sh, installs Jupyter and the Python kernel"
	if err != nil {
		reason := err.Error()
		jupyterInfo.Reason, jupyterInfo.Hint = &reason, &hint
	}
	sqlInfo, sqlLanguage := r.sqlVersion(ctx)
	info.Backends = append(info.Backends, jupyterInfo, sqlInfo)
	info.Languages = append(r.languagesHere(ctx, specs, err), sqlLanguage)
	return info
}

// sqlVersion tells which SQL server there is.
func (r *runners) sqlVersion(ctx context.Context) (openapi.BackendInfo, openapi.LanguageInfo) {
	ctx, cancel := context.WithTimeout(ctx, sqlAnswerWithin)
	defer cancel()
	what, err := r.sql.Describe(ctx)
	b := openapi.BackendInfo{Name: backends.KindSQL, Available: err == nil, Detail: &what}
	l := openapi.LanguageInfo{Name: backends.KindSQL, Available: err == nil}
	if err != nil {
		reason, hint := err.Error(), "images/setup-mariadb.sh installs a server, --sql names another"
		b.Reason, b.Hint, l.Reason, l.Hint = &reason, &hint, &reason, &hint
	}
	return b, l
}
