// Vulncheck runs govulncheck without the network's vulnerability service: it makes a database from a pinned version
// of the module that the public one is made from. It fails on each vulnerability that the code calls, unless the
// allow-list names it with a reason.
//
//	vulncheck -govulncheck PROGRAM -allow FILE -cache DIR [PACKAGE...]
//
// A line of the allow-list is an id, blanks and the reason; # begins a comment.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// The data, and what the module proxy must give for it.
const (
	dataModule = "golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018"
	dataSum    = "h1:mfngRv0Yoh0VApsXKEN82CjD99kl7mtparN3bs3JnqI="
)

func main() {
	program := flag.String("govulncheck", "govulncheck", "the govulncheck to run")
	allowFile := flag.String("allow", "", "the allow-list")
	cache := flag.String("cache", "", "where to keep the database")
	flag.Parse()
	if *allowFile == "" || *cache == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*program, *allowFile, *cache, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

func run(program, allowFile, cache string, packages []string) error {
	allowed, err := readAllowed(allowFile)
	if err != nil {
		return err
	}
	db, err := database(cache)
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	cmd := exec.Command(program, append([]string{"-db", "file://" + db, "-format", "json"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	called, err := calledVulns(out)
	if err != nil {
		return err
	}
	return report(called, allowed)
}

// report prints what was found and fails on what isn't allowed.
func report(called map[string]string, allowed map[string]string) error {
	bad := 0
	for _, id := range sortedKeys(called) {
		if reason, ok := allowed[id]; ok {
			fmt.Printf("allowed %s: %s\n", id, reason)
			continue
		}
		bad++
		fmt.Printf("FOUND %s: %s\n", id, called[id])
	}
	for _, id := range sortedKeys(allowed) {
		if _, ok := called[id]; !ok {
			fmt.Printf("note: %s is allowed but no longer found\n", id)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d vulnerabilities are called", bad)
	}
	return nil
}

func readAllowed(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	allowed := map[string]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, " ")
		if reason = strings.TrimSpace(reason); reason == "" {
			return nil, fmt.Errorf("%s: %s has no reason", file, id)
		}
		allowed[id] = reason
	}
	return allowed, nil
}

// message is one message of govulncheck's JSON output.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module   string `json:"module"`
			Version  string `json:"version"`
			Package  string `json:"package"`
			Function string `json:"function"`
		} `json:"trace"`
	} `json:"finding"`
}

// calledVulns returns the vulnerabilities whose functions the code calls: id to a description.
func calledVulns(out []byte) (map[string]string, error) {
	summary, called := map[string]string{}, map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var m message
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read govulncheck's answer: %w", err)
		}
		if m.OSV != nil {
			summary[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			t := f.Trace[0]
			fixed := f.FixedVersion
			if fixed == "" {
				fixed = "no version yet"
			}
			called[f.OSV] = fmt.Sprintf("%s.%s (%s@%s, fixed in %s)", t.Package, t.Function, t.Module, t.Version, fixed)
		}
	}
	for id, text := range called {
		called[id] = summary[id] + ": " + text
	}
	return called, nil
}

// database makes the database unless it is there, and returns its absolute path.
func database(cache string) (string, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	_, version, _ := strings.Cut(dataModule, "@")
	dir := filepath.Join(cache, version)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	src, err := download()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := index(filepath.Join(src, "data", "osv"), tmp); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

// download fetches the data's module and returns its folder.
func download() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", dataModule)
	cmd.Dir = os.TempDir() // no module's go.mod plays a part
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", dataModule, err)
	}
	var mod struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &mod); err != nil {
		return "", err
	}
	if mod.Sum != dataSum {
		return "", fmt.Errorf("download %s: sum %s, want %s", dataModule, mod.Sum, dataSum)
	}
	return mod.Dir, nil
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
